//! The worker that runs on the processor of its client. [`crate::placement`] explains why and when.

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

/// The companion's thread, as the watcher and the statistics access it.
#[derive(Debug, Default)]
pub(crate) struct Companion {
    /// The thread id; 0 while the thread does not run.
    tid: AtomicI32,
    /// The processor to which the thread is bound; -1 for none.
    processor: AtomicI32,
    /// Whether the thread must end.
    ends: AtomicBool,
    /// How often the thread was bound to another processor.
    pub(crate) moves: Counter,
    /// How often the processor of a client could not be read.
    pub(crate) unseen: Counter,
}

/// The scheduling statistics of a thread since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Total time spent waiting for a processor. The kernel adds a wait when it ends.
    pub(crate) waited: Duration,
    /// Nanoseconds of running time, and how often the thread got a processor.
    pub(crate) ran: (u64, u64),
    /// Whether the thread runs or waits for a processor now.
    pub(crate) runnable: bool,
}

impl Companion {
    pub(crate) fn processor(&self) -> Option<u32> {
        u32::try_from(self.processor.load(Relaxed)).ok()
    }

    pub(crate) fn is_there(&self) -> bool {
        self.tid.load(Relaxed) != 0
    }

    /// The companion's scheduling statistics since its start.
    pub(crate) fn standing(&self) -> Option<Standing> {
        let dir = format!("/proc/self/task/{}", self.tid.load(Relaxed));
        let [ran, waited, slices] = numbers(&std::fs::read_to_string(format!("{dir}/schedstat")).ok()?)?;
        let stat = std::fs::read_to_string(format!("{dir}/stat")).ok()?;
        let runnable = stat.rsplit_once(')')?.1.trim_start().starts_with('R');
        Some(Standing { waited: Duration::from_nanos(waited), ran: (ran, slices), runnable })
    }

    /// If the process may use exactly two processors: the one to which the companion is not bound.
    fn other_of_two(&self) -> Option<u32> {
        let at = self.processor()?;
        let set = process_set().ok().filter(|set| set.count() == 2)?;
        (0..CpuSet::MAX_CPU as u32).find(|cpu| set.is_set(*cpu as usize) && *cpu != at)
    }

    /// Binds the companion to processor `to`, if the process may use that one.
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

    /// Moves the companion off its processor.
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

    /// Lets the companion run on every processor. Also gives it the ordinary policy, if this
    /// process may do that.
    pub(crate) fn release(&self) {
        self.unbind();
        let Some(tid) = Pid::from_raw(self.tid.load(Relaxed)) else { return };
        // Fails only if the thread has ended or the process lacks the right.
        if let Err(e) = sys::set_policy(tid, libc::SCHED_OTHER) {
            tracing::debug!("the companion keeps its policy: {e}");
        }
    }
}

/// Parses decimal numbers separated by blanks.
fn numbers<const N: usize>(text: &str) -> Option<[u64; N]> {
    let numbers: Vec<u64> = text.split_ascii_whitespace().map_while(|n| n.parse().ok()).collect();
    numbers.try_into().ok()
}

/// Whether this process may give the companion's thread the ordinary policy again.
///
/// The kernel demands the same right from a thread that lowers its nice value again, so that is
/// tried. A thread that left `SCHED_IDLE` as a trial might have to wait for a processor first.
pub(crate) fn may_release() -> bool {
    let lower = || -> rustix::io::Result<bool> {
        let own = Some(rustix::thread::gettid());
        let nice = getpriority_process(own)?;
        setpriority_process(own, nice + 1)?;
        setpriority_process(own, nice)?;
        // At the highest nice value the kernel ignores the increase, so nothing was lowered.
        Ok(nice < NICE_MAX)
    };
    let tried = spawn_named("kedge-fuse-try", lower).map(JoinHandle::join);
    matches!(tried, Ok(Ok(Ok(true))))
}

/// The processors on which this process may run: the set of its first thread, which this crate does
/// not change. So `taskset -p` of the process has an effect.
pub(crate) fn process_set() -> std::io::Result<CpuSet> {
    Ok(sched_getaffinity(Some(rustix::process::getpid()))?)
}

/// Decides on which processor the companion runs.
///
/// A companion on its client's processor does not sleep between two requests: while the client
/// runs, the companion is preempted, and when the client sleeps, its next request is there. So
/// consecutive short sleeps mean that the client runs elsewhere. With two processors the client is
/// on the other one, to which the companion then binds itself. With more, another thread samples
/// the processor of the client and binds the companion ([`Sampler`]).
///
/// The companion itself reads no file of its client in `/proc`. While a process executes a program,
/// the kernel holds a lock that reading `/proc/TID/stat` needs. It also holds the lock while it
/// closes the process's close-on-exec descriptors, and such a close may wait for requests to the
/// mount. Then the companion would wait for a client that waits for the companion. The sampler may
/// wait: the companion goes on serving, so the client continues and the lock is released.
pub(crate) struct Follower<'a> {
    companion: &'a Companion,
    /// Sends clients to the sampler. The channel has room for one: while a sample waits, no other
    /// is requested.
    clients: SyncSender<u32>,
    /// The time of the last request for a sample.
    sampled: Duration,
    /// Requests served since `sampled`.
    served: u32,
    /// The begin of the present sleep, if the companion sleeps.
    asleep: Option<Duration>,
    /// Consecutive requests that each followed a short sleep.
    sleeps: u32,
    /// Consecutive requests without a sleep.
    awake: u32,
    /// The companion stays on its processor until this time.
    stays: Duration,
    /// How long the companion stays after the next change. Doubles with each change, until the
    /// sleeps end.
    stay: Duration,
}

impl<'a> Follower<'a> {
    /// Consecutive short sleeps after which the client probably runs elsewhere.
    const SLEEPS: u32 = 2;
    /// A sleep below this is short: the time of two wake-ups on other processors and a short
    /// computation of the client. If a client waits for a device or a timer, the sleep is usually
    /// longer.
    const SLEEP_SHORT: Duration = Duration::from_micros(200);
    /// Consecutive requests without a sleep that prove a change right.
    const AWAKE: u32 = 32;
    const STAY_MIN: Duration = Duration::from_micros(100);
    const STAY_MAX: Duration = Duration::from_millis(100);
    /// Requests after which a sample is requested even without sleeps.
    const SERVED: u32 = 1024;
    /// The least time between two samples, each of which wakes a thread and takes some
    /// microseconds.
    const SAMPLE_MIN: Duration = Duration::from_millis(1);

    /// Makes the calling thread the companion, and starts its sampler. After an error the thread
    /// must not serve.
    ///
    /// The thread keeps the ordinary policy until it receives ([`Follower::begins`]), because it
    /// first allocates its buffers under the lock of the address space. If programs compute on all
    /// processors, a thread with `SCHED_IDLE` could hold that lock for seconds, and the first
    /// requests of the mount, or the end of a killed server, would wait for it.
    pub(crate) fn new(companion: &'a Arc<Companion>) -> std::io::Result<Follower<'a>> {
        let (clients, wanted) = sync_channel(1);
        let mut sampler = Sampler { companion: companion.clone(), other: None };
        // Not joined, because the sampler may wait for a client. It ends when the channel is
        // dropped.
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

    /// Must be called when the companion begins to receive.
    pub(crate) fn begins(&mut self) {
        // Set again, because the watcher may have given the thread the ordinary policy.
        if let Err(e) = sys::set_policy(rustix::thread::gettid(), libc::SCHED_IDLE) {
            tracing::debug!("the companion's policy: {e}");
        }
        if self.companion.ends.load(SeqCst) {
            self.companion.release();
        }
        self.served = Self::SERVED - 1;
        self.sampled = Duration::ZERO;
    }

    /// Notes that the companion sleeps from `now` until the next request.
    pub(crate) fn slept(&mut self, now: Duration) {
        self.asleep = Some(now);
    }

    /// Notes a request of thread `client`.
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

    /// Binds the companion to the other of two processors, or requests a sample.
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
        // If the last request for a sample is still pending, this one is dropped.
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
    /// The processor that the last sample found, unless the companion is bound to it.
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
            // Only if two consecutive samples agree: a single one may be of one client among many.
            self.other = None;
            self.companion.bind(at);
        }
    }
}

/// The processor on which a thread runs or last ran. `None` if there is no such thread or this
/// process may not read its state. `thread` is 0 for threads of other pid namespaces.
fn processor_of(thread: u32) -> Option<u32> {
    if thread == 0 {
        return None;
    }
    processor_in(&std::fs::read_to_string(format!("/proc/{thread}/stat")).ok()?)
}

/// Parses field 39 of proc_pid_stat(5). The second field is a name in brackets and may contain any
/// bytes.
fn processor_in(stat: &str) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
#[path = "companion_tests.rs"]
mod tests;
