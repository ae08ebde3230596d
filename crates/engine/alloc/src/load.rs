//! Reads the allocator's state from an image, and holds blocks that replay will allocate.
//!
//! A valid state of generation `g` satisfies: (1) every block of index area `g % 2` decodes, has
//! generation `g`, the image's uuid and the expected first group, and has the required number of
//! entries; (2) every group's bitmap, in the copy that its entry selects, matches the entry's CRC
//! and free count; (3) the blocks that the format owns are set in it. All bitmaps are read, even
//! those of a large image: an allocator that trusts an unchecked bitmap may allocate blocks of
//! files.
//!
//! A loaded allocator is *in replay*: it serves records and the tree, but not data. The caller then
//! calls
//! 1. `hold_for_replay` for every extent that any record from the cut on allocates, before it
//!    changes the first node (reason 5 of the crate's documentation);
//! 2. the functions that apply records; a checkpoint in between is allowed;
//! 3. `replay_done`, even if there was nothing to replay.

use crate::bitmap::{BITS, Bitmap};
use crate::checkpoint::Durable;
use crate::group::Group;
use crate::{Alloc, DataReservation, format_owned};
use kedge_base::atomic::Ordering::SeqCst;
use kedge_base::{BLOCK_SIZE, BlockNo, CorruptKind, Error, Extent, Generation, IoBuf, Result};
use kedge_device::{Device, ReadAhead};
use kedge_format::alloc::{GROUP_BLOCKS, GroupEntry, INDEX_ENTRIES, bitmap_crc, decode_index_block};
use kedge_format::superblock::{Geometry, Superblock};
use std::sync::Arc;

/// Maximum number of blocks in one read (1 MiB).
pub(crate) const READ_BLOCKS: u64 = 256;
/// Number of chunks of groups whose bitmaps are being read at a time: 16 MiB at most, for both
/// copies.
pub(crate) const CHUNKS_AHEAD: usize = 8;
/// Number of copies of each bitmap.
pub(crate) const COPIES: usize = 2;

impl Alloc {
    /// Reads the state that the checkpoint of `generation` wrote. The result is in replay until
    /// [`Alloc::replay_done`].
    pub fn load(device: &dyn Device, geometry: &Geometry, generation: Generation) -> Result<Alloc> {
        let entries = read_index(device, geometry, generation)?;
        let mut groups = Vec::with_capacity(entries.len());
        let mut bitmaps = Bitmaps { geometry, entries: &entries, asked: 0, reads: ReadAhead::new(device) };
        for (chunk, first) in entries.chunks(READ_BLOCKS as usize).zip((0..).step_by(READ_BLOCKS as usize)) {
            bitmaps.read_groups(first, chunk, &mut groups)?;
        }
        let durable = Durable { index: Arc::new(entries), slot: Some(Superblock::slot_of(generation)) };
        Ok(Alloc::new(geometry, groups, durable, Vec::new(), true))
    }

    /// Holds an extent that a record of the log allocates, so that the tree does not use its blocks
    /// before replay applies that record.
    pub fn hold_for_replay(&self, extent: Extent) -> Result<()> {
        assert!(self.replaying.load(SeqCst), "holds are taken in replay");
        for (g, bit, len) in self.named_pieces(extent)? {
            let fresh = self.with_group(g, |group| group.hold(bit, len))?;
            self.take_in_replay(fresh as u64)?;
        }
        Ok(())
    }

    /// Takes available blocks for a record or a hold. In replay nothing is promised to data and no
    /// refill runs concurrently, so every block that is not busy counts as available.
    pub(crate) fn take_in_replay(&self, blocks: u64) -> Result<()> {
        if blocks == 0 || self.space.take(blocks) { Ok(()) } else { Err(Error::NoSpace) }
    }

    /// Ends replay: frees the blocks that were held and not allocated, fills the pool, and starts
    /// to serve data.
    pub fn replay_done(&self) {
        drop(self.replay_done_with(0));
    }

    /// Does what [`Alloc::replay_done`] does, and promises up to `blocks` blocks to log-resident
    /// data that recovery must place. The promise has priority over the pool's share, and over
    /// slots that the pool claimed during replay. Otherwise an image could not be mounted that was
    /// full, with few slots in the pool, when the power failed: these blocks were promised to data
    /// then.
    pub fn replay_done_with(&self, blocks: u64) -> DataReservation {
        assert!(self.replaying.swap(false, SeqCst), "replay ends once");
        let mut freed = 0;
        for g in 0..self.cells.len() {
            freed += self.with_group(g, Group::drop_held) as u64;
        }
        self.space.give(freed);
        self.refill_stuck.store(false, SeqCst);
        let claimed = self.pool.drain();
        self.space.give(self.unclaim(&claimed));
        let promised = DataReservation::taken(self.space.clone(), self.space.take_up_to(blocks));
        self.fill_pool();
        promised
    }
}

fn read_index(device: &dyn Device, geometry: &Geometry, generation: Generation) -> Result<Vec<GroupEntry>> {
    let start = geometry.index_start[Superblock::slot_of(generation)].0;
    let groups = geometry.groups();
    let mut entries = Vec::new();
    let mut at = 0;
    while at < geometry.index_blocks {
        let mut buf = IoBuf::zeroed((geometry.index_blocks - at).min(READ_BLOCKS) as usize);
        device.read(BlockNo(start + at).byte_offset(), &mut buf)?;
        for bytes in buf.as_bytes().chunks_exact(BLOCK_SIZE) {
            let (block, first) = (BlockNo(start + at), at * INDEX_ENTRIES as u64);
            let part = decode_index_block(bytes, block, &geometry.uuid, generation, first)?;
            if part.len() as u64 != groups.saturating_sub(first).min(INDEX_ENTRIES as u64) {
                let what =
                    format!("names {} groups from group {first} on, the image has {groups}", part.len());
                return Err(Error::corrupt(CorruptKind::AllocIndex, block, what));
            }
            entries.extend(part);
            at += 1;
        }
    }
    Ok(entries)
}

/// Reads the bitmaps of an image in the order of their groups, in chunks of [`READ_BLOCKS`] groups.
struct Bitmaps<'a> {
    geometry: &'a Geometry,
    entries: &'a [GroupEntry],
    /// Number of groups whose bitmaps have been requested. Reads are requested ahead, because a
    /// large image has many groups and each read may take long.
    asked: usize,
    reads: ReadAhead<'a>,
}

/// Returns the first and last block that a chunk needs from one copy, counted from the start of the
/// chunk. Current and old copies alternate, because groups change at different checkpoints, so one
/// read for each copy covers everything between the two.
fn wanted(chunk: &[GroupEntry], copy: usize) -> Option<(usize, usize)> {
    let wanted = |e: &GroupEntry| e.copy as usize == copy;
    chunk.iter().position(wanted).zip(chunk.iter().rposition(wanted))
}

impl Bitmaps<'_> {
    /// Keeps reads of the chunks from group `first` on in flight: when half of them have been
    /// taken, requests the next ones in one batch.
    fn ask(&mut self, first: usize) {
        let chunks = |count: usize| (first + count * READ_BLOCKS as usize).min(self.entries.len());
        let (enough, far) = (chunks(CHUNKS_AHEAD / 2), chunks(CHUNKS_AHEAD));
        let mut reads = Vec::new();
        while (self.asked < enough || !reads.is_empty()) && self.asked < far {
            let chunk = &self.entries[self.asked..];
            let chunk = &chunk[..chunk.len().min(READ_BLOCKS as usize)];
            for copy in 0..COPIES {
                if let Some((low, high)) = wanted(chunk, copy) {
                    let block = BlockNo(self.geometry.bitmap_start[copy].0 + (self.asked + low) as u64);
                    reads.push((block.byte_offset(), high - low + 1));
                }
            }
            self.asked += chunk.len();
        }
        self.reads.ask(reads);
    }

    /// Reads the groups of `chunk`, which starts at group `first`.
    fn read_groups(&mut self, first: u64, chunk: &[GroupEntry], out: &mut Vec<Group>) -> Result<()> {
        self.ask(first as usize);
        let mut copies = [(0, IoBuf::default()), (0, IoBuf::default())];
        for (copy, (from, buf)) in copies.iter_mut().enumerate() {
            if let Some((low, _)) = wanted(chunk, copy) {
                *from = low;
                *buf = self.reads.take().expect("the read was requested")?;
            }
        }
        for (i, entry) in chunk.iter().enumerate() {
            let (from, buf) = &copies[entry.copy as usize];
            let bytes = &buf.as_bytes()[(i - from) * BLOCK_SIZE..][..BLOCK_SIZE];
            let g = first + i as u64;
            let block = BlockNo(self.geometry.bitmap_start[entry.copy as usize].0 + g);
            out.push(check_group(self.geometry, g, entry, block, bytes)?);
        }
        Ok(())
    }
}

fn check_group(
    geometry: &Geometry,
    g: u64,
    entry: &GroupEntry,
    block: BlockNo,
    bytes: &[u8],
) -> Result<Group> {
    let bad = |what: String| Err(Error::corrupt(CorruptKind::Bitmap, block, what));
    if bitmap_crc(g, bytes) != entry.bitmap_crc {
        return bad(format!("checksum mismatch of group {g}"));
    }
    let owned = Bitmap::from_bytes(bytes);
    let free = BITS - owned.count_set(0, BITS);
    if free != entry.free_blocks {
        return bad(format!("group {g} has {free} free blocks, the index says {}", entry.free_blocks));
    }
    let first = g * GROUP_BLOCKS;
    for (start, len) in format_owned(geometry, first) {
        if let Some(bit) = owned.first_clear(start, len) {
            return bad(format!("block {}, which the format owns, is called free", first + bit as u64));
        }
    }
    Ok(Group::new(BlockNo(first), Arc::new(owned)))
}
