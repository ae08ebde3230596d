//! `kedge crash replay`.

use super::explore::{Judge, stop_at_signals};
use super::load;
use anyhow::{Context, Result, bail};
use kedge_crash::describe::Paths;
use kedge_crash::{Case, History, Model, Recipe, Verdict, check};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// The name of the state, as a report shows it
    #[arg(long, value_name = "NAME")]
    state: Recipe,
    /// The model of the report
    #[arg(long, value_parser = super::model_parser(), default_value = "posix")]
    model: Model,
    #[command(flatten)]
    judge: Judge,
    /// Leave the state in this directory, which must be empty or not exist
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    if args.judge.list() {
        return Ok(ExitCode::SUCCESS);
    }
    let stop = stop_at_signals()?;
    let loaded = load(&args.recording)?;
    let history = History::new(&loaded.trace, args.model);
    if !history.points().contains(&args.state.at) {
        let (first, last) = (history.points().start().to_owned(), history.points().end().to_owned());
        bail!("state {} is not one of this recording: its crash points are {first} to {last}", args.state);
    }
    let paths = Paths::of(&loaded.trace);
    println!("crash after the first {} events; lost:", args.state.at);
    let lost = history.lost(&args.state);
    let mut events: Vec<u32> = lost.iter().map(|n| history.micros[*n as usize].event).collect();
    events.dedup();
    for event in &events {
        let all = history.of_event(*event).all(|n| lost.binary_search(&n).is_ok());
        let part = if all { "" } else { " (in part)" };
        println!("  #{event} {}{part}", paths.call(*event as usize, &loaded.trace.events[*event as usize]));
    }
    if events.is_empty() {
        println!("  nothing");
    }
    let state = history.state(&args.state);
    if let Some(dir) = &args.keep {
        std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        if std::fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?.next().is_some() {
            bail!("{} is not empty", dir.display());
        }
        check::materialise(&state, dir).with_context(|| format!("make the state in {}", dir.display()))?;
        println!("the state is in {}", dir.display());
    }
    let Some(checker) = args.judge.build(&loaded.trace, &stop)? else { return Ok(ExitCode::SUCCESS) };
    let told = loaded.trace.marks(args.state.at as usize);
    match checker.check(&Case { recipe: &args.state, state: &state, told: &told, job: 0 }) {
        Verdict::Good => {
            println!("the checker accepts it");
            Ok(ExitCode::SUCCESS)
        }
        Verdict::Bad(why) => {
            println!("the checker refuses it: {}", kedge_base::printable(&why));
            Ok(ExitCode::from(crate::FAILURE))
        }
        Verdict::Broken(why) => bail!("no verdict: {why}"),
    }
}
