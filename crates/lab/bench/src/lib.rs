//! Reproducible experiments: KedgeFS compared with something else on this machine.
//!
//! ```text
//! baseline                 the experiment behind docs/PERFORMANCE.md
//! compare                  all peers, all loads; the report as a page with charts
//! reproduce                the experiments behind docs/EXPERIMENTS.md: published changes of other file systems, measured with KedgeFS's switch for the same change
//! reproduce::run_later     what Linux's file systems changed later: bytes, flushes and sharing
//! curves                   what simulated processors gave, as curves
//! scale                    costs by the number of files, opening after a crash, fsck: a plot of each
//! remote                   how much slower a distant image is: docs/DISTRIBUTED.md
//! bars                     the goals of an experiment
//! contest                  contestants, alternated rounds, the choice of how much to do
//! report                   the results as text, Markdown and JSON
//! sample, parse            medians and spread; what fs_mark and dbench print
//! counters, disk, times    KedgeFS's own counters, the kernel's of a device, and latencies as a client sees them
//! whereabouts              the processors on which clients and server ran; how to keep them on one
//! library                  loops in this process, on the library or through std::fs
//! mounts, place, shell     mounts, the directory and the machine, commands: everything that must be undone
//! ```
//!
//! # Rules of measurement
//! 1. Contestants take turns (A B A B …), so that a machine that slows down slows all of them. The
//!    median of the rounds is reported, with the spread.
//! 2. The first round does not count. It warms up and determines how much work a round needs to
//!    last long enough; then all contestants do the same amount.
//! 3. Each command is printed exactly as it runs. No side is tuned.
//! 4. What cannot be measured here is named. A contestant that fails is reported as failed, never
//!    omitted.
#![forbid(unsafe_code)]

mod bars;
pub mod baseline;
pub mod compare;
mod contest;
mod counters;
pub mod curves;
mod disk;
mod library;
mod mounts;
mod parse;
mod place;
mod plot;
pub mod remote;
mod report;
pub mod reproduce;
mod sample;
pub mod scale;
mod shell;
mod times;
mod whereabouts;

pub use report::Report;
pub use shell::Interrupt;

use std::path::PathBuf;

/// The settings of an experiment.
pub struct Settings {
    /// The directory in which the experiment makes its own one for images; `None` for the current
    /// directory.
    pub dir: Option<PathBuf>,
    /// Size of each image in bytes.
    pub size: u64,
    /// Number of counted rounds for each contestant; `None` for the experiment's default.
    pub rounds: Option<usize>,
    /// Few and short rounds, to show that it works.
    pub quick: bool,
    /// Whether the images are written full before they are used, so that the host allocates no
    /// blocks during the measurement.
    pub written: bool,
    /// The program that commands run as `kedge`.
    pub kedge: PathBuf,
    /// The program that commands run as `kedge-before`: an earlier version of KedgeFS.
    pub before: Option<PathBuf>,
    pub interrupt: Interrupt,
    /// Receives progress messages.
    pub progress: fn(&str),
}
