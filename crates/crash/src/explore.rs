//! Which crash states are tried, and in which order.
//!
//! Most bugs of the literature lose one thing and keep all the rest. So the systematic part is some
//! lists, each linear in the recording, from which states are taken in turn, the suspicious first
//! in each: what is lost when the user has been told otherwise, bytes of renamed files, names,
//! whole calls, whole files, torn pages, single edits lost and kept, every prefix, and every choice
//! where few edits are pending. Behind them comes a seeded sample without end.

use crate::edit::Edit;
use crate::history::History;
use crate::recipe::{Pick, Recipe, Torn};
use crate::state::{PAGE, SECTOR};
use crate::trace::{Call, Trace};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, VecDeque};

/// Where at most so many edits are pending, every choice of them is tried.
const EVERY_CHOICE_MAX: usize = 10;
/// Inodes whose loss as a whole is tried at one moment.
const FILES_AT_ONCE_MAX: usize = 16;

/// An endless list of recipes: each of the systematic ones once, then random ones.
pub struct Plan<'a> {
    history: &'a History,
    lists: Vec<VecDeque<Recipe>>,
    turn: usize,
    rng: SmallRng,
    planned: usize,
}

impl<'a> Plan<'a> {
    pub fn new(trace: &Trace, history: &'a History, seed: u64) -> Plan<'a> {
        let build = Build { trace, history };
        let lists: Vec<VecDeque<Recipe>> = vec![
            build.promises(),
            build.renames(),
            build.names(),
            build.calls(),
            build.files(),
            build.torn(),
            build.singles(),
            build.prefixes(),
            build.choices(),
        ];
        let planned = lists.iter().map(VecDeque::len).sum();
        Plan { history, lists, turn: 0, rng: SmallRng::seed_from_u64(seed), planned }
    }

    /// How many systematic recipes there are.
    pub fn planned(&self) -> usize {
        self.planned
    }

    /// How many of them have not been taken.
    pub fn left(&self) -> usize {
        self.lists.iter().map(VecDeque::len).sum()
    }

    pub fn next(&mut self) -> Recipe {
        for _ in 0..self.lists.len() {
            let turn = self.turn;
            self.turn = (turn + 1) % self.lists.len();
            if let Some(recipe) = self.lists[turn].pop_front() {
                return recipe;
            }
        }
        let at = self.rng.random_range(self.history.points());
        let mut recipe = Recipe::new(at, Pick::Sample(self.rng.random_range(0..1 << 32)));
        if self.rng.random_bool(0.25) && self.history.upto(at) > 0 {
            let micro = self.rng.random_range(0..self.history.upto(at) as u32);
            if self.history.may_tear(micro, at) {
                let cut = self.rng.random_range(1..PAGE / SECTOR);
                recipe.torn = Some(Torn { micro, sectors: 0..cut });
            }
        }
        recipe
    }
}

struct Build<'a> {
    trace: &'a Trace,
    history: &'a History,
}

impl Build<'_> {
    fn points(&self) -> impl DoubleEndedIterator<Item = u32> + use<> {
        self.history.points()
    }

    /// The last point at which all of these can be missing.
    fn last_without(&self, lost: &[u32]) -> Option<u32> {
        lost.iter().map(|n| self.history.last_without(*n)).min()
    }

    /// These lost, at the last moment at which they can be, and at the first after event `event`.
    fn lose(&self, lost: Vec<u32>, event: u32, into: &mut VecDeque<Recipe>) {
        let Some(last) = self.last_without(&lost) else { return };
        for at in [last, event + 1] {
            if at <= last {
                into.push_back(Recipe::new(at, Pick::Lose(lost.clone())));
            }
        }
    }

    /// All that a crash may take when the user has just been told something, and at the end.
    fn promises(&self) -> VecDeque<Recipe> {
        let is_mark = |at: &u32| {
            *at > *self.history.points().start()
                && matches!(self.trace.events[*at as usize - 1].call, Call::Mark { .. } | Call::End { .. })
        };
        let end = *self.history.points().end();
        let moments = self.points().filter(is_mark).chain([end]);
        moments.flat_map(|at| [Pick::Durable, Pick::All].map(|pick| Recipe::new(at, pick))).collect()
    }

    fn renames(&self) -> VecDeque<Recipe> {
        let mut list = VecDeque::new();
        let mut written: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (n, micro) in self.history.micros.iter().enumerate() {
            match &micro.edit {
                Edit::Data { ino, .. } | Edit::Grow { ino, .. } => {
                    written.entry(*ino).or_default().push(n as u32);
                }
                Edit::Rename { ino, .. } | Edit::Add { ino, .. } => {
                    let at = micro.event + 1;
                    let pending = written.get(ino).into_iter().flatten();
                    let lost: Vec<u32> =
                        pending.copied().filter(|n| !self.history.is_durable(*n, at)).collect();
                    let bytes =
                        lost.iter().copied().filter(|n| self.history.micros[*n as usize].edit.is_data());
                    self.lose(bytes.collect(), micro.event, &mut list);
                    self.lose(lost, micro.event, &mut list);
                }
                _ => {}
            }
        }
        list
    }

    fn names(&self) -> VecDeque<Recipe> {
        let mut list = VecDeque::new();
        for (n, micro) in self.history.micros.iter().enumerate() {
            if micro.edit.is_name() {
                self.lose(vec![n as u32], micro.event, &mut list);
            }
        }
        list
    }

    fn calls(&self) -> VecDeque<Recipe> {
        let mut list = VecDeque::new();
        for event in *self.history.points().start()..*self.history.points().end() {
            let all: Vec<u32> = self.history.of_event(event).collect();
            let bytes: Vec<u32> =
                all.iter().copied().filter(|n| self.history.micros[*n as usize].edit.is_data()).collect();
            if bytes.len() < all.len() {
                self.lose(bytes, event, &mut list);
            }
            self.lose(all, event, &mut list);
        }
        list
    }

    /// At each moment before something is made persistent: all that is pending of one file or
    /// directory.
    fn files(&self) -> VecDeque<Recipe> {
        let mut list = VecDeque::new();
        for at in self.moments() {
            let mut pending: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
            for n in self.history.pending(at) {
                let edit = &self.history.micros[n as usize].edit;
                let [dir, _] = edit.dirs();
                if let Some(ino) = edit.own().or(dir) {
                    pending.entry(ino).or_default().push(n);
                }
            }
            for (_, edits) in pending.into_iter().rev().take(FILES_AT_ONCE_MAX) {
                list.push_back(Recipe::new(at, Pick::Keep(edits.clone())));
                list.push_back(Recipe::new(at, Pick::Lose(edits)));
            }
        }
        list
    }

    /// The points before a persistence call, before a mark, and the last.
    fn moments(&self) -> impl Iterator<Item = u32> {
        let end = *self.history.points().end();
        self.points().filter(move |at| {
            *at == end
                || matches!(
                    self.trace.events[*at as usize].call,
                    Call::Fsync { .. } | Call::Sync { .. } | Call::Mark { .. } | Call::End { .. }
                )
        })
    }

    fn torn(&self) -> VecDeque<Recipe> {
        let mut list = VecDeque::new();
        const SECTORS: usize = PAGE / SECTOR;
        for (n, micro) in self.history.micros.iter().enumerate() {
            let Edit::Data { at: start, bytes, .. } = &micro.edit else { continue };
            let n = n as u32;
            let first = usize::from(*start) / SECTOR;
            let last = (usize::from(*start) + bytes.as_slice().len()).div_ceil(SECTOR);
            if last - first < 2 {
                continue;
            }
            let (point, middle) = (self.history.last_without(n), first.midpoint(last));
            for sectors in [0..first + 1, 0..middle.max(first + 1), middle..SECTORS] {
                for at in [point, micro.event + 1] {
                    if self.history.may_tear(n, at) {
                        let torn = Some(Torn { micro: n, sectors: sectors.clone() });
                        list.push_back(Recipe { at, pick: Pick::All, torn });
                    }
                }
            }
        }
        list
    }

    fn singles(&self) -> VecDeque<Recipe> {
        let mut list = VecDeque::new();
        for n in 0..self.history.micros.len() as u32 {
            let event = self.history.micros[n as usize].event;
            self.lose(vec![n], event, &mut list);
            list.push_back(Recipe::new(event + 1, Pick::Keep(vec![n])));
        }
        list
    }

    fn prefixes(&self) -> VecDeque<Recipe> {
        self.points().flat_map(|at| [Pick::All, Pick::Durable].map(|pick| Recipe::new(at, pick))).collect()
    }

    fn choices(&self) -> VecDeque<Recipe> {
        let mut list = VecDeque::new();
        for at in self.moments() {
            let pending: Vec<u32> = self.history.pending(at).take(EVERY_CHOICE_MAX + 1).collect();
            if pending.len() > EVERY_CHOICE_MAX {
                continue;
            }
            for choice in 0..1u32 << pending.len() {
                let kept = pending.iter().enumerate().filter(|(i, _)| choice >> i & 1 == 1);
                list.push_back(Recipe::new(at, Pick::Keep(kept.map(|(_, n)| *n).collect())));
            }
        }
        list
    }
}
