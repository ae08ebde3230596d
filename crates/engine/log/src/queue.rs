//! Granted and waiting reservations.
//!
//! # Accounting
//! With `used` = padded end of the open batch - tail, a reservation is granted when
//!
//! `used + reserved + promised + charge (+ emergency, for normal ones) <= ring`.
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

use crate::wait::{Parker, Signal, Wake};
use kedge_base::{BLOCK_SIZE, Error};
use kedge_format::logwrite::{FRAME_SIZE, HEADER_SIZE};
use std::collections::VecDeque;
use std::sync::Arc;

/// The charge for a record beyond its own bytes.
pub const RECORD_OVERHEAD: u64 = (HEADER_SIZE + FRAME_SIZE + BLOCK_SIZE) as u64;
/// Smallest emergency reserve.
const EMERGENCY_MIN: u64 = 128 << 10;

/// The part of the ring that a reservation may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReserveClass {
    /// Ordinary operations. They must not use the emergency reserve.
    Normal,
    /// Operations that free space, or complete earlier work: unlink, truncate, writeback. They must
    /// not use [`CHECKPOINT_BYTES`].
    Reclaim,
    /// The records by which a checkpoint makes the tail move. Never waits
    /// ([`crate::Log::try_reserve`]): only the checkpoint itself could free the space, so waiting
    /// would deadlock.
    Checkpoint,
}

/// The part of the ring that only a checkpoint may use. It fits one of the checkpoint's records.
/// The next ones use the promised bytes that this record releases.
pub const CHECKPOINT_BYTES: u64 = 72 << 10;

/// The emergency reserve: bytes of the ring that normal reservations must not use.
pub(crate) fn emergency(ring: u64) -> u64 {
    // A ring has at least 1 MiB; only the tiny rings of tests reach the bound of one half.
    (ring / 8).max(EMERGENCY_MIN).min(ring / 2)
}

struct Waiter {
    charge: u64,
    parker: Arc<Parker>,
}

/// Granted and waiting reservations.
pub(crate) struct ReserveQueue {
    pub ring: u64,
    emergency: u64,
    pub staged_max: u64,
    pub reserved: u64,
    /// The most that was ever reserved at once.
    pub reserved_max: u64,
    pub promised: u64,
    normal: VecDeque<Waiter>,
    reclaim: VecDeque<Waiter>,
}

impl ReserveQueue {
    pub(crate) fn new(ring: u64, staged_max: u64) -> ReserveQueue {
        ReserveQueue {
            ring,
            emergency: emergency(ring),
            staged_max,
            reserved: 0,
            reserved_max: 0,
            promised: 0,
            normal: VecDeque::new(),
            reclaim: VecDeque::new(),
        }
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        !self.normal.is_empty() || !self.reclaim.is_empty()
    }

    pub(crate) fn take(&mut self, charge: u64) {
        self.reserved += charge;
        self.reserved_max = self.reserved_max.max(self.reserved);
    }

    pub(crate) fn give_back(&mut self, charge: u64) {
        self.reserved = self.reserved.checked_sub(charge).expect("returned bytes were reserved");
    }

    /// Bytes of the ring that reservations of `class` may fill.
    pub(crate) fn limit(&self, class: ReserveClass) -> u64 {
        match class {
            ReserveClass::Normal => self.ring - self.emergency,
            ReserveClass::Reclaim => self.ring - CHECKPOINT_BYTES.min(self.emergency / 2),
            ReserveClass::Checkpoint => self.ring,
        }
    }

    pub(crate) fn fits(&self, used: u64, charge: u64, class: ReserveClass) -> bool {
        used + self.reserved + self.promised + charge <= self.limit(class)
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
    pub(crate) fn grant(&mut self, used: u64, staged: u64, wake: &mut Wake) {
        while staged <= self.staged_max {
            let class = if self.reclaim.is_empty() { ReserveClass::Normal } else { ReserveClass::Reclaim };
            let queue = if class == ReserveClass::Normal { &self.normal } else { &self.reclaim };
            let Some(charge) = queue.front().map(|w| w.charge) else { return };
            if !self.fits(used, charge, class) {
                return;
            }
            let queue = if class == ReserveClass::Normal { &mut self.normal } else { &mut self.reclaim };
            let waiter = queue.pop_front().expect("there is a front");
            self.take(charge);
            wake.signals.push((waiter.parker, Signal::Done(Ok(()))));
        }
    }

    /// Bytes beyond the open batch that are granted, or will be.
    pub(crate) fn committed(&self) -> u64 {
        let waiting: u64 = self.normal.iter().chain(&self.reclaim).map(|waiter| waiter.charge).sum();
        self.reserved + self.promised + waiting
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
