//! A recording under a model: which crash states are legal.
//!
//! A *crash point* `at` is the position after the first `at` events. A state at this point is a set
//! `S` of edits of those events. It is legal if `S` = `A` ∪ `D`. `D` is the set that persistence
//! calls made durable before the point. `A` is any set that contains, with each edit, all edits
//! that it needs and all that precede it in the log. `D` contains all that its edits need. It also
//! contains all that precedes them in the log, except where fsync bypasses the log
//! ([`Order::Transaction`]).
//!
//! Edits are applied in the order of the recording. A state is built from the last copy of the
//! whole tree before the crash point. Only those [`Parts`] that lack an edit are rebuilt, from the
//! copy before the first edit that they lack. So the cost of a state depends on the changes in
//! these parts, however long ago a lost edit was made that nothing made durable.

use crate::bits::Bits;
use crate::model::{Model, Order};
use crate::parts::Parts;
use crate::recipe::{Pick, Recipe, Torn};
use crate::split::{Micro, Splitter};
use crate::state::{Body, ROOT, State};
use crate::trace::{Call, Trace};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// A copy of the whole tree is kept every this many edits.
const SNAPSHOT_EVERY: usize = 32;
/// The number of edits whose durability is looked up at once: those in one word of a set.
const BLOCK: usize = 64;
const NEVER: u32 = u32::MAX;

pub struct History {
    pub model: Model,
    pub micros: Vec<Micro>,
    /// For each edit, the event that made it durable.
    durable_at: Vec<u32>,
    /// For each block of edits, the latest of these events.
    block_durable_at: Vec<u32>,
    /// The number of edits in the first `at` events, for each `at`.
    upto: Vec<u32>,
    /// The first crash point.
    start: u32,
    parts: Parts,
    snapshots: Vec<State>,
}

impl History {
    pub fn new(trace: &Trace, model: Model) -> History {
        let mut splitter = Splitter::new(model);
        let start = trace.start();
        for (number, event) in trace.events[..start].iter().enumerate() {
            splitter.add(number as u32, event);
        }
        let mut base = State::default();
        for micro in splitter.settle() {
            base.apply(&micro.edit);
        }
        let mut durable = Durable { at: Vec::new(), by_log: model.order != Order::Transaction };
        let mut upto = vec![0; start + 1];
        for (number, event) in trace.events.iter().enumerate().skip(start) {
            splitter.add(number as u32, event);
            durable.at.resize(splitter.micros.len(), NEVER);
            upto.push(splitter.micros.len() as u32);
            let synced = match &event.call {
                _ if !event.ok() && model.failed_fsync_keeps => continue,
                Call::Fsync { ino, since, .. } if !event.ok() => {
                    splitter.give_up(Some(*ino), *since, None);
                    continue;
                }
                Call::Msync { ino, ranges, since } | Call::SyncRange { ino, ranges, since, .. }
                    if !event.ok() =>
                {
                    splitter.give_up(Some(*ino), *since, Some(ranges));
                    continue;
                }
                Call::Sync { since } if !event.ok() => {
                    splitter.give_up(None, *since, None);
                    continue;
                }
                _ if !event.ok() => continue,
                // In a total order a persistence call persists everything before it: it cannot skip
                // earlier edits.
                Call::Fsync { since, .. }
                | Call::Msync { since, .. }
                | Call::SyncRange { since, .. }
                | Call::Sync { since }
                    if is_total(model, &event.call) =>
                {
                    upto_event(&splitter, *since)
                }
                Call::Fsync { ino, datasync, since } => splitter.take_synced(*ino, *datasync, *since, None),
                Call::Msync { ino, ranges, since } => splitter.take_synced(*ino, true, *since, Some(ranges)),
                Call::SyncRange { ino, datasync, ranges, since } => {
                    splitter.take_synced(*ino, *datasync, *since, Some(ranges))
                }
                _ => continue,
            };
            durable.make(&splitter.micros, synced, number as u32);
        }
        let parts = Parts::new(&base, &splitter.micros);
        let snapshots = snapshots(base, &splitter.micros);
        let last = |block: &[u32]| block.iter().copied().max().unwrap_or(NEVER);
        History {
            model,
            micros: splitter.micros,
            block_durable_at: durable.at.chunks(BLOCK).map(last).collect(),
            durable_at: durable.at,
            upto,
            start: start as u32,
            parts,
            snapshots,
        }
    }

    /// Crash points from the first to the last.
    pub fn points(&self) -> std::ops::RangeInclusive<u32> {
        self.start..=self.upto.len() as u32 - 1
    }

    /// The number of edits before a crash point.
    pub fn upto(&self, at: u32) -> usize {
        self.upto[at as usize] as usize
    }

    /// The edits of one event.
    pub fn of_event(&self, event: u32) -> std::ops::Range<u32> {
        self.upto[event as usize]..self.upto[event as usize + 1]
    }

    /// The last crash point at which an edit can be missing.
    pub fn last_without(&self, micro: u32) -> u32 {
        self.durable_at[micro as usize].min(*self.points().end())
    }

    pub fn is_durable(&self, micro: u32, at: u32) -> bool {
        self.durable_at[micro as usize] < at
    }

    fn durable(&self, at: u32) -> Bits {
        let mut set = Bits::all(self.upto(at));
        self.pending(at).for_each(|n| set.remove(n));
        set
    }

    /// The edits that a crash at this point may lose.
    pub fn pending(&self, at: u32) -> impl Iterator<Item = u32> {
        self.pending_from(at, 0)
    }

    /// The edits from edit `from` on that a crash at this point may lose.
    fn pending_from(&self, at: u32, from: u32) -> impl Iterator<Item = u32> {
        let (from, len) = (from as usize, self.upto(at));
        (from / BLOCK..len.div_ceil(BLOCK))
            .filter(move |block| self.block_durable_at[*block] >= at)
            .flat_map(move |block| (block * BLOCK).max(from)..((block + 1) * BLOCK).min(len))
            .map(|n| n as u32)
            .filter(move |n| !self.is_durable(*n, at))
    }

    /// Whether the durable edits always include all their dependencies, so that a lost edit never
    /// takes a durable edit with it.
    fn is_durable_closed(&self) -> bool {
        self.model.order != Order::Transaction
    }

    /// The tree before the first edit that a crash can lose.
    pub(crate) fn base(&self) -> State {
        self.snapshots[0].clone()
    }

    /// Whether no file existed at the start, and a recorded device was blank.
    pub(crate) fn starts_empty(&self, device: Option<u64>) -> bool {
        let start = &self.snapshots[0];
        let is_blank = |ino: &u64| match start.node(*ino).map(|node| &node.body) {
            Some(Body::File(file)) => Some(*ino) == device && file.pieces().next().is_none(),
            _ => false,
        };
        match start.node(ROOT).map(|root| &root.body) {
            Some(Body::Dir(entries)) => entries.values().all(is_blank),
            _ => true,
        }
    }

    pub(crate) fn behind(&self, n: u32) -> impl Iterator<Item = u32> {
        let micro = &self.micros[n as usize];
        micro.needs.iter().copied().chain(micro.after)
    }

    /// The edits that the recipe's state has. A durable edit stays even if the recipe names it as
    /// lost.
    pub fn set(&self, recipe: &Recipe) -> Bits {
        let len = self.upto(recipe.at);
        match &recipe.pick {
            Pick::All => Bits::all(len),
            Pick::Durable => self.durable(recipe.at),
            Pick::Lose(lost) => self.without(recipe.at, lost),
            Pick::Keep(kept) => self.with(recipe.at, kept.iter().copied()),
            Pick::Sample(seed) => {
                let mut rng = SmallRng::seed_from_u64(*seed ^ u64::from(recipe.at) << 32);
                let pending: Vec<u32> = self.pending(recipe.at).collect();
                let share = rng.random_range(0.0..1.0);
                let chosen: Vec<u32> = pending.into_iter().filter(|_| rng.random_bool(share)).collect();
                match rng.random_bool(0.5) {
                    true => self.with(recipe.at, chosen.into_iter()),
                    false => self.without(recipe.at, &chosen),
                }
            }
        }
    }

    /// All edits without `lost` and the edits that need them, plus the durable ones.
    fn without(&self, at: u32, lost: &[u32]) -> Bits {
        let mut set = Bits::all(self.upto(at));
        let lost: Vec<u32> = lost.iter().copied().filter(|n| set.has(*n)).collect();
        let Some(first) = lost.iter().copied().min() else { return set };
        lost.iter().for_each(|n| set.remove(*n));
        let takes_along = |set: &mut Bits, n: u32| {
            if set.has(n) && self.behind(n).any(|d| d >= first && !set.has(d)) {
                set.remove(n);
            }
        };
        if self.is_durable_closed() && self.allows(at, &lost) {
            self.pending_from(at, first).for_each(|n| takes_along(&mut set, n));
            return set;
        }
        for n in first + 1..self.upto(at) as u32 {
            takes_along(&mut set, n);
        }
        for n in first..self.upto(at) as u32 {
            if self.is_durable(n, at) {
                set.insert(n);
            }
        }
        set
    }

    /// The durable edits, plus `kept` with all that these need.
    fn with(&self, at: u32, kept: impl Iterator<Item = u32>) -> Bits {
        let len = self.upto(at) as u32;
        let durable = self.durable(at);
        // If the durable set includes its dependencies, start from it: then its edits add nothing.
        let mut set = if self.is_durable_closed() { durable.clone() } else { Bits::none(len as usize) };
        let mut todo: Vec<u32> = kept.filter(|n| *n < len).collect();
        while let Some(n) = todo.pop() {
            if !set.has(n) {
                set.insert(n);
                todo.extend(self.behind(n));
            }
        }
        set.join(&durable);
        set
    }

    /// The edits that the recipe's state lacks.
    pub fn lost(&self, recipe: &Recipe) -> Vec<u32> {
        self.set(recipe).missing().collect()
    }

    /// Those of the lost edits that need no other lost edit. Their loss implies the loss of all
    /// others.
    pub fn roots(&self, lost: &[u32]) -> Vec<u32> {
        let is_lost = |n: u32| lost.binary_search(&n).is_ok();
        lost.iter().copied().filter(|n| !self.behind(*n).any(is_lost)).collect()
    }

    /// The tree that the recipe leaves.
    pub fn state(&self, recipe: &Recipe) -> State {
        let mut set = self.set(recipe);
        let torn = recipe.torn.as_ref().filter(|t| self.may_be_torn(t, recipe.at));
        if let Some(torn) = torn {
            // Every edit that needs the torn one needs its whole page, even later bytes of that
            // page, so it is lost.
            set.intersect(&self.without(recipe.at, &[torn.micro]));
        }
        let len = set.len() as u32;
        let mut first_missing = vec![NEVER; self.parts.len()];
        let mut lacking: Vec<u32> = Vec::new();
        for n in set.missing() {
            let part = self.parts.of(n);
            let first = &mut first_missing[part as usize];
            if *first == NEVER {
                *first = n;
                lacking.push(part);
            }
        }
        let snapshot = len as usize / SNAPSHOT_EVERY;
        let mut state = self.snapshots[snapshot].clone();
        for n in (snapshot * SNAPSHOT_EVERY) as u32..len {
            if first_missing[self.parts.of(n) as usize] == NEVER {
                state.apply(&self.micros[n as usize].edit);
            }
        }
        for part in lacking {
            self.make_part(&mut state, part, first_missing[part as usize], &set, torn);
        }
        state
    }

    /// Rebuilds a part from the copy of the tree before edit `first`.
    fn make_part(&self, state: &mut State, part: u32, first: u32, set: &Bits, torn: Option<&Torn>) {
        let snapshot = first as usize / SNAPSHOT_EVERY;
        for ino in self.parts.inodes(part) {
            state.take(*ino, &self.snapshots[snapshot]);
        }
        let mut torn = torn.filter(|t| self.parts.of(t.micro) == part);
        let from = (snapshot * SNAPSHOT_EVERY) as u32;
        for n in self.parts.edits(part, from, set.len() as u32).iter().copied().filter(|n| set.has(*n)) {
            if let Some(torn) = torn.take_if(|t| t.micro < n) {
                state.apply_part(&self.micros[torn.micro as usize].edit, torn);
            }
            state.apply(&self.micros[n as usize].edit);
        }
        if let Some(torn) = torn {
            state.apply_part(&self.micros[torn.micro as usize].edit, torn);
        }
    }

    fn page_of(&self, n: u32) -> Option<(u64, u64)> {
        match self.micros[n as usize].edit {
            crate::edit::Edit::Data { ino, page, .. } => Some((ino, page)),
            _ => None,
        }
    }

    /// Whether an edit is a data edit that a crash at this point may have written in part.
    pub fn may_tear(&self, n: u32, at: u32) -> bool {
        self.model.torn_pages
            && (n as usize) < self.upto(at)
            && self.page_of(n).is_some()
            && !self.is_durable(n, at)
    }

    /// Whether a crash at this point may leave a page torn in this way.
    pub fn may_be_torn(&self, torn: &Torn, at: u32) -> bool {
        self.may_tear(torn.micro, at) && (self.model.garbage || !torn.is_garbage)
    }

    /// Whether none of these edits is durable, so that a crash at this point may lose exactly
    /// these.
    pub fn allows(&self, at: u32, lost: &[u32]) -> bool {
        lost.iter().all(|n| (*n as usize) < self.upto(at) && !self.is_durable(*n, at))
    }
}

fn is_total(model: Model, call: &Call) -> bool {
    matches!(call, Call::Sync { .. }) || model.order == Order::Total
}

fn upto_event(splitter: &Splitter, since: u64) -> Vec<u32> {
    let covered = |n: &u32| u64::from(splitter.micros[*n as usize].event) < since;
    (0..splitter.micros.len() as u32).filter(|n| covered(n) && !splitter.given_up.contains(n)).collect()
}

/// When each edit became durable, for the part of the recording read so far.
struct Durable {
    at: Vec<u32>,
    /// Whether every durable edit makes all its predecessors in the log durable too.
    by_log: bool,
}

impl Durable {
    fn make(&mut self, micros: &[Micro], synced: Vec<u32>, event: u32) {
        let mut todo = synced;
        while let Some(n) = todo.pop() {
            if self.at[n as usize] != NEVER {
                continue;
            }
            self.at[n as usize] = event;
            let micro = &micros[n as usize];
            todo.extend(micro.needs.iter().copied());
            todo.extend(micro.after.filter(|_| self.by_log));
        }
    }
}

fn snapshots(base: State, micros: &[Micro]) -> Vec<State> {
    let mut state = base;
    let mut snapshots = vec![state.clone()];
    for chunk in micros.chunks(SNAPSHOT_EVERY) {
        for micro in chunk {
            state.apply(&micro.edit);
        }
        snapshots.push(state.clone());
    }
    snapshots
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
