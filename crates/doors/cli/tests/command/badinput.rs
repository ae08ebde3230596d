//! Common mistakes on the command line: each ends with the documented exit code, and one line that
//! names what was wrong and where. [`crate::common::Place::kedge`] fails if a command hangs.

use crate::common::{Place, Run, copy_program, needs_fuse, no_fuse, output_of, tool, write_and_fsync};
use kedge_sim::ops::Fill;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

const MIB: usize = 1 << 20;

/// Files that are no images, each with the words by which mkfs describes its contents.
fn foreign(place: &Place) -> Vec<(&'static str, &'static str)> {
    fs::write(place.path("text"), "what somebody wrote down\n".repeat(MIB)).unwrap();
    fs::write(place.path("random"), Fill::Seed(1).bytes(0, 20 * MIB)).unwrap();
    fs::File::create(place.path("zeros")).unwrap().set_len(20 << 20).unwrap();
    let mut mke2fs = place.command("mke2fs");
    mke2fs.args(["-q", "-t", "ext4", "ext4", "20M"]);
    tool(mke2fs, "e2fsprogs");
    vec![
        ("text", "data of an unknown kind"),
        ("random", "data of an unknown kind"),
        ("zeros", ""),
        ("ext4", "an ext2, ext3 or ext4 file system"),
    ]
}

#[test]
fn foreign_files_are_not_taken_for_images() {
    let place = Place::new();
    fs::create_dir(place.path("mnt")).unwrap();
    for (name, held) in foreign(&place) {
        let before = fs::read(place.path(name)).unwrap();
        if !no_fuse() {
            place
                .run(&format!("mount {name} mnt"))
                .refused(1, &[name, "superblock", "no KedgeFS magic", held]);
            place.run(&format!("mount -o ro {name} mnt")).refused(1, &[name, "no KedgeFS magic", held]);
        }
        for command in ["info", "dump --tree", "dump --log"] {
            place.run(&format!("{command} {name}")).refused(1, &[name, "no KedgeFS magic", held]);
        }
        place.run(&format!("tune -L new {name}")).refused(1, &[name, held]);
        for command in ["fsck", "fsck -p", "scrub"] {
            let judged = place.run(&format!("{command} {name}"));
            assert_eq!(judged.code, 8, "{command} {name}: {}", judged.out);
            assert!(judged.out.contains("not-an-image"), "{command} {name}: {}", judged.out);
            assert!(judged.out.contains(held), "{command} {name}: {}", judged.out);
        }
        if !held.is_empty() {
            place.run(&format!("mkfs {name}")).refused(1, &[name, held, "-f"]);
        }
        assert!(fs::read(place.path(name)).unwrap() == before, "{name} was written to");
    }
}

#[test]
fn an_image_that_was_cut_off_is_refused() {
    let place = Place::new();
    fs::create_dir(place.path("mnt")).unwrap();
    place.run("mkfs --size 32M whole.kedge").ok();
    let whole = fs::read(place.path("whole.kedge")).unwrap();
    for (bytes, why) in [(0, "short"), (100, "short"), (4096, "truncated"), (10 * MIB, "truncated")] {
        fs::write(place.path("part.kedge"), &whole[..bytes]).unwrap();
        if !no_fuse() {
            place.run("mount part.kedge mnt").refused(1, &["part.kedge", "superblock", why]);
        }
        place.run("info part.kedge").refused(1, &["part.kedge", "no valid superblock"]);
        place.run("dump --tree part.kedge").refused(1, &["part.kedge", "no valid superblock"]);
        let judged = place.run("fsck part.kedge");
        let code = if bytes < 20 * 4096 { 8 } else { 4 };
        assert_eq!(judged.code, code, "{bytes} bytes: {}", judged.out);
    }
}

/// A pipe without a writer would make its reader wait forever.
#[test]
fn what_can_be_no_image_is_not_opened() {
    let place = Place::new();
    fs::create_dir(place.path("mnt")).unwrap();
    fs::create_dir(place.path("dir")).unwrap();
    let mut mkfifo = place.command("mkfifo");
    mkfifo.arg("pipe");
    tool(mkfifo, "coreutils");
    for name in ["pipe", "dir", "/dev/null", "/dev/zero"] {
        let words = [name, "neither a file nor a block device"];
        for command in ["dump", "dump --log", "mkfs", "mkfs -f --size 16M"] {
            place.run(&format!("{command} {name}")).refused(1, &words);
        }
        // The message differs for a directory, which could be a mount.
        place.run(&format!("info {name}")).refused(1, &[name]);
        place.run(&format!("fsck {name}")).refused(8, &words);
        if !no_fuse() {
            place.run(&format!("mount {name} mnt")).refused(1, &words);
            place.run(&format!("mount -o ro {name} mnt")).refused(1, &words);
        }
    }
}

#[test]
fn mount_options_that_make_no_sense() {
    let place = Place::after("mkfs --size 16M disk.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    for (option, words) in [
        ("bogus", &["unknown", "bogus", "commit=SECONDS", "mount(8)"][..]),
        ("bogus=1", &["unknown", "bogus=1"]),
        ("=", &["unknown", "="]),
        ("commit", &["commit needs a value"]),
        ("commit=", &["commit=", "from 1 to 300"]),
        ("commit=0", &["commit=0", "from 1 to 300"]),
        ("commit=301", &["commit=301", "from 1 to 300"]),
        ("commit=-1", &["commit=-1", "from 1 to 300"]),
        ("commit=5.5", &["commit=5.5", "whole number"]),
        ("commit=soon", &["commit=soon", "whole number"]),
        ("cache_size", &["cache_size needs a value"]),
        ("cache_size=0", &["cache_size=0", "at least 1 MiB"]),
        ("cache_size=1023K", &["cache_size=1023K", "at least 1 MiB"]),
        ("cache_size=12X", &["cache_size=12X", "not a size"]),
        ("cache_size=-1", &["cache_size=-1", "not a size"]),
        ("cache_size=16777216T", &["cache_size=16777216T", "more bytes than 64 bits hold"]),
        ("async_checkpoint=0", &["async_checkpoint=0", "from 1 to 99"]),
        ("async_checkpoint=100", &["async_checkpoint=100", "from 1 to 99"]),
        ("async_checkpoint=half", &["async_checkpoint=half", "from 1 to 99"]),
        ("noasync_checkpoint=3", &["noasync_checkpoint takes no value"]),
        ("workers=0", &["workers=0", "from 2 to 64"]),
        ("workers=1", &["workers=1", "from 2 to 64"]),
        ("workers=65", &["workers=65", "from 2 to 64"]),
        ("ro=1", &["ro takes no value"]),
        ("noatime=yes", &["noatime takes no value"]),
        ("rw,commit=9,workers=x", &["workers=x", "from 2 to 64"]),
    ] {
        place.kedge(["mount", "-o", option, "disk.kedge", "mnt"]).refused(2, words);
    }
    for (words, line) in [
        (&["--cache-size", "1K", "at least 1 MiB"][..], "mount --cache-size 1K disk.kedge mnt"),
        (&["--cache-size", "much"], "mount --cache-size much disk.kedge mnt"),
        (&["--create", "x"], "mount --create x new.kedge mnt"),
        (&["--frob"], "mount --frob disk.kedge mnt"),
        (&["<DIR>"], "mount disk.kedge"),
        (&["<IMAGE>", "<DIR>"], "mount"),
        (&["third"], "mount disk.kedge mnt third"),
    ] {
        place.run(line).refused(2, words);
    }
    assert_eq!(place.run("fsck disk.kedge").code, 0);
    assert!(!place.path("new.kedge").exists());
}

#[test]
fn mount_points_that_are_none() {
    needs_fuse!();
    let place = Place::new();
    fs::create_dir(place.path("mnt")).unwrap();
    fs::write(place.path("file"), "kept").unwrap();
    place.run("mkfs --size 16M disk.kedge").ok();
    place.run("mount disk.kedge gone").refused(1, &["mount point gone", "No such file"]);
    place.run("mount disk.kedge gone/deeper").refused(1, &["gone", "No such file"]);
    place.run("mount disk.kedge file").refused(1, &["mount point file is not a directory"]);
    place.run("mount disk.kedge file/sub").refused(1, &["file/sub", "Not a directory"]);
    place.run("mount gone.kedge mnt").refused(1, &["gone.kedge does not exist", "--create"]);
    place.run("mount --create 16M new/disk.kedge mnt").refused(1, &["new/disk.kedge", "No such file"]);
    place.run("mount --create 1M small.kedge mnt").refused(1, &["small.kedge", "16 MiB"]);
    place.run("mount --log-file gone/log disk.kedge mnt").refused(1, &["gone/log", "No such file"]);
    place.run("umount mnt").refused(1, &["mnt is not a mount point"]);
    place.run("umount gone").refused(1, &["gone is not a mount point"]);
    place.run("umount file").refused(1, &["file is not a mount point"]);
    for target in ["mnt", "file"] {
        place.run(&format!("stats {target}")).refused(1, &[target, "not the root of a KedgeFS mount"]);
    }
    place.run("info mnt").refused(1, &["mnt is not the root of a KedgeFS mount"]);
    place.run("info gone").refused(1, &["gone", "No such file"]);
    place.run("stats gone").refused(1, &["gone", "No such file"]);
    assert_eq!(fs::read(place.path("file")).unwrap(), b"kept");
    let names = fs::read_dir(place.path("")).unwrap().count();
    assert_eq!(names, 3, "mnt, file, disk.kedge and nothing that a failure left");
    // No process holds the image, so it can be used.
    place.run("mount disk.kedge mnt").ok();
    // A directory inside a mount that is not its root.
    fs::create_dir(place.path("mnt/d")).unwrap();
    place.run("umount mnt/d").refused(1, &["mnt/d is not a mount point"]);
    place.run("stats mnt/d").refused(1, &["mnt/d is not the root of a KedgeFS mount"]);
    place.unmount_and_check("disk.kedge");
}

#[test]
fn a_mount_point_that_is_busy() {
    needs_fuse!();
    let place = Place::after("mount --create 16M a.kedge mnt");
    fs::write(place.path("mnt/file"), "a").unwrap();
    place.run("mount a.kedge mnt").refused(1, &["mnt", "busy", "a.kedge is mounted there"]);
    place.run("mkfs --size 16M b.kedge").ok();
    place.run("mount b.kedge mnt").refused(1, &["mnt", "busy", "a.kedge is mounted there"]);
    place.run("mount --create 16M c.kedge mnt").refused(1, &["busy"]);
    assert!(!place.path("c.kedge").exists(), "nothing is made for a mount that cannot be");
    place.run("mount --daemon busy-test b.kedge mnt").refused(1, &["busy"]);
    assert_eq!(fs::read(place.path("mnt/file")).unwrap(), b"a");
    place.unmount_and_check("a.kedge");
    place.run("mount b.kedge mnt").ok();
    assert_eq!(fs::read_dir(place.path("mnt")).unwrap().count(), 0);
    place.unmount_and_check("b.kedge");
}

#[test]
fn a_mounted_image_has_one_process() {
    needs_fuse!();
    let place = Place::after("mount --create 16M disk.kedge mnt");
    write_and_fsync(&place.path("mnt/file"), b"content");
    fs::create_dir(place.path("other")).unwrap();
    fs::hard_link(place.path("disk.kedge"), place.path("alias")).unwrap();
    std::os::unix::fs::symlink("disk.kedge", place.path("link")).unwrap();
    let holder = place.path("mnt").canonicalize().unwrap();
    let holder = holder.to_str().unwrap();
    // Test every name of the image.
    for name in ["disk.kedge", "alias", "link"] {
        for mount in [format!("mount {name} other"), format!("mount --create 16M {name} other")] {
            let run = place.run(&mount);
            // For root the mount succeeds: the second directory shows the same file system.
            if rustix::process::geteuid().is_root() {
                run.ok();
                assert_eq!(fs::read(place.path("other/file")).unwrap(), b"content");
                place.run("umount other").ok();
            } else {
                run.refused(1, &[name, "in use", "mounted on", holder]);
            }
        }
        place.run(&format!("mount -o ro {name} other")).refused(1, &[name, "in use", holder]);
        place.run(&format!("mkfs {name}")).refused(1, &[name, "mounted on", holder]);
        place.run(&format!("mkfs -f {name}")).refused(1, &[name, "mounted on", holder]);
        place.run(&format!("fsck {name}")).refused(8, &[name, "mounted on", holder]);
        // These commands only read the image, and show its last checkpoint.
        assert!(place.run(&format!("dump {name}")).ok().contains("slot 0"));
        assert!(place.run(&format!("dump --tree {name}")).ok().contains("(1 Inode 0)"));
        assert_eq!(place.info(name)["mounted_on"], holder);
    }
    assert_eq!(fs::read(place.path("mnt/file")).unwrap(), b"content");
    place.unmount_and_check("disk.kedge");
}

#[test]
fn images_that_mkfs_cannot_make() {
    let place = Place::new();
    fs::create_dir(place.path("dir")).unwrap();
    fs::write(place.path("file"), "kept").unwrap();
    let long = format!("mkfs --size 16M -L {} n", "x".repeat(65));
    for (line, words) in [
        ("mkfs --size 0 n", &["create n"][..]),
        ("mkfs --size 100 n", &["create n"]),
        ("mkfs --size 15M n", &["create n", "15728640 bytes", "16 MiB"]),
        ("mkfs --size 16M --log-size 0 n", &["create n", "log of 0 bytes", "1 MiB"]),
        ("mkfs --size 16M --log-size 1023K n", &["create n", "log of 1044480 bytes", "1 MiB"]),
        ("mkfs --size 16M --log-size 9M n", &["create n", "log of 9437184 bytes", "half the image"]),
        ("mkfs --size 4G --log-size 2G n", &["create n", "log of 2147483648 bytes", "1 GiB"]),
        (long.as_str(), &["create n", "label of 65 bytes", "64"]),
        ("mkfs --size 8000000T n", &["create n"]),
        ("mkfs --size 16M gone/n", &["create gone/n", "No such file"]),
        ("mkfs --size 16M file/n", &["file/n", "Not a directory"]),
        ("mkfs dir", &["dir is neither a file nor a block device"]),
        ("mkfs -f --size 16M dir", &["dir is neither a file nor a block device"]),
        ("mkfs file", &["file holds data of an unknown kind", "-f"]),
        ("mkfs -f file", &["format file", "16 MiB"]),
    ] {
        place.run(line).refused(1, words);
    }
    place.run("mkfs --size 16M n --label").refused(2, &["--label"]);
    place.run("mkfs --size 99999999T n").refused(2, &["99999999T", "64 bits"]);
    place.kedge(["mkfs", "--size", "16M", ""]).refused(2, &["<IMAGE>"]);
    assert_eq!(fs::read(place.path("file")).unwrap(), b"kept");
    assert_eq!(fs::read_dir(place.path("")).unwrap().count(), 2, "dir and file");

    place.run("mkfs --size 32M disk.kedge").ok();
    place.run("mkfs disk.kedge").refused(1, &["disk.kedge holds a KedgeFS image", "-f"]);
    // A refusal leaves the existing image unchanged.
    place.run("mkfs -f --size 8M disk.kedge").refused(1, &["disk.kedge", "16 MiB"]);
    place.run("mkfs -f --log-size 20M disk.kedge").refused(1, &["disk.kedge", "half the image"]);
    assert_eq!(place.run("fsck disk.kedge").code, 0);
}

/// Runs `kedge` without root: as nobody if the test runs as root, else as the same user.
fn as_nobody(place: &Place, line: &str) -> Run {
    let binary = place.path("kedge");
    if !binary.exists() {
        copy_program(&binary);
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = place.command(binary.to_str().unwrap());
    command.args(line.split(' ')).env_remove("KEDGE_LOG");
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let output = output_of(command).unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn an_image_that_is_somebody_elses() {
    let place = Place::new();
    fs::create_dir(place.path("mnt")).unwrap();
    place.run("mkfs --size 16M disk.kedge").ok();
    fs::set_permissions(place.path("disk.kedge"), fs::Permissions::from_mode(0o000)).unwrap();
    let words = ["disk.kedge", "Permission denied"];
    for line in ["info disk.kedge", "dump disk.kedge", "mkfs disk.kedge", "mkfs -f --size 16M disk.kedge"] {
        as_nobody(&place, line).refused(1, &words);
    }
    as_nobody(&place, "fsck disk.kedge").refused(8, &words);
    if !no_fuse() {
        as_nobody(&place, "mount disk.kedge mnt").refused(1, &words);
        as_nobody(&place, "mount -o ro disk.kedge mnt").refused(1, &words);
    }
    // The image may be read but not written.
    fs::set_permissions(place.path("disk.kedge"), fs::Permissions::from_mode(0o444)).unwrap();
    as_nobody(&place, "info disk.kedge").ok();
    as_nobody(&place, "fsck disk.kedge").ok();
    as_nobody(&place, "mkfs -f disk.kedge").refused(1, &words);
    if !no_fuse() {
        let hint = [&words[..], &["mount -o ro"]].concat();
        as_nobody(&place, "mount disk.kedge mnt").refused(1, &hint);
    }
    assert_eq!(place.run("fsck disk.kedge").code, 0);
}

/// A read-only view of a directory, to which not even root can write. Only root can make the view;
/// for other users the mode bits suffice.
struct ReadOnlyView<'a>(&'a Path);

impl ReadOnlyView<'_> {
    fn new<'a>(of: &Path, at: &'a Path) -> ReadOnlyView<'a> {
        use rustix::mount::{MountFlags, mount_bind, mount_remount};
        mount_bind(of, at).unwrap();
        mount_remount(at, MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
        ReadOnlyView(at)
    }
}

impl Drop for ReadOnlyView<'_> {
    fn drop(&mut self) {
        if let Err(e) = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH) {
            eprintln!("{}: {e}", self.0.display());
        }
    }
}

#[test]
fn an_image_file_that_is_read_only() {
    needs_fuse!();
    let place = Place::new();
    fs::create_dir(place.path("real")).unwrap();
    fs::create_dir(place.path("view")).unwrap();
    place.run("mount --create 16M real/disk.kedge mnt").ok();
    write_and_fsync(&place.path("mnt/file"), b"content");
    // The copied image was not unmounted, so a read-only mount has to replay its log in memory.
    fs::copy(place.path("real/disk.kedge"), place.path("real/killed.kedge")).unwrap();
    place.unmount_and_check("real/disk.kedge");
    let before = fs::read(place.path("real/killed.kedge")).unwrap();
    let (real, view) = (place.path("real"), place.path("view"));
    let root = rustix::process::geteuid().is_root();
    let _view = root.then(|| ReadOnlyView::new(&real, &view));
    let why = if root { "Read-only file system" } else { "Permission denied" };
    let dir = if root { "view" } else { "real" };
    for name in ["disk.kedge", "killed.kedge"] {
        let path = format!("{dir}/{name}");
        if !root {
            fs::set_permissions(place.path(&path), fs::Permissions::from_mode(0o444)).unwrap();
        }
        place.run(&format!("mount {path} mnt")).refused(1, &[name, why]);
        place.run(&format!("mkfs -f {path}")).refused(1, &[name, why]);
        assert_eq!(place.run(&format!("fsck {path}")).code, 0);
        place.run(&format!("mount -o ro {path} mnt")).ok();
        assert_eq!(fs::read(place.path("mnt/file")).unwrap(), b"content", "{name}");
        let e = fs::write(place.path("mnt/new"), "").unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::EROFS));
        place.unmount();
    }
    assert!(fs::read(place.path("real/killed.kedge")).unwrap() == before, "the image has other bytes");
}

/// A log filter that cannot be parsed causes no failure; the default filter applies.
#[test]
fn a_log_filter_that_makes_no_sense() {
    let place = Place::new();
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.args(["mkfs", "--size", "16M", "disk.kedge"]).env("KEDGE_LOG", "=,,no[such{filter");
    let output = output_of(command).unwrap();
    assert!(output.status.success(), "{output:?}");
}
