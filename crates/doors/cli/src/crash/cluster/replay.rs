//! `kedge crash cluster replay`.

use super::super::explore::stop_at_signals;
use super::super::judge::ClusterJudge;
use super::super::replay::{keep, print_calls, print_lost, say};
use super::super::{model_parser, usage};
use super::again::Recoveries;
use super::{OUT_DEFAULT, load};
use anyhow::{Context, Result};
use kedge_crash::again::Recorder;
use kedge_crash::cluster::{Cluster, with_case};
use kedge_crash::{Checker, MODELS, Model, Recipe};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// The directory of the recordings
    #[arg(default_value = OUT_DEFAULT)]
    recordings: PathBuf,
    /// The name of the state, as a report shows it
    #[arg(long, value_name = "NAME")]
    state: String,
    /// The model of the report [default: posix]
    #[arg(long, value_parser = model_parser(&MODELS), default_value = "posix", hide_default_value = true)]
    model: Model,
    #[command(flatten)]
    judge: ClusterJudge,
    /// Leave the state in this directory, which must be empty or not exist
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let stop = stop_at_signals()?;
    args.judge.refuse_others()?;
    let checker = args.judge.build(&stop)?;
    let mut cluster = load(&args.recordings, args.model)?.cluster;
    let (before, last) = match args.state.rsplit_once('/') {
        Some((before, last)) => (before.split('/').collect(), last),
        None => (Vec::new(), &*args.state),
    };
    let mut place = Place::default();
    for name in before {
        let Some(checker) = &checker else {
            return Err(usage("a state in a recovery needs the check that recovers: --check CMD"));
        };
        let names = cluster.names.clone();
        let recorder = Recoveries { names: &names, checker, timeout: args.judge.timeout, stop: &stop };
        (cluster, place) = place.after_recovery(&cluster, name, &recorder)?;
        println!("recovered from {}; the recovery made these calls:", place.within.trim_end_matches('/'));
        for (name, trace) in cluster.names.iter().zip(&cluster.traces) {
            println!("{name}:");
            print_calls(trace);
        }
    }
    let recipes = cluster.parse(last).map_err(|e| usage(&e.to_string()))?;
    let states = cluster.states(&recipes);
    for (node, recipe) in recipes.iter().enumerate() {
        print!("{}: ", cluster.names[node]);
        print_lost(&cluster.traces[node], &cluster.histories[node], recipe);
    }
    if let Some(dir) = &args.keep {
        keep(&cluster.join(&states), dir)?;
    }
    let Some(checker) = checker else { return Ok(ExitCode::SUCCESS) };
    let told = place.told(&cluster, &recipes);
    say(with_case(&cluster, &recipes, &told, &place.within, |case| checker.check(case)))
}

/// The recordings in which a state lies: those of the cluster, or those of a recovery.
#[derive(Default)]
struct Place {
    /// The names of the crash states that led to these recordings, each followed by `/`.
    within: String,
    /// The promises made before these recordings.
    told: Vec<String>,
}

impl Place {
    fn told<'a>(&'a self, cluster: &'a Cluster, recipes: &[Recipe]) -> Vec<&'a str> {
        self.told.iter().map(String::as_str).chain(cluster.told(recipes)).collect()
    }

    /// Records the recovery from a state. If the recovery does not always make the same calls, the
    /// states of this recording differ from those of the report.
    fn after_recovery(
        &self,
        cluster: &Cluster,
        name: &str,
        recorder: &Recoveries<'_>,
    ) -> Result<(Cluster, Place)> {
        let recipes = cluster.parse(name).map_err(|e| usage(&e.to_string()))?;
        let told = self.told(cluster, &recipes);
        let recorded = with_case(cluster, &recipes, &told, &self.within, |case| recorder.record(case));
        let traces = recorded.map_err(anyhow::Error::msg).context("record the recovery")?;
        let told = told.iter().map(|text| (*text).to_owned()).collect();
        let recordings = cluster.names.iter().cloned().zip(traces).collect();
        let within = format!("{}{name}/", self.within);
        Ok((Cluster::new(recordings, cluster.model), Place { within, told }))
    }
}
