//! Steps that shrink the tree: an empty leaf is removed, sparse neighbours are merged, a root with
//! one child is replaced by that child.
//!
//! All steps are best effort. They use only nodes in memory, because a merge is not worth IO, and
//! give up if another thread changes the tree. An empty leaf that is the only child of its parent
//! stays.

use crate::frame::{Frame, Node, Route};
use crate::tree::Tree;
use kedge_base::Generation;
use kedge_base::atomic::Ordering::Relaxed;
use kedge_format::Key;
use kedge_format::node::{NODE_PAYLOAD, NODE_SIZE, NodeMut, NodeView};
use smallvec::SmallVec;
use std::sync::Arc;

/// A node is sparse if its items occupy fewer bytes than this.
const SPARSE: usize = NODE_PAYLOAD / 4;
/// Two nodes may be merged if their items occupy at most this many bytes together. The limit is
/// well below a full node: otherwise the next insertion would split the result again.
const MERGED_MAX: usize = NODE_PAYLOAD * 2 / 3;

impl Tree {
    pub(crate) fn is_sparse(view: NodeView<'_>) -> bool {
        view.used() < SPARSE
    }

    /// Merges sparse nodes on the path to a key, from the leaf up.
    #[cold]
    pub(crate) fn rebalance(&self, generation: Generation, key: &Key) {
        let watch = self.watch();
        let mut path: SmallVec<[Arc<Frame>; 8]> = SmallVec::new();
        path.push(self.anchor.clone());
        while path.len() == 1 || path[path.len() - 1].level > 0 {
            match self.route(&watch, &path[path.len() - 1], key) {
                Route::Child(child) => path.push(child),
                Route::Missing(_) | Route::Stale => return,
            }
        }
        for at in (2..path.len()).rev() {
            let (parent, child) = (&path[at - 1], &path[at]);
            if !child.writable(generation) || !self.has_partner(parent, child, key) {
                break;
            }
            if !self.merge_child(parent, child, key, generation) {
                break;
            }
        }
        while self.shrink_root() {}
    }

    /// Returns whether a merge is likely enough to succeed to justify the parent's write latch.
    fn has_partner(&self, parent: &Frame, child: &Arc<Frame>, key: &Key) -> bool {
        let watch = self.watch();
        parent.read(&watch, |p| {
            let Some(i) = p.entry_of(child, key) else {
                return false;
            };
            let (items, used) = child.read(&watch, |c| (c.view().items(), c.view().used()));
            if items == 0 {
                return p.view().items() > 1;
            }
            let fits = |j: Option<usize>| {
                let neighbour = j.and_then(|j| p.children.get(j)).and_then(Option::as_ref);
                neighbour.is_some_and(|n| used + n.read(&watch, |n| n.view().used()) <= MERGED_MAX)
            };
            used < SPARSE && (fits(i.checked_sub(1)) || fits(Some(i + 1)))
        })
    }

    /// Removes `child` if it is empty, or merges it with a neighbour. Returns whether the parent
    /// has lost an entry.
    fn merge_child(&self, parent: &Frame, child: &Arc<Frame>, key: &Key, generation: Generation) -> bool {
        let watch = self.watch();
        parent.write(&watch, |p| {
            let Some(i) = p.entry_of(child, key).filter(|_| parent.writable(generation)) else {
                return false;
            };
            child.write(&watch, |c| {
                if c.view().items() == 0 {
                    return self.drop_empty(p, i, child, c, generation);
                }
                if !Tree::is_sparse(c.view()) {
                    return false;
                }
                let left = i.checked_sub(1).filter(|j| self.absorb(p, *j, i, child, c, generation));
                left.is_some() || self.absorb(p, i + 1, i, child, c, generation)
            })
        })
    }

    /// Removes an empty leaf. A neighbour takes over its key range, preferably a neighbour in
    /// memory, so that a pin on these keys keeps its effect.
    fn drop_empty(
        &self,
        p: &mut Node,
        i: usize,
        child: &Frame,
        c: &mut Node,
        generation: Generation,
    ) -> bool {
        let items = p.view().items();
        if items == 1 {
            return false;
        }
        let watch = self.watch();
        let loaded = |j: usize| p.children.get(j).and_then(Option::as_ref);
        let to_left = i > 0 && (i + 1 == items || loaded(i - 1).is_some() || loaded(i + 1).is_none());
        let neighbour = if to_left { loaded(i - 1) } else { loaded(i + 1) };
        if let Some(neighbour) = neighbour {
            neighbour.write(&watch, |n| {
                n.pins.inherit(&c.pins);
                if to_left {
                    n.range.high = c.range.high;
                } else {
                    n.range.low = c.range.low;
                }
            });
        }
        p.remove_link(generation, i);
        if !to_left {
            p.edit(generation).set_key(i, &c.range.low);
        }
        c.kill();
        self.retire(child);
        self.meter.stats.merges.inc();
        true
    }

    /// Moves the items of neighbour `j` into child `i`, if the neighbour is in memory and the items
    /// fit. Child `i` is the one that stays, because it belongs to the current generation. The
    /// neighbour may be of any generation; its bytes are only read.
    fn absorb(
        &self,
        p: &mut Node,
        j: usize,
        i: usize,
        child: &Arc<Frame>,
        c: &mut Node,
        generation: Generation,
    ) -> bool {
        let Some(neighbour) = p.children.get(j).cloned().flatten() else {
            return false;
        };
        let merged = neighbour.write(&self.watch(), |n| {
            if n.view().used() + c.view().used() > MERGED_MAX {
                return false;
            }
            let (first, second) = if j < i { (n.view(), c.view()) } else { (c.view(), n.view()) };
            let mut bytes = [0; NODE_SIZE];
            let mut node = NodeMut::init(&mut bytes, &self.uuid, child.addr, generation, child.level);
            node.append_range(first, 0..first.items());
            node.append_range(second, 0..second.items());
            c.replace_bytes(&bytes);
            let theirs = std::mem::take(&mut n.children);
            if j < i {
                c.children.splice(0..0, theirs);
                c.range.low = n.range.low;
            } else {
                c.children.extend(theirs);
                c.range.high = n.range.high;
            }
            c.pins.inherit(&n.pins);
            n.kill();
            true
        });
        if merged {
            if j < i {
                p.relink(generation, j, child);
            }
            p.remove_link(generation, i.max(j));
            self.retire(&neighbour);
            self.meter.stats.merges.inc();
        }
        merged
    }

    /// Makes the only child of the root the new root. Returns false if the root has several
    /// children or is a leaf.
    fn shrink_root(&self) -> bool {
        let watch = self.watch();
        let Route::Child(root) = self.route(&watch, &self.anchor, &Key::MIN) else {
            return false;
        };
        if root.level == 0 || root.read(&watch, |r| r.range.is_none() || r.view().items() > 1) {
            return false;
        }
        self.anchor.write(&watch, |a| {
            if a.entry_of(&root, &Key::MIN).is_none() {
                return false;
            }
            let only = root.write(&watch, |r| {
                let only = if r.view().items() == 1 { r.children[0].clone() } else { None };
                if only.is_some() {
                    r.kill();
                }
                only
            });
            let Some(only) = only else {
                return false;
            };
            let generation = self.generation();
            a.edit(generation).set_level(only.level + 1);
            a.relink(generation, 0, &only);
            self.root_level.store(only.level, Relaxed);
            self.retire(&root);
            self.meter.stats.merges.inc();
            true
        })
    }
}
