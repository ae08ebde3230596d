//! Requests and completions of the asynchronous interface, and a synchronous batch on top of it.

use crate::Device;
use kedge_base::wait::about_to_wait;
use kedge_base::{IoBuf, Result};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// The operation of a request. Buffers move with the request and come back with its completion.
#[derive(Debug)]
pub enum Op {
    Read(IoBuf),
    Write { buf: IoBuf, fua: bool },
    Flush,
    Discard { len: u64 },
    WriteZeroes { len: u64 },
}

impl Op {
    /// Its name in errors.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Read(_) => "read",
            Op::Write { .. } => "write",
            Op::Flush => "flush",
            Op::Discard { .. } => "discard",
            Op::WriteZeroes { .. } => "write_zeroes",
        }
    }

    /// Bytes of the range it works on.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Op::Read(buf) | Op::Write { buf, .. } => buf.len() as u64,
            Op::Flush => 0,
            Op::Discard { len } | Op::WriteZeroes { len } => *len,
        }
    }
}

/// Serves one operation through the device's synchronous interface.
fn perform(device: &dyn Device, offset: u64, op: &mut Op) -> Result<()> {
    match op {
        Op::Read(buf) => device.read(offset, buf),
        Op::Write { buf, fua } => device.write(offset, buf, *fua),
        Op::Flush => device.flush(),
        Op::Discard { len } => device.discard(offset, *len),
        Op::WriteZeroes { len } => device.write_zeroes(offset, *len),
    }
}

/// [`Device::submit`] for devices whose requests never wait: everything is done and answered before
/// it returns.
pub(crate) fn submit_inline(device: &dyn Device, batch: Vec<Request>, sink: &dyn CompletionSink) {
    for Request { tag, offset, mut op } in batch {
        let result = perform(device, offset, &mut op);
        sink.complete(Completion { tag, op, result });
    }
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

/// Submits `ios` as one batch and waits for all. Returns the completions in the order of `ios`.
pub fn run_batch(device: &dyn Device, mut ios: Vec<Io>) -> Vec<Completion> {
    let count = ios.len();
    if count <= 1 {
        // A single operation gains nothing from another thread and would pay two switches for it.
        return ios
            .drain(..)
            .map(|Io { offset, mut op }| {
                let result = perform(device, offset, &mut op);
                Completion { tag: 0, op, result }
            })
            .collect();
    }
    let gather = Arc::new(Gather {
        state: Mutex::new((count, (0..count).map(|_| None).collect())),
        done: Condvar::new(),
    });
    let batch = ios
        .into_iter()
        .enumerate()
        .map(|(i, io)| Request { tag: i as u64, offset: io.offset, op: io.op })
        .collect();
    about_to_wait();
    device.submit(batch, gather.clone());
    let mut state = gather.state.lock();
    while state.0 > 0 {
        gather.done.wait(&mut state);
    }
    std::mem::take(&mut state.1).into_iter().map(|c| c.expect("counted as complete")).collect()
}
