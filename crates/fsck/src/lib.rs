//! An independent opinion on a KedgeFS image.
//!
//! What is judged is always a *checkpointed* image: superblock, tree, bitmaps. It is read through `kedge_format` and
//! `kedge_device` alone, never through the engine's tree, allocator or file system, so that a fault of theirs does not hide
//! itself. The log is the exception: replay *is* the engine's, so the store replays it into an overlay in memory, and the
//! image that recovery would leave is what gets judged. A check never writes to the device; a [`repair`](repair()) does, as its module
//! says.
//!
//! # What [`check`] does
//! | newest slot | replay offered | replay | judged |
//! |---|---|---|---|
//! | none valid | any | not tried | nothing; the findings say why |
//! | any | no | not asked for | the newest checkpoint on the device |
//! | clean, both slots valid, nothing in its log | yes | not needed | the device |
//! | else | yes | succeeds | the overlay |
//! | else | yes | fails | the newest checkpoint on the device, and the failure is a finding |
//!
//! A clean slot beside a bad one gets its replay too: the bad one may have been newer, and only the log can tell. The log can
//! also tell of a newer slot where both are valid, because the newer one never reached its place; so a clean mark alone is
//! not believed, and the log is looked at as far as a mount would.
//!
//! # Any bytes
//! Images may hold anything. Every read is bounded, nothing recurses, each node is followed once, memory grows with the
//! items that are really there, and findings are counted without limit but kept up to [`CheckOptions::findings_max`].
#![forbid(unsafe_code)]

mod facts;
mod image;
mod items;
mod kinds;
mod names;
mod owned;
mod read;
mod repair;
mod replay;
mod report;
mod slots;
mod space;
mod tree;

pub use image::check_checkpoint;
pub use kinds::{FindingKind, Severity};
pub use repair::{Ending, Repair, RepairKind, RepairMode, RepairOptions, RepairReport, repair};
pub use replay::StoreReplay;
pub use report::{Counters, Finding, ReplayState, ReplaySummary, Report, SuperblockSummary};

use kedge_base::Result;
use kedge_device::Device;
use kedge_format::superblock::Superblock;
use read::Reader;
use report::{At, Findings};
use std::sync::Arc;

/// Recovers an image by replaying its log, as a mount would.
pub trait Replay: Send + Sync {
    /// How many log writes a replay from this slot would find. An error: it would fail over them.
    fn log_writes(&self, device: &dyn Device, sb: &Superblock) -> Result<u64>;

    /// Recovers the image on `overlay` and leaves a checkpoint there.
    fn replay(&self, overlay: Arc<dyn Device>) -> Result<ReplaySummary>;
}

/// How far a phase of the check has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// "replay", "nodes" (of one level of the tree), "items", "names" or "space"; of a repair also "salvage", "gather" and
    /// "rebuild".
    pub phase: &'static str,
    pub done: u64,
    pub total: u64,
}

#[derive(Clone)]
pub struct CheckOptions {
    /// Findings kept with their text; no kind takes more than an eighth of them.
    pub findings_max: usize,
    /// Who replays the log. `None`: the newest checkpoint is judged as it lies on the device.
    pub replay: Option<Arc<dyn Replay>>,
    /// Hears how far [`check`] has come, from the calling thread.
    pub progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
}

impl Default for CheckOptions {
    fn default() -> CheckOptions {
        CheckOptions { findings_max: 1000, replay: None, progress: None }
    }
}

/// Judges the image on `device` as recovery would leave it.
pub fn check(device: Arc<dyn Device>, options: &CheckOptions) -> Report {
    check_over(device, options, |base| Arc::new(kedge_device::OverlayDevice::new(base)))
}

/// [`check`], with the overlay made by `overlay_of`.
fn check_over(
    device: Arc<dyn Device>,
    options: &CheckOptions,
    overlay_of: impl FnOnce(Arc<dyn Device>) -> Arc<dyn Device>,
) -> Report {
    let mut progress = |p: Progress| {
        if let Some(hear) = &options.progress {
            hear(p);
        }
    };
    let mut findings = Findings::new(options.findings_max);
    let mut reader = Reader::new(&*device);
    let Some(sb) = slots::read_slots(&mut reader, &mut findings) else {
        return findings.into_report(device.name());
    };
    let replay =
        options.replay.as_ref().filter(|replay| !is_settled(&***replay, &*device, &sb, &mut findings));
    let Some(replay) = replay else {
        return image::check_from(&sb, &mut reader, findings, &mut progress);
    };
    progress(Progress { phase: "replay", done: 0, total: 1 });
    let overlay = overlay_of(device.clone());
    let (state, mut report) = match replay.replay(overlay.clone()) {
        Ok(summary) => {
            let report = check_replayed(&*overlay, findings, options, &mut progress);
            (ReplayState::Done(summary), report)
        }
        Err(error) => {
            // The error names the place; the finding has one only for what lies at a block.
            findings.add_error(FindingKind::ReplayFailed, At::of(&error), &error);
            let report = image::check_from(&sb, &mut reader, findings, &mut progress);
            (ReplayState::Failed { what: error.to_string() }, report)
        }
    };
    report.device = device.name().to_owned();
    report.replay = state;
    report
}

/// Whether the newest slot says that the image was unmounted, and nothing on the device says otherwise.
fn is_settled(replay: &dyn Replay, device: &dyn Device, sb: &Superblock, findings: &mut Findings) -> bool {
    if !sb.checkpoint.clean || !findings.is_empty() {
        return false;
    }
    match replay.log_writes(device, sb) {
        Ok(0) => true,
        Ok(writes) => {
            findings.add(FindingKind::SuperblockCleanWithLog, At::block(sb.block()), || {
                format!("unmounted, yet {writes} log writes follow the checkpoint")
            });
            false
        }
        // Replay meets the same, and tells of it.
        Err(_) => false,
    }
}

/// Judges what replay left; `findings` are those of the slots before it.
fn check_replayed(
    overlay: &dyn Device,
    mut findings: Findings,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Report {
    let mut reader = Reader::new(overlay);
    let mut after = Findings::new(options.findings_max);
    let sb = slots::read_slots(&mut reader, &mut after);
    findings.absorb_new(after);
    match sb {
        Some(sb) => image::check_from(&sb, &mut reader, findings, progress),
        None => findings.into_report(overlay.name()),
    }
}

#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod scale_tests;
#[cfg(test)]
mod test_image;
#[cfg(test)]
#[path = "lib_tests.rs"]
mod tests;
