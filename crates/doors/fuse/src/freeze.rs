//! Freezes and thaws a mount, and parks the changes that wait in between.
//!
//! A changing request that arrives while the file system is frozen is *parked*: its bytes are kept,
//! and the worker goes on. So any number of writers may wait, and reads and the thaw still find a
//! worker. After the thaw one thread serves the parked requests. The same thread carries out freeze
//! and thaw, because a freeze waits for changes that workers are making.
//!
//! # Bounds
//! Parked requests take at most [`PARKED_MAX`] bytes. Beyond this limit a change fails with ENOMEM
//! and has no effect. Two kinds are exempt:
//! - writes from the kernel's cache: the kernel would treat the error as a device failure and
//!   consider the pages clean. It sends at most `MAX_BACKGROUND` of them at a time;
//! - small requests, of which each waiting thread has one. The kernel stack of such a thread is
//!   larger than the request.
//!
//! # A program that is killed
//! The kernel sends INTERRUPT once when a waiting thread gets a signal. A thread that is being
//! killed gets EINTR, and its change is not made, so that its process can end before the thaw.
//! After any other signal the thread goes on waiting, as on file systems of the kernel: few
//! programs expect EINTR from a rename. A thread that this process cannot see in /proc (another pid
//! namespace, `hidepid`) counts as killed by any signal, because it might never end otherwise. But
//! without a /proc of its own pid namespace this process sees no other process, and assumes that
//! all callers are alive. As long as an interrupted request is parked, the thread checks repeatedly
//! whether the caller is being killed. An INTERRUPT may overtake its request on the way to the
//! gate; so for a while the thread also keeps INTERRUPTs whose request it does not find.
//!
//! Writes from the kernel's cache have no caller, so a thread that waits for such a write cannot be
//! killed.
//!
//! # Why no parked request is forgotten
//! A request joins the list under the gate's lock, while the gate is closed. The first request of a
//! list leaves a callback with the gate. The thread that opens the gate makes this call, which
//! takes the whole list and sends it to the serving thread. A thaw, a shutdown and the end of the
//! mount open the gate.

use crate::abi::{self, InHeader, op};
use crate::control;
use crate::dispatch::{Answer, Args, Errno};
use crate::flags;
use crate::mount;
use crate::ops::Ops;
use crate::server::Server;
use crate::transport::{Reply, Request};
use kedge_base::{Clock, IoBuf, SystemClock, without_panic};
use kedgefs::{Ino, Thawed};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::time::Duration;
use zerocopy::FromZeros;

/// The most bytes of requests that wait for a thaw.
const PARKED_MAX: u64 = 256 << 20;

/// Freezes the file system of an open directory. Its argument points to a `u32`: the seconds until
/// an automatic thaw; 0 means never.
pub const IOC_FREEZE: u32 = 0x4004_6b01;
/// Ends the freeze.
pub const IOC_THAW: u32 = 0x6b02;

/// A request of at most this number of bytes, enough for two names, is always parked.
const SMALL_MAX: usize = 1024;

/// The interval at which the thread checks whether the callers of interrupted requests are being
/// killed.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The delay until an automatic thaw is retried that found no space on the image's host.
const THAW_AGAIN: Duration = Duration::from_secs(1);
/// The number of checks for an interrupted request that is not parked.
const LOOKS_MAX: u32 = 20;

/// The jobs of the thread.
pub(crate) enum Job {
    Change(Box<Parked>),
    Freeze {
        reply: Reply,
        seconds: u32,
    },
    Thaw {
        reply: Reply,
    },
    /// A signal has arrived for the caller of the request with this number.
    Interrupt(u64),
    /// The mount has ended.
    End,
}

/// The sending end of the thread's queue, and the parked requests.
pub(crate) struct Late {
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
    /// Whether the gate has the callback that takes the list.
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
    /// Reserves `bytes`, with `always` even beyond the limit.
    fn take(late: &Late, bytes: u64, always: bool) -> Option<Room> {
        let room = Room { bytes, taken: late.waiting.bytes.clone() };
        let before = room.taken.fetch_add(bytes, Relaxed);
        (always || before + bytes <= late.parked_max).then_some(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Relaxed);
    }
}

impl Late {
    pub(crate) fn new(jobs: Sender<Job>) -> Late {
        Late { jobs, waiting: Arc::default(), parked_max: PARKED_MAX }
    }

    #[cfg(test)]
    fn with_room(self, bytes: u64) -> Late {
        Late { parked_max: bytes, ..self }
    }

    /// Bytes of parked requests.
    pub(crate) fn parked(&self) -> u64 {
        self.waiting.bytes.load(Relaxed)
    }

    /// If the thread has ended, the error returns the job, and dropping its reply sends EIO.
    pub(crate) fn send(&self, job: Job) {
        if self.jobs.send(job).is_err() {
            tracing::error!("no thread serves what waited for a thaw");
        }
    }

    /// Parks a request. Returns the callback for the gate, or `None` if the gate has it already;
    /// returns the reply as the error if there is no room.
    fn park(&self, request: &Request<'_>, reply: Reply) -> Result<Option<Thawed>, Reply> {
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
                // The send fails only if the thread, and with it the mount, has ended.
                drop(jobs.send(Job::Change(Box::new(parked))));
            }
        };
        Ok(is_first.then(|| Box::new(call) as Thawed))
    }
}

/// Whether the request is a write of dirty pages, for which no caller waits.
fn is_from_cache(request: &Request<'_>) -> bool {
    let asked = Args::new(request.body).take();
    request.header.opcode == op::WRITE
        && asked.is_ok_and(|asked: abi::WriteIn| asked.write_flags & abi::WRITE_CACHE != 0)
}

/// Whether thread `tid` is about to end: a fatal signal, even one for another thread of its
/// process, is pending as SIGKILL. A thread that cannot be seen counts as killed, because it may be
/// and there is no later check. If `proc` is not the /proc of this process's pid namespace, its
/// numbers name other threads, and all callers count as alive.
fn is_killed(proc: &Path, tid: u32) -> bool {
    const SIGKILL: u64 = 1 << (libc::SIGKILL - 1);
    if !shows_our_pids(proc) {
        return false;
    }
    let Ok(status) = std::fs::read_to_string(proc.join(format!("{tid}/status"))) else { return true };
    let pending = status.lines().filter_map(|line| {
        let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    });
    pending.fold(0, |all, set| all | set) & SIGKILL != 0
}

/// Whether `proc` is the /proc of this process's pid namespace: it lists this process under its own
/// pid.
fn shows_our_pids(proc: &Path) -> bool {
    let own = std::fs::read_link(proc.join("self"));
    own.is_ok_and(|own| own.as_os_str() == std::process::id().to_string().as_str())
}

impl<O: Ops> Server<O> {
    /// Serves a request now, or parks it for the thread if it has to wait for a thaw.
    pub(crate) fn serve(&self, request: &Request<'_>, reply: Reply, out: &mut IoBuf) {
        let Some(late) = self.late.as_ref().filter(|_| self.is_change(request)) else {
            return self.dispatch(request, reply, out);
        };
        let (reply, refused) = (Cell::new(Some(reply)), Cell::new(None));
        let mut now = || self.dispatch(request, reply.take().expect("one of the two takes it"), out);
        let mut later = || {
            let parked = late.park(request, reply.take().expect("one of the two takes it"));
            parked.unwrap_or_else(|reply| {
                refused.set(Some(reply));
                None
            })
        };
        self.ops.change_or(&mut now, &mut later);
        if let Some(reply) = refused.take() {
            reply.err(libc::ENOMEM);
        }
    }

    /// Whether a request changes the file system. `dispatch` refuses requests that cannot be
    /// parsed.
    fn is_change(&self, request: &Request<'_>) -> bool {
        let mut args = Args::new(request.body);
        match request.header.opcode {
            op::SETATTR | op::WRITE | op::FALLOCATE | op::REMOVEXATTR => true,
            op::MKNOD | op::MKDIR | op::SYMLINK | op::LINK | op::TMPFILE => true,
            op::UNLINK | op::RMDIR | op::RENAME | op::RENAME2 => true,
            op::CREATE => !self.options.no_open,
            op::OPEN if self.options.no_open => false,
            op::OPEN => args.take().is_ok_and(|asked: abi::OpenIn| asked.flags & libc::O_TRUNC as u32 != 0),
            op::SETXATTR => request.header.nodeid != Ino::ROOT.0 || !self.sets_options(args),
            op::IOCTL => args.take().is_ok_and(|asked: abi::IoctlIn| {
                matches!(asked.cmd, control::FITRIM | flags::FS_IOC_SETFLAGS | flags::FS_IOC_FSSETXATTR)
            }),
            _ => false,
        }
    }

    /// Passes an INTERRUPT to the thread. The kernel waits for no reply.
    pub(crate) fn interrupt(&self, args: &mut Args<'_>, reply: Reply) {
        let Some(late) = &self.late else { return reply.err(libc::ENOSYS) };
        reply.none();
        match args.take::<u64>() {
            Ok(unique) => late.send(Job::Interrupt(unique)),
            Err(_) => tracing::error!("malformed INTERRUPT"),
        }
    }

    /// Carries out IOC_FREEZE and IOC_THAW.
    pub(crate) fn freeze_or_thaw(&self, cmd: u32, args: &mut Args<'_>, header: &InHeader, reply: Reply) {
        let checked = control::check_owner(header).and_then(|()| match cmd {
            IOC_FREEZE => args.take(),
            _ => Ok(0),
        });
        match (checked, &self.late) {
            (Err(e), _) => reply.err(e.0),
            (_, None) => reply.err(libc::EOPNOTSUPP),
            (Ok(seconds), Some(late)) if cmd == IOC_FREEZE => late.send(Job::Freeze { reply, seconds }),
            (Ok(_), Some(late)) => late.send(Job::Thaw { reply }),
        }
    }
}

/// The body of the thread: carries out jobs until the mount has ended.
pub(crate) fn serve<O: Ops>(server: &Weak<Server<O>>, ops: &Arc<O>, jobs: &Receiver<Job>) {
    mount::become_io_flusher();
    let clock = SystemClock::default();
    // Replies to changes are short.
    let mut out = IoBuf::zeroed(1);
    let mut timers = Timers::default();
    loop {
        let job = match timers.next() {
            None => jobs.recv().ok(),
            Some(at) => match jobs.recv_timeout(at.saturating_sub(clock.monotonic())) {
                Err(RecvTimeoutError::Timeout) => {
                    timers.ring(server, &**ops, &clock);
                    continue;
                }
                job => job.ok(),
            },
        };
        match job {
            None | Some(Job::End) => return,
            Some(Job::Change(parked)) => {
                let Some(server) = server.upgrade() else { return };
                let Parked { header, body, token, reply, _room } = *parked;
                server.answer(&Request { header, body: &body, token }, reply, &mut out);
            }
            Some(Job::Freeze { reply, seconds }) => {
                let frozen = attempt(&**ops, O::freeze);
                if frozen.is_ok() {
                    let time = Duration::from_secs(seconds.into());
                    timers.thaw = (seconds > 0).then(|| clock.monotonic() + time);
                }
                reply.finish(frozen.map(|()| abi::IoctlOut::new_zeroed()));
            }
            Some(Job::Thaw { reply }) => {
                let thawed = attempt(&**ops, O::thaw);
                if thawed.is_ok() {
                    timers.thaw = None;
                }
                reply.finish(thawed.map(|()| abi::IoctlOut::new_zeroed()));
            }
            Some(Job::Interrupt(unique)) => {
                timers.interrupted.insert(unique, 0);
                timers.look.get_or_insert(clock.monotonic());
            }
        }
    }
}

/// The timed work of the thread, done when it has no jobs. Timers matter only during a freeze, when
/// changes are parked, so the queue of jobs soon becomes empty.
#[derive(Default)]
struct Timers {
    /// The time at which the freeze ends.
    thaw: Option<Duration>,
    /// The time of the next check of the callers of interrupted requests, if there are any.
    look: Option<Duration>,
    /// Requests that a signal has come for, with the number of looks that have not found them.
    interrupted: BTreeMap<u64, u32>,
}

impl Timers {
    fn next(&self) -> Option<Duration> {
        self.thaw.into_iter().chain(self.look).min()
    }

    fn ring<O: Ops>(&mut self, server: &Weak<Server<O>>, ops: &O, clock: &dyn Clock) {
        let now = clock.monotonic();
        if self.thaw.take_if(|at| *at <= now).is_some() {
            tracing::warn!("the time of the freeze is over");
            if let Err(e) = attempt(ops, O::thaw) {
                // EINVAL means that a program that links the library has thawed the file system.
                tracing::warn!("thaw: errno {}", e.0);
                // ENOSPC means that the image's host has no space and the file system is still
                // frozen.
                self.thaw = (e.0 == libc::ENOSPC).then(|| clock.monotonic() + THAW_AGAIN);
            }
        }
        if self.look.take_if(|at| *at <= now).is_some() {
            let server = server.upgrade();
            let Some(late) = server.as_ref().and_then(|server| server.late.as_ref()) else { return };
            for parked in
                late.waiting.take_killed(&mut self.interrupted, |tid| is_killed(Path::new("/proc"), tid))
            {
                parked.reply.err(libc::EINTR);
            }
            self.look = (!self.interrupted.is_empty()).then(|| now + LOOK_EVERY);
        }
    }
}

/// Runs a freeze or thaw. A panic shuts the file system down, as in a worker. The thread goes on,
/// or every later thaw would wait forever.
fn attempt<O: Ops>(ops: &O, run: impl FnOnce(&O) -> kedgefs::Result<()>) -> Answer<()> {
    let ran = without_panic("freeze or thaw", || Ok(run(ops)));
    ran.unwrap_or_else(|panic| {
        tracing::error!("{panic}: shutting the file system down");
        let down = without_panic("a shutdown", || Ok(ops.shutdown(false).map_err(|e| e.to_string())));
        if let Err(e) = down.unwrap_or_else(|panic| Err(panic.to_string())) {
            tracing::error!("shutdown after a panic failed: {e}");
        }
        Err(panic.into())
    })
    .map_err(Errno::from)
}

#[cfg(test)]
#[path = "freeze_tests.rs"]
mod tests;
