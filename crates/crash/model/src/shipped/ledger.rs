//! Whether the files contain what was promised, line by line.
//!
//! A promise is a line of a file. If it has the form `key=value`, with or without words before the
//! key (`saved a=1`), the line is `key=value`, and a value of that key that is promised later, even
//! after the crash, stands for it: the program may have replaced the line already.

use super::{Fault, show, whole};
use crate::pattern::Pattern;
use crate::run::Case;
use crate::state::Body;
use crate::trace::Trace;
use std::collections::{HashMap, HashSet};

pub struct Ledger {
    patterns: Vec<Pattern>,
    /// All promises of the recording.
    lines: Vec<Vec<u8>>,
    /// For each key: the promises of a value, in order.
    of_key: HashMap<Vec<u8>, Vec<usize>>,
}

impl Ledger {
    pub fn new(trace: &Trace, patterns: Vec<Pattern>) -> Result<Ledger, String> {
        let promises = trace.marks(trace.events.len());
        if promises.is_empty() {
            return Err("--checker ledger has nothing to judge: the recording has no promise (record --ack)"
                .to_owned());
        }
        let lines: Vec<Vec<u8>> = promises.into_iter().map(|text| line(text).into()).collect();
        let mut of_key: HashMap<Vec<u8>, Vec<usize>> = HashMap::new();
        for (number, line) in lines.iter().enumerate() {
            if let Some(key) = key(line) {
                of_key.entry(key.to_vec()).or_default().push(number);
            }
        }
        Ok(Ledger { patterns, lines, of_key })
    }

    pub fn check(&self, case: &Case<'_>) -> Result<(), Fault> {
        let mut files = Vec::new();
        case.state.walk(&mut |path, _, node| {
            if let Body::File(file) = &node.body
                && self.patterns.iter().any(|pattern| pattern.matches(path))
            {
                files.push(whole(file));
            }
        });
        let files = files.into_iter().collect::<Result<Vec<_>, _>>()?;
        let there: HashSet<&[u8]> = files.iter().flat_map(|bytes| bytes.split(|b| *b == b'\n')).collect();
        let promised = &self.lines[..case.told.len().min(self.lines.len())];
        for (number, line) in promised.iter().enumerate() {
            let later = key(line).and_then(|key| self.of_key.get(key)).into_iter().flatten();
            let stands_for = |n: &usize| *n > number && there.contains(&self.lines[*n][..]);
            if !there.contains(&line[..]) && !later.into_iter().any(stands_for) {
                return Err(Fault::Bad(format!("promised, and not in the ledger: {}", show(line))));
            }
        }
        Ok(())
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
