//! `kedge resize`: images grow and shrink, mounted and not.

use crate::common::{Place, kill, needs_fuse, tool, write_and_fsync};
use kedge_device::sim::{Manners, NbdServer};
use kedge_device::{Device, MemDevice};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;

fn size(place: &Place, target: &str) -> u64 {
    place.info(target)["size_bytes"].as_u64().unwrap()
}

/// The size of a mounted file system as df(1) shows it.
fn df(dir: &Path) -> u64 {
    let stat = rustix::fs::statvfs(dir).unwrap();
    stat.f_blocks * stat.f_frsize
}

/// Stops the writers on drop, so that they also stop when an assertion fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Runs `work` while four threads write and fsync files, at least 20 files each.
fn beside_writers(mnt: &Path, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let made = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|w| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut made = 0;
                    while made < 20 || !stop.load(Ordering::SeqCst) {
                        write_and_fsync(&mnt.join(format!("{w}-{}", made % 20)), &[w as u8; 50_000]);
                        made += 1;
                    }
                    made
                })
            })
            .collect();
        let stopping = Stop(&stop);
        work();
        drop(stopping);
        writers.into_iter().map(|w| w.join().unwrap()).sum::<i32>()
    });
    assert!(made >= 80, "{made} files");
}

fn has_what_they_wrote(mnt: &Path) {
    for w in 0..4u8 {
        for i in 0..20 {
            assert_eq!(fs::read(mnt.join(format!("{w}-{i}"))).unwrap(), vec![w; 50_000]);
        }
    }
}

/// Kills the serving process, checks the image and mounts it again.
fn crash(place: &Place, image: &str) {
    kill(place, "mnt");
    place.run("umount mnt").refused(1, &["the serving process had died"]);
    place.kedge(["fsck", image]).ok();
    place.kedge(["mount", image, "mnt"]);
}

#[test]
fn an_image_that_is_not_mounted_grows() {
    let place = Place::after("mkfs --size 32M disk.kedge");
    let said = place.run("resize disk.kedge 64M").ok();
    assert_eq!(said, "disk.kedge: 64 MiB instead of 32 MiB\n");
    assert_eq!(fs::metadata(place.path("disk.kedge")).unwrap().len(), 64 * MIB);
    place.run("fsck -n -f disk.kedge").ok();
    place.run("resize disk.kedge 10G").ok();
    assert_eq!(size(&place, "disk.kedge"), 10 << 30);
    place.run("fsck -n -f disk.kedge").ok();
    let taken = fs::metadata(place.path("disk.kedge")).unwrap().blocks() * 512;
    assert!(taken < 64 * MIB, "the image stays sparse, and takes {taken} bytes");
    // Another program extends the file; the image then takes all of it.
    let file = fs::OpenOptions::new().write(true).open(place.path("disk.kedge")).unwrap();
    file.set_len(11 << 30).unwrap();
    drop(file);
    place.run("resize disk.kedge").ok();
    assert_eq!(size(&place, "disk.kedge"), 11 << 30);
    let said = place.run("resize disk.kedge").ok();
    assert!(said.contains("as before"), "{said}");
    place.run("fsck -n -f disk.kedge").ok();
    place.run("resize disk.kedge 8M").refused(1, &["the smallest size is"]);
    place.run("resize disk.kedge 2048T").refused(1, &["the largest image"]);
    place.run("resize no.kedge 1G").refused(1, &["no.kedge"]);
    assert_eq!(size(&place, "disk.kedge"), 11 << 30);
}

#[test]
fn a_mount_grows_beside_writers_and_a_crash_loses_nothing() {
    needs_fuse!();
    let place = Place::after("mount --create 32M disk.kedge mnt");
    let mnt = place.path("mnt");
    beside_writers(&mnt, || {
        for to in [40, 100, 200, 600, 2000, 2001] {
            place.run(&format!("resize mnt {to}M")).ok();
            assert_eq!(df(&mnt), to * MIB);
        }
        // A command that names the image resizes its mount.
        place.run("resize disk.kedge 3000M").ok();
        assert_eq!(df(&mnt), 3000 * MIB);
    });
    place.run("freeze mnt").ok();
    place.run("resize mnt 4000M").refused(1, &["frozen"]);
    place.run("thaw mnt").ok();
    place.run("resize mnt 1M").refused(1, &["the smallest size is"]);
    crash(&place, "disk.kedge");
    assert_eq!(df(&mnt), 3000 * MIB);
    has_what_they_wrote(&mnt);
    // Write more than the first size had space for.
    write_and_fsync(&mnt.join("large"), &vec![9; 100 << 20]);
    place.unmount_and_check("disk.kedge");
}

/// Writes files of 100 KB until `total` bytes are written, and deletes nine of each ten. Returns
/// the numbers of the others.
fn scatter(dir: &Path, total: u64) -> Vec<u64> {
    let files = total / 100_000;
    for i in 0..files {
        fs::write(dir.join(i.to_string()), scattered(i)).unwrap();
    }
    let (kept, gone): (Vec<u64>, Vec<u64>) = (0..files).partition(|i| i % 10 == 9);
    gone.iter().for_each(|i| fs::remove_file(dir.join(i.to_string())).unwrap());
    kept.iter().for_each(|i| fs::File::open(dir.join(i.to_string())).unwrap().sync_all().unwrap());
    kept
}

fn scattered(i: u64) -> Vec<u8> {
    (0..100_000).map(|at| (at / 4096 * 7 + i) as u8).collect()
}

#[test]
fn an_image_that_is_not_mounted_shrinks_and_grows_again() {
    needs_fuse!();
    let place = Place::after("mount --create 200M disk.kedge mnt");
    let kept = scatter(&place.path("mnt"), 100 << 20);
    place.unmount_and_check("disk.kedge");
    place.run("resize disk.kedge 8M").refused(1, &["the smallest size is"]);
    assert_eq!(fs::metadata(place.path("disk.kedge")).unwrap().len(), 200 * MIB);
    let said = place.run("resize disk.kedge 64M").ok();
    assert_eq!(said, "disk.kedge: 64 MiB instead of 200 MiB\n");
    assert_eq!(fs::metadata(place.path("disk.kedge")).unwrap().len(), 64 * MIB);
    place.run("fsck -n -f disk.kedge").ok();
    let said = place.run("resize disk.kedge 8M").err;
    let smallest: u64 = said.trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(smallest < 64 * MIB, "{smallest}");
    place.run(&format!("resize disk.kedge {smallest}")).ok();
    place.run("fsck -n -f disk.kedge").ok();
    place.run("resize disk.kedge 300M").ok();
    place.run("mount disk.kedge mnt").ok();
    for i in kept {
        assert!(fs::read(place.path("mnt").join(i.to_string())).unwrap() == scattered(i), "file {i}");
    }
    place.unmount_and_check("disk.kedge");
}

#[test]
fn a_mount_shrinks_beside_writers_and_a_crash_loses_nothing() {
    needs_fuse!();
    let place = Place::after("mount --create 400M disk.kedge mnt");
    let mnt = place.path("mnt");
    let kept = scatter(&mnt, 150 << 20);
    beside_writers(&mnt, || {
        for to in [300, 100, 500, 90, 80] {
            place.run(&format!("resize mnt {to}M")).ok();
            assert_eq!(df(&mnt), to * MIB);
            assert_eq!(fs::metadata(place.path("disk.kedge")).unwrap().len(), to * MIB);
        }
    });
    place.run("resize mnt 20M").refused(1, &["the smallest size is"]);
    place.run("freeze mnt").ok();
    place.run("resize mnt 79M").refused(1, &["frozen"]);
    place.run("thaw mnt").ok();
    crash(&place, "disk.kedge");
    assert_eq!(df(&mnt), 80 * MIB);
    has_what_they_wrote(&mnt);
    for i in kept {
        assert!(fs::read(mnt.join(i.to_string())).unwrap() == scattered(i), "file {i}");
    }
    place.unmount();
    place.run("mount -o ro disk.kedge mnt").ok();
    place.run("resize mnt 70M").refused(1, &["Read-only"]);
    place.unmount_and_check("disk.kedge");
}

/// A loop device, detached on drop.
struct Loop<'a> {
    place: &'a Place,
    name: String,
}

impl Loop<'_> {
    fn new(place: &Place) -> Loop<'_> {
        let mut command = place.command("losetup");
        command.args(["--find", "--show", "backing"]);
        Loop { place, name: tool(command, "util-linux").trim().to_owned() }
    }

    /// Changes the size of the file and then of the loop device.
    fn set_size(&self, bytes: u64) {
        let file = fs::OpenOptions::new().write(true).open(self.place.path("backing")).unwrap();
        file.set_len(bytes).unwrap();
        let mut command = self.place.command("losetup");
        command.args(["--set-capacity", &self.name]);
        tool(command, "util-linux");
    }
}

impl Drop for Loop<'_> {
    fn drop(&mut self) {
        let mut command = self.place.command("losetup");
        command.args(["--detach", &self.name]);
        tool(command, "util-linux");
    }
}

/// Other tools change the size of the device: before the image grows, and after it has shrunk. In
/// between the device is larger than the image.
#[test]
fn a_block_device_and_its_image_change_one_after_the_other() {
    needs_fuse!(root: "only root attaches a loop device");
    let place = Place::new();
    fs::File::create(place.path("backing")).unwrap().set_len(64 * MIB).unwrap();
    let device = Loop::new(&place);
    let (name, mnt) = (device.name.as_str(), place.path("mnt"));
    place.kedge(["mkfs", name]).ok();
    fs::create_dir(&mnt).unwrap();
    // The image is not mounted.
    place.kedge(["resize", name, "100M"]).refused(1, &[name, "67108864 bytes", "are wanted"]);
    device.set_size(100 * MIB);
    place.kedge(["fsck", "-n", "-f", name]).ok();
    place.kedge(["resize", name]).ok();
    assert_eq!(size(&place, name), 100 * MIB);
    // The image is mounted, as fuseblk and as a plain mount, with a crash between the steps.
    for (options, to) in [("fuseblk", 400 * MIB), ("fuse", 700 * MIB)] {
        place.kedge(["mount", "-o", options, name, "mnt"]);
        place.kedge(["resize", "mnt", &to.to_string()]).refused(1, &["its device cannot have that size"]);
        device.set_size(to);
        let before = df(&mnt);
        crash(&place, name);
        assert_eq!(df(&mnt), before);
        beside_writers(&mnt, || drop(place.run("resize mnt").ok()));
        assert_eq!(df(&mnt), to);
        write_and_fsync(&mnt.join("large"), &vec![1; 100 << 20]);
        crash(&place, name);
        assert_eq!(df(&mnt), to);
        has_what_they_wrote(&mnt);
        fs::remove_file(mnt.join("large")).unwrap();
        let kept = scatter(&mnt, 80 << 20);
        beside_writers(&mnt, || drop(place.run("resize mnt 90M").ok()));
        assert_eq!(df(&mnt), 90 * MIB);
        crash(&place, name);
        assert_eq!(df(&mnt), 90 * MIB);
        place.unmount_and_check(name);
        device.set_size(90 * MIB);
        place.kedge(["fsck", "-n", "-f", name]).ok();
        place.kedge(["mount", name, "mnt"]).ok();
        has_what_they_wrote(&mnt);
        for i in kept {
            assert!(fs::read(mnt.join(i.to_string())).unwrap() == scattered(i), "file {i}");
            fs::remove_file(mnt.join(i.to_string())).unwrap();
        }
        place.unmount_and_check(name);
    }
    // The device is now smaller than the image.
    device.set_size(80 * MIB);
    place.kedge(["mount", name, "mnt"]).refused(1, &[name, "truncated"]);
}

/// The server reads the size of its export again for each connection.
#[test]
fn an_export_and_its_image_change_one_after_the_other() {
    needs_fuse!();
    let place = Place::new();
    let medium = Arc::new(MemDevice::new(64 * MIB));
    let server = NbdServer::serve(&place.path("socket"), medium.clone(), Manners::default()).unwrap();
    let (uri, mnt) = (server.uri(), place.path("mnt"));
    place.kedge(["mkfs", &uri]).ok();
    fs::create_dir(&mnt).unwrap();
    place.kedge(["resize", &uri, "100M"]).refused(1, &[&uri, "67108864 bytes", "are wanted"]);
    medium.grow(100 * MIB).unwrap();
    place.kedge(["resize", &uri]).ok();
    assert_eq!(size(&place, &uri), 100 * MIB);
    place.kedge(["mount", &uri, "mnt"]);
    place.run("resize mnt 400M").refused(1, &["its device cannot have that size"]);
    beside_writers(&mnt, || {
        for to in [130 * MIB, 400 * MIB] {
            medium.grow(to).unwrap();
            place.run("resize mnt").ok();
            assert_eq!(df(&mnt), to);
        }
    });
    let kept = scatter(&mnt, 80 << 20);
    crash(&place, &uri);
    assert_eq!(df(&mnt), 400 * MIB);
    beside_writers(&mnt, || drop(place.run("resize mnt 90M").ok()));
    assert_eq!((df(&mnt), medium.geometry().size), (90 * MIB, 400 * MIB));
    crash(&place, &uri);
    has_what_they_wrote(&mnt);
    for i in kept {
        assert!(fs::read(mnt.join(i.to_string())).unwrap() == scattered(i), "file {i}");
    }
    place.unmount_and_check(&uri);
    place.kedge(["resize", &uri, "80M"]).ok();
    assert_eq!(size(&place, &uri), 80 * MIB);
    // The server first cuts off the unused rest, and then a part of the image.
    medium.cut(80 * MIB).unwrap();
    place.kedge(["fsck", "-n", "-f", &uri]).ok();
    medium.cut(70 * MIB).unwrap();
    place.kedge(["mount", &uri, "mnt"]).refused(1, &[&uri, "truncated"]);
}

#[test]
fn another_user_is_refused() {
    needs_fuse!(root: "another user needs root to become it");
    let place = Place::after("mount --create 32M disk.kedge mnt");
    for path in ["", "mnt"] {
        fs::set_permissions(place.path(path), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = "import os; os.setxattr('mnt', 'system.kedgefs.size', b'67108864')";
    let other = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "python3", "-c", script];
    // Another user may not be able to run the first python3 in this user's path.
    let output = place.command("setpriv").env("PATH", "/usr/bin:/bin").args(other).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("Errno 1"), "{said}");
    assert_eq!(df(&place.path("mnt")), 32 * MIB);
    place.unmount();
}
