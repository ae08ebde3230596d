//! Finds which images are mounted where, from `/proc/self/mountinfo`.
//!
//! # What is trusted
//! With the set-user-id helper any user can mount a FUSE server of their own and let it name any
//! source. So:
//! 1. A mount on a block device is identified by the device number that the kernel reports. The
//!    image is that device, or the file whose inode a loop device is attached to. Device numbers
//!    and inodes are compared, never paths. Only root makes such mounts.
//! 2. For file systems whose device number is not that of a block device (btrfs) the source is
//!    trusted if it lies in `/dev`, because only root mounts these too.
//! 3. For a FUSE mount without a block device the source is trusted if root or the caller made the
//!    mount (`user_id`, which the kernel reports), and the source is the image's own canonical
//!    path, which contains no symlink of another user.
//! 4. All other FUSE mounts are *foreign*: nothing that they report is trusted, and no path in them
//!    is accessed. A server that does not reply would block the caller forever.
//!
//! None of this prevents two mounts of one image; the lock on the image does. This module finds the
//! mount that holds the lock.

use crate::loopdev;
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, StatxFlags, major, minor, statx};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The subtype of a mount of KedgeFS.
pub(crate) const SUBTYPE: &str = "kedgefs";

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The kernel's id of this mount.
    pub id: u64,
    /// `major:minor` of the file system.
    pub device: String,
    /// The path, within the file system, of the mounted directory: `/`, or that of a subdirectory.
    pub root: PathBuf,
    pub dir: PathBuf,
    /// File system type, with the subtype after a dot.
    pub kind: String,
    pub source: PathBuf,
    /// The user who made a FUSE mount.
    pub owner: Option<u32>,
    /// Options of this mount: `rw`, `nosuid`, `relatime`.
    pub options: String,
    /// Options of the file system: `ro`, `user_id=0`.
    pub super_options: String,
}

impl MountEntry {
    /// Whether `word` is among the options of the mount or of the file system, which mount(8)
    /// repeats in a remount.
    pub fn has_option(&self, word: &str) -> bool {
        self.options.split(',').chain(self.super_options.split(',')).any(|option| option == word)
    }

    /// Whether nothing can be changed through this mount.
    pub fn is_read_only(&self) -> bool {
        self.has_option("ro")
    }

    /// Whether this mount maps user and group ids (an idmapped mount).
    pub fn is_idmapped(&self) -> bool {
        self.has_option("idmapped")
    }

    /// Whether this is a mount of KedgeFS.
    pub fn is_kedgefs(&self) -> bool {
        matches!(self.kind.split_once('.'), Some(("fuseblk" | "fuse", SUBTYPE)))
    }

    /// Whether this is a FUSE mount that neither root nor the caller made.
    pub fn is_foreign(&self) -> bool {
        let plain = self.kind == "fuse" || self.kind.starts_with("fuse.");
        plain && !self.owner.is_some_and(|owner| owner == 0 || owner == rustix::process::geteuid().as_raw())
    }

    /// Whether this is a mount of the image with this canonical path and these attributes, by the
    /// rules in the module head.
    fn holds(&self, image: &Path, meta: &std::fs::Metadata) -> bool {
        if self.kind == "fuse" || self.kind.starts_with("fuse.") {
            return self.is_kedgefs() && !self.is_foreign() && self.source == image;
        }
        let mut devices: Vec<String> = vec![self.device.clone()];
        if self.source.starts_with("/dev")
            && let Ok(source) = std::fs::metadata(&self.source)
            && source.file_type().is_block_device()
        {
            devices.push(format!("{}:{}", major(source.rdev()), minor(source.rdev())));
        }
        let itself = meta.file_type().is_block_device();
        let itself = itself.then(|| format!("{}:{}", major(meta.rdev()), minor(meta.rdev())));
        devices.iter().any(|device| itself.as_ref() == Some(device) || loopdev::backs(device, image, meta))
    }

    /// The image that the mount's source names. Must not be trusted for a foreign mount.
    pub fn image(&self) -> PathBuf {
        loopdev::backing_file(&self.source).unwrap_or_else(|| self.source.clone())
    }
}

/// All mounts that this process sees.
pub fn mounts() -> Vec<MountEntry> {
    match std::fs::read("/proc/self/mountinfo") {
        Ok(table) => parse_table(&table).collect(),
        Err(e) => {
            tracing::warn!("/proc/self/mountinfo: {e}");
            Vec::new()
        }
    }
}

/// The trusted mounts of an image, by any file system.
pub fn mounts_of(image: &Path) -> Vec<MountEntry> {
    let Ok(image) = image.canonicalize() else { return Vec::new() };
    let Ok(meta) = std::fs::metadata(&image) else { return Vec::new() };
    mounts().into_iter().filter(|entry| entry.holds(&image, &meta)).collect()
}

/// `major:minor` of the file system that is mounted on a directory.
pub(crate) fn device_of(dir: &Path) -> Option<String> {
    mount_at(dir).map(|entry| entry.device)
}

/// The mount through which an open file is reached; `None` if that mount is outside this process's
/// root, so that the table lacks it.
pub fn mount_of(file: impl AsFd) -> io::Result<Option<MountEntry>> {
    let id = id_of(file)?;
    Ok(mounts().into_iter().find(|entry| entry.id == id))
}

/// The kernel's id of the mount through which an open file is reached. Sends no request to the file
/// system.
pub(crate) fn id_of(file: impl AsFd) -> io::Result<u64> {
    let found = statx(file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID)?;
    if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(found.stx_mnt_id)
}

/// The lines of a mount table.
pub(crate) fn parse_table(table: &[u8]) -> impl Iterator<Item = MountEntry> {
    table.split(|&b| b == b'\n').filter_map(parse)
}

/// The other mounts of a mount's file system in this process's namespace.
pub fn other_mounts(mount: &MountEntry) -> Vec<MountEntry> {
    mounts().into_iter().filter(|other| other.device == mount.device && other.dir != mount.dir).collect()
}

/// The mounts of a KedgeFS file system that this process sees. The file system is found by its
/// device number; if that is not known, by the image's canonical path.
pub(crate) fn mounts_by(device: Option<&str>, image: &Path) -> Vec<MountEntry> {
    let is_this = |entry: &MountEntry| match device {
        Some(device) => entry.device == device,
        None => entry.image() == image,
    };
    mounts().into_iter().filter(|entry| entry.is_kedgefs() && is_this(entry)).collect()
}

/// Whether a lookup of `dir`, an absolute path, could reach the server of a foreign mount.
pub fn asks_strangers(dir: &Path) -> bool {
    mounts().iter().any(|entry| entry.is_foreign() && dir.starts_with(&entry.dir))
}

/// The topmost mount on a directory, named by its canonical path.
pub fn mount_at(dir: &Path) -> Option<MountEntry> {
    mounts().into_iter().rfind(|entry| entry.dir == dir)
}

/// `id parent major:minor root dir options [tags...] - type source superoptions`
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = fields.nth(1)?;
    let root = fields.next()?;
    let dir = fields.next()?;
    let options = fields.next()?;
    let mut after_dash = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = after_dash.next()?;
    let source = after_dash.next()?;
    let super_options = after_dash.next().unwrap_or_default();
    let owner = super_options.split(|&b| b == b',').find_map(|option| option.strip_prefix(b"user_id="));
    let owner = owner.and_then(|id| std::str::from_utf8(id).ok()?.parse().ok());
    Some(MountEntry {
        id,
        device: String::from_utf8_lossy(device).into_owned(),
        root: path(root),
        dir: path(dir),
        kind: String::from_utf8_lossy(kind).into_owned(),
        source: path(source),
        owner,
        options: String::from_utf8_lossy(options).into_owned(),
        super_options: String::from_utf8_lossy(super_options).into_owned(),
    })
}

/// Decodes `\ooo` escapes, which replace blanks, tabs, line ends and backslashes.
fn path(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|d| first == b'\\' && d.iter().all(|d| (b'0'..b'8').contains(d)));
        match code {
            Some(digits) => {
                bytes.push(digits.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')));
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
#[path = "mountinfo_tests.rs"]
mod tests;
