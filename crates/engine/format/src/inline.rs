//! File data in the tree: the first block of a small file.
//!
//! # Rules
//! 1. An image may have inline items if [`crate::superblock::INCOMPAT_INLINE`] is set. The
//!    superblock then stores the maximum length of an item, 1 to [`INLINE_MAX`] bytes.
//! 2. An *inline item* holds the bytes of file block 0 of a regular file. The offset of its key is
//!    0. Bytes of the block after the end of the item are zeros.
//! 3. An inline item is at least one byte long, and not longer than its file.
//! 4. A file with an inline item has no extent over file block 0. It may have extents after it.
//! 5. An inline item occupies no block: it counts neither towards the blocks of its inode nor
//!    towards a limit. The checksum of its tree node protects its bytes.

use crate::{ItemKind, Key};
use kedge_base::{BlockNo, CorruptKind, Error, Ino, Result};

/// Largest maximum length of inline items that an image may set, in bytes. A leaf has room for
/// seven items of this length.
pub const INLINE_MAX: usize = 2048;

/// Returns the key of the inline item of a file.
pub const fn key(ino: Ino) -> Key {
    Key::new(ino, ItemKind::Inline, 0)
}

/// Returns the bytes of an inline item, in an image whose items have at most `max` bytes.
pub fn decode(ino: Ino, value: &[u8], max: u64) -> Result<&[u8]> {
    if value.is_empty() || value.len() as u64 > max.min(INLINE_MAX as u64) {
        let what = format!("inode {ino}: an inline item of {} bytes", value.len());
        return Err(Error::corrupt(CorruptKind::Item, BlockNo(0), what));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::{INLINE_MAX, decode};
    use kedge_base::Ino;

    #[test]
    fn impossible_items_are_refused() {
        let max = INLINE_MAX as u64;
        assert!(decode(Ino(7), &[], max).is_err());
        assert_eq!(decode(Ino(7), &[1], max).unwrap(), [1]);
        assert!(decode(Ino(7), &[1; 513], 512).is_err());
        assert!(decode(Ino(7), &[1; INLINE_MAX + 1], u64::MAX).is_err());
        assert!(decode(Ino(7), &[1], 0).is_err(), "the image has none");
    }
}
