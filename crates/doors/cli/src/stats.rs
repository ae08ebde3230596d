//! `kedge stats`: shows the counters of a live mount as a summary page, as text with all counters,
//! as JSON, or for Prometheus.

use crate::{listen, report, summary};
use anyhow::{Context, Result};
use kedge_host::{Usage, mounts, status};
use kedge_store::histogram_text;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print every counter, not only the summary
    #[arg(long, conflicts_with_all = ["json", "prometheus", "slow_fsync", "latches"])]
    all: bool,
    /// Print every counter as JSON
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Print the text format that Prometheus reads
    #[arg(long)]
    prometheus: bool,
    /// Print the slowest fsyncs since the mount, and where their time was spent. Files are named by
    /// inode, as a file may have several paths: `find DIR -xdev -inum N` prints them
    #[arg(long, conflicts_with = "prometheus")]
    slow_fsync: bool,
    /// Print the waiting times for the latches of the metadata tree
    #[arg(long, conflicts_with_all = ["json", "prometheus"])]
    latches: bool,
    /// Serve the counters to Prometheus over HTTP, as http://ADDRESS:PORT/metrics, until a signal
    /// ends the command; without ADDRESS it listens on 127.0.0.1. Several mount points may be
    /// named. Without a mount point, all current mounts are served
    #[arg(long, value_name = "[ADDRESS:]PORT", conflicts_with_all = ["all", "json", "prometheus", "slow_fsync", "latches"])]
    listen: Option<String>,
    /// The mount point
    #[arg(required_unless_present = "listen")]
    dir: Vec<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(address) = &args.listen {
        return listen::run(listen::address(address)?, args.dir);
    }
    let [dir] = &args.dir[..] else {
        return Err(Usage("one mount point at a time, except with --listen".into()).into());
    };
    let mut stats = status::counters(dir)?;
    let slow = stats.as_object_mut().and_then(|s| s.remove("slow_fsyncs")).unwrap_or_default();
    let text = if args.slow_fsync {
        if args.json { format!("{slow:#}\n") } else { slow_table(dir, &slow) }
    } else if args.json {
        format!("{stats:#}\n")
    } else if args.prometheus {
        report::prometheus(&[(stats, mounts::resolve(dir)?.to_string_lossy().into_owned())])
    } else if args.latches {
        latches(&stats["tree"]).context("find the latches among the counters")?
    } else {
        let rest = if args.all { report::table(&stats) } else { summary::page(&stats) };
        headline(&stats["state"]) + &transactions(&stats["transactions"]) + &rest
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The states that are shown first: shut down, frozen, device without response.
fn headline(state: &Value) -> String {
    let down = match (state["since"].as_str(), state["reason"].as_str()) {
        (Some(since), Some(reason)) => {
            format!(
                "SHUT DOWN since {since}: {reason}. Changes and fsync fail until it is mounted again.\n\n"
            )
        }
        _ => match state["frozen_since"].as_str() {
            Some(since) => format!("FROZEN since {since}. Changes wait for kedge thaw.\n\n"),
            None => String::new(),
        },
    };
    let hangs = state["device"].as_str().map_or(String::new(), |told| format!("THE DEVICE {told}.\n\n"));
    down + &hangs
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or(0)
}

fn ms(of: &Value, name: &str) -> f64 {
    number(of, name) as f64 / 1e6
}

/// The transactions in the form of jbd2's statistics, where a transaction is a log write.
/// Checkpoints have their own line, and the averages are those of checkpoints.
fn transactions(t: &Value) -> String {
    format!(
        "{} transactions ({} requested), each up to {} blocks\n\
         {} checkpoints ({} requested)\n\
         average of a checkpoint:\n  {:.3}ms waiting for log space\n  {:.3}ms since the cut before\n  {:.3}ms locked\n  \
         {:.3}ms flushing data and log\n  {:.3}ms writing nodes and bitmaps\n  {:.3}ms in all\n  \
         {} handles per checkpoint\n  {} blocks per checkpoint\n  {} logged blocks per checkpoint\n\
         {} waits for log space, {:.3}ms in all\n\n",
        number(t, "commits"),
        number(t, "commits_requested"),
        number(t, "blocks_max"),
        number(t, "checkpoints"),
        number(t, "checkpoints_requested"),
        ms(t, "waiting_avg_ns"),
        ms(t, "running_avg_ns"),
        ms(t, "locked_avg_ns"),
        ms(t, "flushing_avg_ns"),
        ms(t, "logging_avg_ns"),
        ms(t, "commit_avg_ns"),
        number(t, "handles_avg"),
        number(t, "blocks_avg"),
        number(t, "logged_blocks_avg"),
        number(t, "log_space_stalls"),
        ms(t, "log_space_stall_ns"),
    )
}

/// The table of the slowest fsyncs. An inode has no reference to its names, so the table suggests a
/// search for its paths.
fn slow_table(dir: &Path, slow: &Value) -> String {
    let mut text = format!(
        "{:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  call\n",
        "inode", "total ms", "data", "queue", "barrier", "log write", "wake", "flush"
    );
    for s in slow.as_array().into_iter().flatten() {
        let call = if s["datasync"] == true { "fdatasync" } else { "fsync" };
        let phases = ["total_ns", "data_ns", "queue_ns", "barrier_ns", "write_ns", "wake_ns", "flush_ns"];
        text += &format!("{:>10}", number(s, "ino"));
        phases.iter().for_each(|phase| text += &format!(" {:>9.3}", ms(s, phase)));
        text += &format!("  {call}\n");
    }
    if let Some(slowest) = slow.get(0) {
        let (dir, ino) = (dir.display().to_string(), number(slowest, "ino"));
        text += &format!("\nPaths of an inode: find {} -xdev -inum {ino}\n", kedge_base::printable(&dir));
    }
    text
}

/// The statistics of the tree's latches: for each kind the sums, and the waits in microseconds and,
/// if there were such long waits, in milliseconds. `None` if `tree` has no such statistics.
fn latches(tree: &Value) -> Option<String> {
    let number = |value: &Value| value.as_u64();
    let mut out = format!(
        "tree_lock={}: {} descents started over, {} gave up doing without latches, {} conversions of latches\n",
        tree["lock"].as_str()?,
        number(&tree["restarts"])?,
        number(&tree["fallbacks"])?,
        number(&tree["conversions"])?,
    );
    for (kind, counters) in tree["latches"].as_object()? {
        let waits = &counters["wait_ns"];
        let _ = writeln!(
            out,
            "\n{}: taken {} times, {} of them by a call that waits, {} waits, {} wake-ups, longest {:.3} ms",
            kind.replace('_', " "),
            number(&counters["acquisitions"])?,
            number(&counters["calls"])?,
            number(&waits["count"])?,
            number(&counters["wakeups"])?,
            number(&waits["max"])? as f64 / 1e6,
        );
        for (unit, name) in [("usecs", "wait_us_histogram"), ("msecs", "wait_ms_histogram")] {
            let buckets: Vec<u64> = counters[name].as_array()?.iter().filter_map(Value::as_u64).collect();
            // A histogram with all samples in its first row is not useful.
            let spread = if unit == "usecs" { !buckets.is_empty() } else { buckets.len() > 2 };
            if spread {
                out += &histogram_text(unit, &buckets);
            }
        }
    }
    Some(out)
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;
