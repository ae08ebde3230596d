//! mkfs never overwrites data by mistake, and two engines never use one device.

use kedge_base::IoBuf;
use kedge_device::{Device, FileDevice, MemDevice, OpenOptions};
use kedgefs::{Clock, Error, FileSystem, FormatOptions, Ino, ManualClock, MountOptions, Owner, Timespec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SIZE: u64 = 32 << 20;

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::default())
}

fn format(device: Arc<dyn Device>, overwrite: bool) -> Result<(), Error> {
    let options = FormatOptions { log_size: Some(1 << 20), overwrite, ..FormatOptions::default() };
    FileSystem::format(device, clock(), &options).map(drop)
}

#[test]
fn format_refuses_what_holds_something() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let create = || FileDevice::create(&path, SIZE, OpenOptions::default()).unwrap();
    format(create(), false).unwrap();
    let fs = FileSystem::open(create(), clock(), MountOptions::default()).unwrap();
    fs.create(Ino::ROOT, b"kept", 0o644, Owner::default()).unwrap();
    fs.close().unwrap();
    drop(fs);

    // The same two calls again, as by a program that is restarted.
    let e = format(create(), false).unwrap_err();
    assert!(e.to_string().ends_with("image holds a KedgeFS image, which would be lost"), "{e}");
    let fs = FileSystem::open(create(), clock(), MountOptions::default()).unwrap();
    fs.lookup(Ino::ROOT, b"kept").unwrap();
    fs.close().unwrap();
    drop(fs);
    format(create(), true).unwrap();
    let fs = FileSystem::open(create(), clock(), MountOptions::default()).unwrap();
    assert!(matches!(fs.lookup(Ino::ROOT, b"kept"), Err(Error::NotFound)));
}

#[test]
fn foreign_file_systems_are_named_and_left_alone() {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(SIZE));
    device.write(0, &IoBuf::from_bytes(b"XFSB"), true).unwrap();
    let e = format(device.clone(), false).unwrap_err().to_string();
    assert!(e.contains("holds an XFS file system, which would be lost"), "{e}");
    let e = FileSystem::open(device.clone(), clock(), MountOptions::default()).err().unwrap().to_string();
    assert!(e.contains("holds an XFS file system, no KedgeFS image"), "{e}");
    let mut found = IoBuf::zeroed(1);
    device.read(0, &mut found).unwrap();
    assert_eq!(&found.as_bytes()[..5], b"XFSB\0");
}

/// A device with data is refused even if the data has no known signature.
#[test]
fn data_of_an_unknown_kind_is_left_alone() {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(SIZE));
    device.write(40 << 10, &IoBuf::from_bytes(b"what somebody wrote down"), true).unwrap();
    let e = format(device.clone(), false).unwrap_err().to_string();
    assert!(e.contains("holds data of an unknown kind, which would be lost"), "{e}");
    let mut found = IoBuf::zeroed(1);
    device.read(40 << 10, &mut found).unwrap();
    assert!(found.as_bytes().starts_with(b"what somebody wrote down"));
    format(device, true).unwrap();
}

#[test]
fn one_device_has_one_engine() {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(SIZE));
    format(device.clone(), false).unwrap();
    let open = |read_only| {
        FileSystem::open(device.clone(), clock(), MountOptions { read_only, ..MountOptions::default() })
    };
    let fs = open(false).unwrap();
    for e in [open(false).err(), open(true).err(), format(device.clone(), true).err()] {
        let e = e.expect("a second engine would ruin it").to_string();
        assert!(e.contains("is open in this process already"), "{e}");
    }
    fs.create(Ino::ROOT, b"file", 0o644, Owner::default()).unwrap();
    // The device is free after a close, although a handle on the file system still exists.
    fs.close().unwrap();
    let (first, second) = (open(true).unwrap(), open(true).unwrap());
    first.lookup(Ino::ROOT, b"file").and_then(|_| second.lookup(Ino::ROOT, b"file")).unwrap();
    assert!(open(false).is_err(), "readers keep a writer out");
    drop((first, second));
    // The device is free after a drop without a close, as in a crash.
    drop(open(false).unwrap());
    open(false).unwrap().lookup(Ino::ROOT, b"file").unwrap();
}

/// A clock that advances instead of sleeping.
#[derive(Default)]
struct Impatient {
    clock: ManualClock,
    rested: AtomicU64,
}

impl Clock for Impatient {
    fn now(&self) -> Timespec {
        self.clock.now()
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    fn sleep(&self, time: Duration) {
        self.clock.advance(time);
        self.rested.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }
}

#[test]
fn who_waits_for_a_device_waits_on_the_clock() {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(SIZE));
    format(device.clone(), false).unwrap();
    let first = FileSystem::open(device.clone(), clock(), MountOptions::default()).unwrap();
    let clock = Arc::new(Impatient::default());
    let second = FileSystem::open(device.clone(), clock.clone(), MountOptions::default());
    assert!(second.is_err_and(|e| e.to_string().contains("is open in this process already")));
    assert_eq!(clock.rested.load(Ordering::Relaxed), 2000);
    first.close().unwrap();
    FileSystem::open(device, clock.clone(), MountOptions::default()).unwrap().close().unwrap();
    assert_eq!(clock.rested.load(Ordering::Relaxed), 2000, "it is free");
}

#[test]
fn images_of_one_seed_are_equal() {
    let image = |seed| {
        let device = Arc::new(MemDevice::new(SIZE));
        let options = FormatOptions { log_size: Some(1 << 20), seed, ..FormatOptions::default() };
        let uuid = FileSystem::format(device.clone(), clock(), &options).unwrap().uuid;
        let mut bytes = IoBuf::zeroed((4 << 20) / 4096);
        device.read(0, &mut bytes).unwrap();
        (uuid, bytes.as_bytes().to_vec())
    };
    let [a, b, other, random] = [Some(7), Some(7), Some(8), None].map(image);
    assert_eq!(a.0, b.0);
    assert!(a.1 == b.1, "the same bytes");
    assert!(a.0 != other.0 && a.0 != random.0);
}
