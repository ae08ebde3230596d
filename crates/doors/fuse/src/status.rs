//! What a mount says of itself, when no worker is free to say it; and where its process is reached
//! beside the kernel.
//!
//! The attributes of the root directory ([`crate::control`]) are answered by a worker. When the
//! device hangs, all workers may wait for it, and then nobody would learn why nothing moves. So a
//! thread of its own gives the same answers at a socket. It does no IO, and takes only locks that
//! nobody holds while a device works.
//!
//! The socket has the number of the file system, which the mount table shows, in a directory that
//! only the user who serves the mount can enter ([`crate::private`]). Others who may enter the
//! mount read the attributes.
//!
//! A message that begins with [`VISIT`] is no question: the connection, with the message still in
//! it, goes to whoever was offered for visitors.
//!
//! # Bounds
//! One question at a time, of at most [`QUESTION_MAX`] bytes in one piece, with [`PATIENCE`] for
//! each read and write. Asking takes at most [`ASK_PATIENCE`] in all, whatever the other end does;
//! after it the attributes are read.

use crate::mountinfo::MountEntry;
use crate::private::{Bound, PrivateDir};
use kedge_base::{Clock, SystemClock, spawn_named};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvFlags, recv};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

const QUESTION_MAX: usize = 256;
const ANSWER_MAX: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(1);
/// Another client may be before this one, and say nothing.
const ASK_PATIENCE: Duration = Duration::from_secs(2);
/// After an error of accept(2), such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// How a visitor's first message begins.
pub const VISIT: &[u8] = b"kedge-";

/// The value of an attribute, by its name.
pub(crate) type Teller = Arc<dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync>;

/// Takes a connection whose first message begins with [`VISIT`]. Must not wait for anything.
pub type Visits = Arc<dyn Fn(UnixStream) + Send + Sync>;

/// The thread that answers. Dropped, it ends.
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
    /// Answers for the file system with this number (`major:minor`).
    pub(crate) fn start(device: &str, teller: Teller, visits: Option<Visits>) -> io::Result<Status> {
        let bound = PrivateDir::make()?.listen(&socket_name(device))?;
        let (accepting, ending) = (bound.listener().try_clone()?, Arc::new(AtomicBool::new(false)));
        let ends = ending.clone();
        let thread = spawn_named("kedge-fuse-status", move || {
            loop {
                let accepted = accepting.accept();
                if ends.load(SeqCst) {
                    return;
                }
                let answered = accepted.and_then(|(stream, _)| answer(stream, &teller, visits.as_ref()));
                if let Err(e) = answered {
                    tracing::debug!("a question about the status was not answered: {e}");
                    // Accepting may fail again at once.
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
            // A client that is just being answered delays this, for a bounded time.
            Ok(()) if thread.join().is_err() => tracing::error!("the thread for the status panicked"),
            Ok(()) => {}
            Err(e) => tracing::warn!("the socket for the status stays open: {e}"),
        }
    }
}

/// One question: the name of an attribute.
fn answer(mut stream: UnixStream, teller: &Teller, visits: Option<&Visits>) -> io::Result<()> {
    let peer = socket_peercred(&stream)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Ok(());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut name = [0; QUESTION_MAX];
    // A descriptor that comes with it stays where it is.
    let (len, _) = recv(&stream, &mut name[..], RecvFlags::PEEK)?;
    if let Some(visits) = visits.filter(|_| name[..len].starts_with(VISIT)) {
        visits(stream);
        return Ok(());
    }
    // What is left unread resets the connection, and the answer is lost.
    let len = stream.read(&mut name)?;
    if let Some(value) = teller(&name[..len]) {
        stream.write_all(&value)?;
    }
    Ok(())
}

/// Connects to the process that serves a mount. The caller finds out who is there.
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

/// The value of an attribute of a mount's root directory, without the help of the kernel. `None`:
/// it is not to be had so, and the attribute itself must be read.
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
