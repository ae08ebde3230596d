//! Opening an image: features of later versions, read-only opens, lost superblock slots.

use kedge_base::{IoBuf, Lsn};
use kedge_device::{Device, MemDevice, WatchedDevice};
use kedge_format::superblock::{COUNTER_MAX, SLOTS, Superblock};
use kedgefs::*;
use std::sync::Arc;

const SIZE: u64 = 16 << 20;

fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::default())
}

/// An image whose log still has to be replayed.
fn crashed() -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(SIZE));
    let options = FormatOptions { log_size: Some(1 << 20), immutable: true, ..Default::default() };
    FileSystem::format(device.clone(), clock(), &options).unwrap();
    let fs = FileSystem::open(device.clone(), clock(), MountOptions::default()).unwrap();
    let f = fs.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap();
    fs.write(f.ino, 0, b"kept").unwrap();
    fs.fsync(f.ino, false).unwrap();
    device
}

fn open(device: &Arc<MemDevice>) -> Result<FileSystem> {
    FileSystem::open(device.clone(), clock(), MountOptions::default())
}

fn slot(device: &MemDevice, slot: usize) -> Result<Superblock, kedge_base::Error> {
    let mut block = IoBuf::zeroed(1);
    device.read(SLOTS[slot].byte_offset(), &mut block).unwrap();
    Superblock::decode(block.as_bytes(), slot, SIZE / 4096)
}

fn edit_slots(device: &MemDevice, edit: impl Fn(&mut Superblock)) {
    for (at, place) in SLOTS.iter().enumerate() {
        let Ok(mut sb) = slot(device, at) else { continue };
        edit(&mut sb);
        let mut block = IoBuf::zeroed(1);
        sb.encode(block.as_mut_bytes());
        device.write(place.byte_offset(), &block, true).unwrap();
    }
}

fn newest(device: &MemDevice) -> usize {
    let generation = |at| slot(device, at).map(|sb| sb.checkpoint.generation).ok();
    if generation(0) > generation(1) { 0 } else { 1 }
}

fn read_f(fs: &FileSystem) -> Vec<u8> {
    let f = fs.lookup(Ino::ROOT, b"f").unwrap();
    let mut bytes = [0; 16];
    let n = fs.read(f.ino, 0, &mut bytes).unwrap();
    bytes[..n].to_vec()
}

#[test]
fn an_unknown_incompatible_feature_refuses_and_names_its_bits() {
    let device = crashed();
    edit_slots(&device, |sb| sb.geometry.feature_incompat = 0x4000_0000);
    let error = open(&device).err().unwrap().to_string();
    assert!(error.contains("incompatible") && error.contains("0x40000000"), "{error}");
}

#[test]
fn an_unknown_read_only_compatible_feature_opens_read_only() {
    let device = crashed();
    edit_slots(&device, |sb| sb.geometry.feature_ro_compat = 0x8);
    let fs = open(&device).unwrap();
    assert_eq!(read_f(&fs), b"kept");
    let refused = fs.create(Ino::ROOT, b"g", 0o644, Owner::default()).err().unwrap();
    assert_eq!(refused.errno(), 30, "{refused}");
}

/// Flags without the feature come from damage or from a crafted image, and no call could clear
/// them. So they are ignored.
#[test]
fn flags_in_an_image_without_the_feature_are_none() {
    let device = crashed();
    let fs = open(&device).unwrap();
    let (dir, f) = (Ino::ROOT, fs.lookup(Ino::ROOT, b"f").unwrap().ino);
    fs.set_flags(f, FileFlags::IMMUTABLE).unwrap();
    fs.set_flags(dir, FileFlags::APPEND | FileFlags::NODUMP).unwrap();
    fs.close().unwrap();
    edit_slots(&device, |sb| sb.geometry.feature_ro_compat = 0);

    let fs = open(&device).unwrap();
    let flags = |ino| fs.getattr(ino).unwrap().flags;
    assert_eq!((flags(f), flags(dir)), (FileFlags::default(), FileFlags::default()));
    assert_eq!(fs.create(dir, b"g", 0o644, Owner::default()).unwrap().flags, FileFlags::default());
    fs.write(f, 0, b"changed").unwrap();
    fs.unlink(dir, b"f").unwrap();
}

#[test]
fn a_read_only_open_replays_in_memory_and_leaves_every_byte_alone() {
    let device = crashed();
    let before = device.bytes(0, SIZE as usize);
    let options = MountOptions { read_only: true, ..Default::default() };
    let fs = FileSystem::open(device.clone(), clock(), options).unwrap();
    assert_eq!(read_f(&fs), b"kept");
    let f = fs.lookup(Ino::ROOT, b"f").unwrap().ino;
    for refused in [
        fs.write(f, 0, b"x").err(),
        fs.unlink(Ino::ROOT, b"f").err(),
        fs.setattr(f, &SetAttr { mode: Some(0), ..Default::default() }).err(),
        fs.setattr(f, &SetAttr { mtime: Some(SetTime::Now), ..Default::default() }).err(),
        fs.setattr(f, &SetAttr { size: Some(0), ..Default::default() }).err(),
        fs.setxattr(f, b"user.a", b"", XattrMode::Any).err(),
        fs.fallocate(f, FallocateMode::PunchHole, 0, 1).err(),
    ] {
        assert_eq!(refused.map(|e| e.errno()), Some(30));
    }
    fs.fsync(f, false).unwrap();
    fs.sync().unwrap();
    fs.close().unwrap();
    assert!(device.bytes(0, SIZE as usize) == before, "the image changed");
}

#[test]
fn a_damaged_newest_slot_is_noticed_once_the_log_knows_more() {
    // The mount has begun a new epoch. For the older slot the log ends before everything that this
    // mount has made durable.
    let device = crashed();
    let at = newest(&device);
    device.corrupt(SLOTS[at].byte_offset() + 300, |rest| rest[0] ^= 1);
    let error = open(&device).err().unwrap().to_string();
    assert!(error.contains("log") && error.contains("slot"), "{error}");
}

#[test]
fn a_damaged_older_slot_costs_nothing() {
    let device = crashed();
    let at = 1 - newest(&device);
    device.corrupt(SLOTS[at].byte_offset() + 300, |rest| rest[0] ^= 1);
    assert_eq!(read_f(&open(&device).unwrap()), b"kept");
}

#[test]
fn a_log_that_ends_below_the_checkpoint_is_corrupt() {
    let device = crashed();
    edit_slots(&device, |sb| {
        sb.checkpoint.checkpoint_lsn = Lsn(sb.checkpoint.checkpoint_lsn.0 + (512 << 10));
    });
    let error = open(&device).err().unwrap().to_string();
    assert!(error.contains("below the checkpoint"), "{error}");
}

#[test]
fn the_measured_latency_of_the_device_is_told() {
    let told = |device: Arc<dyn Device>| {
        let fs = FileSystem::open(device, clock(), MountOptions::default()).unwrap();
        let f = fs.create(Ino::ROOT, b"g", 0o644, Owner::default()).unwrap();
        fs.fsync(f.ino, false).unwrap();
        let json = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
        let (stats, info) = (json(fs.stats_json()), json(fs.info_json()));
        assert_eq!(stats["device"]["latency"], info["device_latency"]);
        info["device_latency"].clone()
    };
    let watched = WatchedDevice::new(crashed(), Arc::new(SystemClock::default()));
    let latency = told(Arc::new(watched));
    for kind in ["read_ns", "write_ns", "durable_write_ns", "flush_ns"] {
        assert!(latency[kind].as_u64().is_some_and(|nanos| nanos > 0), "{kind}: {latency}");
    }
    assert_eq!(told(crashed()), serde_json::json!({}), "nobody measures");
}

/// In a forged slot the numbers of inodes and nodes may be anything below their bound. Whatever the
/// image is used for, the slots that the mount writes stay within the bound: otherwise no mount and
/// no repair could read the image any more.
#[test]
fn counts_that_are_wrong_never_make_a_slot_invalid() {
    type Edit = fn(&mut Superblock);
    let edits: [(&str, Edit); 4] = [
        ("one inode", |sb| sb.checkpoint.inodes = 1),
        ("no node", |sb| sb.checkpoint.nodes = 0),
        ("most inodes", |sb| sb.checkpoint.inodes = COUNTER_MAX),
        ("most nodes", |sb| sb.checkpoint.nodes = COUNTER_MAX),
    ];
    for (what, edit) in edits {
        let device = Arc::new(MemDevice::new(SIZE));
        let options = FormatOptions { log_size: Some(1 << 20), ..Default::default() };
        FileSystem::format(device.clone(), clock(), &options).unwrap();
        let fs = open(&device).unwrap();
        // Enough for several nodes.
        let name = |i: u32| format!("{i:0200}").into_bytes();
        for i in 0..300 {
            fs.create(Ino::ROOT, &name(i), 0o644, Owner::default()).unwrap();
        }
        fs.close().unwrap();
        edit_slots(&device, edit);
        let fs = open(&device).unwrap();
        // A mount that believes in too many nodes may refuse changes for lack of space.
        let may_refuse = what == "most nodes";
        let made = fs.create(Ino::ROOT, b"one more", 0o644, Owner::default());
        assert!(made.is_ok() || may_refuse, "{what}: {made:?}");
        for i in 0..300 {
            let unlinked = fs.unlink(Ino::ROOT, &name(i));
            assert!(unlinked.is_ok() || may_refuse, "{what}: {unlinked:?}");
        }
        // Both slots are written.
        for _ in 0..2 {
            fs.checkpoint().unwrap();
        }
        fs.close().unwrap();
        for at in 0..SLOTS.len() {
            assert!(slot(&device, at).is_ok(), "{what}, slot {at}: {:?}", slot(&device, at));
        }
        open(&device).unwrap().close().unwrap();
    }
}
