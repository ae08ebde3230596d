//! Checks whether the files contain what was promised, line by line.
//!
//! Each promise must be a line of a file. If the promise has the form `key=value`, with or without
//! words before the key (`saved a=1`), the line is `key=value`. A value of that key that is
//! promised later, even after the crash, is accepted instead: the program may have replaced the
//! line already.

use super::{BYTES_MAX, Fault, Whole, show, whole};
use crate::pattern::Pattern;
use crate::run::Case;
use crate::state::{Body, State};
use crate::trace::Trace;
use std::collections::{HashMap, HashSet};

pub struct Ledger {
    patterns: Vec<Pattern>,
    /// The lines that all promises of the recording name.
    lines: Vec<Vec<u8>>,
}

impl Ledger {
    pub fn new(trace: &Trace, patterns: Vec<Pattern>) -> Result<Ledger, String> {
        let promises = trace.marks(trace.events.len());
        if promises.is_empty() {
            return Err("--checker ledger has nothing to judge: the recording has no promise (record --ack)"
                .to_owned());
        }
        let lines = promises.into_iter().map(|text| line(text).into()).collect();
        Ok(Ledger { patterns, lines })
    }

    /// The contents of all files of the ledger. The limit for one file applies to all of them
    /// together, since a forged recording may have many sparse files.
    fn files(&self, state: &State) -> Result<Vec<Vec<u8>>, Fault> {
        let (mut files, mut size) = (Vec::new(), 0u64);
        state.walk(&mut |path, _, node| {
            if let Body::File(file) = &node.body
                && self.patterns.iter().any(|pattern| pattern.matches(path))
            {
                size = size.saturating_add(file.size);
                files.push(file);
            }
        });
        if size > BYTES_MAX {
            let why = format!("{size} bytes of a ledger are more than the {BYTES_MAX} that can be judged");
            return Err(Fault::Unjudged(why));
        }
        files.into_iter().map(whole).collect()
    }
}

impl Whole for Ledger {
    fn check(&self, case: &Case<'_>) -> Result<(), Fault> {
        let files = self.files(case.state)?;
        let there: HashSet<&[u8]> = files.iter().flat_map(|bytes| bytes.split(|b| *b == b'\n')).collect();
        // For each key, the last promise whose line exists. It replaces all earlier promises of the
        // key.
        let mut last: HashMap<&[u8], usize> = HashMap::new();
        for (number, line) in self.lines.iter().enumerate() {
            if let Some(key) = key(line).filter(|_| there.contains(&line[..])) {
                last.insert(key, number);
            }
        }
        let promised = &self.lines[..case.told.len().min(self.lines.len())];
        let is_kept = |(number, line): &(usize, &Vec<u8>)| {
            let later = key(line).and_then(|key| last.get(key));
            there.contains(&line[..]) || later.is_some_and(|later| later > number)
        };
        match promised.iter().enumerate().find(|promise| !is_kept(promise)) {
            None => Ok(()),
            Some((_, line)) => Err(Fault::Bad(format!("promised, and not in the ledger: {}", show(line)))),
        }
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
