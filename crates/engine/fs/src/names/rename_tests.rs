use super::*;
use crate::{FileSystem, FormatOptions, ManualClock, MountOptions, Owner};
use kedge_device::MemDevice;
use kedge_format::FileKind;
use kedge_format::item::{SLOT_ORDINALS, name_slot};

/// 257 names with the same 55-bit hash cannot be found by trying, even with the key. So entries
/// with other names are put into all slots of one name's hash, and another entry into the next
/// slot, which belongs to another hash.
fn crowded(name: &[u8]) -> (FileSystem, u64) {
    let device = Arc::new(MemDevice::new(32 << 20));
    let clock = Arc::new(ManualClock::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default()).unwrap();
    let door = FileSystem::open(device, clock, MountOptions::default()).unwrap();
    let engine = door.fs.engine();
    let ino = door.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap().ino;
    let first = name_slot(&engine.store().geometry().hash_seed, name);
    for slot in first..=first + SLOT_ORDINALS {
        let mut handle =
            engine.begin(Need::record(Class::Normal).patches(2).puts(2, 300).deletes(2)).unwrap();
        let mut record = RecordBuilder::new(RecordOp::Link);
        door.fs.names().put_dentry(
            &mut record,
            Ino::ROOT,
            slot,
            ino,
            FileKind::Regular,
            format!("other{slot}").as_bytes(),
        );
        handle.commit(record).unwrap();
    }
    (door, first + SLOT_ORDINALS)
}

#[test]
fn a_name_whose_hash_has_no_slot_left_is_refused() {
    let (door, behind) = crowded(b"new");
    let no_space = |what: &str, result: Result<()>| match result {
        Err(Error::Engine(kedge_base::Error::NoSpace)) => {}
        other => panic!("{what}: {other:?}"),
    };
    let ino = door.lookup(Ino::ROOT, b"f").unwrap().ino;
    no_space("create", door.create(Ino::ROOT, b"new", 0o644, Owner::default()).map(drop));
    no_space("link", door.link(ino, Ino::ROOT, b"new").map(drop));
    for mode in [RenameMode::Replace, RenameMode::NoReplace] {
        no_space("rename", door.rename(Ino::ROOT, b"f", Ino::ROOT, b"new", mode));
    }
    assert_eq!(door.lookup(Ino::ROOT, b"f").unwrap().ino, ino, "the old name is still there");
    // The entry in the slot of the next hash was not overwritten.
    let value = door.fs.engine().store().get(Key::new(Ino::ROOT, ItemKind::Dentry, behind)).unwrap().unwrap();
    let entry = kedge_format::item::Dentry::decode(&value).unwrap();
    assert_eq!(entry.name, format!("other{behind}").as_bytes());
}

#[test]
fn an_attribute_whose_hash_has_no_slot_left_is_refused() {
    let (door, _) = crowded(b"new");
    let engine = door.fs.engine();
    let name = b"user.new";
    let first = name_slot(&engine.store().geometry().hash_seed, name);
    let value = |slot| format!("value{slot}").into_bytes();
    for slot in first..=first + SLOT_ORDINALS {
        let mut handle =
            engine.begin(Need::record(Class::Normal).patches(2).puts(2, 300).deletes(2)).unwrap();
        let mut record = RecordBuilder::new(RecordOp::Xattr);
        let other = kedge_format::item::Xattr { name: b"user.other", value: &value(slot) };
        record.put(Key::new(Ino::ROOT, ItemKind::Xattr, slot), &other.encode());
        handle.commit(record).unwrap();
    }
    let set = door.setxattr(Ino::ROOT, name, b"v", crate::XattrMode::Any);
    assert!(matches!(set, Err(Error::Engine(kedge_base::Error::NoSpace))), "{set:?}");
    let behind =
        engine.store().get(Key::new(Ino::ROOT, ItemKind::Xattr, first + SLOT_ORDINALS)).unwrap().unwrap();
    let kept = kedge_format::item::Xattr { name: b"user.other", value: &value(first + SLOT_ORDINALS) };
    assert_eq!(behind, kept.encode());
}

#[test]
fn a_directory_that_is_full_of_directories_takes_no_other() {
    let (door, _) = crowded(b"new");
    let mkdir = |dir, name: &[u8]| door.mkdir(dir, name, 0o755, Owner::default());
    let full = mkdir(Ino::ROOT, b"full").unwrap().ino;
    let inner = mkdir(full, b"inner").unwrap().ino;
    let outer = mkdir(Ino::ROOT, b"outer").unwrap().ino;
    let links = |ino| door.getattr(ino).unwrap().nlink;
    // The link count is set directly, since creating that many directories takes too long.
    door.fs.inodes().get(full).unwrap().meta.lock().core.nlink = LINKS_MAX;
    let into = |name: &[u8], mode| door.rename(Ino::ROOT, b"outer", full, name, mode);
    for result in [mkdir(full, b"one more").map(drop), into(b"one more", RenameMode::Replace)] {
        assert!(matches!(result, Err(Error::TooManyLinks)), "{result:?}");
    }
    assert_eq!(door.lookup(Ino::ROOT, b"outer").unwrap().ino, outer);
    assert_eq!((links(full), links(Ino::ROOT)), (LINKS_MAX, 4), "a refused rename changes no count");
    // The two names are both of directories, so the link count stays.
    into(b"inner", RenameMode::Exchange).unwrap();
    into(b"inner", RenameMode::Replace).unwrap();
    assert_eq!(door.lookup(full, b"inner").unwrap().ino, inner);
    assert_eq!((links(full), links(Ino::ROOT)), (LINKS_MAX, 3));
}
