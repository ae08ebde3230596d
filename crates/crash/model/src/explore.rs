//! Which crash states are tried, and in which order.
//!
//! Most bugs in the literature show if one thing is lost and all the rest is kept. So the
//! systematic part is a set of lists. Each is linear in the length of the recording and begins with
//! its most suspicious states. States are taken from the lists in turn:
//! - edits lost although a mark promised that they are durable,
//! - bytes of renamed files, names, whole calls, whole files, torn pages,
//! - single edits lost, and single edits kept,
//! - every prefix, and every choice where few edits are pending,
//! - of a block device: pairs of writes lost, and pairs kept.
//!
//! An endless seeded sample follows.
//!
//! That is [`SearchOrder::Turns`]. In [`SearchOrder::Updates`] the *representatives* of these
//! states come before all others (module `updates`).

use crate::edit::Edit;
use crate::history::History;
use crate::page::PAGE;
use crate::recipe::{Pick, Recipe, Torn};
use crate::split::Micro;
use crate::state::SECTOR;
use crate::trace::{Call, Trace};
use crate::updates::Classes;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, HashSet};
use std::iter::Peekable;

/// The most pending edits of which every choice is tried.
const EVERY_CHOICE_MAX: usize = 10;
/// The most inodes whose entire loss is tried at one crash point.
const FILES_AT_ONCE_MAX: usize = 16;
/// The most writes to a device since its last flush whose pairs are all lost and kept. If there are
/// more, the last ones are used.
const PAIRED_MAX: usize = 24;

/// Recipes in order. They are built lazily: a long recording has millions.
type List<'a> = Peekable<Box<dyn Iterator<Item = Recipe> + Send + 'a>>;

/// The order in which states are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SearchOrder {
    /// First one state for each way in which the program updates its files, then the order of
    /// [`SearchOrder::Turns`].
    #[default]
    Updates,
    /// States are taken from each list in turn.
    Turns,
}

/// An endless sequence of recipes: each systematic one once, then random ones.
pub struct Plan<'a> {
    history: &'a History,
    /// The representatives that were not yet taken, in order.
    first: std::vec::IntoIter<Recipe>,
    /// All representatives. The lists contain them too, and they are not taken again from there.
    represented: HashSet<Recipe>,
    lists: Vec<List<'a>>,
    turn: usize,
    rng: SmallRng,
    taken: u64,
}

type Boxed<'a> = Box<dyn Iterator<Item = Recipe> + Send + 'a>;

impl<'a> Plan<'a> {
    pub fn new(trace: &'a Trace, history: &'a History, seed: u64, order: SearchOrder) -> Plan<'a> {
        let build = Build { trace, history };
        let first = match order {
            SearchOrder::Updates => Classes::new(trace, history).representatives(|| build.suspects()),
            SearchOrder::Turns => Vec::new(),
        };
        let represented: HashSet<Recipe> = first.iter().cloned().collect();
        let lists = build.lists().into_iter().map(Iterator::peekable).collect();
        let (first, rng) = (first.into_iter(), SmallRng::seed_from_u64(seed));
        Plan { history, first, represented, lists, turn: 0, rng, taken: 0 }
    }

    /// The representatives that were not yet taken, in order.
    pub(crate) fn first(&self) -> &[Recipe] {
        self.first.as_slice()
    }

    /// The next systematic recipe.
    pub(crate) fn next_systematic(&mut self) -> Option<Recipe> {
        (!self.is_random()).then(|| self.next())
    }

    /// How many representatives were not yet taken.
    #[cfg(test)]
    pub fn representatives(&self) -> usize {
        self.first.len()
    }

    /// Whether all systematic recipes have been taken.
    pub fn is_random(&mut self) -> bool {
        let is_taken = |recipe: &Recipe| self.represented.contains(recipe);
        self.first.len() == 0
            && self.lists.iter_mut().all(|list| {
                while list.next_if(is_taken).is_some() {}
                list.peek().is_none()
            })
    }

    /// How many systematic recipes were taken, and how many were not.
    pub fn finish(self) -> (u64, u64) {
        let is_left = |recipe: &Recipe| !self.represented.contains(recipe);
        let in_lists = self.lists.into_iter().map(|list| list.filter(is_left).count() as u64);
        (self.taken, self.first.len() as u64 + in_lists.sum::<u64>())
    }

    pub fn next(&mut self) -> Recipe {
        if let Some(recipe) = self.first.next() {
            self.taken += 1;
            return recipe;
        }
        for _ in 0..self.lists.len() {
            let turn = self.turn;
            self.turn = (turn + 1) % self.lists.len();
            let is_left = |recipe: &Recipe| !self.represented.contains(recipe);
            if let Some(recipe) = self.lists[turn].find(is_left) {
                self.taken += 1;
                return recipe;
            }
        }
        let at = self.rng.random_range(self.history.points());
        let mut recipe = Recipe::new(at, Pick::Sample(self.rng.random_range(0..1 << 32)));
        if self.rng.random_bool(0.25) && self.history.upto(at) > 0 {
            let micro = self.rng.random_range(0..self.history.upto(at) as u32);
            if self.history.may_tear(micro, at) {
                let cut = self.rng.random_range(1..PAGE / SECTOR);
                recipe.torn = Some(Torn::new(micro, 0..cut));
            }
        }
        recipe
    }
}

#[derive(Clone, Copy)]
struct Build<'a> {
    trace: &'a Trace,
    history: &'a History,
}

impl<'a> Build<'a> {
    /// The lists that the plan takes recipes from in turn.
    fn lists(self) -> Vec<Boxed<'a>> {
        vec![
            Box::new(self.promises()),
            Box::new(self.renames().into_iter()),
            Box::new(self.names()),
            Box::new(self.calls()),
            Box::new(self.files()),
            Box::new(self.torn()),
            Box::new(self.singles()),
            Box::new(self.prefixes()),
            Box::new(self.choices()),
            Box::new(self.pairs()),
        ]
    }

    /// The lists from which representatives are chosen: the promises, the last one first, and then
    /// the other lists.
    fn suspects(self) -> (Boxed<'a>, Vec<Boxed<'a>>) {
        let is_mark = move |at: &u32| {
            *at > *self.history.points().start()
                && matches!(self.trace.events[*at as usize - 1].call, Call::Mark { .. })
        };
        let end = *self.history.points().end();
        let moments = self.points().rev().filter(is_mark).chain([end]);
        let promises = moments.map(|at| Recipe::new(at, Pick::Durable));
        let others: Vec<Boxed<'a>> = vec![
            Box::new(self.renames().into_iter()),
            Box::new(self.torn()),
            Box::new(self.calls()),
            Box::new(self.updates()),
            Box::new(self.files()),
            Box::new(self.singles()),
        ];
        (Box::new(promises), others)
    }

    /// Right after each promise, states that lack one name or size of those that were changed since
    /// the promise before it.
    fn updates(self) -> impl Iterator<Item = Recipe> + Send + 'a {
        let mut before = *self.history.points().start();
        let events = before..*self.history.points().end();
        let marks = events.filter(move |n| matches!(self.trace.events[*n as usize].call, Call::Mark { .. }));
        marks.flat_map(move |mark| {
            let first = std::mem::replace(&mut before, mark);
            let edits = self.history.upto(first) as u32..self.history.upto(mark) as u32;
            edits
                .filter(move |n| self.is_name_or_size(*n) && !self.history.is_durable(*n, mark + 1))
                .map(move |n| Recipe::new(mark + 1, Pick::Lose(vec![n])))
        })
    }

    fn is_name_or_size(&self, n: u32) -> bool {
        let edit = &self.history.micros[n as usize].edit;
        edit.is_name() || matches!(edit, Edit::Grow { .. } | Edit::Truncate { .. })
    }

    fn points(&self) -> impl DoubleEndedIterator<Item = u32> + use<> {
        self.history.points()
    }

    /// The edits with their numbers.
    fn edits(&self) -> impl Iterator<Item = (u32, &'a Micro)> + use<'a> {
        self.history.micros.iter().enumerate().map(|(n, micro)| (n as u32, micro))
    }

    /// The last crash point at which all of these edits can be missing.
    fn last_without(&self, lost: &[u32]) -> Option<u32> {
        lost.iter().map(|n| self.history.last_without(*n)).min()
    }

    /// States in which the edits `lost` are lost: one at the last crash point at which all of them
    /// can be missing, and one right after event `event`.
    fn lose(&self, lost: Vec<u32>, event: u32) -> impl Iterator<Item = Recipe> + use<> {
        let last = self.last_without(&lost);
        let places = last
            .into_iter()
            .flat_map(move |last| [last, event + 1].into_iter().filter(move |at| *at <= last));
        places.map(move |at| Recipe::new(at, Pick::Lose(lost.clone())))
    }

    /// States right after each mark, and at the end, that lack everything that the crash may lose.
    fn promises(self) -> impl Iterator<Item = Recipe> + Send + 'a {
        let is_mark = move |at: &u32| {
            *at > *self.history.points().start()
                && matches!(self.trace.events[*at as usize - 1].call, Call::Mark { .. } | Call::End { .. })
        };
        let end = *self.history.points().end();
        let moments = self.points().filter(is_mark).chain([end]);
        moments.flat_map(|at| [Pick::Durable, Pick::All].map(|pick| Recipe::new(at, pick)))
    }

    fn renames(self) -> Vec<Recipe> {
        let mut list = Vec::new();
        let mut written: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (n, micro) in self.edits() {
            match &micro.edit {
                Edit::Data { ino, .. } | Edit::Grow { ino, .. } => {
                    written.entry(*ino).or_default().push(n);
                }
                Edit::Rename { ino, .. } | Edit::Add { ino, .. } => {
                    let at = micro.event + 1;
                    let pending = written.get(ino).into_iter().flatten();
                    let lost: Vec<u32> =
                        pending.copied().filter(|n| !self.history.is_durable(*n, at)).collect();
                    let bytes =
                        lost.iter().copied().filter(|n| self.history.micros[*n as usize].edit.is_data());
                    list.extend(self.lose(bytes.collect(), micro.event));
                    list.extend(self.lose(lost, micro.event));
                }
                _ => {}
            }
        }
        list
    }

    fn names(self) -> impl Iterator<Item = Recipe> + Send + 'a {
        let names = self.edits().filter(|(_, micro)| micro.edit.is_name());
        names.flat_map(move |(n, micro)| self.lose(vec![n], micro.event))
    }

    fn calls(self) -> impl Iterator<Item = Recipe> + Send + 'a {
        let events = *self.history.points().start()..*self.history.points().end();
        events.flat_map(move |event| {
            let all: Vec<u32> = self.history.of_event(event).collect();
            let mut bytes: Vec<u32> =
                all.iter().copied().filter(|n| self.history.micros[*n as usize].edit.is_data()).collect();
            if bytes.len() == all.len() {
                bytes.clear();
            }
            self.lose(bytes, event).chain(self.lose(all, event))
        })
    }

    /// Before each persistence call, states that lose or keep all pending edits of one file or
    /// directory.
    fn files(self) -> impl Iterator<Item = Recipe> + Send + 'a {
        self.moments().flat_map(move |at| {
            let mut pending: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
            for n in self.history.pending(at) {
                let edit = &self.history.micros[n as usize].edit;
                let [dir, _] = edit.dirs();
                if let Some(ino) = edit.own().or(dir) {
                    pending.entry(ino).or_default().push(n);
                }
            }
            let files = pending.into_values().rev().take(FILES_AT_ONCE_MAX);
            files.flat_map(move |edits| {
                [Pick::Keep(edits.clone()), Pick::Lose(edits)].map(|pick| Recipe::new(at, pick))
            })
        })
    }

    /// The crash points before a persistence call and before a mark, and the last crash point.
    fn moments(self) -> impl Iterator<Item = u32> + Send + 'a {
        let end = *self.history.points().end();
        self.points().filter(move |at| {
            *at == end
                || matches!(
                    self.trace.events[*at as usize].call,
                    Call::Fsync { .. }
                        | Call::Msync { .. }
                        | Call::SyncRange { .. }
                        | Call::Sync { .. }
                        | Call::Mark { .. }
                        | Call::End { .. }
                )
        })
    }

    fn torn(self) -> impl Iterator<Item = Recipe> + Send + 'a {
        self.edits().flat_map(move |(n, micro)| self.torn_page(n, micro))
    }

    fn torn_page(&self, n: u32, micro: &Micro) -> Vec<Recipe> {
        const SECTORS: usize = PAGE / SECTOR;
        let Edit::Data { at: start, bytes, .. } = &micro.edit else { return Vec::new() };
        let first = usize::from(*start) / SECTOR;
        let last = (usize::from(*start) + bytes.as_slice().len()).div_ceil(SECTOR);
        let is_one_sector = last - first < 2;
        let (point, middle) = (self.history.last_without(n), first.midpoint(last));
        let mut parts: Vec<Torn> = [0..first + 1, 0..middle.max(first + 1), middle..SECTORS]
            .map(|sectors| Torn::new(n, sectors))
            .into();
        if self.history.model.is_disk {
            // Shorn writes: the last sector, or 5 of 8 sectors, are not written.
            parts.extend([0..SECTORS - 1, 0..SECTORS * 3 / 8].map(|sectors| Torn::new(n, sectors)));
            parts.extend([first..last, first..first + 1, middle..middle + 1].map(|s| Torn::garbled(n, s)));
        }
        if is_one_sector {
            // A single sector cannot be torn.
            parts.retain(|torn| torn.is_garbage && torn.sectors == (first..last));
        }
        let points = [point, micro.event + 1];
        let all = parts.into_iter().flat_map(|torn| points.map(|at| (at, torn.clone())));
        all.filter(|(at, torn)| self.history.may_be_torn(torn, *at))
            .map(|(at, torn)| Recipe { at, pick: Pick::All, torn: Some(torn) })
            .collect()
    }

    fn singles(self) -> impl Iterator<Item = Recipe> + Send + 'a {
        self.edits().flat_map(move |(n, micro)| {
            let kept = Recipe::new(micro.event + 1, Pick::Keep(vec![n]));
            self.lose(vec![n], micro.event).chain([kept])
        })
    }

    fn prefixes(self) -> impl Iterator<Item = Recipe> + Send + 'a {
        self.points().flat_map(|at| [Pick::All, Pick::Durable].map(|pick| Recipe::new(at, pick)))
    }

    /// Before each flush of a device, states that lose two whole writes, and states that keep only
    /// two.
    fn pairs(self) -> impl Iterator<Item = Recipe> + Send + 'a {
        let moments = self.moments().filter(move |_| self.history.model.is_disk);
        moments.flat_map(move |at| {
            let mut writes: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
            for n in self.history.pending(at) {
                writes.entry(self.history.micros[n as usize].event).or_default().push(n);
            }
            let writes: Vec<Vec<u32>> = writes.into_values().rev().take(PAIRED_MAX).collect();
            let pairs = (0..writes.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
            let both: Vec<Vec<u32>> =
                pairs.map(|(i, j)| writes[i].iter().chain(&writes[j]).copied().collect()).collect();
            both.into_iter().flat_map(move |edits| {
                [Pick::Lose(edits.clone()), Pick::Keep(edits)].map(|pick| Recipe::new(at, pick))
            })
        })
    }

    fn choices(self) -> impl Iterator<Item = Recipe> + Send + 'a {
        self.moments().flat_map(move |at| {
            let pending: Vec<u32> = self.history.pending(at).take(EVERY_CHOICE_MAX + 1).collect();
            let choices = if pending.len() > EVERY_CHOICE_MAX { 0 } else { 1u32 << pending.len() };
            (0..choices).map(move |choice| {
                let kept = pending.iter().enumerate().filter(|(i, _)| choice >> i & 1 == 1);
                Recipe::new(at, Pick::Keep(kept.map(|(_, n)| *n).collect()))
            })
        })
    }
}
