//! All promises of a keeper, tested by one command: seven loads of other programs while their
//! servers die of SIGKILL, SIGABRT, SIGILL, a lack of memory, and panics and aborts at each step of
//! each kind of request.
//!
//! ```text
//! KEDGE_KEEPER_DEATHS=10000 cargo test --release \
//!     --config profile.release.package.kedge-fuse.debug-assertions=true \
//!     -p kedge --test keeper -- --nocapture seven_loads
//! ```
//!
//! Each round makes an image and lets a hundred servers die below one load. It compares what each
//! run of the load leaves with what a run on a mount without a keeper left, unmounts, and checks
//! the image. The rounds use the loads in turn. `KEDGE_SEED` repeats the moments of the deaths, and
//! chooses the first load.

use crate::common::keeper::{JustServer, history, mount_dying};
use crate::common::{Place, needs_fuse, until};
use crate::loads::{LOADS, Load};
use crate::memory::Group;
use crate::{deaths_of, seed_from_env};
use kedge_base::{Clock, SystemClock};
use kedge_fuse::keep::INJECTS;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The number of deaths in one round.
const ROUND: u64 = 100;
/// The longest time from the first reply of a server to the signal that kills it.
const LIFE_MAX: Duration = Duration::from_millis(40);
/// One death in this number is caused by a lack of memory.
const LACKS: u64 = 20;
/// How long to wait until the kernel kills a server without memory. A server that needs no memory
/// survives.
const LACK_MAX: Duration = Duration::from_millis(200);

/// The number of lines of the log that a failure shows.
const LOGGED: usize = 40;

/// How servers died, and how long programs waited for the next server.
#[derive(Clone, Default)]
struct Tally {
    runs: u64,
    deaths: u64,
    /// Deaths by cause. Deaths between the same two readings of the history have no cause here.
    causes: BTreeMap<&'static str, u64>,
    /// Milliseconds from the end of a server until the next one serves, as the keeper measures
    /// them.
    pauses: Vec<u64>,
    /// Milliseconds from a signal to the next server's first reply.
    waits: Vec<u64>,
    /// Deaths inside of requests, by request, step and kind of death.
    steps: BTreeMap<String, u64>,
}

impl Tally {
    /// Counts the deaths inside of requests, which the servers have noted in `file`.
    fn noted(&mut self, file: &Path) {
        for line in fs::read_to_string(file).unwrap().lines() {
            *self.steps.entry(line.to_owned()).or_insert(0) += 1;
        }
    }

    fn inside(&self, how: &str) -> u64 {
        self.steps.iter().filter(|(step, _)| step.ends_with(how)).map(|(_, count)| count).sum()
    }

    fn add(&mut self, other: &Tally) {
        self.runs += other.runs;
        self.deaths += other.deaths;
        self.pauses.extend(&other.pauses);
        self.waits.extend(&other.waits);
        for (cause, count) in &other.causes {
            *self.causes.entry(cause).or_insert(0) += count;
        }
        for (step, count) in &other.steps {
            *self.steps.entry(step.clone()).or_insert(0) += count;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} runs, {} deaths {:?}, ", self.runs, self.deaths, self.causes)?;
        write!(f, "inside of requests {} panics {} aborts; ", self.inside("panic"), self.inside("abort"))?;
        write!(f, "pauses: {}; replies: {}", percentiles(&self.pauses), percentiles(&self.waits))
    }
}

fn percentiles(of: &[u64]) -> String {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    let at = |percent: usize| sorted.get(sorted.len() * percent / 100).copied().unwrap_or_default();
    let most = sorted.last().copied().unwrap_or_default();
    format!("p50 {} p90 {} p99 {} max {most} ms", at(50), at(90), at(99))
}

fn histogram(pauses: &[u64]) -> BTreeMap<u64, u64> {
    let mut classes = BTreeMap::new();
    for pause in pauses {
        *classes.entry(pause.max(&1).next_power_of_two()).or_insert(0) += 1;
    }
    classes
}

/// Kills servers of `dir` until `wanted` have died of any cause.
fn kill(dir: &Path, group: Option<&Group>, seed: u64, wanted: u64) -> Tally {
    let mut tally = Tally::default();
    let mut rng = SmallRng::seed_from_u64(seed);
    let clock = SystemClock::default();
    let mut lives = history(dir).life;
    while tally.deaths < wanted {
        let server = JustServer::of(dir);
        std::thread::sleep(Duration::from_micros(rng.random_range(0..LIFE_MAX.as_micros() as u64)));
        let choice = rng.random_range(0..LACKS);
        let lacked = choice == 0 && group.is_some_and(|group| lacks_memory(group, &server));
        // Abort only in every second life: two such deaths in a row would mean that a request kills
        // each server.
        let signal = match choice {
            1..4 if lives.is_multiple_of(2) => Signal::ABORT,
            4 if lives.is_multiple_of(2) => Signal::ILL,
            _ => Signal::KILL,
        };
        let killed = clock.monotonic();
        // The server may have died by itself since.
        let died = server.kill(signal).is_err();
        let mut now = history(dir);
        until("another server serves", || {
            now = history(dir);
            now.life > lives
        });
        if now.life == lives + 1 {
            let cause = match Signal::from_named_raw(now.last_signal) {
                Some(Signal::KILL) if lacked => "OOM",
                Some(Signal::KILL) => "SIGKILL",
                Some(Signal::ABORT) => "SIGABRT",
                Some(Signal::ILL) => "SIGILL",
                other => panic!("{other:?} is no signal of this test"),
            };
            *tally.causes.entry(cause).or_insert(0) += 1;
            tally.pauses.push(now.pause_last_ms);
            if !died && !lacked {
                tally.waits.push(clock.since(killed).as_millis() as u64);
            }
        }
        tally.deaths += now.life - lives;
        lives = now.life;
    }
    tally
}

/// Leaves a server without memory. Returns whether the kernel has killed it for that.
fn lacks_memory(group: &Group, server: &JustServer) -> bool {
    if !group.take(server.pid) {
        return false;
    }
    let clock = SystemClock::default();
    let begun = clock.monotonic();
    while clock.since(begun) < LACK_MAX {
        if server.is_gone() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// Shows what the servers have logged if the test fails.
struct Log<'a>(&'a Place);

impl Drop for Log<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.0.path("log")).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            println!("{}", lines[lines.len().saturating_sub(LOGGED)..].join("\n"));
        }
    }
}

fn round(load: &Load, reference: &str, group: Option<&Group>, seed: u64, wanted: u64) -> Tally {
    let place = Place::new();
    let words = ["--log-file", "log", "--create", load.size];
    let noted = mount_dying(&place, &words, &seed.to_string());
    let (dir, _log) = (place.path("mnt"), Log(&place));
    let mut tally = std::thread::scope(|scope| {
        let killer = scope.spawn(|| kill(&dir, group, seed, wanted));
        let mut runs = 0;
        while runs == 0 || !killer.is_finished() {
            let left = (load.run)(&place);
            assert!(left == reference, "{}: {}", load.name, crate::loads::first_difference(&left, reference));
            runs += 1;
        }
        Tally { runs, ..killer.join().unwrap() }
    });
    let seen = history(&dir);
    assert_eq!(seen.refused, 0, "{tally}");
    // A server may have died by itself after the last signal.
    tally.deaths = seen.deaths;
    tally.noted(&noted);
    place.unmount();
    // The keeper holds the image until the memory of its last server is freed.
    until("the image is free", || {
        let judged = place.run("fsck disk.kedge");
        let busy = judged.err.contains("in use by another process");
        assert!(busy || judged.code == 0, "{}{}", judged.out, judged.err);
        !busy
    });
    tally
}

fn alone(load: &Load) -> String {
    let place = Place::after(&format!("mount --create {} -o nokeeper disk.kedge mnt", load.size));
    let left = (load.run)(&place);
    place.unmount_and_check("disk.kedge");
    left
}

#[test]
fn seven_loads_do_not_notice_deaths_of_their_servers() {
    let Some(wanted) = deaths_of() else {
        return kedge_base::skip::note("the seven loads run where KEDGE_KEEPER_DEATHS is set");
    };
    needs_fuse!(root: "PostgreSQL and pjdfstest become other users");
    let group = Group::new();
    if group.is_none() {
        println!("no control group for memory: no server dies of a lack of it");
    }
    let seed = seed_from_env().unwrap_or(5);
    println!("KEDGE_SEED={seed}");
    let mut references = BTreeMap::new();
    let (mut total, mut of_load) = (Tally::default(), BTreeMap::new());
    for n in 0..wanted.div_ceil(ROUND) {
        let load = &LOADS[((seed + n) % LOADS.len() as u64) as usize];
        let reference = references.entry(load.name).or_insert_with(|| alone(load));
        let deaths = ROUND.min(wanted - n * ROUND);
        let tally = round(load, reference, group.as_ref(), seed + n, deaths);
        println!("{n} {}: {tally}", load.name);
        of_load.entry(load.name).or_insert_with(Tally::default).add(&tally);
        total.add(&tally);
    }
    for (name, tally) in &of_load {
        println!("{name}: {tally}");
    }
    println!("pauses up to so many ms: {:?}", histogram(&total.pauses));
    println!("inside of requests: {:?}", total.steps);
    println!("all: {total}");
    assert!(total.deaths >= wanted, "{total}");
    if INJECTS {
        assert!(total.inside("panic") > 0 && total.inside("abort") > 0, "{total}");
    } else {
        kedge_base::skip::note("servers of this build die inside of no request by themselves");
    }
}
