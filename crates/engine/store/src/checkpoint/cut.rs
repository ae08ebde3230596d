//! The cut: the state at one LSN, frozen to be written as a checkpoint.

use crate::forest::{Change, Forest, FrozenForest};
use kedge_alloc::{Alloc, FrozenAlloc};
use kedge_base::atomic::{AtomicU64, Ordering};
use kedge_base::{Epoch, Generation, Ino, Lsn, Result};
use kedge_btree::Frozen;
use kedge_format::superblock::{CheckpointState, Losses};

/// The state that a cut takes, to be written as a checkpoint.
pub(crate) struct Cut {
    pub tree: Frozen,
    /// The other trees and their table, in an image that was forked.
    pub forest: Option<FrozenForest>,
    pub alloc: FrozenAlloc,
    pub lsn: Lsn,
    pub tail: Lsn,
    pub generation: Generation,
    pub next_ino: Ino,
    pub inodes: u64,
}

impl Cut {
    /// Freezes the state at `lsn`, changes the table of trees, and begins the next generation. No
    /// record may be applied meanwhile.
    pub(crate) fn take(
        forest: &Forest,
        alloc: &Alloc,
        changes: &[Change],
        generation: &AtomicU64,
        lsn: Lsn,
        tail: Lsn,
    ) -> Result<Cut> {
        let counters = &forest.first.counters;
        let tree = forest.first.tree.freeze();
        // Changes the table, which takes nodes, so the allocator is frozen after it.
        let others = forest.freeze(&tree, changes)?;
        if others.is_some() {
            alloc.set_has_trees(forest.limits.is_used());
        }
        Ok(Cut {
            tree,
            forest: others,
            alloc: alloc.freeze(),
            lsn,
            tail,
            generation: Generation(generation.fetch_add(1, Ordering::Relaxed)),
            next_ino: Ino(counters.next_ino.load(Ordering::Relaxed)),
            inodes: counters.inodes.load(Ordering::Relaxed),
        })
    }

    /// The trees to write.
    pub(crate) fn trees(&self) -> impl Iterator<Item = &Frozen> {
        std::iter::once(&self.tree).chain(self.forest.iter().flat_map(FrozenForest::trees))
    }

    /// The number of nodes to write.
    pub(crate) fn nodes(&self) -> usize {
        self.trees().map(Frozen::len).sum()
    }

    /// The checkpoint's part of the superblock slot.
    pub(crate) fn state(
        &self,
        epoch: Epoch,
        clean: bool,
        written_sec: i64,
        losses: Option<Losses>,
    ) -> CheckpointState {
        CheckpointState {
            generation: self.generation,
            root: self.tree.root,
            root_generation: self.tree.root_generation,
            root_level: self.tree.root_level,
            checkpoint_lsn: self.lsn,
            tail_lsn: self.tail,
            epoch,
            next_ino: self.next_ino,
            inodes: self.inodes,
            free_blocks: self.alloc.free_blocks(),
            nodes: self.tree.node_count,
            clean,
            written_sec,
            losses,
            trees: self.forest.as_ref().map(FrozenForest::state),
        }
    }
}
