//! `kedge crash cluster record`.

use super::super::explore::stop_at_signals;
use super::super::parse_time;
use super::super::record::report_unrecorded;
use super::{OUT_DEFAULT, file};
use anyhow::Result;
use kedge_crash_record::{ClusterOptions, record_cluster};
use kedge_host::options::parse_size;
use kedge_host::os;
use regex::Regex;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// The description of the cluster: its nodes and commands, in TOML
    file: PathBuf,
    /// Size of each node's file system, which is in memory
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    size: u64,
    /// Matching lines on the standard output of the commands are promises to the user of the
    /// cluster that something is durable
    #[arg(long, value_name = "REGEX")]
    ack: Option<Regex>,
    /// End the commands after this time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    timeout: Option<Duration>,
    /// The directory of the recordings
    #[arg(short = 'o', value_name = "DIR", default_value = OUT_DEFAULT)]
    out: PathBuf,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    os::grow_in_large_steps();
    let described = file::read(&args.file)?;
    let options = ClusterOptions {
        size: args.size,
        nodes: described.nodes,
        command: described.command,
        ack: args.ack.clone(),
        timeout: args.timeout,
        out: args.out.clone(),
        stop: stop_at_signals()?,
    };
    let recorded = record_cluster(&options)?;
    let events: Vec<String> =
        recorded.events.iter().map(|(name, events)| format!("{name} {events}")).collect();
    eprintln!(
        "kedge: events ({}) and {} marks recorded in {}; the command ended with exit code {}{}",
        events.join(", "),
        recorded.marks,
        args.out.display(),
        recorded.code,
        if recorded.timed_out { " (its time was over)" } else { "" }
    );
    report_unrecorded(&recorded.leftovers, &recorded.outside);
    Ok(ExitCode::from(u8::try_from(recorded.code).unwrap_or(crate::FAILURE)))
}
