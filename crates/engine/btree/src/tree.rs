//! The tree's handle, and the descent from the root pointer to the leaf that covers a key.

use crate::cache::Cache;
use crate::epoch::Active;
use crate::frame::{ANCHOR, Frame, KeyRange, Node, Pins, Route, words};
use crate::latch::LatchWatch;
use crate::peek::{Step, child_of};
use crate::routes::Words;
use crate::stats::{LatchReport, Meter, TreeStats, stripe};
use crate::sync::relax;
use crate::totals::Totals;
use crate::tree_lock::TreeLock;
use kedge_base::atomic::{AtomicU8, AtomicU64, Ordering::*};
use kedge_base::{BlockNo, Clock, CorruptKind, Error, Generation, IoBuf, Result, SystemClock};
use kedge_format::Key;
use kedge_format::logwrite::LogSecret;
use kedge_format::node::{Child, LEVEL_MAX, NodeMut, NodeView};
use kedge_format::superblock::COUNTER_MAX;
use std::sync::Arc;

/// Number of candidates for eviction that are examined for each node that is read into memory.
pub(crate) const TRIM_PER_LOAD: usize = 64;
/// Number of attempts to descend without latches before a descent with latches.
const OPTIMISTIC_TRIES: u32 = 8;

/// Reads nodes from the device. Called without a latch; may sleep.
pub trait NodeIo: Send + Sync {
    /// Reads the four blocks of the node at `addr`.
    fn read_node(&self, addr: BlockNo) -> Result<IoBuf>;

    /// Reads several nodes, in parallel if the device can. Returns a result for each address, in
    /// order.
    fn read_nodes(&self, addrs: &[BlockNo]) -> Vec<Result<IoBuf>> {
        addrs.iter().map(|addr| self.read_node(*addr)).collect()
    }
}

/// Allocates and frees the blocks of nodes. Called under latches, so it must not do IO.
pub trait NodeSpace: Send + Sync {
    /// Allocates blocks for a node, close to the node at `near`. Does not fail if the caller of the
    /// tree has reserved enough nodes. If it fails, the tree's operation fails and changes no item.
    fn alloc_node(&self, near: BlockNo) -> Result<BlockNo>;

    /// Frees a node that the tree of the current generation no longer uses. If the node was born in
    /// the current generation, no checkpoint refers to it. Otherwise the last durable checkpoint
    /// may still use it.
    fn free_node(&self, addr: BlockNo, born: Generation);
}

pub struct TreeConfig {
    /// The image's uuid, which every node contains.
    pub uuid: uuid::Uuid,
    /// The image's secret key for the tags of its nodes.
    pub secret: LogSecret,
    /// Maximum memory for nodes, in bytes. Dirty nodes stay in memory even beyond this limit.
    pub cache_bytes: usize,
    /// The clock that measures waits for latches.
    pub clock: Arc<dyn Clock>,
    pub lock: TreeLock,
    /// Sums of memory and sizes over this tree and all others with the same totals.
    pub totals: Arc<Totals>,
}

impl TreeConfig {
    pub fn new(uuid: uuid::Uuid, secret: LogSecret, cache_bytes: usize) -> TreeConfig {
        let (clock, lock) = (Arc::new(SystemClock::default()), TreeLock::default());
        TreeConfig { uuid, secret, cache_bytes, clock, lock, totals: Arc::default() }
    }
}

/// A B+tree; see the crate's documentation. All methods may be called from many threads, except
/// where a method's documentation restricts it.
pub struct Tree {
    pub(crate) io: Arc<dyn NodeIo>,
    pub(crate) space: Arc<dyn NodeSpace>,
    pub(crate) uuid: uuid::Uuid,
    pub(crate) secret: LogSecret,
    pub(crate) meter: Arc<Meter>,
    pub(crate) cache: Cache,
    /// An inner node that exists in memory only and has the root as its only child. It makes the
    /// root a child that is copied, evicted and looked up like any other.
    pub(crate) anchor: Arc<Frame>,
    /// The current generation. Trees whose generations end together share it.
    generation: Arc<AtomicU64>,
    pub(crate) nodes: AtomicU64,
    /// Level of the root, for callers that need only an estimate of the tree's size.
    pub(crate) root_level: AtomicU8,
}

impl Tree {
    /// Creates a tree with one empty leaf, born in the current generation, which is the value of
    /// `generation`.
    pub fn create(
        io: Arc<dyn NodeIo>,
        space: Arc<dyn NodeSpace>,
        config: TreeConfig,
        generation: Arc<AtomicU64>,
    ) -> Result<Tree> {
        let addr = space.alloc_node(BlockNo(0))?;
        let child = Child { addr, generation: Generation(generation.load(Acquire)) };
        let tree = Tree::with_root(io, space, config, child, 0, 0, generation);
        let root = tree.new_frame(child, 0, KeyRange::ALL, |_| ());
        tree.anchor.write(&tree.watch(), |a| a.children[0] = Some(root.clone()));
        tree.adopt(&root);
        Ok(tree)
    }

    /// Opens the tree of a checkpoint, given its root, the number of its nodes, and the current
    /// generation, in which changed nodes are born. The current generation must be newer than every
    /// node on the device. Reads the root.
    #[allow(clippy::too_many_arguments)]
    pub fn open(
        io: Arc<dyn NodeIo>,
        space: Arc<dyn NodeSpace>,
        config: TreeConfig,
        root: BlockNo,
        root_generation: Generation,
        root_level: u8,
        nodes: u64,
        generation: Arc<AtomicU64>,
    ) -> Result<Tree> {
        let current = Generation(generation.load(Acquire));
        if root_level > LEVEL_MAX || root_generation >= current {
            return Err(Error::corrupt(
                CorruptKind::Node,
                root,
                format!("impossible root: level {root_level}, generation {root_generation} before {current}"),
            ));
        }
        let root = Child { addr: root, generation: root_generation };
        let tree = Tree::with_root(io, space, config, root, root_level, nodes, generation);
        while tree.child_of(&tree.watch(), &tree.anchor, &Key::MIN)?.is_none() {}
        Ok(tree)
    }

    fn with_root(
        io: Arc<dyn NodeIo>,
        space: Arc<dyn NodeSpace>,
        config: TreeConfig,
        root: Child,
        root_level: u8,
        nodes: u64,
        generation: Arc<AtomicU64>,
    ) -> Tree {
        let cache = Cache::new(config.lock, config.cache_bytes, nodes, config.totals);
        let (identity, level) = (Child { addr: BlockNo(u64::MAX), generation: ANCHOR }, root_level + 1);
        let mut anchor = Frame::new(&cache.shared, true, identity, level);
        let node = Frame::fill(&mut anchor);
        node.init(&config.uuid, identity, level).append(&Key::MIN, &root.encode());
        node.forget_children();
        node.range = KeyRange::ALL;
        Tree {
            io,
            space,
            uuid: config.uuid,
            secret: config.secret,
            meter: Arc::new(Meter::new(config.clock)),
            cache,
            anchor,
            generation,
            nodes: AtomicU64::new(nodes),
            root_level: AtomicU8::new(root_level),
        }
    }

    /// Returns the current generation, in which changed nodes are born.
    pub fn generation(&self) -> Generation {
        Generation(self.generation.load(Acquire))
    }

    /// Returns address, generation and level of the root.
    pub fn root(&self) -> (BlockNo, Generation, u8) {
        self.anchor.read(&self.watch(), |a| {
            let root = a.view().child(0);
            (root.addr, root.generation, a.view().level() - 1)
        })
    }

    /// Returns the number of nodes of the tree, in memory or not. In a corrupt image the number may
    /// be wrong, but a checkpoint that records it is valid.
    pub fn node_count(&self) -> u64 {
        self.nodes.load(Relaxed).min(COUNTER_MAX)
    }

    /// Returns the maximum number of nodes that one put can take from [`NodeSpace`] now: it may
    /// copy and split every node of the path, and add a new root. Each root split by a concurrent
    /// writer may lengthen the path by one level.
    pub fn nodes_per_put_max(&self) -> u64 {
        2 * self.height() as u64 + 2
    }

    /// Returns the number of nodes from the root to a leaf at the time of the call.
    pub fn height(&self) -> u32 {
        self.root_level.load(Relaxed) as u32 + 1
    }

    pub fn stats(&self) -> &TreeStats {
        &self.meter.stats
    }

    pub fn lock(&self) -> TreeLock {
        self.cache.shared.lock
    }

    /// Returns statistics of the latches since the tree was opened.
    pub fn latches(&self) -> LatchReport {
        self.meter.stats.report(self.lock())
    }

    /// Returns the memory of all nodes in bytes, including dirty nodes.
    pub fn cached_bytes(&self) -> usize {
        self.cache.shared.cached.load(Relaxed)
    }

    pub fn cache_bytes(&self) -> usize {
        self.cache.limit.load(Relaxed)
    }

    /// Sets the maximum memory for nodes in bytes, and evicts nodes beyond it where possible.
    pub fn set_cache_bytes(&self, bytes: usize) {
        self.cache.limit.store(bytes, Relaxed);
        self.trim(3 * self.cache.ring_len());
        self.cache.shared.epochs.collect();
    }

    /// Returns whether the whole tree is in memory at present, so that no node needs a pin.
    pub fn is_in_memory(&self) -> bool {
        self.cache.absent.load(Relaxed) == 0
    }

    /// Reads the leaves that cover `keys` into memory, and keeps them and their ancestors there.
    /// May wait for the device; holds no latch during the wait.
    pub fn pin(&self, keys: &[Key]) -> Result<Pins> {
        let mut pins = Pins(Vec::with_capacity(keys.len()));
        for key in keys {
            let pin = self.with_leaf(key, |n| n.pins.pin())?;
            pins.0.push(pin);
        }
        Ok(pins)
    }

    /// Makes a new dirty node, which is not linked and not visible to other threads yet.
    pub(crate) fn new_frame(
        &self,
        identity: Child,
        level: u8,
        range: KeyRange,
        fill: impl FnOnce(&mut NodeMut<'_>),
    ) -> Arc<Frame> {
        let mut frame = Frame::new(&self.cache.shared, false, identity, level);
        let node = Frame::fill(&mut frame);
        fill(&mut node.init(&self.uuid, identity, level));
        node.forget_children();
        node.range = range;
        frame
    }

    pub(crate) fn watch(&self) -> LatchWatch<'_> {
        LatchWatch::new(&self.meter)
    }

    /// Registers a new node of the current generation. Called under the latches of the step that
    /// links the node.
    pub(crate) fn adopt(&self, frame: &Arc<Frame>) {
        self.cache.add_dirty(frame);
        let nodes = self.nodes.fetch_add(1, Relaxed) + 1;
        self.cache.shared.totals.note_size(nodes, self.height());
    }

    /// Unregisters a node and frees its blocks. Called under the latches of the step that removed
    /// the node from the tree.
    pub(crate) fn retire(&self, frame: &Frame) {
        // In a corrupt image the count may be too low.
        let _ = self.nodes.fetch_update(Relaxed, Relaxed, |n| Some(n.saturating_sub(1)));
        if frame.born == self.generation() {
            let held = self.cache.remove_dirty(frame.addr);
            assert!(held.is_some(), "nodes of the current generation are in the dirty table");
            frame.mark_clean();
        }
        self.space.free_node(frame.addr, frame.born);
    }

    #[inline]
    pub(crate) fn route(&self, watch: &LatchWatch<'_>, parent: &Frame, key: &Key) -> Route {
        parent.read(watch, |p| p.route(key))
    }

    /// Returns the child of `parent` that covers the key, after reading it into memory if
    /// necessary. Returns `None` if the descent must restart.
    #[inline]
    pub(crate) fn child_of(
        &self,
        watch: &LatchWatch<'_>,
        parent: &Frame,
        key: &Key,
    ) -> Result<Option<Arc<Frame>>> {
        match self.route(watch, parent, key) {
            Route::Child(child) => {
                child.touch();
                Ok(Some(child))
            }
            Route::Missing(child) => self.load(watch, parent, key, child),
            Route::Stale => {
                self.meter.stats.restarts.inc();
                Ok(None)
            }
        }
    }

    /// Reads a node and links it into its parent, unless the parent has changed since: then another
    /// thread has linked the node, or the parent has another child for the key. In the latter case
    /// the bytes are ignored, even if they look corrupt, because the blocks may have been reused.
    #[cold]
    pub(crate) fn load(
        &self,
        watch: &LatchWatch<'_>,
        parent: &Frame,
        key: &Key,
        child: Child,
    ) -> Result<Option<Arc<Frame>>> {
        self.trim(TRIM_PER_LOAD);
        self.meter.stats.node_reads.inc();
        let read = self.io.read_node(child.addr);
        self.link(watch, parent, key, child, read)
    }

    /// The second half of [`Tree::load`]. `read` is the device's result.
    pub(crate) fn link(
        &self,
        watch: &LatchWatch<'_>,
        parent: &Frame,
        key: &Key,
        child: Child,
        read: Result<IoBuf>,
    ) -> Result<Option<Arc<Frame>>> {
        parent.write(watch, |p| {
            if !p.range.covers(key) {
                return Ok(None);
            }
            let i = p.child_index(key);
            if p.view().child(i) != child {
                return Ok(None);
            }
            if let Some(frame) = &p.children[i] {
                return Ok(Some(frame.clone()));
            }
            let (bytes, level) = (read?, p.view().level() - 1);
            let range = p.child_range(i);
            let view = NodeView::check(bytes.as_bytes(), &self.uuid, child.addr, child.generation, level)?;
            check_fences(view, &range, child.addr)?;
            let mut frame = Frame::new(&self.cache.shared, true, child, level);
            let node = Frame::fill(&mut frame);
            node.set_bytes(bytes.as_bytes());
            node.range = range;
            p.children[i] = Some(frame.clone());
            self.cache.absent.fetch_sub(1, Relaxed);
            self.cache.add_clean(std::iter::once(&frame));
            Ok(Some(frame))
        })
    }

    /// Returns a leaf that covered the key when the descent found it.
    #[inline]
    pub(crate) fn leaf_for(&self, watch: &LatchWatch<'_>, key: &Key) -> Result<Arc<Frame>> {
        'restart: loop {
            let Some(mut at) = self.child_of(watch, &self.anchor, key)? else {
                continue;
            };
            while at.level > 0 {
                match self.child_of(watch, &at, key)? {
                    Some(child) => at = child,
                    None => continue 'restart,
                }
            }
            return Ok(at);
        }
    }

    /// Returns the number of leaves that covered the keys when they were searched. May wait for the
    /// device.
    pub fn leaves_of(&self, keys: &[Key]) -> Result<u32> {
        let watch = self.watch();
        let mut keys: Vec<&Key> = keys.iter().collect();
        keys.sort_unstable();
        let (mut leaves, mut at) = (0, 0);
        while at < keys.len() {
            let leaf = self.leaf_for(&watch, keys[at])?;
            leaves += 1;
            at += 1;
            leaf.read(&watch, |n| at += keys[at..].iter().take_while(|key| n.range.covers(key)).count());
        }
        Ok(leaves)
    }

    /// Descends without latches and runs `f` on the leaf. `f` returns `None` if the leaf no longer
    /// covers the key. Returns `None` if the caller must descend with latches.
    #[inline]
    pub(crate) fn optimistic<R>(&self, key: &Key, mut f: impl FnMut(&Frame) -> Option<R>) -> Option<R> {
        let active = self.cache.shared.epochs.enter(stripe());
        let (key, mut looks) = (words(key), 0);
        for attempt in 0..OPTIMISTIC_TRIES {
            // A split takes a few microseconds from its first change of a leaf until the parent's
            // route table is updated. Spinning is shorter than the sleep of a descent with latches.
            (1..1u32 << attempt).for_each(|_| relax(&mut looks));
            let done = match self.descend(&active, &key) {
                Step::Child(leaf) => f(leaf),
                Step::Missing => break,
                Step::Stale | Step::Torn => None,
            };
            if done.is_some() {
                return done;
            }
            self.meter.stats.restarts.inc();
        }
        self.meter.stats.fallbacks.inc();
        None
    }

    /// Descends without latches. Returns `Child` with the leaf, or the reason why the descent
    /// stopped.
    #[inline]
    fn descend<'a>(&'a self, active: &'a Active<'_>, key: &Words) -> Step<'a> {
        let mut at: &Frame = &self.anchor;
        loop {
            match child_of(at, key, active) {
                Step::Child(child) => {
                    child.touch();
                    if child.level == 0 {
                        return Step::Child(child);
                    }
                    at = child;
                }
                other => return other,
            }
        }
    }

    /// Runs `f` on the leaf that covers the key, under the leaf's read latch.
    #[inline]
    pub(crate) fn with_leaf<R>(&self, key: &Key, mut f: impl FnMut(&Node) -> R) -> Result<R> {
        let watch = self.watch();
        let found = match self.lock() {
            TreeLock::Optimistic => {
                let mut f = |n: &Node| n.range.covers(key).then(|| f(n));
                self.optimistic(key, |leaf| leaf.latch.read_visibly(&watch, &mut f))
            }
            TreeLock::Rwlock => None,
            #[cfg(feature = "historic")]
            TreeLock::Blocking | TreeLock::Pingpong => return self.read_by_path(&watch, key, f),
        };
        if let Some(result) = found {
            return Ok(result);
        }
        loop {
            let leaf = self.leaf_for(&watch, key)?;
            let done = leaf.read(&watch, |n| n.range.covers(key).then(|| f(n)));
            match done {
                Some(result) => return Ok(result),
                None => self.meter.stats.restarts.inc(),
            }
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // Retired frames refer to the structure that holds them. Collecting breaks this reference
        // cycle.
        self.cache.shared.epochs.collect();
    }
}

/// Checks that a valid node belongs at its position in the tree: its keys must lie within the
/// bounds that its parent gives.
pub(crate) fn check_fences(view: NodeView<'_>, range: &KeyRange, addr: BlockNo) -> Result<()> {
    let (Some(first), Some(last)) = (view.first_key(), view.last_key()) else {
        return Ok(());
    };
    if !range.covers(&first) || !range.covers(&last) {
        return Err(Error::corrupt(CorruptKind::Node, addr, "has keys that belong elsewhere"));
    }
    if view.level() > 0 && first != range.low {
        return Err(Error::corrupt(CorruptKind::Node, addr, "its first child does not start where it does"));
    }
    Ok(())
}
