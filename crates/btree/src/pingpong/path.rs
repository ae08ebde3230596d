//! Descents that hold the latches of their path, for trees with [`crate::TreeLock::Pingpong`].
//!
//! This is how btrfs did it. A lookup takes each node's latch for reading before it releases the
//! parent's (latch coupling). An insertion takes the leaf's and its parent's latch for writing,
//! since the parent might have to change. It keeps the ancestors of a node until it knows that the
//! key will not become that node's first.
//!
//! Latches are taken spinning. If a latch is not free at once, the whole path becomes blocking, and
//! spinning again once the latch is taken. The path also becomes blocking before a node is read
//! from the device and before the tree's structure is changed. Each level of the descent ends with
//! a conversion back to spinning, which first converts all latches of the path to blocking, from
//! the root down.

use super::lock::Mode;
use crate::frame::{Frame, Node, Route};
use crate::latch::{Held, LatchWatch};
use crate::tree::Tree;
use kedge_base::Result;
use kedge_format::Key;
use smallvec::SmallVec;
use std::sync::Arc;

/// A change of a leaf latches levels up to this one for writing.
const WRITE_LEVEL: u8 = 1;

struct Path<'a, 'm> {
    watch: &'a LatchWatch<'m>,
    /// From the root pointer down.
    held: SmallVec<[Held<Arc<Frame>>; 8]>,
}

impl Path<'_, '_> {
    fn set_blocking(&mut self) {
        self.held.iter_mut().for_each(|h| h.set_blocking(self.watch));
    }

    fn clear_blocking(&mut self) {
        self.set_blocking();
        self.held.iter_mut().for_each(|h| h.clear_blocking(self.watch));
    }

    fn release_ancestors(&mut self) {
        let last = self.held.len() - 1;
        self.held.drain(..last);
    }

    fn push(&mut self, frame: Arc<Frame>, mode: Mode) {
        let held = match Held::try_take(self.watch, frame, mode) {
            Ok(held) => held,
            Err(frame) => {
                self.set_blocking();
                let mut held = Held::wait(self.watch, frame, mode);
                held.set_blocking(self.watch);
                self.clear_blocking();
                held.clear_blocking(self.watch);
                held
            }
        };
        self.held.push(held);
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
        let mut path = self.path_to(watch, key, Mode::Read)?;
        path.set_blocking();
        let leaf = path.held.last().expect("a path ends at its leaf");
        Ok(f(leaf.node()))
    }

    /// Runs `f` on the leaf that covers the key, latched for writing. `f` also returns whether the
    /// structure has to change first.
    pub(crate) fn write_by_path<R>(
        &self,
        watch: &LatchWatch<'_>,
        key: &Key,
        f: impl FnOnce(&Arc<Frame>, &mut Node) -> (R, bool),
    ) -> Result<R> {
        let mut path = self.path_to(watch, key, Mode::Write)?;
        let leaf = path.held.last_mut().expect("a path ends at its leaf");
        let frame = leaf.owner().clone();
        let (result, restructure) = f(&frame, leaf.node_mut());
        if restructure {
            path.set_blocking();
        }
        Ok(result)
    }

    fn path_to<'a, 'm>(&self, watch: &'a LatchWatch<'m>, key: &Key, mode: Mode) -> Result<Path<'a, 'm>> {
        let mode_of = |level: u8| if level <= WRITE_LEVEL { mode } else { Mode::Read };
        'restart: loop {
            let mut path = Path { watch, held: SmallVec::new() };
            path.push(self.anchor.clone(), mode_of(self.anchor.level));
            loop {
                path.clear_blocking();
                if mode == Mode::Read {
                    path.release_ancestors();
                }
                let at = path.held.last().expect("pushed");
                let (frame, node) = (at.owner().clone(), at.node());
                if !node.range.covers(key) {
                    self.meter.stats.restarts.inc();
                    continue 'restart;
                }
                if node.view().first_key().is_some_and(|first| *key > first) {
                    path.release_ancestors();
                }
                if frame.level == 0 {
                    return Ok(path);
                }
                let at = path.held.last().expect("the node itself stays");
                match at.node().route(key) {
                    Route::Child(child) => {
                        child.touch();
                        path.push(child.clone(), mode_of(child.level));
                    }
                    Route::Missing(child) => {
                        path.set_blocking();
                        drop(path);
                        self.load(watch, &frame, key, child)?;
                        continue 'restart;
                    }
                    Route::Stale => continue 'restart,
                }
            }
        }
    }
}
