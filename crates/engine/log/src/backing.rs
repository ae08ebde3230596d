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

use crate::reserve::{CHECKPOINT_BYTES, ReserveClass, emergency};
use crate::ring::Ring;
use crate::state::State;
use crate::{LogConfig, Shared};
use kedge_base::lock::MutexGuard;
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
fn spare(ring: u64, class: ReserveClass) -> u64 {
    let checkpoint = CHECKPOINT_BYTES.min(emergency(ring) / 2);
    match class {
        ReserveClass::Normal => step(ring).max(checkpoint).min(emergency(ring)),
        ReserveClass::Reclaim => checkpoint,
        ReserveClass::Checkpoint => 0,
    }
}

impl State {
    pub(crate) fn is_backed(&self, ring: u64, charge: u64, class: ReserveClass) -> bool {
        self.backing.backed.is_none_or(|backed| {
            self.open.end().0 + self.reserve.committed() + charge + spare(ring, class) <= backed.0
        })
    }
}

impl Shared {
    /// Locks the state of a live log once the ring is backed for a reservation of `charge`.
    pub(crate) fn lock_backed(&self, charge: u64, class: ReserveClass) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        loop {
            state.check_alive()?;
            if state.is_backed(self.ring.bytes(), charge, class) {
                return Ok(state);
            }
            if state.backing.extending {
                self.backed.wait(&mut state);
                continue;
            }
            state.backing.extending = true;
            let (from, lap) = (state.backing.backed, state.backing.lap);
            drop(state);
            let extended = from.map_or(Ok(None), |from| self.extend(from, lap));
            state = self.state.lock();
            state.backing.extending = false;
            self.backed.notify_all();
            state.backing.backed = extended?;
        }
    }

    /// Writes zeros from `from` on. Returns the next hole.
    fn extend(&self, from: Lsn, lap: Lsn) -> Result<Option<Lsn>> {
        without_panic("a write ahead of the log", || {
            let bytes = step(self.ring.bytes()).min(self.ring.until_end(from)).min(lap.0 - from.0);
            let offset = self.ring.offset(from);
            // A write that fails half-way would use up the host's last space for nothing.
            if self.device.host_free().is_some_and(|free| free < bytes) {
                return Err(Error::Io { op: "write", offset, len: bytes, errno: kedge_base::errno::ENOSPC });
            }
            let mut done = 0;
            while done < bytes {
                let piece = PIECE.min(bytes - done);
                self.device.write(offset + done, &IoBuf::zeroed((piece / BLOCK) as usize), false)?;
                done += piece;
            }
            self.device.flush()?;
            Ok(next_hole(&*self.device, self.ring, Lsn(from.0 + bytes), lap))
        })
    }
}
