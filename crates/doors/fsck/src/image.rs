//! The check of a checkpointed image, from the superblock to the last bitmap.
//!
//! # Phases
//! 1. superblock slots; 2. the tree's inner nodes, level by level; 3. the leaves' items in key
//!    order, inode by inode;
//! 4. names, links and orphans across inodes; 5. allocation index and bitmaps against the blocks
//!    that 1 to 3 claimed.
//!
//! # Memory
//! 32 bytes per inode, 24 per name, about 64 per leaf, one bit per block of the groups in use, and
//! two read batches.

use crate::items::{ItemCheck, State};
use crate::kinds::FindingKind;
use crate::names::check_names;
use crate::paths;
use crate::read::Reader;
use crate::report::{At, Findings, Report, SuperblockSummary};
use crate::slots::read_slots;
use crate::space::{check_space, claim_format_areas};
use crate::tree;
use crate::{CheckOptions, Progress};
use kedge_device::Device;
use kedge_format::superblock::{Losses, Superblock};

/// Checks the newest checkpoint as it is on `device`, without the log.
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
    check_from(&sb, &mut reader, findings, progress)
}

/// Runs the phases after the superblock and returns the report.
pub(crate) fn check_from(
    sb: &Superblock,
    reader: &mut Reader,
    findings: Findings,
    progress: &mut dyn FnMut(Progress),
) -> Report {
    let state = judge(sb, reader, findings, progress);
    report_of(sb, reader, state)
}

/// Runs the phases after the superblock and returns the state.
pub(crate) fn judge(
    sb: &Superblock,
    reader: &mut Reader,
    findings: Findings,
    progress: &mut dyn FnMut(Progress),
) -> State {
    let mut state = State::new(sb.geometry.groups(), findings);
    let mut report_phase = |phase, done, total| progress(Progress { phase, done, total });
    claim_format_areas(sb, &mut state.owned);
    let leaves =
        tree::walk_inner(sb, reader, &mut state, &mut |done, total| report_phase("nodes", done, total));
    if let Some(losses) = &sb.checkpoint.losses {
        // The finding has no block: both slots, and each checkpoint of a replay, record the same
        // loss.
        state.findings.add(FindingKind::DataLost, At::default(), || losses_text(losses));
    }
    let mut check = ItemCheck::new(sb, &mut state);
    tree::walk_leaves(sb, reader, &leaves, &mut check, &mut |done, total| report_phase("items", done, total));
    check.finish();
    tree::report_conflicts(sb, reader, &mut state, &leaves);
    report_phase("names", 0, state.facts.names.len() as u64);
    check_names(sb, &mut state, &mut |leaf, dir, target| {
        tree::name_of(sb, reader, &leaves, leaf, dir, target)
    });
    check_space(sb, reader, &mut state, &mut |done, total| report_phase("space", done, total));

    if state.lost.is_empty() && sb.checkpoint.nodes != state.counters.nodes {
        state.findings.add(FindingKind::SuperblockNodes, At::block(sb.block()), || {
            format!("{} nodes, the tree has {}", sb.checkpoint.nodes, state.counters.nodes)
        });
    }
    paths::name_findings(sb, reader, &mut state, &leaves);
    let format_end = sb.geometry.groups() * kedge_format::alloc::GROUP_BLOCKS - sb.geometry.total_blocks;
    let used = state.owned.used() - format_end;
    state.counters.blocks_used = used;
    state.counters.blocks_free = sb.geometry.total_blocks - used;
    state.counters.bytes_read = reader.bytes_read();
    state
}

/// The text of a recorded loss.
pub(crate) fn losses_text(losses: &Losses) -> String {
    format!(
        "data of {} files could not be written when the image was unmounted, first at {} seconds after 1970",
        losses.files, losses.since
    )
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
