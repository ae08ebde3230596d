//! The log: a ring of blocks on the device that takes records in the order in which they take effect.
//!
//! # Life of a record
//! 1. **reserve** (`reserve`): log bytes are promised. The only place that may wait, for space or for memory.
//! 2. **append** (`append`): the record is copied into the *open batch* at its final position; its LSN is known. Never
//!    waits, no IO.
//! 3. **seal** (`batch`): the open batch is closed, padded to a block, and the next one starts behind the padding.
//! 4. **force** (`force`): a leader writes the oldest sealed batch with one FUA write; whoever waits for a record in it is
//!    answered once everything before it is durable too.
//! 5. **tail** (`tail`): a checkpoint makes the record unnecessary; its place in the ring may be reserved again.
//! 6. **scan** (`scan`): after a crash, what was forced and was not checkpointed is found again.
//!
//! # Invariants
//! 1. `tail <= durable <= taken <= open batch's base <= head`, and `padded head - tail + reserved <= ring`.
//! 2. Batches are laid end to end: each begins where the padding of the one before ends. The place of a byte never
//!    changes after its append.
//! 3. `durable` is the end of the contiguous prefix of completed writes. Several writes may be in flight and complete in
//!    any order; forces are answered in LSN order.
//! 4. [`Barrier::barrier`] is called after the last append into a batch and before its write, so a record never becomes
//!    durable before the data whose completion it speaks of, nor before the caller who appended it is done with it.
//! 5. The first failed write or barrier latches *shutdown*. Nothing is retried and nothing is written after it was noticed:
//!    every waiter wakes with an error, every later force or reservation gets one. Whether it is latched is looked at once
//!    more between barrier and write.
//! 6. A panic in a write, a barrier or a callback latches shutdown with its words: no thread of the log ends while somebody
//!    may wait for it.
//!
//! # Locks
//! One short mutex (`Rank::LogState`) guards everything above; it is never held across IO, a barrier or a callback. Waiters
//! sleep on parkers of their own (`Rank::Leaf`), so that a completed write wakes those it answers and no one else.
#![forbid(unsafe_code)]

mod append;
mod batch;
mod force;
mod reserve;
mod ring;
pub mod scan;
mod state;
mod stats;
mod tail;
mod wait;
mod writer;

pub use append::RecordLsn;
pub use reserve::{CHECKPOINT_BYTES, RECORD_OVERHEAD, Reservation, ReserveClass};
pub use scan::{ScanConfig, ScanEnd, StopReason, scan};
pub use stats::{ForceCause, LogStats, WriteTimes};
pub use tail::LogSpace;

use kedge_base::lock::{Condvar, Mutex, Rank};
use kedge_base::{BLOCK_SIZE, BlockNo, Clock, Epoch, Error, Lsn, Result};
use kedge_device::Device;
use kedge_format::logwrite::{FRAME_SIZE, HEADER_SIZE, LogKey, WRITE_BLOCKS_MAX};
use ring::Ring;
use state::State;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};

/// Most log writes in flight. Recovery relies on it: it bounds how far behind a lost write the proof of its loss can lie.
pub const IN_FLIGHT_MAX: usize = 4;
/// Longest record.
pub const RECORD_MAX: usize = WRITE_BLOCKS_MAX as usize * BLOCK_SIZE - HEADER_SIZE - FRAME_SIZE;

/// What orders data writes before the records that speak of them.
pub trait Barrier: Send + Sync {
    /// Makes every data write that completed before the call durable: flushes the device if there was one since the last
    /// flush. Called from several threads at once; returning because another thread's flush is *under way* is only right
    /// when that flush began after the call. It is also where records are waited for whose append has returned while their
    /// caller may still find that they must not be written: it shuts the log down before the barrier returns.
    fn barrier(&self) -> Result<()>;
}

/// Who can make log space.
pub trait SpacePressure: Send + Sync {
    /// A reservation is about to wait for log space: start a checkpoint or boost the running one. Must not block. Repeated
    /// while the wait lasts.
    fn need_space(&self);
}

/// Where the ring lies and where it stands.
#[derive(Clone, Debug)]
pub struct LogConfig {
    pub key: LogKey,
    pub epoch: Epoch,
    pub ring_start: BlockNo,
    pub ring_blocks: u64,
    /// Where the first write goes: a block boundary. Everything below counts as durable.
    pub head: Lsn,
    /// Oldest position still needed: the start of a log write.
    pub tail: Lsn,
    /// Log writes in flight at most, 1 to [`IN_FLIGHT_MAX`]; values outside are clamped.
    pub in_flight_max: usize,
    /// Bytes of sealed batches not yet on the device above which reservations wait.
    pub staged_bytes_max: u64,
}

/// What the log and its writer threads share.
pub(crate) struct Shared {
    device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    barrier: Arc<dyn Barrier>,
    key: LogKey,
    epoch: Epoch,
    ring: Ring,
    state: Mutex<State>,
    /// Writer threads sleep here.
    writers: Condvar,
    pressure: Mutex<Option<Weak<dyn SpacePressure>>>,
    // Copies of what `state` guards, for readers without the lock.
    head: AtomicU64,
    durable: AtomicU64,
    tail: AtomicU64,
    /// [`Log::free_bytes`].
    free: AtomicU64,
    dead: AtomicBool,
    stats: LogStats,
    recent: stats::Recent,
}

/// The log of a mounted image.
pub struct Log {
    shared: Arc<Shared>,
}

impl Log {
    /// Opens the log for writing at `config.head`. Should no writer thread start, the log comes up shut down with the reason.
    pub fn new(
        device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        barrier: Arc<dyn Barrier>,
        config: LogConfig,
    ) -> Arc<Log> {
        let ring = Ring::new(config.ring_start, config.ring_blocks);
        let block = BLOCK_SIZE as u64;
        assert!(
            config.head.0.is_multiple_of(block) && config.tail.0.is_multiple_of(block),
            "writes start on blocks"
        );
        assert!(
            config.tail <= config.head && config.head.0 - config.tail.0 <= ring.bytes(),
            "the log fits its ring"
        );
        let state = State::new(&config, ring);
        let shared = Arc::new(Shared {
            device,
            clock,
            barrier,
            key: config.key,
            epoch: config.epoch,
            ring,
            free: AtomicU64::new(state.free_bytes()),
            state: Mutex::new(Rank::LogState, state),
            writers: Condvar::new(),
            pressure: Mutex::new(Rank::Leaf, None),
            head: AtomicU64::new(config.head.0),
            durable: AtomicU64::new(config.head.0),
            tail: AtomicU64::new(config.tail.0),
            dead: AtomicBool::new(false),
            stats: LogStats::default(),
            recent: stats::Recent::default(),
        });
        writer::start(&shared);
        Arc::new(Log { shared })
    }

    /// Names who is asked for log space.
    pub fn set_pressure(&self, pressure: Weak<dyn SpacePressure>) {
        *self.shared.pressure.lock() = Some(pressure);
    }

    /// Latches shutdown: every waiter wakes with an error, nothing more is written. The first reason stays.
    pub fn shutdown(&self, reason: &Error) {
        self.shared.shut_down(reason);
    }

    /// Why the log was shut down.
    pub fn shutdown_reason(&self) -> Option<Error> {
        // Every operation asks: without the lock, unless there is something to tell.
        if !self.shared.dead.load(Acquire) {
            return None;
        }
        self.shared.state.lock().dead.clone()
    }

    pub fn stats(&self) -> &LogStats {
        &self.shared.stats
    }

    /// Lets the writer threads finish what they were asked for, joins them and shuts the log down. Does not force: what was
    /// appended and not forced is lost.
    pub fn stop(&self) {
        writer::stop(&self.shared);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.stop();
    }
}
