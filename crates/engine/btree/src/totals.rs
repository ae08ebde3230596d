//! Sums over the trees of one owner, which read them for each operation and have too many trees to
//! visit all.

use kedge_base::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Memory of the nodes of all trees that share it, and the size of the largest.
#[derive(Debug, Default)]
pub struct Totals {
    cached: AtomicUsize,
    dirty: AtomicUsize,
    nodes_max: AtomicU64,
    height_max: AtomicU32,
}

impl Totals {
    /// Memory of all nodes held, dirty ones included.
    pub fn cached_bytes(&self) -> usize {
        self.cached.load(Relaxed)
    }

    /// Memory of nodes that cannot be evicted until a checkpoint has written them.
    pub fn dirty_bytes(&self) -> usize {
        self.dirty.load(Relaxed)
    }

    /// The greatest height and the greatest number of nodes that a tree has had since the last
    /// [`Totals::set_largest`].
    pub fn largest(&self) -> (u32, u64) {
        (self.height_max.load(Relaxed), self.nodes_max.load(Relaxed))
    }

    /// Sets the height and the number of nodes of the largest tree. No tree changes meanwhile.
    pub fn set_largest(&self, height: u32, nodes: u64) {
        self.height_max.store(height, Relaxed);
        self.nodes_max.store(nodes, Relaxed);
    }

    /// A tree has this size. Stores rarely: all trees share the cache line.
    pub fn note_size(&self, nodes: u64, height: u32) {
        if nodes > self.nodes_max.load(Relaxed) {
            self.nodes_max.fetch_max(nodes, Relaxed);
        }
        if height > self.height_max.load(Relaxed) {
            self.height_max.fetch_max(height, Relaxed);
        }
    }

    pub(crate) fn add_cached(&self, bytes: usize) {
        self.cached.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn remove_cached(&self, bytes: usize) {
        self.cached.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn add_dirty(&self, bytes: usize) {
        self.dirty.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn remove_dirty(&self, bytes: usize) {
        self.dirty.fetch_sub(bytes, Relaxed);
    }
}
