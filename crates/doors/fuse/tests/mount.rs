//! The server on a real mount: the behaviour that programs see through the kernel.

#![allow(clippy::unwrap_used)]

#[path = "../../cli/tests/common/mapping.rs"]
mod mapping;
mod memfs;
mod mounted;

use kedge_base::HANG;
use kedge_fuse::{Done, FuseOptions};
use kedgefs::{SetAttr, SetTime, Timespec};
use mapping::Mapping;
use memfs::MemFs;
use mounted::{Mounted, both, is_root};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, RenameFlags, Timestamps, Uid, XattrFlags};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::sync::Arc;
use std::time::Duration;

/// Both kinds of mount, with and without a writeback cache, and with and without the features that
/// can be switched off.
fn all() -> Vec<FuseOptions> {
    let mut all = both();
    let simple = all.iter().map(|o| FuseOptions {
        no_open: false,
        handle_killpriv: false,
        clone_channels: false,
        ..o.clone()
    });
    let simple: Vec<_> = simple.chain(gathering()).collect();
    all.extend(simple);
    all
}

/// Both kinds of mount, with a writeback cache.
fn gathering() -> Vec<FuseOptions> {
    both().into_iter().map(|o| FuseOptions { writeback_cache: true, ..o }).collect()
}

fn names(dir: &std::path::Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

fn set(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|s| s.to_string()).collect()
}

#[test]
fn names_come_and_go() {
    for options in all() {
        let m = Mounted::new(&options);
        fs::create_dir(m.path("d")).unwrap();
        assert_eq!(fs::create_dir(m.path("d")).unwrap_err().kind(), ErrorKind::AlreadyExists);
        fs::write(m.path("d/f"), "hello").unwrap();
        assert_eq!(fs::read(m.path("d/f")).unwrap(), b"hello");
        assert_eq!(fs::metadata(m.path("d/x")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs::metadata(m.path("d/x")).unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(m.path("d/x"), "").unwrap();
        assert_eq!(names(&m.path("d")), set(&["f", "x"]));

        fs::hard_link(m.path("d/f"), m.path("g")).unwrap();
        assert_eq!(fs::metadata(m.path("d/f")).unwrap().nlink(), 2);
        assert_eq!(fs::metadata(m.path("g")).unwrap().nlink(), 2);
        let before = fs::metadata(m.path("g")).unwrap();
        kedge_base::pause(Duration::from_millis(20));
        fs::remove_file(m.path("d/f")).unwrap();
        let after = fs::metadata(m.path("g")).unwrap();
        assert_eq!(after.nlink(), 1);
        assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()), "{options:?}");

        fs::rename(m.path("g"), m.path("d/x")).unwrap();
        assert_eq!(fs::read(m.path("d/x")).unwrap(), b"hello");
        assert_eq!(names(m.dir()), set(&["d"]));
        assert_eq!(fs::remove_dir(m.path("d")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
        std::os::unix::fs::symlink("d/x", m.path("s")).unwrap();
        assert_eq!(fs::read_link(m.path("s")).unwrap().to_str(), Some("d/x"));
        assert_eq!(fs::read(m.path("s")).unwrap(), b"hello");
        fs::remove_file(m.path("s")).unwrap();
        assert_eq!(fs::metadata(m.dir()).unwrap().nlink(), 3);
        fs::remove_file(m.path("d/x")).unwrap();
        fs::remove_dir(m.path("d")).unwrap();
        assert_eq!(fs::metadata(m.dir()).unwrap().nlink(), 2);
        assert!(names(m.dir()).is_empty());
        let long = "n".repeat(256);
        assert_eq!(fs::write(m.path(&long), "").unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
        fs::write(m.path(&long[1..]), "").unwrap();
        assert_eq!(names(m.dir()), set(&[&long[1..]]));
    }
}

#[test]
fn rename_flags() {
    for options in both() {
        let m = Mounted::new(&options);
        fs::write(m.path("a"), "A").unwrap();
        fs::write(m.path("b"), "B").unwrap();
        let rename = |flags| rustix::fs::renameat_with(CWD, m.path("a"), CWD, m.path("b"), flags);
        assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
        rename(RenameFlags::EXCHANGE).unwrap();
        assert_eq!(
            (fs::read(m.path("a")).unwrap(), fs::read(m.path("b")).unwrap()),
            (b"B".to_vec(), b"A".to_vec())
        );
        assert_eq!(rename(RenameFlags::WHITEOUT), Err(rustix::io::Errno::INVAL));
        rename(RenameFlags::empty()).unwrap();
        assert_eq!(fs::read(m.path("b")).unwrap(), b"B");
        assert_eq!(names(m.dir()), set(&["b"]));
    }
}

#[test]
fn content_and_size() {
    for options in all() {
        let m = Mounted::new(&options);
        let data: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 / 3) as u8).collect();
        fs::write(m.path("f"), &data).unwrap();
        assert_eq!(fs::read(m.path("f")).unwrap(), data);
        assert_eq!(fs::metadata(m.path("f")).unwrap().blocks(), data.len().div_ceil(4096) as u64 * 8);
        drop_caches();
        assert!(fs::read(m.path("f")).unwrap() == data);

        // O_TRUNC takes effect in the file system, not only in the kernel.
        drop(OpenOptions::new().write(true).truncate(true).open(m.path("f")).unwrap());
        drop_caches();
        assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 0);
        assert_eq!(fs::metadata(m.path("f")).unwrap().blocks(), 0);

        // Appends from several descriptors neither overlap nor leave gaps.
        let append = || OpenOptions::new().append(true).open(m.path("f")).unwrap();
        let (mut a, mut b) = (append(), append());
        for i in 0..100 {
            if i % 2 == 0 { &mut a } else { &mut b }.write_all(format!("{i:03}").as_bytes()).unwrap();
            assert_eq!(fs::metadata(m.path("f")).unwrap().len(), (i + 1) * 3);
        }
        drop((a, b));
        drop_caches();
        let want: String = (0..100).map(|i| format!("{i:03}")).collect();
        assert_eq!(fs::read_to_string(m.path("f")).unwrap(), want);

        // A file that is truncated and extended has zeros after the cut.
        let f = OpenOptions::new().read(true).write(true).open(m.path("f")).unwrap();
        f.set_len(10).unwrap();
        f.set_len(20).unwrap();
        drop_caches();
        assert_eq!(fs::read(m.path("f")).unwrap(), [&want.as_bytes()[..10], &[0; 10]].concat());
        f.write_all_at(b"end", 100_000).unwrap();
        drop(f);
        assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 100_003);
    }
}

/// Files that are created and not opened again: their content must not depend on an OPEN.
#[test]
fn exclusive_creation() {
    for options in all() {
        let m = Mounted::new(&options);
        let new = || OpenOptions::new().write(true).create_new(true).mode(0o400).open(m.path("f"));
        // The mode forbids later opens for writing, but not the creating one.
        new().unwrap().write_all(b"x").unwrap();
        assert_eq!(new().unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::metadata(m.path("f")).unwrap().mode() & 0o7777, 0o400);
        fs::write(m.path("f"), "yy").unwrap();
        assert_eq!(fs::read(m.path("f")).unwrap(), b"yy");
        if options.no_open {
            for i in 0..50 {
                fs::write(m.path(&format!("f{i}")), "1").unwrap();
                fs::read(m.path(&format!("f{i}"))).unwrap();
            }
            assert_eq!(m.requests("CREATE"), 1);
            assert_eq!(m.requests("OPEN"), 1);
            assert_eq!(m.requests("RELEASE"), 0);
        }
    }
}

#[test]
fn unlinked_files_live_while_open() {
    for options in all() {
        let m = Mounted::new(&options);
        let mut f = OpenOptions::new().read(true).write(true).create_new(true).open(m.path("f")).unwrap();
        f.write_all(b"alive").unwrap();
        f.sync_all().unwrap();
        fs::remove_file(m.path("f")).unwrap();
        assert_eq!(m.fs.inodes(), 2, "the root and the orphan");
        let mut text = String::new();
        f.seek(SeekFrom::Start(0)).unwrap();
        f.read_to_string(&mut text).unwrap();
        assert_eq!(text, "alive");
        assert_eq!(f.metadata().unwrap().nlink(), 0);
        drop(f);
        wait_for("the orphan goes with its last close", || m.fs.inodes() == 1);

        // A file made without a name stays when it gets a name.
        let f = rustix::fs::open(m.dir(), OFlags::TMPFILE | OFlags::RDWR, Mode::from(0o600)).unwrap();
        rustix::io::write(&f, b"tmp").unwrap();
        assert_eq!(m.fs.inodes(), 2);
        let by_fd = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&f));
        rustix::fs::linkat(CWD, by_fd, CWD, m.path("t"), AtFlags::SYMLINK_FOLLOW).unwrap();
        drop(f);
        drop_caches();
        assert_eq!(fs::read(m.path("t")).unwrap(), b"tmp");
        let f = rustix::fs::open(m.dir(), OFlags::TMPFILE | OFlags::RDWR, Mode::from(0o600)).unwrap();
        assert_eq!(m.fs.inodes(), 3);
        drop(f);
        wait_for("a nameless file goes with its last close", || m.fs.inodes() == 2);
    }
}

/// The kernel reads ahead in requests of the largest size.
#[test]
fn large_files_are_read_in_large_requests() {
    const MIB: u64 = 16;
    if !is_root("the read-ahead of a mount is root's to set") {
        return;
    }
    for options in both() {
        let m = Mounted::new(&options);
        fs::write(m.path("f"), vec![7; (MIB << 20) as usize]).unwrap();
        let f = File::open(m.path("f")).unwrap();
        rustix::fs::fadvise(&f, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let before = m.requests("READ");
        let mut piece = vec![0; 1 << 20];
        for _ in 0..MIB {
            (&f).read_exact(&mut piece).unwrap();
            assert!(piece.iter().all(|&b| b == 7));
        }
        let reads = m.requests("READ") - before;
        // With a read-ahead of 128 KiB there would be eight READs for each mebibyte.
        assert!((1..=2 * MIB).contains(&reads), "{reads} READs for {MIB} MiB");
    }
}

#[test]
fn large_directories() {
    for options in both() {
        let m = Mounted::new(&options);
        let want: BTreeSet<String> =
            (0..3000).map(|i| format!("entry-{i:05}-{}", "x".repeat(i % 60))).collect();
        for name in &want {
            rustix::fs::mknodat(CWD, m.path(name), rustix::fs::FileType::RegularFile, Mode::from(0o644), 0)
                .unwrap();
        }
        assert_eq!(names(m.dir()), want);
        let alone = drop_caches_alone();
        let lookups = m.requests("LOOKUP");
        let mut sizes = 0;
        for entry in fs::read_dir(m.dir()).unwrap() {
            sizes += entry.unwrap().metadata().unwrap().len();
        }
        assert_eq!(sizes, 0);
        assert_eq!(m.requests("LOOKUP"), lookups, "READDIRPLUS brings the attributes along");
        drop(alone);
        for (i, entry) in fs::read_dir(m.dir()).unwrap().enumerate() {
            if i % 2 == 0 {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
        }
        assert_eq!(names(m.dir()).len(), 1500);
        for name in names(m.dir()) {
            fs::remove_file(m.path(&name)).unwrap();
        }
        wait_for("all pins come back", || m.fs.inodes() == 1);
    }
}

#[test]
fn attributes() {
    for options in all() {
        let m = Mounted::new(&options);
        let f = File::create(m.path("f")).unwrap();
        fs::set_permissions(m.path("f"), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(fs::metadata(m.path("f")).unwrap().mode(), 0o100640);
        let times = Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: 5, tv_nsec: 6 },
            last_modification: rustix::fs::Timespec { tv_sec: -7, tv_nsec: 999_999_999 },
        };
        rustix::fs::futimens(&f, &times).unwrap();
        drop(f);
        drop_caches();
        let meta = fs::metadata(m.path("f")).unwrap();
        assert_eq!((meta.atime(), meta.atime_nsec()), (5, 6));
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (-7, 999_999_999));
        assert_eq!(meta.blksize(), 4096);
        assert!(meta.created().is_ok(), "statx gives the time of birth");
        let mknod = |name, kind, dev| {
            if is_root("no device nodes and fifos") {
                rustix::fs::mknodat(CWD, m.path(name), kind, Mode::from(0o600), dev).unwrap();
            }
        };
        mknod("null", rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(259, 0x12345));
        mknod("fifo", rustix::fs::FileType::Fifo, 0);
        if is_root("no device nodes, no groups") {
            drop_caches();
            let meta = fs::metadata(m.path("null")).unwrap();
            assert!(meta.file_type().is_char_device());
            assert_eq!(meta.rdev(), rustix::fs::makedev(259, 0x12345));
            assert!(fs::metadata(m.path("fifo")).unwrap().file_type().is_fifo());

            // New entries inherit the group of a directory with the set-group-id bit.
            fs::create_dir(m.path("g")).unwrap();
            rustix::fs::chown(m.path("g"), None, Some(Gid::from_raw(77))).unwrap();
            fs::set_permissions(m.path("g"), fs::Permissions::from_mode(0o2775)).unwrap();
            fs::create_dir(m.path("g/d")).unwrap();
            fs::write(m.path("g/d/f"), "").unwrap();
            assert_eq!(fs::metadata(m.path("g/d")).unwrap().mode() & 0o2000, 0o2000);
            assert_eq!(fs::metadata(m.path("g/d/f")).unwrap().gid(), 77);
        }
        let st = rustix::fs::statvfs(m.dir()).unwrap();
        assert_eq!((st.f_blocks, st.f_bfree, st.f_bavail, st.f_frsize), (1000, 900, 800, 4096));
        assert_eq!((st.f_files, st.f_ffree, st.f_namemax), (70, 60, 255));
    }
}

/// A change of the owner or of the content clears the set-user-id bit.
#[test]
fn privilege_is_dropped() {
    if !is_root("nobody's writes") {
        return;
    }
    for options in all() {
        let m = Mounted::new(&options);
        let suid = |mode| {
            fs::set_permissions(m.path("f"), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(fs::metadata(m.path("f")).unwrap().mode() & 0o7777, mode);
        };
        let mode = || fs::metadata(m.path("f")).unwrap().mode() & 0o7777;
        fs::write(m.path("f"), "").unwrap();
        suid(0o6777);
        rustix::fs::chown(m.path("f"), Some(Uid::from_raw(65534)), None).unwrap();
        assert_eq!(mode(), 0o777, "{options:?}");
        suid(0o6777);
        // Only a write by a process without CAP_FSETID clears the bits.
        as_nobody(&format!("exec 3>>'{0}'; echo x >&3", m.path("f").display()), &m, &options);
        if options.privileged == Some(true) {
            assert_eq!(mode(), 0o777, "{options:?}");
            suid(0o2767);
            as_nobody(&format!(": > '{}'", m.path("f").display()), &m, &options);
            // If the kernel clears the bits, it leaves the set-group-id bit.
            let written = if options.handle_killpriv { 0o767 } else { 0o2767 };
            assert_eq!(mode(), written, "written from outside of the group, {options:?}");
            rustix::fs::chown(m.path("f"), None, Some(Gid::from_raw(65534))).unwrap();
            suid(0o2767);
            as_nobody(&format!(": > '{}'", m.path("f").display()), &m, &options);
            assert_eq!(mode(), 0o2767, "without group execution a member keeps it, {options:?}");
            suid(0o4777);
            as_nobody(&format!(": > '{}'", m.path("f").display()), &m, &options);
            assert_eq!(mode(), 0o777, "{options:?}");
        }
    }
}

fn as_nobody(script: &str, m: &Mounted, options: &FuseOptions) {
    if options.privileged != Some(true) {
        return;
    }
    fs::set_permissions(m.temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let status = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script])
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn xattrs() {
    for options in both() {
        let m = Mounted::new(&options);
        fs::write(m.path("f"), "").unwrap();
        let f = m.path("f");
        let mut buf = [0; 100];
        rustix::fs::setxattr(&f, "user.a", b"one", XattrFlags::CREATE).unwrap();
        assert_eq!(
            rustix::fs::setxattr(&f, "user.a", b"", XattrFlags::CREATE),
            Err(rustix::io::Errno::EXIST)
        );
        assert_eq!(
            rustix::fs::setxattr(&f, "user.b", b"", XattrFlags::REPLACE),
            Err(rustix::io::Errno::NODATA)
        );
        rustix::fs::setxattr(&f, "user.b", b"", XattrFlags::empty()).unwrap();
        assert_eq!(rustix::fs::getxattr(&f, "user.a", &mut buf), Ok(3));
        assert_eq!(&buf[..3], b"one");
        assert_eq!(rustix::fs::getxattr(&f, "user.a", &mut [0u8; 2]), Err(rustix::io::Errno::RANGE));
        assert_eq!(rustix::fs::getxattr_query(&f, "user.a"), Ok(3));
        assert_eq!(rustix::fs::listxattr(&f, &mut buf), Ok(14));
        assert_eq!(&buf[..14], b"user.a\0user.b\0");
        rustix::fs::removexattr(&f, "user.a").unwrap();
        assert_eq!(rustix::fs::removexattr(&f, "user.a"), Err(rustix::io::Errno::NODATA));
        let acl = rustix::fs::getxattr(&f, "system.posix_acl_access", &mut buf);
        assert!(matches!(acl, Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NODATA)), "{acl:?}");

        assert_eq!(m.control("system.kedgefs.pid"), std::process::id().to_string());
        let (info, stats) = (m.state("system.kedgefs.info"), m.state("system.kedgefs.stats"));
        let kind = if options.privileged == Some(true) { "fuseblk" } else { "fuse" };
        assert_eq!(info["label"], "mem", "{info}");
        assert_eq!(info["mount"]["type"], kind, "{info}");
        assert_eq!(info["mount"]["pid"], std::process::id(), "{info}");
        assert!(info["mount"]["image"].as_str().unwrap().contains("image, with \\ and blank"), "{info}");
        assert_eq!(stats["memfs"], 1, "{stats}");
        assert!(stats["fuse"]["requests"]["LOOKUP"].as_u64().unwrap() > 0, "{stats}");
        assert_eq!(rustix::fs::listxattr(m.dir(), &mut buf), Ok(0));
        assert_eq!(
            rustix::fs::getxattr(m.dir(), "system.kedgefs.x", &mut buf),
            Err(rustix::io::Errno::NODATA)
        );
        assert!(rustix::fs::setxattr(m.dir(), "system.kedgefs.pid", b"1", XattrFlags::empty()).is_err());
    }
}

#[test]
fn sparse_files() {
    for options in all() {
        let m = Mounted::new(&options);
        let mut f =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(m.path("f")).unwrap();
        f.write_all_at(b"x", 1 << 20).unwrap();
        f.write_all_at(b"x", 3 << 20).unwrap();
        // None of the data has been flushed.
        let seek = |from| rustix::fs::seek(&f, from);
        use rustix::fs::SeekFrom::{Data, Hole};
        assert_eq!(seek(Data(0)), Ok(1 << 20), "{options:?}");
        assert_eq!(seek(Hole(1 << 20)), Ok((1 << 20) + 4096));
        assert_eq!(seek(Data((1 << 20) + 4096)), Ok(3 << 20));
        assert_eq!(seek(Hole(3 << 20)), Ok((3 << 20) + 1));
        assert_eq!(seek(Data((3 << 20) + 1)), Err(rustix::io::Errno::NXIO));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&f, punch, 1 << 20, 4096).unwrap();
        assert_eq!(rustix::fs::seek(&f, Data(0)), Ok(3 << 20));
        let mut byte = [9];
        f.seek(SeekFrom::Start(1 << 20)).unwrap();
        f.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [0]);
        rustix::fs::fallocate(&f, FallocateFlags::empty(), 4 << 20, 4096).unwrap();
        assert_eq!(f.metadata().unwrap().len(), (4 << 20) + 4096);
        let refused = rustix::fs::fallocate(&f, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
        assert_eq!(refused, Err(rustix::io::Errno::OPNOTSUPP));
    }
}

/// A store through a shared mapping counts as data, although the kernel has not written it yet.
#[test]
fn stores_through_a_mapping_are_found() {
    use rustix::fs::SeekFrom::{Data, Hole};
    for options in all() {
        let m = Mounted::new(&options);
        let f =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(m.path("f")).unwrap();
        f.set_len(1 << 20).unwrap();
        let mut map = Mapping::of(&f).unwrap();
        map.store(500_000, b"stored");
        let block = 500_000 / 4096 * 4096;
        assert_eq!(rustix::fs::seek(&f, Data(0)), Ok(block), "{options:?}");
        assert_eq!(rustix::fs::seek(&f, Hole(block)), Ok(block + 4096));
        map.store(0, b"stored");
        assert_eq!(rustix::fs::seek(&f, Hole(0)), Ok(4096), "{options:?}");
        assert_eq!(rustix::fs::seek(&f, Data(0)), Ok(0));
        map.sync().unwrap();
        drop(map);
        drop_caches();
        assert_eq!(&fs::read(m.path("f")).unwrap()[500_000..500_006], b"stored");
    }
}

/// Failed requests are counted by operation and errno.
#[test]
fn failures_are_counted() {
    for options in both() {
        let m = Mounted::new(&options);
        fs::create_dir(m.path("d")).unwrap();
        fs::write(m.path("d/f"), "x").unwrap();
        for _ in 0..2 {
            assert!(fs::remove_dir(m.path("d")).is_err());
        }
        assert!(fs::metadata(m.path("none")).is_err());
        let failed = &m.state("system.kedgefs.stats")["fuse"]["failed"];
        assert_eq!(failed["RMDIR"]["ENOTEMPTY"], 2, "{failed}");
        assert!(failed["LOOKUP"].is_null(), "a name that is not there is no failure: {failed}");
    }
}

/// Several concurrent lseeks, each of which needs replies to WRITEs, with two workers.
#[test]
fn seeks_do_not_starve_workers() {
    for options in gathering() {
        let m = Mounted::new(&FuseOptions { workers: Some(2), ..options });
        std::thread::scope(|scope| {
            for t in 0..8 {
                let m = &m;
                std::thread::Builder::new()
                    .spawn_scoped(scope, move || {
                        let f = File::create(m.path(&format!("f{t}"))).unwrap();
                        for i in 0..20u64 {
                            f.write_all_at(&[1; 4096], i * 8192 + 4096).unwrap();
                            let data = rustix::fs::seek(&f, rustix::fs::SeekFrom::Data(i * 8192));
                            assert_eq!(data, Ok(i * 8192 + 4096));
                        }
                    })
                    .unwrap();
            }
        });
    }
}

#[test]
fn fsync_holds_no_worker() {
    const FSYNCS: usize = 8;
    for options in both() {
        // No fsync is completed before all of them have arrived. If an fsync occupied a worker, two
        // would occupy both, and the others would not arrive.
        let gathered = Arc::new((Mutex::new(Some(Vec::<Done>::new())), Condvar::new()));
        let mut fs_ = MemFs::new();
        let arrivals = gathered.clone();
        fs_.on_fsync = Some(Arc::new(move |done| {
            let mut gathered = arrivals.0.lock();
            let Some(waiting) = &mut *gathered else {
                drop(gathered);
                return done(Ok(()));
            };
            waiting.push(done);
            arrivals.1.notify_all();
        }));
        let m = Mounted::with(fs_, &FuseOptions { workers: Some(2), ..options });
        std::thread::scope(|scope| {
            for t in 0..FSYNCS {
                let m = &m;
                std::thread::Builder::new()
                    .spawn_scoped(scope, move || {
                        let mut f = File::create(m.path(&format!("f{t}"))).unwrap();
                        f.write_all(b"x").unwrap();
                        if t % 2 == 0 { f.sync_all() } else { f.sync_data() }.unwrap();
                        File::open(m.dir()).unwrap();
                    })
                    .unwrap();
            }
            let few = |waiting: &mut Option<Vec<Done>>| waiting.as_ref().unwrap().len() < FSYNCS;
            let mut waiting = gathered.0.lock();
            let hung = gathered.1.wait_while_for(&mut waiting, few, HANG).timed_out();
            let together = waiting.take().unwrap();
            drop(waiting);
            let count = together.len();
            together.into_iter().for_each(|done| done(Ok(())));
            assert!(!hung, "{count} of {FSYNCS} fsyncs arrived");
        });
        assert_eq!(m.fs.fsyncs(), FSYNCS as u64);
        File::open(m.dir()).unwrap().sync_all().unwrap();
        assert_eq!(m.requests("FSYNCDIR"), 1);
    }
}

/// The SETATTR that a writeback cache sends with an fsync changes only times.
#[test]
fn flushed_times_are_times_only() {
    for options in gathering() {
        let m = Mounted::new(&options);
        let mut f = File::create(m.path("f")).unwrap();
        m.fs.take_setattrs();
        // Waits for the next tick of the clock: otherwise the times equal those of the creation.
        kedge_base::pause(Duration::from_millis(30));
        f.write_all(b"x").unwrap();
        f.sync_all().unwrap();
        let sent = m.fs.take_setattrs();
        assert_eq!(sent.len(), 1);
        let Some(SetTime::At(mtime @ Timespec { .. })) = sent[0].mtime else { panic!("{sent:?}") };
        assert_eq!(
            sent[0],
            SetAttr { mtime: Some(SetTime::At(mtime)), ctime: sent[0].ctime, ..SetAttr::default() }
        );
        drop(f);
        drop_caches();
        let meta = fs::metadata(m.path("f")).unwrap();
        assert_eq!((meta.mtime(), meta.mtime_nsec() as u32), (mtime.sec, mtime.nsec));
    }
}

/// With a writeback cache write(2) to an open file sends no request.
#[test]
fn writes_are_cached() {
    for options in gathering() {
        let m = Mounted::new(&options);
        let mut f = File::create(m.path("f")).unwrap();
        f.write_all(b"first").unwrap();
        let before = m.requests("GETXATTR") + m.requests("GETATTR");
        for _ in 0..100 {
            f.write_all(b"more").unwrap();
        }
        let after = m.requests("GETXATTR") + m.requests("GETATTR");
        // Reading the counters takes one or two requests itself.
        assert!(after - before <= 4, "{}", after - before);
        assert_eq!(m.requests("WRITE"), 0);
    }
}

/// Held by tests that drop the caches, and by tests that rely on cached data.
static CACHES: Mutex<()> = Mutex::new(());

fn drop_caches() {
    drop(drop_caches_alone());
}

/// Drops the caches of the whole machine. No other test drops them until the guard is dropped.
fn drop_caches_alone() -> MutexGuard<'static, ()> {
    let alone = CACHES.lock();
    // Without root the caches stay, so the tests check only the kernel's cached state.
    if is_root("the caches of the kernel are not dropped") {
        fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    }
    alone
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..HANG.as_millis() / 10 {
        if condition() {
            return;
        }
        kedge_base::pause(Duration::from_millis(10));
    }
    panic!("{what}: not within {HANG:?}");
}
