//! The one normative source of what KedgeFS puts on a device. All integers are little-endian unless a field says
//! otherwise; every metadata block carries a CRC32C, its magic and its owner's uuid.
//!
//! # Image
//! ```text
//! block 0                superblock slot 0 (even generations)
//! block 16               superblock slot 1 (odd generations)
//! index_start[0..2]      allocation index, one area per slot: which bitmap copy of each group is current
//! bitmap_start[0..2]     allocation bitmaps, two homes per group; a checkpoint writes the home the last one did not use
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
pub mod inode;
pub mod item;
pub mod key;
pub mod logwrite;
pub mod node;
pub mod record;
pub mod superblock;

pub use inode::{FileKind, InodeCore};
pub use key::{ItemKind, Key};

/// CRC32C of `bytes` as if the four bytes at `crc_at` were zero.
pub(crate) fn crc_without(bytes: &[u8], crc_at: usize) -> u32 {
    let crc = crc32c::crc32c(&bytes[..crc_at]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[crc_at + 4..])
}
