//! Locations of the copies of the superblock.
//!
//! # Places
//! 1. The blocks whose numbers are powers of two, from block 4096 (16 MiB) on, as far as they lie
//!    in the data area.
//! 2. The last block of the image.
//!
//! Blocks that moved allocation maps occupy hold no copy.
//!
//! The format owns all these blocks; no file and no node uses them. Checkpoints keep two copies up
//! to date ([`Geometry::current_copies`]): the last place of rule 1, which lies in the upper half
//! of the image, and the last block. The other places are spare: they hold the copies written
//! before the image grew.
//!
//! The places of rule 1 do not depend on the image's size. So a repair that does not know the image
//! finds a copy by reading a few blocks ([`places_on`]), and growth adds places only in the new
//! blocks. The rejected alternative is places relative to the size, such as the middle block: a
//! repair could find these only by a search of the whole device.
//!
//! # Invariants
//! 1. A copy is written after the slot of its checkpoint is durable. So the copy is never newer
//!    than the slots, and everything to which it points is durable before the copy is. It may be
//!    older: its write needs no flush of its own.
//! 2. A mount reads no copy. fsck uses one only if no slot is valid.
//!
//! A copy that is older than the last checkpoint may point to blocks that have been reused. The
//! generations, tags and checksums of nodes reveal that.

use crate::superblock::Geometry;
use kedge_base::BlockNo;

/// Exponent of the first place of rule 1: block 2^12, at 16 MiB.
const FIRST_POWER: u32 = 12;

/// Returns the powers of two from the first place on, below `end`.
fn powers(end: u64) -> impl Iterator<Item = u64> {
    (FIRST_POWER..u64::BITS).map(|power| 1 << power).take_while(move |block| *block < end)
}

/// Returns every block of a device of `device_blocks` blocks that may hold a copy: all places if
/// the image fills the device, and the places of rule 1 if the image is smaller.
pub fn places_on(device_blocks: u64) -> impl Iterator<Item = BlockNo> {
    let last = device_blocks.saturating_sub(1);
    powers(last).chain((device_blocks > 0).then_some(last)).map(BlockNo)
}

/// Returns whether the blocks `[start, end)` include a place of a copy, in an image of `total`
/// blocks whose data area starts at `data_start`. Moved maps are not considered.
pub fn overlap(start: u64, end: u64, data_start: u64, total: u64) -> bool {
    let power = start.max(data_start).max(1 << FIRST_POWER).checked_next_power_of_two();
    power.is_some_and(|power| power < end) || (start < total && total <= end)
}

impl Geometry {
    /// Returns the places of copies in ascending order. An image without the feature has none.
    pub fn copies(&self) -> impl Iterator<Item = BlockNo> + use<> {
        let last = if self.has_copies() { self.total_blocks.saturating_sub(1) } else { 0 };
        let (data_start, maps) = (self.data_start.0, self.moved_maps());
        let powers = powers(last).filter(move |block| *block >= data_start && !maps.contains(block));
        powers.chain((last > 0).then_some(last)).map(BlockNo)
    }

    /// Returns the places that hold a copy of the last checkpoint's superblock: the last two.
    pub fn current_copies(&self) -> impl Iterator<Item = BlockNo> + use<> {
        let spare = self.copies().count().saturating_sub(2);
        self.copies().skip(spare)
    }
}

#[cfg(test)]
#[path = "copies_tests.rs"]
mod tests;
