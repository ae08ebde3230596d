//! Loop devices: files as block devices. They are attached and detached by losetup(8).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of the file that stands for a recorded block device.
pub const DEVICE_FILE: &str = "device";
/// The environment variable with the path of the device.
pub const DEVICE_VARIABLE: &str = "KEDGE_CRASH_DEVICE";

/// Why loop devices cannot be used here; `None` if they can.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("loop devices need root".to_owned());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("there is no /dev/loop-control".to_owned());
    }
    match Command::new("losetup").arg("--version").output() {
        Ok(_) => None,
        Err(e) => Some(format!("losetup (package util-linux or mount) cannot be started: {e}")),
    }
}

/// A loop device of a file. Dropping it detaches the file.
#[derive(Debug)]
pub struct Loop {
    path: PathBuf,
    is_attached: bool,
}

fn losetup(args: &[&Path]) -> io::Result<String> {
    let output = Command::new("losetup").args(args).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(io::Error::other(format!("losetup: {why}")))
        }
    }
}

impl Loop {
    pub fn attach(file: &Path) -> io::Result<Loop> {
        let path = losetup(&["--find".as_ref(), "--show".as_ref(), "--".as_ref(), file])?;
        Ok(Loop { path: PathBuf::from(path), is_attached: true })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Detaches the file. If the device is still open, the kernel detaches the file at the last
    /// close.
    pub fn detach(&mut self) -> io::Result<()> {
        self.is_attached = false;
        losetup(&["--detach".as_ref(), &self.path]).map(drop)
    }

    /// Whether the device still has its file.
    pub fn is_in_use(&self) -> bool {
        let name = self.path.file_name().unwrap_or_default();
        Path::new("/sys/block").join(name).join("loop/backing_file").exists()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if self.is_attached
            && let Err(e) = self.detach()
        {
            tracing::warn!("{} cannot be detached: {e}", self.path.display());
        }
    }
}

/// Detaches the devices whose files lie below a directory: a killed process left them.
pub fn detach_below(dir: &Path) {
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if Path::new(file.trim()).starts_with(dir) {
            // Dropping the value detaches the device.
            drop(Loop { path: Path::new("/dev").join(entry.file_name()), is_attached: true });
        }
    }
}

/// The beginning of a command line that runs a command in its own mount namespace, so that the
/// command's mounts end with it. It is empty unless the caller is root, since other users cannot
/// mount.
pub fn with_own_mounts() -> &'static [&'static str] {
    match rustix::process::geteuid().is_root() {
        // With `slave` an unmount outside also unmounts inside.
        true => &["unshare", "--mount", "--propagation", "slave", "--"],
        false => &[],
    }
}
