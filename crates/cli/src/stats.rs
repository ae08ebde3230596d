//! `kedge stats`: the counters of a live mount, for people, as JSON, or for Prometheus.

use crate::{mounts, report};
use anyhow::{Context, Result};
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
    } else {
        report::table(&stats)
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
