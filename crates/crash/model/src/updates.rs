//! Which crash states represent others like them.
//!
//! A program updates its files in a few ways, again and again: it appends to a log, replaces a file
//! by a rename, overwrites a page. A bug in one of these ways shows wherever the program uses it.
//! So states are classified by what they lose, and the first state of each class is tried before
//! any other state of the same class: Pathfinder (OOPSLA 2025) calls it a representative.
//!
//! The class of an edit consists of its kind, the name of the file that it changes without digits,
//! its position in the file (the first page, the end, or between), and the call's innermost caller
//! if callers were recorded. The class of a state consists of the classes of the edits that the
//! recipe names to lose or keep, the sectors of a page that are written, and whether the crash
//! comes before any promise, right after one, or elsewhere.
//!
//! Only the beginning of a long list is classified.

use crate::describe::Paths;
use crate::edit::Edit;
use crate::history::History;
use crate::page::PAGE;
use crate::recipe::{Pick, Recipe};
use crate::trace::{Call, Trace};
use siphasher::sip::SipHasher13;
use std::collections::{BTreeSet, HashSet};
use std::hash::{Hash, Hasher};

/// The most recipes of a list that are classified.
const SCANNED_MAX: usize = 4096;
/// The most representatives of a list.
const CHOSEN_MAX: usize = 64;
/// The most edits of a state that are classified.
const EDITS_MAX: usize = 256;

/// The classes of the edits of a recording.
pub struct Classes<'a> {
    trace: &'a Trace,
    history: &'a History,
    /// The class of each edit, by the edit's number.
    of: Vec<u64>,
    /// The number of the first event that is a promise.
    first_promise: usize,
}

/// The position of a crash relative to promises.
#[derive(Hash)]
enum Moment {
    BeforeAny,
    RightAfterOne,
    Between,
}

impl<'a> Classes<'a> {
    pub fn new(trace: &'a Trace, history: &'a History) -> Classes<'a> {
        let paths = Paths::of(trace);
        let of = history.micros.iter().map(|micro| {
            let event = micro.event as usize;
            let name: String = paths.path(event).chars().filter(|c| !c.is_ascii_digit()).collect();
            let caller = trace.events.get(event).and_then(|event| event.stack.first());
            hash(&(std::mem::discriminant(&micro.edit), name, place(&micro.edit), caller))
        });
        let first_promise = trace.events.iter().position(|event| is_promise(&event.call));
        let first_promise = first_promise.unwrap_or(trace.events.len());
        Classes { trace, history, of: of.collect(), first_promise }
    }

    /// The first recipe of each class. Recipes after the first promise come first, since before it
    /// the user has nothing that could be lost. Of these, the first come from the list of promises,
    /// then from the others in turn.
    pub fn representatives<I: Iterator<Item = Recipe>>(
        &self,
        lists: impl Fn() -> (I, Vec<I>),
    ) -> Vec<Recipe> {
        let (mut all, mut seen) = (Vec::new(), HashSet::new());
        for is_early in [false, true] {
            let (promises, others) = lists();
            let is_here = |recipe: &Recipe| (recipe.at as usize <= self.first_promise) == is_early;
            let mut chosen = self.chosen(promises.filter(is_here));
            let mut others: Vec<_> =
                others.into_iter().map(|list| self.chosen(list.filter(is_here)).into_iter()).collect();
            while others.iter().any(|list| list.len() > 0) {
                chosen.extend(others.iter_mut().filter_map(Iterator::next));
            }
            all.extend(chosen.into_iter().filter(|recipe| seen.insert(recipe.clone())));
        }
        all
    }

    /// The first recipe of each class of a list.
    fn chosen(&self, recipes: impl Iterator<Item = Recipe>) -> Vec<Recipe> {
        let mut seen = HashSet::new();
        let is_new = |recipe: &Recipe| seen.insert(self.class(recipe));
        recipes.take(SCANNED_MAX).filter(is_new).take(CHOSEN_MAX).collect()
    }

    /// The class of an edit. Edits of other recordings of the same program have the same classes.
    pub(crate) fn of_edit(&self, n: u32) -> Option<u64> {
        self.of.get(n as usize).copied()
    }

    fn class(&self, recipe: &Recipe) -> u64 {
        let classes = |edits: &mut dyn Iterator<Item = u32>| -> BTreeSet<u64> {
            edits.take(EDITS_MAX).filter_map(|n| self.of.get(n as usize).copied()).collect()
        };
        let (word, edits) = match &recipe.pick {
            Pick::All => (0, BTreeSet::new()),
            Pick::Durable => (1, classes(&mut self.history.pending(recipe.at))),
            Pick::Lose(edits) => (2, classes(&mut edits.iter().copied())),
            Pick::Keep(edits) => (3, classes(&mut edits.iter().copied())),
            Pick::Sample(_) => (4, BTreeSet::new()),
        };
        let torn = recipe.torn.as_ref().map(|torn| {
            let is_head = torn.sectors.start == 0;
            (self.of.get(torn.micro as usize), is_head, torn.is_garbage)
        });
        hash(&(word, edits, torn, self.moment(recipe.at)))
    }

    fn moment(&self, at: u32) -> Moment {
        let at = at as usize;
        match at.checked_sub(1).and_then(|last| self.trace.events.get(last)) {
            Some(last) if is_promise(&last.call) => Moment::RightAfterOne,
            _ if at > self.first_promise => Moment::Between,
            _ => Moment::BeforeAny,
        }
    }
}

fn is_promise(call: &Call) -> bool {
    matches!(call, Call::Mark { .. })
}

/// The position in a file of an edit's bytes: the first page, the end, or between.
fn place(edit: &Edit) -> u8 {
    match edit {
        Edit::Data { page: 0, .. } => 0,
        Edit::Data { at: 0, bytes, .. } if bytes.as_slice().len() == PAGE => 1,
        Edit::Data { .. } => 2,
        _ => 3,
    }
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = SipHasher13::new();
    what.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
#[path = "updates_tests.rs"]
mod tests;
