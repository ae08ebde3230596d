//! The number of references that the kernel has to each inode, for the next server.
//!
//! The area has a slot of 16 bytes, `(inode, count)`, for each inode that the kernel knows. A slot
//! with the count 0 is free. Slots are contiguous, so the memory grows with the number of inodes.
//!
//! A pin is noted before the reply that passes the inode to the kernel, and a release before the
//! engine deletes anything. A slot gets its inode while its count is 0, and then its count. So a
//! server that is killed in between leaves a count that is too high, never one that is too low: at
//! worst an unlinked file keeps its space until the unmount.

use super::area::{Area, PINS, PINS_AT};
use kedge_base::{Ino, InoMap};
use std::io;
use zerocopy::IntoBytes;

const SLOT: u64 = 16;
const COUNT_AT: u64 = 8;

fn slot_at(slot: u32) -> u64 {
    PINS_AT + u64::from(slot) * SLOT
}

pub(crate) struct Pins {
    /// The slot and the count of each inode.
    known: InoMap<(u32, u64)>,
    free: Vec<u32>,
    /// The number of slots that have ever been used.
    used: u32,
    /// The number of slots with allocated memory.
    allocated: u32,
}

/// The number of slots for which memory is allocated at a time.
const PART: u32 = 4096;

impl Pins {
    /// Reads the pins that an earlier server has noted.
    pub(crate) fn load(area: &Area) -> Pins {
        let mut pins = Pins { known: InoMap::default(), free: Vec::new(), used: 0, allocated: 0 };
        let mut part = vec![[0u64; 2]; PART as usize];
        'all: while u64::from(pins.used) < PINS {
            area.get(slot_at(pins.used), part.as_mut_bytes());
            for [ino, count] in &part {
                match (ino, count) {
                    // Slots are used in ascending order, so no used slot follows.
                    (0, _) => break 'all,
                    (_, 0) => pins.free.push(pins.used),
                    _ => drop(pins.known.insert(Ino(*ino), (pins.used, *count))),
                }
                pins.used += 1;
            }
        }
        pins.allocated = pins.used;
        pins
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (Ino, u64)> {
        self.known.iter().map(|(ino, (_, count))| (*ino, *count))
    }

    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.known.contains_key(&ino)
    }

    pub(crate) fn add(&mut self, area: &Area, ino: Ino) -> io::Result<()> {
        let (slot, count) = match self.known.get(&ino) {
            Some(known) => *known,
            None => match self.free.pop() {
                Some(slot) => (slot, 0),
                None if u64::from(self.used) < PINS => {
                    if self.used == self.allocated {
                        let part = PART.min(PINS as u32 - self.used);
                        area.allocate(slot_at(self.used), u64::from(part) * SLOT)?;
                        self.allocated += part;
                    }
                    self.used += 1;
                    (self.used - 1, 0)
                }
                None => return Err(io::ErrorKind::OutOfMemory.into()),
            },
        };
        if count == 0 {
            area.store(slot_at(slot), ino.0);
        }
        area.store(slot_at(slot) + COUNT_AT, count + 1);
        self.known.insert(ino, (slot, count + 1));
        Ok(())
    }

    /// Uses up all slots.
    #[cfg(test)]
    pub(crate) fn fill(&mut self) {
        (self.used, self.free) = (PINS as u32, Vec::new());
    }

    pub(crate) fn release(&mut self, area: &Area, ino: Ino, by: u64) {
        let Some(known) = self.known.get_mut(&ino) else { return };
        known.1 = known.1.saturating_sub(by);
        let (slot, count) = *known;
        area.store(slot_at(slot) + COUNT_AT, count);
        if count == 0 {
            self.known.remove(&ino);
            self.free.push(slot);
        }
    }
}
