//! The loads of the contestants. Each load prepares its work, does it between two readings of the
//! clock, and returns a rate.

use super::Peer;
use super::root::Root;
use crate::library::in_threads;
use crate::parse;
use crate::place::Place;
use anyhow::{Context, Result, ensure};
use kedge_base::{Clock, SystemClock};
use std::time::Duration;

const BLOCK: [u8; 4096] = [0x6b; 4096];
const MIB: usize = 1 << 20;
/// Number of files in each directory of a tree.
const IN_DIR: u64 = 100;
/// Number of blocks of a file that is overwritten.
const OVERWRITTEN: u64 = 1024;
/// Number of files that are created before the first of them is made durable, as fs_mark does by
/// default.
const BEFORE_FSYNC: u64 = 1000;
/// Number of files that are walked, and of mebibytes that are read.
const WALKED: u64 = 100_000;
const READ: u64 = 512;

/// One load. It starts in an empty directory.
pub struct Load {
    pub title: &'static str,
    pub unit: &'static str,
    pub threads: usize,
    /// Number of items in the first round, from which the number in the counted rounds is computed.
    /// [`Work::Kept`] has this number in all rounds.
    pub pilot: u64,
    /// Bytes of the image that an item needs, which bound the number of items.
    pub item: u64,
    /// Whether each item needs at least one durable write, so that durable writes alone are a
    /// contestant.
    pub durable: bool,
    pub wanted: &'static [Wanted],
    pub work: Work,
}

/// A goal: KedgeFS (`whose`) must reach `times` the rate of the best of `of`.
pub struct Wanted {
    pub whose: Peer,
    pub times: f64,
    pub of: &'static [Peer],
}

const fn mounted(times: f64, of: &'static [Peer]) -> Wanted {
    Wanted { whose: Peer::Kedge, times, of }
}

const fn in_process(times: f64, of: &'static [Peer]) -> Wanted {
    Wanted { whose: Peer::Library, times, of }
}

const KERNEL: &[Peer] = &[Peer::Ext4, Peer::Ext4Fast, Peer::Xfs, Peer::Btrfs];
const EXT4: &[Peer] = &[Peer::Ext4];
const XFS: &[Peer] = &[Peer::Xfs];
const NULL: &[Peer] = &[Peer::Null];
const NULL_LOG: &[Peer] = &[Peer::NullLog];
/// The goals for every load.
pub static ANY: [Wanted; 2] = [mounted(2.0, &[Peer::Fuse2fs]), mounted(2.0, &[Peer::Redoxfs])];
static CREATED: [Wanted; 2] = [mounted(0.8, NULL), in_process(4.0, EXT4)];
static FSYNCED_1: [Wanted; 3] =
    [mounted(2.5, KERNEL), in_process(5.0, KERNEL), in_process(0.95, &[Peer::Raw])];
static FSYNCED_4: [Wanted; 2] = [mounted(2.5, KERNEL), in_process(5.0, KERNEL)];
static FSYNCED_16: [Wanted; 3] = [mounted(1.0, XFS), mounted(0.9, NULL_LOG), in_process(5.0, KERNEL)];
static FSYNCED_LATER: [Wanted; 1] = [mounted(2.5, KERNEL)];
static FSYNCED_LATER_16: [Wanted; 2] = [mounted(1.0, XFS), mounted(0.9, NULL_LOG)];
static REPLACED: [Wanted; 1] = [mounted(1.0, XFS)];
static TREE: [Wanted; 1] = [mounted(0.8, NULL)];
static SEQUENTIAL: [Wanted; 1] = [mounted(0.8, EXT4)];
static DBENCH: [Wanted; 1] = [mounted(0.85, NULL_LOG)];

pub enum Work {
    /// Calls through std::fs or the library. Returns items per second.
    Calls(fn(&Root, usize, u64) -> Result<f64>),
    /// Work on a directory with this name, which is made once and kept. `cold`: no cache contains
    /// it when a round begins.
    Kept {
        name: &'static str,
        prepare: fn(&Root, u64) -> Result<()>,
        run: fn(&Root, u64) -> Result<f64>,
        cold: bool,
    },
    /// A program that needs a mount. It gets the directory's name in commands, and the directory.
    Tool { program: &'static str, run: fn(&Place, &str, &Root, u64) -> Result<f64> },
}

const fn calls(
    title: &'static str,
    unit: &'static str,
    threads: usize,
    pilot: u64,
    work: fn(&Root, usize, u64) -> Result<f64>,
) -> Load {
    Load { title, unit, threads, pilot, item: 32 << 10, durable: false, wanted: &[], work: Work::Calls(work) }
}

const fn wanted(wanted: &'static [Wanted], load: Load) -> Load {
    Load { wanted, ..load }
}

const fn durable(load: Load) -> Load {
    Load { durable: true, ..load }
}

const fn large(load: Load) -> Load {
    Load { item: 8 << 20, ..load }
}

const fn walk(title: &'static str, cold: bool) -> Load {
    let kept = Work::Kept { name: "tree", prepare: make_names, run: walk_all, cold };
    Load { work: kept, ..calls(title, "files/s", 1, WALKED, empty_files) }
}

const fn read(title: &'static str, cold: bool) -> Load {
    let kept = Work::Kept { name: "file", prepare: make_file, run: read_all, cold };
    Load { work: kept, ..wanted(&SEQUENTIAL, calls(title, "MiB/s", 1, READ, empty_files)) }
}

/// `fs_mark -S 3` and `-S 5`: creates all files, then reopens them one by one and makes each
/// durable.
const fn synced_after(title: &'static str, threads: usize, reverse: bool) -> Load {
    let work = if reverse { reverse_synced_files } else { later_synced_files };
    let bars: &[Wanted] = if threads < 16 { &FSYNCED_LATER } else { &FSYNCED_LATER_16 };
    wanted(bars, durable(calls(title, "files/s", threads, 100 * threads as u64, work)))
}

pub static LOADS: [Load; 29] = [
    wanted(&CREATED, calls("4 KiB files, 1 thread", "files/s", 1, 500, plain_files)),
    wanted(&CREATED, calls("4 KiB files, 4 threads", "files/s", 4, 500, plain_files)),
    wanted(&CREATED, calls("4 KiB files, 16 threads", "files/s", 16, 500, plain_files)),
    wanted(&CREATED, calls("empty files, 1 thread", "files/s", 1, 1000, empty_files)),
    wanted(
        &FSYNCED_1,
        durable(calls("4 KiB files, each with fsync, 1 thread", "files/s", 1, 100, synced_files)),
    ),
    wanted(
        &FSYNCED_4,
        durable(calls("4 KiB files, each with fsync, 4 threads", "files/s", 4, 200, synced_files)),
    ),
    wanted(
        &FSYNCED_16,
        durable(calls("4 KiB files, each with fsync, 16 threads", "files/s", 16, 400, synced_files)),
    ),
    synced_after("4 KiB files, then fsync of each, 1 thread", 1, false),
    synced_after("4 KiB files, then fsync of each, 4 threads", 4, false),
    synced_after("4 KiB files, then fsync of each, 16 threads", 16, false),
    synced_after("4 KiB files, then fsync of each from the last, 1 thread", 1, true),
    synced_after("4 KiB files, then fsync of each from the last, 4 threads", 4, true),
    synced_after("4 KiB files, then fsync of each from the last, 16 threads", 16, true),
    durable(calls("overwrite 4 KiB, fdatasync", "writes/s", 1, 100, overwrites)),
    durable(calls("overwrite 4 KiB, fdatasync, 4 threads", "writes/s", 4, 400, overwrites)),
    durable(calls("overwrite 4 KiB, fdatasync, 16 threads", "writes/s", 16, 800, overwrites)),
    durable(calls("append 100 bytes, fdatasync", "writes/s", 1, 100, appends)),
    wanted(&REPLACED, durable(calls("replace a file safely, 16 clients", "files/s", 16, 160, replacements))),
    durable(calls("replace a file safely, 16 clients in one directory", "files/s", 16, 160, rename_storm)),
    wanted(&TREE, calls("unpack a tree of small files", "files/s", 1, 500, unpack)),
    wanted(&TREE, calls("remove that tree", "files/s", 1, 500, remove)),
    wanted(
        &SEQUENTIAL,
        large(calls("sequential write of 1 MiB each, fsync at the end", "MiB/s", 1, 32, sequential_write)),
    ),
    Load {
        title: "dbench, 16 clients",
        unit: "MB/s",
        threads: 16,
        pilot: 1,
        item: 64 << 20,
        durable: false,
        wanted: &DBENCH,
        work: Work::Tool { program: "dbench", run: dbench },
    },
    Load {
        title: "git add and commit",
        unit: "files/s",
        threads: 1,
        pilot: 300,
        item: 64 << 10,
        durable: false,
        wanted: &[],
        work: Work::Tool { program: "git", run: git },
    },
    Load {
        title: "SQLite, WAL, one transaction for each row",
        unit: "rows/s",
        threads: 1,
        pilot: 100,
        item: 32 << 10,
        durable: true,
        wanted: &[],
        work: Work::Tool { program: "sqlite3", run: sqlite },
    },
    walk("walk 100,000 files, cold", true),
    walk("walk 100,000 files, warm", false),
    read("sequential read of 1 MiB each, cold", true),
    read("sequential read of 1 MiB each, warm", false),
];

fn rate(items: u64, took: Duration) -> f64 {
    items as f64 / took.as_secs_f64()
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let clock = SystemClock::default();
    let started = clock.monotonic();
    work()?;
    Ok(clock.monotonic().saturating_sub(started))
}

/// Shares `items` among the threads. Each works in its own directory.
fn shared(root: &Root, threads: usize, items: u64, work: fn(&Root, u64) -> Result<()>) -> Result<f64> {
    let each = (items / threads as u64).max(1);
    let dirs: Vec<Root> = (0..threads).map(|i| root.make_dir(&format!("t{i}"))).collect::<Result<_>>()?;
    let (took, _) = in_threads(threads, |i| {
        let dir = dirs[i].clone();
        move || work(&dir, each)
    })?;
    Ok(rate(each * threads as u64, took))
}

fn plain_files(root: &Root, threads: usize, items: u64) -> Result<f64> {
    shared(root, threads, items, |dir, each| {
        (0..each).try_for_each(|i| dir.create(&format!("f{i:07}"))?.write(&BLOCK))
    })
}

fn empty_files(root: &Root, threads: usize, items: u64) -> Result<f64> {
    shared(root, threads, items, |dir, each| {
        (0..each).try_for_each(|i| dir.create(&format!("f{i:07}")).map(drop))
    })
}

fn synced_files(root: &Root, threads: usize, items: u64) -> Result<f64> {
    shared(root, threads, items, |dir, each| {
        (0..each).try_for_each(|i| {
            let mut file = dir.create(&format!("f{i:07}"))?;
            file.write(&BLOCK)?;
            file.sync()
        })
    })
}

fn later_synced_files(root: &Root, threads: usize, items: u64) -> Result<f64> {
    shared(root, threads, items, |dir, each| sync_after(dir, each, false))
}

fn reverse_synced_files(root: &Root, threads: usize, items: u64) -> Result<f64> {
    shared(root, threads, items, |dir, each| sync_after(dir, each, true))
}

fn sync_after(dir: &Root, items: u64, reverse: bool) -> Result<()> {
    let name = |i: u64| format!("f{i:07}");
    for first in (0..items).step_by(BEFORE_FSYNC as usize) {
        let these = first..(first + BEFORE_FSYNC).min(items);
        these.clone().try_for_each(|i| dir.create(&name(i))?.write(&BLOCK))?;
        match reverse {
            false => these.into_iter().try_for_each(|i| dir.open(&name(i))?.sync())?,
            true => these.rev().try_for_each(|i| dir.open(&name(i))?.sync())?,
        }
    }
    Ok(())
}

/// Each thread overwrites blocks of a file of its own.
fn overwrites(root: &Root, threads: usize, items: u64) -> Result<f64> {
    let each = (items / threads as u64).max(1);
    let mut files = Vec::new();
    for i in 0..threads {
        let file = root.create(&format!("f{i}"))?;
        (0..OVERWRITTEN).try_for_each(|i| file.write_at(i * BLOCK.len() as u64, &BLOCK))?;
        file.sync()?;
        files.push(file);
    }
    let mut files = files.into_iter();
    let (took, _) = in_threads(threads, |_| {
        let file = files.next();
        move || {
            let file = file.context("each thread has a file")?;
            (0..each).try_for_each(|i| {
                // Blocks that follow one another in time are far apart in the file.
                file.write_at(i * 389 % OVERWRITTEN * BLOCK.len() as u64, &BLOCK)?;
                file.sync_data()
            })
        }
    })?;
    Ok(rate(each * threads as u64, took))
}

fn appends(root: &Root, _: usize, items: u64) -> Result<f64> {
    let mut file = root.create("f")?;
    file.sync()?;
    let took = timed(|| {
        (0..items).try_for_each(|_| {
            file.write(&BLOCK[..100])?;
            file.sync_data()
        })
    })?;
    Ok(rate(items, took))
}

/// Replaces files: writes a new file, fsyncs it, renames it, and fsyncs the directory.
fn replacements(root: &Root, threads: usize, items: u64) -> Result<f64> {
    shared(root, threads, items, |dir, each| (0..each).try_for_each(|_| replace(dir, "new", "f")))
}

fn replace(dir: &Root, new: &str, name: &str) -> Result<()> {
    let mut file = dir.create(new)?;
    file.write(&BLOCK)?;
    file.sync()?;
    dir.rename(new, name)?;
    dir.sync()
}

/// [`replacements`] with all files in one directory.
fn rename_storm(root: &Root, threads: usize, items: u64) -> Result<f64> {
    let each = (items / threads as u64).max(1);
    let (took, _) = in_threads(threads, |i| {
        let dir = root.clone();
        move || {
            let (new, name) = (format!("new{i}"), format!("f{i}"));
            (0..each).try_for_each(|_| replace(&dir, &new, &name))
        }
    })?;
    Ok(rate(each * threads as u64, took))
}

/// Does the work of tar: creates directories and files of 1 KiB, and sets modes and times.
fn make_tree(root: &Root, items: u64) -> Result<()> {
    let tree = root.make_dir("tree")?;
    let mut dir = tree.clone();
    for i in 0..items {
        if i % IN_DIR == 0 {
            dir = tree.make_dir(&format!("d{i:07}"))?;
        }
        let name = format!("f{i:07}");
        dir.create(&name)?.write(&BLOCK[..1024])?;
        dir.describe(&name)?;
    }
    Ok(())
}

fn unpack(root: &Root, _: usize, items: u64) -> Result<f64> {
    Ok(rate(items, timed(|| make_tree(root, items))?))
}

fn remove(root: &Root, _: usize, items: u64) -> Result<f64> {
    make_tree(root, items)?;
    Ok(rate(items, timed(|| root.remove_all("tree"))?))
}

/// Creates directories of empty files.
fn make_names(root: &Root, items: u64) -> Result<()> {
    let mut dir = root.clone();
    for i in 0..items {
        if i % IN_DIR == 0 {
            dir = root.make_dir(&format!("d{i:07}"))?;
        }
        dir.create(&format!("f{i:07}"))?;
    }
    Ok(())
}

fn walk_all(root: &Root, items: u64) -> Result<f64> {
    let took = timed(|| {
        let there = root.walk()?;
        ensure!(there == items + items.div_ceil(IN_DIR), "{there} were found where {items} files are");
        Ok(())
    })?;
    Ok(rate(items, took))
}

fn sequential_write(root: &Root, _: usize, items: u64) -> Result<f64> {
    let bytes = vec![0x6b; MIB];
    let took = timed(|| {
        let mut file = root.create("f")?;
        (0..items).try_for_each(|_| file.write(&bytes))?;
        file.sync()
    })?;
    Ok(rate(items, took))
}

fn make_file(root: &Root, items: u64) -> Result<()> {
    let bytes = vec![0x6b; MIB];
    let mut file = root.create("f")?;
    (0..items).try_for_each(|_| file.write(&bytes))?;
    file.sync()
}

fn read_all(root: &Root, items: u64) -> Result<f64> {
    let mut bytes = vec![0; MIB];
    let file = root.open("f")?;
    let took = timed(|| {
        (0..items).try_for_each(|i| {
            let n = file.read_at(i * MIB as u64, &mut bytes)?;
            ensure!(n == MIB && bytes[0] == 0x6b, "{n} bytes were read of {MIB}");
            Ok(())
        })
    })?;
    Ok(rate(items, took))
}

fn dbench(place: &Place, name: &str, _: &Root, seconds: u64) -> Result<f64> {
    let seconds = seconds.clamp(2, 10);
    let out = place.shell.run(&format!("dbench -t {seconds} -D {name} 16"))?;
    Ok(parse::dbench(&out)?.throughput)
}

fn git(place: &Place, name: &str, root: &Root, items: u64) -> Result<f64> {
    make_tree(root, items)?;
    let git = format!("git -C {name}/tree -c user.name=kedge -c user.email=kedge@example.invalid");
    let took = timed(|| {
        place.shell.run(&format!("{git} init -q"))?;
        place.shell.run(&format!("{git} add ."))?;
        place.shell.run(&format!("{git} commit -q -m all"))?;
        Ok(())
    })?;
    Ok(rate(items, took))
}

fn sqlite(place: &Place, name: &str, _: &Root, items: u64) -> Result<f64> {
    let script = place.shell.dir.join("rows.sql");
    let mut text = String::from(
        ".bail on\nPRAGMA journal_mode=WAL;\nPRAGMA synchronous=FULL;\nCREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT);\n",
    );
    (0..items).for_each(|i| text.push_str(&format!("INSERT INTO t VALUES ({i}, 'row number {i}');\n")));
    std::fs::write(&script, text).with_context(|| format!("write {}", script.display()))?;
    let took =
        timed(|| place.shell.run(&format!("sqlite3 -batch -init rows.sql {name}/db .quit")).map(drop))?;
    Ok(rate(items, took))
}
