//! Races on one inode. A file is deleted while another thread reads its inode from the tree to
//! change a time stamp. A thread reads a file's extents while writeback cuts one of them. A hole is
//! punched while a write extends the file. A file loses its last name during the steps of its
//! truncate.

use super::stage::{self, Stage, text};
use crate::run::Run;
use crate::strategy::Plan;
use kedge_base::{ManualClock, pause};
use kedge_device::MemDevice;
use kedge_device::sim::{Choice, SimDevice};
use kedge_sim::ops::OWNER;
use kedge_sim::rig::{self, Setup};
use kedgefs::{Error, FallocateMode, FileSystem, Ino, SeekKind, SetAttr, SetTime};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

const BLOCK: u64 = kedge_base::BLOCK_SIZE as u64;
/// Extents of a file whose truncate takes two steps.
const EXTENTS: u64 = 600;
/// Number of times that a reader examines the extents of a file.
const LOOKS: usize = 12;
/// The approximate virtual time of an operation that reads.
const SPAN: Duration = Duration::from_micros(400);

struct Prepared {
    image: MemDevice,
    small: Ino,
    /// A file of three blocks in one extent.
    whole: Ino,
    scattered: Ino,
}

static IMAGE: LazyLock<Prepared> = LazyLock::new(|| prepare().expect("an image in memory"));

fn prepare() -> Result<Prepared, String> {
    // With checksums a block is not overwritten in place, so a write cuts an extent in three.
    let setup = Setup { checksums: true, ..stage::setup() };
    let device = Arc::new(SimDevice::new(setup.format()?));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    let create = |name: &str| fs.create(Ino::ROOT, name.as_bytes(), 0o644, OWNER).map(|attr| attr.ino);
    let small = create("small").map_err(text("create"))?;
    let whole = create("whole").map_err(text("create"))?;
    let scattered = create("scattered").map_err(text("create"))?;
    fs.write(small, 0, b"some bytes").map_err(text("write"))?;
    fs.write(whole, 0, &[1; 3 * BLOCK as usize]).map_err(text("write"))?;
    fs.sync().map_err(text("sync"))?;
    for i in 0..EXTENTS {
        fs.write(scattered, 2 * i * BLOCK, &[0xee; BLOCK as usize]).map_err(text("write"))?;
    }
    fs.close().map_err(text("close"))?;
    Ok(Prepared { image: device.view(), small, whole, scattered })
}

fn touch(fs: &FileSystem, ino: Ino) -> Result<(), String> {
    let access = SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() };
    match fs.setattr(ino, &access) {
        Ok(_) | Err(Error::NotFound) => Ok(()),
        Err(e) => Err(format!("setattr: {e}")),
    }
}

fn is_gone(fs: &FileSystem, ino: Ino) -> Result<(), String> {
    match fs.getattr(ino) {
        Err(Error::NotFound) => Ok(()),
        other => Err(format!("a deleted inode is back: {other:?}")),
    }
}

/// A deleted file does not reappear through the inode that another thread was reading.
fn deleted(rng: &mut SmallRng, fs: &FileSystem, ino: Ino) -> Result<(), String> {
    let other = fs.clone();
    let touches = stage::start(rng, "touches", SPAN, move || touch(&other, ino))?;
    fs.unlink(Ino::ROOT, b"small").map_err(text("unlink"))?;
    touches.join().map_err(|_| "a thread panicked")??;
    is_gone(fs, ino)?;
    touch(fs, ino)?;
    fs.sync().map_err(text("sync"))
}

/// A file without a hole never shows one, even while writeback cuts its extent in three.
fn cut_in_three(rng: &mut SmallRng, fs: &FileSystem, ino: Ino) -> Result<(), String> {
    let other = fs.clone();
    let overwrite = move || {
        other.write(ino, BLOCK, &[1; BLOCK as usize]).map_err(text("write"))?;
        other.write_back(&[ino]).map_err(text("writeback"))
    };
    let overwrites = stage::start(rng, "overwrites", SPAN, overwrite)?;
    pause(rng.random_range(Duration::ZERO..2 * SPAN));
    for _ in 0..LOOKS {
        let hole = fs.seek(ino, 0, SeekKind::Hole).map_err(text("seek"))?;
        if hole != 3 * BLOCK {
            return Err(format!("a file of three blocks has a hole at {hole}"));
        }
    }
    let mut bytes = [0; BLOCK as usize];
    for block in [0, 2] {
        fs.read(ino, block * BLOCK, &mut bytes).map_err(text("read"))?;
        if bytes != [1; BLOCK as usize] {
            return Err(format!("block {block} holds {:02x?}", &bytes[..4]));
        }
    }
    overwrites.join().map_err(|_| "a thread panicked")?
}

/// The last name is removed during the steps of a truncate. Removing the last pin frees the file.
fn cut_and_deleted(
    rng: &mut SmallRng,
    fs: &FileSystem,
    device: &SimDevice,
    ino: Ino,
) -> Result<MemDevice, String> {
    fs.pin(ino).map_err(text("pin"))?;
    let other = fs.clone();
    let cut = move || {
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        other.setattr(ino, &set).map(drop).map_err(text("truncate"))
    };
    let cuts = stage::start(rng, "cuts", SPAN, cut)?;
    pause(rng.random_range(Duration::ZERO..2 * SPAN));
    fs.unlink(Ino::ROOT, b"scattered").map_err(text("unlink"))?;
    cuts.join().map_err(|_| "a thread panicked")??;
    fs.sync().map_err(text("sync"))?;
    let medium = device.crash_as(Choice::None);
    fs.unpin(ino, 1);
    is_gone(fs, ino)?;
    Ok(medium)
}

/// A punch and a concurrent write to the same bytes, which extends the file, take effect one after
/// the other.
fn punched(rng: &mut SmallRng, fs: &FileSystem, ino: Ino) -> Result<(), String> {
    let other = fs.clone();
    let punch = move || other.fallocate(ino, FallocateMode::PunchHole, 0, 2 * BLOCK).map_err(text("punch"));
    let punches = stage::start(rng, "punches", SPAN, punch)?;
    pause(rng.random_range(Duration::ZERO..2 * SPAN));
    fs.write(ino, 0, &[2; 2 * BLOCK as usize]).map_err(text("write"))?;
    punches.join().map_err(|_| "a thread panicked")??;
    let mut bytes = [0; 2 * BLOCK as usize];
    fs.read(ino, 0, &mut bytes).map_err(text("read"))?;
    match bytes.iter().any(|byte| *byte != bytes[0]) {
        true => Err("a punch has removed a part of a concurrent write".into()),
        false => Ok(()),
    }
}

/// Runs `act` on an open file system. If `act` returns the medium after a crash, fsck checks it,
/// too.
fn play_with(
    seed: u64,
    plan: &Plan,
    act: fn(&mut SmallRng, &Stage) -> Result<Option<MemDevice>, String>,
) -> Run {
    LazyLock::force(&IMAGE);
    let body = move || {
        let mut rng = SmallRng::seed_from_u64(seed);
        let stage = Stage::open(IMAGE.image.fork(), &stage::setup().mount, seed)?;
        let left = act(&mut rng, &stage)?;
        Ok([left, Some(stage.close()?)])
    };
    stage::play(seed, plan, body, |media| media.into_iter().flatten().try_for_each(rig::fsck))
}

/// Scenario: an inode is deleted while it is read.
pub fn play_deleted(seed: u64, plan: &Plan) -> Run {
    play_with(seed, plan, |rng, stage| deleted(rng, &stage.fs, IMAGE.small).map(|()| None))
}

/// Scenario: a file loses its last name during the steps of its truncate.
pub fn play_truncated(seed: u64, plan: &Plan) -> Run {
    play_with(seed, plan, |rng, stage| {
        cut_and_deleted(rng, &stage.fs, &stage.device, IMAGE.scattered).map(Some)
    })
}

/// Scenario: a punch and a concurrent write.
pub fn play_punched(seed: u64, plan: &Plan) -> Run {
    play_with(seed, plan, |rng, stage| punched(rng, &stage.fs, IMAGE.small).map(|()| None))
}

/// Scenario: a thread reads a file's extents while another one changes them.
pub fn play_extents(seed: u64, plan: &Plan) -> Run {
    play_with(seed, plan, |rng, stage| cut_in_three(rng, &stage.fs, IMAGE.whole).map(|()| None))
}
