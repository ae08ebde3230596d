//! Small files whose data is in the tree, on a mount: they are created, extended, truncated,
//! mapped, cloned and forked, and they survive a remount and the death of the server.

use crate::common::io::Mapping;
use crate::common::{Place, kill, needs_fuse, until_dead, write_and_fsync};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// The largest size of a file whose data these images keep in the tree, in bytes.
const LONGEST: usize = 1024;

/// The expected contents of each file, by name.
type Contents = BTreeMap<String, Vec<u8>>;

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed) as u8).collect()
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn assert_like(dir: &Path, contents: &Contents) {
    for (name, is) in contents {
        assert!(fs::read(dir.join(name)).unwrap() == *is, "{name} has not its {} bytes", is.len());
    }
}

/// Makes files of sizes around [`LONGEST`], each fsynced.
fn create(dir: &Path) -> Contents {
    let lens = [1, 93, LONGEST - 1, LONGEST, LONGEST + 1, 4096, 5000];
    let files = (0..70).map(|i| (format!("file {i}"), bytes(i, lens[i % lens.len()])));
    let contents: Contents = files.collect();
    for (name, is) in &contents {
        write_and_fsync(&dir.join(name), is);
    }
    contents
}

/// Changes files in all ways that move data into or out of the tree.
fn change(dir: &Path, contents: &mut Contents) {
    for (n, (name, is)) in contents.iter_mut().enumerate() {
        let path = dir.join(name);
        let file = open(&path);
        match n % 6 {
            0 => {
                // Extend the file beyond the longest size.
                let more = bytes(n + 1, 2000);
                file.write_all_at(&more, is.len() as u64).unwrap();
                is.extend(more);
            }
            1 => {
                file.set_len(50).unwrap();
                is.resize(50, 0);
            }
            2 => {
                // The bytes past the cut read as zeros.
                file.set_len(10).unwrap();
                file.set_len(3000).unwrap();
                is.resize(10, 0);
                is.resize(3000, 0);
            }
            3 => {
                let mapping = Mapping::new(&file, 0, is.len()).unwrap();
                mapping.write(0, &[9]);
                mapping.sync().unwrap();
                is[0] = 9;
            }
            4 => {
                file.write_all_at(&[8; 3], 0).unwrap();
                is.resize(is.len().max(3), 0);
                is[..3].fill(8);
            }
            _ => {
                fs::remove_file(&path).unwrap();
                is.truncate(LONGEST / 2);
                fs::write(&path, &is).unwrap();
            }
        }
        open(&path).sync_all().unwrap();
    }
}

#[test]
fn small_files_live_on_a_mount() {
    needs_fuse!();
    let place = Place::after("mkfs --inline 1K --size 64M disk.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    place.run("mount disk.kedge mnt").ok();
    let mnt = place.path("mnt");
    fs::create_dir(mnt.join("dir")).unwrap();
    let dir = mnt.join("dir");
    let mut contents = create(&dir);
    assert_like(&dir, &contents);
    // A file with data must have blocks: programs take a file without blocks for a hole.
    assert!(fs::metadata(dir.join("file 1")).unwrap().blocks() > 0);
    place.unmount_and_check("disk.kedge");

    place.run("mount disk.kedge mnt").ok();
    assert_like(&dir, &contents);
    change(&dir, &mut contents);
    assert_like(&dir, &contents);
    // The fork and the clones keep the bytes that the files have now.
    place.run("fork mnt mnt/fork").ok();
    let (forked, fork) = (contents.clone(), mnt.join("fork/dir"));
    let clones = mnt.join("clones");
    fs::create_dir(&clones).unwrap();
    for (name, is) in &forked {
        let (from, to) = (open(&dir.join(name)), File::create(clones.join(name)).unwrap());
        let mut left = is.len();
        while left > 0 {
            left -= rustix::fs::copy_file_range(&from, None, &to, None, left).unwrap();
        }
        to.sync_all().unwrap();
    }
    change(&dir, &mut contents);
    assert_like(&dir, &contents);
    assert_like(&fork, &forked);
    assert_like(&clones, &forked);
    place.unmount_and_check("disk.kedge");

    place.run("mount disk.kedge mnt").ok();
    assert_like(&fork, &forked);
    assert_like(&clones, &forked);
    assert_like(&dir, &contents);
    change(&dir, &mut contents);
    kill(&place, "mnt");
    until_dead(&place, "mnt");
    place.run("umount mnt").refused(1, &["the serving process had died"]);
    place.run("fsck -n disk.kedge").ok();
    place.run("mount disk.kedge mnt").ok();
    assert_like(&dir, &contents);
    assert_like(&fork, &forked);
    assert_like(&clones, &forked);
    place.unmount_and_check("disk.kedge");
}

#[test]
fn small_files_take_no_blocks() {
    needs_fuse!();
    let used = |inline: &str| {
        let place = Place::after(&format!("mkfs --inline {inline} --size 64M disk.kedge"));
        fs::create_dir(place.path("mnt")).unwrap();
        place.run("mount disk.kedge mnt").ok();
        for i in 0..2000 {
            fs::write(place.path("mnt").join(i.to_string()), bytes(i, 93)).unwrap();
        }
        place.unmount_and_check("disk.kedge");
        place.info("disk.kedge")["used_bytes"].as_u64().unwrap()
    };
    let (within, outside) = (used("1K"), used("off"));
    // Without data in the tree each file takes a block. With it, only the nodes that hold the bytes
    // do.
    assert!(within + 2000 * 3000 < outside, "{within} bytes with, {outside} without");
}
