//! Operations with several changes write one record. A record takes effect completely or not at
//! all, so no crash leaves one change without the others.

use kedge_device::MemDevice;
use kedgefs::acl::{ACCESS, Acl, DEFAULT, Entry, Tag};
use kedgefs::*;
use std::sync::Arc;

fn records(fs: &FileSystem) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
    stats.pointer("/log/records").unwrap().as_u64().unwrap()
}

/// A list with a named user, which mode bits cannot express.
fn list() -> Vec<u8> {
    let tags = [Tag::Owner, Tag::User, Tag::OwningGroup, Tag::Mask, Tag::Others];
    Acl::new(tags.map(|tag| Entry { tag, permissions: 5, id: 1000 }).to_vec()).unwrap().encode()
}

#[test]
fn what_belongs_together_is_one_record() {
    let device = Arc::new(MemDevice::new(32 << 20));
    let clock = Arc::new(ManualClock::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default()).unwrap();
    let fs = FileSystem::open(device, clock, MountOptions::default()).unwrap();
    let (root, owner) = (Ino::ROOT, Owner::default());
    let dir = fs.mkdir(root, b"dir", 0o755, owner).unwrap().ino;
    let file = fs.create(root, b"a", 0o644, owner).unwrap().ino;
    // The replaced file has another name, since its deletion would be a second record.
    let there = fs.create(root, b"there", 0o644, owner).unwrap().ino;
    fs.link(there, root, b"kept").unwrap();
    let whiteout = || RenameMode::Whiteout { owner, replace: true };
    let chmod = SetAttr { mode: Some(0o600), ..SetAttr::default() };

    let one = |what: &str, operation: &dyn Fn()| {
        let before = records(&fs);
        operation();
        assert_eq!(records(&fs) - before, 1, "records of {what}");
    };
    one("a rename that leaves a whiteout", &|| {
        fs.rename(root, b"a", dir, b"b", whiteout()).unwrap();
    });
    assert_eq!(fs.lookup(root, b"a").unwrap().kind, FileKind::CharDevice);
    one("one that replaces a file, too", &|| {
        fs.rename(dir, b"b", root, b"there", whiteout()).unwrap();
    });
    one("an access list, which sets the mode", &|| {
        fs.setxattr(file, ACCESS, &list(), XattrMode::Any).unwrap();
    });
    assert_eq!(fs.getattr(file).unwrap().mode & 0o777, 0o555);
    one("a mode, which changes the list", &|| {
        fs.setattr(file, &chmod).unwrap();
    });
    let kept = Acl::decode(&fs.getxattr(file, ACCESS).unwrap()).unwrap();
    assert_eq!(kept.mode(), 0o600);
    fs.setxattr(dir, DEFAULT, &list(), XattrMode::Any).unwrap();
    one("a file that inherits a list", &|| {
        fs.create(dir, b"child", 0o777, owner).unwrap();
    });
    one("a directory that inherits two", &|| {
        fs.mkdir(dir, b"children", 0o777, owner).unwrap();
    });
    let children = fs.lookup(dir, b"children").unwrap().ino;
    assert_eq!(fs.listxattr(children).unwrap().len(), 2);
    fs.close().unwrap();
}
