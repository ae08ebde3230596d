//! Force: everything up to an LSN becomes durable. Force waits; commit does not.
//!
//! # Group commit
//! A force whose target is in no write yet becomes a *leader* if a slot is free. It takes the
//! oldest unwritten batch, calls the barrier and writes, in its own thread. That batch is normally
//! the open one, with all records appended so far. So a thread that appends and forces pays for one
//! device write and for no switch to another thread.
//!
//! A force whose target is in a write in flight waits for that write. A force that finds no free
//! slot waits while the open batch gathers records. The first of these leads the next write, which
//! contains the records of all.
//!
//! A write starts beside others in flight only if it will complete at least as many forces as they
//! will. With few threads every force then writes at once, in parallel. With many threads the
//! groups stay large. Two alternatives were measured in forces per second, on a file opened with
//! O_DIRECT and O_DSYNC. Starting a write whenever a slot is free splits groups into small writes:
//! the present rule is as fast with 2 threads, faster with 4, and a quarter faster with 16.
//! Compared with one write at a time, it is ten times as fast with 2 threads, faster with 4, and as
//! fast with 16.
//!
//! A completed write wakes the forces whose target the durable prefix has reached, and one force
//! that may lead the next write, and no other.
//!
//! # Why no wake-up is lost
//! If the target of a waiter is beyond `taken`, a thread must check for a free slot whenever one
//! may have become free. That can happen only when a batch is taken, a write completes, a batch is
//! sealed or a force arrives. The first three end in [`State::pump`], which wakes the first such
//! waiter (or a writer thread) to check. An arriving force checks by itself. If a woken thread
//! finds nothing to do, another thread's `take` was faster, and that `take` has called `pump` in
//! turn.

use crate::batch::{Asked, Write};
use crate::shared::{Log, Shared};
use crate::state::State;
use crate::stats::{ForceCause, WriteTimes};
use crate::wait::{Callback, ForceWaiter, Parker, Signal, WaiterKind, Wake};
use kedge_base::atomic::Ordering::{Acquire, Release};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Rank, assert_may_wait};
use kedge_base::trace::{self, Event};
use kedge_base::{Error, Lsn, Result, without_panic};

/// The kind of thread that makes a log write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leader {
    /// A thread that forces the log and waits.
    Caller,
    /// A writer thread.
    Writer,
}

impl Log {
    /// Makes everything below `upto` durable. A position beyond the head means the head. Blocks.
    pub fn force(&self, upto: Lsn, cause: ForceCause) -> Result<()> {
        self.shared.stats.count_force(cause);
        if let Some(answer) = self.shared.answer_now(upto) {
            return answer;
        }
        assert_may_wait(Rank::EpochGuard);
        let started = self.shared.clock.monotonic();
        let result = self.shared.force(upto, cause);
        self.shared.stats.force_latency.record(self.shared.clock.since(started).as_nanos() as u64);
        result
    }

    /// The times of the write that made `target` durable, if it is among the most recent writes.
    pub fn write_of(&self, target: Lsn) -> Option<WriteTimes> {
        self.shared.recent.covering(target)
    }

    /// [`Log::force`] without blocking: a writer thread of the log calls `done`, or this call does
    /// if there is nothing to wait for. `done` must not block, since it would keep a writer thread
    /// from delivering other results.
    pub fn force_async(&self, upto: Lsn, cause: ForceCause, done: Callback) {
        let shared = &*self.shared;
        shared.stats.count_force(cause);
        if let Some(answer) = shared.answer_now(upto) {
            return done(answer);
        }
        let mut wake = Wake::default();
        let mut state = shared.state.lock();
        let target = upto.min(state.tip.head());
        let now = match state.check_alive() {
            Err(error) => Some(Err(error)),
            Ok(()) if state.durable >= target => Some(Ok(())),
            Ok(()) if state.stopping => Some(Err(stopped())),
            Ok(()) => None,
        };
        if let Some(answer) = now {
            drop(state);
            return done(answer);
        }
        state.count_target(target, cause);
        state.enqueue(ForceWaiter { target, kind: WaiterKind::Callback(done) });
        state.pump(&mut wake);
        drop(state);
        wake.fire(&shared.writers);
    }
}

/// The error of every call after [`Log::stop`].
pub(crate) fn stopped() -> Error {
    Error::Shutdown("the log was stopped".into())
}

impl Shared {
    /// The result of a force that needs neither IO nor the lock.
    fn answer_now(&self, upto: Lsn) -> Option<Result<()>> {
        if self.dead.load(Acquire) {
            return Some(self.state.lock().check_alive());
        }
        (self.durable.load(Acquire) >= upto.0).then(|| {
            self.stats.forces_idle.inc();
            Ok(())
        })
    }

    fn force(&self, upto: Lsn, cause: ForceCause) -> Result<()> {
        let mut parker = None;
        let mut state = self.state.lock();
        let target = upto.min(state.tip.head());
        state.count_target(target, cause);
        loop {
            state.check_alive()?;
            if state.durable >= target {
                return Ok(());
            }
            if target > state.taken && state.may_start() {
                let mut wake = Wake::default();
                let write = self.take(&mut state, &mut wake);
                drop(state);
                wake.fire(&self.writers);
                self.write(write, Leader::Caller)?;
                state = self.state.lock();
                continue;
            }
            let parker = parker.get_or_insert_with(|| {
                let parker = Parker::new();
                state.enqueue(ForceWaiter { target, kind: WaiterKind::Thread(parker.clone()) });
                parker
            });
            drop(state);
            match parker.wait() {
                Signal::Done(result) => return result,
                Signal::Look => state = self.state.lock(),
            }
        }
    }

    /// Takes the oldest unwritten batch to write it.
    pub(crate) fn take(&self, state: &mut State, wake: &mut Wake) -> Write {
        state.take(self.epoch, wake)
    }

    /// A leader's work: barrier, seal, write, wake. After the barrier, all records in the batch
    /// have been applied. If one could not be, the log is shut down, and the batch must not be
    /// written.
    pub(crate) fn write(&self, mut write: Write, leader: Leader) -> Result<()> {
        let started = self.clock.monotonic();
        // The batch is closed: all appends to it have happened, and so have the data writes to
        // which they refer.
        self.stats.barriers.inc();
        let mut barrier_over = started;
        // A panic must not leave the write in flight, or all later forces would wait for it
        // forever.
        let result = without_panic("a log write", || {
            // Broken on purpose: the data to which the records refer is not flushed.
            if !broken::is(Variant::SkipDataFlush) {
                self.barrier.barrier()?;
            }
            barrier_over = self.clock.monotonic();
            self.check_alive()?;
            write.fill(&self.stage, &self.key);
            trace::note(|| Event::LogWrite { end: write.header.end_lsn() });
            self.ring.write(&*self.device, write.header.lsn, &write.buf)
        });
        if let Err(error) = &result {
            tracing::error!(%error, lsn = %write.header.lsn, "log write not made, the log shuts down");
        } else {
            self.stats.writes.inc();
            self.stats.commits.add((write.wanted.asked > Asked::No).into());
            self.stats.commits_requested.add((write.wanted.asked > Asked::ByTimer).into());
            self.stats.bytes_written.add(write.buf.len() as u64);
            self.stats.group_records.record(write.header.records.into());
            self.stats.group_forces.record(write.wanted.forces.into());
            let (end, done) = (write.header.end_lsn(), self.clock.monotonic());
            self.stats.write_latency.record(done.saturating_sub(started).as_nanos() as u64);
            self.recent.push(WriteTimes { end, began: started, flushed: barrier_over, done });
        }
        let mut wake = Wake::default();
        let mut state = self.state.lock();
        let end = write.header.end_lsn();
        let memory_was_short = state.is_short_of_memory();
        state.leave(write);
        match &result {
            Ok(()) => {
                state.complete(end, &mut wake);
                self.durable.store(state.durable.0, Release);
            }
            Err(error) => self.latch(&mut state, error, error, &mut wake),
        }
        state.grant(&mut wake);
        if memory_was_short {
            state.nudge(&mut wake);
        }
        state.pump(&mut wake);
        // A writer thread delivers a single result itself, next; waking another thread for it would
        // cost a useless switch. Two threads deliver several results.
        wake.answers &= leader == Leader::Caller || state.answers.len() > 1;
        // A stopping writer thread ends when the last write is done.
        wake.writers_all |= state.stopping;
        drop(state);
        wake.fire(&self.writers);
        result
    }
}
