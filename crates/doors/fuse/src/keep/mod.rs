//! A server that another one replaces when it dies, without any program noticing
//! (docs/rfcs/0038).
//!
//! The keeper, another process, holds the connection to the kernel, the lock on the image and an
//! [`Area`] of memory. The server notes in the area what a next one needs: each change of a program
//! (`journal`), how often the kernel knows each inode (`pins`), and what INIT negotiated. When
//! it dies, the keeper starts another one, which recovers the image, makes the changes again that
//! the log has lost (`takeover`), and lets the kernel send again what has no reply
//! (FUSE_NOTIFY_RESEND). Of these requests, those whose change is made get their reply without
//! another change.
//!
//! A server that is asked to leaves its place to another program in the same way, and better
//! prepared ([`Handover`]).
//!
//! The module `takeover` has what a server does with it, and says which requests are journaled.

pub(crate) mod answers;
pub mod area;
pub(crate) mod forced;
mod frozen;
pub(crate) mod handover;
mod injected;
pub(crate) mod journal;
mod options;
pub(crate) mod pins;
pub mod sentinel;
mod step;
pub(crate) mod steps;
mod words;

pub use area::{Area, Deaths};
pub use frozen::Frozen;
pub use handover::{Handover, Leave};

use answers::Answers;
use area::{Head, Negotiated, Suspect, at};
use forced::Slots;
use journal::{Journal, Place};
use kedge_base::{Ino, Lsn};
use options::Options;
use parking_lot::Mutex;
use pins::Pins;
use serde_json::Value;
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use zerocopy::IntoBytes;

/// Whether servers of this build die where `KEDGE_DEATHS` asks for it (`injected`).
pub const INJECTS: bool = cfg!(debug_assertions);

/// Locks that order the changes of one file.
const STRIPES: usize = 256;

/// The life of one server.
#[derive(Clone)]
pub struct Life {
    pub(crate) area: Arc<Area>,
    pub(crate) number: u64,
}

impl Life {
    /// Begins a life in the area that the keeper has made.
    pub fn begin(area: Area) -> Life {
        let head: Head = area.read(0);
        let number = head.life + 1;
        area.store(cutoff_at(number), 0);
        area.store(at!(life), number);
        steps::begin(number);
        Life { area: Arc::new(area), number }
    }

    /// Whether there was a server before.
    pub fn is_second(&self) -> bool {
        self.number > 1
    }

    /// The freeze that goes on.
    pub fn frozen(&self) -> Option<Frozen> {
        self.area.frozen()
    }

    /// The descriptor of the image's file, which the keeper has open.
    pub fn image(&self) -> Option<i32> {
        let head: Head = self.area.read(0);
        i32::try_from(head.image).ok().filter(|fd| *fd > 0)
    }

    /// Recovery found that the log ends at `end`, and nothing was appended to it yet. That is the
    /// cut-off of the last life, and of lives that ended before they appended anything.
    pub fn recovered(&self, end: Lsn) {
        let head: Head = self.area.read(0);
        for life in self.number.saturating_sub(area::LIVES as u64 - 1).max(1)..self.number {
            if head.cutoffs[slot_of(life)] == 0 {
                self.area.store(cutoff_at(life), end.0);
            }
        }
    }
}

pub(crate) fn slot_of(life: u64) -> usize {
    (life % area::LIVES as u64) as usize
}

fn cutoff_at(life: u64) -> u64 {
    at!(cutoffs) + slot_of(life) as u64 * 8
}

/// What a server has to keep.
pub(crate) struct Kept {
    pub(crate) area: Arc<Area>,
    pub(crate) life: u64,
    pub(crate) journal: Journal,
    pub(crate) pins: Mutex<Pins>,
    pub(crate) answers: Mutex<Answers>,
    pub(crate) forced: Mutex<Slots>,
    pub(crate) options: Mutex<Options>,
    pub(crate) stripes: Vec<Mutex<()>>,
    /// Held by a request that may have killed its server.
    pub(crate) alone: Mutex<()>,
    /// The last death was none that a user asks for, so that a request may be its cause.
    pub(crate) crashed: bool,
    /// The request that was served alone when its server died.
    pub(crate) suspect: Suspect,
    /// Changes are being made again.
    pub(crate) redoing: AtomicBool,
    pub(crate) workers: AtomicU32,
    /// Changes whose reply was not sent.
    owed: AtomicU64,
    /// For `system.kedgefs.info`.
    pub(crate) history: Value,
}

thread_local! {
    static WORKER: Cell<u32> = const { Cell::new(0) };
}

impl Kept {
    pub(crate) fn start(life: &Life) -> io::Result<Kept> {
        let Life { area, number } = life.clone();
        let head: Head = area.read(0);
        let deaths = area.deaths();
        let crashed = !head.is_handed_over(&deaths)
            && !matches!(deaths.signal.cast_signed(), 0 | libc::SIGKILL | libc::SIGTERM);
        let deaths = head.suspect.deaths + u32::from(crashed && head.suspect.under_way == 1);
        let suspect = Suspect { deaths, under_way: 0, ..head.suspect };
        // The next death is its own only if it is served alone again.
        note_suspect(&area, suspect);
        let pins = Pins::load(&area);
        let answers = Answers::load(&area);
        let forced = Slots::load(&area);
        let options = Options::load(&area)?;
        Ok(Kept {
            journal: Journal::new(area.clone(), number),
            area,
            life: number,
            pins: Mutex::new(pins),
            answers: Mutex::new(answers),
            forced: Mutex::new(forced),
            options: Mutex::new(options),
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            alone: Mutex::new(()),
            crashed,
            suspect,
            redoing: AtomicBool::new(false),
            workers: AtomicU32::new(0),
            owed: AtomicU64::new(0),
            history: Value::Null,
        })
    }

    /// The number of the calling thread.
    pub(crate) fn worker(&self) -> u32 {
        WORKER.with(|worker| {
            if worker.get() == 0 {
                worker.set(self.workers.fetch_add(1, Relaxed) + 1);
            }
            worker.get()
        })
    }

    pub(crate) fn negotiated(&self, now: Negotiated) {
        self.area.put(at!(negotiated), now.as_bytes());
    }

    /// A request is served alone, because it may be the cause of a death (`under_way`), or it has
    /// been.
    pub(crate) fn suspects(&self, suspect: Suspect) {
        note_suspect(&self.area, suspect);
    }

    pub(crate) fn history(&self) -> &Value {
        &self.history
    }

    /// Notes a pin. The caller has the engine make it.
    pub(crate) fn pin(&self, ino: Ino) -> io::Result<()> {
        if self.redoing.load(Relaxed) { Ok(()) } else { self.pins.lock().add(&self.area, ino) }
    }

    pub(crate) fn is_redoing(&self) -> bool {
        self.redoing.load(Relaxed)
    }

    pub(crate) fn unpin(&self, ino: Ino, count: u64) {
        self.pins.lock().release(&self.area, ino, count);
    }

    /// A change has begun, with or without an entry, whose reply ends with the returned value.
    pub(crate) fn owe(self: &Arc<Kept>, place: Option<Place>) -> OwedChange {
        self.owed.fetch_add(1, SeqCst);
        OwedChange { kept: self.clone(), place }
    }

    pub(crate) fn owes_replies(&self) -> bool {
        self.owed.load(SeqCst) > 0
    }

    pub(crate) fn end(&self) {
        self.journal.end();
    }

    pub(crate) fn stripe(&self, ino: u64) -> &Mutex<()> {
        &self.stripes[ino as usize % STRIPES]
    }
}

fn note_suspect(area: &Area, suspect: Suspect) {
    let under_way_at = at!(suspect) + std::mem::offset_of!(Suspect, under_way) as u64;
    // A death while the field belongs to two requests is neither one's.
    area.store(under_way_at, 0);
    area.put(at!(suspect), Suspect { under_way: 0, ..suspect }.as_bytes());
    area.store(under_way_at, suspect.under_way);
}

/// A change whose reply was not sent.
pub(crate) struct OwedChange {
    kept: Arc<Kept>,
    place: Option<Place>,
}

impl Drop for OwedChange {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // No reply was sent. The entry stays for the next server.
            return;
        }
        if let Some(place) = self.place {
            self.kept.journal.close(place);
        }
        self.kept.owed.fetch_sub(1, SeqCst);
    }
}
