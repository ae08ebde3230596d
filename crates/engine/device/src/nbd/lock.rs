//! The lock of an export: excludes concurrent writers and readers among the processes of this host.
//!
//! The lock is a name in the kernel's abstract socket namespace. Binding a socket takes the name,
//! the end of the process releases it in all cases, and there is no file to clean up. The name is
//! visible in this network namespace only. Any local user can take the name to keep others out, as
//! with any lock in a directory that everyone may write to.
//!
//! A writer takes the export's writer name. Each reader holds one of a few other names while it
//! reads, because a writer that starts later would change the image during the reads. Each side
//! takes its own name first and then checks the names of the other side, so that of a reader and a
//! writer that start at the same time at least one sees the other. The check is a connect, which
//! excludes no process.

use crate::location::{NbdAddress, NbdUri};
use kedge_base::Error;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with};
use std::path::Path;
use std::time::Duration;

type Result<T, E = Error> = std::result::Result<T, E>;

const PAUSE: Duration = Duration::from_millis(20);

/// Maximum number of readers of one export on a host.
const READERS: usize = 32;

pub struct Lock(#[allow(dead_code)] OwnedFd);

/// Takes the lock of a writer, which excludes all others, or of a reader, which excludes writers.
pub fn take(uri: &NbdUri, read_only: bool, wait: Duration) -> Result<Lock> {
    let mut pauses = wait.as_millis().div_ceil(PAUSE.as_millis());
    loop {
        match if read_only { take_to_read(uri) } else { take_to_write(uri) } {
            Ok(lock) => return Ok(lock),
            Err(Error::Busy(_)) if pauses > 0 => pauses -= 1,
            Err(e) => return Err(e),
        }
        kedge_base::pause(PAUSE);
    }
}

/// Returns whether no process of this host writes to the export.
pub fn is_unlocked(uri: &NbdUri) -> Result<bool> {
    let names = Names::of(uri);
    Names::is_free(&names.writer()).map_err(|e| failed(uri, e))
}

fn take_to_write(uri: &NbdUri) -> Result<Lock> {
    let names = Names::of(uri);
    let Some(lock) = Names::take(&names.writer()).map_err(|e| failed(uri, e))? else { return Err(busy(uri)) };
    for n in 0..READERS {
        if !Names::is_free(&names.reader(n)).map_err(|e| failed(uri, e))? {
            return Err(busy(uri));
        }
    }
    Ok(lock)
}

fn take_to_read(uri: &NbdUri) -> Result<Lock> {
    let names = Names::of(uri);
    for n in 0..READERS {
        let Some(lock) = Names::take(&names.reader(n)).map_err(|e| failed(uri, e))? else { continue };
        return match Names::is_free(&names.writer()).map_err(|e| failed(uri, e))? {
            true => Ok(lock),
            false => Err(busy(uri)),
        };
    }
    Err(busy(uri))
}

fn busy(uri: &NbdUri) -> Error {
    Error::Busy(uri.to_string().into())
}

fn failed(uri: &NbdUri, e: Errno) -> Error {
    Error::invalid(format!("cannot lock {uri}: {}", std::io::Error::from(e)))
}

/// The socket names of an export.
struct Names(String);

impl Names {
    fn of(uri: &NbdUri) -> Names {
        Names(name(uri))
    }

    fn writer(&self) -> String {
        self.0.clone()
    }

    fn reader(&self, n: usize) -> String {
        format!("{}-reads-{n}", self.0)
    }

    /// Takes a name. Returns `None` if another process has it.
    fn take(name: &str) -> Result<Option<Lock>, Errno> {
        let fd = socket()?;
        match bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
            Ok(()) => Ok(Some(Lock(fd))),
            Err(Errno::ADDRINUSE) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn is_free(name: &str) -> Result<bool, Errno> {
        match connect(&socket()?, &SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
            Ok(()) => Ok(false),
            Err(Errno::CONNREFUSED) => Ok(true),
            // A socket of another type has the name, or a socket that takes no messages from other
            // users.
            Err(Errno::PROTOTYPE | Errno::PERM | Errno::ACCESS) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

/// Returns a name that is short enough for the kernel, and equal for all URIs of the export. Two
/// exports whose hashes collide exclude each other, which cannot harm data.
fn name(uri: &NbdUri) -> String {
    let place = match &uri.address {
        NbdAddress::Tcp { host, port } => format!("tcp {host} {port}"),
        NbdAddress::Unix { socket } => {
            let known = Path::canonicalize(socket).unwrap_or_else(|_| socket.clone());
            format!("unix {}", known.display())
        }
    };
    let text = format!("{place} {}", uri.export);
    // FNV-1a with two different offset values.
    let hash = |offset: u64| {
        text.bytes().fold(offset, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    format!("kedgefs-nbd-{:016x}{:016x}", hash(0xcbf2_9ce4_8422_2325), hash(0x6c62_272e_07bb_0142))
}
