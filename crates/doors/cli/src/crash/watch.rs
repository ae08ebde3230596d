//! `kedge crash watch`: a crash test of each new commit.

use super::commits::{Commits, Test, Verdict};
use super::explore::{NO_VERDICT, stop_at_signals};
use anyhow::Result;
use kedge_base::{Clock, SystemClock};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The interval at which the branch is read.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(clap::Args, Debug)]
pub struct Args {
    /// The branch whose commits are tested, from its present one on
    #[arg(long, value_name = "BRANCH", default_value = "HEAD")]
    branch: String,
    /// End after this number of commits, with the exit code of the last one: 1 bad, 3 no verdict
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    commits: Option<u64>,
    #[command(flatten)]
    test: Test,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let stop = stop_at_signals()?;
    let commits = Commits::new(&args.test)?;
    let (clock, mut last, mut tested) = (SystemClock::default(), String::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        let at = commits.find(&args.branch)?;
        if at == last {
            clock.sleep(PAUSE);
            continue;
        }
        commits.check_out(&at)?;
        let (shown, verdict) = (commits.shown()?, commits.test()?);
        if stop.load(Ordering::Relaxed) {
            break;
        }
        println!("{shown}: {verdict}");
        (last, tested) = (at, tested + 1);
        if args.commits == Some(tested) {
            return Ok(ExitCode::from(match verdict {
                Verdict::Good => 0,
                Verdict::Bad(_) => crate::FAILURE,
                Verdict::None(_) => NO_VERDICT,
            }));
        }
    }
    Ok(ExitCode::SUCCESS)
}
