//! The sentinel: a thread of the server whose end shows the keeper that the server is dying.
//!
//! A killed process ends with its last thread, and only then does waitpid(2) return. The companion
//! (module `placement`) has the policy `SCHED_IDLE`. If programs compute on all processors, such a
//! thread may not run for seconds, not even to end, while programs wait for the next server. So the
//! keeper gives each thread of a dying server the ordinary policy and all processors ([`hasten`]).
//!
//! Every other thread ends at once, unless it waits for a device or a processor. The sentinel waits
//! for neither: it has the ordinary policy and sleeps as long as its process lives. The keeper
//! waits for its end with a pidfd of that thread. A pidfd of the first thread would not help: newer
//! kernels report its end with that of the whole process.
//!
//! The server stores the sentinel's thread id in the keeper's memory. The keeper stores there that
//! it hastens the end of servers; if it does not, the server has no companion. If the other side is
//! of a version without this protocol, its word is 0.

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

/// The time after which the threads are hastened again, because a thread may have been about to
/// change its own policy. Doubles each time.
const AGAIN: Duration = Duration::from_millis(5);
const AGAIN_MAX: Duration = Duration::from_secs(1);

/// Starts the sentinel of this server. Returns false if the keeper's version does not watch it.
pub(crate) fn start(area: &Area) -> io::Result<bool> {
    let head: Head = area.read(0);
    if head.hastens == 0 {
        return Ok(false);
    }
    let (send, started) = channel();
    spawn_named("kedge-sentinel", move || {
        // Cannot fail, because the receiver waits for the message.
        let _received = send.send(rustix::thread::gettid());
        loop {
            std::thread::park();
        }
    })?;
    let tid = started.recv().map_err(io::Error::other)?;
    area.store(at!(sentinel), tid.as_raw_nonzero().get() as u64);
    Ok(true)
}

/// The keeper must call this before it starts a server.
pub fn expect(area: &Area) {
    area.store(at!(sentinel), 0);
    area.store(at!(hastens), 1);
}

/// A pidfd of a server's sentinel, which is readable when the server begins to end. `None` if the
/// server has no sentinel.
pub fn watch(area: &Area, server: Pid) -> io::Result<Option<OwnedFd>> {
    let head: Head = area.read(0);
    let Some(sentinel) = i32::try_from(head.sentinel).ok().and_then(Pid::from_raw) else {
        return Ok(None);
    };
    let thread = pidfd_open(sentinel, PidfdFlags::from_bits_retain(libc::PIDFD_THREAD))?;
    // The number comes from the server, so it is checked to be a thread of it.
    Ok(threads(server)?.contains(&sentinel).then_some(thread))
}

/// Waits for the end of a server, and hastens it from the end of the sentinel on. `process` is a
/// pidfd of the server.
pub fn hasten(sentinel: &OwnedFd, process: &OwnedFd, server: Pid) -> io::Result<()> {
    await_end(sentinel, None)?;
    let mut again = AGAIN;
    loop {
        // If the list cannot be read, the process has ended.
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

/// Lets a thread run at once. An error means that the thread has ended or that the keeper lacks the
/// right. In the latter case the server lacks it too, and so has no companion.
fn relieve(thread: Pid) {
    let relieved = process_set().and_then(|set| Ok(sched_setaffinity(Some(thread), &set)?));
    if let Err(e) = relieved.and_then(|()| sys::set_policy(thread, libc::SCHED_OTHER)) {
        tracing::debug!("a thread of a dying server is not hastened: {e}");
    }
}

/// Whether the process or thread of `pidfd` ends within `patience`.
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
