//! Force: makes everything up to an LSN durable. Force waits; commit does not.
//!
//! # Group commit
//! A force whose target is not yet in a write becomes a *leader* if a slot is free. The leader
//! takes the oldest unwritten batch, calls the barrier and writes the batch, all in its own thread.
//! Normally this is the open batch, with all records appended so far. So a thread that appends and
//! forces needs one device write and no switch to another thread.
//!
//! A force whose target is in a write in flight waits for that write. A force that finds no free
//! slot waits while the open batch gathers records. The first of these waiting forces leads the
//! next write, which contains the records of all of them.
//!
//! A write starts beside others in flight only if it will complete at least as many forces as those
//! others. So with few threads every force writes at once, in parallel, and with many threads the
//! groups stay large. Two alternatives were measured in forces per second, on a file opened with
//! O_DIRECT and O_DSYNC. Starting a write whenever a slot is free splits groups into small writes:
//! the present rule is as fast with 2 threads, faster with 4, and a quarter faster with 16.
//! Compared with a single write at a time, the present rule is ten times as fast with 2 threads,
//! faster with 4, and as fast with 16.
//!
//! A completed write wakes the forces whose target is now durable, and one further force that may
//! lead the next write. It wakes no others.
//!
//! # Why no wake-up is lost
//! If the target of a waiter is beyond `taken`, a thread must check for a free slot whenever one
//! may have become available. That can happen only when a batch is taken, a write completes, a
//! batch is sealed or a force arrives. The first three end in [`State::pump`], which wakes the
//! first such waiter (or a writer thread) to check. An arriving force checks by itself. If a woken
//! thread finds nothing to do, another thread took the batch first, and its `take` called `pump` in
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

/// The kind of thread that leads a log write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leader {
    /// A thread that called [`Log::force`] and waits for the result.
    Caller,
    /// A writer thread.
    Writer,
}

impl Log {
    /// Makes everything below `upto` durable, or everything up to the head if `upto` is beyond it.
    /// Blocks until then.
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

    /// Returns the times of the write that made `target` durable, or `None` if that write is not
    /// among the most recent ones.
    pub fn write_of(&self, target: Lsn) -> Option<WriteTimes> {
        self.shared.recent.covering(target)
    }

    /// Does what [`Log::force`] does without blocking. A writer thread of the log calls `done` with
    /// the result; if there is nothing to wait for, this function calls it. `done` must not block,
    /// because it would keep a writer thread from delivering other results.
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

/// The error of calls after [`Log::stop`].
pub(crate) fn stopped() -> Error {
    Error::Shutdown("the log was stopped".into())
}

impl Shared {
    /// Returns the result of a force if the force needs no IO: after a shutdown, or if `upto` is
    /// durable.
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

    /// Hands the oldest unwritten batch to the calling leader.
    pub(crate) fn take(&self, state: &mut State, wake: &mut Wake) -> Write {
        state.take(self.epoch, wake)
    }

    /// Does a leader's work: seal, barrier, write, wake. When the barrier returns, all records of
    /// the batch have been applied. If a record could not be applied, the log is shut down by then,
    /// and the batch must not be written.
    ///
    /// If no record of the batch may refer to data in place, one flush serves both the log write
    /// and the data that waits for a flush: the write is made without FUA, and the flush follows.
    pub(crate) fn write(&self, mut write: Write, leader: Leader) -> Result<()> {
        let started = self.clock.monotonic();
        // The batch is closed, so all its records have been appended, and the data writes to which
        // they refer have completed.
        self.stats.barriers.inc();
        let mut barrier_over = started;
        // A panic must not leave the write in flight, because all later forces would wait for it
        // forever.
        let result = without_panic("a log write", || {
            let refers = write.fill(&self.stage, &self.key);
            // Broken on purpose: the data to which the records refer is not flushed.
            let shares = if broken::is(Variant::SkipDataFlush) {
                false
            } else if refers && !broken::is(Variant::SharedFlush) {
                self.barrier.barrier()?;
                false
            } else {
                // Broken on purpose: the records of the log write refer to the data.
                self.barrier.settle()?
            };
            barrier_over = self.clock.monotonic();
            self.check_alive()?;
            trace::note(|| Event::LogWrite { end: write.header.end_lsn() });
            self.ring.write(&*self.device, write.header.lsn, &write.buf, !shares)?;
            if shares {
                self.stats.flushes_shared.inc();
                self.barrier.flush_after()?;
            }
            Ok(())
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
        // A writer thread delivers a single result itself as its next step: waking another thread
        // would cost a useless switch. Several results are delivered by two threads.
        wake.answers &= leader == Leader::Caller || state.answers.len() > 1;
        // When the last write is done, stopping writer threads end; wake them to check.
        wake.writers_all |= state.stopping;
        drop(state);
        wake.fire(&self.writers);
        result
    }
}
