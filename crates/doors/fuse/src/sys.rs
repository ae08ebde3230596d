//! The system calls that have no safe wrapper. All `unsafe` code of this crate is here, except for
//! the mapping in `keep::words` and the rings in `uring`.
#![allow(unsafe_code)]

use crate::abi::{LIMIT_BYTES, LIMIT_FILES, LimitIn, TREE_FORCE, TREE_READ_ONLY, TreeIn, ioctl};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;
use std::io;
use std::ops::Range;
use zerocopy::IntoBytes;

const FUSE_DEV_IOC_CLONE: u32 = 0x8004_e500;
const LOOP_CTL_GET_FREE: u32 = 0x4c82;
const LOOP_GET_STATUS64: u32 = 0x4c05;
const LOOP_CONFIGURE: u32 = 0x4c0a;
const SO_PEERPIDFD: libc::c_int = 77;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const PROCMAP_QUERY: u32 = 0xc068_6611;
const PROCMAP_QUERY_COVERING_OR_NEXT_VMA: u64 = 0x10;
const PROCMAP_QUERY_FILE_BACKED_VMA: u64 = 0x20;

/// `struct loop_info64` of `linux/loop.h`.
#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of `linux/loop.h`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

/// `struct mount_attr` of `linux/mount.h`, as of its first version.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    mapping_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// A mapping of a file in the memory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMapping {
    pub addresses: Range<u64>,
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    pub ino: u64,
}

const _: () = assert!(size_of::<MountAttr>() == 32 && size_of::<ProcmapQuery>() == 104);
const _: () = assert!(size_of::<LoopInfo64>() == 232 && size_of::<LoopConfig>() == 304);

/// Opens the FUSE device, which is not connected to a mount yet.
pub fn open_fuse() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens another channel to the connection of `session`.
pub fn clone_fuse_channel(session: &OwnedFd) -> io::Result<OwnedFd> {
    let channel = open_fuse()?;
    let source = session.as_raw_fd() as u32;
    // SAFETY: the ioctl reads one u32 through a pointer that is valid for the call; both
    // descriptors are open.
    check(unsafe { libc::ioctl(channel.as_raw_fd(), number(FUSE_DEV_IOC_CLONE), &raw const source) })?;
    Ok(channel)
}

/// Discards the free space of the file system of the open directory. Returns the number of bytes
/// discarded.
pub fn trim(dir: impl AsFd, min_len: u64) -> io::Result<u64> {
    let mut range = [0, u64::MAX, min_len];
    // SAFETY: the ioctl reads and writes three u64 through the pointer, which points at three u64
    // that outlive the call; the descriptor is open.
    check(unsafe { libc::ioctl(dir.as_fd().as_raw_fd(), number(ioctl::TRIM), range.as_mut_ptr()) })?;
    Ok(range[1])
}

/// Makes the kernel write the dirty pages of a range of the open file to its file system, and waits
/// for that. Nothing becomes durable. `to` is the end of the range; 0 means the end of the file.
pub fn write_back(file: impl AsFd, from: u64, to: u64) -> io::Result<()> {
    let range = |at: u64| i64::try_from(at).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
    let (from, len) = (range(from)?, range(to.saturating_sub(from))?);
    let how =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call takes no pointer; the descriptor is open.
    check(unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), from, len, how) }).map(drop)
}

/// The file mapping that contains this address, or the next one after it, in the process whose
/// `/proc/PID/maps` is open. Needs Linux 6.11. The kernel takes the mmap lock of that process.
pub fn file_mapping(maps: impl AsFd, address: u64) -> io::Result<Option<FileMapping>> {
    let mut query = ProcmapQuery {
        size: size_of::<ProcmapQuery>() as u64,
        flags: PROCMAP_QUERY_COVERING_OR_NEXT_VMA | PROCMAP_QUERY_FILE_BACKED_VMA,
        address,
        ..ProcmapQuery::default()
    };
    // SAFETY: the ioctl reads and writes one structure through the pointer, which is valid for the
    // call. The structure requests no name and no build id, so the kernel follows no pointer in it.
    // The descriptor is open.
    let got = check(unsafe { libc::ioctl(maps.as_fd().as_raw_fd(), number(PROCMAP_QUERY), &raw mut query) });
    match got {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        got => got.map(|_| {
            Some(FileMapping {
                addresses: query.start..query.end,
                offset: query.offset,
                device: (query.major, query.minor),
                ino: query.inode,
            })
        }),
    }
}

/// Freezes the file system of the open directory. It thaws automatically after `seconds`; 0 means
/// never.
pub fn freeze(dir: impl AsFd, seconds: u32) -> io::Result<()> {
    // SAFETY: the ioctl reads one u32 through a pointer that is valid for the call; the descriptor
    // is open.
    let frozen = unsafe { libc::ioctl(dir.as_fd().as_raw_fd(), number(ioctl::FREEZE), &raw const seconds) };
    check(frozen).map(drop)
}

/// Ends a freeze.
pub fn thaw(dir: impl AsFd) -> io::Result<()> {
    // SAFETY: the ioctl takes no argument and accesses no memory of this process; the descriptor is
    // open.
    check(unsafe { libc::ioctl(dir.as_fd().as_raw_fd(), number(ioctl::THAW)) }).map(drop)
}

/// Forks the tree whose root has the inode number `source` into the open directory of its mount.
/// With `read_only` the fork is a snapshot.
pub fn fork(dir: impl AsFd, source: u64, name: &[u8], read_only: bool) -> io::Result<()> {
    let flags = if read_only { TREE_READ_ONLY } else { 0 };
    tree_ioctl(dir, ioctl::FORK, name, TreeIn { source, flags, ..TreeIn::default() })
}

/// Deletes the tree that is attached to the open directory of a mount under this name.
pub fn delete_tree(dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    tree_ioctl(dir, ioctl::DELETE_TREE, name, TreeIn::default())
}

/// Replaces the tree that is attached to the open directory of a mount by a fork of the tree whose
/// root has the inode number `source`. With an empty name and the root of the mount, replaces the
/// first tree.
pub fn roll_back(dir: impl AsFd, source: u64, name: &[u8]) -> io::Result<()> {
    tree_ioctl(dir, ioctl::ROLL_BACK, name, TreeIn { source, ..TreeIn::default() })
}

/// Replaces the tree that is attached to the open directory of a mount by the fork whose root has
/// the inode number `fork`. With `force` even if the tree was changed after the fork.
pub fn commit_tree(dir: impl AsFd, fork: u64, name: &[u8], force: bool) -> io::Result<()> {
    let flags = if force { TREE_FORCE } else { 0 };
    tree_ioctl(dir, ioctl::COMMIT_TREE, name, TreeIn { source: fork, flags, ..TreeIn::default() })
}

fn tree_ioctl(dir: impl AsFd, cmd: u32, name: &[u8], mut asked: TreeIn) -> io::Result<()> {
    let Some(room) = asked.name_head.as_mut_bytes().get_mut(..name.len()) else {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    };
    room.copy_from_slice(name);
    asked.name_len = name.len() as u32;
    // SAFETY: the ioctl reads one `TreeIn`, whose size is part of the ioctl's number, through a
    // pointer that is valid for the call; the descriptor is open.
    check(unsafe { libc::ioctl(dir.as_fd().as_raw_fd(), number(cmd), &raw const asked) }).map(drop)
}

/// Sets the limit of the open directory of a mount: the most bytes and the most files. `None` keeps
/// the present maximum, 0 removes it.
pub fn set_limit(dir: impl AsFd, bytes: Option<u64>, files: Option<u64>) -> io::Result<()> {
    let flag = |max: Option<u64>, flag| if max.is_some() { flag } else { 0 };
    let flags = flag(bytes, LIMIT_BYTES) | flag(files, LIMIT_FILES);
    let asked = LimitIn { bytes: bytes.unwrap_or(0), files: files.unwrap_or(0), flags, padding: 0 };
    // SAFETY: the ioctl reads one `LimitIn`, whose size is part of the ioctl's number, through a
    // pointer that is valid for the call; the descriptor is open.
    check(unsafe { libc::ioctl(dir.as_fd().as_raw_fd(), number(ioctl::SET_LIMIT), &raw const asked) })
        .map(drop)
}

/// Removes a mount that is not attached yet from its peer group, and sets its flags.
pub fn make_private(mount: &OwnedFd, flags: MountAttrFlags) -> io::Result<()> {
    let attr = MountAttr { set: flags.bits().into(), clear: 0, propagation: libc::MS_PRIVATE, userns: 0 };
    // SAFETY: the call reads an empty string and one `mount_attr`, whose layout the struct has and
    // whose size is passed, through pointers that are valid for the call; the descriptor is open.
    let set = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The number of a loop device that was free at the time of the call.
pub fn free_loop_number(control: BorrowedFd<'_>) -> io::Result<i32> {
    // SAFETY: the ioctl takes no argument and accesses no memory of this process; the descriptor is
    // open.
    check(unsafe { libc::ioctl(control.as_raw_fd(), number(LOOP_CTL_GET_FREE)) })
}

/// Attaches `image` to the loop device. The device is detached when its last user closes it.
pub fn configure_loop(device: impl AsFd, image: impl AsFd, name: &[u8], read_only: bool) -> io::Result<()> {
    let mut file_name = [0; 64];
    let len = name.len().min(file_name.len() - 1);
    file_name[..len].copy_from_slice(&name[..len]);
    let flags = LO_FLAGS_AUTOCLEAR | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
    let info = LoopInfo64 {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        sizelimit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags,
        file_name,
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let config = LoopConfig { fd: image.as_fd().as_raw_fd() as u32, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: the ioctl reads one `loop_config`, whose layout the struct has, through a pointer
    // valid for the call; both descriptors are open.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), number(LOOP_CONFIGURE), &raw const config) })?;
    Ok(())
}

/// Device and inode of the file that a loop device is attached to.
pub fn loop_backing(device: impl AsFd) -> io::Result<(u64, u64)> {
    let mut info = std::mem::MaybeUninit::<LoopInfo64>::zeroed();
    // SAFETY: the ioctl writes at most one `loop_info64`, whose layout the struct has, through a
    // pointer valid for the call; the descriptor is open.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), number(LOOP_GET_STATUS64), info.as_mut_ptr()) })?;
    // SAFETY: the value was zeroed, and every byte pattern is a valid `loop_info64`.
    let info = unsafe { info.assume_init() };
    Ok((info.device, info.inode))
}

/// A pidfd of the process at the other end of a Unix socket. Fails before Linux 6.5.
pub fn peer_pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option is one int, and both pointers are valid for the call, the second for the
    // size that it points at; the descriptor is open.
    let got = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    match check(got) {
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            let why = "Linux before 6.5 does not report which process is at the other end of a socket";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        got => got?,
    };
    if fd < 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: the kernel has just opened it for this call, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Converts an ioctl's number to the type of the C library: signed in musl, and wider in glibc.
fn number(ioctl: u32) -> libc::Ioctl {
    ioctl as libc::Ioctl
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Gives a thread of this process a scheduling policy without priorities (`SCHED_OTHER`,
/// `SCHED_IDLE`).
pub(crate) fn set_policy(thread: rustix::process::Pid, policy: libc::c_int) -> io::Result<()> {
    // The kernel's `struct sched_param`. The C library's call is not used: in musl, the struct has
    // more fields and the call fails.
    let priority: libc::c_int = 0;
    // SAFETY: the kernel reads one int through a pointer that is valid for the call.
    let result = unsafe {
        let thread = thread.as_raw_nonzero().get();
        libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const priority)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
