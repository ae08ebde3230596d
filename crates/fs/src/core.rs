//! The open file system: what all operations share.

use crate::budget::Budget;
use crate::claim::Claim;
use crate::dirty::DirtyList;
use crate::flushers::Member;
use crate::inode::{Inode, Meta, Progress};
use crate::inode_cache::InodeTable;
use crate::pages::Delta;
use crate::stats::FsStats;
use crate::switches::Live;
use crate::{Attr, Error, MountOptions, Owner, Result};
use kedge_base::broken::pause::{self, Point};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Mutex, MutexGuard, Rank};
use kedge_base::{BlockNo, Clock, CorruptKind, Ino, Timespec};
use kedge_format::record::{InodeMask, RecordBuilder};
use kedge_format::{FileKind, InodeCore, Key};
use kedge_store::{Class, Handle, Need, RecordLsn, Store};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

pub(crate) struct Fs {
    pub store: Arc<Store>,
    pub clock: Arc<dyn Clock>,
    /// Inodes without a name that something pins: the last pin deletes them. True: made without one (O_TMPFILE), so it
    /// may still get one.
    pub orphans: Mutex<HashMap<Ino, bool>>,
    /// As they are now: `remount` changes some.
    pub options: Mutex<MountOptions>,
    /// The same for those that operations look up.
    pub live: Live,
    /// Key of the name hash.
    pub seed: [u8; 16],
    pub inodes: InodeTable,
    /// Held by renames that move between directories: the directory tree's shape stands still.
    pub rename_lock: Mutex<()>,
    pub dirty: Arc<DirtyList>,
    pub budget: Budget,
    /// Data writes under way that are durable on their own.
    pub durable_writes: AtomicU32,
    pub flusher: Arc<Member>,
    pub stats: FsStats,
    pub closed: AtomicBool,
    /// Last: it goes after all that uses the device.
    pub claim: Claim,
}

/// What a record does to one existing inode.
pub(crate) struct Change<'a> {
    pub inode: &'a Inode,
    pub meta: MutexGuard<'a, Meta>,
    /// The attributes as they shall be.
    pub core: InodeCore,
    pub mask: InodeMask,
    /// The size that the record names, where it is not the live one: bytes behind it are not written yet.
    pub logged_size: Option<u64>,
}

impl Change<'_> {
    pub fn set(&mut self, mask: InodeMask, edit: impl FnOnce(&mut InodeCore)) {
        edit(&mut self.core);
        self.mask |= mask;
    }

    /// mtime and ctime.
    pub fn touch(&mut self, now: Timespec) {
        self.set(InodeMask::MTIME | InodeMask::CTIME, |c| {
            c.mtime = now;
            c.ctime = now;
        });
    }
}

pub(crate) type Changes<'a> = SmallVec<[Change<'a>; 4]>;

/// A new inode from its number to its record. It is in the table, its meta locked: a thread that
/// finds it there waits until the record is applied, instead of reading the tree and putting a second
/// inode of that number into the table. Dropped without [`Newborn::lives`], after an error or a panic,
/// it is dead and forgotten.
pub(crate) struct Newborn<'a> {
    fs: &'a Fs,
    meta: MutexGuard<'a, Meta>,
    ino: Ino,
    alive: bool,
}

impl<'a> Newborn<'a> {
    /// Of an inode made in `dir`, whose meta lock the caller may hold.
    pub fn new(fs: &'a Fs, dir: Ino, inode: &'a Arc<Inode>) -> Result<Newborn<'a>> {
        let ino = inode.ino;
        // Numbers ascend: the order of locks, and that the number is free, rest on it. An image may
        // say otherwise.
        let ascends = ino > dir;
        let meta = ascends.then(|| inode.meta.lock());
        match meta {
            Some(meta) if fs.inodes.insert_new(&fs.store, inode.clone()) => {
                Ok(Newborn { fs, meta, ino, alive: false })
            }
            _ => {
                let what = format!("inode number {ino} is the next to be given out and is in use");
                Err(kedge_base::Error::corrupt(CorruptKind::Inode, BlockNo(0), what).into())
            }
        }
    }

    /// The record that creates it is applied.
    pub fn lives(mut self, lsn: RecordLsn) {
        self.meta.progress = progress_at(lsn);
        self.alive = true;
    }
}

impl Drop for Newborn<'_> {
    fn drop(&mut self) {
        if !self.alive {
            self.meta.dead = true;
            self.meta.core.nlink = 0;
            self.fs.inodes.remove(self.ino);
        }
    }
}

/// Time stamps and the change counter: what fdatasync may leave behind.
const TIMES: InodeMask = InodeMask(
    InodeMask::ATIME.0 | InodeMask::MTIME.0 | InodeMask::CTIME.0 | InodeMask::BTIME.0 | InodeMask::CHANGE.0,
);

impl Fs {
    pub fn now(&self) -> Timespec {
        self.clock.now()
    }

    pub fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(kedge_base::Error::Shutdown("unmounted".into()).into());
        }
        Ok(())
    }

    /// Reserves for an operation. Before any inode lock.
    pub fn begin(&self, log_bytes: u64, items: u32, class: Class) -> Result<Handle<'_>> {
        self.begin_many(log_bytes, items, 0, class)
    }

    /// As `begin`, for an operation that also touches many small items side by side.
    pub fn begin_many(
        &self,
        log_bytes: u64,
        items: u32,
        neighbours: u32,
        class: Class,
    ) -> Result<Handle<'_>> {
        if class != Class::Checkpoint {
            self.check_open()?; // closing ends in a checkpoint
        }
        Ok(self.store.begin(Need { log_bytes, items, neighbours, class })?)
    }

    /// The inode, from the table or the tree.
    pub fn get(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.inodes.get_or_load(&self.store, ino, || {
            let core = self.store.get_with(Key::inode(ino), InodeCore::decode)?.ok_or(Error::NotFound)??;
            pause::at(Point::InodeRead);
            let kind = core.kind().ok_or(Error::NotFound)?;
            Ok((core, kind))
        })
    }

    pub fn get_dir(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.get(ino)?;
        if inode.is_dir() { Ok(inode) } else { Err(Error::NotDirectory) }
    }

    pub fn get_file(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.get(ino)?;
        match inode.kind {
            FileKind::Regular => Ok(inode),
            FileKind::Directory => Err(Error::IsDirectory),
            _ => Err(Error::Invalid("not a regular file")),
        }
    }

    pub fn attr_of(&self, inode: &Inode) -> Result<Attr> {
        let delayed = if inode.kind == FileKind::Regular { inode.pages.lock().promised() } else { 0 };
        let meta = inode.meta.lock();
        if meta.dead {
            return Err(Error::NotFound);
        }
        let mut core = meta.core;
        // As other file systems show them: blocks that delayed allocation has promised.
        core.blocks += delayed;
        Ok(Attr::from_core(inode.ino, &core, inode.kind))
    }

    /// Locks the meta of several inodes, in ascending order, each once.
    pub fn lock_metas<'a>(&self, inodes: &[&'a Inode]) -> Changes<'a> {
        let mut sorted: SmallVec<[&'a Inode; 4]> = inodes.into();
        sorted.sort_by_key(|i| i.ino);
        sorted.dedup_by_key(|i| i.ino);
        sorted
            .into_iter()
            .map(|inode| {
                let meta = inode.meta.lock();
                let core = meta.core;
                Change { inode, meta, core, mask: InodeMask::default(), logged_size: None }
            })
            .collect()
    }

    /// Completes `record` with the changes, commits it, and only then lets the changes be seen: an error leaves all as
    /// it was.
    pub fn commit(
        &self,
        handle: &mut Handle<'_>,
        record: RecordBuilder,
        changes: &mut [Change<'_>],
    ) -> Result<RecordLsn> {
        self.commit_by(record, changes, |record| handle.commit(record))
    }

    /// [`Fs::commit`] of an operation with one record, which makes no log-resident data.
    pub fn commit_only(
        &self,
        handle: Handle<'_>,
        record: RecordBuilder,
        changes: &mut [Change<'_>],
    ) -> Result<RecordLsn> {
        self.commit_by(record, changes, |record| handle.commit_only(record))
    }

    fn commit_by(
        &self,
        mut record: RecordBuilder,
        changes: &mut [Change<'_>],
        commit: impl FnOnce(RecordBuilder) -> kedge_base::Result<RecordLsn>,
    ) -> Result<RecordLsn> {
        let others = record.edits();
        for c in changes.iter_mut() {
            c.core.change = c.core.change.wrapping_add(1);
            let mut mask = c.mask | c.meta.unlogged | InodeMask::CHANGE;
            if broken::is(Variant::SizeBeyondWritten) {
                mask |= InodeMask::SIZE; // broken on purpose: the live size, whatever is written of it
            }
            let named = InodeCore { size: c.logged_size.unwrap_or(c.core.size), ..c.core };
            record.inode(c.inode.ino, mask, &named);
        }
        // Edits beside the patches (extents, names, attributes) are more than time stamps, whoever they are of.
        let others = others > 0;
        let lsn = commit(record)?;
        for c in changes.iter_mut() {
            c.meta.core = c.core;
            c.meta.unlogged = InodeMask::default();
            c.meta.progress.commit_lsn = lsn.end;
            if c.mask.contains(InodeMask::SIZE) {
                c.meta.logged_size = c.logged_size.unwrap_or(c.core.size);
            }
            // Broken on purpose: a new size is no more than a time stamp.
            let forgotten = c.mask.contains(InodeMask::SIZE) && broken::is(Variant::ForgetDatasyncOnSize);
            if (!c.mask.without(TIMES).is_empty() || others) && !forgotten {
                c.meta.progress.datasync_lsn = lsn.end;
            }
        }
        Ok(lsn)
    }

    /// A new inode's core; a set-group-ID directory hands on its group.
    pub fn new_core(
        &self,
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

    /// An inode number near those of its siblings: directories draw from ranges of their own, so that creators in
    /// different directories meet in different leaves.
    pub fn new_ino(&self, dir: &mut Meta) -> Result<Ino> {
        let (next, end) = dir.ino_range;
        if next < end {
            dir.ino_range.0 += 1;
            return Ok(Ino(next));
        }
        // A directory that grows takes longer ranges.
        let count = (dir.core.size.min(1000) + 8).next_power_of_two().clamp(16, 1024);
        let first = self.store.take_inos(count)?;
        dir.ino_range = (first.0 + 1, first.0 + count);
        Ok(first)
    }

    pub fn account(&self, delta: Delta) {
        self.budget.account(delta);
    }

    /// Puts the inode on the dirty list. The caller holds its meta lock.
    /// Nothing of a dead one is ever written: it would stay on the list for good.
    pub fn list_dirty(&self, inode: &Arc<Inode>, meta: &mut Meta) {
        if !meta.listed && !meta.dead {
            meta.listed = true;
            self.dirty.add(inode.clone(), self.clock.monotonic());
        }
    }
}

/// The fields of a new core that are not zero.
pub(crate) fn create_mask(core: &InodeCore) -> InodeMask {
    let mut mask = InodeMask::CREATE
        | InodeMask::MODE
        | InodeMask::NLINK
        | InodeMask::ATIME
        | InodeMask::MTIME
        | InodeMask::CTIME
        | InodeMask::BTIME;
    for (bit, set) in [
        (InodeMask::UID, core.uid != 0),
        (InodeMask::GID, core.gid != 0),
        (InodeMask::SIZE, core.size != 0),
        (InodeMask::RDEV, core.rdev != 0),
        (InodeMask::PARENT, core.parent.0 != 0),
    ] {
        if set {
            mask |= bit;
        }
    }
    mask
}

/// Progress of an inode that the record ending at `lsn` created or changed whole.
fn progress_at(lsn: RecordLsn) -> Progress {
    Progress { commit_lsn: lsn.end, datasync_lsn: lsn.end, ..Default::default() }
}

pub(crate) fn new_rename_lock() -> Mutex<()> {
    Mutex::new(Rank::Rename, ())
}
