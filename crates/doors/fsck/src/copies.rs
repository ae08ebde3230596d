//! The copies of the superblock: their check, and the search for them when no slot is valid.
//!
//! # The search
//! 1. A valid slot always wins. A copy is searched for only if neither slot is valid. It is not
//!    searched for if a slot demands a format or feature that this version does not know, or if the
//!    device begins with the signature of another format: a device that was reused for something
//!    else still has old copies.
//! 2. Only the few blocks that can contain a copy are read ([`kedge_format::copies::places_on`]).
//! 3. A user of the image could make the log contain bytes that look like a copy of another image,
//!    in one of these blocks. The image's own copies say that this block is in the log. So a copy
//!    is ignored if a copy of another image assigns its block to something else. The image's own
//!    copies are safe from this rule, because all of them lie above the log.
//! 4. If the remaining copies are of several images, none is used.
//! 5. Otherwise the newest copy is used.
//!
//! A copy may be older than the last checkpoint. Then the log and the nodes show that there was a
//! later one.

use crate::kinds::FindingKind;
use crate::read::Reader;
use crate::report::{At, Findings};
use crate::slots::{Slots, judge, read_both};
use kedge_base::{BLOCK_SIZE, BlockNo, Error, IoBuf, Result};
use kedge_device::{CompletionSink, Device, Op, OverlayDevice, Request};
use kedge_format::content::{Content, HEAD_BYTES};
use kedge_format::copies::places_on;
use kedge_format::superblock::{Geometry, Superblock};
use std::sync::Arc;

/// A valid superblock, and the device from which the image must be read.
pub(crate) struct Begun {
    pub sb: Superblock,
    /// The device. If the superblock is a copy, a view of the device in which a slot has the copy's
    /// contents.
    pub device: Arc<dyn Device>,
    pub restored: Option<Arc<Restored>>,
}

/// Reads the slots and checks the copies. If no slot is valid, uses a copy. Returns `None` if there
/// is no usable copy either; the findings have the reason.
pub(crate) fn begin(device: &Arc<dyn Device>, findings: &mut Findings) -> Option<Begun> {
    let mut reader = Reader::new(&**device);
    let mut of_slots = findings.empty();
    let slots = read_both(&mut reader, &mut of_slots);
    if let Some(sb) = slots.newest.clone() {
        check(&mut reader, &sb, &slots, &mut of_slots);
        findings.absorb(of_slots);
        return Some(Begun { sb, device: device.clone(), restored: None });
    }
    let found = match of_slots.has(FindingKind::Unsupported) {
        true => Ok(None),
        false => find(&mut reader),
    };
    let (place, sb) = match found {
        Ok(Some(found)) => found,
        Ok(None) => {
            findings.absorb(of_slots);
            return None;
        }
        Err((place, why)) => {
            findings.absorb(of_slots);
            findings.add(FindingKind::SuperblockMissing, At::block(place), || why);
            return None;
        }
    };
    findings.absorb_kinds(of_slots, &[FindingKind::SuperblockSlotBad, FindingKind::IoError]);
    findings.add(FindingKind::SuperblockMissing, At::block(place), || {
        format!("no superblock slot is valid; the copy here is of generation {}", sb.checkpoint.generation)
    });
    let sb = judge(sb, findings)?;
    match Restored::new(device.clone(), &sb, place) {
        Ok(restored) => {
            let restored = Arc::new(restored);
            Some(Begun { sb, device: restored.clone(), restored: Some(restored) })
        }
        Err(e) => {
            findings.add_error(FindingKind::IoError, At::block(place), &e);
            None
        }
    }
}

/// Whether two superblocks are of the same image.
fn are_of_one_image(a: &Geometry, b: &Geometry) -> bool {
    (a.uuid, a.hash_seed, a.log_secret) == (b.uuid, b.hash_seed, b.log_secret)
}

fn read_copy(reader: &mut Reader, place: BlockNo) -> Result<(bool, Result<Superblock>)> {
    let block = reader.read(place, 1)?;
    let is_blank = block.as_bytes().iter().all(|byte| *byte == 0);
    Ok((is_blank, Superblock::decode_copy(block.as_bytes(), place, reader.device_blocks())))
}

/// Checks the copies that checkpoints keep up to date. Checkpoints write copies without a flush, so
/// a copy may be older than the slots.
fn check(reader: &mut Reader, sb: &Superblock, slots: &Slots, findings: &mut Findings) {
    // When an image grows, the slot with the new size becomes durable before copies are written to
    // the new blocks. So a blank copy there is no fault until the other slot has the new size as
    // well, since that slot follows a flush.
    let grown_from = slots.older.as_ref().map_or(0, |older| older.geometry.total_blocks);
    // When an image shrinks, copies move to blocks that contained file data or bitmaps before. Such
    // copies are not checked until the other slot has the new size as well.
    let shrunk_from = slots.older.as_ref().map(|older| &older.geometry);
    let shrunk_from = shrunk_from.filter(|older| older.total_blocks > sb.geometry.total_blocks);
    let is_new = |place: &BlockNo| {
        shrunk_from.is_some_and(|older| older.current_copies().all(|before| before != *place))
    };
    for place in sb.geometry.current_copies().filter(|place| !is_new(place)) {
        let at = At::block(place);
        match read_copy(reader, place) {
            Err(e) => findings.add_error(FindingKind::SuperblockCopyBad, at, &e),
            Ok((true, _)) if grown_from <= place.0 && grown_from < sb.geometry.total_blocks => {}
            Ok((_, Err(e))) => findings.add_error(FindingKind::SuperblockCopyBad, at, &e),
            Ok((_, Ok(copy))) if !are_of_one_image(&copy.geometry, &sb.geometry) => {
                findings.add(FindingKind::SuperblockCopyBad, at, || {
                    format!("a copy of the superblock of another image, {}", copy.geometry.uuid)
                });
            }
            Ok((_, Ok(copy))) if copy.checkpoint.generation > sb.checkpoint.generation => {
                findings.add(FindingKind::SuperblockCopyBad, at, || {
                    let (copy, slot) = (copy.checkpoint.generation, sb.checkpoint.generation);
                    format!("a copy of generation {copy}, newer than both slots: the newest has {slot}")
                });
            }
            Ok(_) => {}
        }
    }
}

/// Returns the newest copy on a device without a valid slot, with its block. The error is the
/// reason for which no copy is used, with the block of the copy in question.
fn find(reader: &mut Reader) -> Result<Option<(BlockNo, Superblock)>, (BlockNo, String)> {
    let places: Vec<BlockNo> = places_on(reader.device_blocks()).collect();
    let read = |place: BlockNo| Some((place, read_copy(reader, place).ok()?.1.ok()?));
    let all: Vec<(BlockNo, Superblock)> = places.into_iter().filter_map(read).collect();
    let contradicts = |other: &Superblock, (place, sb): &(BlockNo, Superblock)| {
        let g = &other.geometry;
        !are_of_one_image(g, &sb.geometry) && place.0 < g.total_blocks && g.copies().all(|at| at != *place)
    };
    let kept = |copy: &&(BlockNo, Superblock)| !all.iter().any(|(_, other)| contradicts(other, copy));
    let copies: Vec<&(BlockNo, Superblock)> = all.iter().filter(kept).collect();
    let Some(newest) = copies.iter().max_by_key(|(_, sb)| sb.checkpoint.generation) else { return Ok(None) };
    let (place, sb) = (newest.0, &newest.1);
    if let Some(other) = copies.iter().find(|(_, other)| !are_of_one_image(&other.geometry, &sb.geometry)) {
        let ids = (sb.geometry.uuid, other.0, other.1.geometry.uuid);
        let why = format!(
            "a copy of the superblock of image {}, and at block {} one of image {}: which of them the device \
             holds cannot be known",
            ids.0, ids.1, ids.2
        );
        return Err((place, why));
    }
    let blocks = HEAD_BYTES / BLOCK_SIZE;
    let head = reader.read(BlockNo(0), blocks).map(|head| Content::of(head.as_bytes()));
    match head {
        Ok(Content::Other(held)) if held != Content::UNKNOWN => {
            let why = format!(
                "a copy of the superblock of image {}, but the device begins with {held}. If that is the damage, \
                 overwrite the first {HEAD_BYTES} bytes with zeros and repair again",
                sb.geometry.uuid
            );
            Err((place, why))
        }
        _ => Ok(Some((place, sb.clone()))),
    }
}

/// A device on which a read of a slot returns the contents of a superblock copy. All other requests
/// pass through.
pub(crate) struct Restored {
    /// The base with the restored slot, for reads.
    overlay: OverlayDevice,
    base: Arc<dyn Device>,
    slot: BlockNo,
    /// The block of the copy.
    pub place: BlockNo,
}

impl Restored {
    fn new(base: Arc<dyn Device>, sb: &Superblock, place: BlockNo) -> Result<Restored> {
        let overlay = OverlayDevice::new(base.clone());
        let mut block = IoBuf::zeroed(1);
        sb.encode(block.as_mut_bytes());
        overlay.write(sb.block().byte_offset(), &block, false)?;
        Ok(Restored { overlay, base, slot: sb.block(), place })
    }

    /// Writes the restored slot to the device with FUA.
    pub fn settle(&self) -> Result<()> {
        let mut block = IoBuf::zeroed(1);
        self.overlay.read(self.slot.byte_offset(), &mut block)?;
        self.base.write(self.slot.byte_offset(), &block, true)
    }
}

impl Device for Restored {
    kedge_device::delegate!(overlay: geometry, read);
    kedge_device::delegate!(base: write, flush, discard, write_zeroes, grow, release, room, host_free);
    kedge_device::delegate!(base: first_hole, stats, latency, name);

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let (reads, others): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|request| matches!(request.op, Op::Read(_)));
        if !reads.is_empty() {
            self.overlay.submit(reads, sink.clone());
        }
        if !others.is_empty() {
            self.base.submit(others, sink);
        }
    }

    fn errors(&self) -> Option<&kedge_device::DeviceErrors> {
        self.base.errors()
    }
}

/// Writes the copies of a superblock. Its slot must be durable.
pub(crate) fn write(device: &dyn Device, sb: &Superblock) -> Result<(), Error> {
    let mut block = IoBuf::zeroed(1);
    sb.encode_copy(block.as_mut_bytes());
    sb.geometry.current_copies().try_for_each(|place| device.write(place.byte_offset(), &block, true))
}
