//! The process at the other end of a Unix socket, and its rights.
//!
//! # What is known
//! The kernel records which process connected to a socket, or listens at it, and returns a pidfd of
//! that process (SO_PEERPIDFD, Linux 6.5). A pid alone could have been reused. The pidfd leads to
//! the pid in /proc, the process's status is read there, and then the pidfd is polled to check that
//! the process still runs. So the status belongs to that process. Older kernels lack the option,
//! and then the peer is refused.
//!
//! # Programs that the peer may execute
//! A process may connect, write, and then execute a program with more rights. For an ordinary user,
//! the uid at connect(2) must be the present uid, and no set-id program may run. A process of uid 0
//! that can gain capabilities by execve(2) could use them in any case. A process of uid 0 that
//! cannot (no_new_privs, a bounding set) does not gain them by such a program either.

use crate::mountinfo::{self, MountEntry};
use crate::sys;
use crate::task::{Capability, Namespace, Status, Task};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::net::sockopt::socket_peercred;
use std::io::{self, Read};

/// The longest mount table of another process that is read.
const TABLE_MAX: u64 = 64 << 20;

/// A running process, with its status at the time of the check.
pub struct Peer {
    task: Task,
    status: Status,
    is_here: bool,
}

impl Peer {
    /// The process that connected to this socket, or that listens at the address that this socket
    /// connected to.
    pub fn of(stream: impl AsFd) -> io::Result<Peer> {
        let credentials = socket_peercred(&stream)?;
        let pidfd = sys::peer_pidfd(&stream)?;
        let task = Task::open(number_of(&pidfd)?)?;
        let status = task.status()?;
        // If this process may not read the peer's namespaces, the peer is assumed to be in other
        // ones.
        let is_here = task.shares(Namespace::User).is_ok_and(|same| same);
        if has_ended(&pidfd)? {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the process has ended"));
        }
        if status.uids[1] != credentials.uid.as_raw() || !status.is_programs() {
            return Err(refused("the process has become another user's"));
        }
        Ok(Peer { task, status, is_here })
    }

    /// The user and group that own new files of the process.
    pub fn ids(&self) -> (u32, u32) {
        (self.status.uids[3], self.status.gids[3])
    }

    /// The process's pid in its own pid namespace.
    pub fn own_number(&self) -> Option<u32> {
        self.status.own_number()
    }

    /// Whether all of these capabilities are in effect over this process's user namespace.
    pub fn is_capable(&self, wanted: &[Capability]) -> bool {
        self.is_here && wanted.iter().all(|capability| self.status.has(*capability))
    }

    /// Whether the peer runs as the same ordinary user as this process, in the same namespaces.
    pub fn is_own_user(&self) -> bool {
        let own = rustix::process::geteuid();
        let here = self.is_here && self.task.shares(Namespace::Mount).is_ok_and(|same| same);
        !own.is_root() && here && self.status.is_wholly(own.as_raw())
    }

    /// Whether the peer may command this process: root and this process's own user may. A kernel
    /// without SO_PEERPIDFD still reports the peer's user. That is enough if an ordinary user's
    /// socket is in a directory of that user.
    pub fn may_command(stream: impl AsFd) -> bool {
        match Peer::of(&stream) {
            Ok(peer) => peer.is_capable(&[Capability::SysAdmin]) || peer.is_own_user(),
            Err(e) if e.kind() == io::ErrorKind::Unsupported => {
                let own = rustix::process::geteuid();
                !own.is_root() && socket_peercred(&stream).is_ok_and(|peer| peer.uid == own)
            }
            Err(e) => {
                tracing::debug!("the other end of a socket is not known: {e}");
                false
            }
        }
    }

    /// The mount through which a file of the peer is reached, from the peer's mount table; `None`
    /// if the mount is not in that table.
    pub fn mount_of(&self, file: impl AsFd) -> io::Result<Option<MountEntry>> {
        let id = mountinfo::id_of(file)?;
        let mut table = Vec::new();
        self.task.file("mountinfo")?.take(TABLE_MAX).read_to_end(&mut table)?;
        Ok(mountinfo::parse_table(&table).find(|entry| entry.id == id))
    }
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// The pid of a process as this process's /proc shows it.
fn number_of(pidfd: &OwnedFd) -> io::Result<u32> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    // 0 means that the process is not in this namespace, -1 (which does not parse) that it has
    // ended.
    number.filter(|pid| *pid > 0).ok_or_else(|| refused("the process is not seen here"))
}

fn has_ended(pidfd: &OwnedFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0)
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
