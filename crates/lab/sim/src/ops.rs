//! Operations of the file system's interface as data, and their execution.
//!
//! Paths are relative to the root, components joined by '/', "." is the root; every component is
//! resolved by a lookup and symlinks are not followed. Handles are small numbers that stand for
//! pinned inodes.

use kedgefs::{
    Attr, DirEntry, Error, FallocateMode, FileFlags, FileKind, FileSystem, Ino, Owner, RenameMode, SetAttr,
    SetTime, Timespec, XattrMode,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// What an operation works on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    Path(String),
    Handle(u8),
}

/// Bytes as a rule, so that histories stay short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    Byte(u8),
    /// Differs for each seed and each offset of the file, and is never zero: a block in the wrong
    /// place shows.
    Seed(u32),
}

impl Fill {
    pub fn byte(self, offset: u64) -> u8 {
        match self {
            Fill::Byte(byte) => byte,
            Fill::Seed(seed) => {
                let mut x = (offset >> 3) ^ ((seed as u64) << 32) ^ 0x9e37_79b9_7f4a_7c15;
                x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                ((x ^ (x >> 31)) >> ((offset & 7) * 8)) as u8 | 1
            }
        }
    }

    pub fn bytes(self, offset: u64, len: usize) -> Vec<u8> {
        (offset..offset + len as u64).map(|at| self.byte(at)).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Special {
    Fifo,
    Chr,
}

impl Special {
    pub fn kind(self) -> FileKind {
        match self {
            Special::Fifo => FileKind::Fifo,
            Special::Chr => FileKind::CharDevice,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rename {
    Replace,
    NoReplace,
    Exchange,
    Whiteout,
}

impl Rename {
    fn mode(self) -> RenameMode {
        match self {
            Rename::Replace => RenameMode::Replace,
            Rename::NoReplace => RenameMode::NoReplace,
            Rename::Exchange => RenameMode::Exchange,
            Rename::Whiteout => RenameMode::Whiteout { owner: OWNER, replace: true },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Falloc {
    Alloc,
    Keep,
    Punch,
    Zero,
    ZeroKeep,
    Collapse,
    Insert,
}

impl Falloc {
    pub fn mode(self) -> FallocateMode {
        match self {
            Falloc::Alloc => FallocateMode::Allocate { keep_size: false },
            Falloc::Keep => FallocateMode::Allocate { keep_size: true },
            Falloc::Punch => FallocateMode::PunchHole,
            Falloc::Zero => FallocateMode::ZeroRange { keep_size: false },
            Falloc::ZeroKeep => FallocateMode::ZeroRange { keep_size: true },
            Falloc::Collapse => FallocateMode::CollapseRange,
            Falloc::Insert => FallocateMode::InsertRange,
        }
    }

    /// Whether it can grow the file.
    pub fn grows(self) -> bool {
        matches!(self, Falloc::Alloc | Falloc::Zero)
    }

    /// Whether it makes the range's bytes zero.
    pub fn zeroes(self) -> bool {
        matches!(self, Falloc::Punch | Falloc::Zero | Falloc::ZeroKeep)
    }

    /// Whether it moves bytes to other offsets.
    pub fn shifts(self) -> bool {
        matches!(self, Falloc::Collapse | Falloc::Insert)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum XattrFlag {
    Any,
    Create,
    Replace,
}

impl XattrFlag {
    fn mode(self) -> XattrMode {
        match self {
            XattrFlag::Any => XattrMode::Any,
            XattrFlag::Create => XattrMode::Create,
            XattrFlag::Replace => XattrMode::Replace,
        }
    }
}

/// Permissions of the owner, of user 1000, of the owning group, of the mask, of the others.
pub type AclBits = [u16; 5];

/// The list as Linux writes it.
pub fn acl_bytes(list: AclBits) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, permissions) in [1, 2, 4, 16, 32].into_iter().zip(list) {
        let id = if tag == 2 { 1000 } else { u32::MAX };
        bytes.extend([tag, 0, permissions as u8, 0]);
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// The permissions of a list that [`acl_bytes`] made, from the text that stands for its bytes: a
/// character each.
pub fn acl_bits(text: &str) -> Option<AclBits> {
    let mut permissions = text.chars().skip(6).step_by(8).map(|c| c as u16);
    let list = [(); 5].map(|()| permissions.next());
    list.into_iter().collect::<Option<Vec<_>>>()?.try_into().ok()
}

/// The name of its attribute.
pub fn acl_name(default: bool) -> &'static str {
    if default { "system.posix_acl_default" } else { "system.posix_acl_access" }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    Create {
        path: String,
        mode: u32,
    },
    Mkdir {
        path: String,
        mode: u32,
    },
    Mknod {
        path: String,
        special: Special,
    },
    Symlink {
        target: String,
        path: String,
    },
    Link {
        from: Target,
        path: String,
    },
    Unlink {
        path: String,
    },
    Rmdir {
        path: String,
    },
    Rename {
        from: String,
        to: String,
        how: Rename,
    },
    Write {
        on: Target,
        offset: u64,
        len: u32,
        fill: Fill,
    },
    /// Bytes given one by one (short texts of written-down cases).
    WriteText {
        on: Target,
        offset: u64,
        text: String,
    },
    Append {
        on: Target,
        text: String,
    },
    Truncate {
        on: Target,
        size: u64,
    },
    Fallocate {
        on: Target,
        how: Falloc,
        offset: u64,
        len: u64,
    },
    Chmod {
        on: Target,
        mode: u32,
    },
    Chown {
        on: Target,
        uid: u32,
        gid: u32,
    },
    Utimes {
        on: Target,
        atime: i64,
        mtime: i64,
    },
    SetXattr {
        on: Target,
        name: String,
        value: String,
        how: XattrFlag,
    },
    RemoveXattr {
        on: Target,
        name: String,
    },
    /// Sets the access control list, or a directory's default one.
    SetAcl {
        on: Target,
        default: bool,
        list: AclBits,
    },
    /// Sets the flags of chattr(1), which have these bits.
    SetFlags {
        on: Target,
        flags: u32,
    },
    /// Makes a nameless file and keeps it as `handle`.
    Tmpfile {
        dir: String,
        handle: u8,
        mode: u32,
    },
    /// Pins the inode as `handle`.
    Open {
        path: String,
        handle: u8,
    },
    /// Gives the pin back.
    Close {
        handle: u8,
    },
    Fsync {
        on: Target,
    },
    Fdatasync {
        on: Target,
    },
    Sync,
    /// Freezes the file system and thaws it.
    Freeze,
    Read {
        on: Target,
        offset: u64,
        len: u32,
    },
    Readdir {
        path: String,
    },
    Readlink {
        path: String,
    },
    /// Closes and opens the image; the handles are gone.
    Remount,
    /// Power fails; the image is opened on one of the states the medium may be in.
    CrashRemount {
        seed: u64,
    },
}

/// What an operation answered.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Bytes(Vec<u8>),
    Names(Vec<(String, FileKind)>),
    /// The errno.
    Failed(i32),
}

impl Outcome {
    pub fn is_ok(&self) -> bool {
        !matches!(self, Outcome::Failed(_))
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => f.write_str("ok"),
            Outcome::Bytes(bytes) => {
                let head = &bytes[..bytes.len().min(16)];
                write!(f, "{} bytes {head:02x?}", bytes.len())
            }
            Outcome::Names(names) => write!(f, "names {names:?}"),
            Outcome::Failed(errno) => write!(f, "{}", errno_name(*errno)),
        }
    }
}

pub mod errno {
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EIO: i32 = 5;
    pub const E2BIG: i32 = 7;
    pub const EBADF: i32 = 9;
    pub const EBUSY: i32 = 16;
    pub const EEXIST: i32 = 17;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const EFBIG: i32 = 27;
    pub const ENOSPC: i32 = 28;
    pub const ENAMETOOLONG: i32 = 36;
    pub const ENOTEMPTY: i32 = 39;
    pub const ENODATA: i32 = 61;
}

fn errno_name(errno: i32) -> String {
    use errno::*;
    let known = [
        (EPERM, "EPERM"),
        (ENOENT, "ENOENT"),
        (EIO, "EIO"),
        (E2BIG, "E2BIG"),
        (EBADF, "EBADF"),
        (EBUSY, "EBUSY"),
        (EEXIST, "EEXIST"),
        (ENOTDIR, "ENOTDIR"),
        (EISDIR, "EISDIR"),
        (EINVAL, "EINVAL"),
        (EFBIG, "EFBIG"),
        (ENOSPC, "ENOSPC"),
        (ENAMETOOLONG, "ENAMETOOLONG"),
        (ENOTEMPTY, "ENOTEMPTY"),
        (ENODATA, "ENODATA"),
    ];
    known
        .iter()
        .find(|(n, _)| *n == errno)
        .map_or_else(|| format!("errno {errno}"), |(_, name)| (*name).to_owned())
}

/// Splits a path into the path of its directory and its last component; the root has none.
pub fn split(path: &str) -> Option<(&str, &str)> {
    match path.rsplit_once('/') {
        _ if path == "." || path.is_empty() => None,
        Some((dir, name)) => Some((dir, name)),
        None => Some((".", path)),
    }
}

/// The components of a path; none for the root.
pub fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|c| !c.is_empty() && *c != ".")
}

/// Resolves a path by lookups.
pub fn resolve(fs: &FileSystem, path: &str) -> Result<Ino, Error> {
    let mut ino = Ino::ROOT;
    for name in components(path) {
        ino = fs.lookup(ino, name.as_bytes())?.ino;
    }
    Ok(ino)
}

/// Who creates everything.
pub const OWNER: Owner = Owner { uid: 1000, gid: 1000 };
/// Device number of character devices.
pub const RDEV: u64 = 0x105;

/// Runs operations on an open file system.
pub struct Executor {
    pub fs: FileSystem,
    handles: BTreeMap<u8, Ino>,
}

/// An error of the file system, or one of the executor itself.
enum Refused {
    Fs(Error),
    Errno(i32),
}

impl From<Error> for Refused {
    fn from(e: Error) -> Refused {
        Refused::Fs(e)
    }
}

impl Executor {
    pub fn new(fs: FileSystem) -> Executor {
        Executor { fs, handles: BTreeMap::new() }
    }

    /// Inodes pinned by handles.
    pub fn handles(&self) -> &BTreeMap<u8, Ino> {
        &self.handles
    }

    fn parent<'a>(&self, path: &'a str) -> Result<(Ino, &'a [u8]), Refused> {
        let (dir, name) = split(path).ok_or(Refused::Errno(errno::EINVAL))?;
        Ok((resolve(&self.fs, dir)?, name.as_bytes()))
    }

    pub fn target(&self, target: &Target) -> Result<Ino, Error> {
        match target {
            Target::Path(path) => resolve(&self.fs, path),
            Target::Handle(handle) => self.handles.get(handle).copied().ok_or(Error::NotFound),
        }
    }

    fn target_or_errno(&self, target: &Target) -> Result<Ino, Refused> {
        match target {
            Target::Handle(handle) => self.handles.get(handle).copied().ok_or(Refused::Errno(errno::EBADF)),
            Target::Path(path) => Ok(resolve(&self.fs, path)?),
        }
    }

    /// Runs one operation. Remounts are the rig's business: here they answer EINVAL.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        match self.run(op) {
            Ok(outcome) => outcome,
            Err(Refused::Fs(e)) => Outcome::Failed(e.errno()),
            Err(Refused::Errno(errno)) => Outcome::Failed(errno),
        }
    }

    fn run(&mut self, op: &Op) -> Result<Outcome, Refused> {
        match op {
            Op::Create { .. }
            | Op::Mkdir { .. }
            | Op::Mknod { .. }
            | Op::Symlink { .. }
            | Op::Link { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. } => self.run_names(op),
            Op::Tmpfile { .. } | Op::Open { .. } | Op::Close { .. } => self.run_handles(op),
            Op::Chmod { .. }
            | Op::Chown { .. }
            | Op::Utimes { .. }
            | Op::SetXattr { .. }
            | Op::RemoveXattr { .. }
            | Op::SetAcl { .. }
            | Op::SetFlags { .. }
            | Op::Truncate { .. } => self.run_attributes(op),
            Op::Remount | Op::CrashRemount { .. } => Err(Refused::Errno(errno::EINVAL)),
            _ => self.run_data(op),
        }
    }

    fn run_names(&mut self, op: &Op) -> Result<Outcome, Refused> {
        let fs = &self.fs;
        match op {
            Op::Create { path, mode } => {
                let (dir, name) = self.parent(path)?;
                expect_kind(fs.create(dir, name, *mode, OWNER)?, FileKind::Regular);
            }
            Op::Mkdir { path, mode } => {
                let (dir, name) = self.parent(path)?;
                expect_kind(fs.mkdir(dir, name, *mode, OWNER)?, FileKind::Directory);
            }
            Op::Mknod { path, special } => {
                let (dir, name) = self.parent(path)?;
                let rdev = if *special == Special::Chr { RDEV } else { 0 };
                let kind = special.kind();
                expect_kind(fs.mknod(dir, name, kind.mode_bits() | 0o644, rdev, OWNER)?, kind);
            }
            Op::Symlink { target, path } => {
                let (dir, name) = self.parent(path)?;
                expect_kind(fs.symlink(dir, name, target.as_bytes(), OWNER)?, FileKind::Symlink);
            }
            Op::Link { from, path } => {
                let from = self.target_or_errno(from)?;
                let (dir, name) = self.parent(path)?;
                fs.link(from, dir, name)?;
            }
            Op::Unlink { path } => {
                let (dir, name) = self.parent(path)?;
                fs.unlink(dir, name)?;
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.parent(path)?;
                fs.rmdir(dir, name)?;
            }
            Op::Rename { from, to, how } => {
                let (dir, name) = self.parent(from)?;
                let (new_dir, new_name) = self.parent(to)?;
                fs.rename(dir, name, new_dir, new_name, how.mode())?;
            }
            _ => unreachable!("sorted by run()"),
        }
        Ok(Outcome::Done)
    }

    fn run_handles(&mut self, op: &Op) -> Result<Outcome, Refused> {
        match op {
            Op::Tmpfile { dir, handle, mode } => {
                if self.handles.contains_key(handle) {
                    return Err(Refused::Errno(errno::EBUSY));
                }
                let dir = resolve(&self.fs, dir)?;
                let attr = self.fs.tmpfile(dir, *mode, OWNER)?;
                self.handles.insert(*handle, attr.ino);
            }
            Op::Open { path, handle } => {
                if self.handles.contains_key(handle) {
                    return Err(Refused::Errno(errno::EBUSY));
                }
                let ino = resolve(&self.fs, path)?;
                self.fs.pin(ino)?;
                self.handles.insert(*handle, ino);
            }
            Op::Close { handle } => {
                let ino = self.handles.remove(handle).ok_or(Refused::Errno(errno::EBADF))?;
                self.fs.unpin(ino, 1);
            }
            _ => unreachable!("sorted by run()"),
        }
        Ok(Outcome::Done)
    }

    fn run_attributes(&mut self, op: &Op) -> Result<Outcome, Refused> {
        let fs = &self.fs;
        match op {
            Op::Chmod { on, mode } => {
                fs.setattr(self.target_or_errno(on)?, &SetAttr { mode: Some(*mode), ..SetAttr::default() })?;
            }
            Op::Chown { on, uid, gid } => {
                let set = SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() };
                fs.setattr(self.target_or_errno(on)?, &set)?;
            }
            Op::Utimes { on, atime, mtime } => {
                let at = |sec: i64| Some(SetTime::At(stamp(sec)));
                let set = SetAttr { atime: at(*atime), mtime: at(*mtime), ..SetAttr::default() };
                fs.setattr(self.target_or_errno(on)?, &set)?;
            }
            Op::Truncate { on, size } => {
                fs.setattr(self.target_or_errno(on)?, &SetAttr { size: Some(*size), ..SetAttr::default() })?;
            }
            Op::SetXattr { on, name, value, how } => {
                fs.setxattr(self.target_or_errno(on)?, name.as_bytes(), value.as_bytes(), how.mode())?;
            }
            Op::SetAcl { on, default, list } => {
                let (name, value) = (acl_name(*default), acl_bytes(*list));
                fs.setxattr(self.target_or_errno(on)?, name.as_bytes(), &value, XattrMode::Any)?;
            }
            Op::SetFlags { on, flags } => {
                let flags = FileFlags::from_bits(*flags).ok_or(Refused::Errno(errno::EINVAL))?;
                fs.set_flags(self.target_or_errno(on)?, flags)?;
            }
            Op::RemoveXattr { on, name } => fs.removexattr(self.target_or_errno(on)?, name.as_bytes())?,
            _ => unreachable!("sorted by run()"),
        }
        Ok(Outcome::Done)
    }

    fn run_data(&mut self, op: &Op) -> Result<Outcome, Refused> {
        let fs = &self.fs;
        match op {
            Op::Write { on, offset, len, fill } => {
                write_all(fs, self.target_or_errno(on)?, *offset, &fill.bytes(*offset, *len as usize))?;
            }
            Op::WriteText { on, offset, text } => {
                write_all(fs, self.target_or_errno(on)?, *offset, text.as_bytes())?;
            }
            Op::Append { on, text } => {
                let ino = self.target_or_errno(on)?;
                let end = fs.getattr(ino)?.size;
                write_all(fs, ino, end, text.as_bytes())?;
            }
            Op::Fallocate { on, how, offset, len } => {
                fs.fallocate(self.target_or_errno(on)?, how.mode(), *offset, *len)?;
            }
            Op::Fsync { on } => fs.fsync(self.target_or_errno(on)?, false)?,
            Op::Fdatasync { on } => fs.fsync(self.target_or_errno(on)?, true)?,
            Op::Sync => fs.sync()?,
            Op::Freeze => {
                fs.freeze()?;
                fs.thaw()?;
            }
            Op::Read { on, offset, len } => {
                let ino = self.target_or_errno(on)?;
                let mut buf = vec![0xee; *len as usize];
                let read = fs.read(ino, *offset, &mut buf)?;
                buf.truncate(read);
                return Ok(Outcome::Bytes(buf));
            }
            Op::Readdir { path } => {
                let mut names = list(fs, resolve(fs, path)?)?;
                names.sort_by(|a, b| a.0.cmp(&b.0));
                return Ok(Outcome::Names(names));
            }
            Op::Readlink { path } => return Ok(Outcome::Bytes(fs.readlink(resolve(fs, path)?)?)),
            _ => unreachable!("sorted by run()"),
        }
        Ok(Outcome::Done)
    }
}

fn expect_kind(attr: Attr, kind: FileKind) {
    assert_eq!(
        (attr.kind, attr.mode & FileKind::MODE_MASK),
        (kind, kind.mode_bits()),
        "a creation answers what it made"
    );
}

/// The time stamp that `Utimes` sets for a number of seconds.
pub fn stamp(sec: i64) -> Timespec {
    Timespec { sec, nsec: (sec.unsigned_abs() % 1_000_000_000) as u32 }
}

/// Writes all bytes, in as many calls as the file system asks for.
pub fn write_all(fs: &FileSystem, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), Error> {
    let mut done = 0;
    loop {
        let n = fs.write(ino, offset + done as u64, &bytes[done..])?;
        done += n;
        if done == bytes.len() {
            return Ok(());
        }
        assert!(n > 0 && done < bytes.len(), "a write of {} bytes answered {n}", bytes.len());
    }
}

/// Names and kinds in a directory without "." and "..", in the order in which readdir shows them.
pub fn list(fs: &FileSystem, dir: Ino) -> Result<Vec<(String, FileKind)>, Error> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry: DirEntry<'_>| {
        if entry.name != b"." && entry.name != b".." {
            names.push((String::from_utf8_lossy(entry.name).into_owned(), entry.kind));
        }
        true
    })?;
    Ok(names)
}

/// The operations as JSON lines, as [`parse_ops`] takes them.
pub fn print_ops(ops: &[Op]) -> String {
    ops.iter().map(|op| serde_json::to_string(op).expect("an operation is plain data") + "\n").collect()
}

pub fn parse_ops(text: &str) -> serde_json::Result<Vec<Op>> {
    text.lines().filter(|line| !line.trim().is_empty()).map(serde_json::from_str).collect()
}
