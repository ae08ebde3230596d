//! The most that an operation needs: log bytes for its record, and tree nodes.
//!
//! A need is added up edit by edit, with methods named like those of [`RecordBuilder`] and with the
//! sizes of the format. So the computation stands beside the code that builds the record, in the
//! same words. The alternative, a constant for each operation, is a second formula: it became wrong
//! when an edit was added to the record but not to the constant.
//!
//! # Tree nodes
//! An edit changes a leaf. The first change of a leaf in a generation copies each node from the
//! root to the leaf; an insertion may also split each of these nodes. Items that the operation
//! names one by one may be in different leaves, so each counts a path of its own. *Neighbours*,
//! such as the extents of a range of one file, are counted by the leaves that they would fill if
//! these were a quarter full. Leaves may be emptier than that. So the leaves of a record with
//! neighbours are counted before it is appended, and more nodes are reserved if necessary
//! (`Handle::commit`).
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
/// Log bytes promised for each resident piece while it exists. The record that ends its residency
/// uses them: for an inode patch, an extent, an allocation, checksums, counts of shared blocks and
/// a drop. An operation that makes pieces reserves this much for each.
pub const PROMISE_PER_PIECE: u64 = 448;
/// The most pieces that a `Data` or `Zero` edit adds: its own piece, and one more if it cuts an
/// older piece in two.
const PIECES_PER_EDIT: u64 = 2;
/// Assumed minimum of neighbours in a leaf. A full leaf holds some 400 extents.
const NEIGHBOURS_PER_LEAF: u32 = 64;
/// Paths that are assumed to share nothing but the root. Beyond this number three paths count as
/// one between root and leaf.
const PATHS_APART: u32 = 8;

/// Class of a reservation. The class decides which reserves it may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    Normal,
    /// Operations that keep a promise: writeback, and the records of an fsync. The nodes for
    /// accepted data are in the reserve for this class. Leaves the reserves of the next class
    /// alone.
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
    /// Bytes of the record, and those promised for the resident pieces that it makes.
    pub log_bytes: u64,
    /// Number of items that are changed or deleted.
    pub changes: u32,
    /// Number of items that may be new.
    pub puts: u32,
    /// Number of adjacent items, such as extents of one file.
    pub neighbours: u32,
    /// Upper bound on the number of trees that contain the items.
    pub trees: u32,
    pub class: Class,
}

impl Need {
    /// The need of a record without edits.
    pub const fn record(class: Class) -> Need {
        Need { log_bytes: RECORD_HEADER as u64, changes: 0, puts: 0, neighbours: 0, trees: 1, class }
    }

    const fn bytes(self, bytes: u64) -> Need {
        Need { log_bytes: self.log_bytes + bytes, ..self }
    }

    /// Adds patches of inodes.
    pub const fn patches(self, count: usize) -> Need {
        let need = self.bytes(count as u64 * size::PATCH);
        Need { changes: need.changes + count as u32, ..need }
    }

    /// Adds new inodes.
    pub const fn creates(self, count: usize) -> Need {
        let need = self.bytes(count as u64 * size::PATCH);
        Need { puts: need.puts + count as u32, ..need }
    }

    /// Adds items with values of up to `len` bytes.
    pub const fn puts(self, count: usize, len: usize) -> Need {
        let need = self.bytes(count as u64 * size::put(len));
        Need { puts: need.puts + count as u32, ..need }
    }

    /// Adds items whose values of up to `len` bytes become shorter.
    pub const fn cuts(self, count: usize, len: usize) -> Need {
        let need = self.bytes(count as u64 * size::put(len));
        Need { changes: need.changes + count as u32, ..need }
    }

    pub const fn deletes(self, count: usize) -> Need {
        let need = self.bytes(count as u64 * size::DELETE);
        Need { changes: need.changes + count as u32, ..need }
    }

    /// Adds deletions of `count` adjacent items, which normally are in `leaves` leaves.
    pub const fn deletes_in(self, leaves: usize, count: usize) -> Need {
        let need = self.bytes(count as u64 * size::DELETE);
        Need { changes: need.changes + leaves as u32, ..need }
    }

    /// Adds adjacent extents that are put or deleted.
    pub const fn extents(self, count: usize) -> Need {
        let need = self.bytes(count as u64 * size::EXTENT_ITEM);
        Need { neighbours: need.neighbours + count as u32, ..need }
    }

    /// Adds adjacent checksum items that are put or deleted.
    pub const fn sums(self, count: usize) -> Need {
        let need = self.bytes(count as u64 * size::put(SumsItem::SIZE_MAX));
        Need { neighbours: need.neighbours + count as u32, ..need }
    }

    /// Adds `count` counts of shared blocks that are put or deleted, in `leaves` separate leaves.
    pub const fn counts(self, leaves: usize, count: usize) -> Need {
        let need = self.bytes(count as u64 * size::put(CountItem::SIZE));
        Need { changes: need.changes + leaves as u32, neighbours: need.neighbours + count as u32, ..need }
    }

    /// Adds `count` extents that are changed or deleted, in `leaves` leaves.
    pub const fn extents_in(self, leaves: usize, count: usize) -> Need {
        let need = self.bytes(count as u64 * size::EXTENT_ITEM);
        Need { changes: need.changes + leaves as u32, ..need }
    }

    /// Adds `Alloc` and `Free` edits.
    pub const fn runs(self, count: usize) -> Need {
        self.bytes(count as u64 * size::RUN)
    }

    pub const fn drops(self, count: usize) -> Need {
        self.bytes(count as u64 * size::RANGE)
    }

    pub const fn zeros(self, count: usize) -> Need {
        self.bytes(count as u64 * (size::RANGE + PIECES_PER_EDIT * PROMISE_PER_PIECE))
    }

    /// Adds `count` `Data` edits with `bytes` bytes in all.
    pub const fn data(self, count: usize, bytes: usize) -> Need {
        let each = size::DATA + PIECES_PER_EDIT * PROMISE_PER_PIECE;
        self.bytes(count as u64 * each + bytes as u64)
    }

    /// States that the items are in up to `count` trees.
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
        // For each tree: a copy of the root and its split (if the root is a leaf, both are counted
        // above), a new root, and a node for a root that another operation has split meanwhile.
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
