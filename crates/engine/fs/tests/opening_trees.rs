//! A tree is opened while another thread makes and deletes trees.

use crate::common::watched::{Watch, Watched};
use kedge_base::{HANG, spawn_named};
use kedge_device::{Device, MemDevice};
use kedge_fsck::{CheckOptions, StoreReplay};
use kedgefs::*;
use parking_lot::Mutex;
use std::sync::{Arc, mpsc};

const FILES: u32 = 400;

type Work = Box<dyn FnOnce() + Send>;

/// A device that runs some work before its next read.
struct Beside {
    inner: MemDevice,
    work: Mutex<Option<Work>>,
}

impl Watch for Beside {
    fn device(&self) -> &dyn Device {
        &self.inner
    }

    /// Runs the work in another thread, because the reading thread may be inside the gate.
    fn before_read(&self, _offset: u64) {
        let Some(work) = self.work.lock().take() else { return };
        let (done, wait) = mpsc::channel();
        let thread = spawn_named("beside", move || {
            work();
            done.send(()).unwrap();
        });
        wait.recv_timeout(HANG).expect("the work waits for the thread that reads");
        thread.unwrap().join().unwrap();
    }
}

fn open(device: &Arc<Watched<Beside>>) -> FileSystem {
    FileSystem::open(device.clone(), Arc::new(ManualClock::default()), MountOptions::default()).unwrap()
}

fn fill(fs: &FileSystem, dir: Ino, prefix: &str) {
    for i in 0..FILES {
        fs.create(dir, format!("{prefix}{i}").as_bytes(), 0o644, Owner::default()).unwrap();
    }
}

/// An image with a tree `tree` and its fork `fork`. Each has nodes that the other does not have.
fn image() -> Arc<Watched<Beside>> {
    let inner = MemDevice::new(64 << 20);
    let device = Arc::new(Watched(Beside { inner, work: Mutex::new(None) }));
    FileSystem::format(device.clone(), Arc::new(ManualClock::default()), &FormatOptions::default()).unwrap();
    let fs = open(&device);
    let tree = fs.fork(Ino::ROOT, Ino::ROOT, b"tree", false).unwrap().ino;
    fill(&fs, tree, "old");
    let fork = fs.fork(tree, Ino::ROOT, b"fork", false).unwrap().ino;
    fill(&fs, fork, "new");
    fs.create(tree, b"new", 0o644, Owner::default()).unwrap();
    fs.close().unwrap();
    device
}

/// While `tree` is opened, its fork is deleted, and the point of both ends: what the point owned
/// now belongs to `tree`. If `tree` kept its old marks, it would not free what it has inherited.
#[test]
fn a_tree_that_is_opened_while_its_point_ends_frees_what_it_inherits() {
    let device = image();
    let fs = open(&device);
    let beside = fs.clone();
    *device.work.lock() = Some(Box::new(move || {
        beside.delete_tree(Ino::ROOT, b"fork").unwrap();
        beside.reclaim().unwrap();
    }));
    let tree = fs.lookup(Ino::ROOT, b"tree").unwrap().ino;
    let old = |i: u32| format!("old{i}");
    fs.lookup(tree, old(0).as_bytes()).unwrap();
    assert!(device.work.lock().is_none(), "no read: the tree was open already");
    for i in 0..FILES {
        fs.unlink(tree, old(i).as_bytes()).unwrap();
    }
    fs.close().unwrap();
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
    let report = kedge_fsck::check(Arc::new(device.inner.fork()), &options);
    assert!(report.is_clean() && report.warnings == 0, "{report}");
}

/// Between the read of a tree's root and the end of the open, another thread opens the tree and
/// changes it, and a cut moves the root. The tree exists, so the first thread must find it.
#[test]
fn a_tree_that_is_opened_while_its_root_moves_is_found() {
    let device = image();
    let fs = open(&device);
    let tree = fs.lookup(Ino::ROOT, b"tree").unwrap().ino;
    let old = fs.lookup(tree, b"old0").unwrap().ino;
    fs.close().unwrap();
    let fs = open(&device);
    let beside = fs.clone();
    *device.work.lock() = Some(Box::new(move || {
        beside.create(tree, b"x", 0o644, Owner::default()).unwrap();
        beside.checkpoint().unwrap();
    }));
    // The threads need different inodes, so that neither waits until the other has read one.
    assert_eq!(fs.getattr(old).unwrap().ino, old);
    assert!(device.work.lock().is_none(), "no read: the tree was open already");
    fs.lookup(tree, b"x").unwrap();
    fs.close().unwrap();
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
    let report = kedge_fsck::check(Arc::new(device.inner.fork()), &options);
    assert!(report.is_clean() && report.warnings == 0, "{report}");
}
