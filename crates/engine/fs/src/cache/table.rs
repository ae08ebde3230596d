//! The table that caches inodes, the undurable progress of evicted inodes, and pins.
//!
//! # Chunks
//! Inodes of sixteen neighbouring numbers share one entry of the table, a *chunk*. Siblings have
//! neighbouring numbers ([`crate::cache::inodes::Inodes::new_ino`]). So a directory's inodes take a
//! sixteenth of the look-ups in cold memory, and a table that grows moves a sixteenth of the
//! entries.
//!
//! # Eviction
//! Second chance: the chunks of a shard form a ring with a hand. A full shard examines the chunk
//! under the hand. A chunk that was used since the hand's last visit stays. Otherwise its inodes
//! are removed that are unreferenced and have no unwritten state, and the chunk with its last
//! inode. An insertion examines a bounded number of chunks, and the table grows beyond its limit if
//! their inodes cannot be evicted.
//!
//! Inodes that cannot be evicted do not count: the limit is for the others. The hand counts them on
//! its round. Most of them have pages in memory, which the budget of pages bounds. If they counted,
//! a table full of small files' inodes would have no place for new ones, which would be evicted at
//! the hand's next round, and each insertion would examine the full bounded number of inodes in
//! cold memory. Linux keeps inodes with pages off its list for the same reason.
//!
//! # Loading
//! An inode that is not in the table is read from the tree by one thread. Threads that need the
//! same inode meanwhile wait for its result ([`InodeTable::get_or_load`]). No lock of the table is
//! held across the read. The read takes no lock of an inode, so threads that wait for it may hold
//! any.
//!
//! An inode that was read cannot be stale when it enters the table, because no thread can change it
//! in the tree meanwhile:
//! 1. *While an inode is read it is not in the table, and no thread holds an [`Inode`] of it* that
//!    is not dead. Eviction takes only inodes without other references, under the lock of the
//!    shard, and a thread that arrives later waits for the reader. [`InodeTable::remove`] takes
//!    only dead inodes.
//! 2. *Each change of an inode's items in the tree is made by a thread that holds its `Inode`, and
//!    not of a dead one.* The thread got it from [`crate::cache::inodes::Inodes::get`], before it
//!    made the record. That holds for namespace operations, rename's displaced inode, attributes,
//!    truncate, writeback, and the deletion of orphans (at mount also). `dead` is checked under the
//!    meta lock that the commit needs, or under the io lock that a deletion needs.
//! 3. *A new inode enters the table before its record is applied*, its meta locked until then. A
//!    thread that reads before finds nothing in the tree, and a thread that arrives after waits for
//!    the lock ([`crate::cache::inodes::NewInode`]).
//! 4. *Numbers are not reused*, so a dead inode's number finds nothing in the tree, now and later.
//!    If the first tree is replaced, the same numbers find other inodes. Then no thread changes
//!    anything, and after the cut reads from before it are awaited and all inodes of the tree leave
//!    the table.
//! 5. Recovery applies records to the tree before the table exists. A checkpoint changes no item;
//!    the writeback that it requests follows rule 2.
//!
//! The alternative, a counter of changes for each shard that is compared before and after the read,
//! would repeat reads without bound beside many changes.

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
/// Inodes of a chunk.
const CHUNK: u64 = 16;
/// Chunks that one insertion into a full shard examines.
const LOOK_AT: usize = 8;

/// Notified of each inode that enters or leaves the table, under the lock of its shard.
pub(crate) trait CacheWatch: Send + Sync {
    fn entered(&self, inode: &Arc<Inode>);
    fn left(&self, ino: Ino);

    /// A sync searches inodes under writeback. Returns the number of other inodes that it visited.
    fn before_sync(&self) -> usize;
}

/// `None` if there is no observer.
pub(crate) type Watch = Option<Arc<dyn CacheWatch>>;

/// Cached inodes, the undurable progress of evicted inodes, and pins.
pub(crate) struct InodeTable {
    /// Look-ups share a shard: all threads that work in one directory look up that directory.
    shards: Vec<RwLock<Shard>>,
    per_shard_max: AtomicUsize,
    watch: Watch,
}

#[derive(Default)]
struct Chunk {
    inodes: [Option<Arc<Inode>>; CHUNK as usize],
    count: u8,
    /// Whether it was used since the hand's last visit. Look-ups set it.
    used: AtomicBool,
    /// Its place in the ring.
    at: usize,
}

#[derive(Default)]
struct Shard {
    /// By the number of a chunk's first inode. No chunk is empty.
    chunks: InoMap<Box<Chunk>>,
    /// The same numbers, each once.
    ring: Vec<Ino>,
    hand: usize,
    /// In all chunks.
    inodes: usize,
    /// Inodes that could not be evicted at the hand's visit: in this round, and in the last
    /// complete one.
    kept: usize,
    kept_before: usize,
    /// Progress of evicted inodes that is not known to be durable.
    evicted: InoMap<Progress>,
    pins: InoMap<u64>,
    /// Reads from the tree under way.
    loads: InoMap<Arc<Load>>,
    /// Size of `evicted` at which durable entries are dropped.
    sweep_at: usize,
}

/// A read of an inode in progress, and its result for the threads that wait.
struct Load {
    answer: Mutex<Option<Answer>>,
    answered: Condvar,
}

#[derive(Clone)]
enum Answer {
    Read(Result<Arc<Inode>>),
    /// The reader panicked.
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

/// The reader's part. A drop without a result makes the waiting threads try again.
struct Loading<'a> {
    table: &'a InodeTable,
    ino: Ino,
    load: Arc<Load>,
    answer: Answer,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        // Removed from the shard first: a thread that arrives from now on finds the inode there, or
        // reads it.
        self.table.shard(self.ino).write().loads.remove(&self.ino);
        *self.load.answer.lock() = Some(self.answer.clone());
        self.load.answered.notify_all();
    }
}

/// The state of an inode that a thread needs.
enum Wanted {
    There(Arc<Inode>),
    Awaited(Arc<Load>),
    /// The caller must read it.
    Mine(Arc<Load>),
}

/// The chunk that holds an inode, and its place there.
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

    /// The inodes for which `wanted` holds.
    pub(crate) fn filtered(&self, wanted: impl Fn(Ino) -> bool) -> Vec<Arc<Inode>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            let inodes = shard.chunks.values().flat_map(|chunk| chunk.inodes.iter().flatten());
            found.extend(inodes.filter(|inode| wanted(inode.ino)).cloned());
        }
        found
    }

    /// Returns when no read of such an inode is under way that was at the call.
    pub(crate) fn wait_for_loads(&self, of: impl Fn(Ino) -> bool) {
        for shard in &self.shards {
            let loads: Vec<_> = {
                let shard = shard.read();
                shard.loads.iter().filter(|(ino, _)| of(**ino)).map(|(_, load)| load.clone()).collect()
            };
            loads.iter().for_each(|load| drop(load.wait()));
        }
    }

    /// Forgets the pins of such inodes, and what is not durable of those that were evicted.
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

    /// Sets how many inodes there may be, and evicts those beyond it that can go. The hand passes
    /// each chunk twice at most: the first time it may only take its mark of use.
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

    /// The inode, from the table or from `read`. One thread reads, and all threads that ask for the
    /// inode meanwhile return its result, an error too. The loop repeats only after a panic of
    /// the reading thread.
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
        // Another thread may have added it since.
        let mut shard = self.shard(ino).write();
        if let Some(inode) = shard.get(ino) {
            return Wanted::There(inode);
        }
        // Broken on purpose: each thread reads, even if the inode changes meanwhile.
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

    /// Adds an inode read from the tree. Returns the inode in the table, which is another only if a
    /// thread requested an inode's number while that inode was being created.
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

    /// Forgets a dead inode.
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
        *self.shard(ino).write().pins.entry(ino).or_insert(0) += count;
    }

    /// Returns whether that was the last pin.
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
    /// Gives back room that chunks have left.
    fn shrink(&mut self) {
        self.chunks.shrink_to(2 * self.chunks.len());
        self.ring.shrink_to(2 * self.ring.len());
    }

    fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        let (first, index) = place(ino);
        let chunk = self.chunks.get(&first)?;
        // Stored only if it changes: a store takes the cache line from other threads.
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
            // Marked as used, since the hand may be right before it.
            Box::new(Chunk { at: ring.len() - 1, used: true.into(), ..Default::default() })
        });
        if chunk.inodes[index].replace(inode).is_none() {
            chunk.count += 1;
            self.inodes += 1;
        }
    }

    /// Returns whether it was there.
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

    /// Whether an inode must be evicted for a new one, counting those that can be.
    fn is_full(&self, max: usize) -> bool {
        self.inodes >= max + self.kept.max(self.kept_before)
    }

    /// Examines one chunk. The shard has at least one.
    fn evict_one(&mut self, store: &Store, watch: &Watch) {
        let at = self.hand % self.ring.len();
        if at == 0 {
            self.kept_before = std::mem::take(&mut self.kept);
        }
        // The hand advances even where a chunk is removed: the last chunk, normally the newest,
        // takes its place.
        self.hand = at + 1;
        let first = self.ring[at];
        let chunk = self.chunks.get_mut(&first).expect("the ring has the chunks that there are");
        if std::mem::take(chunk.used.get_mut()) {
            return;
        }
        for (slot, ino) in chunk.inodes.iter_mut().zip(first.0..) {
            // No other thread can obtain a reference: the table's is the only one, and this thread
            // holds the table's lock.
            let held = slot.as_ref().is_none_or(|inode| Arc::strong_count(inode) > 1);
            let Some(progress) = slot.as_deref().filter(|_| !held).and_then(evictable) else { continue };
            *slot = None;
            chunk.count -= 1;
            self.inodes -= 1;
            if let Some(watch) = watch {
                watch.left(Ino(ino));
            }
            // Broken on purpose: the undurable progress is forgotten.
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
