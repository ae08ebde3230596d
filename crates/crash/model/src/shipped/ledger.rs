//! Checks whether the files contain what was promised, line by line.
//!
//! Each promise must be a line of a file. If the promise has the form `key=value`, with or without
//! words before the key (`saved a=1`), the line is `key=value`. A value of that key that was
//! promised later, before the crash, is accepted instead. So is a value that is promised after the
//! crash, if the program had written its line between the last promise and the crash: it may have
//! replaced the line already.

use super::{BYTES_MAX, Fault, Whole, show, whole};
use crate::files::FilesChecker;
use crate::page::Digest;
use crate::pattern::Pattern;
use crate::run::Case;
use crate::state::{Body, FileBody, State};
use crate::trace::Trace;
use std::collections::{HashMap, HashSet};

pub struct Ledger {
    patterns: Vec<Pattern>,
    /// The lines that all promises of the recording name.
    lines: Vec<Vec<u8>>,
    /// Knows the crash points of promises.
    files: FilesChecker,
    /// For each line of these with a key, the crash points from which the complete state has the
    /// line, or does not have it any longer.
    written: HashMap<Vec<u8>, Vec<(u32, bool)>>,
    /// The crash points of all these changes.
    changes: Vec<u32>,
}

impl Ledger {
    pub fn new(trace: &Trace, patterns: Vec<Pattern>) -> Result<Ledger, String> {
        let promises = trace.marks(trace.events.len());
        if promises.is_empty() {
            return Err("--checker ledger has nothing to judge: the recording has no promise (record --ack)"
                .to_owned());
        }
        let lines: Vec<Vec<u8>> = promises.into_iter().map(|text| line(text).into()).collect();
        let mut written: HashMap<Vec<u8>, Vec<(u32, bool)>> =
            lines.iter().filter(|line| key(line).is_some()).map(|line| (line.clone(), Vec::new())).collect();
        let (mut changes, mut unread) = (Vec::new(), None);
        let mut last: Option<Vec<Option<Digest>>> = None;
        let files = FilesChecker::with(trace, |at, state, _| {
            if written.is_empty() || unread.is_some() {
                return;
            }
            let found = ledger_files(state, &patterns);
            let digests = Some(found.iter().map(|(path, _)| state.content_digest(path)).collect());
            if digests == last {
                return;
            }
            last = digests;
            match contents(&found) {
                Ok(files) => {
                    let there: HashSet<&[u8]> = lines_of(&files).collect();
                    for (line, changed) in &mut written {
                        let is_there = there.contains(&line[..]);
                        if changed.last().is_some_and(|last| last.1) != is_there {
                            changed.push((at, is_there));
                            changes.push(at);
                        }
                    }
                }
                Err(Fault::Bad(why) | Fault::Unjudged(why)) => unread = Some(why),
            }
        });
        if let Some(why) = unread {
            return Err(format!("--checker ledger cannot judge the recording: {why}"));
        }
        changes.dedup();
        Ok(Ledger { patterns, lines, files, written, changes })
    }

    /// Whether the complete state had the line at a moment from `from` to `to`.
    fn was_there(&self, line: &[u8], from: u32, to: u32) -> bool {
        let Some(changes) = self.written.get(line) else { return false };
        let first = changes.partition_point(|change| change.0 <= from).saturating_sub(1);
        changes[first..].iter().take_while(|change| change.0 <= to).any(|change| change.1)
    }
}

/// The files of the ledger with their paths.
fn ledger_files<'s>(state: &'s State, patterns: &[Pattern]) -> Vec<(Vec<u8>, &'s FileBody)> {
    let mut files = Vec::new();
    state.walk(&mut |path, _, node| {
        if let Body::File(file) = &node.body
            && patterns.iter().any(|pattern| pattern.matches(path))
        {
            files.push((path.to_vec(), file));
        }
    });
    files
}

/// The contents of these files. The limit for one file applies to all of them together, since a
/// forged recording may have many sparse files.
fn contents(files: &[(Vec<u8>, &FileBody)]) -> Result<Vec<Vec<u8>>, Fault> {
    let size = files.iter().fold(0u64, |size, (_, file)| size.saturating_add(file.size));
    if size > BYTES_MAX {
        let why = format!("{size} bytes of a ledger are more than the {BYTES_MAX} that can be judged");
        return Err(Fault::Unjudged(why));
    }
    files.iter().map(|(_, file)| whole(file)).collect()
}

fn lines_of(files: &[Vec<u8>]) -> impl Iterator<Item = &[u8]> {
    files.iter().flat_map(|bytes| bytes.split(|b| *b == b'\n'))
}

impl Whole for Ledger {
    fn check(&self, case: &Case<'_>) -> Result<(), Fault> {
        let files = contents(&ledger_files(case.state, &self.patterns))?;
        let there: HashSet<&[u8]> = lines_of(&files).collect();
        let told = case.told.len().min(self.lines.len());
        let (from, to) = (self.files.last_mark(told).unwrap_or(0), self.files.moment_after(case.moment));
        // For each key, the last promise whose line exists. It replaces all earlier promises of the
        // key.
        let mut last: HashMap<&[u8], usize> = HashMap::new();
        for (number, line) in self.lines.iter().enumerate() {
            let is_made = || number < told || self.was_there(line, from, to);
            if let Some(key) = key(line).filter(|_| there.contains(&line[..]) && is_made()) {
                last.insert(key, number);
            }
        }
        let promised = &self.lines[..told];
        let is_kept = |(number, line): &(usize, &Vec<u8>)| {
            let later = key(line).and_then(|key| last.get(key));
            there.contains(&line[..]) || later.is_some_and(|later| later > number)
        };
        match promised.iter().enumerate().find(|promise| !is_kept(promise)) {
            None => Ok(()),
            Some((_, line)) => Err(Fault::Bad(format!("promised, and not in the ledger: {}", show(line)))),
        }
    }

    fn stage(&self, time: u64) -> usize {
        self.files.stage_of(&self.changes, time)
    }
}

/// The line that a promise names.
fn line(promise: &str) -> &str {
    match promise.split_once('=') {
        Some((before, _)) => {
            let key = before.rsplit(char::is_whitespace).next().unwrap_or(before);
            &promise[before.len() - key.len()..]
        }
        None => promise,
    }
}

fn key(line: &[u8]) -> Option<&[u8]> {
    line.iter().position(|b| *b == b'=').map(|at| &line[..at])
}
