//! Redoes the changes that a dead server had made and that the log has lost.
//!
//! # Why the result is the state that programs saw
//! The journal has, in the order of their effects, all changes since a time at which all earlier
//! changes were durable. Recovery restores a prefix of the log's records, and any part of the file
//! data.
//! - **Names, owners, modes, attributes** ([`Rule::Record`]): each change is one record. The
//!   entry's mark, noted before the record could become durable, says where the record ends. If it
//!   ends within the recovered log, the change is there completely. Otherwise it is not there at
//!   all and is redone now. All earlier changes are there by then, so it finds the same state as
//!   the first time.
//! - **Content** ([`Rule::Data`]): a write, a change of size or an allocation sets bytes and size
//!   to values that do not depend on the previous state. Bytes that no entry changes are as they
//!   were before the first entry. Bytes that entries change are redone only with their last value
//!   ([`super::content`]). Changes of size and allocations have records, and are not redone if
//!   these are durable. So a file never gets a value that is older than a durable one, even if the
//!   machine fails during this work.
//! - **Times** ([`Rule::Times`]): redone in order, together with the content. A record of a
//!   directory includes all times that were set before it, so those are not redone if such a record
//!   is durable. If a later change of a file's content is durable, its time of modification is,
//!   too, and only the access time is redone.
//! - A change without outcome and mark has had no effect that a reply has shown. Its request is
//!   resent and served like a new one. The same holds for an entry of content without an outcome:
//!   no later change of the file can be in the journal, because the file's lock was held.
//!
//! # If the server dies again
//! A redone change gets the mark of its new record, by the same rule, with the number of the
//! present life. Each life has its own cut-off. So the next server does the same work again,
//! without the changes that have become durable. The journal is freed when everything is durable.
//!
//! # If a change cannot be redone
//! The server ends with the error and leaves the journal, and the keeper starts the next server
//! later. The cut-offs of the last [`LIVES`] lives are kept, so each server renews the marks of
//! older lives ([`Journal::renew_mark`]). A life that did not recover the image is begun again
//! ([`crate::keep::Life::begin`]).

use super::class::{Class, Rule};
use super::content::{self, Left};
use super::marking;
use crate::abi::{self, InHeader, fattr, op, op_name};
use crate::args::Args;
use crate::failures::Failures;
use crate::keep::answers::Answered;
use crate::keep::area::{Head, LIVES};
use crate::keep::journal::{BEGUN, DONE, Entry, Journal, REFUSED};
use crate::keep::steps::{self, Broken, Step};
use crate::keep::{Kept, slot_of};
use crate::ops::Ops;
use crate::server::Server;
use crate::transport::{Received, Reply, Request, RequestBuf, Transport};
use kedge_base::witness::{self, Witness};
use kedge_base::{Ino, IoBuf, Timespec};
use kedgefs::{FileKind, RecordOp, SetAttr};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use zerocopy::{FromBytes, IntoBytes};

/// The set-user-id and the set-group-id bit.
const SET_ID: u32 = 0o6000;

/// Receives the reply of a redone change.
#[derive(Default)]
struct Sink(AtomicI32);

impl Transport for Sink {
    fn name(&self) -> &'static str {
        "redo"
    }

    fn workers(&self) -> usize {
        1
    }

    fn receive<'a>(&'a self, _: usize, _: &'a mut RequestBuf) -> io::Result<Received<'a>> {
        Ok(Received::Ended)
    }

    fn wait(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn reply(&self, _: u32, _: u64, error: i32, _: &[&[u8]]) -> io::Result<()> {
        self.0.store(error, Relaxed);
        Ok(())
    }

    fn notify(&self, _: i32, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// The durable records that recovery found.
struct Found {
    head: Head,
    /// For each inode that an entry changed, number and time of its newest entry with a durable
    /// record.
    any: BTreeMap<u64, (u64, Timespec)>,
    /// The same, only for entries that set content: sizes and allocations.
    content: BTreeMap<u64, (u64, Timespec)>,
}

impl<O: Ops> Server<O> {
    /// Redoes all lost changes. Returns their number.
    pub(super) fn redo(&self) -> io::Result<u64> {
        let kept = self.kept.as_ref().expect("a server with a keeper");
        let head: Head = kept.area.read(0);
        let mut entries = Journal::scan(&kept.area)?;
        for (ino, count) in kept.pins.lock().all().filter(|_| !steps::is_broken(Broken::OrphanDropped)) {
            self.ops.pin_by(ino, count);
        }
        kept.redoing.store(true, Relaxed);
        let mut found = Found { head, any: BTreeMap::new(), content: BTreeMap::new() };
        for entry in &entries {
            let durable = is_durable(entry, &found.head, kept.life)?;
            if is_old(entry, kept.life) {
                Journal::renew_mark(&kept.area, entry, kept.life, durable);
            }
            if durable {
                let noted = (entry.head.seq, entry.head.time());
                found.any.extend(changed_by(entry).map(|ino| (ino, noted)));
                if matches!(entry.head.opcode, op::SETATTR | op::FALLOCATE) && self.is_content(entry) {
                    found.content.insert(entry.head.node, noted);
                }
            }
        }
        let mut left = content::left(&entries);
        let mut out = IoBuf::zeroed(abi::MAX_IO / kedge_base::BLOCK_SIZE);
        let mut redone = 0;
        let mut touched = BTreeMap::new();
        for entry in &mut entries {
            let parts = left.remove(&entry.head.seq);
            redone += u64::from(self.redo_one(kept, entry, parts, &found, &mut touched, &mut out)?);
            steps::redone(entry.head.opcode);
        }
        // A redone change of content sets the ctime, although a later change with a durable record
        // had set a newer one. So the newer time is restored, unless another redone change has set
        // it.
        for (ino, time) in touched {
            let set = SetAttr { ctime: Some(time), ..SetAttr::default() };
            match self.ops.getattr(Ino(ino)).map(|attr| attr.ctime < time) {
                Ok(true) => self.ops.setattr(Ino(ino), &set).map(drop),
                Ok(false) | Err(kedgefs::Error::NotFound) => Ok(()),
                Err(e) => Err(e),
            }
            .map_err(|e| failed(&format!("the time of inode {ino}"), &e))?;
        }
        self.keep_answers(kept, &entries);
        kept.redoing.store(false, Relaxed);
        // During a freeze nothing may be written. A later open deletes these inodes.
        let deleted = if kept.area.frozen().is_some() { Ok(0) } else { self.ops.delete_forgotten() };
        let deleted = deleted.map_err(|e| failed("the deletion of nameless inodes", &e))?;
        // Without redone changes there is only the recovered state, which recovery's checkpoint has
        // made durable.
        if redone + deleted > 0 && !steps::is_broken(Broken::UnforcedIsDurable) {
            self.ops.sync().map_err(|e| failed("the sync of what was made again", &e))?;
        }
        Ok(redone)
    }

    /// Redoes a change if necessary. Returns whether it was redone.
    fn redo_one(
        &self,
        kept: &Kept,
        entry: &mut Entry,
        left: Option<Left>,
        found: &Found,
        touched: &mut BTreeMap<u64, Timespec>,
        out: &mut IoBuf,
    ) -> io::Result<bool> {
        let header = header_of(entry);
        let (state, mark, node) = (entry.head.outcome.state, entry.head.mark, entry.head.node);
        let request = Request { header, body: &entry.arguments, token: 0 };
        let Class::Journaled(rule) = self.class(&request) else {
            // The change was a record when it was journaled. Its name refers to a tree now, whose
            // change was durable.
            return Ok(false);
        };
        let later = found.any.get(&node).filter(|(seq, _)| *seq > entry.head.seq);
        match rule {
            // No program knows this file. If its record is durable, it is deleted with the other
            // nameless files that have no pin.
            _ if header.opcode == op::TMPFILE && state == REFUSED => return Ok(false),
            Rule::Record(_) if mark.life == 0 || is_durable(entry, &found.head, kept.life)? => {
                self.pin_nameless(kept, entry, false)?;
                return Ok(false);
            }
            Rule::Data | Rule::Times if state != DONE => return Ok(false),
            Rule::Data if is_durable(entry, &found.head, kept.life)? && !sets_more(entry) => {
                return Ok(false);
            }
            // The mode bits that it clears are unknown without its outcome. Its request is resent
            // and served like a new one.
            Rule::Record(RecordOp::SetAttr) if state != DONE => return Ok(false),
            Rule::Times if later.is_some() && self.is_dir(node) => return Ok(false),
            _ => {}
        }
        // A later, durable change of the content has set the times.
        let newer = found.content.get(&node).filter(|(seq, _)| *seq > entry.head.seq);
        if newer.is_some() && !steps::is_broken(Broken::OlderTimeAgain) && !keep_newer_times(entry) {
            return Ok(false);
        }
        let number = (mark.ino != 0 && rule == Rule::Record(RecordOp::Create)).then_some(Ino(mark.ino));
        let newer = newer.filter(|_| rule == Rule::Data);
        let time = newer.map_or(entry.head.time(), |(_, time)| *time);
        // As at the first time, the bits are cleared in a record before that of the content.
        if later.is_none() && entry.head.outcome.mode != 0 && !steps::is_broken(Broken::BitsClearedLate) {
            let witness = Witness { time: Some(time), number: None, committed: None };
            let mode = entry.head.outcome.mode - 1;
            witness::during(witness, || self.clear_bits(node, mode))?;
        }
        for arguments in bodies(entry, left) {
            let request = Request { header, body: &arguments, token: 0 };
            let committed = marking(kept, entry.place, rule, header.opcode);
            let witness = Witness { time: Some(time), number, committed };
            let sink = Arc::new(Sink::default());
            let reply = Reply::new(sink.clone(), Arc::new(Failures::default()), &request);
            witness::during(witness, || self.dispatch(&request, reply, out));
            let error = -sink.0.load(Relaxed);
            if error != 0 {
                // The kernel has forgotten a file without a name, which may then have been deleted
                // durably.
                if !matches!(rule, Rule::Record(_)) && matches!(error, libc::ENOENT | libc::ESTALE) {
                    return Ok(false);
                }
                // The first attempt had an effect before it failed, and so has this one.
                if matches!(rule, Rule::Record(_)) && state > DONE {
                    return Ok(true);
                }
                let what = format!(
                    "{} of inode {node}, which a program knows is done, cannot be done again",
                    op_name(entry.head.opcode)
                );
                return Err(because(&what, error));
            }
        }
        steps::at(Step::Made, header.opcode);
        self.pin_nameless(kept, entry, true)?;
        if let Some((_, time)) = later {
            touched.insert(node, *time);
        } else if entry.head.outcome.mode != 0 {
            self.restore_mode(node, entry.head.outcome.mode - 1, entry.head.time())?;
        }
        Ok(true)
    }

    fn is_content(&self, entry: &Entry) -> bool {
        let request = Request { header: header_of(entry), body: &entry.arguments, token: 0 };
        self.class(&request) == Class::Journaled(Rule::Data)
    }

    fn is_dir(&self, node: u64) -> bool {
        self.ops.getattr(Ino(node)).is_ok_and(|attr| attr.kind == FileKind::Directory)
    }

    /// Clears the set-id bits that are not in the mode which a change has left.
    fn clear_bits(&self, node: u64, mode: u32) -> io::Result<()> {
        let what = || format!("the mode of inode {node}");
        let attr = match self.ops.getattr(Ino(node)) {
            Err(kedgefs::Error::NotFound) => return Ok(()),
            attr => attr.map_err(|e| failed(&what(), &e))?,
        };
        if attr.mode & SET_ID & !mode != 0 {
            let set = SetAttr { mode: Some(mode), before_append: true, ..SetAttr::default() };
            self.ops.setattr(Ino(node), &set).map_err(|e| failed(&what(), &e))?;
        }
        Ok(())
    }

    /// Sets the mode that a change which clears set-user-id bits has left.
    fn restore_mode(&self, node: u64, mode: u32, time: Timespec) -> io::Result<()> {
        let what = || format!("the mode of inode {node}");
        let attr = self.ops.getattr(Ino(node)).map_err(|e| failed(&what(), &e))?;
        if attr.mode & 0o7777 != mode {
            let set = SetAttr { mode: Some(mode), ctime: Some(time), ..SetAttr::default() };
            self.ops.setattr(Ino(node), &set).map_err(|e| failed(&what(), &e))?;
        }
        Ok(())
    }

    /// Corrects the pin of a file that was made without a name. For a redone TMPFILE the engine has
    /// added a pin to the noted one. Without an outcome the noted pin may be missing.
    fn pin_nameless(&self, kept: &Kept, entry: &Entry, redone: bool) -> io::Result<()> {
        let EntryOf { opcode, ino, done } = EntryOf::of(entry);
        if opcode != op::TMPFILE || ino == 0 {
            return Ok(());
        }
        let mut pins = kept.pins.lock();
        if !done && !pins.has(Ino(ino)) {
            pins.add(&kept.area, Ino(ino))?;
            if !redone {
                self.ops.pin_by(Ino(ino), 1);
            }
        } else if redone {
            self.ops.unpin(Ino(ino), 1);
        }
        Ok(())
    }

    /// Stores the results of requests whose reply may not have reached the kernel.
    fn keep_answers(&self, kept: &Kept, entries: &[Entry]) {
        let mut last = BTreeMap::new();
        for entry in entries {
            last.insert((entry.head.life, entry.head.worker), entry);
        }
        let mut answers = kept.answers.lock();
        for entry in last.into_values() {
            let outcome = entry.head.outcome;
            let is_made = match outcome.state {
                DONE => true,
                // Without an outcome, their resent requests redo these changes.
                BEGUN if matches!(entry.head.opcode, op::SETATTR | op::FALLOCATE) => false,
                BEGUN => entry.head.mark.life != 0,
                _ => false,
            };
            if is_made {
                let EntryOf { opcode, ino, done } = EntryOf::of(entry);
                let answered = Answered {
                    unique: entry.head.unique,
                    node: entry.head.node,
                    ino,
                    opcode,
                    result: outcome.result,
                    done: u64::from(done),
                    number: 0,
                    unused: [0; 2],
                };
                answers.add(&kept.area, answered);
            }
        }
    }
}

fn header_of(entry: &Entry) -> InHeader {
    InHeader {
        opcode: entry.head.opcode,
        unique: entry.head.unique,
        nodeid: entry.head.node,
        uid: entry.head.uid,
        gid: entry.head.gid,
        ..InHeader::default()
    }
}

/// The arguments of the requests that redo an entry.
fn bodies(entry: &Entry, left: Option<Left>) -> Vec<Vec<u8>> {
    let arguments = without_caller(entry);
    let Some(Left { pieces, zero }) = left else { return vec![arguments] };
    let Ok((asked, data)) = abi::WriteIn::read_from_prefix(&arguments) else { return vec![arguments] };
    let piece = |offset: u64, bytes: &[u8]| {
        let asked = abi::WriteIn { offset, size: bytes.len() as u32, ..asked };
        [asked.as_bytes(), bytes].concat()
    };
    let at = |offset: u64| (offset - asked.offset) as usize;
    let pieces = pieces.into_iter().map(|range| piece(range.start, &data[at(range.start)..at(range.end)]));
    pieces.chain(zero.map(|offset| piece(offset, &[0]))).collect()
}

/// Removes the times that a later change of content has set from a SETATTR. Returns whether the
/// request still sets anything.
fn keep_newer_times(entry: &mut Entry) -> bool {
    const NEWER: u32 = fattr::MTIME | fattr::MTIME_NOW | fattr::CTIME;
    const SETS: u32 = fattr::MODE | fattr::UID | fattr::GID | fattr::SIZE | fattr::ATIME;
    if entry.head.opcode != op::SETATTR {
        return true;
    }
    let Ok((asked, _)) = abi::SetattrIn::mut_from_prefix(&mut entry.arguments) else { return true };
    asked.valid &= !NEWER;
    asked.valid & SETS != 0
}

/// Whether a change of size also sets owner or mode, which takes a second record.
fn sets_more(entry: &Entry) -> bool {
    let more = fattr::MODE | fattr::UID | fattr::GID;
    let asked = abi::SetattrIn::read_from_prefix(&entry.arguments);
    entry.head.opcode == op::SETATTR && asked.is_ok_and(|(asked, _)| asked.valid & more != 0)
}

/// The fields of an entry that its reply needs.
struct EntryOf {
    opcode: u32,
    ino: u64,
    done: bool,
}

impl EntryOf {
    fn of(entry: &Entry) -> EntryOf {
        let ino = match entry.head.opcode {
            op::LINK => abi::LinkIn::read_from_prefix(&entry.arguments).map_or(0, |(link, _)| link.oldnodeid),
            _ => entry.head.mark.ino,
        };
        EntryOf { opcode: entry.head.opcode, ino, done: entry.head.outcome.state == DONE }
    }
}

fn failed(what: &str, e: &kedgefs::Error) -> io::Error {
    let kind = io::Error::from_raw_os_error(e.errno()).kind();
    io::Error::new(kind, format!("after the death of a server: {what}: {e}"))
}

/// An error with a text whose kind is that of `errno`: the keeper starts the next server when a
/// lack of space or memory may be over.
fn because(what: &str, errno: i32) -> io::Error {
    let cause = io::Error::from_raw_os_error(errno);
    io::Error::new(cause.kind(), format!("{what}: {cause}"))
}

/// Whether the cut-off of the mark's life will soon be replaced by that of a later life.
fn is_old(entry: &Entry, now: u64) -> bool {
    let life = entry.head.mark.life;
    life != 0 && life + LIVES as u64 / 2 <= now && !steps::is_broken(Broken::LivesUsedUp)
}

/// Whether recovery found the entry's record in the log.
fn is_durable(entry: &Entry, head: &Head, now: u64) -> io::Result<bool> {
    let mark = entry.head.mark;
    if mark.life == 0 || steps::is_broken(Broken::MarkIgnored) {
        return Ok(false);
    }
    if mark.life >= now || mark.life + LIVES as u64 <= now {
        let what = format!("entry {} of the request journal is of life {}", entry.head.seq, mark.life);
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(mark.end <= head.cutoffs[slot_of(mark.life)])
}

/// The inodes whose times a change sets.
fn changed_by(entry: &Entry) -> impl Iterator<Item = u64> {
    let mut args = Args::new(&entry.arguments);
    // The record of a file without a name does not contain its directory.
    let node = (entry.head.opcode != op::TMPFILE).then_some(entry.head.node);
    let other = match entry.head.opcode {
        op::RENAME => args.take::<abi::RenameIn>().ok().map(|asked| asked.newdir),
        op::RENAME2 => args.take::<abi::Rename2In>().ok().map(|asked| asked.newdir),
        op::LINK => args.take::<abi::LinkIn>().ok().map(|asked| asked.oldnodeid),
        _ => None,
    };
    node.into_iter().chain(other)
}

/// The arguments without flags that depend on the caller at that time. Those of a write are cut to
/// the bytes that were written.
fn without_caller(entry: &Entry) -> Vec<u8> {
    let mut arguments = entry.arguments.clone();
    match entry.head.opcode {
        op::WRITE => {
            if let Ok((asked, data)) = abi::WriteIn::mut_from_prefix(&mut arguments) {
                asked.write_flags &= !abi::WRITE_KILL_SUIDGID;
                asked.size = asked.size.min(entry.head.outcome.result).min(data.len() as u32);
            }
        }
        op::SETATTR => {
            if let Ok((asked, _)) = abi::SetattrIn::mut_from_prefix(&mut arguments) {
                asked.valid &= !abi::fattr::KILL_SUIDGID;
            }
        }
        _ => {}
    }
    debug_assert_eq!(arguments.as_bytes().len(), entry.arguments.len());
    arguments
}
