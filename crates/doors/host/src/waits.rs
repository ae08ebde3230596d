//! Requests that a mount's device has not completed, as JSON and in words.

use crate::text::{date, duration};
use kedge_device::{LATE, Pending};
use serde_json::{Value, json};

/// The name of the member in a mount's information and counters.
pub const MEMBER: &str = "device_requests";

/// The pending requests as JSON. Times are in nanoseconds or in seconds since 1970; zero means that
/// no request is pending.
pub fn to_json(pending: &Pending) -> Value {
    let oldest = pending.oldest.as_ref();
    json!({
        "outstanding": pending.outstanding,
        "late": pending.late,
        "answered_late": pending.answered_late,
        "oldest": oldest.map(|oldest| oldest.op),
        "oldest_ns": oldest.map_or(0, |oldest| oldest.age.as_nanos() as u64),
        "oldest_since": oldest.map(|oldest| oldest.since),
    })
}

/// Replaces the time in `tree`, a mount's report, by a date.
pub fn write_date(tree: &mut Value) {
    if let Some(sec) = tree[MEMBER]["oldest_since"].as_i64() {
        tree[MEMBER]["oldest_since"] = json!(date(sec));
    }
}

/// A headline if the device does not complete requests. [`write_date`] must have been called on
/// `tree`.
pub fn text(tree: &Value) -> Option<String> {
    let requests = &tree[MEMBER];
    let number = |name: &str| requests[name].as_u64().unwrap_or(0);
    let op = requests["oldest"].as_str()?;
    if number("late") == 0 {
        return None;
    }
    Some(format!(
        "does not answer since {}: {} of {} requests wait for more than {} s, the oldest, a {}, for {}",
        requests["oldest_since"].as_str().unwrap_or("?"),
        number("late"),
        number("outstanding"),
        LATE.as_secs(),
        if op == "write_zeroes" { "zeroing" } else { op },
        duration(number("oldest_ns")),
    ))
}

#[cfg(test)]
#[path = "waits_tests.rs"]
mod tests;
