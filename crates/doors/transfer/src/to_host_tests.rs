use super::*;
use kedge_base::ManualClock;
use kedge_device::MemDevice;
use kedgefs::{FormatOptions, MountOptions, Owner, XattrMode};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::sync::Arc;

const ROOT: Owner = Owner { uid: 0, gid: 0 };

/// A file system with a set-user-id program of root, a set-group-id directory, a block device, and
/// a link that leads outside.
fn image() -> FileSystem {
    let device = Arc::new(MemDevice::new(16 << 20));
    let clock = Arc::new(ManualClock::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default()).unwrap();
    let fs = FileSystem::open(device, clock, MountOptions::default()).unwrap();
    let program = fs.create(Ino::ROOT, b"program", 0o4755, ROOT).unwrap().ino;
    fs.write(program, 0, b"#!/bin/sh").unwrap();
    fs.setattr(program, &kedgefs::SetAttr { mode: Some(0o4755), ..Default::default() }).unwrap();
    fs.setxattr(program, b"user.a", b"1", XattrMode::Any).unwrap();
    fs.setxattr(program, b"trusted.a", b"1", XattrMode::Any).unwrap();
    let dir = fs.mkdir(Ino::ROOT, b"dir", 0o2775, ROOT).unwrap().ino;
    fs.create(dir, b"inner", 0o600, ROOT).unwrap();
    fs.mknod(Ino::ROOT, b"disk", 0o060_666, 0x801, ROOT).unwrap();
    fs.symlink(Ino::ROOT, b"link", b"../out", ROOT).unwrap();
    fs
}

fn copied(privileged: bool) -> (tempfile::TempDir, Target) {
    let fs = image();
    let dir = tempfile::tempdir().unwrap();
    let mut target = Target::new(dir.path(), false, privileged).unwrap();
    target.copy(&fs, &fs.getattr(Ino::ROOT).unwrap(), None).unwrap();
    fs.close().unwrap();
    (dir, target)
}

#[test]
fn what_gives_rights_is_left_out_and_counted() {
    let (dir, target) = copied(false);
    let mode = |name: &str| dir.path().join(name).metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("program"), mode("dir"), mode("dir/inner")), (0o755, 0o775, 0o600));
    assert!(!dir.path().join("disk").exists());
    assert_eq!(std::fs::read_link(dir.path().join("link")).unwrap(), Path::new("../out"));
    assert_eq!(target.left_out, LeftOut { bits: 2, devices: 1, attributes: 1 });
    target.finish().unwrap();
}

#[test]
fn root_gets_it_where_it_asks_for_it() {
    if !rustix::process::geteuid().is_root() {
        return kedge_base::skip::note("devices are for root");
    }
    let (dir, target) = copied(true);
    let meta = |name: &str| dir.path().join(name).metadata().unwrap();
    assert_eq!(meta("program").permissions().mode() & 0o7777, 0o4755);
    assert_eq!(target.left_out, LeftOut::default());
    // `copied` fails earlier if this process may not make devices, as in some containers.
    assert!(meta("disk").file_type().is_block_device());
    target.finish().unwrap();
}

/// A link in the target is replaced if it has the file's name. A path through a link is refused. No
/// link is followed.
#[test]
fn links_of_this_machine_are_not_followed() {
    let fs = image();
    let top = tempfile::tempdir().unwrap();
    let (place, out) = (top.path().join("place"), top.path().join("out"));
    std::fs::create_dir(&place).unwrap();
    std::fs::create_dir(&out).unwrap();
    std::os::unix::fs::symlink(out.join("planted"), place.join("program")).unwrap();
    std::os::unix::fs::symlink(&out, place.join("dir")).unwrap();
    let mut target = Target::new(&place, false, false).unwrap();
    let refused = target.copy(&fs, &fs.getattr(Ino::ROOT).unwrap(), None).unwrap_err();
    assert!(format!("{refused:#}").contains("dir"), "{refused:#}");
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
    assert!(place.join("program").symlink_metadata().unwrap().is_file());
}
