//! Accepts connections and executes their requests until the caller stops the server.
//!
//! Threads: one accepts, two serve each connection ([`crate::connection`]), and a fixed number of
//! workers execute requests of all connections. A worker may wait for the log, so one force serves
//! at most as many requests as there are workers.

use crate::connection::Connection;
use crate::export::{OnChange, Rights};
use crate::limits::Limits;
use crate::program::Procedures;
use crate::record::{Records, TICK, framed};
use kedge_base::JoinHandle;
use kedge_base::{Clock, SystemClock, panic_words, spawn_named};
use kedgefs::FileSystem;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec as PollTime, poll};
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often the accepting thread checks whether it must stop.
const ACCEPT_TICK: PollTime = PollTime { tv_sec: 0, tv_nsec: 100_000_000 };

/// A request that no worker has executed yet.
struct Job {
    connection: Arc<Connection>,
    message: Vec<u8>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

struct Shared {
    procedures: Procedures,
    limits: Limits,
    clock: SystemClock,
    queue: Mutex<Queue>,
    changed: Condvar,
    stopping: AtomicBool,
}

/// A running server.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: JoinHandle<()>,
    workers: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves the file system to the clients of the listener. Nothing else may change it.
    pub fn start(
        fs: FileSystem,
        listener: TcpListener,
        rights: Rights,
        limits: Limits,
    ) -> io::Result<Server> {
        Server::start_with(fs, listener, rights, limits, None)
    }

    /// [`Server::start`] where another door changes the file system at the same time. `on_change`
    /// informs that door of the changes of clients.
    pub fn start_beside(
        fs: FileSystem,
        listener: TcpListener,
        rights: Rights,
        limits: Limits,
        on_change: OnChange,
    ) -> io::Result<Server> {
        Server::start_with(fs, listener, rights, limits, Some(on_change))
    }

    fn start_with(
        fs: FileSystem,
        listener: TcpListener,
        rights: Rights,
        limits: Limits,
        on_change: Option<OnChange>,
    ) -> io::Result<Server> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared {
            procedures: Procedures::beside(fs, rights, address.port(), on_change)?,
            limits,
            clock: SystemClock::default(),
            queue: Mutex::default(),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
        });
        let workers = (0..limits.workers).map(|_| {
            let shared = shared.clone();
            spawn_named("nfs-worker", move || shared.work())
        });
        let workers = workers.collect::<io::Result<_>>()?;
        let accepting = shared.clone();
        let acceptor = spawn_named("nfs-accept", move || accepting.accept(&listener))?;
        Ok(Server { shared, address, acceptor, workers })
    }

    /// The address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting and reading, replies to the requests that were read, and returns when no
    /// thread uses the file system any more. The caller then closes the file system.
    pub fn stop(self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        join(self.acceptor);
        self.shared.queue.lock().is_closed = true;
        self.shared.changed.notify_all();
        self.workers.into_iter().for_each(join);
    }
}

fn join(thread: JoinHandle<()>) {
    if let Err(panic) = thread.join() {
        tracing::error!("a thread of the NFS server panicked: {}", panic_words(&*panic));
    }
}

impl Shared {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Accepts connections until the server stops, then ends all of them.
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        let mut live: Vec<(Arc<Connection>, JoinHandle<()>)> = Vec::new();
        while !self.is_stopping() {
            let ready = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&ACCEPT_TICK));
            let (ended, still): (Vec<_>, Vec<_>) = live.into_iter().partition(|(_, t)| t.is_finished());
            ended.into_iter().for_each(|(_, thread)| join(thread));
            live = still;
            if !matches!(ready, Ok(n) if n > 0) {
                continue;
            }
            match listener.accept() {
                Ok((_, peer)) if live.len() >= self.limits.connections => {
                    tracing::warn!("{peer}: too many connections");
                }
                Ok((_, peer)) if !self.procedures.admits(peer.port()) => {
                    tracing::warn!(
                        "{peer}: refused, because programs of all users may use its port (--any-port)"
                    );
                }
                Ok((stream, peer)) => match self.begin(stream) {
                    Ok(connection) => live.push(connection),
                    Err(e) => tracing::warn!("{peer}: {e}"),
                },
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => {
                    tracing::warn!("accept: {e}");
                    // If the process has no descriptor left, the next attempt would fail at once.
                    self.clock.sleep(TICK);
                }
            }
        }
        live.iter().for_each(|(connection, _)| connection.stop_reading());
        live.into_iter().for_each(|(_, thread)| join(thread));
    }

    fn begin(self: &Arc<Self>, stream: TcpStream) -> io::Result<(Arc<Connection>, JoinHandle<()>)> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TICK))?;
        stream.set_write_timeout(Some(TICK))?;
        let connection = Arc::new(Connection::new(stream));
        let (shared, served) = (self.clone(), connection.clone());
        let thread = spawn_named("nfs-connection", move || shared.serve(&served))?;
        Ok((connection, thread))
    }

    fn serve(self: &Arc<Self>, connection: &Arc<Connection>) {
        let (shared, answered) = (self.clone(), connection.clone());
        let writer =
            spawn_named("nfs-replies", move || answered.write_replies(&shared.limits, &shared.clock));
        match writer {
            Ok(writer) => {
                self.read_requests(connection);
                connection.finish();
                join(writer);
            }
            Err(e) => tracing::warn!("start a thread: {e}"),
        }
    }

    fn read_requests(&self, connection: &Arc<Connection>) {
        let mut records = Records { stream: connection.stream(), limits: &self.limits, clock: &self.clock };
        // On Linux a stream whose reading end was shut down still returns what its peer sends, so a
        // peer that keeps sending would delay the stop without end.
        while !self.is_stopping() && connection.admit(&self.limits) {
            match records.next() {
                // The client sends the request again when the next server accepts it.
                Ok(Some(_)) if self.is_stopping() => return,
                Ok(Some(message)) => {
                    connection.begin();
                    self.queue.lock().jobs.push_back(Job { connection: connection.clone(), message });
                    self.changed.notify_one();
                }
                Ok(None) => return,
                Err(e) => return tracing::debug!("a client's connection ends: {e}"),
            }
        }
    }

    fn work(&self) {
        while let Some(job) = self.next_job() {
            // A panic means a broken invariant: the file system must not be used any more.
            let run = || self.procedures.answer(&job.message);
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Some(reply)) => job.connection.answer(framed(reply)),
                Ok(None) => job.connection.give_up(),
                Err(panic) => {
                    tracing::error!("a panic in the NFS server: {}", panic_words(&*panic));
                    if let Err(e) = self.procedures.fs().shutdown(false) {
                        tracing::error!("shut down: {e}");
                    }
                    job.connection.give_up();
                }
            }
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            match queue.jobs.pop_front() {
                Some(job) => return Some(job),
                None if queue.is_closed => return None,
                None => self.changed.wait(&mut queue),
            }
        }
    }
}
