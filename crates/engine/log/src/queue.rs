//! Accounting of granted and waiting reservations.
//!
//! # Accounting
//! With `used = padded end of the open batch - tail`, a reservation is granted when
//!
//! `used + reserved + promised + charge (+ emergency, for normal ones) <= ring`.
//!
//! The sum of the first three is one atomic number ([`crate::room`]), so that most reservations
//! need no lock.
//!
//! The ring never overflows: an append increases `used` by no more than it takes from `reserved`,
//! and nothing else increases `used`. A record of `n` bytes is charged `n + RECORD_OVERHEAD` = `n +
//! FRAME_SIZE + HEADER_SIZE + BLOCK_SIZE`:
//! - If it joins a batch that holds records, of which `u` bytes are used, the padded size grows by
//!   `pad(u + FRAME_SIZE + n) - pad(u) <= FRAME_SIZE + n + BLOCK_SIZE - 1`;
//! - If it is the first of its batch, the previous batch was forced, sealed or full. That batch's
//!   padding is in `used` already, and `used` grows by `pad(HEADER_SIZE + FRAME_SIZE + n) <=
//!   HEADER_SIZE + FRAME_SIZE + n + BLOCK_SIZE - 1`.
//!
//! So each record pays for the padding after it, however many forces there are. The append of a
//! record returns the unused rest of its charge.
//!
//! # Fairness
//! Reservations are granted first come, first served within a class. A waiter that does not fit
//! blocks later ones; otherwise large reservations would starve. Reclaim reservations go before
//! normal ones, because they free space.

use crate::room::{ReserveClass, Room};
use crate::wait::{Parker, Signal, Wake};
use kedge_base::{BLOCK_SIZE, Error};
use kedge_format::logwrite::{FRAME_SIZE, HEADER_SIZE};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes that a record is charged in addition to its length.
pub const RECORD_OVERHEAD: u64 = (HEADER_SIZE + FRAME_SIZE + BLOCK_SIZE) as u64;

struct Waiter {
    charge: u64,
    parker: Arc<Parker>,
}

/// The accounting of granted reservations, and the queues of waiting ones.
pub(crate) struct ReserveQueue {
    pub room: Arc<Room>,
    pub staged_max: u64,
    normal: VecDeque<Waiter>,
    reclaim: VecDeque<Waiter>,
}

impl ReserveQueue {
    pub(crate) fn new(room: Arc<Room>, staged_max: u64) -> ReserveQueue {
        ReserveQueue { room, staged_max, normal: VecDeque::new(), reclaim: VecDeque::new() }
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        !self.normal.is_empty() || !self.reclaim.is_empty()
    }

    /// Returns the bytes held by reservations, given that the log used `used` bytes shortly before.
    /// Other threads reserve, append and return bytes concurrently. The result cannot be negative,
    /// because an append takes its bytes before it uses them.
    pub(crate) fn reserved(&self, used: u64) -> u64 {
        let given = used + self.room.promised();
        self.room.taken().checked_sub(given).expect("what the log uses and has promised is taken")
    }

    pub(crate) fn must_queue(&self, class: ReserveClass) -> bool {
        match class {
            ReserveClass::Normal => !self.reclaim.is_empty() || !self.normal.is_empty(),
            ReserveClass::Reclaim => !self.reclaim.is_empty(),
            ReserveClass::Checkpoint => false,
        }
    }

    /// Queues a reservation that must wait. Returns the parker on which its thread sleeps.
    pub(crate) fn enqueue(&mut self, charge: u64, class: ReserveClass) -> Arc<Parker> {
        let parker = Parker::new();
        let waiter = Waiter { charge, parker: parker.clone() };
        match class {
            ReserveClass::Normal => self.normal.push_back(waiter),
            ReserveClass::Reclaim => self.reclaim.push_back(waiter),
            ReserveClass::Checkpoint => panic!("a checkpoint's reservation never waits"),
        }
        parker
    }

    /// Grants waiting reservations in order while they fit.
    pub(crate) fn grant(&mut self, staged: u64, wake: &mut Wake) {
        while staged <= self.staged_max {
            let class = if self.reclaim.is_empty() { ReserveClass::Normal } else { ReserveClass::Reclaim };
            let queue = if class == ReserveClass::Normal { &self.normal } else { &self.reclaim };
            let Some(charge) = queue.front().map(|w| w.charge) else { return };
            if !self.room.try_take(charge, class) {
                return;
            }
            let queue = if class == ReserveClass::Normal { &mut self.normal } else { &mut self.reclaim };
            let waiter = queue.pop_front().expect("there is a front");
            wake.signals.push((waiter.parker, Signal::Done(Ok(()))));
        }
    }

    /// Returns the bytes beyond the tail that are in use, reserved, promised or requested by
    /// waiters.
    pub(crate) fn committed(&self) -> u64 {
        let waiting: u64 = self.normal.iter().chain(&self.reclaim).map(|waiter| waiter.charge).sum();
        self.room.taken() + waiting
    }

    /// Returns the parker of the reservation that will be granted next.
    pub(crate) fn first(&self) -> Option<&Arc<Parker>> {
        self.reclaim.front().or(self.normal.front()).map(|waiter| &waiter.parker)
    }

    pub(crate) fn refuse_all(&mut self, error: &Error, wake: &mut Wake) {
        for waiter in self.reclaim.drain(..).chain(self.normal.drain(..)) {
            wake.signals.push((waiter.parker, Signal::Done(Err(error.clone()))));
        }
    }
}
