//! The store joins tree, log and allocator into one state that changes atomically and survives a
//! crash.
//!
//! # Life of an operation
//! [`Store::begin`] reserves log bytes and tree nodes; only here may an operation wait for space.
//! [`Handle::commit`] enters the epoch guard, appends the record, which gives it its LSN, applies
//! it, and leaves the guard. Before the guard it reads the leaves that the record changes, if they
//! may have been evicted. Under the guard it does no IO, with the exception that
//! docs/ARCHITECTURE.md, "Lock order", names. [`Store::force`] makes the record durable.
//!
//! # Invariants
//! 1. The tree, the owned bitmaps, the residents and the counters are a function of the records
//!    appended so far: only `apply` changes them, live and in replay. The one exception is the next
//!    inode number: [`Store::take_inos`] hands numbers out before a record names them.
//! 2. A record is appended and applied inside one epoch guard, and a checkpoint's cut takes the
//!    guard exclusively. So the tree at the cut holds exactly the records below it. A log write
//!    waits until all commits that were inside the guard have left. A commit that cannot apply its
//!    record shuts the log down before it leaves. So a record that was not applied is never
//!    durable.
//! 3. Two records that touch one inode are appended in the order in which they are applied: the
//!    caller holds the inode's meta lock across `commit`.
//! 4. A checkpoint's superblock slot is written only when the log is durable up to the cut and the
//!    nodes and bitmaps are flushed.
//! 5. The tail never passes the oldest log-resident range.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod apply;
mod checkpoint;
mod discard;
mod flusher;
mod format;
mod gate;
mod handle;
mod need;
mod overlay;
mod recovery;
mod residents;
mod space;
mod stats;
#[cfg(test)]
mod test_images;

pub use checkpoint::{CheckpointCause, CheckpointClient, check_async_percent};
pub use discard::Discarded;
pub use flusher::WriteSeq;
pub use format::{FormatParams, format};
pub use handle::Handle;
pub use kedge_alloc::{DataReservation, Which};
pub use kedge_btree::{LatchKind, TreeLock, histogram_text};
pub use kedge_log::{ForceCause, RecordLsn};
pub use need::{Need, PROMISE_PER_PIECE};

/// Bytes of the longest record for which a checkpoint finds space in a full log.
pub const CHECKPOINT_RECORD_MAX: u64 = kedge_log::CHECKPOINT_BYTES - kedge_log::RECORD_OVERHEAD;
pub use recovery::{OpenOptions, ReplaySummary, count_log_writes, read_superblock};
pub use residents::ResidentRange;
pub use stats::StoreStats;

use handle::{NODE_WAIT, NODE_WAITS};
use kedge_alloc::{Alloc, Waited};
use kedge_base::lock::{Condvar, Mutex, Rank};
use kedge_base::{BlockNo, Clock, Epoch, Error, Extent, Generation, Ino, Lsn, Result};
use kedge_btree::Tree;
use kedge_device::Device;
use kedge_format::Key;
use kedge_format::superblock::Geometry;
pub use kedge_format::superblock::Losses;
use kedge_log::Log;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

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

/// The counters that a checkpoint records. `apply` changes them; [`Store::take_inos`] takes numbers
/// from `next_ino` ahead of it.
#[derive(Debug)]
pub(crate) struct Counters {
    pub next_ino: AtomicU64,
    pub inodes: AtomicU64,
}

/// An open image; see the module's head.
pub struct Store {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) geometry: Geometry,
    pub(crate) read_only: bool,
    pub(crate) tree: Tree,
    pub(crate) alloc: Arc<Alloc>,
    pub(crate) log: Arc<Log>,
    pub(crate) flusher: Arc<flusher::Flusher>,
    /// The epoch guard.
    pub(crate) gate: Arc<gate::Gate>,
    pub(crate) residents: residents::Residents,
    pub(crate) counters: Counters,
    /// Generation in which the tree changes now: that of the last cut plus one.
    pub(crate) generation: Arc<AtomicU64>,
    pub(crate) epoch: Epoch,
    pub(crate) checkpoint: checkpoint::Control,
    pub(crate) client: OnceLock<Weak<dyn CheckpointClient>>,
    pub(crate) stats: StoreStats,
    pub(crate) dirty_limit: AtomicU64,
    pub(crate) summary: ReplaySummary,
    /// The losses that each superblock written from now on records.
    pub(crate) losses: Mutex<Option<Losses>>,
    /// Set by the last checkpoint, under the lock that makes checkpoints single.
    pub(crate) closed: AtomicBool,
    /// Wakes the background checkpoint thread.
    pub(crate) wake: Arc<Wake>,
}

/// A flag with a condition variable.
pub(crate) struct Wake {
    pub flag: Mutex<WakeState>,
    pub cond: Condvar,
}

#[derive(Default)]
pub(crate) struct WakeState {
    pub wanted: Option<CheckpointCause>,
    pub stop: bool,
}

impl Wake {
    pub(crate) fn new() -> Wake {
        Wake { flag: Mutex::new(Rank::Leaf, WakeState::default()), cond: Condvar::new() }
    }
}

impl Store {
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The device, for file data.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The work of recovery when the store was opened.
    pub fn replay_summary(&self) -> &ReplaySummary {
        &self.summary
    }

    // ----- reading the tree -----

    pub fn get(&self, key: Key) -> Result<Option<Vec<u8>>> {
        self.tree.get(key)
    }

    pub fn get_with<R>(&self, key: Key, read: impl FnMut(&[u8]) -> R) -> Result<Option<R>> {
        self.tree.get_with(key, read)
    }

    /// The last item at or before `key`.
    pub fn prev(&self, key: Key) -> Result<Option<(Key, Vec<u8>)>> {
        self.tree.prev_at_or_before(key)
    }

    /// Passes the items in `[from, to]` to `visit` until it breaks. `visit` runs without a latch.
    pub fn scan(
        &self,
        from: Key,
        to: Key,
        visit: &mut dyn FnMut(Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.tree.scan(from, to, visit)
    }

    /// Levels of the tree, the leaf included.
    pub fn tree_height(&self) -> u32 {
        self.tree.height()
    }

    // ----- blocks for data -----

    /// Promises blocks. On a full image it first forces the log if freed blocks wait for that, and
    /// then makes a checkpoint if that would free enough. A full image on which neither helps fails
    /// at once. Must not be called with a handle, or with a lock that the holder of a handle may
    /// need, because it waits for the handles of others.
    pub fn reserve_data(&self, blocks: u64) -> Result<DataReservation> {
        if kedge_base::broken::refusal::should_fail() {
            return Err(Error::NoSpace);
        }
        let mut waits = 0;
        while waits < NODE_WAITS {
            match self.reserve_now(blocks) {
                // Some free blocks are being discarded and will be returned in a moment.
                Err(Error::NoSpace) if self.alloc.wait_for_claims() => waits += 1,
                // Running operations were promised more nodes than they will use.
                Err(Error::NoSpace) if self.alloc.available_soon() >= blocks => {
                    self.stats.node_stalls.inc();
                    match self.alloc.wait_for_nodes(NODE_WAIT) {
                        Waited::Returned => {}
                        Waited::TimedOut => waits += 1,
                        Waited::NothingHeld => break,
                    }
                }
                answer => return answer,
            }
        }
        self.reserve_now(blocks)
    }

    /// Promises fewer than `blocks` blocks, after the whole number was refused: as many as there
    /// are. `None` if there are none.
    pub fn reserve_some_data(&self, blocks: u64) -> Option<DataReservation> {
        let mut some = self.alloc.available_data().min(blocks);
        while some > 0 {
            match self.alloc.reserve_data(some) {
                Ok(promise) => return Some(promise),
                // Other threads have taken a part meanwhile.
                Err(_) => some /= 2,
            }
        }
        None
    }

    fn reserve_now(&self, blocks: u64) -> Result<DataReservation> {
        self.alloc.durable(self.log.durable_lsn());
        let refused = match self.alloc.reserve_data(blocks) {
            Err(Error::NoSpace) => Error::NoSpace,
            other => return other,
        };
        if self.alloc.free_counts().pending_data > 0 {
            self.force(Lsn(u64::MAX), ForceCause::Space)?;
            self.alloc.durable(self.log.durable_lsn());
        }
        match self.alloc.reserve_data(blocks) {
            Err(Error::NoSpace) if self.alloc.available_after_checkpoint() >= blocks => {
                self.checkpoint(CheckpointCause::NodeSpace)?;
                self.alloc.reserve_data(blocks)
            }
            Err(Error::NoSpace) => Err(refused),
            other => other,
        }
    }

    /// Allocates a run of at most `want` blocks near `goal` for IO. The blocks have no owner until
    /// a record names them.
    pub fn alloc_data(&self, goal: BlockNo, want: u64, from: Option<&mut DataReservation>) -> Result<Extent> {
        self.alloc.alloc_data(goal, want, from)
    }

    /// Frees blocks that no record has named.
    pub fn release_data(&self, extent: Extent) {
        self.alloc.release_data(extent);
    }

    pub fn data_goal(&self, ino: Ino, dir: Ino) -> BlockNo {
        self.alloc.goal_for(ino, dir)
    }

    // ----- the log -----

    pub fn head_lsn(&self) -> Lsn {
        self.log.head_lsn()
    }

    pub fn durable_lsn(&self) -> Lsn {
        self.log.durable_lsn()
    }

    /// The cut of the last checkpoint since the image was opened, which contains all records below;
    /// zero if there was none. The log's tail may be older, because of log-resident data.
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

    /// The newest data write.
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

    /// Takes `count` inode numbers that no inode ever had. The numbers suffice for the life of any
    /// image. Only a forged image is near their end; it gets no number that recovery would refuse.
    pub fn take_inos(&self, count: u64) -> Result<Ino> {
        let next = &self.counters.next_ino;
        let taken = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |first| {
            first.checked_add(count).filter(|end| *end <= kedge_format::INO_MAX)
        });
        taken.map(Ino).map_err(|_| Error::NoSpace)
    }

    pub fn inode_count(&self) -> u64 {
        self.counters.inodes.load(Ordering::Relaxed)
    }

    // ----- losses -----

    /// Records that the data of `files` files could not be written and is given up. Each superblock
    /// written from now on names the losses, until a repair has reported them. Must precede the
    /// checkpoint that closes the image.
    pub fn note_losses(&self, files: u64) {
        if files == 0 {
            return;
        }
        let mut losses = self.losses.lock();
        let before = losses.unwrap_or(Losses { files: 0, since: self.clock.now().sec });
        *losses = Some(Losses { files: before.files.saturating_add(files), ..before });
    }

    /// Data that was given up since the last repair, in this mount or an earlier one.
    pub fn losses(&self) -> Option<Losses> {
        *self.losses.lock()
    }

    /// Handles the failure `why` of the checkpoint that would have named the losses: names them in
    /// the present slot if the host of the image is full.
    fn keep_losses(&self, why: &Error) {
        // After any other failure the device may have lost acknowledged writes, or the image may
        // belong to another owner, so nothing more is written to it.
        if self.losses().is_none() || !why.is_host_full() {
            return;
        }
        if let Err(e) = checkpoint::write_losses(&*self.device, self.losses()) {
            tracing::error!("the image does not name the files whose data is lost: {e}");
        }
    }

    // ----- shutdown and close -----

    /// Shuts the store down for good: every later change is refused.
    pub fn shutdown(&self, reason: &Error) {
        tracing::error!("shutting down: {reason}");
        self.log.shutdown(reason);
        self.checkpoint.hurry.call();
    }

    pub fn check_alive(&self) -> Result<()> {
        match self.log.shutdown_reason() {
            // The shutdown lasts, so a caller must not take it for a full device and retry.
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

    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    pub fn generation(&self) -> Generation {
        Generation(self.generation.load(Ordering::Relaxed))
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Makes the last checkpoint, which marks the image clean, and ends the log's threads. The
    /// caller has written back all file data. If the host is full, losses are named in the present
    /// slot.
    pub fn close(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let result = match self.read_only {
            true => Ok(()),
            // The image is clean already, and must not be written.
            false if self.checkpoint.is_frozen() => self.check_alive(),
            false => self.checkpoint_clean().inspect_err(|e| self.keep_losses(e)),
        };
        self.closed.store(true, Ordering::Relaxed);
        self.log.stop();
        result
    }
}
