//! Tests how mounts begin and end.

#![allow(clippy::unwrap_used)]

mod memfs;
mod mounted;

use kedge_fuse::{FuseOptions, MountError, mount, mount_at, mounts_of};
use memfs::MemFs;
use mounted::{Mounted, both, no_fuse};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn mounts_are_found_and_end() {
    for options in both() {
        let mut m = Mounted::new(&options);
        let entry = mount_at(m.dir()).unwrap();
        assert!(entry.is_kedgefs(), "{entry:?}");
        assert_eq!(entry.image(), m.point.image);
        assert_eq!(mounts_of(&m.point.image), std::slice::from_ref(&entry));
        if options.privileged == Some(true) {
            assert_eq!(entry.kind, "fuseblk.kedgefs");
            assert!(fs::metadata(&entry.source).unwrap().file_type().is_block_device());
        } else {
            assert_eq!(entry.kind, "fuse.kedgefs");
        }
        fs::write(m.path("f"), "x").unwrap();
        let file = File::open(m.path("f")).unwrap();
        assert!(matches!(m.unmount(), Err(MountError::Busy(dir)) if dir == m.point.dir));
        assert_eq!(fs::read(m.path("f")).unwrap(), b"x");
        drop(file);
        m.unmount().unwrap().unwrap();
        assert_eq!(mount_at(&m.point.dir), None);
        assert!(matches!(m.point.request_unmount(), Err(MountError::NotMounted(_))));
        if options.privileged == Some(true) {
            assert!(m.fs.syncs() > 0, "DESTROY syncs");
            let backing =
                format!("/sys/block/{}/loop", m.point.source.file_name().unwrap().to_str().unwrap());
            assert!(
                !fs::exists(&backing).unwrap()
                    || fs::read_to_string(format!("{backing}/backing_file")).unwrap().trim_end()
                        != m.point.image.to_str().unwrap(),
                "the loop device lets go"
            );
        }
    }
}

#[test]
fn sync_reaches_a_privileged_mount() {
    for options in both() {
        let m = Mounted::new(&options);
        let mut f = File::create(m.path("f")).unwrap();
        f.write_all(b"data").unwrap();
        let before = m.fs.syncs();
        rustix::fs::syncfs(&f).unwrap();
        if options.privileged == Some(true) {
            assert_eq!(m.fs.syncs(), before + 1);
            assert_eq!(m.requests("WRITE"), 1);
        }
    }
}

/// Set in the process that runs this test in its own mount namespace.
const OWN_NAMESPACE: &str = "KEDGE_TEST_OWN_NAMESPACE";

/// On a privileged mount umount(2) returns when the file system is closed, not before.
///
/// A program that makes a mount namespace gets a copy of every mount of its own namespace, and
/// umount(2) does not wait for copies. Other tests do that hundreds of times a minute, so root
/// runs this test in a namespace that no other process copies.
#[test]
fn close_comes_before_the_end_of_umount() {
    if rustix::process::geteuid().is_root() && std::env::var_os(OWN_NAMESPACE).is_none() {
        let status = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "close_comes_before_the_end_of_umount", "--nocapture"])
            .env(OWN_NAMESPACE, "1")
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    for options in both() {
        let is_closed = is_closed_after_umount(&options);
        assert!(is_closed || options.privileged != Some(true));
    }
}

fn is_closed_after_umount(options: &FuseOptions) -> bool {
    let temp = tempfile::tempdir().unwrap();
    let (image, dir) = (temp.path().join("image"), temp.path().join("mnt"));
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    fs::create_dir(&dir).unwrap();
    let session = mount(&image, &dir, options).unwrap();
    let point = session.mount_point().clone();
    let closed = Arc::new(AtomicBool::new(false));
    let flag = closed.clone();
    let server = kedge_base::spawn_named("test-mount", move || {
        session.run_and_close(MemFs::new(), move || {
            kedge_base::pause(Duration::from_millis(200));
            flag.store(true, Ordering::SeqCst);
            Err::<(), _>("how it went")
        })
    })
    .unwrap();
    fs::write(dir.join("f"), "x").unwrap();
    assert!(!closed.load(Ordering::SeqCst));
    point.request_unmount().unwrap();
    let is_closed = closed.load(Ordering::SeqCst);
    assert_eq!(server.join().unwrap().unwrap(), Err("how it went"));
    assert!(closed.load(Ordering::SeqCst));
    is_closed
}

#[test]
fn an_unserved_mount_goes_away() {
    for options in both() {
        let temp = tempfile::tempdir().unwrap();
        let (image, dir) = (temp.path().join("image"), temp.path().join("mnt"));
        File::create(&image).unwrap().set_len(1 << 20).unwrap();
        fs::create_dir(&dir).unwrap();
        let session = mount(&image, &dir, &options).unwrap();
        let dir = session.mountpoint().to_owned();
        assert!(mount_at(&dir).is_some());
        assert!(
            matches!(
                mount(&image, &dir, &options),
                Err(MountError::AlreadyMounted { .. } | MountError::DeadMount(_))
            ) || options.privileged == Some(false)
        );
        drop(session);
        assert_eq!(mount_at(&dir), None);
    }
}

#[test]
fn refusals_name_the_reason() {
    if no_fuse() {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let path = |name: &str| temp.path().join(name);
    File::create(path("image")).unwrap().set_len(1 << 20).unwrap();
    fs::create_dir(path("mnt")).unwrap();
    let try_mount = |image: &str, dir: &str| match mount(&path(image), &path(dir), &FuseOptions::default()) {
        Ok(_) => panic!("{image} on {dir} must not mount"),
        Err(e) => e.to_string(),
    };
    assert!(try_mount("none", "mnt").contains("none cannot be opened"));
    assert!(try_mount("image", "none").contains("none does not exist"));
    assert!(try_mount("image", "image").contains("image is not a directory"));
    for options in both() {
        let m = Mounted::new(&options);
        fs::create_dir(m.temp.path().join("other")).unwrap();
        match mount(&m.point.image, &m.temp.path().join("other"), &options) {
            Err(MountError::AlreadyMounted { dir, .. }) => assert_eq!(dir, m.point.dir),
            other => panic!("{:?}", other.map(|_| "mounted").map_err(|e| e.to_string())),
        }
    }
}

#[test]
fn read_only_mounts_refuse_changes() {
    for options in both() {
        let m = Mounted::new(&FuseOptions { read_only: true, ..options });
        let refused = fs::write(m.path("f"), "x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        assert!(fs::read_dir(m.dir()).unwrap().next().is_none());
    }
}

#[test]
fn the_shutdown_ioctl_stops_the_file_system() {
    for options in both() {
        let m = Mounted::new(&options);
        let syncs = m.fs.syncs();
        let dir = File::open(m.dir()).unwrap();
        let script = "import fcntl,struct,os,sys\nfd=os.open(sys.argv[1],os.O_RDONLY)\n\
                      fcntl.ioctl(fd,0x8004587d,struct.pack('I',int(sys.argv[2])))";
        let ioctl = |flag: &str| {
            let python =
                std::process::Command::new("python3").args(["-c", script]).arg(m.dir()).arg(flag).output();
            let output = python.unwrap();
            assert!(output.status.success() == (flag != "9"), "{}", String::from_utf8_lossy(&output.stderr));
        };
        ioctl("9");
        assert!(!m.fs.is_down(), "the flag is read from the caller's memory");
        ioctl("0");
        assert!(m.fs.is_down());
        assert_eq!(m.fs.syncs(), syncs + 1, "the default flag saves what there is");
        assert_eq!(fs::write(m.path("f"), "x").unwrap_err().raw_os_error(), Some(libc::EIO));
        drop(dir);
    }
}
