//! `kedge stats`: the counters of a live mount, for people, as JSON, or for Prometheus.

use crate::{mounts, report};
use anyhow::{Context, Result};
use kedge_store::histogram_text;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print JSON
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Print the text format that Prometheus reads
    #[arg(long)]
    prometheus: bool,
    /// Print how long the latches of the metadata tree were waited for
    #[arg(long, conflicts_with_all = ["json", "prometheus"])]
    latches: bool,
    /// The mount point
    dir: PathBuf,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let text = mounts::attribute(&args.dir, mounts::XATTR_STATS)?;
    let stats: serde_json::Value = serde_json::from_str(&text)
        .with_context(|| format!("read the counters of {}", args.dir.display()))?;
    let text = if args.json {
        format!("{stats:#}\n")
    } else if args.prometheus {
        report::prometheus(&stats, &mounts::resolve(&args.dir)?.to_string_lossy())
    } else if args.latches {
        latches(&stats["tree"]).context("find the latches among the counters")?
    } else {
        report::table(&stats)
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// What the tree counted of its latches: per kind the sums, and the waits in microseconds and, where there were such long
/// ones, in milliseconds. None: this is not from a tree.
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
            "\n{}: taken {} times, {} waits, {} wake-ups, longest {:.3} ms",
            kind.replace('_', " "),
            number(&counters["acquisitions"])?,
            number(&waits["count"])?,
            number(&counters["wakeups"])?,
            number(&waits["max"])? as f64 / 1e6,
        );
        for (unit, name) in [("usecs", "wait_us_histogram"), ("msecs", "wait_ms_histogram")] {
            let buckets: Vec<u64> = counters[name].as_array()?.iter().filter_map(Value::as_u64).collect();
            // All within the first row says nothing.
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
