//! The experiments on simulated processors: the published ones ran on machines with twelve or
//! sixteen.
//!
//! Each rule runs in a process of its own ([`child`]), on the machine of `kedge-sched` with virtual
//! time. Computing costs what it costs on one processor of this machine. With *validation* the same
//! loads also run on real processors, in turns, and the report shows both.

mod child;
mod disk;
mod loads;

pub use child::{Answer, On, answer};

use super::{Experiment, Run, rename, tree_lock};
use crate::contest::{Outcome, Side};
use crate::report::{Reading, Section};
use crate::sample::Sample;
use anyhow::{Context, Result, bail, ensure};
use kedge_base::pause;
use loads::Load;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The command that builds the program for simulated processors.
pub const BUILD: &str = "cargo build --profile simulated -p kedge-bench --features simulated";
/// Polling interval for the end of a child process. It affects no measurement.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Numbers of real processors for which the prediction is validated.
const VALIDATED: [usize; 2] = [1, 2];

/// The requested simulation.
#[derive(Clone, Debug)]
pub struct Asked {
    pub processors: Vec<usize>,
    /// Whether the same loads also run on real processors.
    pub validate: bool,
}

/// Number of processors of the published machine.
fn published(experiment: Experiment) -> usize {
    match experiment {
        Experiment::Rename | Experiment::TreeLock => 12,
        _ => 16,
    }
}

struct Programs {
    real: PathBuf,
    simulated: PathBuf,
}

impl Programs {
    /// Finds the program for simulated processors, whose profile directory is next to this
    /// program's.
    fn find() -> Result<Programs> {
        let this = std::env::current_exe().context("find this program")?;
        ensure!(
            !cfg!(feature = "simulated"),
            "{} was built for simulated processors; the kedge-lab of the release build starts it",
            this.display()
        );
        let name = this.file_name().context("this program has a name")?;
        let targets = this.parent().and_then(Path::parent).context("find the directory of builds")?;
        let simulated = targets.join("simulated").join(name);
        ensure!(simulated.is_file(), "{} does not exist: {BUILD}", simulated.display());
        Ok(Programs { real: this, simulated })
    }
}

fn list(counts: &[usize]) -> String {
    counts.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

fn start(run: &Run<'_>, program: &Path, load: &Load, rule: &str, on: &On) -> Result<Answer> {
    let mut command = Command::new(program);
    command.args(["processors", load.name, "--rule", rule]);
    match on {
        On::Real(count) => command.args(["--real", &count.to_string()]),
        On::Simulated { counts, costs } => {
            let costs: Vec<String> = costs.iter().map(u64::to_string).collect();
            let with = ["--costs", &costs.join(",")];
            command.args(["--simulated", &list(counts)]).args(if costs.is_empty() { &[][..] } else { &with })
        }
    };
    if run.settings.quick {
        command.arg("--short");
    }
    let told = format!("{command:?}");
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("start {told}"))?;
    while child.try_wait().with_context(|| format!("wait for {told}"))?.is_none() {
        if let Err(e) = run.settings.interrupt.check() {
            child.kill().context("end the child")?;
            child.wait().context("wait for the child")?;
            return Err(e);
        }
        pause(LOOK_AGAIN);
    }
    let output = child.wait_with_output().with_context(|| format!("read the answer of {told}"))?;
    ensure!(output.status.success(), "{told} failed: {}", output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("understand the answer of {told}"))
}

/// The results of one load, by number of processors and index of the rule.
#[derive(Default)]
struct Runs {
    values: BTreeMap<(usize, usize), Vec<Sample>>,
    profiles: BTreeMap<(usize, usize), Vec<String>>,
    hardware: String,
}

impl Runs {
    fn keep(&mut self, rule: usize, answer: Answer) {
        for one in answer.runs {
            let samples = self.values.entry((one.processors, rule)).or_default();
            samples.resize(one.values.len(), Sample::default());
            for (sample, value) in samples.iter_mut().zip(one.values) {
                sample.push(value.unwrap_or(f64::NAN));
            }
            self.profiles.insert((one.processors, rule), one.profile);
        }
        self.hardware = answer.hardware;
    }

    fn side(&self, name: &'static str, processors: usize, rule: usize) -> Option<Side> {
        let samples = self.values.get(&(processors, rule))?.clone();
        Some(Side { name, command: String::new(), samples, failed: None })
    }
}

/// `costs`: the first process measures them, so that all rules and loads have the same. The costs
/// of computing are learnt again in each round.
fn simulate(
    run: &Run<'_>,
    programs: &Programs,
    load: &Load,
    counts: &[usize],
    costs: &mut Vec<u64>,
) -> Result<Runs> {
    let (mut runs, rounds) = (Runs::default(), run.plan.rounds);
    for round in 1..=rounds {
        for (i, rule) in load.rules.iter().enumerate() {
            let on = On::Simulated { counts: counts.to_vec(), costs: costs.clone() };
            (run.settings.progress)(&format!(
                "{}, {rule}: {} simulated processors, round {round} of {rounds}",
                load.title,
                list(counts)
            ));
            let answer = start(run, &programs.simulated, load, rule, &on)?;
            costs.clone_from(&answer.costs);
            runs.keep(i, answer);
        }
    }
    Ok(runs)
}

/// The rules take turns, since other programs may use the machine.
fn measure(run: &Run<'_>, programs: &Programs, load: &Load, counts: &[usize]) -> Result<Runs> {
    let mut runs = Runs::default();
    for round in 1..=run.plan.rounds {
        for count in counts {
            for (i, rule) in load.rules.iter().enumerate() {
                (run.settings.progress)(&format!(
                    "{}, {rule}: {count} real processors, round {round} of {}",
                    load.title, run.plan.rounds
                ));
                runs.keep(i, start(run, &programs.real, load, rule, &On::Real(*count))?);
            }
        }
    }
    Ok(runs)
}

fn outcome(load: &Load, title: String, sides: Vec<Side>) -> Outcome {
    Outcome { title, metrics: (load.metrics)(), goal: None, sides, published: vec![] }
}

/// Runs the loads of an experiment.
pub(super) fn run(run: &mut Run<'_>, experiment: Experiment, asked: &Asked) -> Result<()> {
    of_loads(run, &loads::of(experiment), asked, Some(experiment))
}

/// Runs the loads that show what stops scaling in KedgeFS.
pub(super) fn own(run: &mut Run<'_>, asked: &Asked) -> Result<()> {
    let own = loads::OWN.iter().map(|name| loads::named(name)).collect::<Result<Vec<_>>>()?;
    of_loads(run, &own, asked, None)
}

fn of_loads(
    run: &mut Run<'_>,
    loads: &[&'static Load],
    asked: &Asked,
    experiment: Option<Experiment>,
) -> Result<()> {
    let programs = Programs::find()?;
    let mut counts = asked.processors.clone();
    if asked.validate {
        counts.extend(VALIDATED);
    }
    counts.sort_unstable();
    counts.dedup();
    if counts.is_empty() {
        bail!("--processors: at least one number");
    }
    let available = std::thread::available_parallelism().context("count the processors")?.get();
    let real: Vec<usize> =
        VALIDATED.iter().copied().filter(|count| asked.validate && *count <= available).collect();
    let (mut simulated, mut costs) = (Vec::new(), Vec::new());
    let mut measured = Vec::new();
    for load in loads {
        simulated.push(simulate(run, &programs, load, &counts, &mut costs)?);
        measured.push(measure(run, &programs, load, &real)?);
    }
    for count in real {
        let mut outcomes = Vec::new();
        for ((load, real), runs) in loads.iter().zip(&measured).zip(&simulated) {
            for (i, rule) in load.rules.iter().enumerate() {
                let sides = [("real", real), ("simulated", runs)];
                let sides = sides.iter().filter_map(|(name, runs)| runs.side(name, count, i)).collect();
                outcomes.push(outcome(load, format!("{}, {rule}", load.title), sides));
            }
        }
        run.sections.push(Section {
            title: format!("Validation: {}, real and simulated", processors(count)).into(),
            setup: vec![],
            outcomes,
            reading: Reading::Change,
        });
    }
    for count in counts {
        let (mut outcomes, mut setup) = (Vec::new(), Vec::new());
        for (load, runs) in loads.iter().zip(&simulated) {
            let sides = load.rules.iter().enumerate().filter_map(|(i, rule)| runs.side(rule, count, i));
            let mut outcome = outcome(load, load.title.to_owned(), sides.collect());
            outcome.published = load.published.to_vec();
            for (i, rule) in load.rules.iter().enumerate() {
                setup.push(format!("# {}, {rule}", load.title));
                setup.extend(runs.profiles.get(&(count, i)).cloned().unwrap_or_default());
            }
            if experiment.is_some_and(|experiment| published(experiment) == count) {
                run.bars.extend(match load.name {
                    "creates" => tree_lock::bars(&outcome),
                    "dbench-renames" => rename::bars(&outcome, &format!("{count} simulated processors")),
                    _ => vec![],
                });
            }
            outcomes.push(outcome);
        }
        run.sections.push(Section {
            title: format!(
                "On {} that {} simulated",
                processors(count),
                if count == 1 { "is" } else { "are" }
            )
            .into(),
            setup,
            outcomes,
            reading: Reading::Change,
        });
    }
    let hardware = simulated.first().map_or("", |runs| &runs.hardware);
    run.note(format!("Costs of the simulation, from micro-benchmarks of this machine: {hardware}."));
    run.note(format!("The {}.", loads::SPEED));
    Ok(())
}

fn processors(count: usize) -> String {
    if count == 1 { "1 processor".into() } else { format!("{count} processors") }
}
