//! Requests for features that a mount lacks are refused and never get an untrue result. The
//! requests come from common programs.

use crate::common::{Place, kill, needs_fuse, not_root, output_of, tool};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};

const SIZE: usize = 1 << 20;
/// The options of all kinds of mounts that users can make.
const KINDS: [&str; 3] = ["", " -o fuse", " -o writeback_cache"];

/// A mount with the file `mnt/file`, every block of which is allocated and durable.
fn mounted(options: &str) -> Place {
    let place = Place::after(&format!("mount{options} --create 64M disk.kedge mnt"));
    crate::common::write_and_fsync(&place.path("mnt/file"), &vec![7; SIZE]);
    assert_eq!(fs::metadata(place.path("mnt/file")).unwrap().blocks(), SIZE as u64 / 512);
    place
}

/// Runs a program, which must fail and print `words`, in the locale C.
#[track_caller]
fn refused(place: &Place, line: &str, words: &str) {
    let (program, args) = line.split_once(' ').unwrap();
    let mut command = place.command(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.args(args.split(' ')).env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
    let out = output_of(command).unwrap_or_else(|e| panic!("{program}: {e}"));
    let said = String::from_utf8([out.stdout, out.stderr].concat()).unwrap();
    assert!(!out.status.success() && said.contains(words), "{line}: {}: {said}", out.status);
}

#[track_caller]
fn runs(place: &Place, line: &str, package: &str) -> String {
    let (program, args) = line.split_once(' ').unwrap();
    let mut command = place.command(program);
    command.args(args.split(' '));
    tool(command, package)
}

/// Calls an ioctl that takes a pointer to `room`.
fn ioctl(file: &File, number: libc::c_ulong, room: &mut [u64]) -> std::io::Result<()> {
    // SAFETY: the ioctls of these tests read and write less than the size of `room`, which outlives
    // the call; the descriptor is open.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), number, room.as_mut_ptr()) };
    if done < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets and reads flags by both ioctl interfaces, on a file and on a directory. statx(2) shows no
/// flags, because the kernel requests only times and sizes from a FUSE server.
#[test]
fn file_flags_have_two_interfaces() {
    needs_fuse!();
    const FS_IOC_GETFLAGS: libc::c_ulong = 0x8008_6601;
    const FS_IOC_SETFLAGS: libc::c_ulong = 0x4008_6602;
    const FS_IOC_FSGETXATTR: libc::c_ulong = 0x801c_581f;
    const FS_IOC_FSSETXATTR: libc::c_ulong = 0x401c_5820;
    for options in KINDS {
        let place = mounted(options);
        for name in ["mnt", "mnt/file"] {
            let file = File::open(place.path(name)).unwrap();
            let get = |number| {
                let mut room = [0; 16];
                ioctl(&file, number, &mut room).unwrap();
                room[0] as u32
            };
            assert_eq!((get(FS_IOC_GETFLAGS), get(FS_IOC_FSGETXATTR)), (0, 0));
            ioctl(&file, FS_IOC_SETFLAGS, &mut [0x40]).unwrap();
            assert_eq!((get(FS_IOC_GETFLAGS), get(FS_IOC_FSGETXATTR)), (0x40, 0x80));
            ioctl(&file, FS_IOC_FSSETXATTR, &mut [0x40, 0, 0, 0]).unwrap();
            assert_eq!((get(FS_IOC_GETFLAGS), get(FS_IOC_FSGETXATTR)), (0x80, 0x40));
            // Set the compressed flag, and an extent size hint, which has a flag of its own.
            for (number, words) in [(FS_IOC_SETFLAGS, [4, 0]), (FS_IOC_FSSETXATTR, [0x1000 << 32 | 0x800, 0])]
            {
                let answer = ioctl(&file, number, &mut [words[0], words[1], 0, 0]);
                let errno = answer.unwrap_err().raw_os_error();
                assert!(
                    [Some(libc::EOPNOTSUPP), Some(libc::EINVAL)].contains(&errno),
                    "{number:#x}: {errno:?}"
                );
            }
            assert_eq!(get(FS_IOC_GETFLAGS), 0x80);
            let found = statx(CWD, place.path(name), AtFlags::empty(), StatxFlags::BASIC_STATS).unwrap();
            let flags = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND | StatxAttributes::NODUMP;
            assert!(!found.stx_attributes_mask.intersects(flags), "{:?}", found.stx_attributes_mask);
        }
        fs::remove_file(place.path("mnt/file")).unwrap();
        place.unmount_and_check("disk.kedge");
    }
}

/// Block numbers would be those of the image, and a program that used them would bypass the file
/// system.
#[test]
fn blocks_have_no_addresses() {
    needs_fuse!();
    const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
    for options in KINDS {
        let place = mounted(options);
        let file = File::open(place.path("mnt/file")).unwrap();
        let mut all = [0, u64::MAX, 0, 0];
        let fiemap = ioctl(&file, FS_IOC_FIEMAP, &mut all).unwrap_err();
        assert_eq!(fiemap.raw_os_error(), Some(libc::EOPNOTSUPP));
        drop(file);
        // Root's filefrag then requests each block (FIBMAP). The kernel itself returns that there
        // is no such block, whatever a server replies.
        if !not_root("only root may ask for single blocks") {
            let said = runs(&place, "filefrag mnt/file", "e2fsprogs");
            assert!(said.contains("mnt/file: 0 extents found"), "{said}");
        }
        place.unmount_and_check("disk.kedge");
    }
}

#[test]
fn no_swapping() {
    needs_fuse!(root: "only root swaps");
    for options in KINDS {
        let place = mounted(options);
        fs::set_permissions(place.path("mnt/file"), fs::Permissions::from_mode(0o600)).unwrap();
        runs(&place, "mkswap mnt/file", "util-linux");
        refused(&place, "swapon mnt/file", "swapon failed: Invalid argument");
        let swaps = fs::read_to_string("/proc/swaps").unwrap();
        assert!(!swaps.contains(place.path("mnt").to_str().unwrap()), "{swaps}");
        place.unmount_and_check("disk.kedge");
    }
}

#[test]
fn copies_are_whole() {
    needs_fuse!();
    for options in KINDS {
        let place = mounted(options);
        let is_copy = |name: &str| fs::read(place.path(name)).unwrap() == [7; SIZE];
        refused(&place, "cp --reflink=always mnt/file mnt/clone", "Operation not supported");
        for to in ["mnt/copy", "outside"] {
            runs(&place, &format!("cp --reflink=auto mnt/file {to}"), "coreutils");
            assert!(is_copy(to), "{to}");
        }
        runs(&place, "cp outside mnt/back", "coreutils");
        assert!(is_copy("mnt/back"));
        let from = File::open(place.path("mnt/file")).unwrap();
        let range = |to: &str| {
            let to = File::create(place.path(to)).unwrap();
            rustix::fs::copy_file_range(&from, None, &to, None, SIZE)
        };
        assert_eq!(range("mnt/range"), Ok(SIZE));
        assert!(is_copy("mnt/range"));
        // As on ext4, only between file systems of one kind.
        assert_eq!(range("range"), Err(rustix::io::Errno::XDEV));
        drop(from);
        place.unmount_and_check("disk.kedge");
    }
}

/// The free blocks, after all pending writes have been made.
fn free(place: &Place) -> u64 {
    rustix::fs::sync();
    rustix::fs::statvfs(place.path("mnt")).unwrap().f_bfree
}

#[test]
fn copies_share_blocks_until_one_is_written() {
    const LEN: usize = 8 << 20;
    const COPY: &str = "import os; s = os.open('mnt/large', 0); t = os.open('mnt/python', os.O_CREAT | os.O_RDWR)\n\
                        while os.copy_file_range(s, t, 1 << 30): pass";
    needs_fuse!();
    for options in KINDS {
        let place = mounted(options);
        let bytes: Vec<u8> = (0..LEN + 100).map(|i| (i / 1000) as u8).collect();
        crate::common::write_and_fsync(&place.path("mnt/large"), &bytes);
        let before = free(&place);
        let took = || before.saturating_sub(free(&place)) * 4096;
        runs(&place, "cp mnt/large mnt/coreutils", "coreutils");
        let mut python = place.command("python3");
        python.args(["-c", COPY]);
        tool(python, "python3");
        for name in ["mnt/coreutils", "mnt/python"] {
            assert!(fs::read(place.path(name)).unwrap() == bytes, "{options}: {name}");
            assert_eq!(fs::metadata(place.path(name)).unwrap().blocks(), (LEN as u64 + 4096) / 512);
        }
        assert!(took() < 1 << 20, "{options}: {} bytes for two copies", took());
        runs(&place, "cp --reflink=never mnt/large mnt/never", "coreutils");
        assert!(took() > LEN as u64 / 2, "{options}: {}", took());

        // After the copies each file changes independently, and so do the pages that the kernel
        // caches of it.
        let overwrite = |name: &str, at: u64, with: &[u8]| {
            let file = fs::OpenOptions::new().write(true).open(place.path(name)).unwrap();
            file.write_all_at(with, at).unwrap();
            file.sync_all().unwrap();
        };
        overwrite("mnt/coreutils", 1 << 20, &[1; 10_000]);
        overwrite("mnt/large", 100, b"source");
        let shall = |at: usize, with: &[u8]| {
            let mut shall = bytes.clone();
            shall[at..at + with.len()].copy_from_slice(with);
            shall
        };
        let check = || {
            assert!(fs::read(place.path("mnt/coreutils")).unwrap() == shall(1 << 20, &[1; 10_000]));
            assert!(fs::read(place.path("mnt/large")).unwrap() == shall(100, b"source"));
            assert!(fs::read(place.path("mnt/python")).unwrap() == bytes);
        };
        check();
        // Copy a range whose pages are dirty in the kernel over a range with dirty pages.
        let large = File::open(place.path("mnt/large")).unwrap();
        let target = fs::OpenOptions::new().write(true).open(place.path("mnt/never")).unwrap();
        let dirty = fs::OpenOptions::new().write(true).open(place.path("mnt/large")).unwrap();
        dirty.write_all_at(&[2; 5000], 3 << 20).unwrap();
        target.write_all_at(&[3; 1 << 20], 0).unwrap();
        let (mut from, mut to, mut left) = (1 << 20, 4096u64, 4 << 20);
        while left > 0 {
            left -=
                rustix::fs::copy_file_range(&large, Some(&mut from), &target, Some(&mut to), left).unwrap();
        }
        let source = shall(100, b"source");
        let mut expected = bytes.clone();
        expected[..1 << 20].fill(3);
        expected[4096..4096 + (4 << 20)].copy_from_slice(&source[1 << 20..5 << 20]);
        expected[4096 + (2 << 20)..][..5000].fill(2);
        assert!(fs::read(place.path("mnt/never")).unwrap() == expected, "{options}");
        dirty.write_all_at(&source[3 << 20..][..5000], 3 << 20).unwrap();
        drop((large, target, dirty));

        place.run("umount mnt").ok();
        place.run("fsck disk.kedge").ok();
        place.run("mount disk.kedge mnt").ok();
        check();
        assert!(fs::read(place.path("mnt/never")).unwrap() == expected, "{options}");
        for name in ["mnt/large", "mnt/python"] {
            fs::remove_file(place.path(name)).unwrap();
        }
        assert!(fs::read(place.path("mnt/coreutils")).unwrap() == shall(1 << 20, &[1; 10_000]));
        place.unmount_and_check("disk.kedge");
    }
}

#[test]
fn a_mount_with_noreflink_copies_all_blocks() {
    const LEN: usize = 8 << 20;
    needs_fuse!();
    let place = mounted(" -o noreflink");
    crate::common::write_and_fsync(&place.path("mnt/large"), &vec![5; LEN]);
    let before = free(&place);
    runs(&place, "cp mnt/large mnt/copy", "coreutils");
    assert!((before - free(&place)) * 4096 >= LEN as u64);
    assert!(fs::read(place.path("mnt/copy")).unwrap() == vec![5; LEN]);
    place.unmount_and_check("disk.kedge");
}

/// copy_file_range(2) keeps the promise of an O_SYNC descriptor, as write(2) does, for files that
/// share blocks and for bytes that are copied.
#[test]
fn a_copy_to_a_descriptor_with_o_sync_is_durable() {
    needs_fuse!();
    for options in KINDS {
        let place = mounted(options);
        let from = File::open(place.path("mnt/file")).unwrap();
        let to = fs::OpenOptions::new()
            .create_new(true)
            .write(true)
            .custom_flags(libc::O_SYNC)
            .open(place.path("mnt/copy"))
            .unwrap();
        File::open(place.path("mnt")).unwrap().sync_all().unwrap();
        let mut copied = 0;
        while copied < SIZE {
            // The aligned part may be shared; the last bytes are then copied.
            copied += rustix::fs::copy_file_range(&from, None, &to, None, SIZE - copied).unwrap();
        }
        kill(&place, "mnt");
        drop((from, to));
        place.run("umount mnt").refused(1, &["the serving process had died"]);
        place.run("mount disk.kedge mnt").ok();
        assert!(fs::read(place.path("mnt/copy")).unwrap() == [7; SIZE], "{options}: it was lost");
        place.unmount_and_check("disk.kedge");
    }
}

/// A write by a user other than root clears the set-id bits.
#[test]
fn a_copy_takes_set_user_id_away() {
    needs_fuse!(root: "only root can become another user");
    let place = mounted("");
    let mode = |name: &str| fs::metadata(place.path(name)).unwrap().permissions().mode() & 0o7777;
    for path in ["", "mnt"] {
        fs::set_permissions(place.path(path), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(place.path("mnt/file"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(place.path("mnt/tool"), "a program").unwrap();
    std::os::unix::fs::chown(place.path("mnt/tool"), Some(65534), None).unwrap();
    fs::set_permissions(place.path("mnt/tool"), fs::Permissions::from_mode(0o4755)).unwrap();
    let copy = "import os; os.copy_file_range(os.open('mnt/file', 0), os.open('mnt/tool', os.O_RDWR), 100)";
    let mut command = place.command("setpriv");
    // Root's own PATH may contain directories that the user cannot enter.
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "python3", "-c", copy]);
    let out = output_of(command).unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!((mode("mnt/tool"), fs::metadata(place.path("mnt/tool")).unwrap().len()), (0o755, 100));
    place.unmount_and_check("disk.kedge");
}

#[test]
fn space_is_reserved_and_given_back() {
    needs_fuse!();
    for options in KINDS {
        let place = mounted(options);
        let meta = || fs::metadata(place.path("mnt/file")).unwrap();
        runs(&place, "fallocate -l 2M mnt/file", "util-linux");
        assert_eq!((meta().len(), meta().blocks()), (2 << 20, (2 << 20) / 512));
        runs(&place, "fallocate -n -o 2M -l 1M mnt/file", "util-linux");
        assert_eq!((meta().len(), meta().blocks()), (2 << 20, (3 << 20) / 512));
        runs(&place, "fallocate -p -o 0 -l 512K mnt/file", "util-linux");
        assert_eq!((meta().len(), meta().blocks()), (2 << 20, (5 << 19) / 512));
        runs(&place, "fallocate -z -o 512K -l 256K mnt/file", "util-linux");
        let bytes = fs::read(place.path("mnt/file")).unwrap();
        assert!(bytes[..768 << 10].iter().all(|&b| b == 0) && bytes[768 << 10..SIZE] == [7; 256 << 10]);
        // The kernel passes these modes to no FUSE server.
        for mode in ["-c", "-i"] {
            refused(&place, &format!("fallocate {mode} -o 0 -l 4096 mnt/file"), "Operation not supported");
        }
        assert!(fs::read(place.path("mnt/file")).unwrap() == bytes);
        place.unmount_and_check("disk.kedge");
    }
}
