//! A process that sends notifications to the kernel for which the kernel may wait.
//!
//! # Why another process
//! A thread that makes the kernel invalidate pages waits in write(2) until the dirty pages are
//! written, and so for replies of its own server. The wait is not interruptible. If the server is
//! killed then, its other threads end and this one stays. While the thread is in write(2),
//! `/dev/fuse` is not closed, so the kernel does not end the connection, and no reply ever arrives:
//! the process stays, programs wait forever, and a keeper does not notice the death. A notification
//! that drops a name waits in the same way for the lock of a directory.
//!
//! So the server asks another process, the *courier*, to send such notifications. The server's own
//! threads wait for a socket, which a kill interrupts, so a killed server ends at once. The courier
//! has its own channel to the kernel, and finds by the end of the socket that its server has ended.
//! If one of its threads waits in the kernel then, there are two cases:
//! - With a keeper, the next server writes the pages, and the threads return.
//! - Without a keeper, or after the keeper's end, the courier receives the requests itself and
//!   replies ENOTCONN to each, until its threads have returned. Then it ends. With its channel the
//!   kernel ends the connection.
//!
//! If server and courier are killed together while a thread of the courier waits, the connection
//! stays. Then `umount -f`, or `abort` of fusectl, ends it.
//!
//! # When there is a courier
//! It is started for the first notification that may wait, so most mounts have none. If none can be
//! started (no `/proc`, no more processes, a server in another program than `kedge`), the server
//! sends all notifications itself.

mod process;

pub use process::run;

use crate::abi;
use crate::sys;
use kedge_base::spawn_named;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair};
use rustix::process::{PidfdFlags, getppid, pidfd_open};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The argument after the courier's subcommand, which means that a keeper may replace the server.
pub const KEPT: &str = "--kept";

/// Limit for the bytes of a message: a name with the headers before it.
const MESSAGE_MAX: usize = 1024;
/// Attempts to pass a notification to a courier. The first courier may have been killed by a user.
const ATTEMPTS: u32 = 2;

/// The header of a notification. The body follows.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Ask {
    number: u64,
    code: i32,
    padding: u32,
}

/// The result of write(2): 0 or an errno.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Sent {
    number: u64,
    errno: i32,
    padding: u32,
}

/// Whether the kernel may wait for this server before the notification returns.
fn may_wait(code: i32, body: &[u8]) -> bool {
    match code {
        abi::NOTIFY_INVAL_ENTRY => true,
        // A negative offset invalidates only the attributes, without waiting.
        abi::NOTIFY_INVAL_INODE => {
            abi::InvalInodeOut::read_from_prefix(body).is_ok_and(|(asked, _)| asked.off >= 0)
        }
        _ => false,
    }
}

/// The courier of a connection, from the server's point of view.
pub(crate) struct Courier {
    /// The subcommand with which this program acts as a courier.
    word: &'static str,
    kept: bool,
    state: Mutex<State>,
}

enum State {
    None,
    Runs(Arc<Link>),
    Impossible,
}

impl Courier {
    pub(crate) fn new(word: &'static str, kept: bool) -> Courier {
        Courier { word, kept, state: Mutex::new(State::None) }
    }

    /// Lets the courier send a notification. Returns `None` if the caller must send it: because it
    /// returns soon, or because there is no courier.
    pub(crate) fn notify(&self, connection: &OwnedFd, code: i32, body: &[u8]) -> Option<io::Result<()>> {
        if !may_wait(code, body) || size_of::<Ask>() + body.len() > MESSAGE_MAX {
            return None;
        }
        for _ in 0..ATTEMPTS {
            let link = self.link(connection)?;
            if let Some(sent) = link.notify(code, body) {
                return Some(sent);
            }
            let mut state = self.state.lock();
            if matches!(&*state, State::Runs(lost) if Arc::ptr_eq(lost, &link)) {
                *state = State::None;
            }
        }
        tracing::warn!("the process for notifications ends at once; the server sends them itself");
        *self.state.lock() = State::Impossible;
        None
    }

    fn link(&self, connection: &OwnedFd) -> Option<Arc<Link>> {
        let mut state = self.state.lock();
        match &*state {
            State::Impossible => return None,
            State::Runs(link) => return Some(link.clone()),
            State::None => {}
        }
        match self.start(connection) {
            Ok(link) => {
                *state = State::Runs(link.clone());
                Some(link)
            }
            Err(e) => {
                tracing::warn!("no process for notifications, so the server sends them itself: {e}");
                *state = State::Impossible;
                None
            }
        }
    }

    fn start(&self, connection: &OwnedFd) -> io::Result<Arc<Link>> {
        // A user without access to /dev/fuse cannot open a channel. Then courier and server share
        // one.
        let channel = sys::clone_fuse_channel(connection).or_else(|_| connection.try_clone())?;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // A server with a keeper dies with it, so the parent is the keeper.
        let keeper = match (self.kept, getppid()) {
            (true, Some(parent)) => Stdio::from(pidfd_open(parent, PidfdFlags::empty())?),
            _ => Stdio::null(),
        };
        // This path runs the program of this process even if its file has been replaced or deleted.
        let mut child = Command::new("/proc/self/exe")
            .arg0("kedge")
            .arg(self.word)
            .args(self.kept.then_some(KEPT))
            .stdin(theirs)
            .stdout(channel)
            .stderr(keeper)
            .spawn()?;
        spawn_named("kedge-courier-end", move || {
            if let Err(e) = child.wait() {
                tracing::debug!("wait for the process for notifications: {e}");
            }
        })?;
        let (results, changed) = (Mutex::default(), Condvar::new());
        Ok(Arc::new(Link { socket: ours, results, changed }))
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        if let State::Runs(link) = &*self.state.lock() {
            link.end();
        }
    }
}

/// The connection to a running courier.
struct Link {
    socket: OwnedFd,
    results: Mutex<Results>,
    changed: Condvar,
}

/// The results that the courier has returned, for the threads that wait.
#[derive(Default)]
struct Results {
    /// The number of the last notification sent.
    number: u64,
    errnos: BTreeMap<u64, i32>,
    /// Whether one of the threads is reading the next result, for all of them.
    is_read: bool,
    ended: bool,
}

impl Link {
    /// Returns `None` if the courier has ended. It is then unknown whether it has sent the
    /// notification, which may be sent twice.
    fn notify(&self, code: i32, body: &[u8]) -> Option<io::Result<()>> {
        let number = {
            let mut results = self.results.lock();
            results.number += 1;
            results.number
        };
        let message = [Ask { number, code, padding: 0 }.as_bytes(), body].concat();
        while let Err(e) = send(&self.socket, &message, SendFlags::NOSIGNAL) {
            if e != rustix::io::Errno::INTR {
                tracing::debug!("the process for notifications has ended: {e}");
                self.end();
                return None;
            }
        }
        match self.result_of(number)? {
            0 => Some(Ok(())),
            errno => Some(Err(io::Error::from_raw_os_error(errno))),
        }
    }

    fn result_of(&self, number: u64) -> Option<i32> {
        let mut results = self.results.lock();
        loop {
            if let Some(errno) = results.errnos.remove(&number) {
                return Some(errno);
            }
            if results.ended {
                return None;
            }
            if results.is_read {
                self.changed.wait(&mut results);
                continue;
            }
            results.is_read = true;
            let read = MutexGuard::unlocked(&mut results, || self.read());
            results.is_read = false;
            match read {
                Some(sent) => drop(results.errnos.insert(sent.number, sent.errno)),
                None => results.ended = true,
            }
            self.changed.notify_all();
        }
    }

    /// Reads one result; `None` if the courier has ended.
    fn read(&self) -> Option<Sent> {
        let mut buf = [0; size_of::<Sent>()];
        loop {
            match rustix::io::read(&self.socket, &mut buf) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(len) if len == buf.len() => return Sent::read_from_bytes(&buf).ok(),
                Ok(_) | Err(_) => return None,
            }
        }
    }

    fn end(&self) {
        // Fails only if the other end is already closed.
        if let Err(e) = shutdown(&self.socket, Shutdown::Both) {
            tracing::debug!("the process for notifications has ended: {e}");
        }
    }
}

/// Whether `fd` has one of `events` within `wait`; without `wait`, waits as long as necessary.
fn is_there(fd: &OwnedFd, events: PollFlags, wait: Option<Timespec>) -> bool {
    loop {
        match poll(&mut [PollFd::new(fd, events)], wait.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}

#[cfg(test)]
#[path = "../courier_tests.rs"]
mod tests;
