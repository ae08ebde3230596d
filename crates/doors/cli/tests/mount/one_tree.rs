//! `kedge mount -o tree=PATH`: one tree of an image as a mount.

use crate::common::{Place, kill, needs_fuse, write_and_fsync};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// The names in a directory, in order.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn errno(result: std::io::Result<()>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

/// An image with a fork `dir/work`, a fork `dir/work/inner` in it, and a snapshot `snap`.
fn forked() -> Place {
    let place = Place::new();
    place.run("mount --create 64M disk.kedge mnt").ok();
    let mnt = place.path("mnt");
    fs::create_dir_all(mnt.join("sub/deep")).unwrap();
    fs::create_dir(mnt.join("dir")).unwrap();
    fs::write(mnt.join("sub/file"), "first").unwrap();
    fs::write(mnt.join("top"), vec![7; 100_000]).unwrap();
    place.run("fork mnt mnt/dir/work").ok();
    place.run("fork mnt/dir/work mnt/dir/work/inner").ok();
    place.run("snapshot create mnt mnt/snap").ok();
    fs::write(mnt.join("outside"), "outside").unwrap();
    place.unmount_and_check("disk.kedge");
    place
}

#[test]
fn a_mount_shows_one_tree() {
    needs_fuse!();
    let place = forked();
    let mnt = place.path("mnt");
    place.run("mount -o tree=dir/work disk.kedge mnt").ok();
    assert_eq!(names(&mnt), ["dir", "inner", "sub", "top"]);
    assert_eq!(place.info("mnt")["mount"]["options"]["tree"], "dir/work");
    // The root of the tree is the root of the mount: by its inode number, its parent, and the mount
    // table.
    let root = fs::metadata(&mnt).unwrap();
    assert_eq!(root.ino(), 1);
    assert_eq!(fs::metadata(mnt.join("sub/..")).unwrap().ino(), 1);
    assert_eq!(
        fs::metadata(mnt.join("sub/deep/..")).unwrap().ino(),
        fs::metadata(mnt.join("sub")).unwrap().ino()
    );
    assert_eq!(root.dev(), fs::metadata(mnt.join("sub/file")).unwrap().dev());
    assert_ne!(fs::metadata(mnt.join("..")).unwrap().dev(), root.dev());
    // Make every kind of change, in the root too.
    write_and_fsync(&mnt.join("new"), b"new");
    fs::create_dir(mnt.join("made")).unwrap();
    fs::rename(mnt.join("sub/file"), mnt.join("made/moved")).unwrap();
    fs::hard_link(mnt.join("made/moved"), mnt.join("link")).unwrap();
    std::os::unix::fs::symlink("new", mnt.join("symlink")).unwrap();
    fs::remove_file(mnt.join("top")).unwrap();
    fs::remove_dir(mnt.join("sub/deep")).unwrap();
    let new = OpenOptions::new().write(true).open(mnt.join("new")).unwrap();
    new.write_at(&[b'!'; 5000], 3).unwrap();
    new.sync_all().unwrap();
    rustix::fs::setxattr(&mnt, "user.of", b"root", rustix::fs::XattrFlags::empty()).unwrap();
    File::open(&mnt).unwrap().sync_all().unwrap();
    assert_eq!(names(&mnt), ["dir", "inner", "link", "made", "new", "sub", "symlink"]);
    assert_eq!(errno(fs::hard_link(mnt.join("new"), mnt.join("inner/new"))), Some(libc::EXDEV));
    // Synced changes survive, in this tree alone.
    kill(&place, "mnt");
    place.run("umount mnt").refused(1, &["had died"]);
    place.run("fsck -n -f disk.kedge").ok();
    place.run("mount -o tree=/dir/work/ disk.kedge mnt").ok();
    assert_eq!(fs::read(mnt.join("new")).unwrap().len(), 5003);
    assert_eq!(fs::read_to_string(mnt.join("link")).unwrap(), "first");
    let mut value = [0; 16];
    assert_eq!(rustix::fs::getxattr(&mnt, "user.of", &mut value[..]).unwrap(), 4);
    place.unmount_and_check("disk.kedge");
    assert_eq!(place.run("ls disk.kedge:/").ok(), "dir\noutside\nsnap\nsub\ntop\n");
    assert_eq!(place.run("cat disk.kedge:/sub/file").ok(), "first");
}

#[test]
fn trees_are_made_in_a_mount_of_one_tree() {
    needs_fuse!();
    let place = forked();
    let mnt = place.path("mnt");
    place.run("mount -o tree=dir/work disk.kedge mnt").ok();
    place.run("snapshot create mnt mnt/before").ok();
    fs::write(mnt.join("sub/file"), "second").unwrap();
    let run = place.run("diff mnt/before mnt");
    assert_eq!((run.code, run.err.as_str()), (1, ""));
    assert!(run.out.contains("M sub/file"), "{}", run.out);
    let listed = |target: &str| -> Vec<String> {
        let rows = place.run(&format!("snapshot list --json {target}")).ok();
        let path = |row: &str| serde_json::from_str::<serde_json::Value>(row).unwrap()["path"].clone();
        rows.lines().map(|row| path(row).as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed("mnt"), ["/", "/inner", "/before"]);
    place.run("snapshot list --space mnt").ok();
    place.run("snapshot rollback mnt/before mnt/inner").ok();
    assert_eq!(fs::read_to_string(mnt.join("inner/sub/file")).unwrap(), "first");
    // A copy without the kernel (`kedge cp`) is visible at once, in the root too.
    assert!(!mnt.join("copied").exists());
    fs::write(place.path("copied"), "copied").unwrap();
    place.run("cp copied mnt").ok();
    assert_eq!(fs::read_to_string(mnt.join("copied")).unwrap(), "copied");
    place.run("limit --size 32M mnt/sub").ok();
    place.run("limit --files 1000 mnt").ok();
    assert_eq!(rustix::fs::statvfs(&mnt).unwrap().f_files, 1000);
    place.run("limit list mnt").ok();
    place.run("freeze mnt").ok();
    place.run("thaw mnt").ok();
    place.run("snapshot delete mnt/before").ok();
    place.unmount_and_check("disk.kedge");
    assert_eq!(listed("disk.kedge"), ["/", "/dir/work", "/snap", "/dir/work/inner"]);
    assert_eq!(place.run("cat disk.kedge:/dir/work/copied").ok(), "copied");
}

#[test]
fn a_snapshot_is_mounted_read_only() {
    needs_fuse!();
    let place = forked();
    let mnt = place.path("mnt");
    place.run("mount -o tree=snap disk.kedge mnt").ok();
    assert_eq!(names(&mnt), ["dir", "sub", "top"]);
    assert_eq!(errno(fs::write(mnt.join("new"), "new")), Some(libc::EROFS));
    assert_eq!(errno(fs::remove_file(mnt.join("top"))), Some(libc::EROFS));
    place.unmount();
    // Mount several trees at once, read-only.
    for (tree, dir) in [("snap", "mnt"), ("dir/work", "other")] {
        fs::create_dir_all(place.path(dir)).unwrap();
        place.run(&format!("mount -o ro,tree={tree} disk.kedge {dir}")).ok();
    }
    assert_eq!(names(&place.path("other")), ["dir", "inner", "sub", "top"]);
    assert_eq!(names(&mnt), ["dir", "sub", "top"]);
    place.run("umount other").ok();
    place.unmount_and_check("disk.kedge");
}

#[test]
fn what_is_no_tree_or_is_mounted_is_refused() {
    needs_fuse!();
    let place = forked();
    let refused = |options: &str, words: &[&str]| {
        let run = place.run(&format!("mount -o {options} disk.kedge mnt"));
        assert_ne!(run.code, 0);
        let code = run.code;
        run.refused(code, words);
        assert!(!place.info("disk.kedge")["state"].to_string().contains("mounted"));
    };
    refused("tree=none", &["tree=none", "no such path"]);
    refused("tree=sub", &["tree=sub", "neither a fork nor a snapshot"]);
    refused("tree=top/x", &["tree=top/x", "no such path"]);
    refused("tree=dir/../snap", &["'..'"]);
    refused("tree=", &["tree", "unknown mount option"]);
    refused("tree", &["tree needs a value"]);
    fs::create_dir(place.path("other")).unwrap();
    place.run("mount disk.kedge mnt").ok();
    let beside = place.run("mount -o tree=snap disk.kedge other");
    beside.refused(1, &["disk.kedge is in use: it is mounted on", "mnt", "mount --bind"]);
    place.unmount();
    // A mount of one tree is not taken for a mount of the whole file system.
    place.run("mount -o tree=dir/work disk.kedge mnt").ok();
    place.run("mount disk.kedge other").refused(1, &["disk.kedge is in use: it is mounted on"]);
    place.run("remount mnt -o tree=snap").refused(2, &["tree cannot change while mounted"]);
    place.run("remount mnt -o tree=dir/work").ok();
    place.unmount_and_check("disk.kedge");
}

#[test]
fn a_daemon_serves_one_tree_of_an_image() {
    needs_fuse!();
    let place = forked();
    let name = format!("one-tree-{}", std::process::id());
    place.run(&format!("mount --daemon {name} -o tree=dir/work disk.kedge mnt")).ok();
    assert_eq!(names(&place.path("mnt")), ["dir", "inner", "sub", "top"]);
    place.unmount_and_check("disk.kedge");
}
