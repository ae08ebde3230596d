use super::*;
use crate::{FileSystem, FormatOptions, ManualClock, MountOptions};
use kedge_device::MemDevice;
use kedge_format::item::{SLOT_ORDINALS, name_slot};
use std::sync::Arc;

const ROOT: Ino = Ino::ROOT;
const NAME: &[u8] = b"user.large";

/// A file system, and the first slot of the name's hash.
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
    // Bytes, and the slot of the attribute: it moves only if the value gets longer, to the first
    // row of slots that is long enough.
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
    // No row of seventeen is left.
    (first..first + SLOT_ORDINALS).step_by(16).for_each(|slot| occupy(&door, slot));
    let full = set(65536);
    assert!(matches!(full, Err(Error::Engine(kedge_base::Error::NoSpace))), "{full:?}");
    set(9000).unwrap();
}

/// The slots behind its own may be another attribute's then, and a record that removes what is not
/// there would shut the file system down.
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
