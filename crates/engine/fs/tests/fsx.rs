//! Random changes of a few files through the library, compared with copies of their bytes in
//! memory.
//!
//! The changes are writes of all sizes, truncates, every mode of fallocate, and clones of whole
//! files and of ranges, within a file and between files, with small files in the tree and without.
//! In between come fsync, sync and checkpoints; caches are small; and the image is opened again,
//! after a close or without one. The sizes are compared after each operation and the bytes after
//! each read; occasionally everything is compared, and fsck runs.
//!
//! `KEDGE_SEED` repeats one run; `KEDGE_LONG=1` makes a million operations.

use kedge_base::ManualClock;
use kedge_device::MemDevice;
use kedge_fsck::{CheckOptions, StoreReplay};
use kedgefs::{
    Error, FallocateMode, FileSystem, FormatOptions, Ino, MountOptions, Owner, SeekKind, SetAttr, WriteMode,
};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use std::collections::VecDeque;
use std::sync::Arc;

const BLOCK: u64 = 4096;
const FILES: usize = 4;
const SIZE_MAX: u64 = 400_000;
const LEN_MAX: u64 = 60_000;
/// Number of the last operations that a failure reports.
const TOLD: usize = 12;
const OWNER: Owner = Owner { uid: 0, gid: 0 };

struct Fsx {
    device: Arc<MemDevice>,
    fs: FileSystem,
    inos: Vec<Ino>,
    bytes: Vec<Vec<u8>>,
    rng: SmallRng,
    /// If not 0, half of the changes end at most one byte beyond this offset.
    small: u64,
    done: VecDeque<String>,
    clones: u64,
    /// Number of fsyncs of files whose data was in the tree.
    in_tree: u64,
}

fn open(device: &Arc<MemDevice>) -> FileSystem {
    let options = MountOptions { cache_size: 4 << 20, ..MountOptions::default() };
    FileSystem::open(device.clone(), Arc::new(ManualClock::default()), options).unwrap()
}

impl Fsx {
    /// `inline_max`: the largest size of a file whose data is in the tree.
    fn new(seed: u64, data_checksums: bool, inline_max: u64) -> Fsx {
        let device = Arc::new(MemDevice::new(32 << 20));
        let options =
            FormatOptions { log_size: Some(2 << 20), data_checksums, inline_max, ..FormatOptions::default() };
        FileSystem::format(device.clone(), Arc::new(ManualClock::default()), &options).unwrap();
        let fs = open(&device);
        let make = |n: usize| fs.create(Ino::ROOT, n.to_string().as_bytes(), 0o644, OWNER).unwrap().ino;
        let inos = (0..FILES).map(make).collect();
        let rng = SmallRng::seed_from_u64(seed);
        let (bytes, done) = (vec![Vec::new(); FILES], VecDeque::new());
        Fsx { device, fs, inos, bytes, rng, small: inline_max, done, clones: 0, in_tree: 0 }
    }

    fn size(&self, file: usize) -> u64 {
        self.bytes[file].len() as u64
    }

    /// A random offset and length, within the largest size of a file.
    fn range(&mut self) -> (u64, u64) {
        let longest = if self.rng.random_ratio(1, 2) { 5000 } else { LEN_MAX };
        if self.small > 0 && self.rng.random_ratio(1, 2) {
            let len = self.rng.random_range(1..=self.small);
            return (self.rng.random_range(0..=self.small - len + 1), len);
        }
        let len = self.rng.random_range(1..=longest);
        (self.rng.random_range(0..SIZE_MAX - len), len)
    }

    fn blocks(&mut self) -> (u64, u64) {
        let len = self.rng.random_range(1..=LEN_MAX / BLOCK) * BLOCK;
        (self.rng.random_range(0..(SIZE_MAX - len) / BLOCK) * BLOCK, len)
    }

    /// Runs one random operation and returns its description.
    fn step(&mut self) -> Result<String, Error> {
        let file = self.rng.random_range(0..FILES);
        match self.rng.random_range(0..1000) {
            0..280 => self.write(file),
            280..480 => self.read(file),
            480..560 => self.truncate(file),
            560..700 => self.fallocate(file),
            // A clone or an fallocate keeps a file out of the tree, so files are removed and
            // written again more often.
            700..740 if self.small > 0 => self.remove(file),
            740..800 if self.small > 0 => self.write(file),
            700..860 => self.clone_range(file),
            860..900 => self.clone_file(file),
            900..950 => {
                let datasync = self.rng.random();
                self.fs.fsync(self.inos[file], datasync)?;
                let attr = self.fs.getattr(self.inos[file])?;
                self.in_tree += u64::from(attr.blocks > 0 && attr.blocks * 512 < BLOCK);
                Ok(format!("fsync {file}, data alone: {datasync}"))
            }
            950..970 => self.fs.sync().map(|()| "sync".into()),
            970..980 => self.fs.checkpoint().map(|()| "checkpoint".into()),
            980..985 => self.remove(file),
            _ => self.holes(file),
        }
    }

    fn write(&mut self, file: usize) -> Result<String, Error> {
        let (at, len) = if self.rng.random_ratio(1, 4) { self.blocks() } else { self.range() };
        let mut bytes = vec![0; len as usize];
        self.rng.fill_bytes(&mut bytes);
        let all = WriteMode::default().with_whole(true);
        assert_eq!(self.fs.write_with(self.inos[file], at, &bytes, all)?, bytes.len());
        let (to, end) = (&mut self.bytes[file], (at + len) as usize);
        to.resize(to.len().max(end), 0);
        to[at as usize..end].copy_from_slice(&bytes);
        Ok(format!("write {len} at {at} of {file}"))
    }

    fn read(&mut self, file: usize) -> Result<String, Error> {
        let (at, len) = self.range();
        let mut found = vec![0xee; len as usize];
        let read = match self.rng.random() {
            true => self.fs.read(self.inos[file], at, &mut found)?,
            false => self.fs.read_uncached(self.inos[file], at, &mut found)?,
        };
        let there = self.size(file).saturating_sub(at).min(len) as usize;
        assert_eq!(read, there, "bytes read at {at} of {file} after {:#?}", self.done);
        self.compare(file, at as usize, &found[..read]);
        Ok(format!("read {len} at {at} of {file}"))
    }

    fn truncate(&mut self, file: usize) -> Result<String, Error> {
        let small = self.small > 0 && self.rng.random_ratio(2, 3);
        let to = self.rng.random_range(0..if small { self.small + 2 } else { SIZE_MAX });
        self.fs.setattr(self.inos[file], &SetAttr { size: Some(to), ..SetAttr::default() })?;
        self.bytes[file].resize(to as usize, 0);
        Ok(format!("truncate {file} to {to}"))
    }

    fn fallocate(&mut self, file: usize) -> Result<String, Error> {
        let ((at, len), size) = (self.range(), self.size(file));
        let (mode, zeroes, grows) = match self.rng.random_range(0..7) {
            0 => (FallocateMode::Allocate { keep_size: false }, false, true),
            1 => (FallocateMode::Allocate { keep_size: true }, false, false),
            2 => (FallocateMode::PunchHole, true, false),
            3 => (FallocateMode::ZeroRange { keep_size: false }, true, true),
            4 => (FallocateMode::ZeroRange { keep_size: true }, true, false),
            kind => return self.shift(file, kind == 5),
        };
        self.fs.fallocate(self.inos[file], mode, at, len)?;
        let (bytes, end) = (&mut self.bytes[file], (at + len) as usize);
        if zeroes {
            bytes[(at.min(size)) as usize..end.min(size as usize)].fill(0);
        }
        if grows {
            bytes.resize(bytes.len().max(end), 0);
        }
        Ok(format!("{mode:?} {len} at {at} of {file}"))
    }

    /// Runs a collapse range or an insert range.
    fn shift(&mut self, file: usize, collapse: bool) -> Result<String, Error> {
        let ((at, len), size) = (self.blocks(), self.size(file));
        if collapse && at + len >= size || !collapse && (at >= size || size + len > SIZE_MAX) {
            return Ok("no range to shift".into());
        }
        let mode = if collapse { FallocateMode::CollapseRange } else { FallocateMode::InsertRange };
        self.fs.fallocate(self.inos[file], mode, at, len)?;
        let (bytes, at, end) = (&mut self.bytes[file], at as usize, (at + len) as usize);
        match collapse {
            true => drop(bytes.drain(at..end)),
            false => drop(bytes.splice(at..at, std::iter::repeat_n(0, end - at))),
        }
        Ok(format!("{mode:?} {len} at {at} of {file}"))
    }

    fn clone_file(&mut self, target: usize) -> Result<String, Error> {
        let source = self.rng.random_range(0..FILES);
        if source == target {
            return Ok("a clone of a file onto itself, left out".into());
        }
        self.fs.clone_file(self.inos[source], self.inos[target])?;
        self.bytes[target] = self.bytes[source].clone();
        self.clones += 1;
        Ok(format!("clone {source} to {target}"))
    }

    /// Clones whole blocks, or up to the ends of both files. Source and target may be the same
    /// file.
    fn clone_range(&mut self, target: usize) -> Result<String, Error> {
        let source = self.rng.random_range(0..FILES);
        let size = self.size(source);
        let from = self.rng.random_range(0..=size / BLOCK) * BLOCK;
        let to_end = self.rng.random_ratio(1, 4);
        let len = match to_end {
            true => size.saturating_sub(from),
            false => self.rng.random_range(0..=(size.saturating_sub(from) / BLOCK).min(14)) * BLOCK,
        };
        let to = self.rng.random_range(0..(SIZE_MAX - len.min(SIZE_MAX - BLOCK)) / BLOCK) * BLOCK;
        let whole = |at: u64| at.next_multiple_of(BLOCK);
        let overlap = source == target && from < whole(to + len) && to < whole(from + len);
        let ragged = !len.is_multiple_of(BLOCK) && to + len < self.size(target);
        if len == 0 || overlap || ragged || to + len > SIZE_MAX {
            return Ok("no range to clone".into());
        }
        self.fs.clone_range(self.inos[source], from, self.inos[target], to, len)?;
        let bytes = self.bytes[source][from as usize..(from + len) as usize].to_vec();
        let (there, end) = (&mut self.bytes[target], (to + len) as usize);
        there.resize(there.len().max(end), 0);
        there[to as usize..end].copy_from_slice(&bytes);
        self.clones += 1;
        Ok(format!("clone {len} at {from} of {source} to {to} of {target}"))
    }

    /// Removes the file, whose blocks other files may share, and creates it again.
    fn remove(&mut self, file: usize) -> Result<String, Error> {
        let name = file.to_string();
        self.fs.unlink(Ino::ROOT, name.as_bytes())?;
        self.inos[file] = self.fs.create(Ino::ROOT, name.as_bytes(), 0o644, OWNER)?.ino;
        self.bytes[file].clear();
        Ok(format!("remove {file}"))
    }

    /// Checks that what seek calls a hole is zero.
    fn holes(&mut self, file: usize) -> Result<String, Error> {
        let (size, mut at) = (self.size(file), 0);
        while at < size {
            let data = match self.fs.seek(self.inos[file], at, SeekKind::Data) {
                Err(Error::NoSuchOffset) => size,
                found => found?,
            };
            let zero = self.bytes[file][at as usize..data as usize].iter().all(|byte| *byte == 0);
            assert!(zero, "no hole from {at} to {data} of {file} after {:#?}", self.done);
            at = if data < size { self.fs.seek(self.inos[file], data, SeekKind::Hole)? } else { size };
        }
        Ok(format!("look for holes in {file}"))
    }

    /// Opens the image again: after a close, or as after the death of the process.
    fn reopen(&mut self) {
        match self.rng.random() {
            true => self.fs.close().unwrap(),
            false => self.fs.sync().unwrap(),
        }
        self.device = Arc::new(self.device.fork());
        self.fs = open(&self.device);
        let find = |n: usize| self.fs.lookup(Ino::ROOT, n.to_string().as_bytes()).unwrap().ino;
        self.inos = (0..FILES).map(find).collect();
        self.done.push_back("reopen".into());
    }

    fn check(&self) {
        let options =
            CheckOptions { replay: Some(Arc::new(StoreReplay)), data: true, ..CheckOptions::default() };
        let report = kedge_fsck::check(Arc::new(self.device.fork()), &options);
        assert!(report.is_clean(), "{report} after {:#?}", self.done);
    }

    #[track_caller]
    fn compare(&self, file: usize, at: usize, found: &[u8]) {
        if found.is_empty() {
            return;
        }
        let wanted = &self.bytes[file][at..at + found.len()];
        if let Some(i) = (0..found.len()).find(|i| found[*i] != wanted[*i]) {
            let (wrong, right) = (found[i], wanted[i]);
            panic!("byte {} of {file} is {wrong}, not {right}, after {:#?}", at + i, self.done);
        }
    }

    fn compare_all(&self) {
        for file in 0..FILES {
            let mut found = vec![0xee; self.bytes[file].len() + 1];
            let read = self.fs.read_uncached(self.inos[file], 0, &mut found).unwrap();
            assert_eq!(read, self.bytes[file].len(), "of {file} after {:#?}", self.done);
            self.compare(file, 0, &found[..read]);
        }
    }

    fn run(&mut self, steps: u64) {
        for n in 1..=steps {
            let did = self.step().unwrap_or_else(|e| panic!("{e}, after {:#?}", self.done));
            self.done.push_back(did);
            while self.done.len() > TOLD {
                self.done.pop_front();
            }
            for file in 0..FILES {
                let found = self.fs.getattr(self.inos[file]).unwrap().size;
                assert_eq!(found, self.size(file), "size of {file} after {:#?}", self.done);
            }
            if n % 200 == 0 {
                self.compare_all();
            }
            if n % 2000 == 0 {
                self.reopen();
                self.compare_all();
            }
            if n % 10_000 == 0 {
                self.check();
            }
        }
        self.compare_all();
        self.fs.close().unwrap();
        self.check();
    }
}

#[test]
fn random_changes_with_clones_are_those_of_copies() {
    let is_long = std::env::var_os("KEDGE_LONG").is_some_and(|value| value == "1");
    let steps = if is_long { 250_000 } else { 8000 };
    let seeds = match std::env::var("KEDGE_SEED") {
        Ok(seed) => vec![seed.parse().expect("KEDGE_SEED is a number")],
        Err(_) => vec![1, 2, 3, 4],
    };
    for seed in seeds {
        println!("KEDGE_SEED={seed}");
        let mut fsx = Fsx::new(seed, seed % 2 == 0, if seed % 4 >= 2 { 2048 } else { 0 });
        fsx.run(steps);
        println!("{steps} operations, {} clones, {} fsyncs of files in the tree", fsx.clones, fsx.in_tree);
        assert_eq!(fsx.in_tree > steps / 2000, fsx.small > 0, "{} fsyncs of files in the tree", fsx.in_tree);
        assert!(fsx.clones > steps / 20, "{} clones", fsx.clones);
    }
}
