//! A mount that is being served: its threads, and its end.

use crate::abi;
use crate::companion::{Follower, may_release};
use crate::courier::Courier;
use crate::devfuse::DevFuse;
use crate::freeze;
use crate::handoff::{self, Wait};
use crate::keep::handover::Leave;
use crate::keep::{Handover, Life, sentinel};
use crate::limits::become_io_flusher;
use crate::mount_error::MountError;
use crate::notify::{Changes, Notifier};
use crate::ops::Ops;
use crate::options::FuseOptions;
use crate::parking::Job;
use crate::placement::PlacementMode;
use crate::pool::{AdaptivePoll, WorkerPool};
use crate::server::{DeviceState, OnDestroy, Server};
use crate::settle::{self, PageJob};
use crate::status::Visits;
use crate::transport::{Received, RequestBuf, Transport};
use crate::unmount::{self, MountPoint};
use kedge_base::wait::{passing_on, set_stand_in};
use kedge_base::{Clock, Ino, IoBuf, JoinHandle, SystemClock, spawn_named};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use serde_json::{Value, json};
use std::cell::Cell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// A mount made by [`crate::mount()`]. The kernel's requests wait until [`MountedSession::run`]
/// serves them. If the session is dropped before that, it unmounts.
pub struct MountedSession {
    transport: Option<Arc<dyn Transport>>,
    options: FuseOptions,
    mount: MountPoint,
    /// See [`MountedSession::offer`].
    visits: Option<Visits>,
    changes: Changes,
    /// See [`MountedSession::show_tree`].
    root: Ino,
    /// See [`MountedSession::report_device`].
    device_requests: Option<DeviceState>,
    /// See [`MountedSession::release_with`].
    release: Option<Box<dyn FnOnce() + Send>>,
    /// `None` without a keeper.
    life: Option<Life>,
    /// `None` without a keeper.
    handover: Option<Arc<Handover>>,
}

impl MountedSession {
    /// The session of a mount that was just made. `transport` is its connection to the kernel.
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        mount: MountPoint,
        options: FuseOptions,
    ) -> MountedSession {
        let (transport, changes) = (Some(transport), Changes::default());
        let root = Ino::ROOT;
        let (visits, device_requests, release, life, handover) = (None, None, None, None, None);
        MountedSession {
            transport,
            options,
            mount,
            visits,
            changes,
            root,
            device_requests,
            release,
            life,
            handover,
        }
    }

    /// The session of a mount that a keeper has made on `dir`, over its connection `fd`. The mount
    /// may be elsewhere by now, or ended.
    pub fn kept(
        fd: OwnedFd,
        image: &Path,
        dir: &Path,
        options: FuseOptions,
        life: Life,
        leave: Leave,
    ) -> Result<MountedSession, MountError> {
        let failed = |error| MountError::MountPoint { dir: dir.to_owned(), error };
        // The next server waits until each thread of this one has ended, so a companion requires
        // that the keeper can hasten its end.
        let placement = match sentinel::start(&life.area).map_err(failed)? && may_release() {
            true => options.placement,
            false => PlacementMode::Off,
        };
        let options = FuseOptions { placement, ..options };
        let mount = MountPoint::of_life(&life, image, dir);
        let transport = DevFuse::stoppable(fd, options.worker_range()).map_err(failed)?;
        let courier = options.courier.map(|word| Courier::new(word, true));
        let transport: Arc<dyn Transport> = Arc::new(transport.with(courier));
        let handover = Handover::new(life.area.clone(), transport.clone(), leave);
        let mut session = MountedSession::new(transport, mount, options);
        (session.life, session.handover) = (Some(life), Some(Arc::new(handover)));
        Ok(session)
    }

    #[cfg(test)]
    pub(crate) fn living(self, life: Life) -> MountedSession {
        let mut session = self;
        session.life = Some(life);
        session
    }

    /// Returns the object with which this server is replaced by another one. `None` without a
    /// keeper.
    pub fn handover(&self) -> Option<Arc<Handover>> {
        self.handover.clone()
    }

    pub fn mount_point(&self) -> &MountPoint {
        &self.mount
    }

    pub fn mountpoint(&self) -> &Path {
        &self.mount.dir
    }

    /// Notifies the kernel of changes that did not pass through it.
    pub fn notifier(&self) -> Notifier {
        let transport = self.transport.clone().expect("the session is not served yet");
        Notifier::new(transport, self.changes.clone(), self.root)
    }

    /// Sets the mounted tree, by the inode number of its root. The session must then be served with
    /// a [`crate::OneTree`].
    pub fn show_tree(&mut self, root: Ino) {
        self.root = root;
    }

    /// The root of the mounted tree; that of the first tree if the mount shows all.
    pub fn root(&self) -> Ino {
        self.root
    }

    /// Sets the receiver of connections to the mount's socket that begin with [`crate::VISIT`],
    /// for example from a program that changes the file system without the kernel.
    pub fn offer(&mut self, visits: Visits) {
        self.visits = Some(visits);
    }

    /// Sets the source of the device's pending requests, which information and counters show as the
    /// member `device_requests`.
    pub fn report_device(&mut self, requests: DeviceState) {
        self.device_requests = Some(requests);
    }

    /// Sets the function that lets go of the image's device. [`MountedSession::run_and_close`]
    /// calls it after the close, so that the device is not in use once umount(2) has returned.
    pub fn release_with(&mut self, release: impl FnOnce() + Send + 'static) {
        self.release = Some(Box::new(release));
    }

    /// See [`MountPoint::request_unmount`].
    pub fn request_unmount(&self) -> Result<(), MountError> {
        self.mount.request_unmount()
    }

    /// Serves until the mount has ended. On a privileged mount the kernel sends DESTROY, after
    /// which everything is durable. The caller closes the file system.
    pub fn run<O: Ops>(self, ops: O) -> io::Result<()> {
        let ops = Arc::new(ops);
        let last = ops.clone();
        self.serve(
            ops,
            || Ok(()),
            Box::new(move || {
                if let Err(e) = last.sync() {
                    tracing::error!("sync at the end of the mount failed: {e}");
                }
            }),
        )
    }

    /// Like [`MountedSession::run`], and calls `close` exactly once: on a privileged mount before
    /// umount(2) returns, so that the image is closed by then, and otherwise after the last
    /// request.
    pub fn run_and_close<O: Ops, E: Send + 'static>(
        self,
        ops: O,
        close: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) -> io::Result<Result<(), E>> {
        self.resume_and_close(ops, || Ok(()), close)
    }

    /// Like [`MountedSession::run_and_close`], and calls `live` before the first request. A server
    /// that replaces another one calls it only when it has made the lost changes again. If that
    /// fails, or `live` does, returns the error and calls `close` not at all.
    pub fn resume_and_close<O: Ops, E: Send + 'static>(
        mut self,
        ops: O,
        live: impl FnOnce() -> io::Result<()>,
        close: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) -> io::Result<Result<(), E>> {
        let closed = Arc::new(Mutex::new(None));
        let slot = closed.clone();
        let release = self.release.take();
        self.serve(
            Arc::new(ops),
            live,
            Box::new(move || {
                let result = close();
                if let Some(release) = release {
                    release();
                }
                *slot.lock() = Some(result);
            }),
        )?;
        let result = closed.lock().take();
        Ok(result.expect("serving ends with on_destroy"))
    }

    fn serve<O: Ops>(
        mut self,
        ops: Arc<O>,
        live: impl FnOnce() -> io::Result<()>,
        on_destroy: OnDestroy,
    ) -> io::Result<()> {
        let transport = self.transport.take().expect("a session is served once");
        let options = self.options.clone().of_image(&*ops);
        let state = mount_json(&self.mount, &options, &*transport);
        let (server, jobs) = Server::new(ops.clone(), transport.clone(), options, state, on_destroy);
        let server = server.offering(self.visits.take(), self.device_requests.take());
        let server = server.with_changes(&self.changes);
        let (server, late) = server.freezable();
        let server = match &self.life {
            None => server,
            Some(life) => server.resume(life)?,
        };
        live()?;
        let server = Arc::new(server);
        if let Some(device) = &self.mount.device {
            server.open_status(device);
        }
        let begun = Helpers::start(&server, ops, &transport, late, jobs).and_then(|helpers| {
            if self.life.as_ref().is_some_and(Life::is_second) {
                resend(&*transport)?;
            }
            Ok(helpers)
        });
        let helpers = match begun {
            Ok(helpers) => helpers,
            Err(e) => {
                if server.kept.is_none() {
                    server.destroy();
                    drop(server);
                    // As in `drop`, the connection is closed first.
                    drop(transport);
                    unmount::unmount_as(&self.mount.dir, self.mount.privileged, true)
                        .unwrap_or_else(|e| tracing::error!("{e}"));
                }
                return Err(e);
            }
        };
        if let Some(handover) = &self.handover {
            handover.serves(&server.pool);
        }
        let result = serve(&server, &transport);
        let handover = self.handover.as_ref().filter(|handover| handover.is_begun());
        if let (Some(handover), Some(kept)) = (handover, &server.kept) {
            handover.complete(kept);
        }
        if result.is_err() && server.kept.is_some() {
            // The mount has not ended. The image is not closed, as after a death: this process
            // ends, and the keeper starts another server.
            return result;
        }
        server.destroy();
        helpers.end(server);
        result
    }
}

/// The threads of a mount besides its workers.
struct Helpers {
    frozen: JoinHandle<()>,
    settled: JoinHandle<()>,
    /// `None` without a keeper.
    recycled: Option<JoinHandle<()>>,
}

impl Helpers {
    fn start<O: Ops>(
        server: &Arc<Server<O>>,
        ops: Arc<O>,
        transport: &Arc<dyn Transport>,
        late: Receiver<Job>,
        jobs: Receiver<PageJob>,
    ) -> io::Result<Helpers> {
        let frozen = {
            let (server, ops) = (Arc::downgrade(server), ops.clone());
            spawn_named("kedge-fuse-late", move || freeze::serve(&server, &ops, &late))?
        };
        let settled = {
            let (transport, ops) = (transport.clone(), ops.clone());
            spawn_named("kedge-fuse-pages", move || settle::serve(ops, transport, jobs))?
        };
        let recycled = match &server.kept {
            None => None,
            Some(kept) => {
                let kept = kept.clone();
                Some(spawn_named("kedge-fuse-keep", move || Server::recycle(&kept, &*ops))?)
            }
        };
        Ok(Helpers { frozen, settled, recycled })
    }

    /// Waits for the end of the threads. `server` is the last reference, except for those of the
    /// threads.
    fn end<O: Ops>(self, server: Arc<Server<O>>) {
        if let Some(kept) = &server.kept {
            kept.end();
        }
        if self.recycled.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread for the keeper's memory panicked");
        }
        if let Some(parking) = &server.parking {
            parking.send(Job::End);
        }
        drop(server);
        if self.frozen.join().is_err() {
            tracing::error!("the thread for freeze and thaw panicked");
        }
        if self.settled.join().is_err() {
            tracing::error!("the thread for dirty pages panicked");
        }
    }
}

/// Makes the kernel send the requests again that an earlier server has received and not replied to.
fn resend(transport: &dyn Transport) -> io::Result<()> {
    match transport.notify(abi::NOTIFY_RESEND, &[]) {
        // The mount has ended, which the workers detect.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ENOTCONN | libc::ECONNABORTED)) => {
            Ok(())
        }
        sent => sent,
    }
}

impl Drop for MountedSession {
    fn drop(&mut self) {
        if self.life.is_some() {
            // The keeper decides whether the mount ends.
            return;
        }
        // The connection is closed first: otherwise the unmount would wait for a reply that no
        // thread sends.
        if self.transport.take().is_some()
            && let Err(e) = unmount::unmount_as(&self.mount.dir, self.mount.privileged, true)
        {
            tracing::error!("{e}");
        }
    }
}

/// Serves requests until the connection ends, on this thread and as many others as the transport
/// and its lanes use. The module `pool` decides which of them receives, and when more are started.
pub fn serve<O: Ops>(server: &Arc<Server<O>>, transport: &Arc<dyn Transport>) -> io::Result<()> {
    let mut lanes = Vec::new();
    for lane in transport.clone().lanes() {
        let server = server.clone();
        let pool = Arc::new(WorkerPool::of_lane(lane.workers()..=lane.workers_max()));
        let serve = move || {
            // Stops the lane even after a panic: the kernel would still send requests to it.
            let _end = OnDrop(|| {
                pool.close();
                lane.stop();
            });
            serve_lane(&server, &lane, &pool)
        };
        lanes.push(spawn_named("kedge-fuse-lane", serve)?);
    }
    let mut result = serve_lane(server, transport, &server.pool);
    transport.stop();
    for lane in lanes {
        let ended = lane.join().unwrap_or_else(|_| Err(io::Error::other("a lane of the mount panicked")));
        result = result.and(ended);
    }
    result
}

/// Calls the function when it is dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Serves the requests of one transport, on this thread and others.
fn serve_lane<O: Ops>(
    server: &Arc<Server<O>>,
    transport: &Arc<dyn Transport>,
    pool: &Arc<WorkerPool>,
) -> io::Result<()> {
    let threads = Arc::new(Mutex::new(Vec::new()));
    let start = {
        let (server, transport, threads) = (server.clone(), transport.clone(), threads.clone());
        let pool = pool.clone();
        move |worker| {
            let (server, transport, pool) = (server.clone(), transport.clone(), pool.clone());
            let thread = spawn_named(&format!("kedge-fuse-{worker}"), move || {
                work(&server, &transport, &pool, worker)
            })?;
            threads.lock().push(thread);
            Ok(())
        }
    };
    let watcher = {
        let (pool, transport, start) = (pool.clone(), transport.clone(), start.clone());
        spawn_named("kedge-fuse-watch", move || pool.watch(&|| transport.has_request(), &start))?
    };
    for worker in (1..transport.workers()).chain(pool.companion()) {
        if let Err(e) = start(worker) {
            tracing::warn!("only {worker} workers: {e}");
        }
    }
    let mut result = work(server, transport, pool, 0);
    pool.close();
    if watcher.join().is_err() {
        tracing::error!("the thread that watches the workers panicked");
    }
    // No more workers are started now.
    let threads = std::mem::take(&mut *threads.lock());
    for thread in threads {
        let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a FUSE worker panicked")));
        result = result.and(ended);
    }
    result
}

fn work<O: Ops>(
    server: &Server<O>,
    transport: &Arc<dyn Transport>,
    pool: &Arc<WorkerPool>,
    worker: usize,
) -> io::Result<()> {
    become_io_flusher();
    transport.adopt_thread();
    let clock = SystemClock::default();
    let wait = Rc::new(Cell::new(None));
    {
        let (pool, wait, transport) = (pool.clone(), wait.clone(), transport.clone());
        set_stand_in(move || {
            if let Err(e) = transport.flush(worker, false) {
                tracing::error!(worker, "replies are delayed: {e}");
            }
            wait.set(Some(pool.about_to_wait(worker, clock.monotonic())));
        });
    }
    {
        let (pool, wait) = (pool.clone(), wait.clone());
        handoff::before_answers(move || {
            pool.answering(worker);
            let ended = |now: Wait| Wait { ended: Some(pool.moment(clock.monotonic())), ..now };
            wait.set(wait.get().map(ended));
        });
    }
    let follower = match pool.placement().filter(|_| pool.is_companion(worker)) {
        None => None,
        Some(placement) => match Follower::new(&placement.companion) {
            Ok(follower) => Some(follower),
            Err(e) => {
                tracing::debug!("no worker follows its clients: {e}");
                return Ok(());
            }
        },
    };
    let mut buf = RequestBuf::new();
    if server.kept.is_some() {
        // Touches each page: while a thread is being killed, it can allocate no pages, and the
        // kernel would fail the request that it copies to a missing one.
        buf.as_mut_bytes().fill(0);
    }
    let processors = match transport.polls() {
        true => std::thread::available_parallelism().map_or(1, |n| n.get()),
        false => 1,
    };
    let mut work = Work {
        server,
        follower,
        transport: &**transport,
        pool,
        worker,
        buf,
        out: IoBuf::zeroed(abi::MAX_IO / kedge_base::BLOCK_SIZE),
        clock,
        wait,
        adaptive_poll: AdaptivePoll::new(processors),
    };
    loop {
        match work.turn() {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(e) => {
                tracing::error!(worker, "the FUSE connection failed: {e}");
                pool.close();
                return Err(e);
            }
        }
    }
}

/// One worker and its buffers.
struct Work<'a, O> {
    /// Chooses the companion's processor; `None` for other workers.
    follower: Option<Follower<'a>>,
    server: &'a Server<O>,
    transport: &'a dyn Transport,
    pool: &'a WorkerPool,
    worker: usize,
    buf: RequestBuf,
    out: IoBuf,
    clock: SystemClock,
    /// The wait during which the last request was served, until it is reported to the pool.
    wait: Rc<Cell<Option<Wait>>>,
    adaptive_poll: AdaptivePoll,
}

/// Reports the wait during which the last request was served to the pool, if there was one.
fn report_wait(pool: &WorkerPool, wait: &Cell<Option<Wait>>, clock: SystemClock, another: bool) {
    if let Some(wait) = wait.take() {
        pool.waited(wait, clock.monotonic(), another);
    }
}

/// If a yield takes longer, another thread has run on this processor.
const YIELD_MAX: Duration = Duration::from_micros(10);

impl<O: Ops> Work<'_, O> {
    /// Receives and serves while this worker holds the turn. Returns false if the connection has
    /// ended.
    fn turn(&mut self) -> io::Result<bool> {
        self.transport.flush(self.worker, true)?;
        if !self.pool.take_turn(self.worker) {
            return Ok(false);
        }
        if let Some(follower) = &mut self.follower {
            follower.begins();
        }
        let mut in_a_row = 0u32;
        // The thread that got the last reply of this worker.
        let mut answered = 0;
        // The begin of the present pause, once it is known that there is one.
        let mut paused = None;
        loop {
            match self.transport.receive(self.worker, &mut self.buf)? {
                Received::Request(request) => {
                    paused = None;
                    in_a_row = in_a_row.wrapping_add(1);
                    self.pool.feel_pressure(in_a_row);
                    self.pool.begin(self.worker, request.header.opcode);
                    let asks = request.header.pid;
                    self.pool.asked_by(asks);
                    if let Some(follower) = &mut self.follower {
                        follower.received(asks, || self.clock.monotonic());
                    }
                    // Thread id 0 means a thread outside this process's pid namespace, so it may be
                    // another one.
                    report_wait(self.pool, &self.wait, self.clock, asks != answered || asks == 0);
                    answered = asks;
                    passing_on(|| self.server.handle(&request, &mut self.out));
                    self.pool.end(self.worker);
                    if !self.pool.holds_turn(self.worker) || self.pool.hand_over(self.worker) {
                        report_wait(self.pool, &self.wait, self.clock, false);
                        return Ok(true);
                    }
                }
                Received::Nothing => {
                    report_wait(self.pool, &self.wait, self.clock, false);
                    in_a_row = 0;
                    // The watcher takes the turn of a companion that sleeps.
                    if !self.pool.holds_turn(self.worker) || self.pool.leave_if_spare(self.worker) {
                        return Ok(true);
                    }
                    self.pause(&mut paused)?;
                }
                Received::Ended => {
                    self.pool.close();
                    return Ok(false);
                }
            }
        }
    }

    /// Polls once, or sleeps until there may be a request.
    fn pause(&mut self, paused: &mut Option<Duration>) -> io::Result<()> {
        let now = self.clock.monotonic();
        if paused.is_none() {
            self.pool.counts.pauses.inc();
        }
        let since = *paused.get_or_insert(now);
        self.pool.counts.polls.inc();
        if let Some(follower) = &mut self.follower {
            // The companion does not poll: it would keep the client from running on their common
            // processor.
            follower.slept(now);
            self.pool.counts.sleeps.inc();
            return self.transport.wait(self.worker);
        }
        if self.adaptive_poll.lasts(now.saturating_sub(since)) {
            std::thread::yield_now();
            if self.clock.since(now) > YIELD_MAX {
                self.adaptive_poll.lost_processor();
            }
            return Ok(());
        }
        self.pool.counts.sleeps.inc();
        self.transport.wait(self.worker)?;
        self.adaptive_poll.slept(self.clock.since(since));
        Ok(())
    }
}

/// The member `mount` of `system.kedgefs.info`.
fn mount_json(mount: &MountPoint, options: &FuseOptions, transport: &dyn Transport) -> Value {
    json!({
        "pid": std::process::id(),
        "image": mount.image.to_string_lossy(),
        "mountpoint": mount.dir.to_string_lossy(),
        "source": mount.source.to_string_lossy(),
        "type": if mount.privileged { "fuseblk" } else { "fuse" },
        "transport": transport.name(),
        "options": options.to_json(),
    })
}
