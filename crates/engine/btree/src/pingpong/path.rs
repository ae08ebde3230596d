//! Descents that hold the latches of their path, for trees with [`TreeLock::Pingpong`] or
//! [`TreeLock::Blocking`].
//!
//! The model is `btrfs_search_slot`. Latches are taken spinning: a descent spins while holders
//! spin. If a holder blocks, the descent converts its whole path to blocking and waits. The path
//! also becomes blocking before a node is read from the device and before the tree's structure is
//! changed, and a lookup returns a blocking leaf. With *pingpong* each level of the descent, and
//! each wait, ends with a conversion of the path back to spinning, from the root down; this
//! conversion first makes all latches of the path blocking, from the leaf up. With *blocking* the
//! path is never converted back. This is the only difference between the two kinds, as it was the
//! only change in Linux 5.0.
//!
//! # Which latches a descent takes and keeps
//! 1. The root is latched for reading. If its level must be latched for writing, the latch is
//!    released and taken again for writing.
//! 2. An update latches the leaf for writing, an insertion also level 1, a deletion also level 2.
//!    If the key belongs to a node's first child, an insertion or deletion might change the node's
//!    first key. Its parent must then be latched for writing; if it is not, the descent restarts.
//! 3. A lookup and an update release a node's parent once the node is latched. An insertion keeps
//!    the parent of each node in which the key belongs to the first entry, and a deletion also
//!    keeps levels below 2.

use super::held::Held;
use super::lock::Mode;
use crate::frame::{Frame, Node, Route};
use crate::intent::Intent;
use crate::latch::LatchWatch;
use crate::tree::Tree;
use crate::tree_lock::TreeLock;
use kedge_base::Result;
use kedge_format::Key;
use smallvec::SmallVec;
use std::sync::Arc;

impl Intent {
    /// Returns the number of levels to latch for writing, from the leaf up. The descent may find
    /// that it needs more.
    fn write_levels(self) -> u8 {
        match self {
            Intent::Lookup => 0,
            Intent::Update => 1,
            Intent::Insert => 2,
            Intent::Delete => 3,
        }
    }

    /// Returns whether the operation may change the first keys of nodes.
    fn moves_items(self) -> bool {
        matches!(self, Intent::Insert | Intent::Delete)
    }

    /// Returns the lowest level whose nodes are released unless another rule keeps them.
    fn lowest_release(self) -> u8 {
        if self == Intent::Delete { 2 } else { 1 }
    }
}

/// A latched node, and the index of the entry to which the key belongs.
struct Step {
    held: Held<Arc<Frame>>,
    slot: usize,
}

struct Path<'a, 'm> {
    watch: &'a LatchWatch<'m>,
    respins: bool,
    /// The latched nodes from the root down.
    steps: SmallVec<[Step; 8]>,
}

impl Path<'_, '_> {
    fn set_blocking(&mut self) {
        self.steps.iter_mut().rev().for_each(|s| s.held.set_blocking(self.watch));
    }

    fn clear_blocking(&mut self) {
        if self.respins {
            self.set_blocking();
            self.steps.iter_mut().for_each(|s| s.held.clear_blocking(self.watch));
        }
    }

    fn last(&mut self) -> &mut Step {
        self.steps.last_mut().expect("a path has its root")
    }

    fn release_ancestors(&mut self) {
        let last = self.steps.len() - 1;
        self.steps.drain(..last);
    }

    /// Releases the ancestors that a change of items cannot affect: see rule 3 in the module's
    /// head.
    fn release_unreachable(&mut self, intent: Intent) {
        let mut kept = 0;
        for (distance, step) in self.steps.iter().rev().enumerate() {
            if step.slot == 0 {
                kept = distance + 1;
            } else if distance > kept && step.held.owner().level >= intent.lowest_release() {
                let end = self.steps.len() - distance;
                self.steps.drain(..end);
                return;
            }
        }
    }

    fn push_root(&mut self, root: Arc<Frame>, write_levels: u8) {
        let mut held = Held::take(self.watch, root.clone(), Mode::Read);
        if root.level < write_levels {
            drop(held);
            held = Held::take(self.watch, root, Mode::Write);
        }
        self.steps.push(Step { held, slot: 0 });
    }

    fn push(&mut self, frame: Arc<Frame>, mode: Mode) {
        let held = match Held::try_take(self.watch, frame, mode) {
            Ok(held) => held,
            Err(frame) => {
                self.set_blocking();
                let mut held = Held::take(self.watch, frame, mode);
                if self.respins {
                    held.set_blocking(self.watch);
                    self.clear_blocking();
                    held.clear_blocking(self.watch);
                }
                held
            }
        };
        self.steps.push(Step { held, slot: 0 });
    }
}

impl Tree {
    /// Runs `f` on the leaf that covers the key, latched for reading and blocking.
    pub(crate) fn read_by_path<R>(
        &self,
        watch: &LatchWatch<'_>,
        key: &Key,
        f: impl FnOnce(&Node) -> R,
    ) -> Result<R> {
        let mut path = self.path_to(watch, key, Intent::Lookup)?;
        path.set_blocking();
        Ok(f(path.last().held.node()))
    }

    /// Runs `f` on the leaf that covers the key, latched for writing. `f` also returns whether the
    /// tree's structure must be changed first.
    pub(crate) fn write_by_path<R>(
        &self,
        watch: &LatchWatch<'_>,
        key: &Key,
        intent: Intent,
        f: impl FnOnce(&Arc<Frame>, &mut Node) -> (R, bool),
    ) -> Result<R> {
        let mut path = self.path_to(watch, key, intent)?;
        let leaf = &mut path.last().held;
        let frame = leaf.owner().clone();
        let (result, restructure) = f(&frame, leaf.node_mut());
        if restructure {
            path.set_blocking();
        }
        Ok(result)
    }

    /// Returns the root, which covered the key when the root pointer was read.
    fn root_by_pointer(&self, watch: &LatchWatch<'_>, key: &Key) -> Result<Option<Arc<Frame>>> {
        match self.anchor.latch.read_uncounted(|anchor| anchor.route(key)) {
            Route::Child(root) => Ok(Some(root)),
            Route::Missing(root) => self.load(watch, &self.anchor, key, root),
            Route::Stale => Ok(None),
        }
    }

    fn path_to<'a, 'm>(&self, watch: &'a LatchWatch<'m>, key: &Key, intent: Intent) -> Result<Path<'a, 'm>> {
        let respins = self.lock() == TreeLock::Pingpong;
        let mut write_levels = intent.write_levels();
        'restart: loop {
            let mut path = Path { watch, respins, steps: SmallVec::new() };
            let Some(root) = self.root_by_pointer(watch, key)? else { continue };
            root.touch();
            path.push_root(root, write_levels);
            loop {
                path.clear_blocking();
                if !intent.moves_items() {
                    path.release_ancestors();
                }
                let at = path.last();
                let (frame, node) = (at.held.owner().clone(), at.held.node());
                if !node.range.covers(key) {
                    self.meter.stats.restarts.inc();
                    continue 'restart;
                }
                let slot = match frame.level {
                    0 => node.search(key).unwrap_or_else(|place| place),
                    _ => node.child_index(key),
                };
                let route = if frame.level > 0 { Some(node.route(key)) } else { None };
                at.slot = slot;
                // The parent of this node, which is above the leaf, must be latched for writing:
                // count the levels up to the parent's.
                let wanted = frame.level + 2;
                if intent.moves_items() && frame.level > 0 && slot == 0 && write_levels < wanted {
                    write_levels = wanted;
                    continue 'restart;
                }
                if intent.moves_items() {
                    path.release_unreachable(intent);
                }
                match route {
                    None => return Ok(path),
                    Some(Route::Child(child)) => {
                        child.touch();
                        let mode = if child.level < write_levels { Mode::Write } else { Mode::Read };
                        path.push(child, mode);
                    }
                    Some(Route::Missing(child)) => {
                        path.set_blocking();
                        drop(path);
                        self.load(watch, &frame, key, child)?;
                        continue 'restart;
                    }
                    Some(Route::Stale) => continue 'restart,
                }
            }
        }
    }
}
