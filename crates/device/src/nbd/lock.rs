//! Who writes to an export, among the processes of this host.
//!
//! The lock is a name in the kernel's abstract socket namespace: taken by binding it, given back
//! when the process ends in whatever way, no file to clean up. It is seen in this network
//! namespace, and any local user can take a name to keep others out, as with any lock in a place
//! that all may enter.

use crate::location::{NbdAddress, NbdUri};
use kedge_base::{Error, Result};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use std::path::Path;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(20);

pub struct Lock(#[allow(dead_code)] OwnedFd);

/// For a writer: the lock. For a reader: nothing, if no writer has it.
pub fn take(uri: &NbdUri, read_only: bool, wait: Duration) -> Result<Option<Lock>> {
    let mut pauses = wait.as_millis().div_ceil(PAUSE.as_millis());
    loop {
        match try_take(uri) {
            Ok(lock) => return Ok((!read_only).then_some(lock)),
            Err(Error::Busy(_)) if pauses > 0 => pauses -= 1,
            Err(e) => return Err(e),
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether no process of this host writes to the export.
pub fn is_unlocked(uri: &NbdUri) -> Result<bool> {
    match try_take(uri) {
        Ok(_) => Ok(true),
        Err(Error::Busy(_)) => Ok(false),
        Err(e) => Err(e),
    }
}

fn try_take(uri: &NbdUri) -> Result<Lock> {
    let failed = |e: Errno| Error::invalid(format!("cannot lock {uri}: {}", std::io::Error::from(e)));
    let name = SocketAddrUnix::new_abstract_name(name(uri).as_bytes()).map_err(failed)?;
    let fd =
        socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map_err(failed)?;
    match bind(&fd, &name) {
        Ok(()) => Ok(Lock(fd)),
        Err(Errno::ADDRINUSE) => Err(Error::Busy(uri.to_string().into())),
        Err(e) => Err(failed(e)),
    }
}

/// Short enough for the kernel, the same for all ways to write a URI of the export. Two exports
/// whose hashes collide keep each other out, which harms nobody's data.
fn name(uri: &NbdUri) -> String {
    let place = match &uri.address {
        NbdAddress::Tcp { host, port } => format!("tcp {host} {port}"),
        NbdAddress::Unix { socket } => {
            let known = Path::canonicalize(socket).unwrap_or_else(|_| socket.clone());
            format!("unix {}", known.display())
        }
    };
    let text = format!("{place} {}", uri.export);
    // FNV-1a, with two offsets.
    let hash = |offset: u64| {
        text.bytes().fold(offset, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    format!("kedgefs-nbd-{:016x}{:016x}", hash(0xcbf2_9ce4_8422_2325), hash(0x6c62_272e_07bb_0142))
}
