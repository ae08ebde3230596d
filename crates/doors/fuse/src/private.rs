//! The directory for sockets that only one user can enter, and bounded connections to what is in
//! it.
//!
//! # Who can take a name
//! A name in the abstract space belongs to whoever binds it first, in the network namespace that
//! containers may share with the host, and everybody can connect to it. A name in a directory of
//! mode 0700 is made, found and connected to by its owner alone (and by processes with
//! CAP_DAC_OVERRIDE over it). So whatever is found there was made by this user or by root.
//!
//! The directory is the first of these that can be had:
//! 1. `/run/kedgefs`, for root;
//! 2. `$XDG_RUNTIME_DIR/kedgefs`, if no set-id program runs, to whom the environment is a
//!    stranger's;
//! 3. `/tmp/kedgefs-UID`.
//!
//! It is opened without following a link, and its owner and mode are checked at the descriptor. All
//! names are reached through that descriptor, so that neither a rename nor the length of the path
//! matters. A directory that is another user's is passed over.
//!
//! # Bounds
//! connect(2) on a Unix socket waits while the queue of the listener is full. The limit on sending
//! bounds that, too.

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

/// Where such a directory may be, in the order in which they are tried.
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
    /// The first that can be had; made if it is not there.
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

    /// All that are there. A process with another environment may have taken another one.
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

    /// For messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn address(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()))
    }

    /// Listens under a name, and takes the place of a socket that has it: a process that was killed
    /// leaves one.
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

    /// The same for a process that must be the only one under its name: an error of the kind
    /// `WouldBlock` while another one is.
    pub fn listen_alone(self, name: &str) -> io::Result<Bound> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // It stays: a lock on a file that is removed and made again would exclude nobody.
        let lock = openat(&self.fd, format!("{name}.lock"), flags, Mode::RUSR | Mode::WUSR)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let mut bound = self.listen(name)?;
        bound.lock = Some(lock);
        Ok(bound)
    }

    /// Whether there is a socket of this name, with or without a process.
    pub fn has(&self, name: &str) -> bool {
        let stat = statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket)
    }

    /// Connects to the socket of this name. A listener that does not accept is an error when
    /// `patience` is over.
    pub fn connect(&self, name: &str, patience: Duration) -> io::Result<UnixStream> {
        connect_within(&self.address(name), patience)
    }
}

/// Connects to a Unix socket. A listener that does not accept is an error when `patience` is over;
/// that is then the limit for each read and write, too.
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

/// A socket that listens. Its name goes with it, unless another process has taken it over.
pub struct Bound {
    dir: PrivateDir,
    name: String,
    id: (u64, u64),
    listener: UnixListener,
    /// Held as long as it listens.
    lock: Option<OwnedFd>,
}

impl Bound {
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// For messages.
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
        // Between the two calls only a process of the same user could take the name over. It would
        // be reached through the kernel then, as if it had no socket.
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
