//! Checksums of file data: one for each written block of a file.
//!
//! # Rules
//! 1. Files may have checksums if [`crate::superblock::INCOMPAT_SUMS`] is set. Then every regular
//!    file has them unless it has the flag [`crate::FileFlags::NOCOW`].
//! 2. A *sums item* has the checksums of [`SUMS_BLOCKS`] file blocks. The offset of its key is the
//!    first of these blocks, a multiple of [`SUMS_BLOCKS`].
//! 3. A checksum is the CRC32C of the whole block as stored on the device, or 1 if that CRC is 0.
//!    The value 0 means that the block has no checksum. Zeros at the end of an item are omitted; an
//!    item with only zeros does not exist.
//! 4. Each written block of an extent has a checksum, and the block's bytes match it. Checksums of
//!    holes, of unwritten blocks and of blocks beyond the last extent have no meaning: they remain
//!    from blocks that the file no longer has.
//! 5. A block whose checksum does not match is damaged. A reader gets an error and no bytes of the
//!    block.

use kedge_base::{BLOCK_SIZE, BlockNo, CorruptKind, Error, Result};

/// Number of file blocks whose checksums are in one item.
pub const SUMS_BLOCKS: u64 = 16;

/// Returns the checksum of a block.
pub fn sum_of(block: &[u8]) -> u32 {
    debug_assert_eq!(block.len(), BLOCK_SIZE);
    crc32c::crc32c(block).max(1)
}

/// The checksums of [`SUMS_BLOCKS`] file blocks; 0 for a block without a checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SumsItem(pub [u32; SUMS_BLOCKS as usize]);

impl SumsItem {
    /// Length in bytes of the longest encoded item.
    pub const SIZE_MAX: usize = SUMS_BLOCKS as usize * 4;

    /// Returns the key offset of the item that contains the checksum of a file block.
    pub const fn first(file_block: u64) -> u64 {
        file_block / SUMS_BLOCKS * SUMS_BLOCKS
    }

    /// Returns the number of items that contain checksums of the file blocks `[from, to)`.
    pub const fn count(from: u64, to: u64) -> u64 {
        if from >= to { 0 } else { (to - 1) / SUMS_BLOCKS - from / SUMS_BLOCKS + 1 }
    }

    /// Returns the checksum of a file block, which must be one of the item's blocks.
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
