//! Inodes in memory: their locks, their attributes, and the table that caches them.
//!
//! # Locks of an inode, in the order in which they are taken
//! 1. `io`: shared by reads and lookups; exclusive for writes, truncates and changes of a directory's entries. Several
//!    inodes': in ascending inode order.
//! 2. `wb`: one writeback of an inode at a time; excludes truncate, punch and deletion.
//! 3. `pages`, then 4. `meta`: short, never across IO. `meta` is held across a commit that touches the inode, so that
//!    records of one inode are appended in the order in which they take effect.
//!
//! # LSNs
//! `commit_lsn` and `datasync_lsn` are ends of records: durable when `durable_lsn` has reached them. They are numbers,
//! not flags, and survive eviction in a side table until they are durable: an inode that is read in again is never
//! taken for durable because nobody remembers it.

use crate::dirty::DirtyList;
use crate::pages::Pages;
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Mutex, Rank, RwLock};
use kedge_base::{BlockNo, Generation, Ino, InoMap, Lsn};
use kedge_format::record::InodeMask;
use kedge_format::{FileKind, InodeCore};
use kedge_store::{Store, WriteSeq};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

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
    fn is_settled(&self, store: &Store) -> bool {
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
    /// A data write failed and nobody was told.
    pub write_failed: bool,
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

const SHARDS: usize = 32;

/// Cached inodes, what is undurable of evicted ones, and pins.
pub(crate) struct InodeTable {
    shards: Vec<Mutex<Shard>>,
    per_shard_max: usize,
    count: AtomicUsize,
    tracking: Arc<DirtyList>,
}

#[derive(Default)]
struct Shard {
    inodes: InoMap<Arc<Inode>>,
    /// Progress of evicted inodes that is not known to be durable.
    evicted: InoMap<Progress>,
    pins: InoMap<u64>,
    /// Size of `evicted` at which durable entries are dropped.
    sweep_at: usize,
}

impl InodeTable {
    pub fn new(inodes_max: usize, tracking: Arc<DirtyList>) -> InodeTable {
        InodeTable {
            tracking,
            shards: (0..SHARDS)
                .map(|_| Mutex::new(Rank::Leaf, Shard { sweep_at: 64, ..Default::default() }))
                .collect(),
            per_shard_max: (inodes_max / SHARDS).max(16),
            count: AtomicUsize::new(0),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[(ino.0 as usize) % SHARDS]
    }

    pub fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.shard(ino).lock().inodes.get(&ino).cloned()
    }

    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Adds an inode read from the tree, unless another thread was faster. Returns the one in the table.
    pub fn insert_loaded(&self, store: &Store, ino: Ino, core: InodeCore, kind: FileKind) -> Arc<Inode> {
        let mut shard = self.shard(ino).lock();
        if let Some(there) = shard.inodes.get(&ino) {
            return there.clone();
        }
        let progress = shard.evicted.remove(&ino).unwrap_or_default();
        let inode = Arc::new(Inode::new(ino, core, kind, progress));
        self.add(&mut shard, store, inode.clone());
        inode
    }

    /// Adds an inode that was just created.
    pub fn insert_new(&self, store: &Store, inode: Arc<Inode>) {
        let mut shard = self.shard(inode.ino).lock();
        self.add(&mut shard, store, inode);
    }

    fn add(&self, shard: &mut Shard, store: &Store, inode: Arc<Inode>) {
        if shard.inodes.len() >= self.per_shard_max {
            let evicted = shard.evict(store, self.per_shard_max / 8 + 1, &self.tracking);
            self.count.fetch_sub(evicted, Ordering::Relaxed);
        }
        self.tracking.cached(inode.ino, true);
        if shard.inodes.insert(inode.ino, inode).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets a deleted inode.
    pub fn remove(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        if shard.inodes.remove(&ino).is_some() {
            self.tracking.cached(ino, false);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        shard.evicted.remove(&ino);
    }

    pub fn pin(&self, ino: Ino) {
        *self.shard(ino).lock().pins.entry(ino).or_insert(0) += 1;
    }

    /// Returns true when the last pin went.
    pub fn unpin(&self, ino: Ino, count: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(pins) = shard.pins.get_mut(&ino) else { return false };
        *pins = pins.saturating_sub(count);
        if *pins > 0 {
            return false;
        }
        shard.pins.remove(&ino);
        if shard.pins.capacity() > 64 && shard.pins.len() * 4 < shard.pins.capacity() {
            shard.pins.shrink_to_fit();
        }
        true
    }

    pub fn is_pinned(&self, ino: Ino) -> bool {
        self.shard(ino).lock().pins.contains_key(&ino)
    }
}

impl Shard {
    /// Drops up to `want` inodes that nobody uses and that hold nothing unwritten.
    fn evict(&mut self, store: &Store, want: usize, tracking: &DirtyList) -> usize {
        let mut victims = Vec::with_capacity(want);
        for (ino, inode) in &self.inodes {
            if victims.len() == want {
                break;
            }
            if Arc::strong_count(inode) > 1 {
                continue;
            }
            // Nobody else can hold them: the table's reference is the only one. No rank is taken: this is try only.
            let Some(progress) = evictable(inode) else { continue };
            victims.push((*ino, progress));
        }
        for (ino, progress) in &victims {
            self.inodes.remove(ino);
            tracking.cached(*ino, false);
            // Broken on purpose: nobody remembers what is not durable of it.
            if !progress.is_settled(store) && !broken::is(Variant::ForgetEvicted) {
                self.evicted.insert(*ino, *progress);
            }
        }
        if self.evicted.len() >= self.sweep_at {
            self.evicted.retain(|_, p| !p.is_settled(store));
            self.sweep_at = (self.evicted.len() * 2).max(64);
        }
        victims.len()
    }
}

/// The progress to remember of an inode that may be evicted.
fn evictable(inode: &Inode) -> Option<Progress> {
    let pages = inode.pages.try_lock_unranked()?;
    if !pages.map.is_empty() {
        return None;
    }
    drop(pages);
    let meta = inode.meta.try_lock_unranked()?;
    (meta.unlogged.is_empty() && !meta.listed && !meta.shrinking && !meta.dead && !meta.write_failed)
        .then_some(meta.progress)
}
