//! The device: what is durable, and what a crash may leave. The rules are those of
//! docs/CRASH_MODEL.md ("The device").
//!
//! A block has a durable value, values that were written and not flushed, and the value that a read
//! returns. A crash leaves the durable value or any of the unflushed ones. A log write in flight is
//! lost, torn or whole. A slot write in flight leaves the old slot or the new one. In the model it
//! may also leave an unreadable slot, although the rules of the device exclude that: only then is
//! the second slot needed.

use std::collections::BTreeSet;

pub const FILES: usize = 2;
pub const BLOCKS: usize = 2;
pub const NODES: usize = 2;
/// The content of a block without file data: never written, or discarded.
pub const GARBAGE: u8 = 15;

/// The tree: the block of each file, and two items. Each record of metadata sets both items to one
/// value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Tree {
    pub blocks: [Option<u8>; FILES],
    pub items: [u8; 2],
}

/// What a record changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Record {
    /// Metadata: sets both items to this value.
    Items(u8),
    /// Bytes of files, which are log-resident from this record on.
    Data([Option<u8>; FILES]),
    /// Names the block that holds the file's data. With `voids`, it also voids the log-resident
    /// data of the file.
    Map { file: u8, block: Option<u8>, voids: bool },
    /// Removes the data of a file.
    Remove { file: u8 },
}

/// One record of a log write, on the medium.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cell {
    pub epoch: u64,
    /// Start and end of the log write.
    pub start: u64,
    pub end: u64,
    pub lsn: u64,
    pub record: Record,
    /// The log write was cut off in this record, its last.
    pub torn: bool,
    pub tail: u64,
    pub durable: u64,
}

/// A log write in flight.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LogWrite {
    pub epoch: u64,
    pub start: u64,
    pub records: Vec<Record>,
    pub tail: u64,
    pub durable: u64,
}

impl LogWrite {
    pub fn end(&self) -> u64 {
        self.start + self.records.len() as u64
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Block {
    pub durable: u8,
    /// One bit for each value that was written and not flushed.
    pub unflushed: u16,
    pub current: u8,
}

impl Block {
    pub const EMPTY: Block = Block { durable: GARBAGE, unflushed: 0, current: GARBAGE };

    pub fn write(&mut self, value: u8) {
        self.unflushed |= 1 << value;
        self.current = value;
    }

    fn flush(&mut self) {
        *self = Block { durable: self.current, unflushed: 0, current: self.current };
    }

    fn choices(self) -> Vec<Block> {
        let written = (0..16).filter(|value| self.unflushed & 1 << value != 0 && *value != self.durable);
        let values = std::iter::once(self.durable).chain(written);
        values.map(|value| Block { durable: value, unflushed: 0, current: value }).collect()
    }
}

/// The tree of a checkpoint, on the medium.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Node {
    pub generation: u64,
    pub tree: Tree,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot {
    pub generation: u64,
    pub epoch: u64,
    pub cut: u64,
    pub tail: u64,
    pub node: u8,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Medium {
    pub blocks: [Block; BLOCKS],
    /// By address: the durable node, and the node that was written and not flushed.
    pub nodes: [(Option<Node>, Option<Node>); NODES],
    pub slots: [Option<Slot>; 2],
    pub ring: Vec<Option<Cell>>,
    pub log_writes: Vec<LogWrite>,
    /// The index and the content of a slot in flight.
    pub slot_write: Option<(u8, Slot)>,
}

impl Medium {
    /// The medium of a new image.
    pub fn new(ring: usize) -> Medium {
        let node = Node { generation: 0, tree: Tree::default() };
        Medium {
            blocks: [Block::EMPTY; BLOCKS],
            nodes: [(Some(node), None), (None, None)],
            slots: [Some(Slot { generation: 0, epoch: 0, cut: 0, tail: 0, node: 0 }), None],
            ring: vec![None; ring],
            log_writes: Vec::new(),
            slot_write: None,
        }
    }

    pub fn has_unflushed(&self) -> bool {
        self.blocks.iter().any(|block| block.unflushed != 0)
            || self.nodes.iter().any(|(_, written)| written.is_some())
    }

    pub fn flush(&mut self) {
        self.blocks.iter_mut().for_each(Block::flush);
        for (durable, written) in &mut self.nodes {
            *durable = written.take().or(*durable);
        }
    }

    /// Completes the log write that starts at `start`.
    pub fn log_done(&mut self, start: u64) {
        let at = self.log_writes.iter().position(|write| write.start == start);
        let write = self.log_writes.remove(at.expect("the log write is on its way"));
        self.land(&write, false);
    }

    fn land(&mut self, write: &LogWrite, torn: bool) {
        let ring = self.ring.len() as u64;
        for (lsn, record) in (write.start..).zip(&write.records) {
            let end = write.end();
            self.ring[(lsn % ring) as usize] = Some(Cell {
                epoch: write.epoch,
                start: write.start,
                end,
                lsn,
                record: *record,
                torn: torn && lsn + 1 == end,
                tail: write.tail,
                durable: write.durable,
            });
        }
    }

    pub fn slot_done(&mut self) {
        let (place, slot) = self.slot_write.take().expect("a slot is on its way");
        self.slots[place as usize] = Some(slot);
    }

    /// Returns all media that a crash may leave.
    pub fn crashes(&self) -> BTreeSet<Medium> {
        let still = Medium { log_writes: Vec::new(), slot_write: None, ..self.clone() };
        let mut all = vec![still];
        for at in 0..BLOCKS {
            all = each(all, self.blocks[at].choices(), |medium, block| medium.blocks[at] = block);
        }
        for at in 0..NODES {
            let (durable, written) = self.nodes[at];
            let choices = std::iter::once(durable).chain(written.map(Some)).collect();
            all = each(all, choices, |medium, node| medium.nodes[at] = (node, None));
        }
        for write in &self.log_writes {
            all = each(all, vec![None, Some(false), Some(true)], |medium, torn| {
                if let Some(torn) = torn {
                    medium.land(write, torn);
                }
            });
        }
        if let Some((place, slot)) = self.slot_write {
            let old = self.slots[place as usize];
            all = each(all, vec![old, Some(slot), None], |medium, slot| medium.slots[place as usize] = slot);
        }
        all.into_iter().collect()
    }
}

/// Returns a copy of each medium for each choice.
fn each<T: Clone>(media: Vec<Medium>, choices: Vec<T>, set: impl Fn(&mut Medium, T)) -> Vec<Medium> {
    let mut all = Vec::with_capacity(media.len() * choices.len());
    for medium in media {
        for choice in &choices {
            let mut medium = medium.clone();
            set(&mut medium, choice.clone());
            all.push(medium);
        }
    }
    all
}
