//! The two superblock slots, and the copies of the superblock. Each checkpoint writes the slot that
//! the last one did not write; an open takes the valid slot of the higher generation. Only a repair
//! reads the copies ([`kedge_format::copies`]).

use kedge_base::trace::{self, Event};
use kedge_base::{BLOCK_SIZE, BlockNo, CorruptKind, Error, IoBuf, Result};
use kedge_device::{Device, Io, Op, run_batch};
use kedge_format::copies::places_on;
use kedge_format::superblock::{Losses, SLOTS, Superblock};

/// Reads both slots. Returns the newer valid slot, and the error of the other.
pub fn read_superblock(device: &dyn Device) -> Result<(Superblock, Option<Error>)> {
    let device_blocks = device.geometry().size / BLOCK_SIZE as u64;
    let read = |slot: usize| -> Result<(Superblock, bool)> {
        let mut buf = IoBuf::zeroed(1);
        if SLOTS[slot].0 >= device_blocks {
            return Err(Error::corrupt(
                CorruptKind::Superblock,
                SLOTS[slot],
                "the device is too short to hold it",
            ));
        }
        device.read(SLOTS[slot].byte_offset(), &mut buf)?;
        let empty = buf.as_bytes().iter().all(|b| *b == 0);
        match Superblock::decode(buf.as_bytes(), slot, device_blocks) {
            Ok(sb) => Ok((sb, false)),
            // A new image has only one valid slot.
            Err(e) if empty && slot == 1 => Err(Error::Corrupt {
                kind: CorruptKind::Superblock,
                block: SLOTS[slot],
                what: format!("never written ({e})").into(),
            }),
            Err(e) => Err(e),
        }
    };
    match (read(0), read(1)) {
        (Ok((a, _)), Ok((b, _))) => {
            if !a.geometry.is_same_image(&b.geometry) {
                return Err(Error::corrupt(
                    CorruptKind::Superblock,
                    SLOTS[1],
                    "the two slots describe different images",
                ));
            }
            let newer = if a.checkpoint.generation > b.checkpoint.generation { a } else { b };
            Ok((newer, None))
        }
        (Ok((sb, _)), Err(e)) | (Err(e), Ok((sb, _))) => Ok((sb, Some(e))),
        (Err(e @ Error::Unsupported(_)), Err(_)) | (Err(_), Err(e @ Error::Unsupported(_))) => Err(e),
        (Err(e), Err(_)) => match find_copy(device) {
            Some(place) => {
                let what = format!(
                    "no superblock slot is valid, but block {place} holds a copy: kedge fsck -y restores the image \
                     from it ({e})"
                );
                Err(Error::corrupt(CorruptKind::Superblock, SLOTS[0], what))
            }
            None => Err(e),
        },
    }
}

/// Finds a valid copy of the superblock, to name it in an error message. An open never uses its
/// contents.
fn find_copy(device: &dyn Device) -> Option<BlockNo> {
    let device_blocks = device.geometry().size / BLOCK_SIZE as u64;
    places_on(device_blocks).find(|place| {
        let mut buf = IoBuf::zeroed(1);
        let read = device.read(place.byte_offset(), &mut buf);
        read.is_ok() && Superblock::decode_copy(buf.as_bytes(), *place, device_blocks).is_ok()
    })
}

/// Writes a superblock slot durably.
pub(crate) fn write_slot(device: &dyn Device, sb: &Superblock) -> Result<()> {
    let mut block = IoBuf::zeroed(1);
    sb.encode(block.as_mut_bytes());
    device.write(sb.block().byte_offset(), &block, true)
}

/// Writes the copies of a superblock whose slot is durable. `durably`: the copies are durable on
/// return. Tries all of them, and returns the first error.
///
/// No flush must precede the copies. A crash leaves an older copy or this one, and everything to
/// which either points was already durable when it was written.
pub(crate) fn write_copies(device: &dyn Device, sb: &Superblock, durably: bool) -> Result<()> {
    let writes = sb.geometry.current_copies().map(|place| {
        let mut buf = IoBuf::zeroed(1);
        sb.encode_copy(buf.as_mut_bytes());
        Io { offset: place.byte_offset(), op: Op::Write { buf, fua: durably } }
    });
    let writes: Vec<Io> = writes.collect();
    if writes.is_empty() {
        return Ok(());
    }
    trace::note(|| Event::Copies(sb.checkpoint.generation));
    run_batch(device, writes).into_iter().try_for_each(|completion| completion.result.map(drop))
}

/// [`write_copies`] for an image in use: an error is logged and does not end the mount. The image
/// needs no copy while a slot is valid, and fsck reports a copy that cannot be read.
pub(crate) fn refresh_copies(device: &dyn Device, sb: &Superblock, durably: bool) {
    if let Err(e) = write_copies(device, sb, durably) {
        tracing::warn!("a copy of the superblock could not be written: {e}");
    }
}

/// Erases copies of the superblock of an image that was on the device before.
pub(crate) fn erase_copies(device: &dyn Device) -> Result<()> {
    for place in places_on(device.geometry().size / BLOCK_SIZE as u64) {
        let mut buf = IoBuf::zeroed(1);
        device.read(place.byte_offset(), &mut buf)?;
        if Superblock::has_copy_magic(buf.as_bytes()) {
            device.write(place.byte_offset(), &IoBuf::zeroed(1), false)?;
        }
    }
    Ok(())
}

/// Records `losses` in the newest slot, unless the slot already has them.
///
/// Crash argument: only the fields of the losses change in the slot. A slot is one sector, so a
/// crash leaves the old bytes or the new ones, and both name the same checkpoint. The slot of the
/// next generation cannot be used: it would need nodes and bitmaps of its own, for which the host
/// has no space.
pub(crate) fn write_losses(device: &dyn Device, losses: Option<Losses>) -> Result<()> {
    let (mut newest, _) = read_superblock(device)?;
    if newest.checkpoint.losses == losses {
        return Ok(());
    }
    newest.checkpoint.losses = losses;
    write_slot(device, &newest)
}
