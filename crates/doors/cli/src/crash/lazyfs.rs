//! `kedge crash lazyfs`: a drop-in for LazyFS: its command line, configuration, pipes and log.
//!
//! LazyFS shows a root directory on a mount point and keeps what is written in its own cache, until
//! an fsync. Here an image in the root directory holds the files, and the calls since the last loss
//! are kept in memory ([`Lazy`]). Messages that other programs wait for are printed in the words of
//! LazyFS.

mod command;
mod config;
mod journal;
mod pipe;

use anyhow::{Context, Result, bail};
use command::{Command, HELP};
use config::{Config, Dirs};
use journal::Journal;
use kedge_crash::Model;
use kedge_crash_record::{Faults, Lazy, Live, Takes};
use kedge_fuse::FuseOptions;
use kedge_host::options::{MountWords, parse_size};
use kedge_host::os::TerminationSignals;
use kedge_host::serve::unmount_on_signal;
use kedge_host::{background, create, engine, mounts};
use kedge_transfer::import;
use kedgefs::FormatOptions;
use pipe::{Completed, Pipe};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The image in the root directory.
const IMAGE: &str = "lazyfs.kedge";
/// The model of LazyFS itself: names are durable at once, bytes and sizes with an fsync.
const OWN_MODEL: &str = "lazyfs";
/// The default limit on the bytes of calls that are kept in memory.
const CACHE_DEFAULT: u64 = 1 << 30;
/// The line on the second pipe after data has been lost on request.
const CLEARED: &str = "finished::clear-cache\n";

#[derive(clap::Args, Debug)]
pub struct Args {
    /// The configuration of LazyFS
    #[arg(short, long, value_name = "FILE")]
    config_path: PathBuf,
    /// The mount point
    #[arg(value_name = "MOUNT", conflicts_with = "mount", required_unless_present = "mount")]
    dir: Option<PathBuf>,
    /// The mount point, as for mount-lazyfs.sh
    #[arg(short, long = "mount.dir", value_name = "MOUNT")]
    mount: Option<PathBuf>,
    /// The directory that keeps what survives, in an image; its files are the initial content
    #[arg(short, long = "root.dir", value_name = "ROOT")]
    root: Option<PathBuf>,
    /// Options of FUSE: allow_other, modules=subdir, and subdir=ROOT instead of --root.dir
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    options: Vec<String>,
    /// Serve in this process instead of a background process, and print the log
    #[arg(short, long)]
    foreground: bool,
    /// What a loss takes: lazyfs, or a model of `kedge crash models`
    #[arg(long, value_name = "MODEL", default_value = OWN_MODEL)]
    model: String,
    /// The size of a new image
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    size: u64,
    /// Started by this command itself: reports to the waiting parent on standard output
    #[arg(long, hide = true, requires = "foreground")]
    as_daemon: bool,
}

/// The parsed command line.
struct Setup {
    dirs: Dirs,
    image: PathBuf,
    takes: Takes,
    allow_other: bool,
    config: Config,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    if args.as_daemon {
        return background::run(false, |live| serve(set_up(args)?, false, live).map(|()| ExitCode::SUCCESS));
    }
    let setup = set_up(args)?;
    mounts::detach_dead(&setup.dirs.mount, &setup.image)?;
    mounts::refuse_busy(&setup.dirs.mount)?;
    if !create::exists(&setup.image)? {
        make_image(&setup, args.size)?;
    }
    match args.foreground {
        true => serve(setup, true, || Ok(()))?,
        false => spawn(args, &setup)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn set_up(args: &Args) -> Result<Setup> {
    let (mut root, mut allow_other) = (args.root.clone(), false);
    for option in &args.options {
        match option.split_once('=') {
            None if option == "allow_other" => allow_other = true,
            Some(("modules", "subdir")) => {}
            Some(("subdir", dir)) => root = Some(dir.into()),
            _ => {
                let known = "allow_other, modules=subdir and subdir=ROOT are known";
                return Err(super::usage(&format!("-o {option}: {known}")));
            }
        }
    }
    let root = root.ok_or_else(|| super::usage("--root.dir ROOT or -o subdir=ROOT is missing"))?;
    let mount = args.dir.as_ref().or(args.mount.as_ref()).expect("clap wants one of the two");
    let takes = match (args.model.as_str(), Model::by_name(&args.model)) {
        (OWN_MODEL, _) => Takes::Bytes,
        (_, Some(model)) if !model.is_disk => Takes::Model(model),
        (name, _) => {
            return Err(super::usage(&format!(
                "there is no model {name:?}: {OWN_MODEL}, or one of kedge crash models"
            )));
        }
    };
    if !root.is_dir() {
        bail!("the root directory {} is no directory", root.display());
    }
    let dirs = Dirs {
        root: std::path::absolute(&root).context("find the root directory")?,
        mount: mounts::resolve(mount)?,
    };
    let config = config::read(&args.config_path, &dirs)?;
    Ok(Setup { image: dirs.root.join(IMAGE), dirs, takes, allow_other, config })
}

/// Makes the image from the files of the root directory. It is made beside that directory, so that
/// it does not contain itself, and then moved into it.
fn make_image(setup: &Setup, size: u64) -> Result<()> {
    let root = &setup.dirs.root;
    let source = import::Source::open(root, root)?;
    let size = size.max(source.estimate()?.image_size());
    let name = root.file_name().unwrap_or(OsStr::new("root")).to_string_lossy();
    let beside = root.with_file_name(format!(".{name}.{}.{IMAGE}", std::process::id()));
    let size = create::whole_blocks(size);
    let options = FormatOptions { size: Some(size), ..FormatOptions::default() };
    create::filled(&beside, size, &options, false, &|image| import::fill(&source, image, None))?;
    let moved = fs::rename(&beside, &setup.image).and_then(|()| fs::File::open(root)?.sync_all());
    if moved.is_err() && beside.exists() {
        fs::remove_file(&beside).with_context(|| format!("remove {}", beside.display()))?;
    }
    moved.with_context(|| format!("move the new image to {}", setup.image.display()))
}

fn spawn(args: &Args, setup: &Setup) -> Result<()> {
    let config = std::path::absolute(&args.config_path).context("find the configuration")?;
    let mut words: Vec<&OsStr> = ["crash", "lazyfs", "--foreground", "--as-daemon"].map(OsStr::new).into();
    let (model, root) = (OsStr::new(&args.model), setup.dirs.root.as_os_str());
    words.extend([OsStr::new("--model"), model, OsStr::new("--config-path"), config.as_os_str()]);
    words.extend([OsStr::new("--root.dir"), root]);
    if setup.allow_other {
        words.extend([OsStr::new("-o"), OsStr::new("allow_other")]);
    }
    words.extend([OsStr::new("--"), setup.dirs.mount.as_os_str()]);
    background::spawn(&words, None, None)
}

/// Opens, mounts, opens the pipes, calls `ready`, and serves until the mount has ended.
fn serve(setup: Setup, prints: bool, ready: impl FnOnce() -> Result<()>) -> Result<()> {
    let Setup { dirs, image, takes, allow_other, config } = setup;
    let signals = TerminationSignals::block().context("block signals")?;
    let journal = Arc::new(Journal::new(config.logfile.as_deref(), prints, config.log_all, &dirs.root)?);
    let pipe = Pipe::open(&config.fifo).context("fifo_path")?;
    let completed = config.completed.as_deref().map(Completed::open).transpose();
    let completed = completed.context("fifo_path_completed")?;
    let mut words = MountWords::parse([] as [&str; 0])?;
    let opened = engine::open(&image, &mut words, engine::Extra::default())?;
    if let Some(notice) = opened.notice {
        bail!("{notice}");
    }
    let fs = opened.fs;
    let cache = config.cache.unwrap_or(CACHE_DEFAULT);
    let started = (|| {
        let live = Live::new(fs.clone(), cache).context("read what the image holds")?;
        let mut faults = Faults::below(dirs.root.as_os_str().as_bytes().to_vec());
        config.faults.into_iter().for_each(|fault| faults.add(fault));
        let listener = journal.clone();
        let lazy = Lazy::new(live, takes, faults, move |notice| listener.notice(notice));
        let mount = dirs.mount.clone();
        // The kernel must cache nothing, because a loss changes files without a request. Every open
        // must be a request, because a fault may be due at it. The mount is a plain FUSE mount, as
        // that of LazyFS is.
        let fuse = FuseOptions {
            cache_timeout: Duration::ZERO,
            auto_invalidate: true,
            no_open: false,
            privileged: Some(false),
            allow_other: allow_other.then_some(true),
            ..FuseOptions::default()
        };
        let session = engine::attach(&image, &mount, &fuse)?;
        let point = session.mount_point().clone();
        kedge_base::spawn_named("signals", move || unmount_on_signal(&signals, &point))
            .context("start a thread")?;
        let worker = Worker { lazy: lazy.clone(), dirs, journal: journal.clone(), completed, cache };
        kedge_base::spawn_named("faults", move || {
            let lost = pipe.each_line(&|line| worker.obey(line), &|why| worker.journal.warn("fifo", why));
            if let Err(e) = lost {
                worker.journal.error("fifo", &format!("commands can no longer be read: {e:#}"));
            }
        })
        .context("start a thread")?;
        journal.info("faults.worker", "waiting for fault commands...");
        ready()?;
        anyhow::Ok((lazy, session, mount))
    })();
    let (lazy, session, mount) = match started {
        Ok(started) => started,
        Err(e) => {
            // A session, if it was made, has been dropped and has ended the mount.
            if let Err(second) = fs.close() {
                tracing::error!("close {}: {second}", image.display());
            }
            return Err(e);
        }
    };
    journal.info("fifo", "running LazyFS...");
    let closed = session
        .run_and_close(lazy, move || fs.close())
        .with_context(|| format!("serve {}", mount.display()))?;
    journal.plain("[lazyfs]: stopping LazyFS...");
    closed.with_context(|| format!("close {}", image.display()))
}

/// Executes the commands that arrive on the pipe.
struct Worker {
    lazy: Lazy,
    dirs: Dirs,
    journal: Arc<Journal>,
    completed: Option<Completed>,
    cache: u64,
}

impl Worker {
    fn obey(&self, line: &str) {
        let journal = &self.journal;
        journal.info("faults.worker", &format!("received '{line}'"));
        match command::parse(line, &self.dirs) {
            Ok(Command::Clear) => {
                journal.warn("cmds", "clear cache request submitted...");
                self.lazy.clear();
                journal.warn("cmds", "cache is cleared.");
                let written = self.completed.as_ref().map_or(Ok(()), |pipe| pipe.write(CLEARED));
                if let Err(e) = written {
                    journal.warn("faults.worker", &format!("failed to write to notifier fifo: {e}"));
                }
            }
            Ok(Command::Checkpoint) => {
                journal.warn("cmds", "cache checkpoint request submitted...");
                match self.lazy.live().checkpoint() {
                    Ok(()) => journal.warn("cmds", "checkpoint is done."),
                    Err(e) => journal.error("cmds", &format!("checkpoint failed: {e}")),
                }
            }
            Ok(Command::Usage) => {
                let bytes: u64 = self.lazy.live().unsynced().iter().map(|file| file.bytes).sum();
                let percent = bytes as f64 * 100.0 / self.cache as f64;
                journal.warn("cmds", &format!("cache usage (%pages) is {percent}%"));
            }
            Ok(Command::Report) => journal.report(&self.lazy.live().unsynced()),
            Ok(Command::Help) => {
                HELP.iter().for_each(|line| journal.info("faults.worker", &format!("help: {line}")));
            }
            Ok(Command::Fault(fault)) => {
                self.lazy.add_fault(fault);
                match line.starts_with("lazyfs::crash") {
                    true => journal.critical("faults.worker", "received: VALID crash fault:"),
                    false => journal.info("faults.worker", &format!("configured successfully '{line}'")),
                }
            }
            Err(why) => {
                let kind = line.split("::").nth(1).unwrap_or("command");
                journal.warn("faults.worker", &format!("received: INVALID {kind} fault: {why}"));
            }
        }
    }
}
