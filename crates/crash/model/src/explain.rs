//! Explains a failing state: which calls were lost, and which persistence call at which place
//! prevents it.
//!
//! A persistence call helps if the state is no longer legal in the recording with this call.
//! Candidates are fsyncs of the files and directories whose edits were lost. They are inserted
//! before the first later call that survived, or before the promise that was broken, or right after
//! the lost call. The first candidate that makes the state illegal is inserted into the recording
//! and the search runs again; only the result of that search is reported.

use crate::describe::{Paths, count};
use crate::early::Early;
use crate::edit::Edit;
use crate::explaining::Watched;
use crate::history::History;
use crate::recipe::{Pick, Recipe};
use crate::run::{Budget, Checker, Search};
use crate::shrink::Shrunk;
use crate::trace::{Call, Event, Trace};
use serde::Serialize;

/// The most states that are tried with the missing call inserted.
const VERIFY_STATES: u64 = 400;
/// The most pairs of missing calls that are tried if no single call helps.
const PAIRS_MAX: usize = 60;
/// The name of the part of a create or mkdir that changes the directory.
const ENTRY: &str = "the directory entry";
/// The most crash points that are tried to find the last good state.
const GOOD_TRIED_MAX: usize = 20;
/// The most other positions of one missing call at which it is inserted too.
const ALIKE_MAX: usize = 1000;

/// A call of the recording as reports show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallRef {
    /// The number of the event.
    pub number: u32,
    pub text: String,
    /// The part of the call that was lost.
    pub what: String,
    /// Whether the whole call was lost.
    pub is_whole: bool,
    /// Whether the call is a mark: a promise to the user.
    pub is_mark: bool,
    pub pid: u32,
    pub stack: Vec<String>,
}

impl CallRef {
    fn as_lost(&self) -> String {
        match self.is_whole {
            true => format!("#{} {}", self.number, self.text),
            false if self.what == ENTRY => format!("{ENTRY} that #{} {} made", self.number, self.text),
            false => format!("{} of #{} {}", self.what, self.number, self.text),
        }
    }
}

/// A persistence call that is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fix {
    /// The call as text, such as `fsync("dir")`.
    pub call: String,
    pub path: String,
    /// The event before which the call is inserted.
    pub before: u32,
    pub before_text: String,
    /// The callers of that event, innermost first.
    pub before_stack: Vec<String>,
    /// The numbers of other events before which the same call is missing in the same way. The
    /// search ran with all of them inserted.
    pub also_before: Vec<u32>,
    /// The number of states tried with the call inserted, and of those that failed.
    pub tried: u64,
    pub failing: u64,
    /// The inserted calls: the inode of each, and the event before which it is inserted.
    #[serde(skip)]
    pub(crate) places: Vec<Candidate>,
}

/// Another failure that the missing calls of the main one prevent too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Also {
    pub state: String,
    pub loss: String,
    pub message: String,
}

/// A failure explained in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The name by which the state can be reproduced.
    pub state: String,
    /// The checker's message.
    pub message: String,
    /// The last crash point before the crash at which a state without losses passes the check.
    /// `None` if none of the last few passes, or if time ran out ([`Explanation::is_cut`]).
    pub last_good_state: Option<String>,
    /// Whether time ran out before everything was tried. Then the state may not be the smallest
    /// one, and empty fields may mean that their values were not searched for.
    pub is_cut: bool,
    /// The last call before the crash.
    pub after: Option<CallRef>,
    pub lost: Vec<CallRef>,
    /// The first call after a lost one that survived.
    pub kept: Option<CallRef>,
    pub fixes: Vec<Fix>,
    /// The text of the last promise before the crash.
    pub told: Option<String>,
    /// Whether the crash comes before the first promise, and no file was there at the start.
    pub is_early: bool,
    /// Other failures that the missing calls prevent too.
    pub also: Vec<Also>,
    /// The loss as a sentence.
    pub loss: String,
    /// All of the above as one sentence.
    pub sentence: String,
    /// A text that identifies the cause: the lost calls and the fix. It is equal for all failures
    /// of one cause.
    #[serde(skip)]
    pub cause: String,
}

/// The loss of one node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeLoss {
    pub node: String,
    #[serde(flatten)]
    pub explanation: Explanation,
}

pub struct Explainer<'a> {
    pub trace: &'a Trace,
    pub paths: &'a Paths,
    pub history: &'a History,
    /// The checker, which counts its runs and enforces the time limit.
    pub(crate) watched: &'a Watched<'a>,
    /// The budget of the search that found the failures.
    pub budget: &'a Budget,
}

impl Explanation {
    /// The calls that are shown with their callers: the lost ones, and those before which a call is
    /// missing. Each has its description.
    pub(crate) fn stacks(&self) -> Vec<(String, &[String])> {
        let lost = self.lost.iter().map(|c| (format!("#{} {}", c.number, c.text), &c.stack[..]));
        let fixes = self.fixes.iter().map(|f| {
            (format!("{} is missing before #{} {}", f.call, f.before, f.before_text), &f.before_stack[..])
        });
        lost.chain(fixes).filter(|(_, stack)| !stack.is_empty()).collect()
    }
}

/// A position in the recording at which a missing call could be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub ino: u64,
    pub before: u32,
}

/// The recording with these fsyncs inserted.
pub(crate) fn with_calls(trace: &Trace, calls: &[Candidate]) -> Trace {
    let event = |c: Candidate| {
        let near = &trace.events[c.before as usize];
        let call = Call::Fsync { ino: c.ino, datasync: false, since: u64::from(c.before) };
        let event = Event {
            time: trace.time_before(c.before),
            pid: near.pid,
            tid: near.tid,
            errno: 0,
            call,
            stack: Vec::new(),
        };
        (c.before as usize, event)
    };
    trace.with_events(ordered(calls).into_iter().map(event).collect())
}

fn ordered(calls: &[Candidate]) -> Vec<Candidate> {
    let mut ordered = calls.to_vec();
    ordered.sort_by_key(|c| (c.before, c.ino));
    ordered.dedup();
    ordered
}

/// Converts a crash point of the recording with these fsyncs inserted to one of the recording
/// without them.
pub(crate) fn point_without_calls(calls: &[Candidate], at: u32) -> u32 {
    let calls = ordered(calls);
    let inserted = (0u32..).zip(&calls).filter(|(n, c)| c.before + n < at);
    at - inserted.count() as u32
}

impl Explainer<'_> {
    pub fn explain(&self, shrunk: &Shrunk) -> Explanation {
        let recipe = &shrunk.recipe;
        let lost = self.history.lost(recipe);
        // A torn page is a loss too: the call that makes the page durable prevents it.
        let mut missing = shrunk.roots.clone();
        missing.extend(recipe.torn.as_ref().map(|t| t.micro));
        let kept = self.first_kept(recipe, &missing);
        let fixes = self.fixes(recipe, &missing, &lost, kept);
        let mut calls = self.calls(&shrunk.roots, &lost);
        if let Some(torn) = &recipe.torn {
            let micro = &self.history.micros[torn.micro as usize];
            let Edit::Data { page, .. } = micro.edit else { unreachable!("only bytes are torn") };
            let (from, to) = (torn.sectors.start * 512, torn.sectors.end * 512);
            let page = page * 4096;
            let what = match torn.is_garbage {
                true => format!("bytes (garbage from byte {from} to {to} of the page at {page})"),
                false => format!("all but bytes {from} to {to} of its page at {page}"),
            };
            calls.insert(0, self.call(micro.event, what));
        }
        let told = self.trace.marks(recipe.at as usize).last().map(|t| (*t).to_owned());
        let is_call = |n: &u32| !matches!(self.trace.events[*n as usize].call, Call::Process { .. });
        let after = (0..recipe.at).rev().find(is_call).map(|n| self.call(n, String::new()));
        let kept = kept.map(|n| self.call(n, String::new()));
        let cause = cause(&calls, kept.as_ref(), &fixes);
        let last_good = self.last_good(recipe.at).map(|good| good.to_string());
        let loss = loss(&calls, after.as_ref(), kept.as_ref(), told.as_deref());
        let sentence = match calls.is_empty() {
            true => loss.clone(),
            false => format!("{loss} {}", self.advice(&fixes, kept.as_ref())),
        };
        Explanation {
            state: recipe.to_string(),
            message: shrunk.message.clone(),
            last_good_state: last_good,
            is_cut: self.watched.is_cut(),
            after,
            lost: calls,
            kept,
            fixes,
            told,
            is_early: Early::of(self.trace, self.history).has(recipe.at),
            also: Vec::new(),
            loss,
            sentence,
            cause,
        }
    }

    fn last_good(&self, at: u32) -> Option<Recipe> {
        let moments = (*self.history.points().start()..=at).rev().take(GOOD_TRIED_MAX);
        moments
            .map(|at| Recipe::new(at, Pick::All))
            .find(|whole| !self.still_fails(self.trace, self.history, whole))
    }

    fn call(&self, number: u32, what: String) -> CallRef {
        let event = &self.trace.events[number as usize];
        let text = self.paths.call(number as usize, event);
        CallRef {
            number,
            text,
            what,
            is_whole: false,
            is_mark: matches!(event.call, Call::Mark { .. }),
            pid: event.pid,
            stack: event.stack.clone(),
        }
    }

    /// The lost calls: the lost edits, grouped by call.
    fn calls(&self, roots: &[u32], lost: &[u32]) -> Vec<CallRef> {
        let mut calls: Vec<(u32, Vec<&'static str>)> = Vec::new();
        for n in roots {
            let micro = &self.history.micros[*n as usize];
            let what = match micro.edit {
                Edit::Inode { .. } => "the new file",
                Edit::Add { .. } => ENTRY,
                Edit::Remove { .. } => "the removal of the name",
                Edit::Rename { .. } => "the rename",
                Edit::Data { .. } => "bytes",
                Edit::Grow { .. } | Edit::Truncate { .. } => "the size",
                Edit::Zero { .. } | Edit::Shift { .. } => "the change of space",
                Edit::Attr { .. } | Edit::Xattr { .. } => "attributes",
            };
            match calls.last_mut().filter(|(event, _)| *event == micro.event) {
                Some((_, parts)) if parts.contains(&what) => {}
                Some((_, parts)) => parts.push(what),
                None => calls.push((micro.event, vec![what])),
            }
        }
        let whole = |event| self.history.of_event(event).all(|n| lost.binary_search(&n).is_ok());
        let call = |(event, parts): (u32, Vec<&str>)| {
            // Without its directory entry a new file is invisible, whatever other parts of the call
            // are lost.
            let what = if parts.contains(&ENTRY) { ENTRY.to_owned() } else { parts.join(" and ") };
            CallRef { is_whole: whole(event), ..self.call(event, what) }
        };
        calls.into_iter().map(call).collect()
    }

    /// The first call after a lost one that changed something or made a promise.
    fn first_kept(&self, recipe: &Recipe, roots: &[u32]) -> Option<u32> {
        let first = roots.iter().map(|n| self.history.micros[*n as usize].event).min()?;
        let set = self.history.set(recipe);
        (first + 1..recipe.at).find(|event| {
            let call = &self.trace.events[*event as usize].call;
            matches!(call, Call::Mark { .. } | Call::End { .. })
                || self.history.of_event(*event).any(|n| set.has(n))
        })
    }

    fn fixes(&self, recipe: &Recipe, roots: &[u32], lost: &[u32], kept: Option<u32>) -> Vec<Fix> {
        let Some(kept) = kept else { return Vec::new() };
        let mut candidates: Vec<Candidate> = Vec::new();
        for n in roots {
            let micro = &self.history.micros[*n as usize];
            let event = micro.event;
            // An fsync before the lost call would have nothing to persist.
            let places = [kept, event + 1].into_iter().filter(|p| *p > event);
            for before in places {
                let [dir, new_dir] = micro.edit.dirs();
                let inos = [micro.edit.own(), new_dir, dir, micro.edit.named()[0]];
                for ino in inos.into_iter().flatten() {
                    let candidate = Candidate { ino, before };
                    if !candidates.contains(&candidate) {
                        candidates.push(candidate);
                    }
                }
            }
        }
        if let Some(fix) = candidates.iter().find_map(|c| self.try_fix(&[*c], recipe, lost)) {
            return fix;
        }
        // If no single call helps, try pairs, and then one call for each lost one.
        candidates.sort_by_key(|c| c.before != kept);
        let pairs = candidates
            .iter()
            .enumerate()
            .flat_map(|(i, one)| candidates[i + 1..].iter().map(move |other| [*one, *other]))
            .filter(|[one, other]| one.ino != other.ino);
        let pair =
            pairs.take(PAIRS_MAX).take_while(|_| !self.watched.is_over() && !self.watched.is_stopped());
        if let Some(fix) = { pair }.find_map(|pair| self.try_fix(&pair, recipe, lost)) {
            return fix;
        }
        let mut all: Vec<Candidate> = candidates.into_iter().filter(|c| c.before == kept).collect();
        all.truncate(8);
        self.try_fix(&all, recipe, lost).unwrap_or_default()
    }

    /// Returns the recording with these calls inserted if they prevent the failure: the state is no
    /// longer legal, and the check passes on the state that is left. `recipe` is the state that
    /// lost these edits.
    fn prevented(&self, calls: &[Candidate], recipe: &Recipe, lost: &[u32]) -> Option<(Trace, History)> {
        let trace = with_calls(self.trace, calls);
        let history = History::new(&trace, self.history.model);
        let torn = recipe.torn.as_ref();
        let moved = calls.iter().filter(|c| c.before <= recipe.at).count() as u32;
        let at = (recipe.at + moved).min(*history.points().end());
        if history.allows(at, lost) && torn.is_none_or(|t| history.may_be_torn(t, at)) {
            return None;
        }
        let same = Recipe { at, pick: Pick::Lose(self.history.roots(lost)), torn: recipe.torn.clone() };
        (!self.still_fails(&trace, &history, &same)).then_some((trace, history))
    }

    /// Whether the missing calls of one failure prevent another failure too.
    pub fn prevents(&self, fixes: &[Fix], other: &Explanation) -> bool {
        let places: Vec<Candidate> = fixes.iter().flat_map(|f| f.places.iter().copied()).collect();
        let places = ordered(&places);
        let Ok(recipe) = other.state.parse::<Recipe>() else { return false };
        !places.is_empty()
            && !other.lost.is_empty()
            && !self.watched.is_over()
            && self.prevented(&places, &recipe, &self.history.lost(&recipe)).is_some()
    }

    /// The calls as fixes, if inserting them makes the state illegal.
    fn try_fix(&self, calls: &[Candidate], recipe: &Recipe, lost: &[u32]) -> Option<Vec<Fix>> {
        self.prevented(calls, recipe, lost)?;
        // A program that omits a call in a loop omits it in each round, so insert it in all rounds.
        let missing: Vec<u32> = lost.iter().copied().chain(recipe.torn.as_ref().map(|t| t.micro)).collect();
        let others: Vec<Vec<Candidate>> = calls.iter().map(|c| self.alike(c, &missing)).collect();
        let all: Vec<Candidate> = calls.iter().copied().chain(others.iter().flatten().copied()).collect();
        let trace = with_calls(self.trace, &all);
        let history = History::new(&trace, self.history.model);
        let budget = self.budget.of_states(VERIFY_STATES);
        let outcome =
            Search { trace: &trace, history: &history, checker: self.watched, budget, hear: None }.run();
        if outcome.states == 0 {
            return None;
        }
        let fix = |(c, others): (&Candidate, Vec<Candidate>)| {
            let path = self.paths.inode(c.ino, c.before as usize);
            let before_text = self.paths.call(c.before as usize, &self.trace.events[c.before as usize]);
            Fix {
                call: self.paths.persisting(c.ino, c.before as usize),
                path,
                before: c.before,
                before_text,
                before_stack: self.trace.events[c.before as usize].stack.clone(),
                also_before: others.iter().map(|o| o.before).collect(),
                tried: outcome.states,
                failing: outcome.failing,
                places: std::iter::once(*c).chain(others).collect(),
            }
        };
        Some(calls.iter().zip(others).map(fix).collect())
    }

    fn kind(&self, event: u32) -> String {
        kind(&self.paths.call(event as usize, &self.trace.events[event as usize]))
    }

    /// Finds other positions for the fsync: after a call like the lost one, and before a call like
    /// the one before which the fsync is missing.
    fn alike(&self, candidate: &Candidate, lost: &[u32]) -> Vec<Candidate> {
        let persists = |n: u32| {
            let edit = &self.history.micros[n as usize].edit;
            edit.own() == Some(candidate.ino) || edit.dirs().contains(&Some(candidate.ino))
        };
        let Some(lost) = lost.iter().copied().find(|n| persists(*n)) else { return Vec::new() };
        let micro = &self.history.micros[lost as usize];
        let is_own = micro.edit.own() == Some(candidate.ino);
        let (lost_kind, before_kind) = (self.kind(micro.event), self.kind(candidate.before));
        let mut places = Vec::new();
        let mut open: Option<(u64, u32)> = None;
        for event in *self.history.points().start()..*self.history.points().end() {
            let this = self.kind(event);
            if this == before_kind
                && let Some((ino, done)) = open.take()
                && event != candidate.before
                && places.len() < ALIKE_MAX
                && self.lacks(ino, done, event)
            {
                places.push(Candidate { ino, before: event });
            }
            if this == lost_kind {
                let edits = self.history.of_event(event).map(|n| &self.history.micros[n as usize].edit);
                let mut inos =
                    edits.filter_map(|e| if is_own { e.own() } else { e.dirs()[1].or(e.dirs()[0]) });
                open = inos.next().map(|ino| (ino, event)).or(open);
            }
        }
        places
    }

    /// Whether a change of an inode by event `done` can still be lost just before event `before`.
    /// If not, the program makes the missing call there already.
    fn lacks(&self, ino: u64, done: u32, before: u32) -> bool {
        self.history.of_event(done).any(|n| {
            let edit = &self.history.micros[n as usize].edit;
            let is_of = edit.own() == Some(ino) || edit.dirs().contains(&Some(ino));
            is_of && !self.history.is_durable(n, before)
        })
    }

    fn still_fails(&self, trace: &Trace, history: &History, recipe: &Recipe) -> bool {
        let state = history.state(recipe);
        let told = trace.marks(recipe.at as usize);
        let moment = trace.time_before(recipe.at);
        let case = crate::run::Case { recipe, state: &state, told: &told, moment, within: "", job: 0 };
        self.watched.check(&case) != crate::run::Verdict::Good
    }

    fn advice(&self, fixes: &[Fix], kept: Option<&CallRef>) -> String {
        let Some(first) = fixes.first() else {
            return match kept {
                Some(_) if self.watched.is_cut() => {
                    "The time for explaining was over before a persistence call was found that prevents it."
                }
                None if self.trace.device().is_some() => "No flush prevents it: the step is not atomic. Write to a \
                         new place, or keep a log with checksums.",
                None => "No persistence call prevents it: the step is not atomic. Write a new file and rename it, or \
                         keep a log with checksums.",
                Some(_) => "No single persistence call was found that prevents it, and no two together.",
            }
            .to_owned();
        };
        let place = |f: &Fix| {
            let others = match f.also_before.len() {
                0 => String::new(),
                n => format!(" (and at {} like it)", count(n as u64, "place")),
            };
            format!("{} before #{} {}{others}", f.call, f.before, f.before_text)
        };
        let calls: Vec<String> = fixes.iter().map(place).collect();
        let then = match first.failing {
            0 => format!("with it, none of {} fails", count(first.tried, "state")),
            n => format!(
                "this failure is gone then; {n} of {} fail for other reasons",
                count(first.tried, "state")
            ),
        };
        let verb = if calls.len() == 1 { "prevents" } else { "prevent" };
        format!("{} {verb} it: {then}.", calls.join(" together with "))
    }
}

/// What the crash loses, in words.
fn loss(lost: &[CallRef], after: Option<&CallRef>, kept: Option<&CallRef>, told: Option<&str>) -> String {
    let mut text = match (after, told) {
        (Some(after), Some(told)) if after.is_mark => {
            format!("A crash after the user was told {told:?} (#{})", after.number)
        }
        (Some(after), _) => format!("A crash after #{} {}", after.number, after.text),
        (None, _) => "A crash at the start".to_owned(),
    };
    if lost.is_empty() {
        text.push_str(
            " leaves a state that does not pass the check, though nothing at all is lost. No persistence call can \
             prevent that: the calls up to there are not one atomic step. Write a new file and rename it, or keep a log.",
        );
        return text;
    }
    let list: Vec<String> = lost.iter().take(4).map(CallRef::as_lost).collect();
    text.push_str(&format!(" can lose {}", list.join(", and ")));
    if lost.len() > list.len() {
        text.push_str(&format!(", and parts of {} more calls", lost.len() - list.len()));
    }
    match kept {
        Some(kept) if kept.is_mark => {}
        Some(kept) => {
            text.push_str(&format!(", while the later #{} {} survives", kept.number, kept.text));
        }
        None => {}
    }
    text.push('.');
    text
}

/// The kind of a call: its text without numbers, since a loop makes the same call on files with
/// different numbers.
fn kind(text: &str) -> String {
    let name = text.split(['(', ' ']).next().unwrap_or_default();
    if name == "mark" {
        return name.to_owned();
    }
    let path = text.split('"').nth(1).unwrap_or_default();
    let words = path.split(|c: char| !c.is_ascii_alphanumeric());
    let plain: Vec<&str> =
        words.map(|w| if w.contains(|c: char| c.is_ascii_digit()) { "0" } else { w }).collect();
    format!("{name} {}", plain.join("/"))
}

fn cause(lost: &[CallRef], kept: Option<&CallRef>, fixes: &[Fix]) -> String {
    if !fixes.is_empty() {
        let fixes = fixes.iter().map(|f| format!("{} before {}", kind(&f.call), kind(&f.before_text)));
        return fixes.collect::<Vec<_>>().join("; ");
    }
    let mut parts: Vec<String> = lost.iter().map(|c| format!("{} {}", c.what, kind(&c.text))).collect();
    parts.dedup();
    parts.extend(kept.map(|k| format!("kept {}", kind(&k.text))));
    parts.join("; ")
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
