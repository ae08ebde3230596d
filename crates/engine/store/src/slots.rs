//! The two superblock slots: each checkpoint writes the one that the last did not write, and an
//! open takes the valid one of the higher generation. And the copies of the superblock, which only
//! a repair reads ([`kedge_format::copies`]).

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

/// A valid copy of a superblock, for an error message. An open reads nothing else from it.
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

/// Writes the copies of a superblock whose slot is durable; `durably`: returns once they are
/// durable too. Tries each place, and returns the first error.
///
/// The copies need no flush. A crash leaves an older copy or this one, and everything to which
/// either points was durable before it was written.
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

/// [`write_copies`] for an image in use: a fault is reported and does not end the mount. The image
/// needs no copy while a slot is valid, and fsck names a copy that cannot be read.
pub(crate) fn refresh_copies(device: &dyn Device, sb: &Superblock, durably: bool) {
    if let Err(e) = write_copies(device, sb, durably) {
        tracing::warn!("a copy of the superblock could not be written: {e}");
    }
}

/// Removes what remains of the copies of an image that the device held before.
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

/// Names `losses` in the newest slot, if it does not name them yet.
///
/// Crash argument: only these two fields of the slot change. A slot is one sector, so a crash
/// leaves the old bytes or the new ones, and both name the same checkpoint. The next generation's
/// slot cannot be used: it would need nodes and bitmaps of its own, for which the host has no
/// space.
pub(crate) fn write_losses(device: &dyn Device, losses: Option<Losses>) -> Result<()> {
    let (mut newest, _) = read_superblock(device)?;
    if newest.checkpoint.losses == losses {
        return Ok(());
    }
    newest.checkpoint.losses = losses;
    write_slot(device, &newest)
}
