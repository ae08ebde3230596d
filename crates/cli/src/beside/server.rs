//! The serving process: takes archives at a socket, each connection on a thread of its own.
//!
//! These threads wait for locks of the kernel when they notify it, which are held by calls that
//! wait for the workers of the mount. So they hold nothing of the file system meanwhile, and no
//! worker waits for them. When the mount has ended, the kernel answers at once.

use super::{Answer, CHUNK, HELLO, LINE_MAX};
use crate::import;
use crate::import::sink::{Changed, Live, Sink};
use anyhow::{Context, Result, bail, ensure};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{Clock, SystemClock};
use kedge_fuse::{MountedSession, Notifier};
use kedgefs::{FileKind, FileSystem, Ino, Owner};
use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections at a time. More are refused.
const CONNECTIONS_MAX: usize = 8;
/// After an error of accept(2), such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

pub struct Beside {
    fs: FileSystem,
    notifier: Notifier,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// There once somebody asked for it.
    listening: Option<Listening>,
    connections: Vec<Connection>,
    stopping: bool,
}

struct Listening {
    name: String,
    listener: UnixListener,
    thread: JoinHandle<()>,
}

struct Connection {
    stream: UnixStream,
    thread: JoinHandle<()>,
}

impl Beside {
    /// Offers it on a mount of `fs`. [`Beside::stop`] must come before the file system is closed.
    pub fn offer(fs: &FileSystem, session: &mut MountedSession) -> Arc<Beside> {
        let (notifier, state) = (session.notifier(), Mutex::new(Rank::Leaf, State::default()));
        let beside = Arc::new(Beside { fs: fs.clone(), notifier, state });
        let offered = beside.clone();
        session.offer(Arc::new(move || offered.address()));
        beside
    }

    /// The name of the socket. Listens there from the first call on.
    fn address(self: &Arc<Beside>) -> io::Result<String> {
        let mut state = self.state.lock();
        if state.stopping {
            return Err(rustix::io::Errno::SHUTDOWN.into());
        }
        if let Some(listening) = &state.listening {
            return Ok(listening.name.clone());
        }
        #[expect(clippy::disallowed_methods, reason = "no image and no test depends on the name")]
        let name = format!("kedgefs-{}", uuid::Uuid::new_v4().simple());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let (accepting, beside) = (listener.try_clone()?, self.clone());
        let thread = kedge_base::spawn_named("kedge-beside", move || beside.accept(&accepting))?;
        state.listening = Some(Listening { name: name.clone(), listener, thread });
        Ok(name)
    }

    fn accept(self: &Arc<Beside>, listener: &UnixListener) {
        loop {
            match listener.accept() {
                Ok((stream, _)) => self.start(stream),
                Err(_) if self.state.lock().stopping => return,
                Err(e) => {
                    tracing::warn!("no connection for changes beside the kernel: {e}");
                    SystemClock::default().sleep(PAUSE);
                }
            }
        }
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
                // As in a worker of the mount: an invariant is broken, nothing may be written.
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
        let only = check_peer(stream)?;
        let mut reader = BufReader::with_capacity(CHUNK, stream);
        let top = read_hello(&mut reader)?;
        let attr = self.fs.getattr(top).context("the directory")?;
        ensure!(attr.kind == FileKind::Directory, "inode {top} is no directory");
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
        let mut sink = Sink::live(&self.fs, top, Live { changed: &changed, only });
        let filled = import::fill_from_tar(reader, &mut sink);
        // Also behind an error: directories that are there get the times that they were told.
        let finished = sink.finish();
        filled.and(finished)?;
        self.fs.sync().context("make it durable")?;
        match unknown.into_inner() {
            None => Ok(()),
            Some(e) => Err(e).context("all is copied, but the kernel may still show what was there before"),
        }
    }

    /// Ends all connections, and what they do: in the middle, if need be. Nothing of it runs
    /// afterwards.
    pub fn stop(&self) {
        let (listening, connections) = {
            let mut state = self.state.lock();
            state.stopping = true;
            (state.listening.take(), std::mem::take(&mut state.connections))
        };
        for connection in &connections {
            // The archive ends for it here; it still answers. It has ended by itself otherwise.
            let _ = connection.stream.shutdown(Shutdown::Read);
        }
        if let Some(Listening { listener, thread, .. }) = listening {
            match rustix::net::shutdown(&listener, rustix::net::Shutdown::Both) {
                Ok(()) => join(thread),
                // It refuses all that connect from here on.
                Err(e) => tracing::warn!("the socket for changes beside the kernel stays open: {e}"),
            }
        }
        connections.into_iter().for_each(|connection| join(connection.thread));
    }
}

fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("a thread for changes beside the kernel panicked");
    }
}

/// Whether the other end may change the file system beside the kernel. The answer is whose the
/// files are, unless it is root.
fn check_peer(stream: &UnixStream) -> Result<Option<Owner>> {
    let peer = rustix::net::sockopt::socket_peercred(stream).context("ask who is at the other end")?;
    let (uid, gid) = (peer.uid.as_raw(), peer.gid.as_raw());
    if peer.uid.is_root() {
        return Ok(None);
    }
    ensure!(peer.uid == rustix::process::geteuid(), "uid {uid} does not serve this mount");
    Ok(Some(Owner { uid, gid }))
}

fn read_hello(reader: &mut impl BufRead) -> Result<Ino> {
    let mut line = String::new();
    reader.take(LINE_MAX).read_line(&mut line).context("read the first line")?;
    let ino = line.strip_suffix('\n').and_then(|line| line.strip_prefix(HELLO)?.strip_prefix(' '));
    match ino.and_then(|ino| ino.parse().ok()) {
        Some(ino) => Ok(Ino(ino)),
        None => bail!("the program speaks another version of the protocol: {:?}", line.trim_end()),
    }
}

/// The rest of an archive is not read. A client that is gone needs no answer.
fn answer(mut stream: &UnixStream, error: Option<String>) {
    let _ = stream.shutdown(Shutdown::Read);
    let text = serde_json::to_string(&Answer { error }).unwrap_or_default() + "\n";
    if let Err(e) = stream.write_all(text.as_bytes()) {
        tracing::debug!("the client of a copy beside the kernel is gone: {e}");
    }
    let _ = stream.shutdown(Shutdown::Write);
}
