//! The copies of the superblock: their check, and the search for them when no slot is valid.
//!
//! # The search
//! 1. A valid slot always wins. A copy is looked for only if neither slot is valid, and not if the
//!    slots ask for another version, or if the device begins with the signature of another format:
//!    a device that was used for something else still holds old copies.
//! 2. Only the few places that a copy can have are read ([`kedge_format::copies::places_on`]).
//! 3. A user of the image could make the log hold bytes that look like a copy of another image, at
//!    a place that is below the data area. The copies of the image itself say that this place is in
//!    the log. So a copy at a place that another image's copy assigns to something else is left
//!    out. The reverse cannot be: all true copies lie above their log.
//! 4. If the copies that remain are of several images, none is used.
//! 5. The newest of the others is used.
//!
//! A copy may be older than the last checkpoint, whose log and nodes then show it.

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

/// A valid superblock, and the device to read with it.
pub(crate) struct Begun {
    pub sb: Superblock,
    /// If the superblock is a copy: the device as it would be with the copy's contents in a slot.
    pub device: Arc<dyn Device>,
    pub restored: Option<Arc<Restored>>,
}

/// Reads the slots and checks the copies; without a valid slot, uses a copy. Returns `None` if
/// there is neither; the findings say why.
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

/// Checks the copies that checkpoints keep up to date. A copy may be older than the slots, since it
/// needs no flush.
fn check(reader: &mut Reader, sb: &Superblock, slots: &Slots, findings: &mut Findings) {
    // A growth makes the slot of the new size durable before it writes copies in the new blocks.
    // The checkpoint of the other slot comes after a flush.
    let grown_from = slots.older.as_ref().map_or(0, |older| older.geometry.total_blocks);
    // So does a shrink, whose new places had other contents: that of files, or of maps that moved.
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

/// The newest copy on a device without a valid slot, or why none is used, with its place.
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

/// A device that reads as if a slot held what a copy of the superblock holds. Everything else
/// passes through.
pub(crate) struct Restored {
    /// For reads: the base with the slot.
    overlay: OverlayDevice,
    base: Arc<dyn Device>,
    slot: BlockNo,
    /// The place of the copy.
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

    /// Writes the slot to the device, durably.
    pub fn settle(&self) -> Result<()> {
        let mut block = IoBuf::zeroed(1);
        self.overlay.read(self.slot.byte_offset(), &mut block)?;
        self.base.write(self.slot.byte_offset(), &block, true)
    }
}

impl Device for Restored {
    kedge_device::delegate!(overlay: geometry, read);
    kedge_device::delegate!(base: write, flush, discard, write_zeroes, grow, room, host_free);
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

/// Writes the copies of a superblock whose slot is durable.
pub(crate) fn write(device: &dyn Device, sb: &Superblock) -> Result<(), Error> {
    let mut block = IoBuf::zeroed(1);
    sb.encode_copy(block.as_mut_bytes());
    sb.geometry.current_copies().try_for_each(|place| device.write(place.byte_offset(), &block, true))
}
