use crate::conformance::{conform, one_writer};
use crate::location::{Location, WindowUri};
use crate::{Device, MemDevice, OpenOptions, WindowDevice};
use kedge_base::{Error, IoBuf};
use std::path::Path;
use std::sync::Arc;

const B: u64 = 4096;
const MIB: u64 = 1 << 20;

fn in_memory(below: Arc<dyn Device>, offset: u64, size: u64) -> WindowDevice {
    WindowDevice::new(below, offset, Some(size), "window".into()).unwrap()
}

fn uri(path: &Path, offset: u64, size: Option<u64>) -> Location {
    Location::Window(WindowUri::new(path.to_owned(), offset, size).unwrap())
}

#[test]
fn a_window_in_memory_conforms() {
    conform(&|size| Arc::new(in_memory(Arc::new(MemDevice::new(size + 9 * B)), 5 * B, size)));
}

#[test]
fn a_window_of_a_file_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let made = std::cell::Cell::new(0);
    conform(&|size| {
        made.set(made.get() + 1);
        let path = dir.path().join(made.get().to_string());
        std::fs::File::create(&path).unwrap().set_len(size + 9 * B).unwrap();
        crate::open(&uri(&path, 7 * B, Some(size)), OpenOptions::default()).unwrap()
    });
}

/// The bytes around a window keep their values, whatever is done inside the window and at its
/// edges.
#[test]
fn bytes_outside_are_neither_read_nor_written() {
    let below = Arc::new(MemDevice::new(6 * B));
    below.write(0, &IoBuf::from_bytes(&[7; 6 * B as usize]), false).unwrap();
    let window = in_memory(below.clone(), 2 * B, 2 * B);
    assert_eq!(window.geometry().size, 2 * B);
    window.write(0, &IoBuf::from_bytes(&[1; 2 * B as usize]), true).unwrap();
    window.discard(0, B).unwrap();
    window.write_zeroes(B, B).unwrap();
    for (offset, len) in [(2 * B, B), (B, 2 * B), (u64::MAX - B + 1, B), (u64::MAX - 3 * B + 1, B)] {
        let mut buf = IoBuf::zeroed((len / B) as usize);
        for refused in [
            window.read(offset, &mut buf),
            window.write(offset, &buf, false),
            window.discard(offset, len),
            window.write_zeroes(offset, len),
        ] {
            assert!(matches!(refused, Err(Error::Io { .. })), "{offset}+{len}: {refused:?}");
        }
        assert_eq!(window.first_hole(offset, len), None);
    }
    let mut all = IoBuf::zeroed(6);
    below.read(0, &mut all).unwrap();
    let outside = all.as_bytes().iter().enumerate().filter(|(i, _)| !(2 * B..4 * B).contains(&(*i as u64)));
    assert!(outside.into_iter().all(|(_, byte)| *byte == 7));
    assert!(all.as_bytes()[2 * B as usize..4 * B as usize].iter().all(|byte| *byte == 0));
}

#[test]
fn a_window_has_one_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::File::create(&path).unwrap().set_len(4 * MIB).unwrap();
    one_writer(&|options| crate::open(&uri(&path, MIB, Some(MIB)), options));
}

/// Windows that do not overlap can have different owners. Each excludes an owner of the whole file.
#[test]
fn windows_exclude_one_another_where_they_overlap() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::File::create(&path).unwrap().set_len(4 * MIB).unwrap();
    let whole = Location::Path(path.clone());
    let [first, second, rest] =
        [(0, Some(MIB)), (MIB, Some(MIB)), (MIB, None)].map(|(offset, size)| uri(&path, offset, size));
    let write = OpenOptions::default();
    let read = OpenOptions { read_only: true, ..write };
    let is_busy = |location: &Location, options| match crate::open(location, options) {
        Err(Error::Busy(_)) => true,
        Err(e) => panic!("{location}: {e}"),
        Ok(_) => false,
    };
    let owner = crate::open(&first, write).unwrap();
    assert!(is_busy(&first, write) && is_busy(&first, read), "the same window");
    assert!(is_busy(&whole, write) && is_busy(&whole, read), "the whole file");
    assert!(!crate::is_unlocked(&first).unwrap());
    assert!(crate::is_unlocked(&second).unwrap());
    let other = crate::open(&second, write).unwrap();
    assert!(is_busy(&rest, write) && is_busy(&rest, read), "an overlap");
    drop((owner, other));
    let reader = crate::open(&whole, read).unwrap();
    assert!(is_busy(&second, write), "a reader of the whole file");
    assert!(!is_busy(&second, read), "readers share");
    drop(reader);
    let owner = crate::open(&whole, write).unwrap();
    assert!(is_busy(&second, read) && is_busy(&second, write));
    assert!(!crate::is_unlocked(&second).unwrap());
    drop(owner);
    assert!(crate::is_unlocked(&second).unwrap());
}

/// A window without a size grows with its file, and a window with a size does not.
#[test]
fn a_window_without_a_limit_grows_with_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::File::create(&path).unwrap().set_len(4 * MIB).unwrap();
    let rest = crate::open(&uri(&path, MIB, None), OpenOptions::default()).unwrap();
    assert_eq!((rest.geometry().size, rest.room().unwrap()), (3 * MIB, 3 * MIB));
    rest.grow(2 * MIB).unwrap();
    assert_eq!(rest.geometry().size, 3 * MIB);
    rest.grow(5 * MIB).unwrap();
    assert_eq!(rest.geometry().size, 5 * MIB);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 6 * MIB);
    rest.write(5 * MIB - B, &IoBuf::zeroed(1), true).unwrap();
    drop(rest);
    let fixed = crate::open(&uri(&path, MIB, Some(MIB)), OpenOptions::default()).unwrap();
    fixed.grow(MIB).unwrap();
    let e = fixed.grow(MIB + B).unwrap_err().to_string();
    assert!(e.contains("has 1048576 bytes, 1052672 are wanted"), "{e}");
    assert_eq!(fixed.room().unwrap(), MIB);
}

/// The message for each bad number contains the number, and the number that would be possible.
#[test]
fn bad_windows_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::File::create(&path).unwrap().set_len(MIB + 100).unwrap();
    for (offset, size, said) in [
        (MIB, None, "offset=1048576 is not below the size of the file, 1048576 bytes"),
        (1 << 40, Some(B), "offset=1099511627776"),
        (B, Some(MIB), "sizelimit=1048576 is more than the 1044480 bytes that follow offset=4096"),
    ] {
        let e = crate::open(&uri(&path, offset, size), OpenOptions::default()).map(drop).unwrap_err();
        assert!(e.to_string().contains(said), "{e}");
    }
    let e = WindowDevice::new(Arc::new(MemDevice::new(MIB)), 512, None, "w".into()).map(drop).unwrap_err();
    assert!(e.to_string().contains("offset=512 is no multiple of 4096"), "{e}");
    // The last window ends with the last whole block.
    let last = crate::open(&uri(&path, MIB - B, None), OpenOptions::default()).unwrap();
    assert_eq!(last.geometry().size, B);
}
