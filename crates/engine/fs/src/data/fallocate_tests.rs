use super::*;
use crate::{FileSystem, FormatOptions, ManualClock, MountOptions, Owner};
use kedge_device::MemDevice;

fn fresh() -> FileSystem {
    let device = Arc::new(MemDevice::new(32 << 20));
    let clock = Arc::new(ManualClock::default());
    let options = FormatOptions { log_size: Some(2 << 20), ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock.clone(), &options).unwrap();
    FileSystem::open(device, clock, MountOptions::default()).unwrap()
}

/// An operation looks up an inode, and takes its locks only after the inode was deleted. It finds
/// nothing, allocates nothing, and leaves the file system unchanged.
#[test]
fn operations_on_an_inode_that_just_died_change_nothing() {
    type Operation = fn(&Files, &Arc<Inode>) -> Result<()>;
    let operations: [(&str, Operation); 7] = [
        ("allocate", |files, inode| files.preallocate(inode, 0, 1 << 20, false)),
        ("fill holes", |files, inode| files.fill_holes(inode, 0, 1 << 20)),
        ("punch", |files, inode| files.punch(inode, 100, 9000)),
        ("zero", |files, inode| files.unwrite(inode, 100, 9000, false)),
        ("collapse", |files, inode| files.shift_range(inode, 0, BLOCK, true)),
        ("insert", |files, inode| files.shift_range(inode, 0, BLOCK, false)),
        ("truncate", |files, inode| files.truncate(inode, 100)),
    ];
    let door = fresh();
    let (fs, files) = (&door.fs, door.fs.files());
    let store = fs.engine().store();
    for (name, operation) in operations {
        let ino = door.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap().ino;
        door.write(ino, 0, &[7; 20_000]).unwrap();
        door.sync().unwrap();
        let inode = fs.inodes().get(ino).unwrap();
        door.unlink(Ino::ROOT, b"f").unwrap();
        assert!(inode.meta.lock().dead);
        door.sync().unwrap();
        // A reservation makes blocks available that durable records have freed.
        let free = || {
            door.checkpoint().unwrap();
            drop(store.reserve_data(1).unwrap());
            store.alloc().available_data()
        };
        free();
        let before = free();
        let result = operation(files, &inode);
        assert!(matches!(result, Err(Error::NotFound)), "{name}: {result:?}");
        assert_eq!(free(), before, "{name} keeps blocks");
        assert!(inode.pages.lock().map.is_empty(), "{name} leaves pages in memory");
        files.accessed(&inode);
        assert!(!inode.meta.lock().listed, "a dead inode is on the dirty list");
        door.sync().unwrap_or_else(|e| panic!("after {name}: {e}"));
    }
    door.close().unwrap();
}

/// Extents that were allocated but are in no record are freed.
#[test]
fn extents_that_no_record_names_go_back() {
    let door = fresh();
    let store = door.fs.engine().store();
    let free = store.alloc().free_counts().free;
    let mut new = Taken { store, extents: Vec::new() };
    for _ in 0..3 {
        new.extents.push(store.alloc_data(store.data_goal(Ino(5), Ino(5)), 10, None).unwrap());
    }
    let taken: u64 = new.extents.iter().map(|e| e.blocks).sum();
    assert_eq!(store.alloc().free_counts().free, free - taken);
    drop(new);
    assert_eq!(store.alloc().free_counts().free, free);
}

/// Several threads delete the same orphan. Nothing of it stays in memory.
#[test]
fn nothing_remembers_an_orphan_that_is_gone() {
    let door = fresh();
    let ino = door.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap().ino;
    door.unlink(Ino::ROOT, b"f").unwrap();
    door.fs.files().orphaned(ino);
    assert!(door.fs.files().orphans().is_empty());
    let ino = door.tmpfile(Ino::ROOT, 0o644, Owner::default()).unwrap().ino;
    door.link(ino, Ino::ROOT, b"g").unwrap();
    door.unpin(ino, 1);
    door.fs.files().orphaned(ino);
    assert!(door.fs.files().orphans().is_empty());
    assert_eq!(door.getattr(ino).unwrap().nlink, 1);
}

/// A growth zeroes the rest of the last block in its record. If there is no record, the page is not
/// marked as logged: no writeback of log-resident data would ever find it.
#[test]
fn a_refused_growth_marks_no_page_as_logged() {
    let door = fresh();
    let dir = door.mkdir(Ino::ROOT, b"d", 0o755, Owner::default()).unwrap().ino;
    let ino = door.create(dir, b"f", 0o644, Owner::default()).unwrap().ino;
    door.write(ino, 0, &[7; 5000]).unwrap();
    door.sync().unwrap();
    let limit = crate::SetLimit { bytes: Some(Some(64 << 10)), ..crate::SetLimit::default() };
    door.set_limit(dir, limit).unwrap();
    let inode = door.fs.inodes().get(ino).unwrap();
    let refused = door.fallocate(ino, FallocateMode::Allocate { keep_size: false }, 0, 1 << 20).unwrap_err();
    assert!(matches!(refused, Error::OverLimit), "{refused}");
    let mut write = door.atomic(ino).unwrap();
    write.write_at(6000, &[8; 100_000]).unwrap();
    let refused = write.commit().unwrap_err();
    assert!(matches!(refused, Error::OverLimit), "{refused}");
    let pages = inode.pages.lock();
    assert_eq!((pages.logged_count(), pages.dirty_count(), pages.promised()), (0, 0, 0));
    drop(pages);
    door.fallocate(ino, FallocateMode::Allocate { keep_size: false }, 0, 20_000).unwrap();
    assert_eq!(inode.pages.lock().logged_count(), 1);
    door.close().unwrap();
}
