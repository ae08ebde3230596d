//! A file takes the name of another file: it is created without a name, written, and gets the name
//! by one record.

use crate::common::images::open_still;
use kedge_device::MemDevice;
use kedgefs::*;
use std::sync::Arc;

const OWNER: Owner = Owner { uid: 0, gid: 0 };

fn fresh() -> (Arc<MemDevice>, FileSystem) {
    let device = Arc::new(MemDevice::new(32 << 20));
    let options = FormatOptions { immutable: true, ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock(), &options).unwrap();
    let fs = open_still(&device);
    (device, fs)
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::default())
}

fn content(fs: &FileSystem, name: &[u8]) -> Vec<u8> {
    let attr = fs.lookup(Ino::ROOT, name).unwrap();
    let mut bytes = vec![0; attr.size as usize];
    assert_eq!(fs.read(attr.ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn nameless(fs: &FileSystem, bytes: &[u8]) -> Ino {
    let ino = fs.tmpfile(Ino::ROOT, 0o644, OWNER).unwrap().ino;
    assert_eq!(fs.write(ino, 0, bytes).unwrap(), bytes.len());
    ino
}

fn number(fs: &FileSystem, pointer: &str) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
    stats.pointer(pointer).unwrap().as_u64().unwrap()
}

#[test]
fn a_name_passes_to_another_file_in_one_record() {
    let (device, fs) = fresh();
    let old = fs.create(Ino::ROOT, b"file", 0o644, OWNER).unwrap().ino;
    fs.write(old, 0, &[1; 50_000]).unwrap();
    fs.link(old, Ino::ROOT, b"second").unwrap();
    let entries = fs.getattr(Ino::ROOT).unwrap().size;
    let new = nameless(&fs, &[2; 70_000]);
    fs.write_back(&[new]).unwrap();
    let before = number(&fs, "/log/records");
    assert_eq!(fs.link_over(new, Ino::ROOT, b"file").unwrap(), Some(old));
    assert_eq!(number(&fs, "/log/records") - before, 1);
    fs.unpin(new, 1);
    assert_eq!(fs.lookup(Ino::ROOT, b"file").unwrap().ino, new);
    assert_eq!((fs.getattr(new).unwrap().nlink, fs.getattr(old).unwrap().nlink), (1, 1));
    assert_eq!(fs.getattr(Ino::ROOT).unwrap().size, entries, "one name for another");
    // A file that loses its last name is deleted, at once or when it is no longer open.
    let newer = nameless(&fs, b"newer");
    fs.pin(old).unwrap();
    assert_eq!(fs.link_over(newer, Ino::ROOT, b"second").unwrap(), Some(old));
    fs.unpin(newer, 1);
    assert_eq!(fs.getattr(old).unwrap().nlink, 0);
    fs.unpin(old, 1);
    assert!(matches!(fs.getattr(old), Err(Error::NotFound)), "it is gone");
    // The file's own name, a free name, and names that it cannot take.
    assert_eq!(fs.link_over(new, Ino::ROOT, b"file").unwrap(), None);
    assert_eq!(fs.getattr(new).unwrap().nlink, 1);
    assert_eq!(fs.link_over(new, Ino::ROOT, b"third").unwrap(), None);
    assert_eq!(fs.getattr(Ino::ROOT).unwrap().size, entries + 1);
    fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).unwrap();
    assert!(matches!(fs.link_over(new, Ino::ROOT, b"dir"), Err(Error::IsDirectory)));
    assert!(matches!(fs.link(new, Ino::ROOT, b"second"), Err(Error::Exists)));
    fs.close().unwrap();
    let fs = open_still(&device);
    assert_eq!(content(&fs, b"file"), [2; 70_000]);
    assert_eq!(content(&fs, b"third"), [2; 70_000]);
    assert_eq!(content(&fs, b"second"), b"newer");
}

#[test]
fn what_is_fixed_keeps_its_name() {
    let (_device, fs) = fresh();
    let fixed = fs.create(Ino::ROOT, b"fixed", 0o644, OWNER).unwrap().ino;
    fs.set_flags(fixed, FileFlags::IMMUTABLE).unwrap();
    let dir = fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).unwrap().ino;
    fs.create(dir, b"entry", 0o644, OWNER).unwrap();
    fs.set_flags(dir, FileFlags::APPEND).unwrap();
    let new = nameless(&fs, b"new");
    assert!(matches!(fs.link_over(new, Ino::ROOT, b"fixed"), Err(Error::NotPermitted(_))));
    assert!(matches!(fs.link_over(new, dir, b"entry"), Err(Error::NotPermitted(_))));
    assert_eq!(fs.lookup(Ino::ROOT, b"fixed").unwrap().ino, fixed);
    // In an append-only directory a further name is allowed.
    fs.link_over(new, dir, b"another").unwrap();
    assert_eq!(fs.getattr(new).unwrap().nlink, 1);
}

#[test]
fn files_of_all_kinds_come_without_a_name() {
    let (device, fs) = fresh();
    let blocks = fs.statfs().blocks_free;
    let link = fs.symlink_nameless(Ino::ROOT, b"target", OWNER).unwrap();
    let pipe = fs.mknod_nameless(Ino::ROOT, FileKind::Fifo.mode_bits() | 0o600, 7, OWNER).unwrap();
    let mode = FileKind::CharDevice.mode_bits() | 0o600;
    let null = fs.mknod_nameless(Ino::ROOT, mode, 0x103, OWNER).unwrap();
    assert!(fs.mknod_nameless(Ino::ROOT, FileKind::Directory.mode_bits(), 0, OWNER).is_err());
    for (attr, name) in [(link, &b"link"[..]), (pipe, b"pipe"), (null, b"null")] {
        assert_eq!(attr.nlink, 0);
        assert_eq!(fs.link_over(attr.ino, Ino::ROOT, name).unwrap(), None);
        fs.unpin(attr.ino, 1);
    }
    assert_eq!(fs.readlink(link.ino).unwrap(), b"target");
    assert_eq!((fs.getattr(pipe.ino).unwrap().rdev, fs.getattr(null.ino).unwrap().rdev), (0, 0x103));
    // An inode without a name is deleted by its last unpin, or by the next mount.
    let gone = fs.symlink_nameless(Ino::ROOT, b"gone", OWNER).unwrap().ino;
    fs.unpin(gone, 1);
    assert!(matches!(fs.getattr(gone), Err(Error::NotFound)));
    let left = fs.symlink_nameless(Ino::ROOT, b"left", OWNER).unwrap().ino;
    fs.sync().unwrap();
    let crashed = Arc::new(device.fork());
    drop(fs);
    let fs = open_still(&crashed);
    assert!(matches!(fs.getattr(left), Err(Error::NotFound)), "recovery deletes it");
    assert_eq!(fs.readlink(fs.lookup(Ino::ROOT, b"link").unwrap().ino).unwrap(), b"target");
    assert!(fs.statfs().blocks_free <= blocks);
}
