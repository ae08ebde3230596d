//! Reads the ids, the effective capabilities and the namespaces of a thread from /proc.
//!
//! # Why /proc
//! A uid does not imply capabilities: uid 0 of a container may have none, and root of a user
//! namespace has all of them in that namespace and none here. The kernel passes ids with a request,
//! but no capabilities. `/proc` has these, and it shows a process the namespaces of another one
//! only if it may read that process (ptrace(2)). A field that cannot be read is an error, and an
//! error grants no right.
//!
//! # Why the thread ids are right
//! A thread id belongs to this process's pid namespace. A /proc of another namespace has other
//! threads under the same ids. In such a /proc this process has more than one id in `NSpid`, so it
//! is recognised and refused.
//!
//! The directory of a thread is opened once, and everything is read below it: the descriptor
//! continues to refer to that thread, and returns errors after the thread's end, even if the id is
//! reused. /proc itself is opened and checked once for the process, whose pid namespace never
//! changes.

use kedgefs::Attr;
use kedgefs::acl::{Acl, Entry, Tag};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, fstatfs, openat, statat};
use std::fs::File;
use std::io::{self, Read};
use std::sync::OnceLock;

const PROC_MAGIC: i64 = 0x9fa0;
/// Limit for the bytes of `status`. The kernel writes about 1,500 bytes, more with many groups.
const STATUS_MAX: u64 = 1 << 20;

/// A capability, with the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    Chown = 0,
    DacOverride = 1,
    DacReadSearch = 2,
    Fowner = 3,
    Fsetid = 4,
    LinuxImmutable = 9,
    SysAdmin = 21,
    Mknod = 27,
    Setfcap = 31,
}

/// A kind of namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Namespace {
    User,
    Mount,
}

impl Namespace {
    fn name(self) -> &'static str {
        match self {
            Namespace::User => "ns/user",
            Namespace::Mount => "ns/mnt",
        }
    }
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The /proc of this process's pid namespace.
fn proc() -> io::Result<&'static OwnedFd> {
    static PROC: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(proc) = PROC.get() {
        return Ok(proc);
    }
    let proc = rustix::fs::open("/proc", DIRECTORY, Mode::empty())?;
    if fstatfs(&proc)?.f_type as i64 != PROC_MAGIC {
        return Err(refused("/proc is no proc file system"));
    }
    let own = Task { dir: openat(&proc, "self", DIRECTORY, Mode::empty())? };
    if own.status()?.numbers.len() != 1 {
        return Err(refused("/proc is another pid namespace's"));
    }
    Ok(PROC.get_or_init(|| proc))
}

/// A thread, or a process by its first thread.
pub(crate) struct Task {
    dir: OwnedFd,
}

impl Task {
    /// Opens the thread with this id in the pid namespace of this process.
    pub(crate) fn open(tid: u32) -> io::Result<Task> {
        if tid == 0 {
            return Err(refused("the thread has no number here"));
        }
        let dir = openat(proc()?, tid.to_string(), DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Task { dir })
    }

    /// Opens a file of the thread's directory.
    pub(crate) fn file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.dir, name, flags, Mode::empty())?))
    }

    /// Whether the thread has not ended.
    pub(crate) fn is_there(&self) -> bool {
        statat(&self.dir, "status", AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    pub(crate) fn status(&self) -> io::Result<Status> {
        let mut text = String::new();
        self.file("status")?.take(STATUS_MAX).read_to_string(&mut text)?;
        Status::parse(&text).ok_or_else(|| refused("status has not the lines that are known"))
    }

    /// Whether the thread is in the same namespace of this kind as this process.
    pub(crate) fn shares(&self, namespace: Namespace) -> io::Result<bool> {
        let own = statat(proc()?, format!("self/{}", namespace.name()), AtFlags::empty())?;
        let its = statat(&self.dir, namespace.name(), AtFlags::empty())?;
        Ok((own.st_dev, own.st_ino) == (its.st_dev, its.st_ino))
    }
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// The fields of `status` that this crate uses. Ids are those of this process's user namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// The real, effective, saved and file system ids. The last one decides about access to files.
    pub(crate) uids: [u32; 4],
    pub(crate) gids: [u32; 4],
    groups: Vec<u32>,
    /// The effective capabilities as bits.
    capabilities: u64,
    /// The thread's ids in the nested pid namespaces, from that of the /proc to the thread's own.
    numbers: Vec<u32>,
    /// Whether the thread has a memory map. Kernel threads (an NFS server, a loop device) have none
    /// but all capabilities, and act for other processes.
    has_memory: bool,
}

impl Status {
    fn parse(text: &str) -> Option<Status> {
        let field = |name: &str| {
            text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
        };
        let ids = |name| -> Option<[u32; 4]> {
            let ids: Vec<u32> =
                field(name)?.split_ascii_whitespace().map_while(|id| id.parse().ok()).collect();
            ids.try_into().ok()
        };
        Some(Status {
            uids: ids("Uid")?,
            gids: ids("Gid")?,
            groups: field("Groups")?.split_ascii_whitespace().map_while(|id| id.parse().ok()).collect(),
            capabilities: u64::from_str_radix(field("CapEff")?, 16).ok()?,
            numbers: field("NSpid")?.split_ascii_whitespace().map_while(|n| n.parse().ok()).collect(),
            has_memory: field("VmSize").is_some(),
        })
    }

    /// The user with whose rights the thread accesses files.
    pub(crate) fn user(&self) -> u32 {
        self.uids[3]
    }

    /// Whether the thread accesses files as a member of the group.
    pub(crate) fn is_member(&self, gid: u32) -> bool {
        self.gids[3] == gid || self.groups.contains(&gid)
    }

    /// Whether the mode of a file and its access list, if it has one, permit the thread to write,
    /// as acl(5) describes it. Capabilities are not considered.
    pub(crate) fn may_write(&self, attr: &Attr, list: Option<&Acl>) -> bool {
        if self.user() == attr.uid {
            return attr.mode & 0o200 != 0;
        }
        // With an access list the mode's group bits are its mask, or else those of the owning
        // group.
        let masked = |permissions: u16| permissions & 0o2 != 0 && attr.mode & 0o020 != 0;
        let entries = list.map_or(&[][..], Acl::entries);
        if let Some(named) = entries.iter().find(|e| e.tag == Tag::User && e.id == self.user()) {
            return masked(named.permissions);
        }
        let owning = self.is_member(attr.gid);
        if entries.is_empty() {
            return attr.mode & if owning { 0o020 } else { 0o002 } != 0;
        }
        let is_own = |e: &&Entry| match e.tag {
            Tag::OwningGroup => owning,
            Tag::Group => self.is_member(e.id),
            _ => false,
        };
        let mut groups = entries.iter().filter(is_own).peekable();
        match groups.peek() {
            Some(_) => groups.any(|e| masked(e.permissions)),
            None => attr.mode & 0o002 != 0,
        }
    }

    pub(crate) fn own_number(&self) -> Option<u32> {
        self.numbers.last().copied()
    }

    /// Whether this is a thread of a program, rather than of the kernel.
    pub(crate) fn is_programs(&self) -> bool {
        self.has_memory
    }

    /// Whether the capability is in effect in the thread's own user namespace.
    pub(crate) fn has(&self, capability: Capability) -> bool {
        self.capabilities & 1 << capability as u32 != 0
    }

    /// Whether all ids of the thread are `uid`, so that it has no rights of a set-id program.
    pub(crate) fn is_wholly(&self, uid: u32) -> bool {
        self.uids == [uid; 4] && self.gids == [self.gids[0]; 4]
    }
}

#[cfg(test)]
#[path = "task_tests.rs"]
mod tests;
