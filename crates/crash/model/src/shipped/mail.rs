//! Judges mail: maildirs, which have a file for each message, and mboxes, which have all messages
//! one after the other.
//!
//! A message never changes once it is delivered. So a message that existed at a promise, and was
//! not removed by the next promise or the end, must exist after a crash, byte for byte. Any other
//! message is judged by its form: in a maildir it must begin with a header and contain no zeros.
//! The last message of an mbox may be cut off if it was not promised, since it is appended.

use super::{Fault, Whole, above, show, whole};
use crate::files::{FilesChecker, Firm};
use crate::page::{Digest, digest_of};
use crate::pattern::Pattern;
use crate::run::Case;
use crate::state::{Body, FileBody, State};
use crate::trace::Trace;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

#[derive(Clone, Copy)]
pub enum Format {
    Maildir,
    Mbox,
}

/// A message: the path of its mailbox; in a maildir, its name without flags; the digest of its
/// bytes.
type Message = (Vec<u8>, Vec<u8>, Digest);

pub struct Mail {
    format: Format,
    patterns: Vec<Pattern>,
    /// The messages that no crash may lose, after each number of promises.
    kept: Vec<BTreeSet<Message>>,
    /// The number of promises that were made before the recording started.
    before: usize,
    /// For each name of a message in a maildir, the contents that it may have.
    known: HashMap<(Vec<u8>, Vec<u8>), HashSet<Digest>>,
    /// The mailboxes that existed at a promise, at the start or at the end.
    boxes: BTreeSet<Vec<u8>>,
}

impl Mail {
    pub fn new(name: &str, format: Format, trace: &Trace, patterns: Vec<Pattern>) -> Result<Mail, String> {
        let (kept, known, boxes) = (Vec::new(), HashMap::new(), BTreeSet::new());
        let before = trace.marks(trace.start()).len();
        let mut mail = Mail { format, patterns, kept, before, known, boxes };
        let mut unread = None;
        FilesChecker::with(trace, |_, state, firm| {
            if firm == Firm::Between {
                return;
            }
            let found = mail.mailboxes(state, false);
            mail.boxes.extend(found.keys().cloned());
            match mail.messages(&found) {
                Ok(messages) => mail.kept.push(messages),
                Err(Fault::Bad(why) | Fault::Unjudged(why)) => unread = Some(why),
            }
        });
        if let Some(why) = unread {
            return Err(format!("--checker {name} cannot judge the recording: {why}"));
        }
        if mail.boxes.is_empty() {
            return Err(format!(
                "--checker {name} has nothing to judge: no mailbox was there at the start, at a promise or \
                 at the end (--files PATTERN names others)"
            ));
        }
        for (path, name, bytes) in mail.kept.iter().flatten() {
            mail.known.entry((path.clone(), name.clone())).or_default().insert(*bytes);
        }
        // A message that is gone at the next promise, or at the end, may be missing in a crash
        // before that. One that is removed later may not: this loop reads each set before it
        // changes it.
        for at in 1..mail.kept.len() {
            let (earlier, later) = mail.kept.split_at_mut(at);
            earlier[at - 1].retain(|message| later[0].contains(message));
        }
        Ok(mail)
    }

    /// The mailboxes of a state with their files. In a crash state only known mailboxes are
    /// returned.
    fn mailboxes<'a>(
        &self,
        state: &'a State,
        is_crash: bool,
    ) -> BTreeMap<Vec<u8>, Vec<(Vec<u8>, &'a FileBody)>> {
        let mut found: BTreeMap<Vec<u8>, Vec<(Vec<u8>, &FileBody)>> = BTreeMap::new();
        let mut dirs = HashSet::new();
        let is_wanted =
            |path: &[u8]| self.patterns.is_empty() || self.patterns.iter().any(|p| p.matches(path));
        let is_known =
            |path: &[u8], is_one: &dyn Fn() -> bool| self.boxes.contains(path) || !is_crash && is_one();
        state.walk(&mut |path, _, node| match (&node.body, self.format) {
            (Body::Dir(_), _) => drop(dirs.insert(path.to_vec())),
            (Body::File(file), Format::Mbox) => {
                let mut head = [0; FROM.len()];
                let is_one = file.read(0, &mut head) == FROM.len() && head == *FROM;
                if is_known(path, &|| is_wanted(path) && (is_one || !self.patterns.is_empty())) {
                    found.insert(path.to_vec(), vec![(path.to_vec(), file)]);
                }
            }
            (Body::File(file), Format::Maildir) => {
                let dir = above(path);
                let root = above(dir);
                if matches!(dir[root.len()..].strip_prefix(b"/").unwrap_or(dir), b"new" | b"cur")
                    && is_known(root, &|| is_wanted(root))
                {
                    found.entry(root.to_vec()).or_default().push((path.to_vec(), file));
                }
            }
            _ => {}
        });
        if matches!(self.format, Format::Maildir) && !is_crash {
            let is_maildir = |root: &[u8]| {
                let has = |name: &[u8]| match root {
                    b"" => dirs.contains(name),
                    _ => dirs.contains(&[root, b"/", name].concat()),
                };
                has(b"new") && has(b"cur") && has(b"tmp")
            };
            found.retain(|root, _| is_maildir(root));
        }
        found
    }

    /// The messages of a complete state.
    fn messages(
        &self,
        found: &BTreeMap<Vec<u8>, Vec<(Vec<u8>, &FileBody)>>,
    ) -> Result<BTreeSet<Message>, Fault> {
        let mut messages = BTreeSet::new();
        for (mailbox, files) in found {
            for (path, file) in files {
                let bytes = whole(file)?;
                match self.format {
                    Format::Maildir => {
                        messages.insert((mailbox.clone(), unique(path), digest_of(&bytes)));
                    }
                    Format::Mbox => messages
                        .extend(split(&bytes).map(|text| (mailbox.clone(), Vec::new(), digest_of(text)))),
                }
            }
        }
        Ok(messages)
    }

    /// Judges a message that is not among those of the recording by its form.
    fn form(&self, mailbox: &[u8], path: &[u8], bytes: &[u8]) -> Result<(), String> {
        if bytes.is_empty() && matches!(self.format, Format::Mbox) {
            return Ok(());
        }
        if bytes.contains(&0) {
            return Err("it holds zeros".to_owned());
        }
        match self.format {
            Format::Mbox if !bytes.starts_with(FROM) => Err("it does not begin with a message".to_owned()),
            Format::Mbox => Ok(()),
            Format::Maildir => {
                let known = self.known.get(&(mailbox.to_vec(), unique(path)));
                match known {
                    Some(known) if !known.contains(&digest_of(bytes)) => {
                        Err(format!("it has {} bytes, which are not those that were delivered", bytes.len()))
                    }
                    None if !has_header(bytes) => Err("it does not begin with a header".to_owned()),
                    _ => Ok(()),
                }
            }
        }
    }
}

impl Whole for Mail {
    fn check(&self, case: &Case<'_>) -> Result<(), Fault> {
        let found = self.mailboxes(case.state, true);
        for (mailbox, files) in &found {
            for (path, file) in files {
                self.form(mailbox, path, &whole(file)?)
                    .map_err(|why| Fault::Bad(format!("{}: {why}", show(path))))?;
            }
        }
        let there = self.messages(&found)?;
        let told = case.told.len().saturating_sub(self.before).min(self.kept.len().saturating_sub(1));
        let lost = self.kept.get(told).and_then(|kept| kept.iter().find(|message| !there.contains(*message)));
        match lost {
            None => Ok(()),
            Some((mailbox, name, _)) => {
                let place = if mailbox.is_empty() { b"." } else { &mailbox[..] };
                let name = if name.is_empty() { String::new() } else { format!(" {}", show(name)) };
                Err(Fault::Bad(format!(
                    "{}: the message{name} is missing, though it was promised",
                    show(place)
                )))
            }
        }
    }
}

const FROM: &[u8; 5] = b"From ";

/// The name of a message without flags. It stays the same when the message is moved to `cur`.
fn unique(path: &[u8]) -> Vec<u8> {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
    name.split(|b| *b == b':').next().unwrap_or(name).to_vec()
}

/// Whether the first line is a field of a mail header: `Name: …`.
fn has_header(bytes: &[u8]) -> bool {
    let line = bytes.split(|b| *b == b'\n').next().unwrap_or(bytes);
    let colon = line.iter().position(|b| *b == b':').unwrap_or(0);
    line.starts_with(FROM) || colon > 0 && line[..colon].iter().all(u8::is_ascii_graphic)
}

/// Splits an mbox into messages, without the empty lines after them. A message begins at a line
/// `From …` at the start of the file, or after an empty line.
fn split(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    const NEXT: &[u8] = b"\n\nFrom ";
    let starts = bytes.windows(NEXT.len()).enumerate().filter(|(_, w)| *w == NEXT).map(|(at, _)| at + 2);
    let starts: Vec<usize> = std::iter::once(0).chain(starts).collect();
    let ends: Vec<usize> = starts.iter().skip(1).copied().chain([bytes.len()]).collect();
    starts.into_iter().zip(ends).map(|(from, to)| bytes[from..to].trim_ascii_end()).filter(|m| !m.is_empty())
}

#[cfg(test)]
#[path = "mail_tests.rs"]
mod tests;
