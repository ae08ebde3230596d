//! The cut: the state at one LSN, frozen to be written as a checkpoint.

use crate::forest::{Change, Forest, FrozenForest, Member};
use kedge_alloc::{Alloc, FrozenAlloc};
use kedge_base::atomic::{AtomicU64, Ordering};
use kedge_base::{BlockNo, Epoch, Generation, Ino, Lsn, Result};
use kedge_btree::Frozen;
use kedge_format::superblock::{COUNTER_MAX, CheckpointState, Losses};
use std::sync::Arc;

/// The state that a cut takes, to be written as a checkpoint.
pub(crate) struct Cut {
    /// The first tree until the cut, and its frozen nodes. The cut may replace that tree.
    pub first: Arc<Member>,
    pub tree: Frozen,
    /// Address, generation and level of the root of the first tree from the cut on, and the number
    /// of nodes of that tree.
    pub root: (BlockNo, Generation, u8),
    pub root_nodes: u64,
    /// The other trees and the table of trees. `None` if the image was never forked.
    pub forest: Option<FrozenForest>,
    pub alloc: FrozenAlloc,
    pub lsn: Lsn,
    pub tail: Lsn,
    pub generation: Generation,
    pub next_ino: Ino,
    pub inodes: u64,
    /// Whether no record may be appended after this cut before its checkpoint is durable: see
    /// [`super::table`].
    pub stops_records: bool,
}

impl Cut {
    /// Freezes the state at `lsn`, changes the table of trees, and starts the next generation. The
    /// caller ensures that no record is applied meanwhile.
    pub(crate) fn take(
        forest: &Forest,
        alloc: &Alloc,
        changes: &[Change],
        generation: &AtomicU64,
        lsn: Lsn,
        tail: Lsn,
    ) -> Result<Cut> {
        let stops_records = forest.change_heads(changes);
        let first = forest.first().shared();
        let tree = first.tree.freeze();
        // A change of the table takes nodes, so the allocator is frozen after it.
        let others = forest.freeze(&tree, changes).inspect_err(|_| {
            // The caller will shut the store down. Until then no tree may modify the frozen nodes
            // in place.
            generation.fetch_add(1, Ordering::Relaxed);
        })?;
        if others.is_some() {
            alloc.set_has_trees(forest.limits.is_used());
        }
        // A change of the table may have replaced the first tree.
        let after = forest.first();
        let counters = &after.counters;
        Ok(Cut {
            first,
            tree,
            root: after.tree.root(),
            root_nodes: after.tree.node_count(),
            forest: others,
            alloc: alloc.freeze(),
            lsn,
            tail,
            generation: Generation(generation.fetch_add(1, Ordering::Relaxed)),
            next_ino: Ino(counters.next_ino.load(Ordering::Relaxed)),
            inodes: counters.inodes.load(Ordering::Relaxed),
            stops_records,
        })
    }

    /// The frozen trees, whose nodes are to be written.
    pub(crate) fn trees(&self) -> impl Iterator<Item = &Frozen> {
        std::iter::once(&self.tree).chain(self.forest.iter().flat_map(FrozenForest::trees))
    }

    /// The number of nodes to write.
    pub(crate) fn nodes(&self) -> usize {
        self.trees().map(Frozen::len).sum()
    }

    /// Called when the frozen trees are durable.
    pub(crate) fn trees_written(forest: &Forest, cut: (Arc<Member>, Frozen, Option<FrozenForest>)) {
        let (first, tree, others) = cut;
        first.tree.written(tree);
        if let Some(others) = others {
            forest.written(others);
        }
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
            root: self.root.0,
            root_generation: self.root.1,
            root_level: self.root.2,
            checkpoint_lsn: self.lsn,
            tail_lsn: self.tail,
            epoch,
            next_ino: self.next_ino,
            // In a corrupt image the counter may exceed its bound; the slot must be valid even
            // then.
            inodes: self.inodes.min(COUNTER_MAX),
            free_blocks: self.alloc.free_blocks(),
            nodes: self.root_nodes,
            clean,
            written_sec,
            losses,
            trees: self.forest.as_ref().map(FrozenForest::state),
        }
    }
}
