//! What the machine does to a mount with a keeper: the image is renamed, the program is replaced,
//! no process can be started, or all processes of the mount are killed.

use crate::common::keeper::{keeper, kill_server, server};
use crate::common::{Place, copy_program, needs_fuse, tool, until, until_dead};
use crate::parent_of;
use kedge_base::spawn_named;
use kedge_fuse::keep::INJECTS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{PidfdFlags, Signal, kill_process, pidfd_open};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The next server opens the file that was mounted, even if another file has its name by then.
#[test]
fn the_image_may_be_renamed_and_its_name_given_to_another() {
    needs_fuse!();
    let place = Place::after("mount --create 64M -o keeper disk.kedge mnt");
    fs::write(place.path("mnt/a"), "told").unwrap();
    fs::rename(place.path("disk.kedge"), place.path("renamed.kedge")).unwrap();
    kill_server(&place, Signal::KILL);
    place.run("mkfs --size 64M disk.kedge").ok();
    let other = fs::read(place.path("disk.kedge")).unwrap();
    fs::write(place.path("mnt/b"), "told, too").unwrap();
    kill_server(&place, Signal::KILL);
    place.run("upgrade-server mnt").ok();
    assert_eq!(fs::read(place.path("mnt/a")).unwrap(), b"told");
    assert_eq!(fs::read(place.path("mnt/b")).unwrap(), b"told, too");
    place.unmount_and_check("renamed.kedge");
    assert!(fs::read(place.path("disk.kedge")).unwrap() == other, "another image was changed");
}

/// The next server finds the mount by its device number, wherever it is by then.
#[test]
fn the_mount_point_may_be_moved() {
    needs_fuse!();
    let place = Place::new();
    for dir in ["a", "a/mnt"] {
        fs::create_dir(place.path(dir)).unwrap();
    }
    place.run("mount --create 64M -o keeper disk.kedge a/mnt").ok();
    fs::write(place.path("a/mnt/file"), "told").unwrap();
    let named = place.path("a/mnt/nameless");
    let mut nameless = File::options().create_new(true).read(true).write(true).open(named).unwrap();
    nameless.write_all(b"open").unwrap();
    fs::remove_file(place.path("a/mnt/nameless")).unwrap();
    fs::rename(place.path("a"), place.path("b")).unwrap();
    std::os::unix::fs::symlink("b/mnt", place.path("mnt")).unwrap();
    kill_server(&place, Signal::KILL);
    assert_eq!(fs::read(place.path("b/mnt/file")).unwrap(), b"told");
    place.run("upgrade-server b/mnt").ok();
    let mut open = [0; 4];
    nameless.read_exact_at(&mut open, 0).unwrap();
    assert_eq!((keeper(&place)["handovers"].as_u64(), &open), (Some(1), b"open"));
    let info = place.info("b/mnt");
    assert_eq!(info["mount"]["mountpoint"], place.path("b/mnt").canonicalize().unwrap().to_str().unwrap());
    drop(nameless);
    place.unmount_and_check("disk.kedge");
}

/// The mount is not in the table any more, and ends with the last open file.
#[test]
fn a_detached_mount_is_served_and_closed_by_the_next_server() {
    needs_fuse!();
    let place = Place::after("mount --create 64M -o keeper disk.kedge mnt");
    fs::write(place.path("mnt/a"), "told").unwrap();
    let open = File::open(place.path("mnt/a")).unwrap();
    let served = server(&place);
    let keeper = pidfd_open(parent_of(served), PidfdFlags::empty()).unwrap();
    kedge_fuse::unmount(&place.path("mnt").canonicalize().unwrap(), true).unwrap();
    kill_process(served, Signal::KILL).unwrap();
    let mut bytes = [0; 4];
    // Not in the kernel's cache.
    rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"told");
    drop(open);
    until("the keeper ends", || is_readable(&keeper));
    let closed = place.info("disk.kedge");
    assert_eq!(closed["clean"], true, "{closed}");
    assert_eq!(place.run("cat disk.kedge:/a").ok(), "told");
    place.run("fsck disk.kedge").ok();
}

fn is_readable(fd: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn the_image_and_the_program_may_be_removed() {
    needs_fuse!();
    let place = Place::new();
    let program = place.path("kedge");
    copy_program(&program);
    let mut command = place.command(program.to_str().unwrap());
    command.args("mount --create 64M -o keeper disk.kedge mnt".split(' '));
    tool(command, "kedge");
    fs::write(place.path("mnt/a"), "told").unwrap();
    fs::remove_file(place.path("disk.kedge")).unwrap();
    fs::remove_file(&program).unwrap();
    fs::write(&program, "no program").unwrap();
    kill_server(&place, Signal::KILL);
    assert_eq!(fs::read(place.path("mnt/a")).unwrap(), b"told");
    place.run("umount mnt").refused(1, &["unmounted, but how its image was closed cannot be seen"]);
}

#[test]
fn a_keeper_and_a_server_that_are_killed_end_the_mount() {
    needs_fuse!();
    let place = Place::after("mount --create 64M -o keeper disk.kedge mnt");
    fs::write(place.path("mnt/a"), "kept").unwrap();
    fs::File::open(place.path("mnt/a")).unwrap().sync_all().unwrap();
    let server = server(&place);
    let keeper = parent_of(server);
    kill_process(server, Signal::KILL).unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    until_dead(&place, "mnt");
    until("the image is free", || place.run("mount -o nokeeper disk.kedge mnt").code == 0);
    assert_eq!(fs::read(place.path("mnt/a")).unwrap(), b"kept");
    place.unmount_and_check("disk.kedge");
}

/// When the server has closed the image another program may own it, so no further server opens it.
#[test]
fn a_server_that_dies_after_it_has_closed_the_image_is_the_last_one() {
    needs_fuse!(root: "the kernel waits for the end of a privileged mount only");
    if !INJECTS {
        return kedge_base::skip::note("servers of this build die inside of no request by themselves");
    }
    let place = Place::after("mkfs --size 64M disk.kedge");
    let (noted, said) = (place.path("deaths"), place.path("said"));
    fs::create_dir(place.path("mnt")).unwrap();
    fs::write(&noted, "").unwrap();
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.args(["mount", "--foreground", "-o", "keeper", "disk.kedge", "mnt"]);
    command.env("KEDGE_DEATHS", format!("DESTROY/Served,{}", noted.display()));
    let mut keeper = command.stderr(fs::File::create(&said).unwrap()).spawn().unwrap();
    until("a mount", || kedge_fuse::mount_at(&place.path("mnt")).is_some());
    fs::write(place.path("mnt/a"), "kept").unwrap();
    let unmount = || rustix::mount::unmount(place.path("mnt"), rustix::mount::UnmountFlags::empty());
    until("mnt is no longer in use", || unmount().is_ok());
    let free = place.info("disk.kedge");
    let status = keeper.wait().unwrap();
    let said = fs::read_to_string(said).unwrap();
    assert_eq!(fs::read_to_string(noted).unwrap(), "DESTROY Served panic\n", "{said}");
    assert!(said.contains("died of signal 6 after it had closed the image"), "{status}: {said}");
    assert_eq!(status.code(), Some(1), "{said}");
    assert_eq!(free["state"], "clean");
    place.run("fsck disk.kedge").ok();
}

/// A control group that can forbid its processes to start others.
struct Alone(PathBuf);

impl Alone {
    /// Returns `None` where such a group cannot be made.
    fn new(name: &str) -> Option<Alone> {
        let old = PathBuf::from("/sys/fs/cgroup/pids");
        let top = if old.is_dir() { old } else { PathBuf::from("/sys/fs/cgroup") };
        let group = Alone(top.join(format!("kedge-{name}-{}", std::process::id())));
        fs::create_dir(&group.0).ok()?;
        group.0.join("pids.max").exists().then_some(group)
    }

    fn set(&self, file: &str, value: &str) {
        fs::write(self.0.join(file), value).unwrap();
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // The group can be removed only when its processes have ended.
        if let Err(e) = fs::remove_dir(&self.0) {
            eprintln!("{}: {e}", self.0.display());
        }
    }
}

#[test]
fn a_keeper_that_can_start_no_process_tries_again() {
    needs_fuse!(root: "only root can limit the number of processes");
    let Some(group) = Alone::new("alone") else {
        return kedge_base::skip::note("no control group for processes");
    };
    let place = Place::after("mount --create 64M -o keeper disk.kedge mnt");
    fs::write(place.path("mnt/a"), "told").unwrap();
    let server = server(&place);
    group.set("cgroup.procs", &parent_of(server).to_string());
    group.set("pids.max", "1");
    kill_process(server, Signal::KILL).unwrap();
    let file = place.path("mnt/b");
    let waits = spawn_named("waits", move || fs::write(file, "waits")).unwrap();
    let refused = || fs::read_to_string(group.0.join("pids.events")).unwrap();
    until("a server is not started", || !refused().contains("max 0"));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!waits.is_finished(), "there is no server");
    group.set("pids.max", "max");
    waits.join().unwrap().unwrap();
    assert_eq!(fs::read(place.path("mnt/a")).unwrap(), b"told");
    assert_eq!(keeper(&place)["deaths"], 1);
    place.unmount_and_check("disk.kedge");
}

/// Each limit refuses another thread of the next server. One of them is a thread that it starts
/// when it serves already.
#[test]
fn a_server_that_can_start_few_threads_is_followed_by_another() {
    needs_fuse!(root: "only root can limit the number of processes");
    let Some(group) = Alone::new("threads") else {
        return kedge_base::skip::note("no control group for processes");
    };
    let procs = group.0.join("cgroup.procs");
    for fewer in 4..=9 {
        let place = Place::after("mkfs --size 64M disk.kedge");
        fs::create_dir(place.path("mnt")).unwrap();
        // A process starts the mount in the group, so that all its threads are counted.
        let script = format!("echo $$ > {} && exec \"$K\" mount -o keeper disk.kedge mnt", procs.display());
        let mut mount = place.command("sh");
        mount.args(["-c", &script]).env("K", env!("CARGO_BIN_EXE_kedge"));
        tool(mount, "kedge");
        fs::write(place.path("mnt/a"), "told").unwrap();
        let server = server(&place);
        let now: u64 = fs::read_to_string(group.0.join("pids.current")).unwrap().trim().parse().unwrap();
        group.set("pids.max", &(now - fewer).to_string());
        kill_process(server, Signal::KILL).unwrap();
        // A keeper waits for a second before it starts another server.
        std::thread::sleep(Duration::from_secs(2));
        group.set("pids.max", "max");
        let read = fs::read(place.path("mnt/a"));
        assert_eq!(read.unwrap(), b"told", "{now} processes and threads before, {fewer} fewer then");
        place.unmount_and_check("disk.kedge");
    }
    until("the group is empty", || fs::read(&procs).unwrap().is_empty());
}

/// A small file system for an image that has a larger size. Unmounted when it is dropped.
struct Host<'a>(&'a Place);

impl Host<'_> {
    fn new(place: &Place, mib: usize) -> Host<'_> {
        fs::create_dir(place.path("host")).unwrap();
        let size = format!("size={mib}M");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "none"]).arg(place.path("host"));
        assert!(mount.status().unwrap().success(), "mount a tmpfs");
        Host(place)
    }

    fn fill(&self) {
        let mut filler = File::create(self.0.path("host/filler")).unwrap();
        let full = std::iter::repeat_with(|| filler.write_all(&[0; 4096])).find_map(Result::err).unwrap();
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    }
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        for dir in ["mnt", "host"] {
            if let Err(e) = Command::new("umount").args(["-q", "-l"]).arg(self.0.path(dir)).status() {
                eprintln!("umount {dir}: {e}");
            }
        }
    }
}

/// The next server cannot recover the image, or cannot make the changes again, because the file
/// system of the image is full. Programs wait until it is not.
#[test]
fn a_full_host_of_the_image_delays_the_next_server() {
    const UNSYNCED: usize = 8 << 20;
    needs_fuse!(root: "only root can mount a small file system");
    for names in [0, 3000] {
        let place = Place::new();
        let host = Host::new(&place, 96);
        place.run("mount --create 1G -o keeper host/disk.kedge mnt").ok();
        // Recovery writes the nodes of these names.
        for n in 0..names {
            File::create(place.path(&format!("mnt/{n}"))).unwrap();
        }
        fs::write(place.path("mnt/synced"), "kept").unwrap();
        File::open(place.path("mnt/synced")).unwrap().sync_all().unwrap();
        fs::write(place.path("mnt/unsynced"), vec![b'u'; UNSYNCED]).unwrap();
        host.fill();
        kill_process(server(&place), Signal::KILL).unwrap();
        let file = place.path("mnt/unsynced");
        let reads = spawn_named("reads", move || fs::read(file)).unwrap();
        std::thread::sleep(Duration::from_secs(3));
        assert!(!reads.is_finished(), "{names} names: {:?}", reads.join().map(|read| read.map(drop)));
        fs::remove_file(place.path("host/filler")).unwrap();
        let read = reads.join().unwrap().unwrap();
        assert!(read == vec![b'u'; UNSYNCED], "{names} names: what was acknowledged is there");
        assert_eq!(fs::read(place.path("mnt/synced")).unwrap(), b"kept");
        assert_eq!(fs::read_dir(place.path("mnt")).unwrap().count(), names + 2);
        fs::write(place.path("mnt/later"), "written").unwrap();
        let keeper = keeper(&place);
        assert_eq!(keeper["deaths"], 1, "{keeper}");
        assert!(keeper["failed_starts"].as_u64().unwrap() > 0, "{keeper}");
        place.unmount_and_check("host/disk.kedge");
    }
}
