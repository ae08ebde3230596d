//! The writes of a checkpoint: nodes and bitmaps, in batches whose size follows the device; then
//! the flush and the superblock slot.

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
/// Writes in one batch on a disk; also the minimum on any device.
const BATCH_WRITES: usize = 8;
/// Writes in one batch of a checkpoint that may not pause, on a fast disk.
const BATCH_WRITES_HURRY: usize = 32;
/// The most writes in one batch.
const BATCH_WRITES_MAX: usize = 128;
/// A device whose typical write takes at least this long is distant, or a slow disk.
const FAR: Duration = Duration::from_micros(500);

/// Number of writes in one batch on this device. Each batch waits for a round trip, and a node
/// without adjacent nodes is a write of 16 KiB: eight of these in 10 ms are 13 MB/s, whatever the
/// device can do. So a batch has as many writes as the device completes in one round trip. A
/// concurrent fsync then waits for at most one more round trip. A disk that serves one request
/// after another stays at eight, however slow it is.
///
/// A checkpoint that must `hurry` has larger batches on a fast disk, because operations wait for it
/// or soon will. After each batch its thread waits for a processor, for milliseconds if all are
/// busy. With a hundred nodes in batches of eight these waits took most of the time of a checkpoint
/// of a small log.
pub(crate) fn batch_writes(device: &dyn Device, hurry: bool) -> usize {
    let latency = device.latency();
    let known = |kind: &LatencyKind| Some((latency.typical(*kind)?, latency.at_once(*kind)?));
    match ROUND_TRIP.iter().find_map(known) {
        Some((round_trip, at_once)) if round_trip >= FAR => at_once.clamp(BATCH_WRITES, BATCH_WRITES_MAX),
        Some(_) if hurry => BATCH_WRITES_HURRY,
        _ => BATCH_WRITES,
    }
}

/// Whether the device is distant: one request takes long, but many at a time take no longer.
pub(crate) fn is_far_away(device: &dyn Device) -> bool {
    batch_writes(device, false) > BATCH_WRITES
}

/// The latencies that give the round trip of a write. Before the first write that of a read is
/// used.
pub(crate) const ROUND_TRIP: [LatencyKind; 2] = [LatencyKind::Write, LatencyKind::Read];

/// Writes blocks, merging adjacent ones that follow each other in `writes`. Waits for all writes.
/// Calls `wrote` before the first batch and after each batch, with the bytes of that batch. The
/// result of `wrote` bounds the next batch, in blocks: a batch has at most that many blocks and one
/// write more, which bounds the memory. Returns the number of bytes.
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
pub(crate) fn write_checkpoint(
    device: &dyn Device,
    geometry: &Geometry,
    cut: &Cut,
    state: CheckpointState,
    wrote: &dyn Fn(u64) -> usize,
) -> Result<()> {
    write_blocks(device, geometry, cut, wrote)?;
    make_valid(device, geometry, cut, state, &|| Ok(()))
}

/// Writes nodes and bitmaps (for `wrote` see [`write_merged`]). Returns the numbers of nodes and
/// bytes written. After an error the call may be repeated, since no slot names the blocks.
pub(crate) fn write_blocks(
    device: &dyn Device,
    geometry: &Geometry,
    cut: &Cut,
    wrote: &dyn Fn(u64) -> usize,
) -> Result<(u64, u64)> {
    let mut nodes = 0;
    let frozen = cut.trees().flat_map(|tree| tree.nodes());
    let node_bytes = write_merged(device, frozen.inspect(|_| nodes += 1), wrote)?;
    let mut bitmaps = cut.alloc.writes(geometry.uuid, cut.generation);
    bitmaps.sort_by_key(|(at, _)| *at);
    let bitmap_bytes = write_merged(device, bitmaps.into_iter(), wrote)?;
    Ok((nodes, node_bytes + bitmap_bytes))
}

/// Makes a cut valid whose blocks are written: flushes, and writes the slot. Must not be repeated
/// after an error, since a flush may have failed, also that of the slot's durable write.
///
/// `confirm` waits for the flushes and durable writes of other threads, and fails if one of them
/// has lost writes ([`kedge_device::TrackedDevice::confirm`]): blocks of this cut may be among
/// them. It is called before the slot names the blocks, and again before the caller reuses what
/// only the previous slot needs.
pub(crate) fn make_valid(
    device: &dyn Device,
    geometry: &Geometry,
    cut: &Cut,
    state: CheckpointState,
    confirm: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let sb = Superblock { geometry: geometry.clone(), checkpoint: state };
    trace::note(|| Event::NodesWritten(cut.generation));
    // Broken on purpose: the copies are written first, and may name a checkpoint that never becomes
    // valid.
    if broken::is(Variant::CopyBeforeSlot) {
        refresh_copies(device, &sb, false);
    }
    // Broken on purpose: without the flush the slot may be durable before the blocks to which it
    // points.
    if !broken::is(Variant::SlotBeforeNodes) {
        device.flush()?;
        confirm()?;
        trace::note(|| Event::NodesFlushed(cut.generation));
    }
    trace::note(|| Event::SlotWrite { generation: cut.generation, cut: cut.lsn, tail: cut.tail });
    write_slot(device, &sb)?;
    confirm()?;
    trace::note(|| Event::SlotDone(cut.generation));
    Ok(())
}
