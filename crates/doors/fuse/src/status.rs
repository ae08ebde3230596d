//! Reports the state of a mount at a socket, even when no worker is free. Programs also use the
//! socket to reach the serving process without the kernel.
//!
//! A worker returns the attributes of the root directory ([`crate::control`]). If the device hangs,
//! all workers may wait for it, and then no user could find out why. So a dedicated thread returns
//! the same attributes at a socket. The thread does no IO, and takes only locks that no thread
//! holds during device IO.
//!
//! The socket's name contains the device number of the file system, which the mount table shows.
//! The socket is in a directory that only the user who serves the mount can enter
//! ([`crate::private`]). Other users who may enter the mount read the attributes.
//!
//! A message that begins with [`VISIT`] is not a query: the connection is passed to the receiver of
//! visits, with the message unread.
//!
//! # Bounds
//! The thread serves one query at a time, of at most [`QUESTION_MAX`] bytes in one piece, with a
//! limit of [`PATIENCE`] for each read and write. A client waits at most [`ASK_PATIENCE`] in total,
//! whatever the other end does, and then reads the attributes through the kernel.

use crate::mountinfo::MountEntry;
use crate::private::{Bound, PrivateDir};
use kedge_base::JoinHandle;
use kedge_base::{Clock, SystemClock, spawn_named};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvFlags, recv};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const QUESTION_MAX: usize = 256;
const ANSWER_MAX: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(1);
/// The time limit of a query. It is needed because another client may be first and send nothing.
const ASK_PATIENCE: Duration = Duration::from_secs(2);
/// The pause after an error of accept(2), such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// The beginning of a visit's first message.
pub const VISIT: &[u8] = b"kedge-";

/// Returns the value of the attribute with this name.
pub(crate) type ReadState = Arc<dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync>;

/// Receives a connection whose first message begins with [`VISIT`]. Must not wait.
pub type Visits = Arc<dyn Fn(UnixStream) + Send + Sync>;

/// The thread that serves queries. Dropping this ends the thread.
pub(crate) struct Status {
    bound: Bound,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The name of the socket of the file system with this number (`major:minor`).
fn socket_name(device: &str) -> String {
    format!("mount-{device}")
}

impl Status {
    /// Starts the thread for the file system with this device number (`major:minor`).
    pub(crate) fn start(device: &str, read: ReadState, visits: Option<Visits>) -> io::Result<Status> {
        let bound = PrivateDir::make()?.listen(&socket_name(device))?;
        let (accepting, ending) = (bound.listener().try_clone()?, Arc::new(AtomicBool::new(false)));
        let ends = ending.clone();
        let thread = spawn_named("kedge-fuse-status", move || {
            loop {
                let accepted = accepting.accept();
                if ends.load(SeqCst) {
                    return;
                }
                let answered = accepted.and_then(|(stream, _)| answer(stream, &read, visits.as_ref()));
                if let Err(e) = answered {
                    tracing::debug!("a question about the status was not answered: {e}");
                    // The next accept may fail at once as well.
                    SystemClock::default().sleep(PAUSE);
                }
            }
        })?;
        Ok(Status { bound, ending, thread: Some(thread) })
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        self.ending.store(true, SeqCst);
        let Some(thread) = self.thread.take() else { return };
        match rustix::net::shutdown(self.bound.listener(), rustix::net::Shutdown::Both) {
            // A client that is being served delays the join, for a bounded time.
            Ok(()) if thread.join().is_err() => tracing::error!("the thread for the status panicked"),
            Ok(()) => {}
            Err(e) => tracing::warn!("the socket for the status stays open: {e}"),
        }
    }
}

/// Serves one query: the name of an attribute.
fn answer(mut stream: UnixStream, read: &ReadState, visits: Option<&Visits>) -> io::Result<()> {
    let peer = socket_peercred(&stream)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Ok(());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut name = [0; QUESTION_MAX];
    // PEEK leaves the message and a descriptor sent with it in the socket for the receiver of
    // visits.
    let (len, _) = recv(&stream, &mut name[..], RecvFlags::PEEK)?;
    if let Some(visits) = visits.filter(|_| name[..len].starts_with(VISIT)) {
        visits(stream);
        return Ok(());
    }
    // The message must be read: unread bytes would reset the connection at its close, and the reply
    // would be lost.
    let len = stream.read(&mut name)?;
    if let Some(value) = read(&name[..len]) {
        stream.write_all(&value)?;
    }
    Ok(())
}

/// Connects to the socket of a mount. The caller must check which process listens there.
pub fn visit(mount: &MountEntry, patience: Duration) -> io::Result<UnixStream> {
    let name = socket_name(&mount.device);
    let mut tried = Err(io::ErrorKind::NotFound.into());
    for dir in PrivateDir::all().filter(|dir| dir.has(&name)) {
        tried = dir.connect(&name, patience);
        if tried.is_ok() {
            break;
        }
    }
    tried
}

/// Returns the value of an attribute of a mount's root directory, read from the status socket.
/// `None` if that fails; the caller must then read the attribute through the kernel.
pub fn ask(mount: &MountEntry, name: &str) -> Option<String> {
    let clock = SystemClock::default();
    let begun = clock.monotonic();
    let asked = || -> io::Result<String> {
        let mut stream = visit(mount, ASK_PATIENCE)?;
        let left = || match ASK_PATIENCE.saturating_sub(clock.since(begun)) {
            Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
            left => Ok(left),
        };
        stream.set_write_timeout(Some(left()?))?;
        stream.write_all(name.as_bytes())?;
        let mut value = Vec::new();
        let mut part = [0; 16 << 10];
        loop {
            stream.set_read_timeout(Some(left()?))?;
            match stream.read(&mut part)? {
                0 => break,
                n if value.len() + n > ANSWER_MAX => return Err(io::ErrorKind::InvalidData.into()),
                n => value.extend_from_slice(&part[..n]),
            }
        }
        String::from_utf8(value).map_err(|_| io::ErrorKind::InvalidData.into())
    };
    match asked() {
        Ok(value) if !value.is_empty() => Some(value),
        Ok(_) => None,
        Err(e) => {
            tracing::debug!("{} is asked through the kernel: {e}", mount.dir.display());
            None
        }
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
