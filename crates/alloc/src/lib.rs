//! The allocator: which block may be handed out, and what a checkpoint writes about it.
//!
//! It serves 4 KiB blocks of file data and 16 KiB node slots (four blocks, aligned) from groups of
//! [`GROUP_BLOCKS`], and keeps two bitmaps of each group:
//!
//! - **owned**: what the applied records and the tree say. Exactly this is frozen at a checkpoint's cut and written.
//!   Only `apply_alloc`, `apply_free`, `alloc_node` and `free_node` change it, and they run inside the epoch guard,
//!   so the cut is exact.
//! - **busy**: what must not be handed out, a superset of owned. It lives in memory only: after a crash everything
//!   that is not owned is free, once the log has been replayed.
//!
//! # When is a free block not yet reusable?
//! A block is busy and not owned for one of these reasons. With each the crash (or fault) that reusing it would cause:
//!
//! 1. **Handed out, its record not yet appended.** Between `alloc_data` and `apply_alloc` (or `release_data`) the
//!    data write is in flight. Handed out twice, two files would write the same block, no crash needed.
//! 2. **Data freed by a record that is not durable** (`apply_free` until `durable`). Reused, new bytes reach the
//!    block in place; power fails before the record is durable; recovery brings the old file back, with foreign bytes
//!    in it (breaks "never foreign data"). Once durable the block is free at once, no checkpoint needed: recovery
//!    replays the free before anything reads the block.
//! 3. **Node freed, but the last durable checkpoint reads it** (`free_node` of an older generation, until
//!    `checkpoint_durable`). Reused as node or data and written, a crash before the next superblock would leave the
//!    old tree with a foreign block in its middle: the whole image lost. A node born in the current generation is in
//!    no checkpoint, so its slot is reusable at once.
//! 4. **Slot of the node pool.** Claimed though nobody uses it, so that a full or fragmented image can always be
//!    emptied. Handed to data, the first unlink on a full image would find no node to copy to, and a checkpoint could
//!    not complete.
//! 5. **Named by a log record that replay has yet to apply** (`hold_for_replay` until `replay_done`). Replay copies
//!    tree nodes, and the bitmaps it starts from are those of the cut: they call blocks free that files took
//!    afterwards, whose data is in place. A node placed there would collide with the record and overwrite durable
//!    data at the checkpoint that ends recovery. For the same reason a block freed in replay stays busy while a later
//!    record takes it, and is free at once if none does: all that is replayed is durable (reason 2 is over).
//! 6. **Slot that the tree used since the last cut** (spent: `free_node` of the current generation). Reusable as a node
//!    at once, but data gets it only after the next checkpoint. Replay from that cut needs as many slots as the tree
//!    had at its largest since; were such a slot data's by the end of the log, it would be held from the tree, and a
//!    full image could not be recovered.
//! 7. **The device did not take a write to it** (`quarantine`). Reused, the next file's write
//!    fails, too. Until the image is closed: the next mount may try again, for a device may have
//!    been mended.
//!
//! No reason: *a frozen bitmap names it*. The bitmap of a checkpoint in flight may call a block owned that is free
//! and reused by then; the log from the cut on holds the free and the new allocation, and replay corrects it. Nor
//! *the older superblock slot names it*: mount falls back to it only together with a log that recovery refuses (see
//! `kedge_format::superblock`). Nor *IO is in flight on it*: whoever frees a block has waited for its reads and
//! writes before the record.
//!
//! # Space rules
//! - Promises and places are kept apart (`space`): a promise is a number taken from `available`, which never counts
//!   a busy block, so reservations are honest and hold to the last single block.
//! - The node pool is physical and separate (`pool`): it takes from `available` only, never what was promised to
//!   data, and data takes from it only what lies above its floor.
//! - On a full image data gets NoSpace; deletes go on, if need be with a checkpoint between them that returns their
//!   deferred nodes.
//!
//! # Copies
//! Each bitmap has two copies. A checkpoint writes each bitmap that changed into the copy that the last durable
//! checkpoint does not use, and a whole index area (that of its superblock slot) that says which copy is current. A
//! crash before the superblock leaves the old slot, whose index names copies that were not written since. One
//! checkpoint at a time is in flight; it must end in [`Alloc::written`] or [`Alloc::abandon`], and copies flip only
//! with the former.
//!
//! # Locks
//! Refilling the pool (rank AllocGroup, order 0) → groups (rank AllocGroup, order group + 1) → pool, lists (rank
//! Leaf). A thread holds one group at a time, except a search that lost every race: it takes all in order, and then
//! must find what it was promised. No IO under any of them.
#![forbid(unsafe_code)]

mod bitmap;
mod checkpoint;
mod data;
mod group;
mod held;
mod load;
mod nodes;
mod pool;
mod space;

pub use checkpoint::FrozenAlloc;
pub use pool::{NodeClass, NodeReservation};
pub use space::DataReservation;

use bitmap::{BITS, Bitmap};
use checkpoint::Durable;
use data::Pending;
use group::{Group, GroupCell};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{BlockNo, CorruptKind, Error, Extent, Result};
use kedge_format::alloc::{GROUP_BLOCKS, GroupEntry};
use kedge_format::superblock::Geometry;
use pool::NodePool;
use space::Space;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// See the crate's documentation.
pub struct Alloc {
    geometry: Geometry,
    cells: Box<[GroupCell]>,
    space: Arc<Space>,
    pool: Arc<NodePool>,
    /// One refill at a time, so that many callers do not claim the missing slots many times over.
    refill: Mutex<()>,
    /// No slot could be had from free space, and nothing was freed since.
    refill_stuck: AtomicBool,
    /// Where the last run of slots was claimed.
    node_goal: AtomicU64,
    /// Group in which the last search outside its goal's group succeeded.
    rotor: AtomicU64,
    pending: Pending,
    /// Clear bits of all owned bitmaps.
    owned_free: AtomicU64,
    /// Groups whose `owned` changed since the last freeze.
    dirty: Mutex<Vec<u64>>,
    durable: Mutex<Durable>,
    in_flight: AtomicBool,
    replaying: AtomicBool,
    /// Blocks in quarantine, and how many: whoever releases blocks need not look while there are
    /// none.
    bad: Mutex<BTreeSet<u64>>,
    bad_count: AtomicU64,
}

/// Figures of the allocator, each exact for itself; together a glimpse, for they move while they are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeCounts {
    /// Blocks of the data area.
    pub total: u64,
    /// Blocks not busy.
    pub free: u64,
    /// Blocks neither owned nor in quarantine: what a checkpoint cut now would call free, but for
    /// those that the device does not take.
    pub owned_free: u64,
    /// Blocks promised to data and not yet placed; part of `free`.
    pub reserved: u64,
    /// Blocks that data could still reserve, those the pool would spare included.
    pub available: u64,
    /// The same once what records have freed is durable and a checkpoint has given back the nodes that it can: what a caller
    /// gets who waits for that.
    pub available_soon: u64,
    /// Data blocks freed by records that are not durable.
    pub pending_data: u64,
    /// Node slots that wait for a checkpoint.
    pub pending_nodes: u64,
    /// Free node slots in the pool.
    pub pool: u64,
    /// Node slots of the pool promised to operations.
    pub promised_nodes: u64,
    /// Node slots of the pool that only [`NodeClass::Reclaim`] may use.
    pub protected: u64,
}

/// What part of the group at `first` belongs to the format: blocks below `data_start` and behind the image's end.
fn format_owned(geometry: &Geometry, first: u64) -> [(u32, u32); 2] {
    let clamp = |block: u64| block.saturating_sub(first).min(GROUP_BLOCKS) as u32;
    let (data, end) = (clamp(geometry.data_start.0), clamp(geometry.total_blocks));
    [(0, data), (end, BITS - end)]
}

impl Alloc {
    /// The allocator of a new image: owned is what the format owns. Ready for use; its first checkpoint writes every
    /// bitmap.
    pub fn format(geometry: &Geometry) -> Alloc {
        let empty = Arc::new(Bitmap::new());
        let groups = (0..geometry.groups()).map(|g| {
            let mut owned = empty.clone();
            for (start, len) in format_owned(geometry, g * GROUP_BLOCKS) {
                if len > 0 {
                    Arc::make_mut(&mut owned).set(start, len);
                }
            }
            let mut group = Group::new(BlockNo(g * GROUP_BLOCKS), owned);
            group.dirty = true;
            group
        });
        // Copy 1 is called current, so that the first checkpoint writes copy 0; the other fields are never written.
        let entry = GroupEntry { bitmap_crc: 0, free_blocks: 0, copy: 1 };
        let index = Arc::new(vec![entry; geometry.groups() as usize]);
        let dirty = (0..geometry.groups()).collect();
        Alloc::new(geometry, groups.collect(), Durable { index, slot: None }, dirty, false)
    }

    fn new(
        geometry: &Geometry,
        groups: Vec<Group>,
        durable: Durable,
        dirty: Vec<u64>,
        replaying: bool,
    ) -> Alloc {
        let space = Arc::new(Space::default());
        space.give(groups.iter().map(|g| g.free as u64).sum());
        let owned_free = groups.iter().map(|g| g.owned_free as u64).sum();
        let cells = groups.into_iter().enumerate().map(|(g, group)| GroupCell::new(g as u64 + 1, group));
        Alloc {
            geometry: geometry.clone(),
            cells: cells.collect(),
            space,
            pool: Arc::new(NodePool::new(geometry.total_blocks - geometry.data_start.0)),
            refill: Mutex::with_order(Rank::AllocGroup, 0, ()),
            refill_stuck: AtomicBool::new(false),
            node_goal: AtomicU64::new(geometry.data_start.0),
            rotor: AtomicU64::new(0),
            pending: Pending::default(),
            owned_free: AtomicU64::new(owned_free),
            dirty: Mutex::new(Rank::Leaf, dirty),
            durable: Mutex::new(Rank::Leaf, durable),
            in_flight: AtomicBool::new(false),
            replaying: AtomicBool::new(replaying),
            bad: Mutex::new(Rank::Leaf, BTreeSet::new()),
            bad_count: AtomicU64::new(0),
        }
    }

    /// Works on a group under its lock, renews its hints and notes that it became dirty.
    fn with_group<R>(&self, g: u64, f: impl FnOnce(&mut Group) -> R) -> R {
        let cell = &self.cells[g as usize];
        let mut group = cell.lock();
        let was_dirty = group.dirty;
        let out = f(&mut group);
        if group.dirty && !was_dirty {
            self.dirty.lock().push(g);
        }
        cell.publish(&group);
        out
    }

    /// Group and bit of a block, which is moved into the data area if it lies outside: for hints.
    fn locate(&self, block: BlockNo) -> (u64, u32) {
        let block = block.0.clamp(self.geometry.data_start.0, self.geometry.total_blocks - 1);
        (block / GROUP_BLOCKS, (block % GROUP_BLOCKS) as u32)
    }

    /// The parts of an extent by group; an extent outside the data area is corrupt, for extents come from records.
    fn pieces(&self, extent: Extent) -> Result<impl Iterator<Item = (u64, u32, u32)> + use<>> {
        let end = extent.start.0.checked_add(extent.blocks);
        if extent.blocks == 0
            || extent.start < self.geometry.data_start
            || end.is_none_or(|end| end > self.geometry.total_blocks)
        {
            let what =
                format!("a record names {} blocks from there, not inside the data area", extent.blocks);
            return Err(Error::corrupt(CorruptKind::Log, extent.start, what));
        }
        let (mut at, end) = (extent.start.0, extent.end().0);
        Ok(std::iter::from_fn(move || {
            let bit = (at % GROUP_BLOCKS) as u32;
            let piece = (at / GROUP_BLOCKS, bit, (end - at).min(GROUP_BLOCKS - bit as u64) as u32);
            at += piece.2 as u64;
            (piece.2 > 0).then_some(piece)
        }))
    }

    /// Raises `available` after bits became free, and lets the pool take its share first.
    fn freed(&self, blocks: u64) {
        if blocks > 0 {
            self.space.give(blocks);
            self.refill_stuck.store(false, SeqCst);
            self.top_up();
        }
    }

    pub fn free_counts(&self) -> FreeCounts {
        let pool = self.pool.counts();
        let (available, reserved) = (self.space.available(), self.space.reserved());
        FreeCounts {
            total: self.geometry.total_blocks - self.geometry.data_start.0,
            free: available + reserved,
            owned_free: self.owned_free.load(SeqCst).saturating_sub(self.bad_unowned()),
            reserved,
            available: self.available_data(),
            available_soon: self.available_soon(),
            pending_data: self.pending.blocks(),
            pending_nodes: pool.deferred,
            pool: pool.slots,
            promised_nodes: pool.promised,
            protected: self.pool.protected,
        }
    }
}

#[cfg(test)]
#[path = "alloc_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "model_tests.rs"]
mod model_tests;

#[cfg(test)]
mod test_device;
