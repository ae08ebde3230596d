//! Errors of making or ending a mount.

use std::io;
use std::path::PathBuf;

/// Why a mount was not made or not ended.
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
    #[error("FUSE over io_uring cannot be used: {0}")]
    Uring(String),
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
