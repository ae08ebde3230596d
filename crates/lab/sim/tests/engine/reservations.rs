//! No record needs more log bytes or tree nodes than its operation reserved.
//!
//! Random operations run on files with the most expensive extents: preallocated pieces, holes,
//! fragments, blocks whose newest bytes are in the log, written blocks inside unwritten extents.
//! The log has 1 MiB, and the image is full repeatedly. A debug build asserts at each commit that
//! the record fits its reservation. This test compares the bytes with a model, checks that
//! operations that free space never fail, and prints the smallest unused part of a reservation.

use crate::common::seeds;
use kedge_base::{HANG, ManualClock, spawn_named};
use kedge_device::sim::SimDevice;
use kedge_sim::ops::{OWNER, errno};
use kedge_sim::rig::{self, Setup, within};
use kedgefs::{Error, FallocateMode, FileSystem, Ino, SetAttr, XattrMode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;

const BLOCK: usize = 4096;
/// Maximum size of a file in blocks.
const FILE_BLOCKS: usize = 600;
const FILES: usize = 4;
const STEPS: usize = 500;

/// For each kind of record: count, fewest unused log bytes, fewest unused nodes.
type Slack = BTreeMap<String, [u64; 3]>;

fn slack(fs: &FileSystem) -> Result<Slack, String> {
    let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).map_err(|e| e.to_string())?;
    let reservations = stats["reservations"].as_object().ok_or("no reservations in the statistics")?;
    let number = |value: &serde_json::Value, name: &str| value[name].as_u64().ok_or(format!("no {name}"));
    let names = ["records", "least_bytes_left", "least_nodes_left"];
    let mut all = Slack::new();
    for (op, value) in reservations {
        let [records, bytes, nodes] = names.map(|name| number(value, name));
        all.insert(op.clone(), [records?, bytes?, nodes?]);
    }
    Ok(all)
}

fn add(sum: &mut Slack, more: Slack) {
    for (op, [records, bytes, nodes]) in more {
        let row = sum.entry(op).or_insert([0, u64::MAX, u64::MAX]);
        *row = [row[0] + records, row[1].min(bytes), row[2].min(nodes)];
    }
}

/// A file and its expected bytes.
struct File {
    ino: Ino,
    name: String,
    bytes: Vec<u8>,
}

struct Sweep {
    fs: Arc<FileSystem>,
    rng: SmallRng,
    files: Vec<File>,
    /// Whether an operation was refused for lack of space.
    full: bool,
}

/// Accepts success or ENOSPC from an operation that takes space. Returns the result of a success.
fn done<T>(what: &str, result: kedgefs::Result<T>) -> Result<Option<T>, String> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.errno() == errno::ENOSPC => Ok(None),
        Err(e) => Err(format!("{what}: {e}")),
    }
}

/// Accepts only success, since an operation that frees space never fails.
fn freed<T>(what: &str, result: kedgefs::Result<T>) -> Result<T, String> {
    result.map_err(|e| format!("{what}, which frees space: {e}"))
}

impl Sweep {
    fn new(fs: Arc<FileSystem>, seed: u64, thread: usize) -> Result<Sweep, String> {
        let mut sweep = Sweep {
            fs,
            rng: SmallRng::seed_from_u64(seed ^ (thread as u64) << 32),
            files: Vec::new(),
            full: false,
        };
        for n in 0..FILES {
            let name = format!("{thread}-{n}");
            let attr = sweep.fs.create(Ino::ROOT, name.as_bytes(), 0o644, OWNER);
            let ino = attr.map_err(|e| format!("create: {e}"))?.ino;
            sweep.files.push(File { ino, name, bytes: Vec::new() });
        }
        Ok(sweep)
    }

    /// Returns a range of blocks, which is mostly short.
    fn range(&mut self) -> (usize, usize) {
        let most = if self.rng.random_bool(0.1) { 200 } else { 6 };
        let len = self.rng.random_range(1..=most);
        (self.rng.random_range(0..FILE_BLOCKS - len), len)
    }

    /// Preallocates separate pieces, then writes to the middle of each.
    fn middles(&mut self, n: usize) -> Result<(), String> {
        let (first, count) = (self.rng.random_range(0..40), self.rng.random_range(8..60));
        for piece in 0..count {
            let at = first + 9 * piece;
            let mode = FallocateMode::Allocate { keep_size: self.rng.random() };
            self.allocate(n, mode, at * BLOCK, 3 * BLOCK)?;
            self.write(n, (at + 1) * BLOCK + 10, 100)?;
            if self.rng.random_bool(0.9) {
                self.fsync(n)?;
            }
        }
        Ok(())
    }

    fn allocate(&mut self, n: usize, mode: FallocateMode, at: usize, len: usize) -> Result<(), String> {
        let file = &mut self.files[n];
        let done = done("fallocate", self.fs.fallocate(file.ino, mode, at as u64, len as u64))?;
        self.full |= done.is_none();
        let size = self.fs.getattr(file.ino).map_err(|e| e.to_string())?.size as usize;
        match mode {
            FallocateMode::Allocate { .. } => file.bytes.resize(size, 0),
            FallocateMode::ZeroRange { .. } if done.is_some() => {
                file.bytes.resize(size, 0);
                let end = (at + len).min(size);
                file.bytes[at.min(end)..end].fill(0);
            }
            _ => {}
        }
        Ok(())
    }

    fn write(&mut self, n: usize, at: usize, len: usize) -> Result<(), String> {
        let file = &mut self.files[n];
        let bytes: Vec<u8> = (0..len).map(|_| self.rng.random()).collect();
        let written = done("write", self.fs.write(file.ino, at as u64, &bytes))?.unwrap_or(0);
        self.full |= written < len;
        if written > 0 {
            file.bytes.resize(file.bytes.len().max(at + written), 0);
            file.bytes[at..at + written].copy_from_slice(&bytes[..written]);
        }
        Ok(())
    }

    /// Syncs a file: every accepted write finds space.
    fn fsync(&mut self, n: usize) -> Result<(), String> {
        self.fs.fsync(self.files[n].ino, self.rng.random()).map_err(|e| format!("fsync: {e}"))
    }

    fn truncate(&mut self, n: usize, size: usize) -> Result<(), String> {
        let file = &mut self.files[n];
        let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
        let result = self.fs.setattr(file.ino, &set).map(drop);
        if size <= file.bytes.len() {
            freed("truncate", result)?;
        } else if done("truncate to a larger size", result)?.is_none() {
            return Ok(());
        }
        file.bytes.resize(size, 0);
        Ok(())
    }

    fn punch(&mut self, n: usize, at: usize, len: usize) -> Result<(), String> {
        let file = &mut self.files[n];
        freed("punch", self.fs.fallocate(file.ino, FallocateMode::PunchHole, at as u64, len as u64))?;
        let end = (at + len).min(file.bytes.len());
        file.bytes[at.min(end)..end].fill(0);
        Ok(())
    }

    /// Collapses or inserts a range.
    fn shift(&mut self, n: usize, collapse: bool, at: usize, len: usize) -> Result<(), String> {
        let file = &mut self.files[n];
        let size = file.bytes.len();
        if at + if collapse { len } else { 0 } >= size || size + len > FILE_BLOCKS * BLOCK {
            return Ok(());
        }
        let mode = if collapse { FallocateMode::CollapseRange } else { FallocateMode::InsertRange };
        match done("shift", self.fs.fallocate(file.ino, mode, at as u64, len as u64))? {
            Some(()) if collapse => drop(file.bytes.drain(at..at + len)),
            Some(()) => drop(file.bytes.splice(at..at, std::iter::repeat_n(0, len))),
            None => self.full = true,
        }
        Ok(())
    }

    /// Takes all remaining space, runs some steps on the full image, and frees the space.
    fn fill(&mut self) -> Result<(), String> {
        let name = format!("fill {}", self.files[0].name);
        let Some(attr) = done("create", self.fs.create(Ino::ROOT, name.as_bytes(), 0o644, OWNER))? else {
            return Ok(());
        };
        let (mut at, mut len) = (0, 256 * BLOCK);
        while len >= BLOCK {
            match done("write", self.fs.write(attr.ino, at as u64, &vec![1; len]))? {
                Some(n) if n > 0 => at += n,
                _ => len /= 2,
            }
        }
        self.full = true;
        for _ in 0..20 {
            self.step()?;
        }
        freed("unlink", self.fs.unlink(Ino::ROOT, name.as_bytes()))
    }

    fn names(&mut self, n: usize) -> Result<(), String> {
        let file = &self.files[n];
        let value = vec![7; *[10, 3000, 20_000].get(self.rng.random_range(0..3)).expect("one of three")];
        match self.rng.random_range(0..3) {
            0 => drop(done("setxattr", self.fs.setxattr(file.ino, b"user.x", &value, XattrMode::Any))?),
            1 => match self.fs.removexattr(file.ino, b"user.x") {
                Ok(()) | Err(Error::NoXattr) => {}
                Err(e) => return Err(format!("removexattr, which frees space: {e}")),
            },
            _ => {
                let other = format!("link {}", file.name);
                if done("link", self.fs.link(file.ino, Ino::ROOT, other.as_bytes()))?.is_some() {
                    freed("unlink", self.fs.unlink(Ino::ROOT, other.as_bytes()))?;
                }
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        let n = self.rng.random_range(0..FILES);
        let (first, len) = self.range();
        let (at, bytes) = (first * BLOCK, len * BLOCK);
        let odd = self.rng.random_range(0..BLOCK);
        match self.rng.random_range(0..40) {
            0..3 => self.middles(n),
            3..9 => self.write(n, at + odd, (bytes - odd).max(1)),
            9..13 => self.write(n, at, bytes),
            13..17 => {
                let keep_size = self.rng.random();
                self.allocate(n, FallocateMode::Allocate { keep_size }, at, bytes)
            }
            17..20 => self.allocate(n, FallocateMode::ZeroRange { keep_size: true }, at + odd, bytes),
            20..24 => self.punch(n, at + odd, bytes),
            24..26 => self.shift(n, true, at, bytes),
            26..28 => self.shift(n, false, at, bytes),
            28 => self.truncate(n, at + odd),
            29..35 => self.fsync(n),
            35..38 => self.names(n),
            38 => self.fs.sync().map_err(|e| format!("sync: {e}")),
            _ => self.fs.checkpoint().map_err(|e| format!("checkpoint: {e}")),
        }
    }

    fn compare(&self) -> Result<(), String> {
        for file in &self.files {
            let size = self.fs.getattr(file.ino).map_err(|e| e.to_string())?.size as usize;
            let mut is = vec![0; size];
            let read = self.fs.read(file.ino, 0, &mut is).map_err(|e| e.to_string())?;
            if (size, read) != (file.bytes.len(), size) || is != file.bytes {
                let at = is.iter().zip(&file.bytes).position(|(a, b)| a != b);
                return Err(format!(
                    "{} has {size} bytes of {}, differs at {at:?}",
                    file.name,
                    file.bytes.len()
                ));
            }
        }
        Ok(())
    }

    fn run(mut self) -> Result<bool, String> {
        for step in 0..STEPS {
            let result = if step % 120 == 119 { self.fill() } else { self.step() };
            result.map_err(|e| format!("step {step}: {e}"))?;
            if step % 25 == 0 {
                self.compare().map_err(|e| format!("step {step}: {e}"))?;
            }
        }
        self.compare()?;
        for file in &self.files {
            freed("unlink", self.fs.unlink(Ino::ROOT, file.name.as_bytes()))?;
        }
        Ok(self.full)
    }
}

/// Runs the operations. Returns the unused reservations, and whether the image was ever full.
fn sweep(seed: u64, threads: usize) -> Result<(Slack, bool), String> {
    let image = [20 << 20, 32 << 20, 64 << 20][seed as usize % 3];
    let setup = Setup { image, log: 1 << 20, ..Setup::cramped().switched(seed) };
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    device.stop_recording();
    let fs = Arc::new(rig::open(&device, &Arc::new(ManualClock::default()), &setup)?);
    let mut running = Vec::new();
    for thread in 0..threads {
        let sweep = Sweep::new(fs.clone(), seed, thread)?;
        running.push(spawn_named("sweep", move || sweep.run()).map_err(|e| e.to_string())?);
    }
    let mut full = false;
    for thread in running {
        full |= thread.join().map_err(|panic| rig::panic_text(&*panic))??;
    }
    let slack = slack(&fs)?;
    fs.close().map_err(|e| format!("close: {e}"))?;
    rig::fsck(device.view())?;
    Ok((slack, full))
}

fn sweeps(count: u64, threads: usize) {
    let (mut sum, mut full) = (Slack::new(), 0);
    for seed in seeds(count) {
        let result = within(HANG, &format!("seed {seed}"), move || sweep(seed, threads));
        let (slack, was_full) = result.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        add(&mut sum, slack);
        full += was_full as u64;
    }
    let records: u64 = sum.values().map(|row| row[0]).sum();
    println!("{threads} threads: {records} records, {full} images were full; least left by kind:");
    for (op, [records, bytes, nodes]) in &sum {
        println!("  {op}: {records} records, {bytes} log bytes, {nodes} nodes");
    }
    assert!(records > 1000 && full > 0, "the sweep has done nothing");
}

#[test]
fn no_record_needs_more_than_its_reservation() {
    sweeps(24, 1);
}

#[test]
fn nor_beside_other_threads() {
    sweeps(8, 4);
}
