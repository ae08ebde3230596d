//! `-o volatile`: a warning is printed, fsync makes nothing durable, and the image can be mounted
//! after a crash.

use crate::common::{Place, kill, needs_fuse, write_and_fsync};
use std::fs;

/// The death of the serving process acts as a power failure: writes that are not flushed are lost.
#[test]
fn fsync_makes_nothing_durable_and_a_crash_does_no_harm() {
    needs_fuse!();
    for kind in ["", " -o fuse"] {
        let place = Place::after("mkfs --size 64M disk.kedge");
        fs::create_dir(place.path("mnt")).unwrap();
        let mount = |words| place.run(&format!("mount -o commit=300{words}{kind} --volatile disk.kedge mnt"));
        let run = mount(",volatile");
        assert!(run.err.contains("fsync and sync make nothing durable"), "{}", run.err);
        run.ok();
        assert_eq!(place.info("mnt")["options"]["volatile"], true);
        write_and_fsync(&place.path("mnt/scratch"), b"a crash may cost this");
        kill(&place, "mnt");
        crate::common::until("the image is free", || place.run("fsck disk.kedge").code != 8);
        assert_eq!(place.run("fsck disk.kedge").code, 0);

        // Without the option the same fsync makes data durable, and a remount cannot switch this
        // off.
        let run = mount("");
        assert!(!run.err.contains("volatile"), "{}", run.err);
        run.ok();
        assert_eq!(place.info("mnt")["options"]["volatile"], false);
        assert!(!place.path("mnt/scratch").exists());
        place.run("remount -o volatile mnt").refused(2, &["volatile", "cannot change while mounted"]);
        write_and_fsync(&place.path("mnt/kept"), b"durable");
        kill(&place, "mnt");
        crate::common::until("the image is free", || place.run("fsck disk.kedge").code != 8);

        // An unmount makes everything durable.
        mount(",volatile").ok();
        assert_eq!(fs::read(place.path("mnt/kept")).unwrap(), b"durable");
        fs::write(place.path("mnt/scratch"), b"not synced").unwrap();
        place.unmount_and_check("disk.kedge");
        mount("").ok();
        assert_eq!(fs::read(place.path("mnt/scratch")).unwrap(), b"not synced");
        place.unmount_and_check("disk.kedge");
    }
}

/// A process that serves several mounts also passes the warning to the requesting command.
#[test]
fn a_daemon_passes_the_warning_on() {
    needs_fuse!();
    let place = Place::after("mkfs --size 64M disk.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    let name = format!("volatile{}", std::process::id());
    let run = place.run(&format!("mount --daemon {name} -o volatile disk.kedge mnt"));
    assert!(run.err.starts_with("kedge: warning: "), "{}", run.err);
    assert!(run.err.contains("fsync and sync make nothing durable"), "{}", run.err);
    run.ok();
    assert_eq!(place.info("mnt")["options"]["volatile"], true);
    place.unmount_and_check("disk.kedge");
}
