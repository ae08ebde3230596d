//! Tokens of cached pages, approximately in the order in which the pages were added.
//!
//! Each new page adds a token. With one list under one lock, writes stopped scaling at that lock.
//! So each thread adds to the list of its stripe, and a list that is full moves as a whole to the
//! common queue. The order is exact within a stripe. A page may come too late by up to [`TOGETHER`]
//! pages of its own stripe, which is little compared with the smallest cache.

use kedge_base::atomic::{AtomicI64, Ordering::Relaxed};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{Ino, STRIPES, stripe};
use std::collections::VecDeque;

/// Number of tokens that move to the queue together.
const TOGETHER: usize = 32;

/// Identifies a page: its inode, and its index in the file.
pub(crate) type Token = (Ino, u64);

/// The tokens of a file system; see the module's head.
pub(crate) struct Tokens {
    lanes: [Lane; STRIPES],
    /// The common queue, oldest token first.
    queue: Mutex<VecDeque<Token>>,
    /// Number of tokens in the lanes and the queue.
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

    /// The number of tokens. Takes no lock, so a token that is being added or removed may be
    /// counted or not.
    pub(crate) fn len(&self) -> i64 {
        self.len.load(Relaxed)
    }

    pub(crate) fn push(&self, token: Token) {
        // The token is counted before it is added, so that the count is never below the number of
        // tokens.
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

    /// Removes and returns the oldest token of the queue. If the queue is empty, the tokens of the
    /// lanes move to it first.
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
