//! A client of the NBD protocol: another process, on this host or another one, serves the image.
//!
//! No kernel module is needed. Any server with the fixed newstyle negotiation works (qemu-nbd,
//! nbdkit).
//!
//! # How requests map to the protocol
//! - A flush is `NBD_CMD_FLUSH`. A server without flushes is accepted for reading only: nothing
//!   written to it would ever be known to be durable.
//! - A FUA write is `NBD_FLAG_FUA`, or a write followed by a flush on a server without that flag.
//! - Several connections are used only with `NBD_FLAG_CAN_MULTI_CONN`: only then does a flush on
//!   one connection cover writes that completed on the others.
//! - A trimmed range may read as anything. Zeroing is `NBD_CMD_WRITE_ZEROES`, or a write of zeros.
//!
//! # When the connection is lost
//! The device dies when a connection ends, when a reply exceeds the time limit, and when a reply
//! breaks the protocol. The outcome of all requests in flight is then unknown. From then on each
//! request on every connection fails with [`Error::OutcomeUnknown`]. The file system shuts down,
//! and the next mount replays the log.
//!
//! The client never reconnects, because repeating the requests without a reply would not suffice. A
//! restarted server may have lost writes that it had acknowledged but not flushed, and its next
//! flush would succeed all the same. So the client would have to keep all writes since the last
//! flush. Nor can the client know when the last write of the old connection reaches the medium: it
//! may do so after a repeated write.
//!
//! A flush that the server refuses is final, too ([`crate::flushes`]): the server may have dropped
//! what its next flush reports as durable. Since the client never reconnects, this lasts as long as
//! the device is open. A failed FUA write is only an error of that write, as with a local disk.
//!
//! # A larger export
//! A server sends the size of an export when a connection begins. So [`Device::room`] makes another
//! connection, and [`Device::grow`] replaces all connections by new ones without a pause for
//! requests: the server still replies to earlier requests on the old connections. The growth needs
//! a server with `NBD_FLAG_CAN_MULTI_CONN`, because a flush on a new connection must cover writes
//! that completed on the old ones. With any other server the device keeps its size until it is
//! opened again.
//!
//! # Crash argument
//! The server's replies are the device's completions. A flush or a FUA write succeeds only if the
//! server reports success. A reply is matched to its request by a number that is never used twice.
//! A reply to a write counts only once all bytes of the write have been sent. A server that reports
//! success for data that it has not made durable violates rule 4 of the device model, and the
//! layers above cannot detect that.
//!
//! # The lock
//! The protocol has no lock. A writer takes a name in the kernel's abstract socket namespace that
//! stands for the export ([`lock`]). The name excludes a second writer *on this host*, and readers
//! that ask for the lock; such readers in turn exclude writers while they read. The server must
//! exclude other hosts.

mod handshake;
mod link;
mod lock;
mod stream;
mod wire;
mod work;

use crate::flushes::Flushes;
use crate::interface::OPTIMAL_IO;
use crate::location::NbdUri;
use crate::sizes::Sizes;
use crate::{Completion, CompletionSink, Device, DeviceStats, FuaKind, Geometry};
use crate::{Op, OpenOptions, Request};
use handshake::Export;
use kedge_base::JoinHandle;
use kedge_base::wait::about_to_wait;
use kedge_base::{BLOCK_SIZE, Error, IoBuf, Result, spawn_named};
use link::{Answer, Link, Sent};
pub(crate) use lock::is_unlocked;
use parking_lot::{Condvar, Mutex, RwLock};
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use stream::Stream;
use wire::*;
use work::{Job, Kind, Owner, Part, Plan, Waiter};

/// Number of jobs in the queue from which on submitters wait too.
const QUEUED_MAX: usize = 4096;
/// Maximum interval between two checks of the time limit by a receiver.
const TICK_MAX: Duration = Duration::from_secs(1);

thread_local! {
    /// Whether this thread serves an NBD device. Such a thread must not wait for room in a queue
    /// that it empties itself.
    static SERVING: Cell<bool> = const { Cell::new(false) };
}

pub struct NbdDevice {
    uri: NbdUri,
    shared: Arc<Shared>,
    sizes: Sizes,
    stats: DeviceStats,
    read_only: bool,
    /// Selects the connection of the next synchronous request, round robin.
    next_link: AtomicUsize,
    served: Mutex<Vec<Served>>,
    _lock: Option<lock::Lock>,
}

/// A connection and its threads.
struct Served {
    link: Arc<Link>,
    sends: JoinHandle<()>,
    receives: JoinHandle<()>,
}

struct Shared {
    name: String,
    /// The properties of the export when the device was opened; only its size may change later.
    export: Export,
    /// The connections that get new requests. Locked for reading while a synchronous request is
    /// sent.
    links: RwLock<Vec<Arc<Link>>>,
    /// The connections in `links`, and old connections that still wait for replies.
    open_links: Mutex<Vec<Arc<Link>>>,
    state: Mutex<State>,
    /// Notified when a job is queued, and when the device ends.
    work: Condvar,
    room: Condvar,
    flushes: Flushes,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Number of jobs that have not completed.
    unanswered: usize,
    closed: bool,
    dead: bool,
}

impl NbdDevice {
    /// Connects to the server. Ignores `options.direct` and `options.io_uring`.
    pub fn open(uri: &NbdUri, options: OpenOptions) -> Result<Arc<NbdDevice>> {
        let failed = |why: String| Error::invalid(format!("cannot open {uri}: {why}"));
        let lock = match options.lock {
            true => Some(lock::take(uri, options.read_only, options.lock_wait)?),
            false => None,
        };
        let (first, export) = connect(uri).map_err(failed)?;
        if !options.read_only {
            if export.can(CAN_READ_ONLY) {
                return Err(failed("the server exports this read-only".into()));
            }
            if !export.can(CAN_FLUSH) {
                let why = "the server knows no flush, so nothing that is written would be durable";
                return Err(failed(why.into()));
            }
        }
        let links = connect_more(uri, first, &export).map_err(failed)?;
        let device = NbdDevice::new(uri, export, options.read_only, lock);
        device.start(links).map_err(|e| failed(format!("no thread: {e}")))?;
        Ok(Arc::new(device))
    }

    fn new(uri: &NbdUri, export: Export, read_only: bool, lock: Option<lock::Lock>) -> NbdDevice {
        let shared = Arc::new(Shared::new(uri.to_string(), export));
        let trims = !read_only && export.can(CAN_TRIM);
        let geometry = Geometry {
            size: export.size - export.size % BLOCK_SIZE as u64,
            optimal_io: OPTIMAL_IO,
            discard_granularity: if trims { BLOCK_SIZE as u32 } else { 0 },
            discard_zeroes: false,
            fua: if export.can(CAN_FUA) { FuaKind::Native } else { FuaKind::Emulated },
        };
        NbdDevice {
            uri: uri.clone(),
            shared,
            sizes: Sizes::new(geometry),
            stats: DeviceStats::default(),
            read_only,
            next_link: AtomicUsize::new(0),
            served: Mutex::default(),
            _lock: lock,
        }
    }

    /// Starts the threads of new connections, which get all requests from now on. Returns the
    /// previous connections.
    fn start(&self, links: Vec<Link>) -> std::io::Result<Vec<Served>> {
        let mut started = Vec::new();
        for link in links.into_iter().map(Arc::new) {
            self.shared.open_links.lock().push(link.clone());
            match Served::start(&self.shared, link.clone()) {
                Ok(served) => started.push(served),
                Err(e) => {
                    self.shared.forget(&link);
                    self.shared.retire(started);
                    return Err(e);
                }
            }
        }
        if self.shared.state.lock().dead {
            // The device may have died before the new connections were registered, so they are
            // ended here.
            started.iter().flat_map(|served| served.link.kill()).for_each(|owner| self.shared.lose(owner));
        }
        *self.shared.links.write() = started.iter().map(|served| served.link.clone()).collect();
        Ok(std::mem::replace(&mut *self.served.lock(), started))
    }

    pub fn connections(&self) -> usize {
        self.shared.links.read().len()
    }

    /// Sends all parts of an operation from the calling thread, and waits for each reply.
    fn call(&self, mut plan: Plan, bytes: &[u8], mut buf: Option<&mut IoBuf>) -> Result<()> {
        about_to_wait();
        while let Some(part) = plan.next(&self.shared.export) {
            let payload = match part.command {
                CMD_WRITE if part.zeros => &work::ZEROS[..part.len as usize],
                CMD_WRITE => &bytes[plan.range(&part)],
                _ => &[],
            };
            // The receiver fills the caller's buffer and returns it with the reply.
            let lent = buf.as_deref_mut().map(|buf| (std::mem::take(buf), plan.range(&part).start));
            let waiter = Arc::new(Waiter::default());
            let links = self.shared.links.read();
            let link = &links[self.next_link.fetch_add(1, Relaxed) % links.len()];
            if link.wait_for_room() {
                let sent = link.send(part, Owner::Waiter(waiter.clone(), lent), Some(payload));
                drop(links);
                self.shared.after_send(sent);
            } else {
                drop(links);
                waiter.answer(Err(Error::OutcomeUnknown), lent.map(|(buf, _)| buf));
            }
            let (result, back) = waiter.wait();
            if let (Some(buf), Some(back)) = (buf.as_deref_mut(), back) {
                *buf = back;
            }
            result?;
            plan.advance(&part);
        }
        Ok(())
    }

    fn writable(&self) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Flushes, one thread at a time. Flushes of batches, which the engine does not make, run
    /// beside that: their results count from when the reply arrives.
    fn flush_once(&self) -> Result<()> {
        self.shared.flushes.run(|| {
            let flushed = self.call(Plan::new(Kind::Flush, 0, 0), &[], None);
            // A device that has died fails each later request with this error.
            if self.shared.state.lock().dead { flushed.map_err(|_| Error::OutcomeUnknown) } else { flushed }
        })
    }

    /// Refuses requests that must not be sent at all.
    fn check(&self, request: &Request) -> Result<()> {
        self.geometry().check_request(request)?;
        let kind = Job::kind(request);
        if !matches!(kind, Kind::Read | Kind::Flush) {
            self.writable()?;
        }
        if kind.is_durable() {
            self.shared.flushes.check()?;
        }
        if kind == Kind::Discard { self.can_discard(request.offset, request.op.len()) } else { Ok(()) }
    }

    /// Makes a new connection. Returns it with the export as the server describes it now.
    fn look_again(&self) -> Result<(Link, Export)> {
        let failed = |why: String| Error::invalid(format!("cannot look at {} again: {why}", self.uri));
        let (link, export) = connect(&self.uri).map_err(failed)?;
        if (Export { size: self.shared.export.size, ..export }) != self.shared.export {
            return Err(failed("the server describes it in another way than before".into()));
        }
        Ok((link, export))
    }

    fn can_discard(&self, offset: u64, len: u64) -> Result<()> {
        if self.geometry().discard_granularity > 0 {
            return Ok(());
        }
        Err(Error::Io { op: "discard", offset, len, errno: libc::EOPNOTSUPP })
    }
}

impl Served {
    fn start(shared: &Arc<Shared>, link: Arc<Link>) -> std::io::Result<Served> {
        let (from, to) = ((shared.clone(), link.clone()), (shared.clone(), link.clone()));
        let sends = spawn_named("nbd-send", move || from.0.serve(|s| s.sender(&from.1)))?;
        match spawn_named("nbd-receive", move || to.0.serve(|s| s.receiver(&to.1))) {
            Ok(receives) => Ok(Served { link, sends, receives }),
            Err(e) => {
                // This connection has sent nothing, and no other thread knows it.
                let state = shared.state.lock();
                link.retire();
                drop(state);
                shared.work.notify_all();
                join(sends);
                Err(e)
            }
        }
    }
}

/// Makes further connections to an export, up to the number that the URI allows.
fn connect_more(uri: &NbdUri, first: Link, export: &Export) -> Result<Vec<Link>, String> {
    let mut links = vec![first];
    while export.can(CAN_MULTI_CONN) && links.len() < uri.connections {
        match connect(uri) {
            Ok((link, same)) if same == *export => links.push(link),
            Ok(_) => return Err("the server describes the export in two ways".into()),
            Err(why) => {
                tracing::warn!("{uri}: going on with {} connections: {why}", links.len());
                break;
            }
        }
    }
    Ok(links)
}

fn connect(uri: &NbdUri) -> Result<(Link, Export), String> {
    let stream = Stream::connect(&uri.address, uri.timeout).map_err(|e| e.to_string())?;
    let export = handshake::negotiate(&stream, &uri.export, uri.timeout)?;
    // Writes need no time limit: the receiver unblocks them when it gives the connection up.
    stream.set_timeouts(TICK_MAX.min(uri.timeout / 4), None).map_err(|e| e.to_string())?;
    Ok((Link::new(stream, uri.timeout), export))
}

impl Shared {
    fn new(name: String, export: Export) -> Shared {
        Shared {
            name,
            export,
            links: RwLock::default(),
            open_links: Mutex::default(),
            state: Mutex::default(),
            work: Condvar::new(),
            room: Condvar::new(),
            flushes: Flushes::default(),
        }
    }

    /// The body of a thread of a connection. If it panics, the device ends, so that other threads
    /// do not wait for it.
    fn serve(&self, body: impl FnOnce(&Shared) -> Result<(), String>) {
        SERVING.set(true);
        match catch_unwind(AssertUnwindSafe(|| body(self))) {
            Ok(Ok(())) => {}
            Ok(Err(why)) => self.die(&why),
            Err(panic) => {
                self.die("a thread of the device panicked");
                resume_unwind(panic);
            }
        }
    }

    fn sender(&self, link: &Link) -> Result<(), String> {
        while link.wait_for_room()
            && let Some(job) = self.next_job(link)
        {
            match job.plan.next(&self.export) {
                Some(part) => self.after_send(link.send(part, Owner::Job(Box::new(job)), None)),
                None => self.complete(job, Ok(())),
            }
        }
        Ok(())
    }

    fn receiver(&self, link: &Link) -> Result<(), String> {
        loop {
            match link.receive(self.export.structured) {
                Ok(Some(answer)) => self.answered(answer),
                Ok(None) => {}
                Err(why) => {
                    let state = self.state.lock();
                    let ended = state.closed && state.unanswered == 0;
                    drop(state);
                    if !ended && !link.has_ended() {
                        return Err(why);
                    }
                    // If the device died while this thread had the owner of a message, the owner is
                    // in the table only since this read failed. After a regular end the table is
                    // empty.
                    link.kill().into_iter().for_each(|owner| self.lose(owner));
                    return Ok(());
                }
            }
        }
    }

    /// Returns the next job for a connection; `None` if there will be none.
    fn next_job(&self, link: &Link) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if link.is_retired() {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                if state.jobs.len() < QUEUED_MAX {
                    self.room.notify_all();
                }
                return Some(job);
            }
            // While a job has not completed, its next part may be queued, so the thread must wait.
            if state.dead || state.closed && state.unanswered == 0 {
                return None;
            }
            self.work.wait(&mut state);
        }
    }

    fn submit(&self, jobs: Vec<Job>) {
        let mut state = self.state.lock();
        while state.jobs.len() >= QUEUED_MAX && !state.dead && !SERVING.get() {
            self.room.wait(&mut state);
        }
        state.unanswered += jobs.len();
        if state.dead {
            drop(state);
            return jobs.into_iter().for_each(|job| self.complete(job, Err(Error::OutcomeUnknown)));
        }
        state.jobs.extend(jobs);
        drop(state);
        self.work.notify_all();
    }

    fn after_send(&self, sent: Sent) {
        match sent {
            Sent::Under => {}
            Sent::Answered(answer) => self.answered(answer),
            Sent::Failed(owner, why) => {
                self.die(&why);
                owner.into_iter().for_each(|owner| self.lose(owner));
            }
        }
    }

    fn answered(&self, answer: Answer) {
        let Answer { part, owner, result } = answer;
        let result = result.map_err(|errno| {
            if errno == libc::ESHUTDOWN {
                // The server does not recover, and may lose what it has not flushed.
                self.die("the server is shutting down");
            } else if part.command == CMD_FLUSH {
                self.flushes.fail(&part.failed(errno));
            }
            part.failed(errno)
        });
        match (owner, result) {
            (Owner::Waiter(waiter, buf), result) => waiter.answer(result, buf.map(|(buf, _)| buf)),
            (Owner::Job(job), Err(e)) => self.complete(*job, Err(e)),
            (Owner::Job(job), Ok(())) => self.go_on(*job, &part),
        }
    }

    /// Queues the next part of a job, or completes the job.
    fn go_on(&self, mut job: Job, part: &Part) {
        job.plan.advance(part);
        if job.plan.next(&self.export).is_none() {
            let result = if job.plan.is_durable() { self.flushes.check() } else { Ok(()) };
            return self.complete(job, result);
        }
        let mut state = self.state.lock();
        if state.dead {
            drop(state);
            return self.complete(job, Err(Error::OutcomeUnknown));
        }
        state.jobs.push_front(job);
        drop(state);
        self.work.notify_one();
    }

    fn lose(&self, owner: Owner) {
        match owner {
            Owner::Waiter(waiter, buf) => {
                waiter.answer(Err(Error::OutcomeUnknown), buf.map(|(buf, _)| buf));
            }
            Owner::Job(job) => self.complete(*job, Err(Error::OutcomeUnknown)),
        }
    }

    fn complete(&self, job: Job, result: Result<()>) {
        let mut state = self.state.lock();
        // Decremented before the sink is called: the sink may drop the device, and the drop waits
        // until the count is zero.
        state.unanswered -= 1;
        let last = state.closed && state.unanswered == 0;
        drop(state);
        if last {
            self.work.notify_all();
        }
        job.complete(result);
    }

    /// Ends the device: every request without a reply fails, and so does every later request.
    fn die(&self, why: &str) {
        let mut state = self.state.lock();
        let jobs = std::mem::take(&mut state.jobs);
        if !std::mem::replace(&mut state.dead, true) {
            tracing::error!("{}: the device is dead: {why}", self.name);
        }
        drop(state);
        self.work.notify_all();
        self.room.notify_all();
        let links = self.open_links.lock().clone();
        for owner in links.iter().flat_map(|link| link.kill()) {
            self.lose(owner);
        }
        jobs.into_iter().for_each(|job| self.complete(job, Err(Error::OutcomeUnknown)));
    }

    /// Ends connections that get no new requests, after the replies to their last requests.
    fn retire(&self, served: Vec<Served>) {
        let state = self.state.lock();
        served.iter().for_each(|one| one.link.retire());
        drop(state);
        self.work.notify_all();
        for Served { link, sends, receives } in served {
            join(sends);
            link.end();
            join(receives);
            self.forget(&link);
        }
    }

    /// Removes a connection without messages from those that end with the device.
    fn forget(&self, link: &Arc<Link>) {
        self.open_links.lock().retain(|open| !Arc::ptr_eq(open, link));
    }
}

fn join(thread: JoinHandle<()>) {
    let me = std::thread::current().id();
    // A completion may drop the last reference to the device on one of its threads. That thread
    // cannot join itself; it ends by itself.
    if thread.thread().id() != me && thread.join().is_err() {
        tracing::error!("a device thread panicked");
    }
}

impl Drop for NbdDevice {
    /// Completes everything that was submitted before the connections end.
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        while state.unanswered > 0 {
            self.shared.work.wait(&mut state);
        }
        drop(state);
        self.shared.work.notify_all();
        let served = std::mem::take(self.served.get_mut());
        for Served { link, .. } in &served {
            link.say_goodbye();
            link.stream.shut();
        }
        for Served { sends, receives, .. } in served {
            join(sends);
            join(receives);
        }
    }
}

impl Device for NbdDevice {
    fn geometry(&self) -> &Geometry {
        self.sizes.now()
    }

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let mut jobs = Vec::with_capacity(batch.len());
        for request in batch {
            self.stats.count(&request.op);
            if self.read_only && matches!(request.op, Op::Flush) {
                sink.complete(Completion { tag: request.tag, op: request.op, result: Ok(()) });
                continue;
            }
            match self.check(&request) {
                Ok(()) => jobs.push(Job::new(request, sink.clone())),
                Err(e) => sink.complete(Completion { tag: request.tag, op: request.op, result: Err(e) }),
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
        self.call(Plan::new(Kind::Read, offset, len), &[], Some(buf))
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        let len = buf.len() as u64;
        self.stats.count_write(buf.len(), fua);
        self.geometry().check("write", offset, len)?;
        self.writable()?;
        if !fua {
            return self.call(Plan::new(Kind::Write { fua }, offset, len), buf.as_bytes(), None);
        }
        self.shared.flushes.check()?;
        let has_fua = self.shared.export.can(CAN_FUA);
        self.call(Plan::new(Kind::Write { fua: has_fua }, offset, len), buf.as_bytes(), None)?;
        if has_fua || len == 0 { self.shared.flushes.check() } else { self.flush_once() }
    }

    fn flush(&self) -> Result<()> {
        self.stats.count_flush();
        if self.read_only { Ok(()) } else { self.flush_once() }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().check("discard", offset, len)?;
        self.writable()?;
        self.can_discard(offset, len)?;
        self.call(Plan::new(Kind::Discard, offset, len), &[], None)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().check("write_zeroes", offset, len)?;
        self.writable()?;
        self.call(Plan::new(Kind::WriteZeroes, offset, len), &[], None)
    }

    fn grow(&self, size: u64) -> Result<()> {
        let has = self.geometry().size;
        if size <= has {
            return Ok(());
        }
        self.writable()?;
        let failed = |why: String| Error::invalid(format!("cannot take the new size of {}: {why}", self.uri));
        if !self.shared.export.can(CAN_MULTI_CONN) {
            let why =
                format!("it had {has} bytes when it was opened, and the server takes one connection only");
            return Err(failed(why));
        }
        let (first, export) = self.look_again()?;
        if export.size < size {
            return Err(Error::invalid(format!("{} has {} bytes, {size} are wanted", self.uri, export.size)));
        }
        let links = connect_more(&self.uri, first, &export).map_err(failed)?;
        let before = self.start(links).map_err(|e| failed(format!("no thread: {e}")))?;
        self.sizes.set(export.size);
        self.shared.retire(before);
        match self.shared.state.lock().dead {
            true => Err(Error::OutcomeUnknown),
            false => Ok(()),
        }
    }

    fn room(&self) -> Result<u64> {
        if !self.shared.export.can(CAN_MULTI_CONN) {
            return Ok(self.geometry().size);
        }
        let (link, export) = self.look_again()?;
        link.say_goodbye();
        Ok(export.size)
    }

    fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    fn name(&self) -> &str {
        &self.shared.name
    }
}

#[cfg(test)]
#[path = "nbd_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "growth_tests.rs"]
mod growth_tests;
