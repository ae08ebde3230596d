//! The number of processors, and the costs that depend on it.

use super::stretch::monotonic;
use kedge_base::{SystemClock, pause, spawn_named};
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Times in nanoseconds. Each is measured on this machine, except for the quantum and the tick,
/// which are the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hardware {
    pub processors: usize,
    /// Switching a processor to another thread, or putting a thread to sleep.
    pub switch: u64,
    /// The system call that wakes a thread.
    pub wake: u64,
    /// From the wake-up until the thread runs on an idle processor.
    pub wake_latency: u64,
    /// Fetching a cache line from another processor.
    pub transfer: u64,
    /// One check by a thread that spins.
    pub look: u64,
    /// Time for which a lock's waiter spins before it sleeps.
    pub spin: u64,
    /// Time for which a thread keeps its processor while others are ready.
    pub quantum: u64,
    /// Interval at which the wall clock advances. Time stamps of files change at most once in it.
    /// With a finer clock more of them would be logged than on the real machine.
    pub tick: u64,
}

impl Hardware {
    /// A machine on which only computing takes time: switches, wake-ups and cache lines are free.
    pub fn ideal(processors: usize) -> Hardware {
        Hardware {
            processors,
            switch: 0,
            wake: 0,
            wake_latency: 0,
            transfer: 0,
            look: 20,
            spin: 0,
            quantum: slice(processors),
            tick: 1,
        }
    }

    /// A machine whose costs were measured before, in the order of [`Hardware::costs`].
    pub fn with_costs(processors: usize, costs: [u64; 6]) -> Hardware {
        let [switch, wake, wake_latency, transfer, look, spin] = costs;
        let (quantum, tick) = (slice(processors), tick());
        Hardware { processors, switch, wake, wake_latency, transfer, look: look.max(1), spin, quantum, tick }
    }

    /// Returns the measured costs, without the quantum and the tick.
    pub fn costs(&self) -> [u64; 6] {
        [self.switch, self.wake, self.wake_latency, self.transfer, self.look, self.spin]
    }

    /// Returns the same costs with another number of processors.
    pub fn with_processors(self, processors: usize) -> Hardware {
        Hardware { processors, quantum: slice(processors), ..self }
    }

    /// Measures this machine, which needs at least two processors. Other programs may run
    /// meanwhile, since each cost is taken from the shortest of many short measurements.
    pub fn measure() -> std::io::Result<Hardware> {
        let (wake, wake_latency) = wake_up(Places::Two)?;
        let (_, both) = wake_up(Places::One)?;
        Ok(Hardware {
            processors: 1,
            // On one processor the woken thread runs as soon as the waker sleeps, so the latency is
            // that of a switch.
            switch: both,
            wake,
            wake_latency,
            transfer: line_transfer()?,
            look: per_call(1000, std::hint::spin_loop),
            // The minimum, since a yield to another program lasts as long as that program's slice.
            spin: (0..2000).map(|_| spun_before_sleep()).min().unwrap_or(0),
            quantum: slice(1),
            tick: tick(),
        })
    }
}

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "switch {} ns, wake-up call {} ns, wake-up latency {} ns, cache line from another processor {} ns, a look while spinning {} ns, spinning before sleep {} ns, slice {} µs, tick {} µs",
            self.switch,
            self.wake,
            self.wake_latency,
            self.transfer,
            self.look,
            self.spin,
            self.quantum / 1000,
            self.tick / 1000
        )
    }
}

/// Linux's base slice (`sysctl_sched_base_slice`, 0.7 ms), scaled with the number of processors as
/// Linux does.
fn slice(processors: usize) -> u64 {
    700_000 * (1 + u64::from(processors.clamp(1, 8).ilog2()))
}

fn tick() -> u64 {
    (SystemClock::tick().as_nanos() as u64).max(1)
}

/// Returns the value below which a twentieth of the samples lies. Other programs on the machine
/// make most samples longer, and a single one may be short by accident.
fn undisturbed(mut samples: Vec<u64>) -> u64 {
    samples.sort_unstable();
    samples.get(samples.len() / 20).copied().unwrap_or(0)
}

fn per_call(calls: u64, call: impl Fn()) -> u64 {
    let sample = || {
        let start = monotonic();
        (0..calls).for_each(|_| call());
        (monotonic() - start) / calls
    };
    undisturbed((0..100).map(|_| sample()).collect()).max(1)
}

/// Does what parking_lot does before it sleeps for a lock: 2, 4 and 8 pauses, then seven yields.
fn spun_before_sleep() -> u64 {
    let start = monotonic();
    for round in 1..=3 {
        (0..1 << round).for_each(|_| std::hint::spin_loop());
    }
    (0..7).for_each(|_| std::thread::yield_now());
    monotonic() - start
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Places {
    One,
    Two,
}

/// Pins the calling thread to one of the processors that the process may use.
fn pin(which: usize) -> std::io::Result<()> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None)?;
    let mut all = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let cpu = all
        .nth(which)
        .ok_or_else(|| std::io::Error::other("measuring costs between processors needs two processors"))?;
    let mut one = CpuSet::new();
    one.set(cpu);
    Ok(sched_setaffinity(None, &one)?)
}

/// Two threads alternately wake each other. Returns the time of the call that wakes, and the time
/// from its end until the other thread runs.
fn wake_up(places: Places) -> std::io::Result<(u64, u64)> {
    const TURNS: u64 = 4000;
    let slot = Arc::new((Mutex::new(0u64), Condvar::new(), AtomicU64::new(0)));
    let side = |me: u64| {
        let slot = slot.clone();
        spawn_named("ping", move || -> std::io::Result<(Vec<u64>, Vec<u64>)> {
            pin(if places == Places::Two { me as usize } else { 0 })?;
            let (mut calls, mut latencies) = (Vec::new(), Vec::new());
            let mut turn = slot.0.lock();
            while *turn < TURNS {
                if *turn % 2 != me {
                    slot.1.wait(&mut turn);
                    latencies.push(monotonic().saturating_sub(slot.2.load(SeqCst)));
                    continue;
                }
                *turn += 1;
                // By now the other thread sleeps, and its processor may sleep, too.
                parking_lot::MutexGuard::unlocked(&mut turn, || pause(Duration::from_micros(30)));
                let start = monotonic();
                slot.2.store(start, SeqCst);
                // If the other thread does not sleep yet, the call wakes nothing and costs little.
                if parking_lot::MutexGuard::unlocked(&mut turn, || slot.1.notify_one()) {
                    calls.push(monotonic() - start);
                }
            }
            slot.1.notify_one();
            Ok((calls, latencies))
        })
    };
    let sides = [side(0)?, side(1)?];
    let (mut calls, mut latencies) = (Vec::new(), Vec::new());
    for side in sides {
        let (c, l) = side.join().map_err(|_| std::io::Error::other("a thread panicked"))??;
        calls.extend(c);
        latencies.extend(l);
    }
    let call = undisturbed(calls);
    Ok((call, undisturbed(latencies).saturating_sub(call)))
}

/// Two processors alternately change one cache line.
fn line_transfer() -> std::io::Result<u64> {
    const TURNS: u64 = 2000;
    const ROUNDS: usize = 40;
    let line = Arc::new(AtomicU64::new(0));
    let side = |me: u64| {
        let line = line.clone();
        spawn_named("line", move || -> std::io::Result<Vec<u64>> {
            pin(me as usize)?;
            let mut samples = Vec::new();
            for round in 0..ROUNDS as u64 {
                let start = monotonic();
                for turn in round * TURNS..(round + 1) * TURNS {
                    if turn % 2 == me {
                        // Other programs may use these processors, so the thread periodically lets
                        // the other one run.
                        let mut looks = 0u32;
                        while line.compare_exchange(turn, turn + 1, SeqCst, SeqCst).is_err() {
                            looks += 1;
                            if looks.is_multiple_of(10_000) {
                                std::thread::yield_now();
                            }
                        }
                    }
                }
                samples.push((monotonic() - start) / TURNS);
            }
            Ok(samples)
        })
    };
    let sides = [side(0)?, side(1)?];
    let mut samples = Vec::new();
    for side in sides {
        samples.extend(side.join().map_err(|_| std::io::Error::other("a thread panicked"))??);
    }
    Ok(undisturbed(samples))
}
