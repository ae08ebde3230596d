//! The log: a ring of blocks on the device that stores records in the order in which they take
//! effect.
//!
//! # Life of a record
//! 1. **reserve** (`reserve`): sets log bytes aside. Only this step may wait, for space or for
//!    memory. Where the ring has holes, it fills them with zeros ahead of the log (`backing`).
//! 2. **append** (`append`): assigns the record its final range in the *open batch*, and thereby
//!    its LSN, and keeps its bytes (`tip`, `stage`). It neither waits for space nor does IO.
//! 3. **seal** (`batch`): the open batch is closed and padded to a block. The next batch starts
//!    after the padding.
//! 4. **force** (`force`): a leader collects the bytes of the oldest batch and writes them with one
//!    FUA write, or with a plain write and a flush (group commit). A force that waits for a record
//!    of the batch returns once everything before the record is durable too.
//! 5. **tail** (`tail`): a checkpoint makes the record unnecessary. Its bytes of the ring may be
//!    reserved again.
//! 6. **scan** (`scan`): after a crash, recovery finds the records that were forced and not yet
//!    checkpointed.
//!
//! # Invariants
//! 1. `tail <= durable <= taken <= open batch's base <= head`, and `padded head - tail + reserved
//!    <= ring`.
//! 2. Batches are contiguous: each begins where the padding of the previous one ends. A byte never
//!    moves after its append.
//! 3. `durable` is the end of the contiguous prefix of completed writes. Several writes may be in
//!    flight and complete in any order; forces complete in LSN order.
//! 4. [`Barrier::barrier`] is called after the last append into a batch and before its write, or
//!    [`Barrier::settle`] if no record of the batch may refer to data. So a record never becomes
//!    durable before the data to which it refers, nor before its caller has applied it.
//! 5. The first failed write or barrier latches *shutdown*. Nothing is retried, and no write starts
//!    afterwards. Every waiter wakes with an error, and every later force or reservation fails with
//!    one. A leader checks the latch again between barrier and write.
//! 6. A panic in a write, a barrier or a callback latches shutdown with the panic's message. No
//!    thread of the log ends while an operation may be waiting for it.
//!
//! # Files
//! A file uses only those before it:
//! 1. values: `config`, `stats`, `ring` (LSNs and device offsets), `wait` (waiters);
//! 2. the state and its transitions, without IO and without waiting: `room` and `queue` (log
//!    bytes), `tip` and `stage` (ranges and bytes of records), `batch`, `backing` (holes), `state`;
//! 3. `shared`: the locked state together with the device, the clock and the barrier;
//! 4. operations: `reserve`, `append`, `tail`, `force`, then `writer`;
//! 5. this file, which combines the others. Recovery's `scan` uses only `config` and `ring`.
//!
//! # Locks
//! One short mutex (`Rank::LogState`) guards everything above, except that most reservations and
//! appends change one atomic number instead (`room`, `tip`). An append copies its record under the
//! lock of its lane (`Rank::LogLane`, `stage`). None of these is held across IO, a barrier or a
//! callback. Each waiter sleeps on its own parker (`Rank::Leaf`), so a completed write wakes only
//! the waiters whose force it completes.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod append;
mod backing;
mod batch;
mod config;
mod force;
mod queue;
mod reserve;
mod ring;
mod room;
pub mod scan;
mod shared;
mod stage;
mod state;
mod stats;
mod tail;
mod tip;
mod wait;
mod writer;

pub use config::{IN_FLIGHT_MAX, LogConfig, RECORD_MAX};
pub use queue::RECORD_OVERHEAD;
pub use reserve::Reservation;
pub use ring::RecordLsn;
pub use room::{CHECKPOINT_BYTES, ReserveClass};
pub use scan::{ScanConfig, ScanEnd, StopReason, scan, scan_again};
pub use shared::{Barrier, Log, SpacePressure};
pub use stats::{ForceCause, LogStats, WriteTimes};
pub use tail::LogSpace;

use backing::Backing;
use kedge_base::atomic::Ordering::Acquire;
use kedge_base::atomic::{AtomicBool, AtomicU64};
use kedge_base::lock::{Condvar, Mutex, Rank};
use kedge_base::{BLOCK_SIZE, Clock, Error};
use kedge_device::Device;
use ring::Ring;
use shared::Shared;
use stage::Stage;
use state::State;
use std::sync::{Arc, OnceLock, Weak};

impl Log {
    /// Opens the log for writing at `config.head`. If no writer thread can be started, the log is
    /// shut down from the start, with that reason.
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
        let state = State::new(&config, ring, Backing::new(&*device, ring, &config));
        let shared = Arc::new(Shared {
            device,
            clock,
            barrier,
            key: config.key,
            epoch: config.epoch,
            ring,
            room: state.reserve.room.clone(),
            tip: state.tip.clone(),
            stage: Stage::new(),
            state: Mutex::new(Rank::LogState, state),
            writers: Condvar::new(),
            backed: Condvar::new(),
            pressure: Mutex::new(Rank::Leaf, None),
            durable: AtomicU64::new(config.head.0),
            tail: AtomicU64::new(config.tail.0),
            dead: AtomicBool::new(false),
            dead_since: OnceLock::new(),
            stats: LogStats::default(),
            recent: stats::Recent::default(),
        });
        writer::start(&shared);
        Arc::new(Log { shared })
    }

    /// Sets the component that is called when log space is short.
    pub fn set_pressure(&self, pressure: Weak<dyn SpacePressure>) {
        *self.shared.pressure.lock() = Some(pressure);
    }

    /// Latches shutdown: every waiter wakes with an error, and nothing more is written. The reason
    /// of the first call is kept.
    pub fn shutdown(&self, reason: &Error) {
        self.shared.shut_down(reason);
    }

    /// Returns why the log was shut down, or `None` if it was not.
    pub fn shutdown_reason(&self) -> Option<Error> {
        // Every operation calls this function, so the common case takes no lock.
        if !self.shared.dead.load(Acquire) {
            return None;
        }
        self.shared.state.lock().dead.clone()
    }

    /// Returns when the log was shut down, in seconds since 1970.
    pub fn shutdown_since(&self) -> Option<i64> {
        self.shared.dead_since.get().copied()
    }

    pub fn stats(&self) -> &LogStats {
        &self.shared.stats
    }

    /// Lets the writer threads finish their work, joins them and shuts the log down. Does not force
    /// the log: records that were appended but not forced are lost.
    pub fn stop(&self) {
        writer::stop(&self.shared);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.stop();
    }
}
