//! Makes a directory with every kind of file, to be copied.

use super::{Place, tool};
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn set_mtime(path: &Path, sec: i64, nsec: i64) {
    let time = Timespec { tv_sec: sec, tv_nsec: nsec };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Makes a directory with every kind of file.
pub fn make_source(place: &Place) {
    let at = |name: &str| place.path("source").join(name);
    fs::create_dir_all(at("deep/er/est")).unwrap();
    fs::create_dir(at("empty")).unwrap();
    fs::write(at("small"), "a few bytes").unwrap();
    fs::write(at("nothing"), "").unwrap();
    let large: Vec<u8> = (0..3_000_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(at("deep/large"), &large).unwrap();
    let mut sparse = File::create(at("sparse")).unwrap();
    sparse.write_all(b"head").unwrap();
    sparse.seek(SeekFrom::Start(5 << 20)).unwrap();
    sparse.write_all(&large[..10_000]).unwrap();
    sparse.set_len(9 << 20).unwrap();
    File::create(at("hole")).unwrap().set_len(1 << 20).unwrap();
    fs::hard_link(at("small"), at("deep/other name")).unwrap();
    fs::hard_link(at("small"), at("a third")).unwrap();
    symlink("../nowhere/at all", at("deep/dangling")).unwrap();
    symlink("/etc/passwd", at("absolute")).unwrap();
    fs::write(at("line\nend"), "odd name").unwrap();
    fs::write(at(&"long".repeat(60)), "a name that ustar cannot hold").unwrap();
    rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    for i in 0..300 {
        fs::write(at(&format!("deep/er/{i}")), format!("file {i}")).unwrap();
    }
    rustix::fs::setxattr(at("small"), "user.colour", b"blue\nand\0green", XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(at("deep"), "user.of", b"a directory", XattrFlags::empty()).unwrap();
    fs::set_permissions(at("deep/large"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(at("empty"), fs::Permissions::from_mode(0o1777)).unwrap();
    if is_root() {
        chown(at("deep/large"), Some(1234), Some(5678)).unwrap();
        fs::set_permissions(at("deep/large"), fs::Permissions::from_mode(0o4751)).unwrap();
        chown(at("deep/er"), Some(2_000_000_001), Some(7)).unwrap();
        let device = rustix::fs::makedev(10, 70_000);
        rustix::fs::mknodat(CWD, at("device"), FileType::CharacterDevice, Mode::from_raw_mode(0o600), device)
            .unwrap();
        rustix::fs::setxattr(at("small"), "trusted.t", b"kept", XattrFlags::empty()).unwrap();
    }
    set_mtime(&at("small"), 1_000_000_000, 123_456_789);
    set_mtime(&at("deep/dangling"), 1_100_000_000, 0);
    set_mtime(&at("deep/er"), 1_200_000_000, 5);
    set_mtime(&place.path("source"), 1_300_000_000, 0);
}

/// Asserts that rsync finds no difference between the source and a directory.
#[track_caller]
pub fn assert_like_source(place: &Place, dir: &str) {
    let mut command = place.command("rsync");
    command.args(["-aHX", "--numeric-ids", "--dry-run", "--checksum", "--itemize-changes", "--delete"]);
    command.args(["source/", &format!("{dir}/")]);
    assert_eq!(tool(command, "rsync"), "", "{dir} is another");
    let blocks = |name: &str| fs::metadata(place.path(name)).unwrap().blocks();
    assert!(blocks(&format!("{dir}/hole")) <= blocks("source/hole").max(64), "{dir} has the holes");
}
