//! Images damaged by a few bytes: an input is a list of edits of an image's metadata.
//!
//! Edits of raw images would nearly always hit unused bytes or break a checksum. Instead an edit
//! names a structure and an offset in its used part, and the checksums are recomputed afterwards.
//! So the edits reach the code after the checksum tests.
//!
//! Input: one byte of flags, then eight bytes for each edit: structure (2), place (2), kind (1),
//! arguments (3). Every input is valid.

use crate::generate::{Generator, Profile};
use crate::model::Model;
use crate::ops::{Executor, OWNER};
use crate::rig;
use kedge_base::{BLOCK_SIZE, Generation, IoBuf, ManualClock};
use kedge_device::{Device, MemDevice};
use kedge_format::alloc::{bitmap_crc, decode_index_block, encode_index_block};
use kedge_format::logwrite::{HEADER_SIZE, WriteHeader};
use kedge_format::node::{NODE_SIZE, NodeView};
use kedge_format::reseal;
use kedge_format::superblock::{Geometry, SLOTS, Superblock};
use kedgefs::{FileSystem, Ino, MountOptions, SetLimit, XattrMode};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub const IMAGE: u64 = 16 << 20;
const LOG: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_SIZE as u64;
/// An image with more edits is rejected at once.
const EDITS_MAX: usize = 24;
const EDIT: usize = 8;

/// Bits of an input's first byte.
pub mod flag {
    /// Damage the unmounted image instead of the one that lost power.
    pub const UNMOUNTED: u8 = 1;
    /// Leave checksums wrong.
    pub const UNSEALED: u8 = 2;
    /// Use an image with forks.
    pub const FORKED: u8 = 4;
    /// Use an image whose data has checksums and which keeps the data of small files in the tree.
    pub const SUMS: u8 = 8;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Slot,
    Index,
    Bitmap,
    Log,
    Node,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Slot, Kind::Index, Kind::Bitmap, Kind::Log, Kind::Node];
}

/// One block, node or log write, covered by one checksum.
#[derive(Clone, Debug)]
pub struct Structure {
    pub kind: Kind,
    pub at: u64,
    pub len: usize,
    /// The parts of the structure that are in use.
    used: [Range<usize>; 2],
}

impl Structure {
    fn place(&self, n: usize) -> usize {
        let first = self.used[0].len();
        let n = n % (first + self.used[1].len()).max(1);
        if n < first { self.used[0].start + n } else { self.used[1].start + n - first }
    }

    pub fn read(&self, medium: &MemDevice) -> Vec<u8> {
        medium.bytes(self.at, self.len)
    }
}

/// A used image, and where its metadata lies.
pub struct Base {
    pub medium: MemDevice,
    pub geometry: Geometry,
    pub structures: Vec<Structure>,
}

/// The image selected by the input's flags.
pub fn base(flags: u8) -> &'static Base {
    static BASES: [OnceLock<Base>; BASES_COUNT] = [const { OnceLock::new() }; BASES_COUNT];
    BASES[number(flags)].get_or_init(|| make(flags))
}

/// Number of base images.
pub(super) const BASES_COUNT: usize = 8;

/// The number of the base image that the flags select, below [`BASES_COUNT`].
pub(super) fn number(flags: u8) -> usize {
    usize::from(flags & flag::UNMOUNTED != 0)
        + 2 * usize::from(flags & flag::FORKED != 0)
        + 4 * usize::from(flags & flag::SUMS != 0)
}

pub fn mount_options() -> MountOptions {
    MountOptions { commit: Duration::from_secs(3600), cache_size: 4 << 20, ..MountOptions::default() }
}

pub fn open(medium: MemDevice) -> Result<FileSystem, kedgefs::Error> {
    FileSystem::open(Arc::new(medium), Arc::new(ManualClock::default()), mount_options())
}

/// Makes an image with a tree of several levels and all kinds of files. Half of it is in a
/// checkpoint, the rest only in the log.
fn make(flags: u8) -> Base {
    let (unmounted, forked) = (flags & flag::UNMOUNTED != 0, flags & flag::FORKED != 0);
    let checksums = flags & flag::SUMS != 0;
    let inline_max = if checksums { 2048 } else { 0 };
    let setup = rig::Setup { image: IMAGE, log: LOG, checksums, inline_max, ..rig::Setup::default() };
    let device = Arc::new(setup.format().expect("an image is made"));
    let fs = FileSystem::open(device.clone(), Arc::new(ManualClock::default()), mount_options())
        .expect("a fresh image opens");
    let dir = fs.mkdir(Ino::ROOT, b"many", 0o755, OWNER).expect("there is room").ino;
    for n in 0..60 {
        let file = fs.create(dir, format!("file {n}").as_bytes(), 0o644, OWNER).expect("there is room").ino;
        fs.setxattr(file, b"user.filler", &[n; 900], XattrMode::Any).expect("there is room");
        fs.write(file, n as u64 % 4 * 5000, &[n; 5000]).expect("there is room");
    }
    for n in 0..if checksums { 20 } else { 0 } {
        let file = fs.create(dir, format!("small {n}").as_bytes(), 0o644, OWNER).expect("there is room").ino;
        fs.write(file, 0, &[n; 90]).expect("there is room");
    }
    // The data is written now, not when a flusher thread gets to it, so that extents exist.
    fs.sync().expect("the data is written");
    fs.checkpoint().expect("a checkpoint is written");
    if forked {
        fork_and_change(&fs).expect("there is room");
    }
    let profile =
        Profile { remounts: 0, offset_max: 30 << 10, write_max: 9000, extremes: 0, ..Profile::default() };
    let (mut exec, mut generator, mut model) = (Executor::new(fs), Generator::new(7, profile), Model::new());
    let mut done = 0;
    while done < 120 {
        let op = generator.next(&model);
        if let Some(expected) = model.apply(&op) {
            let outcome = exec.apply(&op);
            // The model lacks the files created before, so the results of reads differ.
            assert_eq!(outcome.is_ok(), expected.outcome.is_ok(), "{op:?} answers {outcome:?}");
            done += 1;
        }
        if done == 60 {
            exec.fs.checkpoint().expect("a checkpoint is written");
        }
    }
    exec.fs.sync().expect("the log is forced");
    let crashed = device.fork();
    exec.fs.close().expect("the image is closed");
    let medium = if unmounted { device.fork() } else { crashed };
    let geometry = (0..SLOTS.len())
        .find_map(|i| {
            let block = medium.bytes(SLOTS[i].byte_offset(), BLOCK_SIZE);
            Superblock::decode(&block, i, IMAGE / BLOCK).ok()
        })
        .expect("a slot is valid")
        .geometry;
    let structures = structures(&medium, &geometry);
    Base { medium, geometry, structures }
}

/// Makes limits inside one another, a fork that has them too and differs from its source, and a
/// snapshot of the fork.
fn fork_and_change(fs: &FileSystem) -> Result<(), kedgefs::Error> {
    let limited = fs.mkdir(Ino::ROOT, b"limited", 0o755, OWNER)?.ino;
    let inner = fs.mkdir(limited, b"inner", 0o755, OWNER)?.ino;
    let set = SetLimit { bytes: Some(Some(100_000)), files: Some(Some(20)) };
    for (n, dir) in [limited, inner, fs.mkdir(inner, b"innermost", 0o755, OWNER)?.ino].into_iter().enumerate()
    {
        let file = fs.create(dir, b"file", 0o644, OWNER)?.ino;
        fs.write(file, 0, &[n as u8; 12_000])?;
        fs.set_limit(dir, set)?;
    }
    let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false)?.ino;
    let many = fs.lookup(fork, b"many")?.ino;
    for n in 0..20u8 {
        let file = fs.lookup(many, format!("file {n}").as_bytes())?.ino;
        fs.write(file, 0, &[n + 100; 9000])?;
        if n % 4 == 0 {
            fs.unlink(many, format!("file {}", n + 30).as_bytes())?;
        }
    }
    fs.fork(fork, Ino::ROOT, b"old", true)?;
    let file = fs.create(fork, b"since then", 0o644, OWNER)?.ino;
    fs.write(file, 0, &[1; 20_000])?;
    fs.sync()?;
    fs.checkpoint()
}

fn structures(medium: &MemDevice, geometry: &Geometry) -> Vec<Structure> {
    let block = |kind, at, used| Structure { kind, at, len: BLOCK_SIZE, used: [0..used, 0..0] };
    let mut found: Vec<Structure> = SLOTS.iter().map(|b| block(Kind::Slot, b.byte_offset(), 400)).collect();
    for copy in 0..2 {
        found.push(block(Kind::Index, geometry.index_start[copy].byte_offset(), 80));
        found.push(block(Kind::Bitmap, geometry.bitmap_start[copy].byte_offset(), BLOCK_SIZE));
    }
    let log = geometry.log_start.byte_offset();
    let mut at = 0;
    while at < geometry.log_bytes() {
        let Some(header) = WriteHeader::peek(&geometry.log_key(), &medium.bytes(log + at, BLOCK_SIZE)) else {
            at += BLOCK;
            continue;
        };
        let len = header.blocks as usize * BLOCK_SIZE;
        if at + len as u64 > geometry.log_bytes() {
            break;
        }
        let used = (HEADER_SIZE + header.payload_bytes as usize).min(len);
        found.push(Structure { kind: Kind::Log, at: log + at, len, used: [0..used, 0..0] });
        at += len as u64;
    }
    for at in (geometry.data_start.byte_offset()..IMAGE - NODE_SIZE as u64).step_by(BLOCK_SIZE) {
        if medium.bytes(at, 8) == b"KEDGENOD" {
            let node = medium.bytes(at, NODE_SIZE);
            let used = NodeView::trusted(&node).occupied();
            found.push(Structure { kind: Kind::Node, at, len: NODE_SIZE, used });
        }
    }
    found
}

/// Values that provoke arithmetic errors.
const NUMBERS: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    IMAGE / BLOCK,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 4095,
    u64::MAX,
];

/// Applies one edit to `bytes` at offset `at`.
fn edit(bytes: &mut [u8], at: usize, kind: u8, args: [u8; 3]) {
    let at = if kind & 8 != 0 { at & !7 } else { at };
    let number = NUMBERS[args[0] as usize % NUMBERS.len()].wrapping_add_signed(args[1] as i8 as i64 / 32);
    let mut put = |value: &[u8]| {
        let len = value.len().min(bytes.len() - at);
        bytes[at..at + len].copy_from_slice(&value[..len]);
    };
    match kind & 7 {
        0 => put(&args[..1]),
        1 => put(&args[..2]),
        2 => put(&args),
        3 => put(&(number as u32).to_le_bytes()),
        4 => put(&number.to_le_bytes()),
        5 => bytes[at] ^= 1 << (args[0] & 7),
        6 => bytes[at] = bytes[at].wrapping_add(args[0]),
        _ => {
            // Copies bytes from another offset of the structure: a key, an extent, another record.
            let from = u16::from_le_bytes([args[1], args[2]]) as usize % bytes.len();
            let len = (args[0] as usize % 96).min(bytes.len() - at.max(from));
            bytes.copy_within(from..from + len, at);
        }
    }
}

/// Applies only the input's edits of one structure.
pub fn edit_one(bytes: &mut [u8], structure: &Structure, edits: &[u8]) {
    for e in edits.chunks_exact(EDIT).take(EDITS_MAX) {
        let place = structure.place(u16::from_le_bytes([e[2], e[3]]) as usize);
        edit(bytes, place, e[4], [e[5], e[6], e[7]]);
    }
}

/// Returns the image with the input's edits of structures of these kinds.
pub fn damaged(input: &[u8], kinds: &[Kind]) -> MemDevice {
    let (flags, edits) = input.split_first().unwrap_or((&0, &[]));
    let base = base(*flags);
    let medium = base.medium.fork();
    let candidates: Vec<&Structure> =
        base.structures.iter().filter(|structure| kinds.contains(&structure.kind)).collect();
    let mut touched: BTreeMap<u64, (&Structure, Vec<u8>)> = BTreeMap::new();
    for e in edits.chunks_exact(EDIT).take(EDITS_MAX) {
        let structure = candidates[u16::from_le_bytes([e[0], e[1]]) as usize % candidates.len()];
        let (_, bytes) = touched.entry(structure.at).or_insert_with(|| (structure, structure.read(&medium)));
        edit_one(bytes, structure, e);
    }
    for (structure, mut bytes) in touched.into_values() {
        if flags & flag::UNSEALED == 0 {
            match structure.kind {
                Kind::Bitmap => reseal_bitmap(base, &medium, structure, &bytes),
                _ => drop(reseal(&mut bytes, &base.geometry.log_secret)),
            }
        }
        put(&medium, structure.at, &bytes);
    }
    medium
}

/// Writes whole blocks.
pub fn put(medium: &MemDevice, at: u64, bytes: &[u8]) {
    let mut buf = IoBuf::zeroed(bytes.len() / BLOCK_SIZE);
    buf.as_mut_bytes().copy_from_slice(bytes);
    medium.write(at, &buf, false).expect("a place inside the image");
}

/// Stores the new checksum of a bitmap, which lies in the index.
pub(super) fn reseal_bitmap(base: &Base, medium: &MemDevice, bitmap: &Structure, bytes: &[u8]) {
    let copy = base.geometry.bitmap_start.iter().position(|start| start.byte_offset() == bitmap.at);
    for start in base.geometry.index_start {
        let mut index = medium.bytes(start.byte_offset(), BLOCK_SIZE);
        let generation = u64::from_le_bytes(index[32..40].try_into().expect("eight bytes"));
        let (uuid, generation) = (&base.geometry.uuid, Generation(generation));
        let Ok(mut entries) = decode_index_block(&index, start, uuid, generation, 0) else { continue };
        for entry in entries.iter_mut().take(1).filter(|entry| Some(entry.copy as usize) == copy) {
            entry.bitmap_crc = bitmap_crc(0, bytes);
            entry.free_blocks = bytes.iter().map(|byte| byte.count_zeros()).sum();
        }
        encode_index_block(uuid, generation, 0, &entries, &mut index);
        put(medium, start.byte_offset(), &index);
    }
}
