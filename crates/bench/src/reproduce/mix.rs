//! dbench's mix of operations on the library: 16 threads, each in a directory of its own, that work
//! as an office program saves a document.
//!
//! What dbench does is fixed by its load file, counted here for each rename: about 24 opens and
//! creations, 5 unlinks, 12 writes and 37 reads of 15 KiB in the middle, 21 queries of a path, 8 of
//! a directory, 1.7 flushes. A cycle does that: it writes a new file, flushes it, renames it over
//! the document, makes and removes scratch files, and reads and looks up in between.

use crate::Interrupt;
use crate::library::{Library, in_threads};
use crate::times::Times;
use anyhow::{Result, ensure};
use kedge_base::{Clock, SystemClock};
use kedgefs::{FileSystem, Ino, Owner, RenameMode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;

/// As dbench calls them.
pub const OPERATIONS: [&str; 8] =
    ["NTCreateX", "Rename", "Unlink", "Qpathinfo", "Find", "WriteX", "ReadX", "Flush"];
const CREATE: usize = 0;
const RENAME: usize = 1;
const UNLINK: usize = 2;
const QUERY: usize = 3;
const FIND: usize = 4;
const WRITE: usize = 5;
const READ: usize = 6;
const FLUSH: usize = 7;

const DOCUMENTS: u64 = 8;
const SCRATCH: usize = 4;
const READS: usize = 37;
const OPENS: usize = 19;
const QUERIES: usize = 21;
const FINDS: usize = 8;
/// Entries that a directory query looks at.
const FIND_ENTRIES: usize = 16;
/// Writes of a document; each scratch file takes one more.
const WRITES: usize = 8;
const WRITE_MAX: usize = 30 << 10;

pub struct Sum {
    /// Bytes read and written, in MB/s.
    pub throughput: f64,
    /// Milliseconds.
    pub max_latency: f64,
    /// In the order of [`OPERATIONS`].
    pub operations: Vec<Times>,
}

struct Client {
    fs: FileSystem,
    dir: Ino,
    clock: SystemClock,
    rng: SmallRng,
    times: Vec<Times>,
    bytes: u64,
    cycles: u64,
    buffer: Vec<u8>,
}

/// Works for `seconds`. Removes what it made.
pub fn run(library: &Library, clients: usize, seconds: u64, interrupt: &Interrupt) -> Result<Sum> {
    let fs = library.fs();
    let name = |i: usize| format!("client{i}").into_bytes();
    let dirs: Vec<Ino> = (0..clients)
        .map(|i| Ok(fs.mkdir(Ino::ROOT, &name(i), 0o755, Owner::default())?.ino))
        .collect::<Result<_>>()?;
    let (took, answers) = in_threads(clients, |i| {
        let mut client = Client::new(fs.clone(), dirs[i], i as u64);
        let interrupt = interrupt.clone();
        move || {
            let end = client.clock.monotonic() + Duration::from_secs(seconds);
            while client.clock.monotonic() < end && interrupt.check().is_ok() {
                client.cycle()?;
            }
            client.clean_up()?;
            Ok(client)
        }
    })?;
    interrupt.check()?;
    (0..clients).try_for_each(|i| fs.rmdir(Ino::ROOT, &name(i)))?;
    let bytes: u64 = answers.iter().map(|c| c.bytes).sum();
    let mut operations = vec![Times::default(); OPERATIONS.len()];
    for client in answers {
        operations.iter_mut().zip(client.times).for_each(|(all, own)| all.merge(own));
    }
    Ok(Sum {
        throughput: bytes as f64 / 1e6 / took.as_secs_f64(),
        max_latency: operations.iter().map(Times::max).fold(0.0, f64::max),
        operations,
    })
}

impl Client {
    fn new(fs: FileSystem, dir: Ino, seed: u64) -> Client {
        Client {
            fs,
            dir,
            clock: SystemClock::default(),
            rng: SmallRng::seed_from_u64(seed),
            times: vec![Times::default(); OPERATIONS.len()],
            bytes: 0,
            cycles: 0,
            buffer: vec![0x6b; WRITE_MAX],
        }
    }

    fn timed<R>(
        &mut self,
        operation: usize,
        work: impl FnOnce(&FileSystem) -> kedgefs::Result<R>,
    ) -> Result<R> {
        let fs = &self.fs;
        Ok(self.times[operation].time(&self.clock, || work(fs))?)
    }

    fn cycle(&mut self) -> Result<()> {
        let (dir, document) = (self.dir, document(self.cycles % DOCUMENTS));
        let file = self.create(b"~temporary")?;
        let mut at = 0;
        for i in 0..WRITES {
            at += self.write(file, at)?;
            // The load file flushes between the writes of a document, never after its rename.
            if i == WRITES / 2 && self.rng.random_bool(0.65) {
                self.timed(FLUSH, |fs| fs.fsync(file, false))?;
            }
        }
        self.timed(FLUSH, |fs| fs.fsync(file, false))?;
        self.timed(RENAME, |fs| fs.rename(dir, b"~temporary", dir, &document, RenameMode::Replace))?;
        for i in 0..SCRATCH {
            let scratch = self.create(format!("scratch{i}").as_bytes())?;
            self.write(scratch, 0)?;
            self.reads(scratch, READS / 2 / SCRATCH)?;
        }
        for _ in 0..OPENS {
            self.timed(CREATE, |fs| fs.lookup(dir, &document))?;
        }
        self.reads(file, READS - READS / 2)?;
        for _ in 0..QUERIES {
            self.timed(QUERY, |fs| fs.lookup(dir, &document))?;
        }
        for _ in 0..FINDS {
            let mut left = FIND_ENTRIES;
            let mut visit = |_: kedgefs::DirEntry<'_>| {
                left -= 1;
                left > 0
            };
            self.timed(FIND, |fs| fs.readdir(dir, 0, &mut visit))?;
        }
        for i in 0..SCRATCH {
            self.timed(UNLINK, |fs| fs.unlink(dir, format!("scratch{i}").as_bytes()))?;
        }
        self.cycles += 1;
        Ok(())
    }

    fn create(&mut self, name: &[u8]) -> Result<Ino> {
        let dir = self.dir;
        Ok(self.timed(CREATE, |fs| fs.create(dir, name, 0o644, Owner::default()))?.ino)
    }

    fn write(&mut self, file: Ino, at: u64) -> Result<u64> {
        let len = self.rng.random_range(512..=WRITE_MAX);
        let buffer = std::mem::take(&mut self.buffer);
        let wrote = self.timed(WRITE, |fs| fs.write(file, at, &buffer[..len]));
        self.buffer = buffer;
        ensure!(wrote? == len, "a write was cut short");
        self.bytes += len as u64;
        Ok(len as u64)
    }

    fn reads(&mut self, file: Ino, count: usize) -> Result<()> {
        let size = self.fs.getattr(file)?.size;
        for _ in 0..count {
            let at = self.rng.random_range(0..size);
            let mut buffer = std::mem::take(&mut self.buffer);
            let read = self.timed(READ, |fs| fs.read(file, at, &mut buffer[..WRITE_MAX / 2]));
            self.buffer = buffer;
            self.bytes += read? as u64;
        }
        Ok(())
    }

    fn clean_up(&mut self) -> Result<()> {
        for i in 0..DOCUMENTS.min(self.cycles) {
            self.fs.unlink(self.dir, &document(i))?;
        }
        Ok(())
    }
}

fn document(i: u64) -> Vec<u8> {
    format!("document{i}").into_bytes()
}

#[cfg(test)]
#[path = "mix_tests.rs"]
mod tests;
