//! The serving process: receives archives, each connection on its own thread.
//!
//! A notification to the kernel waits for kernel locks that system calls hold while they wait for
//! the mount's workers. So these threads hold no lock of the file system while they notify, and no
//! worker waits for them. After the mount has ended, a notification returns immediately.

use super::{Answer, CHUNK, guest};
use crate::import;
use crate::import::sink::{Changed, Live, Sink};
use anyhow::{Context, Result, ensure};
use kedge_base::lock::{Mutex, Rank};
use kedge_fuse::{MountedSession, Notifier};
use kedge_host::serve::Stop;
use kedgefs::{FileKind, FileSystem};
use std::cell::RefCell;
use std::io::{self, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

/// The most concurrent connections; further connections are refused.
const CONNECTIONS_MAX: usize = 8;

struct Beside {
    fs: FileSystem,
    notifier: Notifier,
    /// The number of the file system, `major:minor`.
    device: Option<String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connections: Vec<Connection>,
    stopping: bool,
}

struct Connection {
    stream: UnixStream,
    thread: JoinHandle<()>,
}

/// Offers copies on a mount of `fs`; calling the result ends the service.
pub fn offer(fs: &FileSystem, session: &mut MountedSession) -> Stop {
    let beside = Beside::offer(fs, session);
    Box::new(move || beside.stop())
}

impl Beside {
    /// Offers copies on a mount of `fs`. [`Beside::stop`] must be called before the file system is
    /// closed.
    fn offer(fs: &FileSystem, session: &mut MountedSession) -> Arc<Beside> {
        let (notifier, state) = (session.notifier(), Mutex::new(Rank::Leaf, State::default()));
        let device = session.mount_point().device.clone();
        let beside = Arc::new(Beside { fs: fs.clone(), notifier, device, state });
        let offered = beside.clone();
        session.offer(Arc::new(move |stream| offered.start(stream)));
        beside
    }

    fn start(self: &Arc<Beside>, stream: UnixStream) {
        let mut state = self.state.lock();
        state.connections.retain(|c| !c.thread.is_finished());
        let refused = if state.stopping {
            "the mount is ending".into()
        } else if state.connections.len() >= CONNECTIONS_MAX {
            "too many copies at a time".into()
        } else {
            let beside = self.clone();
            let started = stream
                .try_clone()
                .and_then(|mine| kedge_base::spawn_named("kedge-beside", move || beside.serve(&mine)));
            match started {
                Ok(thread) => return state.connections.push(Connection { stream, thread }),
                Err(e) => format!("start a thread: {e}"),
            }
        };
        drop(state);
        answer(&stream, Some(refused));
    }

    fn serve(&self, stream: &UnixStream) {
        let taken = catch_unwind(AssertUnwindSafe(|| self.take(stream)));
        let error = match taken {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(format!("{e:#}")),
            Err(_) => {
                // As in a worker of the mount, a panic means a broken invariant, so nothing more
                // may be written.
                tracing::error!("panic in a copy beside the kernel: shutting the file system down");
                if let Err(e) = self.fs.shutdown(false) {
                    tracing::error!("shutdown after a panic failed: {e}");
                }
                Some("the serving process failed; the file system is shut down".into())
            }
        };
        answer(stream, error);
    }

    fn take(&self, stream: &UnixStream) -> Result<()> {
        let device = self.device.as_deref().context("the number of the file system is not known")?;
        let guest = guest::admit(stream, device)?;
        let attr = self.fs.getattr(guest.top).context("the directory")?;
        ensure!(attr.kind == FileKind::Directory, "inode {} is no directory", guest.top);
        say(stream, None).context("accept the client")?;
        let reader = BufReader::with_capacity(CHUNK, stream);
        let unknown = RefCell::new(None);
        let changed = |what: Changed<'_>| {
            let sent = match what {
                Changed::Name(dir, name) => self.notifier.name_changed(dir, name),
                Changed::Inode(ino) => self.notifier.inode_changed(ino),
            };
            if let Err(e) = sent {
                unknown.borrow_mut().get_or_insert(e);
            }
        };
        let _changing = self.notifier.changing();
        let live = Live { changed: &changed, only: guest.only, nosuid: guest.nosuid, nodev: guest.nodev };
        let mut sink = Sink::live(&self.fs, guest.top, live);
        let filled = import::fill_from_tar(reader, &mut sink);
        // Finish after an error too, so that the directories made so far get their times.
        let finished = sink.finish();
        filled.and(finished)?;
        self.fs.sync().context("make it durable")?;
        match unknown.into_inner() {
            None => Ok(()),
            Some(e) => Err(e).context("all files are copied, but the kernel may still show the old files"),
        }
    }

    /// Ends all connections, interrupting copies in progress, and joins their threads.
    fn stop(&self) {
        let connections = {
            let mut state = self.state.lock();
            state.stopping = true;
            std::mem::take(&mut state.connections)
        };
        for connection in &connections {
            // The connection's thread sees the end of the archive and still replies. An error means
            // that the connection has ended already.
            let _ = connection.stream.shutdown(Shutdown::Read);
        }
        connections.into_iter().for_each(|connection| join(connection.thread));
    }
}

fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("a thread for changes beside the kernel panicked");
    }
}

/// Sends the reply. The rest of the archive is not read, and a client that has disconnected needs
/// no reply.
fn answer(stream: &UnixStream, error: Option<String>) {
    let _ = stream.shutdown(Shutdown::Read);
    if let Err(e) = say(stream, error) {
        tracing::debug!("the client of a copy beside the kernel is gone: {e}");
    }
    let _ = stream.shutdown(Shutdown::Write);
}

fn say(mut stream: &UnixStream, error: Option<String>) -> io::Result<()> {
    let text = serde_json::to_string(&Answer { error })?;
    stream.write_all(format!("{text}\n").as_bytes())
}
