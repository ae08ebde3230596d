//! Sums over all trees of one owner. The owner reads the sums for each operation, and has too many
//! trees to visit all of them.

use kedge_base::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Memory of the nodes of all trees that share these totals, and the size of the largest tree.
#[derive(Debug, Default)]
pub struct Totals {
    cached: AtomicUsize,
    dirty: AtomicUsize,
    nodes_max: AtomicU64,
    height_max: AtomicU32,
}

impl Totals {
    /// Returns the memory of all nodes in bytes, including dirty nodes.
    pub fn cached_bytes(&self) -> usize {
        self.cached.load(Relaxed)
    }

    /// Returns the memory in bytes of nodes that cannot be evicted until a checkpoint has written
    /// them.
    pub fn dirty_bytes(&self) -> usize {
        self.dirty.load(Relaxed)
    }

    /// Returns the greatest height and the greatest number of nodes that any tree has had since the
    /// last [`Totals::set_largest`].
    pub fn largest(&self) -> (u32, u64) {
        (self.height_max.load(Relaxed), self.nodes_max.load(Relaxed))
    }

    /// Sets the height and the number of nodes of the largest tree. The caller ensures that no tree
    /// changes concurrently.
    pub fn set_largest(&self, height: u32, nodes: u64) {
        self.height_max.store(height, Relaxed);
        self.nodes_max.store(nodes, Relaxed);
    }

    /// Updates the maxima with the size of a tree. Stores only new maxima, because all trees share
    /// the cache line.
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
