//! Pacing of background checkpoints. They start, and write, at a rate that follows the rate at
//! which the log fills.
//!
//! If a checkpoint writes as fast as the device can, every concurrent fsync waits after a burst of
//! the checkpoint's writes. But the checkpoint has time until an operation needs the space that it
//! will free. So it writes in slices, and pauses while it is ahead of schedule. A fraction of its
//! work is due when the same fraction of its *allowance* is used up. The allowance is half of the
//! log space that was free at its start, or half of the room for dirty tree nodes, whichever is
//! used up faster. So a log that fills fast makes the checkpoint fast, and the checkpoint ends
//! while the other half is still free.
//!
//! # When it does not pause
//! 1. An operation waits for a checkpoint ([`Store::checkpoint`], the last one) or for log space,
//!    or is delayed because the log is nearly full. Likewise after a switch to
//!    `noasync_checkpoint`, a shutdown, or the end of the file system above the store. A waiting
//!    operation ends the pause at once ([`super::control::Hurry`]); for the other reasons the pause
//!    ends at its next check, a millisecond later.
//! 2. The log fills so fast that an unpaused checkpoint is needed: while a checkpoint like the last
//!    one runs without pauses, more bytes would come into the log than are free above the part in
//!    which operations are delayed. In a log of one MiB that is usual. Otherwise the pauses would
//!    use up half of what was free, and the last steps, which cannot be shortened, would find the
//!    log nearly full.
//! 3. The pause after a slice has reached its bound. So every checkpoint ends, even if the log no
//!    longer fills, and frees the tree nodes that only the last checkpoint uses.
//!
//! # A device with a long latency
//! On a disk that is not slow nothing here depends on the measured latency of the device. If
//! another machine serves the image and a request takes milliseconds,
//! - a slice grows if the device serves many requests at a time (`is_far_away`), by its own size
//!   for each [`SLICE_UNIT`] that a write takes, up to [`SLICE_TIMES_MAX`] times. Each slice waits
//!   for a round trip, so 512 KiB in 10 ms would bound a checkpoint to 50 MB/s. The writes that an
//!   fsync may find ahead of it stay below what a network of 1 Gbit/s transfers in one of its round
//!   trips;
//! - the delay of operations near a full log is two durable writes (`throttle_max` of `trigger`),
//!   as on a disk: 4 ms do not slow down a client that waits 20 ms for each fsync.
//!
//! The schedule itself needs no latency, since it follows the log. The bound on a pause needs none
//! either; it only ensures that a checkpoint ends.
//!
//! # Locks
//! A pause holds the lock that admits one checkpoint at a time, and no other: not the epoch guard,
//! no lock of an inode, no latch. A thread that wants that lock is counted before it waits, which
//! ends the pause. Releasing the lock during a pause was rejected: a second checkpoint could then
//! cut a generation while the first is not written, and the format cannot represent that.
//!
//! # Crash argument
//! The pace changes neither what is written nor the order ([`super`]): nodes and bitmaps, the
//! flush, the slot, the tail. A pause falls between two writes that no flush separates. Meanwhile
//! the log is not overwritten, because the tail stays where the last checkpoint left it.

use super::cause::{By, CheckpointCause};
use super::write::{FULL, ROUND_TRIP, is_far_away};
use crate::store::Store;
use kedge_base::BLOCK_SIZE;
use kedge_base::atomic::Ordering;
use std::cell::Cell;
use std::time::Duration;

/// Blocks in a slice. Bounds the writes that an fsync may find ahead of it in the device's queue.
const SLICE: usize = 128;
/// A slice grows by its own size for each such period that a write takes, `SLICE_TIMES_MAX` times
/// at most. See "A device with a long latency".
const SLICE_UNIT: Duration = Duration::from_millis(4);
const SLICE_TIMES_MAX: usize = 4;
/// Period of the checks whether a pause is over.
const CHECK_AGAIN: Duration = Duration::from_millis(1);
/// Number of checks in the longest pause, for each MiB written.
const CHECKS_PER_MIB: u64 = 100;
/// Operations are delayed when less than one part in `THROTTLE_PART` of the log is free to them.
/// The delay grows as the free part shrinks.
const THROTTLE_PART: u64 = 8;
/// If `async_checkpoint` is below this percentage, the fraction is smaller: half of that
/// percentage.
const THROTTLE_PERCENT: u64 = 25;

/// A resource, half of which may be used up while a checkpoint writes.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: u64,
    /// What was free at the start. Half of it is the allowance.
    at_first: u64,
}

impl Allowance {
    /// Whether a smaller fraction of the allowance is used up than `done` of `total`.
    fn lags_behind(&self, done: u64, total: u64) -> bool {
        let used = self.at_first.saturating_sub(self.left);
        let allowed = self.at_first / 2;
        done as u128 * allowed as u128 > used as u128 * total as u128
    }
}

/// The pace of one checkpoint.
pub(crate) struct Pace<'a> {
    store: &'a Store,
    /// Whether the checkpoint may pause at all.
    paced: bool,
    by: By,
    /// Free log space, and room for dirty nodes, at the start of the checkpoint, in bytes.
    log: u64,
    nodes: u64,
    /// Estimate of the log bytes that come in while this checkpoint runs without pauses: see
    /// [`Store::incoming`].
    incoming: u64,
    /// Bytes written so far, and bytes to be written in all.
    done: Cell<u64>,
    total: Cell<u64>,
    paused: Cell<Duration>,
    /// Number of checks in all pauses.
    checks: Cell<u64>,
    /// References to the file system above that the checkpoint itself holds. If these are all
    /// references, the file system was dropped.
    pub(crate) held: Cell<usize>,
}

impl Pace<'_> {
    /// Sets how many bytes are left to write.
    pub(crate) fn expect(&self, bytes: u64) {
        self.total.set(self.done.get() + bytes);
    }

    /// Counts written bytes, and pauses while the checkpoint is ahead of schedule. Returns how many
    /// blocks the next batch may have.
    pub(crate) fn wrote(&self, bytes: u64) -> usize {
        self.done.set(self.done.get() + bytes);
        let hurry = &self.store.checkpoint.hurry;
        let mut left = (bytes * CHECKS_PER_MIB) >> 20;
        while left > 0 {
            // Read before the check, so that a call between the two is not missed.
            let seen = hurry.calls();
            if !self.may_pause() || !self.is_ahead() {
                break;
            }
            let started = self.store.clock.monotonic();
            hurry.wait_beyond(seen, CHECK_AGAIN);
            self.paused.set(self.paused.get() + self.store.clock.since(started));
            self.checks.set(self.checks.get() + 1);
            left -= 1;
        }
        self.batch_blocks()
    }

    fn batch_blocks(&self) -> usize {
        if !self.may_pause() {
            return FULL;
        }
        let device = &*self.store.device;
        match is_far_away(device) {
            true => SLICE * device.latency().times(&ROUND_TRIP, SLICE_UNIT, SLICE_TIMES_MAX),
            false => SLICE,
        }
    }

    /// Total duration of the pauses.
    pub(crate) fn paused(&self) -> Duration {
        self.paused.get()
    }

    fn may_pause(&self) -> bool {
        let ended = self.store.client.get().is_some_and(|c| c.strong_count() <= self.held.get());
        self.paced && !ended && !self.store.checkpoint_must_hurry() && !self.log_fills_fast()
    }

    /// Whether a background checkpoint is needed without pauses: see rule 2. False if an operation
    /// runs the checkpoint: the others then wait for it, so the log does not fill meanwhile.
    pub(super) fn log_fills_fast(&self) -> bool {
        let needed = self.store.throttle_below().saturating_add(self.incoming);
        self.by == By::Background && self.store.log.free_bytes() < needed
    }

    fn is_ahead(&self) -> bool {
        let (done, total) = (self.done.get(), self.total.get());
        let log = Allowance { left: self.store.log.free_bytes(), at_first: self.log };
        let nodes = Allowance { left: self.store.room_for_dirty_nodes(), at_first: self.nodes };
        done < total && log.lags_behind(done, total) && nodes.lags_behind(done, total)
    }
}

impl Store {
    /// The pace of a checkpoint that starts now. For `incoming` see [`Store::incoming`].
    pub(super) fn pace(&self, cause: CheckpointCause, by: By, incoming: u64) -> Pace<'_> {
        let has_time = matches!(cause, CheckpointCause::Background | CheckpointCause::DirtyNodes);
        let pace = Pace {
            store: self,
            paced: has_time && by == By::Background,
            by,
            log: self.log.free_bytes(),
            nodes: self.room_for_dirty_nodes(),
            incoming,
            done: Cell::new(0),
            total: Cell::new(0),
            paused: Cell::new(Duration::ZERO),
            checks: Cell::new(0),
            held: Cell::new(0),
        };
        // An estimate until the cut: one block for each log-resident piece, and the dirty nodes.
        pace.expect(self.residents.len() as u64 * BLOCK_SIZE as u64 + self.forest.dirty_bytes() as u64);
        pace
    }

    fn room_for_dirty_nodes(&self) -> u64 {
        self.dirty_limit.load(Ordering::Relaxed).saturating_sub(self.forest.dirty_bytes() as u64)
    }

    /// Whether pauses must end: an operation waits or is delayed, or no further operation will
    /// come.
    fn checkpoint_must_hurry(&self) -> bool {
        self.async_percent() == 0
            || self.check_alive().is_err()
            || self.checkpoint.is_waited_for()
            || self.log.has_waiters()
            || self.log.free_bytes() < self.throttle_below()
    }

    pub(super) fn async_percent(&self) -> u64 {
        self.checkpoint.async_percent.load(Ordering::Relaxed) as u64
    }

    /// Operations are delayed when fewer bytes of the log are free; 0 with `noasync_checkpoint`.
    pub(super) fn throttle_below(&self) -> u64 {
        let percent = self.async_percent().min(THROTTLE_PERCENT);
        self.log.free_bytes_max() / THROTTLE_PART * percent / THROTTLE_PERCENT
    }
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
