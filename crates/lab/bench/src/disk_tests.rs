use super::*;
use crate::Interrupt;
use kedge_base::{BLOCK_SIZE, HANG, IoBuf};
use kedge_device::{Device, FileDevice, OpenOptions};

#[test]
fn the_fields_are_those_of_writes() {
    let text = "  11 12 13 14   21 22 23 24   1 2 3   31 32 33 34   41 42\n";
    let counts = DiskCounts { writes: 21, merges: 22, bytes: 23 * 512, flushes: 41 };
    assert_eq!(DiskCounts::parse(text), Some(counts));
    assert_eq!(DiskCounts::parse("1 2 3 4 5 6 7 8 9 10 11"), None, "a kernel without flushes");
    assert_eq!(DiskCounts::parse("1 2 3 4 five 6 7 8 9 10 11 12 13 14 15 16 17"), None);
    let earlier = DiskCounts { writes: 20, merges: 2, bytes: 512, flushes: 40 };
    let since = DiskCounts { writes: 1, merges: 20, bytes: 22 * 512, flushes: 1 };
    assert_eq!(counts.since(earlier), since);
}

/// The kernel counts the library's writes to a loop device. Drop removes the device.
#[test]
fn a_loop_device_counts() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let root = crate::place::effective_uid(&status) == Some(0);
    if let Some(why) = LoopDevice::missing(root) {
        return kedge_base::skip::note(why);
    }
    let dir = tempfile::tempdir().unwrap();
    let shell = Shell::new(dir.path(), Path::new("kedge"), &Interrupt::new(|_| {}));
    let made = LoopDevice::make(&shell, "t", 1 << 20).unwrap();
    let device = FileDevice::open(&made.path, OpenOptions::default()).unwrap();
    let before = made.counts().unwrap();
    (0..3).for_each(|i| device.write(i * 65536, &IoBuf::zeroed(2), false).unwrap());
    device.flush().unwrap();
    let counts = made.counts().unwrap().since(before);
    let requests = counts.writes + counts.merges;
    assert!((3..=3 + counts.flushes).contains(&requests), "{counts:?}");
    assert_eq!(counts.bytes, 6 * BLOCK_SIZE as u64);
    assert!(counts.flushes >= 1, "{counts:?}");
    drop(device);
    let name = made.path.trim_start_matches("/dev/").to_owned();
    drop(made);
    // The last process that closes the device detaches it. A child process of another test, or
    // udev, may have it open for a moment.
    let backing = format!("/sys/block/{name}/loop/backing_file");
    let image = dir.path().join("t.img");
    let is_ours = || {
        std::fs::read_to_string(&backing)
            .is_ok_and(|file| file.trim_end().starts_with(image.to_str().unwrap()))
    };
    for _ in 0..HANG.as_millis() / 10 {
        if !is_ours() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(!is_ours(), "it is detached");
    assert!(!dir.path().join("t.img").exists());
}
