//! Reduces a failing state to its smallest form.
//!
//! A state is described by its lost edits. Lost edits are restored, halves first, as long as the
//! checker still fails; then the crash is moved to an earlier event. At the end the failure
//! disappears if any single lost call is restored.

use crate::early::Early;
use crate::history::History;
use crate::recipe::{Pick, Recipe};
use crate::run::{Case, Checker, Verdict};
use crate::trace::Trace;
use std::cell::Cell;

/// The most checks for one state, since a check may take seconds.
const CHECKS_MAX: u32 = 150;
/// The most crash points before the crash at which the complete tree is compared with the state.
const PREFIXES_MAX: usize = 500;

/// A failing state in its smallest form.
#[derive(Clone, Debug)]
pub struct Shrunk {
    pub recipe: Recipe,
    /// The edits whose loss implies the loss of all others.
    pub roots: Vec<u32>,
    pub message: String,
    /// The number of checks that shrinking took.
    pub checks: u32,
    /// Whether the limit of checks was reached.
    pub is_cut: bool,
}

pub struct Shrinker<'a> {
    pub trace: &'a Trace,
    pub history: &'a History,
    pub checker: &'a dyn Checker,
    early: Early,
    checks: Cell<u32>,
}

impl<'a> Shrinker<'a> {
    pub fn new(trace: &'a Trace, history: &'a History, checker: &'a dyn Checker) -> Shrinker<'a> {
        let early = Early::of(trace, history);
        Shrinker { trace, history, checker, early, checks: Cell::new(0) }
    }

    /// The checker's message if the state fails. `None` if the state passes or cannot be judged, or
    /// if the limit of checks was reached.
    fn fails(&self, recipe: &Recipe) -> Option<String> {
        if self.checks.get() >= CHECKS_MAX {
            return None;
        }
        self.checks.set(self.checks.get() + 1);
        let state = self.history.state(recipe);
        let told = self.trace.marks(recipe.at as usize);
        let moment = self.trace.time_before(recipe.at);
        let case = Case { recipe, state: &state, told: &told, moment, within: "", job: 0 };
        match self.checker.check(&case) {
            Verdict::Bad(message) => Some(message),
            Verdict::Good | Verdict::Broken(_) => None,
        }
    }

    pub fn shrink(&self, recipe: &Recipe, message: &str) -> Shrunk {
        self.checks.set(0);
        let mut best = (recipe.clone(), message.to_owned());
        if let Some(prefix) = self.as_prefix(&best.0) {
            return Shrunk {
                recipe: prefix.0,
                roots: Vec::new(),
                message: prefix.1,
                checks: self.checks.get(),
                is_cut: false,
            };
        }
        self.try_whole_page(&mut best);
        let lost = self.history.lost(&best.0);
        let mut roots = self.history.roots(&lost);
        self.by_roots(&mut best, &roots);
        self.give_back(&mut best, &mut roots);
        self.crash_earlier(&mut best, &roots);
        self.give_back(&mut best, &mut roots);
        let is_cut = self.checks.get() >= CHECKS_MAX;
        Shrunk { recipe: best.0, roots, message: best.1, checks: self.checks.get(), is_cut }
    }

    /// Looks for a failing state without losses: at a crash point whose complete tree equals the
    /// state, or else before the first lost call.
    fn as_prefix(&self, recipe: &Recipe) -> Option<(Recipe, String)> {
        let digest = self.history.state(recipe).digest();
        let first_lost = self.history.lost(recipe).first().map(|n| self.history.micros[*n as usize].event);
        let start = self.first_point(recipe);
        let like = (start..=recipe.at).rev().take(PREFIXES_MAX).map(|at| Recipe::new(at, Pick::All));
        let same = like.into_iter().find(|r| self.history.state(r).digest() == digest);
        let before = first_lost.filter(|at| *at >= start).map(|at| Recipe::new(at, Pick::All));
        [same, before].into_iter().flatten().find_map(|r| self.fails(&r).map(|message| (r, message)))
    }

    /// The earliest crash point to which the crash may be moved.
    fn first_point(&self, recipe: &Recipe) -> u32 {
        self.early.first_like(recipe.at).max(*self.history.points().start())
    }

    /// Replaces the torn page by the whole one if the state still fails.
    fn try_whole_page(&self, best: &mut (Recipe, String)) {
        if best.0.torn.is_some() {
            let whole = Recipe { torn: None, ..best.0.clone() };
            if let Some(message) = self.fails(&whole) {
                *best = (whole, message);
            }
        }
    }

    /// Replaces a recipe of any kind by one that names the lost edits, if that state fails.
    fn by_roots(&self, best: &mut (Recipe, String), roots: &[u32]) {
        if matches!(best.0.pick, Pick::All | Pick::Lose(_)) {
            return;
        }
        let pick = if roots.is_empty() { Pick::All } else { Pick::Lose(roots.to_vec()) };
        let named = Recipe { pick, ..best.0.clone() };
        if let Some(message) = self.fails(&named) {
            *best = (named, message);
        }
    }

    fn give_back(&self, best: &mut (Recipe, String), roots: &mut Vec<u32>) {
        let recipe = |roots: &[u32], best: &Recipe| {
            let pick = if roots.is_empty() { Pick::All } else { Pick::Lose(roots.to_vec()) };
            Recipe { pick, ..best.clone() }
        };
        let mut part = roots.len();
        while part > 0 {
            let mut from = 0;
            while from < roots.len() {
                let mut fewer = roots.clone();
                fewer.drain(from..(from + part).min(roots.len()));
                let smaller = recipe(&fewer, &best.0);
                match self.fails(&smaller) {
                    Some(message) => {
                        *best = (smaller, message);
                        *roots = fewer;
                    }
                    None => from += part,
                }
            }
            part /= 2;
        }
        self.lose_later_part(best, roots);
    }

    /// Restores a prefix of the lost edits, halves first. An edit needs only earlier ones, so every
    /// prefix can be restored. In a log the loss of the first edit implies the loss of all later
    /// ones, and the first is seldom the cause.
    fn give_back_beginning(&self, best: &mut (Recipe, String), roots: &mut Vec<u32>) {
        let mut lost = self.history.lost(&best.0);
        let mut part = lost.len() / 2;
        while part > 0 {
            if part >= lost.len() {
                part = lost.len() / 2;
                continue;
            }
            let next = self.history.roots(&lost[part..]);
            let recipe = Recipe { pick: Pick::Lose(next.clone()), ..best.0.clone() };
            match self.fails(&recipe) {
                Some(message) => {
                    *best = (recipe, message);
                    *roots = next;
                    lost.drain(..part);
                }
                None => part /= 2,
            }
        }
    }

    /// For each root: tries to restore it and to lose only the edits that need it, which may be the
    /// cause.
    fn lose_later_part(&self, best: &mut (Recipe, String), roots: &mut Vec<u32>) {
        self.give_back_beginning(best, roots);
        let mut tried = 0;
        while tried < roots.len() {
            let given_back = roots[tried];
            let lost = self.history.lost(&best.0);
            let rest: Vec<u32> = lost.into_iter().filter(|n| *n != given_back).collect();
            let next = self.history.roots(&rest);
            if next.is_empty() {
                return;
            }
            let recipe = Recipe { pick: Pick::Lose(next.clone()), ..best.0.clone() };
            match self.fails(&recipe) {
                Some(message) => {
                    *best = (recipe, message);
                    *roots = next;
                    tried = 0;
                }
                None => tried += 1,
            }
        }
    }

    /// Moves the crash to an earlier event, which leaves fewer calls in the report.
    fn crash_earlier(&self, best: &mut (Recipe, String), roots: &[u32]) {
        if matches!(best.0.pick, Pick::Sample(_)) {
            return;
        }
        let first = roots.iter().map(|n| self.history.micros[*n as usize].event + 1).max();
        let torn = best.0.torn.as_ref().map(|t| self.history.micros[t.micro as usize].event + 1);
        let first = first.max(torn).unwrap_or_default().max(self.first_point(&best.0));
        // Step back by half of the distance, and then by smaller and smaller steps.
        let mut step = (best.0.at.saturating_sub(first)).div_ceil(2);
        while step > 0 && best.0.at > first {
            let at = best.0.at.saturating_sub(step).max(first);
            let recipe = Recipe { at, ..best.0.clone() };
            match self.fails(&recipe) {
                Some(message) => *best = (recipe, message),
                None if step == 1 => break,
                None => step = step.div_ceil(2),
            }
            if at == first {
                break;
            }
        }
    }
}
