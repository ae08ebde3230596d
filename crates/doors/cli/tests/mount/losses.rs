//! Unmounts on a device that fails: `kedge umount`, the log, the image and the next mount report
//! the losses.

use crate::common::mapping::Mapping;
use crate::common::{Place, needs_fuse};
use kedge_base::errno::EIO;
use std::fs;
use std::io::Write;

const LINE: &str = "mount --create 64M disk.kedge mnt -o commit=300 --log-file log --faults faults";
/// The contents of a file. They are too large for the log, so they are written in place.
static DATA: [u8; 300_000] = [b'S'; 300_000];

fn place_with_data() -> Place {
    let place = Place::after(LINE);
    crate::common::write_and_fsync(&place.path("mnt/kept"), &[b'K'; 300_000]);
    fs::write(place.path("mnt/file"), DATA).unwrap();
    place
}

fn fails(place: &Place, fault: &str) {
    fs::write(place.path("faults"), fault).unwrap();
}

#[test]
fn a_fault_that_passes_loses_nothing() {
    needs_fuse!();
    let place = place_with_data();
    fails(&place, &format!("write {EIO} 1 SSSS"));
    place.run("umount mnt").ok();
    fs::remove_file(place.path("faults")).unwrap();
    assert_eq!(fs::read_to_string(place.path("faults.struck")).unwrap().lines().count(), 1);
    assert_eq!(place.info("disk.kedge")["lost_files"], 0);
    place.run(LINE).ok();
    assert!(fs::read(place.path("mnt/file")).unwrap() == DATA, "an unmount without complaint kept it");
    place.unmount_and_check("disk.kedge");
}

#[test]
fn a_fault_that_stays_is_said_by_all() {
    needs_fuse!();
    let place = place_with_data();
    fails(&place, &format!("write {EIO} 0 SSSS"));
    place.run("umount mnt").refused(1, &["mnt", "1 files", "lost", "disk.kedge"]);
    fs::remove_file(place.path("faults")).unwrap();
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains("could not be written and are lost"), "{log}");
    let info = place.info("disk.kedge");
    assert_eq!((&info["clean"], &info["lost_files"]), (&true.into(), &1.into()), "{info}");

    let judged = place.run("fsck disk.kedge");
    assert!(judged.code != 0 && judged.out.contains("data-lost"), "{}: {}", judged.code, judged.out);
    let run = place.run(LINE);
    assert!(
        run.err.contains("warning") && run.err.contains("1 files"),
        "the next mount says it: {}",
        run.err
    );
    assert_eq!(run.code, 0);
    assert_eq!(place.info("mnt")["lost_files"], 1);
    assert!(fs::read(place.path("mnt/kept")).unwrap() == [b'K'; 300_000], "what could be written is there");
    // No further data is lost, so the unmount succeeds.
    place.run("umount mnt").ok();
    assert_eq!(place.info("disk.kedge")["lost_files"], 1);
    assert_eq!(place.run("fsck -y disk.kedge").code, 1);
    assert_eq!(place.info("disk.kedge")["lost_files"], 0);
    assert_eq!(place.run(LINE).err, "");
    place.unmount_and_check("disk.kedge");
}

/// An unmount also writes the kernel's dirty pages, but would not report an error by itself.
#[test]
fn what_the_kernel_could_not_pass_on_is_said() {
    needs_fuse!();
    if !rustix::process::geteuid().is_root() {
        return kedge_base::skip::note("the kernel passes syncfs(2) on to a mount as root only");
    }
    let place = Place::after("mount --create 32M disk.kedge mnt -o writeback_cache");
    // A process that ignores errors at close writes more data than the image has space for, and
    // does not sync it.
    let file =
        fs::File::options().read(true).write(true).create_new(true).open(place.path("mnt/file")).unwrap();
    file.set_len(64 << 20).unwrap();
    let mut map = Mapping::of(&file).unwrap();
    for at in (0..64 << 20).step_by(4096) {
        map.store(at, b"stored");
    }
    // Some of the data may already be written back and refused here; the test checks the unmount's
    // report.
    drop(file);
    drop(map);
    let run = place.run("umount mnt");
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("could not be kept") && run.err.contains("No space left"), "{}", run.err);
    assert_eq!(place.run("fsck disk.kedge").code, 0);
}

/// The kernel has written data back by itself, the mount has refused it, and no program has synced
/// since.
#[test]
fn what_was_refused_in_the_background_is_said() {
    needs_fuse!();
    if !rustix::process::geteuid().is_root() {
        return kedge_base::skip::note("the kernel passes syncfs(2) on to a mount as root only");
    }
    let place = Place::after("mount --create 32M disk.kedge mnt -o writeback_cache");
    let mut file = fs::File::create(place.path("mnt/file")).unwrap();
    for _ in 0..64 {
        file.write_all(&[b'w'; 1 << 20]).unwrap();
    }
    let refused = || {
        let stats = place.kedge(["stats", "--json", "mnt"]).ok();
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        stats["fuse"]["failed"]["WRITE"]["ENOSPC"].as_u64().unwrap_or(0)
    };
    // DONTNEED starts the write-back of all data without waiting or reporting errors. Repeat it
    // until no further write is refused.
    let mut before = 0;
    crate::common::until("all is passed on", || {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let now = refused();
        now > 0 && std::mem::replace(&mut before, now) == now
    });
    drop(file);
    let run = place.run("umount mnt");
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("could not be kept") && run.err.contains("No space left"), "{}", run.err);
}
