//! Mounts of ordinary users: the set-user-id program fusermount3 makes and ends them.

use crate::mount_error::MountError;
use crate::mountinfo::SUBTYPE;
use crate::options::FuseOptions;
use crate::{abi, sys};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};
use std::io::{self, IoSliceMut};
use std::path::Path;
use std::process::{Command, Stdio};

/// Names of the set-user-id helper; the first that exists is used.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// Makes a mount of type `fuse`.
pub(crate) fn mount(source: &Path, dir: &Path, options: &FuseOptions) -> Result<OwnedFd, MountError> {
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

/// Ends a mount. With `lazy` a mount in use is detached immediately.
pub(crate) fn unmount(dir: &Path, lazy: bool) -> Result<(), MountError> {
    let mut command = vec!["-u"];
    if lazy {
        command.push("-z");
    }
    run_helper(&command, dir, None).map_err(|e| match e {
        MountError::Helper(text) if text.contains("busy") => MountError::Busy(dir.to_owned()),
        MountError::Helper(text) if text.contains("not found in") => MountError::NotMounted(dir.to_owned()),
        e => e,
    })
}

/// The helper reports a device that it cannot open only as text. So this opens the device again to
/// get the errno.
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

/// Runs fusermount3. It sends the descriptor that it opens over `socket`, which is its standard
/// input. Any other descriptor would have to be inheritable, and then every child that another
/// thread starts at the same time would inherit it too.
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
