//! An image file on a file system that gets full: the image has room, its host has none.

#![allow(clippy::unwrap_used)]

mod common;
use common::{Place, kill, no_fuse, until, write_and_fsync};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

const MIB: usize = 1 << 20;

/// A small file system of its own, with an image that is larger.
struct Host(Place);

impl Host {
    fn new(mib: usize) -> Option<Host> {
        if no_fuse() {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            kedge_base::skip::note("only root can mount a small file system to fill");
            return None;
        }
        let place = Place::new();
        fs::create_dir(place.path("host")).unwrap();
        let size = format!("size={mib}M");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "none"]).arg(place.path("host"));
        assert!(mount.status().unwrap().success(), "mount a tmpfs");
        Some(Host(place))
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path(name)
    }

    /// Fills what is left, but for `spare` bytes.
    fn fill(&self, spare: usize) {
        let free = rustix::fs::statvfs(self.path("host")).unwrap();
        let bytes = ((free.f_bavail * free.f_frsize) as usize).saturating_sub(spare);
        let mut filler = File::create(self.path("host/filler")).unwrap();
        filler.write_all(&vec![0; bytes]).unwrap();
    }

    fn make_room(&self) {
        fs::remove_file(self.path("host/filler")).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for dir in ["mnt", "host"] {
            if let Err(e) = Command::new("umount").args(["-q", "-l"]).arg(self.path(dir)).status() {
                eprintln!("umount {dir}: {e}");
            }
        }
    }
}

/// Appends a mebibyte and fsyncs it. Answers which call failed, with its errno.
fn append(path: &Path) -> Result<(), (&'static str, i32)> {
    let errno = |call| move |e: std::io::Error| (call, e.raw_os_error().unwrap());
    let mut file = File::options().append(true).create(true).open(path).map_err(errno("open"))?;
    file.write_all(&vec![b'x'; MIB]).map_err(errno("write"))?;
    file.sync_all().map_err(errno("fsync"))
}

#[test]
fn writers_hear_that_the_host_is_full_and_go_on_when_it_is_not() {
    let Some(host) = Host::new(64) else { return };
    host.0.run("mount --create 1G --log-file log host/disk.kedge mnt").ok();
    write_and_fsync(&host.path("mnt/kept"), b"kept");
    host.fill(4 * MIB);
    let mut failed = Vec::new();
    for i in 0..60 {
        if let Err((call, errno)) = append(&host.path(&format!("mnt/{}", i % 10))) {
            assert_eq!(errno, libc::ENOSPC, "{call} {i}");
            failed.push(call);
        }
    }
    assert!(failed.len() >= 50, "{failed:?}");
    assert!(failed.iter().filter(|call| **call == "write").count() >= 40, "{failed:?}");
    assert_eq!(host.0.info("mnt")["state"], "mounted", "a full host is no reason to shut down");
    assert_eq!(fs::read(host.path("mnt/kept")).unwrap(), b"kept");
    let log = fs::read_to_string(host.path("log")).unwrap();
    assert_eq!(log.matches("has no space").count(), 1, "{log}");
    assert!(log.lines().count() <= 6, "{log}");

    host.make_room();
    until("there is room again", || append(&host.path("mnt/later")).is_ok());
    host.0.run("umount mnt").ok();
    let report = host.0.run("fsck -f host/disk.kedge").ok();
    assert!(report.contains("clean"), "{report}");
}

#[test]
fn a_checkpoint_waits_for_its_host() {
    let Some(host) = Host::new(64) else { return };
    host.0.run("mount --create 1G --log-file log host/disk.kedge mnt").ok();
    host.fill(0);
    // More records than an eighth of the log: a checkpoint begins, and its new nodes find no place.
    let log_is_told = || fs::read_to_string(host.path("log")).unwrap().contains("the checkpoint waits for");
    let mut files = 0;
    until("a checkpoint needs space", || {
        for _ in 0..2000 {
            File::create(host.path(&format!("mnt/{files}"))).unwrap();
            files += 1;
        }
        log_is_told()
    });
    assert_eq!(host.0.info("mnt")["state"], "mounted");
    File::create(host.path("mnt/meanwhile")).unwrap();
    host.make_room();
    host.0.run("umount mnt").ok();
    assert_eq!(host.0.info("host/disk.kedge")["clean"], true);
    host.0.run("mount host/disk.kedge mnt").ok();
    assert_eq!(fs::read_dir(host.path("mnt")).unwrap().count(), files + 1);
    host.0.unmount_and_check("host/disk.kedge");
}

#[test]
fn a_log_that_has_no_space_to_be_replayed_can_be_read() {
    let Some(host) = Host::new(64) else { return };
    host.0.run("mount --create 1G host/disk.kedge mnt").ok();
    for i in 0..3000 {
        File::create(host.path(&format!("mnt/{i}"))).unwrap();
    }
    write_and_fsync(&host.path("mnt/kept"), b"kept");
    kill(&host.0, "mnt");
    host.fill(0);
    let run = host.0.run("mount host/disk.kedge mnt");
    assert_eq!(run.code, 0, "{}", run.err);
    for word in ["disk.kedge is mounted read-only", "no space to replay", "mount again", "are free"] {
        assert!(run.err.contains(word), "{word} in {}", run.err);
    }
    assert_eq!(fs::read(host.path("mnt/kept")).unwrap(), b"kept");
    assert_eq!(fs::read_dir(host.path("mnt")).unwrap().count(), 3001);
    let refused = File::create(host.path("mnt/new")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    host.0.run("umount mnt").ok();

    host.make_room();
    let run = host.0.run("mount host/disk.kedge mnt");
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    write_and_fsync(&host.path("mnt/new"), b"new");
    host.0.unmount_and_check("host/disk.kedge");
}
