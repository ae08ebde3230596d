//! Inodes in memory: their locks, their attributes, and their state that is not durable yet.
//! [`crate::cache::table`] caches them.
//!
//! # Locks of an inode, in the order in which they are taken
//! 1. `io`: shared by reads and lookups; exclusive for writes, truncates and changes of a
//!    directory's entries. Of several inodes: in ascending inode order.
//! 2. `wb`: admits one writeback of an inode at a time; excludes truncate, punch and deletion.
//! 3. `pages`, then 4. `meta`: held briefly, never across IO of file data, a wait for log space or
//!    a force of the log. `meta` is held across a commit that touches the inode, so that records of
//!    one inode are appended in the order in which they take effect. A commit may read tree nodes
//!    that are not in memory.
//!
//! # LSNs
//! `commit_lsn` and `datasync_lsn` are ends of records, which are durable once `durable_lsn` has
//! reached them. They are numbers, not flags. When an inode is evicted, they are kept in a side
//! table until they are durable. So an inode that is read in again is never wrongly taken for
//! durable.

use crate::cache::pages::Pages;
use crate::error::{Error, Result};
use crate::types::Attr;
use kedge_base::atomic::{AtomicBool, AtomicU32, Ordering};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Mutex, Rank, RwLock};
use kedge_base::{BlockNo, Ino, Lsn};
use kedge_format::record::InodeMask;
use kedge_format::{FileKind, InodeCore};
use kedge_store::{RecordLsn, Store, WriteSeq};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The unit of st_blocks.
const UNIT: u64 = 512;

/// Positions up to which the log and the device must be durable before the inode is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// End of the last record that touched the inode.
    pub commit_lsn: Lsn,
    /// End of the last record that touched more than its time stamps.
    pub datasync_lsn: Lsn,
    /// Number of the inode's last data write in place.
    pub write_seq: WriteSeq,
}

impl Progress {
    /// The progress of an inode that was created, or changed as a whole, by the record ending at
    /// `lsn`.
    pub(crate) fn at(lsn: RecordLsn) -> Progress {
        Progress { commit_lsn: lsn.end, datasync_lsn: lsn.end, ..Default::default() }
    }

    /// Whether the progress is durable, so that it need not be kept after an eviction.
    pub(crate) fn is_durable(&self, store: &Store) -> bool {
        self.commit_lsn <= store.durable_lsn() && store.data_flushed(self.write_seq)
    }
}

/// LSNs that `new_name=sync` uses; `names::new_name` explains them. Zero: none.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct NameMarks {
    pub created: Lsn,
    pub logged: Lsn,
    pub moved_out: Lsn,
}

pub(crate) struct Meta {
    /// The live attributes; `size` includes bytes that no record names yet.
    pub core: InodeCore,
    /// The size in the records; at most the live size.
    pub logged_size: u64,
    /// Time stamps that have changed and are in no record yet.
    pub unlogged: InodeMask,
    pub progress: Progress,
    /// Used by `new_name=sync`.
    pub marks: NameMarks,
    /// The block after the last one allocated to the file: the preferred next block.
    pub goal: Option<BlockNo>,
    /// For a directory: inode numbers reserved for its children, as next and end.
    pub ino_range: (u64, u64),
    /// For a directory: whether it is known to have no default access control list.
    pub no_default_acl: bool,
    /// Whether a truncate has set the size and has not removed all extents beyond it yet.
    pub shrinking: bool,
    /// Whether the inode is on the dirty list.
    pub listed: bool,
    /// Whether the inode was deleted: its items are removed from the tree.
    pub dead: bool,
    /// Whether a writeback failed that no fsync has reported yet.
    pub write_failed: bool,
    /// Whether the last failure was caused by a full host of the image.
    pub failed_full: bool,
    /// Number of failed writebacks since the last success, and (`retry_at`) the time of the next
    /// attempt in the background.
    pub failures: u32,
    pub retry_at: Duration,
}

pub(crate) struct Inode {
    pub ino: Ino,
    pub kind: FileKind,
    /// Whether the file's data has checksums ([`crate::sums`]). Changes only while the file has no
    /// data.
    sums: AtomicBool,
    /// Whether the file's data must stay out of the tree ([`crate::inline`]), until the inode is
    /// evicted.
    outside: AtomicBool,
    /// The largest size in bytes of a file whose data may be in the tree.
    inline_max: u64,
    /// Number of calls that need the file's data durable and for which it is not written yet.
    pub syncing: AtomicU32,
    pub io: RwLock<()>,
    pub wb: Mutex<()>,
    pub pages: Mutex<Pages>,
    pub meta: Mutex<Meta>,
}

impl Inode {
    /// Makes an inode. `sums`: the file's data has checksums.
    pub(crate) fn new(ino: Ino, core: InodeCore, kind: FileKind, sums: bool, progress: Progress) -> Inode {
        let meta = Meta {
            core,
            logged_size: core.size,
            unlogged: InodeMask::default(),
            progress,
            marks: NameMarks::default(),
            goal: None,
            ino_range: (0, 0),
            no_default_acl: false,
            shrinking: false,
            listed: false,
            dead: false,
            write_failed: false,
            failed_full: false,
            failures: 0,
            retry_at: Duration::ZERO,
        };
        Inode {
            ino,
            kind,
            sums: AtomicBool::new(sums),
            outside: AtomicBool::new(false),
            inline_max: 0,
            syncing: AtomicU32::new(0),
            io: RwLock::with_order(Rank::InodeIo, ino.0, ()),
            wb: Mutex::with_order(Rank::Writeback, ino.0, ()),
            pages: Mutex::with_order(Rank::PageRange, ino.0, Pages::new(sums)),
            meta: Mutex::with_order(Rank::InodeMeta, ino.0, meta),
        }
    }

    /// Sets the largest size in bytes of a file whose data may be in the tree.
    pub(crate) fn with_inline(self, inline_max: u64) -> Inode {
        Inode { inline_max, ..self }
    }

    /// Whether the file's data must stay out of the tree.
    pub(crate) fn is_outside(&self) -> bool {
        self.outside.load(Ordering::SeqCst)
    }

    /// Keeps the file's data out of the tree from now on. A record that is just moving data into
    /// the tree holds `wb`, with which the caller waits for it.
    pub(crate) fn stay_outside(&self) {
        self.outside.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Whether the file's data has checksums.
    pub(crate) fn has_sums(&self) -> bool {
        self.sums.load(Ordering::Relaxed)
    }

    /// Sets whether the file's data has checksums. The caller holds `io` exclusively, and the file
    /// has no data.
    pub(crate) fn set_sums(&self, sums: bool) {
        self.sums.store(sums, Ordering::Relaxed);
        self.pages.lock().never_overwrite(sums);
    }

    /// Runs `look` on the inode's items in the tree as they are between two records. Writeback
    /// changes extents while readers run: an extent that is cut in three, or joined with its
    /// neighbours, takes several edits. A reader between two of them would find a hole where there
    /// is data, or extents that overlap.
    ///
    /// A commit holds the meta lock and sets `commit_lsn`. So if `commit_lsn` is the same before
    /// and after `look`, no record came between. The first attempts do not hold the lock, since
    /// `look` may wait for the device. The last attempt does, so that the call ends even while
    /// another thread writes steadily.
    pub(crate) fn between_records<R>(&self, mut look: impl FnMut() -> R) -> R {
        const TRIES: u32 = 4;
        if broken::is(Variant::LookBetweenEdits) {
            return look();
        }
        let mut before = self.meta.lock().progress.commit_lsn;
        for _ in 0..TRIES {
            let found = look();
            let after = self.meta.lock().progress.commit_lsn;
            if before == after {
                return found;
            }
            before = after;
        }
        let _meta = self.meta.lock();
        look()
    }

    /// The attributes that stat(2) shows.
    pub(crate) fn attr(&self) -> Result<Attr> {
        let delayed = if self.kind == FileKind::Regular { self.pages.lock().promised() } else { 0 };
        let meta = self.meta.lock();
        if meta.dead {
            return Err(Error::NotFound);
        }
        let mut core = meta.core;
        // Blocks promised to delayed allocation count, as in other file systems.
        core.blocks += delayed;
        let mut attr = Attr::from_core(self.ino, &core, self.kind);
        if self.kind == FileKind::Regular && core.blocks == 0 && core.size <= self.inline_max {
            // The data may be in the tree. Programs take a file without any block for a hole.
            attr.blocks = core.size.div_ceil(UNIT);
        }
        Ok(attr)
    }
}

/// Counts a call in [`Inode::syncing`] until its data is written.
pub(crate) struct Syncing<'a>(&'a Inode);

impl Syncing<'_> {
    pub(crate) fn join(inode: &Inode) -> Syncing<'_> {
        inode.syncing.fetch_add(1, Ordering::Relaxed);
        Syncing(inode)
    }
}

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        self.0.syncing.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The number of different trees that the inodes are in, at least 1.
pub(crate) fn tree_count(inodes: &[Arc<Inode>]) -> usize {
    let trees: BTreeSet<u32> = inodes.iter().map(|inode| inode.ino.tree()).collect();
    trees.len().max(1)
}

/// The progress to keep for an inode that may be evicted; `None` if it must stay in memory.
pub(crate) fn evictable(inode: &Inode) -> Option<Progress> {
    let pages = inode.pages.try_lock_unranked()?;
    if !pages.map.is_empty() {
        return None;
    }
    drop(pages);
    let meta = inode.meta.try_lock_unranked()?;
    (meta.unlogged.is_empty() && !meta.listed && !meta.shrinking && !meta.dead && !meta.write_failed)
        .then_some(meta.progress)
}
