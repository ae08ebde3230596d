//! A directory for the time of a run, which a later run removes if this one was killed.
//!
//! Its process holds a lock on it. The kernel lets go of the lock however the process ends, so a
//! directory whose lock is free belongs to nobody. A process number in the name would not do: it
//! may have been given to another process since, or mean one in another container.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// New directories that others may take for abandoned before this process has locked them.
const TRIES: u32 = 16;

#[derive(Debug)]
pub struct WorkDir {
    path: PathBuf,
    /// Held, not read: see above.
    _lock: File,
}

impl WorkDir {
    /// A new directory in `place`, whose name begins with `prefix`. Those that killed processes of
    /// this user left there are removed first. `release` makes one ready for that: it may hold a
    /// mount.
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
                // Another process starts just now, has found it without a lock, and removes it.
                None => continue,
            }
        }
        Err(io::Error::other(format!("directories in {} vanish as soon as they are made", place.display())))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// An error of a temporary file or directory in `place`, without its name, which means nothing to a
/// user.
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

/// The lock of a directory; `None`: somebody else has it, or it is gone.
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
    // Between the two calls its owner may have removed it.
    match fs::symlink_metadata(path) {
        Ok(there) if (there.dev(), there.ino()) == (dir.metadata()?.dev(), dir.metadata()?.ino()) => {
            Ok(Some(dir))
        }
        Ok(_) => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Removes what killed processes of this user left. What cannot be removed stays, and is no reason
/// not to start.
fn sweep(place: &Path, prefix: &str, release: &impl Fn(&Path) -> io::Result<()>) {
    let uid = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(prefix) {
            continue;
        }
        let path = entry.path();
        // Another user's are that user's, even for root: a name in a directory that all may write
        // to is no reason to remove anything.
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

/// Removes a directory in which a program may have left others without permissions.
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
