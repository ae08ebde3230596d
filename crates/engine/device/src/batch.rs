//! Synchronous calls for batches of the asynchronous interface, and an asynchronous interface for
//! devices whose requests never wait.

use crate::interface::Device;
use crate::request::{Completion, CompletionSink, Io, Op, Request};
use kedge_base::Result;
use kedge_base::lock::{Condvar, Mutex, Rank};
use kedge_base::wait::about_to_wait;
use std::sync::Arc;

/// Performs one operation through the device's synchronous interface.
pub(crate) fn perform(device: &dyn Device, offset: u64, op: &mut Op) -> Result<()> {
    match op {
        Op::Read(buf) => device.read(offset, buf),
        Op::Write { buf, fua } => device.write(offset, buf, *fua),
        Op::Flush => device.flush(),
        Op::Discard { len } => device.discard(offset, *len),
        Op::WriteZeroes { len } => device.write_zeroes(offset, *len),
    }
}

/// Implements [`Device::submit`] for devices whose requests never wait: every request completes
/// before the function returns.
pub(crate) fn submit_inline(device: &dyn Device, batch: Vec<Request>, sink: &dyn CompletionSink) {
    for Request { tag, offset, mut op } in batch {
        let result = perform(device, offset, &mut op);
        sink.complete(Completion { tag, op, result });
    }
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

impl Gather {
    fn new(count: usize) -> Arc<Gather> {
        let state = Mutex::with_order(Rank::Leaf, u64::MAX, (count, (0..count).map(|_| None).collect()));
        Arc::new(Gather { state, done: Condvar::new() })
    }

    fn wait(&self) -> Vec<Completion> {
        let mut state = self.state.lock();
        while state.0 > 0 {
            self.done.wait(&mut state);
        }
        std::mem::take(&mut state.1).into_iter().map(|c| c.expect("counted as complete")).collect()
    }
}

fn requests(ios: Vec<Io>, first_tag: u64) -> Vec<Request> {
    (first_tag..).zip(ios).map(|(tag, Io { offset, op })| Request { tag, offset, op }).collect()
}

/// Submits `ios` as one batch and waits for all requests. Returns the completions in the order of
/// `ios`.
pub fn run_batch(device: &dyn Device, mut ios: Vec<Io>) -> Vec<Completion> {
    let count = ios.len();
    if count <= 1 {
        // A single operation gains nothing from another thread and would cost two thread switches.
        return ios
            .drain(..)
            .map(|Io { offset, mut op }| {
                let result = perform(device, offset, &mut op);
                Completion { tag: 0, op, result }
            })
            .collect();
    }
    let gather = Gather::new(count);
    about_to_wait();
    device.submit(requests(ios, 0), gather.clone());
    gather.wait()
}

/// Submits each group as a separate batch ([`Device::submit_apart`]) and waits for all groups. No
/// group waits for another. Returns the completions in the order of the groups.
pub fn run_apart(device: &dyn Device, mut groups: Vec<Vec<Io>>) -> Vec<Completion> {
    groups.retain(|group| !group.is_empty());
    if groups.len() <= 1 {
        return run_batch(device, groups.pop().unwrap_or_default());
    }
    let gather = Gather::new(groups.iter().map(Vec::len).sum());
    about_to_wait();
    let mut tag = 0;
    for group in groups {
        let count = group.len() as u64;
        device.submit_apart(requests(group, tag), gather.clone());
        tag += count;
    }
    gather.wait()
}
