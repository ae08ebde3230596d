//! The work of a child process: it runs one load under one rule, on real or on simulated
//! processors.
//!
//! A build for simulated processors has a scheduler in each lock. So real and simulated runs are
//! two programs: `target/release/kedge-lab` and `target/simulated/kedge-lab`.

use super::loads::{self, Amount, Load};
use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity, set_current_timer_slack};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;

/// What the child prints, as JSON.
#[derive(Serialize, Deserialize, Default, Debug)]
pub struct Answer {
    /// The costs that the simulation used, with the micro-benchmarks that measured them; empty on
    /// real processors.
    pub hardware: String,
    /// The same costs as numbers, for other runs that must use them.
    pub costs: Vec<u64>,
    pub runs: Vec<One>,
}

#[derive(Serialize, Deserialize, Debug)]
pub struct One {
    pub processors: usize,
    /// One value for each metric; `None` if it is unknown.
    pub values: Vec<Option<f64>>,
    /// How the load's threads spent their time, one line for each place in the source code.
    pub profile: Vec<String>,
}

impl One {
    fn new(processors: usize, values: &[f64], profile: Vec<String>) -> One {
        let values = values.iter().map(|value| value.is_finite().then_some(*value)).collect();
        One { processors, values, profile }
    }
}

/// The processors on which a child runs the load.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum On {
    Real(usize),
    /// Simulated processors with these costs. If `costs` is empty, they are measured.
    Simulated {
        counts: Vec<usize>,
        costs: Vec<u64>,
    },
}

/// Runs the load in this process and returns the answer.
pub fn answer(load: &str, rule: &str, short: bool, on: &On) -> Result<Answer> {
    let load = loads::named(load)?;
    ensure!(load.rules.contains(&rule), "{} has no rule {rule}: {}", load.name, load.rules.join(", "));
    let amount = if short { Amount::Short } else { Amount::Full };
    match on {
        On::Real(processors) => real(load, rule, amount, *processors),
        On::Simulated { counts, costs } => simulated(load, rule, amount, counts, costs),
    }
}

/// Confines this process, and the threads that it starts, to the first `processors` ones that it
/// may use.
fn confine(processors: usize) -> Result<()> {
    let allowed = sched_getaffinity(None).context("ask for the processors of this process")?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    ensure!(processors <= all.len(), "this process may use {} processors, not {processors}", all.len());
    let mut few = CpuSet::new();
    all[..processors].iter().for_each(|cpu| few.set(*cpu));
    sched_setaffinity(None, &few).context("confine this process to fewer processors")
}

fn real(load: &Load, rule: &str, amount: Amount, processors: usize) -> Result<Answer> {
    confine(processors)?;
    // The device sleeps for the time of a request, which must be precise. Threads inherit the
    // setting.
    set_current_timer_slack(NonZeroU64::new(1)).context("set the precision of sleeps")?;
    let values = load.play(rule, amount)?;
    Ok(Answer { runs: vec![One::new(processors, &values, vec![])], ..Answer::default() })
}

#[cfg(not(feature = "simulated"))]
fn simulated(_: &Load, _: &str, _: Amount, _: &[usize], _: &[u64]) -> Result<Answer> {
    anyhow::bail!("this kedge-lab was built without simulated processors ({})", super::BUILD)
}

/// Runs the load on simulated processors. A run on one processor, on which every thread keeps its
/// turn until it waits, measures the costs of computing. The other runs use these costs.
#[cfg(feature = "simulated")]
fn simulated(
    load: &'static Load,
    rule: &str,
    amount: Amount,
    counts: &[usize],
    costs: &[u64],
) -> Result<Answer> {
    use kedge_sched::timing::{Computing, Hardware, Table, mark, run};
    use std::sync::Arc;
    let hardware = match costs.try_into() {
        Ok(costs) => Hardware::with_costs(1, costs),
        Err(_) if costs.is_empty() => {
            Hardware::measure().context("measure what this machine's processors cost")?
        }
        Err(_) => anyhow::bail!("--costs: {} numbers, not {}", hardware_costs(), costs.len()),
    };
    // Passing the turn to another thread is several times as fast within one processor.
    confine(1)?;
    let table = Arc::new(Table::default());
    let one = |processors: usize, computing: Computing| -> Result<One> {
        let rule = rule.to_owned();
        let ran =
            run(hardware.with_processors(processors), computing, move |_| (load.play(&rule, amount), mark()));
        let ran = ran.map_err(anyhow::Error::msg)?;
        let (values, (profile, unknown)) = ran.result;
        let mut lines = words(&profile);
        lines.push(format!(
            "# {} steps, {} switches; {:.1} % of all computing was between points that the run on one processor had not met",
            ran.account.steps,
            ran.account.switches,
            share(unknown, profile.total(kedge_sched::timing::Kind::Computing))
        ));
        Ok(One::new(processors, &values?, lines))
    };
    let mut runs = vec![one(1, Computing::Measured(table.clone()))?];
    for processors in counts.iter().copied().filter(|count| *count != 1) {
        runs.push(one(processors, Computing::Learnt(table.clone()))?);
    }
    runs.retain(|run| counts.contains(&run.processors));
    Ok(Answer { hardware: hardware.to_string(), costs: hardware.costs().to_vec(), runs })
}

#[cfg(feature = "simulated")]
fn hardware_costs() -> usize {
    kedge_sched::timing::Hardware::ideal(1).costs().len()
}

#[cfg(feature = "simulated")]
fn share(part: std::time::Duration, all: std::time::Duration) -> f64 {
    if all.is_zero() { 0.0 } else { part.as_secs_f64() / all.as_secs_f64() * 100.0 }
}

/// Percentage of the threads' time from which on a place in the source code is listed.
#[cfg(feature = "simulated")]
const SHOWN: f64 = 1.0;

#[cfg(feature = "simulated")]
fn words(profile: &kedge_sched::timing::Profile) -> Vec<String> {
    use std::time::Duration;
    /// The name of the threads that `library::in_threads` starts.
    const LOAD: &str = "bench";
    let rows = || profile.rows.iter().filter(|row| row.thread == LOAD);
    let all: Duration = rows().map(|row| row.time).sum();
    let mut lines = vec![format!("# time of the load's threads: {:.1} ms in all", all.as_secs_f64() * 1e3)];
    for row in rows() {
        let share = share(row.time, all);
        if share >= SHOWN {
            let place = row.site.map_or(String::new(), |site| format!(", {}:{}", site.file(), site.line()));
            let each = row.time.as_secs_f64() * 1e6 / row.count as f64;
            lines.push(format!(
                "# {share:5.1} % {}{place}; {} times {each:.1} µs",
                row.kind.words(),
                row.count
            ));
        }
    }
    lines
}
