//! `kedge fsck`: checks an image as recovery would leave it, and repairs it on request.
//!
//! # Modes
//! | option | checked | written |
//! |---|---|---|
//! | none, or `-n` | everything; file data with `--data` | nothing |
//! | `-p`, `-a` | everything, unless the image was unmounted (`-f`: also then) | repairs that lose nothing: the log is replayed; counts, bitmaps and orphan items are corrected |
//! | `-y` | the same | all repairs that a clean image needs |
//!
//! It asks no questions, so it behaves the same with and without a terminal.

use anyhow::{Result, bail};
use kedge_fsck::{Progress, RepairMode};
use kedge_host::engine::{self, Checked};
use kedge_host::{Usage, mounts};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Check everything, write nothing (the default without -p and -y)
    #[arg(short = 'n')]
    dry_run: bool,
    /// Replay the log and make only safe repairs; if the image needs others, exit with code 4 (also
    /// -a)
    #[arg(short = 'p', short_alias = 'a')]
    preen: bool,
    /// Repair everything; what cannot be read is lost
    #[arg(short = 'y')]
    yes: bool,
    /// With -p or -y: also check an image that was unmounted cleanly
    #[arg(short = 'f')]
    force: bool,
    /// Also read the data of files that have checksums, and verify it; not with -p or -y
    #[arg(long, conflicts_with_all = ["preen", "yes"])]
    data: bool,
    /// Show progress on a terminal
    #[arg(short = 'C')]
    progress: bool,
    /// fsck(8) adds a file descriptor to -C; it is ignored, and progress goes to the terminal
    #[arg(short = '0', short_aliases = ['1', '2', '3', '4', '5', '6', '7', '8', '9'],
          action = clap::ArgAction::Count, hide = true, requires = "progress")]
    descriptor: u8,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// A file or block device, or rbd:POOL/IMAGE, nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH
    image: PathBuf,
}

// Exit codes of fsck(8) that do not come from the report.
pub const OPERATIONAL: u8 = 8;
pub const USAGE: u8 = 16;

pub fn run(args: Args) -> Result<ExitCode> {
    if args.dry_run as u8 + args.preen as u8 + args.yes as u8 > 1 {
        bail!(Usage("only one of -n, -p (-a) and -y can be meant".into()));
    }
    if let Some(mount) = mounts::of_image(&args.image)? {
        bail!("{} is mounted on {}: unmount it first", args.image.display(), mount.dir.display());
    }
    let (progress, bar) = Bar::on_terminal(args.progress);
    let mode = match (args.preen, args.yes) {
        (true, _) => Some(RepairMode::Preen),
        (_, true) => Some(RepairMode::Full),
        _ => None,
    };
    let checked = match mode {
        None => engine::check(&args.image, args.data, progress),
        Some(mode) => engine::repair(&args.image, mode, args.force, progress),
    };
    finish(checked, bar, args.json)
}

/// Clears the progress line and prints the report.
pub fn finish(checked: Result<Checked>, bar: Option<Arc<Bar>>, as_json: bool) -> Result<ExitCode> {
    if let Some(bar) = bar {
        bar.clear();
    }
    let Checked { text, json, exit_code } = checked?;
    let mut out = std::io::stdout().lock();
    if as_json {
        writeln!(out, "{}", kedge_crash::report::escape_json(&format!("{json:#}")))?;
    } else {
        writeln!(out, "{}", kedge_base::printable(text.trim_end()))?;
    }
    Ok(ExitCode::from(exit_code))
}

/// A progress line on stderr that is overwritten in place.
#[derive(Default)]
pub struct Bar {
    /// Phase and percentage shown last, as one number.
    shown: AtomicU64,
}

impl Bar {
    /// A progress line and the callback that updates it, if wanted and standard error is a
    /// terminal.
    pub fn on_terminal(wanted: bool) -> (Option<engine::OnProgress>, Option<Arc<Bar>>) {
        if !wanted || !std::io::stderr().is_terminal() {
            return (None, None);
        }
        let bar = Arc::new(Bar::default());
        let shown = bar.clone();
        (Some(Arc::new(move |p| shown.show(p))), Some(bar))
    }

    fn show(&self, p: Progress) {
        let percent = p.done * 100 / p.total.max(1);
        let now = p.phase.bytes().fold(0, |sum: u64, b| sum * 31 + b as u64) << 8 | percent;
        if self.shown.swap(now, Ordering::Relaxed) != now {
            // Progress that cannot be shown is no reason to stop.
            let _ = write!(std::io::stderr(), "\r{:<8} {percent:>3}%\x1b[K", p.phase);
        }
    }

    pub fn clear(&self) {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}
