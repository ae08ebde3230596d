//! The request journal. Each change is noted before it is made, with what is needed to redo it.
//!
//! # An entry
//! An entry consists of an [`EntryHead`] and the arguments of the request as the kernel sent them.
//! The head is written first, under the lock of the journal, so that heads are contiguous. Then,
//! without the lock, the arguments and the checksum are written. Then the change is made. An entry
//! exists if the first word of its head is not 0. That word is stored last; before that it is 0,
//! whatever the half contained at its last use, because each entry clears the word for the next
//! one. Two fields are filled in later, and are valid with their first word ([`Area`]):
//! - [`Mark`], by the commit of the change's record, before the record can become durable: the
//!   life, the end of the record in the log, the number of a new inode;
//! - [`Outcome`], before the reply: whether the change was made or refused, and the result.
//!
//! An entry without an outcome belongs to a request without a reply. If it has no mark either, its
//! arguments may be incomplete and its checksum missing, so the checksum is not verified.
//!
//! # Two halves
//! Entries are added to one half. When it is full, the other one is used, and a thread waits until
//! all requests of the full half have their replies, syncs the file system, and frees the half:
//! nothing depends on its entries any more. If both halves are full, changes wait for that sync, or
//! fail with its error. So the memory is bounded, and so is the work of a new server.

use super::area::{Area, HALF, HALVES_AT, fields};
use super::steps::{self, Broken};
use crate::transport::Request;
use kedge_base::{Ino, Lsn, Timespec};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// Limit for the entries of a half, which bounds the time that a new server needs.
const ENTRIES_MAX: u32 = 16 << 10;
/// The offset of the first entry. Before it, a half has the generation of its valid entries.
const ENTRIES_AT: u64 = 128;
const MAGIC: u32 = u32::from_le_bytes(*b"kent");
/// The pause after a sync that failed.
const RETRY: Duration = Duration::from_secs(1);

fields!(
    pub(crate) Mark = 24 { life: u64, end: u64, ino: u64 }
);
fields!(
    /// `mode` is the file's mode plus one if the change may have cleared mode bits, or else 0.
    pub(crate) Outcome = 16 { state: u32, result: u32, mode: u32, padding: u32 }
);
fields!(
    pub(crate) EntryHead = 128 {
        magic: u32, len: u32, generation: u64, seq: u64, life: u64, unique: u64, node: u64, opcode: u32,
        uid: u32, gid: u32, worker: u32, sec: i64, nsec: u32, check: u32, mark: Mark, outcome: Outcome,
        unused: u64,
    }
);
const _: () = assert!(std::mem::offset_of!(EntryHead, mark) == 80);

pub(crate) const BEGUN: u32 = 0;
pub(crate) const DONE: u32 = 1;
pub(crate) const REFUSED: u32 = 2;

const MARK_AT: u64 = std::mem::offset_of!(EntryHead, mark) as u64;
const OUTCOME_AT: u64 = std::mem::offset_of!(EntryHead, outcome) as u64;
/// The offset of the word that contains the checksum. Its first half is `nsec`.
const CHECK_AT: u64 = std::mem::offset_of!(EntryHead, nsec) as u64;
const _: () =
    assert!(CHECK_AT.is_multiple_of(8) && std::mem::offset_of!(EntryHead, check) as u64 == CHECK_AT + 4);

impl EntryHead {
    pub(crate) fn time(&self) -> Timespec {
        Timespec { sec: self.sec, nsec: self.nsec }
    }

    /// The checksum over the arguments and the head without mark and outcome.
    pub(crate) fn checksum(&self, arguments: &[u8]) -> u32 {
        let fixed = EntryHead { check: 0, mark: Mark::new_zeroed(), outcome: Outcome::new_zeroed(), ..*self };
        crc32c::crc32c_append(crc32c::crc32c(fixed.as_bytes()), arguments)
    }

    /// The word at [`CHECK_AT`], including the checksum.
    fn checked(&self, arguments: &[u8]) -> u64 {
        let mut word = [0u8; 8];
        let (nsec, check) = word.split_at_mut(4);
        nsec.copy_from_slice(&self.nsec.to_ne_bytes());
        check.copy_from_slice(&self.checksum(arguments).to_ne_bytes());
        u64::from_ne_bytes(word)
    }
}

/// The location of an entry in the area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    half: usize,
    at: u64,
}

/// An entry that an earlier server has written.
#[derive(Debug)]
pub(crate) struct Entry {
    pub head: EntryHead,
    pub place: Place,
    pub arguments: Vec<u8>,
}

#[derive(Clone, Copy, Default)]
struct Half {
    /// The generation of the valid entries; 0 if the half is free.
    generation: u64,
    used: u64,
    entries: u32,
    /// The number of changes whose reply has not been sent.
    open: u32,
    /// Whether the half accepts no more entries.
    sealed: bool,
}

struct State {
    halves: [Half; 2],
    current: usize,
    generation: u64,
    seq: u64,
    /// The errno with which the last sync failed.
    failed: Option<i32>,
    ended: bool,
}

pub(crate) struct Journal {
    area: Arc<Area>,
    life: u64,
    state: Mutex<State>,
    /// Signalled when a half is sealed, is freed, or has no open changes left.
    changed: Condvar,
}

fn start(half: usize) -> u64 {
    HALVES_AT + half as u64 * HALF
}

impl Journal {
    /// The journal of a life. [`Journal::clear`] must be called before the first entry.
    pub(crate) fn new(area: Arc<Area>, life: u64) -> Journal {
        // Higher than the generations of earlier lives, whose entries may still be in the halves.
        let generation = life << 32;
        let state = State {
            halves: [Half::default(); 2],
            current: 0,
            generation,
            seq: 0,
            failed: None,
            ended: false,
        };
        Journal { area, life, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Frees both halves. The caller must not need their entries any more.
    pub(crate) fn clear(&self) {
        (0..2).for_each(|half| self.area.store(start(half), 0));
    }

    /// Reads all entries, in the order in which they were begun.
    pub(crate) fn scan(area: &Area) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for half in 0..2 {
            let generation: u64 = area.read(start(half));
            if generation == 0 {
                continue;
            }
            let mut at = ENTRIES_AT;
            while at + size_of::<EntryHead>() as u64 <= HALF {
                let head: EntryHead = area.read(start(half) + at);
                let whole = (size_of::<EntryHead>() as u64 + u64::from(head.len)).next_multiple_of(128);
                if head.magic != MAGIC || head.generation != generation || at + whole > HALF {
                    break;
                }
                let mut arguments = vec![0; head.len as usize];
                area.get(start(half) + at + size_of::<EntryHead>() as u64, &mut arguments);
                let complete = head.outcome.state != BEGUN || head.mark.life != 0;
                if complete && head.checksum(&arguments) != head.check {
                    let what = format!("entry {} of the request journal has a wrong checksum", head.seq);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                }
                entries.push(Entry { head, place: Place { half, at }, arguments });
                at += whole;
            }
        }
        entries.sort_by_key(|entry| entry.head.seq);
        Ok(entries)
    }

    /// Begins an entry. Waits for a free half if necessary.
    pub(crate) fn begin(&self, request: &Request<'_>, now: Timespec, worker: u32) -> Result<Place, i32> {
        let whole = (size_of::<EntryHead>() + request.body.len()).next_multiple_of(128) as u64;
        let mut state = self.state.lock();
        let half = loop {
            let current = state.current;
            let half = &state.halves[current];
            if !half.sealed && half.entries < ENTRIES_MAX && half.used.max(ENTRIES_AT) + whole <= HALF {
                break current;
            }
            state.halves[current].sealed = true;
            self.changed.notify_all();
            if state.halves[1 - current].generation == 0 {
                state.current = 1 - current;
                continue;
            }
            if let Some(errno) = state.failed {
                return Err(errno);
            }
            kedge_base::wait::about_to_wait();
            self.changed.wait(&mut state);
        };
        if state.halves[half].generation == 0 {
            let generation = state.generation + 1;
            self.end_entries(half, ENTRIES_AT);
            self.area.store(start(half), generation);
            state.generation = generation;
            state.halves[half] = Half { generation, used: ENTRIES_AT, ..Half::default() };
        }
        state.seq += 1;
        let place = Place { half, at: state.halves[half].used };
        let header = &request.header;
        // The checksum is added later: computing it reads all arguments, during which other changes
        // would wait for the lock.
        let head = EntryHead {
            magic: MAGIC,
            len: request.body.len() as u32,
            generation: state.halves[half].generation,
            seq: state.seq,
            life: self.life,
            unique: header.unique & !crate::abi::UNIQUE_RESEND,
            node: header.nodeid,
            opcode: header.opcode,
            uid: header.uid,
            gid: header.gid,
            worker,
            sec: now.sec,
            nsec: now.nsec,
            ..EntryHead::new_zeroed()
        };
        let at = start(half) + place.at;
        self.end_entries(half, place.at + whole);
        self.area.put(at, head.as_bytes());
        let taken = &mut state.halves[half];
        taken.used += whole;
        taken.entries += 1;
        taken.open += 1;
        drop(state);
        self.area.fill(at + size_of::<EntryHead>() as u64, request.body);
        self.area.store(at + CHECK_AT, head.checked(request.body));
        Ok(place)
    }

    /// Marks `at` as the end of the entries. Bytes from an earlier use of the half, which a program
    /// may have chosen, could look like an entry.
    fn end_entries(&self, half: usize, at: u64) {
        if at < HALF && !steps::is_broken(Broken::OldEntryTaken) {
            self.area.store(start(half) + at, 0);
        }
    }

    /// Notes that the record of the change is in the log. It must not be durable yet.
    pub(crate) fn mark(area: &Area, place: Place, life: u64, end: Lsn, ino: Option<Ino>) {
        let mark = Mark { life, end: end.0, ino: ino.map_or(0, |ino| ino.0) };
        // If the process dies during this store, the life may still be that of an earlier mark,
        // while `end` is beyond that life's cut-off. Then the record counts as lost, which is true:
        // it is not durable yet.
        area.put(start(place.half) + place.at + MARK_AT, mark.as_bytes());
    }

    /// Replaces the mark of an entry, before a later life gets the cut-off's place of the mark's
    /// life, by a mark of `life` that says the same. If the process dies during this store, the
    /// life may still be the old one; its cut-off is not below `Lsn(0)` and not beyond `u64::MAX`,
    /// so the mark still says the same.
    pub(crate) fn renew_mark(area: &Area, entry: &Entry, life: u64, durable: bool) {
        let (end, ino) = (if durable { Lsn(0) } else { Lsn(u64::MAX) }, entry.head.mark.ino);
        Journal::mark(area, entry.place, life, end, (ino != 0).then_some(Ino(ino)));
    }

    /// Notes that the change is made or refused. Must be called before the reply.
    pub(crate) fn finish(&self, place: Place, outcome: Outcome) {
        self.area.put(start(place.half) + place.at + OUTCOME_AT, outcome.as_bytes());
    }

    /// Notes that the reply was sent, so that the request will not be resent.
    pub(crate) fn close(&self, place: Place) {
        let mut state = self.state.lock();
        let half = &mut state.halves[place.half];
        half.open -= 1;
        if half.open == 0 && half.sealed {
            self.changed.notify_all();
        }
    }

    /// Waits until no entry that was begun before the call is needed any more. The caller must not
    /// owe a reply to a journaled request.
    pub(crate) fn barrier(&self) -> Result<(), i32> {
        let mut state = self.state.lock();
        let upto = state.generation;
        for half in &mut state.halves {
            half.sealed |= half.generation != 0;
        }
        self.changed.notify_all();
        kedge_base::wait::about_to_wait();
        while state.halves.iter().any(|half| (1..=upto).contains(&half.generation)) {
            if let Some(errno) = state.failed {
                return Err(errno);
            }
            self.changed.wait(&mut state);
        }
        Ok(())
    }

    /// Frees sealed halves until [`Journal::end`] is called. `sync` must make everything durable.
    pub(crate) fn recycle(&self, sync: impl Fn() -> Result<(), i32>) {
        let mut state = self.state.lock();
        loop {
            let ready = |half: &Half| half.sealed && half.generation != 0 && half.open == 0;
            let oldest =
                (0..2).filter(|i| ready(&state.halves[*i])).min_by_key(|i| state.halves[*i].generation);
            let Some(half) = oldest else {
                if state.ended {
                    return;
                }
                self.changed.wait(&mut state);
                continue;
            };
            let synced = parking_lot::MutexGuard::unlocked(&mut state, &sync);
            state.failed = synced.err();
            if state.failed.is_none() {
                self.area.store(start(half), 0);
                state.halves[half] = Half::default();
            }
            self.changed.notify_all();
            if state.failed.is_some() {
                if state.ended {
                    return;
                }
                self.changed.wait_for(&mut state, RETRY);
            }
        }
    }

    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }
}
