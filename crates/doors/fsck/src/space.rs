//! Checks the allocation index and the bitmaps against the blocks that the tree owns.

use crate::items::State;
use crate::kinds::FindingKind;
use crate::owned::{GroupBits, Owned, push_runs};
use crate::read::Reader;
use crate::report::{At, Findings};
use kedge_base::BlockNo;
use kedge_format::alloc::{GROUP_BLOCKS, GroupEntry, INDEX_ENTRIES, bitmap_crc, decode_index_block};
use kedge_format::superblock::Superblock;

/// Claims the blocks that the format owns: see [`kedge_format::superblock::Geometry::format_runs`].
pub(crate) fn claim_format_areas(sb: &Superblock, owned: &mut Owned) {
    for (start, blocks) in sb.geometry.format_runs() {
        owned.claim(BlockNo(start), blocks);
    }
}

pub(crate) fn check_space(
    sb: &Superblock,
    reader: &mut Reader,
    state: &mut State,
    progress: &mut dyn FnMut(u64, u64),
) {
    let groups = sb.geometry.groups();
    let index = read_index(sb, reader, &mut state.findings);
    if index.iter().all(Option::is_some) {
        let free: u64 = index.iter().flatten().map(|e| e.free_blocks as u64).sum();
        if free != sb.checkpoint.free_blocks {
            state.findings.add(FindingKind::SuperblockFreeBlocks, At::block(sb.block()), || {
                format!("{} free blocks, the groups have {free}", sb.checkpoint.free_blocks)
            });
        }
    }
    let whole = |block: &&[Option<GroupEntry>]| block.iter().all(Option::is_some);
    state.counters.index_blocks = index.chunks(INDEX_ENTRIES).filter(whole).count() as u64;
    let known: Vec<(u64, GroupEntry)> = (0..).zip(index).filter_map(|(g, e)| e.map(|e| (g, e))).collect();
    // If parts of the tree could not be read, their blocks have no owner here, so a leak cannot be
    // judged.
    let judge_leaks = state.lost.is_empty();
    let mut leaked = Runs::new(FindingKind::BlocksLeaked, "marked as owned, but nothing owns them");
    let mut unmarked = Runs::new(FindingKind::BlocksUnmarked, "owned, but marked as free");
    let place = |i: usize| bitmap_block(sb, known[i].0, &known[i].1);
    let State { owned, findings, counters, .. } = state;
    reader.stream(known.len(), 1, place, |i, bitmap| {
        let (group, entry) = &known[i];
        let block = place(i);
        let bitmap = match bitmap {
            Ok(bitmap) => bitmap,
            Err(e) => return findings.add_error(FindingKind::BitmapBad, At::block(block), &e),
        };
        if bitmap_crc(*group, bitmap) != entry.bitmap_crc {
            findings.add(FindingKind::BitmapBad, At::block(block), || {
                format!("checksum of group {group} mismatches")
            });
            return;
        }
        counters.bitmaps += 1;
        let free = GROUP_BLOCKS - words(bitmap).map(|w| w.count_ones() as u64).sum::<u64>();
        if free != entry.free_blocks as u64 {
            findings.add(FindingKind::GroupFreeBlocks, At::block(block), || {
                format!(
                    "the index says {} free blocks in group {group}, its bitmap {free}",
                    entry.free_blocks
                )
            });
        }
        compare(*group, bitmap, owned.group(*group), |base, marked, own| {
            if judge_leaks {
                leaked.add(findings, base, marked & !own);
            }
            unmarked.add(findings, base, own & !marked);
        });
        progress(group + 1, groups);
    });
    leaked.finish(findings);
    unmarked.finish(findings);
}

pub(crate) fn bitmap_block(sb: &Superblock, group: u64, entry: &GroupEntry) -> BlockNo {
    BlockNo(sb.geometry.bitmap_start[usize::from(entry.copy != 0)].0 + group)
}

/// Reads the index's entries; an entry is `None` if its index block is not valid.
pub(crate) fn read_index(
    sb: &Superblock,
    reader: &mut Reader,
    findings: &mut Findings,
) -> Vec<Option<GroupEntry>> {
    let (g, c) = (&sb.geometry, &sb.checkpoint);
    let start = g.index_start[Superblock::slot_of(c.generation)];
    let mut out: Vec<Option<GroupEntry>> = Vec::with_capacity(g.groups() as usize);
    let place = |i: usize| BlockNo(start.0 + i as u64);
    reader.stream(g.index_blocks as usize, 1, place, |i, bytes| {
        let first = (i * INDEX_ENTRIES) as u64;
        let want = (g.groups() - first).min(INDEX_ENTRIES as u64) as usize;
        let at = At::block(place(i));
        let entries = bytes.and_then(|b| decode_index_block(b, place(i), &g.uuid, c.generation, first));
        match entries {
            Ok(entries) if entries.len() == want => out.extend(entries.into_iter().map(Some)),
            other => {
                match other {
                    Ok(entries) => findings.add(FindingKind::IndexBad, at, || {
                        format!("{} entries instead of {want}", entries.len())
                    }),
                    Err(e) => findings.add_error(FindingKind::IndexBad, at, &e),
                }
                out.extend(std::iter::repeat_n(None, want));
            }
        }
    });
    out
}

pub(crate) fn words(bitmap: &[u8]) -> impl Iterator<Item = u64> {
    bitmap.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("eight bytes")))
}

/// Calls `differ(first block, marked, owned)` for each word of a group in which the bitmap's bits
/// and the owned bits differ.
fn compare(group: u64, bitmap: &[u8], own: Option<&GroupBits>, mut differ: impl FnMut(u64, u64, u64)) {
    for (i, marked) in words(bitmap).enumerate() {
        let own = own.map_or(0, |bits| bits[i]);
        if marked != own {
            differ(group * GROUP_BLOCKS + i as u64 * 64, marked, own);
        }
    }
}

/// Joins differing bits into runs and reports each run as one finding.
struct Runs {
    kind: FindingKind,
    what: &'static str,
    open: Vec<(BlockNo, u64)>,
}

impl Runs {
    fn new(kind: FindingKind, what: &'static str) -> Runs {
        Runs { kind, what, open: Vec::new() }
    }

    fn add(&mut self, findings: &mut Findings, base: u64, bits: u64) {
        push_runs(&mut self.open, base, bits);
        // Only the last run can still grow.
        let closed = self.open.len().saturating_sub(1);
        for run in self.open.drain(..closed) {
            Self::report(self.kind, self.what, findings, run);
        }
    }

    fn finish(self, findings: &mut Findings) {
        for run in self.open {
            Self::report(self.kind, self.what, findings, run);
        }
    }

    fn report(kind: FindingKind, what: &str, findings: &mut Findings, (start, blocks): (BlockNo, u64)) {
        findings.add(kind, At::block(start), || format!("{blocks} blocks are {what}"));
    }
}
