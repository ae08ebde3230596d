//! Values of extended attributes that are larger than an item of the tree.

use crate::common::images::{assert_clean, open_still};
use kedge_device::MemDevice;
use kedgefs::*;
use std::sync::Arc;

const X: &[u8] = b"user.x";

/// An image of the smallest size, opened.
fn fresh() -> (Arc<MemDevice>, FileSystem) {
    let device = Arc::new(MemDevice::new(16 << 20));
    let options = FormatOptions { log_size: Some(1 << 20), ..Default::default() };
    FileSystem::format(device.clone(), Arc::new(ManualClock::default()), &options).unwrap();
    let fs = open_still(&device);
    (device, fs)
}

fn value(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed + i / 3 * 7) as u8).collect()
}

fn file(fs: &FileSystem, name: &[u8]) -> Ino {
    fs.create(Ino::ROOT, name, 0o644, Owner::default()).unwrap().ino
}

#[test]
fn values_of_every_size_replace_one_another() {
    let (device, fs) = fresh();
    let f = file(&fs, b"f");
    let sizes = [0, 10, 4096, 4097, 8192, 8193, 40_000, 65535, 65536];
    let mut seed = 0;
    for from in sizes {
        for to in sizes {
            for len in [from, to] {
                seed += 1;
                fs.setxattr(f, X, &value(seed, len), XattrMode::Any).unwrap();
                assert_eq!(fs.getxattr(f, X).unwrap(), value(seed, len), "{from} to {to}");
            }
            fs.setxattr(f, b"user.other", b"stays", XattrMode::Any).unwrap();
            if seed % 3 == 0 {
                fs.removexattr(f, X).unwrap();
                assert!(matches!(fs.getxattr(f, X), Err(Error::NoXattr)));
                assert_eq!(fs.listxattr(f).unwrap(), [b"user.other"]);
            }
        }
        fs.checkpoint().unwrap();
        assert_clean(&Arc::new(device.fork()));
    }
    assert_eq!(fs.getxattr(f, b"user.other").unwrap(), b"stays");
    fs.setxattr(f, X, &value(seed, 65536), XattrMode::Any).unwrap();
    fs.close().unwrap();
    assert_clean(&device);
    assert_eq!(open_still(&device).getxattr(f, X).unwrap(), value(seed, 65536));
}

#[test]
fn limits_and_modes_are_those_of_small_values() {
    let (_, fs) = fresh();
    let f = file(&fs, b"f");
    let whole = value(1, 65536);
    let set = |value: &[u8], mode| fs.setxattr(f, X, value, mode);
    assert!(matches!(set(&value(1, 65537), XattrMode::Any), Err(Error::XattrTooLarge)));
    assert!(matches!(set(&whole, XattrMode::Replace), Err(Error::NoXattr)));
    set(&whole, XattrMode::Create).unwrap();
    assert!(matches!(set(b"small", XattrMode::Create), Err(Error::Exists)));
    assert_eq!(fs.getxattr(f, X).unwrap(), whole);
    set(b"small", XattrMode::Replace).unwrap();
    assert_eq!(fs.getxattr(f, X).unwrap(), b"small");
    let list = fs.setxattr(f, acl::ACCESS, &value(1, 4097), XattrMode::Any);
    assert!(matches!(list, Err(Error::XattrTooLarge)), "{list:?}");
}

/// One record has the whole value, so no crash leaves a part of it.
#[test]
fn a_change_is_one_record() {
    let (_, fs) = fresh();
    let f = file(&fs, b"f");
    let records = || -> u64 {
        let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
        stats.pointer("/log/records").unwrap().as_u64().unwrap()
    };
    for len in [65536, 5000, 10, 65536] {
        let before = records();
        fs.setxattr(f, X, &value(1, len), XattrMode::Any).unwrap();
        assert_eq!(records() - before, 1, "{len} bytes");
    }
    let before = records();
    fs.removexattr(f, X).unwrap();
    assert_eq!(records() - before, 1);
}

/// A deletion takes several steps. Power may fail after each.
#[test]
fn a_deleted_inode_leaves_nothing() {
    let (device, fs) = fresh();
    let nodes = |fs: &FileSystem| fs.statfs().blocks_free;
    fs.checkpoint().unwrap();
    for n in 0..8 {
        let f = file(&fs, b"f");
        for x in 0..4 {
            let name = format!("user.{x}");
            fs.setxattr(f, name.as_bytes(), &value(n, 65536 - 5000 * n), XattrMode::Any).unwrap();
        }
        fs.unlink(Ino::ROOT, b"f").unwrap();
        assert_clean(&Arc::new(device.fork()));
    }
    fs.checkpoint().unwrap();
    let free = nodes(&fs);
    let f = file(&fs, b"f");
    fs.setxattr(f, X, &value(1, 65536), XattrMode::Any).unwrap();
    fs.unlink(Ino::ROOT, b"f").unwrap();
    fs.checkpoint().unwrap();
    assert_eq!(nodes(&fs), free);
    fs.close().unwrap();
    assert_clean(&device);
}

/// While an image becomes full, each value is stored completely or not at all. Stored values can be
/// removed.
#[test]
fn a_full_image_refuses_a_value_as_a_whole_and_gives_all_back() {
    let (device, fs) = fresh();
    let mut files = Vec::new();
    let mut refused = 0;
    while refused < 20 {
        let n = files.len();
        let Ok(attr) = fs.create(Ino::ROOT, format!("f{n}").as_bytes(), 0o644, Owner::default()) else {
            break;
        };
        files.push(attr.ino);
        match fs.setxattr(attr.ino, X, &value(n, 65536), XattrMode::Any) {
            Ok(()) => assert_eq!(fs.getxattr(attr.ino, X).unwrap(), value(n, 65536)),
            Err(e) => {
                assert_eq!(e.errno(), 28, "{e}");
                assert!(matches!(fs.getxattr(attr.ino, X), Err(Error::NoXattr)));
                refused += 1;
            }
        }
    }
    assert!(files.len() > 60, "{} files", files.len());
    fs.sync().unwrap();
    assert_clean(&Arc::new(device.fork()));
    for (n, f) in files.iter().enumerate() {
        match fs.removexattr(*f, X) {
            Ok(()) | Err(Error::NoXattr) => {}
            Err(e) => panic!("attribute of file {n}: {e}"),
        }
    }
    fs.setxattr(files[0], X, &value(1, 65536), XattrMode::Any).unwrap();
    fs.close().unwrap();
    assert_clean(&device);
}
