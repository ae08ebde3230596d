//! Hostile images, made with knowledge of the format: all checksums are correct, and the values
//! that they cover are absurd.
//!
//! [`image`] changes a few values in a used image, by a seed: a number of a superblock, an index
//! entry, a bitmap, a node's header, a slot, an item of each kind, a child pointer, a log header,
//! an edit of each kind. Half of the new values are absurd by themselves (zero, the largest
//! numbers, addresses in the format's own areas). The other half are absurd only in their context
//! (another file's block, a neighbour's key). [`judge()`] checks what must hold for every image.
//!
//! # What must hold
//! 1. Nothing panics, nothing runs without end, and memory stays bounded by the image's size. The
//!    caller checks this.
//! 2. An image that fsck calls clean opens read-only and read-write, can be walked, used and
//!    closed, and is clean afterwards, unless a counter exceeded its maximum.
//! 3. The same holds for images that `fsck -p` and `fsck -y` have repaired or found clean.
//! 4. `fsck -y` leaves a clean image, unless no superblock is valid, a counter that fsck cannot
//!    recompute is used up, or there is no space for a second tree.
//! 5. An image that was opened, used and closed without an error has a valid superblock afterwards,
//!    unless a counter exceeded its maximum. It may still have a damaged node that was not read.

use super::damage::{Base, base, flag};
use super::inside::{Inside, inside, newest};
use kedge_base::{BLOCK_SIZE, BlockNo, Lsn};
use kedge_device::MemDevice;
use kedge_format::item::FILE_SIZE_MAX;
use kedge_format::node::NODE_BLOCKS;
use kedge_format::superblock::{COUNTER_MAX, SLOTS, Superblock};
use kedge_format::{BLOCKS_MAX, ItemKind, Key, SIZE_MAX};
use kedgefs::Ino;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

mod items;
mod judge;
mod log;
mod slots;

pub use judge::{Verdict, judge};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Stands for entries of the table of trees where a kind of items is chosen.
const TREE: u8 = u8::MAX;

/// An image and a description of the values changed in it.
pub struct Hostile {
    pub medium: MemDevice,
    pub lies: Vec<String>,
}

/// Returns the image of a seed.
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

/// Returns the image that lost power, with a log write of these edits appended. `bytes` contains
/// `edits` edits.
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

/// Returns the image that lost power, with changes to the slot of its newest checkpoint.
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
    /// The newest slot as it was before any change.
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

    /// Returns a number to replace `was`.
    fn number(&mut self, was: u64) -> u64 {
        match self.rng.random_range(0..10) {
            0..5 => self.one(&ABSURD),
            5..7 => was.wrapping_add_signed(self.rng.random_range(-2..=2)),
            7 => self.rng.random::<u64>() >> self.rng.random_range(0..64),
            8 => was ^ 1 << self.rng.random_range(0..64),
            _ => self.block().0,
        }
    }

    /// Returns a block: in an area of the format, of the tree, of a file, or outside of the image.
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

    /// Returns a directory of the base image.
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
}
