//! The source of a repair: the newest checkpoint, with as much of the log as possible replayed into
//! memory.
//!
//! # How much of the log is replayed
//! 1. The whole log, as by a mount. If the bitmaps on the device are wrong, replay uses bitmaps
//!    made from what the tree owns: blocks that replay allocates must not belong to a file, and a
//!    damaged bitmap must not cost the log. But before that, replay with the bitmaps on the device
//!    is tried: if the check of the result finds nothing, that result is used, as by a mount.
//! 2. If replay fails: the longest prefix of log writes that can be replayed, found by bisection.
//!    The log is cut off after a write (zeroed, in memory), and the store replays the rest. Each
//!    such prefix is a state that the image once had. So a record that cannot be replayed is
//!    dropped with all later records: skipping only that record would make a state that never
//!    existed.
//! 3. If even the log below the checkpoint's cut cannot be read: nothing.
//!
//! # What else is lost with dropped records
//! After a dropped record has freed a block, another file may have reused it. In the older state
//! that the repair restores, the block then contains foreign bytes. If a dropped record can still
//! be read, the blocks that it allocated are *suspect* and become holes ([`super::filter`]). This
//! does not concern records below the checkpoint's cut, which the checkpoint contains. Blocks
//! that only unreadable records allocated cannot be recognised, because file data has neither
//! checksums nor the name of its owner. The report says that there may be such blocks
//! ([`RepairKind::DataUncertain`]).

use super::done::{RepairKind, Repairs};
use super::ring::Ring;
use super::tracked::Tracked;
use crate::items::State;
use crate::kinds::FindingKind;
use crate::owned::{GroupBits, Owned};
use crate::read::Reader;
use crate::report::{At, Findings};
use crate::slots::read_slots;
use crate::space::{bitmap_block, read_index, words};
use crate::{Replay, ReplayState, ReplaySummary};
use kedge_base::{BLOCK_SIZE, BlockNo, Error, IoBuf, Lsn, Result};
use kedge_device::Device;
use kedge_format::alloc::{GROUP_BLOCKS, GroupEntry, INDEX_ENTRIES, bitmap_crc, encode_index_block};
use kedge_format::record::{Edit, Record};
use kedge_format::superblock::{SLOTS, Superblock};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;

pub(crate) struct Source {
    /// The device to read: the image's, or the overlay into which the log was replayed.
    pub device: Arc<dyn Device>,
    pub sb: Superblock,
    /// The blocks that replay wrote; `None` if nothing was replayed.
    pub overlay: Option<Arc<Tracked>>,
    pub replay: ReplayState,
    given_up: Option<GivenUp>,
}

/// The blocks that the dropped records allocated.
struct GivenUp {
    suspect: Owned,
}

impl Source {
    /// The checkpoint as it lies on the device.
    pub fn plain(device: Arc<dyn Device>, sb: &Superblock) -> Source {
        Source { device, sb: sb.clone(), overlay: None, replay: ReplayState::None, given_up: None }
    }

    /// Blocks that may contain another file's bytes.
    pub fn suspect(&self) -> Option<&Owned> {
        self.given_up.as_ref().map(|g| &g.suspect)
    }
}

/// The copy of each group's bitmap that is in use; `None` where the index cannot be read.
pub(crate) fn copies(sb: &Superblock, reader: &mut Reader) -> Vec<Option<u8>> {
    let index = read_index(sb, reader, &mut Findings::new(0));
    index.into_iter().map(|e| e.map(|e| e.copy)).collect()
}

/// The blocks that are marked as owned in the bitmaps on the device, from the bitmaps that match
/// their checksums.
pub(crate) fn recorded(sb: &Superblock, reader: &mut Reader) -> Owned {
    recorded_groups(sb, reader).0
}

/// [`recorded`], and for each group whether its bitmap matches its checksum.
pub(crate) fn recorded_groups(sb: &Superblock, reader: &mut Reader) -> (Owned, Vec<bool>) {
    let mut is_known = vec![false; sb.geometry.groups() as usize];
    let index = read_index(sb, reader, &mut Findings::new(0));
    let known: Vec<(u64, GroupEntry)> = (0..).zip(index).filter_map(|(g, e)| e.map(|e| (g, e))).collect();
    let mut owned = Owned::new(sb.geometry.groups());
    reader.stream(
        known.len(),
        1,
        |i| bitmap_block(sb, known[i].0, &known[i].1),
        |i, bytes| {
            let (group, entry) = &known[i];
            if let Ok(bytes) = bytes
                && bitmap_crc(*group, bytes) == entry.bitmap_crc
            {
                let mut bits: GroupBits = [0; BLOCK_SIZE / 8];
                bits.iter_mut().zip(words(bytes)).for_each(|(bit, word)| *bit = word);
                owned.add_group(*group, &bits);
                is_known[*group as usize] = true;
            }
        },
    );
    (owned, is_known)
}

/// Returns a group's bitmap and its number of free blocks.
pub(crate) fn bitmap_of(owned: &Owned, group: u64) -> (Vec<u8>, u32) {
    let Some(bits) = owned.group(group) else { return (vec![0; BLOCK_SIZE], GROUP_BLOCKS as u32) };
    let bytes = bits.iter().flat_map(|w| w.to_le_bytes()).collect();
    (bytes, bits.iter().map(|w| w.count_zeros()).sum())
}

/// Encodes the index blocks of `entries` for the area of the generation's slot.
pub(crate) fn index_blocks(sb: &Superblock, entries: &[GroupEntry]) -> Vec<(BlockNo, IoBuf)> {
    let (g, generation) = (&sb.geometry, sb.checkpoint.generation);
    let start = g.index_start[Superblock::slot_of(generation)].0;
    let blocks = entries.chunks(INDEX_ENTRIES).enumerate().map(|(i, entries)| {
        let mut buf = IoBuf::zeroed(1);
        encode_index_block(&g.uuid, generation, (i * INDEX_ENTRIES) as u64, entries, buf.as_mut_bytes());
        (BlockNo(start + i as u64), buf)
    });
    blocks.collect()
}

const SPACE_FAULTS: [FindingKind; 4] = [
    FindingKind::IndexBad,
    FindingKind::BitmapBad,
    FindingKind::GroupFreeBlocks,
    FindingKind::BlocksUnmarked,
];

/// Whether the bitmaps on the device contradict the tree.
pub(crate) fn space_is_wrong(base: &State) -> bool {
    SPACE_FAULTS.iter().any(|kind| base.findings.has(*kind))
}

/// Replays the whole log with the bitmaps on the device.
pub(crate) fn replay_plainly(
    device: &Arc<dyn Device>,
    sb: &Superblock,
    replay: &dyn Replay,
) -> Result<Source> {
    Attempt { device, sb, space: None, hide_other: false, replay }.run(None)
}

/// Replays as much of the log as possible. `base` is the checked checkpoint; findings about the log
/// go to `findings`.
pub(crate) fn recover(
    device: &Arc<dyn Device>,
    sb: &Superblock,
    base: &State,
    replay: &dyn Replay,
    findings: &mut Findings,
    repairs: &mut Repairs,
) -> Result<Source> {
    let space = space_is_wrong(base).then(|| {
        let mut space = base.owned.clone();
        if !base.lost.is_empty() {
            space.add(&recorded(sb, &mut Reader::new(&**device)));
        }
        space
    });
    let hide_other = base.findings.has(FindingKind::SuperblockSlotsDiffer);
    let attempt = Attempt { device, sb, space: space.as_ref(), hide_other, replay };
    let error = match attempt.run(None) {
        Ok(source) => return Ok(source),
        Err(error) => error,
    };
    findings.add_error(FindingKind::ReplayFailed, At::of(&error), &error);
    let starts = log_writes(&**device, sb);
    let cut = sb.checkpoint.checkpoint_lsn;
    let ends: Vec<Lsn> = starts.into_iter().filter(|lsn| *lsn >= cut).collect();
    let (mut best, mut best_end) = (None, cut);
    // `ends[..low]` are known to replay, `ends[high..]` are known to fail.
    let (mut low, mut high, mut next) = (0, ends.len(), ends.len().saturating_sub(1));
    while low < high {
        match attempt.run(Some(ends[next])) {
            Ok(source) => {
                (best, best_end, low) = (Some(source), ends[next], next + 1);
            }
            Err(_) => high = next,
        }
        next = usize::midpoint(low, high);
    }
    let replayed = best.is_some();
    let given_up = give_up(&**device, sb, best_end, &error, replayed, repairs);
    let mut source = best.unwrap_or_else(|| Source::plain(device.clone(), sb));
    if !replayed {
        source.replay = ReplayState::Failed { what: error.to_string() };
    }
    source.given_up = Some(given_up);
    Ok(source)
}

struct Attempt<'a> {
    device: &'a Arc<dyn Device>,
    sb: &'a Superblock,
    space: Option<&'a Owned>,
    /// Hides the other slot, which belongs to another image: the store would refuse to open the
    /// device.
    hide_other: bool,
    replay: &'a dyn Replay,
}

impl Attempt<'_> {
    /// Replays into a new overlay. With `end`, the log is cut off there.
    fn run(&self, end: Option<Lsn>) -> Result<Source> {
        let overlay = Arc::new(Tracked::new(self.device.clone()));
        if let Some(owned) = self.space {
            patch_space(&*overlay, self.sb, owned)?;
        }
        if self.hide_other {
            let other = 1 - Superblock::slot_of(self.sb.checkpoint.generation);
            overlay.write(SLOTS[other].byte_offset(), &IoBuf::zeroed(1), false)?;
        }
        if let Some(end) = end {
            let g = &self.sb.geometry;
            let mut at = end.0;
            let limit = self.sb.checkpoint.tail_lsn.0 + g.log_bytes();
            while at < limit {
                let place = at % g.log_bytes();
                let len = (g.log_bytes() - place).min(limit - at);
                overlay.write_zeroes(g.log_start.byte_offset() + place, len)?;
                at += len;
            }
        }
        let summary: ReplaySummary = self.replay.replay(overlay.clone())?;
        let mut findings = Findings::new(8);
        let sb = read_slots(&mut Reader::new(&*overlay), &mut findings)
            .ok_or_else(|| Error::corrupt_log(Lsn(summary.to_lsn), "replay left no superblock"))?;
        Ok(Source {
            device: overlay.clone(),
            sb,
            overlay: Some(overlay),
            replay: ReplayState::Done(summary),
            given_up: None,
        })
    }
}

/// Corrects the checkpoint's bitmaps and index in the overlay.
fn patch_space(overlay: &dyn Device, sb: &Superblock, owned: &Owned) -> Result<()> {
    let mut entries = Vec::new();
    for group in 0..sb.geometry.groups() {
        let (bytes, free_blocks) = bitmap_of(owned, group);
        entries.push(GroupEntry { bitmap_crc: bitmap_crc(group, &bytes), free_blocks, copy: 0 });
        let at = BlockNo(sb.geometry.bitmap_start[0].0 + group);
        overlay.write(at.byte_offset(), &IoBuf::from_bytes(&bytes), false)?;
    }
    for (at, buf) in index_blocks(sb, &entries) {
        overlay.write(at.byte_offset(), &buf, false)?;
    }
    Ok(())
}

/// The starts of the log's valid writes from the tail on, and the end of the last one.
fn log_writes(device: &dyn Device, sb: &Superblock) -> Vec<Lsn> {
    let c = &sb.checkpoint;
    let mut ring = Ring::new(device, &sb.geometry, c.tail_lsn);
    let mut at = c.tail_lsn;
    let mut out = vec![at];
    while let Some((header, _)) = ring.write_at(at) {
        let valid = header.epoch == c.epoch && header.lsn == at && header.tail_lsn <= c.tail_lsn;
        if !valid {
            break;
        }
        at = header.end_lsn();
        out.push(at);
    }
    out
}

/// Searches the whole ring for records that are not replayed, and reports them as dropped.
fn give_up(
    device: &dyn Device,
    sb: &Superblock,
    end: Lsn,
    error: &Error,
    replayed: bool,
    repairs: &mut Repairs,
) -> GivenUp {
    let (g, c) = (&sb.geometry, &sb.checkpoint);
    let from = if replayed { end } else { c.tail_lsn };
    let mut ring = Ring::new(device, g, c.tail_lsn);
    let mut suspect = Owned::new(g.groups());
    let (mut writes, mut records, mut last, mut readable) = (0u64, 0u64, from, 0u64);
    let mut at = c.tail_lsn;
    while at < ring.limit {
        let Some((header, bytes)) = ring.write_at(at) else {
            at = Lsn(at.0 + BLOCK);
            continue;
        };
        let next = Lsn(at.0 + header.blocks as u64 * BLOCK);
        // A lost superblock slot may have opened one more epoch.
        let newer = c.epoch.0.checked_add(1) == Some(header.epoch.0);
        let lost = newer || (header.epoch == c.epoch && header.lsn >= from);
        // The checkpoint contains the records below its cut: their blocks hold their own data.
        let unapplied = newer || header.lsn >= c.checkpoint_lsn;
        if lost && let Some(found) = header.records(bytes) {
            writes += 1;
            readable += header.blocks as u64 * BLOCK;
            last = last.max(header.end_lsn());
            for (lsn, bytes) in found {
                records += 1;
                let Ok(record) = Record::decode(lsn, bytes) else { continue };
                for edit in record.edits {
                    if unapplied
                        && let Edit::Alloc(extent) = edit
                        && extent.start >= g.data_start
                        && extent.start.0.checked_add(extent.blocks).is_some_and(|end| end <= g.total_blocks)
                    {
                        suspect.claim(extent.start, extent.blocks);
                    }
                }
            }
        }
        at = next;
    }
    repairs.add(RepairKind::LogGivenUp, At::default(), || {
        format!(
            "the log from LSN {from} on ({writes} log writes with {records} records can still be read, the last one \
             ends at LSN {last}): {error}"
        )
    });
    // If only a record is faulty, its log write and the later log writes stay readable. If no log
    // write is readable, the first one is damaged.
    if writes == 0 || last.0 - from.0 != readable || ring.has_unreadable() {
        repairs.add(RepairKind::DataUncertain, At::default(), || {
            "part of that cannot be read: files that changed since may show bytes of files that took their blocks".into()
        });
    }
    GivenUp { suspect }
}
