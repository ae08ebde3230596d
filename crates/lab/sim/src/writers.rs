//! Concurrent writers that record every acknowledged fsync.
//!
//! Each writer owns a directory and does, at random: create, append, rename, unlink, fsync and
//! fdatasync of a file, fsync of its directory, sync, and the replacement of a "slot" (write a new
//! file, fsync it, rename it over the old one). Acknowledgements are recorded in this process,
//! outside of the file system under test.
//!
//! After a crash, [`verify_after`] checks the files against what was acknowledged before the crash,
//! and against what had begun by then:
//! 1. A file with an acknowledged fsync exists once, under the name that it had then or a later
//!    one, with at least the bytes that it had then.
//! 2. No file has bytes that were never written to it: past the acknowledged length each byte is
//!    the file's own or zero.
//! 3. A file whose removal was acknowledged (by fsync of the directory) does not exist.
//! 4. A slot always exists and contains one whole version, not older than the acknowledged one.
//! 5. There are no other names.

use crate::backend::Backend;
use crate::ops::Fill;
use kedge_base::JoinHandle;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const FILES_MAX: usize = 10;
const FILE_SIZE_MAX: u64 = 300 << 10;
const SLOTS: u32 = 2;
/// Bytes of a slot's version number. A body follows, whose length depends on the version.
const SLOT_HEADER: usize = 8;

/// One file of a writer.
#[derive(Clone, Debug)]
struct FileState {
    fill: Fill,
    /// All names that the file had or was about to get.
    names: Vec<String>,
    /// Length including all writes that have begun.
    len: u64,
    removing: bool,
    /// Index in `names` of the acknowledged name.
    acked_name: Option<usize>,
    acked_len: u64,
    acked_removal: bool,
}

#[derive(Clone, Debug, Default)]
struct SlotState {
    /// The newest version that may be in the slot.
    begun: u64,
    acked: u64,
}

#[derive(Clone, Debug, Default)]
struct WriterState {
    dir: String,
    files: Vec<FileState>,
    slots: BTreeMap<String, SlotState>,
    fsyncs: u64,
    error: Option<String>,
}

/// What all writers had begun and what was acknowledged at the time of the snapshot.
#[derive(Clone, Debug)]
pub struct Snapshot(Vec<WriterState>);

impl Snapshot {
    /// Number of acknowledged fsyncs of all kinds.
    pub fn fsyncs(&self) -> u64 {
        self.0.iter().map(|w| w.fsyncs).sum()
    }

    /// The errors with which writers ended early.
    pub fn errors(&self) -> Vec<&str> {
        self.0.iter().filter_map(|w| w.error.as_deref()).collect()
    }
}

/// Running writers.
pub struct Writers {
    states: Vec<Arc<Mutex<WriterState>>>,
    stop: Arc<AtomicBool>,
    operations: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    /// Creates the directories `{prefix}0`…, durably, and starts a writer in each.
    pub fn start(backend: &Arc<dyn Backend>, count: usize, prefix: &str, seed: u64) -> io::Result<Writers> {
        let mut writers = Writers {
            states: Vec::new(),
            stop: Arc::default(),
            operations: Arc::default(),
            threads: Vec::new(),
        };
        for i in 0..count {
            let dir = format!("{prefix}{i}");
            backend.mkdir(&dir)?;
            backend.fsync(&dir, false)?;
            writers.states.push(Arc::new(Mutex::new(WriterState { dir, ..WriterState::default() })));
        }
        for (i, state) in writers.states.iter().enumerate() {
            let mut writer = Writer {
                backend: backend.clone(),
                state: state.clone(),
                rng: SmallRng::seed_from_u64(seed ^ ((i as u64 + 1) << 48)),
                number: (i as u32) << 16,
            };
            let (stop, operations) = (writers.stop.clone(), writers.operations.clone());
            writers.threads.push(kedge_base::spawn_named(&format!("writer-{i}"), move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Err(e) = writer.step() {
                        writer.state.lock().error = Some(e.to_string());
                        break;
                    }
                    operations.fetch_add(1, Ordering::Relaxed);
                }
            })?);
        }
        Ok(writers)
    }

    /// Number of operations that all writers have completed.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    /// Whether all writers have ended, which they do only with errors.
    pub fn ended(&self) -> bool {
        self.threads.iter().all(|t| t.is_finished())
    }

    /// Takes a snapshot. A test takes one before the crash (what is acknowledged) and one after it
    /// (what was begun).
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.states.iter().map(|s| s.lock().clone()).collect())
    }

    /// Stops the writers and waits for them.
    pub fn stop(self) -> Snapshot {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            assert!(thread.join().is_ok(), "a writer panicked");
        }
        Snapshot(self.states.iter().map(|s| s.lock().clone()).collect())
    }
}

struct Writer {
    backend: Arc<dyn Backend>,
    state: Arc<Mutex<WriterState>>,
    rng: SmallRng,
    number: u32,
}

impl Writer {
    /// Runs one operation, which is recorded before it begins.
    fn step(&mut self) -> io::Result<()> {
        let live: Vec<usize> = {
            let state = self.state.lock();
            state.files.iter().enumerate().filter(|(_, f)| !f.removing).map(|(i, _)| i).collect()
        };
        let choice = self.rng.random_range(0..100);
        if live.is_empty() || (choice < 12 && live.len() < FILES_MAX) {
            return self.create();
        }
        let file = live[self.rng.random_range(0..live.len())];
        match choice {
            0..45 => self.append(file),
            45..60 => self.sync_file(file),
            60..70 => self.rename(file),
            70..78 => self.unlink(file),
            78..84 => self.sync_directory(false),
            84..86 => self.sync_directory(true),
            _ => self.replace_slot(),
        }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.state.lock().dir)
    }

    fn create(&mut self) -> io::Result<()> {
        self.number += 1;
        let name = format!("f{}", self.number & 0xffff);
        self.state.lock().files.push(FileState {
            fill: Fill::Seed(self.number),
            names: vec![name.clone()],
            len: 0,
            removing: false,
            acked_name: None,
            acked_len: 0,
            acked_removal: false,
        });
        self.backend.create(&self.path(&name))
    }

    /// Returns path, name index, length and pattern of a file.
    fn look(&self, file: usize) -> (String, usize, u64, Fill) {
        let state = self.state.lock();
        let f = &state.files[file];
        let last = f.names.len() - 1;
        (format!("{}/{}", state.dir, f.names[last]), last, f.len, f.fill)
    }

    fn append(&mut self, file: usize) -> io::Result<()> {
        let (path, _, from, fill) = self.look(file);
        let len = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(1..100),
            1 => 4096,
            2 => self.rng.random_range(1..10_000),
            _ => self.rng.random_range(1..60_000),
        };
        if from + len > FILE_SIZE_MAX {
            return self.unlink(file);
        }
        self.state.lock().files[file].len = from + len;
        self.backend.write_at(&path, from, &fill.bytes(from, len as usize))
    }

    fn sync_file(&mut self, file: usize) -> io::Result<()> {
        let (path, name, len, _) = self.look(file);
        self.backend.fsync(&path, self.rng.random_bool(0.3))?;
        let mut state = self.state.lock();
        state.fsyncs += 1;
        let f = &mut state.files[file];
        (f.acked_name, f.acked_len) = (Some(name), len);
        Ok(())
    }

    fn rename(&mut self, file: usize) -> io::Result<()> {
        let (path, name, ..) = self.look(file);
        let new = {
            let mut state = self.state.lock();
            let f = &mut state.files[file];
            let new = format!("{}.{}", f.names[0], name + 1);
            f.names.push(new.clone());
            new
        };
        self.backend.rename(&path, &self.path(&new))
    }

    fn unlink(&mut self, file: usize) -> io::Result<()> {
        let (path, ..) = self.look(file);
        self.state.lock().files[file].removing = true;
        self.backend.unlink(&path)
    }

    /// An fsync of the directory, which covers names and removals, or a sync, which also covers
    /// lengths.
    fn sync_directory(&mut self, everything: bool) -> io::Result<()> {
        let dir = self.state.lock().dir.clone();
        let everything =
            match if everything { self.backend.sync() } else { Err(io::ErrorKind::Unsupported.into()) } {
                Ok(()) => true,
                Err(e) if e.kind() == io::ErrorKind::Unsupported => {
                    self.backend.fsync(&dir, false)?;
                    false
                }
                Err(e) => return Err(e),
            };
        let mut state = self.state.lock();
        state.fsyncs += 1;
        for f in &mut state.files {
            if f.removing {
                f.acked_removal = true;
                continue;
            }
            f.acked_name = Some(f.names.len() - 1);
            if everything {
                f.acked_len = f.len;
            }
        }
        for slot in state.slots.values_mut() {
            slot.acked = slot.begun;
        }
        // Files whose removal is durable need no further check, and dropping them keeps the record
        // small.
        let gone = state.files.iter().filter(|f| f.acked_removal).count();
        if gone > 200 {
            state.files.retain(|f| !f.acked_removal);
        }
        Ok(())
    }

    fn replace_slot(&mut self) -> io::Result<()> {
        let name = format!("slot{}", self.rng.random_range(0..SLOTS));
        let version = self.state.lock().slots.get(&name).map_or(0, |s| s.begun) + 1;
        let temporary = self.path(&format!("{name}.new"));
        let bytes = slot_bytes(self.number, version);
        self.state.lock().slots.entry(name.clone()).or_default();
        self.backend.create(&temporary)?;
        self.backend.write_at(&temporary, 0, &bytes)?;
        self.backend.fsync(&temporary, self.rng.random_bool(0.5))?;
        self.begin_slot(&name, version);
        self.backend.rename(&temporary, &self.path(&name))?;
        if self.rng.random_bool(0.5) {
            self.backend.fsync(&self.path(&name), false)?;
            let mut state = self.state.lock();
            state.fsyncs += 1;
            state.slots.entry(name).or_default().acked = version;
        }
        Ok(())
    }

    fn begin_slot(&self, name: &str, version: u64) {
        self.state.lock().slots.entry(name.to_owned()).or_default().begun = version;
    }
}

fn slot_bytes(writer: u32, version: u64) -> Vec<u8> {
    // The body identifies writer and version, so that a mixture of two is detected.
    let fill = Fill::Seed((writer >> 16) ^ (version as u32).wrapping_mul(0x9e37_79b9));
    let mut bytes = version.to_le_bytes().to_vec();
    bytes.extend(fill.bytes(SLOT_HEADER as u64, 100 + (version * 7919 % 20_000) as usize));
    bytes
}

/// Checks the files after a crash against what was acknowledged before it and what had begun by
/// then.
pub fn verify_after(backend: &dyn Backend, acked: &Snapshot, begun: &Snapshot) -> Result<(), String> {
    for (i, (acked, begun)) in acked.0.iter().zip(&begun.0).enumerate() {
        verify_writer(backend, i as u32, acked, begun).map_err(|e| format!("{}: {e}", begun.dir))?;
    }
    Ok(())
}

fn verify_writer(
    backend: &dyn Backend,
    writer: u32,
    acked: &WriterState,
    begun: &WriterState,
) -> Result<(), String> {
    let names = backend.list(&begun.dir).map_err(|e| format!("cannot be listed: {e}"))?;
    let mut left: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    if left.len() != names.len() {
        return Err("a name is listed twice".to_owned());
    }
    for file in &begun.files {
        let before = acked.files.iter().find(|f| f.names[0] == file.names[0]);
        let there: Vec<usize> =
            (0..file.names.len()).filter(|i| left.remove(file.names[*i].as_str())).collect();
        let said = |what: String| format!("{}: {what} ({file:?}, acknowledged {before:?})", file.names[0]);
        let [at] = there[..] else {
            let acked_name = before.is_some_and(|f| f.acked_name.is_some());
            if there.is_empty() && (file.removing || !acked_name) {
                continue;
            }
            return Err(said(format!("is there under {} names", there.len())));
        };
        if before.is_some_and(|f| f.acked_removal) {
            return Err(said("came back".to_owned()));
        }
        if before.and_then(|f| f.acked_name).is_some_and(|name| at < name) {
            return Err(said(format!("has its old name {}", file.names[at])));
        }
        let path = format!("{}/{}", begun.dir, file.names[at]);
        let bytes = backend.read(&path).map_err(|e| said(format!("cannot be read: {e}")))?;
        verify_bytes(&bytes, file, before.map_or(0, |f| f.acked_len)).map_err(said)?;
    }
    for (name, slot) in &begun.slots {
        let floor = acked.slots.get(name).map_or(0, |s| s.acked);
        left.remove(format!("{name}.new").as_str());
        if !left.remove(name.as_str()) {
            if floor > 0 {
                return Err(format!("{name} is missing, version {floor} was acknowledged"));
            }
            continue;
        }
        let bytes = backend.read(&format!("{}/{name}", begun.dir)).map_err(|e| format!("{name}: {e}"))?;
        verify_slot(writer, &bytes, floor, slot.begun).map_err(|e| format!("{name}: {e}"))?;
    }
    // The files that were removed long ago may have been dropped from the record between the
    // snapshots.
    let dropped = |name: &&str| acked.files.iter().any(|f| f.removing && f.names.iter().any(|n| n == name));
    match left.into_iter().find(|name| !dropped(name)) {
        Some(name) => Err(format!("{name:?} should not be there")),
        None => Ok(()),
    }
}

fn verify_bytes(bytes: &[u8], file: &FileState, acked_len: u64) -> Result<(), String> {
    let len = bytes.len() as u64;
    if !(acked_len..=file.len).contains(&len) {
        return Err(format!("{len} bytes, acknowledged {acked_len}, written {}", file.len));
    }
    for (at, byte) in bytes.iter().enumerate() {
        let right = file.fill.byte(at as u64);
        if *byte != right && (*byte != 0 || (at as u64) < acked_len) {
            return Err(format!(
                "byte {at} of {len} is {byte:#04x}, written was {right:#04x}, acknowledged {acked_len}"
            ));
        }
    }
    Ok(())
}

fn verify_slot(writer: u32, bytes: &[u8], floor: u64, begun: u64) -> Result<(), String> {
    let Some(version) = bytes.first_chunk::<SLOT_HEADER>().map(|b| u64::from_le_bytes(*b)) else {
        return Err(format!("{} bytes", bytes.len()));
    };
    if !(floor.max(1)..=begun).contains(&version) {
        return Err(format!("version {version}, acknowledged {floor}, begun {begun}"));
    }
    if bytes != slot_bytes(writer << 16, version) {
        return Err(format!("version {version} is not whole: {} bytes", bytes.len()));
    }
    Ok(())
}

#[cfg(test)]
#[path = "writers_tests.rs"]
mod tests;
