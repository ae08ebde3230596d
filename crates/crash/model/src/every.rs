//! Every legal state at a crash point, for recordings so short that all can be had.
//!
//! Edits are taken in the order of the recording, and each that may be missing is once kept and
//! once lost. An edit may be kept if all that it needs, and all that is before it in the log, is
//! there: see [`History`] for what is legal. A page may besides be torn: some of its sectors that
//! follow one another are written, and what needs the page is lost.

use crate::edit::Edit;
use crate::history::History;
use crate::state::{Digest, SECTOR, State};
use std::collections::HashSet;

/// Choices beyond this are not followed: a caller hears that the list is not whole.
const CHOICES_MAX: u64 = 2_000_000;

/// The legal states at a crash point.
#[derive(Debug, Default)]
pub struct Every {
    pub states: HashSet<Digest>,
    /// There were more choices than could be followed: a state that is not in the list may be
    /// legal.
    pub is_cut: bool,
}

struct Search<'a> {
    history: &'a History,
    at: u32,
    found: Every,
    choices: u64,
}

/// What a choice has led to so far.
#[derive(Clone)]
struct Partial {
    state: State,
    /// Whether each edit up to now is there with all that is behind it.
    whole: Vec<bool>,
    is_torn: bool,
}

impl History {
    /// Digests of all legal states at a crash point.
    pub fn every(&self, at: u32) -> Every {
        let mut search = Search { history: self, at, found: Every::default(), choices: 0 };
        let partial = Partial { state: self.base(), whole: Vec::new(), is_torn: false };
        search.follow(partial);
        search.found
    }
}

impl Search<'_> {
    /// Goes on from a choice of the first edits. Losing an edit is the loop, keeping or tearing it
    /// the recursion: its depth is the number of edits that are kept though they may be lost.
    fn follow(&mut self, mut partial: Partial) {
        while partial.whole.len() < self.history.upto(self.at) {
            let n = partial.whole.len() as u32;
            let edit = &self.history.micros[n as usize].edit;
            let is_whole = self.history.behind(n).all(|d| partial.whole[d as usize]);
            if self.history.is_durable(n, self.at) {
                partial.state.apply(edit);
                partial.whole.push(is_whole);
                continue;
            }
            if is_whole {
                self.choices += 1;
                if self.choices > CHOICES_MAX {
                    self.found.is_cut = true;
                    return;
                }
                let mut kept = partial.clone();
                kept.state.apply(edit);
                kept.whole.push(true);
                self.follow(kept);
                self.tear(n, &partial);
            }
            partial.whole.push(false);
        }
        self.found.states.insert(partial.state.digest());
    }

    /// One page of a state may be torn, as in a recipe.
    fn tear(&mut self, n: u32, partial: &Partial) {
        if partial.is_torn || !self.history.may_tear(n, self.at) {
            return;
        }
        let edit = &self.history.micros[n as usize].edit;
        let Edit::Data { at, bytes, .. } = edit else { return };
        // Those that it writes. What lies behind the end of the file counts, too: a size that comes
        // later shows it.
        let (first, end) =
            (usize::from(*at) / SECTOR, (usize::from(*at) + bytes.as_slice().len()).div_ceil(SECTOR));
        for from in first..end {
            for to in from + 1..=end {
                let mut torn = partial.clone();
                torn.state.apply_torn(edit, from..to);
                torn.whole.push(false);
                torn.is_torn = true;
                self.follow(torn);
            }
        }
    }
}
