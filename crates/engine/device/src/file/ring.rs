//! Batches through io_uring: one thread owns the ring, submits requests from the queue and delivers
//! completions.
//!
//! The rejected alternative is that callers submit to the ring under a lock. The kernel ties
//! requests to the thread that submitted them: a request that the kernel has passed to a helper
//! thread is cancelled when the submitting thread exits, and the exit of a short-lived caller must
//! not cancel a flush. With a single owner no state of the ring is shared either. The cost is a
//! thread switch for each batch. Single requests whose latency matters use the synchronous
//! interface.
//!
//! Buffers that the kernel uses stay in `slots` until their completion has been taken.
//! [`Ring::drain`] runs before the slots are freed, even when the thread unwinds.

#![allow(unsafe_code)]

use super::queue::{Job, Queue, Taken};
use super::raw::{RawFile, Step, Transfer, unsupported};
use super::sys::{PUNCH, ZERO};
use crate::Op;
use io_uring::{IoUring, opcode, squeue, types};
use kedge_base::Error;
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;

/// Maximum number of requests in the kernel at a time. The ring has twice as many entries, so that
/// one is always free.
const DEPTH: usize = 128;
const BELL: u64 = u64::MAX;
/// Maximum length in bytes of one request; the kernel limits a call to just below 2 GiB anyway.
const REQUEST_MAX: usize = 1 << 30;
/// Number of interruptions of one request from which on they count as an error.
const INTERRUPTS_MAX: u32 = 1000;

struct Flight {
    job: Job,
    transfer: Transfer,
    interrupts: u32,
}

struct Ring {
    ring: IoUring,
    file: Arc<RawFile>,
    queue: Arc<Queue>,
    slots: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Jobs from the queue that have no slot yet. If a completion panics, they are completed, too.
    taken: VecDeque<Job>,
    /// Flights whose next request must still be put into the ring.
    starting: Vec<usize>,
    /// Number of flights that the kernel has received and not completed.
    in_kernel: usize,
    bell_armed: bool,
}

/// The body of the ring thread. Reports through `ready` whether the ring could be created.
pub(super) fn serve(file: Arc<RawFile>, queue: Arc<Queue>, ready: Sender<std::io::Result<()>>) {
    Queue::serve_here();
    let ring = match build() {
        Ok(ring) => ring,
        Err(e) => {
            // The opener waits for this result. If the opener has gone, there is no receiver, and
            // the error is ignored.
            drop(ready.send(Err(e)));
            return;
        }
    };
    drop(ready.send(Ok(())));
    let mut ring = Ring {
        ring,
        file,
        queue,
        slots: (0..DEPTH).map(|_| None).collect(),
        free: (0..DEPTH).rev().collect(),
        taken: VecDeque::new(),
        starting: Vec::new(),
        in_kernel: 0,
        bell_armed: false,
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| ring.run()));
    if let Ok(Ok(())) = &outcome {
        return;
    }
    if let Ok(Err(e)) = &outcome {
        tracing::error!(device = %ring.file.name, "io_uring failed, the device is dead: {e}");
    }
    ring.fail();
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// Returns whether valgrind runs this process: valgrind preloads its own libraries.
fn is_under_valgrind() -> bool {
    let mark = b"/vgpreload_";
    std::env::var_os("LD_PRELOAD")
        .is_some_and(|list| list.as_bytes().windows(mark.len()).any(|part| part == mark))
}

fn build() -> std::io::Result<IoUring> {
    // valgrind runs one thread at a time and (in version 3.19) counts a thread that waits in the
    // ring as running, so the process would hang at its first batch.
    if is_under_valgrind() {
        return Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "under valgrind it would hang"));
    }
    let entries = 2 * DEPTH as u32;
    // Deferred task work saves interrupts of this thread; older kernels refuse the flags.
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(entries)
        .or_else(|_| IoUring::builder().build(entries))
}

impl Ring {
    /// Runs until the queue is closed and every request has completed.
    fn run(&mut self) -> std::io::Result<()> {
        loop {
            let mut closed = false;
            while !self.free.is_empty() {
                match self.queue.take(self.free.len()) {
                    Taken::Jobs(jobs) => self.taken.extend(jobs),
                    Taken::Nothing => break,
                    Taken::Closed => {
                        closed = true;
                        break;
                    }
                }
                while let Some(job) = self.taken.pop_front() {
                    self.admit(job);
                }
            }
            let flying = self.free.len() < DEPTH;
            if closed && !flying {
                return Ok(());
            }
            if !self.bell_armed && !closed {
                self.arm_bell();
            }
            for slot in std::mem::take(&mut self.starting) {
                if self.slots[slot].as_ref().is_some_and(|flight| flight.job.apart) {
                    self.enter(0)?;
                }
                self.start(slot);
            }
            self.enter(1)?;
            for (user_data, result) in self.reap() {
                if user_data == BELL {
                    self.bell_armed = false;
                    self.queue.bell.silence();
                } else {
                    self.answer(user_data as usize, result);
                }
            }
        }
    }

    /// Submits the entries of the ring to the kernel, and waits for `answers` completions.
    fn enter(&mut self, answers: usize) -> std::io::Result<()> {
        let waiting = self.ring.submission().len() as u64;
        match self.ring.submit_and_wait(answers) {
            Ok(_) => {
                self.queue.calls.fetch_add((waiting > 0) as u64, Relaxed);
                Ok(())
            }
            // The kernel is busy: completions must be taken first, which the caller does next.
            // Entries that the kernel did not accept stay in the ring for the next call.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn reap(&mut self) -> Vec<(u64, i32)> {
        let answers: Vec<_> = self.ring.completion().map(|cqe| (cqe.user_data(), cqe.result())).collect();
        self.in_kernel -= answers.iter().filter(|(user_data, _)| *user_data != BELL).count();
        answers
    }

    fn admit(&mut self, job: Job) {
        let len = match &job.request.op {
            Op::Read(buf) | Op::Write { buf, .. } => buf.len(),
            _ => 0,
        };
        if self.needs_thread(&job.request.op) {
            return job.perform(&self.file);
        }
        let slot = self.free.pop().expect("no more was taken than is free");
        let transfer = Transfer::new(len, self.file.direct);
        self.slots[slot] = Some(Flight { job, transfer, interrupts: 0 });
        self.starting.push(slot);
    }

    /// Returns whether the operation must be performed synchronously, because the ring cannot do it
    /// or has failed to do it on this file. Such operations are rare, so they may block the ring
    /// thread. Flushes are among them, since they must run one at a time ([`crate::flushes`]); the
    /// engine makes them through the synchronous interface.
    fn needs_thread(&self, op: &Op) -> bool {
        match op {
            Op::Read(buf) => buf.is_empty(),
            Op::Write { buf, fua } => {
                let refused = || self.file.flushes.check().is_err();
                buf.is_empty() || self.file.read_only || (*fua && (!self.file.takes_dsync() || refused()))
            }
            Op::Flush => true,
            Op::Discard { len } => *len == 0 || self.file.read_only || self.file.block_device,
            Op::WriteZeroes { len } => {
                *len == 0 || self.file.read_only || self.file.no_zero_range.load(Relaxed)
            }
        }
    }

    fn arm_bell(&mut self) {
        let fd = types::Fd(self.queue.bell.fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).build().user_data(BELL);
        self.push(&entry);
        self.bell_armed = true;
    }

    /// Puts a request for the remaining range of a flight into the ring.
    fn start(&mut self, slot: usize) {
        let fd = types::Fd(self.file.fd.as_raw_fd());
        let flight = self.slots[slot].as_mut().expect("a starting slot is taken");
        let done = flight.transfer.done;
        let offset = flight.job.request.offset + done as u64;
        let len = flight.transfer.remaining().min(REQUEST_MAX) as u32;
        let entry = match &mut flight.job.request.op {
            Op::Read(buf) => {
                let to = buf.as_mut_bytes()[done..].as_mut_ptr();
                opcode::Read::new(fd, to, len).offset(offset).build()
            }
            Op::Write { buf, fua } => {
                let flags = if *fua { libc::RWF_DSYNC } else { 0 };
                let from = buf.as_bytes()[done..].as_ptr();
                opcode::Write::new(fd, from, len).offset(offset).rw_flags(flags).build()
            }
            Op::Flush => unreachable!("a flush needs a thread"),
            Op::Discard { len } => {
                opcode::Fallocate::new(fd, *len).offset(offset).mode(PUNCH.bits() as i32).build()
            }
            Op::WriteZeroes { len } => {
                opcode::Fallocate::new(fd, *len).offset(offset).mode(ZERO.bits() as i32).build()
            }
        };
        self.push(&entry.user_data(slot as u64));
        self.in_kernel += 1;
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the buffer that an entry refers to belongs to a flight in `slots`. Its heap
        // memory does not move, and nothing accesses it until the completion has been taken off the
        // ring. The bell's entry refers to no buffer. The file descriptors are owned through
        // `self`, which outlives the requests because `drain` waits for them.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("the ring has more entries than there are slots and the bell");
    }

    fn answer(&mut self, slot: usize, result: i32) {
        let flight = self.slots[slot].as_mut().expect("completions arrive for flights only");
        let op = &flight.job.request.op;
        let outcome = if result >= 0 {
            match op {
                Op::Read(_) | Op::Write { .. } => match flight.transfer.advance(result as usize) {
                    Step::Done => Ok(()),
                    Step::More => return self.starting.push(slot),
                    Step::Stuck => Err(Errno::IO),
                },
                _ => Ok(()),
            }
        } else {
            Err(Errno::from_raw_os_error(-result))
        };
        let optional = !matches!(op, Op::Read(_) | Op::Write { fua: false, .. });
        let is_durable = matches!(op, Op::Write { fua: true, .. });
        match outcome {
            Err(Errno::INTR | Errno::AGAIN) if flight.interrupts < INTERRUPTS_MAX => {
                flight.interrupts += 1;
                return self.starting.push(slot);
            }
            Err(e) if unsupported(e) && optional => {
                // The synchronous path has the fallbacks, and remembers which of them are needed.
                return self.land(slot).job.perform(&self.file);
            }
            _ => {}
        }
        let Flight { job, transfer, .. } = self.land(slot);
        let offset = job.request.offset + transfer.done as u64;
        let len = match &job.request.op {
            Op::Discard { len } | Op::WriteZeroes { len } => *len,
            _ => transfer.remaining() as u64,
        };
        let op = job.request.op.name();
        let result = outcome.map_err(|e| Error::Io { op, offset, len, errno: e.raw_os_error() });
        let checked = if is_durable { self.file.flushes.check() } else { Ok(()) };
        job.complete(result.and(checked));
    }

    fn land(&mut self, slot: usize) -> Flight {
        self.free.push(slot);
        self.slots[slot].take().expect("a flight lands once")
    }

    /// Completes every request with an error after the ring has failed. The outcome of requests in
    /// the kernel is unknown.
    fn fail(&mut self) {
        self.drain();
        let flights = self.slots.iter_mut().filter_map(Option::take).map(|flight| flight.job);
        for job in flights.chain(self.taken.drain(..)).chain(self.queue.abandon()) {
            job.complete(Err(Error::OutcomeUnknown));
        }
    }

    /// Waits until the kernel uses no buffer any more. If the ring cannot report that, the buffers
    /// are leaked.
    fn drain(&mut self) {
        while self.in_kernel > 0 {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                Err(e) => {
                    tracing::error!(device = %self.file.name, "buffers are lost to the kernel: {e}");
                    self.slots.iter_mut().filter_map(Option::take).for_each(std::mem::forget);
                    return;
                }
            }
            self.reap();
        }
    }
}
