//! A temporary directory of a run. If the run is killed, a later run removes it.
//!
//! The process holds a lock on its directory. The kernel releases the lock however the process
//! ends, so a directory whose lock is free was abandoned. A process number in the name would not
//! suffice: it may have been reused, or belong to another container.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The most attempts if other processes remove the new directory before this process has locked it.
const TRIES: u32 = 16;

#[derive(Debug)]
pub struct WorkDir {
    path: PathBuf,
    /// The open directory, which holds the lock.
    _lock: File,
}

impl WorkDir {
    /// Creates a directory in `place` with a name that begins with `prefix`. First it removes the
    /// directories that killed processes of this user left there. `release` prepares such a
    /// directory for removal, since it may contain a mount.
    pub fn new(place: &Path, prefix: &str, release: impl Fn(&Path) -> io::Result<()>) -> io::Result<WorkDir> {
        sweep(place, prefix, &release);
        for _ in 0..TRIES {
            let name = format!("{prefix}{}-", std::process::id());
            let path = tempfile::Builder::new()
                .prefix(&name)
                .tempdir_in(place)
                .map_err(|e| unnamed(&e, place))?
                .keep();
            match lock(&path)? {
                Some(lock) => return Ok(WorkDir { path, _lock: lock }),
                // Another process that is starting found the directory unlocked, and removed it.
                None => continue,
            }
        }
        Err(io::Error::other(format!("directories in {} vanish as soon as they are made", place.display())))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The error of a temporary file in `place` without the file's name, which a user does not know.
pub fn unnamed(e: &io::Error, place: &Path) -> io::Error {
    io::Error::new(e.kind(), format!("{} in {}", e.kind(), place.display()))
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Err(e) = clear(&self.path) {
            tracing::warn!("{} cannot be removed: {e}", self.path.display());
        }
    }
}

/// Locks a directory. Returns `None` if another process holds the lock, or if the directory is
/// gone.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW;
    let open = File::options().read(true).custom_flags(flags.bits() as i32).open(path);
    let dir = match open {
        Ok(dir) => dir,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(e) => return Err(e.into()),
    }
    // The owner may have removed the directory between the open and the lock.
    match fs::symlink_metadata(path) {
        Ok(there) if (there.dev(), there.ino()) == (dir.metadata()?.dev(), dir.metadata()?.ino()) => {
            Ok(Some(dir))
        }
        Ok(_) => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Removes directories that killed processes of this user left. A directory that cannot be removed
/// stays and does not prevent the start.
fn sweep(place: &Path, prefix: &str, release: &impl Fn(&Path) -> io::Result<()>) {
    let uid = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(prefix) {
            continue;
        }
        let path = entry.path();
        // Directories of other users are not touched, even by root: in a directory that all users
        // can write to, a name proves nothing.
        let is_own = |m: fs::Metadata| m.is_dir() && m.uid() == uid;
        if !fs::symlink_metadata(&path).is_ok_and(is_own) {
            continue;
        }
        let removed = lock(&path).and_then(|held| match held {
            Some(_held) => release(&path).and_then(|()| clear(&path)),
            None => Ok(()),
        });
        if let Err(e) = removed {
            tracing::warn!("{}, which a killed process left, cannot be removed: {e}", path.display());
        }
    }
}

/// Removes a directory, even if a program has left directories without permissions in it.
pub(crate) fn clear(root: &Path) -> io::Result<()> {
    match fs::remove_dir_all(root) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            open_up(root)?;
            fs::remove_dir_all(root)
        }
        Err(e) => Err(e),
    }
}

fn open_up(dir: &Path) -> io::Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_up(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "workdir_tests.rs"]
mod tests;
