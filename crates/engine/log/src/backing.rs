//! A ring with holes: its image file is sparse, and the host has not allocated blocks that were
//! never written.
//!
//! A log write must not be the first write to a block. The host may be full, and a log write that
//! fails shuts the log down. So the ring is written with zeros ahead of the log, a *step* at a
//! time, when a reservation approaches the first hole. If the host has no space for a step, the
//! reservation fails with ENOSPC, before its operation has done anything; the log continues. Once
//! the zeros reach the place at which the log was opened, a lap later, the ring has no hole, and
//! this ends.
//!
//! # Invariant
//! `end of the open batch + reserved + promised + charges of waiting reservations <= backed`, where
//! every block from the head of the log at its opening up to `backed` is allocated on the host.
//! Every append was reserved. Normal reservations leave a step of the backed part unused, and
//! Reclaim leaves the part that only a checkpoint may use: so on a full host files can be deleted,
//! data that has a place can be written, and the mount can be closed.
//!
//! # Crash argument
//! 1. Zeros are written only to blocks between `backed` and the place at which the log was opened,
//!    a lap later. None of these belongs to a live log write: `backed` is beyond every reservation,
//!    and the tail is never below that place.
//! 2. A scan takes neither a hole (it reads as zeros) nor zeros nor a torn mix of zeros and an
//!    earlier lap for a log write: none has a header with a correct tag and body at its place in
//!    this lap (rows @A, @B, @D and @E of [`mod@crate::scan`]). Beyond the stop they prove nothing
//!    (@J to @N).
//! 3. The device is flushed between the zeros and the first log write over them. Otherwise a crash
//!    could put zeros from a cache over a log write with FUA. The same flush makes the host's
//!    allocation durable.
//! 4. None of this is recorded. A log that is opened asks the device for the first hole. If the
//!    host's crash turned zeros that were not flushed back into a hole, no log write had used them.
//!
//! A copy of the file may have many holes below the head. They are backed in the same way when the
//! log approaches them.

use crate::config::LogConfig;
use crate::ring::Ring;
use crate::room::{CHECKPOINT_BYTES, ReserveClass, emergency};
use kedge_base::{BLOCK_SIZE, Error, IoBuf, Lsn, Result, without_panic};
use kedge_device::Device;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The largest step: a few milliseconds of writing.
const STEP_MAX: u64 = 4 << 20;
/// Bytes of a device write.
const PIECE: u64 = 1 << 20;

/// The part of the ring that is allocated on the host.
pub(crate) struct Backing {
    /// `None` if the whole ring is backed.
    backed: Option<Lsn>,
    /// The head of the log at its opening, a lap later.
    lap: Lsn,
    /// A thread is writing zeros. One at a time: the zeros of a second thread could land after a
    /// log write.
    extending: bool,
}

impl Backing {
    pub(crate) fn new(device: &dyn Device, ring: Ring, config: &LogConfig) -> Backing {
        let lap = Lsn(config.head.0 + ring.bytes());
        let backed = next_hole(device, ring, config.head, lap);
        // An earlier mount wrote everything between the tail and the head.
        Backing { backed, lap, extending: false }
    }

    /// Where the next hole begins. `None` if the whole ring is backed.
    pub(crate) fn hole(&self) -> Option<Lsn> {
        self.backed
    }

    /// Makes the caller the one thread that writes zeros: it calls [`Hole::back`] without the lock,
    /// and then [`Backing::end`]. `None` if another thread writes, or if there is no hole.
    pub(crate) fn begin(&mut self) -> Option<Hole> {
        let from = self.backed.filter(|_| !self.extending)?;
        self.extending = true;
        Some(Hole { from, lap: self.lap })
    }

    /// Ends what [`Backing::begin`] began, with the result of [`Hole::back`].
    pub(crate) fn end(&mut self, next: Result<Option<Lsn>>) -> Result<()> {
        self.extending = false;
        self.backed = next?;
        Ok(())
    }
}

/// A hole that the calling thread backs.
pub(crate) struct Hole {
    from: Lsn,
    lap: Lsn,
}

impl Hole {
    /// Writes a step of zeros. Returns the next hole.
    pub(crate) fn back(&self, device: &dyn Device, ring: Ring) -> Result<Option<Lsn>> {
        without_panic("a write ahead of the log", || {
            let bytes = step(ring.bytes()).min(ring.until_end(self.from)).min(self.lap.0 - self.from.0);
            let offset = ring.offset(self.from);
            // A write that fails half-way would use up the host's last space for nothing.
            if device.host_free().is_some_and(|free| free < bytes) {
                return Err(Error::Io { op: "write", offset, len: bytes, errno: kedge_base::errno::ENOSPC });
            }
            let mut done = 0;
            while done < bytes {
                let piece = PIECE.min(bytes - done);
                device.write(offset + done, &IoBuf::zeroed((piece / BLOCK) as usize), false)?;
                done += piece;
            }
            device.flush()?;
            Ok(next_hole(device, ring, Lsn(self.from.0 + bytes), self.lap))
        })
    }
}

/// The first block from `from` on, below `lap`, that the host has not allocated.
fn next_hole(device: &dyn Device, ring: Ring, from: Lsn, lap: Lsn) -> Option<Lsn> {
    let mut from = from;
    while from < lap {
        let part = ring.until_end(from).min(lap.0 - from.0);
        if let Some(hole) = device.first_hole(ring.offset(from), part) {
            return Some(Lsn(from.0 + (hole - ring.offset(from)) / BLOCK * BLOCK));
        }
        from.0 += part;
    }
    None
}

fn step(ring: u64) -> u64 {
    (ring / 16 / BLOCK * BLOCK).clamp(BLOCK, STEP_MAX)
}

/// The backed bytes that a reservation must leave unused.
pub(crate) fn spare(ring: u64, class: ReserveClass) -> u64 {
    let checkpoint = CHECKPOINT_BYTES.min(emergency(ring) / 2);
    match class {
        ReserveClass::Normal => step(ring).max(checkpoint).min(emergency(ring)),
        ReserveClass::Reclaim => checkpoint,
        ReserveClass::Checkpoint => 0,
    }
}
