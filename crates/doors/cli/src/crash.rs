//! `kedge crash`: crash tests of other programs.

mod again;
mod bisect;
mod cluster;
mod commits;
mod effort;
mod explore;
mod judge;
mod lazyfs;
mod live;
mod record;
mod replay;
mod reports;
mod watch;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kedge_crash::kcr::{self, Loaded};
use kedge_crash::{DISKS, MODELS, Model, Trace};
use kedge_host::Usage;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run a command on its own file system and record what it does there
    Record(record::Args),
    /// Try the crash states of a recording
    Explore(Box<explore::Args>),
    /// Show one crash state again
    Replay(Box<replay::Args>),
    /// Find the first commit of a git repository whose crash test fails
    Bisect(Box<bisect::Args>),
    /// Run a crash test of each new commit of a git repository
    Watch(Box<watch::Args>),
    /// Record that a promise was made to the user at this point
    Mark(record::MarkArgs),
    /// Record and explore a cluster whose nodes lose power together
    Cluster(Box<cluster::Args>),
    /// List the models of what a file system may lose
    Models,
    /// Mount an image that loses power on request
    Mount(live::MountArgs),
    /// Lose everything that is not persistent on such a mount, now, and go on with the rest
    Now(live::NowArgs),
    /// Let calls on such a mount fail, wait, or trigger a crash
    Fault(live::FaultArgs),
    /// Mount a directory in place of LazyFS, with its configuration and commands
    Lazyfs(Box<lazyfs::Args>),
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Record(args) => record::run(args),
        Command::Explore(args) => judged(explore::run(*args)),
        Command::Replay(args) => judged(replay::run(*args)),
        Command::Bisect(args) => judged(bisect::run(*args)),
        Command::Watch(args) => judged(watch::run(*args)),
        Command::Mark(args) => record::mark(args),
        Command::Cluster(args) => cluster::run(*args),
        Command::Mount(args) => live::mount(args),
        Command::Now(args) => live::now(args),
        Command::Fault(args) => live::fault(args),
        Command::Lazyfs(args) => lazyfs::run(&args),
        Command::Models => {
            for model in every_model() {
                println!("{:15} {}", model.name, model.about);
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Maps an error to the exit code for "no verdict", which differs from the exit code of a failure
/// that was found.
fn judged(outcome: Result<ExitCode>) -> Result<ExitCode> {
    match outcome {
        Err(e) if !e.is::<Usage>() => {
            eprintln!("kedge: {}", kedge_host::text::one_line(&format!("{e:#}")));
            Ok(ExitCode::from(explore::NO_VERDICT))
        }
        outcome => outcome,
    }
}

/// A model of file systems.
fn parse_model(name: &str) -> Result<Model, String> {
    let names = || MODELS.map(|m| m.name).join(", ");
    Model::by_name(name)
        .filter(|model| !model.is_disk)
        .ok_or_else(|| format!("there is no model {name:?}; there are {}", names()))
}

/// A parser of model names, which completions and man pages list.
fn model_parser(models: &[Model]) -> impl TypedValueParser<Value = Model> + use<> {
    let values = models.iter().map(|model| PossibleValue::new(model.name).help(model.about));
    PossibleValuesParser::new(values)
        .map(|name| Model::by_name(&name).expect("the parser takes the names of models only"))
}

/// All models.
fn every_model() -> Vec<Model> {
    MODELS.into_iter().chain(DISKS).collect()
}

/// The model for a recording: the one that the user names, or the loosest.
fn model_for(asked: Option<Model>, trace: &Trace) -> Result<Model> {
    let is_device = trace.device().is_some();
    let model = asked.or_else(|| Model::by_name(if is_device { "disk" } else { "posix" }));
    let model = model.expect("both names are in the table");
    match (is_device, model.is_disk) {
        (true, false) => {
            let disks = DISKS.map(|m| m.name).join(", ");
            Err(usage(&format!("a block device was recorded: --model takes {disks}, not {}", model.name)))
        }
        (false, true) => Err(usage(&format!("files were recorded: {} is a model of devices", model.name))),
        _ => Ok(model),
    }
}

/// Parses a time such as `90`, `90s`, `500ms`, `5m` or `1h`.
fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().map_err(|_| format!("{text:?} is no time"))?;
    let unit = match &text[digits..] {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("{text:?} is no time: ms, s, m and h are known")),
    };
    Duration::try_from_secs_f64(number * unit).map_err(|e| format!("{text:?}: {e}"))
}

fn load(path: &Path) -> Result<Loaded> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let loaded = kcr::read(BufReader::new(file)).with_context(|| format!("read {}", path.display()))?;
    if let Some(why) = cut(&loaded) {
        eprintln!(
            "kedge: {} is not whole: {why}; {} calls before that are used",
            path.display(),
            loaded.trace.events.len()
        );
    }
    if loaded.trace.events.iter().skip(loaded.trace.start()).all(|e| e.call.is_note()) {
        bail!(
            "{} holds no change of a file: did the command write into $KEDGE_DIR (or was --cd forgotten)?",
            path.display()
        );
    }
    Ok(loaded)
}

/// The reason why the recording is incomplete. A recorder that was killed between two calls leaves
/// only complete records, but no end record.
fn cut(loaded: &Loaded) -> Option<String> {
    match loaded.cut {
        Some((at, why)) => Some(format!("{why} at byte {at}")),
        None => loaded.trace.end().is_none().then(|| "the end of the command is missing".to_owned()),
    }
}

fn usage(text: &str) -> anyhow::Error {
    Usage(text.to_owned()).into()
}
