//! Deletion, in the background, of files that a rename displaced.
//!
//! Whoever writes a new version of a file and renames it over the old one wants the name, not the old version's blocks. To
//! delete it takes several times the processor time of the rename itself: pages, extents, a second record. So the rename
//! ends with its own record, which makes the victim an orphan, and lines the victim up here; a thread deletes what is in
//! the line. The thread lets a batch gather before it begins: to wake it for each would put it in the renamer's place on a
//! busy machine. Unlink does not come here: who unlinks a file wants its space.
//!
//! # Invariants
//! 1. The line is bounded. When it is full, renames delete their victims themselves, as they would without it.
//! 2. Nobody is refused space that the line holds: an operation that finds no room, nodes or blocks, does the waiting
//!    deletions and asks again. What statfs shows is counted behind them; sync and close end with an empty line.
//! 3. A file in the line has no name, is in `Fs::orphans`, and is judged anew when its turn comes: if something pinned it
//!    meanwhile, the last pin deletes it.
//! 4. The lock is a leaf. Deletions run with no lock held, as every operation that reserves.
//!
//! # Crash argument
//! The rename's record takes the victim's last name and puts its orphan item: one record, so after a crash the victim has
//! its name or is an orphan with all its items and blocks. Nothing of it is given up before the deletion's own records,
//! which follow in the log and are the same, in the same steps, as a deletion on the spot would write (`space`). The line is
//! memory only: who is in it at a crash, or at an error, is an orphan on the image, and the next mount deletes it before
//! anything else runs. There may be more of these at once than there were threads, and never more than the line is long;
//! recovery deletes them one at a time with the reserve that deletions have, so a full image takes any number of them.

use crate::Result;
use crate::core::Fs;
use kedge_base::lock::{Condvar, Mutex, Rank};
use kedge_base::{Counter, Ino};
use kedge_format::FileKind;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Files in the line at most.
const WAITING_MAX: usize = 256;
/// So many make the thread begin at once.
const WAITING_MANY: usize = WAITING_MAX / 2;

/// See the module.
pub(crate) struct Reaper {
    line: Mutex<Line>,
    /// For the thread: there is work, or it shall end.
    work: Condvar,
    /// For those who wait for deletions that others have begun.
    done: Condvar,
    /// How long a file may wait for others to join it; zero: there is no line.
    delay: Duration,
    /// Files deleted from the line.
    pub reaped: Counter,
    /// Files that found the line full.
    pub refused: Counter,
}

#[derive(Default)]
struct Line {
    /// With the place in the order of arrival.
    waiting: VecDeque<(u64, Ino)>,
    /// Being deleted.
    running: SmallVec<[u64; 4]>,
    arrived: u64,
    stop: bool,
}

impl Line {
    /// Nobody who arrived before `place` is waiting or being deleted.
    fn is_past(&self, place: u64) -> bool {
        self.waiting.front().is_none_or(|(at, _)| *at >= place) && self.running.iter().all(|at| *at >= place)
    }
}

impl Reaper {
    pub fn new(delay: Duration) -> Reaper {
        Reaper {
            line: Mutex::new(Rank::Leaf, Line::default()),
            work: Condvar::new(),
            done: Condvar::new(),
            delay,
            reaped: Counter::new(),
            refused: Counter::new(),
        }
    }

    /// Lines a file up. False: there is no room.
    fn push(&self, ino: Ino) -> bool {
        if self.delay.is_zero() {
            return false;
        }
        let mut line = self.line.lock();
        if line.waiting.len() == WAITING_MAX || line.stop {
            drop(line);
            self.refused.inc();
            return false;
        }
        let place = line.arrived;
        line.arrived += 1;
        line.waiting.push_back((place, ino));
        let len = line.waiting.len();
        drop(line);
        if len == 1 || len == WAITING_MANY {
            self.work.notify_one();
        }
        true
    }

    /// Files that wait.
    pub fn waiting(&self) -> usize {
        self.line.lock().waiting.len()
    }

    pub fn stop(&self) {
        self.line.lock().stop = true;
        self.work.notify_all();
    }

    /// For the thread: until a batch has gathered. False: it shall end.
    fn wait(&self) -> bool {
        let mut line = self.line.lock();
        while !line.stop {
            match line.waiting.len() {
                0 => self.work.wait(&mut line),
                WAITING_MANY.. => return true,
                // Woken before it is over: by many, by the end, or by a new first because somebody else deleted the others.
                _ => {
                    if self.work.wait_for(&mut line, self.delay) && !line.stop {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Takes the first who arrived before `place`.
    fn next(&self, place: u64) -> Option<(u64, Ino)> {
        let mut line = self.line.lock();
        let first = *line.waiting.front().filter(|(at, _)| *at < place)?;
        line.waiting.pop_front();
        line.running.push(first.0);
        Some(first)
    }

    fn finished(&self, place: u64) {
        let mut line = self.line.lock();
        line.running.retain(|at| *at != place);
        drop(line);
        self.reaped.inc();
        self.done.notify_all();
    }
}

impl Fs {
    /// A rename took an inode's last name.
    pub fn displaced(&self, ino: Ino, kind: FileKind) {
        if kind != FileKind::Regular {
            return self.orphaned(ino);
        }
        // Listed before the look at the pins: whoever gives the last one back meanwhile finds it.
        self.orphans.lock().insert(ino, false);
        if !self.inodes.is_pinned(ino) && !self.reaper.push(ino) {
            self.orphaned(ino);
        }
    }

    /// Does the deletions that wait, and waits for those that others have begun. Answers whether there were any. The caller
    /// holds no lock and no reservation.
    pub fn reap(&self) -> bool {
        let place = {
            let line = self.reaper.line.lock();
            if line.is_past(line.arrived) {
                return false;
            }
            line.arrived
        };
        while let Some((at, ino)) = self.reaper.next(place) {
            self.orphaned(ino);
            self.reaper.finished(at);
        }
        let mut line = self.reaper.line.lock();
        while !line.is_past(place) {
            self.reaper.done.wait(&mut line);
        }
        true
    }

    /// Runs what is refused for want of space once more if the line held some.
    pub fn with_reaped<R>(&self, mut run: impl FnMut() -> kedge_base::Result<R>) -> Result<R> {
        match run() {
            Err(kedge_base::Error::NoSpace) if self.reap() => Ok(run()?),
            other => Ok(other?),
        }
    }

    /// Body of the thread. Holds the file system only while it works.
    pub fn reap_loop(fs: Weak<Fs>, reaper: Arc<Reaper>) {
        while reaper.wait() {
            let Some(fs) = fs.upgrade() else { return };
            // Stopped between two: the last user of the file system is gone, and others may open the device.
            while let Some((at, ino)) = reaper.next(u64::MAX) {
                fs.orphaned(ino);
                reaper.finished(at);
                if reaper.line.lock().stop {
                    return;
                }
            }
        }
    }
}
