//! Inodes in memory: their locks, their attributes, what is not yet durable of them. `inode_cache` caches them.
//!
//! # Locks of an inode, in the order in which they are taken
//! 1. `io`: shared by reads and lookups; exclusive for writes, truncates and changes of a directory's entries. Several
//!    inodes': in ascending inode order.
//! 2. `wb`: one writeback of an inode at a time; excludes truncate, punch and deletion.
//! 3. `pages`, then 4. `meta`: short, never across IO of file data, a wait for log space or a force of the log. `meta` is
//!    held across a commit that touches the inode, so that records of one inode are appended in the order in which they
//!    take effect; a commit may read tree nodes that are not in memory.
//!
//! # LSNs
//! `commit_lsn` and `datasync_lsn` are ends of records: durable when `durable_lsn` has reached them. They are numbers,
//! not flags, and survive eviction in a side table until they are durable: an inode that is read in again is never
//! taken for durable because nobody remembers it.

use crate::pages::Pages;
use kedge_base::lock::{Mutex, Rank, RwLock};
use kedge_base::{BlockNo, Generation, Ino, Lsn};
use kedge_format::record::InodeMask;
use kedge_format::{FileKind, InodeCore};
use kedge_store::{Store, WriteSeq};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// What is not yet known to be durable of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// End of the last record that touched the inode.
    pub commit_lsn: Lsn,
    /// End of the last record that touched more than its time stamps.
    pub datasync_lsn: Lsn,
    /// Its last data write in place.
    pub write_seq: WriteSeq,
    /// Generation in which it was last fsynced: for `new_name=sync`.
    pub synced_in: Generation,
}

impl Progress {
    fn is_durable(&self, store: &Store) -> bool {
        self.commit_lsn <= store.durable_lsn() && store.data_flushed(self.write_seq)
    }

    /// An fsync named the inode since the last checkpoint.
    pub fn was_synced(&self, store: &Store) -> bool {
        self.synced_in == store.generation()
    }

    /// Nothing in it has to outlive eviction.
    pub fn is_settled(&self, store: &Store) -> bool {
        self.is_durable(store) && !self.was_synced(store)
    }
}

pub(crate) struct Meta {
    /// The live attributes; `size` includes bytes that no record names yet.
    pub core: InodeCore,
    /// The size that records name.
    pub logged_size: u64,
    /// Time stamps that changed and are in no record.
    pub unlogged: InodeMask,
    pub progress: Progress,
    /// Block behind the last one allocated to the file: where the next one is wanted.
    pub goal: Option<BlockNo>,
    /// Of a directory: inode numbers set aside for its children, next and end.
    pub ino_range: (u64, u64),
    /// A truncate has set the size and not yet removed all extents behind it.
    pub shrinking: bool,
    /// On the dirty list.
    pub listed: bool,
    /// Its items are gone.
    pub dead: bool,
    /// A writeback failed, and no fsync has told of it.
    pub write_failed: bool,
    /// How often writeback failed since it last succeeded, and when the background tries again.
    pub failures: u32,
    pub retry_at: Duration,
}

pub(crate) struct Inode {
    pub ino: Ino,
    pub kind: FileKind,
    /// Calls that want its data durable and have not seen it written yet.
    pub syncing: AtomicU32,
    pub io: RwLock<()>,
    pub wb: Mutex<()>,
    pub pages: Mutex<Pages>,
    pub meta: Mutex<Meta>,
}

impl Inode {
    pub fn new(ino: Ino, core: InodeCore, kind: FileKind, progress: Progress) -> Inode {
        let meta = Meta {
            core,
            logged_size: core.size,
            unlogged: InodeMask::default(),
            progress,
            goal: None,
            ino_range: (0, 0),
            shrinking: false,
            listed: false,
            dead: false,
            write_failed: false,
            failures: 0,
            retry_at: Duration::ZERO,
        };
        Inode {
            ino,
            kind,
            syncing: AtomicU32::new(0),
            io: RwLock::with_order(Rank::InodeIo, ino.0, ()),
            wb: Mutex::with_order(Rank::Writeback, ino.0, ()),
            pages: Mutex::with_order(Rank::PageRange, ino.0, Pages::default()),
            meta: Mutex::with_order(Rank::InodeMeta, ino.0, meta),
        }
    }

    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// The progress to remember of an inode that may be evicted.
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
