//! The state under the log's mutex, and its transitions. No function waits or does IO. Wake-ups to
//! be made after the mutex is released are collected in a [`Wake`].

use crate::backing::{Backing, spare};
use crate::batch::{Asked, Batch, Wanted, Write};
use crate::config::{IN_FLIGHT_MAX, LogConfig};
use crate::queue::ReserveQueue;
use crate::ring::Ring;
use crate::room::{DEAD, HOLES, ReserveClass, Room, STAGED, WAITED};
use crate::stats::ForceCause;
use crate::tip::Tip;
use crate::wait::{Callback, ForceWaiter, Parker, Signal, WaiterKind, Wake};
use kedge_base::JoinHandle;
use kedge_base::broken::{self, Variant};
use kedge_base::trace::{self, Event};
use kedge_base::{BLOCK_SIZE, Epoch, Error, IoBuf, Lsn, Result};
use kedge_format::logwrite::WRITE_BLOCKS_MAX;
use std::collections::VecDeque;
use std::sync::Arc;

struct InFlight {
    end: Lsn,
    /// Number of forces that the write completes.
    forces: u32,
    done: bool,
}

pub(crate) struct State {
    /// Maximum number of log writes in flight. Fixed after opening.
    pub in_flight_max: usize,

    /// The end of the open batch. Appends change it without the mutex.
    pub tip: Arc<Tip>,
    /// The forces whose target is in the open batch.
    pub wanted: Wanted,
    /// Closed batches that no leader has taken yet, in LSN order; the open batch follows them.
    pub sealed: VecDeque<Batch>,
    /// Batches that leaders have taken, in LSN order; `sealed` follows them. A completed batch
    /// keeps its slot until all earlier ones have completed. So no write starts more than
    /// `in_flight_max` writes after the durable prefix. Recovery relies on this bound.
    in_flight: VecDeque<InFlight>,
    /// End of the last batch that a leader has taken.
    pub taken: Lsn,
    pub durable: Lsn,
    pub tail: Lsn,
    /// Start of every log write from `tail` on that this mount made. Used to reject a tail in the
    /// middle of a write.
    pub write_starts: VecDeque<Lsn>,

    /// Bytes in sealed batches and in writes in flight.
    pub staged: u64,
    pub reserve: ReserveQueue,
    pub backing: Backing,

    /// Waiting forces, sorted by target.
    pub waiters: VecDeque<ForceWaiter>,
    /// Results of asynchronous forces that writer threads must deliver.
    pub answers: VecDeque<(Callback, Result<()>)>,

    /// The reason of the shutdown, after a shutdown.
    pub dead: Option<Error>,
    /// The log is being stopped: writer threads finish their work and end, and none is started.
    pub stopping: bool,
    pub threads: Vec<JoinHandle<()>>,
    /// Number of `threads` that wait for work or have not yet checked for work the first time.
    pub threads_waiting: usize,
    /// Buffers of completed writes, kept to avoid allocations and page faults.
    pool: Vec<IoBuf>,
}

impl State {
    pub(crate) fn new(config: &LogConfig, ring: Ring, backing: Backing) -> State {
        let usable = ring.bytes().min(config.use_bytes_max);
        let room = Arc::new(Room::new(usable, config.head.0 - config.tail.0));
        let batch_bytes_max = (u64::from(WRITE_BLOCKS_MAX) * BLOCK_SIZE as u64).min(ring.bytes());
        let state = State {
            in_flight_max: config.in_flight_max.clamp(1, IN_FLIGHT_MAX),
            tip: Arc::new(Tip::new(config.head, batch_bytes_max)),
            wanted: Wanted::NOT,
            sealed: VecDeque::new(),
            in_flight: VecDeque::new(),
            taken: config.head,
            durable: config.head,
            tail: config.tail,
            write_starts: VecDeque::new(),
            staged: 0,
            reserve: ReserveQueue::new(room, config.staged_bytes_max),
            backing,
            waiters: VecDeque::new(),
            answers: VecDeque::new(),
            dead: None,
            stopping: false,
            threads: Vec::new(),
            threads_waiting: 0,
            pool: Vec::new(),
        };
        state.note_flags();
        state
    }

    /// Updates the flags that reservations check without the lock. Called after each change of a
    /// value that the flags depend on.
    pub(crate) fn note_flags(&self) {
        let flag = |flag: u64, is: bool| if is { flag } else { 0 };
        self.reserve.room.set_flags(
            flag(WAITED, self.reserve.is_waited_for())
                | flag(STAGED, self.is_short_of_memory())
                | flag(DEAD, self.dead.is_some())
                | flag(HOLES, self.backing.hole().is_some()),
        );
    }

    /// Returns the number of slots in use.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the number of forces that the writes in flight will complete.
    pub(crate) fn forces_in_flight(&self) -> u32 {
        self.in_flight.iter().filter(|w| !w.done).map(|w| w.forces).sum()
    }

    /// Returns the bytes of the ring between the tail and the padded end of the open batch. Appends
    /// may increase the value at any time.
    pub(crate) fn used(&self) -> u64 {
        self.tip.end().0 - self.tail.0
    }

    /// Returns the reason of the shutdown as an error if the log is shut down.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match &self.dead {
            None => Ok(()),
            Some(reason) => Err(after_shutdown(reason)),
        }
    }

    /// Closes the open batch if it holds records; the next batch starts after its padding.
    fn close_open(&mut self) -> Option<Batch> {
        let (base, head) = self.tip.close()?;
        let batch = Batch { base, head, wanted: std::mem::replace(&mut self.wanted, Wanted::NOT) };
        trace::note(|| Event::Sealed { end: batch.end() });
        self.staged += batch.padded();
        self.note_flags();
        self.write_starts.push_back(base);
        Some(batch)
    }

    /// Closes the open batch if it holds records, and queues it for writing.
    pub(crate) fn seal_open(&mut self, wake: &mut Wake) {
        let Some(batch) = self.close_open() else { return };
        if self.dead.is_some() {
            // A batch sealed after a shutdown is never written, and the queue of sealed batches
            // must not grow without bound.
            self.drop_sealed(&batch);
        } else {
            self.sealed.push_back(batch);
            self.pump(wake);
        }
    }

    fn drop_sealed(&mut self, batch: &Batch) {
        self.staged -= batch.padded();
        self.note_flags();
    }

    /// Hands the oldest unwritten batch to the caller. The caller must write it, and call
    /// [`State::leave`] and then [`State::complete`] or [`State::latch`].
    pub(crate) fn take(&mut self, epoch: Epoch, wake: &mut Wake) -> Write {
        let batch = self.sealed.pop_front().or_else(|| self.close_open()).expect("there is a batch to write");
        assert_eq!(batch.base, self.taken, "batches are written in order");
        self.taken = batch.end();
        self.in_flight.push_back(InFlight { end: self.taken, forces: batch.wanted.forces, done: false });
        self.pump(wake);
        batch.into_write(self.pool.pop().unwrap_or_default(), epoch, self.tail, self.durable)
    }

    /// Called when a leader's write has ended, successfully or not. Frees its buffer and memory
    /// budget.
    pub(crate) fn leave(&mut self, write: Write) {
        self.staged -= write.header.end_lsn().0 - write.header.lsn.0;
        self.note_flags();
        self.recycle(write.buf);
    }

    /// Records that the write ending at `end` is on the device: advances the durable prefix and
    /// completes the forces whose target is now durable.
    pub(crate) fn complete(&mut self, end: Lsn, wake: &mut Wake) {
        let slot = self.in_flight.iter_mut().find(|w| w.end == end).expect("a write in flight is listed");
        slot.done = true;
        trace::note(|| Event::LogDone { end });
        while self.in_flight.front().is_some_and(|w| w.done) {
            self.durable = self.durable.max(self.in_flight.pop_front().expect("there is a front").end);
        }
        if broken::is(Variant::AckOutOfOrder) {
            // Broken on purpose: the write counts as durable although earlier writes have not
            // completed.
            self.durable = self.durable.max(end);
        }
        trace::note(|| Event::Durable { lsn: self.durable });
        while self.waiters.front().is_some_and(|w| w.target <= self.durable) {
            let waiter = self.waiters.pop_front().expect("there is a front");
            self.answer(waiter, Ok(()), wake);
        }
    }

    fn answer(&mut self, waiter: ForceWaiter, result: Result<()>, wake: &mut Wake) {
        match waiter.kind {
            WaiterKind::Thread(parker) => wake.signals.push((parker, Signal::Done(result))),
            WaiterKind::Callback(done) => {
                self.answers.push_back((done, result));
                wake.answers = true;
            }
        }
    }

    /// Latches shutdown, if it is not latched yet. Waiting forces fail with `to_waiters`.
    pub(crate) fn latch(&mut self, reason: &Error, to_waiters: &Error, wake: &mut Wake) {
        if self.dead.is_some() {
            return;
        }
        self.dead = Some(reason.clone());
        self.note_flags();
        while let Some(waiter) = self.waiters.pop_front() {
            self.answer(waiter, Err(to_waiters.clone()), wake);
        }
        self.reserve.refuse_all(&after_shutdown(reason), wake);
        self.note_flags();
        while let Some(batch) = self.sealed.pop_front() {
            self.drop_sealed(&batch);
        }
        wake.writers_all = true;
    }

    fn recycle(&mut self, buf: IoBuf) {
        if self.pool.len() < self.in_flight_max {
            self.pool.push(buf);
        }
    }

    // ----- forces: see `force` -----

    /// Returns whether a leader may take the next batch now.
    pub(crate) fn may_start(&self) -> bool {
        let gathered = !self.sealed.is_empty() || self.wanted.forces >= self.forces_in_flight().max(1);
        gathered && self.in_flight() < self.in_flight_max
    }

    fn first_unwritten_waiter(&self) -> Option<&ForceWaiter> {
        self.waiters.get(self.waiters.partition_point(|w| w.target <= self.taken))
    }

    /// Wakes a thread to lead a write if a write is requested and a slot is free.
    pub(crate) fn pump(&mut self, wake: &mut Wake) {
        if self.dead.is_some() || !self.may_start() {
            return;
        }
        match self.first_unwritten_waiter() {
            Some(ForceWaiter { kind: WaiterKind::Thread(parker), .. }) => {
                wake.signals.push((parker.clone(), Signal::Look));
            }
            Some(_) => wake.writer = true,
            None => wake.writer |= !self.sealed.is_empty(),
        }
    }

    /// Returns whether a writer thread should lead a write. Full batches are written without a
    /// request, and for forces with a callback only writer threads write.
    pub(crate) fn writer_may_lead(&self) -> bool {
        self.dead.is_none()
            && self.may_start()
            && (!self.sealed.is_empty()
                || self.first_unwritten_waiter().is_some_and(|w| matches!(w.kind, WaiterKind::Callback(_))))
    }

    /// Counts a force in the batch with its target. Sealed batches are written in any case, so only
    /// the open batch counts its forces.
    pub(crate) fn count_target(&mut self, target: Lsn, cause: ForceCause) {
        let asked = Asked::by(cause);
        if target > self.tip.base() {
            self.wanted.forces += 1;
            self.wanted.asked = self.wanted.asked.max(asked);
        } else if let Some(batch) = self.sealed.iter_mut().rfind(|batch| batch.base < target) {
            batch.wanted.asked = batch.wanted.asked.max(asked);
        }
    }

    /// Inserts a force into the waiters, sorted by target.
    pub(crate) fn enqueue(&mut self, waiter: ForceWaiter) {
        // Targets mostly grow with time, so the position is at or near the end.
        let at = self.waiters.iter().rposition(|w| w.target <= waiter.target).map_or(0, |i| i + 1);
        self.waiters.insert(at, waiter);
    }

    // ----- reservations: see `queue` -----

    /// Grants the waiting reservations that fit now. Called after every change that may have freed
    /// space.
    pub(crate) fn grant(&mut self, wake: &mut Wake) {
        if self.reserve.is_waited_for() {
            self.reserve.grant(self.staged, wake);
            let used = self.used();
            self.reserve.room.note_reserved(self.reserve.room.taken(), used);
            self.note_flags();
        }
    }

    /// Queues a reservation that must wait and returns the parker on which its thread sleeps. If
    /// another thread returned bytes before it saw the waiter, the reservation is granted here.
    pub(crate) fn enqueue_reservation(
        &mut self,
        charge: u64,
        class: ReserveClass,
        wake: &mut Wake,
    ) -> Arc<Parker> {
        let parker = self.reserve.enqueue(charge, class);
        self.note_flags();
        // Broken on purpose: bytes that another thread has just returned go unnoticed.
        if !broken::is(Variant::UngrantedReturn) {
            self.grant(wake);
        }
        parker
    }

    /// Returns whether reservations must wait until sealed batches reach the device.
    pub(crate) fn is_short_of_memory(&self) -> bool {
        self.staged > self.reserve.staged_max
    }

    /// Wakes the first waiting reservation so that its thread requests space again. This thread
    /// does not make the request itself, because it may hold a lock that the request needs.
    pub(crate) fn nudge(&self, wake: &mut Wake) {
        if let Some(parker) = self.reserve.first()
            && !self.is_short_of_memory()
        {
            wake.signals.push((parker.clone(), Signal::Look));
        }
    }

    /// Grants a reservation, or returns what it has to wait for.
    pub(crate) fn reserve_now(&mut self, charge: u64, class: ReserveClass) -> Option<Lacks> {
        if self.is_short_of_memory() && class != ReserveClass::Checkpoint {
            return Some(Lacks::Memory);
        }
        if self.reserve.must_queue(class) || !self.reserve.room.try_take(charge, class) {
            return Some(Lacks::Space);
        }
        None
    }

    /// Returns whether the ring has no hole within the bytes that a reservation of `charge` could
    /// use.
    pub(crate) fn is_backed(&self, ring: u64, charge: u64, class: ReserveClass) -> bool {
        self.backing
            .hole()
            .is_none_or(|hole| self.tail.0 + self.reserve.committed() + charge + spare(ring, class) <= hole.0)
    }
}

/// What a reservation has to wait for.
pub(crate) enum Lacks {
    Space,
    Memory,
}

/// Returns the error of calls after a shutdown for `reason`.
pub(crate) fn after_shutdown(reason: &Error) -> Error {
    match reason {
        Error::Shutdown(_) => reason.clone(),
        other => Error::Shutdown(other.to_string().into()),
    }
}
