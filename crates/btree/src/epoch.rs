//! When memory may go that readers look at without holding it: epochs.
//!
//! # The rule
//! A reader *enters* and from then on counts as active in the epoch that it saw. Who takes something out of
//! the readers' sight *retires* it afterwards, stamped with the epoch of that moment. The epoch moves from
//! `e` to `e + 1` when nobody is active in `e - 1` any more; what is stamped `e` is dropped when the epoch is
//! `e + 2` or later.
//!
//! Why that is enough: a reader that entered in an epoch above the stamp saw the epoch move after the stamp
//! was taken, hence (both sides have a fence between) sees the thing gone and cannot get hold of it. The
//! others were active in epochs up to the stamp, and the epoch only got to stamp + 2 when they had left.
//!
//! # Cost
//! Entering and leaving each write one cache line that only threads of the same stripe write. Nobody waits
//! for anybody: as long as a reader stays, things retired pile up, and readers never stay longer than one
//! descent and one leaf latch.

use super::sync::{AtomicU64, Locked, Ordering::*, fence};
use std::collections::VecDeque;

/// Epochs that can have active readers or such as are about to notice that they came too late.
const LIVE: u64 = 3;
/// Things retired that are worth a look at all stripes.
const BATCH: usize = 32;

#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    active: [AtomicU64; LIVE as usize],
}

/// Keeps retired `T`s until no reader can see them.
pub(crate) struct Epochs<T> {
    now: AtomicU64,
    stripes: Box<[Stripe]>,
    retired: Locked<VecDeque<(u64, T)>>,
}

/// An active reader: nothing that it can see is dropped before this is.
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
    /// Threads that enter with different stripes do not meet.
    pub fn new(stripes: usize) -> Epochs<T> {
        Epochs {
            now: AtomicU64::new(1),
            stripes: (0..stripes).map(|_| Stripe::default()).collect(),
            retired: Locked::new(VecDeque::new()),
        }
    }

    #[inline]
    pub fn enter(&self, stripe: usize) -> Active<'_> {
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

    /// Takes over what readers can no longer find, and drops what nobody can still be looking at.
    pub fn retire(&self, things: impl IntoIterator<Item = T>) {
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

    /// Drops what can be dropped; without readers that is everything.
    pub fn collect(&self) {
        // Two steps make the newest stamp old enough.
        if self.advance() {
            self.advance();
        }
        let now = self.now.load(Acquire);
        let gone: Vec<(u64, T)> = self.retired.with(|retired| {
            // Stamps nearly ascend: one that came in late waits behind a younger one.
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
