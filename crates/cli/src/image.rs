//! Looking at an image with plain reads: superblock slots and foreign signatures.
//!
//! Nothing here locks the image or writes to it, so that `info` and `dump` also work on one that is mounted. What they
//! then show is the last checkpoint, not the present.

use anyhow::{Context, Result, bail};
use kedge_base::{BLOCK_SIZE, BlockNo};
use kedge_format::superblock::{Losses, SLOTS, Superblock};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

/// An image file or block device, open for reading.
pub struct Image {
    file: File,
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
}

/// What a device holds, as [`Image::content`] tells it.
#[derive(Debug, PartialEq, Eq)]
pub enum Content {
    Blank,
    KedgeFs,
    /// Another format, by name.
    Other(&'static str),
}

/// (what, offset of the magic, magic)
const SIGNATURES: &[(&str, u64, &[u8])] = &[
    ("an ext2, ext3 or ext4 file system", 1080, &[0x53, 0xef]),
    ("an XFS file system", 0, b"XFSB"),
    ("a btrfs file system", 65536 + 64, b"_BHRfS_M"),
    ("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("a swap area", 4086, b"SWAPSPACE2"),
    ("a squashfs image", 0, b"hsqs"),
    ("an ISO 9660 image", 32769, b"CD001"),
    ("a qcow2 image", 0, b"QFI\xfb"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a partition table or boot sector", 510, &[0x55, 0xaa]),
];
/// Whatever lies in front of a file system that we do not know, it rarely starts later than this.
const BLANK_BYTES: usize = 64 << 10;

/// Refuses what can be no image. Before it is opened: of a pipe that would wait for a writer, who may never come.
pub fn check_kind(path: &Path) -> Result<()> {
    let kind = std::fs::metadata(path).with_context(|| format!("open {}", path.display()))?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        bail!("{} is neither a file nor a block device", path.display());
    }
    Ok(())
}

/// What an image says an unmount has lost. `None` also for what cannot be read: whoever opens it says so better.
pub fn losses(path: &Path) -> Option<Losses> {
    Image::open(path).ok()?.superblock().ok()?.checkpoint.losses
}

/// For people who are about to use the image.
pub fn tell_losses(losses: &Losses) -> String {
    format!(
        "an unmount could not write the data of {} files, first at {} seconds after 1970; what could not be written is \
         lost (kedge fsck -y takes note and clears this)",
        losses.files, losses.since
    )
}

impl Image {
    pub fn open(path: &Path) -> Result<Image> {
        check_kind(path)?;
        let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        let size =
            file.seek(SeekFrom::End(0)).with_context(|| format!("find the size of {}", path.display()))?;
        Ok(Image { file, path: path.to_owned(), size })
    }

    /// Reads `buf.len()` bytes at `offset`.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len();
        self.file
            .read_exact_at(buf, offset)
            .with_context(|| format!("read {len} bytes at offset {offset} of {}", self.path.display()))
    }

    fn block(&self, block: BlockNo) -> Result<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_SIZE];
        self.read(block.byte_offset(), &mut bytes)?;
        Ok(bytes)
    }

    /// Both slots, each decoded or with the reason why not.
    pub fn slots(&self) -> [Result<Superblock>; 2] {
        [0, 1].map(|slot| {
            let bytes = self.block(SLOTS[slot])?;
            Ok(Superblock::decode(&bytes, slot, self.size / BLOCK_SIZE as u64)?)
        })
    }

    /// The slot that a mount would take: the valid one of the higher generation.
    pub fn superblock(&self) -> Result<Superblock> {
        let superblock = match self.slots() {
            [Ok(a), Ok(b)] => Ok(if a.checkpoint.generation > b.checkpoint.generation { a } else { b }),
            [Ok(one), Err(_)] | [Err(_), Ok(one)] => Ok(one),
            [Err(a), Err(b)] => {
                // A slot with our magic says more about the damage than one that was never written.
                let magic = self.block(SLOTS[1]).is_ok_and(|bytes| Superblock::has_magic(&bytes));
                Err(if magic { b } else { a })
            }
        };
        superblock.with_context(|| format!("{}: no valid superblock", self.path.display()))
    }

    /// What the device holds already, as far as can be told from where file systems put their signatures.
    pub fn content(&self) -> Result<Content> {
        let has = |offset: u64, magic: &[u8]| -> Result<bool> {
            if self.size < offset + magic.len() as u64 {
                return Ok(false);
            }
            let mut bytes = vec![0; magic.len()];
            self.read(offset, &mut bytes)?;
            Ok(bytes == magic)
        };
        for slot in SLOTS.iter().filter(|slot| self.size >= slot.byte_offset() + BLOCK_SIZE as u64) {
            if Superblock::has_magic(&self.block(*slot)?) {
                return Ok(Content::KedgeFs);
            }
        }
        for &(what, offset, magic) in SIGNATURES {
            if has(offset, magic)? {
                return Ok(Content::Other(what));
            }
        }
        let mut head = vec![0; BLANK_BYTES.min(self.size as usize)];
        self.read(0, &mut head)?;
        Ok(if head.iter().all(|&b| b == 0) {
            Content::Blank
        } else {
            Content::Other("data of an unknown kind")
        })
    }
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
