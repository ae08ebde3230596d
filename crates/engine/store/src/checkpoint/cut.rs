//! The cut: the state at one LSN, frozen to be written as a checkpoint.

use crate::apply::Counters;
use kedge_alloc::{Alloc, FrozenAlloc};
use kedge_base::{Epoch, Generation, Ino, Lsn};
use kedge_btree::{Frozen, Tree};
use kedge_format::superblock::{CheckpointState, Losses};
use std::sync::atomic::{AtomicU64, Ordering};

/// The state that a cut takes, to be written as a checkpoint.
pub(crate) struct Cut {
    pub tree: Frozen,
    pub alloc: FrozenAlloc,
    pub lsn: Lsn,
    pub tail: Lsn,
    pub generation: Generation,
    pub next_ino: Ino,
    pub inodes: u64,
}

impl Cut {
    /// Freezes the state at `lsn`, and begins the next generation. No record may be applied
    /// meanwhile.
    pub(crate) fn take(
        tree: &Tree,
        alloc: &Alloc,
        counters: &Counters,
        generation: &AtomicU64,
        lsn: Lsn,
        tail: Lsn,
    ) -> Cut {
        Cut {
            tree: tree.freeze(),
            alloc: alloc.freeze(),
            lsn,
            tail,
            generation: Generation(generation.fetch_add(1, Ordering::Relaxed)),
            next_ino: Ino(counters.next_ino.load(Ordering::Relaxed)),
            inodes: counters.inodes.load(Ordering::Relaxed),
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
        }
    }
}
