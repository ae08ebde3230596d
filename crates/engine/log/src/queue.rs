//! Granted and waiting reservations.
//!
//! # Accounting
//! With `used` = padded end of the open batch - tail, a reservation is granted when
//!
//! `used + reserved + promised + charge (+ emergency, for normal ones) <= ring`.
//!
//! The sum of the first three is one atomic number ([`crate::room`]), so that most reservations
//! need no lock.
//!
//! The ring never overflows: an append makes `used` grow by no more than it takes from `reserved`,
//! and nothing else makes `used` grow. A record of `n` bytes is charged `n + RECORD_OVERHEAD` = `n
//! + FRAME_SIZE + HEADER_SIZE + BLOCK_SIZE`:
//! - If it joins a batch that holds records, of which `u` bytes are used, the padded size grows by
//!   `pad(u + FRAME_SIZE + n) - pad(u) <= FRAME_SIZE + n + BLOCK_SIZE - 1`;
//! - If it is the first of its batch, the previous batch was forced, sealed or full. Its padding is
//!   in `used` already, and `used` grows by `pad(HEADER_SIZE + FRAME_SIZE + n) <= HEADER_SIZE +
//!   FRAME_SIZE + n + BLOCK_SIZE - 1`.
//!
//! So each record pays for the padding after it, however many forces there are. Its append returns
//! the unused part of its charge.
//!
//! # Fairness
//! First come, first served within a class. A waiter that does not fit blocks later ones; otherwise
//! large reservations would starve. Reclaim goes before normal, because it frees space.

use crate::room::{ReserveClass, Room};
use crate::wait::{Parker, Signal, Wake};
use kedge_base::{BLOCK_SIZE, Error};
use kedge_format::logwrite::{FRAME_SIZE, HEADER_SIZE};
use std::collections::VecDeque;
use std::sync::Arc;

/// The charge for a record beyond its own bytes.
pub const RECORD_OVERHEAD: u64 = (HEADER_SIZE + FRAME_SIZE + BLOCK_SIZE) as u64;

struct Waiter {
    charge: u64,
    parker: Arc<Parker>,
}

/// Granted and waiting reservations.
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

    /// Bytes held by reservations, of a log that used `used` just before. Other threads reserve,
    /// append and return bytes meanwhile: what they append is taken before it is used.
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

    /// Queues a reservation that must wait. Returns where its thread sleeps.
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

    /// Grants waiting reservations from the front while they fit.
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

    /// Bytes beyond the tail that are used, granted, or will be granted.
    pub(crate) fn committed(&self) -> u64 {
        let waiting: u64 = self.normal.iter().chain(&self.reclaim).map(|waiter| waiter.charge).sum();
        self.room.taken() + waiting
    }

    /// The thread of the reservation that is granted next.
    pub(crate) fn first(&self) -> Option<&Arc<Parker>> {
        self.reclaim.front().or(self.normal.front()).map(|waiter| &waiter.parker)
    }

    pub(crate) fn refuse_all(&mut self, error: &Error, wake: &mut Wake) {
        for waiter in self.reclaim.drain(..).chain(self.normal.drain(..)) {
            wake.signals.push((waiter.parker, Signal::Done(Err(error.clone()))));
        }
    }
}
