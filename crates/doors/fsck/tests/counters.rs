//! Superblocks with valid checksums whose counters are near their maximum: mount and fsck agree,
//! and no mount writes a slot that the next mount refuses.

use crate::common::{check, clock, slot};
use kedge_base::{BLOCK_SIZE, Epoch, Generation, Ino, IoBuf, Lsn};
use kedge_device::{Device, MemDevice};
use kedge_format::alloc::{decode_index_block, encode_index_block};
use kedge_format::superblock::{COUNTER_MAX, CheckpointState, OPEN_MAX, SLOTS, Superblock};
use kedge_fsck::{Ending, RepairMode, RepairOptions, repair};
use kedgefs::{FileSystem, FormatOptions, MountOptions};
use std::sync::Arc;

type Set = fn(&mut CheckpointState, u64);
const COUNTERS: [(&str, Set); 4] = [
    ("generation", |c, n| c.generation = Generation(n)),
    ("epoch", |c, n| c.epoch = Epoch(n)),
    ("next inode", |c, n| c.next_ino = Ino(n)),
    ("LSN", |c, n| (c.checkpoint_lsn, c.tail_lsn) = (Lsn(n), Lsn(n))),
];

fn unmounted() -> MemDevice {
    let device = Arc::new(MemDevice::new(16 << 20));
    let options = FormatOptions { log_size: Some(1 << 20), ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock(), &options).unwrap();
    // Both slots are valid now; the newest has generation 4.
    open(device.clone(), false).unwrap().close().unwrap();
    device.fork()
}

/// The image with the counter `set` changed to `n` in its newest slot. The allocation index gets
/// the same generation.
fn crafted(set: Set, n: u64) -> MemDevice {
    let device = unmounted();
    let mut sb = Superblock::decode(&slot(&device, 0), 0, 4096).unwrap();
    let old = sb.checkpoint.generation;
    set(&mut sb.checkpoint, n);
    let (uuid, at) = (&sb.geometry.uuid, sb.geometry.index_start[0]);
    let mut index = IoBuf::from_bytes(&device.bytes(at.byte_offset(), BLOCK_SIZE));
    let entries = decode_index_block(index.as_bytes(), at, uuid, old, 0).unwrap();
    encode_index_block(uuid, sb.checkpoint.generation, 0, &entries, index.as_mut_bytes());
    device.write(at.byte_offset(), &index, false).unwrap();
    let mut block = IoBuf::zeroed(1);
    sb.encode(block.as_mut_bytes());
    device.write(SLOTS[0].byte_offset(), &block, false).unwrap();
    device
}

fn open(device: Arc<MemDevice>, read_only: bool) -> kedgefs::Result<FileSystem> {
    FileSystem::open(device, clock(), MountOptions { read_only, ..MountOptions::default() })
}

#[test]
fn mount_and_fsck_agree_on_counters_near_their_end() {
    let step = 2 * BLOCK_SIZE as u64;
    for (name, set) in COUNTERS {
        for n in [OPEN_MAX, OPEN_MAX + step, COUNTER_MAX, COUNTER_MAX + step, u64::MAX - step + 1] {
            let (image, said) = (crafted(set, n), format!("{name} {n}"));
            let before = image.bytes(0, 16 << 20);
            let report = check(&image);
            for read_only in [true, false] {
                let device = Arc::new(image.fork());
                let opened = open(device.clone(), read_only);
                // A slot with a counter above `COUNTER_MAX` counts as damaged: the other slot is
                // used, and fsck reports the damage.
                let taken = n == OPEN_MAX || n > COUNTER_MAX;
                assert_eq!((opened.is_ok(), report.is_clean()), (taken, n == OPEN_MAX), "{said}: {report}");
                match opened {
                    Err(_) => assert!(device.bytes(0, 16 << 20) == before, "{said}: a refused mount wrote"),
                    Ok(fs) => {
                        let owner = kedgefs::Owner { uid: 0, gid: 0 };
                        if !read_only {
                            let made = fs.create(kedgefs::Ino::ROOT, b"file", 0o644, owner);
                            // The new inode would need the last number, after which no next number
                            // exists.
                            let none_left = name == "next inode" && n == OPEN_MAX;
                            assert_eq!(made.is_err(), none_left, "{said}: {made:?}");
                        }
                        fs.close().unwrap();
                    }
                }
            }
            for mode in [RepairMode::Preen, RepairMode::Full] {
                let device = Arc::new(image.fork());
                let done = repair(device.clone(), &RepairOptions::new(mode));
                if matches!(done.ending, Ending::Repaired | Ending::Clean | Ending::Skipped) {
                    let after = check(&device);
                    assert_eq!(after.exit_code(), 0, "{said}, {mode:?}: {done}, then {after}");
                    let fs = open(device, false).unwrap_or_else(|e| panic!("{said}, {mode:?}: {done}: {e}"));
                    fs.close().unwrap();
                } else {
                    assert!(done.exit_code & 12 != 0, "{said}, {mode:?}: {done}");
                    assert!(device.bytes(0, 16 << 20) == before, "{said}, {mode:?}: a refused repair wrote");
                }
            }
        }
    }
}
