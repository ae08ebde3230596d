//! What a mount says of itself, when no worker is free to say it.
//!
//! The attributes of the root directory ([`crate::control`]) are answered by a worker. When the
//! device hangs, all workers may wait for it, and then nobody would learn why nothing moves. So a
//! thread of its own gives the same answers at a socket. It does no IO, and takes only locks that
//! nobody holds while a device works.
//!
//! The socket is a name in the kernel's abstract namespace, made of the number of the file system,
//! which the mount table shows. It ends with the process. It is seen in this network namespace
//! alone; from elsewhere the attributes are there as ever.
//!
//! # Who is believed
//! Any local user can take a name first. So the caller looks who is at the other end: root, or the
//! user who made the mount, by the mount table. The thread answers root and its own user; others
//! who may enter the mount read the attributes.
//!
//! # Bounds
//! One question at a time, of at most [`QUESTION_MAX`] bytes in one piece, with [`PATIENCE`] for
//! each read and write.

use crate::mountinfo::MountEntry;
use kedge_base::{Clock, SystemClock, spawn_named};
use rustix::net::sockopt::socket_peercred;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

const QUESTION_MAX: usize = 256;
const ANSWER_MAX: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(2);
/// Who asks waits longer: another client may be before it, and say nothing.
const ASK_PATIENCE: Duration = Duration::from_secs(10);
/// After an error of accept(2), such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);
/// A mount that has just ended may have had the same number, and its process the name.
const BIND_TRIES: u32 = 50;
const BIND_PAUSE: Duration = Duration::from_millis(10);

/// The value of an attribute, by its name.
pub(crate) type Teller = Arc<dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync>;

/// The thread that answers. Dropped, it ends.
pub(crate) struct Status {
    listener: UnixListener,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn address(device: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("kedgefs-status-{device}"))
}

fn bind(address: &SocketAddr) -> io::Result<UnixListener> {
    for _ in 1..BIND_TRIES {
        match UnixListener::bind_addr(address) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => SystemClock::default().sleep(BIND_PAUSE),
            bound => return bound,
        }
    }
    UnixListener::bind_addr(address)
}

impl Status {
    /// Answers for the file system with this number (`major:minor`).
    pub(crate) fn start(device: &str, teller: Teller) -> io::Result<Status> {
        let listener = bind(&address(device)?)?;
        let (accepting, ending) = (listener.try_clone()?, Arc::new(AtomicBool::new(false)));
        let ends = ending.clone();
        let thread = spawn_named("kedge-fuse-status", move || serve(&accepting, &ends, &teller))?;
        Ok(Status { listener, ending, thread: Some(thread) })
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        self.ending.store(true, SeqCst);
        let Some(thread) = self.thread.take() else { return };
        match rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both) {
            // A client that is just being answered delays this, for a bounded time.
            Ok(()) if thread.join().is_err() => tracing::error!("the thread for the status panicked"),
            Ok(()) => {}
            Err(e) => tracing::warn!("the socket for the status stays open: {e}"),
        }
    }
}

fn serve(listener: &UnixListener, ending: &AtomicBool, teller: &Teller) {
    loop {
        let accepted = listener.accept();
        if ending.load(SeqCst) {
            return;
        }
        let answered = accepted.and_then(|(stream, _)| answer(stream, teller));
        if let Err(e) = answered {
            tracing::debug!("a question about the status was not answered: {e}");
            // Accepting may fail again at once.
            SystemClock::default().sleep(PAUSE);
        }
    }
}

fn set_patience(stream: &UnixStream, patience: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))
}

/// One question: the name of an attribute.
fn answer(mut stream: UnixStream, teller: &Teller) -> io::Result<()> {
    let peer = socket_peercred(&stream)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Ok(());
    }
    set_patience(&stream, PATIENCE)?;
    let mut name = [0; QUESTION_MAX];
    let len = stream.read(&mut name)?;
    if let Some(value) = teller(&name[..len]) {
        stream.write_all(&value)?;
    }
    Ok(())
}

/// The value of an attribute of a mount's root directory, without the help of the kernel. `None`:
/// it is not to be had so, and the attribute itself must be read.
pub fn ask(mount: &MountEntry, name: &str) -> Option<String> {
    let trusted = |uid: u32| uid == 0 || Some(uid) == mount.owner;
    let asked = || -> io::Result<String> {
        let mut stream = UnixStream::connect_addr(&address(&mount.device)?)?;
        if !trusted(socket_peercred(&stream)?.uid.as_raw()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        set_patience(&stream, ASK_PATIENCE)?;
        stream.write_all(name.as_bytes())?;
        let mut value = String::new();
        stream.take(ANSWER_MAX).read_to_string(&mut value)?;
        Ok(value)
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
