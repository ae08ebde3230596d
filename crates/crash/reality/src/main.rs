//! Tests whether file systems show only states that the crash models allow: the kernel's ext4, XFS
//! and Btrfs lose power at every write.
//!
//! ```text
//! workload  small programs, which run on a real file system and on the model
//! table     the workloads; random ones
//! device    a file system on a device whose writes are recorded
//! judge     mounts crash states of the device, and looks up in the model the tree each shows
//! ```
//!
//! A workload runs once on a fresh file system. A crash keeps any subset of the device's writes
//! since the last flush, whole or torn, and all writes before it: [`kedge_crash::Search`] selects
//! such states of the device as it selects states of a program's files. The kernel mounts each. The
//! tree that it then shows must be one that the model lists for the steps done by then.
//!
//! The program needs root. It mounts in its own mount namespace, so the mounts end with it.
#![forbid(unsafe_code)]

mod device;
mod judge;
mod report;
mod table;
mod workload;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use device::{KINDS, Kind};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use workload::Workload;

/// Set if the process has its own mount namespace.
const OWN_MOUNTS: &str = "KEDGE_REALITY_OWN_MOUNTS";
/// The exit code if no file system can be tested here.
const NOTHING: u8 = 3;

#[derive(Parser)]
#[command(name = "crash-reality", about = "Compares the crash models with the kernel's file systems")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Plays workloads, mounts what crashes leave, and compares. Exit codes: 0 all that was seen is
    /// allowed; 1 something is not; 3 no file system can be tried here
    Run(Run),
    /// One workload on a recorded device; started by `run`
    #[command(hide = true)]
    Play { kind: String, workload: String, mount: PathBuf },
}

#[derive(clap::Args)]
pub struct Run {
    /// A slice: few workloads, few states of each
    #[arg(long)]
    quick: bool,
    /// Only these file systems
    #[arg(long = "fs", value_name = "NAME")]
    kinds: Vec<String>,
    /// Only this workload, in the form of the report
    #[arg(long)]
    workload: Option<String>,
    /// Another model than that of the file system
    #[arg(long)]
    model: Option<String>,
    /// Random workloads besides those of the table
    #[arg(long, default_value_t = 0)]
    random: u64,
    /// Seed of the random workloads and of the choice of states
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Distinct states of the device for each workload
    #[arg(long)]
    states: Option<u64>,
    /// Keeps the devices that showed what the model forbids
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Writes the tables as Markdown
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    match Cli::parse().task {
        Task::Play { kind, workload, mount } => {
            Kind::by_name(&kind)?.play(&workload.parse()?, &mount)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Run(_) if std::env::var_os(OWN_MOUNTS).is_none() && rustix::process::geteuid().is_root() => {
            with_own_mounts()
        }
        Task::Run(run) => compare(&run),
    }
}

/// Runs the same command again in a mount namespace of its own.
fn with_own_mounts() -> Result<ExitCode> {
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(OWN_MOUNTS, "1")
        .status()
        .context("start unshare (package util-linux)")?;
    let code = status.code().with_context(|| format!("ended by a signal: {status}"))?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn kinds(names: &[String]) -> Result<Vec<Kind>> {
    match names {
        [] => Ok(KINDS.to_vec()),
        names => names.iter().map(|name| Kind::by_name(name)).collect(),
    }
}

fn compare(run: &Run) -> Result<ExitCode> {
    let workloads: Vec<Workload> = match &run.workload {
        Some(text) => vec![text.parse()?],
        None => table::workloads(run.quick, run.random, run.seed)?,
    };
    let states = run.states.unwrap_or(if run.quick { 40 } else { 150 });
    let mut report = report::Report::default();
    for kind in kinds(&run.kinds)? {
        if let Some(why) = kind.missing() {
            report.left_out(&kind, &why);
            continue;
        }
        for workload in &workloads {
            let row = report::row(&kind, workload, run, states)
                .with_context(|| format!("{}: {workload}", kind.name))?;
            report.add(row);
        }
    }
    print!("{}", report.summary());
    if let Some(out) = &run.out {
        std::fs::write(out, report.markdown(run, states)?).with_context(|| out.display().to_string())?;
    }
    Ok(match (report.rows.is_empty(), report.is_allowed()) {
        (true, _) => ExitCode::from(NOTHING),
        (_, true) => ExitCode::SUCCESS,
        (_, false) => ExitCode::FAILURE,
    })
}
