//! Backing of a ring with holes: the image file is sparse, and the host has not allocated blocks
//! that were never written.
//!
//! A log write must not be the first write to a block: the host may be full, and a log write that
//! fails shuts the log down. So zeros are written to the ring ahead of the log, one *step* at a
//! time, when a reservation approaches the first hole. If the host has no space for a step, the
//! reservation fails with ENOSPC before its operation has changed anything, and the log continues.
//! Once the zeros reach the LSN at which the log was opened, one lap later, the ring has no hole
//! left and no more zeros are written.
//!
//! # Invariant
//! `end of the open batch + reserved + promised + charges of waiting reservations <= backed`, where
//! every block from the head of the log at its opening up to `backed` is allocated on the host.
//! Every append was reserved. Normal reservations leave one step of the backed range unused, and
//! Reclaim reservations leave the bytes that only a checkpoint may use. So on a full host files can
//! be deleted, data that already has blocks can be written, and the mount can be closed.
//!
//! # Crash argument
//! 1. Zeros are written only to blocks between `backed` and the LSN one lap after the head at the
//!    log's opening. None of these belongs to a live log write: `backed` is beyond every
//!    reservation, and the zeros end at or below `tail + ring`, because the store opens the log
//!    with `tail = head` and the tail never moves back.
//! 2. A scan accepts neither a hole (which reads as zeros) nor zeros nor a torn mix of zeros and an
//!    earlier lap as a log write: none of them has a header with a correct tag and body for its
//!    position in this lap (rows @A, @B, @D and @E of [`mod@crate::scan`]). Beyond the stop they
//!    prove nothing (rows @J to @N).
//! 3. The device is flushed between the zeros and the first log write over them. Otherwise a crash
//!    could put zeros from a cache over a log write with FUA. The same flush makes the host's
//!    allocation durable.
//!    If that flush fails, the log shuts down, whatever the error: the device may have dropped file
//!    data that completed before, and its next flush, which a record would rely on, may succeed.
//! 4. The position of the first hole is not recorded: opening the log asks the device for it. If a
//!    crash of the host turned unflushed zeros back into a hole, no log write had used them.
//!
//! A copy of the image file may have many holes ahead of the head. Zeros fill them in the same way
//! when the log approaches them.

use crate::config::LogConfig;
use crate::ring::Ring;
use crate::room::{CHECKPOINT_BYTES, ReserveClass, emergency};
use kedge_base::{BLOCK_SIZE, Error, IoBuf, Lsn, Result, without_panic};
use kedge_device::Device;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Largest number of bytes in a step: a few milliseconds of writing.
const STEP_MAX: u64 = 4 << 20;
/// Bytes of one device write.
const PIECE: u64 = 1 << 20;

/// The range of the ring that is allocated on the host.
pub(crate) struct Backing {
    /// End of the allocated range; `None` if the whole ring is allocated.
    backed: Option<Lsn>,
    /// The head of the log at its opening, plus one lap.
    lap: Lsn,
    /// Whether a thread is writing zeros. Only one may: zeros written by a second thread could
    /// overwrite a log write.
    extending: bool,
}

impl Backing {
    pub(crate) fn new(device: &dyn Device, ring: Ring, config: &LogConfig) -> Backing {
        let lap = Lsn(config.head.0 + ring.bytes());
        let backed = next_hole(device, ring, config.head, lap);
        // Blocks between the tail and the head, if there are any, are allocated: an earlier mount
        // wrote them.
        Backing { backed, lap, extending: false }
    }

    /// Returns the position of the next hole, or `None` if the whole ring is backed.
    pub(crate) fn hole(&self) -> Option<Lsn> {
        self.backed
    }

    /// Makes the calling thread the only one that writes zeros. The thread calls [`Hole::back`]
    /// without the lock, and then [`Backing::end`]. Returns `None` if another thread writes zeros
    /// or there is no hole.
    pub(crate) fn begin(&mut self) -> Option<Hole> {
        let from = self.backed.filter(|_| !self.extending)?;
        self.extending = true;
        Some(Hole { from, lap: self.lap })
    }

    /// Ends the work started with [`Backing::begin`]. `next` is the result of [`Hole::back`].
    pub(crate) fn end(&mut self, next: Result<Option<Lsn>>) -> Result<()> {
        self.extending = false;
        self.backed = next?;
        Ok(())
    }
}

/// The first hole, which the calling thread is about to fill with zeros.
pub(crate) struct Hole {
    from: Lsn,
    lap: Lsn,
}

impl Hole {
    /// Writes one step of zeros and flushes. Returns the position of the next hole.
    pub(crate) fn back(&self, device: &dyn Device, ring: Ring) -> Result<Option<Lsn>> {
        without_panic("a write ahead of the log", || {
            let bytes = step(ring.bytes()).min(ring.until_end(self.from)).min(self.lap.0 - self.from.0);
            let offset = ring.offset(self.from);
            // Checked first, because a write that fails half-way would waste the host's last space.
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

/// Returns the first block of `[from, lap)` that the host has not allocated.
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

/// Returns how many backed bytes a reservation of this class must leave unused.
pub(crate) fn spare(ring: u64, class: ReserveClass) -> u64 {
    let checkpoint = CHECKPOINT_BYTES.min(emergency(ring) / 2);
    match class {
        ReserveClass::Normal => step(ring).max(checkpoint).min(emergency(ring)),
        ReserveClass::Reclaim => checkpoint,
        ReserveClass::Checkpoint => 0,
    }
}
