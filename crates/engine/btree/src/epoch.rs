//! Epoch-based reclamation of frames that readers without latches may still be reading.
//!
//! # The rule
//! A reader *enters*, and from then on is active in the epoch that it loaded. A writer first makes
//! an object unreachable and then *retires* it, stamped with the current epoch. The epoch advances
//! from `e` to `e + 1` once no reader is active in `e - 1`. An object stamped `e` is dropped when
//! the epoch is `e + 2` or later.
//!
//! Why that is enough: a reader that entered in an epoch above the stamp saw the epoch advance
//! after the stamp was taken. Both sides have a fence in between, so the reader sees that the
//! object is unreachable and cannot obtain a reference. All other readers were active in epochs up
//! to the stamp, and the epoch reached stamp + 2 only after they had left.
//!
//! # Cost
//! Entering and leaving each write one cache line, which only threads of the same stripe write. No
//! thread waits for another. Retired objects accumulate while a reader stays, but readers never
//! stay longer than one descent and one leaf latch.

use super::sync::{AtomicU64, Locked, Ordering::*, fence};
use std::collections::VecDeque;

/// Epochs that can have active readers, or readers that are about to notice that the epoch has
/// advanced.
const LIVE: u64 = 3;
/// Number of retired objects at which a check of all stripes pays.
const BATCH: usize = 32;

#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    active: [AtomicU64; LIVE as usize],
}

/// Keeps each retired `T` until no reader can see it.
pub(crate) struct Epochs<T> {
    now: AtomicU64,
    stripes: Box<[Stripe]>,
    retired: Locked<VecDeque<(u64, T)>>,
}

/// An active reader: no object that it can see is dropped before this guard.
pub(crate) struct Active<'a> {
    count: &'a AtomicU64,
}

impl Drop for Active<'_> {
    #[inline]
    fn drop(&mut self) {
        self.count.fetch_sub(1, Release);
    }
}

impl<T> Epochs<T> {
    /// Threads that enter with different stripes write different cache lines.
    pub(crate) fn new(stripes: usize) -> Epochs<T> {
        Epochs {
            now: AtomicU64::new(1),
            stripes: (0..stripes).map(|_| Stripe::default()).collect(),
            retired: Locked::new(VecDeque::new()),
        }
    }

    #[inline]
    pub(crate) fn enter(&self, stripe: usize) -> Active<'_> {
        loop {
            let epoch = self.now.load(Acquire);
            let count = &self.stripes[stripe % self.stripes.len()].active[(epoch % LIVE) as usize];
            count.fetch_add(1, AcqRel);
            fence(SeqCst);
            if self.now.load(Acquire) == epoch {
                return Active { count };
            }
            count.fetch_sub(1, Release);
        }
    }

    /// Takes over objects that new readers can no longer find, and drops those that no reader can
    /// still be using.
    pub(crate) fn retire(&self, things: impl IntoIterator<Item = T>) {
        fence(SeqCst);
        let stamp = self.now.load(Acquire);
        let full = self.retired.with(|retired| {
            retired.extend(things.into_iter().map(|t| (stamp, t)));
            retired.len() >= BATCH
        });
        if full {
            self.collect();
        }
    }

    /// Drops every object that no reader can see; without readers, all of them.
    pub(crate) fn collect(&self) {
        // Two steps make the newest stamp old enough.
        if self.advance() {
            self.advance();
        }
        let now = self.now.load(Acquire);
        let gone: Vec<(u64, T)> = self.retired.with(|retired| {
            // Stamps are nearly ascending: an object with an older stamp may be queued after a
            // newer one, and then waits for it.
            let ready = retired.iter().take_while(|(stamp, _)| stamp + 2 <= now).count();
            retired.drain(..ready).collect()
        });
        drop(gone);
    }

    fn advance(&self) -> bool {
        let epoch = self.now.load(Acquire);
        fence(SeqCst);
        let before = ((epoch + LIVE - 1) % LIVE) as usize;
        if self.stripes.iter().any(|s| s.active[before].load(Acquire) > 0) {
            return false;
        }
        self.now.compare_exchange(epoch, epoch + 1, AcqRel, Acquire).is_ok()
    }
}
