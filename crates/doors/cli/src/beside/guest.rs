//! Who sends an archive, where to, and what may be in it.
//!
//! The directory is closed when its mount has been looked at: a copy in progress does not keep the
//! mount from being ended by force, which ends the copy.
//!
//! # What the thread holds
//! Nothing. Looking at the directory may send a request to this process's own workers, as the
//! kernel checks the user's rights.

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

/// What an archive of root's can hold needs, each thing one of them, if it is made through the
/// kernel: owners, modes, set-id bits, devices, attributes, and files in any directory.
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
    /// Whose the files are; `None`: as the archive says.
    pub only: Option<Owner>,
    /// Its view of the file system honours no set-id bits.
    pub nosuid: bool,
    /// ... and no devices.
    pub nodev: bool,
}

/// Identifies the peer that has connected to the process that serves the file system with this
/// number (`major:minor`), and whether that client may fill the directory that it sends.
pub fn admit(stream: &UnixStream, device: &str) -> Result<Guest> {
    let dir = receive(stream)?;
    let peer = Peer::of(stream).context("find out who is at the other end")?;
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

/// The first line, and the directory that comes with it.
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
    ensure!(!got.flags.contains(ReturnFlags::CTRUNC), "more than one descriptor came");
    stream.set_read_timeout(None)?;
    dirs.pop().context("no directory came with the first line")
}

/// Whether changes through this mount are changes of the file system with this number, as they
/// are.
fn check_mount(mount: &MountEntry, device: &str) -> Result<()> {
    ensure!(mount.is_kedgefs() && mount.device == device, "the directory is on another file system");
    ensure!(!mount.is_read_only(), "{}: mounted read-only", mount.dir.display());
    ensure!(!mount.is_idmapped(), "{}: the mount maps user and group ids", mount.dir.display());
    Ok(())
}

/// The inode of an open directory of the file system with this number. The kernel knows it without
/// asking the file system.
fn inode(dir: &OwnedFd, device: &str) -> Result<Ino> {
    let flags = fcntl_getfl(dir).context("look at the directory")?;
    ensure!(!flags.contains(OFlags::PATH), "the directory is not open for reading");
    let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(dir, "", at, StatxFlags::MNT_ID).context("look at the directory")?;
    let there = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
    let is_dir = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
    ensure!(is_dir && there == device, "what came with the first line is no directory of this mount");
    Ok(Ino(stat.stx_ino))
}
