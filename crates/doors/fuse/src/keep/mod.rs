//! A server that is replaced by another one when it dies, without any program noticing
//! (docs/rfcs/0038).
//!
//! The keeper, another process, holds the connection to the kernel, the lock on the image and an
//! [`Area`] of memory. The server notes in the area what the next server needs: each change that a
//! program makes (`journal`), how often the kernel references each inode (`pins`), and what INIT
//! negotiated. When the server dies, the keeper starts another one. That one recovers the image,
//! redoes the changes that the log has lost (`takeover`), and makes the kernel resend the requests
//! that have no reply (FUSE_NOTIFY_RESEND). If the change of such a request is made already, the
//! request gets its reply without a second change.
//!
//! A server can also be replaced by another program on request. This uses the same mechanism, with
//! better preparation ([`Handover`]).
//!
//! The module `takeover` uses this one, and decides which requests are journaled.

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

/// Whether servers of this build obey `KEDGE_DEATHS` (`injected`).
pub const INJECTS: bool = cfg!(debug_assertions);

/// The number of locks, striped by inode, that order the changes of one file.
const STRIPES: usize = 256;

/// The life of one server: the time between its start and its end.
#[derive(Clone)]
pub struct Life {
    pub(crate) area: Arc<Area>,
    pub(crate) number: u64,
}

impl Life {
    /// Begins a life with the area that the keeper has made. A life that ended before it noted
    /// anything in the journal is begun again: only 64 lives have a cut-off, and the
    /// keeper starts any number of servers while the image cannot be opened, for example for lack
    /// of space on its host.
    pub fn begin(area: Area) -> Life {
        let head: Head = area.read(0);
        let again =
            head.life > 1 && head.starting == head.life && !steps::is_broken(steps::Broken::LivesUsedUp);
        let number = if again { head.life } else { head.life + 1 };
        area.store(cutoff_at(number), 0);
        area.store(at!(life), number);
        area.store(at!(starting), number);
        steps::begin(number);
        Life { area: Arc::new(area), number }
    }

    /// Whether there was an earlier server.
    pub fn is_second(&self) -> bool {
        self.number > 1
    }

    /// The freeze that an earlier server has made and that still lasts.
    pub fn frozen(&self) -> Option<Frozen> {
        self.area.frozen()
    }

    /// The descriptor of the image's file, inherited from the keeper.
    pub fn image(&self) -> Option<i32> {
        let head: Head = self.area.read(0);
        i32::try_from(head.image).ok().filter(|fd| *fd > 0)
    }

    /// The device number of the mount's file system (`major:minor`). `None` if the keeper is of an
    /// older version.
    pub(crate) fn device(&self) -> Option<String> {
        let head: Head = self.area.read(0);
        (head.device != 0).then(|| format!("{}:{}", head.device >> 32, head.device & u64::from(u32::MAX)))
    }

    /// Whether the kernel waits for the server at sync(2) and umount(2). False also if the keeper
    /// is of an older version.
    pub(crate) fn is_privileged(&self) -> bool {
        let head: Head = self.area.read(0);
        head.privileged != 0
    }

    /// Whether the keeper gives the image up when this server has closed it. False if the keeper is
    /// of an older version, which holds the image until it ends.
    pub fn keeper_releases(&self) -> bool {
        let head: Head = self.area.read(0);
        head.releases != 0
    }

    /// Notes that recovery found the end of the log at `end`. Must be called before anything is
    /// appended. `end` is the cut-off of the last life, and of earlier lives that ended before they
    /// appended anything.
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

/// The state of a server that has a keeper.
pub(crate) struct Kept {
    pub(crate) area: Arc<Area>,
    pub(crate) life: u64,
    pub(crate) journal: Journal,
    pub(crate) pins: Mutex<Pins>,
    pub(crate) answers: Mutex<Answers>,
    pub(crate) forced: Mutex<Slots>,
    pub(crate) options: Mutex<Options>,
    pub(crate) stripes: Vec<Mutex<()>>,
    /// Held while a request is served alone, because it may have killed a server.
    pub(crate) alone: Mutex<()>,
    /// Whether the last server died from a signal that users do not send, so that a request may be
    /// the cause.
    pub(crate) crashed: bool,
    /// The request that was served alone when its server died.
    pub(crate) suspect: Suspect,
    /// Whether this server is redoing changes.
    pub(crate) redoing: AtomicBool,
    pub(crate) workers: AtomicU32,
    /// The number of changes whose reply has not been sent.
    owed: AtomicU64,
    /// Deaths and handovers, for `system.kedgefs.info`.
    pub(crate) history: Value,
}

thread_local! {
    static WORKER: Cell<u32> = const { Cell::new(0) };
}

impl Kept {
    pub(crate) fn start(life: &Life) -> io::Result<Kept> {
        let Life { area, number } = life.clone();
        // From now on the journal may have marks of this life, so it is never begun again.
        area.store(at!(starting), 0);
        let head: Head = area.read(0);
        let deaths = area.deaths();
        let crashed = !head.is_handed_over(&deaths)
            && !matches!(deaths.signal.cast_signed(), 0 | libc::SIGKILL | libc::SIGTERM);
        let deaths = head.suspect.deaths + u32::from(crashed && head.suspect.under_way == 1);
        let suspect = Suspect { deaths, under_way: 0, ..head.suspect };
        // The next death counts against this request only if it is served alone again.
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

    /// A number of the calling thread, unique in this process.
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

    /// Notes the request that is being served alone (`under_way`) or has been, because it may be
    /// the cause of a death.
    pub(crate) fn suspects(&self, suspect: Suspect) {
        note_suspect(&self.area, suspect);
    }

    pub(crate) fn history(&self) -> &Value {
        &self.history
    }

    /// Notes a pin. The caller must also pin the inode in the engine.
    pub(crate) fn pin(&self, ino: Ino) -> io::Result<()> {
        if self.redoing.load(Relaxed) { Ok(()) } else { self.pins.lock().add(&self.area, ino) }
    }

    pub(crate) fn is_redoing(&self) -> bool {
        self.redoing.load(Relaxed)
    }

    pub(crate) fn unpin(&self, ino: Ino, count: u64) {
        self.pins.lock().release(&self.area, ino, count);
    }

    /// Notes that a change has begun, with or without an entry. Dropping the returned value notes
    /// its reply.
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
    // While the field has parts of two requests, a death counts against neither.
    area.store(under_way_at, 0);
    area.put(at!(suspect), Suspect { under_way: 0, ..suspect }.as_bytes());
    area.store(under_way_at, suspect.under_way);
}

/// A change whose reply has not been sent.
pub(crate) struct OwedChange {
    kept: Arc<Kept>,
    place: Option<Place>,
}

impl Drop for OwedChange {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // After a panic no reply was sent, so the entry stays for the next server.
            return;
        }
        if let Some(place) = self.place {
            self.kept.journal.close(place);
        }
        self.kept.owed.fetch_sub(1, SeqCst);
    }
}
