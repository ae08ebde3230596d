//! Requests and completions of the asynchronous door, and a synchronous batch on top of it.

use crate::Device;
use kedge_base::{IoBuf, Result};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// What a request asks for. Buffers travel with the request and come back with its completion.
#[derive(Debug)]
pub enum Op {
    Read(IoBuf),
    Write { buf: IoBuf, fua: bool },
    Flush,
    Discard { len: u64 },
    WriteZeroes { len: u64 },
}

/// One request of a batch. `tag` is the caller's.
#[derive(Debug)]
pub struct Request {
    pub tag: u64,
    pub offset: u64,
    pub op: Op,
}

/// The answer to a [`Request`]: its tag, its operation (with the buffer) and how it went.
#[derive(Debug)]
pub struct Completion {
    pub tag: u64,
    pub op: Op,
    pub result: Result<()>,
}

/// Takes completions, on any thread. Must not block.
pub trait CompletionSink: Send + Sync {
    fn complete(&self, completion: Completion);
}

/// An operation of [`run_batch`].
#[derive(Debug)]
pub struct Io {
    pub offset: u64,
    pub op: Op,
}

struct Gather {
    state: Mutex<(usize, Vec<Option<Completion>>)>,
    done: Condvar,
}

impl CompletionSink for Gather {
    fn complete(&self, completion: Completion) {
        let mut state = self.state.lock();
        let slot = completion.tag as usize;
        assert!(state.1[slot].is_none(), "a request completes once");
        state.1[slot] = Some(completion);
        state.0 -= 1;
        if state.0 == 0 {
            self.done.notify_all();
        }
    }
}

/// Submits `ios` as one batch and waits for all. Answers in the order given.
pub fn run_batch(device: &dyn Device, ios: Vec<Io>) -> Vec<Completion> {
    let count = ios.len();
    if count == 0 {
        return Vec::new();
    }
    let gather =
        Arc::new(Gather { state: Mutex::new((count, (0..count).map(|_| None).collect())), done: Condvar::new() });
    let batch = ios
        .into_iter()
        .enumerate()
        .map(|(i, io)| Request { tag: i as u64, offset: io.offset, op: io.op })
        .collect();
    device.submit(batch, gather.clone());
    let mut state = gather.state.lock();
    while state.0 > 0 {
        gather.done.wait(&mut state);
    }
    std::mem::take(&mut state.1).into_iter().map(|c| c.expect("counted as complete")).collect()
}
