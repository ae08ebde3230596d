//! Where in a program a recorded call was made.
//!
//! The thread that called waits in the kernel until its call is answered, so its stack stands
//! still. `/proc/TID/syscall` has its program counter and stack pointer. The callers are found by
//! the tables that compilers leave for exceptions (`.eh_frame`).
//!
//! A wrong caller is worse than none, so nothing is taken for a register that is not known, and
//! each caller must return behind an instruction that calls. Unwinders for profilers fall back to
//! the frame pointer without a word where tables say nothing; this one ends there and says so.
//!
//! Where a function addresses its stack by the frame pointer, that register is needed, and nobody
//! outside the kernel knows it. It is then looked for on the stack: a saved frame pointer, and a
//! return address behind a call of this very function, from where the tables lead on. If there are
//! several, or only calls through pointers that may have called it, the callers are called a guess.
//!
//! # A thread of its own
//! Reading the memory of a process takes the lock of its mappings. A thread of it may hold that
//! lock while it waits for this mount: at munmap the kernel writes pages back. So whoever answers
//! requests must not wait without end. It asks a thread, and goes on without a stack if that takes
//! too long.

mod binary;
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

/// For reading the other process, where its lock may be held. See above.
const READ_WAIT: Duration = Duration::from_secs(1);
/// For names and lines, which takes time only: the first look at a large program reads all of it.
const NAMES_WAIT: Duration = Duration::from_secs(60);
/// Callers that are kept.
const FRAMES_MAX: usize = 24;
/// Processes whose mappings are remembered. Beyond it the memory starts anew.
const PROCESSES_MAX: usize = 256;

/// Stacks can be had on this kind of machine.
pub(crate) const IS_SUPPORTED: bool = cfg!(target_arch = "x86_64");

/// What one question is answered with, in this order.
enum Answer {
    /// The other process has been read.
    IsRead,
    Frames(Vec<String>),
}

struct Question {
    pid: u32,
    tid: u32,
    answer: SyncSender<Answer>,
}

/// Finds out where calls were made.
pub(crate) struct Stacks {
    ask: SyncSender<Question>,
    missing: AtomicU64,
}

impl Stacks {
    /// Files below `mount` are not read: whoever asks would have to serve that.
    pub fn start(mount: &Path) -> io::Result<Stacks> {
        let (ask, questions) = sync_channel(1);
        let mount = mount.to_owned();
        // Detached: it ends when nobody can ask any more.
        spawn_named("kedge-stacks", move || serve(&questions, mount))?;
        Ok(Stacks { ask, missing: AtomicU64::new(0) })
    }

    /// The callers of the call that a thread waits in, innermost first. Empty if they cannot be
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
        // If it hangs at a process that does not let itself be read, one more question waits for it
        // as long, and no third.
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
                // Whoever asked may have stopped waiting; then nobody hears the rest either.
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
        // The same.
        let _nobody_waits = answer.send(Answer::Frames(frames));
    }
}

/// A function on the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// `None`: no table has its name.
    name: Option<String>,
    /// File and line, or the binary and the place in it.
    place: String,
    /// It belongs to the C library, or to that of Rust.
    is_library: bool,
}

/// The frames that tell something: the program's, and what it called. What the library of its
/// language does inside, and how it came to call the program's `main`, is the same everywhere.
fn told(mut frames: Vec<Frame>) -> Vec<String> {
    while let [first, second, ..] = &frames[..]
        && first.is_library
        && second.is_library
    {
        frames.remove(0);
    }
    let is_start = |f: &Frame| f.name.as_deref().is_some_and(|n| n.contains("__rust_begin_short_backtrace"));
    let is_main = |f: &Frame| f.name.as_deref() == Some("main");
    if let Some(start) = frames.iter().position(is_start) {
        frames.truncate(start);
        // By which it calls `main`.
        frames.pop_if(|f| f.name.as_deref().is_some_and(|n| n.ends_with("FnOnce::call_once")));
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
