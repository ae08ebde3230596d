//! Explores many workloads on several threads, completely or within a time limit, and reports the
//! violations.
//!
//! With a time limit, skeletons are taken in an order that the seed gives, so that each seed gives
//! another selection. A full run groups skeletons with the same first operation, since they share
//! most media. Progress can be kept in a file, one line for each finished skeleton, so that an
//! interrupted run continues there.

use crate::explore::{Explorer, Failure, Memory, Plan, Tally, base_image};
use crate::shrink::shrink;
use crate::workload::{Catalogue, Kind, Workload, WorkloadId};
use kedge_base::{Clock, SystemClock, spawn_named};
use kedge_device::MemDevice;
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What to explore.
#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    /// Numbers of operations of the workloads, with the time limit for each.
    pub parts: Vec<(u8, Option<Duration>)>,
    pub resume: Option<PathBuf>,
    pub threads: usize,
    /// Whether the seed sets the mount's switches. For workloads of three operations it always
    /// does.
    pub switched: bool,
    /// Whether all states of every medium are checked, however many workloads there are.
    pub thorough: bool,
    pub files: Files,
}

/// The files of the workloads, and whether the image keeps the data of small files in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    Usual,
    /// Small files, in an image that keeps their data in the tree.
    Small,
    /// Files around the length of the longest file whose data is kept in the tree, in such an
    /// image.
    Edges,
}

impl Files {
    fn kind(self) -> Kind {
        if self == Files::Edges { Kind::Edges } else { Kind::All }
    }

    fn base(self) -> anyhow::Result<MemDevice> {
        base_image(self != Files::Usual).map_err(anyhow::Error::msg)
    }

    fn shaped(self, workload: Workload) -> Workload {
        if self == Files::Small { workload.small() } else { workload }
    }
}

/// Failures that are printed in full. Further ones are only counted.
const PRINTED_MAX: usize = 10;
/// Limit of explorations to shorten one failing workload.
const SHRINK_TRIES: usize = 40;
const REPORT_EVERY: Duration = Duration::from_secs(30);

struct Part {
    catalogue: Catalogue,
    order: Vec<u64>,
    next: AtomicUsize,
    deadline: Option<Duration>,
    plan: Plan,
    switched: Option<u64>,
    files: Files,
}

struct Shared {
    part: Part,
    base: MemDevice,
    memory: Arc<Mutex<Memory>>,
    clock: SystemClock,
    progress: Mutex<Progress>,
}

struct Progress {
    tally: Tally,
    done: usize,
    printed: usize,
    file: Option<File>,
    reported: Duration,
}

/// Explores all parts and returns the sum of their counts.
pub fn run(options: &Options) -> anyhow::Result<Tally> {
    let clock = SystemClock::default();
    let (mut total, mut now) = (Tally::default(), Tally::default());
    for (seq, limit) in &options.parts {
        let (tally, before) = run_part(options, *seq, *limit, clock)?;
        now += tally;
        total += tally;
        total += before;
    }
    println!("in all: {}", describe(&now, clock.monotonic()));
    Ok(total)
}

fn describe(tally: &Tally, took: Duration) -> String {
    format!(
        "{} workloads, {} crash states ({} recoveries that differ, {} states during recovery), {:.0} states/s, \
         {} violations, {:.1} minutes",
        tally.workloads,
        tally.states,
        tally.distinct,
        tally.recovery,
        tally.states as f64 / took.as_secs_f64().max(1e-3),
        tally.violations,
        took.as_secs_f64() / 60.0
    )
}

/// Reads the finished skeletons of one length, and their counts.
fn load(file: &PathBuf, seq: u8, seed: u64) -> anyhow::Result<(HashSet<u64>, Tally)> {
    let (mut done, mut tally) = (HashSet::new(), Tally::default());
    let Ok(file) = File::open(file) else { return Ok((done, tally)) };
    for line in BufReader::new(file).lines() {
        let line = line?;
        let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
        // A line that was cut off by the end of the run does not count.
        let Ok(&[s, x, skeleton, workloads, states, distinct, recovery, violations]) = numbers.as_deref()
        else {
            continue;
        };
        if (s, x) == (seq as u64, seed) && done.insert(skeleton) {
            tally += Tally { workloads, states, distinct, recovery, violations };
        }
    }
    Ok((done, tally))
}

/// Returns the counts of this run and of the runs that it resumes.
fn run_part(
    options: &Options,
    seq: u8,
    limit: Option<Duration>,
    clock: SystemClock,
) -> anyhow::Result<(Tally, Tally)> {
    let catalogue = Catalogue::of(options.files.kind(), seq, options.seed);
    let seed = if seq < 3 { 0 } else { options.seed };
    let (done, before) = match &options.resume {
        Some(file) => load(file, seq, seed)?,
        None => Default::default(),
    };
    let mut order: Vec<u64> = (0..catalogue.len()).filter(|i| !done.contains(i)).collect();
    if limit.is_some() {
        order.shuffle(&mut SmallRng::seed_from_u64(options.seed));
    }
    let file = options.resume.as_ref().map(|f| OpenOptions::new().create(true).append(true).open(f));
    println!(
        "{seq} operation(s): {} skeletons, {} of them done before, seed {}",
        catalogue.len(),
        done.len(),
        options.seed
    );
    let started = clock.monotonic();
    let thorough = options.thorough || seq == 1;
    let plan = if thorough { Plan::thorough(options.seed) } else { Plan::quick(options.seed) };
    let deadline = limit.map(|limit| started + limit);
    let left = order.len();
    let switched = (options.switched || seq == 3).then_some(options.seed);
    let shared = Arc::new(Shared {
        part: Part {
            catalogue,
            order,
            next: AtomicUsize::new(0),
            deadline,
            plan,
            switched,
            files: options.files,
        },
        base: options.files.base()?,
        memory: Arc::default(),
        clock,
        progress: Mutex::new(Progress {
            tally: Tally::default(),
            done: 0,
            printed: 0,
            file: file.transpose()?,
            reported: started,
        }),
    });
    let mut threads = Vec::new();
    for i in 0..options.threads {
        let shared = shared.clone();
        threads.push(spawn_named(&format!("explore-{i}"), move || work(&shared))?);
    }
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("an exploring thread panicked"))??;
    }
    let progress = shared.progress.lock();
    let took = clock.since(started);
    let all = if progress.done == left { "all" } else { "a slice" };
    println!("{seq} operation(s), {all}: {}", describe(&progress.tally, took));
    let tally = progress.tally;
    if !done.is_empty() {
        let mut both = tally;
        both += before;
        println!("{seq} operation(s), with what was done before: {both:?}");
    }
    Ok((tally, before))
}

fn work(shared: &Shared) -> anyhow::Result<()> {
    let part = &shared.part;
    let mut explorer = Explorer::new(&shared.base, part.plan).switched(part.switched).sharing(&shared.memory);
    loop {
        let next = part.next.fetch_add(1, Ordering::Relaxed);
        let Some(&skeleton) = part.order.get(next) else { return Ok(()) };
        for workload in part.catalogue.variants(skeleton) {
            let workload = part.files.shaped(workload);
            if part.deadline.is_some_and(|deadline| shared.clock.monotonic() >= deadline) {
                shared.progress.lock().tally += explorer.tally;
                return Ok(());
            }
            if let Some(failure) = explorer.explore(&workload, None) {
                shared.report(&failure);
            }
        }
        shared.finish(skeleton, std::mem::take(&mut explorer.tally))?;
    }
}

impl Shared {
    fn finish(&self, skeleton: u64, tally: Tally) -> anyhow::Result<()> {
        let now = self.clock.monotonic();
        let mut progress = self.progress.lock();
        progress.tally += tally;
        progress.done += 1;
        if let Some(file) = &mut progress.file {
            let id = self.part.catalogue.id();
            let Tally { workloads, states, distinct, recovery, violations } = tally;
            let line = format!(
                "{} {} {skeleton} {workloads} {states} {distinct} {recovery} {violations}\n",
                id.0, id.1
            );
            file.write_all(line.as_bytes())?;
        }
        if now.saturating_sub(progress.reported) >= REPORT_EVERY {
            progress.reported = now;
            let Progress { tally, done, .. } = &*progress;
            println!("  {done} of {} skeletons: {tally:?}", self.part.order.len());
        }
        Ok(())
    }

    fn report(&self, failure: &Failure) {
        let how = match self.part.files {
            Files::Usual => "",
            Files::Small => "with --inline: ",
            Files::Edges => "with --edges: ",
        };
        {
            let mut progress = self.progress.lock();
            progress.printed += 1;
            if progress.printed > PRINTED_MAX {
                let first = failure.what.lines().next().unwrap_or_default();
                println!("{how}VIOLATION --workload {}: {first}", failure.workload.id);
                return;
            }
        }
        let short = shorten(&self.base, &self.part, failure);
        println!("{how}{failure}\nshortest: {}\n", short.map_or("itself".to_owned(), |s| s.to_string()));
    }
}

/// Returns a failure with fewer operations.
fn shorten(base: &MemDevice, part: &Part, failure: &Failure) -> Option<Box<Failure>> {
    let id = failure.workload.id;
    let fails = |ops: &[crate::ops::Op]| {
        let workload = Workload { id, ops: ops.to_vec(), settled: 0 };
        Explorer::new(base, part.plan).switched(part.switched).explore(&workload, None)
    };
    // If an operation was left out that another one needs, the other one fails in the model, too.
    // That is no violation.
    let ops = shrink(failure.workload.ops.clone(), SHRINK_TRIES, |ops| fails(ops).is_some());
    if ops.len() == failure.workload.ops.len() { None } else { fails(&ops) }
}

/// Explores one workload, or one state of it. Returns whether it has no violation.
pub fn run_one(options: &Options, id: WorkloadId, state: Option<u64>) -> anyhow::Result<bool> {
    let workload = Catalogue::workload(options.files.kind(), id)
        .ok_or_else(|| anyhow::anyhow!("there is no workload {id}"))?;
    let workload = options.files.shaped(workload);
    println!("{workload}");
    let Options { seed, thorough, switched, .. } = *options;
    let plan = if thorough || id.seq == 1 { Plan::thorough(seed) } else { Plan::quick(seed) };
    let switched = (switched || id.seq == 3).then_some(seed);
    let mut explorer = Explorer::new(&options.files.base()?, plan).switched(switched);
    let failure = explorer.explore(&workload, state);
    println!("{:?}", explorer.tally);
    match &failure {
        Some(failure) => println!("{failure}"),
        None => println!("no violation"),
    }
    Ok(failure.is_none())
}
