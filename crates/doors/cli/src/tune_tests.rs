use super::*;
use kedge_base::{Error, ManualClock};
use kedge_device::MemDevice;
use kedge_fsck::{CheckOptions, FindingKind, StoreReplay};
use kedgefs::{FileSystem, FormatOptions, Ino, MountOptions, Owner};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device that completes a number of writes and fails all later writes, as in a crash.
struct Crashing {
    device: Arc<MemDevice>,
    writes: AtomicU64,
}

impl Device for Crashing {
    kedge_device::delegate!(device: geometry, submit, read, flush, stats);

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> kedge_base::Result<()> {
        assert!(fua, "each step must be durable before the next");
        let left = self.writes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        left.map_err(|_| Error::Io {
            op: "write",
            offset,
            len: buf.len() as u64,
            errno: kedge_base::errno::EIO,
        })?;
        self.device.write(offset, buf, fua)
    }

    fn discard(&self, _: u64, _: u64) -> kedge_base::Result<()> {
        panic!("nothing is discarded")
    }

    fn write_zeroes(&self, _: u64, _: u64) -> kedge_base::Result<()> {
        panic!("nothing is zeroed")
    }

    fn name(&self) -> &str {
        "crashing"
    }
}

fn mount(device: &MemDevice) -> FileSystem {
    FileSystem::open(Arc::new(device.fork()), Arc::new(ManualClock::default()), MountOptions::default())
        .unwrap()
}

/// An image with the label "old" that was mounted and unmounted.
fn image() -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(16 << 20));
    let options = FormatOptions { label: "old".into(), ..FormatOptions::default() };
    FileSystem::format(device.clone(), Arc::new(ManualClock::default()), &options).unwrap();
    for name in ["a", "b", "c"] {
        let clock = Arc::new(ManualClock::default());
        let fs = FileSystem::open(device.clone(), clock, MountOptions::default()).unwrap();
        fs.root().create(name).unwrap();
        fs.close().unwrap();
    }
    device
}

fn label(label: &str) -> impl Fn(&mut kedge_format::superblock::Geometry) -> Result<()> {
    move |geometry| {
        label.clone_into(&mut geometry.label);
        Ok(())
    }
}

fn labels(device: &MemDevice) -> Vec<String> {
    let decode = |slot: usize| {
        let bytes = device.bytes(SLOTS[slot].byte_offset(), BLOCK_SIZE);
        Superblock::decode(&bytes, slot, (16 << 20) / BLOCK_SIZE as u64).ok()
    };
    [0, 1].into_iter().filter_map(decode).map(|sb| sb.geometry.label).collect()
}

fn errors(device: &MemDevice) -> Vec<FindingKind> {
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
    let report = kedge_fsck::check(Arc::new(device.fork()), &options);
    report.findings.iter().map(|f| f.kind).collect()
}

#[test]
fn a_crash_at_each_write_leaves_an_image_that_mounts() {
    // A complete change has four writes: one for each of the steps 1 to 3, and one for the only
    // superblock copy of this small image.
    for writes in 0..=4 {
        let crashing = Crashing { device: image(), writes: writes.into() };
        let done = set(&crashing, &label("new"));
        assert_eq!(done.is_ok(), writes == 4, "after {writes} writes: {done:?}");
        let device = crashing.device;
        let now = if writes < 2 { "old" } else { "new" };
        let whole = if writes == 0 || writes >= 3 { 2 } else { 1 };
        assert_eq!(labels(&device), vec![now; whole], "after {writes} writes");
        let expected = if whole == 2 { vec![] } else { vec![FindingKind::SuperblockSlotBad] };
        assert_eq!(errors(&device), expected, "after {writes} writes");
        let fs = mount(&device);
        ["a", "b", "c"].iter().for_each(|name| drop(fs.root().open(name).unwrap()));
        fs.close().unwrap();
        // A second run completes the interrupted change.
        set(&*device, &label("new")).unwrap();
        assert_eq!(labels(&device), vec!["new"; whole], "again, after {writes} writes");
        mount(&device).close().unwrap();
    }
}

/// After a crash a mount may use the slot of either checkpoint. That slot decides whether the data
/// of small files goes into the tree.
#[test]
fn a_crash_while_data_in_the_tree_is_permitted_leaves_an_image_that_takes_small_files() {
    let change = |geometry: &mut Geometry| {
        geometry.feature_incompat |= INCOMPAT_INLINE;
        geometry.inline_max = 512;
        Ok(())
    };
    for writes in 0..=4 {
        let crashing = Crashing { device: image(), writes: writes.into() };
        let done = set(&crashing, &change);
        assert_eq!(done.is_ok(), writes == 4, "after {writes} writes: {done:?}");
        let device = crashing.device;
        for name in ["first", "second"] {
            let clock = Arc::new(ManualClock::default());
            let fs = FileSystem::open(device.clone(), clock, MountOptions::default()).unwrap();
            let file = fs.create(Ino::ROOT, name.as_bytes(), 0o644, Owner::default()).unwrap().ino;
            fs.write(file, 0, &[b's'; 300]).unwrap();
            fs.fsync(file, false).unwrap();
            let blocks = fs.getattr(file).unwrap().blocks;
            fs.close().unwrap();
            // In the tree the data takes as many sectors as its length needs, instead of a block.
            let in_tree = writes >= 2 || name == "second";
            assert_eq!(blocks, if in_tree { 1 } else { 8 }, "{name} after {writes} writes");
            assert_eq!(errors(&device), vec![], "{name} after {writes} writes");
            set(&*device, &change).unwrap();
        }
    }
}

#[test]
fn an_image_that_needs_replay_is_left_alone() {
    let device = image();
    let clock = Arc::new(ManualClock::default());
    let fs = FileSystem::open(device.clone(), clock, MountOptions::default()).unwrap();
    let before = labels(&device);
    let refused = set(&device.fork(), &label("new")).unwrap_err().to_string();
    assert!(refused.contains("not unmounted"), "{refused}");
    assert_eq!(labels(&device), before);
    fs.close().unwrap();
    set(&*device, &label("")).unwrap();
    assert_eq!(labels(&device), ["", ""]);
}
