//! The state under the log's mutex, and the transitions that several operations of the log share.

use crate::backing::Backing;
use crate::batch::{Batch, Write};
use crate::force::ForceWaiter;
use crate::reserve::ReserveQueue;
use crate::ring::Ring;
use crate::wait::{Signal, Wake};
use crate::{IN_FLIGHT_MAX, LogConfig};
use kedge_base::broken::{self, Variant};
use kedge_base::{BLOCK_SIZE, Epoch, Error, IoBuf, Lsn, Result};
use kedge_format::logwrite::WRITE_BLOCKS_MAX;
use std::collections::VecDeque;
use std::thread::JoinHandle;

/// The continuation of an asynchronous force.
pub(crate) type Callback = Box<dyn FnOnce(Result<()>) + Send>;

struct InFlight {
    end: Lsn,
    /// Number of forces that it completes.
    forces: u32,
    done: bool,
}

pub(crate) struct State {
    /// Fixed after opening.
    pub in_flight_max: usize,
    pub batch_bytes_max: usize,

    /// The batch that takes appends.
    pub open: Batch,
    /// Full batches not yet handed to a leader; in LSN order, right before `open`.
    pub sealed: VecDeque<Batch>,
    /// Batches handed to leaders, in LSN order, right before `sealed`. A completed one keeps its
    /// slot until all before it are completed. So no write starts more than `in_flight_max` writes
    /// after the durable prefix. Recovery relies on this.
    in_flight: VecDeque<InFlight>,
    /// End of the last batch handed to a leader.
    pub taken: Lsn,
    pub durable: Lsn,
    pub tail: Lsn,
    /// Start of every write from `tail` on that this log made. Used to refuse a tail in the middle
    /// of a write.
    pub write_starts: VecDeque<Lsn>,

    /// Bytes of sealed batches and of writes in flight.
    pub staged: u64,
    pub reserve: ReserveQueue,
    pub backing: Backing,

    /// Forces that wait, by target.
    pub waiters: VecDeque<ForceWaiter>,
    /// Results of asynchronous forces, for the writer threads to deliver.
    pub answers: VecDeque<(Callback, Result<()>)>,

    /// Why the log was shut down.
    pub dead: Option<Error>,
    /// Writer threads finish and end, and no further ones are started.
    pub stopping: bool,
    pub threads: Vec<JoinHandle<()>>,
    /// The number of `threads` that wait for work, or are about to check for it for the first time.
    pub threads_waiting: usize,
    /// Buffers of completed writes, to spare allocation and page faults.
    pool: Vec<IoBuf>,
}

impl State {
    pub(crate) fn new(config: &LogConfig, ring: Ring, backing: Backing) -> State {
        State {
            in_flight_max: config.in_flight_max.clamp(1, IN_FLIGHT_MAX),
            batch_bytes_max: (WRITE_BLOCKS_MAX as usize * BLOCK_SIZE).min(ring.bytes() as usize),
            open: Batch::new(config.head, IoBuf::default()),
            sealed: VecDeque::new(),
            in_flight: VecDeque::new(),
            taken: config.head,
            durable: config.head,
            tail: config.tail,
            write_starts: VecDeque::new(),
            staged: 0,
            reserve: ReserveQueue::new(ring.bytes(), config.staged_bytes_max),
            backing,
            waiters: VecDeque::new(),
            answers: VecDeque::new(),
            dead: None,
            stopping: false,
            threads: Vec::new(),
            threads_waiting: 0,
            pool: Vec::new(),
        }
    }

    /// Slots in use.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Number of forces that the writes in flight will complete.
    pub(crate) fn forces_in_flight(&self) -> u32 {
        self.in_flight.iter().filter(|w| !w.done).map(|w| w.forces).sum()
    }

    /// Bytes of the ring between the tail and the end of the open batch, padding included.
    pub(crate) fn used(&self) -> u64 {
        self.open.end().0 - self.tail.0
    }

    /// Fails with the reason once the log is shut down.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match &self.dead {
            None => Ok(()),
            Some(reason) => Err(after_shutdown(reason)),
        }
    }

    /// Closes the open batch, which holds records, and starts the next after its padding.
    fn close_open(&mut self) -> Batch {
        let next = Batch::new(self.open.end(), self.pool.pop().unwrap_or_default());
        let batch = std::mem::replace(&mut self.open, next);
        self.staged += batch.padded();
        self.write_starts.push_back(batch.base);
        batch
    }

    /// Queues the open batch for writing, if it holds records.
    pub(crate) fn seal_open(&mut self, wake: &mut Wake) {
        if self.open.is_empty() {
            return;
        }
        let batch = self.close_open();
        if self.dead.is_some() {
            // The batch will never be written, and the queue of sealed batches must not grow
            // without bound.
            self.drop_sealed(batch);
        } else {
            self.sealed.push_back(batch);
            self.pump(wake);
        }
    }

    fn drop_sealed(&mut self, batch: Batch) {
        self.staged -= batch.padded();
        self.recycle(batch.into_buf());
    }

    /// Hands the oldest unwritten batch to the caller. The caller must write it, then call
    /// [`State::leave`], and then [`State::complete`] or [`State::latch`].
    pub(crate) fn take(&mut self, epoch: Epoch, wake: &mut Wake) -> Write {
        let batch = self.sealed.pop_front().unwrap_or_else(|| self.close_open());
        assert!(!batch.is_empty() && batch.base == self.taken, "batches are written in order, none empty");
        self.taken = batch.end();
        self.in_flight.push_back(InFlight { end: self.taken, forces: batch.forces, done: false });
        self.pump(wake);
        batch.into_write(epoch, self.tail, self.durable)
    }

    /// Ends a leader's write, whether it succeeded or not.
    pub(crate) fn leave(&mut self, write: Write) {
        self.staged -= write.buf.len() as u64;
        self.recycle(write.buf);
    }

    /// Records that a write ending at `end` is on the device: advances the durable prefix and
    /// completes the forces that it reaches.
    pub(crate) fn complete(&mut self, end: Lsn, wake: &mut Wake) {
        let slot = self.in_flight.iter_mut().find(|w| w.end == end).expect("a write in flight is listed");
        slot.done = true;
        while self.in_flight.front().is_some_and(|w| w.done) {
            self.durable = self.durable.max(self.in_flight.pop_front().expect("there is a front").end);
        }
        if broken::is(Variant::AckOutOfOrder) {
            // Broken on purpose: earlier writes need not have completed.
            self.durable = self.durable.max(end);
        }
        while self.waiters.front().is_some_and(|w| w.target <= self.durable) {
            let waiter = self.waiters.pop_front().expect("there is a front");
            self.answer(waiter, Ok(()), wake);
        }
    }

    fn answer(&mut self, waiter: ForceWaiter, result: Result<()>, wake: &mut Wake) {
        match waiter.kind {
            crate::force::WaiterKind::Thread(parker) => wake.signals.push((parker, Signal::Done(result))),
            crate::force::WaiterKind::Callback(done) => {
                self.answers.push_back((done, result));
                wake.answers = true;
            }
        }
    }

    /// Latches shutdown, unless it is latched already. Waiting forces get `to_waiters`.
    pub(crate) fn latch(&mut self, reason: &Error, to_waiters: &Error, wake: &mut Wake) {
        if self.dead.is_some() {
            return;
        }
        self.dead = Some(reason.clone());
        while let Some(waiter) = self.waiters.pop_front() {
            self.answer(waiter, Err(to_waiters.clone()), wake);
        }
        self.reserve.refuse_all(&after_shutdown(reason), wake);
        while let Some(batch) = self.sealed.pop_front() {
            self.drop_sealed(batch);
        }
        wake.writers_all = true;
    }

    fn recycle(&mut self, buf: IoBuf) {
        if self.pool.len() < self.in_flight_max + 1 {
            self.pool.push(buf);
        }
    }
}

/// The error that calls after the shutdown get.
pub(crate) fn after_shutdown(reason: &Error) -> Error {
    match reason {
        Error::Shutdown(_) => reason.clone(),
        other => Error::Shutdown(other.to_string().into()),
    }
}
