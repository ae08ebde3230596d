//! Each procedure and its errors.

use crate::common::*;
use kedgefs::{FileFlags, Ino, MountOptions, Owner, SetLimit};
use std::time::Duration;

#[test]
fn a_file_is_made_written_committed_and_read() {
    let mut rig = Rig::new();
    let (c, root) = (&mut rig.client, &rig.root);
    let (file, attr) = c.create(root, "greeting", &mode(0o640)).unwrap();
    assert_eq!((attr.kind, attr.mode, attr.nlink, attr.size), (1, 0o640, 1, 0));
    let written = c.write(&file, 0, b"hello", UNSTABLE).unwrap();
    assert_eq!((written.count, written.committed), (5, UNSTABLE));
    assert_eq!(c.commit(&file), Ok(written.verifier));
    for stable in [DATA_SYNC, FILE_SYNC] {
        let written = c.write(&file, 5, b", world", stable).unwrap();
        assert_eq!((written.count, written.committed), (7, stable));
    }
    assert_eq!(c.read(&file, 0, 100), Ok((b"hello, world".to_vec(), true)));
    assert_eq!(c.read(&file, 7, 3), Ok((b"wor".to_vec(), false)));
    assert_eq!(c.read(&file, 12, 3), Ok((Vec::new(), true)));
    assert_eq!(c.read(&file, u64::MAX, 3), Ok((Vec::new(), true)));
    let attr = c.getattr(&file).unwrap();
    assert_eq!(c.lookup(root, "greeting"), Ok((file.clone(), attr)));
    assert_eq!((attr.size, attr.kind), (12, 1));
    assert!(attr.used >= 12);
    assert_eq!(c.write(&file, u64::MAX - 2, b"abc", UNSTABLE).err(), Some(FBIG));
    assert_eq!(c.write(root, 0, b"abc", UNSTABLE).err(), Some(ISDIR));
    assert_eq!(c.read(root, 0, 1).err(), Some(ISDIR));
    assert_eq!(c.commit(root).err(), Some(ISDIR));
    rig.end();
}

#[test]
fn create_has_three_ways() {
    let mut rig = Rig::new();
    let (c, root) = (&mut rig.client, &rig.root);
    let (file, _) = c.create_guarded(root, "f", &mode(0o600)).unwrap();
    c.write(&file, 0, b"12345", FILE_SYNC).unwrap();
    assert_eq!(c.create_guarded(root, "f", &mode(0o600)).err(), Some(EXIST));
    // CREATE with UNCHECKED keeps mode and data of an existing file; it truncates only if a size is
    // given.
    let (same, attr) = c.create(root, "f", &mode(0o777)).unwrap();
    assert_eq!((&same, attr.mode, attr.size), (&file, 0o600, 5));
    assert_eq!(c.create(root, "f", &size(0)).unwrap().1.size, 0);
    c.mkdir(root, "d", &mode(0o755)).unwrap();
    assert_eq!(c.create(root, "d", &mode(0o600)).err(), Some(EXIST));
    for name in [".", ".."] {
        assert_eq!(c.create(root, name, &mode(0o600)).err(), Some(EXIST));
    }
    for name in ["", "a/b", "a\0"] {
        assert_eq!(c.create(root, name, &mode(0o600)).err(), Some(INVAL));
    }
    assert_eq!(c.create(root, &"x".repeat(256), &mode(0o600)).err(), Some(NAMETOOLONG));
    assert_eq!(c.create(&file, "x", &mode(0o600)).err(), Some(NOTDIR));
    rig.end();
}

/// Another door to the file system makes the name after the server has not found it. During a
/// freeze both creations wait, so that after the thaw either may be the first.
#[test]
fn an_unchecked_create_opens_what_another_door_makes_meanwhile() {
    let mut rig = Rig::new();
    let mut first = 0;
    for round in 0..16 {
        let name = format!("f{round}");
        rig.fs.freeze().unwrap();
        let (made, opened) = std::thread::scope(|threads| {
            let (fs, root, client) = (&rig.fs, &rig.root, &mut rig.client);
            let other = threads.spawn(|| fs.create(Ino::ROOT, name.as_bytes(), 0o600, Owner::default()));
            let server = threads.spawn(|| client.create(root, &name, &mode(0o644)));
            kedge_base::pause(Duration::from_millis(20));
            fs.thaw().unwrap();
            (other.join().unwrap(), server.join().unwrap())
        });
        let (_, attr) = opened.expect("the file exists, or is made");
        match made {
            Ok(made) => {
                assert_eq!((attr.ino, attr.mode), (made.ino.0, 0o600));
                first += 1;
            }
            Err(e) => assert!(matches!(e, kedgefs::Error::Exists), "{e}"),
        }
    }
    assert!(first > 0, "the other door must have been the first at least once");
    rig.end();
}

#[test]
fn an_exclusive_create_is_recognised_when_it_is_repeated() {
    let device = formatted(64 << 20);
    let mut rig = Rig::on(open(device.clone()), kedge_nfs::Squash::None);
    let verifier = [0xff, 1, 2, 3, 4, 5, 6, 7];
    let (file, attr) = rig.client.create_exclusive(&rig.root, "f", verifier).unwrap();
    assert_eq!((attr.size, attr.nlink), (0, 1));
    assert_eq!(rig.client.create_exclusive(&rig.root, "f", verifier).unwrap().0, file);
    assert_eq!(rig.client.create_exclusive(&rig.root, "f", [9; 8]).err(), Some(EXIST));
    // The server crashes and restarts.
    rig.die();
    let mut rig = Rig::on(open(device), kedge_nfs::Squash::None);
    assert_eq!(rig.client.create_exclusive(&rig.root, "f", verifier).unwrap().0, file);
    assert_eq!(rig.client.create_exclusive(&rig.root, "f", [9; 8]).err(), Some(EXIST));
    let times = Set { mode: Some(0o644), atime: Some(Time::Now), mtime: Some(Time::Now), ..Set::default() };
    assert_eq!(rig.client.setattr(&file, &times), OK);
    assert_eq!(rig.client.create_exclusive(&rig.root, "f", verifier).err(), Some(EXIST));
    rig.end();
}

#[test]
fn attributes_are_set_with_and_without_a_guard() {
    let mut rig = Rig::new();
    let (c, root) = (&mut rig.client, &rig.root);
    let (file, before) = c.create(root, "f", &mode(0o644)).unwrap();
    let all = Set {
        mode: Some(0o4711),
        uid: Some(7),
        gid: Some(8),
        size: Some(1000),
        atime: Some(Time::At(11, 12)),
        mtime: Some(Time::At(13, 14)),
    };
    let (status, around) = c.setattr_guarded(&file, &all, Some(before.ctime));
    assert_eq!(status, OK);
    assert_eq!(around.before, Some((0, before.mtime, before.ctime)));
    let attr = around.after.unwrap();
    assert_eq!((attr.mode, attr.uid, attr.gid, attr.size), (0o4711, 7, 8, 1000));
    assert_eq!((attr.atime, attr.mtime), ((11, 12), (13, 14)));
    let stale_guard = Some((before.ctime.0.wrapping_sub(5), 0));
    assert_eq!(c.setattr_guarded(&file, &mode(0), stale_guard).0, NOT_SYNC);
    let bad_time = Set { atime: Some(Time::At(1, 1_000_000_000)), ..Set::default() };
    assert_eq!(c.setattr(&file, &bad_time), INVAL);
    assert_eq!(c.setattr(root, &size(0)), ISDIR);
    // A change of owner clears set-user-id.
    assert_eq!(c.setattr(&file, &Set { uid: Some(9), ..Set::default() }), OK);
    assert_eq!(c.getattr(&file).unwrap().mode, 0o711);
    assert_eq!(c.setattr(&file, &size(u64::MAX)), FBIG);
    rig.end();
}

#[test]
fn directories_links_and_nodes() {
    let mut rig = Rig::new();
    let (c, root) = (&mut rig.client, &rig.root);
    let (dir, attr) = c.mkdir(root, "d", &mode(0o750)).unwrap();
    assert_eq!((attr.kind, attr.mode, attr.nlink), (2, 0o750, 2));
    assert_eq!(c.mkdir(root, "d", &mode(0o750)).err(), Some(EXIST));
    let (link, attr) = c.symlink(&dir, "l", b"../somewhere").unwrap();
    assert_eq!(attr.kind, 5);
    assert_eq!(c.readlink(&link), Ok(b"../somewhere".to_vec()));
    assert_eq!(c.readlink(&dir), Err(INVAL));
    assert_eq!(c.read(&link, 0, 1), Err(INVAL));
    assert_eq!(c.symlink(&dir, "m", b"").err(), Some(NOENT));
    assert_eq!(c.symlink(&dir, "m", &[b'x'; 4096]).err(), Some(NAMETOOLONG));
    for (name, kind, numbers) in [("b", 3, (8, 300)), ("c", 4, (1, 3)), ("s", 6, (0, 0)), ("p", 7, (0, 0))] {
        let (_, attr) = c.mknod(&dir, name, kind, numbers).unwrap();
        assert_eq!((attr.kind, attr.rdev, attr.mode), (kind, numbers, 0o600));
    }
    assert_eq!(c.mknod(&dir, "x", 1, (0, 0)).err(), Some(BADTYPE));
    assert_eq!(c.mknod(&dir, "x", 3, (1 << 12, 0)).err(), Some(INVAL));
    let (file, _) = c.create(&dir, "f", &mode(0o644)).unwrap();
    let (status, attr) = c.link(&file, root, "hard");
    assert_eq!((status, attr.unwrap().nlink), (OK, 2));
    assert_eq!(c.link(&file, root, "hard").0, EXIST);
    assert_eq!(c.link(&dir, root, "again").0, PERM);
    assert_eq!(c.rmdir(root, "d"), NOTEMPTY);
    assert_eq!(c.rmdir(root, "hard"), NOTDIR);
    assert_eq!(c.remove(root, "d"), ISDIR);
    assert_eq!(c.remove(root, "none"), NOENT);
    assert_eq!(c.remove(root, "."), INVAL);
    for name in ["l", "b", "c", "s", "p", "f"] {
        assert_eq!(c.remove(&dir, name), OK, "{name}");
    }
    assert_eq!(c.rmdir(root, "d"), OK);
    assert_eq!(c.getattr(&dir), Err(STALE));
    assert_eq!(c.getattr(&file).unwrap().nlink, 1);
    assert_eq!(c.remove(root, "hard"), OK);
    assert_eq!(c.getattr(&file), Err(STALE));
    assert_eq!(c.read(&file, 0, 1), Err(STALE));
    assert_eq!(c.write(&file, 0, b"x", UNSTABLE).err(), Some(STALE));
    rig.end();
}

#[test]
fn a_rename_moves_and_replaces() {
    let mut rig = Rig::new();
    let (c, root) = (&mut rig.client, &rig.root);
    let (a, _) = c.mkdir(root, "a", &mode(0o755)).unwrap();
    let (b, _) = c.mkdir(root, "b", &mode(0o755)).unwrap();
    let (one, _) = c.create(&a, "one", &mode(0o644)).unwrap();
    let (two, _) = c.create(&b, "two", &mode(0o644)).unwrap();
    assert_eq!(c.rename((&a, "one"), (&b, "two")), OK);
    assert_eq!(c.lookup(&b, "two").unwrap().0, one);
    assert_eq!(c.getattr(&two), Err(STALE));
    assert_eq!(c.rename((&a, "one"), (&b, "two")), NOENT);
    assert_eq!(c.rename((root, "a"), (&a, "inside")), INVAL);
    assert_eq!(c.rename((root, "a"), (root, "b")), NOTEMPTY);
    assert_eq!(c.rename((&b, "two"), (root, "a")), ISDIR);
    assert_eq!(c.rename((root, "a"), (&b, "two")), NOTDIR);
    assert_eq!(c.rename((root, ".."), (&b, "x")), INVAL);
    assert_eq!(c.rename((&b, "two"), (&b, "three")), OK);
    assert_eq!(c.rename((root, "a"), (&b, "moved")), OK);
    assert_eq!(c.lookup(&a, "..").unwrap().0, b);
    rig.end();
}

#[test]
fn a_directory_is_listed_in_pages_that_survive_changes() {
    let mut rig = Rig::new();
    let (c, root) = (&mut rig.client, &rig.root);
    let (dir, _) = c.mkdir(root, "d", &mode(0o755)).unwrap();
    let mut names: Vec<String> = (0..300).map(|n| format!("file-{n}")).collect();
    for name in &names {
        c.create(&dir, name, &mode(0o644)).unwrap();
    }
    names.extend([".".into(), "..".into()]);
    names.sort();
    for (bytes, plus) in [(1000, false), (1000, true), (1 << 20, false), (1 << 20, true)] {
        let listed = c.list(&dir, bytes, plus);
        let mut found: Vec<String> = listed.iter().map(|entry| entry.name.clone()).collect();
        found.sort();
        assert_eq!(found, names, "in pages of {bytes}");
        for entry in listed.iter().filter(|_| plus) {
            assert_eq!(entry.attr.unwrap().ino, entry.ino);
            assert_eq!(c.getattr(entry.handle.as_ref().unwrap()).unwrap().ino, entry.ino);
        }
    }
    // Listing continues after the entries already listed are removed.
    let (page, end) = c.page(&dir, 0, 1000, false).unwrap();
    assert!(!end);
    for entry in page.iter().filter(|entry| !entry.name.starts_with('.')) {
        assert_eq!(c.remove(&dir, &entry.name), OK);
    }
    let mut cookie = page.last().unwrap().cookie;
    let mut seen: Vec<String> = page.into_iter().map(|entry| entry.name).collect();
    loop {
        let (page, end) = c.page(&dir, cookie, 1000, true).unwrap();
        cookie = page.last().map_or(cookie, |entry| entry.cookie);
        seen.extend(page.into_iter().map(|entry| entry.name));
        if end {
            break;
        }
    }
    seen.sort();
    assert_eq!(seen, names);
    assert_eq!(c.page(&dir, 0, 110, false).err(), Some(TOOSMALL));
    let mut r = c.nfs(16, args().bytes(&dir).u64(0).u64(77).u32(1000));
    assert_eq!(r.u32(), BAD_COOKIE);
    let (file, _) = c.create(root, "f", &mode(0o644)).unwrap();
    assert_eq!(c.page(&file, 0, 1000, true).err(), Some(NOTDIR));
    rig.end();
}

#[test]
fn the_figures_of_the_file_system() {
    let mut rig = Rig::new();
    let stat = rig.fs.statfs();
    let (c, root) = (&mut rig.client, &rig.root);
    let mut r = c.nfs(18, args().bytes(root));
    assert_eq!(r.u32(), OK);
    r.post_op().unwrap();
    let figures: Vec<u64> = (0..6).map(|_| r.u64()).collect();
    let bytes = |blocks: u64| blocks * u64::from(stat.block_size);
    assert_eq!(figures[0], bytes(stat.blocks));
    assert!(figures[1] >= figures[2] && figures[2] > 0 && figures[0] > figures[1]);
    assert_eq!(r.u32(), 0);
    r.end();
    let mut r = c.nfs(19, args().bytes(root));
    assert_eq!(r.u32(), OK);
    r.post_op().unwrap();
    let sizes: Vec<u32> = (0..7).map(|_| r.u32()).collect();
    assert_eq!(sizes[0], 256 << 10);
    // A file can have the announced largest size, and no larger one.
    let largest = r.u64();
    let (file, _) = c.create(root, "f", &mode(0o644)).unwrap();
    assert_eq!(c.setattr(&file, &size(largest)), OK);
    assert_eq!(c.setattr(&file, &size(largest + 1)), FBIG);
    let whole = vec![7; sizes[3] as usize];
    assert_eq!(c.write(&file, 0, &whole, UNSTABLE).unwrap().count, sizes[3]);
    assert_eq!(c.read(&file, 0, u32::MAX).unwrap().0, whole);
    let mut r = c.nfs(20, args().bytes(root));
    assert_eq!(r.u32(), OK);
    r.post_op().unwrap();
    assert_eq!((r.u32(), r.u32()), (65000, 255));
    assert_eq!((r.u32(), r.u32(), r.u32(), r.u32()), (1, 1, 0, 1));
    r.end();
    rig.end();
}

#[test]
fn handles_of_others_and_of_the_dead_are_refused() {
    let mut rig = Rig::new();
    let mut other = Rig::new();
    let (c, root) = (&mut rig.client, &rig.root);
    assert_eq!(c.getattr(&other.root), Err(STALE), "another image");
    assert_eq!(c.getattr(b""), Err(BADHANDLE));
    assert_eq!(c.getattr(&[0; 64]), Err(BADHANDLE));
    assert_eq!(c.getattr(&root[..35]), Err(BADHANDLE));
    for (at, status) in [(0, BADHANDLE), (4, STALE), (27, STALE), (35, STALE)] {
        let mut changed = root.clone();
        changed[at] ^= 1;
        assert_eq!(c.getattr(&changed), Err(status), "byte {at}");
    }
    // An inode number that no file has gets an error.
    for ino in [0, 2, 1 << 32, u64::MAX - 1, u64::MAX] {
        let mut changed = root.clone();
        changed[20..28].copy_from_slice(&u64::to_be_bytes(ino));
        assert_eq!(c.getattr(&changed), Err(STALE), "inode {ino}");
    }
    // The library holds a file open that has no name.
    let hidden = rig.fs.tmpfile(Ino::ROOT, 0o600, NOBODY).unwrap();
    let (named, _) = c.create(root, "f", &mode(0o600)).unwrap();
    let mut guess = named.clone();
    guess[20..28].copy_from_slice(&hidden.ino.0.to_be_bytes());
    let time = hidden.btime.sec as u64 * 1_000_000_000 + u64::from(hidden.btime.nsec);
    guess[28..].copy_from_slice(&time.to_be_bytes());
    assert_eq!(c.getattr(&guess), Err(STALE));
    rig.fs.unpin(hidden.ino, 1);
    // `..` of the root is the root.
    assert_eq!(c.lookup(root, "..").unwrap().0, *root);
    assert_eq!(other.client.getattr(&other.root).unwrap().kind, 2);
    rig.end();
    other.end();
}

#[test]
fn the_mount_protocol_names_directories() {
    let mut rig = Rig::new();
    let (c, root) = (&mut rig.client, &rig.root);
    let (d, _) = c.mkdir(root, "d", &mode(0o755)).unwrap();
    c.create(root, "f", &mode(0o644)).unwrap();
    c.symlink(root, "l", b"/d").unwrap();
    assert_eq!(c.mount("/d"), Ok(d.clone()));
    assert_eq!(c.mount("d/"), Ok(d));
    assert_eq!(c.mount(""), Ok(root.clone()));
    assert_eq!(c.mount("/f"), Err(NOTDIR));
    assert_eq!(c.mount("/l"), Err(NOTDIR));
    assert_eq!(c.mount("/none"), Err(NOENT));
    assert_eq!(c.mount("/d/../.."), Err(ACCES));
    let mut r = c.exchange(MOUNT, 3, 5, &args()).unwrap();
    assert_eq!((r.u32(), r.u32(), r.bytes()), (0, 1, b"/".to_vec()));
    for (procedure, a) in [(0, args()), (2, args()), (3, args().bytes(b"/")), (4, args())] {
        assert_eq!(c.exchange(MOUNT, 3, procedure, &a).unwrap().u32(), 0);
    }
    // The port mapper returns the port for TCP, and none for UDP.
    let port = u32::from(rig.server.address().port());
    for (protocol, expected) in [(6, port), (17, 0)] {
        let asked = args().u32(NFS).u32(3).u32(protocol).u32(0);
        let mut r = c.exchange(100_000, 2, 3, &asked).unwrap();
        assert_eq!((r.u32(), r.u32()), (0, expected));
    }
    rig.end();
}

#[test]
fn what_is_not_served_is_refused_as_the_rpc_protocol_says() {
    let mut rig = Rig::new();
    let c = &mut rig.client;
    let mut status = |program, version, procedure| {
        let mut r = c.exchange(program, version, procedure, &args()).unwrap();
        let status = r.u32();
        (status, (r.rest() == 8).then(|| (r.u32(), r.u32())))
    };
    assert_eq!(status(NFS, 3, 0), (0, None));
    assert_eq!(status(100_227, 3, 0), (1, None), "no program");
    assert_eq!(status(NFS, 4, 0), (2, Some((3, 3))), "only version 3");
    assert_eq!(status(MOUNT, 1, 0), (2, Some((3, 3))));
    assert_eq!(status(NFS, 3, 22), (3, None), "no procedure");
    assert_eq!(status(NFS, 3, 1), (4, None), "no arguments");
    // A call with another version of RPC, and one with a Kerberos credential.
    let send = |c: &mut Client, message: Args| {
        c.send(&message.0).unwrap();
        c.receive().unwrap().chunks(4).map(|w| u32::from_be_bytes(w.try_into().unwrap())).collect::<Vec<_>>()
    };
    let message = args().u32(9).u32(0).u32(3).u32(NFS).u32(3).u32(0).u32(0).u32(0).u32(0).u32(0);
    assert_eq!(send(c, message), [9, 1, 1, 0, 2, 2]);
    let message = args().u32(9).u32(0).u32(2).u32(NFS).u32(3).u32(0).u32(6).u32(0).u32(0).u32(0);
    assert_eq!(send(c, message), [9, 1, 1, 1, 5]);
    let message = args().u32(9).u32(0).u32(2).u32(NFS).u32(3).u32(0).u32(1).bytes(b"bad!").u32(0).u32(0);
    assert_eq!(send(c, message), [9, 1, 1, 1, 1]);
    rig.end();
}

#[test]
fn flags_and_a_read_only_image_are_respected() {
    let device = formatted(64 << 20);
    let mut rig = Rig::on(open(device.clone()), kedge_nfs::Squash::None);
    let (dir, attr) = rig.client.mkdir(&rig.root, "fixed", &mode(0o755)).unwrap();
    rig.client.create(&dir, "f", &mode(0o644)).unwrap();
    rig.fs.set_flags(Ino(attr.ino), FileFlags::IMMUTABLE).unwrap();
    assert_eq!(rig.client.create(&dir, "g", &mode(0o644)).err(), Some(PERM));
    assert_eq!(rig.client.remove(&dir, "f"), PERM);
    assert_eq!(rig.client.setattr(&dir, &mode(0o700)), PERM);
    rig.end();
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = kedgefs::FileSystem::open(device, clock(), options).unwrap();
    let mut rig = Rig::on(fs, kedge_nfs::Squash::None);
    let (c, root) = (&mut rig.client, &rig.root);
    assert_eq!(c.create(root, "g", &mode(0o644)).err(), Some(ROFS));
    assert_eq!(c.setattr(root, &mode(0o700)), ROFS);
    assert_eq!(c.access(root).unwrap(), 0x03);
    let (file, _) = c.lookup(&dir, "f").unwrap();
    assert_eq!(c.write(&file, 0, b"x", FILE_SYNC).err(), Some(ROFS));
    rig.end();
}

#[test]
fn the_limit_of_a_directory_is_a_quota() {
    const FSSTAT: u32 = 18;
    let mut rig = Rig::new();
    let dir = rig.fs.mkdir(Ino::ROOT, b"box", 0o777, Owner { uid: 0, gid: 0 }).unwrap().ino;
    let limit = SetLimit { bytes: Some(Some(1 << 20)), files: Some(Some(2)) };
    rig.fs.set_limit(dir, limit).unwrap();
    let (c, root) = (&mut rig.client, &rig.root);
    let (dir, _) = c.lookup(root, "box").unwrap();
    let (file, _) = c.create(&dir, "file", &mode(0o600)).unwrap();
    let data = vec![1; 128 << 10];
    for n in 0..8 {
        c.write(&file, n * data.len() as u64, &data, UNSTABLE).unwrap();
    }
    assert_eq!(c.write(&file, 1 << 20, b"x", UNSTABLE).err(), Some(DQUOT));
    assert_eq!(c.create(&dir, "another", &mode(0o600)).err(), Some(DQUOT));
    assert_eq!(c.rename((&dir, "file"), (root, "file")), XDEV);
    for (at, size) in [(&dir, Some(1 << 20)), (root, None)] {
        let mut r = c.nfs(FSSTAT, args().bytes(at));
        assert_eq!(r.u32(), 0);
        r.post_op();
        let (total, free) = (r.u64(), r.u64());
        assert_eq!(size.is_some_and(|size| (total, free) == (size, 0)), size.is_some(), "{total}, {free}");
    }
    rig.end();
}
