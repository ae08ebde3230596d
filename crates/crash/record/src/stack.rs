//! Finds the callers of a recorded call.
//!
//! The calling thread waits in the kernel until its call returns, so its stack does not change.
//! `/proc/TID/syscall` has its program counter and stack pointer. The callers are found with the
//! tables that compilers emit for exceptions (`.eh_frame`).
//!
//! A wrong caller is worse than none, so no unknown register is guessed, and each return address
//! must follow a call instruction. Unwinders of profilers silently fall back to the frame pointer
//! where tables have no entry; this one stops there and says so.
//!
//! A function that addresses its stack by the frame pointer needs that register, and only the
//! kernel knows it. So it is searched for on the stack: a saved frame pointer next to a return
//! address that follows a call of this very function, from where the tables lead on. If there are
//! several, or only indirect calls that may have called the function, the report marks the callers
//! as a guess.
//!
//! Go's functions have no such tables. They are found with the table that Go's runtime has for
//! itself.
//!
//! # A separate thread
//! Reading the memory of a process takes its mmap lock. One of its threads may hold that lock while
//! it waits for this mount: at munmap the kernel writes pages back. So a thread that serves
//! requests must not wait without a limit. It asks a separate thread, and continues without a stack
//! if that takes too long.

mod binary;
mod go;
mod process;
mod unwind;

use binary::Binaries;
use kedge_base::spawn_named;
use process::{Process, Snapshot};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Limit for reading the other process, whose mmap lock may be held; see above.
const READ_WAIT: Duration = Duration::from_secs(1);
/// Limit for names and lines, which need no lock: the first look at a large program reads all of
/// it.
const NAMES_WAIT: Duration = Duration::from_secs(60);
/// Callers kept for a call.
const FRAMES_MAX: usize = 24;
/// Processes whose mappings are kept. At the limit all are dropped.
const PROCESSES_MAX: usize = 256;

/// Whether this architecture is supported.
pub(crate) const IS_SUPPORTED: bool = cfg!(target_arch = "x86_64");

/// The replies to one question, in this order.
enum Answer {
    /// The other process has been read; its lock is no longer needed.
    IsRead,
    Frames(Vec<String>),
}

struct Question {
    pid: u32,
    tid: u32,
    answer: SyncSender<Answer>,
}

/// Finds the callers of calls.
pub(crate) struct Stacks {
    ask: SyncSender<Question>,
    missing: AtomicU64,
}

impl Stacks {
    /// Files below `mount` are not read: the asking thread would have to serve that.
    pub fn start(mount: &Path) -> io::Result<Stacks> {
        let (ask, questions) = sync_channel(1);
        let mount = mount.to_owned();
        // Detached: it ends when all senders are gone.
        spawn_named("kedge-stacks", move || serve(&questions, mount))?;
        Ok(Stacks { ask, missing: AtomicU64::new(0) })
    }

    /// The callers of the call in which a thread waits, innermost first. Empty if they cannot be
    /// found.
    pub fn of(&self, pid: u32, tid: u32) -> Vec<String> {
        let frames = self.look(pid, tid).unwrap_or_default();
        if frames.is_empty() {
            self.missing.fetch_add(1, Ordering::Relaxed);
        }
        frames
    }

    fn look(&self, pid: u32, tid: u32) -> Option<Vec<String>> {
        let (answer, heard) = sync_channel(2);
        // If the thread is stuck at a process that cannot be read, one more question waits equally
        // long; a third is refused.
        self.ask.try_send(Question { pid, tid, answer }).ok()?;
        match heard.recv_timeout(READ_WAIT).ok()? {
            Answer::Frames(frames) => Some(frames),
            Answer::IsRead => match heard.recv_timeout(NAMES_WAIT).ok()? {
                Answer::Frames(frames) => Some(frames),
                Answer::IsRead => None,
            },
        }
    }

    /// Calls without a stack.
    pub fn missing(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }
}

fn serve(questions: &Receiver<Question>, mount: PathBuf) {
    let mut binaries = Binaries::new(mount);
    let mut processes: HashMap<u32, Process> = HashMap::new();
    while let Ok(Question { pid, tid, answer }) = questions.recv() {
        let frames = match Snapshot::take(pid, tid) {
            Ok(snapshot) => {
                // The asking thread may have stopped waiting, and then needs no names either.
                if answer.send(Answer::IsRead).is_err() {
                    continue;
                }
                if processes.len() >= PROCESSES_MAX {
                    processes.clear();
                }
                let known = processes.remove(&pid).filter(|p| p.is_of(&snapshot));
                let process = known.unwrap_or_else(|| Process::new(&snapshot, &mut binaries));
                let process = processes.entry(pid).or_insert(process);
                told(process.frames(&snapshot, FRAMES_MAX))
            }
            Err(e) => {
                tracing::debug!("the stack of thread {tid}: {e}");
                Vec::new()
            }
        };
        // As above.
        let _nobody_waits = answer.send(Answer::Frames(frames));
    }
}

/// A function on the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// `None`: no table has a name for it.
    name: Option<String>,
    /// File and line, or the binary and the offset in it.
    place: String,
    /// Whether it belongs to the C or the Rust library.
    is_library: bool,
}

/// The useful frames: the program's, and the functions it called. The frames inside the language's
/// library, and those from there to `main`, are the same everywhere.
fn told(mut frames: Vec<Frame>) -> Vec<String> {
    while let [first, second, ..] = &frames[..]
        && first.is_library
        && second.is_library
    {
        frames.remove(0);
    }
    let is_start = |f: &Frame| f.name.as_deref().is_some_and(|n| n.contains("__rust_begin_short_backtrace"));
    let is_main = |f: &Frame| matches!(f.name.as_deref(), Some("main" | "main.main"));
    if let Some(start) = frames.iter().position(is_start) {
        frames.truncate(start);
        // The frame through which Rust calls `main`: by the old rules of naming
        // `FnOnce::call_once`, by the new ones (v0) `FnOnce<()>>::call_once`.
        let calls_main = |name: &str| name.contains("FnOnce") && name.ends_with("::call_once");
        frames.pop_if(|f| f.name.as_deref().is_some_and(calls_main));
    } else if let Some(main) = frames.iter().position(is_main) {
        frames.truncate(main + 1);
    }
    let text = |f: &Frame| match &f.name {
        Some(name) => format!("{name} at {}", f.place),
        None => f.place.clone(),
    };
    frames.iter().map(text).collect()
}

#[cfg(test)]
#[path = "stack_tests.rs"]
mod tests;
