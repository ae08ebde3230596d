//! The one normative source of what KedgeFS puts on a device. All integers are little-endian unless a field says
//! otherwise; every metadata block carries a CRC32C, its magic and its owner's uuid.
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
//! Blocks below `data_start` are owned by the format and marked allocated in the bitmaps; so are the blocks of the last
//! group that lie behind the end of the image.
//!
//! # Decoding
//! Decoders take bytes that may be anything. They return [`kedge_base::Error::Corrupt`] naming kind and block; they
//! never panic and never allocate more than the bytes can justify.
#![forbid(unsafe_code)]

pub mod alloc;
pub mod content;
pub mod inode;
pub mod item;
pub mod key;
pub mod layout;
pub mod logwrite;
pub mod node;
pub mod record;
pub mod superblock;

pub use inode::{FileKind, InodeCore};
pub use key::{ItemKind, Key};

/// Blocks that byte offsets can name: nothing lies behind.
pub const BLOCKS_MAX: u64 = u64::MAX / kedge_base::BLOCK_SIZE as u64;
/// Highest number of an inode: the next one is still a number that a superblock may hold.
pub const INO_MAX: u64 = superblock::OPEN_MAX - 1;
/// Bytes that a file can have (it may not have as many): sums of offsets and lengths then stay far from overflow.
pub const SIZE_MAX: u64 = i64::MAX as u64;

/// CRC32C of `bytes` as if the four bytes at `crc_at` were zero.
pub(crate) fn crc_without(bytes: &[u8], crc_at: usize) -> u32 {
    let crc = crc32c::crc32c(&bytes[..crc_at]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[crc_at + 4..])
}

/// Makes the checksum of a metadata block right, and the hashes of a log write or node, whatever else it
/// holds; false if its magic is none of ours. For those who damage images on purpose and want to be believed. `bytes` are the whole block, node or log
/// write of an image with this secret.
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
