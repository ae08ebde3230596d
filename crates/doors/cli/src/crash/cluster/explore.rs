//! `kedge crash cluster explore`.

use super::super::effort::Effort;
use super::super::explore::{EXIT_CODES, Judged, Shown, stop_at_signals};
use super::super::judge::ClusterJudge;
use super::super::reports::Reports;
use super::super::{model_parser, usage};
use super::again::Recoveries;
use super::{OUT_DEFAULT, load};
use anyhow::Result;
use kedge_crash::again::Again;
use kedge_crash::cluster::{Cluster, ClusterReport, ClusterSearch, ClusterTold, explore_cluster};
use kedge_crash::{CommandChecker, Ended, Hear, MODELS, Model, SearchOrder};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The budget of states by default. A cluster starts more slowly than one program.
const STATES_DEFAULT: u64 = 1000;
const RECOVERIES_DEFAULT: u64 = 8;

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
    #[command(flatten)]
    effort: Effort,
    /// Checkers to run in parallel; a cluster whose nodes listen on fixed ports needs 1
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    #[command(flatten)]
    reports: Reports,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    args.judge.refuse_others()?;
    let Some(check) = &args.judge.check else {
        return Err(usage("no checker is given: --check 'CMD'"));
    };
    let stop = stop_at_signals()?;
    let loaded = load(&args.recordings, args.model)?;
    let checker = args.judge.build(&stop)?.expect("a check is given");
    let cluster = Arc::new(loaded.cluster);
    let report = search(args, &cluster, &checker, &stop);
    let told = ClusterTold {
        report: &report,
        cluster: &cluster,
        name: &args.recordings.to_string_lossy(),
        checker: check,
        cut: &loaded.cut,
    };
    args.reports.deliver(&told)?;
    let is_ended = report.outcome.ended != Ended::Stopped && !stop.load(Ordering::Relaxed);
    let end = Judged { failed: report.failed(), is_early: report.is_early(), passed: report.passed() };
    Ok(end.code(report.outcome.is_judged(), is_ended))
}

/// Searches the crash states. With `--again` it then crashes the recoveries, unless the check could
/// not judge or a signal ended the search.
fn search(
    args: &Args,
    cluster: &Arc<Cluster>,
    checker: &CommandChecker,
    stop: &Arc<AtomicBool>,
) -> ClusterReport {
    let jobs = usize::from(args.jobs);
    let budget = args.effort.budget(STATES_DEFAULT, jobs, SearchOrder::default(), stop.clone());
    let shown = Shown::new(args.quiet);
    let hear = |progress| shown.show(progress);
    let hear = Some(&hear as Hear<'_>);
    let search = ClusterSearch { cluster, checker, budget: budget.clone(), hear };
    let mut report = explore_cluster(&search);
    let is_sound = report.outcome.is_judged() && report.outcome.ended != Ended::Stopped;
    if let (true, Some(depth)) = (is_sound, args.effort.again) {
        let recoveries = args.effort.again_recoveries.unwrap_or(RECOVERIES_DEFAULT);
        let recorder = &Recoveries { names: &cluster.names, checker, timeout: args.judge.timeout, stop };
        let again = Again { checker, recorder, depth, recoveries, budget, hear };
        report.again = Some(again.run(cluster, &report.outcome));
    }
    shown.end();
    report
}
