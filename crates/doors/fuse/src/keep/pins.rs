//! How often the kernel knows each inode, for the next server.
//!
//! A slot of 16 bytes, `(inode, count)`, for each inode that the kernel knows; a count of 0 is a
//! free slot. Slots lie side by side, so the area takes as many pages as there are inodes.
//!
//! A pin is noted before the reply that makes the kernel know the inode, and a release before the
//! engine deletes anything. So a server that is killed in between leaves a count that is too high,
//! never one that is too low: at worst an unlinked file keeps its space until the unmount.

use super::area::{Area, PINS, PINS_AT};
use kedge_base::{Ino, InoMap};
use std::io;
use zerocopy::IntoBytes;

pub(crate) struct Pins {
    /// Slot and count.
    known: InoMap<(u32, u64)>,
    free: Vec<u32>,
    /// Slots that were ever used.
    used: u32,
}

impl Pins {
    /// Reads what an earlier server has noted.
    pub(crate) fn load(area: &Area) -> io::Result<Pins> {
        let mut pins = Pins { known: InoMap::default(), free: Vec::new(), used: 0 };
        let mut part = vec![[0u64; 2]; 4096];
        'all: while u64::from(pins.used) < PINS {
            area.get(PINS_AT + u64::from(pins.used) * 16, part.as_mut_bytes())?;
            for [ino, count] in &part {
                match (ino, count) {
                    // Slots are used in sequence.
                    (0, _) => break 'all,
                    (_, 0) => pins.free.push(pins.used),
                    _ => drop(pins.known.insert(Ino(*ino), (pins.used, *count))),
                }
                pins.used += 1;
            }
        }
        Ok(pins)
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
                    self.used += 1;
                    (self.used - 1, 0)
                }
                None => return Err(io::ErrorKind::OutOfMemory.into()),
            },
        };
        area.put(PINS_AT + u64::from(slot) * 16, [ino.0, count + 1].as_bytes())?;
        self.known.insert(ino, (slot, count + 1));
        Ok(())
    }

    pub(crate) fn release(&mut self, area: &Area, ino: Ino, by: u64) -> io::Result<()> {
        let Some(known) = self.known.get_mut(&ino) else { return Ok(()) };
        known.1 = known.1.saturating_sub(by);
        let (slot, count) = *known;
        area.put(PINS_AT + u64::from(slot) * 16, [ino.0, count].as_bytes())?;
        if count == 0 {
            self.known.remove(&ino);
            self.free.push(slot);
        }
        Ok(())
    }
}
