//! Deletions and truncates that fail halfway: when they are finished, and that they do not affect
//! other files meanwhile.
#![allow(clippy::disallowed_methods)]

use crate::common::failing::{Failing, PAGE};
use crate::common::images::{assert_clean, contents, errno};
use kedge_base::HANG;
use kedge_base::errno::EIO;
use kedge_device::sim::FaultPlan;
use kedge_format::{ItemKind, Key};
use kedgefs::*;
use std::time::Duration;

/// Number of extents of a file: more than three records of a deletion remove.
const EXTENTS: u64 = 2000;

/// Makes a durable file with a hole before each page.
fn sparse(device: &Failing, fs: &FileSystem) -> Ino {
    let ino = device.create(fs, b"sparse");
    for i in 1..=EXTENTS {
        fs.write(ino, 2 * i * PAGE as u64, &[1; PAGE]).unwrap();
    }
    fs.sync().unwrap();
    ino
}

/// A fault plan in which a leaf amid the extents of the file cannot be read.
fn unreadable(device: &Failing, ino: Ino) -> FaultPlan {
    device.unreadable(Key::new(ino, ItemKind::Extent, EXTENTS))
}

/// Options with a commit interval of 20 milliseconds.
fn hasty() -> MountOptions {
    MountOptions { commit: Duration::from_millis(20), ..Default::default() }
}

fn soon(holds: impl Fn() -> bool) -> bool {
    (0..HANG.as_millis() / 20).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        holds()
    })
}

#[test]
fn a_file_that_cannot_be_deleted_or_cut_keeps_no_other_from_a_mount() {
    for unlinked in [true, false] {
        let device = Failing::new();
        let fs = device.open();
        let kept = device.file(&fs, b"kept", 3);
        let ino = sparse(&device, &fs);
        fs.close().unwrap();
        let plan = unreadable(&device, ino);
        device.sim.set_plan(plan.clone());
        let fs = device.open();
        if unlinked {
            fs.unlink(Ino::ROOT, b"sparse").unwrap();
        } else {
            let empty = SetAttr { size: Some(0), ..SetAttr::default() };
            assert_eq!(errno(fs.setattr(ino, &empty)), EIO);
        }
        fs.close().unwrap();
        assert!(device.sim.struck() > 0);
        device.sim.set_plan(plan);
        let fs = device.open();
        assert!(device.sim.struck() > 0, "the mount did not try");
        assert_eq!(contents(&fs, kept), vec![b'0'; 3 * PAGE]);
        let new = device.file(&fs, b"new", 3);
        if !unlinked {
            // No cut-off byte shows: the file does not grow before its truncate is finished.
            assert_eq!(fs.getattr(ino).unwrap().size, 0);
            assert_eq!(errno(fs.write(ino, EXTENTS * PAGE as u64, b"x")), EIO);
        }
        fs.close().unwrap();
        device.sim.set_plan(FaultPlan::default());
        let fs = device.open();
        assert_eq!(contents(&fs, new), vec![b'0'; 3 * PAGE]);
        match fs.getattr(ino) {
            Err(e) => assert!(unlinked && matches!(e, Error::NotFound), "{e}"),
            Ok(attr) => assert_eq!((unlinked, attr.size, attr.blocks), (false, 0, 0)),
        }
        fs.close().unwrap();
        assert_clean(&device.sim.view());
    }
}

/// The next server of a mount with a keeper continues, although a nameless file that no program has
/// open cannot be deleted.
#[test]
fn a_file_that_cannot_be_deleted_keeps_no_server_from_serving() {
    let device = Failing::new();
    let fs = device.open();
    let ino = sparse(&device, &fs);
    fs.pin(ino).unwrap();
    fs.unlink(Ino::ROOT, b"sparse").unwrap();
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    drop(fs);
    device.sim.set_plan(unreadable(&device, ino));
    let again =
        FileSystem::open_again(device.sim.clone(), device.clock.clone(), hasty(), None, |_| Ok(())).unwrap();
    assert_eq!(again.delete_forgotten().unwrap(), 1);
    assert!(device.sim.struck() > 0);
    device.file(&again, b"new", 3);
    device.sim.set_plan(FaultPlan::default());
    assert!(soon(|| matches!(again.getattr(ino), Err(Error::NotFound))), "no second attempt");
    again.close().unwrap();
    assert_clean(&device.sim.view());
}

#[test]
fn a_deletion_that_failed_is_tried_again_after_a_commit_interval() {
    let device = Failing::new();
    let fs = device.open();
    let ino = sparse(&device, &fs);
    fs.close().unwrap();
    device.sim.set_plan(unreadable(&device, ino));
    let fs = device.open_with(hasty());
    let free = fs.statfs().blocks_free;
    fs.unlink(Ino::ROOT, b"sparse").unwrap();
    assert!(device.sim.struck() > 0);
    fs.getattr(ino).unwrap();
    // In a freeze nothing is written, so nothing is tried again.
    fs.freeze().unwrap();
    device.sim.set_plan(FaultPlan::default());
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(device.sim.op_counts().writes, 0);
    fs.getattr(ino).unwrap();
    fs.thaw().unwrap();
    assert!(soon(|| fs.statfs().blocks_free >= free + EXTENTS), "the space stays in use");
    assert!(matches!(fs.getattr(ino), Err(Error::NotFound)));
    fs.close().unwrap();
    assert_clean(&device.sim.view());
}
