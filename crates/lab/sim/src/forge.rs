//! Forged log writes: an attack by a user that knows the format and owns a file whose data lies
//! where the log scan reads.
//!
//! Small fsynced data is stored verbatim in the log's ring. The user writes data that is a valid
//! log write except for the image's secret: magic, uuid, epoch, LSN and checksum are correct. No
//! mount, read-only mount, fsck or repair may accept it as a log write, neither after a clean
//! unmount nor after a crash.

use crate::ops::OWNER;
use crate::rig;
use kedge_base::{BLOCK_SIZE, Epoch, Lsn, ManualClock};
use kedge_device::MemDevice;
use kedge_format::logwrite::{HEADER_SIZE, LogKey, LogSecret, WriteHeader};
use kedge_format::superblock::{SLOTS, Superblock};
use kedge_fsck::{CheckOptions, RepairMode, RepairOptions, StoreReplay};
use kedgefs::{FileSystem, Ino, MountOptions};
use std::sync::Arc;

const IMAGE: u64 = 16 << 20;
const LOG: u64 = 1 << 20;
/// Length of the forged file: enough for a whole block of the ring, whatever the alignment of the
/// file's bytes.
const BYTES: usize = 3 * BLOCK_SIZE;
const MARKER: &[u8; 16] = b"my bytes in here";

/// What the forged header claims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// A newer superblock opened a newer epoch.
    NewerEpoch,
    /// A newer superblock moved the tail.
    NewerTail,
    /// The ring wrapped once more.
    LaterLap,
    /// The write at the end of the log was durable.
    DurableWriteLost,
}

impl Claim {
    pub const ALL: [Claim; 4] =
        [Claim::NewerEpoch, Claim::NewerTail, Claim::LaterLap, Claim::DurableWriteLost];

    /// Returns the forged header. `place` is the LSN of the forged write, `end` the end of the log.
    fn header(self, epoch: Epoch, place: Lsn, end: Lsn) -> WriteHeader {
        // A scan expects blocks that lie below the end of the log one lap later.
        let seen_at = Lsn(if place < end { place.0 + LOG } else { place.0 });
        let fair = WriteHeader {
            epoch,
            lsn: seen_at,
            blocks: 1,
            tail_lsn: Lsn(0),
            durable_lsn: Lsn(0),
            payload_bytes: 0,
            records: 0,
        };
        match self {
            Claim::NewerEpoch => WriteHeader { epoch: Epoch(epoch.0 + 1), ..fair },
            Claim::NewerTail => WriteHeader { tail_lsn: Lsn(u64::MAX / 4), ..fair },
            Claim::LaterLap => WriteHeader { lsn: Lsn(seen_at.0 + LOG), ..fair },
            Claim::DurableWriteLost => WriteHeader { durable_lsn: Lsn(u64::MAX / 4), ..fair },
        }
    }
}

/// When the ring is scanned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// After the unmount.
    Unmounted,
    /// After a crash of the next mount, whose epoch the user predicts.
    Crashed,
}

impl When {
    pub const ALL: [When; 2] = [When::Unmounted, When::Crashed];
}

/// Returns an image with the forged write in its ring, past the end of the log.
pub fn image(claim: Claim, when: When) -> Result<MemDevice, String> {
    let device = Arc::new(rig::format(IMAGE, LOG)?);
    let said = |e: kedgefs::Error| e.to_string();
    let reopen = |device| FileSystem::open(device, Arc::new(ManualClock::default()), MountOptions::default());
    let fs = reopen(device.clone()).map_err(said)?;
    let (sb, ring) = newest(&device)?;
    let create = |name: &[u8]| fs.create(Ino::ROOT, name, 0o644, OWNER).map(|file| file.ino).map_err(said);
    let write =
        |file: Ino, bytes: &[u8]| fs.write(file, 0, bytes).and_then(|_| fs.fsync(file, false)).map_err(said);
    // The probe shows where the log puts the bytes of such a file. The bytes of the next file,
    // whose name has the same length, follow at the same distance.
    let mut bytes = [b'.'; BYTES];
    bytes[..MARKER.len()].copy_from_slice(MARKER);
    let probe = create(b"probe")?;
    write(probe, &bytes)?;
    let log = device.bytes(ring, LOG as usize);
    let at = log.windows(MARKER.len()).position(|w| w == MARKER).ok_or("small data is not in the log")?;
    let (start, length) =
        (at / BLOCK_SIZE * BLOCK_SIZE, (BYTES + BLOCK_SIZE).div_ceil(BLOCK_SIZE) * BLOCK_SIZE);
    let offset = BLOCK_SIZE - at % BLOCK_SIZE;
    if offset + HEADER_SIZE > BLOCK_SIZE {
        return Err(format!("the header would lie across two pages: data at {at}"));
    }
    let place = start + length + BLOCK_SIZE;
    let epoch = Epoch(sb.checkpoint.epoch.0 + (when == When::Crashed) as u64);
    let header = claim.header(epoch, Lsn(place as u64), Lsn((place + length) as u64));
    // The block's checksum also covers the bytes of the log between two pages of the file, which
    // include the file's inode number.
    let forge = create(b"forge")?;
    let mut block = log[start + BLOCK_SIZE..start + 2 * BLOCK_SIZE].to_vec();
    let number = block.windows(8).position(|w| w == probe.0.to_le_bytes());
    if let Some(number) = number {
        block[number..number + 8].copy_from_slice(&forge.0.to_le_bytes());
    }
    let key = LogKey { uuid: sb.geometry.uuid, secret: LogSecret([0; 16]) };
    header.seal(&key, &mut block);
    bytes[..MARKER.len()].fill(b'.');
    bytes[offset..offset + HEADER_SIZE].copy_from_slice(&block[..HEADER_SIZE]);
    write(forge, &bytes)?;
    let lies_there = || device.bytes(ring + place as u64, BLOCK_SIZE) == block;
    if !lies_there() {
        return Err("the forged write does not lie where it was meant to".into());
    }
    fs.close().map_err(said)?;
    if when == When::Crashed {
        let fs = reopen(device.clone()).map_err(said)?;
        let late = fs.create(Ino::ROOT, b"late", 0o644, OWNER).map_err(said)?.ino;
        fs.fsync(late, false).map_err(said)?;
        let crashed = device.fork();
        fs.shutdown(false).map_err(said)?;
        return Ok(crashed);
    }
    if !lies_there() {
        return Err("the forged write is gone after the unmount".into());
    }
    Ok(device.fork())
}

/// Checks that no reader accepts any of the forged writes.
pub fn check() -> Result<(), String> {
    for claim in Claim::ALL {
        for when in When::ALL {
            image(claim, when)
                .and_then(|image| judge(&image))
                .map_err(|e| format!("{claim:?}, {when:?}: {e}"))?;
        }
    }
    Ok(())
}

/// Checks that every reader ignores the forged write in an image.
pub fn judge(image: &MemDevice) -> Result<(), String> {
    for read_only in [false, true] {
        let fs = open(image.fork(), read_only).map_err(|e| format!("mount, read_only {read_only}: {e}"))?;
        for name in [&b"probe"[..], b"forge"] {
            let found = fs.lookup(Ino::ROOT, name).map_err(|e| e.to_string())?;
            if found.size != BYTES as u64 {
                return Err(format!("a file of {} bytes", found.size));
            }
        }
        fs.close().map_err(|e| e.to_string())?;
    }
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
    let report = kedge_fsck::check(Arc::new(image.fork()), &options);
    if report.exit_code() != 0 || report.warnings != 0 {
        return Err(format!("fsck: {report}"));
    }
    for mode in [RepairMode::Preen, RepairMode::Full] {
        for force in [false, true] {
            let device = Arc::new(image.fork());
            let options_of = RepairOptions { force, ..RepairOptions::new(mode) };
            let repair = kedge_fsck::repair(device.clone(), &options_of);
            if repair.exit_code != 0 {
                return Err(format!("repair, {mode:?}: {repair}"));
            }
            let again = kedge_fsck::check(device.clone(), &options);
            if again.exit_code() != 0 {
                return Err(format!("fsck after a repair, {mode:?}: {again}"));
            }
            open(device.fork(), false)?.close().map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}

fn open(medium: MemDevice, read_only: bool) -> Result<FileSystem, String> {
    let options = MountOptions { read_only, ..MountOptions::default() };
    FileSystem::open(Arc::new(medium), Arc::new(ManualClock::default()), options).map_err(|e| e.to_string())
}

/// Returns the newest superblock, and the offset at which the ring begins.
fn newest(device: &MemDevice) -> Result<(Superblock, u64), String> {
    let slots = (0..SLOTS.len()).filter_map(|i| {
        let block = device.bytes(SLOTS[i].byte_offset(), BLOCK_SIZE);
        Superblock::decode(&block, i, IMAGE / BLOCK_SIZE as u64).ok()
    });
    let sb = slots.max_by_key(|sb| sb.checkpoint.generation).ok_or("no slot is valid")?;
    let ring = sb.geometry.log_start.byte_offset();
    Ok((sb, ring))
}
