//! A node in memory: its bytes, the range of keys that it covers, its children in memory, its pins.
//!
//! # Invariants
//! 1. `children` of an inner node has one element for each entry of the node, in the same order;
//!    for a leaf it is empty.
//! 2. A node that left the tree (moved, merged away, evicted) has an empty range. The range is
//!    cleared under the node's write latch, in the step that clears its parent's reference. A
//!    thread that still refers to the node detects this when it checks the range.
//! 3. Bytes change only while the node's generation is the current one: [`Node::edit`] asserts it.
//! 4. In an optimistic tree, the route table of a reachable inner node agrees with the node
//!    whenever its write latch is free: [`Frame::write`] ensures it. A child's table is filled
//!    before the child's address appears in its parent's table.

use crate::epoch::Epochs;
use crate::latch::{Latch, LatchWatch};
use crate::routes::{Bounds, Routes, Words};
use crate::stats::STRIPES;
use crate::totals::Totals;
use crate::tree_lock::TreeLock;
use kedge_base::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};
use kedge_base::{BlockNo, Generation};
use kedge_format::Key;
use kedge_format::node::{CHILD_SIZE, Child, NODE_PAYLOAD, NODE_SIZE, NodeMut, NodeView, item_cost};
use smallvec::SmallVec;
use std::sync::Arc;

/// Generation that marks the root pointer. The root pointer is kept as an inner node with one
/// child, which is never on the device.
pub(crate) const ANCHOR: Generation = Generation(u64::MAX);

/// Number of insertions at ascending neighbouring indexes after which a leaf counts as filled
/// sequentially.
pub(crate) const RUN_MIN: u8 = 8;

/// Keys from `low` (inclusive) to `high` (exclusive); `high: None` means no upper bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub low: Key,
    pub high: Option<Key>,
}

impl KeyRange {
    pub(crate) const ALL: KeyRange = KeyRange { low: Key::MIN, high: None };
    const NONE: KeyRange = KeyRange { low: Key::MAX, high: Some(Key::MIN) };

    #[inline]
    pub(crate) fn covers(&self, key: &Key) -> bool {
        self.low <= *key && self.high.is_none_or(|high| *key < high)
    }

    pub(crate) fn is_none(&self) -> bool {
        *self == KeyRange::NONE
    }

    fn bounds(&self) -> Bounds {
        Bounds { low: words(&self.low), high: self.high.as_ref().map(words) }
    }
}

/// Returns a key in the form that route tables use.
#[inline]
pub(crate) fn words(key: &Key) -> Words {
    [key.ino, key.kind as u64, key.offset]
}

/// The result of searching an inner node for the child that covers a key.
pub(crate) enum Route {
    Child(Arc<Frame>),
    /// The child is not in memory and must be read.
    Missing(Child),
    /// The node no longer covers the key.
    Stale,
}

/// The state that all frames of a tree share.
pub(crate) struct Shared {
    pub lock: TreeLock,
    /// Bytes of memory in use. The frames update the number themselves, so it is correct whichever
    /// thread drops them. An evicted frame that only readers without latches may still see is not
    /// counted.
    pub cached: AtomicUsize,
    pub totals: Arc<Totals>,
    pub frames: AtomicUsize,
    /// Reclamation of frames that readers without latches may still see.
    pub epochs: Epochs<Arc<Frame>>,
}

impl Shared {
    pub(crate) fn new(lock: TreeLock, totals: Arc<Totals>) -> Shared {
        Shared {
            lock,
            cached: AtomicUsize::new(0),
            totals,
            frames: AtomicUsize::new(0),
            epochs: Epochs::new(STRIPES),
        }
    }
}

/// Maximum number of entries of an inner node.
const FANOUT_MAX: usize = NODE_PAYLOAD / item_cost(CHILD_SIZE);

/// The memory of a node. A frame's address and generation never change: a node that moves gets a
/// new frame.
///
/// The order of the fields makes a lookup touch only a few neighbouring cache lines of the frame.
/// The node's bytes are a separate allocation, without the alignment of an IO buffer: aligned
/// allocations would waste a fifth of the memory in gaps.
#[repr(C)]
pub(crate) struct Frame {
    pub level: u8,
    /// Whether the node was used since the CLOCK hand last passed.
    hot: AtomicBool,
    /// Whether the node may leave memory: the device has its bytes, or does not need them any more.
    clean: AtomicBool,
    /// Whether [`Shared::cached`] includes this frame.
    counted: AtomicBool,
    pub addr: BlockNo,
    pub born: Generation,
    shared: Arc<Shared>,
    /// The route table. Only inner nodes of an optimistic tree have one.
    pub routes: Option<Routes>,
    pub latch: Latch<Node>,
}

impl Frame {
    /// Makes a frame whose bytes are zero until [`Frame::fill`].
    pub(crate) fn new(shared: &Arc<Shared>, clean: bool, child: Child, level: u8) -> Arc<Frame> {
        let fanout = if child.generation == ANCHOR { 1 } else { FANOUT_MAX };
        let routed = shared.lock == TreeLock::Optimistic && level > 0;
        let frame = Arc::new(Frame {
            addr: child.addr,
            born: child.generation,
            level,
            hot: AtomicBool::new(true),
            clean: AtomicBool::new(clean),
            counted: AtomicBool::new(true),
            shared: shared.clone(),
            routes: routed.then(|| Routes::new(fanout)),
            latch: Latch::new(
                shared.lock,
                level > 0,
                Node {
                    range: KeyRange::NONE,
                    bytes: Box::new([0; NODE_SIZE]),
                    children: Vec::new(),
                    published: Vec::new(),
                    pins: PinSet::default(),
                    last_insert: 0,
                    run: 0,
                },
            ),
        });
        shared.cached.fetch_add(frame.cost(), Relaxed);
        shared.totals.add_cached(frame.cost());
        shared.frames.fetch_add(1, Relaxed);
        if !clean {
            shared.totals.add_dirty(frame.cost());
        }
        frame
    }

    /// Returns the node of a frame that no other thread can see yet.
    pub(crate) fn fill(frame: &mut Arc<Frame>) -> &mut Node {
        Arc::get_mut(frame).expect("a frame is filled before it is shared").latch.get_mut()
    }

    #[inline]
    pub(crate) fn read<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&Node) -> R) -> R {
        self.latch.read(watch, f)
    }

    #[inline]
    pub(crate) fn write<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&mut Node) -> R) -> R {
        self.latch.write(watch, |n| {
            let result = f(n);
            if self.routes.is_some() {
                self.publish(watch, n);
            }
            result
        })
    }

    /// Does what [`Frame::write`] does; returns `None` if the latch would have to wait.
    pub(crate) fn try_write<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&mut Node) -> R) -> Option<R> {
        self.latch.try_write(watch, |n| {
            let result = f(n);
            if self.routes.is_some() {
                self.publish(watch, n);
            }
            result
        })
    }

    /// Updates the route table. A step of the tree changes adjacent entries only, so the table is
    /// compared from both ends, and only the entries between are stored.
    #[cold]
    fn publish(&self, watch: &LatchWatch<'_>, n: &mut Node) {
        let Some(routes) = &self.routes else {
            return;
        };
        let first = !routes.is_published();
        let at = |c: &Option<Arc<Frame>>| c.as_ref().map_or(0, |c| Arc::as_ptr(c) as usize as u64);
        let (old, new) = (&n.published, &n.children);
        let same = old.iter().zip(new).take_while(|(o, n)| at(o) == at(n)).count();
        let shorter = old.len().min(new.len());
        let tail = old.iter().rev().zip(new.iter().rev()).take(shorter - same);
        let tail = tail.take_while(|(o, n)| at(o) == at(n)).count();
        let bounds = n.range.bounds();
        if !first && same == new.len() && old.len() == new.len() && routes.bounds() == bounds {
            return;
        }
        let changed = same..new.len() - tail;
        for child in new[changed.clone()].iter().flatten() {
            if child.routes.as_ref().is_some_and(|r| !r.is_published()) {
                child.write(watch, |_| ());
            }
        }
        // After an insertion or removal all later entries have moved, and the entry next to it may
        // have a new key.
        let stored = match (first, old.len() == new.len()) {
            (true, _) => 0..new.len(),
            (false, true) => changed.clone(),
            (false, false) => same..new.len(),
        };
        let view = n.view();
        routes.publish(&bounds, new.len(), stored, |i| (words(&view.key(i)), at(&new[i])));
        let fresh: SmallVec<[_; 4]> = new[changed].iter().cloned().collect();
        let end = n.published.len() - tail;
        let gone = n.published.splice(same..end, fresh).flatten();
        self.shared.epochs.retire(gone);
    }

    /// Returns whether the route table, if there is one, agrees with the node, and the children's
    /// tables have been filled.
    pub(crate) fn routes_agree(&self, n: &Node) -> bool {
        let Some(routes) = &self.routes else {
            return true;
        };
        let at = |i: usize| n.children[i].as_ref().map_or(0, |c| Arc::as_ptr(c) as usize as u64);
        let view = n.view();
        let same = routes.agrees(&n.range.bounds(), n.children.len(), |i| (words(&view.key(i)), at(i)));
        let published = |c: &Arc<Frame>| c.routes.as_ref().is_none_or(Routes::is_published);
        same && n.children.iter().flatten().all(published)
    }

    /// Subtracts the frame from the memory of the cache.
    pub(crate) fn uncount(&self) {
        if self.counted.swap(false, AcqRel) {
            self.shared.cached.fetch_sub(self.cost(), Relaxed);
            self.shared.totals.remove_cached(self.cost());
        }
    }

    /// Returns the number of references to a frame that is linked into the tree, not counting those
    /// of running descents.
    pub(crate) fn references(&self) -> usize {
        if self.shared.lock == TreeLock::Optimistic { 2 } else { 1 }
    }

    /// Approximate memory of the frame in bytes. The vector of an inner node's children has room
    /// for the maximum number of entries.
    fn cost(&self) -> usize {
        let children = if self.level > 0 { NODE_SIZE / 4 } else { 0 };
        let routes = if self.routes.is_some() && !self.is_anchor() { NODE_SIZE } else { 0 };
        size_of::<Frame>() + NODE_SIZE + 64 + children + routes
    }

    pub(crate) fn link(&self) -> Child {
        Child { addr: self.addr, generation: self.born }
    }

    /// Returns whether the node may be changed in place in generation `current`.
    pub(crate) fn writable(&self, current: Generation) -> bool {
        self.born == current || self.is_anchor()
    }

    pub(crate) fn is_anchor(&self) -> bool {
        self.born == ANCHOR
    }

    #[inline]
    pub(crate) fn touch(&self) {
        // Store only a change: all readers of the node share the cache line.
        if !self.hot.load(Relaxed) {
            self.hot.store(true, Relaxed);
        }
    }

    pub(crate) fn take_hot(&self) -> bool {
        self.hot.swap(false, Relaxed)
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.clean.load(Acquire)
    }

    pub(crate) fn mark_clean(&self) {
        if !self.clean.swap(true, AcqRel) {
            self.shared.totals.remove_dirty(self.cost());
        }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.mark_clean();
        self.uncount();
        self.shared.frames.fetch_sub(1, Relaxed);
    }
}

/// The data that a frame's latch guards.
#[repr(C)]
pub(crate) struct Node {
    pub range: KeyRange,
    /// A separate allocation, because the memory of a frame stays allocated while the CLOCK ring
    /// has a weak reference to the frame.
    bytes: Box<[u8; NODE_SIZE]>,
    pub children: Vec<Option<Arc<Frame>>>,
    /// The children to which the route table refers.
    published: Vec<Option<Arc<Frame>>>,
    pub pins: PinSet,
    /// Index of the last insertion, and number of ascending neighbouring insertions before it.
    last_insert: u16,
    run: u8,
}

impl Node {
    /// Copies the bytes of a valid node (whose CRC may be stale) into this one, without children in
    /// memory. Panics if the length is wrong.
    pub(crate) fn set_bytes(&mut self, bytes: &[u8]) {
        self.bytes.copy_from_slice(bytes);
        self.forget_children();
    }

    pub(crate) fn forget_children(&mut self) {
        self.children.clear();
        if self.view().level() > 0 {
            self.children.resize_with(self.view().items(), || None);
        }
    }

    pub(crate) fn init(&mut self, uuid: &uuid::Uuid, child: Child, level: u8) -> NodeMut<'_> {
        NodeMut::init(&mut self.bytes[..], uuid, child.addr, child.generation, level)
    }

    #[inline]
    pub(crate) fn view(&self) -> NodeView<'_> {
        NodeView::trusted(&self.bytes[..])
    }

    pub(crate) fn bytes(&self) -> &[u8; NODE_SIZE] {
        &self.bytes
    }

    #[inline]
    pub(crate) fn search(&self, key: &Key) -> Result<usize, usize> {
        self.view().search_between(key, &self.range.low, self.range.high.as_ref())
    }

    /// Returns the index of the child that covers the key.
    #[inline]
    pub(crate) fn child_index(&self, key: &Key) -> usize {
        self.search(key).unwrap_or_else(|i| i.saturating_sub(1))
    }

    /// Returns a view of the node if the node covers the key.
    #[inline]
    pub(crate) fn view_if_covers(&self, key: &Key) -> Option<NodeView<'_>> {
        self.range.covers(key).then(|| self.view())
    }

    /// Returns mutable access to the bytes. Panics unless the node was born in generation
    /// `current`.
    #[inline]
    pub(crate) fn edit(&mut self, current: Generation) -> NodeMut<'_> {
        let born = self.view().generation();
        assert!(
            born == current || born == ANCHOR,
            "a node of generation {born} changed in generation {current}"
        );
        NodeMut::trusted(&mut self.bytes[..])
    }

    /// Moves the contents into another node with a new identity, and makes this node cover nothing.
    /// Its bytes stay unchanged, because a checkpoint may still have to write them.
    pub(crate) fn move_to(&mut self, to: &mut Node, identity: Child) {
        to.bytes.copy_from_slice(&self.bytes[..]);
        NodeMut::trusted(&mut to.bytes[..]).set_identity(identity.addr, identity.generation);
        to.range = self.range;
        to.children = std::mem::take(&mut self.children);
        // The new node's route table will refer to the same children as this one's.
        to.published = std::mem::take(&mut self.published);
        to.pins = PinSet { own: self.pins.own.clone(), inherited: std::mem::take(&mut self.pins.inherited) };
        (to.last_insert, to.run) = (self.last_insert, self.run);
        self.kill();
    }

    /// Replaces the bytes by those of a node with the same identity. The caller updates the
    /// children.
    pub(crate) fn replace_bytes(&mut self, bytes: &[u8; NODE_SIZE]) {
        *self.bytes = *bytes;
        self.run = 0;
    }

    /// Makes the node cover no keys, because it has left the tree.
    pub(crate) fn kill(&mut self) {
        self.range = KeyRange::NONE;
        self.children = Vec::new();
    }

    /// Sets the item of `key`. Returns `Some(replaced)`, or `None` if there is not enough room.
    pub(crate) fn put(&mut self, current: Generation, key: &Key, value: &[u8]) -> Option<bool> {
        match self.next_in_run(key).map_or_else(|| self.search(key), Err) {
            Ok(i) => self.edit(current).replace_value(i, value).then_some(true),
            Err(i) => {
                if !self.edit(current).insert_at(i, key, value) {
                    return None;
                }
                self.run = if i == self.last_insert as usize + 1 { self.run.saturating_add(1) } else { 0 };
                self.last_insert = i as u16;
                Some(false)
            }
        }
    }

    /// Returns the index for the key if the key directly follows the last insertion in a leaf that
    /// is filled sequentially.
    #[inline]
    fn next_in_run(&self, key: &Key) -> Option<usize> {
        if self.run == 0 {
            return None;
        }
        let (view, i) = (self.view(), self.last_insert as usize + 1);
        let items = view.items();
        let fits = i <= items && view.key(i - 1) < *key && (i == items || *key < view.key(i));
        fits.then_some(i)
    }

    /// Returns whether an insertion at index `i` would continue a sequence of ascending insertions.
    pub(crate) fn is_sequential_at(&self, i: usize) -> bool {
        self.run >= RUN_MIN && i == self.last_insert as usize + 1
    }

    /// Returns the range of keys that child `i` covers.
    pub(crate) fn child_range(&self, i: usize) -> KeyRange {
        let view = self.view();
        let high = if i + 1 < view.items() { Some(view.key(i + 1)) } else { self.range.high };
        KeyRange { low: view.key(i), high }
    }

    /// Returns the child to which the node routes a key, or why it cannot.
    #[inline]
    pub(crate) fn route(&self, key: &Key) -> Route {
        if !self.range.covers(key) {
            return Route::Stale;
        }
        let i = self.child_index(key);
        match &self.children[i] {
            Some(child) => Route::Child(child.clone()),
            None => Route::Missing(self.view().child(i)),
        }
    }

    /// Returns the index of the entry that refers to `frame`, if this node still covers `key` and
    /// routes it to `frame`.
    pub(crate) fn entry_of(&self, frame: &Arc<Frame>, key: &Key) -> Option<usize> {
        if !self.range.covers(key) {
            return None;
        }
        let i = self.child_index(key);
        self.children[i].as_ref().is_some_and(|c| Arc::ptr_eq(c, frame)).then_some(i)
    }

    /// Makes entry `i` refer to `frame`.
    pub(crate) fn relink(&mut self, current: Generation, i: usize, frame: &Arc<Frame>) {
        self.edit(current).value_mut(i).copy_from_slice(&frame.link().encode());
        self.children[i] = Some(frame.clone());
    }

    /// Adds an entry for `frame` before entry `i`. The caller ensures that the node has room.
    pub(crate) fn insert_link(&mut self, current: Generation, i: usize, low: &Key, frame: &Arc<Frame>) {
        let fits = self.edit(current).insert_at(i, low, &frame.link().encode());
        assert!(fits, "the parent was found to have room");
        self.children.insert(i, Some(frame.clone()));
    }

    pub(crate) fn remove_link(&mut self, current: Generation, i: usize) {
        self.edit(current).remove_at(i);
        self.children.remove(i);
    }
}

/// The pins that keep a node from being evicted. A pin protects the key range that the node had
/// when the pin was taken: if keys of the range move to another node, that node inherits the pin.
#[derive(Default)]
pub(crate) struct PinSet {
    own: Arc<AtomicU32>,
    /// Pins that were taken while their keys were in another node.
    inherited: Vec<Arc<AtomicU32>>,
}

impl PinSet {
    pub(crate) fn pinned(&self) -> bool {
        self.own.load(Acquire) > 0 || self.inherited.iter().any(|p| p.load(Acquire) > 0)
    }

    /// Adds the pins of a node whose keys have moved to this node, except pins that are no longer
    /// held.
    pub(crate) fn inherit(&mut self, from: &PinSet) {
        self.inherited.retain(|p| p.load(Acquire) > 0);
        for pin in from.inherited.iter().chain([&from.own]) {
            if pin.load(Acquire) > 0 && !self.inherited.iter().any(|p| Arc::ptr_eq(p, pin)) {
                self.inherited.push(pin.clone());
            }
        }
    }

    /// Takes a pin. The caller holds the node's latch, so the node cannot be evicted or merged
    /// before the pin takes effect.
    pub(crate) fn pin(&self) -> Arc<AtomicU32> {
        self.own.fetch_add(1, AcqRel);
        self.own.clone()
    }
}

/// Keeps leaves and their ancestors in memory until dropped.
#[derive(Default)]
#[must_use = "dropping it releases the pins"]
pub struct Pins(pub(crate) Vec<Arc<AtomicU32>>);

impl Drop for Pins {
    fn drop(&mut self) {
        for pin in &self.0 {
            pin.fetch_sub(1, AcqRel);
        }
    }
}
