//! Finds the mount that a command names and reads its extended attributes.
//!
//! Mounts that other users made with their own servers are neither trusted nor accessed; the module
//! `mountinfo` of `kedge_fuse` identifies them. Only a path on the caller's command line may lead
//! into such a mount.

use crate::image::locate;
use crate::{engine, stderr};
use anyhow::{Context, Result, bail};
use kedge_device::Location;
use kedge_fuse::MountEntry;
use std::path::{Path, PathBuf};

/// JSON with identity, geometry and options.
pub const XATTR_INFO: &str = "system.kedgefs.info";
/// JSON with all counters.
pub const XATTR_STATS: &str = "system.kedgefs.stats";
/// The pid of the serving process, in decimal.
pub const XATTR_PID: &str = "system.kedgefs.pid";

/// Setting this attribute to a list of options changes them.
pub const XATTR_OPTIONS: &str = "system.kedgefs.options";

/// Setting this attribute to a number of bytes makes the image larger or smaller.
pub const XATTR_SIZE: &str = "system.kedgefs.size";

/// Followed by the number of a tree: JSON with the trees from that number on.
pub const XATTR_TREES: &str = "system.kedgefs.trees.";
/// JSON with the limit of a file or directory, or of its nearest ancestor that has one.
pub const XATTR_LIMIT: &str = "system.kedgefs.limit";
/// Followed by a number N: JSON with all limits except the first N.
pub const XATTR_LIMITS: &str = "system.kedgefs.limits.";
/// Followed by the number of a tree: JSON with the space that the tree uses.
pub const XATTR_TREE: &str = "system.kedgefs.tree.";

/// Largest attribute value that the kernel returns.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// The uppermost mount on `dir`. Only the path is used, because every access to a dead mount fails
/// with ENOTCONN.
pub fn at(dir: &Path) -> Result<Option<MountEntry>> {
    Ok(kedge_fuse::mount_at(&resolve(dir)?))
}

/// Refuses a directory with a live KedgeFS mount: the new mount would hide it, which is nearly
/// always a mistake. Hiding another mount may be intended (a tmpfs on /mnt), and mount(8) allows
/// it.
pub fn refuse_busy(dir: &Path) -> Result<()> {
    // A missing directory is reported elsewhere.
    match resolve(dir).map(|dir| kedge_fuse::mount_at(&dir)) {
        Ok(Some(mount)) if mount.is_kedgefs() => {
            bail!("mount point {} is busy: {} is mounted there", dir.display(), mount.image().display())
        }
        _ => Ok(()),
    }
}

/// The trusted mounts of an image, including dead ones. A remote image is identified only by its
/// name, and mounts on other hosts are not visible.
fn all_of(image: &Path) -> Result<Vec<MountEntry>> {
    let wanted = locate(image)?;
    if !wanted.is_uri() {
        return Ok(kedge_fuse::mounts_of(image));
    }
    let holds = |entry: &MountEntry| {
        let source = || Location::parse(&entry.source).is_ok_and(|source| source.same_image(&wanted));
        entry.kind == "fuse.kedgefs" && !entry.is_foreign() && source()
    };
    Ok(kedge_fuse::mounts().into_iter().filter(holds).collect())
}

/// The directories of all trusted KedgeFS mounts of this machine.
pub fn own() -> Vec<PathBuf> {
    let believed = kedge_fuse::mounts().into_iter().filter(|m| m.is_kedgefs() && !m.is_foreign());
    believed.map(|m| m.dir).collect()
}

/// A live mount of the image by any file system, preferably a writable mount.
pub fn of_image(image: &Path) -> Result<Option<MountEntry>> {
    let mut reader = None;
    for mount in all_of(image)? {
        if !is_dead(&mount.dir)? {
            if !mount.is_read_only() {
                return Ok(Some(mount));
            }
            reader = reader.or(Some(mount));
        }
    }
    Ok(reader)
}

/// Detaches the dead mounts on a directory and of an image: a dead mount cannot be revived, only
/// replaced.
pub fn detach_dead(dir: &Path, image: &Path) -> Result<()> {
    let here = if is_dead(dir)? { Some(resolve(dir)?) } else { None };
    let others = all_of(image)?.into_iter().filter(MountEntry::is_kedgefs).map(|m| m.dir);
    for dir in here.into_iter().chain(others) {
        // Checked again: both may be the same mount.
        if is_dead(&dir)? {
            engine::detach(&dir)?;
            let dir = dir.display();
            stderr::warn(format_args!("{dir}: the mount of a process that had died is detached"));
        }
    }
    Ok(())
}

/// The absolute path without symlinks. The directory itself is not accessed if that fails, because
/// it may be a dead mount.
pub fn resolve(dir: &Path) -> Result<PathBuf> {
    if let Ok(path) = dir.canonicalize() {
        return Ok(path);
    }
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        bail!("{} names no directory", dir.display());
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let parent = parent.canonicalize().with_context(|| format!("find {}", parent.display()))?;
    Ok(parent.join(name))
}

/// Whether `dir` is the mount point of a KedgeFS mount whose process has died. Reads an attribute
/// that only the process can return; the kernel could serve stat(2) from its cache. A foreign
/// mount, or a path inside one, is not accessed and never detached.
pub fn is_dead(dir: &Path) -> Result<bool> {
    // A missing directory is reported elsewhere.
    let Ok(dir) = resolve(dir) else { return Ok(false) };
    if !kedge_fuse::mount_at(&dir).is_some_and(|m| m.is_kedgefs()) || kedge_fuse::asks_strangers(&dir) {
        return Ok(false);
    }
    if ask(&dir, XATTR_PID).is_some() {
        return Ok(false);
    }
    let mut value = [0; 64];
    let asked = rustix::fs::getxattr(&dir, XATTR_PID, &mut value[..]);
    // ECONNABORTED is returned while the kernel closes the connection of a killed process.
    Ok(matches!(asked, Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED)))
}

/// Reads an attribute of a mount's root through the status socket. A dedicated thread of the
/// serving process replies, even if all other threads wait for a device that hangs.
fn ask(dir: &Path, name: &str) -> Option<String> {
    let mount = kedge_fuse::mount_at(dir)?;
    let ours = mount.is_kedgefs() && !mount.is_foreign() && mount.root == Path::new("/");
    if ours { kedge_fuse::ask_status(&mount, name) } else { None }
}

/// Reads an attribute of a mount's root, through the status socket or else through the mount.
pub fn attribute(dir: &Path, name: &str) -> Result<String> {
    if let Some(value) = resolve(dir).ok().and_then(|dir| ask(&dir, name)) {
        return Ok(value);
    }
    attribute_of(dir, name)
}

/// Reads an attribute of a file or directory of a mount.
pub fn attribute_of(dir: &Path, name: &str) -> Result<String> {
    let mut value = Vec::with_capacity(XATTR_BYTES_MAX);
    rustix::fs::getxattr(dir, name, rustix::buffer::spare_capacity(&mut value)).map_err(|e| match e {
        rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NODATA => {
            anyhow::anyhow!("{} is not the root of a KedgeFS mount", dir.display())
        }
        e => anyhow::Error::from(e).context(format!("read attribute {name} of {}", dir.display())),
    })?;
    String::from_utf8(value).with_context(|| format!("attribute {name} of {} is not text", dir.display()))
}

#[cfg(test)]
#[path = "mounts_tests.rs"]
mod tests;
