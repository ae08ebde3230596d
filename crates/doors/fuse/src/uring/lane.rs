//! The ring of one processor, with the kernel's queues that it serves and their entries.
//!
//! # Which thread submits
//! The kernel runs a submitted command's later steps in the thread that submitted it, and cancels
//! the command when that thread ends. So only the lane's workers submit, because they live as long
//! as the connection. Another thread that has a reply, usually one of the log, puts it into the
//! *outbox* and signals the *bell*, an eventfd that the ring reads. The worker that receives then
//! commits the replies in the outbox.
//!
//! A worker's own reply is submitted with its next call: one system call commits a reply and waits
//! for a request.
//!
//! # Why the entries do not run out
//! A request holds an entry until its reply, and some requests wait for others: a write while the
//! file system is frozen, a seek for the pages of the file. If a request finds no entry, the kernel
//! queues it, and takes it from the queue only when a reply is committed, not when an entry is
//! registered. If all entries are held by requests that wait for a queued one, there is a deadlock.
//! So a lane doubles its entries as soon as half of them are held.

#![allow(unsafe_code)]

use super::entry::{Arrived, COPIED_MAX, Entry};
use super::wire::{COMMIT_AND_FETCH, REGISTER, UringCommand};
use crate::abi::OutHeader;
use crate::transport::{Received, Request, RequestBuf};
use io_uring::squeue::Entry128;
use io_uring::{EnterFlags, IoUring, cqueue, opcode, types};
use parking_lot::{Condvar, Mutex, RwLock};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use std::cell::{Cell, UnsafeCell};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use zerocopy::IntoBytes;

/// The number of entries at the start: of the queue of this lane's processor, and the most of any
/// other queue.
const ENTRIES: (usize, usize) = (256, 64);
/// Limit for the entries of a lane. Each has 1 MiB of memory, which is allocated as requests use
/// it.
const ENTRIES_MAX: usize = 1 << 14;
/// The most entries that a queue gets at a time. Up to this number its entries are doubled.
const MORE_MAX: usize = 256;
const SUBMISSIONS: u32 = 512;
const PUSHES_MAX: usize = 1000;
/// The `user_data` of the ring's read of the bell.
const BELL: u64 = u64::MAX;

/// The state that the lock protects.
struct State {
    registered: bool,
    bell_armed: bool,
    /// For each of `Lane::queues`: the number of entries that the kernel has, and of all entries.
    counts: Vec<(usize, usize)>,
    /// The requests that workers read in place: worker and entry.
    in_place: Vec<(usize, u32)>,
}

/// Replies of threads that are not workers of this lane.
#[derive(Default)]
struct Outbox {
    replies: Vec<u32>,
    /// Whether a worker waits in the kernel, so that the bell must be signalled.
    asleep: bool,
}

pub(super) struct Lane {
    /// The processor on which the lane's workers run.
    pub processor: u16,
    /// The queues that the lane serves, the processor's own first.
    queues: Vec<u16>,
    device: RawFd,
    ring: IoUring<Entry128, cqueue::Entry>,
    /// The lock also protects the submission and completion queues of `ring`.
    state: Mutex<State>,
    entries: RwLock<Vec<Arc<Entry>>>,
    outbox: Mutex<Outbox>,
    bell: OwnedFd,
    /// The buffer for the ring's read of the bell.
    rung: Box<UnsafeCell<u64>>,
    stopped: AtomicBool,
    /// Whether the connection is negotiated or has ended.
    started: Mutex<bool>,
    starts: Condvar,
}

// SAFETY: only the kernel writes to `rung`, and no thread reads it. `state` protects the ring's
// queues, and all other fields are `Sync`.
unsafe impl Sync for Lane {}

/// The number of entries at the start of each queue of another processor, if a lane serves `others`
/// of them. Each queue needs one, because the kernel uses the rings only when all queues have
/// entries. Half of the entries are left for the queues that need more later.
fn entries_of_other(others: usize) -> usize {
    (ENTRIES_MAX / 2 / others.max(1)).clamp(1, ENTRIES.1)
}

thread_local! {
    /// The address of the lane of which this thread is a worker; 0 if it is none.
    static WORKS_FOR: Cell<usize> = const { Cell::new(0) };
}

impl Lane {
    /// Makes a lane for the connection of `device`, which must outlive the lane.
    pub(super) fn new(device: &OwnedFd, processor: u16, others: Vec<u16>) -> io::Result<Lane> {
        let ring =
            IoUring::builder().setup_coop_taskrun().setup_cqsize(4 * SUBMISSIONS).build(SUBMISSIONS)?;
        let queues: Vec<u16> = [processor].into_iter().chain(others).collect();
        let counts = vec![(0, 0); queues.len()];
        Ok(Lane {
            processor,
            queues,
            device: device.as_raw_fd(),
            ring,
            state: Mutex::new(State { registered: false, bell_armed: false, counts, in_place: Vec::new() }),
            entries: RwLock::default(),
            outbox: Mutex::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC)?,
            rung: Box::new(UnsafeCell::new(0)),
            stopped: AtomicBool::new(false),
            started: Mutex::new(false),
            starts: Condvar::new(),
        })
    }

    /// Called when the connection is negotiated: the workers then register the entries and receive.
    pub(super) fn start(&self) {
        *self.started.lock() = true;
        self.starts.notify_all();
    }

    /// Stops receiving.
    pub(super) fn stop(&self) {
        self.stopped.store(true, SeqCst);
        self.start();
        self.ring_bell();
    }

    /// Makes the calling thread a worker of this lane, and binds it to the lane's processor if
    /// possible.
    pub(super) fn adopt_thread(&self) {
        WORKS_FOR.set(self.address());
        let mut set = rustix::thread::CpuSet::new();
        set.set(self.processor.into());
        if let Err(e) = rustix::thread::sched_setaffinity(None, &set) {
            tracing::debug!("a worker of processor {} runs anywhere: {e}", self.processor);
        }
    }

    /// A number that no other existing lane has.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn ring_bell(&self) {
        if let Err(e) = rustix::io::write(&self.bell, &1u64.to_ne_bytes()) {
            // Only a full counter is an error, and then the bell is signalled already.
            tracing::debug!("the bell of a lane: {e}");
        }
    }

    pub(super) fn receive<'a>(
        &'a self,
        worker: usize,
        buf: &'a mut RequestBuf,
        token: u32,
    ) -> io::Result<Received<'a>> {
        if self.stopped.load(SeqCst) {
            return Ok(Received::Ended);
        }
        let mut state = self.state.lock();
        if !state.registered {
            if !*self.started.lock() {
                return Ok(Received::Nothing);
            }
            for queue in 0..self.queues.len() {
                let count = if queue == 0 { ENTRIES.0 } else { entries_of_other(self.queues.len() - 1) };
                self.register(&mut state, queue, count)?;
            }
            state.registered = true;
        }
        self.release_of(&mut state, worker)?;
        self.take_outbox(&mut state)?;
        if !state.bell_armed {
            let read = opcode::Read::new(types::Fd(self.bell.as_raw_fd()), self.rung.get().cast(), 8);
            self.push(&read.build().user_data(BELL).into())?;
            state.bell_armed = true;
        }
        // SAFETY: this thread holds the lock on `state`, so no other thread uses the completion
        // queue.
        let next = unsafe { self.ring.completion_shared() }.next();
        let Some(completion) = next else { return Ok(Received::Nothing) };
        if completion.user_data() == BELL {
            state.bell_armed = false;
            // The caller calls again before it waits, because the bell must be armed first.
            return Ok(Received::Nothing);
        }
        self.submit()?;
        self.received(&mut state, worker, buf, &completion, token)
    }

    fn received<'a>(
        &'a self,
        state: &mut State,
        worker: usize,
        buf: &'a mut RequestBuf,
        completion: &cqueue::Entry,
        token: u32,
    ) -> io::Result<Received<'a>> {
        match -completion.result() {
            ..=0 => {}
            libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED => {
                self.stop();
                return Ok(Received::Ended);
            }
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
        let number = completion.user_data() as usize;
        let entry = self.entries.read()[number].clone();
        let queue = self.place_of(&entry);
        state.counts[queue].0 -= 1;
        let (free, all) = state.counts[queue];
        if free < all / 2 {
            self.register(state, queue, all.min(MORE_MAX))?;
            self.submit()?;
        }
        let arrived = entry.arrived()?;
        let Arrived { header, op_len, payload_len } = arrived;
        let len = op_len + payload_len;
        let in_place = len > COPIED_MAX;
        entry.begin(in_place);
        let token = token | number as u32;
        let body: &'a [u8] = if in_place {
            state.in_place.push((worker, number as u32));
            let body = entry.body(&arrived);
            // SAFETY: entries are never dropped before the lane, and these bytes are not changed
            // before the release, which this worker makes when it receives the next request.
            unsafe { std::slice::from_raw_parts(body.as_ptr(), body.len()) }
        } else {
            let copy = &mut buf.as_mut_bytes()[..len];
            copy.copy_from_slice(entry.body(&arrived));
            copy
        };
        Ok(Received::Request(Request { header, body, token }))
    }

    /// Releases the request that the worker has read in place.
    fn release_of(&self, state: &mut State, worker: usize) -> io::Result<()> {
        while let Some(at) = state.in_place.iter().position(|(reader, _)| *reader == worker) {
            let (_, number) = state.in_place.swap_remove(at);
            if self.entries.read()[number as usize].release() {
                self.commit(state, number)?;
            }
        }
        Ok(())
    }

    fn take_outbox(&self, state: &mut State) -> io::Result<()> {
        let replies = std::mem::take(&mut self.outbox.lock().replies);
        for number in replies {
            self.commit(state, number)?;
        }
        Ok(())
    }

    /// Passes `count` more entries to the kernel, for the queue with this index in `Lane::queues`.
    fn register(&self, state: &mut State, queue: usize, count: usize) -> io::Result<()> {
        let first = self.entries.read().len();
        let count = count.min(ENTRIES_MAX - first);
        if count == 0 {
            tracing::warn!("{ENTRIES_MAX} requests of processor {} wait; more have to queue", self.processor);
            return Ok(());
        }
        for (number, entry) in (first..).zip(Entry::slab(self.queues[queue], count)) {
            let entry = Arc::new(entry);
            self.entries.write().push(entry.clone());
            let command = UringCommand { queue: entry.queue, ..UringCommand::default() };
            self.push(&self.command(REGISTER, command, number, Some(entry.parts())))?;
            state.counts[queue].0 += 1;
            state.counts[queue].1 += 1;
        }
        Ok(())
    }

    fn commit(&self, state: &mut State, number: u32) -> io::Result<()> {
        let entry = self.entries.read()[number as usize].clone();
        let command =
            UringCommand { commit_id: entry.commit_id(), queue: entry.queue, ..UringCommand::default() };
        self.push(&self.command(COMMIT_AND_FETCH, command, number as usize, None))?;
        state.counts[self.place_of(&entry)].0 += 1;
        Ok(())
    }

    /// The index of an entry's queue in `Lane::queues`.
    fn place_of(&self, entry: &Entry) -> usize {
        let place = self.queues.iter().position(|queue| *queue == entry.queue);
        place.expect("a lane has only entries of its queues")
    }

    fn command(&self, operation: u32, command: UringCommand, number: usize, parts: Option<u64>) -> Entry128 {
        let mut bytes = [0; 80];
        bytes[..size_of::<UringCommand>()].copy_from_slice(command.as_bytes());
        let fd = types::Fd(self.device);
        let built = opcode::UringCmd80::new(fd, operation).cmd(bytes).addr(parts).build();
        let mut built = built.user_data(number as u64);
        if parts.is_some() {
            const LEN_AT: usize = 24;
            // SAFETY: `Entry128` has the layout of the kernel's 128 bytes, so `LEN_AT` is inside
            // it. The crate has no method for the field `len`, which is the number of parts here.
            unsafe {
                (&raw mut built).cast::<u8>().add(LEN_AT).cast::<u32>().write_unaligned(2);
            }
        }
        built
    }

    /// Adds a submission to the ring. The caller must hold the lock on the state.
    fn push(&self, entry: &Entry128) -> io::Result<()> {
        // If the ring is full, it is submitted first, which a kernel without memory may refuse.
        for _ in 0..PUSHES_MAX {
            // SAFETY: the caller holds the lock on the state, so no other thread uses the
            // submission queue. The memory that the entry refers to belongs to this lane, which
            // outlives the ring's commands.
            if unsafe { self.ring.submission_shared().push(entry) }.is_ok() {
                return Ok(());
            }
            self.submit()?;
        }
        Err(io::Error::other("the kernel takes no submissions"))
    }

    /// Submits the submissions in the ring without waiting. The caller must hold the lock on the
    /// state.
    fn submit(&self) -> io::Result<()> {
        // SAFETY: the caller holds the lock on the state, so no other thread uses the submission
        // queue.
        let len = unsafe { self.ring.submission_shared() }.len();
        if len > 0 { self.enter(len, false) } else { Ok(()) }
    }

    fn enter(&self, submissions: usize, waits: bool) -> io::Result<()> {
        let flags = if waits { EnterFlags::GETEVENTS.bits() } else { 0 };
        // SAFETY: the call passes no pointer: the signal mask is absent.
        let entered = unsafe {
            self.ring.submitter().enter::<libc::sigset_t>(submissions as u32, u32::from(waits), flags, None)
        };
        match entered {
            Ok(_) => Ok(()),
            Err(e) => match e.raw_os_error() {
                // With EBUSY and EAGAIN the caller reaps completions and calls again.
                Some(libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(e),
            },
        }
    }

    /// Submits everything in the ring, and waits for a completion.
    pub(super) fn wait(&self) -> io::Result<()> {
        {
            let mut started = self.started.lock();
            while !*started {
                self.starts.wait(&mut started);
            }
        }
        if self.stopped.load(SeqCst) {
            return Ok(());
        }
        let state = self.state.lock();
        {
            let mut outbox = self.outbox.lock();
            if !outbox.replies.is_empty() || !state.bell_armed {
                return Ok(());
            }
            outbox.asleep = true;
        }
        // SAFETY: this thread holds the lock on `state`, so no other thread uses the submission
        // queue.
        let submissions = unsafe { self.ring.submission_shared() }.len();
        drop(state);
        let waited = self.enter(submissions, true);
        self.outbox.lock().asleep = false;
        waited
    }

    /// Submits the replies in the ring that wait for the worker's next call. With `is_done` also
    /// releases the request that the worker has read in place.
    pub(super) fn flush(&self, worker: usize, is_done: bool) -> io::Result<()> {
        let mut state = self.state.lock();
        if is_done {
            self.release_of(&mut state, worker)?;
        }
        self.submit()
    }

    pub(super) fn reply(&self, number: u32, header: OutHeader, parts: &[&[u8]]) -> io::Result<()> {
        let entry = self.entries.read()[number as usize].clone();
        if !entry.reply(header, parts) {
            return Ok(());
        }
        if WORKS_FOR.get() == self.address() {
            return self.commit(&mut self.state.lock(), number);
        }
        let wakes = {
            let mut outbox = self.outbox.lock();
            outbox.replies.push(number);
            std::mem::take(&mut outbox.asleep)
        };
        if wakes {
            self.ring_bell();
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;
