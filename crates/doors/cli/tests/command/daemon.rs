//! One process that serves several images, and options changed on a live mount.

use crate::common::{Place, needs_fuse, until, write_and_fsync};
use std::fs;
use std::os::fd::AsRawFd;
use std::process::{Child, Stdio};

fn pid(place: &Place, dir: &str) -> u32 {
    let mut value = [0; 16];
    let n = rustix::fs::getxattr(place.path(dir), "system.kedgefs.pid", &mut value).unwrap();
    std::str::from_utf8(&value[..n]).unwrap().parse().unwrap()
}

fn alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}

#[test]
fn mounts_of_one_daemon_share_a_process_that_ends_with_the_last() {
    needs_fuse!();
    let place = Place::new();
    let name = format!("test-{}", std::process::id());
    for n in ["a", "b", "c"] {
        place.run(&format!("mount --daemon {name} --create 64M {n}.kedge {n}")).ok();
        write_and_fsync(&place.path(&format!("{n}/f")), n.as_bytes());
    }
    let server = pid(&place, "a");
    assert_eq!((pid(&place, "b"), pid(&place, "c")), (server, server));
    for n in ["a", "b", "c"] {
        assert_eq!(fs::read(place.path(&format!("{n}/f"))).unwrap(), n.as_bytes());
    }
    place.run(&format!("mount --daemon {name} a.kedge b")).refused(1, &["busy"]);
    place.run("umount a").ok();
    place.run("fsck -n a.kedge").ok();
    assert!(alive(server));
    assert_eq!(fs::read(place.path("b/f")).unwrap(), b"b", "the others go on");
    place.run(&format!("mount --daemon {name} a.kedge a")).ok();
    assert_eq!(pid(&place, "a"), server);
    for n in ["a", "b", "c"] {
        place.run(&format!("umount {n}")).ok();
        place.run(&format!("fsck -n {n}.kedge")).ok();
    }
    until("the daemon's end", || !alive(server));
    place.run("mount --daemon ../x a.kedge a").refused(2, &["../x"]);
}

/// One of two file systems of a process shuts down. Its unmount reports that the image was not
/// closed, although the process continues to serve the other.
#[test]
fn an_unmount_waits_for_the_image_not_for_a_clean_mark() {
    needs_fuse!();
    let place = Place::new();
    let name = format!("stop-{}", std::process::id());
    for n in ["a", "b"] {
        place.run(&format!("mount --daemon {name} --create 64M {n}.kedge {n}")).ok();
        write_and_fsync(&place.path(&format!("{n}/f")), n.as_bytes());
    }
    let root = fs::File::open(place.path("a")).unwrap();
    let no_log_flush = 2u32;
    // SAFETY: FS_IOC_SHUTDOWN reads one u32 through a pointer that is valid for the call.
    let stopped = unsafe { libc::ioctl(root.as_raw_fd(), 0x8004_587d, &raw const no_log_flush) };
    assert_eq!(stopped, 0, "{}", std::io::Error::last_os_error());
    drop(root);
    place.run("umount a").refused(1, &["a.kedge", "not closed cleanly"]);
    assert_eq!(fs::read(place.path("b/f")).unwrap(), b"b", "the other goes on");
    place.run("umount b").ok();
    assert_eq!(place.run("fsck a.kedge").code, 0);
}

struct Foreground(Child);

impl Drop for Foreground {
    fn drop(&mut self) {
        // SIGTERM unmounts, so a failed test leaves no mount.
        let pid = rustix::process::Pid::from_raw(self.0.id() as i32).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

/// A daemon that has had no descriptor left for a while still serves later requests.
#[test]
fn joining_works_after_a_shortage_of_descriptors() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    needs_fuse!();
    let place = Place::new();
    let name = format!("few-{}", std::process::id());
    place.run(&format!("mount --daemon {name} --create 32M a.kedge a")).ok();
    let server = pid(&place, "a");
    let fds = fs::read_dir(format!("/proc/{server}/fd")).unwrap();
    let used: Vec<u64> = fds.map(|fd| fd.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    let free = (0..=u64::MAX).find(|fd| !used.contains(fd)).unwrap();
    let limit = |limit| prlimit(Pid::from_raw(server as i32), Resource::Nofile, limit).unwrap();
    let join = |n: &str| {
        let line = format!("mount --daemon {name} --create 32M {n}.kedge {n}");
        let kedge = place.command(env!("CARGO_BIN_EXE_kedge")).args(line.split(' ')).spawn();
        Waiting(kedge.unwrap())
    };
    let before = limit(Rlimit { current: Some(free), ..rustix::process::getrlimit(Resource::Nofile) });
    // Both are accepted or refused during the shortage, or wait for its end.
    let mut during = [join("b"), join("c")];
    std::thread::sleep(std::time::Duration::from_millis(500));
    limit(before);
    for kedge in &mut during {
        until("the end of a command of the time of the shortage", || kedge.0.try_wait().unwrap().is_some());
    }
    let mut later = join("d");
    until("the end of a later command", || later.0.try_wait().unwrap().is_some());
    assert!(later.0.wait().unwrap().success());
    assert_eq!(pid(&place, "d"), server);
    for n in ["a", "b", "c", "d"] {
        place.run(&format!("umount {n}"));
    }
    until("the daemon's end", || !alive(server));
    place.run("fsck -n d.kedge").ok();
}

/// A command that a failed test does not leave behind.
struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_file_says_what_a_daemon_serves() {
    needs_fuse!();
    let place = Place::new();
    for n in ["a", "b"] {
        place.run(&format!("mkfs --size 32M {n}.kedge")).ok();
        fs::create_dir(place.path(n)).unwrap();
    }
    let file = "dirty_hard = \"32M\"\n[[mount]]\nimage = \"a.kedge\"\ndir = \"a\"\n\
                [[mount]]\nimage = \"b.kedge\"\ndir = \"b\"\noptions = \"async_checkpoint=30,noplug\"\n";
    fs::write(place.path("both.toml"), file).unwrap();
    let child =
        place.command(env!("CARGO_BIN_EXE_kedge")).args(["daemon", "both.toml"]).stdin(Stdio::null()).spawn();
    let mut server = Foreground(child.unwrap());
    until("both mounts", || ["a", "b"].iter().all(|n| place.run(&format!("info {n}")).code == 0));
    assert_eq!(place.info("b")["options"]["async_checkpoint"], 30);
    assert_eq!(place.info("b")["options"]["plug"], false);
    write_and_fsync(&place.path("b/f"), b"kept");
    let pid = rustix::process::Pid::from_raw(server.0.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.0.wait().unwrap().success());
    for n in ["a", "b"] {
        place.run(&format!("fsck -n {n}.kedge")).ok();
    }

    for (text, part) in [
        ("", "no [[mount]]"),
        ("[[mount]]\nimage = \"a.kedge\"\n", "dir"),
        ("[[mount]]\nimage = \"a.kedge\"\ndir = \"a\"\nspeed = 11\n", "speed"),
        ("dirty_hard = \"lots\"\n[[mount]]\nimage = \"a.kedge\"\ndir = \"a\"\n", "lots"),
    ] {
        fs::write(place.path("wrong.toml"), text).unwrap();
        place.run("daemon wrong.toml").refused(2, &[part]);
    }
    // If one image cannot be mounted, the other images are cleanly unmounted.
    fs::write(place.path("half.toml"), file.replace("b.kedge", "none.kedge")).unwrap();
    place.run("daemon half.toml").refused(1, &["none.kedge"]);
    place.run("fsck -n a.kedge").ok();
}

#[test]
fn options_change_while_mounted() {
    needs_fuse!();
    let place = Place::after("mount --create 64M disk.kedge mnt");
    let option = |name: &str| place.info("mnt")["options"][name].clone();
    assert_eq!(option("async_checkpoint"), 50);
    place.run("remount mnt -o async_checkpoint=20,new_name=sync,fdatasync=relog").ok();
    assert_eq!((option("async_checkpoint"), option("new_name")), (20.into(), "sync".into()));
    place.run("remount mnt -o noasync_checkpoint").ok();
    assert!(option("async_checkpoint").is_null());
    assert_eq!(option("fdatasync"), "relog", "what is not named stays");
    place.run("remount mnt -o async_checkpoint=0").refused(2, &["async_checkpoint=0", "1 to 99"]);
    place.run("remount mnt -o async_checkpoint=100").refused(2, &["1 to 99"]);
    place.run("remount mnt -o tree_lock=rwlock").refused(2, &["tree_lock"]);
    place.run("remount /proc -o plug").refused(1, &["/proc", "KedgeFS"]);

    // Call the helper as mount(8) does for `mount -o remount,...`.
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_kedge"), place.path("mount.fuseblk.kedgefs")).unwrap();
    let helper = place.path("mount.fuseblk.kedgefs");
    let status = place
        .command(helper.to_str().unwrap())
        .args(["disk.kedge", "mnt", "-o", "remount,async_checkpoint=40"])
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(option("async_checkpoint"), 40);

    write_and_fsync(&place.path("mnt/f"), b"x");
    let text = place.run("stats mnt").ok();
    assert!(text.contains(" transactions (") && text.contains("handles per checkpoint"), "{text}");
    let slow = place.run("stats --slow-fsync mnt").ok();
    assert!(slow.contains("log write") && slow.lines().count() >= 2, "{slow}");
    // The printed hint, run as a command, finds the file.
    let (_, hint) = slow.split_once("Paths of an inode: ").unwrap();
    let found = place.command("sh").args(["-c", hint]).output().unwrap();
    assert_eq!(String::from_utf8(found.stdout).unwrap(), "mnt/f\n", "{slow}");
    place.run("umount mnt").ok();
    place.run("fsck -n disk.kedge").ok();
}
