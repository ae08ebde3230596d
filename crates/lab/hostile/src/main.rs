//! Runs a fuzz target for a given processor time and reports the result.

use clap::Parser;
use kedge_hostile::{TARGETS, corpus, drive};
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Fuzzes what reads bytes of others; see crates/lab/hostile/README.md")]
struct Args {
    /// kcr, nbd, uri, fuse or nfs
    target: String,
    /// Processor seconds
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// The same seed repeats the run
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> std::io::Result<ExitCode> {
    let args = Args::parse();
    let Some(target) = TARGETS.into_iter().find(|target| target.name == args.target) else {
        eprintln!("there is no target {}: see crates/lab/hostile/README.md", args.target);
        return Ok(ExitCode::from(2));
    };
    // Diagnostics about bad input are not of interest here.
    let quiet = tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::OFF);
    quiet.init();
    let outcome = drive::drive(target, &corpus(target.name), args.seconds, args.seed)?;
    println!("{outcome}");
    Ok(if outcome.finds.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
