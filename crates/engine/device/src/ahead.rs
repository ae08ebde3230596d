//! Read-ahead for a sequential reader: several reads are in flight, and their results are returned
//! in the order of the requests.
//!
//! Sequential reads one at a time cost a round trip each, and on a device that another machine
//! serves the round trips are nearly the whole cost. So the caller requests early what it will
//! need, and takes the results one by one.
//!
//! # Errors
//! Each result stands alone. A failed read says nothing about the other reads, and is not reported
//! if the caller never takes its result: only the caller knows whether it needs those bytes.
//!
//! # The end
//! Dropping [`ReadAhead`] drops the results that were not taken, even if the device is still
//! working on some of the reads. This is safe: a read changes nothing, its buffer is freed with its
//! completion, and a device completes all requests before it closes. The rejected alternative is to
//! wait for these reads: a bad sector that the caller does not need could then delay the caller.
//!
//! Memory is bounded by the reads that the caller has requested and not taken. Lock: one leaf, not
//! held during a request.

use crate::{Completion, CompletionSink, Device, Op, Request};
use kedge_base::lock::{Condvar, Mutex, Rank};
use kedge_base::wait::about_to_wait;
use kedge_base::{Error, IoBuf, Result};
use std::collections::VecDeque;
use std::sync::Arc;

pub struct ReadAhead<'a> {
    device: &'a dyn Device,
    answers: Arc<Completions>,
}

struct Completions {
    window: Mutex<Window>,
    came: Condvar,
}

/// Reads that were requested and not taken, oldest first.
#[derive(Default)]
struct Window {
    /// The tag of the oldest read.
    first: u64,
    slots: VecDeque<Slot>,
}

struct Slot {
    offset: u64,
    len: u64,
    answer: Option<Result<IoBuf>>,
}

impl CompletionSink for Completions {
    fn complete(&self, completion: Completion) {
        let mut window = self.window.lock();
        // Only completed reads leave the window, so the tag of a completion is at least `first`.
        let place = completion.tag.checked_sub(window.first).map(|place| place as usize);
        let slot = place.and_then(|place| window.slots.get_mut(place));
        let slot = slot.expect("a completion belongs to a read that was requested and has not completed");
        slot.answer = Some(match (completion.result, completion.op) {
            (Ok(()), Op::Read(buf)) => Ok(buf),
            (Ok(()), _) => {
                Err(Error::Io { op: "read", offset: slot.offset, len: slot.len, errno: libc::EIO })
            }
            (Err(e), _) => Err(e),
        });
        drop(window);
        self.came.notify_one();
    }
}

impl<'a> ReadAhead<'a> {
    pub fn new(device: &'a dyn Device) -> ReadAhead<'a> {
        let window = Mutex::with_order(Rank::Leaf, u64::MAX, Window::default());
        ReadAhead { device, answers: Arc::new(Completions { window, came: Condvar::new() }) }
    }

    /// Starts reads, each given by its offset in bytes and its length in blocks, as one batch for
    /// the device.
    pub fn ask(&mut self, reads: impl IntoIterator<Item = (u64, usize)>) {
        let mut batch = Vec::new();
        let mut window = self.answers.window.lock();
        for (offset, blocks) in reads {
            let buf = IoBuf::zeroed(blocks);
            let tag = window.first + window.slots.len() as u64;
            window.slots.push_back(Slot { offset, len: buf.len() as u64, answer: None });
            batch.push(Request { tag, offset, op: Op::Read(buf) });
        }
        drop(window);
        if !batch.is_empty() {
            self.device.submit(batch, self.answers.clone());
        }
    }

    /// Returns the number of reads that were requested and not taken.
    pub fn asked(&self) -> usize {
        self.answers.window.lock().slots.len()
    }

    /// Takes the result of the oldest read, and waits for it if necessary. Returns `None` if no
    /// read is left.
    pub fn take(&mut self) -> Option<Result<IoBuf>> {
        let mut window = self.answers.window.lock();
        window.slots.front()?;
        if window.slots.front().is_some_and(|slot| slot.answer.is_none()) {
            about_to_wait();
        }
        while window.slots.front().is_some_and(|slot| slot.answer.is_none()) {
            self.answers.came.wait(&mut window);
        }
        window.first += 1;
        window.slots.pop_front()?.answer
    }
}

#[cfg(test)]
#[path = "ahead_tests.rs"]
mod tests;
