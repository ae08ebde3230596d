//! Blocks for file data: promises, placement, and frees that wait until the log is durable.

use crate::bitmap::BITS;
use crate::group::CONTINUE_MIN;
use crate::{Alloc, DataReservation};
use kedge_base::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::trace::{self, Event};
use kedge_base::{BlockNo, Error, Extent, Ino, Lsn, Result};
use kedge_format::alloc::GROUP_BLOCKS;
use kedge_format::node::NODE_BLOCKS;
use std::collections::VecDeque;

/// Number of blocks of a good run, at which a search ends (4 MiB).
const GOOD_RUN: u64 = 1024;
/// Number of groups that are searched for a good run before a short run near the goal is taken.
const GOOD_GROUPS: u32 = 4;
/// Number of attempts of a data reservation to take blocks from the node pool. After these it
/// fails, because other threads took the blocks first each time.
const SHRINK_TRIES: u32 = 16;
/// Number of directories with neighbouring inode numbers that share a group. A tree of small
/// directories is then written close together.
const DIRS_TOGETHER: u64 = 64;
/// The limit of blocks in quarantine: a fraction of the data area, 1 / `BAD_PART`, but not less
/// than `BAD_MIN` blocks.
const BAD_PART: u64 = 64;
const BAD_MIN: u64 = 256;
/// Number of groups that are tried for a directory before a nearly full group is taken.
const DIR_GROUPS: u64 = 16;

/// Frees of data whose records are not durable, by the end LSN of the record.
pub(crate) struct Pending {
    /// The frees in ascending order. Threads free nearly in the order of their records, so
    /// inserting a late entry near the end of a queue is cheaper than keeping a tree.
    by_lsn: Mutex<VecDeque<(Lsn, Extent)>>,
    /// Lowest LSN in the queue; `u64::MAX` when the queue is empty. If this is higher than the
    /// durable LSN, `durable` returns without taking the lock.
    oldest: AtomicU64,
    durable: AtomicU64,
    blocks: AtomicU64,
}

impl Default for Pending {
    fn default() -> Pending {
        Pending {
            by_lsn: Mutex::new(Rank::Leaf, VecDeque::new()),
            oldest: AtomicU64::new(u64::MAX),
            durable: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
        }
    }
}

impl Pending {
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(SeqCst)
    }

    fn push(&self, extent: Extent, end_lsn: Lsn) {
        let mut queue = self.by_lsn.lock();
        self.blocks.fetch_add(extent.blocks, SeqCst);
        let at = queue.iter().rposition(|(lsn, _)| *lsn <= end_lsn).map_or(0, |i| i + 1);
        queue.insert(at, (end_lsn, extent));
        self.oldest.fetch_min(end_lsn.0, SeqCst);
    }

    /// Returns all frees in the queue.
    pub(crate) fn extents(&self) -> Vec<Extent> {
        self.by_lsn.lock().iter().map(|(_, extent)| *extent).collect()
    }

    /// Removes and returns the frees that are durable at `lsn` or at the highest LSN passed so far.
    ///
    /// With a concurrent `push`, either this thread sees the new `oldest`, or the pushing thread
    /// sees the new `durable`, which it checks after its push. So no free stays in the queue when
    /// the log becomes idle.
    fn due(&self, lsn: Lsn) -> Vec<Extent> {
        let lsn = self.durable.fetch_max(lsn.0, SeqCst).max(lsn.0);
        if self.oldest.load(SeqCst) > lsn {
            return Vec::new();
        }
        let mut queue = self.by_lsn.lock();
        let count = queue.partition_point(|(at, _)| at.0 <= lsn);
        let due = queue.drain(..count).map(|(_, extent)| extent).collect();
        self.oldest.store(queue.front().map_or(u64::MAX, |(at, _)| at.0), SeqCst);
        due
    }
}

impl Alloc {
    fn assert_live(&self) {
        assert!(!self.replaying.load(SeqCst), "a loaded allocator serves data only after replay_done");
    }

    /// Promises `blocks` blocks for data that is placed later. Fails with [`Error::NoSpace`].
    pub fn reserve_data(&self, blocks: u64) -> Result<DataReservation> {
        self.assert_live();
        for _ in 0..SHRINK_TRIES {
            self.top_up();
            if self.space.take(blocks) {
                return Ok(DataReservation::taken(self.space.clone(), blocks));
            }
            if !self.shrink_pool(blocks.saturating_sub(self.space.available())) {
                break;
            }
        }
        Err(Error::NoSpace)
    }

    /// Returns the number of blocks that [`Alloc::reserve_data`] would grant now.
    pub fn available_data(&self) -> u64 {
        let pool = self.pool.counts();
        let lack = if self.refill_stuck.load(SeqCst) { 0 } else { pool.lack * NODE_BLOCKS };
        (self.space.available() + pool.surplus * NODE_BLOCKS).saturating_sub(lack)
    }

    /// Returns what [`Alloc::available_data`] would be if all records, and then a checkpoint, were
    /// durable, and no operation and no discard were running.
    pub fn available_soon(&self) -> u64 {
        let lack = if self.refill_stuck.load(SeqCst) { 0 } else { self.pool.counts().lack * NODE_BLOCKS };
        let pool = self.pool.surplus_soon() * NODE_BLOCKS;
        (self.space.available() + pool + self.pending.blocks() + self.claimed()).saturating_sub(lack)
    }

    /// Returns what [`Alloc::available_data`] would be if a checkpoint with its cut now were
    /// durable.
    pub fn available_after_checkpoint(&self) -> u64 {
        self.space.available() + self.pool.surplus_after_checkpoint() * NODE_BLOCKS
    }

    /// Places up to `want` blocks as one run inside one group: at `goal` if that is free, otherwise
    /// near it.
    ///
    /// Takes blocks from `reservation` first and then from unpromised space. Without a reservation,
    /// or with an empty one, the call may fail with NoSpace; otherwise it places at least one
    /// block. The run is busy and belongs to the caller until `apply_alloc` or `release_data`.
    pub fn alloc_data(
        &self,
        goal: BlockNo,
        want: u64,
        reservation: Option<&mut DataReservation>,
    ) -> Result<Extent> {
        self.assert_live();
        assert!(want > 0, "asks for a block at least");
        let want = want.min(GROUP_BLOCKS);
        let promised = reservation.as_ref().map_or(0, |r| r.blocks().min(want));
        let mut extra = 0;
        if promised < want {
            self.top_up();
            extra = self.space.take_up_to(want - promised);
            if promised + extra == 0 && self.shrink_pool(1) {
                extra = self.space.take_up_to(want);
            }
            if promised + extra == 0 {
                return Err(Error::NoSpace);
            }
        }
        let extent = self.place(goal, (promised + extra) as u32);
        trace::note(|| Event::Placed(extent));
        let kept = extent.blocks.min(promised);
        if let Some(r) = reservation {
            r.consume(kept);
        }
        self.space.give(extra - (extent.blocks - kept));
        Ok(extent)
    }

    /// Frees a run, or a part of one, that no record has allocated.
    pub fn release_data(&self, extent: Extent) {
        trace::note(|| Event::Unplaced(extent));
        self.freed(self.release(extent));
    }

    /// Does what [`Alloc::release_data`] does, for blocks that were placed from a promise, and
    /// renews the promise; no other caller can take the blocks in between. Blocks beyond the limit
    /// of a shrink do not become free, so other free blocks replace them. Returns `None`, without a
    /// promise, if there are not enough.
    pub fn unplace_data(&self, extent: Extent) -> Option<DataReservation> {
        trace::note(|| Event::Unplaced(extent));
        let freed = self.release(extent);
        let all = freed + self.space.take_up_to(extent.blocks - freed);
        if all < extent.blocks {
            self.freed(all);
            return None;
        }
        Some(DataReservation::taken(self.space.clone(), all))
    }

    /// Puts blocks whose writes failed into quarantine. They keep their owner; once they are free,
    /// they are not allocated again while the image is open. The caller must own the blocks,
    /// through placement or an extent. Returns false if too many blocks are in quarantine already,
    /// which means that the device as a whole is faulty.
    pub fn quarantine(&self, extent: Extent) -> bool {
        let limit = ((self.total() - self.geometry.data_start.0) / BAD_PART).max(BAD_MIN);
        let mut bad = self.bad.lock();
        if bad.len() as u64 + extent.blocks > limit {
            return false;
        }
        bad.extend(extent.start.0..extent.end().0);
        self.bad_count.store(bad.len() as u64, SeqCst);
        true
    }

    /// Returns the number of blocks in quarantine.
    pub fn bad_blocks(&self) -> u64 {
        self.bad_count.load(SeqCst)
    }

    /// Returns the number of blocks in quarantine that no record owns. The bitmaps mark these
    /// blocks free, but they are not available.
    pub(crate) fn bad_unowned(&self) -> u64 {
        if self.bad_blocks() == 0 {
            return 0;
        }
        let bad: Vec<u64> = self.bad.lock().iter().copied().collect();
        let owned = |block: &u64| {
            let bit = (block % GROUP_BLOCKS) as u32;
            self.with_group(block / GROUP_BLOCKS, |group| group.owned.count_set(bit, 1) == 1)
        };
        bad.iter().filter(|block| !owned(block)).count() as u64
    }

    /// Frees busy blocks that nothing uses any more, except those in quarantine and those beyond
    /// the limit of a shrink. Returns how many became free.
    fn release(&self, extent: Extent) -> u64 {
        if self.bad_blocks() == 0 {
            return self.release_run(extent);
        }
        let bad: Vec<u64> = self.bad.lock().range(extent.start.0..extent.end().0).copied().collect();
        let (mut at, mut released) = (extent.start.0, 0);
        for end in bad.into_iter().chain([extent.end().0]) {
            if at < end {
                released += self.release_run(Extent::new(BlockNo(at), end - at));
            }
            at = end + 1;
        }
        released
    }

    fn release_run(&self, extent: Extent) -> u64 {
        let pieces = self.pieces(extent).expect("checked when it was placed or freed");
        pieces.map(|(g, bit, len)| self.with_group(g, |group| group.release(bit, len)) as u64).sum()
    }

    /// Marks the blocks owned, for a record that allocates them.
    pub fn apply_alloc(&self, extent: Extent) -> Result<()> {
        let replay = self.replaying.load(SeqCst);
        for (g, bit, len) in self.named_pieces(extent)? {
            let fresh = self.with_group(g, |group| group.apply_alloc(bit, len, replay))?;
            self.owned_free.fetch_sub(len as u64, SeqCst);
            self.take_in_replay(fresh as u64)?;
        }
        Ok(())
    }

    /// Frees the blocks for a record that ends at `end_lsn`. They are no longer owned, but stay
    /// busy until the record is durable.
    pub fn apply_free(&self, extent: Extent, end_lsn: Lsn) -> Result<()> {
        let replay = self.replaying.load(SeqCst);
        for (g, bit, len) in self.named_pieces(extent)? {
            let freed = self.with_group(g, |group| {
                group.apply_free(bit, len)?;
                Ok(if replay { group.release_unheld(bit, len) } else { 0 })
            })?;
            self.owned_free.fetch_add(len as u64, SeqCst);
            self.freed(freed as u64);
        }
        if !replay {
            // Broken on purpose: the record counts as durable at once.
            let end_lsn = if broken::is(Variant::ReuseFreedBlock) { Lsn(0) } else { end_lsn };
            self.pending.push(extent, end_lsn);
            self.release_due(Lsn(0));
        }
        Ok(())
    }

    /// Called when the log is durable up to `lsn`: makes data blocks reusable that were freed by
    /// records ending at or below `lsn`.
    pub fn durable(&self, lsn: Lsn) {
        self.release_due(lsn);
    }

    fn release_due(&self, lsn: Lsn) {
        let due = self.pending.due(lsn);
        let blocks = due.iter().map(|extent| extent.blocks).sum();
        let released = due.into_iter().map(|extent| self.release(extent)).sum();
        self.pending.blocks.fetch_sub(blocks, SeqCst);
        self.freed(released);
    }

    /// Returns where the search for a file's first blocks starts. Directories are spread over the
    /// groups; the files of one directory are placed together, one after another.
    pub fn goal_for(&self, ino: Ino, dir: Ino) -> BlockNo {
        let (first, last) = (self.locate(BlockNo(0)).0, self.cells.len() - 1);
        let count = last - first + 1;
        let key = if dir.0 != 0 { dir.0 } else { ino.0 } / DIRS_TOGETHER;
        // Fibonacci hashing maps neighbouring keys to distant groups, so that directories do not
        // grow into each other.
        let home = ((key.wrapping_mul(0x9E37_79B9_7F4A_7C15) as u128 * count as u128) >> 64) as u64;
        let roomy = |g: &u64| self.cells.get(*g).free() >= BITS / 8;
        let g = (0..count.min(DIR_GROUPS)).map(|i| first + (home + i) % count).find(roomy);
        let g = g.unwrap_or(first + home);
        BlockNo(g * GROUP_BLOCKS + self.cells.get(g).cursor() as u64)
    }

    /// Finds a run of up to `want` blocks. The caller has taken them from the space, so a run
    /// exists.
    fn place(&self, goal: BlockNo, want: u32) -> Extent {
        let (home, bit) = self.locate(goal);
        let good = if self.cells.len() == 1 { 1 } else { want.min(GOOD_RUN as u32) };
        if let Some(extent) = self.place_in(home, Some(bit), want, good) {
            return extent;
        }
        let count = self.cells.len();
        let rotor = self.rotor.load(Relaxed);
        let others = || (0..count).map(|i| (rotor + i) % count).filter(|&g| g != home);
        let mut tries = GOOD_GROUPS;
        for g in others() {
            if tries == 0 {
                break;
            }
            if self.cells.get(g).run_max() < good {
                continue;
            }
            tries -= 1;
            if let Some(extent) = self.place_in(g, None, want, good) {
                self.rotor.store(g, Relaxed);
                return extent;
            }
        }
        if let Some(extent) = self.place_in(home, Some(bit), want, 1) {
            return extent;
        }
        for g in others() {
            if self.cells.get(g).free() == 0 {
                continue;
            }
            if let Some(extent) = self.place_in(g, None, want, 1) {
                self.rotor.store(g, Relaxed);
                return extent;
            }
        }
        self.place_under_all_locks(want)
    }

    /// Takes a run of at least `min` and at most `want` blocks in group `g`, at or after `from` or
    /// the group's cursor. A run that starts exactly at `from` may be shorter than `min` if it is
    /// long enough to continue a file.
    fn place_in(&self, g: u64, from: Option<u32>, want: u32, min: u32) -> Option<Extent> {
        if self.cells.get(g).free() == 0 {
            return None;
        }
        self.with_group(g, |group| {
            let (start, len) = group.find_run(from.unwrap_or(group.cursor()), want)?;
            if len < min && (Some(start) != from || len < CONTINUE_MIN) {
                return None;
            }
            group.take(start, len);
            Some(Extent::new(BlockNo(g * GROUP_BLOCKS + start as u64), len as u64))
        })
    }

    /// Finds a run while holding the locks of all groups. The search in `place` can miss a promised
    /// block: the block may be freed in a group that was already searched, while another thread
    /// takes a block further on. A repeated search could miss again, without bound. While all locks
    /// are held, nothing changes.
    fn place_under_all_locks(&self, want: u32) -> Extent {
        let mut passed = Vec::with_capacity(self.cells.len() as usize);
        for (g, cell) in self.cells.iter().enumerate() {
            let mut group = cell.lock();
            let from = group.cursor();
            if let Some((start, len)) = group.find_run(from, want) {
                group.take(start, len);
                cell.publish(&group);
                return Extent::new(BlockNo(g as u64 * GROUP_BLOCKS + start as u64), len as u64);
            }
            passed.push(group);
        }
        panic!("promised blocks are free somewhere");
    }
}
