//! Time stamps through the mount, to the nanosecond: the stamps that stat showed survive each kind
//! of end, and each operation changes the same stamps as on ext4.

use crate::common::mapping::Mapping;
use crate::common::{Place, kill, needs_fuse, no_fuse, tool};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

const MODES: [&str; 2] = ["nowriteback_cache", "writeback_cache"];
/// A pause of some ticks of the clock of time stamps.
const WHILE: Duration = Duration::from_millis(40);

/// The mtime, ctime and btime of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Times {
    mtime: (i64, i64),
    ctime: (i64, i64),
    born: SystemTime,
}

fn times(path: &Path) -> Times {
    let meta = fs::metadata(path).unwrap();
    Times {
        mtime: (meta.mtime(), meta.mtime_nsec()),
        ctime: (meta.ctime(), meta.ctime_nsec()),
        born: meta.created().unwrap(),
    }
}

fn syncfs(dir: &Path) {
    rustix::fs::syncfs(File::open(dir).unwrap()).unwrap();
}

fn mounted(options: &str) -> Place {
    Place::after(&format!("mount --create 256M -o commit=300,{options} disk.kedge mnt"))
}

/// The call that makes the changes durable before the mount ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    Nothing,
    Fsync,
    /// syncfs(2): the kernel writes all files back, and its WRITEs and SETATTRs overtake one
    /// another.
    Syncfs,
}

const FILES: usize = 40;

/// Tests that the stamps that stat shows last survive the end of the mount, for files that are held
/// open and for closed files.
fn survive(options: &str, before: Before, killed: bool) {
    let place = mounted(options);
    let path = |i: usize| place.path(&format!("mnt/{i}"));
    let mut open = Vec::new();
    for i in 0..FILES {
        let mut file = File::create(path(i)).unwrap();
        file.write_all(&vec![b'a'; 300_000]).unwrap();
        open.push(file);
    }
    std::thread::sleep(WHILE);
    for (i, file) in open.iter().enumerate() {
        match i % 4 {
            0 => file.write_all_at(b"again", 100_000).unwrap(),
            1 => file.set_len(1000).unwrap(),
            2 => {
                let past = Timespec { tv_sec: 1_000_000_000, tv_nsec: 123_456_789 };
                let stamps = Timestamps { last_access: past, last_modification: past };
                rustix::fs::utimensat(CWD, path(i), &stamps, AtFlags::empty()).unwrap();
            }
            _ => {}
        }
    }
    open.truncate(FILES / 2);
    std::thread::sleep(WHILE);
    if before == Before::Syncfs {
        // syncfs writes some files while others wait, so some requests are sent late.
        syncfs(&place.path("mnt"));
    }
    if before == Before::Fsync {
        for i in 0..FILES {
            File::open(path(i)).unwrap().sync_all().unwrap();
        }
    }
    let shown: Vec<_> = (0..FILES).map(|i| times(&path(i))).collect();
    drop(open);
    if killed {
        kill(&place, "mnt");
        place.run(&format!("mount -o {options} disk.kedge mnt")).ok();
    } else {
        place.remount("disk.kedge", &format!(" -o {options}"));
    }
    for (i, shown) in shown.into_iter().enumerate() {
        assert_eq!(times(&path(i)), shown, "{options} {before:?} killed: {killed}, file {i}");
    }
    place.unmount_and_check("disk.kedge");
}

#[test]
fn stamps_survive_a_clean_unmount() {
    if !no_fuse() {
        for options in MODES {
            survive(options, Before::Nothing, false);
            survive(options, Before::Syncfs, false);
        }
    }
}

#[test]
fn stamps_survive_a_kill_after_fsync() {
    if !no_fuse() {
        for options in MODES {
            survive(options, Before::Fsync, true);
        }
    }
}

#[test]
fn stamps_survive_a_kill_after_syncfs() {
    // The kernel does not pass syncfs(2) to an unprivileged mount.
    needs_fuse!();
    if !rustix::process::geteuid().is_root() {
        return kedge_base::skip::note("syncfs needs a mount as root");
    }
    for options in MODES {
        survive(options, Before::Syncfs, true);
    }
}

/// Kernel and server both stamp files: a later write never gets an older stamp.
#[test]
fn later_never_looks_older() {
    needs_fuse!();
    for options in MODES {
        let place = mounted(options);
        let mut last = (0, 0);
        for i in 0..200 {
            let path = place.path(&format!("mnt/{i}"));
            fs::write(&path, b"bytes").unwrap();
            let now = times(&path);
            let born = now.born.duration_since(SystemTime::UNIX_EPOCH).unwrap();
            let born = (born.as_secs() as i64, born.subsec_nanos() as i64);
            assert!(born <= now.mtime, "{options}: {i} was born at {born:?}, written at {:?}", now.mtime);
            assert!(last <= now.mtime, "{options}: {i} looks older than the one before it");
            last = now.mtime;
        }
        place.unmount();
    }
}

type Operation = (&'static str, fn(&Path));

/// The operations. Each gets a directory with a file `f` of 10,000 bytes and its second name `g`.
const OPERATIONS: &[Operation] = &[
    ("write", |d| edit(d).write_all_at(b"x", 5).unwrap()),
    ("append", |d| edit(d).write_all_at(b"x", 20_000).unwrap()),
    ("write of nothing", |d| edit(d).write_all_at(b"", 5).unwrap()),
    ("cut", |d| edit(d).set_len(5000).unwrap()),
    ("grow", |d| edit(d).set_len(50_000).unwrap()),
    ("same length", |d| edit(d).set_len(10_000).unwrap()),
    ("O_TRUNC", |d| drop(File::create(d.join("f")).unwrap())),
    ("chmod", |d| fs::set_permissions(d.join("f"), fs::Permissions::from_mode(0o600)).unwrap()),
    // A chown that changes the owner, because POSIX leaves open whether a chown without a change
    // updates the ctime.
    ("chown", |d| std::os::unix::fs::chown(d.join("f"), Some(1), None).unwrap()),
    ("link", |d| fs::hard_link(d.join("f"), d.join("h")).unwrap()),
    ("unlink of a name", |d| fs::remove_file(d.join("g")).unwrap()),
    ("rename", |d| {
        fs::rename(d.join("f"), d.join("r")).unwrap();
        fs::hard_link(d.join("r"), d.join("f")).unwrap();
    }),
    ("setxattr", |d| rustix::fs::setxattr(d.join("f"), "user.a", b"b", XattrFlags::empty()).unwrap()),
    ("utimes", |d| {
        let past = Timespec { tv_sec: 1_000_000_000, tv_nsec: 5 };
        let stamps = Timestamps { last_access: past, last_modification: past };
        rustix::fs::utimensat(CWD, d.join("f"), &stamps, AtFlags::empty()).unwrap();
    }),
    ("fallocate", |d| rustix::fs::fallocate(edit(d), FallocateFlags::empty(), 0, 100_000).unwrap()),
    ("fallocate that keeps the size", |d| {
        rustix::fs::fallocate(edit(d), FallocateFlags::KEEP_SIZE, 0, 100_000).unwrap();
    }),
    ("punch", |d| {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(edit(d), punch, 0, 4096).unwrap();
    }),
    ("zero range", |d| rustix::fs::fallocate(edit(d), FallocateFlags::ZERO_RANGE, 0, 4096).unwrap()),
    ("read", |d| drop(fs::read(d.join("f")).unwrap())),
    ("fsync", |d| edit(d).sync_all().unwrap()),
    ("store and msync", |d| {
        let file = edit(d);
        let mut map = Mapping::of(&file).unwrap();
        map.store(100, b"stored");
        map.sync().unwrap();
    }),
    ("load through a mapping", |d| {
        let file = edit(d);
        let mut map = Mapping::of(&file).unwrap();
        map.store(0, b"");
        map.sync().unwrap();
    }),
    ("direct write", |d| {
        let flags = OFlags::DIRECT | OFlags::RDWR;
        let file = File::from(rustix::fs::open(d.join("f"), flags, Mode::empty()).unwrap());
        file.write_all_at(kedge_base::IoBuf::zeroed(1).as_bytes(), 0).unwrap();
    }),
    ("synced write", |d| {
        let flags = OFlags::SYNC | OFlags::RDWR;
        let file = File::from(rustix::fs::open(d.join("f"), flags, Mode::empty()).unwrap());
        file.write_all_at(b"x", 0).unwrap();
    }),
    ("copy_file_range", |d| {
        let from = File::open(d.join("other")).unwrap();
        rustix::fs::copy_file_range(&from, None, edit(d), None, 100).unwrap();
    }),
    ("open and close", |d| drop(edit(d))),
];

fn edit(dir: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(dir.join("f")).unwrap()
}

/// For each operation, whether it changes mtime and ctime of the file, and mtime and ctime of its
/// directory.
fn moved(root: &Path) -> Vec<(&'static str, [bool; 4])> {
    let dirs: Vec<_> = (0..OPERATIONS.len()).map(|i| root.join(i.to_string())).collect();
    for dir in &dirs {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("f"), [b'f'; 10_000]).unwrap();
        fs::write(dir.join("other"), [b'o'; 10_000]).unwrap();
        fs::hard_link(dir.join("f"), dir.join("g")).unwrap();
    }
    syncfs(root);
    std::thread::sleep(WHILE);
    let before: Vec<_> = dirs.iter().map(|d| (times(&d.join("f")), times(d))).collect();
    for (dir, (_, operation)) in dirs.iter().zip(OPERATIONS) {
        operation(dir);
    }
    let after: Vec<_> = dirs.iter().map(|d| (times(&d.join("f")), times(d))).collect();
    let compared = OPERATIONS.iter().zip(before.into_iter().zip(after));
    compared
        .map(|((name, _), ((file, dir), (file_now, dir_now)))| {
            assert_eq!((file.born, dir.born), (file_now.born, dir_now.born), "{name}: a new birth time");
            let moves = |a: Times, b: Times| [a.mtime != b.mtime, a.ctime != b.ctime];
            let ([a, b], [c, d]) = (moves(file, file_now), moves(dir, dir_now));
            (*name, [a, b, c, d])
        })
        .collect()
}

#[test]
fn operations_move_the_stamps_that_they_move_on_ext4() {
    needs_fuse!();
    if !rustix::process::geteuid().is_root() {
        return kedge_base::skip::note("it takes root to mount ext4");
    }
    let place = Place::new();
    fs::create_dir(place.path("ext4")).unwrap();
    File::create(place.path("ext4.img")).unwrap().set_len(64 << 20).unwrap();
    let mut command = place.command("mkfs.ext4");
    command.args(["-q", "-F", "ext4.img"]);
    tool(command, "e2fsprogs");
    let mut command = place.command("mount");
    command.args(["-o", "loop", "ext4.img", "ext4"]);
    tool(command, "mount");
    let theirs = std::panic::catch_unwind(|| moved(&place.path("ext4")));
    let mut command = place.command("umount");
    command.arg("ext4");
    tool(command, "mount");
    let theirs = theirs.unwrap();
    for options in MODES {
        let place = mounted(options);
        let ours = moved(&place.path("mnt"));
        let differ: Vec<_> = ours.iter().zip(&theirs).filter(|(ours, theirs)| ours != theirs).collect();
        assert!(
            differ.is_empty(),
            "{options}: ours and ext4's (file's mtime, ctime, directory's): {differ:#?}"
        );
        place.unmount_and_check("disk.kedge");
    }
}

/// The stamps of a read do not replace those of a write: a file that is read after a write keeps
/// the time of the write.
#[test]
fn reads_leave_the_stamps_of_writes() {
    needs_fuse!();
    for options in MODES {
        let place = mounted(options);
        let path = place.path("mnt/f");
        fs::write(&path, [1; 5000]).unwrap();
        let before = times(&path);
        std::thread::sleep(WHILE);
        let mut bytes = Vec::new();
        File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
        assert_eq!((times(&path), bytes.len()), (before, 5000), "{options}");
        place.remount("disk.kedge", &format!(" -o {options}"));
        assert_eq!(times(&path), before, "{options}");
        place.unmount();
    }
}
