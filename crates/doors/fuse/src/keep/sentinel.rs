//! The sentinel: the thread of a server by whose end the keeper sees that the server is dying.
//!
//! A process that is killed ends with its last thread, and only then does waitpid(2) return. The
//! companion (module `placement`) has the policy `SCHED_IDLE`. Where programs compute on all
//! processors, such a thread gets its first time to end after seconds, and programs wait for the
//! next server all the while. So the keeper gives each thread of a dying server the ordinary policy
//! and all processors ([`hasten`]).
//!
//! Each thread ends by itself at once, unless it waits for a device or for its processor. The
//! sentinel waits for neither: it has the ordinary policy and sleeps as long as its process lives.
//! The keeper waits for its end with a pidfd of the thread. A pidfd of the first thread would not
//! do: newer kernels report its end with that of the whole process.
//!
//! The server stores the thread id in the keeper's memory, and the keeper stores there that it
//! hastens ends: a server whose keeper does not has no companion. Both words are 0 where the other
//! side is of a version that does not know them.

use super::area::{Area, Head, at};
use crate::companion::process_set;
use crate::sys;
use kedge_base::spawn_named;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::sched_setaffinity;
use std::io;
use std::sync::mpsc::channel;
use std::time::Duration;

/// A thread that was about to change its own policy, when it was hastened, is hastened again after
/// this time, which doubles each time.
const AGAIN: Duration = Duration::from_millis(5);
const AGAIN_MAX: Duration = Duration::from_secs(1);

/// Starts the sentinel of this server. `false`: the keeper is of a version that would not see it.
pub(crate) fn start(area: &Area) -> io::Result<bool> {
    let head: Head = area.read(0);
    if head.hastens == 0 {
        return Ok(false);
    }
    let (send, started) = channel();
    spawn_named("kedge-sentinel", move || {
        // The receiver waits for it.
        let _received = send.send(rustix::thread::gettid());
        loop {
            std::thread::park();
        }
    })?;
    let tid = started.recv().map_err(io::Error::other)?;
    area.store(at!(sentinel), tid.as_raw_nonzero().get() as u64);
    Ok(true)
}

/// The keeper starts a server.
pub fn expect(area: &Area) {
    area.store(at!(sentinel), 0);
    area.store(at!(hastens), 1);
}

/// A pidfd of the sentinel of a server, which is ready when the server begins to end. `None`: it
/// has no sentinel.
pub fn watch(area: &Area, server: Pid) -> io::Result<Option<OwnedFd>> {
    let head: Head = area.read(0);
    let Some(sentinel) = i32::try_from(head.sentinel).ok().and_then(Pid::from_raw) else {
        return Ok(None);
    };
    let thread = pidfd_open(sentinel, PidfdFlags::from_bits_retain(libc::PIDFD_THREAD))?;
    // The number is what a server has written.
    Ok(threads(server)?.contains(&sentinel).then_some(thread))
}

/// Returns when a server has ended, and makes its end fast from the end of its sentinel on.
/// `process` is a pidfd of it.
pub fn hasten(sentinel: &OwnedFd, process: &OwnedFd, server: Pid) -> io::Result<()> {
    await_end(sentinel, None)?;
    let mut again = AGAIN;
    loop {
        // No list: the process has ended.
        threads(server).unwrap_or_default().into_iter().for_each(relieve);
        if await_end(process, Some(again))? {
            return Ok(());
        }
        again = (2 * again).min(AGAIN_MAX);
    }
}

fn threads(process: Pid) -> io::Result<Vec<Pid>> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()))?;
    let number = |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(tasks.filter_map(number).filter_map(Pid::from_raw).collect())
}

/// Lets a thread run at once. An error means that it has ended, or that the right is missing: then
/// the server has found that out, too, and has no companion.
fn relieve(thread: Pid) {
    let relieved = process_set().and_then(|set| Ok(sched_setaffinity(Some(thread), &set)?));
    if let Err(e) = relieved.and_then(|()| sys::set_policy(thread, libc::SCHED_OTHER)) {
        tracing::debug!("a thread of a dying server is not hastened: {e}");
    }
}

/// Whether what `pidfd` is of has ended within this time.
fn await_end(pidfd: &OwnedFd, patience: Option<Duration>) -> io::Result<bool> {
    let limit = patience.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
    loop {
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], limit.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
#[path = "sentinel_tests.rs"]
mod tests;
