//! Finds leaves below an unreadable inner node by searching the blocks that the bitmaps mark as
//! owned.
//!
//! Some owned blocks belong to files. A user can put bytes into a file that look like a leaf of
//! this image at that address, of the newest generation, with a set-user-id file or another user's
//! blocks in it. No rule about ownership excludes such a leaf: the leaf with the file's extents may
//! be lost as well, and the forged leaf would count as the younger. So only *genuine* nodes, made
//! by the engine, are used: their tag is a hash of the whole node under the image's secret.
//! `format::node` explains why a user without the secret cannot make one.
//!
//! A genuine leaf names its image, its address and its generation, but not whether it is still part
//! of the tree. A leaf that the tree has freed is *stale*; its bytes stay until its blocks are
//! written again. These rules exclude stale leaves:
//! 1. All blocks of a live node are owned in the checkpoint's bitmaps. Groups whose bitmap cannot
//!    be trusted are not searched.
//! 2. Owned blocks can still hold a stale leaf if they belong to a file that has not written them.
//!    So blocks of files are not used as leaves. The file's blocks were allocated after the leaf
//!    was freed, so the leaf with that extent is younger. Hence leaves are accepted in the order of
//!    their generations, the youngest first, and each accepted leaf excludes the blocks of its
//!    extents.
//! 3. The key ranges of live leaves are disjoint. A leaf that overlaps a younger leaf is stale,
//!    since a leaf is only ever replaced by younger leaves.
//! 4. All keys of the leaf must lie in one lost range.
//!
//! # From a copy of the superblock
//! A copy may be older than the bitmaps, and the bitmaps may be damaged. So in groups without
//! trustworthy bitmaps all blocks are searched, and leaves younger than the copy are accepted. One
//! more rule excludes most leaves that rule 1 would exclude. The rule holds for every search:
//!
//! 5. A leaf is stale if a younger leaf has an extent with the same blocks. Extents of live leaves
//!    are disjoint, and a freed block can be in another live leaf only if that leaf changed later.
//!    Extents whose blocks have counts may share blocks with each other.
//!
//! A leaf of deleted files whose blocks have not been reused is not excluded. Its files reappear.
//!
//! The rules do not exclude a stale leaf in the blocks of a file whose own leaf is lost as well.

use super::done::{RepairKind, Repairs};
use super::source::{Source, recorded_groups};
use crate::Progress;
use crate::facts::successor;
use crate::owned::Owned;
use crate::read::Reader;
use crate::report::At;
use crate::tree::{NodeRef, stream_items};
use kedge_base::{BlockNo, Generation};
use kedge_format::alloc::GROUP_BLOCKS;
use kedge_format::item::ExtentItem;
use kedge_format::node::{NODE_BLOCKS, NodeView};
use kedge_format::superblock::{Geometry, Superblock};
use kedge_format::{ItemKind, Key};
use std::collections::BTreeMap;

/// A node that could be a leaf of the tree.
struct Candidate {
    block: BlockNo,
    generation: Generation,
    first: Key,
    last: Key,
    items: usize,
    extents: Vec<ExtentItem>,
}

/// How many generations after the copy's a search accepts. No image makes that many checkpoints
/// without writing a copy. The number is even, so adding it does not change the superblock slot.
pub(crate) const LATER_THAN_COPY: u64 = 1 << 32;

/// The parameters of a search.
pub(crate) struct Search<'a> {
    pub source: &'a Source,
    /// Key ranges whose leaves are lost.
    pub lost: &'a [(Key, Option<Key>)],
    /// Whether the superblock is a copy.
    pub is_restored: bool,
}

/// Adds the leaves found in the lost ranges to `leaves`, and their blocks to `nodes`.
pub(crate) fn salvage(
    search: &Search<'_>,
    reader: &mut Reader,
    leaves: &mut Vec<NodeRef>,
    nodes: &mut Owned,
    repairs: &mut Repairs,
    progress: &mut dyn FnMut(Progress),
) {
    let (sb, lost) = (&search.source.sb, search.lost);
    let (mut data, mut counted) = data_of(sb, reader, leaves);
    let mut candidates = Vec::new();
    let (owned, known) = recorded_groups(sb, reader);
    let groups = sb.geometry.groups();
    let later = if search.is_restored { LATER_THAN_COPY } else { 0 };
    let newest = Generation(sb.checkpoint.generation.0.saturating_add(later));
    for group in 0..groups {
        let owned = (known[group as usize] || !search.is_restored).then_some(&owned);
        let places = places(&sb.geometry, group, owned, nodes, &data);
        reader.stream(
            places.len(),
            NODE_BLOCKS as usize,
            |i| places[i],
            |i, bytes| {
                let Ok(bytes) = bytes else { return };
                candidates.extend(candidate(sb, places[i], bytes, newest).filter(|c| {
                    lost.iter().any(|(low, high)| c.first >= *low && high.is_none_or(|high| c.last < high))
                }));
            },
        );
        progress(Progress { phase: "salvage", done: group + 1, total: groups });
    }
    candidates.sort_unstable_by_key(|c| (std::cmp::Reverse(c.generation), c.block));
    // First and last key of each accepted leaf.
    let mut taken: BTreeMap<Key, Key> = BTreeMap::new();
    for c in candidates {
        let before = taken.range(..=c.last).next_back();
        if before.is_some_and(|(_, last)| *last >= c.first) || !data.is_free(c.block, NODE_BLOCKS) {
            continue;
        }
        let is_whole = |owned: &Owned, run: (BlockNo, u64)| owned.taken(run.0, run.1) == [run];
        let fits = |item: &ExtentItem| {
            let taken = data.taken(item.start, item.blocks.into());
            taken.into_iter().all(|run| item.counted && is_whole(&counted, run))
        };
        if !c.extents.iter().all(fits) {
            continue;
        }
        taken.insert(c.first, c.last);
        nodes.claim(c.block, NODE_BLOCKS);
        for item in c.extents {
            note(&item, &mut data, &mut counted);
        }
        let high = successor(c.last);
        leaves.push(NodeRef { block: c.block, generation: c.generation, low: c.first, high });
        repairs.add(RepairKind::NodeSalvaged, At::block(c.block), || {
            format!("a leaf of {} items from {} to {}", c.items, c.first, c.last)
        });
    }
    leaves.sort_unstable_by_key(|leaf| leaf.low);
}

fn note(item: &ExtentItem, data: &mut Owned, counted: &mut Owned) {
    data.claim(item.start, item.blocks.into());
    if item.counted {
        counted.claim(item.start, item.blocks.into());
    }
}

/// The data blocks of the readable leaves, and those of them that have counts.
fn data_of(sb: &Superblock, reader: &mut Reader, leaves: &[NodeRef]) -> (Owned, Owned) {
    let groups = sb.geometry.groups();
    let (mut data, mut counted) = (Owned::new(groups), Owned::new(groups));
    let visit = |_: &NodeRef, key: Key, value: &[u8], _: bool| {
        if let Some(item) = extent_of(&sb.geometry, key, value) {
            note(&item, &mut data, &mut counted);
        }
        Ok(())
    };
    // The walk ends at a leaf that cannot be read, so such leaves are removed first.
    let valid: Vec<NodeRef> = {
        let mut valid = Vec::with_capacity(leaves.len());
        reader.stream(
            leaves.len(),
            NODE_BLOCKS as usize,
            |i| leaves[i].block,
            |i, bytes| {
                let leaf = &leaves[i];
                let uuid = &sb.geometry.uuid;
                let view = bytes.and_then(|b| NodeView::check(b, uuid, leaf.block, leaf.generation, 0));
                valid.extend(view.is_ok().then_some(*leaf));
            },
        );
        valid
    };
    if let Err(e) = stream_items(sb, reader, &valid, visit, &mut |_, _| {}) {
        tracing::warn!("a leaf that could be read cannot any more: {e}");
    }
    (data, counted)
}

fn extent_of(g: &Geometry, key: Key, value: &[u8]) -> Option<ExtentItem> {
    let item = (key.kind == ItemKind::Extent as u8).then(|| ExtentItem::decode(value).ok())?;
    item.filter(|item| item.start >= g.data_start && item.extent().end().0 <= g.total_blocks)
}

/// The addresses in a group at which a node could be. With `owned` of `None`, all blocks are
/// considered.
fn places(g: &Geometry, group: u64, owned: Option<&Owned>, nodes: &Owned, data: &Owned) -> Vec<BlockNo> {
    let from = (group * GROUP_BLOCKS).max(g.data_start.0).next_multiple_of(NODE_BLOCKS);
    let end = ((group + 1) * GROUP_BLOCKS).min(g.total_blocks);
    let fits = |at: &BlockNo| {
        let all = owned.is_none_or(|owned| owned.taken(*at, NODE_BLOCKS) == [(*at, NODE_BLOCKS)]);
        all && nodes.is_free(*at, NODE_BLOCKS) && data.is_free(*at, NODE_BLOCKS)
    };
    if owned.is_some_and(|owned| owned.group(group).is_none()) || end < NODE_BLOCKS {
        return Vec::new();
    }
    (from..=end - NODE_BLOCKS).step_by(NODE_BLOCKS as usize).map(BlockNo).filter(fits).collect()
}

/// The leaf at `block`, if it is genuine and not younger than `newest`.
fn candidate(sb: &Superblock, block: BlockNo, bytes: &[u8], newest: Generation) -> Option<Candidate> {
    let generation = NodeView::trusted(bytes).generation();
    let view = NodeView::check(bytes, &sb.geometry.uuid, block, generation, 0).ok()?;
    if generation > newest || !view.is_genuine(&sb.geometry.log_secret) {
        return None;
    }
    let extents = view.iter().filter_map(|(key, value)| extent_of(&sb.geometry, key, value)).collect();
    let (first, last) = (view.first_key()?, view.last_key()?);
    Some(Candidate { block, generation, first, last, items: view.items(), extents })
}
