//! Tokens of cached pages, about in the order in which the pages came.
//!
//! Each new page adds a token, so one list with one lock was the lock at which writes stopped
//! scaling. Threads therefore add to lists of their own stripe, and a list that is full moves to
//! the common one as a whole. The order is exact within a stripe. A page of another stripe is at
//! most [`TOGETHER`] pages of its stripe too late, which is little beside the smallest cache.

use kedge_base::atomic::{AtomicI64, Ordering::Relaxed};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{Ino, STRIPES, stripe};
use std::collections::VecDeque;

/// Tokens that move together.
const TOGETHER: usize = 32;

/// A page: its inode, and its place there.
pub(crate) type Token = (Ino, u64);

/// See the module.
pub(crate) struct Tokens {
    lanes: [Lane; STRIPES],
    /// Oldest first.
    queue: Mutex<VecDeque<Token>>,
    /// In the lanes and the queue.
    len: AtomicI64,
}

/// The newest tokens of a stripe of threads, on cache lines of their own.
#[repr(align(128))]
struct Lane(Mutex<Vec<Token>>);

impl Tokens {
    pub(crate) fn new() -> Tokens {
        Tokens {
            lanes: std::array::from_fn(|_| Lane(Mutex::new(Rank::Leaf, Vec::new()))),
            queue: Mutex::new(Rank::Leaf, VecDeque::new()),
            len: AtomicI64::new(0),
        }
    }

    /// Takes no lock; a token that is just being added or taken may be counted or not.
    pub(crate) fn len(&self) -> i64 {
        self.len.load(Relaxed)
    }

    pub(crate) fn push(&self, token: Token) {
        // Counted first, so that the number is never below what there is to take.
        self.len.fetch_add(1, Relaxed);
        let mut lane = self.lanes[stripe()].0.lock();
        lane.push(token);
        if lane.len() < TOGETHER {
            return;
        }
        let full = std::mem::replace(&mut *lane, Vec::with_capacity(TOGETHER));
        drop(lane);
        self.queue.lock().extend(full);
    }

    /// Takes the oldest token of the queue. An empty queue first gets what the lanes have.
    pub(crate) fn pop(&self) -> Option<Token> {
        let oldest = self.queue.lock().pop_front();
        let token = oldest.or_else(|| self.pop_of_lanes())?;
        self.len.fetch_sub(1, Relaxed);
        Some(token)
    }

    fn pop_of_lanes(&self) -> Option<Token> {
        let rest: Vec<Token> =
            self.lanes.iter().flat_map(|lane| std::mem::take(&mut *lane.0.lock())).collect();
        let mut queue = self.queue.lock();
        queue.extend(rest);
        queue.pop_front()
    }
}

#[cfg(test)]
#[path = "tokens_tests.rs"]
mod tests;
