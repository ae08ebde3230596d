//! The life of a mount: daemon, crash, unmount.

use crate::common::{Place, kill, needs_fuse, pid, tool, until, write_and_fsync};
use rustix::process::{Signal, kill_process};
use std::fs;

#[test]
fn create_mount_write_unmount_and_find_it_again() {
    needs_fuse!();
    let place = Place::after("mount --create 64M disk.kedge mnt");
    fs::create_dir(place.path("mnt/d")).unwrap();
    fs::write(place.path("mnt/d/file"), vec![7; 300_000]).unwrap();
    place.run("umount mnt").ok();
    assert_eq!(fs::read_dir(place.path("mnt")).unwrap().count(), 0, "not mounted any more");
    assert_eq!(place.info("disk.kedge")["clean"], true);
    assert_eq!(place.run("fsck disk.kedge").code, 0);

    place.run("mount --create 64M disk.kedge mnt").ok();
    assert_eq!(
        fs::read(place.path("mnt/d/file")).unwrap(),
        vec![7; 300_000],
        "an existing image is not replaced"
    );
    place.run("umount mnt").ok();
}

#[test]
fn what_fsync_confirmed_survives_a_kill() {
    needs_fuse!();
    let place = Place::after("mount --create 64M disk.kedge mnt");
    fs::create_dir(place.path("mnt/new")).unwrap();
    write_and_fsync(&place.path("mnt/new/kept"), b"kept");
    kill(&place, "mnt");
    assert_eq!(place.info("disk.kedge")["clean"], false);
    let judged = place.run("fsck disk.kedge");
    assert_eq!(judged.code, 0, "as recovery would leave it: {}{}", judged.out, judged.err);

    // A mount on the dead mount point detaches the dead mount first.
    let run = place.run("mount disk.kedge mnt");
    assert_eq!(run.code, 0, "{}", run.err);
    assert_eq!(fs::read(place.path("mnt/new/kept")).unwrap(), b"kept");
    place.run("umount mnt").ok();
    assert_eq!(place.run("fsck disk.kedge").code, 0);
}

#[test]
fn unmounting_what_was_killed_says_so() {
    needs_fuse!();
    let place = Place::after("mount --create 64M disk.kedge mnt");
    kill(&place, "mnt");
    place.run("umount mnt").refused(1, &["had died", "disk.kedge"]);
    place.run("umount mnt").refused(1, &["not a mount point"]);
}

#[test]
fn unmounting_a_deleted_image_says_what_is_not_known() {
    needs_fuse!();
    let place = Place::after("mount --create 64M disk.kedge mnt");
    fs::remove_file(place.path("disk.kedge")).unwrap();
    place.run("umount mnt").refused(1, &["mnt: unmounted, but", "cannot be seen", "disk.kedge"]);
    place.run("umount mnt").refused(1, &["not a mount point"]);
}

#[test]
fn a_mounted_image_is_left_alone() {
    needs_fuse!();
    let place = Place::after("mount --create 64M disk.kedge mnt");
    fs::create_dir(place.path("other")).unwrap();
    place.run("mount --foreground disk.kedge other").refused(1, &["disk.kedge", "in use"]);
    place.run("mkfs -f disk.kedge").refused(1, &["disk.kedge is mounted on"]);
    place.run("fsck disk.kedge").refused(8, &["disk.kedge is mounted on"]);
    assert!(place.info("disk.kedge")["mounted_on"].is_string());
    place.run("umount mnt").ok();
}

/// As with any Linux file system, both directories show one file system, which ends with its last
/// mount.
#[test]
fn what_is_mounted_can_be_mounted_on_a_second_directory() {
    needs_fuse!(root: "only root can mount a file system twice");
    let place = Place::after("mount --create 64M disk.kedge mnt");
    fs::create_dir(place.path("other")).unwrap();
    let second = place.run("mount -o defaults,nofail,nosuid,commit=7,x-a disk.kedge other");
    assert!(second.err.contains(": commit=7 has no effect"), "{}", second.err);
    second.ok();
    fs::write(place.path("other/file"), "text").unwrap();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "text");
    let flags = |dir| rustix::fs::statvfs(place.path(dir)).unwrap().f_flag;
    let nosuid = rustix::fs::StatVfsMountFlags::NOSUID;
    assert!(flags("other").contains(nosuid) && !flags("mnt").contains(nosuid));
    // The process lives until the last mount has ended, in whatever order they end.
    place.run("umount mnt").ok();
    fs::write(place.path("other/more"), "text").unwrap();
    place.run("mount disk.kedge mnt").ok();
    assert_eq!(fs::read_to_string(place.path("mnt/more")).unwrap(), "text");
    place.run("umount other").ok();
    // `--create` makes the directory.
    place.run("mount --create 64M disk.kedge made").ok();
    assert_eq!(fs::read_to_string(place.path("made/file")).unwrap(), "text");
    place.run("umount made").ok();
    place.unmount_and_check("disk.kedge");
    assert_eq!(place.info("disk.kedge")["clean"], true);
    // A signal ends all mounts, even if the first directory is no longer mounted.
    place.run("mount disk.kedge mnt").ok();
    let (image, other) = (place.path("disk.kedge"), place.path("other"));
    place.run("mount disk.kedge other").ok();
    let server = pid(&place, "mnt");
    place.run("umount mnt").ok();
    kill_process(server, Signal::TERM).unwrap();
    until("the image is closed", || kedge_fuse::mounts_of(&image).is_empty());
    until("the image is clean", || place.info("disk.kedge")["clean"] == true);
    assert!(!other.join("file").exists());
}

#[test]
fn termination_signals_unmount_cleanly() {
    needs_fuse!();
    for signal in [Signal::TERM, Signal::INT] {
        let place = Place::after("mount --create 64M disk.kedge mnt");
        fs::write(place.path("mnt/file"), "x").unwrap();
        kill_process(pid(&place, "mnt"), signal).unwrap();
        until("the image is closed", || place.info("disk.kedge")["clean"] == true);
        until("the mount is gone", || !place.path("mnt/file").exists());
    }
}

#[test]
fn a_mount_in_use_stays() {
    needs_fuse!();
    let place = Place::after("mount --create 64M disk.kedge mnt");
    let file = fs::File::create(place.path("mnt/file")).unwrap();
    let me = format!("process {}", std::process::id());
    place.run("umount mnt").refused(1, &["mnt", "in use", &me, "mnt/file open"]);
    file.sync_all().unwrap();
    drop(file);

    // The mount is in use by a working directory, by a program that runs from it, and by a mount
    // below it.
    fs::copy("/bin/sleep", place.path("mnt/sleep")).unwrap();
    let mut inside = place.command("sleep");
    inside.arg("600").current_dir(place.path("mnt"));
    let mut from_there = place.command(place.path("mnt/sleep").to_str().unwrap());
    from_there.arg("600");
    for (mut command, how) in [(inside, "whose working directory is there"), (from_there, "mnt/sleep mapped")]
    {
        let mut child = command.spawn().unwrap();
        let who = format!("process {} (sleep)", child.id());
        let run = place.run("umount mnt");
        child.kill().unwrap();
        child.wait().unwrap();
        run.refused(1, &["in use", &who, how]);
    }
    if rustix::process::geteuid().is_root() {
        fs::create_dir(place.path("mnt/below")).unwrap();
        place.run("mount --create 16M other.kedge mnt/below").ok();
        let run = place.run("umount mnt");
        place.run("umount mnt/below").ok();
        run.refused(1, &["in use", "a mount on", "mnt/below"]);
    }
    place.unmount();
}

/// The mount table has flags that the serving process did not set: fusermount3 sets some, and a
/// remount changes some.
#[test]
fn info_has_the_flags_of_the_mount_table() {
    needs_fuse!(root: "only root changes the flags of a mount");
    let place = Place::after("mount -o fuse --create 16M disk.kedge mnt");
    let flags = || ["nosuid", "nodev", "noexec"].map(|flag| place.info("mnt")["mount"][flag].clone());
    assert_eq!(flags(), [false, false, false]);
    let mut change = place.command("mount");
    change.args(["-i", "-o", "remount,bind,nosuid,nodev", "mnt"]);
    crate::common::tool(change, "util-linux");
    assert_eq!(flags(), [true, true, false]);
    place.unmount_and_check("disk.kedge");
}

#[test]
fn a_read_only_mount_changes_nothing() {
    needs_fuse!();
    let place = Place::after("mount --create 64M disk.kedge mnt");
    fs::write(place.path("mnt/file"), "content").unwrap();
    place.run("umount mnt").ok();
    let before = fs::read(place.path("disk.kedge")).unwrap();
    place.run("mount -o ro disk.kedge mnt").ok();
    assert_eq!(fs::read(place.path("mnt/file")).unwrap(), b"content");
    let e = fs::write(place.path("mnt/file"), "other").unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EROFS));
    place.run("umount mnt").ok();
    assert!(fs::read(place.path("disk.kedge")).unwrap() == before, "the image has other bytes");
}

#[test]
fn a_live_mount_tells_of_itself() {
    needs_fuse!();
    let place = Place::after("mount --create 64M -o commit=9,nodev,tree_lock=rwlock disk.kedge mnt");
    write_and_fsync(&place.path("mnt/file"), b"x");
    let info = place.info("mnt");
    assert!(info["mount"]["image"].as_str().unwrap().ends_with("/disk.kedge"), "{info}");
    assert_eq!(info["options"]["tree_lock"], "rwlock", "{info}");
    assert!(!place.run("info mnt").ok().is_empty());
    let stats: serde_json::Value = serde_json::from_str(&place.run("stats --json mnt").ok()).unwrap();
    assert!(stats.is_object());
    let page = place.run("stats mnt").ok();
    assert!((20..=42).contains(&page.lines().count()), "{page}");
    assert!(page.contains("\nlatency      durable write "), "{page}");
    let fsync = page.lines().find(|line| line.starts_with("fsync ")).unwrap();
    assert!(fsync.ends_with('s') && fsync.split_whitespace().nth(1) == Some("1"), "{page}");
    place.run("stats --all --json mnt").refused(2, &["--all", "--json"]);
    let all = place.run("stats --all mnt").ok();
    assert!(all.lines().count() > 150 && all.contains(" transactions ("), "{all}");
    let latches = place.run("stats --latches mnt").ok();
    assert!(latches.starts_with("tree_lock=rwlock: ") && latches.contains("write leaf: taken "), "{latches}");
    let metrics = place.run("stats --prometheus mnt").ok();
    for line in metrics.lines().filter(|l| !l.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("kedgefs_") && name.ends_with('}'), "{line}");
        value.parse::<f64>().unwrap();
    }
    // The latency of the device is known, because the fsync above made a durable write.
    assert!(info["device_latency"]["durable_write_ns"].as_u64().unwrap() > 0, "{info}");
    assert!(stats["device"]["latency"]["durable_write_ns"].as_u64().unwrap() > 0, "{stats}");
    assert!(place.run("info mnt").ok().contains("device_latency.durable_write_ns "));
    assert!(all.contains("device.latency.durable_write_ns "), "{all}");
    assert!(metrics.contains("\n# TYPE kedgefs_device_latency_durable_write_ns gauge\n"), "{metrics}");
    let top = place.run("top --once mnt").ok();
    let line = top.lines().find(|line| line.starts_with("latency ")).unwrap();
    assert!(line.contains("durable write "), "{line}");
    place.run("umount mnt").ok();
}

#[test]
fn a_mount_that_fails_says_why_and_leaves_no_process() {
    needs_fuse!();
    let place = Place::new();
    fs::create_dir(place.path("mnt")).unwrap();
    fs::File::create(place.path("blank")).unwrap().set_len(16 << 20).unwrap();
    place.run("mount blank mnt").refused(1, &["blank", "superblock"]);
    fs::write(place.path("file"), "").unwrap();
    place.run("mkfs --size 16M disk.kedge").ok();
    place.run("mount disk.kedge file").refused(1, &["file is not a directory"]);
    place.run("mount disk.kedge nowhere").refused(1, &["nowhere"]);
    // The failed mounts left no process that holds the image.
    place.run("mkfs -f disk.kedge").ok();
}

#[test]
fn messages_go_to_the_log_file() {
    needs_fuse!();
    let place = Place::after("mount --create 64M --log-file log disk.kedge mnt");
    kill_process(pid(&place, "mnt"), Signal::TERM).unwrap();
    until("the image is closed", || place.info("disk.kedge")["clean"] == true);
    assert!(place.path("log").exists());
}

/// One base image can be mounted for many overlays at once.
#[test]
fn a_clean_image_is_mounted_read_only_many_times() {
    needs_fuse!();
    let place = Place::after("mount --create 64M disk.kedge mnt");
    fs::write(place.path("mnt/file"), "content").unwrap();
    place.unmount();
    let dirs = ["a", "b", "c"];
    for dir in dirs {
        fs::create_dir(place.path(dir)).unwrap();
        place.run(&format!("mount -o ro disk.kedge {dir}")).ok();
    }
    for dir in dirs {
        assert_eq!(fs::read(place.path(dir).join("file")).unwrap(), b"content", "{dir}");
    }
    place.run("mount disk.kedge mnt").refused(1, &["disk.kedge is in use"]);
    place.run("fsck -y disk.kedge").refused(8, &["disk.kedge is mounted on"]);
    for dir in dirs {
        place.run(&format!("umount {dir}")).ok();
    }
    // A writable mount excludes read-only mounts.
    place.run("mount disk.kedge mnt").ok();
    place.run("mount -o ro disk.kedge a").refused(1, &["disk.kedge is in use"]);
    place.unmount_and_check("disk.kedge");
}

#[test]
fn a_create_that_fails_leaves_nothing_and_one_that_works_says_what_is_next() {
    let place = Place::new();
    place.run("mount --create 1M disk.kedge mnt").refused(1, &["disk.kedge"]);
    fs::write(place.path("file"), "").unwrap();
    place.run("mount --create 64M disk.kedge file").refused(1, &["file is not a directory"]);
    needs_fuse!();
    // The mount itself fails, in the background process.
    place.run("mount --create 64M --log-file none/log disk.kedge mnt").refused(1, &["none/log"]);
    fs::write(place.path("faults"), "write 28 0 KEDGELOG\nflush 5 0 *\n").unwrap();
    let run = place.run("mount --create 64M --faults faults disk.kedge mnt");
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    let mut left: Vec<_> = fs::read_dir(place.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.retain(|name| name != "faults" && name != "faults.struck");
    assert_eq!(left, ["file"], "{}", run.err);

    let out = place.run("mount --create 64M disk.kedge mnt").ok();
    let command = out.trim().rsplit_once("To end the mount: ").expect("what to do next").1;
    assert!(command.ends_with("kedge umount mnt"), "{out}");
    let ended = place.command("sh").args(["-c", command]).status().unwrap();
    assert!(ended.success() && place.info("disk.kedge")["clean"] == true);
    assert_eq!(place.run("mount disk.kedge mnt").ok(), "");
    place.unmount();
}

#[test]
fn an_image_and_its_mount_are_described_alike() {
    needs_fuse!();
    let place = Place::after("mkfs --size 64M -L both disk.kedge");
    let image = place.info("disk.kedge");
    assert_eq!(image["state"], "clean");
    fs::create_dir(place.path("mnt")).unwrap();
    place.run("mount disk.kedge mnt").ok();
    let mount = place.info("mnt");
    for (name, value) in image.as_object().unwrap() {
        let same = mount.get(name).unwrap_or_else(|| panic!("the mount has no {name}"));
        assert_eq!(same.is_string(), value.is_string(), "{name}: {same} and {value}");
        assert_eq!(same.is_number(), value.is_number(), "{name}: {same} and {value}");
        if ["uuid", "label", "size_bytes", "log_size_bytes", "created", "features"].contains(&name.as_str()) {
            assert_eq!(same, value, "{name}");
        }
    }
    assert_eq!(mount["state"], "mounted");
    assert_eq!(place.info("disk.kedge")["state"], "mounted");
    let created = image["created"].as_str().unwrap();
    assert!(created.starts_with("20") && created.ends_with('Z') && created.len() == 20, "{created}");
    kill(&place, "mnt");
    place.run("umount mnt");
    assert_eq!(place.info("disk.kedge")["state"], "needs replay");
}

/// For a block device the kernel has one file system of this type, which two directories show.
#[test]
fn a_block_device_is_mounted_read_only_on_two_directories() {
    needs_fuse!(root: "only root attaches a loop device");
    let place = Place::after("mkfs --size 32M disk.kedge");
    fs::create_dir(place.path("one")).unwrap();
    fs::create_dir(place.path("two")).unwrap();
    let script = r"set -eu
        LOOP=$(losetup --find --show disk.kedge)
        trap 'umount -q two || true; umount -q one || true; losetup --detach $LOOP' EXIT
        $K mount -o ro $LOOP one
        $K mount $LOOP two 2>&1 && exit 1 || true
        $K mount -o ro,noexec $LOOP two
        findmnt -rno OPTIONS one; findmnt -rno OPTIONS two
        [ $(stat -c %d one) = $(stat -c %d two) ] && echo same";
    let mut command = place.command("sh");
    command.args(["-c", script]).env("K", env!("CARGO_BIN_EXE_kedge"));
    let said = tool(command, "mount");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].contains("is in use: it is mounted on"), "{said}");
    assert!(lines[1].starts_with("ro") && !lines[1].contains("noexec"), "{said}");
    assert!(lines[2].starts_with("ro") && lines[2].contains("noexec"), "{said}");
    assert_eq!(lines[3], "same");
}

/// Mounts a loop device with this command, and unmounts it with umount(2), several times. Each time
/// the device must be free at once, or the file system below it could not be unmounted yet.
fn is_free_after_umount(mount: &str) {
    is_free_after_umount_of(mount, "");
}

/// [`is_free_after_umount`] of a mount in which these commands of sh(1) have run.
fn is_free_after_umount_of(mount: &str, commands: &str) {
    let place = Place::after("mkfs --size 32M disk.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    for round in 0..20 {
        let mut command = place.command("losetup");
        command.args(["--find", "--show", "disk.kedge"]);
        let device = tool(command, "mount").trim().to_owned();
        let attached = format!("/sys/block/{}/loop/backing_file", &device["/dev/".len()..]);
        place.run(&format!("{mount} {device} mnt")).ok();
        // One other process does all of it: children that other tests start have copies of the
        // files that this process has open, until they execute a program.
        let mut command = place.command("sh");
        let script = "printf x > mnt/file; sync mnt/file; umount mnt; losetup --detach $0; cat $1 || true";
        command.args(["-ec", &format!("{commands} {script}")]).env("K", env!("CARGO_BIN_EXE_kedge"));
        command.args([&device, &attached]);
        let left = tool(command, "unmount");
        assert!(
            !left.contains("disk.kedge"),
            "round {round}: {device} was still open when umount(2) returned"
        );
    }
    assert_eq!(place.run("fsck disk.kedge").code, 0);
}

#[test]
fn umount_returns_when_the_device_is_closed() {
    needs_fuse!(root: "only root attaches a loop device");
    is_free_after_umount("mount");
}

#[test]
fn umount_from_a_daemon_returns_when_the_device_is_closed() {
    needs_fuse!(root: "only root attaches a loop device");
    let name = format!("free-{}", std::process::id());
    let place = Place::after(&format!("mount --daemon {name} --create 32M other.kedge other"));
    is_free_after_umount(&format!("mount --daemon {name}"));
    place.run("umount other").ok();
}

#[test]
fn umount_with_a_keeper_returns_when_the_device_is_closed() {
    needs_fuse!(root: "only root attaches a loop device");
    is_free_after_umount("mount -o keeper");
}

#[test]
fn umount_after_another_server_returns_when_the_device_is_closed() {
    needs_fuse!(root: "only root attaches a loop device");
    is_free_after_umount_of("mount -o keeper", "$K upgrade-server mnt > /dev/null;");
}

/// The file system with the image can be unmounted as soon as that of the image is.
#[test]
fn the_file_system_below_is_free_after_umount() {
    needs_fuse!(root: "only root mounts a file system for the image");
    let place = Place::new();
    for (dir, options) in [("plain", ""), ("kept", "-o keeper")] {
        let script = format!(
            "mkdir {dir} {dir}.mnt
             for round in $(seq 10); do
               mount -t tmpfs -o size=64m tmpfs {dir}
               $K mount {options} --create 32M {dir}/disk.kedge {dir}.mnt > /dev/null
               echo x > {dir}.mnt/file; sync {dir}.mnt/file
               umount {dir}.mnt; umount {dir} || {{ echo in use; umount -l {dir}; }}
             done"
        );
        let mut command = place.command("sh");
        command.args(["-ec", &script]).env("K", env!("CARGO_BIN_EXE_kedge"));
        let busy = tool(command, "mount").lines().count();
        assert_eq!(busy, 0, "{dir}: in {busy} of 10 rounds the file system below was in use");
    }
}

/// Reading changes access times as with relatime, or not at all with noatime.
#[test]
fn reading_moves_access_times_as_asked() {
    use std::os::unix::fs::MetadataExt;
    needs_fuse!();
    let place = Place::after("mount --create 64M disk.kedge mnt");
    let at = |name: &str| place.path("mnt").join(name);
    fs::write(at("file"), "content").unwrap();
    fs::create_dir(at("dir")).unwrap();
    std::os::unix::fs::symlink("file", at("link")).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    let age = || {
        for name in ["file", "dir"] {
            let times = fs::FileTimes::new().set_accessed(old);
            fs::File::open(at(name)).unwrap().set_times(times).unwrap();
        }
        place.command("touch").args(["-h", "-a", "-d", "@1000000", "mnt/link"]).status().unwrap();
    };
    let atimes = || {
        ["file", "dir", "link"].map(|name| {
            let attr = fs::symlink_metadata(at(name)).unwrap();
            (attr.atime(), attr.atime_nsec())
        })
    };
    let atimes_after_read = || {
        fs::read(at("file")).unwrap();
        fs::read_dir(at("dir")).unwrap().for_each(|entry| drop(entry.unwrap()));
        fs::read_link(at("link")).unwrap();
        atimes()
    };
    for (options, moves) in [("noatime", false), ("relatime", true)] {
        age();
        assert_eq!(atimes(), [(1_000_000, 0); 3]);
        place.unmount();
        place.run(&format!("mount -o {options} disk.kedge mnt")).ok();
        assert_eq!(atimes_after_read().map(|time| time != (1_000_000, 0)), [moves; 3], "{options}");
        assert_eq!(place.info("mnt")["options"]["noatime"], !moves);
    }
    // An access time that is newer than the last change and not a day old stays.
    let first = atimes();
    place.remount("disk.kedge", "");
    assert_eq!(atimes_after_read(), first);
    place.unmount();
}
