//! An image file on a file system that becomes full: the image has space, its host has none.

use crate::common::{Place, kill, no_fuse, until, write_and_fsync};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

const MIB: usize = 1 << 20;

/// A small file system that holds an image with a larger size.
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

    /// Fills the host's free space except `spare` bytes.
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

/// Appends a mebibyte to a file and fsyncs it. An error names the failed call and its errno.
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

/// Writes to new files until the host is full. Returns the files, each with the number of its
/// accepted bytes.
fn fill_with_unsynced(host: &Host) -> Vec<(std::path::PathBuf, usize)> {
    let mut accepted = Vec::new();
    for i in 0..2 {
        let path = host.path(&format!("mnt/unsynced{i}"));
        let mut file = File::create(&path).unwrap();
        let written = (0..100).take_while(|_| file.write_all(&vec![b'u'; MIB]).is_ok()).count();
        accepted.push((path, written * MIB));
    }
    assert!(accepted.iter().map(|(_, bytes)| bytes).sum::<usize>() > 64 * MIB, "{accepted:?}");
    accepted
}

fn now() -> i64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64
}

#[test]
fn an_unmount_says_what_does_not_fit_on_its_host() {
    for options in ["", "-o fuse "] {
        let Some(host) = Host::new(64) else { return };
        host.0.run(&format!("mount {options}--create 1G --log-file log host/disk.kedge mnt")).ok();
        write_and_fsync(&host.path("mnt/kept"), b"kept");
        let accepted = fill_with_unsynced(&host);
        host.0.run("umount mnt").refused(
            1,
            &[
                "mnt is not unmounted",
                "of 2 files do not fit",
                "more are needed. Make room there, or delete files",
                "umount --force",
            ],
        );
        assert_eq!(host.0.info("mnt")["state"], "mounted");

        // The mount keeps all data until its host has space again; then the unmount reports no
        // loss.
        let mut grow = Command::new("mount");
        grow.args(["-o", "remount,size=400M"]).arg(host.path("host"));
        assert!(grow.status().unwrap().success(), "grow the tmpfs");
        host.0.run("umount mnt").ok();
        assert_eq!(host.0.info("host/disk.kedge")["lost_files"], 0);
        host.0.run("mount host/disk.kedge mnt").ok();
        for (path, bytes) in accepted {
            // A failed write(2) may have written a part of its bytes.
            let found = fs::read(path).unwrap();
            assert!(found.len() >= bytes && found.iter().all(|b| *b == b'u'), "{options}");
        }
        host.0.unmount_and_check("host/disk.kedge");
    }
}

/// The serving process ends although its last checkpoint has no space either, and the image records
/// the loss.
#[test]
fn an_unmount_by_force_gives_up_what_does_not_fit() {
    for options in ["", "-o fuse "] {
        let Some(host) = Host::new(64) else { return };
        host.0.run(&format!("mount {options}--create 1G --log-file log host/disk.kedge mnt")).ok();
        write_and_fsync(&host.path("mnt/kept"), b"kept");
        let accepted = fill_with_unsynced(&host);
        let before = now();
        let run = host.0.run("umount --force mnt");
        let after = now();
        assert_eq!(run.code, 1, "{}", run.err);
        for word in ["mnt: unmounted, but", "the data of 2 files", "is lost", "at most"] {
            assert!(run.err.contains(word), "{word} in {}", run.err);
        }
        assert!(!run.err.contains("namespace"), "{}", run.err);
        let info = host.0.info("host/disk.kedge");
        assert_eq!(info["lost_files"], 2);
        let since = info["lost_since"].as_str().unwrap();
        let seconds = Command::new("date").args(["+%s", "-d", since]).output().unwrap();
        let since: i64 = String::from_utf8(seconds.stdout).unwrap().trim().parse().unwrap();
        assert!((before..=after).contains(&since), "{before} {since} {after}");

        let mut grow = Command::new("mount");
        grow.args(["-o", "remount,size=400M"]).arg(host.path("host"));
        assert!(grow.status().unwrap().success(), "grow the tmpfs");
        let run = host.0.run("mount host/disk.kedge mnt");
        assert_eq!(run.code, 0, "{}", run.err);
        assert!(run.err.contains("2 files"), "the mount reports it: {}", run.err);
        assert_eq!(fs::read(host.path("mnt/kept")).unwrap(), b"kept");
        let cost = accepted.iter().filter(|(path, bytes)| {
            let found = fs::read(path).unwrap();
            assert!(found.iter().all(|b| [b'u', 0].contains(b)), "{}", path.display());
            found.iter().filter(|b| **b == b'u').count() < *bytes
        });
        assert_eq!(cost.count(), 2, "as many as were named");
        host.0.run("umount mnt").ok();
    }
}

#[test]
fn a_checkpoint_waits_for_its_host() {
    let Some(host) = Host::new(64) else { return };
    host.0.run("mount --create 1G --log-file log host/disk.kedge mnt").ok();
    host.fill(0);
    // Records beyond an eighth of the log start a checkpoint, whose new nodes find no space.
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

/// The log area of a large image is written only when it is first used. Old bytes of the file there
/// are not read as log. A file whose space is reserved gets its whole log immediately.
#[test]
fn a_large_sparse_image_takes_little_of_its_host() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    let taken = |name: &str| fs::metadata(place.path(name)).unwrap().blocks() * 512;
    place.run("mkfs --size 200G large.kedge").ok();
    assert!(taken("large.kedge") < 128 << 20, "{} bytes", taken("large.kedge"));
    assert_eq!(place.info("large.kedge")["log_size_bytes"], 1 << 30);
    if !no_fuse() {
        place.run("mount large.kedge mnt2").refused(1, &["mnt2"]);
        fs::create_dir(place.path("mnt")).unwrap();
        place.run("mount large.kedge mnt").ok();
        write_and_fsync(&place.path("mnt/file"), b"content");
        place.unmount_and_check("large.kedge");
    }
    assert!(taken("large.kedge") < 160 << 20, "{} bytes", taken("large.kedge"));

    let reserved = File::create(place.path("reserved.kedge")).unwrap();
    let bytes = 320 << 20;
    rustix::fs::fallocate(&reserved, rustix::fs::FallocateFlags::empty(), 0, bytes).unwrap();
    drop(reserved);
    place.run("mkfs --log-size 160M reserved.kedge").ok();
    assert!(taken("reserved.kedge") >= bytes, "nothing was given back");
    assert_eq!(place.run("fsck reserved.kedge").code, 0);
}
