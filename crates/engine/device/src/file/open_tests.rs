use crate::{Device, FileDevice, Io, Op, OpenOptions, run_batch};
use kedge_base::{Error, IoBuf};
use std::time::Duration;

const MIB: u64 = 1 << 20;

#[test]
fn an_image_has_one_writer_or_many_readers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let read_only = OpenOptions { read_only: true, ..Default::default() };
    let writer = FileDevice::create(&path, MIB, OpenOptions::default()).unwrap();
    for second in [FileDevice::open(&path, OpenOptions::default()), FileDevice::open(&path, read_only)] {
        let e = second.err().expect("the image is taken");
        assert!(matches!(&e, Error::Busy(p) if **p == *path.to_str().unwrap()));
        assert_eq!(e.to_string(), format!("{} is in use by another process", path.display()));
    }
    assert!(matches!(FileDevice::create(&path, 2 * MIB, OpenOptions::default()), Err(Error::Busy(_))));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), MIB, "a refused create changes nothing");
    // An owner may read the image if it does not ask for the lock.
    FileDevice::open(&path, OpenOptions { lock: false, ..read_only }).unwrap();
    drop(writer);

    let first = FileDevice::open(&path, read_only).unwrap();
    let second = FileDevice::open(&path, read_only).unwrap();
    assert!(matches!(FileDevice::open(&path, OpenOptions::default()), Err(Error::Busy(_))));
    drop((first, second));
    FileDevice::open(&path, OpenOptions::default()).unwrap();
}

/// A process that unmounts may release the image a little after umount(8) has returned.
#[test]
fn the_lock_is_waited_for_so_long_and_no_longer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let patient = |ms| OpenOptions { lock_wait: Duration::from_millis(ms), ..Default::default() };
    let owner = FileDevice::create(&path, MIB, OpenOptions::default()).unwrap();
    assert!(matches!(FileDevice::open(&path, patient(100)), Err(Error::Busy(_))), "the wait ends");
    std::thread::scope(|scope| {
        let next = scope.spawn(|| FileDevice::open(&path, patient(60_000)));
        kedge_base::pause(Duration::from_millis(100));
        drop(owner);
        next.join().unwrap().unwrap();
    });
}

#[test]
fn create_makes_grows_and_never_shrinks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let options = OpenOptions::default();
    let device = FileDevice::create(&path, MIB + 100, options).unwrap();
    assert_eq!(device.geometry().size, MIB);
    device.write(0, &IoBuf::from_bytes(b"kept"), true).unwrap();
    drop(device);
    assert_eq!(FileDevice::create(&path, 3 * MIB, options).unwrap().geometry().size, 3 * MIB);
    let device = FileDevice::create(&path, 2 * MIB, options).unwrap();
    assert_eq!(device.geometry().size, 2 * MIB);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 * MIB);
    let mut buf = IoBuf::zeroed(1);
    device.read(0, &mut buf).unwrap();
    assert_eq!(&buf.as_bytes()[..4], b"kept");
}

/// The trial of a discard must not be made where the device ends, which is inside of this file.
#[test]
fn create_on_a_larger_file_keeps_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for len in [3 * MIB, 3 * MIB - 100] {
        std::fs::write(&path, vec![1; len as usize]).unwrap();
        let device = FileDevice::create(&path, 2 * MIB, OpenOptions::default()).unwrap();
        assert_eq!(device.geometry().size, 2 * MIB);
        drop(device);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, len);
        assert_eq!(bytes.iter().position(|byte| *byte != 1), None);
    }
}

#[test]
fn the_size_is_rounded_down_to_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, vec![1; 10_000]).unwrap();
    let device = FileDevice::open(&path, OpenOptions::default()).unwrap();
    assert_eq!(device.geometry().size, 8192);
    let mut buf = IoBuf::zeroed(2);
    device.read(0, &mut buf).unwrap();
    assert!(device.read(4096, &mut buf).is_err());
}

#[test]
fn what_cannot_be_opened_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    for path in [missing.as_path(), dir.path(), std::path::Path::new("/dev/null")] {
        let e = FileDevice::open(path, OpenOptions::default()).err().expect("not an image");
        assert!(e.to_string().contains(path.to_str().unwrap()), "{e}");
    }
    assert!(!missing.exists());
    assert!(FileDevice::create(&missing, 100, OpenOptions::default()).is_err());
    assert!(!missing.exists());
}

#[test]
fn read_only_refuses_writes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    drop(FileDevice::create(&path, MIB, OpenOptions::default()).unwrap());
    let device = FileDevice::open(&path, OpenOptions { read_only: true, ..Default::default() }).unwrap();
    assert!(matches!(device.write(0, &IoBuf::zeroed(1), false), Err(Error::ReadOnly)));
    assert!(matches!(device.discard(0, 4096), Err(Error::ReadOnly)));
    assert!(matches!(device.write_zeroes(0, 4096), Err(Error::ReadOnly)));
    device.flush().unwrap();
    device.read(0, &mut IoBuf::zeroed(1)).unwrap();
    assert_eq!(device.geometry().discard_granularity, 0);
}

/// An open punches a hole past the end of a file to find out whether the host supports it. The
/// owner of another part of the file may extend it meanwhile, and would lose bytes. The kernel
/// refuses to punch into this file, so only an open that does not try finds discards supported.
#[cfg(target_os = "linux")]
#[test]
fn an_open_of_a_part_punches_no_hole() {
    use rustix::fs::{MemfdFlags, SealFlags};
    use std::os::fd::AsRawFd;
    let file = rustix::fs::memfd_create("image", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, MIB).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
    let path = std::path::PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let tried = FileDevice::open(&path, OpenOptions::default()).unwrap();
    assert_eq!(tried.geometry().discard_granularity, 0);
    drop(tried);
    let part = super::Part { offset: 0, len: Some(MIB / 2) };
    let not_tried = FileDevice::open_part(&path, part, OpenOptions::default()).unwrap();
    assert_eq!(not_tried.geometry().discard_granularity, 4096);
}

#[test]
fn a_released_device_is_closed_although_it_exists() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for io_uring in [true, false] {
        let options = OpenOptions { io_uring, ..OpenOptions::default() };
        let device = FileDevice::create(&path, MIB, options).unwrap();
        device.write(0, &IoBuf::zeroed(1), true).unwrap();
        assert!(matches!(FileDevice::open(&path, options), Err(Error::Busy(_))));
        device.release().unwrap();
        // A child that another test starts has a copy of the descriptor until it executes a
        // program.
        let mut other = FileDevice::open(&path, options);
        for _ in 0..500 {
            if other.is_ok() {
                break;
            }
            kedge_base::pause(Duration::from_millis(10));
            other = FileDevice::open(&path, options);
        }
        let other = other.expect("the lock is released");
        let closed = |e: Error| matches!(e, Error::Io { errno: libc::EBADF, .. });
        assert!(closed(device.write(0, &IoBuf::zeroed(1), false).unwrap_err()));
        assert!(closed(device.read(0, &mut IoBuf::zeroed(1)).unwrap_err()));
        assert!(closed(device.flush().unwrap_err()));
        let two = [0, 4096].map(|offset| Io { offset, op: Op::Write { buf: IoBuf::zeroed(1), fua: true } });
        for sent in run_batch(&*device, two.into()) {
            assert!(closed(sent.result.unwrap_err()));
        }
        drop(device);
        other.flush().expect("the number of the closed file is not reused");
    }
}
