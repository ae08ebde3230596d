//! The judge that needs no program: each file must hold one of its versions.
//!
//! The judged files are those that existed at the start or at a mark; without any mark, those that
//! existed at the end. Others, such as a temporary file before its rename, are ignored.
//!
//! A file has *versions*: its content at each mark, when it got a name (create aside) or lost it,
//! when it was made persistent, and at the end. In a crash state each file must hold one of its
//! versions, and none older than that at the last mark before the crash. A version that the program
//! made after the crash does not count, even if the crash state has the same content. A file that
//! no mark covers may also be missing. A half-written file, a mixture, or a file full of zeros is
//! no version.

use crate::history::History;
use crate::model::STRICT;
use crate::page::Digest;
use crate::recipe::{Pick, Recipe};
use crate::run::{Case, Checker, Verdict};
use crate::state::{Body, State};
use crate::trace::{Call, Trace};
use std::collections::{BTreeMap, BTreeSet};

/// The content of a file from an event on; `None` from there on if the file did not exist.
type Version = (u32, Option<Digest>);

pub struct FilesChecker {
    versions: BTreeMap<Vec<u8>, Vec<Version>>,
    judged: BTreeSet<Vec<u8>>,
    /// The crash points right after the marks.
    marks: Vec<u32>,
    /// The first crash point.
    start: u32,
    /// The crash points at which versions were taken.
    moments: Vec<u32>,
    /// For each event, the earliest time of this event and all later ones.
    times: Vec<u64>,
    /// The crash points at which a judged file got another version.
    changes: Vec<u32>,
}

/// How far the user may rely on the complete state at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Firm {
    /// The state is that of the start or of a mark.
    Promised,
    /// The recording ends here, and no mark follows the last calls.
    End,
    /// Later calls may replace it before the next mark.
    Between,
}

fn paths(state: &State) -> BTreeSet<Vec<u8>> {
    let mut there = BTreeSet::new();
    state.walk(&mut |path, _, node| {
        if matches!(node.body, Body::File(_)) {
            there.insert(path.to_vec());
        }
    });
    there
}

impl FilesChecker {
    pub fn new(trace: &Trace) -> FilesChecker {
        FilesChecker::with(trace, |_, _, _| {})
    }

    /// Calls `look` at each crash point at which versions are taken, with the complete state there.
    pub(crate) fn with(trace: &Trace, mut look: impl FnMut(u32, &State, Firm)) -> FilesChecker {
        let history = History::new(trace, STRICT);
        let start = *history.points().start();
        // Promises from before the start are part of the state at the start.
        let before = trace.marks(start as usize).len();
        let mut times: Vec<u64> = trace.events.iter().map(|event| event.time).collect();
        for n in (1..times.len()).rev() {
            times[n - 1] = times[n - 1].min(times[n]);
        }
        let mut checker = FilesChecker {
            versions: BTreeMap::new(),
            judged: BTreeSet::new(),
            marks: vec![start; before],
            start,
            moments: Vec::new(),
            times,
            changes: Vec::new(),
        };
        for at in history.points() {
            let last = (at > start).then(|| &trace.events[at as usize - 1]);
            if let Some(Call::Mark { .. }) = last.map(|e| &e.call) {
                checker.marks.push(at);
            }
            let is_moment = match last.map(|e| &e.call) {
                None => true,
                Some(
                    Call::Mark { .. }
                    | Call::Fsync { .. }
                    | Call::Msync { .. }
                    | Call::SyncRange { .. }
                    | Call::Sync { .. }
                    | Call::Rename { .. }
                    | Call::Link { .. }
                    | Call::Remove { .. }
                    | Call::End { .. }
                    | Call::Device { .. },
                ) => true,
                Some(_) => at == *history.points().end(),
            };
            if is_moment {
                let state = history.state(&Recipe::new(at, Pick::All));
                let is_start = at == start;
                let is_promised = is_start || checker.marks.last() == Some(&at);
                let is_end = at == *history.points().end();
                if is_promised || (is_end && checker.marks.len() == before) {
                    checker.judged.extend(paths(&state));
                }
                look(
                    at,
                    &state,
                    match (is_promised, is_end) {
                        (true, _) => Firm::Promised,
                        (false, true) => Firm::End,
                        (false, false) => Firm::Between,
                    },
                );
                checker.learn(at, &state);
                checker.moments.push(at);
            }
        }
        checker.changes = checker.changes_of(&checker.judged, |_| true);
        checker
    }

    /// The crash points at which one of these files got a version that `is_counted` accepts.
    pub(crate) fn changes_of(
        &self,
        paths: &BTreeSet<Vec<u8>>,
        is_counted: impl Fn(Option<Digest>) -> bool,
    ) -> Vec<u32> {
        let versions = paths.iter().filter_map(|path| self.versions.get(path)).flatten();
        let mut changes: Vec<u32> = versions.filter(|v| is_counted(v.1)).map(|v| v.0).collect();
        changes.sort_unstable();
        changes.dedup();
        changes
    }

    fn learn(&mut self, at: u32, state: &State) {
        let there = paths(state);
        let gone: Vec<Vec<u8>> = self.versions.keys().filter(|p| !there.contains(*p)).cloned().collect();
        for path in gone.into_iter().chain(there) {
            let digest = state.content_digest(&path);
            let versions = self.versions.entry(path).or_insert_with(|| vec![(0, None)]);
            if versions.last().is_none_or(|v| v.1 != digest) {
                versions.push((at, digest));
            }
        }
    }

    /// The crash point right after the last of `told` marks. Marks are counted, because event
    /// numbers change when a missing call is inserted into the recording.
    pub(crate) fn last_mark(&self, told: usize) -> Option<u32> {
        let last = told.min(self.marks.len());
        last.checked_sub(1).map(|n| self.marks[n])
    }

    /// The first moment that is not before a crash. `time` is that of the last event before the
    /// crash, since an inserted call has the time of the event before it. What the program did
    /// before the crash is part of the state at this moment.
    pub(crate) fn moment_after(&self, time: u64) -> u32 {
        let at = self.times.partition_point(|t| *t <= time) as u32;
        let next = self.moments.partition_point(|moment| *moment < at);
        self.moments.get(next).copied().unwrap_or(u32::MAX)
    }

    /// How many of the changes the program had made at the first moment that is not before a crash.
    pub(crate) fn stage_of(&self, changes: &[u32], time: u64) -> usize {
        let until = self.moment_after(time);
        changes.partition_point(|at| *at <= until)
    }

    /// The first version that a crash after `told` marks may show.
    fn oldest(&self, versions: &[Version], told: usize) -> usize {
        let last = self.last_mark(told);
        last.map_or(0, |told| versions.iter().rposition(|v| v.0 <= told).unwrap_or(0))
    }

    /// The versions from `oldest` on that the program had made before a crash.
    fn made<'v>(&self, versions: &'v [Version], oldest: usize, time: u64) -> &'v [Version] {
        let until = self.moment_after(time);
        let end = versions.partition_point(|v| v.0 <= until);
        &versions[oldest..end.max(oldest + 1)]
    }

    /// Whether a crash may not lose the file at a path: it existed at the last of `told` marks, or
    /// at the start, and has not been removed since.
    pub(crate) fn must_be_there(&self, path: &[u8], told: usize, time: u64) -> bool {
        let Some(versions) = self.versions.get(path) else { return false };
        let oldest =
            self.oldest(versions, told).max(versions.iter().rposition(|v| v.0 <= self.start).unwrap_or(0));
        self.made(versions, oldest, time).iter().all(|v| v.1.is_some())
    }
}

impl Checker for FilesChecker {
    fn check(&self, case: &Case<'_>) -> Verdict {
        for path in &self.judged {
            let name = String::from_utf8_lossy(path);
            let digest = case.state.content_digest(path);
            let Some(versions) = self.versions.get(path) else { continue };
            let oldest = self.oldest(versions, case.told.len());
            if self.made(versions, oldest, case.moment).iter().any(|v| v.1 == digest) {
                continue;
            }
            let what = match digest {
                None => "is missing, though the user was told of it",
                Some(_) if versions[..oldest].iter().any(|v| v.1 == digest) => {
                    "is older than what the user was told of"
                }
                Some(_) => "is neither old nor new: it is cut off, mixed or full of zeros",
            };
            return Verdict::Bad(format!("{name} {what}"));
        }
        Verdict::Good
    }

    fn stage(&self, time: u64) -> usize {
        self.stage_of(&self.changes, time)
    }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
