//! Device flushes that are shared by the threads that need one.
//!
//! A flush covers the data writes that completed before it *started*. Each completed write gets a
//! sequence number. A request is served by the first flush that started after its write had
//! completed. One flush runs at a time; requests that arrive meanwhile share the next one. A log
//! write without FUA counts as a data write.

use crate::guard::EpochGuard;
use kedge_base::atomic::{AtomicU64, Ordering};
use kedge_base::lock::{Condvar, Mutex, Rank};
use kedge_base::trace::{self, Event};
use kedge_base::{Counter, Error, Result, without_panic};
use kedge_device::Device;
use kedge_log::Barrier;
use std::sync::Arc;

/// Number of a completed data write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct WriteSeq(pub u64);

struct State {
    running: bool,
    failed: Option<Error>,
}

pub(crate) struct Flusher {
    device: Arc<dyn Device>,
    written: AtomicU64,
    /// All writes with numbers up to this one are durable. The number only grows.
    flushed: AtomicU64,
    state: Mutex<State>,
    done: Condvar,
    pub flushes: Counter,
    /// Number of requests that were served by a flush of another thread.
    pub shared: Counter,
}

impl Flusher {
    pub(crate) fn new(device: Arc<dyn Device>) -> Flusher {
        Flusher {
            device,
            written: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            state: Mutex::new(Rank::DeviceQueue, State { running: false, failed: None }),
            done: Condvar::new(),
            flushes: Counter::new(),
            shared: Counter::new(),
        }
    }

    pub(crate) fn note_write(&self) -> WriteSeq {
        let seq = self.written.fetch_add(1, Ordering::AcqRel) + 1;
        trace::note(|| Event::Written { seq });
        WriteSeq(seq)
    }

    pub(crate) fn newest(&self) -> WriteSeq {
        WriteSeq(self.written.load(Ordering::Acquire))
    }

    pub(crate) fn flushed(&self, seq: WriteSeq) -> bool {
        self.flushed.load(Ordering::Acquire) >= seq.0
    }

    pub(crate) fn flush(&self, seq: WriteSeq) -> Result<()> {
        let mut led = false;
        loop {
            if self.flushed(seq) {
                if !led {
                    self.shared.inc();
                }
                return Ok(());
            }
            let mut state = self.state.lock();
            if let Some(e) = &state.failed {
                return Err(e.clone());
            }
            if state.running {
                self.done.wait(&mut state);
                continue;
            }
            if self.flushed(seq) {
                continue;
            }
            state.running = true;
            drop(state);
            let covers = self.written.load(Ordering::Acquire);
            self.flushes.inc();
            // Even if the flush panics, the requests that wait for it get a result.
            let result = without_panic("a device flush", || self.device.flush());
            let mut state = self.state.lock();
            state.running = false;
            match result {
                Ok(()) => {
                    trace::note(|| Event::Flushed { seq: covers });
                    self.flushed.fetch_max(covers, Ordering::AcqRel);
                }
                Err(e) => state.failed = Some(e),
            }
            led = true;
            self.done.notify_all();
        }
    }
}

/// What a log write waits for.
pub(crate) struct LogBarrier {
    pub guard: Arc<EpochGuard>,
    pub flusher: Arc<Flusher>,
}

impl Barrier for LogBarrier {
    /// Waits until the commits now inside the epoch guard have left it, then flushes the data. A
    /// commit leaves the guard when its record is applied, or when it has shut the log down because
    /// the record could not be applied.
    fn barrier(&self) -> Result<()> {
        self.guard.wait_for_those_inside();
        self.flusher.flush(self.flusher.newest())
    }

    fn settle(&self) -> Result<bool> {
        self.guard.wait_for_those_inside();
        Ok(!self.flusher.flushed(self.flusher.newest()))
    }

    /// A number of its own, so that no flush counts that began before.
    fn flush_after(&self) -> Result<()> {
        self.flusher.flush(self.flusher.note_write())
    }
}
