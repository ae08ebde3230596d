//! Forks and snapshots as clients see them.

use crate::common::*;
use kedge_base::ManualClock;
use kedge_nfs::{Limits, Rights, Server, Squash};
use kedgefs::{FileSystem, Ino, MountOptions};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

/// Forks and snapshots of an image are directories to a client, and a client can mount each of
/// them.
#[test]
fn trees_are_directories_whose_handles_outlive_the_server() {
    let device = formatted(64 << 20);
    let mut rig = Rig::on(open(device.clone()), Squash::None);
    let (f, _) = rig.client.create(&rig.root, "f", &mode(0o644)).unwrap();
    rig.client.write(&f, 0, b"before", FILE_SYNC).unwrap();
    for (name, read_only) in [(b"work".as_slice(), false), (b"monday", true)] {
        rig.fs.fork(Ino::ROOT, Ino::ROOT, name, read_only).unwrap();
    }
    let (c, root) = (&mut rig.client, &rig.root);
    let (work, monday) = (c.mount("/work").unwrap(), c.mount("/monday").unwrap());
    assert_eq!(c.lookup(root, "work").unwrap().0, work);
    assert_eq!(c.lookup(&work, "..").unwrap().0, *root);
    let listed = c.list(root, 8192, true);
    let of_work = listed.iter().find(|entry| entry.name == "work").unwrap();
    assert_eq!(of_work.handle.as_ref(), Some(&work));
    let (in_work, _) = c.lookup(&work, "f").unwrap();
    c.write(&in_work, 0, b"after!", FILE_SYNC).unwrap();
    assert_eq!(c.read(&f, 0, 9).unwrap().0, b"before");
    assert_eq!(c.rename((root, "f"), (&work, "g")), XDEV);
    c.mkdir(root, "d", &mode(0o755)).unwrap();
    assert_eq!(c.rename((root, "d"), (root, "work")), ACCES, "the name of a fork");
    let (in_monday, _) = c.lookup(&monday, "f").unwrap();
    assert_eq!(c.create(&monday, "g", &mode(0o600)).err(), Some(ROFS));
    assert_eq!(c.write(&in_monday, 0, b"x", UNSTABLE).err(), Some(ROFS));
    const CHANGES: u32 = 0x04 | 0x08 | 0x10;
    assert_eq!(c.access(&in_monday).unwrap() & CHANGES, 0);
    assert_eq!(c.access(&monday).unwrap() & CHANGES, 0);
    assert_ne!(c.access(&in_work).unwrap() & CHANGES, 0);
    rig.die();
    let mut rig = Rig::on(open(device), Squash::None);
    assert_eq!(rig.client.read(&in_work, 0, 9).unwrap().0, b"after!");
    assert_eq!(rig.client.read(&in_monday, 0, 9).unwrap().0, b"before");
    rig.fs.delete_tree(Ino::ROOT, b"work").unwrap();
    for gone in [&work, &in_work] {
        assert_eq!(rig.client.getattr(gone), Err(STALE));
        assert_eq!(rig.client.read(gone, 0, 9).err(), Some(STALE));
        assert_eq!(rig.client.create(gone, "g", &mode(0o600)).err(), Some(STALE));
    }
    assert_eq!(rig.client.mount("/work"), Err(NOENT));
    rig.end();
}

/// A fork with the number of a deleted one has the same inode numbers and creation times.
#[test]
fn a_handle_of_a_deleted_tree_names_nothing_in_the_next_tree_of_its_number() {
    let (device, clock) = (formatted(64 << 20), Arc::new(ManualClock::default()));
    let open = || FileSystem::open(device.clone(), clock.clone(), MountOptions::default()).unwrap();
    let mut rig = Rig::on(open(), Squash::None);
    rig.client.create(&rig.root, "f", &mode(0o644)).unwrap();
    let first = rig.fs.fork(Ino::ROOT, Ino::ROOT, b"work", false).unwrap().ino;
    let work = rig.client.mount("/work").unwrap();
    let (in_work, _) = rig.client.lookup(&work, "f").unwrap();
    rig.fs.delete_tree(Ino::ROOT, b"work").unwrap();
    rig.fs.reclaim().unwrap();
    rig.end();
    clock.advance(Duration::from_secs(1));
    let mut rig = Rig::on(open(), Squash::None);
    assert_eq!(rig.fs.fork(Ino::ROOT, Ino::ROOT, b"work", false).unwrap().ino, first, "the same number");
    assert_eq!(rig.client.getattr(&work), Err(STALE));
    assert_eq!(rig.client.getattr(&in_work), Err(STALE));
    let again = rig.client.mount("/work").unwrap();
    assert_eq!(rig.client.lookup(&again, "f").unwrap().0[20..28], in_work[20..28]);
    rig.end();
}

/// From a tree that is exported alone, no name and no handle leads to another tree.
#[test]
fn a_tree_is_served_alone() {
    let mut all = Rig::new();
    let (f, _) = all.client.create(&all.root, "f", &mode(0o644)).unwrap();
    let work = all.fs.fork(Ino::ROOT, Ino::ROOT, b"work", false).unwrap().ino;
    all.fs.fork(work, work, b"inner", false).unwrap();
    all.fs.fork(Ino::ROOT, Ino::ROOT, b"outside", false).unwrap();
    let outside = all.client.mount("/outside").unwrap();
    let inner = all.client.mount("/work/inner").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let shown = Rights { tree: work, ..rights(Squash::None) };
    let server = Server::start(all.fs.clone(), listener, shown, Limits::default()).unwrap();
    let mut c = Client::of(server.address(), 0, 0, &[]);
    let root = c.root();
    assert_eq!(c.getattr(&root).unwrap().ino, work.0);
    assert_eq!(c.lookup(&root, "..").unwrap().0, root);
    let dots = c.list(&root, 8192, true).into_iter().filter(|entry| entry.name.starts_with('.'));
    assert_eq!(dots.map(|entry| entry.ino).collect::<Vec<_>>(), [work.0, work.0]);
    assert_eq!(c.mount("/inner"), Ok(inner.clone()));
    assert_eq!(c.lookup(&root, "inner").unwrap().0, inner);
    assert_eq!(c.lookup(&inner, "..").unwrap().0, root);
    for handle in [&all.root, &f, &outside] {
        assert!(all.client.getattr(handle).is_ok());
        assert_eq!(c.getattr(handle), Err(STALE));
        assert_eq!(c.setattr(handle, &mode(0o777)), STALE);
    }
    assert_eq!(c.mount("/outside"), Err(NOENT));
    drop(c);
    server.stop();
    all.end();
}
