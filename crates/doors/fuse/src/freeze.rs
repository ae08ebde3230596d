//! The thread that freezes and thaws a mount, and serves the changes that were parked in between.
//!
//! The thread is not a worker, because a freeze waits for changes that workers are making.
//! [`crate::parking`] keeps the requests until the thaw.
//!
//! # If a caller is killed
//! The kernel sends INTERRUPT once when a waiting thread gets a signal. A thread that is being
//! killed gets EINTR, and its change is not made, so that its process can end before the thaw.
//! After any other signal the thread continues to wait, as on file systems of the kernel: few
//! programs expect EINTR from a rename. A thread that this process cannot see in /proc (another pid
//! namespace, `hidepid`) counts as killed by any signal, because it might never end otherwise. But
//! if this process has no /proc of its own pid namespace, it sees no other process and assumes that
//! all callers are alive. As long as an interrupted request is parked, the thread checks repeatedly
//! whether the caller is being killed. An INTERRUPT may overtake its request on the way to the
//! gate, so the thread also keeps INTERRUPTs without a request for a while.
//!
//! The kernel's writeback has no caller, so a thread that waits for it cannot be killed.

use crate::abi;
use crate::errno::{Answer, Errno};
use crate::keep::{Frozen, Kept};
use crate::limits::become_io_flusher;
use crate::ops::Ops;
use crate::parking::Job;
use crate::server::Server;
use kedge_base::{Clock, IoBuf, SystemClock, without_panic};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;
use zerocopy::FromZeros;

/// How often the thread checks whether callers of interrupted requests are being killed.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The delay after which an automatic thaw is retried if the image's host had no space.
const THAW_AGAIN: Duration = Duration::from_secs(1);

/// Whether thread `tid` is being killed: for a fatal signal, even one to another thread of its
/// process, SIGKILL is pending. A thread that cannot be seen counts as killed: it may be, and there
/// is no later check. If `proc` is not the /proc of this process's pid namespace, its numbers
/// belong to other threads, and all callers count as alive.
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

/// Whether `proc` is the /proc of this process's pid namespace: it has this process under its own
/// pid.
fn shows_our_pids(proc: &Path) -> bool {
    let own = std::fs::read_link(proc.join("self"));
    own.is_ok_and(|own| own.as_os_str() == std::process::id().to_string().as_str())
}

/// The body of the thread. Returns when the mount has ended.
pub(crate) fn serve<O: Ops>(server: &Weak<Server<O>>, ops: &Arc<O>, jobs: &Receiver<Job>) {
    become_io_flusher();
    let clock = SystemClock::default();
    // One block suffices, because replies to changes are short.
    let mut out = IoBuf::zeroed(1);
    let kept = || server.upgrade().and_then(|server| server.kept.clone());
    let left = kept().and_then(|kept| kept.area.frozen()?.left);
    let mut timers = Timers { thaw: left.map(|left| clock.monotonic() + left), ..Timers::default() };
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
                parked.serve(|request, reply| server.answer(request, reply, &mut out));
            }
            Some(Job::Freeze { reply, seconds, unique }) => {
                let left = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
                let frozen = freeze(&**ops, kept().as_deref(), unique, left);
                if let Ok(Freezes::Now) = frozen {
                    timers.thaw = left.map(|left| clock.monotonic() + left);
                }
                reply.finish(frozen.map(|_| abi::IoctlOut::new_zeroed()));
            }
            Some(Job::Thaw { reply, unique }) => {
                let thawed = thaw(&**ops, kept().as_deref(), Some(unique));
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

/// Timed work of the thread, which runs when there are no jobs. Timers are set only during a
/// freeze. Changes are parked then, so the queue of jobs soon becomes empty.
#[derive(Default)]
struct Timers {
    /// The time at which the freeze ends.
    thaw: Option<Duration>,
    /// The time of the next check of the callers of interrupted requests, if there are any.
    look: Option<Duration>,
    /// The interrupted requests, with the number of checks that found no parked request.
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
            let kept = server.upgrade().and_then(|server| server.kept.clone());
            // A server that is being replaced waits for this thaw.
            let _owed = kept.as_ref().map(|kept| kept.owe(None));
            if let Err(e) = thaw(ops, kept.as_deref(), None) {
                // EINVAL means that a program that links the library has thawed the file system.
                tracing::warn!("thaw: errno {}", e.0);
                // ENOSPC means that the image's host has no space and the file system is still
                // frozen.
                self.thaw = (e.0 == libc::ENOSPC).then(|| clock.monotonic() + THAW_AGAIN);
            }
        }
        if self.look.take_if(|at| *at <= now).is_some() {
            let server = server.upgrade();
            let Some(parking) = server.as_ref().and_then(|server| server.parking.as_ref()) else { return };
            let proc = Path::new("/proc");
            for parked in parking.take_killed(&mut self.interrupted, |tid| is_killed(proc, tid)) {
                parked.refuse(libc::EINTR);
            }
            self.look = (!self.interrupted.is_empty()).then(|| now + LOOK_EVERY);
        }
    }
}

/// Which server made a freeze.
enum Freezes {
    Now,
    /// An earlier server, which died before it replied.
    Before,
}

/// Freezes for `left`, and notes the freeze for the next server.
fn freeze<O: Ops>(ops: &O, kept: Option<&Kept>, unique: u64, left: Option<Duration>) -> Answer<Freezes> {
    if kept.is_some_and(|kept| kept.area.has_changed_freeze(unique, true)) {
        return Ok(Freezes::Before);
    }
    attempt(ops, O::freeze)?;
    let Some(kept) = kept else { return Ok(Freezes::Now) };
    // Changes that the journal has noted are durable by now. The next server could not redo them
    // while the file system is frozen.
    if let Err(errno) = kept.journal.barrier() {
        attempt(ops, O::thaw)?;
        return Err(Errno(errno));
    }
    let since = SystemClock::default().now().sec;
    kept.area.note_frozen(&Frozen { unique, since, left });
    Ok(Freezes::Now)
}

/// Thaws for a request, or because the freeze's time limit has passed.
fn thaw<O: Ops>(ops: &O, kept: Option<&Kept>, unique: Option<u64>) -> Answer<()> {
    let Some((kept, frozen)) = kept.and_then(|kept| Some((kept, kept.area.frozen()?))) else {
        let again = kept.zip(unique).is_some_and(|(kept, u)| kept.area.has_changed_freeze(u, false));
        return if again { Ok(()) } else { attempt(ops, O::thaw) };
    };
    kept.area.note_thaw(unique);
    attempt(ops, O::thaw).inspect_err(|e| {
        if e.0 == libc::ENOSPC {
            kept.area.note_frozen(&frozen);
        }
    })
}

/// Runs a freeze or thaw. A panic shuts the file system down, as in a worker. The thread continues,
/// because every later thaw would wait forever otherwise.
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
