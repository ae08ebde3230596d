//! Requests that a mount's device has not answered: as the mount tells of them, and in words.

use crate::text::{date, duration};
use kedge_device::{LATE, Pending};
use serde_json::{Value, json};

/// The member of a mount's information and counters.
pub const MEMBER: &str = "device_requests";

/// Of a gauge, zero is nothing. Times are nanoseconds, and seconds since 1970.
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

/// Writes the moment in `tree`, which a mount told, as others are written.
pub fn write_date(tree: &mut Value) {
    if let Some(sec) = tree[MEMBER]["oldest_since"].as_i64() {
        tree[MEMBER]["oldest_since"] = json!(date(sec));
    }
}

/// What nobody should have to look for: that the device does not answer. `tree` has its date
/// written.
pub fn told(tree: &Value) -> Option<String> {
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
