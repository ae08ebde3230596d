//! `kedge crash bisect`: the first commit whose crash test fails.
//!
//! git chooses the commits, as in `git bisect`. The state of the bisection belongs to the worktree
//! in which the commits are tested, so a bisection of the user's own is not disturbed.

use super::commits::{Commits, Test, Verdict};
use super::explore::{NO_VERDICT, stop_at_signals};
use anyhow::{Result, bail};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// A commit whose crash test passes
    good: String,
    /// A later commit whose crash test fails
    bad: String,
    #[command(flatten)]
    test: Test,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let stop = stop_at_signals()?;
    let commits = Commits::new(&args.test)?;
    let judge = || {
        let (shown, verdict) = (commits.shown()?, commits.test()?);
        if stop.load(Ordering::Relaxed) {
            bail!("stopped by a signal");
        }
        println!("{shown}: {verdict}");
        anyhow::Ok(verdict)
    };
    let (bad, good) = (commits.find(&args.bad)?, commits.find(&args.good)?);
    // Verify both ends first: if one of them were wrong, git would still name some commit.
    commits.check_out(&bad)?;
    if !matches!(judge()?, Verdict::Bad(_)) {
        bail!("{}: its crash test does not fail, so there is nothing to search for", args.bad);
    }
    commits.check_out(&good)?;
    if judge()? != Verdict::Good {
        bail!("{}: its crash test does not pass, so the first bad commit may be an earlier one", args.good);
    }
    commits.git(&["bisect", "start", &bad, &good])?;
    loop {
        if commits.git(&["bisect", "log"])?.contains("# first bad commit: ") {
            break;
        }
        let word = match judge()? {
            Verdict::Good => "good",
            Verdict::Bad(_) => "bad",
            Verdict::None(_) => "skip",
        };
        // git fails if all commits that are left cannot be tested.
        if let Err(e) = commits.git(&["bisect", word]) {
            let log = commits.git(&["bisect", "log"])?;
            let left: Vec<&str> =
                log.lines().filter_map(|l| l.strip_prefix("# possible first bad commit: ")).collect();
            if left.is_empty() {
                return Err(e);
            }
            println!("the first bad commit is one of these, since some have no verdict:");
            left.iter().for_each(|commit| println!("  {commit}"));
            return Ok(ExitCode::from(NO_VERDICT));
        }
    }
    commits.check_out("refs/bisect/bad")?;
    println!("first bad commit: {}", commits.shown()?);
    Ok(ExitCode::SUCCESS)
}
