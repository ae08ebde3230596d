//! The allocator: decides which blocks may be allocated, and which bitmaps a checkpoint writes.
//!
//! It allocates 4 KiB blocks of file data and 16 KiB node slots (four aligned blocks) from groups
//! of [`GROUP_BLOCKS`] blocks, and keeps two bitmaps for each group:
//!
//! - **owned**: blocks that the applied records and the tree use. A checkpoint freezes exactly this
//!   bitmap at its cut and writes it. Only `apply_alloc`, `apply_free`, `alloc_node` and
//!   `free_node` change the bitmap, and they run inside the epoch guard, so the cut is exact.
//! - **busy**: blocks that must not be allocated, a superset of owned. It exists in memory only:
//!   after a crash, once the log has been replayed, every block that is not owned is free.
//!
//! # When is a free block not yet reusable?
//! A block is busy but not owned for one of the following reasons. Each item describes the failure
//! that reusing the block would cause:
//!
//! 1. **Allocated, its record not yet appended.** Between `alloc_data` and `apply_alloc` (or
//!    `release_data`) the data write is in flight. If the block were allocated again, two files
//!    would write to it, even without a crash.
//! 2. **Data freed by a record that is not durable** (`apply_free` until `durable`). If it were
//!    reused, new bytes would overwrite the block. If power then failed before the record was
//!    durable, recovery would restore the old file with foreign bytes. Once the record is durable,
//!    the block is free at once, without a checkpoint: recovery replays the free before anything
//!    reads the block.
//! 3. **Node freed, but used by the last durable checkpoint** (`free_node` of an older generation,
//!    until `checkpoint_durable`). If it were reused and written, a crash before the next
//!    superblock would leave the old tree with a foreign block: the whole image would be lost. A
//!    node born in the current generation is in no checkpoint, so its slot is reusable at once.
//! 4. **Slot of the node pool.** Claimed although unused, so that a full or fragmented image can
//!    always be emptied. If data got the slot, the first unlink on a full image would find no slot
//!    for its copy of a node, and a checkpoint could not complete.
//! 5. **Allocated by a log record that replay has yet to apply** (`hold_for_replay` until
//!    `replay_done`). Replay copies tree nodes, and it starts from the bitmaps of the cut. These
//!    mark blocks free that files allocated after the cut, and whose data is in place. A node
//!    placed there would collide with the record, and the checkpoint that ends recovery would
//!    overwrite durable data. For the same reason a block freed in replay stays busy while a later
//!    record allocates it. Without such a record the block is free at once: all replayed records
//!    are durable, so reason 2 does not apply.
//! 6. **Slot that the tree has used since the last cut** (*spent*: `free_node` of the current
//!    generation). The tree may reuse it at once, but data gets it only after the next checkpoint.
//!    Replay from that cut needs as many slots as the tree has used at most since then. If data
//!    had such a slot at the end of the log, the tree could not use it in replay, and a full image
//!    could not be recovered.
//! 7. **A write to it failed** (`quarantine`). If it were reused, the next write would fail too.
//!    The quarantine ends when the image is closed. The next mount may try the block again, since
//!    the device may have been repaired.
//! 8. **It is being discarded** (`claim_free` until `end_claim`). If it were allocated now, the
//!    discard could destroy the new bytes.
//! 9. **A resize added it, and the superblock with the new size is not durable** (`grow` until
//!    `written`). If it were allocated now, a crash would leave log records that refer to blocks
//!    beyond the end of the image, and recovery would refuse them.
//! 10. **The image is about to shrink to an end before this block** (`fence` until `shrink` or
//!     `unfence`). If the block were allocated, a record after the cut of the shrink could refer to
//!     a block beyond the end of the image, and recovery would refuse it.
//!
//! The following are not reasons:
//! - *A frozen bitmap marks it owned.* The bitmap of a checkpoint in flight may mark a block owned
//!   that has been freed and reused since the cut. The log from the cut on contains the free and
//!   the new allocation, and replay corrects the bitmap.
//! - *The older superblock slot refers to it.* A mount falls back to that slot only together with a
//!   log that recovery refuses (see `kedge_format::superblock`).
//! - *IO is in flight on it*. An operation that frees a block waits for the block's reads and
//!   writes before it appends the record.
//!
//! # Space rules
//! - Promises and placement are separate (`space`). A promise is a number of blocks taken from
//!   `available`, which never counts a busy block. So every promise can be kept, down to the last
//!   single block.
//! - The node pool holds physical slots (`pool`). It takes blocks from `available` only, never
//!   blocks promised to data. Data takes from the pool only slots above the pool's floor.
//! - On a full image data gets NoSpace. Deletions still succeed, if necessary with a checkpoint
//!   between them that makes deferred slots reusable.
//!
//! # Copies
//! Each bitmap has two copies. A checkpoint writes each bitmap that changed to the copy that the
//! last durable checkpoint does not use. It also writes the index area of its superblock slot,
//! which selects the current copy of each bitmap. A crash before the superblock write leaves the
//! old slot, whose index selects copies that have not been written since. Only one checkpoint at a
//! time is in flight. It must end in [`Alloc::written`] or [`Alloc::abandon`], and only the former
//! switches the copies.
//!
//! # Locks
//! Refilling the pool (rank AllocGroup, order 0) → groups (rank AllocGroup, order group + 1) →
//! pool, lists (rank Leaf). A thread holds one group at a time, except in a search that has lost
//! every race: it locks all groups in order, and then must find the promised blocks. No thread does
//! IO under any of these locks.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod bitmap;
mod cells;
mod checkpoint;
mod data;
mod discard;
mod group;
mod held;
mod load;
mod nodes;
mod pool;
mod resize;
mod shrink;
mod space;

pub use checkpoint::FrozenAlloc;
pub use discard::Which;
pub use pool::{NodeClass, NodeReservation, Waited};
pub use space::DataReservation;

use bitmap::Bitmap;
use cells::Cells;
use checkpoint::Durable;
use data::Pending;
use group::{Group, GroupCell};
use kedge_base::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use kedge_base::lock::{Condvar, Mutex, Rank};
use kedge_base::{BlockNo, CorruptKind, Error, Extent, Result};
use kedge_format::alloc::{GROUP_BLOCKS, GroupEntry};
use kedge_format::copies::overlap;
use kedge_format::superblock::Geometry;
use pool::NodePool;
use space::Space;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// The allocator of an open image; see the crate's documentation.
pub struct Alloc {
    /// The geometry at opening. Only fields that no resize changes may be read from it; the size
    /// and the location of the maps are in `total` and `layout`.
    geometry: Geometry,
    /// The geometry that the next checkpoint writes. A resize changes it under the exclusive epoch
    /// guard. The first clone adds its feature at any time.
    layout: Mutex<Arc<Geometry>>,
    /// Number of blocks of the image, equal to that of `layout`.
    total: AtomicU64,
    /// The blocks of moved allocation maps, as in `layout`. Changed under the exclusive epoch
    /// guard.
    maps: Range<AtomicU64>,
    cells: Cells,
    /// The first block that the current shrink must vacate; `u64::MAX` without a shrink.
    fence: AtomicU64,
    /// Blocks that a resize added, until the checkpoint with the new size is durable.
    added: Mutex<Vec<Extent>>,
    space: Arc<Space>,
    pool: Arc<NodePool>,
    /// Held during a refill, so that concurrent callers do not each claim the missing slots.
    refill: Mutex<()>,
    /// Set if the last refill found too few slots in free space and no block has been freed since.
    refill_stuck: AtomicBool,
    /// The slot that was claimed last, at which the next search for slots starts.
    node_goal: AtomicU64,
    /// The group in which the last search outside of its goal's group succeeded.
    rotor: AtomicU64,
    pending: Pending,
    /// Number of clear bits in all owned bitmaps.
    owned_free: AtomicU64,
    /// Groups whose `owned` bitmap has changed since the last freeze.
    dirty: Mutex<Vec<u64>>,
    durable: Mutex<Durable>,
    in_flight: AtomicBool,
    replaying: AtomicBool,
    /// The blocks in quarantine, and their number, so that a release need not take the lock while
    /// there are none.
    bad: Mutex<BTreeSet<u64>>,
    bad_count: AtomicU64,
    /// Number of blocks that are busy because they are being discarded.
    claims: Mutex<u64>,
    unclaimed: Condvar,
}

/// Counts of the allocator. Each count is exact, but the counts may be from slightly different
/// times, because other threads may change them while they are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeCounts {
    /// Number of blocks in the data area.
    pub total: u64,
    /// Number of blocks that are not busy.
    pub free: u64,
    /// Number of blocks that are neither owned nor in quarantine. A checkpoint with its cut now
    /// would mark these blocks free, and the unowned blocks in quarantine as well.
    pub owned_free: u64,
    /// Number of blocks promised to data and not yet placed; included in `free`.
    pub reserved: u64,
    /// Number of blocks that data can still reserve, including those that the pool can spare.
    pub available: u64,
    /// The value that `available` would have once all records, and then a checkpoint, are durable,
    /// and the running operations have returned their promises.
    pub available_soon: u64,
    /// Number of data blocks freed by records that are not durable.
    pub pending_data: u64,
    /// Number of deferred node slots, which wait for a checkpoint.
    pub pending_nodes: u64,
    /// Number of free node slots in the pool.
    pub pool: u64,
    /// Number of node slots of the pool that are promised to operations.
    pub promised_nodes: u64,
    /// Number of node slots of the pool that [`NodeClass::Normal`] must not use.
    pub protected: u64,
}

/// Returns the ranges of the group at block `first` that the format owns.
fn format_owned(geometry: &Geometry, first: u64) -> impl Iterator<Item = (u32, u32)> + use<> {
    let clamp = move |block: u64| block.saturating_sub(first).min(GROUP_BLOCKS) as u32;
    geometry.format_runs().map(move |(start, len)| {
        let (start, end) = (clamp(start), clamp(start + len));
        (start, end - start)
    })
}

impl Alloc {
    /// Makes the allocator of a new image, in which only the format's blocks are owned. It is ready
    /// for use; its first checkpoint writes every bitmap.
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
        // Copy 1 is marked current, so that the first checkpoint writes copy 0. The checkpoint
        // computes the other fields before it writes them.
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
            layout: Mutex::new(Rank::Leaf, Arc::new(geometry.clone())),
            total: AtomicU64::new(geometry.total_blocks),
            maps: AtomicU64::new(geometry.moved_maps().start)..AtomicU64::new(geometry.moved_maps().end),
            geometry: geometry.clone(),
            cells: Cells::new(cells.collect()),
            fence: AtomicU64::new(u64::MAX),
            added: Mutex::new(Rank::Leaf, Vec::new()),
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
            claims: Mutex::new(Rank::Leaf, 0),
            unclaimed: Condvar::new(),
        }
    }

    /// Runs `f` on a group under its lock. Then updates the unlocked copies of its fields, and adds
    /// the group to the dirty list if it became dirty.
    fn with_group<R>(&self, g: u64, f: impl FnOnce(&mut Group) -> R) -> R {
        let cell = self.cells.get(g);
        let mut group = cell.lock();
        let was_dirty = group.dirty;
        let out = f(&mut group);
        if group.dirty && !was_dirty {
            self.dirty.lock().push(g);
        }
        cell.publish(&group);
        out
    }

    /// Returns the number of blocks of the image.
    pub fn total(&self) -> u64 {
        self.total.load(SeqCst)
    }

    /// Returns the geometry that the next checkpoint writes.
    pub fn geometry(&self) -> Arc<Geometry> {
        self.layout.lock().clone()
    }

    /// Returns group and bit of a goal, clamped to the data area.
    fn locate(&self, block: BlockNo) -> (u64, u32) {
        let block = block.0.clamp(self.geometry.data_start.0, self.total() - 1);
        (block / GROUP_BLOCKS, (block % GROUP_BLOCKS) as u32)
    }

    /// Splits an extent by group. Extents come from records, so an extent outside of the data area
    /// is corruption.
    fn pieces(&self, extent: Extent) -> Result<impl Iterator<Item = (u64, u32, u32)> + use<>> {
        let end = extent.start.0.checked_add(extent.blocks);
        if extent.blocks == 0
            || extent.start < self.geometry.data_start
            || end.is_none_or(|end| end > self.total())
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

    /// Does what [`Alloc::pieces`] does, for an extent in a record: the extent must not overlap
    /// moved allocation maps or copies of the superblock either. The caller is inside the epoch
    /// guard or in replay, so maps and copies do not move.
    fn named_pieces(&self, extent: Extent) -> Result<impl Iterator<Item = (u64, u32, u32)> + use<>> {
        let pieces = self.pieces(extent)?;
        let maps = self.maps.start.load(SeqCst)..self.maps.end.load(SeqCst);
        if extent.start.0 < maps.end && maps.start < extent.end().0 {
            let what = format!("a record names {} blocks from there, in the allocation maps", extent.blocks);
            return Err(Error::corrupt(CorruptKind::Log, extent.start, what));
        }
        if self.has_copy(extent.start.0, extent.end().0) {
            let what =
                format!("a record names {} blocks from there, over a superblock's copy", extent.blocks);
            return Err(Error::corrupt(CorruptKind::Log, extent.start, what));
        }
        Ok(pieces)
    }

    /// Returns whether a copy of the superblock lies in the blocks `[start, end)`.
    fn has_copy(&self, start: u64, end: u64) -> bool {
        let g = &self.geometry;
        g.has_copies() && overlap(start, end, g.data_start.0, self.total())
    }

    /// Adds `blocks` to `available` after they became free. The pool takes its share first.
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
            total: self.total() - self.geometry.data_start.0,
            free: available + reserved,
            owned_free: self.owned_free.load(SeqCst).saturating_sub(self.bad_unowned()),
            reserved,
            available: self.available_data(),
            available_soon: self.available_soon(),
            pending_data: self.pending.blocks(),
            pending_nodes: pool.deferred,
            pool: pool.slots,
            promised_nodes: pool.promised,
            protected: self.pool.protected(),
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
