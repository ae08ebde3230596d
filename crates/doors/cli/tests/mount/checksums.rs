//! Images whose file data has checksums: made, mounted, damaged, checked and read.

use crate::common::{Place, needs_fuse, tool};
use kedge_base::BLOCK_SIZE;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Flips a bit in the block of the image that has these bytes. Returns the block.
fn damage(place: &Place, block: &[u8]) -> usize {
    let image = place.path("disk.kedge");
    let bytes = fs::read(&image).unwrap();
    let at = bytes.chunks_exact(BLOCK_SIZE).position(|b| b == block).expect("the data is in the image");
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(&[block[17] ^ 4], (at * BLOCK_SIZE + 17) as u64).unwrap();
    at
}

fn noise(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A directory that has an image with checksums mounted on `mnt`.
fn mounted() -> Place {
    let place = Place::after("mkfs --checksums --size 64M disk.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    place.run("mount disk.kedge mnt").ok();
    place
}

#[test]
fn damage_is_named_by_scrub_and_fsck_and_reaches_no_reader() {
    needs_fuse!();
    let place = mounted();
    let data = noise(1, 40 * BLOCK_SIZE);
    fs::create_dir(place.path("mnt/dir")).unwrap();
    fs::write(place.path("mnt/dir/file"), &data).unwrap();
    fs::write(place.path("mnt/dir/other"), &data[..5000]).unwrap();
    let out = place.run("scrub mnt").ok();
    assert!(out.contains("file data is verified by each read of the mount"), "{out}");
    place.run("umount mnt").ok();
    let out = place.run("scrub disk.kedge").ok();
    assert!(out.contains("42 blocks of file data read") && out.ends_with("clean\n"), "{out}");
    place.run("fsck --data disk.kedge").ok();
    let block = damage(&place, &data[7 * BLOCK_SIZE..8 * BLOCK_SIZE]);
    place.run("fsck disk.kedge").ok();
    for command in ["scrub disk.kedge", "fsck --data disk.kedge"] {
        let run = place.run(command);
        let line = format!("block {block}: file block 7 does not match its checksum");
        assert!(run.code == 4 && run.out.contains("data-bad"), "{command}: {} {}", run.code, run.out);
        assert!(run.out.contains(&line) && run.out.contains("/dir/file"), "{command}: {}", run.out);
    }
    place.run("mount disk.kedge mnt").ok();
    let file = File::options().read(true).write(true).open(place.path("mnt/dir/file")).unwrap();
    let mut buf = vec![0; BLOCK_SIZE];
    let e = file.read_exact_at(&mut buf, 7 * BLOCK_SIZE as u64).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(kedge_base::errno::EIO), "{e}");
    file.read_exact_at(&mut buf, 39 * BLOCK_SIZE as u64).unwrap();
    assert!(buf == data[39 * BLOCK_SIZE..]);
    let stats: serde_json::Value = serde_json::from_str(&place.run("stats --json mnt").ok()).unwrap();
    assert!(stats["data"]["checksum_errors"].as_u64().unwrap() > 0, "{stats}");
    // A whole new block mends the file.
    file.write_all_at(&data[7 * BLOCK_SIZE..8 * BLOCK_SIZE], 7 * BLOCK_SIZE as u64).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert!(fs::read(place.path("mnt/dir/file")).unwrap() == data);
    place.run("umount mnt").ok();
    place.run("fsck --data disk.kedge").ok();
}

#[test]
fn a_directory_may_be_without_checksums() {
    needs_fuse!();
    let place = mounted();
    let chattr = |args: &str| {
        let mut command = place.command("chattr");
        command.args(args.split(' '));
        tool(command, "e2fsprogs")
    };
    let lsattr = |path: &str| {
        let mut command = place.command("lsattr");
        command.args(["-d", path]);
        tool(command, "e2fsprogs").split(' ').next().unwrap().replace('-', "")
    };
    fs::create_dir(place.path("mnt/db")).unwrap();
    chattr("+C mnt/db");
    let data = noise(2, 4 * BLOCK_SIZE);
    fs::write(place.path("mnt/db/file"), &data).unwrap();
    fs::write(place.path("mnt/file"), &data).unwrap();
    assert_eq!((lsattr("mnt/db/file"), lsattr("mnt/file")), ("C".into(), String::new()));
    let refused = place.command("chattr").args(["+C", "mnt/file"]).output().unwrap();
    assert!(!refused.status.success(), "a file with data keeps its checksums");
    // An ioctl that sets other flags and does not know this flag leaves it set.
    chattr("+d mnt/db/file");
    assert_eq!(lsattr("mnt/db/file"), "dC");
    place.run("umount mnt").ok();
    let out = place.run("scrub disk.kedge").ok();
    assert!(out.contains("4 blocks of file data read"), "{out}");
}

#[test]
fn forks_share_blocks_and_checksums() {
    needs_fuse!();
    let place = mounted();
    let data = noise(3, 20 * BLOCK_SIZE);
    fs::create_dir(place.path("mnt/dir")).unwrap();
    fs::write(place.path("mnt/file"), &data).unwrap();
    place.run("fork mnt mnt/fork").ok();
    let new = noise(4, BLOCK_SIZE);
    let fork = File::options().write(true).open(place.path("mnt/fork/file")).unwrap();
    fork.write_all_at(&new, 3 * BLOCK_SIZE as u64).unwrap();
    fork.sync_all().unwrap();
    drop(fork);
    place.run("umount mnt").ok();
    let out = place.run("scrub disk.kedge").ok();
    assert!(out.contains("21 blocks of file data read") && out.ends_with("clean\n"), "{out}");
    let block = damage(&place, &data[9 * BLOCK_SIZE..10 * BLOCK_SIZE]);
    let run = place.run("scrub disk.kedge");
    assert!(run.code == 4 && run.out.contains(&format!("block {block}: ")), "{}", run.out);
    place.run("mount disk.kedge mnt").ok();
    for path in ["mnt/file", "mnt/fork/file"] {
        let e = fs::read(place.path(path)).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(kedge_base::errno::EIO), "{path}: {e}");
    }
    place.run("umount mnt").ok();
}
