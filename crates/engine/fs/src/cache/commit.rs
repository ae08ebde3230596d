//! Changes of inodes: how a record contains them, and how they become visible.

use crate::cache::inode::{Inode, Meta};
use crate::error::Result;
use crate::types::Owner;
use kedge_base::Timespec;
use kedge_base::broken::{self, Variant};
use kedge_base::lock::MutexGuard;
use kedge_format::record::{InodeMask, RecordBuilder};
use kedge_format::{FileKind, InodeCore};
use kedge_store::{Handle, RecordLsn};
use smallvec::SmallVec;

/// The fields that fdatasync may leave undurable.
const TIMES: InodeMask = InodeMask(
    InodeMask::ATIME.0 | InodeMask::MTIME.0 | InodeMask::CTIME.0 | InodeMask::BTIME.0 | InodeMask::CHANGE.0,
);

/// The change of an existing inode by a record.
pub(crate) struct Change<'a> {
    pub inode: &'a Inode,
    pub meta: MutexGuard<'a, Meta>,
    /// The new attributes, of which `mask` names those that change.
    pub core: InodeCore,
    pub mask: InodeMask,
    /// The size in the record, if it differs from the live size because the bytes after it are not
    /// written yet.
    pub logged_size: Option<u64>,
}

impl<'a> Change<'a> {
    /// Starts a change of an inode whose meta lock is held.
    pub(crate) fn of(inode: &'a Inode, meta: MutexGuard<'a, Meta>) -> Change<'a> {
        let core = meta.core;
        Change { inode, meta, core, mask: InodeMask::default(), logged_size: None }
    }

    pub(crate) fn set(&mut self, mask: InodeMask, edit: impl FnOnce(&mut InodeCore)) {
        edit(&mut self.core);
        self.mask |= mask;
    }

    /// Sets mtime and ctime.
    pub(crate) fn touch(&mut self, now: Timespec) {
        self.set(InodeMask::MTIME | InodeMask::CTIME, |c| {
            c.mtime = now;
            c.ctime = now;
        });
    }
}

pub(crate) type Changes<'a> = SmallVec<[Change<'a>; 4]>;

/// Locks the meta of several inodes, in ascending order. Each inode is locked once.
pub(crate) fn lock_metas<'a>(inodes: &[&'a Inode]) -> Changes<'a> {
    let mut sorted: SmallVec<[&'a Inode; 4]> = inodes.into();
    sorted.sort_by_key(|i| i.ino);
    sorted.dedup_by_key(|i| i.ino);
    sorted.into_iter().map(|inode| Change::of(inode, inode.meta.lock())).collect()
}

/// Adds the changes to `record`, commits it, and then makes the changes visible. After an error
/// nothing has changed.
pub(crate) fn commit(
    handle: &mut Handle<'_>,
    record: RecordBuilder,
    changes: &mut [Change<'_>],
) -> Result<RecordLsn> {
    commit_by(record, changes, |record| handle.commit(record))
}

/// [`commit`] of an operation that has one record and makes no log-resident data.
pub(crate) fn commit_only(
    handle: Handle<'_>,
    record: RecordBuilder,
    changes: &mut [Change<'_>],
) -> Result<RecordLsn> {
    commit_by(record, changes, |record| handle.commit_only(record))
}

fn commit_by(
    mut record: RecordBuilder,
    changes: &mut [Change<'_>],
    commit: impl FnOnce(RecordBuilder) -> kedge_base::Result<RecordLsn>,
) -> Result<RecordLsn> {
    let others = record.edits();
    for c in changes.iter_mut() {
        c.core.change = c.core.change.wrapping_add(1);
        let mut mask = c.mask | c.meta.unlogged | InodeMask::CHANGE;
        if broken::is(Variant::SizeBeyondWritten) {
            mask |= InodeMask::SIZE; // broken on purpose: the live size, even if its bytes are not written
        }
        let named = InodeCore { size: c.logged_size.unwrap_or(c.core.size), ..c.core };
        record.inode(c.inode.ino, mask, &named);
    }
    // If the record has edits other than patches of inodes (extents, names, attributes), more than
    // time stamps has changed, for every inode of the record.
    let others = others > 0;
    let lsn = commit(record)?;
    for c in changes.iter_mut() {
        c.meta.core = c.core;
        c.meta.unlogged = InodeMask::default();
        c.meta.progress.commit_lsn = lsn.end;
        if c.mask.contains(InodeMask::SIZE) {
            c.meta.logged_size = c.logged_size.unwrap_or(c.core.size);
        }
        // Broken on purpose: a new size counts as a mere time stamp.
        let forgotten = c.mask.contains(InodeMask::SIZE) && broken::is(Variant::ForgetDatasyncOnSize);
        if (!c.mask.without(TIMES).is_empty() || others) && !forgotten {
            c.meta.progress.datasync_lsn = lsn.end;
        }
    }
    Ok(lsn)
}

/// The core of a new inode. It inherits the limit and some flags of its directory; from a directory
/// with the set-group-ID bit also the group.
pub(crate) fn new_core(
    parent: &InodeCore,
    mode: u32,
    kind: FileKind,
    owner: Owner,
    now: Timespec,
) -> InodeCore {
    let mut core = InodeCore {
        mode: kind.mode_bits() | (mode & 0o7777),
        uid: owner.uid,
        gid: owner.gid,
        nlink: 1,
        flags: parent.file_flags().inherited().bits(),
        limit: parent.limit,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        ..Default::default()
    };
    if parent.mode & 0o2000 != 0 {
        core.gid = parent.gid;
        if kind == FileKind::Directory {
            core.mode |= 0o2000;
        }
    }
    core
}

/// The mask of a creation: fields that are always set, and others if they are not zero.
pub(crate) fn create_mask(core: &InodeCore) -> InodeMask {
    let mut mask = InodeMask::CREATE
        | InodeMask::MODE
        | InodeMask::NLINK
        | InodeMask::ATIME
        | InodeMask::MTIME
        | InodeMask::CTIME
        | InodeMask::BTIME;
    for (bit, set) in [
        (InodeMask::FLAGS, core.flags != 0),
        (InodeMask::UID, core.uid != 0),
        (InodeMask::GID, core.gid != 0),
        (InodeMask::SIZE, core.size != 0),
        (InodeMask::RDEV, core.rdev != 0),
        (InodeMask::PARENT, core.parent.0 != 0),
        (InodeMask::LIMIT, core.limit != 0),
    ] {
        if set {
            mask |= bit;
        }
    }
    mask
}
