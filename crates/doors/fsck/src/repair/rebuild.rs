//! The second pass of a rebuild: streams the items that stay, corrected, from the old leaves into a
//! new tree.
//!
//! Nodes are packed from left to right with one open node for each level, so memory does not grow
//! with the tree. New nodes go to blocks that neither the old checkpoint nor the source owns, so a
//! reader of the old tree never reads a new node.

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

/// Places for new nodes.
pub(crate) struct Places {
    /// Blocks that must stay as they are.
    taken: Owned,
    /// Blocks that should stay as they are: blocks that the old bitmaps mark as owned may belong to
    /// items that could not be read.
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
            // Take spared blocks if no others are left.
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
    places: Places,
    writer: Writer<'a>,
    levels: Vec<Level>,
    /// The addresses of the new nodes.
    nodes: Vec<BlockNo>,
}

impl<'a> Builder<'a> {
    pub fn new(device: &'a dyn Device, g: &Geometry, generation: Generation, places: Places) -> Self {
        let (writer, levels, nodes) = (Writer::new(device), Vec::new(), Vec::new());
        Builder { uuid: g.uuid, secret: g.log_secret, generation, places, writer, levels, nodes }
    }

    /// Appends an item; keys must ascend.
    pub fn item(&mut self, key: Key, value: &[u8]) -> Result<()> {
        self.add(0, key, value)
    }

    /// Closing a node calls this for the level above; the format's height bounds the recursion.
    fn add(&mut self, level: usize, key: Key, value: &[u8]) -> Result<()> {
        if level > LEVEL_MAX as usize {
            return Err(Error::NoSpace);
        }
        if self.levels.len() == level {
            let (low, addr) = (Key::MIN, BlockNo(0));
            self.levels.push(Level { bytes: vec![0; NODE_SIZE], low, addr, open: false, closed: 0 });
        }
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

    /// Closes all levels. Returns the root and the addresses of all nodes.
    pub fn finish(mut self) -> Result<(Root, Vec<BlockNo>)> {
        let mut level = 0;
        loop {
            let at = &mut self.levels[level];
            // The highest level's only node is the root.
            if at.closed == 0 {
                NodeMut::trusted(&mut at.bytes).seal(&self.secret);
                self.writer.put(at.addr, &at.bytes)?;
                self.writer.finish()?;
                let nodes = self.nodes.len() as u64;
                let root = Root { block: at.addr, generation: self.generation, level: level as u8, nodes };
                return Ok((root, self.nodes));
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
}

impl Rebuild<'_> {
    /// Streams the items that stay into `builder`.
    pub fn run(
        self,
        reader: &mut Reader,
        owned: Owned,
        builder: &mut Builder,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let Rebuild { source, leaves, plan, repairs } = self;
        let mut filter = ItemFilter::new(&source.sb.geometry, owned, source.suspect());
        let mut added = plan.added.iter().peekable();
        stream_items(
            &source.sb,
            reader,
            leaves,
            |node, key, value, inside| {
                if !inside {
                    return Ok(());
                }
                while let Some((key, value)) = added.next_if(|(new, _)| **new < key) {
                    builder.item(*key, value)?;
                }
                emit(plan, repairs, builder, node, key, value, filter.item(key, value))
            },
            &mut |done, total| progress(Progress { phase: "rebuild", done, total }),
        )?;
        added.try_for_each(|(key, value)| builder.item(*key, value))
    }
}

/// Appends the part of one item that the plan keeps.
fn emit(
    plan: &Plan<'_>,
    repairs: &mut Repairs,
    builder: &mut Builder,
    node: &NodeRef,
    key: Key,
    value: &[u8],
    filtered: Filtered,
) -> Result<()> {
    let inode = plan.inode(key.ino);
    match (filtered, inode) {
        (Filtered::Drop(..), _) => Ok(()),
        (Filtered::Orphan(_), _) if plan.orphans.contains(&key.offset) => builder.item(key, value),
        (Filtered::Orphan(_), _) | (_, None) => Ok(()),
        (Filtered::Core(core), Some(inode)) => {
            builder.item(key, &final_core(plan.geometry, inode, core).encode())
        }
        (Filtered::Xattr(slot), Some(_))
            if plan.gathered.incomplete.binary_search(&(key.ino, slot)).is_ok() =>
        {
            Ok(())
        }
        (Filtered::Xattr(_) | Filtered::Target(_), Some(_)) => builder.item(key, value),
        (Filtered::Extent(pieces, _), Some(_)) => pieces.into_iter().try_for_each(|(first, piece)| {
            builder.item(Key { kind: ItemKind::Extent as u8, offset: first, ..key }, &piece.encode())
        }),
        (Filtered::Sums(_), Some(inode)) => {
            let has = inode.kind == Some(FileKind::Regular)
                && !inode.unsummed
                && inode.flags & FileFlags::NOCOW.bits() == 0;
            if has { builder.item(key, value) } else { Ok(()) }
        }
        (Filtered::Dentry(dentry), Some(_)) => {
            let shown = || format!("entry \"{}\" of inode {}", dentry.name.escape_ascii(), dentry.ino);
            let at = At::both(key.ino, node.block);
            if let Some(why) = plan.dropped.get(&(key.ino, key.offset)) {
                repairs.add(RepairKind::NameDropped, at, || format!("{}: {why}", shown()));
                return Ok(());
            }
            match plan.inode(dentry.ino.0).and_then(|target| target.kind) {
                Some(kind) if kind != dentry.kind => {
                    repairs.add(RepairKind::NameCorrected, at, || {
                        format!("{}: type {:?} → {kind:?}", shown(), dentry.kind)
                    });
                    builder.item(key, &Dentry { kind, ..dentry }.encode())
                }
                _ => builder.item(key, value),
            }
        }
    }
}
