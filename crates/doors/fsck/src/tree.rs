//! Walks the tree from the root down, level by level, so that each level is read in large batches
//! and memory holds the addresses of only one level. Then streams the leaves' items in key order.
//!
//! # Against hostile images
//! A node is followed only once: its blocks are claimed in [`crate::owned::Owned`] before it is
//! read. So neither a cycle nor a shared subtree is walked twice, and the number of blocks of the
//! image bounds the work. The height is bounded by the superblock's decoder. The key range of a
//! node is a part of its parent's, so the ranges of a level are disjoint and in order. A node with
//! a key outside its range is read no further, and the rest of its range counts as lost.

pub(crate) use crate::facts::NodeRef;
use crate::facts::successor;
use crate::items::{Conflict, ItemCheck, Leaf, State};
use crate::kinds::FindingKind;
use crate::read::Reader;
use crate::report::At;
use kedge_base::{BlockNo, Error, Result};
use kedge_format::item::{Dentry, ExtentItem};
use kedge_format::node::{NODE_BLOCKS, NodeView};
use kedge_format::superblock::Superblock;
use kedge_format::{ItemKind, Key};

/// The most owners that a finding about a conflict names.
const OWNERS_MAX: usize = 8;

/// Walks the inner levels and returns the leaves in key order, all claimed.
pub(crate) fn walk_inner(
    sb: &Superblock,
    reader: &mut Reader,
    state: &mut State,
    progress: &mut dyn FnMut(u64, u64),
) -> Vec<NodeRef> {
    let c = &sb.checkpoint;
    let root = NodeRef { block: c.root, generation: c.root_generation, low: Key::MIN, high: None };
    let mut level_nodes = Vec::new();
    enter(sb, state, root, &mut level_nodes);
    for level in (1..=c.root_level).rev() {
        let mut below = Vec::new();
        let total = level_nodes.len();
        let place = |i: usize| level_nodes[i].block;
        reader.stream(total, NODE_BLOCKS as usize, place, |i, bytes| {
            let node = &level_nodes[i];
            if let Some(view) = view(sb, state, node, level, bytes) {
                children(sb, state, node, &view, &mut below);
            }
            progress(i as u64 + 1, total as u64);
        });
        level_nodes = below;
    }
    level_nodes
}

/// Checks a child pointer, claims the node's blocks and adds the node to `out`.
fn enter(sb: &Superblock, state: &mut State, node: NodeRef, out: &mut Vec<NodeRef>) {
    let g = &sb.geometry;
    let start = node.block.0;
    let inside =
        start >= g.data_start.0 && start.checked_add(NODE_BLOCKS).is_some_and(|end| end <= g.total_blocks);
    if !inside || !start.is_multiple_of(NODE_BLOCKS) {
        state.findings.add(FindingKind::NodeMisplaced, At::node(&node), || {
            format!(
                "the node for keys from {} would lie outside the data area or off a node boundary",
                node.low
            )
        });
        return state.lost.range(node.low, node.high);
    }
    if !state.owned.claim(node.block, NODE_BLOCKS).is_empty() {
        state.findings.add(FindingKind::NodeShared, At::node(&node), || {
            format!("the node for keys from {} is already in use by another part of the tree", node.low)
        });
        return state.lost.range(node.low, node.high);
    }
    if let Some(own) = state.own.as_mut()
        && own.node(node.block, node.generation)
    {
        own.blocks.claim(node.block, NODE_BLOCKS);
    }
    state.counters.nodes += 1;
    out.push(node);
}

/// Returns the node's content. If the node is not valid, adds a finding and records its range as
/// lost.
fn view<'a>(
    sb: &Superblock,
    state: &mut State,
    node: &NodeRef,
    level: u8,
    bytes: Result<&'a [u8]>,
) -> Option<NodeView<'a>> {
    let checked =
        bytes.and_then(|b| NodeView::check(b, &sb.geometry.uuid, node.block, node.generation, level));
    checked
        .map_err(|e| {
            let at = At::node(node);
            match e {
                Error::Corrupt { what, .. } => state.findings.add(FindingKind::NodeBad, at, || {
                    format!("{what}; level {level}, for keys from {}", node.low)
                }),
                e => state.findings.add_error(FindingKind::NodeBad, at, &e),
            }
            state.lost.range(node.low, node.high);
            state.bad_nodes.push(*node);
        })
        .ok()
}

/// Checks the children of an inner node and adds them to `out`.
fn children(sb: &Superblock, state: &mut State, node: &NodeRef, view: &NodeView, out: &mut Vec<NodeRef>) {
    let first = view.first_key();
    let last = view.last_key();
    if first != Some(node.low) || last.is_none_or(|last| node.high.is_some_and(|high| last >= high)) {
        state.findings.add(FindingKind::KeyOrder, At::node(node), || {
            format!(
                "its children begin at {} to {}, its parent says {}",
                Bound(first),
                Bound(last),
                node.span()
            )
        });
        return state.lost.range(node.low, node.high);
    }
    for i in 0..view.items() {
        let child = view.child(i);
        let high = if i + 1 < view.items() { Some(view.key(i + 1)) } else { node.high };
        let child = NodeRef { block: child.addr, generation: child.generation, low: view.key(i), high };
        enter(sb, state, child, out);
    }
}

/// Streams the items of all leaves, in key order, through `check`.
pub(crate) fn walk_leaves(
    sb: &Superblock,
    reader: &mut Reader,
    leaves: &[NodeRef],
    check: &mut ItemCheck,
    progress: &mut dyn FnMut(u64, u64),
) {
    reader.stream(
        leaves.len(),
        NODE_BLOCKS as usize,
        |i| leaves[i].block,
        |index, bytes| {
            let node = &leaves[index];
            if let Some(view) = view(sb, check.state(), node, 0, bytes) {
                leaf_items(node, &view, Leaf { index, block: node.block }, check);
            }
            progress(index as u64 + 1, leaves.len() as u64);
        },
    );
}

/// Returns the valid leaves. Others are added to [`State::bad_nodes`].
pub(crate) fn valid_leaves(
    sb: &Superblock,
    reader: &mut Reader,
    state: &mut State,
    leaves: &[NodeRef],
) -> Vec<NodeRef> {
    let mut valid = Vec::with_capacity(leaves.len());
    let place = |i: usize| leaves[i].block;
    reader.stream(leaves.len(), NODE_BLOCKS as usize, place, |i, bytes| {
        if view(sb, state, &leaves[i], 0, bytes).is_some() {
            valid.push(leaves[i]);
        }
    });
    valid
}

/// Streams the items of valid leaves in key order. The `bool` is whether the item is in its leaf's
/// range. A leaf that was valid before and cannot be read now is an error, because earlier
/// decisions depend on its items.
pub(crate) fn stream_items(
    sb: &Superblock,
    reader: &mut Reader,
    leaves: &[NodeRef],
    mut visit: impl FnMut(&NodeRef, Key, &[u8], bool) -> Result<()>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let mut outcome = Ok(());
    let place = |i: usize| leaves[i].block;
    reader.stream(leaves.len(), NODE_BLOCKS as usize, place, |i, bytes| {
        if outcome.is_err() {
            return;
        }
        let node = &leaves[i];
        let uuid = &sb.geometry.uuid;
        outcome =
            bytes.and_then(|b| NodeView::check(b, uuid, node.block, node.generation, 0)).and_then(|view| {
                view.iter().try_for_each(|(key, value)| {
                    let inside = key >= node.low && node.high.is_none_or(|high| key < high);
                    visit(node, key, value, inside)
                })
            });
        progress(i as u64 + 1, leaves.len() as u64);
    });
    outcome
}

fn leaf_items(node: &NodeRef, view: &NodeView, leaf: Leaf, check: &mut ItemCheck) {
    let mut low = Some(node.low);
    for (key, value) in view.iter() {
        let Some(expected) = low else { break };
        if key < expected || node.high.is_some_and(|high| key >= high) {
            let state = check.state();
            state.findings.add(FindingKind::KeyOrder, At::node(node), || {
                format!(
                    "key {key} is out of order or outside {}, which its parent says it holds",
                    node.span()
                )
            });
            return state.lost.range(expected, node.high);
        }
        check.item(key, value, leaf);
        low = successor(key);
    }
}

/// The name of the entry of directory `dir` that names `target`, and the block of the leaf that
/// holds the entry.
pub(crate) fn name_of(
    sb: &Superblock,
    reader: &mut Reader,
    leaves: &[NodeRef],
    leaf: u32,
    dir: u64,
    target: u64,
) -> Option<(BlockNo, String)> {
    let node = leaves.get(leaf as usize)?;
    let bytes = reader.read(node.block, NODE_BLOCKS as usize).ok()?;
    let view = NodeView::check(bytes.as_bytes(), &sb.geometry.uuid, node.block, node.generation, 0).ok()?;
    let entries = view.iter().filter(|(key, _)| key.ino == dir && key.kind == ItemKind::Dentry as u8);
    let found = entries.filter_map(|(_, value)| Dentry::decode(value).ok()).find(|d| d.ino.0 == target)?;
    Some((node.block, found.name.escape_ascii().to_string()))
}

/// Reads the extents of all leaves again and reports every conflict with the files that own its
/// blocks.
pub(crate) fn report_conflicts(sb: &Superblock, reader: &mut Reader, state: &mut State, leaves: &[NodeRef]) {
    let conflicts = std::mem::take(&mut state.conflicts);
    if conflicts.is_empty() {
        return;
    }
    let mut owners: Vec<Vec<u64>> = conflicts.iter().map(|c| vec![c.ino.0]).collect();
    let meets = |c: &Conflict, item: &ExtentItem| {
        let extent = item.extent();
        extent.start.0 < c.start.0 + c.blocks && c.start < extent.end()
    };
    reader.stream(
        leaves.len(),
        NODE_BLOCKS as usize,
        |i| leaves[i].block,
        |i, bytes| {
            let node = &leaves[i];
            let uuid = &sb.geometry.uuid;
            // Leaves that fail here were reported in the first pass.
            let Ok(view) = bytes.and_then(|b| NodeView::check(b, uuid, node.block, node.generation, 0))
            else {
                return;
            };
            for (key, value) in view.iter().filter(|(key, _)| key.kind == ItemKind::Extent as u8) {
                let Ok(item) = ExtentItem::decode(value) else { continue };
                for (conflict, owners) in conflicts.iter().zip(&mut owners) {
                    if meets(conflict, &item) && !owners.contains(&key.ino) && owners.len() < OWNERS_MAX {
                        owners.push(key.ino);
                    }
                }
            }
        },
    );
    for (conflict, owners) in conflicts.iter().zip(owners) {
        state.findings.add(FindingKind::BlockShared, At::both(conflict.ino.0, conflict.start), || {
            let others: Vec<String> = owners[1..].iter().map(|ino| format!("inode {ino}")).collect();
            let others = if others.is_empty() { "a tree node or itself".into() } else { others.join(", ") };
            format!("{} blocks belong to {others} as well", conflict.blocks)
        });
    }
}

impl NodeRef {
    pub fn span(&self) -> String {
        format!("{} to {}", self.low, Bound(self.high))
    }
}

/// A key for display, or the end of the key space for `None`.
struct Bound(Option<Key>);

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(key) => key.fmt(f),
            None => f.write_str("the end"),
        }
    }
}
