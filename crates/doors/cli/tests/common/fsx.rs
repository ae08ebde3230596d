//! Random reads and writes of one file, through every interface that a program has, compared with a
//! copy of the bytes in memory.
//!
//! The operations are buffered, direct and mapped IO, `copy_file_range`, truncates and all modes of
//! fallocate(2) that the kernel passes on, with `fsync`, `msync` and dropped caches in between.
//! After each operation the size is compared, after each read the bytes that were read, and
//! occasionally the whole file.

use super::io::Mapping;
use kedge_base::{BLOCK_SIZE, IoBuf};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use rustix::fs::{Advice, FallocateFlags, OFlags, copy_file_range, fadvise, fallocate};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const BLOCK: u64 = BLOCK_SIZE as u64;
const SIZE_MAX: u64 = 600_000;
const LEN_MAX: u64 = 70_000;
/// The number of latest operations that a failure reports.
const TOLD: usize = 12;

pub struct Fsx {
    path: PathBuf,
    rng: SmallRng,
    file: File,
    direct: File,
    bytes: Vec<u8>,
    done: VecDeque<String>,
}

fn open(path: &Path) -> (File, File) {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.open(path).unwrap();
    let direct = options.custom_flags(OFlags::DIRECT.bits() as i32).open(path).unwrap();
    (file, direct)
}

impl Fsx {
    pub fn new(path: &Path, seed: u64) -> Fsx {
        let (file, direct) = open(path);
        let rng = SmallRng::seed_from_u64(seed);
        Fsx { path: path.to_owned(), rng, file, direct, bytes: Vec::new(), done: VecDeque::new() }
    }

    /// Closes the file, so that its mount can be ended. The descriptor then refers to /dev/null.
    pub fn close(&mut self) {
        let elsewhere = || File::open("/dev/null").unwrap();
        (self.file, self.direct) = (elsewhere(), elsewhere());
    }

    /// Opens the file again, and compares it.
    pub fn open_again(&mut self) {
        (self.file, self.direct) = open(&self.path);
        self.compare_all();
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns a random offset and length that end within the largest size of the file.
    fn range(&mut self) -> (u64, u64) {
        let longest = if self.rng.random_ratio(1, 2) { 5000 } else { LEN_MAX };
        let len = self.rng.random_range(1..=longest);
        (self.rng.random_range(0..SIZE_MAX - len), len)
    }

    /// A range inside the file; `None` if the file is empty.
    fn inside(&mut self) -> Option<(usize, usize)> {
        let size = self.bytes.len();
        let at = if size == 0 { return None } else { self.rng.random_range(0..size) };
        Some((at, self.rng.random_range(1..=(size - at).min(LEN_MAX as usize))))
    }

    fn some_bytes(&mut self, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.rng.fill_bytes(&mut bytes);
        bytes
    }

    /// Writes bytes to the copy in memory.
    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[offset as usize..end].copy_from_slice(bytes);
    }

    fn zero(&mut self, offset: u64, end: u64) {
        let size = self.bytes.len();
        self.bytes[(offset as usize).min(size)..(end as usize).min(size)].fill(0);
    }

    /// Makes one operation and returns its description.
    fn step(&mut self) -> io::Result<String> {
        match self.rng.random_range(0..100) {
            0..22 => self.write(),
            22..36 => self.read(),
            36..46 => self.store(),
            46..54 => self.load(),
            54..60 => self.write_direct(),
            60..66 => self.read_direct(),
            66..74 => self.truncate(),
            74..88 => self.fallocate(),
            88..93 => self.copy(),
            93..96 => self.file.sync_all().map(|()| "fsync".into()),
            96..98 => self.file.sync_data().map(|()| "fdatasync".into()),
            _ => {
                fadvise(&self.file, 0, None, Advice::DontNeed)?;
                Ok("drop the cache".into())
            }
        }
    }

    fn write(&mut self) -> io::Result<String> {
        let (at, len) = self.range();
        let bytes = self.some_bytes(len);
        self.file.write_all_at(&bytes, at)?;
        self.put(at, &bytes);
        Ok(format!("write {len} at {at}"))
    }

    fn read(&mut self) -> io::Result<String> {
        let Some((at, len)) = self.inside() else { return Ok("nothing to read".into()) };
        let mut found = vec![0; len];
        self.file.read_exact_at(&mut found, at as u64)?;
        self.compare("read", at, &found);
        Ok(format!("read {len} at {at}"))
    }

    /// A store through a mapping, which cannot extend the file.
    fn store(&mut self) -> io::Result<String> {
        let Some((at, len)) = self.inside() else { return Ok("nothing to map".into()) };
        let bytes = self.some_bytes(len as u64);
        let skip = at % BLOCK_SIZE;
        let mapping = Mapping::new(&self.file, (at - skip) as u64, skip + len)?;
        mapping.write(skip, &bytes);
        let synced = self.rng.random_ratio(1, 3);
        if synced {
            mapping.sync()?;
        }
        self.put(at as u64, &bytes);
        Ok(format!("store {len} at {at}, msync {synced}"))
    }

    fn load(&mut self) -> io::Result<String> {
        let Some((at, len)) = self.inside() else { return Ok("nothing to map".into()) };
        let skip = at % BLOCK_SIZE;
        let mut found = vec![0; len];
        Mapping::new(&self.file, (at - skip) as u64, skip + len)?.read(skip, &mut found);
        self.compare("load", at, &found);
        Ok(format!("load {len} at {at}"))
    }

    fn write_direct(&mut self) -> io::Result<String> {
        let (at, len) = self.range();
        let (at, blocks) = (at / BLOCK * BLOCK, len.div_ceil(BLOCK));
        let bytes = self.some_bytes(blocks * BLOCK);
        self.direct.write_all_at(IoBuf::from_bytes(&bytes).as_bytes(), at)?;
        self.put(at, &bytes);
        Ok(format!("direct write of {blocks} blocks at {at}"))
    }

    fn read_direct(&mut self) -> io::Result<String> {
        let Some((at, len)) = self.inside() else { return Ok("nothing to read".into()) };
        let at = at / BLOCK_SIZE * BLOCK_SIZE;
        let mut buf = IoBuf::zeroed(len.div_ceil(BLOCK_SIZE));
        let n = self.direct.read_at(buf.as_mut_bytes(), at as u64)?;
        assert_eq!(n, buf.len().min(self.bytes.len() - at), "{:?}", self.done);
        self.compare("direct read", at, &buf.as_bytes()[..n]);
        Ok(format!("direct read {n} at {at}"))
    }

    fn truncate(&mut self) -> io::Result<String> {
        let to = self.rng.random_range(0..SIZE_MAX);
        self.file.set_len(to)?;
        self.bytes.resize(to as usize, 0);
        Ok(format!("truncate to {to}"))
    }

    fn fallocate(&mut self) -> io::Result<String> {
        let (at, len) = self.range();
        let keep = FallocateFlags::KEEP_SIZE;
        let (flags, zeroes) = match self.rng.random_range(0..5) {
            0 => (FallocateFlags::empty(), false),
            1 => (keep, false),
            2 => (FallocateFlags::PUNCH_HOLE | keep, true),
            3 => (FallocateFlags::ZERO_RANGE, true),
            _ => (FallocateFlags::ZERO_RANGE | keep, true),
        };
        fallocate(&self.file, flags, at, len)?;
        if !flags.contains(keep) {
            self.bytes.resize(self.bytes.len().max((at + len) as usize), 0);
        }
        if zeroes {
            self.zero(at, at + len);
        }
        Ok(format!("fallocate {flags:?} {len} at {at}"))
    }

    /// A copy within the file, to a range that does not overlap.
    fn copy(&mut self) -> io::Result<String> {
        let Some((from, len)) = self.inside() else { return Ok("nothing to copy".into()) };
        let to = self.rng.random_range(0..SIZE_MAX - len as u64);
        if to < (from + len) as u64 && to + len as u64 > from as u64 {
            return Ok("copy onto itself, left out".into());
        }
        let (mut source, mut target) = (from as u64, to);
        while target < to + len as u64 {
            let left = (to + len as u64 - target) as usize;
            let n = copy_file_range(&self.file, Some(&mut source), &self.file, Some(&mut target), left)?;
            assert_ne!(n, 0, "nothing copied at {source} of {}: {:?}", self.size(), self.done);
        }
        let bytes = self.bytes[from..from + len].to_vec();
        self.put(to, &bytes);
        Ok(format!("copy {len} from {from} to {to}"))
    }

    #[track_caller]
    fn compare(&self, what: &str, at: usize, found: &[u8]) {
        let wanted = &self.bytes[at..at + found.len()];
        if let Some(i) = (0..found.len()).find(|i| found[*i] != wanted[*i]) {
            let (wrong, right) = (found[i], wanted[i]);
            panic!("{what}: byte {} is {wrong}, not {right}, after {:#?}", at + i, self.done);
        }
    }

    fn compare_all(&self) {
        let mut found = vec![0; self.bytes.len()];
        self.file.read_exact_at(&mut found, 0).unwrap();
        self.compare("the whole file", 0, &found);
    }

    pub fn run(&mut self, steps: u32) {
        for n in 1..=steps {
            let did = self.step().unwrap_or_else(|e| panic!("{e}, after {:#?}", self.done));
            self.done.push_back(did);
            if self.done.len() > TOLD {
                self.done.pop_front();
            }
            let found = self.file.metadata().unwrap().len();
            assert_eq!(found, self.size(), "size after {:#?}", self.done);
            if n % 50 == 0 {
                self.compare_all();
            }
        }
        self.compare_all();
    }
}
