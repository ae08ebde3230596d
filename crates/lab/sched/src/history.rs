//! Concurrent operations and their judge. By the reference model, the results must fit some order
//! of the operations in which each lies between its call and its return (linearizability). A crash
//! must leave what the oracle allows after one of these orders. An operation whose result the model
//! leaves open fits no order, so scenarios do not use such operations.

use kedge_device::MemDevice;
use kedge_device::sim::{Choice, SimDevice};
use kedge_sim::crash::{self, Promise, check_view};
use kedge_sim::model::Model;
use kedge_sim::ops::{Executor, Op, Outcome, print_ops};
use kedge_sim::view::{Depth, View, compare_trees};
use kedgefs::FileSystem;
use parking_lot::Mutex;
use std::sync::Arc;

/// An operation of a thread: when it was called, and, once it has returned, when and with which
/// result.
#[derive(Clone, Debug)]
pub struct Call {
    pub thread: usize,
    pub op: Op,
    begun: u64,
    ended: Option<(u64, Outcome)>,
}

/// All calls of a run so far. The clock counts calls and returns.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    clock: u64,
    calls: Vec<Call>,
}

/// The medium that a power failure left, and the calls until then.
pub struct Crash {
    pub medium: MemDevice,
    pub calls: Calls,
}

/// Records the calls of all threads. The machine does not know its lock, so no thread loses its
/// turn while it holds the lock.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Calls>>);

impl Recorder {
    pub fn apply(&self, thread: usize, exec: &mut Executor, op: &Op) -> Outcome {
        let number = {
            let mut calls = self.0.lock();
            calls.clock += 1;
            let begun = calls.clock;
            calls.calls.push(Call { thread, op: op.clone(), begun, ended: None });
            calls.calls.len() - 1
        };
        let outcome = exec.apply(op);
        let mut calls = self.0.lock();
        calls.clock += 1;
        calls.calls[number].ended = Some((calls.clock, outcome.clone()));
        outcome
    }

    pub fn calls(&self) -> Calls {
        self.0.lock().clone()
    }

    /// Records what a power failure at this moment leaves.
    pub fn crash(&self, device: &SimDevice, choice: Choice) -> Crash {
        Crash { medium: device.crash_as(choice), calls: self.calls() }
    }
}

/// Limit of orders that the judge of a crash examines.
const ORDERS_MAX: usize = 3000;

impl Calls {
    /// Calls `found` with each order of the calls in which the model gives their results, as a
    /// history of the oracle, until `found` returns true. Returns whether it did.
    fn orders(
        &self,
        start: &Model,
        promise: Promise,
        found: &mut dyn FnMut(&crash::History) -> bool,
    ) -> bool {
        let history = crash::History::new(start.clone(), promise);
        self.extend(&mut vec![false; self.calls.len()], start, &history, found)
    }

    fn extend(
        &self,
        placed: &mut [bool],
        model: &Model,
        history: &crash::History,
        found: &mut dyn FnMut(&crash::History) -> bool,
    ) -> bool {
        let open: Vec<usize> = (0..placed.len()).filter(|i| !placed[*i]).collect();
        // A call that began after another one returned comes after it.
        let bound = open.iter().filter_map(|i| Some(self.calls[*i].ended.as_ref()?.0)).min();
        if bound.is_none() && found(history) {
            return true;
        }
        for i in open {
            let call = &self.calls[i];
            if bound.is_some_and(|bound| call.begun > bound) {
                continue;
            }
            let mut after = model.clone();
            let Some(applied) = after.apply(&call.op) else { continue };
            let outcome = match &call.ended {
                Some((_, outcome)) if !applied.allows(outcome) => continue,
                Some((_, outcome)) => outcome.clone(),
                None => applied.outcome.clone(),
            };
            let mut effect = applied.effect;
            if call.ended.is_none() {
                effect.persist = None;
            }
            let mut longer = history.clone();
            longer.push(call.op.clone(), outcome, effect, after.clone());
            placed[i] = true;
            if self.extend(placed, &after, &longer, found) {
                return true;
            }
            placed[i] = false;
        }
        false
    }

    fn print(&self) -> String {
        let mut out = String::new();
        for call in &self.calls {
            let op = print_ops(std::slice::from_ref(&call.op));
            let (op, thread, begun) = (op.trim_end(), call.thread, call.begun);
            out += &match &call.ended {
                Some((ended, outcome)) => format!("  {begun}..{ended} thread {thread} {op}: {outcome:?}\n"),
                None => format!("  {begun}.. thread {thread} {op}\n"),
            };
        }
        out
    }

    /// Whether the model, in one order of the calls, gives their results and then the tree `found`.
    pub fn judge(&self, start: &Model, found: &View) -> Result<(), String> {
        let mut explained = false;
        let mut last = String::new();
        let fits = self.orders(start, Promise::LastChange, &mut |history| {
            explained = true;
            match compare_trees(found, history.state(history.len()), Depth::Everything) {
                Ok(_) => true,
                Err(e) => {
                    last = e;
                    false
                }
            }
        });
        let calls = self.print();
        match (fits, explained) {
            (true, _) => Ok(()),
            (false, true) => Err(format!("no order of the calls leaves what is there: {last}\n{calls}")),
            (false, false) => Err(format!("no order of the calls explains their results\n{calls}")),
        }
    }
}

impl Crash {
    /// Checks whether the oracle allows the content of `fs`, which was recovered from the medium.
    /// Returns `false` if none of the first `ORDERS_MAX` orders allows it and the rest was not
    /// examined.
    pub fn judge(&self, start: &Model, fs: &FileSystem) -> Result<bool, String> {
        let view = View::of(fs)?;
        let mut looked = 0;
        let mut last = "no order of the calls explains their results".to_owned();
        let fits = self.calls.orders(start, Promise::LastChange, &mut |history| {
            looked += 1;
            let done = history.len();
            match check_view(Ok(&view), history, done, &history.persists_before(done)) {
                Ok(_) => true,
                Err(e) => {
                    last = e.to_string();
                    looked >= ORDERS_MAX
                }
            }
        });
        if fits {
            return Ok(looked < ORDERS_MAX);
        }
        Err(format!("after a crash, {looked} orders: {last}\n{}", self.calls.print()))
    }
}
