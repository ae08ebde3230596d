//! The writes of a checkpoint: nodes and bitmaps, in batches that fit the device, the flush, and
//! the superblock slot.

use super::cut::Cut;
use crate::slots::{refresh_copies, write_slot};
use kedge_base::broken::{self, Variant};
use kedge_base::trace::{self, Event};
use kedge_base::{BLOCK_SIZE, BlockNo, IoBuf, Result};
use kedge_device::{Device, Io, LatencyKind, Op, run_batch};
use kedge_format::superblock::{CheckpointState, Geometry, Superblock};
use std::time::Duration;

/// Blocks in a batch of a checkpoint that does not pause.
pub(crate) const FULL: usize = 2048;
/// Largest merged write, in blocks.
const WRITE_BLOCKS_MAX: usize = 256;
/// Writes in one batch on a disk, which is also the minimum.
const BATCH_WRITES: usize = 8;
/// The same for a checkpoint that may not pause, on a disk that is not slow.
const BATCH_WRITES_HURRY: usize = 32;
/// The most writes in one batch.
const BATCH_WRITES_MAX: usize = 128;
/// A device on which a write takes longer is distant, or a slow disk.
const FAR: Duration = Duration::from_micros(500);

/// Writes in one batch on this device. Each batch waits for a round trip, and nodes that are not
/// neighbours are writes of 16 KiB: eight of them in 10 ms are 13 MB/s, whatever the device can do.
/// So a batch has as many writes as the device completes in one round trip. A concurrent fsync then
/// waits for at most one more round trip. A disk that serves one request after another keeps its
/// eight, however slow it is.
///
/// A checkpoint that must `hurry` has larger batches on a fast disk: operations wait for it, or
/// will soon. After each batch the thread waits for a processor, for milliseconds if all are busy.
/// With a hundred nodes in batches of eight that was most of the time of a checkpoint of a small
/// log.
pub(crate) fn batch_writes(device: &dyn Device, hurry: bool) -> usize {
    let latency = device.latency();
    let known = |kind: &LatencyKind| Some((latency.typical(*kind)?, latency.at_once(*kind)?));
    match ROUND_TRIP.iter().find_map(known) {
        Some((round_trip, at_once)) if round_trip >= FAR => at_once.clamp(BATCH_WRITES, BATCH_WRITES_MAX),
        Some(_) if hurry => BATCH_WRITES_HURRY,
        _ => BATCH_WRITES,
    }
}

/// Whether single requests take long, but many at a time take no longer.
pub(crate) fn is_far_away(device: &dyn Device) -> bool {
    batch_writes(device, false) > BATCH_WRITES
}

/// The latencies that stand for the round trip of a write: before the first write, that of a read.
pub(crate) const ROUND_TRIP: [LatencyKind; 2] = [LatencyKind::Write, LatencyKind::Read];

/// Writes blocks, merging neighbours that are adjacent in `writes`. Waits for all writes. Calls
/// `wrote` before the first batch and after each batch, with the bytes of that batch. Its result
/// bounds the next batch, in blocks, and with it the memory: a batch has at most that many and one
/// write more. Returns the number of bytes.
pub(crate) fn write_merged(
    device: &dyn Device,
    mut writes: impl Iterator<Item = (BlockNo, IoBuf)>,
    wrote: &dyn Fn(u64) -> usize,
) -> Result<u64> {
    let mut bytes = 0;
    let (mut limit, mut gathered) = (wrote(0), 0);
    let mut run: Option<(BlockNo, IoBuf)> = None;
    let mut batch: Vec<Io> = Vec::new();
    loop {
        let next = writes.next();
        if let (Some((start, buf)), Some((at, more))) = (&mut run, &next) {
            let blocks = buf.blocks();
            if start.0 + blocks as u64 == at.0 && blocks + more.blocks() <= WRITE_BLOCKS_MAX.min(limit) {
                buf.resize(blocks + more.blocks());
                buf.as_mut_bytes()[blocks * BLOCK_SIZE..].copy_from_slice(more.as_bytes());
                continue;
            }
        }
        let ended = next.is_none();
        if let Some((start, buf)) = std::mem::replace(&mut run, next) {
            gathered += buf.len() as u64;
            batch.push(Io { offset: start.byte_offset(), op: Op::Write { buf, fua: false } });
        }
        let full =
            batch.len() >= batch_writes(device, limit == FULL) || gathered >= (limit * BLOCK_SIZE) as u64;
        if full || ended {
            for completion in run_batch(device, std::mem::take(&mut batch)) {
                completion.result?;
            }
            bytes += gathered;
            limit = wrote(std::mem::take(&mut gathered));
        }
        if ended {
            return Ok(bytes);
        }
    }
}

/// Writes nodes and bitmaps (for `wrote` see [`write_merged`]), flushes, and writes the slot.
/// Returns the numbers of nodes and bytes written.
pub(crate) fn write_checkpoint(
    device: &dyn Device,
    geometry: &Geometry,
    cut: &Cut,
    state: CheckpointState,
    wrote: &dyn Fn(u64) -> usize,
) -> Result<(u64, u64)> {
    let mut nodes = 0;
    let frozen = cut.trees().flat_map(|tree| tree.nodes());
    let node_bytes = write_merged(device, frozen.inspect(|_| nodes += 1), wrote)?;
    let mut bitmaps = cut.alloc.writes(geometry.uuid, cut.generation);
    bitmaps.sort_by_key(|(at, _)| *at);
    let bitmap_bytes = write_merged(device, bitmaps.into_iter(), wrote)?;
    let sb = Superblock { geometry: geometry.clone(), checkpoint: state };
    trace::note(|| Event::NodesWritten(cut.generation));
    // Broken on purpose: a copy may name a checkpoint that never becomes valid.
    if broken::is(Variant::CopyBeforeSlot) {
        refresh_copies(device, &sb, false);
    }
    // Broken on purpose: the slot may be durable before the blocks to which it points.
    if !broken::is(Variant::SlotBeforeNodes) {
        device.flush()?;
        trace::note(|| Event::NodesFlushed(cut.generation));
    }
    trace::note(|| Event::SlotWrite { generation: cut.generation, cut: cut.lsn, tail: cut.tail });
    write_slot(device, &sb)?;
    trace::note(|| Event::SlotDone(cut.generation));
    Ok((nodes, node_bytes + bitmap_bytes))
}
