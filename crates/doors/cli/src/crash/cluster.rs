//! `kedge crash cluster`: nodes that lose power together.

mod again;
mod explore;
pub(super) mod file;
mod record;
mod replay;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use kedge_crash::cluster::{Cluster, Manifest, check_names, recording_of};
use kedge_crash::{Model, Trace, kcr};
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;

/// The name of the recordings' directory if the user names none.
const OUT_DEFAULT: &str = "run.cluster";

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the commands of a cluster, each node with a file system of its own, and record them
    Record(record::Args),
    /// Try the states that a power failure of all nodes may leave
    Explore(explore::Args),
    /// Show one state of the cluster again
    Replay(replay::Args),
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Record(args) => record::run(&args),
        Command::Explore(args) => super::judged(explore::run(&args)),
        Command::Replay(args) => super::judged(replay::run(&args)),
    }
}

/// The recordings of a cluster.
struct Loaded {
    cluster: Cluster,
    /// The incomplete recordings, each with the reason.
    cut: Vec<String>,
}

fn load(dir: &Path, model: Model) -> Result<Loaded> {
    let path = dir.join(Manifest::FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && dir.is_dir() => {
            bail!("{} is no recording of a cluster: it has no {}", dir.display(), Manifest::FILE)
        }
        Err(e) => return Err(e).with_context(|| format!("read {}", path.display())),
    };
    let manifest: Manifest = file::parse(&path, &text)?;
    check_names(manifest.nodes.iter().map(String::as_str))
        .with_context(|| format!("read {}", path.display()))?;
    let (mut recordings, mut cut) = (Vec::new(), Vec::new());
    let mut limit = u64::MAX;
    for name in manifest.nodes {
        let path = dir.join(recording_of(&name));
        let read = || -> Result<kcr::Loaded> { Ok(kcr::read(BufReader::new(File::open(&path)?))?) };
        let loaded = read().with_context(|| format!("read {}", path.display()))?;
        if loaded.trace.device().is_some() {
            bail!("{} is the recording of a device", path.display());
        }
        if let Some((at, why)) = loaded.cut {
            cut.push(format!("{}: {why} at byte {at}", path.display()));
            limit = limit.min(loaded.trace.events.last().map_or(0, |event| event.time));
        } else if loaded.trace.end().is_none() {
            // The recorder was killed. The recording has every call that had returned.
            cut.push(format!("{}: the end of the command is missing", path.display()));
        }
        recordings.push((name, loaded.trace));
    }
    for why in &cut {
        eprintln!("kedge: a recording is not whole: {why}; what comes before is used");
    }
    // Cut all recordings where the first damaged one ends: the later states of its node are not
    // known.
    recordings.iter_mut().for_each(|(_, trace)| shorten(trace, limit));
    if recordings.iter().all(|(_, trace)| trace.is_unchanged()) {
        bail!("{} holds no change of a file: did the commands write into $KEDGE_DIR?", dir.display());
    }
    Ok(Loaded { cluster: Cluster::new(recordings, model), cut })
}

fn shorten(trace: &mut Trace, limit: u64) {
    let end = trace.events.iter().position(|event| event.time > limit);
    trace.events.truncate(end.unwrap_or(usize::MAX));
}
