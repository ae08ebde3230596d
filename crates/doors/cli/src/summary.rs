//! The default page of `kedge stats`: one screen, with a unit on each figure.
//!
//! [`table`](crate::report::table) shows every counter and knows none by name. This page knows the
//! few counters that show the state of a mount. A counter that a mount lacks counts as zero.

use crate::report::Histogram;
use kedge_base::BLOCK_SIZE;
use kedge_host::text::{duration, show_size};
use serde_json::Value;
use std::fmt::Write as _;

/// The most rows of the table of operations.
const OPERATIONS_MAX: usize = 12;

/// The whole page: the table of operations, and a line for each part of the file system.
pub fn page(stats: &Value) -> String {
    let mut out = operations(&stats["operations"]);
    for (name, line) in [
        ("data", data(stats)),
        ("cache", cache(&stats["cache"])),
        ("log", log(&stats["log"])),
        ("log writes", log_writes(&stats["log"])),
        ("log forced", causes(&stats["log"]["forces"])),
        ("checkpoints", causes(&stats["checkpoint"]["by_cause"])),
        ("waits", waits(stats)),
        ("device", device(&stats["device"])),
        ("latency", latency(&stats["device"]["latency"])),
        ("placement", placement(&stats["fuse"]["placement"])),
        ("errors", errors(stats)),
        ("failed calls", failed_calls(&stats["fuse"]["failed"])),
    ] {
        let _ = writeln!(out, "{name:<12} {line}");
    }
    out + "\nkedge stats --all prints every counter, and --json for programs.\n"
}

fn number(of: &Value, pointer: &str) -> u64 {
    of.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

fn size(of: &Value, pointer: &str) -> String {
    show_size(number(of, pointer))
}

/// The operations that took the most time in total, by their POSIX names.
fn operations(of: &Value) -> String {
    let mut rows: Vec<(&String, Histogram<'_>)> = of
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| Some((name, Histogram::of(value)?)))
        .collect();
    rows.sort_by_key(|(_, h)| std::cmp::Reverse(h.sum));
    let mut out = format!(
        "{:<12} {:>10} {:>11} {:>11} {:>11} {:>11}\n",
        "operation", "calls", "average", "p50", "p99", "longest"
    );
    for (name, h) in rows.iter().take(OPERATIONS_MAX) {
        let average = h.sum.checked_div(h.count).unwrap_or(0);
        let _ = write!(out, "{name:<12} {:>10}", h.count);
        for ns in [average, h.quantile(0.5), h.quantile(0.99), h.max] {
            let _ = write!(out, " {:>11}", duration(ns));
        }
        out += "\n";
    }
    let more = rows.len().saturating_sub(OPERATIONS_MAX);
    if more > 0 {
        let _ = writeln!(out, "and {more} kinds more, which took less time");
    }
    out + "\n"
}

fn data(stats: &Value) -> String {
    format!(
        "{} read in {} reads, {} written in place in {} writes, {} fsyncs with their data in the log",
        size(stats, "/data/read_bytes"),
        number(stats, "/data/reads"),
        size(stats, "/data/write_bytes"),
        number(stats, "/data/writes"),
        number(stats, "/data/fsyncs_with_data_in_log"),
    )
}

fn cache(of: &Value) -> String {
    let pages = |name: &str| show_size(number(of, name) * BLOCK_SIZE as u64);
    let given_back = match number(of, "/times_given_back") {
        0 => String::new(),
        n => format!("; given back {} as memory was short", times(n)),
    };
    format!(
        "{} of data ({} dirty), at most {}; {} of metadata ({} dirty), at most {}; {} inodes ({} dirty){given_back}",
        pages("/pages"),
        pages("/dirty_pages"),
        pages("/pages_max"),
        size(of, "/tree_bytes"),
        size(of, "/tree_dirty_bytes"),
        size(of, "/tree_bytes_max"),
        number(of, "/inodes"),
        number(of, "/dirty_inodes"),
    )
}

fn log(of: &Value) -> String {
    format!(
        "{} in all, {} used, {} % free; {} records of {}",
        size(of, "/ring_bytes"),
        size(of, "/used_bytes"),
        number(of, "/free_percent"),
        number(of, "/records"),
        size(of, "/bytes_appended"),
    )
}

/// On which processor the requests of the mount are served, and the rates that were measured.
pub fn placement(of: &Value) -> String {
    let n = |name| number(of, name);
    let rates = match n("/trials") {
        0 => String::new(),
        trials => format!(
            "; the last of {trials} trials: {}/s on the client's processor, {}/s elsewhere",
            n("/rate_with"),
            n("/rate_without")
        ),
    };
    let starved = match n("/starved") {
        0 => String::new(),
        count => format!("; left a busy processor {}", times(count)),
    };
    let place = match of["processor"].as_u64() {
        Some(processor) => format!("on the client's processor, {processor}"),
        None => "where the scheduler says".to_owned(),
    };
    place + &rates + &starved
}

fn log_writes(of: &Value) -> String {
    let Some(h) = Histogram::of(&of["write_ns"]).filter(|h| h.count > 0) else { return "none".into() };
    format!(
        "{} writes, average {}, p99 {}, longest {}; each for {:.1} waiting calls",
        number(of, "/writes"),
        duration(h.sum / h.count),
        duration(h.quantile(0.99)),
        duration(h.max),
        of["group_forces"]["average"].as_f64().unwrap_or(0.0),
    )
}

/// The counters of a group that are not zero.
fn counted(of: &Value) -> impl Iterator<Item = (String, u64)> {
    of.as_object().into_iter().flatten().filter_map(|(name, n)| {
        let n = n.as_u64().filter(|n| *n > 0)?;
        Some((name.replace('_', " "), n))
    })
}

fn causes(of: &Value) -> String {
    none_or(counted(of).map(|(cause, n)| format!("{cause} {}", times(n))).collect())
}

fn times(n: u64) -> String {
    if n == 1 { "once".into() } else { format!("{n} times") }
}

fn none_or(parts: Vec<String>) -> String {
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}

/// What operations had to wait for, and how often.
fn waits(stats: &Value) -> String {
    let waits = [
        ("/log/space_stall_ns/count", "log space"),
        ("/log/staged_stall_ns/count", "the log's buffer"),
        ("/checkpoint/node_stalls", "space for metadata"),
        ("/checkpoint/dirty_stalls", "dirty metadata to be written"),
        ("/data/throttled_writes", "dirty data to be written"),
    ];
    let had = waits.iter().map(|(pointer, what)| (number(stats, pointer), what)).filter(|(n, _)| *n > 0);
    none_or(had.map(|(n, what)| format!("{} for {what}", times(n))).collect())
}

fn device(of: &Value) -> String {
    format!(
        "{} read in {} reads, {} written in {} writes ({} with FUA), {} flushes",
        size(of, "/read_bytes"),
        number(of, "/reads"),
        size(of, "/write_bytes"),
        number(of, "/writes"),
        number(of, "/fua_writes"),
        number(of, "/flushes"),
    )
}

/// The present median latency of small requests.
pub fn latency(of: &Value) -> String {
    let one = |(name, value): (&String, &Value)| {
        let kind = name.trim_end_matches("_ns").replace('_', " ");
        Some(format!("{kind} {}", duration(value.as_u64()?)))
    };
    let known: Vec<String> = of.as_object().into_iter().flatten().filter_map(one).collect();
    if known.is_empty() { "not measured yet".into() } else { known.join(", ") }
}

/// The failed requests of the device, and the blocks that are no longer used.
fn errors(stats: &Value) -> String {
    let failed =
        counted(&stats["device"]["errors"]).map(|(kind, n)| format!("{n} failed {kind} of the device"));
    let others = [("/data/bad_blocks", "bad blocks"), ("/data/write_errors", "failed writes of data")];
    let others = others.iter().map(|(pointer, what)| (number(stats, pointer), what)).filter(|(n, _)| *n > 0);
    none_or(failed.chain(others.map(|(n, what)| format!("{n} {what}"))).collect())
}

/// The errors returned to programs, the most frequent first. ENOENT and ENODATA are left out,
/// because they are ordinary results: at every write the kernel reads an attribute that few files
/// have.
fn failed_calls(of: &Value) -> String {
    const SHOWN: usize = 6;
    let mut all: Vec<(u64, String)> = Vec::new();
    for (request, errors) in of.as_object().into_iter().flatten() {
        let errors = counted(errors).filter(|(errno, _)| errno != "ENOENT" && errno != "ENODATA");
        all.extend(errors.map(|(errno, n)| (n, format!("{request} {errno} {}", times(n)))));
    }
    all.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
    let more = all.len().saturating_sub(SHOWN);
    let mut parts: Vec<String> = all.into_iter().take(SHOWN).map(|(_, text)| text).collect();
    if more > 0 {
        parts.push(format!("and {more} kinds more"));
    }
    none_or(parts)
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
