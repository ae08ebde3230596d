//! Measures how many crash states of a recording are built in a second, without a checker.
//!
//! `speed RECORDING MODEL STATES`

use kedge_crash::{Budget, Case, History, Model, Search, Verdict, kcr};
use std::fs::File;
use std::io::BufReader;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, model, states] = &args[..] else { return Err("speed RECORDING MODEL STATES".into()) };
    let model = Model::by_name(model).ok_or("no such model")?;
    let trace = kcr::read(BufReader::new(File::open(path)?))?.trace;
    let history = History::new(&trace, model);
    let checker = |_: &Case<'_>| Verdict::Good;
    let budget = Budget { states: Some(states.parse()?), ..Budget::default() };
    let outcome = Search { trace: &trace, history: &history, checker: &checker, budget, hear: None }.run();
    let seconds = outcome.took.as_secs_f64();
    println!(
        "{} events, {} edits; {} distinct states of {} in {seconds:.2} s: {:.0} in a second",
        trace.events.len(),
        history.micros.len(),
        outcome.states,
        outcome.recipes,
        outcome.states as f64 / seconds
    );
    Ok(())
}
