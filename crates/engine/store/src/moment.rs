//! Trees as they were at one moment: reading one, and comparing two.
//!
//! # Moments
//! A moment is the root of a point ([`kedge_format::trees`]). Nothing that a point refers to
//! changes or becomes free while the point exists. So a moment is read from the device without a
//! lock, while its tree changes. The moment of a tree that has not changed since it was forked is
//! its existing point. For a tree that has changed, a checkpoint makes a new point, as for a fork;
//! the tree is the only child of that point. [`Store::reclaim`] later merges the point into the
//! tree; the caller delays that for as long as it uses moments. In an image that is open for
//! reading only, each root is a moment.
//!
//! # Comparison
//! Forks share nodes. A node that two trees share has the same items in both, so the comparison
//! skips it and everything below it. It reads only nodes that one of the trees does not share. So
//! its time is proportional to what was changed, not to the size of the trees. Its memory is one
//! node for each level of each tree.

use crate::checkpoint::cause::Freed;
use crate::forest::Change;
use crate::store::Store;
use crate::walk::Root;
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{CorruptKind, Error, Ino, IoBuf, Result};
use kedge_format::Key;
use kedge_format::node::{Child, NODE_BLOCKS, NodeView};
use kedge_format::superblock::CheckpointState;
use kedge_format::trees::TreeKind;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// The most nodes that [`Nodes`] keeps.
const KEPT_MAX: usize = 256;

/// A cache of nodes that scans of moments have read, so that a scan of one file does not read the
/// path to its leaf again.
pub struct Nodes(Mutex<BTreeMap<(u64, u64), Arc<IoBuf>>>);

impl Default for Nodes {
    fn default() -> Nodes {
        Nodes(Mutex::new(Rank::Leaf, BTreeMap::new()))
    }
}

impl Nodes {
    fn get(&self, child: Child) -> Option<Arc<IoBuf>> {
        self.0.lock().get(&(child.addr.0, child.generation.0)).cloned()
    }

    fn keep(&self, child: Child, buf: &Arc<IoBuf>) {
        let mut nodes = self.0.lock();
        if nodes.len() >= KEPT_MAX {
            nodes.clear();
        }
        nodes.insert((child.addr.0, child.generation.0), buf.clone());
    }
}

/// A tree at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Number of the tree.
    tree: u32,
    root: Root,
    /// The point of the tree at that moment, or 0.
    point: u32,
}

impl Moment {
    /// The number of the tree.
    pub fn tree(&self) -> u32 {
        self.tree
    }

    /// The address and the generation of the root node. Together they identify the state: no other
    /// state of any tree of the image has the same pair.
    pub fn root(&self) -> (u64, u64) {
        (self.root.addr.0, self.root.generation.0)
    }
}

/// The visitor of a comparison. Gets the key, and its values in the first and in the second tree.
pub type Differs<'a> = dyn FnMut(Key, Option<&[u8]>, Option<&[u8]>) -> Result<ControlFlow<()>> + 'a;

/// The visitor of a scan. Gets items until it breaks.
pub type OnItem<'a> = dyn FnMut(Key, &[u8]) -> Result<ControlFlow<()>> + 'a;

/// The next element at a cursor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Head {
    /// A node that was not read. Its keys are not below `low`.
    Node {
        low: Key,
        child: Child,
        level: u8,
    },
    Item(Key),
    End,
}

impl Head {
    fn key(&self) -> Option<Key> {
        match *self {
            Head::Node { low: key, .. } | Head::Item(key) => Some(key),
            Head::End => None,
        }
    }
}

/// A node that was read, and the index of the next entry in it.
struct Level {
    buf: Arc<IoBuf>,
    at: usize,
    level: u8,
}

impl Level {
    fn view(&self) -> NodeView<'_> {
        NodeView::trusted(self.buf.as_bytes())
    }
}

/// A position in a tree at a moment.
struct Cursor<'a> {
    store: &'a Store,
    root: Option<Root>,
    stack: Vec<Level>,
    /// Number of nodes that may still be read. Bounds the walk: a corrupt image may name a node
    /// many times.
    left: u64,
    reads: u64,
    kept: Option<&'a Nodes>,
}

impl<'a> Cursor<'a> {
    fn new(store: &'a Store, root: Option<Root>) -> Cursor<'a> {
        let left = store.total_blocks() / NODE_BLOCKS;
        Cursor { store, root, stack: Vec::new(), left, reads: 0, kept: None }
    }

    fn head(&mut self) -> Head {
        if let Some(root) = self.root {
            let child = Child { addr: root.addr, generation: root.generation };
            return Head::Node { low: Key::MIN, child, level: root.level };
        }
        while let Some(top) = self.stack.last() {
            let view = top.view();
            if top.at >= view.items() {
                self.stack.pop();
                continue;
            }
            let key = view.key(top.at);
            return match top.level {
                0 => Head::Item(key),
                level => Head::Node { low: key, child: view.child(top.at), level: level - 1 },
            };
        }
        Head::End
    }

    /// The value of the item at the cursor.
    fn value(&self) -> &[u8] {
        self.stack.last().map_or(&[], |top| top.view().value(top.at))
    }

    /// Advances past the next element.
    fn skip(&mut self) {
        match self.stack.last_mut() {
            _ if self.root.take().is_some() => {}
            Some(top) => top.at += 1,
            None => {}
        }
    }

    /// Reads the node at the cursor, which is the next element, and enters it.
    fn descend(&mut self, child: Child, level: u8) -> Result<()> {
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            Error::corrupt(CorruptKind::Node, child.addr, "a tree has more nodes than there can be")
        })?;
        self.skip();
        let uuid = &self.store.geometry.uuid;
        let check = |buf: &IoBuf| {
            NodeView::check(buf.as_bytes(), uuid, child.addr, child.generation, level).map(drop)
        };
        let kept = self.kept.and_then(|kept| kept.get(child));
        let buf = match kept {
            Some(buf) => buf,
            None => {
                self.reads += 1;
                let mut buf = IoBuf::zeroed(NODE_BLOCKS as usize);
                self.store.device.read(child.addr.byte_offset(), &mut buf)?;
                check(&buf)?;
                let buf = Arc::new(buf);
                self.kept.inspect(|kept| kept.keep(child, &buf));
                buf
            }
        };
        let view = NodeView::trusted(buf.as_bytes());
        if view.level() != level {
            check(&buf)?; // a corrupt image may name one node at two levels
        }
        self.stack.push(Level { buf, at: 0, level });
        Ok(())
    }

    /// Advances to the first item whose key is not below `key`.
    fn seek(&mut self, key: Key) -> Result<()> {
        while let Head::Node { child, level, .. } = self.head() {
            self.descend(child, level)?;
            let top = self.stack.last_mut().expect("just pushed");
            let found = top.view().search(&key);
            top.at = match (found, top.level) {
                (Ok(at), _) | (Err(at), 0) => at,
                (Err(at), _) => at.saturating_sub(1),
            };
            if level == 0 {
                break;
            }
        }
        Ok(())
    }
}

impl Store {
    /// The moments of the trees with these roots. Unless the image is open for reading only, the
    /// caller stops all changes and has written everything dirty; it delays [`Store::reclaim`]
    /// until it no longer uses the moments.
    pub fn moments(&self, roots: &[Ino]) -> Result<Vec<Moment>> {
        if self.read_only {
            return roots.iter().map(|root| self.moment(self.forest.tree_of(*root))).collect();
        }
        self.write_deferred()?;
        let numbers: BTreeSet<u32> = roots.iter().map(|root| self.forest.tree_of(*root)).collect();
        let mut changes = Vec::new();
        for source in numbers {
            if self.forest.is_as_its_point(source)? {
                continue;
            }
            self.check_forkable(source)?;
            self.settle_tree(source)?;
            let [point] = self.forest.new_numbers()?;
            changes.push(Change::Point { source, point, created: self.clock.now().sec });
        }
        if !changes.is_empty() {
            self.change_trees(&changes, &Freed::default(), 2 * changes.len() as u32)?;
        }
        roots.iter().map(|root| self.moment(self.forest.tree_of(*root))).collect()
    }

    fn moment(&self, tree: u32) -> Result<Moment> {
        let entry = self.forest.entry(tree).filter(|entry| entry.kind == TreeKind::Head);
        let Some(entry) = entry.or_else(|| (tree == 0).then(|| crate::forest::first_entry(0))) else {
            return Err(Error::NoTree(tree));
        };
        let point = entry.point;
        if !self.read_only {
            let at = self.forest.entry(point).ok_or(Error::NoTree(tree))?;
            return Ok(Moment { tree, root: self.root_of(point, &at), point });
        }
        let root = match tree {
            0 => {
                let (sb, _) = crate::read_superblock(&*self.device)?;
                let CheckpointState { root, root_generation, root_level, .. } = sb.checkpoint;
                Root { addr: root, generation: root_generation, level: root_level }
            }
            _ => self.root_of(tree, &entry),
        };
        Ok(Moment { tree, root, point })
    }

    /// The end of the inode numbers that mean the same inode in both trees: numbers below the
    /// result were given out before the trees separated, higher ones in each tree for itself.
    /// `None` if the trees have no common origin.
    pub fn same_below(&self, a: &Moment, b: &Moment) -> Option<Ino> {
        if a.tree == b.tree {
            return Some(Ino(u64::MAX));
        }
        // The iterator ends: opening the table has checked that chains of points have no circle.
        let chain = |of: &Moment| {
            std::iter::successors(Some(of.point), |point| self.forest.entry(*point).map(|at| at.point))
                .take_while(|point| *point != 0)
        };
        let others: BTreeSet<u32> = chain(b).collect();
        let common = chain(a).find(|point| others.contains(point))?;
        Some(Ino(self.forest.entry(common)?.next_ino))
    }

    /// Passes the items of nodes that the trees do not share to `visit`, in key order, until it
    /// breaks: items of one tree, items that differ, and also equal ones. Without `a`, passes all
    /// items of `b`. The inode numbers in keys are those within the tree. Returns the number of
    /// nodes read.
    pub fn compare(&self, a: Option<&Moment>, b: &Moment, visit: &mut Differs<'_>) -> Result<u64> {
        let mut a = Cursor::new(self, a.map(|a| a.root));
        let mut b = Cursor::new(self, Some(b.root));
        loop {
            let (at_a, at_b) = (a.head(), b.head());
            let (low_a, low_b) = (at_a.key(), at_b.key());
            // `None` is the end of a tree, which sorts after every key.
            let a_first = low_b.is_none() || low_a.is_some_and(|low| Some(low) < low_b);
            let b_first = low_a.is_none() || low_b.is_some_and(|low| Some(low) < low_a);
            match (at_a, at_b) {
                (Head::End, Head::End) => break,
                (Head::Node { child: x, .. }, Head::Node { child: y, .. })
                    if (x.addr, x.generation) == (y.addr, y.generation) =>
                {
                    a.skip();
                    b.skip();
                }
                (Head::Node { child, level, .. }, _) if a_first => a.descend(child, level)?,
                (_, Head::Node { child, level, .. }) if b_first => b.descend(child, level)?,
                // Both nodes begin at the same key. The higher one is entered first, as the other
                // may be below it.
                (Head::Node { child, level, .. }, Head::Node { level: other, .. }) if level > other => {
                    a.descend(child, level)?;
                }
                (Head::Node { level: other, .. }, Head::Node { child, level, .. }) if level > other => {
                    b.descend(child, level)?;
                }
                (Head::Node { child: x, level, .. }, Head::Node { child: y, .. }) => {
                    a.descend(x, level)?;
                    b.descend(y, level)?;
                }
                (Head::Node { child, level, .. }, _) => a.descend(child, level)?,
                (_, Head::Node { child, level, .. }) => b.descend(child, level)?,
                (Head::Item(key), _) if a_first => {
                    if visit(key, Some(a.value()), None)?.is_break() {
                        break;
                    }
                    a.skip();
                }
                (_, Head::Item(key)) if b_first => {
                    if visit(key, None, Some(b.value()))?.is_break() {
                        break;
                    }
                    b.skip();
                }
                (Head::Item(key), _) | (_, Head::Item(key)) => {
                    let (x, y) = (a.value(), b.value());
                    if visit(key, Some(x), Some(y))?.is_break() {
                        break;
                    }
                    a.skip();
                    b.skip();
                }
            }
        }
        Ok(a.reads + b.reads)
    }

    /// Passes the items in `[from, to]` of a tree at a moment to `visit` until it breaks. Returns
    /// the number of nodes read.
    pub fn scan_moment(
        &self,
        moment: &Moment,
        kept: &Nodes,
        (from, to): (Key, Key),
        visit: &mut OnItem<'_>,
    ) -> Result<u64> {
        let mut cursor = Cursor { kept: Some(kept), ..Cursor::new(self, Some(moment.root)) };
        cursor.seek(from)?;
        loop {
            match cursor.head() {
                Head::Node { low, child, level } if low <= to => cursor.descend(child, level)?,
                Head::Item(key) if key <= to => {
                    if visit(key, cursor.value())?.is_break() {
                        break;
                    }
                    cursor.skip();
                }
                _ => break,
            }
        }
        Ok(cursor.reads)
    }
}
