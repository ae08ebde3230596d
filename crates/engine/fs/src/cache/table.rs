//! The table that caches inodes, the undurable progress of evicted inodes, and pins.
//!
//! # Chunks
//! Inodes of sixteen successive numbers share one entry of the table, a *chunk*. Siblings have
//! successive numbers ([`crate::cache::inodes::Inodes::new_ino`]). So the inodes of a directory
//! take a sixteenth of the look-ups in cold memory, and a table that grows moves a sixteenth of the
//! entries.
//!
//! # Eviction
//! The policy is second chance: the chunks of a shard form a ring with a hand. An insertion into a
//! full shard examines the chunk under the hand. If the chunk was used since the hand's last visit,
//! it stays. Otherwise those of its inodes are removed that have no other reference and no
//! unwritten state, and the chunk with its last inode. An insertion examines a bounded number of
//! chunks. If their inodes cannot be evicted, the table grows beyond its limit.
//!
//! Inodes that cannot be evicted do not count for the limit; the hand counts them on its round.
//! Most of them have pages in memory, which the budget of pages bounds. If they counted, a table
//! full of small files' inodes would have no room for new ones: these would be evicted at the
//! hand's next round, and each insertion would examine the maximum of inodes in cold memory. Linux
//! keeps inodes with pages off its LRU list for the same reason.
//!
//! # Loading
//! An inode that is not in the table is read from the tree by one thread. Threads that need the
//! same inode meanwhile wait for that read ([`InodeTable::get_or_load`]). No lock of the table is
//! held across the read. The read takes no lock of an inode, so a waiting thread may hold any.
//!
//! An inode that was read is not stale when it enters the table, because no thread can change it in
//! the tree during the read:
//! 1. *While an inode is read, it is not in the table, and no thread holds an [`Inode`] of it* that
//!    is not dead. Eviction takes only inodes without other references, under the lock of the
//!    shard, and a thread that arrives later waits for the read. [`InodeTable::remove`] takes only
//!    dead inodes.
//! 2. *A change of an inode's items in the tree is made by a thread that holds its `Inode`, which
//!    is not dead.* The thread got it from [`crate::cache::inodes::Inodes::get`] before it built
//!    the record. That holds for namespace operations, for the inode that a rename displaces, for
//!    attributes, truncate and writeback, and for the deletion of orphans (also at mount). `dead`
//!    is checked under the meta lock that the commit needs, or under the io lock that a deletion
//!    needs.
//! 3. *A new inode enters the table before its record is applied*, with its meta locked until then.
//!    A thread that reads earlier finds nothing in the tree. A thread that arrives later waits for
//!    the lock ([`crate::cache::inodes::NewInode`]).
//! 4. *Numbers are not reused*, so the number of a dead inode finds nothing in the tree, now and
//!    later. Only after a replacement of the first tree do the same numbers find other inodes.
//!    During the replacement no thread changes anything; after its cut all reads that began before
//!    it are awaited, and all inodes of the tree leave the table.
//! 5. Recovery applies records to the tree before the table exists. A checkpoint changes no item;
//!    the writeback that it requests follows rule 2.
//!
//! The alternative is a counter of changes for each shard, compared before and after the read. With
//! many concurrent changes it would repeat reads without bound.

use crate::cache::inode::{Inode, Progress, evictable};
use crate::error::Result;
use kedge_base::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use kedge_base::broken::pause::{self, Point};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Condvar, Mutex, Rank, RwLock};
use kedge_base::{Ino, InoMap};
use kedge_format::{FileKind, InodeCore};
use kedge_store::Store;
use std::sync::Arc;

const SHARDS: usize = 32;
/// Inode numbers of a chunk.
const CHUNK: u64 = 16;
/// The most chunks that one insertion into a full shard examines.
const LOOK_AT: usize = 8;

/// An observer that is notified of each inode that enters or leaves the table, under the lock of
/// its shard.
pub(crate) trait CacheWatch: Send + Sync {
    fn entered(&self, inode: &Arc<Inode>);
    fn left(&self, ino: Ino);

    /// Called when a sync searches for inodes under writeback. Returns the number of other inodes
    /// visited.
    fn before_sync(&self) -> usize;
}

/// The observer of the table. `None` if there is none.
pub(crate) type Watch = Option<Arc<dyn CacheWatch>>;

/// Cached inodes, the undurable progress of evicted inodes, and pins.
pub(crate) struct InodeTable {
    /// Each has a reader-writer lock, since look-ups share a shard: all threads that work in one
    /// directory look up that directory.
    shards: Vec<RwLock<Shard>>,
    per_shard_max: AtomicUsize,
    watch: Watch,
}

#[derive(Default)]
struct Chunk {
    inodes: [Option<Arc<Inode>>; CHUNK as usize],
    count: u8,
    /// Whether a look-up has used the chunk since the hand's last visit.
    used: AtomicBool,
    /// Index of the chunk in the ring.
    at: usize,
}

#[derive(Default)]
struct Shard {
    /// Chunks by the number of their first inode. No chunk is empty.
    chunks: InoMap<Box<Chunk>>,
    /// The keys of `chunks`, each once.
    ring: Vec<Ino>,
    hand: usize,
    /// Number of inodes in all chunks.
    inodes: usize,
    /// Number of inodes that the hand could not evict: in its present round, and (`kept_before`) in
    /// its last complete one.
    kept: usize,
    kept_before: usize,
    /// Progress of evicted inodes that is not known to be durable.
    evicted: InoMap<Progress>,
    pins: InoMap<u64>,
    /// Reads from the tree in progress.
    loads: InoMap<Arc<Load>>,
    /// Size of `evicted` at which durable entries are dropped.
    sweep_at: usize,
}

/// A read of an inode in progress, with its result for the waiting threads.
struct Load {
    answer: Mutex<Option<Answer>>,
    answered: Condvar,
}

#[derive(Clone)]
enum Answer {
    Read(Result<Arc<Inode>>),
    /// The reading thread panicked.
    Gone,
}

impl Load {
    fn new() -> Load {
        Load { answer: Mutex::new(Rank::Leaf, None), answered: Condvar::new() }
    }

    fn wait(&self) -> Answer {
        let mut answer = self.answer.lock();
        loop {
            match &*answer {
                Some(answer) => return answer.clone(),
                None => self.answered.wait(&mut answer),
            }
        }
    }
}

/// The duty of the reading thread to publish its result. If it is dropped without a result, the
/// waiting threads try again.
struct Loading<'a> {
    table: &'a InodeTable,
    ino: Ino,
    load: Arc<Load>,
    answer: Answer,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        // The read is removed from the shard first: a thread that arrives from now on finds the
        // inode in the table, or reads it itself.
        self.table.shard(self.ino).write().loads.remove(&self.ino);
        *self.load.answer.lock() = Some(self.answer.clone());
        self.load.answered.notify_all();
    }
}

/// Where a thread gets an inode from.
enum Wanted {
    There(Arc<Inode>),
    Awaited(Arc<Load>),
    /// The calling thread must read the inode.
    Mine(Arc<Load>),
}

/// The key of the chunk that contains an inode, and the index of the inode in that chunk.
fn place(ino: Ino) -> (Ino, usize) {
    (Ino(ino.0 - ino.0 % CHUNK), (ino.0 % CHUNK) as usize)
}

impl InodeTable {
    pub(crate) fn new(inodes_max: usize, watch: Watch) -> InodeTable {
        InodeTable {
            watch,
            shards: (0..SHARDS)
                .map(|_| RwLock::new(Rank::Leaf, Shard { sweep_at: 64, ..Default::default() }))
                .collect(),
            per_shard_max: AtomicUsize::new(per_shard(inodes_max)),
        }
    }

    fn shard(&self, ino: Ino) -> &RwLock<Shard> {
        &self.shards[(ino.0 / CHUNK) as usize % SHARDS]
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.shard(ino).read().get(ino)
    }

    /// Returns the inodes for which `wanted` holds.
    pub(crate) fn filtered(&self, wanted: impl Fn(Ino) -> bool) -> Vec<Arc<Inode>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            let inodes = shard.chunks.values().flat_map(|chunk| chunk.inodes.iter().flatten());
            found.extend(inodes.filter(|inode| wanted(inode.ino)).cloned());
        }
        found
    }

    /// Waits for the reads in progress of inodes for which `of` holds. Reads that begin later are
    /// not awaited.
    pub(crate) fn wait_for_loads(&self, of: impl Fn(Ino) -> bool) {
        for shard in &self.shards {
            let loads: Vec<_> = {
                let shard = shard.read();
                shard.loads.iter().filter(|(ino, _)| of(**ino)).map(|(_, load)| load.clone()).collect()
            };
            loads.iter().for_each(|load| drop(load.wait()));
        }
    }

    /// Removes the pins of inodes for which `of` holds, and the undurable progress of those that
    /// were evicted.
    pub(crate) fn forget_pins(&self, of: impl Fn(Ino) -> bool) {
        for shard in &self.shards {
            let mut shard = shard.write();
            shard.pins.retain(|ino, _| !of(*ino));
            shard.evicted.retain(|ino, _| !of(*ino));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().inodes).sum()
    }

    pub(crate) fn max(&self) -> usize {
        self.per_shard_max.load(Relaxed) * SHARDS
    }

    /// Sets the maximum of inodes, and evicts inodes beyond it. The hand passes each chunk at most
    /// twice: the first pass may only clear the chunk's mark of use.
    pub(crate) fn set_max(&self, store: &Store, inodes_max: usize) {
        let most = per_shard(inodes_max);
        self.per_shard_max.store(most, Relaxed);
        for shard in &self.shards {
            let mut shard = shard.write();
            for _ in 0..2 * shard.ring.len() {
                if shard.inodes <= most || shard.ring.is_empty() {
                    break;
                }
                shard.evict_one(store, &self.watch);
            }
            shard.shrink();
        }
    }

    /// Returns the inode, from the table or from `read`. One thread reads, and all threads that
    /// request the inode meanwhile return the same result, including an error. The loop repeats
    /// only after a panic of the reading thread.
    pub(crate) fn get_or_load(
        &self,
        store: &Store,
        ino: Ino,
        read: impl FnOnce() -> Result<(InodeCore, FileKind)>,
    ) -> Result<Arc<Inode>> {
        loop {
            match self.want(ino) {
                Wanted::There(inode) => return Ok(inode),
                Wanted::Awaited(load) => {
                    pause::at(Point::InodeAwaited);
                    if let Answer::Read(result) = load.wait() {
                        return result;
                    }
                }
                Wanted::Mine(load) => {
                    let mut loading = Loading { table: self, ino, load, answer: Answer::Gone };
                    let result = read().map(|(core, kind)| self.insert_loaded(store, ino, core, kind));
                    loading.answer = Answer::Read(result.clone());
                    return result;
                }
            }
        }
    }

    fn want(&self, ino: Ino) -> Wanted {
        if let Some(inode) = self.get(ino) {
            return Wanted::There(inode);
        }
        // Another thread may have added the inode since the first look-up.
        let mut shard = self.shard(ino).write();
        if let Some(inode) = shard.get(ino) {
            return Wanted::There(inode);
        }
        // Broken on purpose: each thread reads by itself, even if the inode changes meanwhile.
        if broken::is(Variant::StaleInode) {
            return Wanted::Mine(Arc::new(Load::new()));
        }
        if let Some(load) = shard.loads.get(&ino) {
            return Wanted::Awaited(load.clone());
        }
        let load = Arc::new(Load::new());
        shard.loads.insert(ino, load.clone());
        Wanted::Mine(load)
    }

    /// Adds an inode that was read from the tree. Returns the inode in the table. That is another
    /// one only if a thread requested the number of an inode that was just being created.
    fn insert_loaded(&self, store: &Store, ino: Ino, core: InodeCore, kind: FileKind) -> Arc<Inode> {
        let mut shard = self.shard(ino).write();
        if let Some(there) = shard.get(ino) {
            return there;
        }
        let progress = shard.evicted.remove(&ino).unwrap_or_default();
        let sums = store.geometry().sums_data(&core);
        let inode = Inode::new(ino, core, kind, sums, progress);
        let inode = Arc::new(inode.with_inline(store.geometry().inline_max));
        self.add(&mut shard, store, inode.clone());
        inode
    }

    /// Adds an inode that is being created. Returns whether its number was free.
    #[must_use]
    pub(crate) fn insert_new(&self, store: &Store, inode: Arc<Inode>) -> bool {
        let mut shard = self.shard(inode.ino).write();
        if shard.get(inode.ino).is_some() {
            return false;
        }
        self.add(&mut shard, store, inode);
        true
    }

    fn add(&self, shard: &mut Shard, store: &Store, inode: Arc<Inode>) {
        for _ in 0..LOOK_AT {
            if !shard.is_full(self.per_shard_max.load(Relaxed)) || shard.ring.is_empty() {
                break;
            }
            shard.evict_one(store, &self.watch);
        }
        if let Some(watch) = &self.watch {
            watch.entered(&inode);
        }
        shard.insert(inode);
    }

    /// Removes a dead inode.
    pub(crate) fn remove(&self, ino: Ino) {
        let mut shard = self.shard(ino).write();
        if shard.remove(ino)
            && let Some(watch) = &self.watch
        {
            watch.left(ino);
        }
        shard.evicted.remove(&ino);
    }

    pub(crate) fn pin(&self, ino: Ino) {
        self.pin_by(ino, 1);
    }

    pub(crate) fn pin_by(&self, ino: Ino, count: u64) {
        let mut shard = self.shard(ino).write();
        let pins = shard.pins.entry(ino).or_insert(0);
        *pins = pins.saturating_add(count);
    }

    /// Removes `count` pins. Returns whether these were the last.
    pub(crate) fn unpin(&self, ino: Ino, count: u64) -> bool {
        let mut shard = self.shard(ino).write();
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

    pub(crate) fn is_pinned(&self, ino: Ino) -> bool {
        self.shard(ino).read().pins.contains_key(&ino)
    }
}

fn per_shard(inodes_max: usize) -> usize {
    (inodes_max / SHARDS).max(16)
}

impl Shard {
    /// Releases memory that removed chunks have left.
    fn shrink(&mut self) {
        self.chunks.shrink_to(2 * self.chunks.len());
        self.ring.shrink_to(2 * self.ring.len());
    }

    fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        let (first, index) = place(ino);
        let chunk = self.chunks.get(&first)?;
        // Stored only if the value changes: a store takes the cache line from other threads.
        if !chunk.used.load(Relaxed) {
            chunk.used.store(true, Relaxed);
        }
        chunk.inodes[index].clone()
    }

    fn insert(&mut self, inode: Arc<Inode>) {
        let (first, index) = place(inode.ino);
        let ring = &mut self.ring;
        let chunk = self.chunks.entry(first).or_insert_with(|| {
            ring.push(first);
            // A new chunk counts as used, since the hand may be right before it.
            Box::new(Chunk { at: ring.len() - 1, used: true.into(), ..Default::default() })
        });
        if chunk.inodes[index].replace(inode).is_none() {
            chunk.count += 1;
            self.inodes += 1;
        }
    }

    /// Removes an inode. Returns whether it was in the shard.
    fn remove(&mut self, ino: Ino) -> bool {
        let (first, index) = place(ino);
        let Some(chunk) = self.chunks.get_mut(&first) else { return false };
        if chunk.inodes[index].take().is_none() {
            return false;
        }
        chunk.count -= 1;
        self.inodes -= 1;
        if chunk.count == 0 {
            self.remove_chunk(first);
        }
        true
    }

    fn remove_chunk(&mut self, first: Ino) {
        let gone = self.chunks.remove(&first).expect("the caller has looked at it");
        assert_eq!(self.ring.swap_remove(gone.at), first, "a chunk knows its place");
        if let Some(moved) = self.ring.get(gone.at) {
            self.chunks.get_mut(moved).expect("the ring has the chunks that there are").at = gone.at;
        }
    }

    /// Whether an insertion must evict: inodes that cannot be evicted do not count.
    fn is_full(&self, max: usize) -> bool {
        self.inodes >= max + self.kept.max(self.kept_before)
    }

    /// Examines the chunk under the hand. The shard has at least one chunk.
    fn evict_one(&mut self, store: &Store, watch: &Watch) {
        let at = self.hand % self.ring.len();
        if at == 0 {
            self.kept_before = std::mem::take(&mut self.kept);
        }
        // The hand advances even if the chunk is removed: the last chunk of the ring, normally the
        // newest, then takes the index of the removed one.
        self.hand = at + 1;
        let first = self.ring[at];
        let chunk = self.chunks.get_mut(&first).expect("the ring has the chunks that there are");
        if std::mem::take(chunk.used.get_mut()) {
            return;
        }
        for (slot, ino) in chunk.inodes.iter_mut().zip(first.0..) {
            // If the table has the only reference, no other thread can obtain one, since this
            // thread holds the lock of the shard.
            let held = slot.as_ref().is_none_or(|inode| Arc::strong_count(inode) > 1);
            let Some(progress) = slot.as_deref().filter(|_| !held).and_then(evictable) else { continue };
            *slot = None;
            chunk.count -= 1;
            self.inodes -= 1;
            if let Some(watch) = watch {
                watch.left(Ino(ino));
            }
            // Broken on purpose: the undurable progress is lost.
            if !progress.is_durable(store) && !broken::is(Variant::ForgetEvicted) {
                self.evicted.insert(Ino(ino), progress);
            }
        }
        self.kept += chunk.count as usize;
        if chunk.count == 0 {
            self.remove_chunk(first);
        }
        if self.evicted.len() >= self.sweep_at {
            self.evicted.retain(|_, p| !p.is_durable(store));
            self.sweep_at = (self.evicted.len() * 2).max(64);
        }
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
