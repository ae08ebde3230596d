//! `kedge crash replay`: makes one crash state again, shows it and judges it.

use super::again::{Recoveries, StateName};
use super::explore::stop_at_signals;
use super::judge::{Built, Judge};
use super::{load, usage};
use anyhow::{Context, Result, bail};
use kedge_crash::again::Recorder;
use kedge_crash::describe::Paths;
use kedge_crash::{Case, Checker, History, Model, Recipe, State, Trace, Verdict, check};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// The name of the state, as a report shows it
    #[arg(long, value_name = "NAME")]
    state: StateName,
    /// The model of the report [default: posix; disk for a recorded device]
    #[arg(long, value_parser = super::model_parser(&super::every_model()))]
    model: Option<Model>,
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
    let model = super::model_for(args.model, &loaded.trace)?;
    let checker = args.judge.build(&loaded.trace, &stop)?;
    let mut place = Place { trace: loaded.trace, told: Vec::new(), within: String::new(), crashed: None };
    for recipe in &args.state.before {
        let Some(checker) = &checker else {
            return Err(usage(
                "a state in a recovery needs the check that recovers: --check CMD or --checker NAME",
            ));
        };
        let recorder = Recoveries::new(checker, &args.judge, &stop)?;
        place = place.after_recovery(recipe, model, &recorder)?;
        println!("recovered from {}; the recovery made these calls:", place.within.trim_end_matches('/'));
        print_calls(&place.trace);
    }
    let recipe = &args.state.last;
    let history = place.history(recipe, model)?;
    print_lost(&place.trace, &history, recipe);
    let state = history.state(recipe);
    if let Some(dir) = &args.keep {
        keep(&state, dir)?;
    }
    match checker {
        Some(checker) => judge(&checker, &place, recipe, &state),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn judge(checker: &Built, place: &Place, recipe: &Recipe, state: &State) -> Result<ExitCode> {
    let told = place.told(recipe);
    let moment = place.moment(recipe);
    say(checker.check(&Case { recipe, state, told: &told, moment, within: &place.within, job: 0 }))
}

/// Prints the verdict of a checker on one state, and returns its exit code.
pub fn say(verdict: Verdict) -> Result<ExitCode> {
    match verdict {
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

/// Writes a state into a directory, which must be empty or not exist.
pub fn keep(state: &State, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    if std::fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?.next().is_some() {
        bail!("{} is not empty", dir.display());
    }
    check::materialise(state, dir).with_context(|| format!("make the state in {}", dir.display()))?;
    println!("the state is in {}", dir.display());
    Ok(())
}

pub fn print_lost(trace: &Trace, history: &History, recipe: &Recipe) {
    let paths = Paths::of(trace);
    println!("crash after the first {} events; lost:", recipe.at);
    let lost = history.lost(recipe);
    let mut events: Vec<u32> = lost.iter().map(|n| history.micros[*n as usize].event).collect();
    events.dedup();
    for event in &events {
        let all = history.of_event(*event).all(|n| lost.binary_search(&n).is_ok());
        let part = if all { "" } else { " (in part)" };
        println!("  #{event} {}{part}", paths.call(*event as usize, &trace.events[*event as usize]));
    }
    if events.is_empty() {
        println!("  nothing");
    }
}

pub fn print_calls(trace: &Trace) {
    let paths = Paths::of(trace);
    for (number, event) in trace.events.iter().enumerate().skip(trace.start()) {
        if !event.call.is_note() {
            println!("  #{number} {}", paths.call(number, event));
        }
    }
}

/// The recording in which a state lies: the program's, or that of a recovery.
struct Place {
    trace: Trace,
    /// The promises made before this recording.
    told: Vec<String>,
    within: String,
    /// In a recovery, the moment of the crash in the program's recording.
    crashed: Option<u64>,
}

impl Place {
    fn history(&self, recipe: &Recipe, model: Model) -> Result<History> {
        let history = History::new(&self.trace, model);
        if !history.points().contains(&recipe.at) {
            let (first, last) = (history.points().start().to_owned(), history.points().end().to_owned());
            let of = if self.within.is_empty() { "recording" } else { "recovery" };
            bail!("state {recipe} is not one of this {of}: its crash points are {first} to {last}");
        }
        Ok(history)
    }

    fn told(&self, recipe: &Recipe) -> Vec<&str> {
        let here = self.trace.marks(recipe.at as usize);
        self.told.iter().map(String::as_str).chain(here).collect()
    }

    fn moment(&self, recipe: &Recipe) -> u64 {
        self.crashed.unwrap_or_else(|| self.trace.time_before(recipe.at))
    }

    /// Records the recovery from a state. If the recovery does not always make the same calls, the
    /// states of this recording differ from those of the report.
    fn after_recovery(self, recipe: &Recipe, model: Model, recorder: &Recoveries<'_>) -> Result<Place> {
        let state = self.history(recipe, model)?.state(recipe);
        let told = self.told(recipe);
        let moment = self.moment(recipe);
        let case = Case { recipe, state: &state, told: &told, moment, within: &self.within, job: 0 };
        let trace = recorder.record(&case).map_err(anyhow::Error::msg).context("record the recovery")?;
        let told = told.iter().map(|text| (*text).to_owned()).collect();
        Ok(Place { trace, told, within: format!("{}{recipe}/", self.within), crashed: Some(moment) })
    }
}
