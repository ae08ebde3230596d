//! The directory for sockets, which only one user can enter, and connections to these sockets with
//! a time limit.
//!
//! # Why a directory and not abstract names
//! Any process can bind a name in the abstract space first, in the network namespace that
//! containers may share with the host, and any process can connect to it. In a directory of mode
//! 0700 only the owner (and a process with CAP_DAC_OVERRIDE over it) can make, find and connect to
//! a name. So every socket found there was made by this user or by root.
//!
//! The directory is the first usable one of these:
//! 1. `/run/kedgefs`, for root;
//! 2. `$XDG_RUNTIME_DIR/kedgefs`, unless this is a set-id program, whose environment another user
//!    controls;
//! 3. `/tmp/kedgefs-UID`.
//!
//! It is opened without following a link, and its owner and mode are checked at the descriptor. All
//! names are reached through that descriptor, so that neither a rename nor the length of the path
//! matters. A directory of another user is skipped.
//!
//! # Bounds
//! connect(2) on a Unix socket waits while the queue of the listener is full. The send timeout of
//! the socket bounds that wait too.

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, flock, fstat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fmt;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

const NAME: &str = "kedgefs";
const OTHERS: u32 = 0o077;

/// A directory that only this user can enter.
pub struct PrivateDir {
    fd: OwnedFd,
    path: PathBuf,
}

/// The paths of the directory, in the order in which they are tried.
fn candidates() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid();
    let set_id = uid != rustix::process::getuid() || rustix::process::getegid() != rustix::process::getgid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|dir| !set_id && dir.is_absolute()).map(|dir| dir.join(NAME));
    let roots = uid.is_root().then(|| Path::new("/run").join(NAME));
    let last = PathBuf::from(format!("/tmp/{NAME}-{}", uid.as_raw()));
    roots.into_iter().chain(runtime).chain([last]).collect()
}

impl PrivateDir {
    /// Opens the first usable directory. Makes the directory if it does not exist.
    pub fn make() -> io::Result<PrivateDir> {
        let mut why = None;
        for path in candidates() {
            let made = match rustix::fs::mkdir(&path, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => PrivateDir::open(path),
                Err(e) => Err(named(&path, &e.into())),
            };
            match made {
                Ok(dir) => return Ok(dir),
                Err(e) => why = Some(e),
            }
        }
        Err(why.expect("there is at least one candidate"))
    }

    /// All existing directories: a process with another environment may use another one.
    pub fn all() -> impl Iterator<Item = PrivateDir> {
        candidates().into_iter().filter_map(|path| PrivateDir::open(path).ok())
    }

    pub(crate) fn open(path: PathBuf) -> io::Result<PrivateDir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::empty()).map_err(|e| named(&path, &e.into()))?;
        let stat = fstat(&fd).map_err(|e| named(&path, &e.into()))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & OTHERS != 0 {
            let why = io::Error::new(
                io::ErrorKind::PermissionDenied,
                "must be a directory that only its owner can enter",
            );
            return Err(named(&path, &why));
        }
        Ok(PrivateDir { fd, path })
    }

    /// The path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn address(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()))
    }

    /// Listens under a name. An existing socket of that name is replaced, because a killed process
    /// leaves its socket.
    pub fn listen(self, name: &str) -> io::Result<Bound> {
        let new = format!(".{name}.{}", std::process::id());
        match unlinkat(&self.fd, &new, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        let listener = UnixListener::bind(self.address(&new))?;
        let stat = statat(&self.fd, &new, AtFlags::SYMLINK_NOFOLLOW)?;
        renameat(&self.fd, &new, &self.fd, name)?;
        Ok(Bound { dir: self, name: name.to_owned(), id: (stat.st_dev, stat.st_ino), listener, lock: None })
    }

    /// Like `listen`, for a process that must be the only one with this name. Fails with
    /// `WouldBlock` while another process listens.
    pub fn listen_alone(self, name: &str) -> io::Result<Bound> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // The lock file is never removed: a lock on a file that is removed and made again would
        // exclude no process.
        let lock = openat(&self.fd, format!("{name}.lock"), flags, Mode::RUSR | Mode::WUSR)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let mut bound = self.listen(name)?;
        bound.lock = Some(lock);
        Ok(bound)
    }

    /// Whether there is a socket with this name, even if no process listens at it.
    pub fn has(&self, name: &str) -> bool {
        let stat = statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket)
    }

    /// Connects to the socket of this name. Fails if the listener does not accept within
    /// `patience`.
    pub fn connect(&self, name: &str, patience: Duration) -> io::Result<UnixStream> {
        connect_within(&self.address(name), patience)
    }
}

/// Connects to a Unix socket. Fails if the listener does not accept within `patience`, which also
/// becomes the time limit of each read and write.
pub fn connect_within(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
    connect(&socket, &SocketAddrUnix::new(path)?).map_err(|e| match e {
        Errno::AGAIN => io::Error::new(io::ErrorKind::TimedOut, "it does not accept connections"),
        e => e.into(),
    })?;
    Ok(socket.into())
}

fn named(path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

/// A listening socket. Dropping it removes its name, unless another process has taken over the
/// name.
pub struct Bound {
    dir: PrivateDir,
    name: String,
    id: (u64, u64),
    listener: UnixListener,
    /// The lock that keeps other processes from listening under this name.
    lock: Option<OwnedFd>,
}

impl Bound {
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// The path, for messages.
    pub fn path(&self) -> PathBuf {
        self.dir.path.join(&self.name)
    }
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path().display())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Between the two calls only a process of the same user could take over the name. Its
        // mount's socket would then be removed, and the mount could be reached only through the
        // kernel.
        let there = statat(&self.dir.fd, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        if there.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.id)
            && let Err(e) = unlinkat(&self.dir.fd, &self.name, AtFlags::empty())
        {
            tracing::warn!("{} stays: {e}", self.path().display());
        }
    }
}

#[cfg(test)]
#[path = "private_tests.rs"]
mod tests;
