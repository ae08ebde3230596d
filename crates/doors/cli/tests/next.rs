//! Commands after an unmount: umount(8) may return before the serving process has released the
//! image.

#![allow(clippy::unwrap_used)]

mod common;
use common::{Place, no_fuse, output_within, write_and_fsync};
use rustix::fs::{FlockOperation, flock};
use std::fs;
use std::time::Duration;

/// Runs a command while the image is locked; the lock is released a moment after the command has
/// begun.
fn beside_a_short_lock(place: &Place, line: &str) {
    let owner = fs::File::open(place.path("disk.kedge")).unwrap();
    flock(&owner, FlockOperation::LockExclusive).unwrap();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| place.run(line));
        std::thread::sleep(Duration::from_millis(500));
        drop(owner);
        next.join().unwrap().ok();
    });
}

#[test]
fn the_lock_of_one_that_ends_is_waited_for() {
    let place = Place::new();
    place.run("mkfs --size 64M disk.kedge").ok();
    for line in ["fsck disk.kedge", "fsck -y disk.kedge", "mkfs -f disk.kedge"] {
        beside_a_short_lock(&place, line);
    }
    if no_fuse() {
        return;
    }
    fs::create_dir(place.path("mnt")).unwrap();
    beside_a_short_lock(&place, "mount disk.kedge mnt");
    place.unmount();
    beside_a_short_lock(&place, "mount --daemon next disk.kedge mnt");
    place.unmount();
}

/// Runs umount(8) with retries, because another process that reads a new mount keeps it busy for a
/// moment.
fn umount(place: &Place) {
    for _ in 0..500 {
        let mut command = place.command("umount");
        command.arg("mnt").env("LC_ALL", "C");
        let output = output_within(command, Duration::from_secs(60)).unwrap();
        if output.status.success() {
            return;
        }
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("busy"), "{said}");
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("busy forever");
}

#[test]
fn fsck_and_mount_right_behind_umount() {
    if no_fuse() {
        return;
    }
    for kind in ["", " -o fuse"] {
        let place = Place::new();
        place.run(&format!("mount{kind} --create 64M disk.kedge mnt")).ok();
        for round in 0..20 {
            write_and_fsync(&place.path("mnt/file"), &vec![round; 300_000]);
            umount(&place);
            if round % 2 == 0 {
                place.run("fsck disk.kedge").ok();
            }
            place.run(&format!("mount{kind} disk.kedge mnt")).ok();
            assert_eq!(fs::read(place.path("mnt/file")).unwrap(), vec![round; 300_000]);
        }
        place.unmount_and_check("disk.kedge");
    }
}

/// udev and desktops read new mounts, which keeps them busy for a moment.
#[test]
fn a_mount_that_is_in_use_for_a_moment_is_unmounted() {
    if no_fuse() {
        return;
    }
    let place = Place::new();
    place.run("mount --create 64M disk.kedge mnt").ok();
    let file = fs::File::create(place.path("mnt/file")).unwrap();
    std::thread::scope(|scope| {
        let umount = scope.spawn(|| place.run("umount mnt"));
        std::thread::sleep(Duration::from_millis(300));
        drop(file);
        umount.join().unwrap().ok();
    });
    assert_eq!(place.info("disk.kedge")["clean"], true);
}
