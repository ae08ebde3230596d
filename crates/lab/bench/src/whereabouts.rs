//! The processors on which the threads of a round ran.
//!
//! If a request is served on another processor, that processor must be woken, which costs more than
//! most requests do. So a rate means little without the processors on which its threads ran. While
//! a round runs, the threads of the server and those of the clients (this process and all that it
//! started) are sampled every few milliseconds in `/proc`: time on a processor, the processor
//! (field 39 of `stat`), migrations and context switches. A thread that lives for less than the
//! time between two samples is missed.

use anyhow::{Context, Result};
use kedge_base::JoinHandle;
use kedge_base::{Clock, SystemClock, spawn_named};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The activity of a group of threads.
#[derive(Default, Debug, Clone, PartialEq)]
struct Doings {
    /// Nanoseconds that the threads ran, by processor.
    ran: BTreeMap<usize, u64>,
    migrations: u64,
    switches: u64,
}

/// The activity of the threads of a round.
#[derive(Debug, Clone, PartialEq)]
pub struct Whereabouts {
    clients: Doings,
    server: Doings,
    seconds: f64,
}

impl Whereabouts {
    /// The probability in percent that a random moment of the clients' work and one of the server's
    /// work were on the same processor. NaN if there is no server or one of the two did nothing.
    pub fn together(&self) -> f64 {
        let (of, by) = (&self.clients.ran, &self.server.ran);
        let all = |ran: &BTreeMap<usize, u64>| ran.values().sum::<u64>() as f64;
        let both: f64 =
            of.iter().map(|(cpu, ns)| *ns as f64 * by.get(cpu).copied().unwrap_or(0) as f64).sum();
        100.0 * both / (all(of) * all(by))
    }

    /// Moves of threads to another processor, per second.
    pub fn migrations(&self) -> f64 {
        (self.clients.migrations + self.server.migrations) as f64 / self.seconds
    }

    /// Context switches per second.
    pub fn switches(&self) -> f64 {
        (self.clients.switches + self.server.switches) as f64 / self.seconds
    }

    /// Processor time of the server, in percent of one processor.
    pub fn server_load(&self) -> f64 {
        100.0 * self.server.ran.values().sum::<u64>() as f64 / 1e9 / self.seconds
    }
}

/// One sample of a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Look {
    ran: u64,
    cpu: usize,
    migrations: u64,
    switches: u64,
}

impl Look {
    /// Samples a thread. Returns `None` if it has ended.
    fn at(task: &Path) -> Option<Look> {
        let read = |file: &str| std::fs::read_to_string(task.join(file)).ok();
        Look::parse(&read("stat")?, &read("schedstat")?, &read("status")?, &read("sched").unwrap_or_default())
    }

    fn parse(stat: &str, schedstat: &str, status: &str, sched: &str) -> Option<Look> {
        // The name may contain spaces; field 3 follows it.
        let cpu = stat.rsplit_once(')')?.1.split_whitespace().nth(39 - 3)?.parse().ok()?;
        let field = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.rsplit(|c: char| c == ':' || c.is_whitespace()).next()?.parse::<u64>().ok()
        };
        let switches =
            field(status, "voluntary_ctxt_switches")? + field(status, "nonvoluntary_ctxt_switches")?;
        // Only kernels with CONFIG_SCHED_DEBUG have this file.
        let migrations = field(sched, "se.nr_migrations").unwrap_or(0);
        Some(Look { ran: schedstat.split_whitespace().next()?.parse().ok()?, cpu, migrations, switches })
    }
}

/// The last sample of each thread of a group, and the group's activity.
#[derive(Default)]
struct Group {
    last: HashMap<u32, Look>,
    doings: Doings,
}

impl Group {
    /// Adds a sample of a thread. `counts`: whether what a thread did before its first sample
    /// belongs to the round.
    fn see(&mut self, thread: u32, now: Look, counts: bool) {
        let fresh = Look { ran: 0, migrations: 0, switches: 0, ..now };
        let before = self.last.insert(thread, now).unwrap_or(if counts { fresh } else { now });
        *self.doings.ran.entry(now.cpu).or_default() += now.ran.saturating_sub(before.ran);
        self.doings.migrations += now.migrations.saturating_sub(before.migrations);
        self.doings.switches += now.switches.saturating_sub(before.switches);
    }

    fn look(&mut self, processes: impl Iterator<Item = u32>, own: u32, counts: bool) {
        for (thread, task) in processes.flat_map(tasks).filter(|(thread, _)| *thread != own) {
            if let Some(now) = Look::at(&task) {
                self.see(thread, now, counts);
            }
        }
    }
}

/// The threads of a process. A process that has ended has none.
fn tasks(process: u32) -> Vec<(u32, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let named = |entry: std::fs::DirEntry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path()));
    entries.filter_map(|entry| named(entry.ok()?)).collect()
}

/// A process, and all its descendants.
fn family(process: u32) -> Vec<u32> {
    let mut all = vec![process];
    let mut at = 0;
    while let Some(parent) = all.get(at).copied() {
        for (_, task) in tasks(parent) {
            let children = std::fs::read_to_string(task.join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
        at += 1;
    }
    all
}

/// Samples the threads until [`Watch::end`].
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Whereabouts>,
}

impl Watch {
    pub fn start(server: Option<u32>) -> Result<Watch> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = spawn_named("bench-where", move || watch(server, &stopped)).context("start a thread")?;
        Ok(Watch { stop, thread })
    }

    pub fn end(self) -> Whereabouts {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn watch(server: Option<u32>, stopped: &AtomicBool) -> Whereabouts {
    let (clock, own) = (SystemClock::default(), rustix::thread::gettid().as_raw_nonzero().get() as u32);
    let (mut clients, mut served) = (Group::default(), Group::default());
    let began = clock.monotonic();
    let mut counts = false;
    loop {
        let last = stopped.load(Ordering::Relaxed);
        let ours = family(std::process::id()).into_iter().filter(|process| Some(*process) != server);
        clients.look(ours, own, counts);
        served.look(server.into_iter(), own, counts);
        counts = true;
        if last {
            let seconds = clock.since(began).as_secs_f64();
            return Whereabouts { clients: clients.doings, server: served.doings, seconds };
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Keeps the threads of processes, and the threads that these start, on one processor until it is
/// dropped.
pub struct Pinned {
    before: Vec<(u32, CpuSet)>,
    processes: Vec<u32>,
    pub cpu: usize,
}

impl Pinned {
    /// Moves the threads of this process and of the server to the first processor that this process
    /// may use.
    pub fn new(server: Option<u32>) -> Result<Pinned> {
        let all = sched_getaffinity(None).context("ask which processors may be used")?;
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).context("no processor may be used")?;
        let mut one = CpuSet::new();
        one.set(cpu);
        let processes: Vec<u32> = server.into_iter().chain([std::process::id()]).collect();
        let mut pinned = Pinned { before: Vec::new(), processes, cpu };
        for thread in pinned.threads() {
            // A thread that has ended meanwhile is left out.
            let Ok(before) = sched_getaffinity(Some(thread)) else { continue };
            pinned.before.push((thread.as_raw_nonzero().get() as u32, before));
            sched_setaffinity(Some(thread), &one).context("keep a thread on one processor")?;
        }
        Ok(pinned)
    }

    fn threads(&self) -> Vec<Pid> {
        let all = self.processes.iter().flat_map(|process| tasks(*process));
        all.filter_map(|(thread, _)| Pid::from_raw(thread as i32)).collect()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let before: HashMap<u32, CpuSet> = self.before.drain(..).collect();
        for process in &self.processes {
            for (thread, _) in tasks(*process) {
                // A thread that was started meanwhile gets the processors of its process's first
                // thread.
                let set = before.get(&thread).or_else(|| before.get(process));
                let (Some(set), Some(pid)) = (set, Pid::from_raw(thread as i32)) else { continue };
                if let Err(e) = sched_setaffinity(Some(pid), set)
                    && e != rustix::io::Errno::SRCH
                {
                    eprintln!("kedge-lab: thread {thread} stays on processor {}: {e}", self.cpu);
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "whereabouts_tests.rs"]
mod tests;
