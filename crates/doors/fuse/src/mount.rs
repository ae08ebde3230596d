//! Makes and ends mounts.
//!
//! The kernel treats two kinds of mounts differently:
//! - **Privileged**: `fuseblk` on a block device: the image itself if it is a block device, else a
//!   loop device attached to the image. sync(2) and syncfs(2) reach the server, and umount(2)
//!   returns only when the server has closed the file system. The loop device only identifies the
//!   mount: the file system does all IO on the image itself. The kernel never writes through the
//!   loop device, so the device is never dirty. It is detached with the mount (autoclear).
//! - **Plain**: `fuse`, for any user. Root mounts it directly, other users through the set-user-id
//!   helper fusermount3. sync(2) does not reach the server, and umount(2) returns before the server
//!   has closed the file system.
//!
//! Root gets a privileged mount if possible, else a plain mount: a container may have no loop
//! device, and in a user namespace the kernel accepts no block device at all.

use crate::beside::Changes;
use crate::devfuse::DevFuse;
use crate::mountinfo;
use crate::options::FuseOptions;
use crate::session::{MountPoint, MountedSession};
use crate::sys;
use crate::{abi, loopdev};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{
    MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};
use std::ffi::CString;
use std::fs;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const SUBTYPE: &str = "kedgefs";
/// Names of the set-user-id helper; the first that exists is used.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// The reason why a mount was not made or not ended.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("/dev/fuse cannot be opened ({0}): {advice}", advice = fuse_advice(.0))]
    NoFuseDevice(io::Error),
    #[error("mount point {} does not exist", .0.display())]
    NoMountPoint(PathBuf),
    #[error("mount point {} is not a directory", .0.display())]
    NotDirectory(PathBuf),
    #[error("mount point {} holds a mount whose server has died; unmount it first", .0.display())]
    DeadMount(PathBuf),
    #[error("{} cannot be used as a mount point: {error}", dir.display())]
    MountPoint { dir: PathBuf, error: io::Error },
    #[error("{} cannot be opened: {error}", image.display())]
    Image { image: PathBuf, error: io::Error },
    #[error("{} is already mounted on {}", image.display(), dir.display())]
    AlreadyMounted { image: PathBuf, dir: PathBuf },
    #[error("a privileged mount needs root")]
    NotRoot,
    #[error("{} is kept by another machine and has no block device here", .0.display())]
    NoBlockDevice(PathBuf),
    #[error("no loop device for {}: {error}", image.display())]
    Loop { image: PathBuf, error: io::Error },
    #[error("{} cannot be mounted on {}: {error}", source_dev.display(), dir.display())]
    Mount { source_dev: PathBuf, dir: PathBuf, error: io::Error },
    #[error("neither fusermount3 nor fusermount was found; mount as root or install fuse3")]
    NoHelper,
    #[error("fusermount3: {0}")]
    Helper(String),
    #[error("{} is not mounted", .0.display())]
    NotMounted(PathBuf),
    #[error("{} is in use", .0.display())]
    Busy(PathBuf),
    #[error("{} cannot be unmounted: {error}", dir.display())]
    Unmount { dir: PathBuf, error: io::Error },
}

/// Advice for a user who cannot open `/dev/fuse`. The errno shows the cause: EACCES the file's mode
/// or a `nodev` mount, EPERM the device rules of a control group.
fn fuse_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            "`modprobe fuse` loads the kernel's module; a container gets the device from its host \
             (docker run --device /dev/fuse --cap-add SYS_ADMIN)"
        }
        Some(libc::EPERM) => {
            "the device rules of this container or service refuse it; docker run --device /dev/fuse allows \
             it, or DeviceAllow=/dev/fuse in a unit of systemd"
        }
        Some(libc::EACCES) => {
            "`ls -l /dev/fuse` shows its mode and group: join the group, or chmod 666 as udev does; in a \
             container its file system may be mounted with nodev (docker run --device /dev/fuse)"
        }
        _ => "is the kernel's FUSE module loaded?",
    }
}

/// Mounts `image` on the directory `dir`. Accesses to the mount wait until [`MountedSession::run`]
/// is called.
pub fn mount(image: &Path, dir: &Path, options: &FuseOptions) -> Result<MountedSession, MountError> {
    let image =
        fs::canonicalize(image).map_err(|error| MountError::Image { image: image.to_owned(), error })?;
    // Check this before the mount point is accessed: the mount point may be that of this image,
    // which is not served yet. Read-only mounts may share an image file, but for a block device the
    // kernel has at most one file system of this type.
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
    Ok(session(fd, mount, options))
}

/// As [`mount`], for an image that is not in a file of this machine. `name` is the source that the
/// mount table shows. The caller must hold a lock on the image.
pub fn mount_remote(name: &Path, dir: &Path, options: &FuseOptions) -> Result<MountedSession, MountError> {
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
    Ok(session(fd, MountPoint { image, device, dir, source, privileged: false, why_plain }, options))
}

fn session(fd: OwnedFd, mount: MountPoint, options: &FuseOptions) -> MountedSession {
    raise_limits(&mount.dir);
    let transport = DevFuse::new(fd, options.worker_count(), options.clone_channels);
    MountedSession {
        transport: Some(Arc::new(transport)),
        options: options.clone(),
        mount,
        visits: None,
        changes: Changes::default(),
        device_requests: None,
    }
}

/// Whether the error means that privileged mounts are not available here, and not that this mount
/// failed. In particular, a device that is in use must not be mounted as a plain mount.
fn is_not_for_us(e: &MountError) -> bool {
    match e {
        MountError::Loop { .. } => true,
        // The errors in a user namespace, and on a kernel without block devices.
        MountError::Mount { error, .. } => {
            matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENODEV))
        }
        _ => false,
    }
}

/// Ends the mount on `dir`. With `lazy` a mount in use is detached immediately and ends with its
/// last user.
pub fn unmount(dir: &Path, lazy: bool) -> Result<(), MountError> {
    unmount_as(dir, rustix::process::geteuid().is_root(), lazy)
}

pub(crate) fn unmount_as(dir: &Path, privileged: bool, lazy: bool) -> Result<(), MountError> {
    if !privileged && !rustix::process::geteuid().is_root() {
        let mut command = vec!["-u"];
        if lazy {
            command.push("-z");
        }
        return run_helper(&command, dir, None).map_err(|e| match e {
            MountError::Helper(text) if text.contains("busy") => MountError::Busy(dir.to_owned()),
            MountError::Helper(text) if text.contains("not found in") => {
                MountError::NotMounted(dir.to_owned())
            }
            e => e,
        });
    }
    let flags = UnmountFlags::NOFOLLOW | if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    rustix::mount::unmount(dir, flags).map_err(|e| match e {
        Errno::BUSY => MountError::Busy(dir.to_owned()),
        Errno::INVAL | Errno::NOENT => MountError::NotMounted(dir.to_owned()),
        e => MountError::Unmount { dir: dir.to_owned(), error: e.into() },
    })
}

/// Mounts the file system that is mounted at `from` on a second directory. The kernel keeps one
/// file system, which ends with the last of its mounts. Needs root and Linux 5.12.
///
/// As with a second mount of any device, only the directory decides what is propagated. A bind
/// mount would be a peer of the mount at `from`: a mount made below one would appear below the
/// other. So the copy leaves that peer group, and gets its flags, before it is attached.
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

fn check_mount_point(dir: &Path) -> Result<PathBuf, MountError> {
    let fail = |error: io::Error| match error.raw_os_error() {
        Some(libc::ENOENT) => MountError::NoMountPoint(dir.to_owned()),
        Some(libc::ENOTDIR) => MountError::NotDirectory(dir.to_owned()),
        Some(libc::ENOTCONN) => MountError::DeadMount(dir.to_owned()),
        _ => MountError::MountPoint { dir: dir.to_owned(), error },
    };
    let real = fs::canonicalize(dir).map_err(fail)?;
    if !mountinfo::asks_strangers(&real) {
        // A mount whose server is dead is recognised by this error.
        fs::metadata(&real).map_err(fail)?;
    }
    if is_dir(&real).map_err(|e| fail(e.into()))? { Ok(real) } else { Err(MountError::NotDirectory(real)) }
}

/// Whether a path is a directory. Sends no request to the server of a mount there, because a server
/// that hangs would block this process.
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
    // The loop device must stay open until the mount holds it, because it is detached with its last
    // user.
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
        rustix::fd::AsRawFd::as_raw_fd(fd),
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

/// Makes a mount of type `fuse`. Also returns the source that the mount table shows.
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
    mount_by_helper(&source, dir, options).map(|fd| (fd, source))
}

fn mount_by_helper(source: &Path, dir: &Path, options: &FuseOptions) -> Result<OwnedFd, MountError> {
    let fsname = source.to_string_lossy();
    let mut opts = format!(
        "fsname={},subtype={SUBTYPE},default_permissions,max_read={}",
        fsname.replace('\\', "\\\\").replace(',', "\\,"),
        abi::MAX_IO
    );
    for (option, name) in [
        (options.allow_other.unwrap_or(false), ",allow_other"),
        (options.read_only, ",ro"),
        (options.nosuid, ",nosuid"),
        (options.nodev, ",nodev"),
        (options.noexec, ",noexec"),
        (options.noatime, ",noatime"),
    ] {
        if option {
            opts.push_str(name);
        }
    }
    let helper_error = |e: Errno| MountError::Helper(e.to_string());
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(helper_error)?;
    run_helper(&["-o", &opts], dir, Some(theirs)).map_err(without_device)?;
    receive_fd(&ours)
}

/// The helper reports a device that it cannot open only in words, so the open is tried again here
/// for its errno.
fn without_device(e: MountError) -> MountError {
    match &e {
        MountError::Helper(text) if text.contains("/dev/fuse") || text.contains("fuse device") => {
            match sys::open_fuse() {
                Err(why) => MountError::NoFuseDevice(why),
                Ok(_) => e,
            }
        }
        _ => e,
    }
}

/// Runs fusermount3. It sends the descriptor that it opens over `socket`, which it gets as its
/// standard input: any other descriptor would have to be inheritable, and every child that another
/// thread starts meanwhile would inherit it too.
fn run_helper(args: &[&str], dir: &Path, socket: Option<OwnedFd>) -> Result<(), MountError> {
    for helper in HELPERS {
        let mut command = Command::new(helper);
        command.args(args).arg("--").arg(dir).stdout(Stdio::null()).stderr(Stdio::piped());
        match &socket {
            Some(socket) => {
                let socket = socket.try_clone().map_err(|e| MountError::Helper(e.to_string()))?;
                command.env("_FUSE_COMMFD", "0").stdin(Stdio::from(socket))
            }
            None => command.stdin(Stdio::null()),
        };
        return match command.output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                let text = text.trim().trim_start_matches(helper).trim_start_matches(": ");
                Err(MountError::Helper(if text.is_empty() {
                    output.status.to_string()
                } else {
                    text.to_owned()
                }))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => Err(MountError::Helper(e.to_string())),
        };
    }
    Err(MountError::NoHelper)
}

fn receive_fd(socket: &OwnedFd) -> Result<OwnedFd, MountError> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    // The helper has ended, so its message has arrived or was never sent.
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)
        .map_err(|e| MountError::Helper(format!("sent no descriptor: {e}")))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message
            && let Some(fd) = fds.next()
        {
            return Ok(fd);
        }
    }
    Err(MountError::Helper("sent no descriptor".to_owned()))
}

/// Lifts the kernel's strict limit on the dirty pages of an untrusted server: one per cent of the
/// pages that other file systems may dirty, which makes a stream of writes three times slower. It
/// is no error if this is not permitted or not supported. [`become_io_flusher`] makes it safe to
/// lift the limit.
///
/// Also raises the read-ahead to the size of the largest READ; the default of 128 KiB would split
/// it into eight requests. The kernel uses the smaller value of this and the server's reply to
/// INIT, so it must be set before the server runs.
fn raise_limits(dir: &Path) {
    let Some(entry) = mountinfo::mount_at(dir) else { return };
    let suffix = if entry.kind.starts_with("fuseblk") { "-fuseblk" } else { "" };
    let bdi = PathBuf::from(format!("/sys/class/bdi/{}{suffix}", entry.device));
    let ahead = (abi::MAX_IO >> 10).to_string();
    for (file, value) in [("strict_limit", "0"), ("max_ratio", "100"), ("read_ahead_kb", &ahead)] {
        if let Err(e) = fs::write(bdi.join(file), value) {
            tracing::debug!("{}: {e}", bdi.join(file).display());
        }
    }
}

/// Marks this thread, and threads that it starts from now on, as writing dirty pages
/// (PR_SET_IO_FLUSHER): their memory allocations must not wait for pages that they have to write
/// themselves. The workers of a mount do this themselves; a program that serves a mount calls it
/// before it opens the file system. It needs CAP_SYS_RESOURCE. Without that capability the kernel's
/// strict limit on dirty pages, which only root can lift, prevents the deadlock.
pub fn become_io_flusher() {
    if let Err(e) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!("not an IO flusher: {e}");
    }
}
