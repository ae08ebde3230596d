//! A second way to track dirty inodes, which tests the extension point [`kedgefs::DirtySet`].
//!
//! Inodes are grouped in *deltas*, as in Tux3: an inode that becomes dirty joins the newest delta,
//! and a new delta follows a full one. Background writeback takes the inodes of the oldest delta by
//! number. It continues with the next delta when all inodes left in the first are busy. So inodes
//! that became dirty together are written together, and the order chosen in the options does not
//! apply.

use kedgefs::{DirtyHandle, DirtySet, Ino, WritebackOrder};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

/// Limit of inodes in a delta.
const DELTA: usize = 24;

/// See the module.
#[derive(Default)]
pub struct Deltas(Mutex<State>);

#[derive(Default)]
struct State {
    /// The deltas, oldest first. Only the newest may be empty.
    deltas: VecDeque<BTreeMap<Ino, DirtyHandle>>,
    /// The number of the delta of each inode.
    delta_of: HashMap<Ino, u64>,
    /// Number of the first delta in `deltas`.
    oldest: u64,
    /// The last inode that background writeback was given. The next batch continues after it.
    given: Ino,
}

impl Deltas {
    /// Makes the set for [`kedgefs::MountOptions::dirty_set`].
    pub fn make() -> Arc<dyn DirtySet> {
        Arc::new(Deltas::default())
    }
}

impl DirtySet for Deltas {
    fn name(&self) -> &'static str {
        "deltas"
    }

    fn add(&self, inode: DirtyHandle) {
        let mut state = self.0.lock();
        if state.deltas.back().is_none_or(|newest| newest.len() >= DELTA) {
            state.deltas.push_back(BTreeMap::new());
        }
        let number = state.oldest + state.deltas.len() as u64 - 1;
        let ino = inode.ino();
        state.delta_of.insert(ino, number);
        state.deltas.back_mut().expect("there is one now").insert(ino, inode);
    }

    fn remove(&self, ino: Ino) {
        let mut state = self.0.lock();
        let Some(number) = state.delta_of.remove(&ino) else { return };
        let place = (number - state.oldest) as usize;
        let gone = state.deltas[place].remove(&ino);
        while state.deltas.len() > 1 && state.deltas[0].is_empty() {
            state.deltas.pop_front();
            state.oldest += 1;
        }
        drop(state);
        drop(gone);
    }

    fn len(&self) -> usize {
        self.0.lock().delta_of.len()
    }

    fn all(&self, _order: &dyn WritebackOrder) -> Vec<DirtyHandle> {
        self.0.lock().deltas.iter().flat_map(|delta| delta.values().cloned()).collect()
    }

    fn batch(&self, max: usize, busy: &dyn Fn(Ino) -> bool, _order: &dyn WritebackOrder) -> Vec<DirtyHandle> {
        let mut state = self.0.lock();
        let given = state.given;
        let batch = state.deltas.iter().find_map(|delta| {
            let behind = delta.range((Excluded(given), Unbounded)).chain(delta.range(..=given));
            let free: Vec<_> = behind.filter(|(ino, _)| !busy(**ino)).take(max).collect();
            (!free.is_empty()).then(|| free.into_iter().map(|(_, handle)| handle.clone()).collect())
        });
        let batch: Vec<DirtyHandle> = batch.unwrap_or_default();
        if let Some(last) = batch.last() {
            state.given = last.ino();
        }
        batch
    }
}
