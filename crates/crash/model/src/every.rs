//! Every legal state at a crash point, for recordings short enough to enumerate.
//!
//! The enumeration takes the edits in the order of the recording. It tries each edit that may be
//! missing both kept and lost; an edit may be kept if all that it needs, and all that precedes it
//! in the log, is kept ([`History`] defines what is legal). A page may also be torn: a contiguous
//! run of its sectors is written, and every edit that needs the page is lost.

use crate::edit::Edit;
use crate::history::History;
use crate::page::Digest;
use crate::state::{SECTOR, State};
use std::collections::HashSet;

/// The most choices that are followed. [`Every::is_cut`] reports that this bound was reached.
const CHOICES_MAX: u64 = 2_000_000;

/// The legal states at a crash point.
#[derive(Debug, Default)]
pub struct Every {
    pub states: HashSet<Digest>,
    /// The bound was reached, so a state that is not in the list may still be legal.
    pub is_cut: bool,
}

struct Search<'a> {
    history: &'a History,
    at: u32,
    found: Every,
    choices: u64,
}

/// The state that the choices so far lead to.
#[derive(Clone)]
struct Partial {
    state: State,
    /// For each edit so far, whether it and all that it depends on are kept.
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
    /// Enumerates all choices for the remaining edits. The loop loses an edit; the recursion keeps
    /// or tears it, so its depth is the number of edits that are kept but could be lost.
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

    /// Tears one page of a state, as a recipe does.
    fn tear(&mut self, n: u32, partial: &Partial) {
        if partial.is_torn || !self.history.may_tear(n, self.at) {
            return;
        }
        let edit = &self.history.micros[n as usize].edit;
        let Edit::Data { at, bytes, .. } = edit else { return };
        // The sectors that the edit writes. Those past the end of the file count too, since a later
        // size can expose them.
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
