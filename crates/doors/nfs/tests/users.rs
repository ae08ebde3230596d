//! Permissions by the user and the groups of the call.

use crate::common::*;
use kedge_nfs::Squash;
use kedgefs::acl::{self, Acl, Entry, Tag};
use kedgefs::{FileFlags, FileSystem, FormatOptions, Ino, XattrMode};
use std::sync::Arc;

fn owned(uid: u32, gid: u32, mode: u32) -> Set {
    Set { uid: Some(uid), gid: Some(gid), mode: Some(mode), ..Set::default() }
}

/// The granted rights as bits of a mode: read, modify, and lookup or execute.
fn rights_of(client: &mut Client, handle: &[u8]) -> u32 {
    let granted = client.access(handle).unwrap();
    (granted & 0x01) << 2 | (granted & 0x04) >> 1 | u32::from(granted & 0x22 != 0)
}

#[test]
fn owner_group_and_others() {
    let mut rig = Rig::new();
    let (file, _) = rig.client.create(&rig.root, "f", &owned(1, 10, 0o754)).unwrap();
    for (uid, gid, groups, expected) in
        [(1, 99, &[][..], 7), (2, 10, &[], 5), (2, 99, &[98, 10], 5), (2, 99, &[98], 4), (0, 99, &[], 7)]
    {
        let mut user = rig.user(uid, gid, groups);
        assert_eq!(rights_of(&mut user, &file), expected, "{uid} {gid} {groups:?}");
    }
    // The first matching class decides, even if a later one grants more.
    assert_eq!(rig.client.setattr(&file, &mode(0o077)), OK);
    assert_eq!(rights_of(&mut rig.user(1, 10, &[]), &file), 0);
    // Root may execute a file only if its mode lets some class execute it.
    assert_eq!(rig.client.setattr(&file, &mode(0o600)), OK);
    assert_eq!(rights_of(&mut rig.client, &file), 6);
    rig.end();
}

#[test]
fn data_of_others_is_protected_and_the_owner_keeps_what_was_opened() {
    let mut rig = Rig::new();
    let (file, _) = rig.client.create(&rig.root, "f", &owned(1, 10, 0o000)).unwrap();
    let (mut owner, mut other) = (rig.user(1, 10, &[]), rig.user(2, 99, &[]));
    assert_eq!(owner.write(&file, 0, b"x", UNSTABLE).unwrap().count, 1);
    assert_eq!(owner.read(&file, 0, 9).unwrap().0, b"x");
    assert!(owner.commit(&file).is_ok());
    assert_eq!(other.write(&file, 0, b"y", UNSTABLE).err(), Some(ACCES));
    assert_eq!(other.read(&file, 0, 9).err(), Some(ACCES));
    assert_eq!(other.commit(&file).err(), Some(ACCES));
    assert_eq!(other.setattr(&file, &size(0)), ACCES);
    assert_eq!(other.setattr(&file, &mode(0o777)), PERM);
    let touch = Set { mtime: Some(Time::Now), ..Set::default() };
    assert_eq!(other.setattr(&file, &touch), ACCES);
    assert_eq!(other.setattr(&file, &Set { mtime: Some(Time::At(1, 0)), ..touch }), PERM);
    // A caller that may execute a program may read it.
    assert_eq!(rig.client.setattr(&file, &mode(0o001)), OK);
    assert_eq!(other.read(&file, 0, 9).unwrap().0, b"x");
    assert_eq!(rig.client.setattr(&file, &mode(0o002)), OK);
    assert_eq!(other.setattr(&file, &touch), OK);
    assert_eq!(other.setattr(&file, &Set { mtime: Some(Time::At(1, 0)), ..touch }), PERM);
    rig.end();
}

#[test]
fn directories_are_searched_and_changed_with_permission() {
    let mut rig = Rig::new();
    let (dir, _) = rig.client.mkdir(&rig.root, "d", &owned(1, 10, 0o750)).unwrap();
    let (mut member, mut other) = (rig.user(2, 10, &[]), rig.user(3, 99, &[]));
    let (file, attr) = rig.user(1, 10, &[]).create(&dir, "f", &mode(0o666)).unwrap();
    assert_eq!((attr.uid, attr.gid), (1, 10));
    assert!(member.lookup(&dir, "f").is_ok());
    assert!(member.page(&dir, 0, 4096, true).is_ok());
    assert_eq!(other.lookup(&dir, "f").err(), Some(ACCES));
    assert_eq!(other.page(&dir, 0, 4096, false).err(), Some(ACCES));
    assert_eq!(member.create(&dir, "g", &mode(0o666)).err(), Some(ACCES));
    assert_eq!(member.mkdir(&dir, "g", &mode(0o777)).err(), Some(ACCES));
    assert_eq!(member.symlink(&dir, "g", b"x").err(), Some(ACCES));
    assert_eq!(member.link(&file, &dir, "g").0, ACCES);
    assert_eq!(member.create_exclusive(&dir, "g", [1; 8]).err(), Some(ACCES));
    assert_eq!(member.remove(&dir, "f"), ACCES);
    assert_eq!(member.rename((&dir, "f"), (&dir, "g")), ACCES);
    // Only root may make devices and give files away.
    let (open, _) = rig.client.mkdir(&rig.root, "open", &mode(0o777)).unwrap();
    assert_eq!(member.mknod(&open, "n", 4, (1, 3)).err(), Some(PERM));
    assert!(member.mknod(&open, "p", 7, (0, 0)).is_ok());
    assert_eq!(member.create(&open, "x", &owned(3, 10, 0o644)).err(), Some(PERM));
    assert_eq!(member.lookup(&open, "x").err(), Some(NOENT));
    let (own, _) = member.create(&open, "own", &mode(0o644)).unwrap();
    assert_eq!(member.setattr(&own, &Set { uid: Some(3), ..Set::default() }), PERM);
    assert_eq!(member.setattr(&own, &Set { gid: Some(99), ..Set::default() }), PERM);
    assert_eq!(rig.user(2, 10, &[99]).setattr(&own, &Set { gid: Some(99), ..Set::default() }), OK);
    rig.end();
}

#[test]
fn a_sticky_directory_keeps_the_files_of_each_user() {
    let mut rig = Rig::new();
    let (tmp, _) = rig.client.mkdir(&rig.root, "tmp", &mode(0o1777)).unwrap();
    let (mut one, mut two) = (rig.user(1, 1, &[]), rig.user(2, 2, &[]));
    one.create(&tmp, "f", &mode(0o666)).unwrap();
    one.mkdir(&tmp, "d", &mode(0o777)).unwrap();
    two.create(&tmp, "g", &mode(0o666)).unwrap();
    assert_eq!(two.remove(&tmp, "f"), PERM);
    assert_eq!(two.rmdir(&tmp, "d"), PERM);
    assert_eq!(two.rename((&tmp, "f"), (&tmp, "h")), PERM);
    assert_eq!(two.rename((&tmp, "g"), (&tmp, "f")), PERM);
    assert_eq!(one.rename((&tmp, "f"), (&tmp, "h")), OK);
    assert_eq!(one.remove(&tmp, "h"), OK);
    assert_eq!(rig.client.rmdir(&tmp, "d"), OK);
    rig.end();
}

#[test]
fn a_directory_of_another_user_keeps_its_parent() {
    let mut rig = Rig::new();
    let (a, _) = rig.client.mkdir(&rig.root, "a", &mode(0o777)).unwrap();
    let (b, _) = rig.client.mkdir(&rig.root, "b", &mode(0o777)).unwrap();
    rig.client.mkdir(&a, "d", &owned(1, 1, 0o755)).unwrap();
    let mut two = rig.user(2, 2, &[]);
    assert_eq!(two.rename((&a, "d"), (&a, "e")), OK);
    assert_eq!(two.rename((&a, "e"), (&b, "e")), ACCES);
    assert_eq!(rig.user(1, 1, &[]).rename((&a, "e"), (&b, "e")), OK);
    rig.end();
}

#[test]
fn set_user_id_goes_with_a_write_of_another_user() {
    let mut rig = Rig::new();
    let (file, _) = rig.client.create(&rig.root, "f", &owned(1, 10, 0o6777)).unwrap();
    rig.client.write(&file, 0, b"x", FILE_SYNC).unwrap();
    assert_eq!(rig.client.getattr(&file).unwrap().mode, 0o6777);
    rig.user(2, 2, &[]).write(&file, 0, b"y", UNSTABLE).unwrap();
    assert_eq!(rig.client.getattr(&file).unwrap().mode, 0o777);
    assert_eq!(rig.client.setattr(&file, &mode(0o6777)), OK);
    assert_eq!(rig.user(2, 2, &[]).setattr(&file, &size(0)), OK);
    assert_eq!(rig.client.getattr(&file).unwrap().mode, 0o777);
    // An owner outside the group cannot set set-group-id on a file of the group.
    assert_eq!(rig.user(1, 99, &[]).setattr(&file, &mode(0o2755)), OK);
    assert_eq!(rig.client.getattr(&file).unwrap().mode, 0o755);
    assert_eq!(rig.user(1, 99, &[10]).setattr(&file, &mode(0o2755)), OK);
    assert_eq!(rig.client.getattr(&file).unwrap().mode, 0o2755);
    // Creating the file in a directory that passes on the group does not help either.
    let (dir, _) = rig.client.mkdir(&rig.root, "d", &owned(1, 10, 0o2777)).unwrap();
    assert_eq!(rig.client.setattr(&dir, &mode(0o2777)), OK);
    let (_, attr) = rig.user(2, 2, &[]).create(&dir, "f", &mode(0o2755)).unwrap();
    assert_eq!((attr.gid, attr.mode), (10, 0o755));
    rig.end();
}

/// A truncation that fails shows the order: no crash can leave new contents with the old rights.
#[test]
fn set_user_id_goes_before_the_contents() {
    let mut rig = Rig::new();
    let (file, _) = rig.client.create(&rig.root, "f", &owned(1, 10, 0o6777)).unwrap();
    assert_eq!(rig.user(2, 2, &[]).setattr(&file, &size(u64::MAX)), FBIG);
    assert_eq!(rig.client.getattr(&file).unwrap().mode, 0o777);
    rig.end();
}

#[test]
fn capabilities_go_with_a_change_of_the_contents_or_the_owner() {
    const NAME: &[u8] = b"security.capability";
    let device = Arc::new(kedge_device::MemDevice::new(64 << 20));
    let options = FormatOptions { immutable: true, ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock(), &options).unwrap();
    let mut rig = Rig::on(open(device), Squash::None);
    let (file, attr) = rig.client.create(&rig.root, "f", &owned(1, 10, 0o777)).unwrap();
    let (fs, ino) = (rig.fs.clone(), Ino(attr.ino));
    let give = || {
        fs.write(ino, 0, b"program").unwrap();
        fs.setxattr(ino, NAME, b"\x01\0\0\x02", XattrMode::Any).unwrap();
        fs.setxattr(ino, b"user.note", b"stays", XattrMode::Any).unwrap();
    };
    let has = || match fs.getxattr(ino, NAME) {
        Ok(_) => true,
        Err(kedgefs::Error::NoXattr) => false,
        Err(e) => panic!("{e}"),
    };
    // Root loses set-id bits to no write, but a program its capabilities even then.
    for mut user in [rig.user(2, 2, &[]), rig.user(0, 0, &[])] {
        give();
        assert_eq!(user.write(&file, 0, b"", FILE_SYNC).unwrap().count, 0);
        assert!(has(), "nothing is written");
        user.write(&file, 0, b"y", UNSTABLE).unwrap();
        assert!(!has(), "a write");
        give();
        assert_eq!(user.setattr(&file, &size(3)), OK);
        assert!(!has(), "a truncation");
        give();
        assert_eq!(user.create(&rig.root, "f", &size(0)).unwrap().1.size, 0);
        assert!(!has(), "a truncation at an open");
    }
    give();
    assert_eq!(rig.client.setattr(&file, &mode(0o755)), OK);
    assert!(has(), "a change of the mode");
    assert_eq!(rig.client.setattr(&file, &Set { uid: Some(7), ..Set::default() }), OK);
    assert!(!has(), "a change of the owner");
    assert_eq!(fs.getxattr(ino, b"user.note").unwrap(), b"stays");
    // An append-only file cannot lose its attributes, so nothing can be appended.
    give();
    fs.set_flags(ino, FileFlags::APPEND).unwrap();
    assert_eq!(rig.client.write(&file, 7, b"more", FILE_SYNC).err(), Some(PERM));
    assert_eq!(rig.client.read(&file, 0, 99).unwrap().0, b"program");
    assert!(has());
    fs.set_flags(ino, FileFlags::default()).unwrap();
    drop(fs);
    rig.end();
}

#[test]
fn access_control_lists_grant_and_refuse() {
    let mut rig = Rig::new();
    let (file, attr) = rig.client.create(&rig.root, "f", &owned(1, 10, 0o600)).unwrap();
    let entry = |tag, permissions, id| Entry { tag, permissions, id };
    let list = Acl::new(vec![
        entry(Tag::Owner, 6, 0),
        entry(Tag::User, 7, 2),
        entry(Tag::User, 0, 3),
        entry(Tag::OwningGroup, 4, 0),
        entry(Tag::Group, 2, 20),
        entry(Tag::Mask, 6, 0),
        entry(Tag::Others, 1, 0),
    ])
    .unwrap();
    rig.fs.setxattr(Ino(attr.ino), acl::ACCESS, &list.encode(), XattrMode::Any).unwrap();
    for (uid, gid, groups, expected, what) in [
        (1, 99, &[][..], 6, "the owner"),
        (2, 99, &[], 6, "a named user, masked"),
        (3, 10, &[20], 0, "a named user without rights, whatever the groups"),
        (4, 10, &[], 4, "the owning group"),
        (4, 99, &[20], 2, "a named group"),
        (4, 10, &[20], 6, "each right by some group"),
        (4, 99, &[], 1, "others"),
    ] {
        let mut user = rig.user(uid, gid, groups);
        assert_eq!(rights_of(&mut user, &file), expected, "{what}");
    }
    assert_eq!(rig.user(4, 99, &[20]).write(&file, 0, b"x", FILE_SYNC).unwrap().count, 1);
    assert_eq!(rig.user(4, 10, &[]).write(&file, 0, b"x", FILE_SYNC).err(), Some(ACCES));
    rig.end();
}

#[test]
fn squashed_users_are_the_anonymous_one() {
    let device = formatted(64 << 20);
    for (squash, root_is, user_is) in [
        (Squash::None, (0, 0), (5, 6)),
        (Squash::Root, (65534, 65534), (5, 6)),
        (Squash::All, (65534, 65534), (65534, 65534)),
    ] {
        let fs = open(device.clone());
        fs.setattr(Ino::ROOT, &kedgefs::SetAttr { mode: Some(0o777), ..Default::default() }).unwrap();
        let mut rig = Rig::on(fs, squash);
        let name = format!("{squash:?}");
        let (_, attr) = rig.client.create(&rig.root, &format!("root-{name}"), &mode(0o644)).unwrap();
        assert_eq!((attr.uid, attr.gid), root_is, "{name}");
        let (_, attr) = rig.user(5, 6, &[]).create(&rig.root, &format!("user-{name}"), &mode(0o644)).unwrap();
        assert_eq!((attr.uid, attr.gid), user_is, "{name}");
        rig.end();
    }
    // The number that means "no id" is squashed.
    let mut rig = Rig::on(open(device.clone()), Squash::None);
    for (uid, gid) in [(u32::MAX, 5), (5, u32::MAX)] {
        let (_, attr) = rig.user(uid, gid, &[]).create(&rig.root, &format!("{gid}"), &mode(0o644)).unwrap();
        assert_eq!((attr.uid, attr.gid), (65534, 65534));
    }
    let no_id = Set { uid: Some(u32::MAX), ..Set::default() };
    assert_eq!(rig.client.setattr(&rig.root, &no_id), INVAL);
    rig.end();
    // Group 0 of another user is squashed as well, and a call without a credential acts as the
    // anonymous user.
    let fs = open(device);
    fs.create(Ino::ROOT, b"wheel", 0o060, kedgefs::Owner::default()).unwrap();
    let mut rig = Rig::on(fs, Squash::Root);
    let (file, _) = rig.client.lookup(&rig.root, "wheel").unwrap();
    for (gid, groups) in [(0, &[][..]), (7, &[0])] {
        assert_eq!(rig.user(5, gid, groups).read(&file, 0, 1).err(), Some(ACCES));
    }
    rig.end();
}
