//! The normative source of the on-disk format. Integers are little-endian unless a field says
//! otherwise. Every metadata block carries a magic, a CRC32C and the uuid of its image; a bitmap
//! has its CRC in the index.
//!
//! # Image
//! ```text
//! block 0                superblock slot 0 (even generations)
//! block 16               superblock slot 1 (odd generations)
//! index_start[0..2]      allocation index, one area per slot: which bitmap copy of each group is current
//! bitmap_start[0..2]     allocation bitmaps, two copies per group; a checkpoint writes the copy that the last one did not use
//! log_start              the log ring, written once at format so that the host never allocates under it
//! data_start..           tree nodes (16 KiB, 4-block runs) and file data
//! ```
//! Blocks below `data_start` are owned by the format and marked allocated in the bitmaps. So are
//! the blocks of the last group beyond the end of the image.
//!
//! # Decoding
//! Decoders accept any bytes. Errors are [`kedge_base::Error::Corrupt`] with kind and block. A
//! decoder never panics, and never allocates more than the bytes can justify.
#![forbid(unsafe_code)]

pub mod acl;
pub mod alloc;
pub mod content;
pub mod copies;
pub mod counts;
pub mod inline;
pub mod inode;
pub mod item;
pub mod key;
pub mod layout;
pub mod limits;
pub mod logwrite;
pub mod node;
pub mod record;
pub mod shrink;
pub mod sums;
pub mod superblock;
pub mod trees;

pub use inode::{FileFlags, FileKind, InodeCore};
pub use key::{ItemKind, Key};

/// The number of blocks that have byte offsets.
pub const BLOCKS_MAX: u64 = u64::MAX / kedge_base::BLOCK_SIZE as u64;
/// Longest value of an attribute that is stored in one item with its name. A longer value is
/// split into parts of this size.
pub const XATTR_PART_MAX: usize = 4096;
/// Highest inode number, since a superblock must be able to hold the next one.
pub const INO_MAX: u64 = superblock::OPEN_MAX - 1;
/// Upper bound on file sizes in records and items, above the largest size that is allowed. Sums of
/// offsets and lengths then stay far from overflow.
pub const SIZE_MAX: u64 = i64::MAX as u64;

/// CRC32C of `bytes` as if the four bytes at `crc_at` were zero.
pub(crate) fn crc_without(bytes: &[u8], crc_at: usize) -> u32 {
    let crc = crc32c::crc32c(&bytes[..crc_at]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[crc_at + 4..])
}

/// Recomputes the checksum of a metadata block, and the hashes of a log write or node, whatever the
/// rest of it holds. For tests that damage images and need valid checksums. `bytes` are the whole
/// block, node or log write of an image with this secret. Returns false if the magic is not one of
/// this format.
pub fn reseal(bytes: &mut [u8], secret: &logwrite::LogSecret) -> bool {
    let crc_at = match bytes.get(..8) {
        Some(b"KEDGEFS\0") => 12,
        Some(b"KEDGENOD") => {
            let whole = bytes.len() == node::NODE_SIZE;
            if whole {
                node::NodeMut::trusted(bytes).seal(secret);
            }
            return whole;
        }
        Some(b"KEDGEALI") => 8,
        Some(b"KEDGELOG") => return logwrite::reseal(bytes, secret),
        _ => return false,
    };
    if bytes.len() < crc_at + 4 {
        return false;
    }
    let crc = crc_without(bytes, crc_at);
    bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
    true
}

#[cfg(test)]
#[path = "lib_tests.rs"]
mod tests;
