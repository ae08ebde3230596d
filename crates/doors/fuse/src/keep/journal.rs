//! The request journal: each change, before it is made, with what its repetition needs.
//!
//! # An entry
//! [`EntryHead`], then the arguments of the request as the kernel sent them. The head is written
//! first, under the lock of the journal, so that heads lie one after another; then, without the
//! lock, the arguments and the checksum; then the change is made. An entry is there when the first
//! word of its head is, which is stored last. Before that this word is 0, whatever the half held at
//! its last use: each entry sets it for the next one. Two fields are filled in later, and are there
//! with their first word ([`Area`]):
//! - [`Mark`], by the commit of the change's record, before the record can become durable: the
//!   life, the end of the record in the log, the number of a new inode;
//! - [`Outcome`], before the reply: done or refused, and the result.
//!
//! An entry without an outcome is of a request that has no reply. If it has no mark either, its
//! arguments may be incomplete and its checksum may be missing, so the checksum is not verified.
//!
//! # Two halves
//! Entries go to one half. When it is full, the other one takes over, and a thread waits until the
//! reply to each request of the full half is sent, syncs the file system, and frees the half: then
//! nothing depends on its entries. If both are full, changes wait for that sync; if it fails, they
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

/// Entries of a half, which bound the time of a new server.
const ENTRIES_MAX: u32 = 16 << 10;
/// A half begins with the number under which its entries are valid.
const ENTRIES_AT: u64 = 128;
const MAGIC: u32 = u32::from_le_bytes(*b"kent");
/// Between two tries to sync a file system that could not be synced.
const RETRY: Duration = Duration::from_secs(1);

fields!(
    pub(crate) Mark = 24 { life: u64, end: u64, ino: u64 }
);
fields!(
    /// `mode` is that of the file plus one, if the change may have cleared bits of it.
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
/// The word that has the checksum. Its first half is `nsec`.
const CHECK_AT: u64 = std::mem::offset_of!(EntryHead, nsec) as u64;
const _: () =
    assert!(CHECK_AT.is_multiple_of(8) && std::mem::offset_of!(EntryHead, check) as u64 == CHECK_AT + 4);

impl EntryHead {
    pub(crate) fn time(&self) -> Timespec {
        Timespec { sec: self.sec, nsec: self.nsec }
    }

    /// The checksum of the head as it is first written, and of the arguments.
    pub(crate) fn checksum(&self, arguments: &[u8]) -> u32 {
        let fixed = EntryHead { check: 0, mark: Mark::new_zeroed(), outcome: Outcome::new_zeroed(), ..*self };
        crc32c::crc32c_append(crc32c::crc32c(fixed.as_bytes()), arguments)
    }

    /// The word at [`CHECK_AT`], with the checksum.
    fn checked(&self, arguments: &[u8]) -> u64 {
        let mut word = [0u8; 8];
        let (nsec, check) = word.split_at_mut(4);
        nsec.copy_from_slice(&self.nsec.to_ne_bytes());
        check.copy_from_slice(&self.checksum(arguments).to_ne_bytes());
        u64::from_ne_bytes(word)
    }
}

/// The place of an entry in the area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    half: usize,
    at: u64,
}

/// An entry that an earlier server has left.
#[derive(Debug)]
pub(crate) struct Entry {
    pub head: EntryHead,
    pub place: Place,
    pub arguments: Vec<u8>,
}

#[derive(Clone, Copy, Default)]
struct Half {
    /// 0: free.
    generation: u64,
    used: u64,
    entries: u32,
    /// Changes whose reply was not sent.
    open: u32,
    /// Takes no more entries.
    sealed: bool,
}

struct State {
    halves: [Half; 2],
    current: usize,
    generation: u64,
    seq: u64,
    /// Why the last sync failed.
    failed: Option<i32>,
    ended: bool,
}

pub(crate) struct Journal {
    area: Arc<Area>,
    life: u64,
    state: Mutex<State>,
    /// Signalled when a half is sealed, freed, or without open entries.
    changed: Condvar,
}

fn start(half: usize) -> u64 {
    HALVES_AT + half as u64 * HALF
}

impl Journal {
    /// The journal of a life. It uses the halves from [`Journal::clear`] on.
    pub(crate) fn new(area: Arc<Area>, life: u64) -> Journal {
        // No generation of an earlier life, whose entries the halves may still hold.
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

    /// Frees both halves. The caller has no use for what they hold.
    pub(crate) fn clear(&self) {
        (0..2).for_each(|half| self.area.store(start(half), 0));
    }

    /// The entries in sequence.
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

    /// Begins an entry. Waits for a free half.
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
        // Without its checksum: computing that reads all arguments, while other changes would wait
        // for the lock.
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

    /// No entry is at `at`. What an older use of the half left there, which programs may have
    /// chosen, must not be taken for one.
    fn end_entries(&self, half: usize, at: u64) {
        if at < HALF && !steps::is_broken(Broken::OldEntryTaken) {
            self.area.store(start(half) + at, 0);
        }
    }

    /// The record of the change is in the log and not durable yet.
    pub(crate) fn mark(area: &Area, place: Place, life: u64, end: Lsn, ino: Option<Ino>) {
        let mark = Mark { life, end: end.0, ino: ino.map_or(0, |ino| ino.0) };
        // While the life is that of an earlier mark, the end is already beyond the cut-off of that
        // life: the record counts as lost, and is, because it cannot be durable yet.
        area.put(start(place.half) + place.at + MARK_AT, mark.as_bytes());
    }

    /// The change is made, or refused, and its reply follows.
    pub(crate) fn finish(&self, place: Place, outcome: Outcome) {
        self.area.put(start(place.half) + place.at + OUTCOME_AT, outcome.as_bytes());
    }

    /// The reply is sent: the request cannot come again.
    pub(crate) fn close(&self, place: Place) {
        let mut state = self.state.lock();
        let half = &mut state.halves[place.half];
        half.open -= 1;
        if half.open == 0 && half.sealed {
            self.changed.notify_all();
        }
    }

    /// Waits until nothing depends on an entry that was begun before the call. The caller owes no
    /// reply to a journaled request.
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

    /// Frees sealed halves until [`Journal::end`]. `sync` makes everything durable.
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
