//! Recovery of an image on a device on which writes to the block of log-resident data fail.

use kedge_base::BLOCK_SIZE;
use kedge_base::errno::EIO;
use kedge_device::sim::{FaultPlan, OpKind, SimDevice, StatePlan};
use kedge_device::{Device, MemDevice};
use kedgefs::*;
use std::ops::Range;
use std::sync::Arc;

const SIZE: u64 = 16 << 20;
const BLOCK: usize = BLOCK_SIZE;

fn open(device: Arc<dyn Device>, read_only: bool) -> Result<FileSystem> {
    let options = MountOptions { read_only, async_checkpoint: None, ..MountOptions::default() };
    FileSystem::open(device, Arc::new(ManualClock::default()), options)
}

/// An image that was not unmounted. Its files have data that an fsync made durable only in the log.
struct Image {
    medium: MemDevice,
    files: Vec<(Ino, Vec<u8>)>,
}

/// Makes three files. The first one's last block has data in place and more in the log. The second
/// one's data has no block yet. The third one's data belongs into the middle of preallocated
/// blocks.
fn image() -> Image {
    let device = Arc::new(MemDevice::new(SIZE));
    let options = FormatOptions { log_size: Some(1 << 20), ..FormatOptions::default() };
    FileSystem::format(device.clone(), Arc::new(ManualClock::default()), &options).unwrap();
    let fs = open(device.clone(), false).unwrap();
    let owner = Owner { uid: 1000, gid: 1000 };
    let create = |name: &str| fs.create(Ino::ROOT, name.as_bytes(), 0o600, owner).unwrap().ino;
    let (placed, fresh, prepared) = (create("placed"), create("fresh"), create("prepared"));
    let mut bytes = vec![b'p'; 4 * BLOCK + 1000];
    fs.write(placed, 0, &bytes).unwrap();
    fs.fallocate(prepared, FallocateMode::Allocate { keep_size: false }, 0, 3 * BLOCK as u64).unwrap();
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    fs.write(placed, bytes.len() as u64, &[b'n'; 200]).unwrap();
    bytes.extend([b'n'; 200]);
    fs.write(fresh, 0, &[b'f'; 300]).unwrap();
    fs.write(prepared, BLOCK as u64, &[b'q'; 400]).unwrap();
    let mut of_prepared = vec![0; 3 * BLOCK];
    of_prepared[BLOCK..BLOCK + 400].fill(b'q');
    for ino in [placed, fresh, prepared] {
        fs.fsync(ino, false).unwrap();
    }
    let medium = device.fork();
    Image { medium, files: vec![(placed, bytes), (fresh, vec![b'f'; 300]), (prepared, of_prepared)] }
}

impl Image {
    fn assert_content(&self, fs: &FileSystem, what: &str) {
        for (ino, bytes) in &self.files {
            let mut is = vec![0xee; bytes.len() + 1];
            assert_eq!(fs.read(*ino, 0, &mut is).unwrap(), bytes.len(), "{what}: {ino}");
            assert!(is[..bytes.len()] == bytes[..], "{what}: content of {ino}");
        }
    }

    fn assert_good(&self, medium: MemDevice, what: &str) {
        let device = Arc::new(medium);
        let fs = open(device.clone(), false).unwrap_or_else(|e| panic!("{what}: {e}"));
        self.assert_content(&fs, what);
        fs.close().unwrap();
        assert_clean(device, what);
    }

    /// The device offsets to which recovery writes the data of the files, in the order of the
    /// files. These are the first writes of an open, in another order.
    fn places(&self) -> Vec<u64> {
        let places = (0..self.files.len() as u64).map(|nth| {
            let sim = Arc::new(SimDevice::new(self.medium.fork()));
            sim.set_plan(FaultPlan::new(1).fail(OpKind::Write, nth, EIO));
            drop(open(sim.clone(), false));
            let strike = sim.strikes().pop().unwrap();
            assert_eq!(strike.len, BLOCK as u64, "write {nth} is one of a block of data");
            (strike.data.unwrap().to_vec()[0], strike.offset)
        });
        let mut places: Vec<(u8, u64)> = places.collect();
        let file = |byte: u8| b"pfq".iter().position(|first| *first == byte).unwrap();
        places.sort_by_key(|(byte, _)| file(*byte));
        places.into_iter().map(|(_, offset)| offset).collect()
    }
}

fn assert_clean(device: Arc<dyn Device>, what: &str) {
    let options = kedge_fsck::CheckOptions {
        replay: Some(Arc::new(kedge_fsck::StoreReplay)),
        ..kedge_fsck::CheckOptions::default()
    };
    let report = kedge_fsck::check(device, &options);
    assert!(report.is_clean(), "{what}: {report}");
}

fn block_at(offset: u64) -> Range<u64> {
    offset..offset + BLOCK as u64
}

/// Each of the blocks in turn is bad for good, and recovery writes the data elsewhere. Power fails
/// at each of its writes. The next recovery, with the block bad or repaired, has the same result.
#[test]
fn data_of_the_log_whose_block_is_bad_goes_elsewhere() {
    let image = image();
    let mut states = 0;
    for place in image.places() {
        let plan = || FaultPlan::new(1).bad_range(OpKind::Write, block_at(place), EIO);
        let what = format!("block {}", place / BLOCK as u64);
        let sim = Arc::new(SimDevice::new(image.medium.fork()));
        sim.set_plan(plan());
        let fs = open(sim.clone(), false).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(sim.struck() > 0, "{what}: nobody wrote there");
        image.assert_content(&fs, &what);
        let recording = sim.recording();
        fs.close().unwrap();
        image.assert_good(sim.view(), &what);
        let choices = StatePlan { subsets: 4, samples: 6, torn: 3, at_marks_only: false, seed: 1 };
        for state in recording.states(choices) {
            let what = format!("{what}, {state:?}");
            image.assert_good(state.medium.fork(), &what);
            let again = Arc::new(SimDevice::new(state.medium.fork()));
            again.set_plan(plan());
            let fs = open(again.clone(), false).unwrap_or_else(|e| panic!("{what}: {e}"));
            image.assert_content(&fs, &what);
            drop(fs);
            states += 1;
        }
    }
    assert!(states > 30, "only {states} states");
}

/// A read-only mount writes nothing to the image, so a bad block does not matter to it.
#[test]
fn a_mount_that_only_reads_needs_no_place() {
    let image = image();
    for place in image.places() {
        let sim = Arc::new(SimDevice::new(image.medium.fork()));
        sim.set_plan(FaultPlan::new(1).bad_range(OpKind::Write, block_at(place), EIO));
        let fs = open(sim.clone(), true).unwrap();
        image.assert_content(&fs, "read-only");
        assert_eq!(sim.struck(), 0);
    }
}

/// Every data write fails. The open fails, names the file of the data, and loses nothing.
#[test]
fn an_open_that_finds_no_place_names_inode_and_block_and_loses_nothing() {
    let image = image();
    let place = image.places()[0];
    let sim = Arc::new(SimDevice::new(image.medium.fork()));
    sim.set_plan(FaultPlan::new(1).fail_kind_from(OpKind::Write, 0, EIO));
    let error = open(sim.clone(), false).map(drop).unwrap_err();
    let named = format!("data of inode {} in the log", image.files[0].0);
    let block = format!("block {}:", place / BLOCK as u64);
    assert!(error.to_string().contains(&named) && error.to_string().contains(&block), "{error}");
    assert_eq!(error.errno(), EIO);
    assert!((2..100).contains(&sim.struck()), "{} writes", sim.struck());
    image.assert_good(sim.view(), "on a device that was mended");
}

/// The log has a part of a block whose other bytes cannot be read. A writable mount fails. A
/// read-only mount reads everything except that block. It returns an error for the block even if
/// the device can read it again: the bytes on the device are older than those that an fsync made
/// durable.
#[test]
fn a_block_that_cannot_be_read_costs_a_mount_that_only_reads_nothing_else() {
    let image = image();
    let (ino, bytes) = &image.files[0];
    let place = image.places()[0];
    let sim = Arc::new(SimDevice::new(image.medium.fork()));
    sim.set_plan(FaultPlan::new(1).bad_range(OpKind::Read, block_at(place), EIO));
    let error = open(sim.clone(), false).map(drop).unwrap_err();
    let named =
        format!("data of inode {ino} in the log cannot be put into its place, block {}:", place >> 12);
    assert!(error.to_string().contains(&named) && error.errno() == EIO, "{error}");

    let fs = open(sim.clone(), true).unwrap();
    sim.set_plan(FaultPlan::default());
    let mut is = vec![0; 4 * BLOCK];
    assert_eq!(fs.read(*ino, 0, &mut is).unwrap(), is.len());
    assert!(is[..] == bytes[..4 * BLOCK]);
    assert_eq!(fs.read(*ino, 4 * BLOCK as u64, &mut is).unwrap_err().errno(), EIO);
    for (ino, bytes) in &image.files[1..] {
        let mut is = vec![0; bytes.len()];
        assert_eq!(fs.read(*ino, 0, &mut is).unwrap(), is.len());
        assert!(is == *bytes);
    }
    drop(fs);
    image.assert_good(sim.view(), "on a device that was mended");
}

/// New data for a whole block needs none of the old bytes, so the block may be unreadable.
#[test]
fn a_block_that_is_replaced_whole_need_not_be_read() {
    let image = image();
    let place = image.places()[0];
    let sim = Arc::new(SimDevice::new(image.medium.fork()));
    let fs = open(sim.clone(), false).unwrap();
    let (ino, bytes) = &image.files[0];
    // The last block becomes log-resident when the file grows, and is then rewritten as a whole.
    fs.write(*ino, bytes.len() as u64, b"more").unwrap();
    fs.fsync(*ino, false).unwrap();
    fs.write(*ino, 4 * BLOCK as u64, &[b'w'; 1204]).unwrap();
    fs.fsync(*ino, false).unwrap();
    let crashed = sim.view();
    drop(fs);
    let sim = Arc::new(SimDevice::new(crashed));
    sim.set_plan(FaultPlan::new(1).bad_range(OpKind::Read, block_at(place), EIO));
    let fs = open(sim.clone(), false).unwrap();
    assert_eq!(sim.struck(), 0);
    sim.set_plan(FaultPlan::default());
    let mut is = vec![0; 2000];
    assert_eq!(fs.read(*ino, 4 * BLOCK as u64, &mut is).unwrap(), 1204);
    assert!(is[..1204] == [b'w'; 1204]);
}
