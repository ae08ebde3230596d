//! Identifies the client that sends an archive, its directory, and what the archive may contain.
//!
//! The directory's descriptor is closed as soon as its mount has been checked. So a copy in
//! progress does not block a forced unmount, which ends the copy.
//!
//! # What the thread holds
//! The thread holds no lock here: checking the directory may send a request to this process's own
//! workers, when the kernel checks the user's rights.

use super::{HELLO, PATIENCE};
use anyhow::{Context, Result, bail, ensure};
use kedge_fuse::{Capability, MountEntry, Peer};
use kedgefs::{Ino, Owner};
use rustix::fd::OwnedFd;
use rustix::fs::{Access, AtFlags, FileType, OFlags, StatxFlags, accessat, fcntl_getfl, statx};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

/// The capabilities that the kernel would demand for the contents of root's archives: owners,
/// modes, set-id bits, devices, attributes, and files in any directory.
const ROOTS: [Capability; 7] = [
    Capability::SysAdmin,
    Capability::Chown,
    Capability::DacOverride,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Mknod,
    Capability::Setfcap,
];

/// A client that may fill a directory.
pub struct Guest {
    pub top: Ino,
    /// The owner of all files; `None` takes the owners in the archive.
    pub only: Option<Owner>,
    /// The client's mount honours no set-id bits.
    pub nosuid: bool,
    /// The client's mount honours no devices.
    pub nodev: bool,
}

/// Identifies the connected peer and checks that it may fill the directory that it sends, which
/// must be on the file system with the number `device` (`major:minor`).
pub fn admit(stream: &UnixStream, device: &str) -> Result<Guest> {
    let dir = receive(stream)?;
    let peer = Peer::of(stream).context("identify the client")?;
    let (uid, gid) = peer.ids();
    let only = match peer.is_capable(&ROOTS) {
        true => None,
        false if peer.is_own_user() => Some(Owner { uid, gid }),
        false => bail!(
            "only root with its capabilities, in the namespaces of the serving process, and the user who \
             serves the mount copy this way; use cp(1) or tar(1)"
        ),
    };
    let mount = peer.mount_of(&dir).context("find the mount of the directory")?;
    let mount = mount.context("the mount of the directory is not in the mount table of the client")?;
    check_mount(&mount, device)?;
    let top = inode(&dir, device)?;
    if only.is_some() {
        let asked = accessat(&dir, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
        asked.context("write to the directory")?;
    }
    let (nosuid, nodev) = (mount.has_option("nosuid"), mount.has_option("nodev"));
    Ok(Guest { top, only, nosuid, nodev })
}

/// Receives the first line and the directory's descriptor.
fn receive(stream: &UnixStream) -> Result<OwnedFd> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = [0; HELLO.len() + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(stream, &mut [IoSliceMut::new(&mut line)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .context("read the first line")?;
    let dirs = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let mut dirs: Vec<OwnedFd> = dirs.flatten().collect();
    let text = &line[..got.bytes];
    let shown = String::from_utf8_lossy(text);
    ensure!(text == HELLO, "the program speaks another version of the protocol: {:?}", shown.trim_end());
    ensure!(!got.flags.contains(ReturnFlags::CTRUNC), "more than one descriptor was sent");
    stream.set_read_timeout(None)?;
    dirs.pop().context("no directory was sent with the first line")
}

/// Checks that the mount is of the file system with the number `device` and passes changes on
/// unmodified: neither read-only nor idmapped.
fn check_mount(mount: &MountEntry, device: &str) -> Result<()> {
    ensure!(mount.is_kedgefs() && mount.device == device, "the directory is on another file system");
    ensure!(!mount.is_read_only(), "{}: mounted read-only", mount.dir.display());
    ensure!(!mount.is_idmapped(), "{}: the mount maps user and group ids", mount.dir.display());
    Ok(())
}

/// The inode of an open directory of the file system with the number `device`. The kernel returns
/// it without a request to the file system.
fn inode(dir: &OwnedFd, device: &str) -> Result<Ino> {
    let flags = fcntl_getfl(dir).context("read the flags of the directory")?;
    ensure!(!flags.contains(OFlags::PATH), "the directory is not open for reading");
    let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(dir, "", at, StatxFlags::MNT_ID).context("read the mount id of the directory")?;
    let there = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
    let is_dir = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
    ensure!(
        is_dir && there == device,
        "the descriptor sent with the first line is no directory of this mount"
    );
    Ok(Ino(stat.stx_ino))
}
