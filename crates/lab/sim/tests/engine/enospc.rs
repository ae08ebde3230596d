//! A full image: writers get only ENOSPC, everything synced stays, and everything can be deleted.
//! Then the image has room for as much data again. This is repeated, with power failures while the
//! image is full.

use crate::common::seeds;
use kedge_base::{HANG, ManualClock};
use kedge_device::sim::SimDevice;
use kedge_sim::backend::{Backend, InProcess};
use kedge_sim::ops::{Fill, OWNER, errno};
use kedge_sim::rig::{self, Setup, within};
use kedgefs::{FallocateMode, FileSystem, Ino, XattrMode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

const BLOCK: usize = 4096;
const THREADS: u32 = 4;
const ROUNDS: u64 = 6;

/// A thread's files by path: bytes written, and bytes synced if there was a sync.
type Files = BTreeMap<String, (u64, Option<u64>)>;

fn no_space(e: &io::Error) -> bool {
    e.raw_os_error() == Some(errno::ENOSPC)
}

/// Writes files until nothing fits.
fn fill(backend: &dyn Backend, dir: &str, mut rng: SmallRng) -> Result<(Files, u64), String> {
    let mut files = Files::new();
    let (mut refused, mut written) = (0, 0);
    let said = |what: &str, path: &str, e: io::Error| format!("{what} {path}: {e}");
    for number in 0.. {
        if refused > 20 {
            break;
        }
        let path = format!("{dir}/{number}");
        match backend.create(&path) {
            Ok(()) => files.insert(path.clone(), (0, None)),
            Err(e) if no_space(&e) => {
                refused += 1;
                continue;
            }
            Err(e) => return Err(said("create", &path, e)),
        };
        let fill = Fill::Seed(number);
        for _ in 0..rng.random_range(1..6) {
            let at = files[&path].0;
            let len =
                if rng.random_bool(0.5) { rng.random_range(1..5000) } else { rng.random_range(1..300_000) };
            match backend.write_at(&path, at, &fill.bytes(at, len)) {
                Ok(()) => {
                    files.insert(path.clone(), (at + len as u64, None));
                    written += len as u64;
                }
                Err(e) if no_space(&e) => {
                    // A part of the write may have fitted.
                    let now = backend.read(&path).map_err(|e| said("read", &path, e))?.len() as u64;
                    files.insert(path.clone(), (now, None));
                    refused += 1;
                    break;
                }
                Err(e) => return Err(said("write", &path, e)),
            }
        }
        if rng.random_bool(0.4) {
            match backend.fsync(&path, rng.random_bool(0.5)) {
                Ok(()) => files.get_mut(&path).expect("inserted above").1 = Some(files[&path].0),
                Err(e) if no_space(&e) => refused += 1,
                Err(e) => return Err(said("fsync", &path, e)),
            }
        }
    }
    Ok((files, written))
}

/// Checks that all bytes (`crashed`: all synced bytes) are present and correct.
fn verify(backend: &dyn Backend, files: &Files, crashed: bool) -> Result<(), String> {
    for (path, (written, synced)) in files {
        let fill = Fill::Seed(
            path.rsplit('/').next().expect("a path has a name").parse().expect("names are numbers"),
        );
        let floor = if crashed { *synced } else { Some(*written) };
        let bytes = match backend.read(path) {
            Ok(bytes) => bytes,
            Err(e) if floor.is_none() && e.raw_os_error() == Some(errno::ENOENT) => continue,
            Err(e) => return Err(format!("{path}: {e}")),
        };
        let (len, floor) = (bytes.len() as u64, floor.unwrap_or(0));
        if len < floor || len > *written {
            return Err(format!("{path}: {len} bytes, at least {floor} and at most {written} expected"));
        }
        for (at, byte) in bytes.iter().enumerate() {
            let at = at as u64;
            if *byte != fill.byte(at) && (at < floor || *byte != 0) {
                return Err(format!("{path}: byte {at} of {len} is {byte:#04x}, synced {floor}"));
            }
        }
    }
    Ok(())
}

fn delete_all(fs: &FileSystem) -> Result<u64, String> {
    let backend = InProcess(fs.clone());
    let mut count = 0;
    for dir in backend.list(".").map_err(|e| e.to_string())? {
        for name in backend.list(&dir).map_err(|e| e.to_string())? {
            backend.unlink(&format!("{dir}/{name}")).map_err(|e| format!("unlink {dir}/{name}: {e}"))?;
            count += 1;
        }
        fs.rmdir(Ino::ROOT, dir.as_bytes()).map_err(|e| format!("rmdir {dir}: {e}"))?;
    }
    Ok(count)
}

struct Full {
    setup: Setup,
    device: Arc<SimDevice>,
    fs: FileSystem,
    rng: SmallRng,
}

impl Full {
    fn new(setup: Setup, seed: u64) -> Result<Full, String> {
        let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
        device.stop_recording();
        let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
        Ok(Full { setup, device, fs, rng: SmallRng::seed_from_u64(seed) })
    }

    fn crash(&mut self) -> Result<(), String> {
        let medium = self.device.crash(self.rng.random());
        let _ = self.fs.shutdown(false);
        rig::fsck(medium.fork())?;
        self.device = Arc::new(SimDevice::new(medium));
        self.device.stop_recording();
        self.fs = rig::open(&self.device, &Arc::new(ManualClock::default()), &self.setup)?;
        Ok(())
    }

    /// Fills the image, perhaps crashes, checks, and deletes. Returns the number of bytes that
    /// fitted.
    fn round(&mut self, round: u64) -> Result<u64, String> {
        let mut threads = Vec::new();
        for i in 0..THREADS {
            let dir = format!("{i}");
            self.fs
                .mkdir(Ino::ROOT, dir.as_bytes(), 0o755, OWNER)
                .map_err(|e| format!("mkdir in an empty image: {e}"))?;
            let (fs, rng) = (self.fs.clone(), SmallRng::seed_from_u64(self.rng.random()));
            let body = move || fill(&InProcess(fs), &dir, rng);
            threads.push(kedge_base::spawn_named("fill", body).map_err(|e| e.to_string())?);
        }
        let mut files = Files::new();
        let mut written = 0;
        for thread in threads {
            let (some, bytes) = thread.join().map_err(|p| rig::panic_text(&*p))??;
            files.extend(some);
            written += bytes;
        }
        verify(&InProcess(self.fs.clone()), &files, false)?;
        let crashed = round % 2 == 1;
        if crashed {
            self.crash()?;
            verify(&InProcess(self.fs.clone()), &files, true).map_err(|e| format!("after a crash: {e}"))?;
        } else {
            self.fs.sync().map_err(|e| format!("sync of a full image: {e}"))?;
            let all =
                files.iter().map(|(path, (written, _))| (path.clone(), (*written, Some(*written)))).collect();
            self.crash()?;
            verify(&InProcess(self.fs.clone()), &all, true)
                .map_err(|e| format!("after sync and a crash: {e}"))?;
        }
        delete_all(&self.fs)?;
        self.fs.sync().map_err(|e| format!("sync of an emptied image: {e}"))?;
        Ok(written)
    }
}

fn run(setup: Setup, seed: u64) -> Result<(), String> {
    let mut full = Full::new(setup, seed)?;
    let free = full.fs.statfs().blocks_free;
    let mut first = 0;
    for round in 0..ROUNDS {
        let said = |e: String| format!("round {round}: {e}");
        let written = full.round(round).map_err(said)?;
        if first == 0 {
            first = written;
            if written < full.setup.image / 3 {
                return Err(format!("an image of {} bytes takes only {written}", full.setup.image));
            }
        }
        if written < first / 10 * 8 {
            return Err(said(format!("{written} bytes fit, {first} in the first round")));
        }
        full.fs.checkpoint().map_err(|e| e.to_string())?;
        let now = full.fs.statfs().blocks_free;
        if now + 64 < free {
            return Err(said(format!("{now} blocks are free, {free} in the fresh image")));
        }
    }
    full.fs.close().map_err(|e| format!("close: {e}"))?;
    rig::fsck(full.device.view())
}

#[test]
fn a_full_image_refuses_keeps_and_empties() {
    for seed in seeds(6) {
        let mut setup = Setup { image: 40 << 20, log: 2 << 20, ..Setup::cramped() };
        setup.mount.cache_size = if seed % 2 == 0 { 64 << 20 } else { 4 << 20 };
        let what = format!("KEDGE_SEED={seed}");
        if let Err(e) = within(HANG, &what, move || run(setup, seed)) {
            panic!("{what}: {e}");
        }
    }
}

/// Names and attributes alone can fill the tree, and can be removed then.
#[test]
fn a_tree_full_of_names_empties_too() {
    let result = within(HANG, "names", || {
        let setup = Setup { image: 16 << 20, log: 1 << 20, ..Setup::cramped() };
        let full = Full::new(setup, 1)?;
        let fs = &full.fs;
        for round in 0..3 {
            let dir = fs.mkdir(Ino::ROOT, b"d", 0o755, OWNER).map_err(|e| format!("mkdir: {e}"))?.ino;
            let mut made = 0;
            loop {
                let name = format!("{made:0100}");
                let attr = match fs.create(dir, name.as_bytes(), 0o644, OWNER) {
                    Ok(attr) => attr,
                    Err(e) if e.errno() == errno::ENOSPC => break,
                    Err(e) => return Err(format!("create {made}: {e}")),
                };
                made += 1;
                match fs.setxattr(attr.ino, b"user.filler", &[b'x'; 2000], kedgefs::XattrMode::Any) {
                    Ok(()) => {}
                    Err(e) if e.errno() == errno::ENOSPC => break,
                    Err(e) => return Err(format!("setxattr {made}: {e}")),
                }
            }
            if made < 1000 {
                return Err(format!("round {round}: only {made} names fit"));
            }
            let count = delete_all(fs).map_err(|e| format!("round {round}, {made} names: {e}"))?;
            if count != made {
                return Err(format!("round {round}: {made} names made, {count} deleted"));
            }
        }
        full.fs.close().map_err(|e| format!("close: {e}"))?;
        rig::fsck(full.device.view())
    });
    result.unwrap_or_else(|e| panic!("{e}"));
}

/// An image is filled and emptied many times, each time in other blocks, without a checkpoint:
/// replay always has space for the tree.
#[test]
fn an_image_rewritten_within_one_log_recovers() {
    let result = within(HANG, "rewritten", || {
        let mut setup = Setup { image: 64 << 20, log: 16 << 20, ..Setup::cramped() };
        setup.mount.async_checkpoint = None;
        setup.mount.cache_size = 256 << 20;
        let mut full = Full::new(setup, 1)?;
        let checkpoints = |fs: &FileSystem| {
            let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).expect("valid JSON");
            stats["checkpoint"]["by_cause"].to_string()
        };
        let before = checkpoints(&full.fs);
        let mut files = Files::new();
        for round in 0..5u64 {
            let backend = InProcess(full.fs.clone());
            full.fs.mkdir(Ino::ROOT, b"d", 0o755, OWNER).map_err(|e| format!("mkdir: {e}"))?;
            for number in 0..32 {
                let path = format!("d/{number}");
                let bytes = Fill::Seed(number).bytes(0, 1 << 20);
                let wrote = backend.create(&path).and_then(|()| backend.write_at(&path, 0, &bytes));
                wrote
                    .and_then(|()| backend.fsync(&path, false))
                    .map_err(|e| format!("round {round}, {path}: {e}"))?;
                files.insert(path, (1 << 20, Some(1 << 20)));
            }
            // Makes the tree larger than it is at the end.
            for number in 100..1500 {
                let path = format!("d/{number}");
                let fs = &full.fs;
                let dir = fs.lookup(Ino::ROOT, b"d").map_err(|e| e.to_string())?.ino;
                fs.create(dir, path.as_bytes().split_at(2).1, 0o644, OWNER)
                    .and_then(|file| {
                        fs.setxattr(file.ino, b"user.filler", &[b'x'; 1000], kedgefs::XattrMode::Any)
                    })
                    .map_err(|e| format!("round {round}, {path}: {e}"))?;
            }
            if round < 4 {
                delete_all(&full.fs)?;
                full.fs.sync().map_err(|e| e.to_string())?;
            }
        }
        full.fs.sync().map_err(|e| e.to_string())?;
        if checkpoints(&full.fs) != before {
            return Err(format!("the log was meant to hold it all: {before}, {}", checkpoints(&full.fs)));
        }
        full.crash()?;
        verify(&InProcess(full.fs.clone()), &files, true)?;
        full.fs.close().map_err(|e| format!("close: {e}"))?;
        rig::fsck(full.device.view())
    });
    result.unwrap_or_else(|e| panic!("{e}"));
}

/// Zero range on an image without a free block. Over holes it fails without changing a byte. Over
/// blocks that the file already has, on the device or promised to dirty pages, it needs no new
/// blocks.
fn zero_range_when_full(keep_size: bool) -> Result<(), String> {
    const PIECE: usize = 1 << 20;
    let said = |what: &'static str| move |e: kedgefs::Error| format!("{what}: {e}");
    let mut full = Full::new(Setup { image: 40 << 20, log: 2 << 20, ..Setup::cramped() }, 1)?;
    let fs = full.fs.clone();
    let ino = fs.create(Ino::ROOT, b"sparse", 0o644, OWNER).map_err(said("create"))?.ino;
    let mut bytes = vec![0; 9 * PIECE + 1000];
    for (n, at) in [0, 8 * PIECE + 1000].into_iter().enumerate() {
        bytes[at..at + PIECE].copy_from_slice(&Fill::Seed(n as u32).bytes(0, PIECE));
        fs.write(ino, at as u64, &bytes[at..at + PIECE]).map_err(said("write"))?;
    }
    fs.sync().map_err(said("sync"))?;
    let backend = InProcess(fs.clone());
    fs.mkdir(Ino::ROOT, b"fill", 0o755, OWNER).map_err(said("mkdir"))?;
    let dirty = fs.create(Ino::ROOT, b"dirty", 0o644, OWNER).map_err(said("create"))?.ino;
    let (files, _) = fill(&backend, "fill", SmallRng::seed_from_u64(1))?;
    // The blocks that one file frees are promised to the dirty pages of another.
    let large =
        files.iter().find(|(_, (written, _))| *written > 200_000).expect("a large file was written").0;
    backend.unlink(large).map_err(|e| e.to_string())?;
    fs.sync().map_err(said("sync after an unlink"))?;
    let mut promised = 0;
    while fs.write(dirty, promised, &[7; BLOCK]).is_ok() {
        promised += BLOCK as u64;
    }
    let whole = bytes.len() as u64 - 50;
    let mode = FallocateMode::ZeroRange { keep_size };
    let read = |fs: &FileSystem| InProcess(fs.clone()).read("sparse").map_err(|e| e.to_string());
    for (offset, len) in [(50, whole), (0, 2 * PIECE as u64), (PIECE as u64, 20 * PIECE as u64)] {
        match fs.fallocate(ino, mode, offset, len) {
            Err(e) if e.errno() == errno::ENOSPC => {}
            other => return Err(format!("zero range of {len} at {offset} in a full image: {other:?}")),
        }
        if read(&fs)? != bytes {
            return Err(format!("zero range of {len} at {offset} failed and changed bytes"));
        }
    }
    fs.fallocate(dirty, mode, 0, promised).map_err(said("zero range of dirty pages"))?;
    let found = backend.read("dirty").map_err(|e| e.to_string())?;
    if promised < 100_000 || found != vec![0; promised as usize] {
        return Err(format!("{promised} dirty bytes that were zeroed are not zero"));
    }
    full.crash()?;
    let fs = full.fs.clone();
    if read(&fs)? != bytes {
        return Err("after a crash, bytes of a range that was not zeroed are not there".to_owned());
    }
    let ino = fs.lookup(Ino::ROOT, b"sparse").map_err(said("lookup"))?.ino;
    let blocks = fs.getattr(ino).map_err(said("getattr"))?.blocks;
    let free = fs.statfs().blocks_free;
    fs.fallocate(ino, mode, 100, PIECE as u64 - 200).map_err(said("zero range of what is allocated"))?;
    bytes[100..PIECE - 100].fill(0);
    fs.fsync(ino, false).map_err(said("fsync"))?;
    if read(&fs)? != bytes {
        return Err("a range that was zeroed is not zero, or bytes beside it are".to_owned());
    }
    if fs.getattr(ino).map_err(said("getattr"))?.blocks != blocks || fs.statfs().blocks_free > free {
        return Err("zero range freed blocks".to_owned());
    }
    full.crash()?;
    if read(&full.fs)? != bytes {
        return Err("after a crash, a range that was zeroed is not as it was".to_owned());
    }
    full.fs.close().map_err(said("close"))?;
    rig::fsck(full.device.view())
}

#[test]
fn zero_range_without_space_changes_nothing() {
    for keep_size in [false, true] {
        let result = within(HANG, "zero range", move || zero_range_when_full(keep_size));
        result.unwrap_or_else(|e| panic!("keep_size {keep_size}: {e}"));
    }
}

/// A small image full of names: operations that free space need tree nodes, and must never need
/// more than the reserve holds for them.
fn names_to_the_brim(image: u64) -> Result<(), String> {
    let said = |what: &'static str| move |e: kedgefs::Error| format!("{what}: {e}");
    let setup = Setup { image, log: 2 << 20, ..Setup::default() };
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    device.stop_recording();
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    let name = |i: u64| format!("file{i}").into_bytes();
    let fits = |i: u64| {
        let filler = &[b'x'; 3000];
        fs.create(Ino::ROOT, &name(i), 0o644, OWNER)
            .is_ok_and(|attr| fs.setxattr(attr.ino, b"user.filler", filler, XattrMode::Any).is_ok())
    };
    let made = (0..100_000).take_while(|i| fits(*i)).count() as u64;
    if !(2000..100_000).contains(&made) {
        return Err(format!("{made} files fill the image"));
    }
    let inodes = |fs: &FileSystem| fs.statfs().inodes - fs.statfs().inodes_free;
    let before = inodes(&fs);
    for i in 0..600 {
        fs.unlink(Ino::ROOT, &name(i)).map_err(said("unlink"))?;
    }
    if inodes(&fs) + 600 != before {
        return Err(format!("{} of 600 unlinked files are gone", before - inodes(&fs)));
    }
    let again = (200_000..300_000).take_while(|i| fits(*i)).count();
    if !(400..800).contains(&again) {
        return Err(format!("{again} files fit where 600 were unlinked"));
    }
    fs.close().map_err(said("close"))?;
    rig::fsck(device.view())
}

#[test]
fn an_image_full_of_names_gives_back_what_is_unlinked() {
    for image in [16 << 20, 32 << 20, 96 << 20] {
        let what = format!("an image of {image} bytes");
        let result = within(HANG, &what, move || names_to_the_brim(image));
        result.unwrap_or_else(|e| panic!("{what}: {e}"));
    }
}
