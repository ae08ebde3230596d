//! Proposed for Linux in 2025: several threads for the writeback of one file system. Here the
//! flushers give a file system one thread. What more threads would gain shows where threads of the
//! caller write large dirty files back, each its share, by passes like those of a flusher.

use super::super::{LIBRARY_SETUP, Part, Run, contestant};
use crate::contest::{Amount, Better, Contest, Contestant, Metric, Round};
use crate::counters::Counters;
use crate::library::{Library, in_threads};
use crate::report::{Reading, Section};
use anyhow::Result;
use kedgefs::{FormatOptions, Ino, MountOptions, Owner};
use std::time::Duration;

const FILES: u64 = 12;
/// Written at a time.
const CHUNK: u64 = 1 << 20;
/// By threads.
const WRITERS: [(&str, usize); 3] = [("1 writer", 1), ("2 writers", 2), ("4 writers", 4)];
/// Large enough, and no timer: nothing is written back before the threads do it.
const CACHE: u64 = 4 << 30;
const COMMIT: Duration = Duration::from_secs(3600);

pub fn run(run: &mut Run<'_>) -> Result<()> {
    if !run.does(Part::Process) {
        return Ok(());
    }
    let options = MountOptions { cache_size: CACHE, commit: COMMIT, ..MountOptions::default() };
    let library = run.library(&FormatOptions::default(), options)?;
    let contestants: Vec<Contestant<'_>> = WRITERS
        .into_iter()
        .map(|(name, threads)| {
            contestant(name, &library, move |library: &Library, mib| round(library, threads, mib))
        })
        .collect();
    let outcome = run.plan.hold(Contest {
        title: format!("{FILES} large files written back"),
        metrics: vec![
            Metric::new("rate", "MB/s", Better::Higher),
            Metric::new("writes to the device for each MiB", "", Better::Lower),
        ],
        amount: Amount::Warmed { pilot: run.pick(2, 8), amount: run.pick(4, 32) },
        goal: None,
        contestants,
    })?;
    run.end_library(library);
    run.sections.push(Section {
        title: "Writeback by several threads, in this process".into(),
        setup: vec![LIBRARY_SETUP.to_owned()],
        outcomes: vec![outcome],
        reading: Reading::Ratio,
    });
    Ok(())
}

/// Writes `mib` MiB to each file, without a sync, then writes all of it back.
fn round(library: &Library, threads: usize, mib: u64) -> Result<Round> {
    let fs = library.fs();
    let chunk = vec![0x6b; CHUNK as usize];
    let mut files = Vec::new();
    for i in 0..FILES {
        let name = format!("large{i}");
        let ino = fs.create(Ino::ROOT, name.as_bytes(), 0o644, Owner::default())?.ino;
        for at in 0..mib {
            fs.write(ino, at * CHUNK, &chunk)?;
        }
        files.push((name, ino));
    }
    let before = Counters::of(fs)?;
    let (took, _) = in_threads(threads, |thread| {
        let share: Vec<Ino> = files.iter().map(|(_, ino)| *ino).skip(thread).step_by(threads).collect();
        let fs = fs.clone();
        move || Ok(fs.write_back(&share)?)
    })?;
    let writes = Counters::of(fs)?.since(&before, "device/writes")?;
    for (name, _) in &files {
        fs.unlink(Ino::ROOT, name.as_bytes())?;
    }
    library.sync()?;
    let all = (FILES * mib) as f64;
    let values = vec![all * 1.048_576 / took.as_secs_f64(), writes / all];
    let command =
        format!("# {FILES} files of {mib} MiB, dirty; {threads} threads call write_back for their share");
    Ok(Round { values, command })
}
