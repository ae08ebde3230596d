//! The worker that runs on its client's processor. [`crate::placement`] says why and when.

use crate::sys;
use kedge_base::{Counter, JoinHandle, spawn_named};
use rustix::process::{Pid, getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// The nice value of the lowest priority.
const NICE_MAX: i32 = 19;

/// The companion's thread, as the watcher and the statistics see it.
#[derive(Debug, Default)]
pub(crate) struct Companion {
    /// Thread id; 0: the thread does not run.
    tid: AtomicI32,
    /// The processor to which it is bound; -1: none.
    processor: AtomicI32,
    /// It receives no more.
    ends: AtomicBool,
    /// Changes of the processor.
    pub(crate) moves: Counter,
    /// Processors of a client that could not be read.
    pub(crate) unseen: Counter,
}

/// How a thread has got processors since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Its waits for a processor. The kernel adds a wait at its end.
    pub(crate) waited: Duration,
    /// Nanoseconds for which it ran, and how often it got a processor.
    pub(crate) ran: (u64, u64),
    /// It runs or waits for a processor now.
    pub(crate) runnable: bool,
}

impl Companion {
    pub(crate) fn processor(&self) -> Option<u32> {
        u32::try_from(self.processor.load(Relaxed)).ok()
    }

    pub(crate) fn is_there(&self) -> bool {
        self.tid.load(Relaxed) != 0
    }

    /// How it has got processors since its start.
    pub(crate) fn standing(&self) -> Option<Standing> {
        let dir = format!("/proc/self/task/{}", self.tid.load(Relaxed));
        let [ran, waited, slices] = numbers(&std::fs::read_to_string(format!("{dir}/schedstat")).ok()?)?;
        let stat = std::fs::read_to_string(format!("{dir}/stat")).ok()?;
        let runnable = stat.rsplit_once(')')?.1.trim_start().starts_with('R');
        Some(Standing { waited: Duration::from_nanos(waited), ran: (ran, slices), runnable })
    }

    /// The processor to which the companion is not bound, if the process may use two.
    fn other_of_two(&self) -> Option<u32> {
        let at = self.processor()?;
        let set = process_set().ok().filter(|set| set.count() == 2)?;
        (0..CpuSet::MAX_CPU as u32).find(|cpu| set.is_set(*cpu as usize) && *cpu != at)
    }

    /// Binds it to processor `to`, if the process may use that one.
    fn bind(&self, to: u32) {
        let allowed = process_set().is_ok_and(|set| to < CpuSet::MAX_CPU as u32 && set.is_set(to as usize));
        let Some(tid) = Pid::from_raw(self.tid.load(Relaxed)).filter(|_| allowed) else { return };
        let mut set = CpuSet::new();
        set.set(to as usize);
        if sched_setaffinity(Some(tid), &set).is_ok() {
            self.processor.store(to as i32, Relaxed);
            self.moves.inc();
        }
    }

    /// Lets it run on another processor.
    pub(crate) fn leave(&self) {
        match self.other_of_two() {
            Some(other) => self.bind(other),
            None => self.unbind(),
        }
    }

    fn unbind(&self) {
        let Some(tid) = Pid::from_raw(self.tid.load(Relaxed)) else { return };
        // Fails only if the thread has ended.
        if let Err(e) = process_set().and_then(|set| Ok(sched_setaffinity(Some(tid), &set)?)) {
            tracing::debug!("the companion stays on its processor: {e}");
        }
        self.processor.store(-1, Relaxed);
    }

    /// Asks the thread to end, and lets it run at once even if other programs use all processors.
    pub(crate) fn hasten_end(&self) {
        self.ends.store(true, SeqCst);
        self.release();
    }

    /// Lets it run on every processor, with an ordinary policy if this process may give it.
    pub(crate) fn release(&self) {
        self.unbind();
        let Some(tid) = Pid::from_raw(self.tid.load(Relaxed)) else { return };
        // Fails only if the thread has ended or the right is missing.
        if let Err(e) = sys::set_policy(tid, libc::SCHED_OTHER) {
            tracing::debug!("the companion keeps its policy: {e}");
        }
    }
}

/// Numbers in decimal, with spaces between.
fn numbers<const N: usize>(text: &str) -> Option<[u64; N]> {
    let numbers: Vec<u64> = text.split_ascii_whitespace().map_while(|n| n.parse().ok()).collect();
    numbers.try_into().ok()
}

/// Whether this process may give a thread that has been the companion the ordinary policy again.
///
/// The kernel asks for the same right when a thread lowers its nice value to the one it had. A
/// thread that left `SCHED_IDLE` to try it might wait for a processor meanwhile.
pub(crate) fn may_release() -> bool {
    let lower = || -> rustix::io::Result<bool> {
        let own = Some(rustix::thread::gettid());
        let nice = getpriority_process(own)?;
        setpriority_process(own, nice + 1)?;
        setpriority_process(own, nice)?;
        // The kernel knows no higher value, so nothing was lowered.
        Ok(nice < NICE_MAX)
    };
    let tried = spawn_named("kedge-fuse-try", lower).map(JoinHandle::join);
    matches!(tried, Ok(Ok(Ok(true))))
}

/// The processors on which this process may run: the set of its first thread, which nothing here
/// changes. So a `taskset -p` of the process counts.
pub(crate) fn process_set() -> std::io::Result<CpuSet> {
    Ok(sched_getaffinity(Some(rustix::process::getpid()))?)
}

/// What the companion does about its place.
///
/// A companion that shares its client's processor does not sleep between two requests: while the
/// client runs, it is preempted, and when the client sleeps, the next request is there. So short
/// sleeps in a row mean that the client runs elsewhere. With two processors that is the other one,
/// and the companion binds itself to it. With more, another thread samples the processor of the
/// client and binds the companion ([`Sampler`]).
///
/// The companion itself reads no file of its client in `/proc`. The kernel holds the lock that
/// `/proc/TID/stat` needs while a process executes a program, also while it closes the descriptors
/// that are closed by that, and such a close may wait for requests to the mount. The companion
/// would wait for a client that waits for the companion. The sampler may wait: the companion
/// serves, so the client goes on and releases the lock.
pub(crate) struct Follower<'a> {
    companion: &'a Companion,
    /// Clients for the sampler. It has room for one: while a sample waits, none is requested.
    clients: SyncSender<u32>,
    /// When a sample was requested last.
    sampled: Duration,
    /// Requests since then.
    served: u32,
    /// Begin of the sleep before the next request, if there was one.
    asleep: Option<Duration>,
    /// Short sleeps before requests in a row.
    sleeps: u32,
    /// Requests in a row without a sleep.
    awake: u32,
    /// The companion does not change to the other processor before.
    stays: Duration,
    /// For how long it stays after the next change. Doubles with each change that did not end the
    /// sleeps.
    stay: Duration,
}

impl<'a> Follower<'a> {
    /// Short sleeps in a row after which the client is likely to run elsewhere.
    const SLEEPS: u32 = 2;
    /// Two wake-ups on other processors and a short computation of the client. A client that
    /// waits for a device or a timer mostly needs longer.
    const SLEEP_SHORT: Duration = Duration::from_micros(200);
    /// Requests without a sleep that show that a change was right.
    const AWAKE: u32 = 32;
    const STAY_MIN: Duration = Duration::from_micros(100);
    const STAY_MAX: Duration = Duration::from_millis(100);
    /// Requests after which the processor is read in any case.
    const SERVED: u32 = 1024;
    /// A sample wakes a thread and takes some microseconds.
    const SAMPLE_MIN: Duration = Duration::from_millis(1);

    /// Makes the calling thread the companion, and starts its sampler. An error: the thread must
    /// not serve.
    ///
    /// The thread keeps the ordinary policy until it receives ([`Follower::begins`]). It makes its
    /// buffers first, which takes the lock of the address space. Where programs compute on all
    /// processors, a thread of `SCHED_IDLE` would hold that lock for seconds, and the first
    /// requests of the mount, or the end of a killed server, would wait for it.
    pub(crate) fn new(companion: &'a Arc<Companion>) -> std::io::Result<Follower<'a>> {
        let (clients, wanted) = sync_channel(1);
        let mut sampler = Sampler { companion: companion.clone(), other: None };
        // Not joined, because it may wait for a client. It ends with the channel.
        spawn_named("kedge-fuse-cpu", move || wanted.iter().for_each(|client| sampler.sample(client)))?;
        companion.processor.store(-1, Relaxed);
        companion.tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Relaxed);
        Ok(Follower::of(companion, clients))
    }

    fn of(companion: &'a Companion, clients: SyncSender<u32>) -> Follower<'a> {
        let [sampled, stays] = [Duration::ZERO; 2];
        let stay = Self::STAY_MIN;
        Follower { companion, clients, sampled, served: 0, asleep: None, sleeps: 0, awake: 0, stays, stay }
    }

    /// The companion receives from now on.
    pub(crate) fn begins(&mut self) {
        // It has not received before, or the watcher has given it another policy.
        if let Err(e) = sys::set_policy(rustix::thread::gettid(), libc::SCHED_IDLE) {
            tracing::debug!("the companion's policy: {e}");
        }
        if self.companion.ends.load(SeqCst) {
            self.companion.release();
        }
        self.served = Self::SERVED - 1;
        self.sampled = Duration::ZERO;
    }

    /// The companion sleeps from `now` until the next request.
    pub(crate) fn slept(&mut self, now: Duration) {
        self.asleep = Some(now);
    }

    /// A request of thread `client` arrived.
    pub(crate) fn received(&mut self, client: u32, now: impl Fn() -> Duration) {
        self.served += 1;
        match self.asleep.take() {
            None => self.was_awake(),
            Some(since) => self.woke(since, now()),
        }
        if self.sleeps >= Self::SLEEPS || self.served >= Self::SERVED {
            self.follow(client, now());
        }
    }

    fn was_awake(&mut self) {
        self.sleeps = 0;
        self.awake += 1;
        if self.awake == Self::AWAKE {
            self.stay = Self::STAY_MIN;
        }
    }

    fn woke(&mut self, since: Duration, now: Duration) {
        self.awake = 0;
        let short = now.saturating_sub(since) < Self::SLEEP_SHORT;
        self.sleeps = if short { self.sleeps + 1 } else { 0 };
    }

    /// Changes to the other one of two processors, or requests a sample.
    fn follow(&mut self, client: u32, now: Duration) {
        if self.sleeps >= Self::SLEEPS
            && let Some(other) = self.companion.other_of_two()
        {
            if now >= self.stays {
                self.companion.bind(other);
                self.stays = now + self.stay;
                self.stay = (2 * self.stay).min(Self::STAY_MAX);
                self.sleeps = 0;
            }
            return;
        }
        if now.saturating_sub(self.sampled) < Self::SAMPLE_MIN {
            return;
        }
        (self.sampled, self.served, self.sleeps) = (now, 0, 0);
        // If the last sample still waits, this one is left out.
        let _left_out = self.clients.try_send(client);
    }
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.companion.tid.store(0, Relaxed);
    }
}

/// Reads the processor of a client, and binds the companion to it.
struct Sampler {
    companion: Arc<Companion>,
    /// The processor that the last sample found, if the companion is not bound to it.
    other: Option<u32>,
}

impl Sampler {
    fn sample(&mut self, client: u32) {
        let Some(at) = processor_of(client) else {
            self.companion.unseen.inc();
            return;
        };
        if self.companion.processor() == Some(at) {
            self.other = None;
        } else if self.other.replace(at) == Some(at) || self.companion.processor().is_none() {
            // Two samples in a row: one may be of a client among many.
            self.other = None;
            self.companion.bind(at);
        }
    }
}

/// The processor on which a thread runs or ran last. `None`: there is no such thread, or this
/// process may not know. 0 stands for a thread of another pid namespace.
fn processor_of(thread: u32) -> Option<u32> {
    if thread == 0 {
        return None;
    }
    processor_in(&std::fs::read_to_string(format!("/proc/{thread}/stat")).ok()?)
}

/// Field 39 of proc_pid_stat(5). The second field is a name in brackets that may hold anything.
fn processor_in(stat: &str) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
#[path = "companion_tests.rs"]
mod tests;
