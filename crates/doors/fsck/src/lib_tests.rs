use crate::damage_tests::run;
use crate::test_image::{Built, GENERATION, Image, write, write_superblock};
use crate::*;
use kedge_base::{BLOCK_SIZE, BlockNo, CorruptKind, Error, Generation, IoBuf, Lsn};
use kedge_device::{Completion, CompletionSink, MemDevice, Op, Request};
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn a_good_image_is_clean() {
    let built = Image::sample().build();
    assert_eq!(built.nodes.len(), 3, "the sample has inner nodes below the root");
    let report = run(&built);
    assert!(report.is_clean() && report.warnings == 0, "{report}");
    assert_eq!(report.exit_code(), 0);
    let c = report.counters;
    assert_eq!((c.inodes, c.directories, c.files, c.symlinks), (209, 4, 203, 1));
    assert_eq!((c.names, c.orphans, c.xattrs), (207, 3, 2));
    assert_eq!(c.blocks_data, 213);
    assert_eq!(c.blocks_free, built.superblock.checkpoint.free_blocks);
    assert_eq!(c.nodes, built.superblock.checkpoint.nodes);
    assert!(report.to_string().ends_with("clean"), "{report}");
}

#[test]
fn trees_of_every_shape_are_read() {
    for items_per_node in [2, 3, 7, 1000] {
        let mut image = Image::sample();
        image.items_per_node = items_per_node;
        let built = image.build();
        let report = run(&built);
        assert!(report.is_clean() && report.counters.items == 626, "{items_per_node} items a node: {report}");
    }
}

#[test]
fn findings_name_the_entry_and_every_owner() {
    let mut image = Image::sample();
    image.name(3, "gone", 50, kedge_format::FileKind::Regular);
    let clash = image.next_data;
    for ino in [60, 61, 62] {
        image.next_data = clash;
        image.file(ino, 1, &[(0, 1)]);
        image.name(3, &format!("f{ino}"), ino, kedge_format::FileKind::Regular);
    }
    let report = run(&image.build());
    let text = report.to_string();
    assert!(text.contains("entry \"gone\" names inode 50"), "{text}");
    assert_eq!(report.count(FindingKind::BlockShared), 2, "{text}");
    assert!(text.contains("inode 60, inode 62"), "{text}");
    assert_eq!(report.exit_code(), 4);
}

#[test]
fn a_flood_is_counted_but_not_kept() {
    let mut image = Image::sample();
    for i in 0..200 {
        image.core(100 + i, |c| c.nlink = 5);
    }
    image.core(12, |c| c.parent = kedge_base::Ino(1));
    let built = image.build();
    let options = CheckOptions { findings_max: 80, ..CheckOptions::default() };
    let report = check_checkpoint(&built.device, &options, &mut |_| {});
    assert_eq!((report.errors, report.count(FindingKind::NlinkWrong), report.findings.len()), (201, 200, 11));
    assert!(report.to_string().contains("nlink-wrong: 190"), "{report}");
}

#[test]
fn progress_comes_to_its_end() {
    let built = Image::sample().build();
    let mut last = std::collections::BTreeMap::new();
    check_checkpoint(&built.device, &CheckOptions::default(), &mut |p| {
        last.insert(p.phase, (p.done, p.total));
    });
    assert_eq!(last["items"], (built.nodes[0].len() as u64, built.nodes[0].len() as u64));
    assert_eq!(last["space"], (2, 2));
}

/// Stands for the engine: advances the overlay's image by one checkpoint, or fails.
struct FakeReplay {
    calls: AtomicU64,
    outcome: fn(&dyn Device) -> Result<ReplaySummary>,
}

fn fake(outcome: fn(&dyn Device) -> Result<ReplaySummary>) -> (Arc<FakeReplay>, CheckOptions) {
    let replay = Arc::new(FakeReplay { calls: AtomicU64::new(0), outcome });
    let options = CheckOptions { replay: Some(replay.clone()), ..CheckOptions::default() };
    (replay, options)
}

impl Replay for FakeReplay {
    fn log_writes(&self, _: &dyn Device, _: &kedge_format::superblock::Superblock) -> Result<u64> {
        Ok(0)
    }

    fn replay(&self, overlay: Arc<dyn Device>) -> Result<ReplaySummary> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        (self.outcome)(&*overlay)
    }
}

const REPLAYED: ReplaySummary =
    ReplaySummary { from_lsn: 4096, to_lsn: 8192, log_writes: 1, records: 2, data_bytes: 3 };

/// Rewrites the newest slot of the sample with the correct inode count.
fn repair(device: &dyn Device) -> Result<ReplaySummary> {
    let mut block = IoBuf::zeroed(1);
    device.read(0, &mut block)?;
    let mut sb = kedge_format::superblock::Superblock::decode(block.as_bytes(), 0, u64::MAX)?;
    sb.checkpoint.inodes = 209;
    sb.encode(block.as_mut_bytes());
    device.write(0, &block, true)?;
    Ok(REPLAYED)
}

fn unclean() -> Built {
    let mut image = Image::sample();
    image.superblock = Some(Box::new(|sb| {
        sb.checkpoint.clean = false;
        sb.checkpoint.tail_lsn = Lsn(4096);
        sb.checkpoint.inodes = 1;
    }));
    image.build()
}

#[test]
fn a_clean_image_needs_no_replay() {
    let (replay, options) = fake(repair);
    let report = check(Arc::new(Image::sample().build().device), &options);
    assert!(report.is_clean() && matches!(report.replay, ReplayState::None), "{report}");
    assert_eq!(replay.calls.load(Ordering::Relaxed), 0);
}

#[test]
fn an_unclean_image_is_judged_as_replay_leaves_it() {
    let device: Arc<dyn Device> = Arc::new(unclean().device);
    let (_, options) = fake(repair);
    let report = check(device.clone(), &options);
    assert!(report.is_clean(), "{report}");
    assert!(matches!(report.replay, ReplayState::Done(REPLAYED)));
    assert_eq!(report.device, "memory");
    let without = check(device, &CheckOptions::default());
    assert_eq!(without.count(FindingKind::SuperblockInodes), 1, "the device itself is untouched: {without}");
    assert!(without.to_string().contains("without replay"), "{without}");
}

#[test]
fn a_bad_slot_beside_a_clean_one_is_replayed_and_reported_once() {
    let built = Image::sample().build();
    built.device.corrupt(16 * BLOCK_SIZE as u64, |bytes| bytes[70] ^= 1);
    let (replay, options) = fake(|_| Ok(REPLAYED));
    let report = check(Arc::new(built.device), &options);
    assert_eq!((report.errors, report.count(FindingKind::SuperblockSlotBad)), (1, 1), "{report}");
    assert_eq!(replay.calls.load(Ordering::Relaxed), 1);
}

#[test]
fn a_failed_replay_is_a_finding_and_the_checkpoint_is_judged() {
    let (_, options) = fake(|device| {
        // The check must not read the overlay that a failed replay left.
        device.write_zeroes(0, 4096 * 4096)?;
        Err(Error::corrupt(CorruptKind::Log, BlockNo(77), "record of no kind"))
    });
    let report = check(Arc::new(unclean().device), &options);
    assert_eq!(report.count(FindingKind::ReplayFailed), 1, "{report}");
    assert_eq!(report.count(FindingKind::SuperblockInodes), 1, "{report}");
    assert_eq!((report.errors, report.exit_code(), report.counters.inodes), (2, 4, 209), "{report}");
    let finding = report.findings.iter().find(|f| f.kind == FindingKind::ReplayFailed).unwrap();
    assert_eq!((finding.block, finding.what.as_str()), (Some(77), "record of no kind"));
}

#[test]
fn slots_that_replay_destroys_are_findings() {
    let (_, options) = fake(|device| device.write_zeroes(0, 4096 * 17).map(|()| REPLAYED));
    let report = check(Arc::new(unclean().device), &options);
    assert!(report.superblock.is_none() && report.count(FindingKind::NotAnImage) == 1, "{report}");
}

#[test]
fn an_image_after_its_first_checkpoint_has_one_slot() {
    let built = Image::sample().build();
    let mut sb = built.superblock.clone();
    sb.checkpoint.generation = Generation(1);
    sb.checkpoint.root_generation = Generation(1);
    write(&built.device, BlockNo(0), &[0; BLOCK_SIZE]);
    write_superblock(&built.device, &sb);
    assert_eq!(run(&built).count(FindingKind::SuperblockSlotBad), 0);
    sb.checkpoint.generation = Generation(GENERATION.0 + 1);
    write_superblock(&built.device, &sb);
    assert_eq!(run(&built).count(FindingKind::SuperblockSlotBad), 1);
}

/// A device on which one block cannot be read.
struct Unreadable {
    device: MemDevice,
    block: BlockNo,
}

impl Device for Unreadable {
    kedge_device::delegate!(device: geometry, stats);

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        // In reverse, because a device may complete requests in any order.
        for Request { tag, offset, mut op } in batch.into_iter().rev() {
            let Op::Read(buf) = &mut op else { panic!("a check only reads") };
            let result = self.read(offset, buf);
            sink.complete(Completion { tag, op, result });
        }
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        if (offset..offset + buf.len() as u64).contains(&self.block.byte_offset()) {
            return Err(Error::Io {
                op: "read",
                offset,
                len: buf.len() as u64,
                errno: kedge_base::errno::EIO,
            });
        }
        self.device.read(offset, buf)
    }

    fn write(&self, _: u64, _: &IoBuf, _: bool) -> Result<()> {
        panic!("a check only reads")
    }

    fn flush(&self) -> Result<()> {
        panic!("a check only reads")
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        panic!("a check only reads")
    }

    fn write_zeroes(&self, _: u64, _: u64) -> Result<()> {
        panic!("a check only reads")
    }

    fn name(&self) -> &str {
        "unreadable"
    }
}

#[test]
fn what_cannot_be_read_is_operational() {
    let sample = Image::sample().build();
    let places =
        [BlockNo(0), BlockNo(16), sample.index, sample.bitmaps[0], sample.nodes[0][2], sample.nodes[1][0]];
    for block in places {
        let device = Unreadable { device: sample.device.fork(), block };
        let report = check_checkpoint(&device, &CheckOptions::default(), &mut |_| {});
        assert_eq!(report.count(FindingKind::IoError), 1, "block {block}: {report}");
        // The older slot is as good as the newer slot except for the generation of its index.
        let expected = if block == BlockNo(0) { 12 } else { 8 };
        assert_eq!(report.exit_code(), expected, "block {block}: {report}");
    }
}

#[test]
fn reports_serialize() {
    fn assert_serialize<T: serde::Serialize>(_: &T) {}
    let built = Image::sample().build();
    assert_serialize(&run(&built));
    for kind in FindingKind::ALL {
        let name = kind.name();
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{name}");
    }
}
