//! Commands after an unmount: umount(8) may return before the serving process has released the
//! image.

use crate::common::{Place, needs_fuse, output_of, until, write_and_fsync};
use rustix::fs::{FlockOperation, flock};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Runs a command while the image is locked; the lock is released a moment after the command has
/// opened the image.
fn beside_a_short_lock(place: &Place, line: &str) {
    let image = place.path("disk.kedge").canonicalize().unwrap();
    let owner = fs::File::open(&image).unwrap();
    flock(&owner, FlockOperation::LockExclusive).unwrap();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| place.run(line));
        until("the command has the image open", || next.is_finished() || is_open_elsewhere(&image));
        // Give the command time to try the lock.
        std::thread::sleep(Duration::from_millis(50));
        drop(owner);
        next.join().unwrap().ok();
    });
}

/// Whether another process has the file open.
fn is_open_elsewhere(file: &Path) -> bool {
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap());
    let others = processes.filter(|entry| {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        pid.is_some_and(|pid| pid != std::process::id())
    });
    // A process may end while this loop reads its files.
    let open_files =
        others.filter_map(|process| fs::read_dir(process.path().join("fd")).ok()).flatten().flatten();
    open_files.into_iter().any(|open| fs::read_link(open.path()).is_ok_and(|to| to == file))
}

#[test]
fn the_lock_of_one_that_ends_is_waited_for() {
    let place = Place::after("mkfs --size 64M disk.kedge");
    for line in ["fsck disk.kedge", "fsck -y disk.kedge", "mkfs -f disk.kedge"] {
        beside_a_short_lock(&place, line);
    }
    needs_fuse!();
    fs::create_dir(place.path("mnt")).unwrap();
    beside_a_short_lock(&place, "mount disk.kedge mnt");
    place.unmount();
    beside_a_short_lock(&place, "mount --daemon next disk.kedge mnt");
    place.unmount();
}

/// Runs umount(8) with retries, because another process that reads a new mount keeps it busy for a
/// moment.
fn umount(place: &Place) {
    until("it is no longer busy", || {
        let mut command = place.command("umount");
        command.arg("mnt").env("LC_ALL", "C");
        let output = output_of(command).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || said.contains("busy"), "{said}");
        output.status.success()
    });
}

#[test]
fn fsck_and_mount_right_behind_umount() {
    needs_fuse!();
    for kind in ["", " -o fuse"] {
        let place = Place::after(&format!("mount{kind} --create 64M disk.kedge mnt"));
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

/// udev and desktops read new mounts, which keeps the mounts busy for a moment.
#[test]
fn a_mount_that_is_in_use_for_a_moment_is_unmounted() {
    needs_fuse!();
    let place = Place::after("mount --create 64M disk.kedge mnt");
    // Repeat this on a machine that is so busy that the file is closed too late.
    until("it is unmounted", || {
        let file = fs::File::create(place.path("mnt/file")).unwrap();
        std::thread::scope(|scope| {
            let umount = scope.spawn(|| place.run("umount mnt"));
            std::thread::sleep(Duration::from_millis(300));
            drop(file);
            let run = umount.join().unwrap();
            assert!(run.code == 0 || run.err.contains("is in use"), "{}", run.err);
            run.code == 0
        })
    });
    assert_eq!(place.info("disk.kedge")["clean"], true);
}
