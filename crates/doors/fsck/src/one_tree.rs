//! The check of one tree, and of the bitmaps against what all trees use.

use crate::Progress;
use crate::data::DataCheck;
use crate::items::{ItemCheck, Own, State};
use crate::kinds::FindingKind;
use crate::names::check_names;
use crate::paths;
use crate::read::Reader;
use crate::report::{At, Findings};
use crate::space::{check_space, claim_format_areas};
use crate::tree;
use kedge_format::superblock::{Losses, Superblock};

/// Checks the tree whose root and counters `sb` has. With `data` also verifies the data of its
/// files, unless the tree has findings.
pub(crate) fn judge_tree(
    sb: &Superblock,
    reader: &mut Reader,
    findings: Findings,
    own: Option<Own>,
    data: Option<&mut DataCheck>,
    progress: &mut dyn FnMut(Progress),
) -> State {
    let mut state = State::new(sb.geometry.groups(), findings);
    state.own = own;
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
    if state.lost.is_empty() && sb.checkpoint.nodes != state.counters.nodes {
        state.findings.add(FindingKind::SuperblockNodes, At::block(sb.block()), || {
            format!("{} nodes, the tree has {}", sb.checkpoint.nodes, state.counters.nodes)
        });
    }
    if let Some(data) = data.filter(|_| sb.geometry.has_sums() && state.findings.is_empty()) {
        data.tree(sb, reader, &mut state, &leaves, &mut |done, total| report_phase("data", done, total));
    }
    paths::name_findings(sb, reader, &mut state, &leaves);
    state
}

/// Compares the blocks in use with the bitmaps.
pub(crate) fn finish(
    sb: &Superblock,
    reader: &mut Reader,
    state: &mut State,
    progress: &mut dyn FnMut(Progress),
) {
    let mut report = |done, total| progress(Progress { phase: "space", done, total });
    check_space(sb, reader, state, &mut report);
    let format_end = sb.geometry.groups() * kedge_format::alloc::GROUP_BLOCKS - sb.geometry.total_blocks;
    let used = state.owned.used() - format_end;
    state.counters.blocks_used = used;
    state.counters.blocks_free = sb.geometry.total_blocks - used;
    state.counters.bytes_read = reader.bytes_read();
}

/// The text of a recorded loss.
pub(crate) fn losses_text(losses: &Losses) -> String {
    format!(
        "data of {} files could not be written when the image was unmounted, first at {} seconds after 1970",
        losses.files, losses.since
    )
}
