//! `kedge crash cluster replay`.

use super::super::explore::stop_at_signals;
use super::super::judge::ClusterJudge;
use super::super::replay::{keep, print_lost, say};
use super::super::{model_parser, usage};
use super::{OUT_DEFAULT, load};
use anyhow::Result;
use kedge_crash::cluster::judge;
use kedge_crash::{MODELS, Model};
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
    let cluster = load(&args.recordings, args.model)?.cluster;
    let recipes = cluster.parse(&args.state).map_err(|e| usage(&e.to_string()))?;
    let states = cluster.states(&recipes);
    for (node, recipe) in recipes.iter().enumerate() {
        print!("{}: ", cluster.names[node]);
        print_lost(&cluster.traces[node], &cluster.histories[node], recipe);
    }
    if let Some(dir) = &args.keep {
        keep(&cluster.join(&states), dir)?;
    }
    let Some(checker) = args.judge.build(&stop)? else { return Ok(ExitCode::SUCCESS) };
    say(judge(&cluster, &checker, &recipes, &states, &cluster.told(&recipes), 0))
}
