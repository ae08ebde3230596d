//! The content of a base image: values that a crafted image may contain in a wrong context.

use super::damage::{BASES_COUNT, Base, IMAGE, base, number};
use kedge_base::{BLOCK_SIZE, BlockNo, Extent, Lsn};
use kedge_device::MemDevice;
use kedge_format::item::ExtentItem;
use kedge_format::logwrite::WriteHeader;
use kedge_format::node::{NODE_SIZE, NodeView};
use kedge_format::superblock::{SLOTS, Superblock};
use kedge_format::trees::TreeEntry;
use kedge_format::{ItemKind, Key};
use std::collections::BTreeSet;
use std::sync::OnceLock;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The contents of a base image's newest checkpoint.
pub(super) struct Inside {
    /// Address and level of each node.
    pub nodes: Vec<(BlockNo, u8)>,
    /// Addresses of the nodes of the table of trees.
    pub table: BTreeSet<BlockNo>,
    pub keys: Vec<Key>,
    pub extents: Vec<Extent>,
    /// End of the last valid log write.
    pub head: Lsn,
}

pub(super) fn newest(medium: &MemDevice) -> Option<Superblock> {
    let slot = |i: usize| {
        let block = medium.bytes(SLOTS[i].byte_offset(), BLOCK_SIZE);
        Superblock::decode(&block, i, IMAGE / BLOCK).ok()
    };
    (0..SLOTS.len()).filter_map(slot).max_by_key(|sb| sb.checkpoint.generation)
}

pub(super) fn inside(flags: u8) -> &'static Inside {
    static INSIDES: [OnceLock<Inside>; BASES_COUNT] = [const { OnceLock::new() }; BASES_COUNT];
    INSIDES[number(flags)].get_or_init(|| look_inside(base(flags)))
}

fn look_inside(base: &Base) -> Inside {
    let sb = newest(&base.medium).expect("the base image is valid");
    let c = &sb.checkpoint;
    let mut found = Inside {
        nodes: vec![(c.root, c.root_level)],
        table: BTreeSet::new(),
        keys: vec![],
        extents: vec![],
        head: c.tail_lsn,
    };
    found.nodes.extend(c.trees.map(|table| (table.root, table.root_level)));
    found.table.extend(c.trees.map(|table| table.root));
    let mut known: BTreeSet<BlockNo> = found.nodes.iter().map(|(addr, _)| *addr).collect();
    let mut next = 0;
    while let Some(&(addr, level)) = found.nodes.get(next) {
        next += 1;
        let bytes = base.medium.bytes(addr.byte_offset(), NODE_SIZE);
        let view = NodeView::trusted(&bytes);
        for (i, (key, value)) in view.iter().enumerate() {
            // Trees share nodes, so `known` keeps each node once.
            let of_table = found.table.contains(&addr);
            let below = match level {
                0 if of_table => TreeEntry::decode(value).ok().map(|tree| (tree.root, tree.root_level)),
                0 => None,
                _ => Some((view.child(i).addr, level - 1)),
            };
            let below = below.filter(|(addr, _)| addr.0 != 0 && known.insert(*addr));
            found.table.extend(below.filter(|_| level > 0 && of_table).map(|(addr, _)| addr));
            found.nodes.extend(below);
            if level > 0 || of_table {
                continue;
            }
            found.keys.push(key);
            if key.kind == ItemKind::Extent as u8 {
                found.extents.extend(ExtentItem::decode(value).map(|item| item.extent()));
            }
        }
    }
    let (log, ring) = (sb.geometry.log_start.byte_offset(), sb.geometry.log_bytes());
    while let Some(header) =
        WriteHeader::peek(&sb.geometry.log_key(), &base.medium.bytes(log + found.head.0 % ring, BLOCK_SIZE))
            .filter(|header| header.lsn == found.head && header.epoch == c.epoch)
    {
        found.head = header.end_lsn();
    }
    found
}
