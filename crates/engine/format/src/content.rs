//! Recognises what a device contains by the signatures of file systems and other formats. So mkfs
//! does not overwrite data by mistake, and an error names what was found instead of KedgeFS.
//!
//! A signature is a few bytes at a fixed offset. It identifies a format; the rest of the data may
//! be invalid all the same.

use crate::superblock::{SLOTS, Superblock};
use kedge_base::BLOCK_SIZE;

/// Number of bytes from the start of a device that [`Content::of`] needs. A smaller device is
/// passed as a whole.
pub const HEAD_BYTES: usize = 128 << 10;
/// A device counts as blank if its first `BLANK_BYTES` are zero, since the data of an unknown
/// format rarely starts later.
const BLANK_BYTES: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// The beginning of the device is zero.
    Blank,
    KedgeFs,
    /// Another format, with its name for messages.
    Other(&'static str),
}

/// Name, offset of the magic, magic. The first match counts. File systems come first, because a
/// boot sector may precede a file system.
const SIGNATURES: &[(&str, usize, &[u8])] = &[
    ("an ext2, ext3 or ext4 file system", 1024 + 56, &[0x53, 0xef]),
    ("an XFS file system", 0, b"XFSB"),
    ("a btrfs file system", 65536 + 64, b"_BHRfS_M"),
    (
        "a bcachefs file system",
        4096 + 24,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    ("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("an EROFS file system", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("a ReiserFS file system", 65536 + 52, b"ReIsEr"),
    ("a JFS file system", 32768, b"JFS1"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 82, b"FAT32   "),
    ("a FAT file system", 54, b"FAT1"),
    ("an encrypted KedgeFS image", 0, b"KEDGECRY"),
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("a member of a software RAID", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a swap area", 4086, b"SWAPSPACE2"),
    ("a squashfs image", 0, b"hsqs"),
    ("an ISO 9660 image", 32769, b"CD001"),
    ("a qcow2 image", 0, b"QFI\xfb"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a partition table or boot sector", 510, &[0x55, 0xaa]),
];

impl Content {
    /// Name for data without a known signature.
    pub const UNKNOWN: &'static str = "data of an unknown kind";

    /// Recognises the contents of a device by its first [`HEAD_BYTES`].
    pub fn of(head: &[u8]) -> Content {
        let has = |offset: usize, magic: &[u8]| head.get(offset..).is_some_and(|at| at.starts_with(magic));
        let slots = SLOTS.map(|slot| slot.byte_offset() as usize);
        if slots.iter().filter_map(|slot| head.get(*slot..slot + BLOCK_SIZE)).any(Superblock::has_magic) {
            return Content::KedgeFs;
        }
        if let Some((name, ..)) = SIGNATURES.iter().find(|(_, offset, magic)| has(*offset, magic)) {
            return Content::Other(name);
        }
        match head[..BLANK_BYTES.min(head.len())].iter().all(|&b| b == 0) {
            true => Content::Blank,
            false => Content::Other(Content::UNKNOWN),
        }
    }

    /// Returns a name for messages, or `None` for a blank device.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Content::Blank => None,
            Content::KedgeFs => Some("a KedgeFS image"),
            Content::Other(name) => Some(name),
        }
    }
}

#[cfg(test)]
#[path = "content_tests.rs"]
mod tests;
