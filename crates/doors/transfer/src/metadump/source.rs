//! Finds the metadata of an image, even if the image is damaged.
//!
//! No content of the image makes these functions fail. Work is bounded: each block of an area is
//! read once, and each node once for each generation under which valid parents name it.

use anyhow::{Result, bail};
use kedge_base::{BLOCK_SIZE, BlockNo, Generation, IoBuf};
use kedge_device::Device;
use kedge_format::content::{Content, HEAD_BYTES};
use kedge_format::logwrite::{WRITE_BLOCKS_MAX, WriteHeader};
use kedge_format::node::{Child, NODE_BLOCKS, NODE_SIZE, NodeView};
use kedge_format::record::{Edit, Record};
use kedge_format::superblock::{SLOTS, Superblock};
use kedge_format::trees::TreeEntry;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The most blocks read with one request.
const STEP: u64 = 256;
/// The range of bytes in a node that contains the image's UUID.
const NODE_UUID: std::ops::Range<usize> = 16..32;

pub struct Source {
    device: Arc<dyn Device>,
    pub slots: [Slot; 2],
    /// The copies of the superblock that the newest slot refers to.
    pub copies: Vec<Slot>,
    /// The number of copies that could not be read.
    pub copies_unreadable: u64,
}

/// A slot or a copy of the superblock.
pub struct Slot {
    pub at: BlockNo,
    pub bytes: Vec<u8>,
    /// `None` if it is not valid.
    pub superblock: Option<Superblock>,
}

pub struct Node<'a> {
    pub at: BlockNo,
    pub bytes: &'a [u8],
    /// `None` if the node is damaged.
    pub view: Option<NodeView<'a>>,
}

/// A log write anywhere in the ring, of any lap.
pub struct LogWrite<'a> {
    pub superblock: &'a Superblock,
    /// The index of its first block in the ring.
    pub index: u64,
    pub header: WriteHeader,
    /// All blocks of the log write, as counted in the header.
    pub bytes: &'a [u8],
    /// Whether the log write is complete: its hashes match.
    pub whole: bool,
}

impl Source {
    pub fn open(device: Arc<dyn Device>) -> Result<Source> {
        let blocks = device.geometry().size / BLOCK_SIZE as u64;
        if blocks <= SLOTS[1].0 {
            bail!("it has no room for two superblock slots");
        }
        let slot = |slot: usize| -> Result<Slot> {
            let mut bytes = IoBuf::zeroed(1);
            device.read(SLOTS[slot].byte_offset(), &mut bytes)?;
            let bytes = bytes.as_bytes().to_vec();
            let superblock = Superblock::decode(&bytes, slot, blocks).ok();
            Ok(Slot { at: SLOTS[slot], bytes, superblock })
        };
        let slots = [slot(0)?, slot(1)?];
        if !slots.iter().any(|slot| Superblock::has_magic(&slot.bytes)) {
            let mut head = IoBuf::zeroed(HEAD_BYTES.div_ceil(BLOCK_SIZE).min(blocks as usize));
            device.read(0, &mut head)?;
            match Content::of(head.as_bytes()) {
                Content::Other(held) => bail!("it holds {held}, no KedgeFS image"),
                _ => bail!("it is no KedgeFS image"),
            }
        }
        let mut source = Source { device, slots, copies: Vec::new(), copies_unreadable: 0 };
        source.find_copies(blocks);
        Ok(source)
    }

    fn find_copies(&mut self, device_blocks: u64) {
        let Some(newest) = self.superblocks().first().copied().cloned() else { return };
        for at in newest.geometry.copies() {
            match self.read(at, 1) {
                Ok(bytes) => {
                    let bytes = bytes.as_bytes().to_vec();
                    let superblock = Superblock::decode_copy(&bytes, at, device_blocks).ok();
                    self.copies.push(Slot { at, bytes, superblock });
                }
                Err(_) => self.copies_unreadable += 1,
            }
        }
    }

    pub fn size(&self) -> u64 {
        self.device.geometry().size
    }

    /// The valid slots, the newest first.
    pub fn superblocks(&self) -> Vec<&Superblock> {
        let mut valid: Vec<_> = self.slots.iter().filter_map(|slot| slot.superblock.as_ref()).collect();
        valid.sort_by_key(|sb| std::cmp::Reverse(sb.checkpoint.generation));
        valid
    }

    /// The allocation indexes and bitmaps, each as first block and number of blocks.
    pub fn areas(&self) -> BTreeSet<(BlockNo, u64)> {
        let of = |sb: &&Superblock| {
            let g = &sb.geometry;
            let index = g.index_start.map(|start| (start, g.index_blocks));
            let bitmaps = g.bitmap_start.map(|start| (start, g.groups()));
            [index, bitmaps].concat()
        };
        self.superblocks().iter().flat_map(of).collect()
    }

    /// The log rings of the valid slots, usually one.
    pub fn logs(&self) -> BTreeSet<(BlockNo, u64)> {
        self.superblocks().iter().map(|sb| (sb.geometry.log_start, sb.geometry.log_blocks)).collect()
    }

    fn read(&self, at: BlockNo, blocks: u64) -> kedge_base::Result<IoBuf> {
        let mut bytes = IoBuf::zeroed(blocks as usize);
        self.device.read(at.byte_offset(), &mut bytes)?;
        Ok(bytes)
    }

    /// Passes all blocks of an area to `visit`. Returns how many could not be read.
    pub fn stream(
        &self,
        start: BlockNo,
        blocks: u64,
        visit: &mut dyn FnMut(BlockNo, &[u8]) -> Result<()>,
    ) -> Result<u64> {
        let mut unreadable = 0;
        for from in (start.0..start.0 + blocks).step_by(STEP as usize) {
            let count = STEP.min(start.0 + blocks - from);
            match self.read(BlockNo(from), count) {
                Ok(bytes) => visit(BlockNo(from), bytes.as_bytes())?,
                // Read block by block, so that a bad sector loses only its own block.
                Err(_) => {
                    for at in (from..from + count).map(BlockNo) {
                        match self.read(at, 1) {
                            Ok(bytes) => visit(at, bytes.as_bytes())?,
                            Err(_) => unreadable += 1,
                        }
                    }
                }
            }
        }
        Ok(unreadable)
    }

    /// Passes every node that the trees of the valid slots reach to `visit`. Returns how many could
    /// not be read.
    pub fn each_node(&self, visit: &mut dyn FnMut(Node<'_>) -> Result<()>) -> Result<u64> {
        let mut seen: BTreeSet<(u64, Generation)> = BTreeSet::new();
        let mut valid: BTreeSet<u64> = BTreeSet::new();
        let mut unreadable = 0;
        for sb in self.superblocks() {
            let (g, c) = (&sb.geometry, &sb.checkpoint);
            let inside = |at: u64| {
                let end = at.checked_add(NODE_BLOCKS);
                at >= g.data_start.0
                    && at.is_multiple_of(NODE_BLOCKS)
                    && end.is_some_and(|end| end <= g.total_blocks)
            };
            let mut left = vec![(Child { addr: c.root, generation: c.root_generation }, c.root_level, false)];
            let table = c.trees.map(|table| (table.root, table.root_generation, table.root_level));
            left.extend(table.map(|(addr, generation, level)| (Child { addr, generation }, level, true)));
            while let Some((child, level, of_table)) = left.pop() {
                if !inside(child.addr.0) || !seen.insert((child.addr.0, child.generation)) {
                    continue;
                }
                let Ok(bytes) = self.read(child.addr, NODE_BLOCKS) else {
                    unreadable += 1;
                    continue;
                };
                let bytes = bytes.as_bytes();
                let view = NodeView::check(bytes, &g.uuid, child.addr, child.generation, level).ok();
                if let Some(view) = &view {
                    valid.insert(child.addr.0);
                    if level > 0 {
                        left.extend((0..view.items()).map(|i| (view.child(i), level - 1, of_table)));
                    } else if of_table {
                        left.extend(trees_in(view).map(|(root, level)| (root, level, false)));
                    }
                } else if valid.contains(&child.addr.0) || !looks_like_node(bytes, &g.uuid) {
                    continue;
                }
                visit(Node { at: child.addr, bytes, view })?;
            }
        }
        Ok(unreadable)
    }

    /// Passes every log write in the ring to `visit`, including those of earlier laps. Blocks that
    /// cannot be read are skipped.
    pub fn each_log_write(&self, visit: &mut dyn FnMut(LogWrite<'_>) -> Result<()>) -> Result<()> {
        // All slots have the same ring and key unless they contradict each other.
        let Some(superblock) = self.superblocks().first().copied() else { return Ok(()) };
        let (g, key) = (&superblock.geometry, superblock.geometry.log_key());
        let mut next = 0;
        let mut headers = Vec::new();
        self.stream(g.log_start, g.log_blocks, &mut |at, bytes| {
            for (i, block) in (at.0 - g.log_start.0..).zip(bytes.chunks(BLOCK_SIZE)) {
                if let Some(header) = WriteHeader::peek(&key, block) {
                    headers.push((i, header));
                }
            }
            Ok(())
        })?;
        for (index, header) in headers {
            if index < next || header.blocks as u64 > g.log_blocks {
                continue;
            }
            let Some(bytes) = self.ring(superblock, index, header.blocks) else { continue };
            let whole = header.is_whole(&key, &bytes);
            if whole {
                next = index + header.blocks as u64;
            }
            visit(LogWrite { superblock, index, header, bytes: &bytes, whole })?;
        }
        Ok(())
    }

    fn ring(&self, sb: &Superblock, index: u64, blocks: u32) -> Option<Vec<u8>> {
        assert!(blocks <= WRITE_BLOCKS_MAX, "a header's size is bounded");
        let g = &sb.geometry;
        let head = (g.log_blocks - index).min(blocks as u64);
        let mut bytes = self.read(BlockNo(g.log_start.0 + index), head).ok()?.as_bytes().to_vec();
        if head < blocks as u64 {
            bytes.extend_from_slice(self.read(g.log_start, blocks as u64 - head).ok()?.as_bytes());
        }
        Some(bytes)
    }
}

/// The roots of trees that a leaf of the table of trees names.
fn trees_in<'a>(leaf: &'a NodeView<'a>) -> impl Iterator<Item = (Child, u8)> + 'a {
    let entries = leaf.iter().filter_map(|(_, value)| TreeEntry::decode(value).ok());
    entries.map(|tree| (Child { addr: tree.root, generation: tree.root_generation }, tree.root_level))
}

/// Whether bytes that are no valid node were a node of this image.
fn looks_like_node(bytes: &[u8], uuid: &uuid::Uuid) -> bool {
    bytes.len() == NODE_SIZE && bytes.starts_with(b"KEDGENOD") && bytes[NODE_UUID] == *uuid.as_bytes()
}

impl LogWrite<'_> {
    /// The records that can be decoded.
    pub fn records(&self) -> Vec<Record<'_>> {
        let records = if self.whole { self.header.records(self.bytes) } else { None };
        records.into_iter().flatten().filter_map(|(lsn, bytes)| Record::decode(lsn, bytes).ok()).collect()
    }

    /// Bytes of file data in the log write.
    pub fn data_bytes(&self) -> u64 {
        let bytes = |edit: &Edit<'_>| match edit {
            Edit::Data { bytes, .. } => bytes.len() as u64,
            _ => 0,
        };
        self.records().iter().flat_map(|record| &record.edits).map(bytes).sum()
    }

    /// Writes `bytes` at the position of this log write, which may wrap around the end of the ring.
    pub fn put(&self, bytes: &[u8], put: &mut dyn FnMut(BlockNo, &[u8]) -> Result<()>) -> Result<()> {
        let g = &self.superblock.geometry;
        let head = bytes.len().min((g.log_blocks - self.index) as usize * BLOCK_SIZE);
        put(BlockNo(g.log_start.0 + self.index), &bytes[..head])?;
        put(g.log_start, &bytes[head..])
    }
}
