//! Decides whether a process belongs to the recorded program.
//!
//! sync(2) reaches the mount from any process of the machine, and syncfs(2) from any that can open
//! a file on it. If such a call counted as the program's, it would make calls durable that the
//! program never made durable, and hide the missing fsync.
//!
//! A process belongs to the program if the recorder is among its ancestors. A process whose parent
//! has ended, as of a server that runs in the background, has other ancestors; then its environment
//! must name the recorded directory, as that of the command does. A server that also replaces its
//! environment is not recognised: its calls are ignored and counted.

use kedge_base::wait::about_to_wait;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The most ancestors of a process that are examined.
const ANCESTORS_MAX: usize = 1000;
/// The variable of the command's environment that names the recorded directory.
pub(crate) const DIR_VARIABLE: &str = "KEDGE_DIR";

/// The processes of the recorded program.
pub(crate) struct Family {
    dir: PathBuf,
    strangers: AtomicU64,
}

impl Family {
    /// The processes of a program that is recorded on this directory, or on a directory that
    /// contains it.
    pub fn new(dir: &Path) -> Family {
        Family { dir: dir.to_owned(), strangers: AtomicU64::new(0) }
    }

    /// Whether the thread belongs to the program. If not, its call is counted. The thread must be
    /// waiting for the mount, and hold no pages back.
    pub fn has(&self, tid: u32) -> bool {
        let has = tid != 0 && (descends_from(tid, std::process::id()) || self.is_named_by(tid));
        self.strangers.fetch_add(u64::from(!has), Relaxed);
        has
    }

    /// The number of calls of other processes so far.
    pub fn strangers(&self) -> u64 {
        self.strangers.load(Relaxed)
    }

    /// Whether the environment of the thread's process names the directory. The kernel takes the
    /// mmap lock of the process for this, which another thread may hold while it waits for the
    /// mount.
    fn is_named_by(&self, tid: u32) -> bool {
        about_to_wait();
        // The process may belong to another user. Then it is no process of the program, or one that
        // cannot be recognised.
        let environment = fs::read(format!("/proc/{tid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| {
            let value = variable.strip_prefix(DIR_VARIABLE.as_bytes()).and_then(|v| v.strip_prefix(b"="));
            value.map(|value| Path::new(OsStr::from_bytes(value))).is_some_and(|value| {
                !value.as_os_str().is_empty() && (value.starts_with(&self.dir) || self.dir.starts_with(value))
            })
        })
    }
}

/// Whether the process of a thread is this process or descends from it.
fn descends_from(tid: u32, ancestor: u32) -> bool {
    let mut process = field(tid, "Tgid:");
    for _ in 0..ANCESTORS_MAX {
        match process {
            Some(pid) if pid == ancestor => return true,
            Some(0 | 1) | None => return false,
            Some(pid) => process = field(pid, "PPid:"),
        }
    }
    false
}

/// A number from `/proc/PID/status`.
fn field(pid: u32, name: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

#[cfg(test)]
#[path = "family_tests.rs"]
mod tests;
