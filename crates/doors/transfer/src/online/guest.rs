//! Identifies a client, its directories, and what it may do with them.
//!
//! The descriptors of directories are closed as soon as their mounts have been checked. So a copy
//! in progress does not block a forced unmount, which ends the copy.
//!
//! # Locks
//! The thread holds no lock here: when the kernel checks the user's rights to the directory, it may
//! send a request to the workers of this process.

use super::{DIRS_MAX, HELLO_MAX, Hello, PATIENCE};
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

/// What an identified client may do.
pub enum Admitted {
    /// Send an archive.
    Copy(Guest),
    /// Read the trees with these roots, or the state of an interrupted transfer in the first
    /// directory.
    Read(Vec<Ino>),
    /// Make trees in this directory.
    Write(Ino),
}

/// Identifies the connected peer and checks that it may do what its first line says with the
/// directories that it sends, which must be on the file system with the number `device`
/// (`major:minor`).
pub fn admit(stream: &UnixStream, device: &str) -> Result<Admitted> {
    let (hello, dirs) = receive(stream)?;
    let peer = Peer::of(stream).context("identify the client")?;
    let (uid, gid) = peer.ids();
    let only = match peer.is_capable(&ROOTS) {
        true => None,
        false if peer.is_own_user() => Some(Owner { uid, gid }),
        false => bail!("{}", hello.refusal()),
    };
    let mut found = Vec::new();
    for dir in &dirs {
        let mount = peer.mount_of(dir).context("find the mount of the directory")?;
        let mount = mount.context("the mount of the directory is not in the mount table of the client")?;
        check_mount(&mount, device, hello != Hello::Read)?;
        found.push((inode(dir, device)?, mount));
    }
    let (top, mount) = found.first().context("no directory was sent with the first line")?;
    let (nosuid, nodev) = (mount.has_option("nosuid"), mount.has_option("nodev"));
    if only.is_some() && hello != Hello::Read {
        let asked = accessat(&dirs[0], ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
        asked.context("write to the directory")?;
    }
    Ok(match hello {
        Hello::Copy => Admitted::Copy(Guest { top: *top, only, nosuid, nodev }),
        Hello::Read => Admitted::Read(found.iter().map(|(ino, _)| *ino).collect()),
        Hello::Write => {
            // Only for mounts of root. A mount of an ordinary user is always `nosuid` and `nodev`,
            // so a received snapshot grants no rights there.
            ensure!(
                only.is_some() || !nosuid && !nodev,
                "{}: mounted nosuid or nodev, which a snapshot does not keep to",
                mount.dir.display()
            );
            Admitted::Write(*top)
        }
    })
}

/// Receives the first line and the descriptors of directories.
fn receive(stream: &UnixStream) -> Result<(Hello, Vec<OwnedFd>)> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = [0; HELLO_MAX + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DIRS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(stream, &mut [IoSliceMut::new(&mut line)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .context("read the first line")?;
    let dirs = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let dirs: Vec<OwnedFd> = dirs.flatten().collect();
    let text = &line[..got.bytes];
    let shown = String::from_utf8_lossy(text);
    let hello = Hello::parse(text).with_context(|| {
        format!("the program speaks another version of the protocol: {:?}", shown.trim_end())
    })?;
    let many = got.flags.contains(ReturnFlags::CTRUNC) || dirs.len() > hello.dirs_max();
    ensure!(!many, "too many descriptors were sent with the first line");
    stream.set_read_timeout(None)?;
    ensure!(!dirs.is_empty(), "no directory was sent with the first line");
    Ok((hello, dirs))
}

/// Checks that the mount is of the file system with the number `device` and passes changes on
/// unmodified: not idmapped, and if it is to be changed, not read-only.
fn check_mount(mount: &MountEntry, device: &str, changes: bool) -> Result<()> {
    ensure!(mount.is_kedgefs() && mount.device == device, "the directory is on another file system");
    ensure!(!changes || !mount.is_read_only(), "{}: mounted read-only", mount.dir.display());
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
