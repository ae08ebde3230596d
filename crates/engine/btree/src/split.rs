//! Steps that make room: adding a root, splitting an inner node, splitting a leaf around an
//! insertion.

use crate::frame::{Frame, KeyRange, Node};
use crate::tree::Tree;
use kedge_base::atomic::Ordering::Relaxed;
use kedge_base::{CorruptKind, Error, Generation, Result};
use kedge_format::Key;
use kedge_format::node::{CHILD_SIZE, Child, LEVEL_MAX, NODE_PAYLOAD, NodeView, item_cost};
use std::sync::Arc;

/// What must be done to a node on the path before the descent can continue.
#[derive(PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    Split,
    Restart,
}

/// How a full leaf is divided around a new item.
#[derive(Debug, PartialEq, Eq)]
struct Cut {
    /// Number of items that stay in the left half.
    keep: usize,
    /// Whether the new item goes into the left half.
    left: bool,
}

impl Tree {
    pub(crate) fn need(&self, child: &Frame, key: &Key, insert: Option<&[u8]>) -> Need {
        child.read(&self.watch(), |n| match (n.view_if_covers(key), insert) {
            (None, _) => Need::Restart,
            (Some(view), Some(value)) if !has_room(view, key, value) => Need::Split,
            _ => Need::Nothing,
        })
    }

    /// Adds a new root above the present root, which must be split.
    pub(crate) fn grow(
        &self,
        root: &Arc<Frame>,
        key: &Key,
        insert: Option<&[u8]>,
        generation: Generation,
    ) -> Result<()> {
        let level = root.level + 1;
        if level > LEVEL_MAX {
            return Err(Error::corrupt(CorruptKind::Node, root.addr, "the tree is higher than any real one"));
        }
        self.anchor.write(&self.watch(), |a| {
            if a.entry_of(root, key).is_none() || self.need(root, key, insert) != Need::Split {
                return Ok(());
            }
            let addr = self.space.alloc_node(root.addr)?;
            let mut new = self.new_frame(Child { addr, generation }, level, KeyRange::ALL, |n| {
                n.append(&Key::MIN, &root.link().encode());
            });
            Frame::fill(&mut new).children[0] = Some(root.clone());
            a.edit(generation).set_level(level + 1);
            a.relink(generation, 0, &new);
            self.root_level.store(level, Relaxed);
            self.adopt(&new);
            Ok(())
        })
    }

    /// Splits `child`. `cut` divides the child and returns the new right sibling, which gets the
    /// given address. Returns `None` if nothing was changed; then the descent must restart.
    fn split<R>(
        &self,
        parent: &Frame,
        child: &Arc<Frame>,
        key: &Key,
        value: &[u8],
        generation: Generation,
        cut: impl FnOnce(&mut Node, Child) -> (Arc<Frame>, R),
    ) -> Result<Option<R>> {
        let watch = self.watch();
        parent.write(&watch, |p| {
            let Some(i) = p.entry_of(child, key).filter(|_| parent.writable(generation)) else {
                return Ok(None);
            };
            if p.view().free_space() < item_cost(CHILD_SIZE) {
                return Ok(None);
            }
            let cut = child.write(&watch, |c| {
                if has_room(c.view(), key, value) {
                    return Ok(None);
                }
                let addr = self.space.alloc_node(child.addr)?;
                let (mut right, result) = cut(c, Child { addr, generation });
                let node = Frame::fill(&mut right);
                node.pins.inherit(&c.pins);
                let low = node.range.low;
                c.range.high = Some(low);
                Ok(Some((low, right, result)))
            })?;
            let Some((low, right, result)) = cut else {
                return Ok(None);
            };
            p.insert_link(generation, i + 1, &low, &right);
            self.adopt(&right);
            self.meter.stats.splits.inc();
            Ok(Some(result))
        })
    }

    /// Splits an inner node. Returns false if the descent must restart.
    pub(crate) fn split_inner(
        &self,
        parent: &Frame,
        child: &Arc<Frame>,
        key: &Key,
        generation: Generation,
    ) -> Result<bool> {
        let done = self.split(parent, child, key, &[], generation, |c, identity| {
            let view = c.view();
            let items = view.items();
            // At the right edge of the tree keys arrive in ascending order, so the left node stays
            // nearly full.
            let keep = if c.child_index(key) == items - 1 { items - 1 } else { items / 2 };
            let range = KeyRange { low: view.key(keep), high: c.range.high };
            let mut right =
                self.new_frame(identity, child.level, range, |n| n.append_range(view, keep..items));
            Frame::fill(&mut right).children = c.children.split_off(keep);
            c.edit(generation).truncate(keep);
            (right, ())
        })?;
        Ok(done.is_some())
    }

    /// Splits a leaf and puts the item into the correct half. Returns `Some(replaced)`, or `None`
    /// if nothing was changed and the descent must restart.
    pub(crate) fn split_leaf(
        &self,
        parent: &Frame,
        child: &Arc<Frame>,
        key: &Key,
        value: &[u8],
        generation: Generation,
    ) -> Result<Option<bool>> {
        self.split(parent, child, key, value, generation, |c, identity| {
            let found = c.search(key);
            if let Ok(i) = found {
                c.edit(generation).remove_at(i);
            }
            let at = found.unwrap_or_else(|i| i);
            let cut = choose_cut(c, at, value.len());
            let view = c.view();
            let low = if cut.keep == at && !cut.left { *key } else { view.key(cut.keep) };
            let range = KeyRange { low, high: c.range.high };
            let right = self.new_frame(identity, 0, range, |n| {
                if cut.left {
                    n.append_range(view, cut.keep..view.items());
                } else {
                    n.append_range(view, cut.keep..at);
                    n.append(key, value);
                    n.append_range(view, at..view.items());
                }
            });
            c.edit(generation).truncate(cut.keep);
            if cut.left {
                let put = c.put(generation, key, value);
                assert_eq!(put, Some(false), "the cut left room for the item");
            }
            (right, found.is_ok())
        })
    }
}

fn choose_cut(leaf: &Node, at: usize, len: usize) -> Cut {
    let view = leaf.view();
    let new = item_cost(len);
    let total = view.used() + new;
    if at == view.items() {
        // Keys arrive in ascending order, so the left leaf stays full.
        return Cut { keep: at, left: false };
    }
    if leaf.is_sequential_at(at) {
        // A sequence of insertions in the middle of the leaf continues at the end of the left half.
        let before: usize = (0..at).map(|i| item_cost(view.value(i).len())).sum();
        if before + new <= NODE_PAYLOAD {
            return Cut { keep: at, left: true };
        }
        if total - before <= NODE_PAYLOAD {
            return Cut { keep: at, left: false };
        }
    }
    balanced_cut(view, at, new, total)
}

/// Fills the left half until it has at least half of the bytes. The left half then has less than
/// half of the bytes plus one item of the largest size, and the right half has at most half. Three
/// items of the largest size fit into a node, so both halves fit. Neither half is empty, because a
/// leaf that must be split is more than half full without the new item.
fn balanced_cut(view: NodeView<'_>, at: usize, new: usize, total: usize) -> Cut {
    let (mut keep, mut left, mut bytes) = (0, false, 0);
    while bytes < total / 2 {
        if keep == at && !left {
            left = true;
            bytes += new;
        } else {
            bytes += item_cost(view.value(keep).len());
            keep += 1;
        }
    }
    Cut { keep, left }
}

/// Returns whether a node has room for what an insertion may add: the item (leaf), or one more
/// child (inner node).
fn has_room(view: NodeView<'_>, key: &Key, value: &[u8]) -> bool {
    if view.level() > 0 {
        return view.free_space() >= item_cost(CHILD_SIZE);
    }
    let old = view.search(key).map_or(0, |i| item_cost(view.value(i).len()));
    view.free_space() + old >= item_cost(value.len())
}
