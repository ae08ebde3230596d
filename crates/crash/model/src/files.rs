//! The judge that needs no program: each file must hold one of its versions.
//!
//! The judged files are those that existed at the start or at a mark; without any mark, those that
//! existed at the end. Others, such as a temporary file before its rename, are ignored.
//!
//! A file has *versions*: its content at each mark, when it got a name (create aside) or lost it,
//! when it was made persistent, and at the end. In a crash state each file must hold one of its
//! versions, and none older than that at the last mark before the crash. A file that no mark covers
//! may also be missing. A half-written file, a mixture, or a file full of zeros is no version.

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
        FilesChecker::with(trace, |_, _| {})
    }

    /// Calls `look` with the complete state at the start, at each mark and at the end. The second
    /// argument is whether the user may rely on that state: not on the last one if no mark follows
    /// its calls.
    pub(crate) fn with(trace: &Trace, mut look: impl FnMut(&State, bool)) -> FilesChecker {
        let history = History::new(trace, STRICT);
        let start = *history.points().start();
        // Promises from before the start are part of the state at the start.
        let before = trace.marks(start as usize).len();
        let mut checker = FilesChecker {
            versions: BTreeMap::new(),
            judged: BTreeSet::new(),
            marks: vec![start; before],
            start,
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
                if is_promised || is_end {
                    look(&state, is_promised);
                }
                checker.learn(at, &state);
            }
        }
        checker
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

    /// The first version that a crash after `told` marks may show. Marks are counted, because event
    /// numbers change when a missing call is inserted into the recording.
    fn oldest(&self, versions: &[Version], told: usize) -> usize {
        let last = told.min(self.marks.len());
        let last = last.checked_sub(1).map(|n| self.marks[n]);
        last.map_or(0, |told| versions.iter().rposition(|v| v.0 <= told).unwrap_or(0))
    }

    /// Whether no crash may lose the file at a path: it existed at the last of `told` marks, or at
    /// the start, and has not been removed since.
    pub(crate) fn must_be_there(&self, path: &[u8], told: usize) -> bool {
        let Some(versions) = self.versions.get(path) else { return false };
        let oldest =
            self.oldest(versions, told).max(versions.iter().rposition(|v| v.0 <= self.start).unwrap_or(0));
        versions[oldest..].iter().all(|v| v.1.is_some())
    }
}

impl Checker for FilesChecker {
    fn check(&self, case: &Case<'_>) -> Verdict {
        for path in &self.judged {
            let name = String::from_utf8_lossy(path);
            let digest = case.state.content_digest(path);
            let Some(versions) = self.versions.get(path) else { continue };
            let oldest = self.oldest(versions, case.told.len());
            if versions[oldest..].iter().any(|v| v.1 == digest) {
                continue;
            }
            let what = match digest {
                None => "is missing, though the user was told of it",
                Some(_) if versions.iter().any(|v| v.1 == digest) => {
                    "is older than what the user was told of"
                }
                Some(_) => "is neither old nor new: it is cut off, mixed or full of zeros",
            };
            return Verdict::Bad(format!("{name} {what}"));
        }
        Verdict::Good
    }
}
