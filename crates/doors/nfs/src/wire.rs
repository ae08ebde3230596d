//! The structures that several procedures share: attributes, and attributes before and after a
//! change.

use crate::status::{Outcome, Status};
use crate::xdr::{Decoded, Reader, Writer};
use kedgefs::{Attr, FileKind, SetTime, Timespec};

/// The bits of a mode that SETATTR can set: permissions, set-user-id, set-group-id and sticky.
pub(crate) const PERMISSIONS: u32 = 0o7777;
/// The length of `fattr3` in bytes.
pub(crate) const ATTR_LEN: usize = 84;

/// The UUID of the image, for attributes and handles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity(pub(crate) [u8; 16]);

impl Identity {
    /// The `fsid` of attributes, which distinguishes the file systems of one server.
    fn fsid(&self) -> u64 {
        let (head, _) = self.0.split_first_chunk().expect("a uuid has 16 bytes");
        u64::from_be_bytes(*head)
    }

    pub(crate) fn attr(&self, w: &mut Writer, attr: &Attr) {
        let (major, minor) = device_numbers(attr.rdev);
        w.u32(type_of(attr.kind));
        for word in [attr.mode & PERMISSIONS, attr.nlink, attr.uid, attr.gid] {
            w.u32(word);
        }
        w.u64(attr.size);
        w.u64(attr.blocks * 512);
        w.u32(major);
        w.u32(minor);
        w.u64(self.fsid());
        w.u64(attr.ino.0);
        for stamp in [attr.atime, attr.mtime, attr.ctime] {
            time(w, stamp);
        }
    }

    /// Writes a `post_op_attr`.
    pub(crate) fn post_op(&self, w: &mut Writer, attr: Option<&Attr>) {
        w.optional(attr, |w, attr| self.attr(w, attr));
    }

    /// Writes a `wcc_data`.
    pub(crate) fn around(&self, w: &mut Writer, around: &Around) {
        w.optional(around.before.as_ref(), |w, attr| {
            w.u64(attr.size);
            time(w, attr.mtime);
            time(w, attr.ctime);
        });
        self.post_op(w, around.after.as_ref());
    }
}

/// The attributes of an inode before and after a change. Both are read under the inode's lock, so
/// that no other change of this server lies between them. If a client has the same attributes
/// cached as those from before, it keeps its cache.
#[derive(Default, Debug)]
pub(crate) struct Around {
    pub(crate) before: Option<Attr>,
    pub(crate) after: Option<Attr>,
}

fn type_of(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::BlockDevice => 3,
        FileKind::CharDevice => 4,
        FileKind::Symlink => 5,
        FileKind::Socket => 6,
        FileKind::Fifo => 7,
    }
}

/// Decodes the kernel's device number into major and minor number.
fn device_numbers(rdev: u64) -> (u32, u32) {
    (((rdev >> 8) & 0xfff) as u32, ((rdev & 0xff) | ((rdev >> 12) & 0xfff00)) as u32)
}

/// Encodes a device number as the kernel does; `None` if major or minor number does not fit.
pub(crate) fn device(major: u32, minor: u32) -> Option<u64> {
    let (major, minor) = (u64::from(major), u64::from(minor));
    (major < 1 << 12 && minor < 1 << 20).then_some((minor & 0xff) | (major << 8) | ((minor & 0xfff00) << 12))
}

/// Writes a time stamp. The protocol's seconds have 32 bits, without a sign.
fn time(w: &mut Writer, stamp: Timespec) {
    w.u32(stamp.sec.clamp(0, u32::MAX.into()) as u32);
    w.u32(stamp.nsec);
}

fn read_time(r: &mut Reader<'_>) -> Decoded<Timespec> {
    Ok(Timespec { sec: r.u32()?.into(), nsec: r.u32()? })
}

/// `sattr3`: the attributes that a client sets.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Wanted {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<SetTime>,
    pub(crate) mtime: Option<SetTime>,
}

impl Wanted {
    pub(crate) fn read(r: &mut Reader<'_>) -> Decoded<Wanted> {
        Ok(Wanted {
            mode: r.optional(Reader::u32)?.map(|mode| mode & PERMISSIONS),
            uid: r.optional(Reader::u32)?,
            gid: r.optional(Reader::u32)?,
            size: r.optional(Reader::u64)?,
            atime: read_set_time(r)?,
            mtime: read_set_time(r)?,
        })
    }

    /// Refuses values that no file can have.
    pub(crate) fn check(&self) -> Outcome<()> {
        let is_bad = |time: Option<SetTime>| matches!(time, Some(SetTime::At(t)) if t.nsec >= 1_000_000_000);
        // `u32::MAX` means "unchanged" to the kernel; no user or group has this number.
        let is_no_id = |id: Option<u32>| id == Some(u32::MAX);
        match is_bad(self.atime) || is_bad(self.mtime) || is_no_id(self.uid) || is_no_id(self.gid) {
            true => Err(Status::Inval),
            false => Ok(()),
        }
    }
}

fn read_set_time(r: &mut Reader<'_>) -> Decoded<Option<SetTime>> {
    match r.u32()? {
        0 => Ok(None),
        1 => Ok(Some(SetTime::Now)),
        2 => Ok(Some(SetTime::At(read_time(r)?))),
        _ => Err(crate::xdr::Malformed),
    }
}

/// Reads a `sattrguard3`: the ctime that the inode must have for the change to be made.
pub(crate) fn read_guard(r: &mut Reader<'_>) -> Decoded<Option<Timespec>> {
    r.optional(read_time)
}

/// Whether the inode's ctime equals the guard's time. Without a guard, true.
pub(crate) fn passes(guard: Option<Timespec>, attr: &Attr) -> bool {
    guard.is_none_or(|guard| {
        guard.sec == attr.ctime.sec.clamp(0, u32::MAX.into()) && guard.nsec == attr.ctime.nsec
    })
}
