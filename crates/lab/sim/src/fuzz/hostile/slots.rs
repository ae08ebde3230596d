//! Absurd values in the superblock, the index of allocation groups and the bitmaps.

use super::super::damage::{IMAGE, put, reseal_bitmap};
use super::super::fields::FIXED;
use super::{BLOCK, Liar, get, set};
use kedge_base::{BLOCK_SIZE, BlockNo, Lsn};
use kedge_format::alloc::{decode_index_block, encode_index_block};
use kedge_format::reseal;
use kedge_format::superblock::{SLOTS, Superblock, TableState};
use kedgefs::Ino;
use rand::Rng;

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

impl Liar {
    pub(super) fn write_slot(&mut self, sb: &Superblock, block: BlockNo) {
        let mut bytes = vec![0; BLOCK_SIZE];
        sb.encode(&mut bytes);
        put(&self.medium, block.byte_offset(), &bytes);
    }

    pub(super) fn slot(&mut self) {
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

    /// Changes the checkpoint's generation in its slot and in its index.
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

    pub(super) fn index(&mut self) {
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

    pub(super) fn bitmap(&mut self) {
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
}
