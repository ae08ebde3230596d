//! The most that an operation needs: the log bytes of its record, and tree nodes.
//!
//! A need is added up edit by edit, with methods named like those of [`RecordBuilder`] and the
//! sizes of the format. So it stands beside the code that builds the record, in the same words. The
//! alternative, a constant for each operation, is a second formula: it was wrong where an edit was
//! added to the record and not to the constant.
//!
//! # Tree nodes
//! An edit changes a leaf. The first change of a leaf in a generation copies each node from the
//! root to it; an insertion may also split each of them. Items that the operation names one by one
//! may each lie elsewhere in the tree, so each counts a path of its own. *Neighbours*, the extents
//! of a part of one file, are counted by the leaves that they would fill if these were a quarter
//! full. Leaves may be emptier than that, so a record with neighbours counts its leaves before it
//! is appended, and reserves more nodes if it needs more (`Handle::commit`).
//!
//! Above the leaves paths share nodes: from the ninth path on, three paths count as one there. The
//! number of nodes in the tree bounds the whole sum.
//!
//! Paths in different trees share nothing, and each tree has a root.
//!
//! [`RecordBuilder`]: kedge_format::record::RecordBuilder

use kedge_format::counts::CountItem;
use kedge_format::record::{RECORD_HEADER, size};
use kedge_format::sums::SumsItem;

/// Bytes of the longest record for which a checkpoint finds space in a full log.
pub const CHECKPOINT_RECORD_MAX: u64 = kedge_log::CHECKPOINT_BYTES - kedge_log::RECORD_OVERHEAD;
/// Log bytes promised for each resident piece while it exists. They are for its part of the record
/// that ends its residency: inode patch, extent, allocation,
/// checksums, counts of shared blocks and drop. An operation that
/// makes pieces reserves this much for each.
pub const PROMISE_PER_PIECE: u64 = 448;
/// Pieces that a `Data` or `Zero` edit adds at most: its own, and the second half of a piece that
/// it cuts in two.
const PIECES_PER_EDIT: u64 = 2;
/// Neighbours that a leaf normally holds at least: a full leaf holds some 400 extents.
const NEIGHBOURS_PER_LEAF: u32 = 64;
/// Paths that share nothing but the root. Beyond these, three paths share the nodes between root
/// and leaf.
const PATHS_APART: u32 = 8;

/// Class of a reservation: the reserves that it may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    Normal,
    /// Operations that keep a promise: writeback and the records of an fsync. Data that was
    /// accepted finds its nodes here. Leaves the reserves of the next class alone.
    Promised,
    /// Operations that free space: unlink, truncate, deletion. They are never refused.
    Reclaim,
    /// Writeback on behalf of a running checkpoint. Never waits: fails with `NoSpace` when space is
    /// short.
    Checkpoint,
}

/// The need of an operation; see the module's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// Bytes of the record, and the promises for the resident pieces that it makes.
    pub log_bytes: u64,
    /// Items that are changed or deleted.
    pub changes: u32,
    /// Items that may be new.
    pub puts: u32,
    /// Adjacent items: extents of one file.
    pub neighbours: u32,
    /// Trees that the items are in, at most.
    pub trees: u32,
    pub class: Class,
}

impl Need {
    /// A record without edits.
    pub const fn record(class: Class) -> Need {
        Need { log_bytes: RECORD_HEADER as u64, changes: 0, puts: 0, neighbours: 0, trees: 1, class }
    }

    const fn bytes(self, bytes: u64) -> Need {
        Need { log_bytes: self.log_bytes + bytes, ..self }
    }

    /// Patches of inodes.
    pub const fn patches(self, count: usize) -> Need {
        let need = self.bytes(count as u64 * size::PATCH);
        Need { changes: need.changes + count as u32, ..need }
    }

    /// New inodes.
    pub const fn creates(self, count: usize) -> Need {
        let need = self.bytes(count as u64 * size::PATCH);
        Need { puts: need.puts + count as u32, ..need }
    }

    /// Items with values of up to `len` bytes.
    pub const fn puts(self, count: usize, len: usize) -> Need {
        let need = self.bytes(count as u64 * size::put(len));
        Need { puts: need.puts + count as u32, ..need }
    }

    /// Items whose values of up to `len` bytes become shorter.
    pub const fn cuts(self, count: usize, len: usize) -> Need {
        let need = self.bytes(count as u64 * size::put(len));
        Need { changes: need.changes + count as u32, ..need }
    }

    pub const fn deletes(self, count: usize) -> Need {
        let need = self.bytes(count as u64 * size::DELETE);
        Need { changes: need.changes + count as u32, ..need }
    }

    /// Deletions of adjacent items, which normally lie in `leaves` leaves.
    pub const fn deletes_in(self, leaves: usize, count: usize) -> Need {
        let need = self.bytes(count as u64 * size::DELETE);
        Need { changes: need.changes + leaves as u32, ..need }
    }

    /// Adjacent extents that are put or deleted.
    pub const fn extents(self, count: usize) -> Need {
        let need = self.bytes(count as u64 * size::EXTENT_ITEM);
        Need { neighbours: need.neighbours + count as u32, ..need }
    }

    /// Adjacent items of checksums that are put or deleted.
    pub const fn sums(self, count: usize) -> Need {
        let need = self.bytes(count as u64 * size::put(SumsItem::SIZE_MAX));
        Need { neighbours: need.neighbours + count as u32, ..need }
    }

    /// Counts of shared blocks that are put or deleted, in `leaves` places of the tree.
    pub const fn counts(self, leaves: usize, count: usize) -> Need {
        let need = self.bytes(count as u64 * size::put(CountItem::SIZE));
        Need { changes: need.changes + leaves as u32, neighbours: need.neighbours + count as u32, ..need }
    }

    /// Extents that are changed or deleted, in `leaves` leaves.
    pub const fn extents_in(self, leaves: usize, count: usize) -> Need {
        let need = self.bytes(count as u64 * size::EXTENT_ITEM);
        Need { changes: need.changes + leaves as u32, ..need }
    }

    /// `Alloc` and `Free` edits.
    pub const fn runs(self, count: usize) -> Need {
        self.bytes(count as u64 * size::RUN)
    }

    pub const fn drops(self, count: usize) -> Need {
        self.bytes(count as u64 * size::RANGE)
    }

    pub const fn zeros(self, count: usize) -> Need {
        self.bytes(count as u64 * (size::RANGE + PIECES_PER_EDIT * PROMISE_PER_PIECE))
    }

    /// `Data` edits with `bytes` bytes in all.
    pub const fn data(self, count: usize, bytes: usize) -> Need {
        let each = size::DATA + PIECES_PER_EDIT * PROMISE_PER_PIECE;
        self.bytes(count as u64 * each + bytes as u64)
    }

    /// The same items, in up to `count` trees.
    pub const fn in_trees(self, count: usize) -> Need {
        Need { trees: count as u32, ..self }
    }

    /// The most tree nodes that the operation can take, in trees of this height with up to
    /// `tree_nodes` nodes each.
    pub(crate) fn nodes(&self, height: u32, tree_nodes: u64) -> u32 {
        let side_by_side = self.neighbours.div_ceil(NEIGHBOURS_PER_LEAF);
        let all = u32::try_from(tree_nodes.saturating_mul(self.trees.into())).unwrap_or(u32::MAX);
        let all = all.saturating_add(PATHS_APART);
        let (changed, new) = (self.changes + self.puts + side_by_side, self.puts + side_by_side);
        let apart = if self.trees > 1 { u32::MAX } else { PATHS_APART };
        let shared = |paths: u32| paths.min(apart) + paths.saturating_sub(apart) / 3;
        let between = height.saturating_sub(2);
        let copies = (changed + shared(changed) * between).min(all);
        let splits = (new + shared(new) * between).min(all);
        // In each tree a copy of the root, its split unless it is a leaf, a new root, and another
        // for a root that a concurrent operation has split since.
        copies + splits + self.trees * if height > 1 { 4 } else { 2 }
    }

    /// Number of items that each count a path of their own.
    pub(crate) fn paths(&self) -> u32 {
        self.changes + self.puts
    }
}

#[cfg(test)]
#[path = "need_tests.rs"]
mod tests;
