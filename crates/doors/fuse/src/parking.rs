//! Keeps the changes that wait for the end of a freeze, and the queue of the thread that serves
//! them.
//!
//! A changing request that arrives while the file system is frozen is *parked*: its bytes are kept,
//! and the worker receives the next request. So any number of writers may wait, and reads and the
//! thaw still find a worker. After the thaw one thread serves the parked requests
//! ([`mod@crate::freeze`]).
//!
//! # Bounds
//! Parked requests take at most [`PARKED_MAX`] bytes. Beyond this limit a change fails with ENOMEM
//! and has no effect. Two kinds are exempt:
//! - writes from the kernel's cache: on an error the kernel would assume a device failure and
//!   consider the pages clean. It sends at most `MAX_BACKGROUND` of them at a time;
//! - small requests. Each waiting thread has only one, and its kernel stack is larger than that.
//!
//! # Why no parked request is forgotten
//! A request is added to the list under the gate's lock, while the gate is closed. The first
//! request of a list leaves a callback with the gate. The thread that opens the gate calls it, and
//! the callback sends the whole list to the serving thread. A thaw, a shutdown and the end of the
//! mount open the gate.

use crate::abi::{self, InHeader, op};
use crate::args::Args;
use crate::transport::{Reply, Request};
use kedgefs::Thawed;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;

/// The most bytes of requests that wait for a thaw.
pub(crate) const PARKED_MAX: u64 = 256 << 20;

/// A request of at most this many bytes, enough for two names, is always parked.
const SMALL_MAX: usize = 1024;

/// After this many checks, an INTERRUPT whose request is not parked is dropped.
const LOOKS_MAX: u32 = 20;

/// The jobs of the thread for freeze and thaw.
pub(crate) enum Job {
    Change(Box<Parked>),
    Freeze {
        reply: Reply,
        seconds: u32,
        unique: u64,
    },
    Thaw {
        reply: Reply,
        unique: u64,
    },
    /// A signal was sent to the caller of the request with this number.
    Interrupt(u64),
    /// The mount has ended.
    End,
}

/// The parked requests, and the sending end of the thread's queue.
pub(crate) struct Parking {
    jobs: Sender<Job>,
    waiting: Arc<Waiting>,
    parked_max: u64,
}

/// A request that waits for a thaw.
pub(crate) struct Parked {
    header: InHeader,
    body: Box<[u8]>,
    token: u32,
    reply: Reply,
    _room: Room,
}

impl Parked {
    /// Serves the request. Its bytes count against the limit until `serve` returns.
    pub(crate) fn serve(self, serve: impl FnOnce(&Request<'_>, Reply)) {
        let Parked { header, body, token, reply, _room } = self;
        serve(&Request { header, body: &body, token }, reply);
    }

    /// Replies with an error and makes no change.
    pub(crate) fn refuse(self, errno: i32) {
        self.reply.err(errno);
    }
}

/// The requests that wait for a thaw.
#[derive(Default)]
struct Waiting {
    list: Mutex<List>,
    bytes: Arc<AtomicU64>,
}

#[derive(Default)]
struct List {
    /// The requests in order of arrival.
    parked: Vec<Parked>,
    /// Whether the gate has the callback that takes this list.
    called: bool,
}

impl Waiting {
    fn take(&self) -> Vec<Parked> {
        let mut list = self.list.lock();
        list.called = false;
        std::mem::take(&mut list.parked)
    }

    /// Removes the interrupted requests whose callers `is_killed`, and drops interrupts whose
    /// requests were not found in [`LOOKS_MAX`] checks.
    fn take_killed(
        &self,
        interrupted: &mut BTreeMap<u64, u32>,
        is_killed: impl Fn(u32) -> bool,
    ) -> Vec<Parked> {
        interrupted.values_mut().for_each(|looks| *looks += 1);
        let mut list = self.list.lock();
        let killed = |parked: &mut Parked| {
            let looks = interrupted.get_mut(&parked.header.unique);
            looks.is_some_and(|looks| {
                *looks = 0;
                is_killed(parked.header.pid)
            })
        };
        let killed: Vec<_> = list.parked.extract_if(.., killed).collect();
        for parked in &killed {
            interrupted.remove(&parked.header.unique);
        }
        interrupted.retain(|_, looks| *looks < LOOKS_MAX);
        killed
    }
}

/// A reservation of a part of [`PARKED_MAX`], released on drop.
struct Room {
    bytes: u64,
    taken: Arc<AtomicU64>,
}

impl Room {
    /// Reserves `bytes`. With `always`, even beyond the limit.
    fn take(parking: &Parking, bytes: u64, always: bool) -> Option<Room> {
        let room = Room { bytes, taken: parking.waiting.bytes.clone() };
        let before = room.taken.fetch_add(bytes, Relaxed);
        (always || before + bytes <= parking.parked_max).then_some(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Relaxed);
    }
}

impl Parking {
    pub(crate) fn new(jobs: Sender<Job>) -> Parking {
        Parking { jobs, waiting: Arc::default(), parked_max: PARKED_MAX }
    }

    #[cfg(test)]
    pub(crate) fn with_room(self, bytes: u64) -> Parking {
        Parking { parked_max: bytes, ..self }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.waiting.list.lock().parked.len()
    }

    /// The number of bytes of all parked requests.
    pub(crate) fn bytes(&self) -> u64 {
        self.waiting.bytes.load(Relaxed)
    }

    /// If the thread has ended, the job is dropped, and its reply sends EIO.
    pub(crate) fn send(&self, job: Job) {
        if self.jobs.send(job).is_err() {
            tracing::error!("no thread serves what waited for a thaw");
        }
    }

    /// See [`Waiting::take_killed`].
    pub(crate) fn take_killed(
        &self,
        interrupted: &mut BTreeMap<u64, u32>,
        is_killed: impl Fn(u32) -> bool,
    ) -> Vec<Parked> {
        self.waiting.take_killed(interrupted, is_killed)
    }

    /// Parks a request. Returns the callback for the gate, or `None` if the gate has it already. If
    /// there is no space, returns the reply as the error.
    pub(crate) fn park(&self, request: &Request<'_>, reply: Reply) -> Result<Option<Thawed>, Reply> {
        let bytes = (size_of::<Parked>() + request.body.len()) as u64;
        let always = request.body.len() <= SMALL_MAX || is_from_cache(request);
        let Some(room) = Room::take(self, bytes, always) else { return Err(reply) };
        let (header, body, token) = (request.header, request.body.into(), request.token);
        let parked = Parked { header, body, token, reply, _room: room };
        let is_first = {
            let mut list = self.waiting.list.lock();
            list.parked.push(parked);
            !std::mem::replace(&mut list.called, true)
        };
        let (waiting, jobs) = (self.waiting.clone(), self.jobs.clone());
        let call = move || {
            for parked in waiting.take() {
                // Fails only if the thread, and with it the mount, has ended.
                drop(jobs.send(Job::Change(Box::new(parked))));
            }
        };
        Ok(is_first.then(|| Box::new(call) as Thawed))
    }
}

/// Whether the request is a write of dirty pages, so that no caller waits for it.
fn is_from_cache(request: &Request<'_>) -> bool {
    let asked = Args::new(request.body).take();
    request.header.opcode == op::WRITE
        && asked.is_ok_and(|asked: abi::WriteIn| asked.write_flags & abi::WRITE_CACHE != 0)
}

#[cfg(test)]
#[path = "parking_tests.rs"]
mod tests;
