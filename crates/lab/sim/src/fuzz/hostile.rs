//! Hostile images, made with knowledge of the format: all checksums are correct, and the values
//! under them are absurd.
//!
//! [`image`] takes a used image and changes a few values in it, by a seed: a number of a
//! superblock, an index entry, a bitmap, a node's header, a slot, an item of each kind, a child
//! pointer, a log header, an edit of each kind. Half of the new values are absurd by themselves
//! (zero, the largest numbers, places in the format's own areas), the other half only in their
//! context (another file's block, a neighbour's key). [`judge`] checks what must hold for every
//! image.
//!
//! # What must hold
//! 1. Nothing panics, nothing runs without end, and memory stays bounded by the image's size. The
//!    caller watches this.
//! 2. An image that fsck calls clean opens read-only and read-write, can be walked, used and
//!    closed, and is clean afterwards, unless a counter passed its last value.
//! 3. The same holds for images that `fsck -p` and `fsck -y` have repaired or found clean.
//! 4. `fsck -y` ends in a clean image, unless no superblock is valid, a counter that it cannot
//!    recompute is used up, or there is no space for a second tree.

use super::change_names;
use super::damage::{Base, IMAGE, base, flag, mount_options, put, reseal_bitmap};
use super::fields::{CORE, FIXED, LIMIT_FIELDS, LOG_HEADER, NODE_HEADER, TREE_FIELDS};
use super::inside::{Inside, inside, newest};
use crate::ops::OWNER;
use crate::view::View;
use kedge_base::{BLOCK_SIZE, BlockNo, Lsn, ManualClock};
use kedge_device::MemDevice;
use kedge_format::alloc::{decode_index_block, encode_index_block};
use kedge_format::item::{ExtentItem, FILE_SIZE_MAX, Xattr};
use kedge_format::limits::LimitEntry;
use kedge_format::logwrite::{HEADER_SIZE, WriteHeader};
use kedge_format::node::{NODE_BLOCKS, NODE_SIZE, NodeMut, NodeView};
use kedge_format::superblock::{COUNTER_MAX, OPEN_MAX, SLOTS, Superblock, TableState};
use kedge_format::{BLOCKS_MAX, FileKind, InodeCore, ItemKind, Key, SIZE_MAX, reseal};
use kedge_fsck::{CheckOptions, Ending, RepairMode, RepairOptions, StoreReplay};
use kedgefs::{
    DirEntry, FallocateMode, FileSystem, Ino, MountOptions, RenameMode, SeekKind, SetAttr, SetLimit,
    XattrMode,
};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Stands for the entries of the table of trees among the kinds of items.
const TREE: u8 = u8::MAX;
/// An image and a description of the values changed in it.
pub struct Hostile {
    pub medium: MemDevice,
    pub lies: Vec<String>,
}

/// The image of a seed.
pub fn image(seed: u64) -> Hostile {
    let mut choice = SmallRng::seed_from_u64(!seed);
    let flags = if choice.random_bool(0.3) { flag::UNMOUNTED } else { 0 };
    let flags = flags | if choice.random_bool(0.3) { flag::FORKED } else { 0 };
    let flags = flags | if choice.random_bool(0.3) { flag::SUMS } else { 0 };
    let mut liar = Liar::of(flags, seed);
    let count = if liar.rng.random_bool(0.6) { 1 } else { liar.rng.random_range(2..6) };
    while liar.lies.len() < count {
        match liar.rng.random_range(0..100) {
            0..12 => liar.slot(),
            12..18 => liar.index(),
            18..22 => liar.bitmap(),
            22..30 => liar.node(),
            30..55 => liar.item(),
            55..70 => liar.new_item(),
            _ => liar.log(),
        }
    }
    Hostile { medium: liar.medium, lies: liar.lies }
}

/// The image that lost power, with a log write of these edits appended. `edits` is the number of
/// edits in `bytes`.
pub fn with_edits(edits: u16, bytes: &[u8]) -> MemDevice {
    let mut liar = Liar::of(0, 0);
    let mut record = vec![1, 0];
    record.extend_from_slice(&edits.to_le_bytes());
    record.extend_from_slice(bytes);
    let mut payload = (record.len() as u32).to_le_bytes().to_vec();
    payload.extend_from_slice(&record);
    let write = liar.log_write(&payload, 1);
    liar.append(&write);
    liar.medium
}

/// The image that lost power, with changes to the slot of its newest checkpoint.
pub fn with_slot(change: impl FnOnce(&mut Superblock)) -> MemDevice {
    let mut liar = Liar::of(0, 0);
    change(&mut liar.sb);
    let sb = liar.sb.clone();
    liar.write_slot(&sb, sb.block());
    liar.medium
}

struct Liar {
    rng: SmallRng,
    medium: MemDevice,
    base: &'static Base,
    inside: &'static Inside,
    /// The newest slot, unchanged.
    sb: Superblock,
    head: Lsn,
    lies: Vec<String>,
}

/// Numbers at which arithmetic overflows or loops become endless.
const ABSURD: [u64; 28] = [
    0,
    1,
    2,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 32,
    1 << 43,
    1 << 52,
    1 << 54,
    FILE_SIZE_MAX,
    FILE_SIZE_MAX / BLOCK,
    BLOCKS_MAX,
    COUNTER_MAX - 1,
    COUNTER_MAX,
    COUNTER_MAX + 1,
    SIZE_MAX,
    SIZE_MAX - 4095,
    1 << 63,
    u64::MAX - (1 << 32),
    u64::MAX - 4095,
    u64::MAX - 4096,
    u64::MAX - 1,
    u64::MAX,
];

type SetNumber = (&'static str, fn(&mut Superblock, u64));

/// The superblock's numbers that are equal in both slots.
const GEOMETRY: [SetNumber; 13] = [
    ("total_blocks", |sb, n| sb.geometry.total_blocks = n),
    ("index_start[0]", |sb, n| sb.geometry.index_start[0] = BlockNo(n)),
    ("index_start[1]", |sb, n| sb.geometry.index_start[1] = BlockNo(n)),
    ("index_blocks", |sb, n| sb.geometry.index_blocks = n),
    ("bitmap_start[0]", |sb, n| sb.geometry.bitmap_start[0] = BlockNo(n)),
    ("bitmap_start[1]", |sb, n| sb.geometry.bitmap_start[1] = BlockNo(n)),
    ("log_start", |sb, n| sb.geometry.log_start = BlockNo(n)),
    ("log_blocks", |sb, n| sb.geometry.log_blocks = n),
    ("data_start", |sb, n| sb.geometry.data_start = BlockNo(n)),
    ("created_sec", |sb, n| sb.geometry.created.sec = n as i64),
    ("created_nsec", |sb, n| sb.geometry.created.nsec = n as u32),
    ("feature_compat", |sb, n| sb.geometry.feature_compat = n),
    ("feature_ro_compat", |sb, n| sb.geometry.feature_ro_compat = n),
];

/// The numbers that each checkpoint sets.
const CHECKPOINT: [SetNumber; 18] = [
    ("root", |sb, n| sb.checkpoint.root = BlockNo(n)),
    ("root_generation", |sb, n| sb.checkpoint.root_generation.0 = n),
    ("root_level", |sb, n| sb.checkpoint.root_level = n as u8),
    ("checkpoint_lsn", |sb, n| sb.checkpoint.checkpoint_lsn = Lsn(n)),
    ("tail_lsn", |sb, n| sb.checkpoint.tail_lsn = Lsn(n)),
    ("both LSNs", |sb, n| {
        (sb.checkpoint.tail_lsn, sb.checkpoint.checkpoint_lsn) = (Lsn(n & !4095), Lsn(n & !4095));
    }),
    ("epoch", |sb, n| sb.checkpoint.epoch.0 = n),
    ("next_ino", |sb, n| sb.checkpoint.next_ino = Ino(n)),
    ("inodes", |sb, n| sb.checkpoint.inodes = n),
    ("free_blocks", |sb, n| sb.checkpoint.free_blocks = n),
    ("nodes", |sb, n| sb.checkpoint.nodes = n),
    ("written_sec", |sb, n| sb.checkpoint.written_sec = n as i64),
    ("clean", |sb, n| sb.checkpoint.clean = n & 1 != 0),
    ("table root", |sb, n| with_table(sb, |table| table.root = BlockNo(n))),
    ("table root_generation", |sb, n| with_table(sb, |table| table.root_generation.0 = n)),
    ("table root_level", |sb, n| with_table(sb, |table| table.root_level = n as u8)),
    ("table nodes", |sb, n| with_table(sb, |table| table.nodes = n)),
    ("birth", |sb, n| with_table(sb, |table| table.birth = n as u32)),
];

/// Changes the state of the table of trees, if there is one.
fn with_table(sb: &mut Superblock, change: impl FnOnce(&mut TableState)) {
    sb.checkpoint.trees.as_mut().map(change).unwrap_or_default();
}

const NODE_HEADER_SIZE: usize = 64;
const NODE_SLOT_SIZE: usize = Key::SIZE + 4;

fn set(bytes: &mut [u8], at: usize, len: usize, n: u64) {
    bytes[at..at + len].copy_from_slice(&n.to_le_bytes()[..len]);
}

fn get(bytes: &[u8], at: usize, len: usize) -> u64 {
    let mut n = [0; 8];
    n[..len].copy_from_slice(&bytes[at..at + len]);
    u64::from_le_bytes(n)
}

impl Liar {
    fn of(flags: u8, seed: u64) -> Liar {
        let (base, inside) = (base(flags), inside(flags));
        let sb = newest(&base.medium).expect("the base image is valid");
        let (rng, medium, head) = (SmallRng::seed_from_u64(seed), base.medium.fork(), inside.head);
        Liar { rng, medium, base, inside, sb, head, lies: Vec::new() }
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        *of.choose(&mut self.rng).expect("a list of choices is not empty")
    }

    /// A number to replace `was`.
    fn number(&mut self, was: u64) -> u64 {
        match self.rng.random_range(0..10) {
            0..5 => self.one(&ABSURD),
            5..7 => was.wrapping_add_signed(self.rng.random_range(-2..=2)),
            7 => self.rng.random::<u64>() >> self.rng.random_range(0..64),
            8 => was ^ 1 << self.rng.random_range(0..64),
            _ => self.block().0,
        }
    }

    /// A block: of the format's areas, of the tree, of a file, or outside of all.
    fn block(&mut self) -> BlockNo {
        let g = &self.base.geometry;
        let places = [
            SLOTS[0],
            SLOTS[1],
            g.index_start[0],
            g.index_start[1],
            g.bitmap_start[0],
            g.bitmap_start[1],
            g.log_start,
            BlockNo(g.data_start.0 - 1),
            g.data_start,
            BlockNo(g.total_blocks - NODE_BLOCKS),
            BlockNo(g.total_blocks - 1),
            BlockNo(g.total_blocks),
        ];
        match self.rng.random_range(0..4) {
            0 => self.one(&places),
            1 => self.one(&self.inside.nodes).0,
            2 => self.one(&self.inside.extents).start,
            _ => BlockNo(self.rng.random_range(0..g.total_blocks)),
        }
    }

    fn ino(&mut self) -> u64 {
        match self.rng.random_range(0..10) {
            0 => self.one(&ABSURD),
            1 => self.sb.checkpoint.next_ino.0.wrapping_add(self.rng.random_range(0..3)),
            2 => Ino::ROOT.0,
            _ => self.one(&self.inside.keys).ino,
        }
    }

    /// A directory of the base image.
    fn dir(&mut self) -> u64 {
        let entries = self.inside.keys.iter().filter(|key| key.kind == ItemKind::Dentry as u8);
        let mut dirs: Vec<u64> = entries.map(|key| key.ino).collect();
        dirs.dedup();
        self.one(&dirs)
    }

    fn key(&mut self) -> Key {
        let known = self.one(&self.inside.keys);
        let kind = self.one(&[1, 2, 3, 4, 5, 6, 7, 0, 8, 255]);
        match self.rng.random_range(0..6) {
            0..3 => known,
            3 => Key { ino: self.ino(), ..known },
            4 => Key { offset: self.number(known.offset), ..known },
            _ => Key { ino: self.ino(), kind, offset: self.number(known.offset) },
        }
    }

    fn lie(&mut self, what: String) {
        self.lies.push(what);
    }

    fn write_slot(&mut self, sb: &Superblock, block: BlockNo) {
        let mut bytes = vec![0; BLOCK_SIZE];
        sb.encode(&mut bytes);
        put(&self.medium, block.byte_offset(), &bytes);
    }

    // Superblock, index and bitmaps

    fn slot(&mut self) {
        match self.rng.random_range(0..10) {
            0..3 => self.geometry(),
            3..8 => {
                let (name, change) = self.one(&CHECKPOINT);
                let was = self.sb.checkpoint.next_ino.0;
                let n = self.number(was);
                change(&mut self.sb, n);
                let sb = self.sb.clone();
                self.write_slot(&sb, sb.block());
                self.lie(format!("slot: {name} {n}"));
            }
            8 => self.generation(),
            _ => {
                let (name, at, len) = self.one(&FIXED);
                for slot in SLOTS {
                    let mut bytes = self.medium.bytes(slot.byte_offset(), BLOCK_SIZE);
                    let n = self.number(get(&bytes, at, len));
                    set(&mut bytes, at, len, n);
                    reseal(&mut bytes, &self.base.geometry.log_secret);
                    put(&self.medium, slot.byte_offset(), &bytes);
                }
                self.lie(format!("slots: {name}"));
            }
        }
    }

    fn geometry(&mut self) {
        let (name, change) = self.one(&GEOMETRY);
        let n = self.number(self.sb.geometry.data_start.0);
        for (i, slot) in SLOTS.iter().enumerate() {
            let bytes = self.medium.bytes(slot.byte_offset(), BLOCK_SIZE);
            if let Ok(mut sb) = Superblock::decode(&bytes, i, IMAGE / BLOCK) {
                change(&mut sb, n);
                self.write_slot(&sb, *slot);
            }
        }
        change(&mut self.sb, n);
        self.lie(format!("slots: {name} {n}"));
    }

    /// Changes the checkpoint's number in its slot and in its index.
    fn generation(&mut self) {
        let was = self.sb.checkpoint.generation;
        let n = self.number(was.0);
        let (uuid, start) = (self.base.geometry.uuid, self.base.geometry.index_start);
        let from = start[Superblock::slot_of(was)];
        let index = self.medium.bytes(from.byte_offset(), BLOCK_SIZE);
        self.sb.checkpoint.generation.0 = n;
        let now = self.sb.checkpoint.generation;
        if let Ok(entries) = decode_index_block(&index, from, &uuid, was, 0) {
            let mut bytes = vec![0; BLOCK_SIZE];
            encode_index_block(&uuid, now, 0, &entries, &mut bytes);
            put(&self.medium, start[Superblock::slot_of(now)].byte_offset(), &bytes);
        }
        let sb = self.sb.clone();
        self.write_slot(&sb, sb.block());
        self.lie(format!("slot: generation {n}"));
    }

    fn index(&mut self) {
        let start = self.one(&self.base.geometry.index_start);
        let mut bytes = self.medium.bytes(start.byte_offset(), BLOCK_SIZE);
        let fields = [
            ("entries", 12, 4),
            ("generation", 32, 8),
            ("first_group", 40, 8),
            ("bitmap_crc", 48, 4),
            ("free_blocks", 52, 4),
            ("home", 56, 4),
        ];
        let (name, at, len) = self.one(&fields);
        let n = self.number(get(&bytes, at, len));
        set(&mut bytes, at, len, n);
        reseal(&mut bytes, &self.base.geometry.log_secret);
        put(&self.medium, start.byte_offset(), &bytes);
        self.lie(format!("index: {name} {n}"));
    }

    fn bitmap(&mut self) {
        let start = self.one(&self.base.geometry.bitmap_start);
        let structure = self.base.structures.iter().find(|s| s.at == start.byte_offset());
        let structure = structure.expect("the base image's bitmaps are known");
        let mut bytes = structure.read(&self.medium);
        let fill = self.one(&[0, 0xff, 0x55, 0x01]);
        let from = self.rng.random_range(0..BLOCK_SIZE);
        let len = self.rng.random_range(1..=64.min(BLOCK_SIZE - from));
        let whole = self.rng.random_bool(0.2);
        let range = if whole { 0..BLOCK_SIZE } else { from..from + len };
        bytes[range.clone()].fill(fill);
        reseal_bitmap(self.base, &self.medium, structure, &bytes);
        put(&self.medium, structure.at, &bytes);
        self.lie(format!("bitmap: {fill:#x} in {range:?}"));
    }

    // Nodes and items

    fn node(&mut self) {
        let (addr, level) = self.one(&self.inside.nodes);
        let mut bytes = self.medium.bytes(addr.byte_offset(), NODE_SIZE);
        let items = NodeView::trusted(&bytes).items().min((NODE_SIZE - NODE_HEADER_SIZE) / NODE_SLOT_SIZE);
        let slot = NODE_HEADER_SIZE + self.rng.random_range(0..items.max(1)) * NODE_SLOT_SIZE;
        let (name, at, len) = match self.rng.random_range(0..3) {
            0 => self.one(&NODE_HEADER),
            1 => {
                self.one(&[("value offset", slot + Key::SIZE, 2), ("value length", slot + Key::SIZE + 2, 2)])
            }
            _ => self.one(&[
                ("key's inode", slot, 8),
                ("key's kind", slot + 8, 1),
                ("key's offset", slot + 9, 8),
            ]),
        };
        let n = self.number(get(&bytes, at, len));
        set(&mut bytes, at, len, n);
        reseal(&mut bytes, &self.base.geometry.log_secret);
        put(&self.medium, addr.byte_offset(), &bytes);
        self.lie(format!("node {addr} of level {level}: {name} {n}"));
    }

    /// An item; all kinds, including a child pointer, are equally likely.
    fn item(&mut self) {
        let kind = match self.sb.checkpoint.trees {
            Some(_) if self.rng.random_bool(0.4) => TREE,
            _ => self.one(&[0, 1, 1, 1, 2, 3, 4, 5, 5, 6, 7]),
        };
        let mut places = Vec::new();
        for &(addr, level) in &self.inside.nodes {
            let bytes = self.medium.bytes(addr.byte_offset(), NODE_SIZE);
            let view = NodeView::trusted(&bytes);
            let of_table = self.inside.table.contains(&addr);
            if view.check_structure().is_err()
                || (kind == 0) != (level > 0)
                || of_table && kind != TREE && kind != 0
            {
                continue;
            }
            let wanted = view.iter().enumerate().filter(|(_, (key, _))| match kind {
                0 => true,
                TREE => of_table,
                _ => key.kind == kind,
            });
            places.extend(wanted.map(|(i, _)| (addr, i)));
        }
        let Some(&(addr, i)) = places.choose(&mut self.rng) else { return };
        let mut bytes = self.medium.bytes(addr.byte_offset(), NODE_SIZE);
        let (key, mut value) =
            (NodeView::trusted(&bytes).key(i), NodeView::trusted(&bytes).value(i).to_vec());
        let name = self.change_value(kind, &mut value);
        let mut node = NodeMut::trusted(&mut bytes);
        if !node.replace_value(i, &value) {
            return;
        }
        node.seal(&self.base.geometry.log_secret);
        put(&self.medium, addr.byte_offset(), &bytes);
        self.lie(format!("item {key}: {name}"));
    }

    fn change_value(&mut self, kind: u8, value: &mut Vec<u8>) -> String {
        if self.rng.random_bool(0.05) {
            let len = self.rng.random_range(0..value.len() + 2);
            value.resize(len, 0x2f);
            return format!("{len} bytes");
        }
        let fields: &[(&str, usize, usize)] = match kind {
            0 => &[("child's address", 0, 8), ("child's generation", 8, 8)],
            1 => &CORE,
            2 => &[("name length", 0, 1), ("name", 1, 1)],
            3 => &[("target", 0, 1)],
            4 => &[("inode", 0, 8), ("type", 8, 1), ("name", 9, 1)],
            5 => &[("start", 0, 8), ("blocks", 8, 4), ("flags", 12, 4)],
            7 => &[("checksum", 0, 4), ("second checksum", 4, 4)],
            9 => &[("byte", 0, 1)],
            TREE if value.len() == LimitEntry::SIZE => &LIMIT_FIELDS,
            TREE => &TREE_FIELDS,
            _ => &[("orphan", 0, 1)],
        };
        let (name, at, len) = self.one(fields);
        if at + len > value.len() {
            return "unchanged".into();
        }
        let was = get(value, at, len);
        let n = match (kind, name) {
            (0, "child's address") | (5, "start") | (TREE, "root") if self.rng.random_bool(0.7) => {
                self.block().0
            }
            (TREE, "parent") => self.rng.random_range(0..6),
            (4, "inode") if self.rng.random_bool(0.7) => self.ino(),
            (1, "mode") if self.rng.random_bool(0.7) => {
                self.one(&FileKind::ALL).mode_bits() as u64 | self.rng.random_range(0..0o10000)
            }
            _ => self.number(was),
        };
        set(value, at, len, n);
        format!("{name} {n}")
    }

    /// Inserts an item where the tree would search for it.
    fn new_item(&mut self) {
        let (key, value) = self.made_item();
        let mut at = self.sb.checkpoint.root;
        for _ in 0..4 {
            let mut bytes = match at.byte_offset().checked_add(NODE_SIZE as u64) {
                Some(end) if end <= IMAGE => self.medium.bytes(at.byte_offset(), NODE_SIZE),
                _ => return,
            };
            let view = NodeView::trusted(&bytes);
            if view.check_structure().is_err() {
                return;
            }
            if view.level() > 0 {
                at = view.child(view.child_index(&key)).addr;
                continue;
            }
            let place = view.search(&key);
            let mut node = NodeMut::trusted(&mut bytes);
            let done = match place {
                Ok(i) => node.replace_value(i, &value),
                Err(i) => node.insert_at(i, &key, &value),
            };
            if done {
                node.seal(&self.base.geometry.log_secret);
                put(&self.medium, at.byte_offset(), &bytes);
                self.lie(format!("new item {key}: {value:02x?}"));
            }
            return;
        }
    }

    fn made_item(&mut self) -> (Key, Vec<u8>) {
        let ino = self.ino();
        match self.rng.random_range(0..10) {
            0 => (Key { ino, kind: 1, offset: 0 }, self.core().encode().to_vec()),
            1 => {
                let n = self.number(0);
                let blocks = self.number(1) as u32;
                let mut value =
                    ExtentItem { start: self.block(), blocks, unwritten: false, birth: 0, counted: false };
                value.counted = self.rng.random_bool(0.3);
                let mut value = value.encode();
                value[12] = self.rng.random_range(0..2);
                (Key { ino, kind: 5, offset: n }, value.to_vec())
            }
            2 | 3 => {
                let name = [b'a' + self.rng.random_range(0..26u8)];
                let kind = self.one(&FileKind::ALL).dtype();
                // A directory inside itself or a descendant: a walk along names returns to it.
                let circle = self.rng.random_bool(0.4);
                let (ino, target, kind) = match circle {
                    true => (self.dir(), self.dir(), FileKind::Directory.dtype()),
                    false => (ino, self.ino(), kind),
                };
                let mut value = target.to_le_bytes().to_vec();
                value.push(kind);
                value.extend_from_slice(&name);
                let slot = kedge_format::item::name_slot(&self.sb.geometry.hash_seed, &name);
                let offset = slot + if self.rng.random_bool(0.2) { self.rng.random_range(0..256) } else { 0 };
                (Key { ino, kind: 4, offset }, value)
            }
            4 => (Key { ino: 0, kind: 6, offset: ino }, vec![self.one(&[1, 2])]),
            8 => {
                let (blocks, count) = (self.number(1) as u32, self.number(2) as u32);
                let birth = self.rng.random_range(0..2);
                let item = kedge_format::counts::CountItem { blocks, count, birth };
                (Key { ino: 0, kind: 8, offset: self.block().0 }, item.encode().to_vec())
            }
            5 => {
                let name = b"user.x";
                let mut value = vec![name.len() as u8];
                value.extend_from_slice(name);
                let filler = self.rng.random_range(0..2000);
                value.resize(value.len() + filler, 7);
                let slot = kedge_format::item::name_slot(&self.sb.geometry.hash_seed, name);
                (Key { ino, kind: 2, offset: slot }, value)
            }
            6 => {
                let name = b"user.more";
                let slot = kedge_format::item::name_slot(&self.sb.geometry.hash_seed, name);
                let len = self.one(&[4097, 8192, 9000, 65536]);
                let items = Xattr { name, value: &vec![7; len] }.items();
                let nth = self.rng.random_range(0..items.len());
                // One item alone: an attribute without its parts, or a part without its attribute.
                (Key { ino, kind: 2, offset: slot + nth as u64 }, items[nth].clone())
            }
            9 => {
                let offset = u64::from(self.rng.random_bool(0.1));
                (Key { ino, kind: 9, offset }, vec![0x62; self.one(&[0, 1, 93, 2048, 2049, 4096])])
            }
            _ => (self.key(), vec![0x61; self.rng.random_range(0..300)]),
        }
    }

    fn core(&mut self) -> InodeCore {
        let kind = self.one(&FileKind::ALL);
        InodeCore {
            mode: kind.mode_bits() | 0o644,
            nlink: self.one(&[0, 1, 2, 3, u32::MAX]),
            size: self.number(4096),
            blocks: self.one(&[0, 1, 7, BLOCKS_MAX]),
            parent: Ino(self.ino()),
            ..InodeCore::default()
        }
    }

    // The log

    fn log(&mut self) {
        let mut payload = Vec::new();
        let records = self.rng.random_range(1..5u32);
        let mut what = Vec::new();
        for _ in 0..records {
            let record = self.record(&mut what);
            payload.extend_from_slice(&(record.len() as u32).to_le_bytes());
            payload.extend_from_slice(&record);
        }
        let mut write = self.log_write(&payload, records);
        if self.rng.random_bool(0.1) {
            let (name, at, len) = self.one(&LOG_HEADER);
            let n = self.number(get(&write, at, len));
            set(&mut write, at, len, n);
            reseal(&mut write, &self.base.geometry.log_secret);
            what.push(format!("{name} {n}"));
        }
        self.append(&write);
        self.lie(format!("log: {}", what.join(", ")));
    }

    /// A valid log write at the head of the log.
    fn log_write(&self, payload: &[u8], records: u32) -> Vec<u8> {
        let blocks = (HEADER_SIZE + payload.len()).div_ceil(BLOCK_SIZE);
        let c = &self.sb.checkpoint;
        let header = WriteHeader {
            epoch: c.epoch,
            lsn: self.head,
            blocks: blocks as u32,
            tail_lsn: c.tail_lsn,
            durable_lsn: self.head,
            payload_bytes: payload.len() as u32,
            records,
        };
        let mut write = vec![0; blocks * BLOCK_SIZE];
        write[HEADER_SIZE..HEADER_SIZE + payload.len()].copy_from_slice(payload);
        header.seal(&self.base.geometry.log_key(), &mut write);
        write
    }

    fn append(&mut self, write: &[u8]) {
        let g = &self.base.geometry;
        for (i, block) in write.chunks_exact(BLOCK_SIZE).enumerate() {
            let place = (self.head.0 + i as u64 * BLOCK) % g.log_bytes();
            put(&self.medium, g.log_start.byte_offset() + place, block);
        }
        self.head = Lsn(self.head.0 + write.len() as u64);
    }

    fn record(&mut self, what: &mut Vec<String>) -> Vec<u8> {
        let edits = self.rng.random_range(1..5u16);
        let mut bytes = vec![self.rng.random_range(1..14), 0];
        bytes.extend_from_slice(&edits.to_le_bytes());
        for _ in 0..edits {
            what.push(self.edit(&mut bytes));
        }
        if self.rng.random_bool(0.15) {
            let more = edits + 2;
            bytes[2..4].copy_from_slice(&more.to_le_bytes());
            what.push(self.huge_file(&mut bytes));
        }
        bytes
    }

    fn edit(&mut self, out: &mut Vec<u8>) -> String {
        let tag = self.rng.random_range(1..9u8);
        let tag = if self.rng.random_bool(0.02) { self.rng.random() } else { tag };
        out.push(tag);
        match tag {
            1 => self.inode_edit(out),
            2 => {
                let (key, value) = if self.rng.random_bool(0.7) {
                    self.made_item()
                } else {
                    (self.key(), vec![0; self.rng.random_range(0..200)])
                };
                out.extend_from_slice(&key.encode());
                out.extend_from_slice(&(value.len() as u16).to_le_bytes());
                out.extend_from_slice(&value);
                format!("put {key} {value:02x?}")
            }
            3 => {
                let key = self.key();
                out.extend_from_slice(&key.encode());
                format!("delete {key}")
            }
            4 | 5 => {
                let known = self.one(&self.inside.extents);
                let (start, blocks) = match self.rng.random_range(0..4) {
                    0 => (known.start.0, known.blocks),
                    1 => (self.block().0, self.rng.random_range(0..20)),
                    2 => (self.number(known.start.0), known.blocks),
                    _ => (self.block().0, self.number(known.blocks)),
                };
                out.extend_from_slice(&start.to_le_bytes());
                out.extend_from_slice(&blocks.to_le_bytes());
                format!("{} {start}+{blocks}", if tag == 4 { "alloc" } else { "free" })
            }
            6 => {
                let (ino, offset, len) = (self.ino(), self.offset(), self.rng.random_range(0..9000u32));
                out.extend_from_slice(&ino.to_le_bytes());
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(&len.to_le_bytes());
                out.resize(out.len() + len as usize, 0xda);
                format!("data of {ino}: {offset}+{len}")
            }
            _ => {
                let (ino, offset, n) = (self.ino(), self.offset(), self.number(4096));
                let len = if self.rng.random_bool(0.5) { n % 4096 } else { n };
                out.extend_from_slice(&ino.to_le_bytes());
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(&len.to_le_bytes());
                format!("{} of {ino}: {offset}+{len}", if tag == 7 { "zero" } else { "drop" })
            }
        }
    }

    /// A file of a huge size, and an edit of a huge part of it: neither has an effect without the
    /// other.
    fn huge_file(&mut self, out: &mut Vec<u8>) -> String {
        let (ino, size) = (self.one(&self.inside.keys).ino.max(1), self.one(&[1 << 40, FILE_SIZE_MAX]));
        let (tag, offset) = (self.one(&[7, 8]), self.one(&[0, 1, 4096]));
        let len = self.one(&[1 << 20, 1 << 30, size / 2, size - offset, SIZE_MAX]);
        out.push(1);
        out.extend_from_slice(&ino.to_le_bytes());
        out.extend_from_slice(&(1u32 << 5).to_le_bytes());
        out.extend_from_slice(&size.to_le_bytes());
        out.push(tag);
        for n in [ino, offset, len] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        format!("size of {ino}: {size}, {} {offset}+{len}", if tag == 7 { "zero" } else { "drop" })
    }

    fn offset(&mut self) -> u64 {
        if self.rng.random_bool(0.5) { self.rng.random_range(0..40_000) } else { self.number(4096) }
    }

    fn inode_edit(&mut self, out: &mut Vec<u8>) -> String {
        let ino = self.ino();
        let all = (1 << 14) - 1;
        let mask = match self.rng.random_range(0..5) {
            0 => 1 << 31 | all,
            1 => 1 << 31 | 1 | 1 << 4,
            2 => self.rng.random(),
            3 => all,
            _ => 1 << self.rng.random_range(0..14),
        };
        out.extend_from_slice(&ino.to_le_bytes());
        out.extend_from_slice(&u32::to_le_bytes(mask));
        let core = self.core().encode();
        // Mode to nlink, size to ctime, then their nanoseconds: the order of the mask's bits.
        let fields = [0, 4, 8, 12, 16].map(|at| (at, 4)).into_iter();
        let fields = fields.chain([24, 32, 40, 48, 56].map(|at| (at, 8)));
        for (bit, (at, len)) in fields.enumerate() {
            if mask & 1 << bit != 0 {
                let was = get(&core, at, len);
                let n = if self.rng.random_bool(0.3) { self.number(was) } else { was };
                out.extend_from_slice(&n.to_le_bytes()[..len]);
            }
        }
        for bit in 10..14 {
            if mask & 1 << bit != 0 {
                out.extend_from_slice(&self.number(0).to_le_bytes());
                let nsec = if self.rng.random_bool(0.1) { self.number(0) as u32 } else { 5 };
                out.extend_from_slice(&nsec.to_le_bytes());
            }
        }
        format!("inode {ino} {mask:#x}")
    }
}

/// The result for an image.
#[derive(Clone, Copy, Default, Debug)]
pub struct Verdict {
    pub opens: bool,
    pub clean: bool,
    /// Repaired by `fsck -p`, or found clean.
    pub preened: bool,
    /// Repaired by `fsck -y`, or found clean.
    pub repaired: bool,
}

/// Judges an image; see the module. The error names the contradiction.
pub fn judge(medium: &MemDevice) -> Result<Verdict, String> {
    let mut verdict = Verdict { opens: use_it(medium.fork()).is_ok(), ..Verdict::default() };
    let report = check(medium.fork());
    if report.is_clean() {
        verdict.clean = true;
        sound(medium, "fsck calls it clean")?;
        if !verdict.opens {
            return Err("fsck calls it clean, yet it cannot be used".into());
        }
    }
    for mode in [RepairMode::Preen, RepairMode::Full] {
        let device = Arc::new(medium.fork());
        let options = RepairOptions { force: true, ..RepairOptions::new(mode) };
        let repair = kedge_fsck::repair(device.clone(), &options);
        let fine = matches!(repair.ending, Ending::Clean | Ending::Repaired);
        if fine {
            sound(&device, &format!("{mode:?} ends with {:?}", repair.ending))?;
        }
        match mode {
            RepairMode::Preen => verdict.preened = fine,
            RepairMode::Full => {
                verdict.repaired = fine;
                let message = &repair.message;
                let excused = newest(medium).is_none()
                    || message.contains("no space for")
                    || message.contains("used up");
                if !fine && !excused && repair.ending != Ending::Left {
                    return Err(format!("{mode:?} ends with {:?}: {message}\n{}", repair.ending, report));
                }
            }
        }
        if verdict.clean && !fine {
            return Err(format!("fsck calls it clean, {mode:?} ends with {:?}", repair.ending));
        }
    }
    Ok(verdict)
}

fn check(medium: MemDevice) -> kedge_fsck::Report {
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
    kedge_fsck::check(Arc::new(medium), &options)
}

/// Checks that a second check finds nothing, mounts of both kinds work, and use leaves a clean
/// image.
fn sound(medium: &MemDevice, why: &str) -> Result<(), String> {
    let report = check(medium.fork());
    if !report.is_clean() {
        return Err(format!("{why}, yet a second look says: {report}"));
    }
    let options = MountOptions { read_only: true, ..mount_options() };
    let fs = FileSystem::open(Arc::new(medium.fork()), Arc::new(ManualClock::default()), options)
        .map_err(|e| format!("{why}, yet it does not open for reading: {e}"))?;
    View::of_damaged(&fs).map_err(|e| format!("{why}, yet it cannot be read: {e}"))?;
    fs.close().map_err(|e| format!("{why}, yet a mount for reading cannot be closed: {e}"))?;
    let used = Arc::new(medium.fork());
    let fs = FileSystem::open(used.clone(), Arc::new(ManualClock::default()), mount_options())
        .map_err(|e| format!("{why}, yet it does not open: {e}"))?;
    View::of_damaged(&fs).map_err(|e| format!("{why}, yet it cannot be read: {e}"))?;
    change(&fs);
    View::of_damaged(&fs).map_err(|e| format!("{why}, yet after use it cannot be read: {e}"))?;
    fs.close().map_err(|e| format!("{why}, yet it cannot be closed: {e}"))?;
    let report = check(used.fork());
    if !report.is_clean() && !ends_soon(medium) {
        return Err(format!("{why}, yet after use: {report}"));
    }
    Ok(())
}

/// Whether a counter is so close to its last value that use may pass it. Only a crafted image can
/// be ended by use in this way.
fn ends_soon(medium: &MemDevice) -> bool {
    newest(medium).is_some_and(|sb| {
        let c = &sb.checkpoint;
        let counters = [c.generation.0, c.epoch.0, c.next_ino.0, c.checkpoint_lsn.0];
        counters.into_iter().any(|n| n > OPEN_MAX - (1 << 32))
    })
}

/// Opens, walks, changes and closes. A hostile image should give errors.
fn use_it(medium: MemDevice) -> Result<(), kedgefs::Error> {
    let fs = FileSystem::open(Arc::new(medium), Arc::new(ManualClock::default()), mount_options())?;
    let _ = View::of(&fs);
    change(&fs);
    fs.close()
}

/// Changes a little of everything that is there.
fn change(fs: &FileSystem) {
    let dir = fs.lookup(Ino::ROOT, b"many").map_or(Ino::ROOT, |attr| attr.ino);
    if let Ok(file) = fs.create(dir, b"new file", 0o644, OWNER) {
        let _ = fs.write(file.ino, 3000, &[7; 10_000]);
        let _ = fs.fsync(file.ino, false);
    }
    let _ = fs.mkdir(Ino::ROOT, b"new directory", 0o755, OWNER);
    change_names(fs, dir);
    let files = View::of_damaged(fs).map(|view| view.inodes).unwrap_or_default();
    let files = files.into_values().filter(|found| found.attr.kind == kedgefs::FileKind::Regular);
    for (n, found) in files.take(12).enumerate() {
        let (ino, size) = (found.attr.ino, found.attr.size);
        let _ = fs.write(ino, size / 2, &[9; 5000]);
        let size = if n % 2 == 0 { size / 3 } else { size.saturating_add(1 << 40) };
        let _ = fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() });
        let _ = fs.removexattr(ino, b"user.filler");
    }
    roam(fs);
    change_trees(fs);
    change_limits(fs);
    let _ = fs.checkpoint();
    let _ = fs.sync();
}

/// Forks, deletes and measures trees.
fn change_trees(fs: &FileSystem) {
    let _ = fs.fork(Ino::ROOT, Ino::ROOT, b"new fork", false);
    for tree in fs.trees() {
        let _ = fs.tree_space(tree.root);
        let _ = fs.path_of(tree.dir);
        let _ =
            fs.create(tree.root, b"in a tree", 0o644, OWNER).map(|file| fs.write(file.ino, 0, &[1; 9000]));
    }
    let trees = fs.trees();
    for tree in trees.iter().skip(1).step_by(2) {
        let _ = fs.delete_tree(tree.dir, &tree.name);
    }
    let _ = fs.reclaim();
}

/// Sets limits, and works below those that there are.
fn change_limits(fs: &FileSystem) {
    let set = SetLimit { bytes: Some(Some(64 << 10)), files: Some(Some(50)) };
    for limit in fs.limits().iter().take(20) {
        let _ = fs.statfs_at(limit.dir);
        let file = fs.create(limit.dir, b"below a limit", 0o644, OWNER);
        let _ = file.map(|file| fs.write(file.ino, 0, &[1; 9000]));
        let _ = fs.set_limit(limit.dir, SetLimit { bytes: Some(None), files: None });
    }
    let dir = fs.mkdir(Ino::ROOT, b"limited", 0o755, OWNER).map_or(Ino::ROOT, |attr| attr.ino);
    let _ = fs.set_limit(dir, set);
    let _ = fs.lookup(Ino::ROOT, b"many").map(|many| fs.set_limit(many.ino, set));
}

/// Names that [`roam`] follows: directories may contain one another in cycles.
const ROAM_MAX: usize = 120;

/// Follows names without remembering where it was, and moves, links and removes what it finds.
fn roam(fs: &FileSystem) {
    let (mut queue, mut found) = (vec![Ino::ROOT], Vec::new());
    while let Some(dir) = queue.pop().filter(|_| found.len() < ROAM_MAX) {
        let mut some = 0;
        let _ = fs.readdir(dir, 0, &mut |entry: DirEntry<'_>| {
            if !matches!(entry.name, b"." | b"..") {
                found.push((dir, entry.name.to_vec(), entry.ino, entry.kind));
                some += 1;
            }
            if entry.kind == FileKind::Directory && !matches!(entry.name, b"." | b"..") {
                queue.insert(0, entry.ino);
            }
            some < 20
        });
    }
    for (n, (dir, name, ino, kind)) in found.iter().enumerate() {
        let (to, other, _, _) = &found[(n * 7 + 3) % found.len()];
        let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
        let _ = match n % 8 {
            _ if *kind == FileKind::Directory && n % 3 == 0 => fs.rmdir(*dir, name),
            0 | 1 => fs.rename(*dir, name, *to, other, modes[n / 8 % 3]),
            2 => fs.rename(*dir, name, *to, format!("moved {n}").as_bytes(), RenameMode::Replace),
            3 => fs.unlink(*dir, name),
            4 => fs.link(*ino, *to, format!("link {n}").as_bytes()).map(drop),
            5 => fs.fallocate(*ino, FallocateMode::PunchHole, 100, 1 << 40),
            6 => fs.setxattr(*ino, b"user.more", &[n as u8; 700], XattrMode::Any),
            _ => fs.mkdir(*ino, b"below", 0o755, OWNER).map(drop),
        };
        for kind in [SeekKind::Data, SeekKind::Hole] {
            let _ = fs.seek(*ino, n as u64 * 4096, kind);
        }
    }
}
