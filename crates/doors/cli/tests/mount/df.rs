//! `df`, `df -i` and `du` show correct figures for a mount, even right after files are deleted and
//! before anything is written again.

use crate::common::{Place, needs_fuse, tool, until};
use std::fs;

const FILES: u64 = 100;
const LARGE_KIB: u64 = 20 << 10;
/// The most that directories and the tree take, in KiB.
const SLACK_KIB: u64 = 1 << 10;

fn words(place: &Place, program: &str, args: &[&str]) -> Vec<u64> {
    let mut command = place.command(program);
    command.args(args);
    let out = tool(command, "coreutils");
    out.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// KiB used, KiB available, inodes used.
fn df(place: &Place) -> [u64; 3] {
    let space = words(place, "df", &["-k", "--output=used,avail", "mnt"]);
    let inodes = words(place, "df", &["--output=iused", "mnt"]);
    [space[0], space[1], inodes[0]]
}

fn du(place: &Place) -> u64 {
    words(place, "du", &["-sk", "mnt"])[0]
}

fn deleted_space_comes_back(options: &str) {
    let place = Place::after("mkfs --size 64M disk.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    place.run(&format!("mount{options} disk.kedge mnt")).ok();
    let (empty, du_empty) = (df(&place), du(&place));
    fs::write(place.path("mnt/large"), vec![1; (LARGE_KIB << 10) as usize]).unwrap();
    for i in 0..FILES {
        fs::write(place.path(&format!("mnt/{i}")), "small").unwrap();
    }
    let is_full = |when: &str| {
        let (full, du_full) = (df(&place), du(&place));
        assert!(full[0] >= empty[0] + LARGE_KIB && full[1] + LARGE_KIB <= empty[1], "{when}: {full:?}");
        assert_eq!(full[2], empty[2] + FILES + 1, "{when}");
        let grown = du_full - du_empty;
        assert!((LARGE_KIB..LARGE_KIB + SLACK_KIB).contains(&grown), "{when}: du says {du_full}");
    };
    is_full("before anything is synced");
    fs::File::open(place.path("mnt/large")).unwrap().sync_all().unwrap();
    is_full("synced");
    fs::remove_file(place.path("mnt/large")).unwrap();
    for i in 0..FILES {
        fs::remove_file(place.path(&format!("mnt/{i}"))).unwrap();
    }
    assert!(du(&place) < du_empty + SLACK_KIB, "names are gone at once");
    // The kernel releases the last inodes a little later, without any further write.
    until("what was deleted is free", || {
        let now = df(&place);
        now[0] < empty[0] + SLACK_KIB && now[1] + SLACK_KIB > empty[1] && now[2] == empty[2]
    });
    place.unmount_and_check("disk.kedge");
}

#[test]
fn deleted_space_comes_back_on_a_mount_of_each_kind() {
    needs_fuse!();
    let mut kinds = vec![" -o fuse", " -o fuse,writeback_cache"];
    if rustix::process::geteuid().is_root() {
        kinds.extend([" -o fuseblk", " -o fuseblk,writeback_cache"]);
    }
    kinds.into_iter().for_each(deleted_space_comes_back);
}

/// After a deletion a full image is usable again without a remount or sync.
#[test]
fn a_full_image_is_usable_after_a_deletion() {
    needs_fuse!();
    let place = Place::after("mount --create 40M disk.kedge mnt");
    let fill = || {
        let mut bytes = 0;
        for i in 0.. {
            let path = place.path(&format!("mnt/{i}"));
            match fs::write(&path, vec![3; 1 << 20]) {
                Ok(()) => bytes += 1 << 20,
                Err(e) => {
                    assert_eq!(e.raw_os_error(), Some(libc::ENOSPC));
                    fs::remove_file(path).unwrap();
                    return (i, bytes);
                }
            }
        }
        unreachable!("an image of 40 MiB gets full")
    };
    let (files, first) = fill();
    for i in 0..files {
        fs::remove_file(place.path(&format!("mnt/{i}"))).unwrap();
    }
    until("df shows it", || df(&place)[1] > first / 1024 * 9 / 10);
    let (_, second) = fill();
    assert!(second * 10 >= first * 9, "{second} bytes fit where {first} had been");
    place.unmount_and_check("disk.kedge");
}
