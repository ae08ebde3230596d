//! A mount of the file system in memory. It is cleaned up even if a test fails, but not if the test
//! is killed: this process is server and client, and the kernel closes its files on the mount only
//! after the server's threads have ended. Then use `/sys/fs/fuse/connections/<number>/abort`.
#![allow(dead_code, clippy::unwrap_used)]

use crate::memfs::MemFs;
use kedge_fuse::{FuseOptions, MountError, MountPoint, mount};
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// Whether tests with FUSE are switched off. If they are not, they fail without FUSE, so that they
/// are never skipped silently.
#[track_caller]
pub fn no_fuse() -> bool {
    let no = std::env::var_os("KEDGE_NO_FUSE").is_some_and(|v| v == "1");
    if no {
        kedge_base::skip::note("KEDGE_NO_FUSE=1: the test mounts");
    }
    no
}

/// Whether the tests run as root. If not, reports what is left out.
#[track_caller]
pub fn is_root(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        kedge_base::skip::note(&format!("not root: {what}"));
    }
    root
}

pub struct Mounted {
    pub fs: MemFs,
    pub point: MountPoint,
    server: Option<JoinHandle<io::Result<()>>>,
    // Dropped last, because it contains the mount point.
    pub temp: tempfile::TempDir,
}

impl Mounted {
    pub fn new(options: &FuseOptions) -> Mounted {
        Mounted::with(MemFs::new(), options)
    }

    pub fn with(fs: MemFs, options: &FuseOptions) -> Mounted {
        let temp = tempfile::Builder::new().prefix("kedge-fuse-test-").tempdir().unwrap();
        let (image, dir) = (temp.path().join("image, with \\ and blank"), temp.path().join("mnt"));
        std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        std::fs::create_dir(&dir).unwrap();
        let session =
            mount(&image, &dir, options).unwrap_or_else(|e| panic!("mount: {e} (KEDGE_NO_FUSE=1 skips)"));
        let point = session.mount_point().clone();
        let ops = fs.clone();
        let server = kedge_base::spawn_named("test-mount", move || session.run(ops)).unwrap();
        Mounted { fs, point, server: Some(server), temp }
    }

    pub fn dir(&self) -> &Path {
        &self.point.dir
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.point.dir.join(name)
    }

    pub fn unmount(&mut self) -> Result<io::Result<()>, MountError> {
        self.point.request_unmount()?;
        Ok(self.server.take().expect("unmounted once").join().unwrap())
    }

    /// The mount's own counter of a request.
    pub fn requests(&self, name: &str) -> u64 {
        self.state("system.kedgefs.stats")["fuse"]["requests"][name].as_u64().unwrap_or(0)
    }

    /// A counter of the mount's workers.
    pub fn workers(&self, name: &str) -> u64 {
        self.state("system.kedgefs.stats")["fuse"]["workers"][name].as_u64().unwrap()
    }

    pub fn state(&self, name: &str) -> Value {
        serde_json::from_str(&self.control(name)).unwrap()
    }

    pub fn control(&self, name: &str) -> String {
        let mut value = vec![0; 65536];
        let len = rustix::fs::getxattr(self.dir(), name, &mut value).unwrap();
        value.truncate(len);
        String::from_utf8(value).unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(server) = self.server.take() else { return };
        if let Err(e) = self.point.request_unmount() {
            eprintln!("unmount: {e}; detaching");
            if let Err(e) = kedge_fuse::unmount(&self.point.dir, true) {
                eprintln!("{e}");
                return;
            }
        }
        if !std::thread::panicking() {
            server.join().unwrap().unwrap();
        }
    }
}

/// Both kinds of mount.
pub fn both() -> Vec<FuseOptions> {
    if no_fuse() {
        return Vec::new();
    }
    let plain = FuseOptions { privileged: Some(false), ..FuseOptions::default() };
    if is_root("no privileged mount") {
        vec![FuseOptions { privileged: Some(true), ..FuseOptions::default() }, plain]
    } else {
        vec![plain]
    }
}
