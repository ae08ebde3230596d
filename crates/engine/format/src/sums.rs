//! Checksums of file data: one for each written block of a file.
//!
//! # Rules
//! 1. An image has them if [`crate::superblock::INCOMPAT_SUMS`] is set. A regular file of such an
//!    image has them unless it has the flag [`crate::FileFlags::NOCOW`].
//! 2. A *sums item* has the checksums of [`SUMS_BLOCKS`] file blocks. Its key's offset is the first
//!    of them, a multiple of that number.
//! 3. A checksum is the CRC32C of the whole block as it is on the device, with 1 in place of 0. The
//!    number 0 means that the block has none. Zeros at the end of an item are left out; an item
//!    whose numbers are all zero does not exist.
//! 4. Each written block of an extent has a checksum, which its bytes match. Checksums of holes, of
//!    unwritten blocks and of blocks beyond the last extent have no meaning: they are left over
//!    from blocks that the file no longer has.
//! 5. A block whose checksum does not match is damaged. A reader gets an error, never its bytes.

use kedge_base::{BLOCK_SIZE, BlockNo, CorruptKind, Error, Result};

/// File blocks whose checksums one item has.
pub const SUMS_BLOCKS: u64 = 16;

/// The checksum of a block.
pub fn sum_of(block: &[u8]) -> u32 {
    debug_assert_eq!(block.len(), BLOCK_SIZE);
    crc32c::crc32c(block).max(1)
}

/// The checksums of [`SUMS_BLOCKS`] file blocks; 0 for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SumsItem(pub [u32; SUMS_BLOCKS as usize]);

impl SumsItem {
    /// Bytes of the longest value.
    pub const SIZE_MAX: usize = SUMS_BLOCKS as usize * 4;

    /// The offset of the key of the item with the checksum of a file block.
    pub const fn first(file_block: u64) -> u64 {
        file_block / SUMS_BLOCKS * SUMS_BLOCKS
    }

    /// The number of items that blocks `[from, to)` touch.
    pub const fn count(from: u64, to: u64) -> u64 {
        if from >= to { 0 } else { (to - 1) / SUMS_BLOCKS - from / SUMS_BLOCKS + 1 }
    }

    /// The checksum of a file block whose item this is.
    pub fn get(&self, file_block: u64) -> u32 {
        self.0[(file_block % SUMS_BLOCKS) as usize]
    }

    pub fn set(&mut self, file_block: u64, sum: u32) {
        self.0[(file_block % SUMS_BLOCKS) as usize] = sum;
    }

    pub fn encode(&self) -> Vec<u8> {
        let used = self.0.iter().rposition(|sum| *sum != 0).map_or(0, |last| last + 1);
        self.0[..used].iter().flat_map(|sum| sum.to_le_bytes()).collect()
    }

    pub fn decode(bytes: &[u8]) -> Result<SumsItem> {
        let (words, rest) = bytes.as_chunks::<4>();
        let last = words.last();
        if !rest.is_empty() || words.len() > SUMS_BLOCKS as usize || last.is_none_or(|w| *w == [0; 4]) {
            let what = format!("checksums of {} bytes, or with a zero at the end", bytes.len());
            return Err(Error::corrupt(CorruptKind::Item, BlockNo(0), what));
        }
        let mut item = SumsItem::default();
        for (sum, word) in item.0.iter_mut().zip(words) {
            *sum = u32::from_le_bytes(*word);
        }
        Ok(item)
    }
}

#[cfg(test)]
#[path = "sums_tests.rs"]
mod tests;
