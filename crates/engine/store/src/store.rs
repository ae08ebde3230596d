//! The open image: its parts, and what can be read of them.

use crate::checkpoint::control::{CheckpointClient, Control};
use crate::checkpoint::requests::Requests;
use crate::flusher::{Flusher, WriteSeq};
use crate::forest::Forest;
use crate::guard::EpochGuard;
use crate::residents::{ResidentRange, Residents};
use crate::stats::{ReplaySummary, StoreStats};
use kedge_alloc::Alloc;
use kedge_base::atomic::{AtomicBool, AtomicU64, Ordering};
use kedge_base::lock::Mutex;
use kedge_base::{Clock, Epoch, Error, Generation, Ino, Lsn, Result};
use kedge_btree::Tree;
use kedge_device::{Device, TrackedDevice};
use kedge_format::Key;
use kedge_format::superblock::{Geometry, Losses};
use kedge_log::{ForceCause, Log};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock, Weak};

/// An open image; see the crate's head.
pub struct Store {
    pub(crate) device: Arc<dyn Device>,
    /// The same device.
    pub(crate) tracked: Arc<TrackedDevice>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) geometry: Geometry,
    pub(crate) read_only: bool,
    pub(crate) forest: Forest,
    pub(crate) alloc: Arc<Alloc>,
    pub(crate) log: Arc<Log>,
    pub(crate) flusher: Arc<Flusher>,
    /// Shared by commits, exclusive for a cut.
    pub(crate) guard: Arc<EpochGuard>,
    pub(crate) residents: Residents,
    /// The present generation: that of the last cut plus one. Nodes that the trees take now belong
    /// to it.
    pub(crate) generation: Arc<AtomicU64>,
    pub(crate) epoch: Epoch,
    pub(crate) checkpoint: Control,
    pub(crate) client: OnceLock<Weak<dyn CheckpointClient>>,
    pub(crate) stats: StoreStats,
    pub(crate) dirty_limit: AtomicU64,
    pub(crate) summary: ReplaySummary,
    /// Losses that are written into each superblock from now on.
    pub(crate) losses: Mutex<Option<Losses>>,
    /// Whether a durable superblock allows files to share blocks.
    pub(crate) clones: AtomicBool,
    /// The right to change counts of shared blocks: see [`Store::lock_counts`].
    pub(crate) counts: Mutex<()>,
    /// Whether the last checkpoint has been made, after which no other follows. Set under the lock
    /// that admits one checkpoint at a time.
    pub(crate) closed: AtomicBool,
    /// Requests to the background checkpoint thread.
    pub(crate) requests: Arc<Requests>,
}

impl Store {
    /// The geometry with which the image was opened. A resize changes its size and the location of
    /// the allocation maps later: see [`Store::geometry_now`].
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The geometry that the next checkpoint writes.
    pub fn geometry_now(&self) -> Arc<Geometry> {
        self.alloc.geometry()
    }

    /// Number of blocks of the image, now.
    pub fn total_blocks(&self) -> u64 {
        self.alloc.total()
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The device, to read and write file data.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// What recovery found and did when the store was opened.
    pub fn replay_summary(&self) -> &ReplaySummary {
        &self.summary
    }

    // ----- reading the tree -----

    pub fn get(&self, key: Key) -> Result<Option<Vec<u8>>> {
        self.forest.get(key)
    }

    pub fn get_with<R>(&self, key: Key, read: impl FnMut(&[u8]) -> R) -> Result<Option<R>> {
        self.forest.get_with(key, read)
    }

    /// The last item at or before `key`.
    pub fn prev(&self, key: Key) -> Result<Option<(Key, Vec<u8>)>> {
        self.forest.prev(key)
    }

    /// Passes the items in `[from, to]` to `visit` until it breaks. `visit` runs without a latch.
    pub fn scan(
        &self,
        from: Key,
        to: Key,
        visit: &mut dyn FnMut(Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.forest.scan(from, to, visit)
    }

    // ----- the log -----

    pub fn head_lsn(&self) -> Lsn {
        self.log.head_lsn()
    }

    pub fn durable_lsn(&self) -> Lsn {
        self.log.durable_lsn()
    }

    /// The LSN of the last checkpoint's cut since the image was opened; zero if there was no
    /// checkpoint. The checkpoint contains all records below. The log's tail may be older, because
    /// of log-resident data.
    pub fn checkpoint_lsn(&self) -> Lsn {
        Lsn(self.checkpoint.durable_lsn.load(Ordering::Acquire))
    }

    /// Makes every record below `upto` durable.
    pub fn force(&self, upto: Lsn, cause: ForceCause) -> Result<()> {
        self.log.force(upto, cause)
    }

    pub fn force_async(&self, upto: Lsn, cause: ForceCause, done: Box<dyn FnOnce(Result<()>) + Send>) {
        self.log.force_async(upto, cause, done);
    }

    /// Records that a data write has completed; returns the number for [`Store::flush_data`].
    pub fn note_data_write(&self) -> WriteSeq {
        self.flusher.note_write()
    }

    /// Makes the data writes up to `seq` durable, with a device flush that is shared by all callers
    /// that wait for one.
    pub fn flush_data(&self, seq: WriteSeq) -> Result<()> {
        self.check_alive()?;
        self.flusher.flush(seq).inspect_err(|e| self.shutdown(e))
    }

    pub fn data_flushed(&self, seq: WriteSeq) -> bool {
        self.flusher.flushed(seq)
    }

    /// The number of the newest completed data write.
    pub fn data_write_seq(&self) -> WriteSeq {
        self.flusher.newest()
    }

    /// Number of device flushes for data, and of requests that shared one.
    pub fn flush_counts(&self) -> (u64, u64) {
        (self.flusher.flushes.get(), self.flusher.shared.get())
    }

    // ----- log-resident data -----

    pub fn resident_ranges(&self, ino: Ino) -> Vec<ResidentRange> {
        self.residents.ranges(ino)
    }

    /// Whether any byte of the range has its newest durable copy in the log.
    pub fn is_resident(&self, ino: Ino, offset: u64, len: u64) -> bool {
        self.residents.overlaps(ino, offset, len)
    }

    /// Inodes with log-resident data, by the age of their oldest data, oldest first.
    pub fn resident_inodes(&self) -> Vec<Ino> {
        self.residents.inodes_by_age()
    }

    // ----- inode numbers -----

    /// Takes `count` inode numbers in the tree of `dir`. No inode ever had them. The numbers
    /// suffice for the life of any image; only in a forged image can they run out. The call then
    /// fails, because recovery would refuse higher numbers.
    pub fn take_inos(&self, dir: Ino, count: u64) -> Result<Ino> {
        let forked = self.forest.is_forked();
        let max = if forked { 1 << Ino::LOCAL_BITS } else { kedge_format::INO_MAX };
        let member = self.forest.member(self.forest.tree_of(dir))?;
        let next = &member.counters.next_ino;
        let taken = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |first| {
            first.checked_add(count).filter(|end| *end <= max)
        });
        let first = taken.map(Ino).map_err(|_| Error::NoSpace)?;
        Ok(if forked { first.in_tree(member.number) } else { first })
    }

    pub fn inode_count(&self) -> u64 {
        self.forest.inode_count()
    }

    // ----- losses -----

    /// Records that the data of `files` files could not be written and is given up. Each superblock
    /// written from now on names the losses, until a repair has reported them. The caller makes
    /// this call before the checkpoint that closes the image.
    pub fn note_losses(&self, files: u64) {
        if files == 0 {
            return;
        }
        let mut losses = self.losses.lock();
        let before = losses.unwrap_or(Losses { files: 0, since: self.clock.now().sec });
        *losses = Some(Losses { files: before.files.saturating_add(files), ..before });
    }

    /// The data that was given up since the last repair, in this mount or an earlier one.
    pub fn losses(&self) -> Option<Losses> {
        *self.losses.lock()
    }

    // ----- shutdown -----

    /// Shuts the store down for good: every later change is refused.
    pub fn shutdown(&self, reason: &Error) {
        tracing::error!("shutting down: {reason}");
        self.log.shutdown(reason);
        self.checkpoint.hurry.call();
    }

    /// Whether a failed durable write of file data may have lost other writes, of whatever kind.
    /// The caller then shuts the store down. Otherwise only its own bytes are not durable.
    pub fn has_lost_writes(&self) -> bool {
        self.tracked.has_lost_writes()
    }

    /// Shuts the store down if `e` is the error of a flush. A flush that was meant for something
    /// else covers file data, too, and the next one may succeed although that data was dropped.
    pub(crate) fn end_if_not_flushed(&self, e: &Error) {
        if e.is_failed_flush() {
            self.shutdown(e);
        }
    }

    pub fn check_alive(&self) -> Result<()> {
        match self.log.shutdown_reason() {
            // The store never recovers, so the error must not look like a full device, after which
            // a caller would retry.
            Some(reason) if reason.is_host_full() => Err(Error::Shutdown(reason.to_string().into())),
            Some(reason) => Err(reason),
            None if self.closed.load(Ordering::Relaxed) => Err(Error::Shutdown("unmounted".into())),
            None => Ok(()),
        }
    }

    pub fn stats(&self) -> &StoreStats {
        &self.stats
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    pub fn alloc(&self) -> &Alloc {
        &self.alloc
    }

    /// Passes the first tree to `look` and returns its result.
    pub fn with_tree<R>(&self, look: impl FnOnce(&Tree) -> R) -> R {
        look(&self.forest.first().tree)
    }

    /// The size of the node cache, in bytes.
    pub fn node_cache_bytes(&self) -> u64 {
        self.forest.cache_bytes()
    }

    /// Memory of the nodes of all trees, in bytes: of all nodes, and of the dirty ones, which
    /// cannot be evicted.
    pub fn node_bytes(&self) -> (usize, usize) {
        (self.forest.cached_bytes(), self.forest.dirty_bytes())
    }

    pub fn generation(&self) -> Generation {
        Generation(self.generation.load(Ordering::Relaxed))
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.requests.stop();
        self.log.stop();
    }
}
