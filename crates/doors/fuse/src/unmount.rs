//! Ends mounts.

use crate::helper;
use crate::keep::Life;
use crate::mount_error::MountError;
use crate::mountinfo::{self, MountEntry};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};

/// Ends the mount on `dir`. With `lazy` a mount in use is detached immediately and ends with its
/// last user.
pub fn unmount(dir: &Path, lazy: bool) -> Result<(), MountError> {
    unmount_as(dir, rustix::process::geteuid().is_root(), lazy)
}

pub(crate) fn unmount_as(dir: &Path, privileged: bool, lazy: bool) -> Result<(), MountError> {
    if !privileged && !rustix::process::geteuid().is_root() {
        return helper::unmount(dir, lazy);
    }
    let flags = UnmountFlags::NOFOLLOW | if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    rustix::mount::unmount(dir, flags).map_err(|e| match e {
        Errno::BUSY => MountError::Busy(dir.to_owned()),
        Errno::INVAL | Errno::NOENT => MountError::NotMounted(dir.to_owned()),
        e => MountError::Unmount { dir: dir.to_owned(), error: e.into() },
    })
}

/// The mount point and its source. It outlives the session, so that a signal handler can unmount.
#[derive(Clone, Debug)]
pub struct MountPoint {
    pub image: PathBuf,
    pub dir: PathBuf,
    /// `major:minor` of the file system, by which the mount table shows its other mounts.
    pub device: Option<String>,
    /// The source in `/proc/mounts`: a loop device, a block device or the image.
    pub source: PathBuf,
    /// Whether this is a `fuseblk` mount, on which sync and umount wait for the server.
    pub privileged: bool,
    /// The reason for which root's mount is plain although the user did not ask for a plain mount.
    pub why_plain: Option<String>,
}

impl MountPoint {
    /// The mount that a keeper has made on `dir`. If the mount table has it elsewhere, `dir` is
    /// replaced: a parent directory may have been renamed, or the mount moved. The mount is not in
    /// the table if it was detached and programs still have its files open, if only another mount
    /// namespace has it, or if it has ended and the image has to be closed. No status socket is
    /// made then.
    pub(crate) fn of_life(life: &Life, image: &Path, dir: &Path) -> MountPoint {
        let found = mountinfo::mounts_by(life.device().as_deref(), image);
        let here = found.iter().rposition(|entry| entry.dir == dir).or(found.len().checked_sub(1));
        let entry = here.map(|at| found[at].clone());
        let is_block = |entry: &MountEntry| entry.kind.starts_with("fuseblk");
        MountPoint {
            image: image.to_owned(),
            dir: entry.as_ref().map_or(dir, |entry| &entry.dir).to_owned(),
            device: entry.as_ref().map(|entry| entry.device.clone()),
            privileged: entry.as_ref().map_or_else(|| life.is_privileged(), is_block),
            source: entry.map_or_else(|| image.to_owned(), |entry| entry.source),
            why_plain: None,
        }
    }

    /// Detaches all mounts of the file system that this process sees, except for those that another
    /// file system covers.
    pub fn detach(&self) -> Result<(), MountError> {
        for entry in mountinfo::mounts_by(self.device.as_deref(), &self.image) {
            if mountinfo::mount_at(&entry.dir).is_some_and(|topmost| topmost.id == entry.id) {
                unmount(&entry.dir, true)?;
            }
        }
        Ok(())
    }

    /// Asks the kernel to end the mount, and all other mounts of the file system that this process
    /// sees. Refused with [`MountError::Busy`] while anything on one is in use. Must not be called
    /// on a thread that serves the mount.
    pub fn request_unmount(&self) -> Result<(), MountError> {
        // A device number may belong to another file system after this one has ended.
        let is_this = |entry: &MountEntry| {
            entry.is_kedgefs() && Some(&entry.device) == self.device.as_ref() && entry.image() == self.image
        };
        let others = mountinfo::mounts().into_iter().filter(|entry| entry.dir != self.dir).filter(is_this);
        let mut ended = false;
        for other in others {
            unmount_as(&other.dir, self.privileged, false)?;
            ended = true;
        }
        match unmount_as(&self.dir, self.privileged, false) {
            // The first mount may have ended before the others.
            Err(MountError::NotMounted(_)) if ended => Ok(()),
            result => result,
        }
    }
}
