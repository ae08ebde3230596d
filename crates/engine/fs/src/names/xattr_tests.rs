use super::*;
use crate::{FileSystem, FormatOptions, ManualClock, MountOptions, Owner};
use kedge_device::MemDevice;
use kedge_format::item::{SLOT_ORDINALS, name_slot};
use std::sync::Arc;

const ROOT: Ino = Ino::ROOT;
const NAME: &[u8] = b"user.large";

/// A file system, and the first slot of the hash of the attribute's name.
fn fresh() -> (FileSystem, u64) {
    let device = Arc::new(MemDevice::new(32 << 20));
    let clock = Arc::new(ManualClock::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default()).unwrap();
    let door = FileSystem::open(device, clock, MountOptions::default()).unwrap();
    let first = name_slot(&door.fs.engine().store().geometry().hash_seed, NAME);
    (door, first)
}

fn commit(door: &FileSystem, edit: impl FnOnce(&mut RecordBuilder)) {
    let mut handle =
        door.fs.engine().begin(Need::record(Class::Normal).patches(1).puts(1, 300).deletes(1)).unwrap();
    let mut record = RecordBuilder::new(RecordOp::Xattr);
    edit(&mut record);
    handle.commit(record).unwrap();
}

fn key(slot: u64) -> Key {
    Key::new(ROOT, ItemKind::Xattr, slot)
}

/// Puts another attribute into a slot, as if its name had the same hash.
fn occupy(door: &FileSystem, slot: u64) {
    let name = format!("user.other{slot}");
    let xattr = Xattr { name: name.as_bytes(), value: b"other" };
    commit(door, |record| record.put(key(slot), &xattr.encode()));
}

fn head_slot(door: &FileSystem) -> u64 {
    door.fs.names().find_xattr(ROOT, NAME).unwrap().at()
}

#[test]
fn a_value_takes_slots_in_a_row_and_no_others_slots() {
    let (door, first) = fresh();
    let set = |len: usize| door.setxattr(ROOT, NAME, &vec![7; len], XattrMode::Any);
    let others = [first, first + 3, first + 20];
    others.into_iter().for_each(|slot| occupy(&door, slot));
    // Bytes of the value, and the slot of the attribute. It moves only if the value gets longer: to
    // the first run of slots that is long enough.
    for (len, slot) in [(10, 1), (5000, 4), (65536, 21), (60_000, 21), (10, 21), (5000, 4), (65536, 21)] {
        set(len).unwrap();
        assert_eq!(door.getxattr(ROOT, NAME).unwrap(), vec![7; len]);
        assert_eq!(head_slot(&door), first + slot, "{len} bytes");
        let mut count = 0;
        let mut visit = |_, _: &[u8]| {
            count += 1;
            ControlFlow::Continue(())
        };
        door.fs.engine().store().scan(key(0), key(u64::MAX), &mut visit).unwrap();
        assert_eq!(count, others.len() as u64 + xattr_slots(len), "{len} bytes: items");
    }
    assert_eq!(door.listxattr(ROOT).unwrap().len(), others.len() + 1);
    door.removexattr(ROOT, NAME).unwrap();
    // No run of seventeen free slots is left.
    (first..first + SLOT_ORDINALS).step_by(16).for_each(|slot| occupy(&door, slot));
    let full = set(65536);
    assert!(matches!(full, Err(Error::Engine(kedge_base::Error::NoSpace))), "{full:?}");
    set(9000).unwrap();
}

/// After a missing part the next slot may belong to another attribute, and a record that deletes a
/// missing item would shut the file system down.
#[test]
fn a_value_that_lacks_a_part_is_neither_read_nor_replaced_nor_removed() {
    let (door, first) = fresh();
    door.setxattr(ROOT, NAME, &[7; 20_000], XattrMode::Any).unwrap();
    commit(&door, |record| record.delete(key(first + 2)));
    for other in [false, true] {
        if other {
            occupy(&door, first + 2);
        }
        let results = [
            door.getxattr(ROOT, NAME).map(drop),
            door.setxattr(ROOT, NAME, b"small", XattrMode::Any),
            door.setxattr(ROOT, NAME, &[8; 65536], XattrMode::Any),
            door.removexattr(ROOT, NAME),
        ];
        for result in results {
            assert!(matches!(result, Err(Error::Engine(kedge_base::Error::Corrupt { .. }))), "{result:?}");
        }
        door.setxattr(ROOT, b"user.x", b"the file system goes on", XattrMode::Any).unwrap();
    }
    assert_eq!(door.listxattr(ROOT).unwrap().len(), 3);
}

/// As on ext4 the attributes of a file are bounded; the present ones can be replaced and removed.
/// Each list of a file fits listxattr(2).
#[test]
fn a_file_has_a_bounded_amount_of_attributes() {
    let (fs, _) = fresh();
    let file = fs.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap().ino;
    let set = |name: &str, value: &[u8]| fs.setxattr(file, name.as_bytes(), value, XattrMode::Any);
    let is_full = |answer: crate::Result<()>| answer.is_err_and(|e| e.errno() == kedge_base::errno::ENOSPC);
    // Each name has 256 bytes with its terminating byte.
    let name = |n: usize| format!("user.{n:0250}");
    for n in 0..256 {
        set(&name(n), b"").unwrap();
    }
    assert!(is_full(set("user.x", b"")));
    assert!(is_full(fs.setxattr(file, b"trusted.x", b"", XattrMode::Create)));
    set(&name(7), b"another value").unwrap();
    fs.removexattr(file, name(8).as_bytes()).unwrap();
    set("user.x", b"").unwrap();
    let list = fs.listxattr(file).unwrap();
    assert_eq!(list.len(), 256);
    assert!(list.iter().map(|name| name.len() + 1).sum::<usize>() <= NAMES_MAX);

    let other = fs.create(Ino::ROOT, b"g", 0o644, Owner::default()).unwrap().ino;
    let set = |n: u32, len: usize| {
        fs.setxattr(other, format!("user.{n}").as_bytes(), &vec![n as u8; len], XattrMode::Any)
    };
    for n in 0..16 {
        set(n, 65_536).unwrap();
    }
    assert!(is_full(set(16, 1)));
    set(3, 100).unwrap();
    set(16, 1).unwrap();
    assert!(is_full(set(3, 65_536)));
    assert_eq!(fs.getxattr(other, b"user.3").unwrap(), [3; 100]);
    let mut seen = 0;
    fs.list_xattrs(other, &mut |_| {
        seen += 1;
        seen < 5
    })
    .unwrap();
    assert_eq!(seen, 5);
}
