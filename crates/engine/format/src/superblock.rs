//! The superblock: geometry, identity, features, and the positions of tree and log at the last
//! checkpoint.
//!
//! # Invariants
//! 1. There are two slots. A checkpoint of generation `g` writes slot `g % 2`, with FUA, after
//!    everything to which the slot points is durable. The other slot is not touched, so one slot is
//!    valid at any time.
//! 2. A mount takes the valid slot with the higher generation. If the newer slot was destroyed and
//!    the log was written since, recovery notices: the log has a newer tail than the older slot, or
//!    a newer epoch ([`crate::logwrite`]).
//! 3. Both slots have the same identity, geometry and features, with these exceptions: a resize
//!    changes the size and the location of the allocation maps in one slot, and one checkpoint
//!    later in the other slot. The first fork, the first clone and the first limit set their
//!    features in the same way ([`Geometry::is_same_image`]).
//! 4. `tail_lsn <= checkpoint_lsn`. The tree contains the effects of exactly the records below
//!    `checkpoint_lsn`. Records from `tail_lsn` on are still needed, because some hold the only
//!    copy of file data.

use crate::XATTR_PART_MAX;
use crate::alloc::{GROUP_BLOCKS, INDEX_ENTRIES};
use crate::crc_without;
use crate::inline::INLINE_MAX;
use crate::item::{BIRTH_MAX, XATTR_VALUE_MAX};
use crate::logwrite::{LogKey, LogSecret};
use crate::node::NODE_BLOCKS;
use crate::{FileFlags, FileKind, InodeCore};
use kedge_base::{BLOCK_SIZE, BlockNo, CorruptKind, Epoch, Error, Generation, Ino, Lsn, Result, Timespec};
use std::ops::Range;
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"KEDGEFS\0";
/// The magic of a copy. It differs from the magic of a slot, so that a copy in the place of a slot
/// is invalid, and a slot in the place of a copy as well.
const COPY_MAGIC: [u8; 8] = *b"KEDGECPY";
const VERSION: u32 = 2;
/// Block numbers of the two slots.
pub const SLOTS: [BlockNo; 2] = [BlockNo(0), BlockNo(16)];
/// Smallest image, in bytes.
pub const IMAGE_MIN: u64 = 16 << 20;
/// Largest image, in bytes (1 PiB). An image file may be sparse, so its size on the host does not
/// bound the memory that is needed for each group; this limit does.
pub const IMAGE_MAX: u64 = 1 << 50;
/// Smallest log, in bytes.
pub const LOG_MIN: u64 = 1 << 20;
/// Largest log, in bytes.
pub const LOG_MAX: u64 = 1 << 30;
/// Longest label, in bytes.
pub const LABEL_MAX: usize = 64;
/// First block after the superblock slots: no area starts below it.
pub(crate) const FIRST_AREA: u64 = 17;

/// Incompatible feature: attributes may be access control lists ([`crate::acl`]). A version without
/// this feature would check only the mode bits, and so grant users more than the lists allow.
pub const INCOMPAT_ACL: u64 = 1 << 0;
/// Incompatible feature: values of attributes may be stored in parts ([`crate::item::XattrItem`]).
/// A version without this feature would fail each listxattr of such a file, and its fsck would
/// remove the attributes.
pub const INCOMPAT_LARGE_XATTRS: u64 = 1 << 1;
/// Incompatible feature: the allocation index and the bitmaps are in the data area
/// ([`Geometry::grown`]). A version without this feature would look for them before the log.
pub const INCOMPAT_MOVED_MAPS: u64 = 1 << 2;
/// Incompatible feature: the image has several trees that share nodes and blocks
/// ([`crate::trees`]). A version without this feature would free and overwrite blocks of other
/// trees.
pub const INCOMPAT_TREES: u64 = 1 << 3;
/// Incompatible feature: file data has checksums ([`crate::sums`]). A version without this feature
/// would overwrite data and leave the old checksum.
pub const INCOMPAT_SUMS: u64 = 1 << 4;
/// Incompatible feature: directory trees may have limits ([`crate::limits`]). A version without
/// this feature would not update the counts.
pub const INCOMPAT_LIMITS: u64 = 1 << 5;
/// Incompatible feature: blocks of the data area hold copies of the superblock ([`crate::copies`]).
/// A version without this feature would give these blocks to files, and later versions would
/// overwrite them.
pub const INCOMPAT_COPIES: u64 = 1 << 6;
/// Incompatible feature: files may share blocks, which have reference counts ([`crate::counts`]). A
/// version without this feature would free and overwrite blocks of other files.
pub const INCOMPAT_CLONES: u64 = 1 << 7;
/// Incompatible feature: the data of small files may be in the tree ([`crate::inline`]). A version
/// without this feature would read zeros from such a file.
pub const INCOMPAT_INLINE: u64 = 1 << 8;
/// Incompatible features that this version supports. A mount refuses an image with any other bit.
pub const INCOMPAT_KNOWN: u64 = INCOMPAT_ACL
    | INCOMPAT_LARGE_XATTRS
    | INCOMPAT_MOVED_MAPS
    | INCOMPAT_TREES
    | INCOMPAT_SUMS
    | INCOMPAT_LIMITS
    | INCOMPAT_COPIES
    | INCOMPAT_CLONES
    | INCOMPAT_INLINE;
/// Read-only compatible feature: inodes may have flags ([`crate::FileFlags`]). A version without
/// this feature reads everything correctly, but would change immutable files.
pub const RO_COMPAT_FLAGS: u64 = 1 << 0;
/// Read-only compatible feature: files may be made immutable or append-only. A mount must then
/// receive each open(2); otherwise it could not keep a mapped file from being changed.
pub const RO_COMPAT_IMMUTABLE: u64 = 1 << 1;
/// Read-only compatible features that this version supports. With any other bit an image can only
/// be mounted read-only.
pub const RO_COMPAT_KNOWN: u64 = RO_COMPAT_FLAGS | RO_COMPAT_IMMUTABLE;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    crc: U32,
    uuid: [u8; 16],
    hash_seed: [u8; 16],
    label: [u8; LABEL_MAX],
    feature_compat: U64,
    feature_ro_compat: U64,
    feature_incompat: U64,
    block_size: U32,
    node_blocks: U32,
    total_blocks: U64,
    group_blocks: U64,
    index_start: [U64; 2],
    index_blocks: U64,
    bitmap_start: [U64; 2],
    log_start: U64,
    log_blocks: U64,
    data_start: U64,
    created_sec: I64,
    created_nsec: U32,
    clean: U32,
    generation: U64,
    root: U64,
    root_generation: U64,
    root_level: U64,
    checkpoint_lsn: U64,
    tail_lsn: U64,
    epoch: U64,
    next_ino: U64,
    inodes: U64,
    free_blocks: U64,
    nodes: U64,
    written_sec: I64,
    log_secret: [u8; 16],
    losses: U64,
    lost_sec: I64,
    table_root: U64,
    table_root_generation: U64,
    table_root_level: U64,
    table_nodes: U64,
    birth: U64,
    inline_max: U64,
}

/// Upper bound of the counters and LSNs in a slot. Sums of numbers below it do not overflow.
pub const COUNTER_MAX: u64 = 1 << 62;
/// Upper bound of the counters and LSNs of an image that may be opened. The distance to
/// [`COUNTER_MAX`] is more than one mount can ever count, so no mount writes a slot that the next
/// mount would refuse.
pub const OPEN_MAX: u64 = 1 << 61;

const CRC_AT: usize = std::mem::offset_of!(Raw, crc);
// Moving or resizing a field makes an incompatible format.
crate::layout::layout!(LAYOUT: Raw, 416, {
    magic: 0, 8, "`KEDGEFS\\0`";
    version: 8, 4, "2; others are refused";
    crc: 12, 4, "CRC32C of the block";
    uuid: 16, 16;
    hash_seed: 32, 16, "key of the name hash";
    label: 48, 64, "UTF-8, padded with zeros";
    feature_compat: 112, 8, "unknown bits: mount anyway";
    feature_ro_compat: 120, 8, "unknown bits: mount read-only";
    feature_incompat: 128, 8, "unknown bits: refuse";
    block_size: 136, 4, "4096";
    node_blocks: 140, 4, "4";
    total_blocks: 144, 8;
    group_blocks: 152, 8, "32768";
    index_start: 160, 16, "one area for each slot";
    index_blocks: 176, 8, "of each area";
    bitmap_start: 184, 16, "one area for each copy";
    log_start: 200, 8;
    log_blocks: 208, 8;
    data_start: 216, 8, "multiple of 4";
    created_sec: 224, 8, "when the image was made";
    created_nsec: 232, 4;
    clean: 236, 4, "1: unmounted, the log holds nothing that the tree lacks";
    generation: 240, 8, "number of the checkpoint; its lowest bit is the slot";
    root: 248, 8, "address of the tree's root node";
    root_generation: 256, 8;
    root_level: 264, 8, "0: the root is a leaf";
    checkpoint_lsn: 272, 8, "the tree holds exactly the records below";
    tail_lsn: 280, 8, "where recovery starts to scan";
    epoch: 288, 8, "of the log writes that belong to this mount";
    next_ino: 296, 8, "no inode number from here on was ever used";
    inodes: 304, 8, "count";
    free_blocks: 312, 8, "count";
    nodes: 320, 8, "count";
    written_sec: 328, 8, "when the slot was written";
    log_secret: 336, 16, "random; keys log writes and tree nodes. No program shows it";
    losses: 352, 8, "files whose data an unmount could not write and gave up, since the last repair";
    lost_sec: 360, 8, "when the first of them";
    table_root: 368, 8, "with several trees: address of the root node of their table; else this and the following are zero";
    table_root_generation: 376, 8;
    table_root_level: 384, 8;
    table_nodes: 392, 8, "count";
    birth: 400, 8, "with which new extents are marked";
    inline_max: 408, 8, "with data in the tree: bytes of a file that an item holds at most; else zero";
});
/// A slot fits into one sector, so that a torn write leaves either the old or the new slot.
const _: () = assert!(size_of::<Raw>() <= 512);

/// Properties of an image that are fixed at format time, except that a resize changes the size and
/// the location of the allocation maps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    pub uuid: uuid::Uuid,
    /// Key of the name hash.
    pub hash_seed: [u8; 16],
    /// At most [`LABEL_MAX`] bytes, without a zero byte.
    pub label: String,
    pub feature_compat: u64,
    pub feature_ro_compat: u64,
    pub feature_incompat: u64,
    pub total_blocks: u64,
    pub index_start: [BlockNo; 2],
    pub index_blocks: u64,
    pub bitmap_start: [BlockNo; 2],
    pub log_start: BlockNo,
    pub log_blocks: u64,
    /// First block of the data area, which tree nodes and file data use.
    pub data_start: BlockNo,
    pub created: Timespec,
    /// Key of the hashes of log writes and tree nodes. mkfs generates it; no program shows it.
    pub log_secret: LogSecret,
    /// Maximum length in bytes of file data in the tree; 0 in an image without [`INCOMPAT_INLINE`].
    pub inline_max: u64,
}

impl Geometry {
    /// Returns whether the image may hold access control lists.
    pub fn has_acls(&self) -> bool {
        self.feature_incompat & INCOMPAT_ACL != 0
    }

    /// Returns the maximum length in bytes of an extended attribute's value.
    pub fn xattr_value_max(&self) -> usize {
        let large = self.feature_incompat & INCOMPAT_LARGE_XATTRS != 0;
        if large { XATTR_VALUE_MAX } else { XATTR_PART_MAX }
    }

    /// Returns whether the image may have several trees.
    pub fn has_trees(&self) -> bool {
        self.feature_incompat & INCOMPAT_TREES != 0
    }

    /// Returns whether file data has checksums.
    pub fn has_sums(&self) -> bool {
        self.feature_incompat & INCOMPAT_SUMS != 0
    }

    /// Returns whether the data of this inode has checksums.
    pub fn sums_data(&self, core: &InodeCore) -> bool {
        self.has_sums()
            && core.kind() == Some(FileKind::Regular)
            && !self.file_flags(core).has(FileFlags::NOCOW)
    }

    /// Returns whether directory trees may have limits.
    pub fn has_limits(&self) -> bool {
        self.feature_incompat & INCOMPAT_LIMITS != 0
    }

    /// Returns whether inodes may have flags.
    pub fn has_flags(&self) -> bool {
        self.feature_ro_compat & RO_COMPAT_FLAGS != 0
    }

    /// Returns whether files may be made immutable or append-only.
    pub fn has_immutable(&self) -> bool {
        self.has_flags() && self.feature_ro_compat & RO_COMPAT_IMMUTABLE != 0
    }

    /// Returns the flags of an inode that are in effect. Without the feature no flag has an effect,
    /// because no call could clear it.
    pub fn file_flags(&self, core: &InodeCore) -> FileFlags {
        match (self.has_flags(), self.has_sums()) {
            (false, _) => FileFlags::default(),
            (true, false) => core.file_flags().without(FileFlags::NOCOW),
            (true, true) => core.file_flags(),
        }
    }

    pub fn groups(&self) -> u64 {
        self.total_blocks.div_ceil(GROUP_BLOCKS)
    }

    /// Returns the blocks of the data area that hold the allocation maps. The range is empty unless
    /// a resize moved the maps there.
    pub fn moved_maps(&self) -> Range<u64> {
        if self.feature_incompat & INCOMPAT_MOVED_MAPS == 0 {
            return 0..0;
        }
        self.index_start[0].0..self.bitmap_start[1].0.saturating_add(self.groups())
    }

    /// Returns whether the image has copies of the superblock.
    pub fn has_copies(&self) -> bool {
        self.feature_incompat & INCOMPAT_COPIES != 0
    }

    /// Returns the runs of blocks that belong to the format, as start and length: everything before
    /// the data area, moved maps, copies of the superblock, and the blocks of the last group beyond
    /// the end of the image. A run may be empty; runs do not overlap.
    pub fn format_runs(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (maps, end) = (self.moved_maps(), self.groups() * GROUP_BLOCKS);
        [
            (0, self.data_start.0),
            (maps.start, maps.end.saturating_sub(maps.start)),
            (self.total_blocks, end - self.total_blocks),
        ]
        .into_iter()
        .chain(self.copies().map(|block| (block.0, 1)))
    }

    /// Returns whether files may share blocks. The first clone sets this feature.
    pub fn has_clones(&self) -> bool {
        self.feature_incompat & INCOMPAT_CLONES != 0
    }

    /// Returns whether two slots with these geometries can belong to one image. A checkpoint writes
    /// one slot at a time. So after a resize, or after the first fork, limit or clone, the slots
    /// may differ in the size, the location of the maps and the features concerned.
    pub fn is_same_image(&self, other: &Geometry) -> bool {
        const CHANGING: u64 = INCOMPAT_MOVED_MAPS | INCOMPAT_TREES | INCOMPAT_LIMITS | INCOMPAT_CLONES;
        let resized = Geometry {
            total_blocks: self.total_blocks,
            index_start: self.index_start,
            index_blocks: self.index_blocks,
            bitmap_start: self.bitmap_start,
            feature_incompat: other.feature_incompat & !CHANGING | self.feature_incompat & CHANGING,
            ..other.clone()
        };
        *self == resized
    }

    /// Returns the geometry of this image once it has `total_blocks` blocks, or slightly less: see
    /// [`Geometry::grown`].
    ///
    /// More groups need larger maps. The maps stay in place if the gaps between them suffice, or
    /// return to the area before the log if that is large enough. They never move to a location
    /// that overlaps the present one, which a mount needs until the superblock names the new one.
    /// Otherwise they move to the first of the new blocks, which are always free, so that a full
    /// image can grow. The rejected alternative is to move files and nodes out of the way: it would
    /// need space that a full image lacks.
    fn resized(&self, total_blocks: u64) -> Geometry {
        let groups = total_blocks.div_ceil(GROUP_BLOCKS);
        let mut new = Geometry { total_blocks, ..self.clone() };
        new.index_blocks = groups.div_ceil(INDEX_ENTRIES as u64);
        let index = new.index_blocks;
        let moved = self.feature_incompat & INCOMPAT_MOVED_MAPS != 0;
        let ends = [self.index_start[1], self.bitmap_start[0], self.bitmap_start[1], self.log_start];
        let starts = [self.index_start[0], self.index_start[1], self.bitmap_start[0], self.bitmap_start[1]];
        let room = starts.iter().zip(&ends).map(|(start, end)| end.0.saturating_sub(start.0));
        let stay = groups == self.groups()
            || !moved && room.zip([index, index, groups, groups]).all(|(room, blocks)| blocks <= room);
        if stay {
            return new;
        }
        let returns = moved && FIRST_AREA + 2 * (index + groups) <= self.log_start.0;
        let at = if returns { FIRST_AREA } else { self.total_blocks };
        new.index_start = [BlockNo(at), BlockNo(at + index)];
        new.bitmap_start = [BlockNo(at + 2 * index), BlockNo(at + 2 * index + groups)];
        new.feature_incompat &= !INCOMPAT_MOVED_MAPS;
        if !returns {
            new.feature_incompat |= INCOMPAT_MOVED_MAPS;
        }
        new
    }

    /// Returns the geometry of this image once it has grown to `bytes`, rounded down to whole
    /// blocks. If the last group would have room only for the maps that it adds, the group is
    /// omitted: the image then ends with the group before it, and may keep its present size.
    pub fn grown(&self, bytes: u64) -> Result<Geometry> {
        if bytes > IMAGE_MAX {
            return Err(Error::invalid(format!(
                "image of {bytes} bytes: the largest is {IMAGE_MAX} (1 PiB)"
            )));
        }
        let total = (bytes / BLOCK_SIZE as u64).max(self.total_blocks);
        let whole_groups = total.saturating_sub(1) / GROUP_BLOCKS * GROUP_BLOCKS;
        let sizes = [total, whole_groups.max(self.total_blocks)];
        let fits = |new: &Geometry| new.moved_maps().end < new.total_blocks;
        Ok(sizes.map(|total| self.resized(total)).into_iter().find(fits).unwrap_or_else(|| self.clone()))
    }

    /// Returns the last block at which the data area may start.
    pub(crate) fn data_start_max(&self) -> u64 {
        let maps = 2 * (self.index_blocks + self.groups());
        FIRST_AREA + self.log_blocks + maps + GROUP_BLOCKS
    }

    /// Returns the key that identifies log writes of this image.
    pub fn log_key(&self) -> LogKey {
        LogKey { uuid: self.uuid, secret: self.log_secret }
    }

    pub fn log_bytes(&self) -> u64 {
        self.log_blocks * BLOCK_SIZE as u64
    }

    /// Returns the default log size in bytes: a 32nd of the image, but at least 32 MiB and at most
    /// 1 GiB, and never more than a quarter of the image.
    pub fn default_log_bytes(image_bytes: u64) -> u64 {
        let log = (image_bytes / 32).clamp(32 << 20, LOG_MAX).min(image_bytes / 4).max(LOG_MIN);
        log / BLOCK_SIZE as u64 * BLOCK_SIZE as u64
    }

    /// Lays out an image of `image_bytes` with a log of `log_bytes`. The caller sets `log_secret`.
    pub fn plan(
        image_bytes: u64,
        log_bytes: u64,
        label: &str,
        uuid: uuid::Uuid,
        hash_seed: [u8; 16],
        created: Timespec,
    ) -> Result<Geometry> {
        let block = BLOCK_SIZE as u64;
        if image_bytes < IMAGE_MIN {
            return Err(Error::invalid(format!(
                "image of {image_bytes} bytes: the smallest is {IMAGE_MIN} (16 MiB)"
            )));
        }
        if image_bytes > IMAGE_MAX {
            return Err(Error::invalid(format!(
                "image of {image_bytes} bytes: the largest is {IMAGE_MAX} (1 PiB)"
            )));
        }
        if !(LOG_MIN..=LOG_MAX).contains(&log_bytes) || log_bytes > image_bytes / 2 {
            return Err(Error::invalid(format!(
                "log of {log_bytes} bytes: it must be {LOG_MIN} (1 MiB) to {LOG_MAX} (1 GiB) and at most half the image"
            )));
        }
        if label.len() > LABEL_MAX || label.bytes().any(|b| b == 0) {
            return Err(Error::invalid(format!(
                "label of {} bytes: the longest is {LABEL_MAX}",
                label.len()
            )));
        }
        let total_blocks = image_bytes / block;
        let groups = total_blocks.div_ceil(GROUP_BLOCKS);
        let index_blocks = groups.div_ceil(INDEX_ENTRIES as u64);
        let index0 = FIRST_AREA;
        let bitmap0 = index0 + 2 * index_blocks;
        let log_start = bitmap0 + 2 * groups;
        let log_blocks = log_bytes / block;
        let data_start = (log_start + log_blocks).next_multiple_of(NODE_BLOCKS);
        Ok(Geometry {
            uuid,
            hash_seed,
            label: label.to_owned(),
            feature_compat: 0,
            feature_ro_compat: RO_COMPAT_FLAGS,
            feature_incompat: INCOMPAT_ACL | INCOMPAT_LARGE_XATTRS | INCOMPAT_COPIES,
            total_blocks,
            index_start: [BlockNo(index0), BlockNo(index0 + index_blocks)],
            index_blocks,
            bitmap_start: [BlockNo(bitmap0), BlockNo(bitmap0 + groups)],
            log_start: BlockNo(log_start),
            log_blocks,
            data_start: BlockNo(data_start),
            created,
            log_secret: LogSecret::default(),
            inline_max: 0,
        })
    }
}

/// File data that could not be written by the time of an unmount. A repair reports the loss and
/// clears this record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Losses {
    /// Number of files that lost data, at least 1.
    pub files: u64,
    /// Time of the first loss, in seconds since the epoch.
    pub since: i64,
}

/// The state of the image that a checkpoint records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointState {
    pub generation: Generation,
    /// Address, generation and level of the tree's root node.
    pub root: BlockNo,
    pub root_generation: Generation,
    pub root_level: u8,
    /// The cut: the tree contains the effects of exactly the records below this LSN.
    pub checkpoint_lsn: Lsn,
    /// The LSN at which recovery starts to scan.
    pub tail_lsn: Lsn,
    pub epoch: Epoch,
    /// Number of the next new inode. No number from here on has ever been used.
    pub next_ino: Ino,
    /// Number of inodes, the root included.
    pub inodes: u64,
    pub free_blocks: u64,
    /// Number of tree nodes.
    pub nodes: u64,
    /// The image was unmounted or frozen cleanly: recovery needs no record of the log.
    pub clean: bool,
    pub written_sec: i64,
    /// Losses since the last repair, if any.
    pub losses: Option<Losses>,
    /// The table of trees; only in an image with [`INCOMPAT_TREES`].
    pub trees: Option<TableState>,
}

/// The state of the table of trees that a checkpoint records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableState {
    /// Address, generation and level of the root node of the table.
    pub root: BlockNo,
    pub root_generation: Generation,
    pub root_level: u8,
    /// Number of nodes of the table's own tree.
    pub nodes: u64,
    /// The birth that newly allocated extents receive.
    pub birth: u32,
}

/// A decoded superblock, from a slot or a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    pub geometry: Geometry,
    pub checkpoint: CheckpointState,
}

impl Superblock {
    /// Returns the index of the slot that a checkpoint of this generation writes.
    pub fn slot_of(generation: Generation) -> usize {
        (generation.0 % 2) as usize
    }

    /// Returns the block of the slot of `self`'s generation.
    pub fn block(&self) -> BlockNo {
        SLOTS[Superblock::slot_of(self.checkpoint.generation)]
    }

    /// Checks that the counters of this slot are far enough from their maximum for the image to be
    /// opened. Only a crafted image fails the check. Mount and fsck make it before they trust a
    /// slot, and a repair before it writes one.
    pub fn check_room(&self) -> Result<()> {
        let c = &self.checkpoint;
        let counters = [
            ("generation", c.generation.0),
            ("epoch", c.epoch.0),
            ("inode number", c.next_ino.0),
            ("LSN", c.checkpoint_lsn.0),
        ];
        match counters.into_iter().find(|(_, n)| *n > OPEN_MAX) {
            None => Ok(()),
            Some((what, n)) => {
                let what = format!("{what} {n} leaves no room to count on");
                Err(Error::corrupt(CorruptKind::Superblock, self.block(), what))
            }
        }
    }

    /// Encodes the superblock into a whole block, as a slot.
    pub fn encode(&self, out: &mut [u8]) {
        self.encode_as(MAGIC, out);
    }

    /// Encodes the superblock into a whole block, as a copy.
    pub fn encode_copy(&self, out: &mut [u8]) {
        self.encode_as(COPY_MAGIC, out);
    }

    fn encode_as(&self, magic: [u8; 8], out: &mut [u8]) {
        assert_eq!(out.len(), BLOCK_SIZE);
        let (g, c) = (&self.geometry, &self.checkpoint);
        let mut label = [0; LABEL_MAX];
        label[..g.label.len()].copy_from_slice(g.label.as_bytes());
        let raw = Raw {
            magic,
            version: VERSION.into(),
            crc: 0.into(),
            uuid: *g.uuid.as_bytes(),
            hash_seed: g.hash_seed,
            label,
            feature_compat: g.feature_compat.into(),
            feature_ro_compat: g.feature_ro_compat.into(),
            feature_incompat: g.feature_incompat.into(),
            block_size: (BLOCK_SIZE as u32).into(),
            node_blocks: (NODE_BLOCKS as u32).into(),
            total_blocks: g.total_blocks.into(),
            group_blocks: GROUP_BLOCKS.into(),
            index_start: g.index_start.map(|b| b.0.into()),
            index_blocks: g.index_blocks.into(),
            bitmap_start: g.bitmap_start.map(|b| b.0.into()),
            log_start: g.log_start.0.into(),
            log_blocks: g.log_blocks.into(),
            data_start: g.data_start.0.into(),
            created_sec: g.created.sec.into(),
            created_nsec: g.created.nsec.into(),
            clean: (c.clean as u32).into(),
            generation: c.generation.0.into(),
            root: c.root.0.into(),
            root_generation: c.root_generation.0.into(),
            root_level: (c.root_level as u64).into(),
            checkpoint_lsn: c.checkpoint_lsn.0.into(),
            tail_lsn: c.tail_lsn.0.into(),
            epoch: c.epoch.0.into(),
            next_ino: c.next_ino.0.into(),
            inodes: c.inodes.into(),
            free_blocks: c.free_blocks.into(),
            nodes: c.nodes.into(),
            written_sec: c.written_sec.into(),
            log_secret: g.log_secret.0,
            losses: c.losses.map_or(0, |l| l.files).into(),
            lost_sec: c.losses.map_or(0, |l| l.since).into(),
            table_root: c.trees.map_or(0, |t| t.root.0).into(),
            table_root_generation: c.trees.map_or(0, |t| t.root_generation.0).into(),
            table_root_level: c.trees.map_or(0, |t| t.root_level as u64).into(),
            table_nodes: c.trees.map_or(0, |t| t.nodes).into(),
            birth: c.trees.map_or(0, |t| t.birth as u64).into(),
            inline_max: g.inline_max.into(),
        };
        out.fill(0);
        out[..size_of::<Raw>()].copy_from_slice(raw.as_bytes());
        let crc = crc_without(out, CRC_AT);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Returns whether a block starts with the magic of a slot, valid or not.
    pub fn has_magic(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// Returns whether a block starts with the magic of a copy, valid or not.
    pub fn has_copy_magic(bytes: &[u8]) -> bool {
        bytes.starts_with(&COPY_MAGIC)
    }

    /// Decodes slot `slot` of a device of `device_blocks` blocks.
    ///
    /// A valid slot is a block that (1) has the magic, (2) has version 2, (3) matches its CRC, (4)
    /// names this format's block, node and group sizes, (5) describes areas that lie in order
    /// inside the image (moved maps inside the data area) and a root inside the data area, (6) is
    /// of a generation that belongs in this slot, and (7) fits the device.
    pub fn decode(bytes: &[u8], slot: usize, device_blocks: u64) -> Result<Superblock> {
        let block = SLOTS[slot];
        let sb = Superblock::decode_as(MAGIC, bytes, block, device_blocks)?;
        if Superblock::slot_of(sb.checkpoint.generation) != slot {
            let what = "generation belongs in the other slot";
            return Err(Error::corrupt(CorruptKind::Superblock, block, what));
        }
        Ok(sb)
    }

    /// Decodes the copy at `block` of a device of `device_blocks` blocks.
    ///
    /// A valid copy has the magic of copies, meets the conditions of a valid slot except for (1)
    /// and (6), and lies at a place where its image has copies.
    pub fn decode_copy(bytes: &[u8], block: BlockNo, device_blocks: u64) -> Result<Superblock> {
        let sb = Superblock::decode_as(COPY_MAGIC, bytes, block, device_blocks)?;
        if !sb.geometry.copies().any(|place| place == block) {
            let what = "a copy at a place where its image has none";
            return Err(Error::corrupt(CorruptKind::Superblock, block, what));
        }
        Ok(sb)
    }

    fn decode_as(magic: [u8; 8], bytes: &[u8], block: BlockNo, device_blocks: u64) -> Result<Superblock> {
        let bad = |what: String| Error::corrupt(CorruptKind::Superblock, block, what);
        let Ok((raw, _)) = Raw::read_from_prefix(bytes) else {
            return Err(bad("short block".into()));
        };
        if raw.magic != magic {
            return Err(bad("no KedgeFS magic".into()));
        }
        if raw.version.get() != VERSION {
            let what = format!(
                "format version {}; this program reads and writes version {VERSION} alone: copy the files with \
                 the program that made the image, into an image made by this one",
                raw.version
            );
            return Err(Error::Unsupported(what.into()));
        }
        if bytes.len() != BLOCK_SIZE || crc_without(bytes, CRC_AT) != raw.crc.get() {
            return Err(bad("checksum mismatch".into()));
        }
        if raw.block_size.get() as usize != BLOCK_SIZE
            || raw.node_blocks.get() as u64 != NODE_BLOCKS
            || raw.group_blocks.get() != GROUP_BLOCKS
        {
            return Err(bad("impossible block, node or group size".into()));
        }
        let geometry = Geometry {
            uuid: uuid::Uuid::from_bytes(raw.uuid),
            hash_seed: raw.hash_seed,
            label: label_of(&raw.label),
            feature_compat: raw.feature_compat.get(),
            feature_ro_compat: raw.feature_ro_compat.get(),
            feature_incompat: raw.feature_incompat.get(),
            total_blocks: raw.total_blocks.get(),
            index_start: raw.index_start.map(|b| BlockNo(b.get())),
            index_blocks: raw.index_blocks.get(),
            bitmap_start: raw.bitmap_start.map(|b| BlockNo(b.get())),
            log_start: BlockNo(raw.log_start.get()),
            log_blocks: raw.log_blocks.get(),
            data_start: BlockNo(raw.data_start.get()),
            created: Timespec { sec: raw.created_sec.get(), nsec: raw.created_nsec.get() },
            log_secret: LogSecret(raw.log_secret),
            inline_max: match raw.feature_incompat.get() & INCOMPAT_INLINE {
                0 => 0,
                _ => raw.inline_max.get(),
            },
        };
        let checkpoint = CheckpointState {
            generation: Generation(raw.generation.get()),
            root: BlockNo(raw.root.get()),
            root_generation: Generation(raw.root_generation.get()),
            root_level: u8::try_from(raw.root_level.get())
                .map_err(|_| bad("impossible tree height".into()))?,
            checkpoint_lsn: Lsn(raw.checkpoint_lsn.get()),
            tail_lsn: Lsn(raw.tail_lsn.get()),
            epoch: Epoch(raw.epoch.get()),
            next_ino: Ino(raw.next_ino.get()),
            inodes: raw.inodes.get(),
            free_blocks: raw.free_blocks.get(),
            nodes: raw.nodes.get(),
            clean: raw.clean.get() != 0,
            written_sec: raw.written_sec.get(),
            losses: match raw.losses.get() {
                0 => None,
                files => Some(Losses { files, since: raw.lost_sec.get() }),
            },
            trees: match geometry.feature_incompat & INCOMPAT_TREES {
                0 => None,
                _ => Some(TableState {
                    root: BlockNo(raw.table_root.get()),
                    root_generation: Generation(raw.table_root_generation.get()),
                    root_level: u8::try_from(raw.table_root_level.get())
                        .map_err(|_| bad("impossible height of the table of trees".into()))?,
                    nodes: raw.table_nodes.get(),
                    birth: u32::try_from(raw.birth.get())
                        .ok()
                        .filter(|birth| *birth <= BIRTH_MAX)
                        .ok_or_else(|| bad("impossible birth of new extents".into()))?,
                }),
            },
        };
        let sb = Superblock { geometry, checkpoint };
        sb.check().map_err(|what| bad(what.into()))?;
        if sb.geometry.total_blocks > device_blocks {
            return Err(bad(format!(
                "image of {} blocks on a device of {device_blocks}: truncated",
                sb.geometry.total_blocks
            )));
        }
        Ok(sb)
    }

    fn check(&self) -> Result<(), &'static str> {
        let (g, c) = (&self.geometry, &self.checkpoint);
        let sizes = IMAGE_MIN / BLOCK_SIZE as u64..=IMAGE_MAX / BLOCK_SIZE as u64;
        if !sizes.contains(&g.total_blocks) {
            return Err("impossible image size");
        }
        let groups = g.groups();
        let maps = [
            (g.index_start[0].0, g.index_blocks),
            (g.index_start[1].0, g.index_blocks),
            (g.bitmap_start[0].0, groups),
            (g.bitmap_start[1].0, groups),
        ];
        let log = (g.log_start.0, g.log_blocks);
        let has_inline = g.feature_incompat & INCOMPAT_INLINE != 0;
        if has_inline && !(1..=INLINE_MAX as u64).contains(&g.inline_max) {
            return Err("impossible length of data in the tree");
        }
        let end_of = |areas: &[(u64, u64)], mut at: u64| {
            for (start, blocks) in areas {
                if *start < at || *blocks > g.total_blocks || *start > g.total_blocks - blocks {
                    return Err("areas overlap or lie outside the image");
                }
                at = start + blocks;
            }
            Ok(at)
        };
        let moved = g.feature_incompat & INCOMPAT_MOVED_MAPS != 0;
        let at = if moved {
            end_of(&maps, g.data_start.0)?;
            end_of(&[log], FIRST_AREA)?
        } else {
            end_of(&[log], end_of(&maps, FIRST_AREA)?)?
        };
        if g.index_blocks != groups.div_ceil(INDEX_ENTRIES as u64) {
            return Err("impossible allocation index size");
        }
        if !(LOG_MIN..=LOG_MAX).contains(&g.log_bytes()) {
            return Err("impossible log size");
        }
        // The blocks before the data area cost memory, a bitmap for each group. So an image must
        // not have more of them than its areas need.
        if g.data_start.0 > g.data_start_max() {
            return Err("data area far beyond the others");
        }
        if g.data_start.0 < at || g.data_start.0 >= g.total_blocks || g.data_start.0 % NODE_BLOCKS != 0 {
            return Err("data area outside the image");
        }
        let table = c.trees.map(|t| (t.root, t.root_generation, t.root_level));
        let maps = g.moved_maps();
        for (root, generation, level) in [(c.root, c.root_generation, c.root_level)].into_iter().chain(table)
        {
            if root < g.data_start || root.0 > g.total_blocks - NODE_BLOCKS || root.0 % NODE_BLOCKS != 0 {
                return Err("tree root outside the data area");
            }
            if root.0 < maps.end && maps.start < root.0 + NODE_BLOCKS {
                return Err("tree root inside the allocation maps");
            }
            if g.copies().any(|copy| root <= copy && copy.0 < root.0 + NODE_BLOCKS) {
                return Err("tree root over a copy of the superblock");
            }
            if generation > c.generation || level > 16 {
                return Err("impossible tree root");
            }
        }
        if c.tail_lsn > c.checkpoint_lsn
            || c.checkpoint_lsn.0 - c.tail_lsn.0 > g.log_bytes()
            || c.tail_lsn.0 % BLOCK_SIZE as u64 != 0
            || c.checkpoint_lsn.0 % BLOCK_SIZE as u64 != 0
        {
            return Err("impossible log positions");
        }
        let counters =
            [c.generation.0, c.epoch.0, c.next_ino.0, c.inodes, c.nodes, c.checkpoint_lsn.0, c.tail_lsn.0];
        if counters.into_iter().any(|n| n > COUNTER_MAX) {
            return Err("a counter has an impossible value");
        }
        if c.next_ino <= Ino::ROOT || c.free_blocks > g.total_blocks {
            return Err("impossible inode or block count");
        }
        Ok(())
    }
}

/// Returns the label in its field. mkfs writes only UTF-8. In other bytes, each invalid sequence
/// becomes U+FFFD, which may take more bytes than the sequence, so the label ends with the last
/// character that fits into the field. Such a label, encoded and decoded again, stays the same. So
/// the slots of an image have equal labels also after a checkpoint has written one of them.
fn label_of(field: &[u8; LABEL_MAX]) -> String {
    let bytes = field.split(|&b| b == 0).next().unwrap_or_default();
    let mut label = String::from_utf8_lossy(bytes).into_owned();
    while label.len() > LABEL_MAX {
        label.pop();
    }
    label
}

#[cfg(test)]
#[path = "superblock_tests.rs"]
mod tests;
