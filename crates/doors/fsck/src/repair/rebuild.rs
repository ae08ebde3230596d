//! The second pass of a rebuild: streams the items that stay, corrected, from the old leaves into a
//! new tree.
//!
//! Nodes are packed from left to right with one open node for each level, so memory does not grow
//! with the tree. New nodes go to blocks that neither the old checkpoint nor the source owns, so a
//! reader of the old tree never reads a new node.
//!
//! In an image with several trees a leaf whose items all stay as they are is kept, so that the
//! trees go on sharing it.

use super::claims::Claims;
use super::done::{RepairKind, Repairs};
use super::filter::{Filtered, ItemFilter};
use super::plan::{Plan, final_core};
use super::source::Source;
use super::writer::Writer;
use crate::Progress;
use crate::owned::Owned;
use crate::read::Reader;
use crate::report::At;
use crate::tree::{NodeRef, stream_items};
use kedge_base::{BlockNo, Error, Generation, Result};
use kedge_device::Device;
use kedge_format::item::Dentry;
use kedge_format::logwrite::LogSecret;
use kedge_format::node::{Child, LEVEL_MAX, NODE_BLOCKS, NODE_PAYLOAD, NODE_SIZE, NodeMut, item_cost};
use kedge_format::superblock::Geometry;
use kedge_format::{FileFlags, FileKind, ItemKind, Key};

/// A node is closed when it holds this number of bytes, so that later insertions find room without
/// a split.
const FILL: usize = NODE_PAYLOAD * 9 / 10;

/// Allocates blocks for new nodes.
pub(crate) struct Places {
    /// Blocks that must not be overwritten.
    taken: Owned,
    /// Blocks to be spared while others are free: the old bitmaps mark them as owned, so they may
    /// belong to items that could not be read.
    spared: Option<Owned>,
    at: u64,
    data_start: u64,
    end: u64,
}

impl Places {
    pub fn new(geometry: &Geometry, taken: Owned, spared: Option<Owned>) -> Places {
        let (data_start, end) = (geometry.data_start.0, geometry.total_blocks);
        Places { taken, spared, at: data_start, data_start, end }
    }

    /// Excludes more blocks from the allocation of new nodes.
    pub fn avoid(&mut self, blocks: &Owned) {
        self.taken.add(blocks);
    }

    fn next(&mut self) -> Result<BlockNo> {
        loop {
            while self.at + NODE_BLOCKS <= self.end {
                let at = BlockNo(self.at);
                self.at += NODE_BLOCKS;
                let spared = self.spared.as_ref().is_some_and(|s| !s.is_free(at, NODE_BLOCKS));
                if !spared && self.taken.is_free(at, NODE_BLOCKS) {
                    self.taken.claim(at, NODE_BLOCKS);
                    return Ok(at);
                }
            }
            // No other blocks are left, so spared blocks are used.
            if self.spared.take().is_none() {
                return Err(Error::NoSpace);
            }
            self.at = self.data_start;
        }
    }
}

/// A tree's root, and the number of its nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    pub block: BlockNo,
    pub generation: Generation,
    pub level: u8,
    pub nodes: u64,
}

struct Level {
    bytes: Vec<u8>,
    low: Key,
    addr: BlockNo,
    open: bool,
    closed: u64,
}

pub(crate) struct Builder<'a> {
    uuid: uuid::Uuid,
    secret: LogSecret,
    generation: Generation,
    places: &'a mut Places,
    writer: Writer<'a>,
    levels: Vec<Level>,
    /// The addresses of the new nodes.
    nodes: Vec<BlockNo>,
    /// Leaves of the old tree that are also leaves of the new one.
    kept: Vec<NodeRef>,
}

/// The result of building a tree.
pub(crate) struct Built {
    pub root: Root,
    pub new: Vec<BlockNo>,
    pub kept: Vec<NodeRef>,
}

impl<'a> Builder<'a> {
    pub fn new(device: &'a dyn Device, g: &Geometry, generation: Generation, places: &'a mut Places) -> Self {
        let (writer, levels) = (Writer::new(device), Vec::new());
        let (nodes, kept) = (Vec::new(), Vec::new());
        Builder { uuid: g.uuid, secret: g.log_secret, generation, places, writer, levels, nodes, kept }
    }

    /// Appends a leaf of the old tree as it is. `low` is the leaf's lowest key.
    fn leaf(&mut self, low: Key, leaf: &NodeRef) -> Result<()> {
        self.ensure(0);
        if self.levels[0].open {
            self.close(0)?;
        }
        let at = &mut self.levels[0];
        let low = if at.closed == 0 { Key::MIN } else { low };
        at.closed += 1;
        self.kept.push(*leaf);
        let child = Child { addr: leaf.block, generation: leaf.generation };
        self.add(1, low, &child.encode())
    }

    fn ensure(&mut self, level: usize) {
        if self.levels.len() == level {
            let (low, addr) = (Key::MIN, BlockNo(0));
            self.levels.push(Level { bytes: vec![0; NODE_SIZE], low, addr, open: false, closed: 0 });
        }
    }

    /// Appends an item; keys must ascend.
    pub fn item(&mut self, key: Key, value: &[u8]) -> Result<()> {
        self.add(0, key, value)
    }

    /// Appends an item or child at a level. Closing a node calls this for the level above; the
    /// format's height bounds the recursion.
    fn add(&mut self, level: usize, key: Key, value: &[u8]) -> Result<()> {
        if level > LEVEL_MAX as usize {
            return Err(Error::NoSpace);
        }
        self.ensure(level);
        let full = {
            let at = &mut self.levels[level];
            let view = NodeMut::trusted(&mut at.bytes);
            let view = view.view();
            let cost = item_cost(value.len());
            at.open && (view.free_space() < cost || (view.used() + cost > FILL && view.items() > 1))
        };
        if full {
            self.close(level)?;
        }
        let (uuid, generation) = (self.uuid, self.generation);
        if !self.levels[level].open {
            let addr = self.places.next()?;
            self.nodes.push(addr);
            let at = &mut self.levels[level];
            at.low = if at.closed == 0 { Key::MIN } else { key };
            (at.addr, at.open) = (addr, true);
            NodeMut::init(&mut at.bytes, &uuid, addr, generation, level as u8);
        }
        let at = &mut self.levels[level];
        let mut node = NodeMut::trusted(&mut at.bytes);
        // The first key of an inner node is the lower bound that its parent records.
        let key = if level > 0 && node.view().items() == 0 { at.low } else { key };
        node.append(&key, value);
        Ok(())
    }

    fn close(&mut self, level: usize) -> Result<()> {
        let generation = self.generation;
        let at = &mut self.levels[level];
        NodeMut::trusted(&mut at.bytes).seal(&self.secret);
        self.writer.put(at.addr, &at.bytes)?;
        (at.open, at.closed) = (false, at.closed + 1);
        let (low, child) = (at.low, Child { addr: at.addr, generation });
        self.add(level + 1, low, &child.encode())
    }

    /// Closes all levels.
    pub fn finish(mut self) -> Result<Built> {
        // A single kept leaf needs no inner node above it.
        if let [leaf] = self.kept[..]
            && self.nodes.len() == 1
            && !self.levels[0].open
        {
            let root = Root { block: leaf.block, generation: leaf.generation, level: 0, nodes: 1 };
            return Ok(Built { root, new: Vec::new(), kept: self.kept });
        }
        let mut level = 0;
        loop {
            let at = &mut self.levels[level];
            // The highest level's only node is the root.
            if at.closed == 0 {
                NodeMut::trusted(&mut at.bytes).seal(&self.secret);
                self.writer.put(at.addr, &at.bytes)?;
                self.writer.finish()?;
                let nodes = (self.nodes.len() + self.kept.len()) as u64;
                let root = Root { block: at.addr, generation: self.generation, level: level as u8, nodes };
                return Ok(Built { root, new: self.nodes, kept: self.kept });
            }
            if at.open {
                self.close(level)?;
            }
            level += 1;
        }
    }
}

/// The inputs of the second pass.
pub(crate) struct Rebuild<'a> {
    pub source: &'a Source,
    pub leaves: &'a [NodeRef],
    pub plan: &'a Plan<'a>,
    pub repairs: &'a mut Repairs,
    /// Whether an old leaf may become a leaf of the new tree, if all its items stay unchanged.
    pub keeps: &'a dyn Fn(&NodeRef) -> bool,
}

/// The new items of the leaf whose items are being streamed.
struct Open {
    node: NodeRef,
    first: Key,
    /// The items for the new tree.
    items: Vec<(Key, Vec<u8>)>,
    /// Whether `items` equals the leaf's items.
    same: bool,
}

impl Open {
    fn flush(self, keeps: &dyn Fn(&NodeRef) -> bool, builder: &mut Builder) -> Result<()> {
        if self.same && keeps(&self.node) {
            return builder.leaf(self.first, &self.node);
        }
        self.items.iter().try_for_each(|(key, value)| builder.item(*key, value))
    }
}

impl Rebuild<'_> {
    /// Streams the items that stay into `builder`.
    pub fn run(
        self,
        reader: &mut Reader,
        claims: Claims<'_>,
        builder: &mut Builder,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let Rebuild { source, leaves, plan, repairs, keeps } = self;
        let mut filter = ItemFilter::new(&source.sb.geometry, claims);
        let mut added = plan.added.iter().peekable();
        let mut open: Option<Open> = None;
        stream_items(
            &source.sb,
            reader,
            leaves,
            |node, key, value, inside| {
                if open.as_ref().is_none_or(|open| open.node.block != node.block) {
                    if let Some(last) = open.take() {
                        last.flush(keeps, builder)?;
                    }
                    while let Some((key, value)) = added.next_if(|(new, _)| inside && **new < key) {
                        builder.item(*key, value)?;
                    }
                    open = Some(Open { node: *node, first: key, items: Vec::new(), same: true });
                }
                let open = open.as_mut().expect("just made if it was not there");
                while let Some((key, value)) = added.next_if(|(new, _)| inside && **new < key) {
                    open.items.push((*key, value.clone()));
                    open.same = false;
                }
                let before = open.items.len();
                if inside {
                    emit(plan, repairs, &mut open.items, node, key, value, filter.item(key, value));
                }
                open.same &= matches!(&open.items[before..], [(k, v)] if *k == key && v == value);
                Ok(())
            },
            &mut |done, total| progress(Progress { phase: "rebuild", done, total }),
        )?;
        if let Some(last) = open.take() {
            last.flush(keeps, builder)?;
        }
        added.try_for_each(|(key, value)| builder.item(*key, value))
    }
}

/// Appends the parts of one item that the plan keeps.
fn emit(
    plan: &Plan<'_>,
    repairs: &mut Repairs,
    out: &mut Vec<(Key, Vec<u8>)>,
    node: &NodeRef,
    key: Key,
    value: &[u8],
    filtered: Filtered,
) {
    let inode = plan.inode(key.ino);
    let mut same = || out.push((key, value.to_vec()));
    match (filtered, inode) {
        (Filtered::Drop(..), _) => {}
        (Filtered::Orphan(_), _) if plan.orphans.contains(&key.offset) => same(),
        (Filtered::Count(_), _) if plan.counts.contains(&key.offset) => same(),
        (Filtered::Orphan(_) | Filtered::Count(_), _) | (_, None) => {}
        (Filtered::Core(core), Some(inode)) => {
            out.push((key, final_core(plan.geometry, inode, core).encode().to_vec()));
        }
        (Filtered::Xattr(slot), Some(_))
            if plan.gathered.incomplete.binary_search(&(key.ino, slot)).is_ok() => {}
        (Filtered::Xattr(_) | Filtered::Target(_), Some(_)) => same(),
        (Filtered::Extent(pieces, ..), Some(_)) => out.extend(pieces.into_iter().map(|(first, piece)| {
            (Key { kind: ItemKind::Extent as u8, offset: first, ..key }, piece.encode().to_vec())
        })),
        (Filtered::Inline(bytes), Some(_)) => out.push((key, bytes.to_vec())),
        (Filtered::Sums(_), Some(inode)) => {
            let has = inode.kind == Some(FileKind::Regular)
                && !inode.unsummed
                && inode.flags & FileFlags::NOCOW.bits() == 0;
            if has {
                same();
            }
        }
        (Filtered::Dentry(dentry), Some(_)) => {
            let shown = || format!("entry \"{}\" of inode {}", dentry.name.escape_ascii(), dentry.ino);
            let at = At::both(key.ino, node.block);
            if let Some(why) = plan.dropped.get(&(key.ino, key.offset)) {
                return repairs.add(RepairKind::NameDropped, at, || format!("{}: {why}", shown()));
            }
            match plan.inode(dentry.ino.0).and_then(|target| target.kind) {
                Some(kind) if kind != dentry.kind => {
                    repairs.add(RepairKind::NameCorrected, at, || {
                        format!("{}: type {:?} → {kind:?}", shown(), dentry.kind)
                    });
                    out.push((key, Dentry { kind, ..dentry }.encode()));
                }
                _ => same(),
            }
        }
    }
}
