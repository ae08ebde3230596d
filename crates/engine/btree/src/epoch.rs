//! Epoch-based reclamation: keeps frames alive that readers without latches may still be reading.
//!
//! # The rule
//! A reader *enters* by loading the current epoch, and is active in that epoch until it leaves. A
//! writer first makes an object unreachable and then *retires* it with the current epoch as its
//! stamp. The epoch advances from `e` to `e + 1` once no reader is active in `e - 1`. An object
//! with the stamp `e` is dropped when the epoch is `e + 2` or later.
//!
//! Why this is safe: a reader that entered in an epoch above the stamp saw the epoch advance after
//! the stamp was taken. Reader and writer each have a fence in between, so the reader sees that the
//! object is unreachable and cannot obtain a reference. All other readers were active in epochs up
//! to the stamp, and the epoch reached stamp + 2 only after they had left.
//!
//! # Cost
//! Entering and leaving each write one cache line, which only threads of the same stripe write. No
//! thread waits for another. Retired objects accumulate while a reader is active, but no reader is
//! active for longer than one descent and one leaf latch.

use super::sync::{AtomicU64, Locked, Ordering::*, fence};
use std::collections::VecDeque;

/// Number of consecutive epochs in which readers can be active, including readers that are about to
/// notice that the epoch has advanced.
const LIVE: u64 = 3;
/// Number of retired objects from which on a check of all stripes pays.
const BATCH: usize = 32;

#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    active: [AtomicU64; LIVE as usize],
}

/// Keeps each retired `T` until no reader can have a reference.
pub(crate) struct Epochs<T> {
    now: AtomicU64,
    stripes: Box<[Stripe]>,
    retired: Locked<VecDeque<(u64, T)>>,
}

/// An active reader. Objects that the reader can reach are not dropped before this guard.
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
    /// Makes epochs with `stripes` reader counts, each on a cache line of its own.
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

    /// Takes objects that new readers can no longer find, and drops retired objects that no reader
    /// can still be using.
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

    /// Drops every retired object that no reader can be using; without active readers, all of them.
    pub(crate) fn collect(&self) {
        // Two advances are needed before objects with the newest stamp can be dropped.
        if self.advance() {
            self.advance();
        }
        let now = self.now.load(Acquire);
        let gone: Vec<(u64, T)> = self.retired.with(|retired| {
            // Stamps are nearly ascending: an object with an older stamp may be queued after a
            // newer one, and is then dropped only together with the newer one.
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
