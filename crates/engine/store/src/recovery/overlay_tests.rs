use super::*;
use crate::test_images::formatted;
use crate::{CheckpointCause, Class, ForceCause, Need, OpenOptions, Store};
use kedge_base::ManualClock;
use kedge_device::sim::{DistantDevice, FaultPlan, OpKind, SimDevice};
use kedge_device::{Device, MemDevice};
use kedge_format::FileKind;
use std::time::Duration;

#[test]
fn a_search_finds_the_pieces_that_overlap_a_block() {
    let mut pieces: Vec<DrainedPiece> = Vec::new();
    let mut at = 0;
    // Pieces of many sizes: many in one block, some across two or three blocks, and blocks without
    // any.
    for (gap, len) in [(0, 1), (0, 4095), (0, 10), (4000, 200), (0, 9000), (20_000, 1), (1, 1), (4094, 2)] {
        pieces.push((at + gap, len, Source::Zero));
        at += gap + len;
    }
    for block in 0..at / BLOCK_SIZE as u64 + 3 {
        let (start, end) = (block * BLOCK_SIZE as u64, (block + 1) * BLOCK_SIZE as u64);
        let all: Vec<u64> =
            pieces.iter().filter(|(at, len, _)| *at < end && at + len > start).map(|p| p.0).collect();
        let found: Vec<u64> = pieces_of(&pieces, block).iter().map(|p| p.0).collect();
        assert_eq!(found, all, "block {block}");
    }
}

fn open(device: Arc<dyn Device>) -> Result<Arc<Store>> {
    Store::open(device, Arc::new(ManualClock::default()), &OpenOptions::default())
}

fn commit(store: &Store, record: RecordBuilder) {
    let need =
        Need { log_bytes: 64 << 10, changes: 0, puts: 4, neighbours: 0, trees: 1, class: Class::Normal };
    let end = store.begin(need).unwrap().commit(record).unwrap().end;
    store.force(end, ForceCause::Fsync).unwrap();
}

/// A new file of this many blocks, all of them holes.
fn file(store: &Store, blocks: u64) -> Ino {
    let ino = store.take_inos(Ino::ROOT, 1).unwrap();
    let mode = FileKind::Regular.mode_bits() | 0o644;
    let core = InodeCore { mode, nlink: 1, size: blocks * BLOCK, ..Default::default() };
    let mut record = RecordBuilder::new(RecordOp::Create);
    let mask = InodeMask::CREATE | InodeMask::MODE | InodeMask::NLINK | InodeMask::SIZE;
    record.inode(ino, mask, &core);
    commit(store, record);
    ino
}

fn log_data(store: &Store, ino: Ino, offset: u64, bytes: &[u8]) {
    let mut record = RecordBuilder::new(RecordOp::LogData);
    record.data(ino, offset, bytes);
    commit(store, record);
}

/// The device block to which a file block is mapped, with its bytes; `None` for a hole or an
/// unwritten extent.
fn block(store: &Store, device: &dyn Device, ino: Ino, file_block: u64) -> Option<(BlockNo, Vec<u8>)> {
    let key = Key::new(ino, ItemKind::Extent, file_block);
    let (found, value) = store.with_tree(|tree| tree.prev_at_or_before(key)).unwrap()?;
    let item = ExtentItem::decode(&value).unwrap();
    let is_it =
        (found.ino, found.kind) == (key.ino, key.kind) && file_block < found.offset + item.blocks as u64;
    if !is_it || item.unwritten {
        return None;
    }
    let at = place_of((found.offset, item), file_block);
    let mut buf = IoBuf::zeroed(1);
    device.read(at.byte_offset(), &mut buf).unwrap();
    Some((at, buf.as_bytes().to_vec()))
}

#[test]
fn blocks_of_many_files_are_written_in_a_few_round_trips() {
    let image = formatted(64 << 20, 8 << 20);
    let store = open(image.clone()).unwrap();
    let files: Vec<Ino> = (0..600).map(|_| file(&store, 1)).collect();
    for (i, ino) in files.iter().enumerate() {
        log_data(&store, *ino, 0, &[(i % 250) as u8 + 1; BLOCK_SIZE]);
    }
    drop(store);
    let distant = Arc::new(DistantDevice::new(image.clone(), Duration::ZERO));
    let store = open(distant.clone()).unwrap();
    assert_eq!(store.replay_summary().data_bytes, 600 * BLOCK);
    let rounds = distant.rounds();
    assert!(rounds < 60, "{rounds} round trips");
    for (i, ino) in files.iter().enumerate() {
        let (_, bytes) = block(&store, &*image, *ino, 0).expect("it has a place");
        assert_eq!(bytes, [(i % 250) as u8 + 1; BLOCK_SIZE], "inode {ino}");
        assert_eq!(InodeCore::decode(&store.get(Key::inode(*ino)).unwrap().unwrap()).unwrap().blocks, 1);
    }
}

#[test]
fn leaves_that_records_touch_are_read_in_a_few_round_trips() {
    let image = formatted(64 << 20, 8 << 20);
    let store = open(image.clone()).unwrap();
    let xattr = |n: u64| Key::new(Ino::ROOT, ItemKind::Xattr, n);
    let put = |store: &Store, n: u64, value: &[u8]| {
        let mut record = RecordBuilder::new(RecordOp::Xattr);
        record.put(xattr(n), value);
        commit(store, record);
    };
    for n in 0..4000 {
        put(&store, n, &[1; 400]);
    }
    store.checkpoint(CheckpointCause::Request).unwrap();
    for n in 0..100 {
        put(&store, n * 40, &[2; 400]);
    }
    drop(store);
    let distant = Arc::new(DistantDevice::new(image.clone(), Duration::ZERO));
    let store = open(distant.clone()).unwrap();
    assert_eq!(store.replay_summary().records, 100);
    let reads = distant.requests();
    let rounds = distant.rounds();
    assert!(reads > 120, "{reads} requests: there was something to read");
    assert!(rounds < 60, "{rounds} round trips for {reads} requests");
    for n in 0..100 {
        assert_eq!(store.get(xattr(n * 40)).unwrap().unwrap(), [2; 400]);
    }
}

/// The log has a part of one block of each file. The rest is on the device, scattered: the file's
/// inode in one leaf, its extent in another, and the block away from all others.
#[test]
fn parts_of_scattered_blocks_are_read_and_written_in_a_few_round_trips() {
    const FILES: usize = 200;
    let image = formatted(64 << 20, 16 << 20);
    let store = open(image.clone()).unwrap();
    // Adds more items to an inode than a leaf can hold.
    let fill = |record: &mut RecordBuilder, ino| {
        (0..40).for_each(|n| record.put(Key::new(ino, ItemKind::Xattr, n), &[7; 500]));
    };
    let made = |_| {
        let ino = file(&store, 1);
        let extent = store.alloc_data(BlockNo(0), 2, None).unwrap();
        assert_eq!(extent.blocks, 2, "the image is empty");
        image.write(extent.start.byte_offset(), &IoBuf::from_bytes(&[1; BLOCK_SIZE]), false).unwrap();
        let mut record = RecordBuilder::new(RecordOp::WriteBack);
        record.alloc(extent);
        fill(&mut record, ino);
        let item = ExtentItem { start: extent.start, blocks: 1, unwritten: false, birth: 0, counted: false };
        record.put(Key::new(ino, ItemKind::Extent, 0), &item.encode());
        commit(&store, record);
        // The items keep the next inode out of the leaf that contains the extent.
        let mut record = RecordBuilder::new(RecordOp::Xattr);
        fill(&mut record, file(&store, 1));
        commit(&store, record);
        ino
    };
    let files: Vec<Ino> = (0..FILES).map(made).collect();
    files.iter().for_each(|ino| log_data(&store, *ino, 10, &[2; 100]));
    // After a checkpoint replay does not read the leaves, so step 4 has to.
    store.checkpoint(CheckpointCause::Request).unwrap();
    drop(store);
    let distant = Arc::new(DistantDevice::new(image.clone(), Duration::ZERO));
    let store = open(distant.clone()).unwrap();
    let (reads, rounds) = (distant.requests(), distant.rounds());
    assert!(reads > 7 * FILES as u64 / 2, "{reads} requests: there was something to read");
    assert!(rounds < 60, "{rounds} round trips for {reads} requests");
    let mut want = [1; BLOCK_SIZE];
    want[10..110].fill(2);
    for ino in files {
        assert_eq!(block(&store, &*image, ino, 0).expect("it has a place").1, want, "inode {ino}");
    }
}

/// Mapping each block splits the extent, so the extent must be looked up again for the next one.
#[test]
fn blocks_of_one_unwritten_extent_are_mapped_together() {
    let image = formatted(32 << 20, 1 << 20);
    let store = open(image.clone()).unwrap();
    let ino = file(&store, 10);
    let extent = store.alloc_data(BlockNo(0), 10, None).unwrap();
    assert_eq!(extent.blocks, 10, "the image is empty");
    let mut record = RecordBuilder::new(RecordOp::Fallocate);
    record.alloc(extent);
    let item = ExtentItem { start: extent.start, blocks: 10, unwritten: true, birth: 0, counted: false };
    record.put(Key::new(ino, ItemKind::Extent, 0), &item.encode());
    commit(&store, record);
    for file_block in [2u64, 3, 7] {
        log_data(&store, ino, file_block * BLOCK, &[file_block as u8; BLOCK_SIZE]);
    }
    drop(store);
    let store = open(image.clone()).unwrap();
    for file_block in 0..10 {
        let found = block(&store, &*image, ino, file_block);
        if [2, 3, 7].contains(&file_block) {
            let (at, bytes) = found.expect("it was written");
            assert_eq!(at.0, extent.start.0 + file_block);
            assert_eq!(bytes, [file_block as u8; BLOCK_SIZE]);
        } else {
            assert!(found.is_none(), "block {file_block} was not written");
        }
    }
}

/// A file of eight adjacent blocks, and new bytes for them in the log: whole blocks, and a part of
/// the fourth.
fn rewritten() -> (Arc<MemDevice>, Ino, BlockNo) {
    let image = formatted(32 << 20, 1 << 20);
    let store = open(image.clone()).unwrap();
    let ino = file(&store, 8);
    log_data(&store, ino, 0, &[1; 8 * BLOCK_SIZE]);
    drop(store);
    let store = open(image.clone()).unwrap();
    let first = block(&store, &*image, ino, 0).unwrap().0;
    for file_block in 0..8 {
        assert_eq!(block(&store, &*image, ino, file_block).unwrap().0.0, first.0 + file_block);
    }
    log_data(&store, ino, 0, &[2; 3 * BLOCK_SIZE]);
    log_data(&store, ino, 3 * BLOCK + 100, &[2; 200]);
    log_data(&store, ino, 4 * BLOCK, &[2; 4 * BLOCK_SIZE]);
    drop(store);
    (image, ino, first)
}

#[test]
fn a_bad_block_among_neighbours_moves_alone() {
    let (image, ino, first) = rewritten();
    for bad in [0, 3, 7] {
        let sim = Arc::new(SimDevice::new(image.fork()));
        let place = (first.0 + bad) * BLOCK;
        sim.set_plan(FaultPlan::new(1).bad_range(OpKind::Write, place..place + BLOCK, 5));
        let store = open(sim.clone()).unwrap();
        for file_block in 0..8 {
            let (at, bytes) = block(&store, &*sim, ino, file_block).unwrap();
            assert_eq!(at.0 == first.0 + file_block, file_block != bad, "block {file_block}, {bad} is bad");
            let mut want = [2; BLOCK_SIZE];
            if file_block == 3 {
                want = [1; BLOCK_SIZE];
                want[100..300].fill(2);
            }
            assert_eq!(bytes, want, "block {file_block}, {bad} is bad");
        }
    }
}

#[test]
fn data_that_no_place_takes_fails_the_open_and_is_named() {
    let (image, ino, first) = rewritten();
    let sim = Arc::new(SimDevice::new(image.fork()));
    sim.set_plan(FaultPlan::new(1).refuse([2; 8], 5));
    match open(sim.clone()).err() {
        Some(Error::Unplaced { ino: named, block, .. }) => assert_eq!((named, block), (ino, first)),
        other => panic!("{other:?}"),
    }
    // The open has failed, but the bytes are still in the log.
    sim.heal();
    let store = open(sim.clone()).unwrap();
    assert_eq!(block(&store, &*sim, ino, 0).unwrap().1, [2; BLOCK_SIZE]);
}
