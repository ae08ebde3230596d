//! The judge that needs no check: the behaviour of the program without a crash is the standard.
//!
//! The user gives a command that restarts the program and prints what the program has. A crash
//! state must show what some *prefix* shows. A prefix is the directory as it was after one of the
//! calls, as if the program had been killed there without a power failure. That prefix must not be
//! older than the last promise before the crash, and must come before the next promise. So a broken
//! promise, a mixture of old and new contents, and a store that does not open all differ from each
//! prefix.
//!
//! The comparison covers the exit code, the standard output, and the files that the command leaves,
//! if the user names some or if the command prints nothing at all. What differs between two runs on
//! the same state is not compared (module `volatile`).
//!
//! The command may fail on prefixes before the first promise, when the program is not yet set up.
//! After the first promise, a prefix on which the command fails matches no crash state. If the
//! directory was empty at the start, only the exit code is compared before the first promise, since
//! the user has no data yet.
//!
//! A prefix is run when a crash state needs it, and only once. The prefix at the last promise comes
//! first.

mod seen;
mod volatile;

use crate::check::CommandChecker;
use crate::history::History;
use crate::model::STRICT;
use crate::observed::Observed;
use crate::page::Digest;
use crate::pattern::Pattern;
use crate::recipe::{Pick, Recipe};
use crate::run::{Case, Checker, Verdict};
use crate::trace::{Call, Trace};
use kedge_base::{Clock, SystemClock, printable};
use parking_lot::Mutex;
use seen::{Files, Seen};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use volatile::Volatile;

/// The most prefixes that are run twice, to find what varies.
const TWICE_MAX: usize = 8;
/// The pause between the two runs, so that a time in seconds differs.
const APART: Duration = Duration::from_millis(1100);
const NAP: Duration = Duration::from_millis(20);

/// What a prefix shows; `None` if it matches no crash state.
type Shown = Option<Arc<Seen>>;

/// Judges crash states by what the program shows without a crash.
pub struct InferChecker {
    runner: CommandChecker,
    history: History,
    /// The texts of all promises.
    told: Vec<String>,
    /// The number of promises before the first crash point.
    before: usize,
    /// For each number of promises, the crash points after that many and before the next.
    spans: Vec<RangeInclusive<u32>>,
    /// Whether no data existed before the first promise.
    starts_empty: bool,
    /// Whether a crash state may be older than the last promise.
    is_older_allowed: bool,
    volatile: Volatile,
    /// Which files are compared.
    files: Files,
    shown: Mutex<HashMap<(Digest, usize), Shown>>,
}

impl InferChecker {
    /// Makes the checker. `patterns` name the files to compare. Fails if the command does not
    /// succeed on the complete states, or if its output differs in every run.
    pub fn new(
        trace: &Trace,
        runner: CommandChecker,
        patterns: Vec<Pattern>,
        is_older_allowed: bool,
    ) -> Result<InferChecker, String> {
        let history = History::new(trace, STRICT);
        let (start, end) = (*history.points().start(), *history.points().end());
        let marks = trace.events.iter().enumerate().skip(start as usize);
        let marks = marks.filter(|(_, e)| matches!(e.call, Call::Mark { .. })).map(|(n, _)| n as u32 + 1);
        let starts: Vec<u32> = std::iter::once(start).chain(marks).collect();
        let ends = starts.iter().skip(1).copied().chain([end]);
        let spans = starts.iter().copied().zip(ends).map(|(from, to)| from..=to).collect();
        let told: Vec<String> = trace.marks(trace.events.len()).into_iter().map(str::to_owned).collect();
        let before = trace.marks(start as usize).len();
        let files = if trace.device().is_some() { Files::None } else { Files::of(patterns) };
        let starts_empty = history.starts_empty(trace.device());
        let mut checker = InferChecker {
            runner,
            history,
            told,
            before,
            spans,
            starts_empty,
            is_older_allowed,
            volatile: Volatile::default(),
            files,
            shown: Mutex::default(),
        };
        checker.learn(&starts, end)?;
        Ok(checker)
    }

    /// Runs the command twice on complete states. Finds what varies, and which files are compared.
    fn learn(&mut self, starts: &[u32], end: u32) -> Result<(), String> {
        let clock = SystemClock::default();
        let broken = |e: io::Error| format!("the command cannot be run without a crash: {e}");
        // Use the states at promises, since at other states the program may not be set up yet.
        let firm = starts.iter().copied().enumerate().skip(1).chain([(starts.len() - 1, end)]);
        let mut firm: Vec<(usize, u32)> = firm.collect();
        let step = firm.len().div_ceil(TWICE_MAX);
        firm = firm.into_iter().rev().step_by(step).collect();
        let mut first = Vec::new();
        for (span, at) in &firm {
            let observed = self.observe_prefix(*at, self.before + span, 0).map_err(broken)?;
            match observed {
                Err(Verdict::Broken(why) | Verdict::Bad(why)) => {
                    return Err(format!("the command does not end well without a crash: {why}"));
                }
                Err(Verdict::Good) => {}
                Ok(observed) if observed.code != 0 => {
                    return Err(format!(
                        "the command fails without a crash, after {at} events: exit code {}: {}",
                        observed.code, observed.last_line
                    ));
                }
                Ok(observed) => first.push((*span, *at, observed)),
            }
        }
        if self.files.is_undecided() {
            let is_silent = first.iter().all(|(_, _, observed)| observed.out.is_empty());
            self.files = if is_silent { Files::Promised(BTreeSet::new()) } else { Files::None };
        }
        for (_, _, observed) in &first {
            self.files.add(&observed.tree);
        }
        while clock.monotonic() < APART && !self.runner.stop.load(Ordering::Relaxed) {
            std::thread::sleep(NAP);
        }
        for (span, at, one) in &first {
            let other = self.observe_prefix(*at, self.before + span, 1).map_err(broken)?;
            let Ok(other) = other else {
                return Err("the command ends well, and then not, on one state without a crash".to_owned());
            };
            if other.code != one.code {
                return Err(format!(
                    "the command's exit code is {}, and then {}, on one state without a crash",
                    one.code, other.code
                ));
            }
            self.volatile.learn(&one.out, &other.out)?;
            self.files.learn(&one.tree, &other.tree);
        }
        Ok(())
    }

    /// Runs the command on the directory after the first `at` events.
    fn observe_prefix(&self, at: u32, told: usize, job: usize) -> io::Result<Result<Observed, Verdict>> {
        let recipe = Recipe::new(at, Pick::All);
        let state = self.history.state(&recipe);
        let told: Vec<&str> = self.told.iter().take(told).map(String::as_str).collect();
        let case = Case { recipe: &recipe, state: &state, told: &told, moment: 0, within: "", job };
        self.observe(&case)
    }

    fn observe(&self, case: &Case<'_>) -> io::Result<Result<Observed, Verdict>> {
        let is_compared = |path: &[u8]| self.files.has(path);
        self.runner.observe(case, self.files.is_wanted().then_some(&is_compared))
    }

    fn seen(&self, observed: Observed) -> Seen {
        let files = self.files.of_tree(&observed.tree);
        Seen { code: observed.code, lines: self.volatile.normal(&observed.out), files }
    }

    /// What the prefix after `at` events shows, with `told` promises.
    fn prefix(&self, at: u32, told: usize, job: usize) -> Result<Shown, Verdict> {
        let digest = self.history.state(&Recipe::new(at, Pick::All)).digest();
        if let Some(shown) = self.shown.lock().get(&(digest, told)) {
            return Ok(shown.clone());
        }
        let observed = match self.observe_prefix(at, told, job) {
            Ok(Ok(observed)) => Some(observed),
            // The command did not end by itself or printed too much.
            Ok(Err(Verdict::Bad(_) | Verdict::Good)) => None,
            Ok(Err(broken)) => return Err(broken),
            Err(e) => return Err(Verdict::Broken(format!("the state after {at} events: {e}"))),
        };
        let shown = observed
            .filter(|observed| observed.code == 0 || told == self.before)
            .map(|observed| Arc::new(self.seen(observed)));
        self.shown.lock().insert((digest, told), shown.clone());
        Ok(shown)
    }

    /// Which promises' prefixes may match a crash state after `told` promises, the last one first.
    fn spans_for(&self, told: usize) -> impl Iterator<Item = usize> + use<> {
        let last = told.saturating_sub(self.before).min(self.spans.len() - 1);
        let first = if self.is_older_allowed { 0 } else { last };
        (first..=last).rev()
    }

    fn judge(&self, case: &Case<'_>) -> Result<Verdict, Verdict> {
        let observed = match self.observe(case) {
            Ok(observed) => observed?,
            Err(e) => {
                let why = format!("state {} cannot be made or checked: {e}", case.recipe);
                return Err(Verdict::Broken(why));
            }
        };
        let last_line = observed.last_line.clone();
        let seen = self.seen(observed);
        let is_early = self.starts_empty && self.spans.len() > 1 && case.told.len() <= self.before;
        let is_like = |shown: &Seen| if is_early { shown.code == seen.code } else { *shown == seen };
        let mut tried = HashSet::new();
        for span in self.spans_for(case.told.len()) {
            let (from, to) = (*self.spans[span].start(), *self.spans[span].end());
            for at in [from, to].into_iter().chain(from..=to) {
                if !tried.insert(at) {
                    continue;
                }
                let shown = self.prefix(at, self.before + span, case.job)?;
                if shown.is_some_and(|shown| is_like(&shown)) {
                    return Ok(Verdict::Good);
                }
            }
        }
        let span = self.spans_for(case.told.len()).next().unwrap_or(0);
        let promised = self.prefix(*self.spans[span].start(), self.before + span, case.job)?;
        Ok(Verdict::Bad(seen.unlike(promised.as_deref(), &last_line)))
    }

    /// Describes for a person what was compared.
    pub fn summary(&self) -> String {
        let shown = self.shown.lock();
        let prefixes = shown.len();
        let failing = shown.values().filter(|shown| shown.is_none()).count();
        let mut text = format!("compared with {prefixes} states without a crash");
        if failing > 0 {
            text.push_str(&format!(" ({failing} of them fail after a promise, and count for nothing)"));
        }
        text.push_str(&format!("; {}", self.files.shown()));
        let volatile = self.volatile.shown();
        if !volatile.is_empty() {
            text.push_str(&format!("; not compared, since it varies: {}", volatile.join(", ")));
        }
        printable(&text)
    }

    pub fn runner(&self) -> &CommandChecker {
        &self.runner
    }
}

impl Checker for InferChecker {
    fn check(&self, case: &Case<'_>) -> Verdict {
        self.judge(case).unwrap_or_else(|verdict| verdict)
    }
}

#[cfg(test)]
#[path = "infer_tests.rs"]
mod tests;
