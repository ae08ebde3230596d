use super::*;
use crate::test_images::formatted;
use crate::{CheckpointCause, Class, ForceCause, Need};
use kedge_base::{Ino, IoBuf, Lsn, ManualClock};
use kedge_device::MemDevice;
use kedge_format::item::ExtentItem;
use kedge_format::logwrite::LogSecret;
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_format::superblock::{LABEL_MAX, SLOTS};
use kedge_format::{FileKind, InodeCore, ItemKind, Key};
use std::sync::Arc;

fn fresh() -> (Arc<dyn Device>, Arc<Store>) {
    let device: Arc<dyn Device> = formatted(32 << 20, 1 << 20);
    (device.clone(), reopened(&device))
}

fn reopened(device: &Arc<dyn Device>) -> Arc<Store> {
    Store::open(device.clone(), Arc::new(ManualClock::default()), &OpenOptions::default()).unwrap()
}

fn xattr(n: u64) -> Key {
    Key::new(Ino::ROOT, ItemKind::Xattr, n)
}

fn put(store: &Store, n: u64, value: &[u8]) -> Lsn {
    let mut record = RecordBuilder::new(RecordOp::Xattr);
    record.put(xattr(n), value);
    commit(store, record)
}

fn commit(store: &Store, record: RecordBuilder) -> Lsn {
    let need =
        Need { log_bytes: 64 << 10, changes: 0, puts: 4, neighbours: 0, trees: 1, class: Class::Normal };
    store.begin(need).unwrap().commit(record).unwrap().end
}

fn force(store: &Store, upto: Lsn) {
    store.force(upto, ForceCause::Fsync).unwrap();
}

#[test]
fn what_was_forced_comes_back_and_nothing_behind_it() {
    let (device, store) = fresh();
    put(&store, 1, b"first");
    let forced = put(&store, 2, b"second");
    force(&store, forced);
    put(&store, 3, b"in memory only");
    let epoch = store.epoch();
    drop(store);
    let store = reopened(&device);
    assert_eq!(store.get(xattr(1)).unwrap().as_deref(), Some(&b"first"[..]));
    assert_eq!(store.get(xattr(2)).unwrap().as_deref(), Some(&b"second"[..]));
    assert_eq!(store.get(xattr(3)).unwrap(), None);
    assert!(!store.replay_summary().clean);
    assert_eq!(store.replay_summary().records, 2);
    assert!(store.epoch() > epoch, "log writes of the last mount are told apart");
}

/// Each checkpoint writes the label again. Decoding makes this one longer than its field.
#[test]
fn an_image_whose_label_is_not_utf_8_opens() {
    let device = formatted(32 << 20, 1 << 20);
    let mut slots = 0;
    for slot in SLOTS {
        device.corrupt(slot.byte_offset(), |bytes| {
            bytes[48..][..LABEL_MAX].fill(0xff);
            slots += usize::from(kedge_format::reseal(&mut bytes[..BLOCK_SIZE], &LogSecret([8; 16])));
        });
    }
    assert!(slots > 0);
    let device: Arc<dyn Device> = device;
    for read_only in [true, false, false] {
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        let store = Store::open(device.clone(), Arc::new(ManualClock::default()), &options).unwrap();
        assert_eq!(store.alloc.geometry().label, "\u{fffd}".repeat(21));
        store.close().unwrap();
    }
}

#[test]
fn replay_begins_at_the_checkpoint() {
    let (device, store) = fresh();
    for n in 0..10 {
        put(&store, n, b"before");
    }
    store.checkpoint(CheckpointCause::Request).unwrap();
    let last = put(&store, 10, b"behind");
    force(&store, last);
    drop(store);
    let store = reopened(&device);
    assert_eq!(store.replay_summary().records, 1);
    for n in 0..=10 {
        assert!(store.get(xattr(n)).unwrap().is_some(), "item {n}");
    }
    store.close().unwrap();
    let summary = reopened(&device).replay_summary().clone();
    assert_eq!((summary.clean, summary.records), (true, 0));
}

/// Each round is a recovery followed by a crash, and leaves the same image.
#[test]
fn recovery_that_is_itself_cut_off_changes_nothing() {
    let (device, store) = fresh();
    let end = put(&store, 1, b"value");
    force(&store, end);
    drop(store);
    for round in 0..4 {
        let store = reopened(&device);
        assert_eq!(store.get(xattr(1)).unwrap().as_deref(), Some(&b"value"[..]), "round {round}");
        assert_eq!(store.inode_count(), 1);
    }
}

/// Recovers a file whose only durable bytes are in the log.
#[test]
fn log_resident_bytes_are_in_place_after_recovery() {
    let (device, store) = fresh();
    let ino = store.take_inos(Ino::ROOT, 1).unwrap();
    let core =
        InodeCore { mode: FileKind::Regular.mode_bits() | 0o644, nlink: 1, size: 6, ..Default::default() };
    let mut record = RecordBuilder::new(RecordOp::Create);
    let mask = InodeMask::CREATE | InodeMask::MODE | InodeMask::NLINK | InodeMask::SIZE;
    record.inode(ino, mask, &core);
    commit(&store, record);
    let mut record = RecordBuilder::new(RecordOp::LogData);
    record.data(ino, 0, b"logged");
    let end = commit(&store, record);
    force(&store, end);
    assert_eq!(store.resident_inodes(), [ino]);
    drop(store);

    let store = reopened(&device);
    assert_eq!((store.replay_summary().data_ranges, store.replay_summary().data_bytes), (1, 6));
    assert!(store.resident_inodes().is_empty(), "the log may go");
    let extent = store.get(Key::new(ino, ItemKind::Extent, 0)).unwrap().expect("the bytes have a place");
    let extent = ExtentItem::decode(&extent).unwrap();
    assert!(!extent.unwritten);
    let mut block = IoBuf::zeroed(1);
    device.read(extent.start.byte_offset(), &mut block).unwrap();
    assert_eq!(&block.as_bytes()[..7], b"logged\0");
}

/// A log leads to the same items whether its records fit into memory or not. Records that do not
/// fit are read twice, all others once.
#[test]
fn records_without_room_in_memory_are_read_again() {
    const RECORDS: u64 = 600;
    let (device, store) = fresh();
    for n in 0..RECORDS {
        let ino = store.take_inos(Ino::ROOT, 1).unwrap();
        let core = InodeCore { mode: FileKind::Regular.mode_bits(), nlink: 1, ..Default::default() };
        let mut record = RecordBuilder::new(RecordOp::Create);
        record.inode(ino, InodeMask::CREATE | InodeMask::MODE | InodeMask::NLINK, &core);
        record.put(xattr(n), &n.to_le_bytes().repeat(40));
        let end = commit(&store, record);
        // Log writes have 16 records, so that the memory is used up within a log write.
        if n % 16 == 15 || n == RECORDS - 1 {
            force(&store, end);
        }
    }
    drop(store);
    let image = |cache: u64| {
        let mem = Arc::new(MemDevice::new(device.geometry().size));
        let mut buf = IoBuf::zeroed((device.geometry().size / BLOCK_SIZE as u64) as usize);
        device.read(0, &mut buf).unwrap();
        mem.write(0, &buf, false).unwrap();
        let options = OpenOptions { node_cache_bytes: cache, ..OpenOptions::default() };
        let store = Store::open(mem.clone(), Arc::new(ManualClock::default()), &options).unwrap();
        let read = mem.stats().read_bytes.get();
        let items: Vec<_> = (0..RECORDS).map(|n| store.get(xattr(n)).unwrap().unwrap()).collect();
        assert_eq!((store.inode_count(), store.replay_summary().records), (RECORDS + 1, RECORDS));
        (items, store.replay_summary().bytes, read)
    };
    let (items, bytes, once) = image(128 << 20);
    for room in [0, bytes / 3, bytes * 2 / 3] {
        let (again, _, read) = image(2 * room);
        assert!(again == items, "room for {room} bytes");
        let (more, least) = (read - once, bytes - room);
        assert!(more >= least && more < least + (512 << 10), "{more} more bytes, at least {least}");
    }
}
