//! Attributes of inodes: reading and changing them.

use super::Names;
use super::acl::LIST_MAX;
use crate::cache::commit::{commit, lock_metas};
use crate::cache::inode::Inode;
use crate::error::{Error, Result};
use crate::flags;
use crate::types::{Attr, SetAttr, SetTime};
use kedge_base::{Ino, Timespec};
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_format::{FileFlags, FileKind, InodeCore};
use kedge_store::{Class, Need};
use std::sync::Arc;

/// The set-user-id and set-group-id bits of a mode.
const SET_ID: u32 = 0o6000;
/// Nanoseconds in a second.
const NSEC_PER_SEC: u32 = 1_000_000_000;

impl Names {
    pub(crate) fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.shown(&*self.inodes.get(ino)?)
    }

    /// The attributes of an inode, as stat(2) shows them. Trees whose names are in a directory
    /// count as its subdirectories.
    pub(super) fn shown(&self, inode: &Inode) -> Result<Attr> {
        let mut attr = inode.attr()?;
        if inode.kind == FileKind::Directory {
            let trees = self.engine.store().trees_named_in(inode.ino);
            attr.nlink = attr.nlink.saturating_add(trees);
            attr.size = attr.size.saturating_add(trees.into());
        }
        Ok(attr)
    }

    pub(crate) fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.engine.check_open()?;
        // A record with such a time could not be read.
        let given = [set.atime, set.mtime, set.ctime.map(SetTime::At)];
        if given.iter().any(|time| matches!(time, Some(SetTime::At(t)) if t.nsec >= NSEC_PER_SEC)) {
            return Err(Error::Invalid("a time with a billion or more nanoseconds"));
        }
        let inode = self.inodes.get(ino)?;
        if let Some(size) = set.size {
            match inode.kind {
                FileKind::Regular => {}
                FileKind::Directory => return Err(Error::IsDirectory),
                _ => return Err(Error::Invalid("size of a special file")),
            }
            self.files.truncate(&inode, size)?;
        }
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            self.set_owner_and_mode(&inode, set)?;
        } else if set.atime.is_some() || set.mtime.is_some() || set.ctime.is_some() {
            self.set_times(&inode, set)?;
        }
        self.shown(&inode)
    }

    fn set_owner_and_mode(&self, inode: &Inode, set: &SetAttr) -> Result<()> {
        let before_append = *set == SetAttr { mode: set.mode, before_append: true, ..SetAttr::default() };
        let lists =
            self.has_acls() && inode.kind != FileKind::Symlink && set.mode.is_some() && !before_append;
        let need = Need::record(Class::Normal).patches(1).puts(lists as usize, LIST_MAX);
        let mut handle = self.engine.begin(need)?;
        let _io = lists.then(|| inode.io.write());
        let mut record = RecordBuilder::new(RecordOp::SetAttr);
        if let Some(mode) = set.mode.filter(|_| lists) {
            self.list_follows_mode(inode, mode, &mut record)?;
        }
        let now = self.engine.now();
        let mut changes = lock_metas(&[inode]);
        let c = &mut changes[0];
        if c.meta.dead {
            return Err(Error::NotFound);
        }
        if before_append {
            flags::check_touch(&c.core)?;
        } else {
            flags::check_change(&c.core)?;
        }
        c.set(InodeMask::CTIME, |core| core.ctime = set.ctime.unwrap_or(now));
        if let Some(mode) = set.mode {
            let mode = if before_append { c.core.mode & (mode | !SET_ID) } else { mode };
            c.set(InodeMask::MODE, |core| core.mode = (core.mode & FileKind::MODE_MASK) | (mode & 0o7777));
        }
        if let Some(uid) = set.uid {
            c.set(InodeMask::UID, |core| core.uid = uid);
        }
        if let Some(gid) = set.gid {
            c.set(InodeMask::GID, |core| core.gid = gid);
        }
        if let Some(atime) = set.atime {
            c.set(InodeMask::ATIME, |core| core.atime = resolve(atime, now));
        }
        if let Some(mtime) = set.mtime {
            c.set(InodeMask::MTIME, |core| core.mtime = resolve(mtime, now));
        }
        commit(&mut handle, record, &mut changes)?;
        Ok(())
    }

    /// Whether files may be made immutable or append-only.
    pub(crate) fn has_immutable(&self) -> bool {
        self.engine.store().geometry().has_immutable()
    }

    /// Sets the flags of chattr(1). Waits for writes in progress.
    pub(crate) fn set_flags(&self, ino: Ino, flags: FileFlags) -> Result<()> {
        if !self.engine.store().geometry().has_flags() {
            return Err(Error::NotSupported("file flags, of which an image of an older version has none"));
        }
        let mut handle = self.engine.begin(Need::record(Class::Normal).patches(1))?;
        let inode = self.inodes.get(ino)?;
        if !matches!(inode.kind, FileKind::Regular | FileKind::Directory) {
            return Err(Error::NotSupported("flags of what is neither file nor directory"));
        }
        let _io = inode.io.write();
        let now = self.engine.now();
        let mut changes = lock_metas(&[&inode]);
        let c = &mut changes[0];
        if c.meta.dead {
            return Err(Error::NotFound);
        }
        let old = c.core.file_flags();
        if old == flags {
            return Ok(());
        }
        if flags.has(FileFlags::NOCOW) != old.has(FileFlags::NOCOW) {
            let empty = (c.core.size, c.core.blocks) == (0, 0);
            self.check_nocow(inode.kind == FileKind::Directory || empty)?;
        }
        let fixes = |flag| flags.has(flag) && !old.has(flag);
        // A directory needs no feature for these flags: it has no pages, so each change of a
        // directory is an operation that checks the flags.
        let keeps = self.has_immutable() || inode.kind == FileKind::Directory;
        if !keeps && (fixes(FileFlags::IMMUTABLE) || fixes(FileFlags::APPEND)) {
            return Err(Error::NotSupported(
                "immutable files, of which this image has none: kedge tune --immutable",
            ));
        }
        c.set(InodeMask::FLAGS | InodeMask::CTIME, |core| {
            core.flags = flags.bits();
            core.ctime = now;
        });
        commit(&mut handle, RecordBuilder::new(RecordOp::SetAttr), &mut changes)?;
        let sums = self.engine.store().geometry().sums_data(&changes[0].core);
        drop(changes);
        if sums != inode.has_sums() {
            inode.set_sums(sums);
        }
        Ok(())
    }

    /// Checks a change of the flag that turns off checksums of data. `may`: the inode has no data
    /// of its own.
    fn check_nocow(&self, may: bool) -> Result<()> {
        if !self.engine.store().geometry().has_sums() {
            return Err(Error::NotSupported(
                "data without checksums in an image that has none: mkfs --checksums",
            ));
        }
        if may { Ok(()) } else { Err(Error::Invalid("only an empty file can gain or lose its checksums")) }
    }

    /// Sets time stamps without a record. They stay pending in the inode until the inode is next
    /// logged, synced or written back.
    fn set_times(&self, inode: &Arc<Inode>, set: &SetAttr) -> Result<()> {
        if self.engine.store().is_read_only() {
            return Err(kedge_base::Error::ReadOnly.into());
        }
        self.engine.store().check_alive()?;
        let now = self.engine.now();
        let mut meta = inode.meta.lock();
        if meta.dead {
            return Err(Error::NotFound);
        }
        check_times(&meta.core, set)?;
        if let Some(atime) = set.atime {
            meta.core.atime = resolve(atime, now);
            meta.unlogged |= InodeMask::ATIME;
        }
        if let Some(mtime) = set.mtime {
            meta.core.mtime = resolve(mtime, now);
            meta.unlogged |= InodeMask::MTIME;
        }
        meta.core.ctime = set.ctime.unwrap_or(now);
        meta.unlogged |= InodeMask::CTIME;
        self.writeback.list_dirty(inode, &mut meta);
        Ok(())
    }
}

/// Checks whether the flags permit new times. A kernel with a writeback cache maintains mtime and
/// ctime itself, so its times may belong to changes that it accepted before the flags were set.
fn check_times(core: &InodeCore, set: &SetAttr) -> Result<()> {
    let is_given = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
    if set.ctime.is_some() && set.atime.is_none() {
        Ok(())
    } else if is_given(set.atime) || is_given(set.mtime) {
        flags::check_change(core)
    } else {
        flags::check_touch(core)
    }
}

fn resolve(time: SetTime, now: Timespec) -> Timespec {
    match time {
        SetTime::Now => now,
        SetTime::At(t) => t,
    }
}
