//! `kedge crash cluster explore`.

use super::super::explore::{
    EXIT_CODES, Limit, NO_VERDICT, ONLY_EARLY, Shown, parse_budget, stop_at_signals,
};
use super::super::judge::ClusterJudge;
use super::super::{model_parser, parse_time, usage};
use super::{OUT_DEFAULT, load};
use anyhow::{Context, Result};
use kedge_crash::cluster::{ClusterOutcome, ClusterSearch, ClusterTold, explore_cluster};
use kedge_crash::{Budget, Ended, Hear, MODELS, Model, SearchOrder};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A cluster takes longer to start than one program.
const STATES_DEFAULT: u64 = 1000;

#[derive(clap::Args, Debug)]
#[command(after_long_help = EXIT_CODES)]
pub struct Args {
    /// The directory of the recordings
    #[arg(default_value = OUT_DEFAULT)]
    recordings: PathBuf,
    #[command(flatten)]
    judge: ClusterJudge,
    /// What the file systems of all nodes may lose (see kedge crash models) [default: posix]
    #[arg(long, value_parser = model_parser(&MODELS), default_value = "posix", hide_default_value = true)]
    model: Model,
    /// Limit of the search: a number of states, or a time such as 5m [default: 1000 states]
    #[arg(long, value_name = "TIME|STATES", value_parser = parse_budget)]
    budget: Option<Limit>,
    /// Limit of the time in which failing states are shrunk and explained [default: the budget's
    /// time, at least 30s; no limit without such a budget]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    explain: Option<Duration>,
    /// Stop after this number of failing states
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_failures: Option<u64>,
    /// Seed of the random part
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Checkers to run in parallel; a cluster whose nodes listen on fixed ports needs 1
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// Print the report as JSON, or write it to a file
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", require_equals = true)]
    json: Option<PathBuf>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let Some(check) = &args.judge.check else {
        return Err(usage("no checker is given: --check 'CMD'"));
    };
    let stop = stop_at_signals()?;
    let loaded = load(&args.recordings, args.model)?;
    let checker = args.judge.build(&stop)?.expect("a check is given");
    let (states, time) = match args.budget {
        None => (Some(STATES_DEFAULT), None),
        Some(Limit::States(n)) => (Some(n), None),
        Some(Limit::Time(t)) => (None, Some(t)),
    };
    let budget = Budget {
        states,
        time,
        explain: args.explain,
        failures: args.max_failures,
        seed: args.seed,
        order: SearchOrder::default(),
        jobs: usize::from(args.jobs),
        stop: stop.clone(),
    };
    let shown = Shown::new(args.quiet);
    let hear = |progress| shown.show(progress);
    let search =
        ClusterSearch { cluster: &loaded.cluster, checker: &checker, budget, hear: Some(&hear as Hear<'_>) };
    let report = explore_cluster(&search);
    shown.end();
    let told = ClusterTold {
        report: &report,
        nodes: &loaded.cluster.names,
        name: &args.recordings.to_string_lossy(),
        checker: check,
        cut: &loaded.cut,
    };
    match &args.json {
        Some(path) if path == Path::new("-") => print!("{}", told.json_text()),
        json => {
            if let Some(path) = json {
                std::fs::write(path, told.json_text())
                    .with_context(|| format!("write {}", path.display()))?;
            }
            print!("{}", told.text());
        }
    }
    Ok(ExitCode::from(exit_code(&report.outcome, stop.load(Ordering::Relaxed))))
}

fn exit_code(outcome: &ClusterOutcome, was_stopped: bool) -> u8 {
    match outcome.is_judged() {
        true if outcome.is_early() => ONLY_EARLY,
        true if outcome.failing > 0 => crate::FAILURE,
        true if outcome.ended != Ended::Stopped && !was_stopped => 0,
        _ => NO_VERDICT,
    }
}
