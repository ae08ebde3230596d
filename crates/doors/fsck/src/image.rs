//! The check of a checkpointed image, from the superblock to the last bitmap.
//!
//! # Phases
//! 1. superblock slots; 2. the tree's inner nodes, level by level; 3. the leaves' items in key
//!    order, inode by inode;
//! 4. names, links and orphans across inodes; 5. allocation index and bitmaps against the blocks
//!    that 1 to 3 claimed.
//!
//! If requested, the data of files with checksums is read after 3.
//!
//! # Memory
//! 32 bytes per inode, 24 per name, about 64 per leaf, one bit per block of the groups in use, and
//! two read batches.

use crate::data::DataCheck;
use crate::forest;
use crate::items::State;
use crate::one_tree::{finish, judge_tree};
use crate::read::Reader;
use crate::report::{Findings, Report, SuperblockSummary};
use crate::slots::read_slots;
use crate::{CheckOptions, Progress};
use kedge_device::Device;
use kedge_format::superblock::Superblock;

/// Checks the newest checkpoint as it is on `device`. The log is not replayed.
pub fn check_checkpoint(
    device: &dyn Device,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Report {
    let mut reader = Reader::new(device);
    let mut findings = Findings::new(options.findings_max);
    let Some(sb) = read_slots(&mut reader, &mut findings) else {
        return findings.into_report(device.name());
    };
    check_from(&sb, &mut reader, findings, options.data, progress)
}

/// Runs the phases after the superblock and returns the report. With `data` file data is verified
/// as well.
pub(crate) fn check_from(
    sb: &Superblock,
    reader: &mut Reader,
    findings: Findings,
    data: bool,
    progress: &mut dyn FnMut(Progress),
) -> Report {
    let mut data = data.then(|| DataCheck::new(sb.geometry.groups()));
    let mut state = judge(sb, reader, findings, data.as_mut(), progress);
    state.counters.blocks_verified = data.map_or(0, |data| data.blocks);
    report_of(sb, reader, state)
}

/// Runs the phases after the superblock and returns the state.
pub(crate) fn judge(
    sb: &Superblock,
    reader: &mut Reader,
    findings: Findings,
    data: Option<&mut DataCheck>,
    progress: &mut dyn FnMut(Progress),
) -> State {
    if sb.geometry.has_trees() {
        return forest::judge(sb, reader, findings, data, progress);
    }
    let mut state = judge_tree(sb, reader, findings, None, data, progress);
    finish(sb, reader, &mut state, progress);
    state
}

/// The report of a checked image.
pub(crate) fn report_of(sb: &Superblock, reader: &Reader, state: State) -> Report {
    let incomplete = !state.lost.is_empty();
    let mut report = state.findings.into_report(reader.device_name());
    report.superblock = Some(SuperblockSummary::of(sb));
    report.counters = state.counters;
    report.incomplete = incomplete;
    report
}
