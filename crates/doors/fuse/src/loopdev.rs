//! Loop devices, which give an image file a block device.

use crate::sys;
use rustix::fd::AsFd;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The number of attempts, because another process may take the free device first.
const ATTEMPTS: usize = 64;

/// Attaches `image` to a free loop device. The device is detached when the returned file is closed
/// and all other users, such as a mount, have closed it.
pub fn attach(image: &Path, read_only: bool) -> io::Result<(PathBuf, File)> {
    let open = |path: &Path| OpenOptions::new().read(true).write(!read_only).open(path);
    let file = open(image)?;
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    for _ in 0..ATTEMPTS {
        let path = PathBuf::from(format!("/dev/loop{}", sys::free_loop_number(control.as_fd())?));
        let device = open(&path)?;
        match sys::configure_loop(&device, &file, image.as_os_str().as_bytes(), read_only) {
            Ok(()) => return Ok((path, device)),
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => continue,
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::other("other processes took every free loop device"))
}

/// Whether the block device of this number (`major:minor`) is a loop device that is attached to the
/// image. Compares the inode of the file that the kernel names. The device is opened only if there
/// is no such file, for example because it was deleted: while it is open, its owner cannot detach
/// it, or unmount the file system below it. If it cannot be opened without privilege, the paths are
/// compared.
pub fn backs(number: &str, image: &Path, meta: &std::fs::Metadata) -> bool {
    if !meta.is_file() {
        return false;
    }
    let entry = PathBuf::from(format!("/sys/dev/block/{number}"));
    if !entry.join("loop").is_dir() {
        return false;
    }
    let Ok(link) = std::fs::read_link(&entry) else { return false };
    let Some(name) = link.file_name() else { return false };
    let node = Path::new("/dev").join(name);
    if let Some(file) = backing_file(&node).and_then(|path| std::fs::metadata(path).ok()) {
        return (file.dev(), file.ino()) == (meta.dev(), meta.ino());
    }
    match File::open(&node).and_then(|device| sys::loop_backing(&device)) {
        Ok(inode) => inode == (meta.dev(), meta.ino()),
        Err(_) => backing_file(&node).is_some_and(|path| path == image),
    }
}

/// The path, as the kernel reports it, of the file that a loop device is attached to.
pub fn backing_file(device: &Path) -> Option<PathBuf> {
    let name = device.file_name()?.to_str()?;
    let path = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
    Some(PathBuf::from(path.trim_end_matches('\n')))
}
