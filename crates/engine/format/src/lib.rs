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

/// Number of blocks whose byte offsets fit into a `u64`.
pub const BLOCKS_MAX: u64 = u64::MAX / kedge_base::BLOCK_SIZE as u64;
/// Length in bytes of the longest attribute value that is stored in one item together with its
/// name. A longer value is split into parts of this length.
pub const XATTR_PART_MAX: usize = 4096;
/// Highest inode number. It leaves room for the superblock to store the next inode number.
pub const INO_MAX: u64 = superblock::OPEN_MAX - 1;
/// Upper bound in bytes for file sizes in records and items, above [`item::FILE_SIZE_MAX`]. It
/// keeps sums of offsets and lengths far from overflow.
pub const SIZE_MAX: u64 = i64::MAX as u64;

/// Returns the CRC32C of `bytes` with the four bytes at `crc_at` taken as zero.
pub(crate) fn crc_without(bytes: &[u8], crc_at: usize) -> u32 {
    let crc = crc32c::crc32c(&bytes[..crc_at]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[crc_at + 4..])
}

/// Recomputes the checksum of a metadata block, and the keyed hashes of a log write or a node,
/// regardless of the other contents. Tests use it to damage images and keep the checksums valid.
/// `bytes` is the whole block, node or log write of an image with this secret. Returns false if the
/// magic is not a magic of this format.
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
