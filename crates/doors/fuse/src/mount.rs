//! Makes mounts.
//!
//! The kernel treats two kinds of mounts differently:
//! - **Privileged**: `fuseblk` on a block device: the image itself if it is a block device,
//!   otherwise a loop device attached to the image. sync(2) and syncfs(2) reach the server, and
//!   umount(2) returns only when the server has closed the file system. The loop device only
//!   identifies the mount: the file system does all IO on the image itself. The kernel never writes
//!   through the loop device, so the device is never dirty. It is detached when the mount ends
//!   (autoclear).
//! - **Plain**: `fuse`, for any user. Root mounts it directly, other users through the set-user-id
//!   helper fusermount3. sync(2) does not reach the server, and umount(2) returns before the server
//!   has closed the file system.
//!
//! Root gets a privileged mount if possible, otherwise a plain mount: a container may have no loop
//! device, and in a user namespace the kernel accepts no block device at all.

use crate::courier::Courier;
use crate::devfuse::DevFuse;
use crate::limits::raise_limits;
use crate::mount_error::MountError;
use crate::mountinfo::{self, SUBTYPE};
use crate::options::{FuseOptions, TransportKind};
use crate::session::MountedSession;
use crate::unmount::{self, MountPoint};
use crate::uring::{self, OverUring};
use crate::{abi, helper, loopdev, sys};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Mounts `image` on the directory `dir`. Accesses to the mount wait until [`MountedSession::run`]
/// is called.
pub fn mount(image: &Path, dir: &Path, options: &FuseOptions) -> Result<MountedSession, MountError> {
    check_transport(options)?;
    let (fd, mount) = make(image, dir, options)?;
    session(fd, mount, options)
}

/// Like [`mount`], for a keeper, which passes the connection to one server after another
/// ([`MountedSession::kept`]).
pub fn make_for_keeper(
    image: &Path,
    dir: &Path,
    options: &FuseOptions,
) -> Result<(OwnedFd, MountPoint), MountError> {
    let (fd, mount) = make(image, dir, options)?;
    raise_limits(&mount.dir);
    Ok((fd, mount))
}

fn make(image: &Path, dir: &Path, options: &FuseOptions) -> Result<(OwnedFd, MountPoint), MountError> {
    let image =
        fs::canonicalize(image).map_err(|error| MountError::Image { image: image.to_owned(), error })?;
    // Checked before the mount point is accessed: it may be a mount of this image that is not
    // served yet. Read-only mounts may share an image file, but the kernel has at most one file
    // system of this type on a block device.
    let shared = options.read_only && image.is_file();
    let in_the_way = |entry: &mountinfo::MountEntry| entry.is_kedgefs() && !(shared && entry.is_read_only());
    if let Some(taken) = mountinfo::mounts_of(&image).into_iter().find(in_the_way) {
        return Err(MountError::AlreadyMounted { image, dir: taken.dir });
    }
    let dir = check_mount_point(dir)?;
    let root = rustix::process::geteuid().is_root();
    let mut why_plain = None;
    let by_block_device = match options.privileged {
        Some(true) if !root => return Err(MountError::NotRoot),
        Some(true) => Some(mount_privileged(&image, &dir, options)?),
        None if root => match mount_privileged(&image, &dir, options) {
            Ok(mounted) => Some(mounted),
            Err(e) if is_not_for_us(&e) => {
                why_plain = Some(e.to_string());
                None
            }
            Err(e) => return Err(e),
        },
        _ => None,
    };
    let privileged = by_block_device.is_some();
    let (fd, source) = match by_block_device {
        Some(mounted) => mounted,
        None => mount_plain(&image, &dir, options, root)?,
    };
    let mount = MountPoint { image, device: mountinfo::device_of(&dir), dir, source, privileged, why_plain };
    Ok((fd, mount))
}

/// Like [`mount`], for an image that is not in a file of this machine. `name` is the source that
/// the mount table shows. The caller must hold a lock on the image.
pub fn mount_remote(name: &Path, dir: &Path, options: &FuseOptions) -> Result<MountedSession, MountError> {
    check_transport(options)?;
    let dir = check_mount_point(dir)?;
    let root = rustix::process::geteuid().is_root();
    if options.privileged == Some(true) {
        return Err(MountError::NoBlockDevice(name.to_owned()));
    }
    let why_plain = (root && options.privileged.is_none())
        .then(|| MountError::NoBlockDevice(name.to_owned()).to_string());
    let (fd, source) = mount_plain(name, &dir, options, root)?;
    let image = name.to_owned();
    let device = mountinfo::device_of(&dir);
    let mount = MountPoint { image, device, dir, source, privileged: false, why_plain };
    session(fd, mount, options)
}

fn session(fd: OwnedFd, mount: MountPoint, options: &FuseOptions) -> Result<MountedSession, MountError> {
    raise_limits(&mount.dir);
    let courier = options.courier.map(|word| Courier::new(word, false));
    let workers = options.worker_range();
    if options.transport == TransportKind::Dev {
        let transport = DevFuse::new(fd, workers, options.clone_channels).with(courier);
        return Ok(MountedSession::new(Arc::new(transport), mount, options.clone()));
    }
    let transport = DevFuse::stoppable(fd, workers).and_then(|device| OverUring::new(device.with(courier)));
    match transport {
        Ok(transport) => Ok(MountedSession::new(Arc::new(transport), mount, options.clone())),
        Err(e) => {
            // The mount has no server, so it is ended at once.
            unmount::unmount_as(&mount.dir, mount.privileged, true)?;
            Err(MountError::Uring(e.to_string()))
        }
    }
}

/// Whether the error means that privileged mounts are not available to this process, rather than
/// that this mount failed. In particular, a device in use must not be mounted as a plain mount.
fn is_not_for_us(e: &MountError) -> bool {
    match e {
        MountError::Loop { .. } => true,
        // The errors in a user namespace, on a kernel without block devices, and below a security
        // policy that permits `fuse` only, such as the AppArmor profile of a container. A device
        // that cannot be written also gives EACCES, but the image was opened before.
        MountError::Mount { error, .. } => {
            matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENODEV | libc::EACCES))
        }
        _ => false,
    }
}

/// Mounts the file system that is mounted at `from` on a second directory. The kernel keeps one
/// file system, which ends with the last of its mounts. Needs root and Linux 5.12.
///
/// As with a second mount of any device, only the directory decides where mounts below it are
/// propagated. A bind mount would be a peer of the mount at `from`: a mount made below one would
/// appear below the other. So the copy leaves that peer group, and gets its flags, before it is
/// attached.
pub fn mount_again(from: &Path, dir: &Path, options: &FuseOptions) -> Result<(), MountError> {
    let dir = check_mount_point(dir)?;
    let fail = |error: io::Error| MountError::Mount { source_dev: from.to_owned(), dir: dir.clone(), error };
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let copy = open_tree(CWD, from, clone).map_err(|e| fail(e.into()))?;
    let flags = [
        (options.nosuid, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (options.nodev, MountAttrFlags::MOUNT_ATTR_NODEV),
        (options.noexec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ];
    let flags =
        flags.iter().filter(|(on, _)| *on).fold(MountAttrFlags::empty(), |all, (_, flag)| all | *flag);
    sys::make_private(&copy, flags).map_err(fail)?;
    move_mount(&copy, "", CWD, &dir, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(|e| fail(e.into()))
}

fn check_transport(options: &FuseOptions) -> Result<(), MountError> {
    let why_not = (options.transport == TransportKind::IoUring).then(uring::why_not).flatten();
    why_not.map_or(Ok(()), |why| Err(MountError::Uring(why)))
}

fn check_mount_point(dir: &Path) -> Result<PathBuf, MountError> {
    let fail = |error: io::Error| match error.raw_os_error() {
        Some(libc::ENOENT) => MountError::NoMountPoint(dir.to_owned()),
        Some(libc::ENOTDIR) => MountError::NotDirectory(dir.to_owned()),
        Some(libc::ENOTCONN) => MountError::DeadMount(dir.to_owned()),
        _ => MountError::MountPoint { dir: dir.to_owned(), error },
    };
    let real = fs::canonicalize(dir).map_err(fail)?;
    if !mountinfo::asks_strangers(&real) {
        // If the server of the mount is dead, this fails with ENOTCONN.
        fs::metadata(&real).map_err(fail)?;
    }
    if is_dir(&real).map_err(|e| fail(e.into()))? { Ok(real) } else { Err(MountError::NotDirectory(real)) }
}

/// Whether a path is a directory. Sends no request to the server of a mount there, because a
/// hanging server would block this process.
pub fn is_dir(path: &Path) -> Result<bool, Errno> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = statx(CWD, path, flags, StatxFlags::TYPE)?;
    Ok(FileType::from_raw_mode(found.stx_mode.into()).is_dir())
}

fn mount_privileged(
    image: &Path,
    dir: &Path,
    options: &FuseOptions,
) -> Result<(OwnedFd, PathBuf), MountError> {
    let fd = sys::open_fuse().map_err(MountError::NoFuseDevice)?;
    let image_error = |error| MountError::Image { image: image.to_owned(), error };
    // The loop device must stay open until the mount holds it: the device is detached when its last
    // user closes it.
    let (source, _loop_device) = if fs::metadata(image).map_err(image_error)?.file_type().is_block_device() {
        (image.to_owned(), None)
    } else {
        let (path, file) = loopdev::attach(image, options.read_only)
            .map_err(|error| MountError::Loop { image: image.to_owned(), error })?;
        (path, Some(file))
    };
    let others = options.allow_other.unwrap_or(true);
    mount_fd(&fd, &source, dir, "fuseblk", others, options)?;
    Ok((fd, source))
}

/// Calls mount(2) for the connection of `fd`.
fn mount_fd(
    fd: &OwnedFd,
    source: &Path,
    dir: &Path,
    kind: &str,
    allow_other: bool,
    options: &FuseOptions,
) -> Result<(), MountError> {
    let mut data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,max_read={}",
        fd.as_raw_fd(),
        abi::MAX_IO
    );
    if kind == "fuseblk" {
        data.push_str(",blksize=4096");
    }
    if allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).expect("no option holds a NUL");
    let mut flags = MountFlags::empty();
    for (option, flag) in [
        (options.read_only, MountFlags::RDONLY),
        (options.nosuid, MountFlags::NOSUID),
        (options.nodev, MountFlags::NODEV),
        (options.noexec, MountFlags::NOEXEC),
        (options.noatime, MountFlags::NOATIME),
    ] {
        flags.set(flag, option);
    }
    rustix::mount::mount(source, dir, format!("{kind}.{SUBTYPE}"), flags, Some(data.as_c_str())).map_err(
        |e| MountError::Mount { source_dev: source.to_owned(), dir: dir.to_owned(), error: e.into() },
    )
}

/// Makes a mount of type `fuse`. Returns also the source that the mount table shows.
fn mount_plain(
    image: &Path,
    dir: &Path,
    options: &FuseOptions,
    root: bool,
) -> Result<(OwnedFd, PathBuf), MountError> {
    let source = options.fsname.as_ref().map_or_else(|| image.to_owned(), PathBuf::from);
    if root {
        let fd = sys::open_fuse().map_err(MountError::NoFuseDevice)?;
        let others = options.allow_other.unwrap_or(true);
        mount_fd(&fd, &source, dir, "fuse", others, options)?;
        return Ok((fd, source));
    }
    helper::mount(&source, dir, options).map(|fd| (fd, source))
}

#[cfg(test)]
#[path = "mount_tests.rs"]
mod tests;
