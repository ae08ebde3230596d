//! The serving process: receives archives and requests, each connection on its own thread.
//!
//! A notification to the kernel waits for kernel locks that system calls hold while they wait for
//! the mount's workers. So these threads hold no lock of the file system while they notify, and no
//! worker waits for them. After the mount has ended, a notification returns immediately.

use super::guest::{Admitted, Guest};
use super::requests::Work;
use super::{Answer, CHUNK, guest};
use crate::import;
use crate::import::sink::{Changed, Live, Sink};
use anyhow::{Context, Result, bail, ensure};
use kedge_base::JoinHandle;
use kedge_base::lock::{Mutex, Rank};
use kedge_fuse::{MountedSession, Notifier};
use kedge_host::serve::Stop;
use kedgefs::{FileKind, FileSystem, Ino};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{self, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The most concurrent connections; further connections are refused.
const CONNECTIONS_MAX: usize = 8;

struct Beside {
    fs: FileSystem,
    notifier: Notifier,
    /// The device number of the file system: `major:minor`.
    device: Option<String>,
    state: Mutex<State>,
    /// A copy of the flag in `state` that can be read without its lock.
    stopping: AtomicBool,
}

#[derive(Default)]
struct State {
    connections: Vec<Connection>,
    stopping: bool,
    /// The trees being received, by directory and name. Two clients that receive the same tree
    /// would delete each other's.
    receiving: BTreeSet<(Ino, Vec<u8>)>,
}

struct Connection {
    stream: UnixStream,
    thread: JoinHandle<()>,
    /// Whether the thread sends more than a reply. Then it may wait for a client that does not
    /// read.
    sends: Arc<AtomicBool>,
}

/// Marks a tree as being received; dropping it removes the mark.
struct OnlyReceiver<'a>(&'a Beside, (Ino, Vec<u8>));

impl Drop for OnlyReceiver<'_> {
    fn drop(&mut self) {
        self.0.state.lock().receiving.remove(&self.1);
    }
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
        let beside =
            Arc::new(Beside { fs: fs.clone(), notifier, device, state, stopping: AtomicBool::new(false) });
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
            "too many copies and transfers at a time".into()
        } else {
            let (beside, sends) = (self.clone(), Arc::new(AtomicBool::new(false)));
            let will_send = sends.clone();
            let started = stream.try_clone().and_then(|mine| {
                kedge_base::spawn_named("kedge-beside", move || beside.serve(&mine, &will_send))
            });
            match started {
                Ok(thread) => return state.connections.push(Connection { stream, thread, sends }),
                Err(e) => format!("start a thread: {e}"),
            }
        };
        drop(state);
        answer(&stream, &Answer::failed(refused));
    }

    fn serve(&self, stream: &UnixStream, sends: &AtomicBool) {
        let taken = catch_unwind(AssertUnwindSafe(|| self.take(stream, sends)));
        let reply = match taken {
            Ok(Ok(reply)) => reply,
            Ok(Err(e)) => Answer::failed(format!("{e:#}")),
            Err(_) => {
                // As in a worker of the mount, a panic means a broken invariant, so nothing more
                // may be written.
                tracing::error!("panic in a copy beside the kernel: shutting the file system down");
                if let Err(e) = self.fs.shutdown(false) {
                    tracing::error!("shutdown after a panic failed: {e}");
                }
                Answer::failed("the serving process failed; the file system is shut down".into())
            }
        };
        answer(stream, &reply);
    }

    fn take(&self, stream: &UnixStream, sends: &AtomicBool) -> Result<Answer> {
        let device = self.device.as_deref().context("the number of the file system is not known")?;
        let admitted = guest::admit(stream, device)?;
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
        let go_on = || match self.stopping.load(SeqCst) {
            true => bail!("the mount is ending"),
            false => Ok(()),
        };
        let work = Work { fs: &self.fs, stream, go_on: &go_on, changed: &changed };
        let accept = || say(stream, &Answer::default()).context("accept the client");
        let done = match admitted {
            Admitted::Copy(mut guest) => {
                guest.top = self.notifier.inode(guest.top);
                self.copy(stream, &guest, &changed).map(|()| Answer::default())?
            }
            Admitted::Read(dirs) => {
                let dirs: Vec<Ino> = dirs.into_iter().map(|dir| self.notifier.inode(dir)).collect();
                self.will_send(sends)?;
                accept()?;
                work.read(&dirs)?
            }
            Admitted::Write(dir) => {
                let dir = self.notifier.inode(dir);
                accept()?;
                let _changing = self.notifier.changing();
                work.write(dir, |name| self.only_receiver(dir, name))?
            }
        };
        match unknown.into_inner() {
            None => Ok(done),
            Some(e) => Err(e).context("it is done, but the kernel may still show the old files"),
        }
    }

    /// Notes that the thread will send more than a reply.
    fn will_send(&self, sends: &AtomicBool) -> Result<()> {
        let state = self.state.lock();
        ensure!(!state.stopping, "the mount is ending");
        sends.store(true, SeqCst);
        Ok(())
    }

    fn only_receiver(&self, dir: Ino, name: &[u8]) -> Result<OnlyReceiver<'_>> {
        let tree = (dir, name.to_vec());
        let is_first = self.state.lock().receiving.insert(tree.clone());
        ensure!(is_first, "{} is being received already", String::from_utf8_lossy(name));
        Ok(OnlyReceiver(self, tree))
    }

    fn copy(&self, stream: &UnixStream, guest: &Guest, changed: &dyn Fn(Changed<'_>)) -> Result<()> {
        let attr = self.fs.getattr(guest.top).context("the directory")?;
        ensure!(attr.kind == FileKind::Directory, "inode {} is no directory", guest.top);
        say(stream, &Answer::default()).context("accept the client")?;
        let reader = BufReader::with_capacity(CHUNK, stream);
        let _changing = self.notifier.changing();
        let live = Live { changed, only: guest.only, nosuid: guest.nosuid, nodev: guest.nodev };
        let mut sink = Sink::live(&self.fs, guest.top, live);
        let filled = import::fill_from_tar(reader, &mut sink);
        // Finish after an error too, so that the directories made so far get their times.
        let finished = sink.finish();
        filled.and(finished)?;
        self.fs.sync().context("make it durable")
    }

    /// Ends all connections, interrupting copies in progress, and joins their threads.
    fn stop(&self) {
        let connections = {
            let mut state = self.state.lock();
            state.stopping = true;
            self.stopping.store(true, SeqCst);
            std::mem::take(&mut state.connections)
        };
        for connection in &connections {
            // The connection's thread sees the end of the archive and still replies, unless it may
            // be waiting for a client that does not read. An error means that the connection has
            // ended already.
            let how = if connection.sends.load(SeqCst) { Shutdown::Both } else { Shutdown::Read };
            let _ = connection.stream.shutdown(how);
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
fn answer(stream: &UnixStream, reply: &Answer) {
    let _ = stream.shutdown(Shutdown::Read);
    if let Err(e) = say(stream, reply) {
        tracing::debug!("the client of a copy beside the kernel is gone: {e}");
    }
    let _ = stream.shutdown(Shutdown::Write);
}

fn say(mut stream: &UnixStream, reply: &Answer) -> io::Result<()> {
    let text = serde_json::to_string(reply)?;
    stream.write_all(format!("{text}\n").as_bytes())
}
