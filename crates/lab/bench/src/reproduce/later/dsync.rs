//! XFS 6.18 made durable direct writes into unwritten extents faster, by not holding the inode's
//! lock across a log force. Here threads write 4 KiB blocks into one preallocated file.
//!
//! Each write converts its extent, so it needs a record and a log write. If a call held a lock
//! across its log write, other calls could not share the log write, and more threads would not be
//! faster.

use super::super::{LIBRARY_SETUP, Part, Run, contestant};
use crate::bars::{Bar, Want};
use crate::contest::{Amount, Better, Contest, Contestant, Metric, Outcome, Round};
use crate::counters::Counters;
use crate::library::{Library, in_threads};
use crate::mounts::Mounted;
use crate::report::{Reading, Section};
use crate::times::Times;
use anyhow::{Context, Result, bail, ensure};
use kedge_base::{BLOCK_SIZE, Clock, IoBuf, SystemClock};
use kedgefs::{FallocateMode, FileSystem, FormatOptions, Ino, MountOptions, Owner, WriteMode};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const THREADS: [usize; 3] = [1, 4, 16];
const FILE: u64 = 256 << 20;
const GAIN: &str = "16 threads by one";
/// The metrics of each number of threads.
const MEASURES: [(&str, &str, Better); 4] = [
    ("writes", "/s", Better::Higher),
    ("99th percentile", "ms", Better::Lower),
    (LOG_WRITES, "", Better::Lower),
    ("device writes for each write", "", Better::Lower),
];
const LOG_WRITES: &str = "log writes for each write";

/// A file whose blocks are allocated but unwritten.
trait Target: Clone + Send + 'static {
    /// Writes a block durably.
    fn write(&self, offset: u64, block: &IoBuf) -> Result<()>;
}

#[derive(Clone)]
struct LibraryFile(FileSystem, Ino);

impl Target for LibraryFile {
    fn write(&self, offset: u64, block: &IoBuf) -> Result<()> {
        let written = self.0.write_with(self.1, offset, block.as_bytes(), WriteMode::direct())?;
        ensure!(written == block.len(), "a write was cut short");
        Ok(self.0.fsync(self.1, true)?)
    }
}

/// A file that is open with O_DIRECT and O_DSYNC.
#[derive(Clone)]
struct HostFile(Arc<File>);

impl Target for HostFile {
    fn write(&self, offset: u64, block: &IoBuf) -> Result<()> {
        self.0.write_all_at(block.as_bytes(), offset).context("write")
    }
}

pub fn run(run: &mut Run<'_>) -> Result<()> {
    if !run.does(Part::Process) {
        return Ok(());
    }
    let library = run.library(&FormatOptions::default(), MountOptions::default())?;
    let mut setup = vec![LIBRARY_SETUP.to_owned()];
    let others = run.ext4_and_xfs(&mut setup)?;
    if others.is_empty() {
        run.note("Left out: ext4 and XFS beside durable direct writes (loop mounts take root).".into());
    }
    let interrupt = run.settings.interrupt.clone();
    let mut contestants = vec![contestant("library", &library, |library: &Library, ms| {
        let fs = library.fs();
        let round = |threads| {
            let name = b"file";
            let ino = fs.create(Ino::ROOT, name, 0o644, Owner::default())?.ino;
            fs.fallocate(ino, FallocateMode::Allocate { keep_size: false }, 0, FILE)?;
            fs.fsync(ino, false)?;
            let before = Counters::of(fs)?;
            let times = write(&LibraryFile(fs.clone(), ino), threads, ms, &interrupt)?;
            let after = Counters::of(fs)?;
            fs.unlink(Ino::ROOT, name)?;
            library.sync()?;
            let each = |path: &str| Ok::<_, anyhow::Error>(after.since(&before, path)? / times.1.count());
            Ok(values(&times, each("log/writes")?, each("device/writes")?))
        };
        rounds(ms, round)
    })];
    for (name, mounted) in &others {
        contestants.push(contestant(name, mounted, |mounted: &Mounted<'_>, ms| {
            let path = mounted.path().join("file");
            let round = |threads| {
                let file = host_file(&path)?;
                let times = write(&file, threads, ms, &interrupt)?;
                std::fs::remove_file(&path)?;
                mounted.settle()?;
                Ok(values(&times, f64::NAN, f64::NAN))
            };
            rounds(ms, round)
        }));
    }
    let outcome = hold(run, contestants)?;
    run.bars.extend(bars(&outcome));
    run.end_library(library);
    run.end(others.into_iter().map(|(_, mounted)| mounted));
    run.sections.push(Section {
        title: "Durable direct writes into unwritten extents of one file".into(),
        setup,
        outcomes: vec![outcome],
        reading: Reading::Ratio,
    });
    Ok(())
}

fn hold(run: &Run<'_>, contestants: Vec<Contestant<'_>>) -> Result<Outcome> {
    run.plan.hold(Contest {
        title: "4 KiB, O_DIRECT and O_DSYNC".into(),
        metrics: metrics(),
        amount: Amount::Warmed { pilot: run.pick(100, 300), amount: run.pick(300, 1_000) },
        goal: None,
        contestants,
    })
}

fn named(threads: usize, measure: &str) -> String {
    let plural = if threads == 1 { "" } else { "s" };
    format!("{threads} thread{plural}: {measure}")
}

fn metrics() -> Vec<Metric> {
    let of = |threads| MEASURES.map(|(name, unit, better)| Metric::new(named(threads, name), unit, better));
    let mut metrics: Vec<Metric> = THREADS.into_iter().flat_map(of).collect();
    metrics.push(Metric::new(GAIN, "times", Better::Higher));
    metrics
}

fn bars(outcome: &Outcome) -> Vec<Bar> {
    let shared = named(16, LOG_WRITES);
    vec![
        Bar::new(outcome, GAIN, "", Want::AtLeast(2.5), |at| at(0, GAIN)),
        Bar::new(outcome, &shared, "", Want::AtMost(0.25), |at| at(0, &shared)),
    ]
}

/// One round, which measures each number of threads.
fn rounds(ms: u64, round: impl Fn(usize) -> Result<Vec<f64>>) -> Result<Round> {
    let mut values = Vec::new();
    for threads in THREADS {
        values.extend(round(threads)?);
    }
    values.push(values[2 * MEASURES.len()] / values[0]);
    let command = format!(
        "# fallocate {FILE} bytes; 1, 4 and 16 threads write blocks of 4 KiB, each in its own part, \
         for {ms} ms each"
    );
    Ok(Round { values, command })
}

fn values(times: &(Duration, Times), log_writes: f64, device_writes: f64) -> Vec<f64> {
    let (took, times) = times;
    vec![times.count() / took.as_secs_f64(), times.quantile(0.99), log_writes, device_writes]
}

fn host_file(path: &Path) -> Result<HostFile> {
    let flags = libc::O_DIRECT | libc::O_DSYNC;
    let mut options = File::options();
    options.write(true).create_new(true).custom_flags(flags);
    let file = options.open(path).with_context(|| format!("create {}", path.display()))?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, FILE).context("fallocate")?;
    file.sync_all().context("fsync")?;
    Ok(HostFile(Arc::new(file)))
}

/// Lets each thread write its own range of the file from its beginning, until the time is over.
fn write<T: Target>(
    file: &T,
    threads: usize,
    ms: u64,
    interrupt: &crate::Interrupt,
) -> Result<(Duration, Times)> {
    let part = FILE / threads as u64;
    let (took, answers) = in_threads(threads, |thread| {
        let (file, interrupt) = (file.clone(), interrupt.clone());
        let from = thread as u64 * part;
        move || {
            let clock = SystemClock::default();
            let end = clock.monotonic() + Duration::from_millis(ms);
            let block = IoBuf::from_bytes(&[0x6b; BLOCK_SIZE]);
            let mut times = Times::default();
            for offset in (from..from + part).step_by(BLOCK_SIZE) {
                if clock.monotonic() >= end {
                    return Ok(times);
                }
                interrupt.check()?;
                times.time(&clock, || file.write(offset, &block))?;
            }
            bail!("{part} bytes are too few for {ms} ms")
        }
    })?;
    let mut all = Times::default();
    answers.into_iter().for_each(|times| all.merge(times));
    Ok((took, all))
}
