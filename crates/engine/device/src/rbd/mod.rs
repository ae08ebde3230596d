//! A RADOS block device: the image is served by a Ceph cluster.
//!
//! librados and librbd are loaded when the first image is opened ([`ffi`]); the program does not
//! link them. Each device is a separate client, so that fencing one device fences nothing else.
//!
//! # How requests map to the library
//! - The library's cache is off, because it made small durable writes slower. So a completed write
//!   is on the OSDs. A flush still calls the library, because only the library knows what it has
//!   not sent.
//! - There are no FUA writes: a FUA write is a write followed by a flush.
//! - A discard of less than 64 KiB writes zeros, because the library would ignore it.
//! - Batches are asynchronous. Each device has one thread that delivers completions; the
//!   synchronous interface calls the library in the caller's thread.
//!
//! # One writer
//! A writer holds the image's exclusive lock, and stores its host and process in the image's
//! metadata, with a random number that no other writer has. The lock is taken from an owner only
//! with `takeover`, and only after the owner is fenced:
//! 1. read the owner of the lock;
//! 2. add the owner's address to the cluster's blocklist, for a year. The entry that breaking a
//!    lock adds by itself lasts an hour, so a process that was stopped for longer could write
//!    again;
//! 3. wait until this client has an OSD map with the entry. OSDs refuse a client's operations from
//!    the first map on that contains the entry. This client's operations carry the epoch of its
//!    map, so an OSD with an older map fetches the newer map before it serves them;
//! 4. break the lock and take it.
//!
//! So a write of the old owner either completes before the first read of the new owner, or is
//! refused. The log is replayed after step 4.
//!
//! A reader does not take the library's lock: a shared lock would remain after the reader's process
//! is killed. Instead the reader reads the note of the last writer and the lock's owner when it
//! opens the image, and both again before a read if the last check is a second old. If the lock has
//! an owner, or the note is another one, the reader's device ends as if it were fenced, because its
//! earlier reads and later reads may be from different states of the image. A last check, when the
//! device is dropped, can only be logged.
//!
//! No writer escapes the checks. A writer takes the lock, then stores its note, and only then
//! changes the image. So at a check, a writer that has changed the image since the open either
//! holds the lock or has left another note. At the open the reader reads the note before the owner:
//! a writer that had stored its note by then either still holds the lock, so that the open is
//! refused, or has made its last change before the reader's first read.
//!
//! # The size
//! An image is extended and truncated like a file: the owner of the lock changes the image's size,
//! and the change is durable when the call returns. An image that was enlarged by other means keeps
//! its size.
//!
//! # Errors that end the device
//! `ESHUTDOWN` or `EROFS` mean that this client was fenced or has lost the lock: from then on every
//! request fails with [`Error::Fenced`]. `ETIMEDOUT` means that the outcome is unknown: from then
//! on every request fails with [`Error::OutcomeUnknown`], and the lock is not released, because a
//! write in flight must be fenced before the next owner writes. Nothing is retried.

mod ffi;

use crate::interface::OPTIMAL_IO;
use crate::location::RbdUri;
use crate::sizes::Sizes;
use crate::{Completion, CompletionSink, Device, DeviceStats, FuaKind, Geometry};
use crate::{Op, OpenOptions, Request};
use ffi::{Cluster, DISCARD_BYTES_MIN, Image, Landed, Pool};
use kedge_base::JoinHandle;
use kedge_base::wait::about_to_wait;
use kedge_base::{BLOCK_SIZE, Clock, Error, IoBuf, Result, SystemClock, spawn_named};
use parking_lot::{Condvar, Mutex};
use rand::TryRngCore;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of operations in the library at a time.
const DEPTH: usize = 64;
/// Number of waiting jobs from which on submitters wait too.
const QUEUED_MAX: usize = 4096;
/// The feature bit of the exclusive lock.
const EXCLUSIVE_LOCK: u64 = 4;
/// The key in the image's metadata with the note of the lock's owner: its description and, after
/// [`SESSION`], a random number.
const OWNER: &str = "kedgefs.owner";
const SESSION: &str = "; session ";
const LOCK_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time for which a reader reads without checking the lock.
const LOCK_CHECK: Duration = Duration::from_secs(1);
/// Number of attempts to take a lock that was just broken.
const TAKE_TRIES: u32 = 50;

thread_local! {
    /// Whether this thread serves an RBD device. Such a thread must not wait for room in a queue
    /// that it empties itself.
    static SERVING: Cell<bool> = const { Cell::new(false) };
}

pub struct RbdDevice {
    shared: Arc<Shared>,
    sizes: Sizes,
    stats: DeviceStats,
    read_only: bool,
    /// Checks the lock, for a reader that was opened with the option to respect it.
    watch: Option<LockWatch>,
    thread: Option<JoinHandle<()>>,
}

/// Checks periodically whether the image has, or has had, a writer.
struct LockWatch {
    /// A second, writable handle: a read-only handle cannot read the owner of the lock.
    asked: Image,
    /// The note of the last writer before the reader's first read.
    last: Option<String>,
    clock: SystemClock,
    next: Mutex<Duration>,
}

struct Shared {
    name: String,
    /// The open image; `None` only during the drop.
    image: Option<Image>,
    /// Whether this device holds the lock.
    locked: bool,
    state: Mutex<State>,
    room: Condvar,
    idle: Condvar,
}

#[derive(Default)]
struct State {
    /// The operations in the library, by token.
    flights: BTreeMap<u64, Flight>,
    next_token: u64,
    waiting: VecDeque<(Flight, Op)>,
    /// Number of jobs that have not completed.
    unanswered: usize,
    closed: bool,
    dead: Option<Error>,
}

struct Flight {
    tag: u64,
    offset: u64,
    sink: Arc<dyn CompletionSink>,
    /// The write of a FUA write whose flush is in flight now.
    written: Option<Op>,
}

/// Creates an image of `size` bytes.
pub fn create(uri: &RbdUri, size: u64) -> Result<()> {
    let failed = |why: String| Error::invalid(format!("cannot create {uri}: {why}"));
    if uri.snapshot.is_some() {
        return Err(failed("a snapshot cannot be made so".into()));
    }
    let pool = connect(uri).map_err(failed)?;
    pool.create(&uri.image, size - size % BLOCK_SIZE as u64).map_err(|e| failed(words(e)))
}

/// Returns whether the image exists.
pub fn exists(uri: &RbdUri) -> Result<bool> {
    let failed = |why: String| Error::invalid(format!("cannot find out whether {uri} exists: {why}"));
    let pool = connect(uri).map_err(failed)?;
    match pool.open(&uri.image, None, true) {
        Ok(_) => Ok(true),
        Err(libc::ENOENT) => Ok(false),
        Err(e) => Err(failed(words(e))),
    }
}

/// Returns whether the image's lock is free.
pub fn is_unlocked(uri: &RbdUri) -> Result<bool> {
    let owner = asked(uri)?.lock_owner();
    let failed = |e| Error::invalid(format!("cannot read the lock of {uri}: {}", words(e)));
    owner.map(|owner| owner.is_none()).map_err(failed)
}

/// Opens a handle through which the owner of the lock can be read, which a read-only handle does
/// not allow. Takes no lock.
fn asked(uri: &RbdUri) -> Result<Image> {
    let failed = |why: String| Error::invalid(format!("cannot read the lock of {uri}: {why}"));
    connect(uri).map_err(failed)?.open(&uri.image, None, false).map_err(|e| failed(words(e)))
}

fn connect(uri: &RbdUri) -> Result<Pool, String> {
    Pool::connect(&Cluster {
        conf: uri.conf.as_deref(),
        id: uri.id.as_deref().unwrap_or("admin"),
        pool: &uri.pool,
        timeout_secs: uri.timeout.as_secs(),
    })
}

fn words(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

impl RbdDevice {
    /// Opens an image, or a snapshot read-only.
    pub fn open(uri: &RbdUri, options: OpenOptions) -> Result<Arc<RbdDevice>> {
        let failed = |why: String| Error::invalid(format!("cannot open {uri}: {why}"));
        if uri.snapshot.is_some() && !options.read_only {
            return Err(failed("a snapshot is for reading alone".into()));
        }
        let pool = connect(uri).map_err(failed)?;
        let image = pool
            .open(&uri.image, uri.snapshot.as_deref(), options.read_only)
            .map_err(|e| failed(words(e)))?;
        let size = image.size().map_err(|e| failed(words(e)))?;
        let locks = options.lock && uri.snapshot.is_none();
        let watch = match (locks, options.read_only) {
            (true, false) => {
                take_lock(uri, &image, options)?;
                None
            }
            (true, true) => {
                let asked = asked(uri)?;
                refuse_owned(uri, &asked, options.lock_wait)?;
                let last = asked.metadata(OWNER).map_err(|e| failed(words(e)))?;
                // Once more, because the note must be read before the owner ("One writer").
                refuse_owned(uri, &asked, Duration::ZERO)?;
                Some(LockWatch { asked, last, clock: SystemClock::default(), next: Mutex::new(LOCK_CHECK) })
            }
            (false, _) => None,
        };
        let geometry = Geometry {
            size: size - size % BLOCK_SIZE as u64,
            optimal_io: OPTIMAL_IO,
            discard_granularity: if options.read_only { 0 } else { DISCARD_BYTES_MIN as u32 },
            discard_zeroes: false,
            fua: FuaKind::Emulated,
        };
        let shared = Arc::new(Shared {
            name: uri.to_string(),
            image: Some(image),
            locked: locks && !options.read_only,
            state: Mutex::default(),
            room: Condvar::new(),
            idle: Condvar::new(),
        });
        let serves = shared.clone();
        let thread = spawn_named("rbd", move || serves.serve()).map_err(|e| failed(e.to_string()))?;
        let (stats, read_only) = (DeviceStats::default(), options.read_only);
        let sizes = Sizes::new(geometry);
        Ok(Arc::new(RbdDevice { shared, sizes, stats, read_only, watch, thread: Some(thread) }))
    }

    /// Ends a reader's device if the image has a writer, or had one since the device was opened.
    /// Checks at most once in [`LOCK_CHECK`].
    fn check_lock(&self) -> Result<()> {
        let Some(watch) = &self.watch else { return Ok(()) };
        {
            let (mut next, now) = (watch.next.lock(), watch.clock.monotonic());
            if now < *next {
                return Ok(());
            }
            *next = now + LOCK_CHECK;
        }
        self.check_lock_now(watch)
    }

    fn check_lock_now(&self, watch: &LockWatch) -> Result<()> {
        about_to_wait();
        let failed = |errno| self.shared.error("read the lock", 0, 0, errno);
        let owner = watch.asked.lock_owner().map_err(failed)?;
        let note = watch.asked.metadata(OWNER).map_err(failed)?;
        let writer = match owner {
            Some(owner) => format!("{} writes to it", described(note.as_deref(), &owner)),
            None if note == watch.last => return Ok(()),
            None => format!("{} has written to it", note.as_deref().map_or("a writer", process)),
        };
        let mut state = self.shared.state.lock();
        if state.dead.is_none() {
            tracing::error!("{}: reading has ended, because {writer}", self.shared.name);
            state.dead = Some(Error::Fenced);
        }
        Err(state.dead.clone().expect("just set"))
    }

    fn writable(&self) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Runs an operation in the calling thread, unless the device is dead.
    fn call(
        &self,
        op: &'static str,
        offset: u64,
        len: u64,
        f: impl FnOnce(&Image) -> Result<(), i32>,
    ) -> Result<()> {
        if let Some(dead) = &self.shared.state.lock().dead {
            return Err(dead.clone());
        }
        about_to_wait();
        f(self.shared.image()).map_err(|errno| self.shared.error(op, offset, len, errno))
    }
}

/// Takes the exclusive lock, by the steps in the module's head.
fn take_lock(uri: &RbdUri, image: &Image, options: OpenOptions) -> Result<()> {
    let failed = |why: String| Error::invalid(format!("cannot lock {uri}: {why}"));
    if image.features().map_err(|e| failed(words(e)))? & EXCLUSIVE_LOCK == 0 {
        let why = "the image has no exclusive lock (rbd feature enable POOL/IMAGE exclusive-lock)";
        return Err(failed(why.into()));
    }
    let owner = image.lock_owner().map_err(|e| failed(words(e)))?;
    match owner {
        None => {}
        Some(owner) if options.takeover => {
            tracing::warn!("{uri}: fencing {}", description(image, &owner));
            image.pool.blocklist(&owner).map_err(failed)?;
            match image.break_lock(&owner) {
                // On ENOENT the owner has released the lock since it was read.
                Ok(()) | Err(libc::ENOENT) => {}
                Err(e) => return Err(failed(words(e))),
            }
        }
        Some(_) => refuse_owned(uri, image, options.lock_wait)?,
    }
    for _ in 0..TAKE_TRIES {
        match image.lock() {
            Ok(()) => {
                let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
                let session = rand::rngs::OsRng.try_next_u64();
                let session = session.map_err(|e| failed(format!("no random number: {e}")))?;
                let pid = std::process::id();
                let me = format!("process {pid} on host {}{SESSION}{session:016x}", host.trim());
                return image.set_metadata(OWNER, &me).map_err(|e| failed(words(e)));
            }
            Err(libc::EAGAIN | libc::EBUSY) => kedge_base::pause(LOCK_PAUSE),
            // Another client took the lock first.
            Err(libc::EROFS) => refuse_owned(uri, image, Duration::ZERO)?,
            Err(e) => return Err(failed(words(e))),
        }
    }
    Err(failed("it does not become free".into()))
}

/// Fails if the lock has an owner and still has one after `wait`.
fn refuse_owned(uri: &RbdUri, image: &Image, wait: Duration) -> Result<()> {
    let mut pauses = wait.as_millis().div_ceil(LOCK_PAUSE.as_millis());
    loop {
        let owner = image.lock_owner();
        match owner.map_err(|e| Error::invalid(format!("cannot read the lock of {uri}: {}", words(e))))? {
            None => return Ok(()),
            Some(_) if pauses > 0 => pauses -= 1,
            Some(owner) => {
                let who = format!(
                    "{uri} is locked by {} (mount --takeover fences it): it",
                    description(image, &owner)
                );
                return Err(Error::Busy(who.into()));
            }
        }
        kedge_base::pause(LOCK_PAUSE);
    }
}

fn description(image: &Image, owner: &str) -> String {
    described(image.metadata(OWNER).ok().flatten().as_deref(), owner)
}

/// Returns the part of a note that names a process.
fn process(note: &str) -> &str {
    note.split_once(SESSION).map_or(note, |(process, _)| process)
}

/// Returns the words for a writer with the note `note` and the client address `owner`.
fn described(note: Option<&str>, owner: &str) -> String {
    match note {
        Some(note) => format!("{} ({owner})", process(note)),
        None => owner.to_owned(),
    }
}

impl Shared {
    fn image(&self) -> &Image {
        self.image.as_ref().expect("the image is dropped last")
    }

    /// Returns the error of a failed operation. Ends the device if the errno is one of those that
    /// do ("Errors that end the device").
    fn error(&self, op: &'static str, offset: u64, len: u64, errno: i32) -> Error {
        let end = match errno {
            libc::ESHUTDOWN | libc::EROFS => Error::Fenced,
            libc::ETIMEDOUT => Error::OutcomeUnknown,
            errno => return Error::Io { op, offset, len, errno },
        };
        let mut state = self.state.lock();
        if state.dead.is_none() {
            tracing::error!("{}: the device is dead: {op} failed with {}", self.name, words(errno));
            state.dead = Some(end);
        }
        state.dead.clone().expect("just set")
    }

    /// The body of the device's thread.
    fn serve(&self) {
        SERVING.set(true);
        let mut landed = VecDeque::new();
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.hand_out(&mut landed))) {
                Ok(Ok(())) => return,
                Ok(Err(e)) => {
                    tracing::error!("{}: the device is dead: {e}", self.name);
                    return self.abandon();
                }
                // A completion panicked. The device is dead, but operations in the library still
                // complete.
                Err(_) => {
                    self.state.lock().dead.get_or_insert(Error::OutcomeUnknown);
                }
            }
        }
    }

    fn hand_out(&self, landed: &mut VecDeque<Landed>) -> std::io::Result<()> {
        loop {
            while let Some(Landed { token, op, result }) = landed.pop_front() {
                self.land(token, op, result);
            }
            self.start_waiting();
            let state = self.state.lock();
            let ended = state.closed && state.unanswered == 0;
            drop(state);
            if ended {
                return Ok(());
            }
            landed.extend(self.image().landed()?);
        }
    }

    fn land(&self, token: u64, op: Op, result: Result<(), i32>) {
        let Some(mut flight) = self.state.lock().flights.remove(&token) else { return };
        let what = flight.written.as_ref().unwrap_or(&op);
        let result = result.map_err(|e| self.error(what.name(), flight.offset, what.len(), e));
        let fua = matches!(op, Op::Write { fua: true, .. });
        match (result, flight.written.take()) {
            (result, Some(write)) => self.complete(flight, write, result),
            (Ok(()), None) if fua => {
                flight.written = Some(op);
                self.start(flight, Op::Flush);
            }
            (result, None) => self.complete(flight, op, result),
        }
    }

    fn complete(&self, flight: Flight, op: Op, result: Result<()>) {
        let mut state = self.state.lock();
        // Decremented before the sink is called: the sink may drop the device, and the drop waits
        // until the count is zero.
        state.unanswered -= 1;
        let last = state.closed && state.unanswered == 0;
        drop(state);
        if last {
            self.idle.notify_all();
        }
        flight.sink.complete(Completion { tag: flight.tag, op, result });
    }

    /// Starts an operation in the library.
    fn start(&self, flight: Flight, op: Op) {
        let mut state = self.state.lock();
        if let Some(dead) = state.dead.clone() {
            drop(state);
            return self.complete_failed(flight, op, dead);
        }
        let (token, offset) = (state.next_token, flight.offset);
        state.next_token += 1;
        state.flights.insert(token, flight);
        drop(state);
        let Err((errno, op)) = self.image().start(token, offset, op) else { return };
        let Some(flight) = self.state.lock().flights.remove(&token) else { return };
        let e = self.error(op.name(), offset, op.len(), errno);
        self.complete_failed(flight, op, e);
    }

    fn complete_failed(&self, mut flight: Flight, op: Op, e: Error) {
        let op = flight.written.take().unwrap_or(op);
        self.complete(flight, op, Err(e));
    }

    fn start_waiting(&self) {
        loop {
            let mut state = self.state.lock();
            if state.flights.len() >= DEPTH {
                return;
            }
            let Some((flight, op)) = state.waiting.pop_front() else { return };
            if state.waiting.len() < QUEUED_MAX {
                self.room.notify_all();
            }
            drop(state);
            self.start(flight, op);
        }
    }

    fn submit(&self, jobs: Vec<(Flight, Op)>) {
        let mut state = self.state.lock();
        while state.waiting.len() >= QUEUED_MAX && state.dead.is_none() && !SERVING.get() {
            self.room.wait(&mut state);
        }
        state.unanswered += jobs.len();
        state.waiting.extend(jobs);
        drop(state);
        self.start_waiting();
    }

    /// Fails all requests when the library cannot be called any more. Operations in the library
    /// stay there until the image is closed.
    fn abandon(&self) {
        let mut state = self.state.lock();
        state.dead.get_or_insert(Error::OutcomeUnknown);
        let flights = std::mem::take(&mut state.flights);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.room.notify_all();
        for (_, flight) in flights {
            // The library still has the buffer, so the caller gets an empty one.
            let op = Op::Read(IoBuf::default());
            self.complete_failed(flight, op, Error::OutcomeUnknown);
        }
        for (flight, op) in waiting {
            self.complete_failed(flight, op, Error::OutcomeUnknown);
        }
    }
}

impl Drop for Shared {
    /// Closing an image releases its lock. After an unknown outcome that would be wrong: a write in
    /// flight must not take effect after writes of the next owner. So the image stays open until
    /// the process ends. The lock stays even after that, and the next owner must fence this client.
    fn drop(&mut self) {
        if self.locked && matches!(self.state.get_mut().dead, Some(Error::OutcomeUnknown)) {
            tracing::warn!("{}: the lock is kept; the next mount needs --takeover", self.name);
            std::mem::forget(self.image.take());
        }
    }
}

impl Drop for RbdDevice {
    /// Completes everything that was submitted before the lock is released and the image is closed.
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        while state.unanswered > 0 {
            self.shared.idle.wait(&mut state);
        }
        let alive = state.dead.is_none();
        drop(state);
        if alive
            && let Some(watch) = &self.watch
            && let Err(e) = self.check_lock_now(watch)
        {
            tracing::warn!("{}: what was read last may be from another state: {e}", self.shared.name);
        }
        if self.shared.locked
            && alive
            && let Err(e) = self.shared.image().unlock()
        {
            tracing::warn!("{}: cannot release the lock: {}", self.shared.name, words(e));
        }
        self.shared.image().wake();
        let Some(thread) = self.thread.take() else { return };
        // A completion may drop the last reference on the device's own thread. That thread cannot
        // join itself; it ends by itself and closes the image.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!("a device thread panicked");
        }
    }
}

impl Device for RbdDevice {
    fn geometry(&self) -> &Geometry {
        self.sizes.now()
    }

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let mut jobs = Vec::with_capacity(batch.len());
        for request in batch {
            self.stats.count(&request.op);
            let Request { tag, offset, op } = request;
            let idle = match &op {
                Op::Flush => self.read_only,
                op => op.len() == 0,
            };
            let changes = !matches!(op, Op::Read(_) | Op::Flush);
            let request = Request { tag, offset, op };
            let checked = self.geometry().check_request(&request);
            let checked = checked.and_then(|()| if changes { self.writable() } else { self.check_lock() });
            let Request { op, .. } = request;
            match checked {
                Ok(()) if !idle => {
                    jobs.push((Flight { tag, offset, sink: sink.clone(), written: None }, op));
                }
                result => sink.complete(Completion { tag, op, result }),
            }
        }
        if !jobs.is_empty() {
            self.shared.submit(jobs);
        }
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        let len = buf.len() as u64;
        self.stats.count_read(buf.len());
        self.geometry().check("read", offset, len)?;
        match len {
            0 => Ok(()),
            _ => {
                self.check_lock()?;
                self.call("read", offset, len, |image| image.read(offset, buf))
            }
        }
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        let len = buf.len() as u64;
        self.stats.count_write(buf.len(), fua);
        self.geometry().check("write", offset, len)?;
        self.writable()?;
        if len == 0 {
            return Ok(());
        }
        self.call("write", offset, len, |image| {
            image.write(offset, buf)?;
            if fua { image.flush() } else { Ok(()) }
        })
    }

    fn flush(&self) -> Result<()> {
        self.stats.count_flush();
        if self.read_only { Ok(()) } else { self.call("flush", 0, 0, Image::flush) }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().check("discard", offset, len)?;
        self.writable()?;
        match len {
            0 => Ok(()),
            DISCARD_BYTES_MIN.. => self.call("discard", offset, len, |image| image.discard(offset, len)),
            _ => self.call("discard", offset, len, |image| image.write_zeroes(offset, len)),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().check("write_zeroes", offset, len)?;
        self.writable()?;
        match len {
            0 => Ok(()),
            _ => self.call("write_zeroes", offset, len, |image| image.write_zeroes(offset, len)),
        }
    }

    fn grow(&self, size: u64) -> Result<()> {
        let has = self.geometry().size;
        if size <= has {
            return Ok(());
        }
        self.writable()?;
        self.call("grow", has, size - has, |image| match image.size()? {
            room if room < size => image.resize(size),
            _ => Ok(()),
        })?;
        self.sizes.set(size);
        Ok(())
    }

    fn cut(&self, size: u64) -> Result<()> {
        let has = self.geometry().size;
        if size >= has {
            return Ok(());
        }
        self.writable()?;
        // Requests beyond the new end are refused from now on, because the library would not report
        // an error for a read there.
        self.sizes.set(size);
        self.call("truncate", size, has - size, |image| match image.size()? {
            room if room > size => image.resize(size),
            _ => Ok(()),
        })
    }

    fn room(&self) -> Result<u64> {
        let mut size = 0;
        self.call("size", 0, 0, |image| image.size().map(|now| size = now))?;
        Ok(size)
    }

    fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    fn name(&self) -> &str {
        &self.shared.name
    }
}

#[cfg(test)]
#[path = "rbd_tests.rs"]
mod tests;
