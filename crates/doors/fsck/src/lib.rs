//! An independent check of a KedgeFS image, and its repair.
//!
//! A check always reads a *checkpointed* image: superblock, tree, bitmaps. It reads the image
//! through `kedge_format` and `kedge_device` alone. It does not use the engine's tree, allocator or
//! file system, so a bug there cannot hide its own damage. The log is the exception: the engine's
//! store replays it into an overlay in memory, and the check reads the image that recovery would
//! leave. A check never writes to the device; a [`repair`](repair()) does.
//!
//! # What [`check`] does
//! | newest slot | replay offered | replay | checked |
//! |---|---|---|---|
//! | none valid, a copy | as the other rows | | as if the copy lay in a slot; that no slot is valid is a finding |
//! | none valid, no copy | any | not tried | nothing; the findings say why |
//! | any | no | not asked for | the newest checkpoint on the device |
//! | clean, both slots valid, nothing in the log | yes | not needed | the device |
//! | else | yes | succeeds | the overlay |
//! | else | yes | fails | the newest checkpoint on the device, and the failure is a finding |
//!
//! A clean slot beside a bad slot is replayed too: the bad slot may have been newer, and only the
//! log shows whether it was. Even if both slots are valid, a newer slot may not have reached the
//! device, which again only the log shows. So the clean mark alone is not trusted, and the log is
//! scanned as far as a mount would scan it.
//!
//! # Any bytes
//! Images may hold any bytes. Every read is bounded, nothing recurses, each node is followed once,
//! and memory grows with the items that exist. All findings are counted, and up to
//! [`CheckOptions::findings_max`] are kept.
#![forbid(unsafe_code)]

mod copies;
mod counts;
mod data;
mod facts;
mod forest;
mod image;
mod items;
mod kinds;
mod limits;
mod names;
mod one_tree;
mod owned;
mod paths;
mod read;
mod repair;
mod replay;
mod report;
mod runs;
mod scrub;
mod slots;
mod space;
mod sums;
mod tree;
mod way;

pub use image::check_checkpoint;
pub use kinds::{FindingKind, Severity};
pub use repair::{Ending, Repair, RepairKind, RepairMode, RepairOptions, RepairReport, repair};
pub use replay::StoreReplay;
pub use report::{Counters, Finding, ReplayState, ReplaySummary, Report, SuperblockSummary};
pub use scrub::{ScrubReport, scrub};

use kedge_base::Result;
use kedge_device::Device;
use kedge_format::superblock::Superblock;
use read::Reader;
use report::{At, Findings};
use std::sync::Arc;

/// Recovers an image by replaying its log, as a mount would.
pub trait Replay: Send + Sync {
    /// Returns the number of log writes that a replay from this slot would find. Fails if the log
    /// would make a replay fail.
    fn log_writes(&self, device: &dyn Device, sb: &Superblock) -> Result<u64>;

    /// Recovers the image on `overlay` and leaves a checkpoint there.
    fn replay(&self, overlay: Arc<dyn Device>) -> Result<ReplaySummary>;
}

/// The progress of a phase of the check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// "replay", "nodes" (for each level of the tree), "items", "data", "names" or "space"; a
    /// repair adds "salvage", "gather" and "rebuild", a scrub adds "log".
    pub phase: &'static str,
    pub done: u64,
    pub total: u64,
}

#[derive(Clone)]
pub struct CheckOptions {
    /// The number of findings kept with their text; no kind takes more than an eighth of it (but at
    /// least 8).
    pub findings_max: usize,
    /// Replays the log. With `None` the newest checkpoint is checked as it is on the device.
    pub replay: Option<Arc<dyn Replay>>,
    /// Reads the data of files that have checksums, and verifies it, if the tree has no findings.
    pub data: bool,
    /// Called with the progress of [`check`], in the calling thread.
    pub progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
}

impl Default for CheckOptions {
    fn default() -> CheckOptions {
        CheckOptions { findings_max: 1000, replay: None, data: false, progress: None }
    }
}

/// Checks the image on `device` as recovery would leave it.
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
        if let Some(report) = &options.progress {
            report(p);
        }
    };
    let mut findings = Findings::new(options.findings_max);
    let Some(begun) = copies::begin(&device, &mut findings) else {
        return findings.into_report(device.name());
    };
    let (sb, device) = (begun.sb, begun.device);
    let mut reader = Reader::new(&*device);
    let replay =
        options.replay.as_ref().filter(|replay| !is_settled(&***replay, &*device, &sb, &mut findings));
    let Some(replay) = replay else {
        return image::check_from(&sb, &mut reader, findings, options.data, &mut progress);
    };
    progress(Progress { phase: "replay", done: 0, total: 1 });
    let overlay = overlay_of(device.clone());
    let (state, mut report) = match replay.replay(overlay.clone()) {
        Ok(summary) => {
            let report = check_replayed(&*overlay, findings, options, &mut progress);
            (ReplayState::Done(summary), report)
        }
        Err(error) => {
            // The error's text names the place; the finding has a place only if the error is at a
            // block.
            findings.add_error(FindingKind::ReplayFailed, At::of(&error), &error);
            let report = image::check_from(&sb, &mut reader, findings, options.data, &mut progress);
            (ReplayState::Failed { what: error.to_string() }, report)
        }
    };
    report.device = device.name().to_owned();
    report.replay = state;
    report
}

/// Whether the newest slot says that the image was unmounted, and neither the findings so far nor
/// the log contradict that.
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
        // The replay that follows fails with the same error, and reports it.
        Err(_) => false,
    }
}

/// Checks the overlay that replay left; `findings` are those of the slots before replay.
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
        Some(sb) => image::check_from(&sb, &mut reader, findings, options.data, progress),
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
