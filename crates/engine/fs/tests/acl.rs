//! Access control lists in the library: which lists are accepted, how they change the mode, and how
//! they are inherited.

use crate::common::images::open_still;
use kedge_device::MemDevice;
use kedgefs::acl::{ACCESS, Acl, DEFAULT, Entry, Tag};
use kedgefs::*;
use std::sync::Arc;

fn fresh() -> (Arc<MemDevice>, FileSystem) {
    let device = Arc::new(MemDevice::new(32 << 20));
    FileSystem::format(device.clone(), Arc::new(ManualClock::default()), &FormatOptions::default()).unwrap();
    let fs = open_still(&device);
    (device, fs)
}

/// A list with the owner, `named` named users, the owning group, the mask and the others.
fn list(named: usize, permissions: [u16; 5]) -> Vec<u8> {
    let tags = [Tag::Owner, Tag::User, Tag::OwningGroup, Tag::Mask, Tag::Others];
    let mut entries = Vec::new();
    for (tag, permissions) in tags.into_iter().zip(permissions) {
        let count = if tag == Tag::User { named } else { usize::from(tag != Tag::Mask || named > 0) };
        entries.extend((0..count).map(|i| Entry { tag, permissions, id: 1000 + i as u32 }));
    }
    Acl::new(entries).unwrap().encode()
}

fn mode(fs: &FileSystem, ino: Ino) -> u32 {
    fs.getattr(ino).unwrap().mode & 0o7777
}

#[test]
fn a_minimal_list_is_the_mode() {
    let (_, fs) = fresh();
    let file = fs.create(Ino::ROOT, b"f", 0o4644, Owner::default()).unwrap().ino;
    fs.setxattr(file, ACCESS, &list(1, [6, 7, 4, 5, 0]), XattrMode::Any).unwrap();
    assert_eq!(mode(&fs, file), 0o4650);
    assert_eq!(fs.listxattr(file).unwrap(), [ACCESS]);
    fs.setxattr(file, ACCESS, &list(0, [7, 0, 1, 0, 2]), XattrMode::Any).unwrap();
    assert_eq!(mode(&fs, file), 0o4712);
    assert_eq!(fs.listxattr(file).unwrap(), Vec::<Vec<u8>>::new());
    assert!(matches!(fs.getxattr(file, ACCESS), Err(Error::NoXattr)));
    assert!(matches!(fs.removexattr(file, ACCESS), Err(Error::NoXattr)));
}

#[test]
fn what_is_no_list_or_has_none_is_refused() {
    let (_, fs) = fresh();
    let file = fs.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap().ino;
    let link = fs.symlink(Ino::ROOT, b"l", b"f", Owner::default()).unwrap().ino;
    let good = list(1, [6, 7, 4, 5, 0]);
    for bad in [&b""[..], &good[..4], &good[1..], &good[..good.len() - 8], b"text"] {
        let set = fs.setxattr(file, ACCESS, bad, XattrMode::Any);
        assert!(matches!(set, Err(Error::Invalid(_))), "{bad:?}: {set:?}");
    }
    assert!(matches!(fs.setxattr(file, DEFAULT, &good, XattrMode::Any), Err(Error::Invalid(_))));
    assert!(matches!(fs.setxattr(link, ACCESS, &good, XattrMode::Any), Err(Error::NotSupported(_))));
    let other = fs.setxattr(file, b"system.other", b"", XattrMode::Any);
    assert!(matches!(other, Err(Error::NotSupported(_))));
    assert_eq!((mode(&fs, file), fs.listxattr(file).unwrap().len()), (0o644, 0));
}

/// A new directory inherits the longest list twice, and both copies fit into its record.
#[test]
fn the_longest_list_is_inherited_and_durable() {
    let (device, fs) = fresh();
    let dir = fs.mkdir(Ino::ROOT, b"d", 0o755, Owner::default()).unwrap().ino;
    fs.create(dir, b"before", 0o666, Owner::default()).unwrap();
    let longest = list(507, [7, 6, 5, 7, 4]);
    assert_eq!(longest.len(), 4092);
    fs.setxattr(dir, DEFAULT, &longest, XattrMode::Any).unwrap();
    for n in 0..20 {
        fs.mkdir(dir, format!("dir{n}").as_bytes(), 0o770, Owner::default()).unwrap();
        fs.create(dir, format!("file{n}").as_bytes(), 0o666, Owner::default()).unwrap();
    }
    let nameless = fs.tmpfile(dir, 0o666, Owner::default()).unwrap().ino;
    fs.link(nameless, dir, b"named").unwrap();
    fs.fsync(dir, false).unwrap();
    drop(fs);

    let fs = open_still(&device);
    let found = |path: &str| fs.lookup(dir, path.as_bytes()).unwrap().ino;
    let file = list(507, [6, 6, 5, 6, 4]);
    for name in ["file0", "file19", "named"] {
        assert_eq!(
            (mode(&fs, found(name)), fs.getxattr(found(name), ACCESS).unwrap()),
            (0o664, file.clone())
        );
    }
    let sub = found("dir7");
    assert_eq!(mode(&fs, sub), 0o770);
    assert_eq!(fs.getxattr(sub, ACCESS).unwrap(), list(507, [7, 6, 5, 7, 0]));
    assert_eq!(fs.getxattr(sub, DEFAULT).unwrap(), longest);
    assert_eq!(fs.listxattr(found("before")).unwrap(), Vec::<Vec<u8>>::new());
    fs.removexattr(dir, DEFAULT).unwrap();
    let later = fs.create(dir, b"later", 0o666, Owner::default()).unwrap();
    assert_eq!((later.mode & 0o777, fs.listxattr(later.ino).unwrap().len()), (0o666, 0));
    fs.close().unwrap();
    let report = kedge_fsck::check(device, &kedge_fsck::CheckOptions::default());
    assert!(report.is_clean(), "{report}");
}

/// A whiteout is a new file in its directory. The longest list fits into its record. After a crash
/// the whiteout and its list are there, or neither.
#[test]
fn a_whiteout_inherits() {
    let (device, fs) = fresh();
    let dir = fs.mkdir(Ino::ROOT, b"d", 0o755, Owner::default()).unwrap().ino;
    fs.create(dir, b"f", 0o666, Owner::default()).unwrap();
    fs.create(dir, b"victim", 0o666, Owner::default()).unwrap();
    fs.setxattr(dir, DEFAULT, &list(507, [7, 6, 5, 7, 4]), XattrMode::Any).unwrap();
    let whiteout = RenameMode::Whiteout { owner: Owner::default(), replace: true };
    fs.rename(dir, b"f", dir, b"victim", whiteout).unwrap();
    fs.fsync(dir, false).unwrap();
    drop(fs);
    let fs = open_still(&device);
    let left = fs.lookup(dir, b"f").unwrap();
    assert_eq!((left.kind, left.rdev, left.mode & 0o7777), (FileKind::CharDevice, 0, 0));
    assert_eq!(fs.getxattr(left.ino, ACCESS).unwrap(), list(507, [0, 6, 5, 0, 0]));
    assert!(matches!(fs.getxattr(left.ino, DEFAULT), Err(Error::NoXattr)));
    fs.close().unwrap();
    let report = kedge_fsck::check(device, &kedge_fsck::CheckOptions::default());
    assert!(report.is_clean(), "{report}");
}
