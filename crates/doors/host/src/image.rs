//! Examines an image with plain reads: superblock slots and signatures of other file systems.
//!
//! [`locate`] parses every command-line argument that names an image.
//!
//! Nothing here locks the image or writes to it, so that `info` and `dump` also work on a mounted
//! image. They then show the last checkpoint, not the current state.

use crate::options::MountWords;
use crate::text::date;
use crate::usage::Usage;
use anyhow::{Context, Result, anyhow, bail};
use kedge_base::{BLOCK_SIZE, BlockNo, IoBuf};
use kedge_device::location::WindowUri;
use kedge_device::{Device, Location, OpenOptions};
use kedge_format::content::{Content, HEAD_BYTES};
use kedge_format::copies::places_on;
use kedge_format::superblock::{Losses, SLOTS, Superblock};
use std::fs::{File, FileType};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An image that is open for reading.
pub struct Image {
    source: Source,
    pub path: PathBuf,
    /// The size in bytes.
    pub size: u64,
}

enum Source {
    File(File),
    Device(Arc<dyn Device>),
}

/// Parses the location of an image. An invalid URI is a usage error.
pub fn locate(image: &Path) -> Result<Location> {
    let location = Location::parse(image).and_then(Location::absolute);
    location.map_err(|e| Usage(e.to_string()).into())
}

/// Adds the window and the time limit in the mount options to the image's URI, so that every step
/// of the mount uses them and the mount table shows them.
pub fn with_words(image: &Path, words: &MountWords) -> Result<PathBuf> {
    let limits = [("rbd_timeout", words.rbd_timeout), ("nbd_timeout", words.nbd_timeout)];
    let asked = limits.into_iter().filter_map(|(word, limit)| Some((word, limit?)));
    let mut limited = windowed(image, words)?;
    for (word, limit) in asked {
        let mut location = locate(image)?;
        match &mut location {
            Location::Rbd(uri) if word == "rbd_timeout" => uri.timeout = limit,
            Location::Nbd(uri) if word == "nbd_timeout" => uri.timeout = limit,
            _ => {
                let kind =
                    if word == "rbd_timeout" { "image of a Ceph cluster (rbd:)" } else { "NBD export" };
                let why = format!("mount option {word}: {} is no {kind}", image.display());
                return Err(Usage(why).into());
            }
        }
        limited = Some(location.to_string().into());
    }
    Ok(limited.unwrap_or_else(|| image.to_owned()))
}

/// The URI of the window that the mount options describe; `None` without such options.
fn windowed(image: &Path, words: &MountWords) -> Result<Option<PathBuf>> {
    if words.offset.is_none() && words.sizelimit.is_none() {
        return Ok(None);
    }
    let word = if words.offset.is_some() { "offset" } else { "sizelimit" };
    let (path, before) = match locate(image)? {
        Location::Path(path) => (path, None),
        Location::Window(uri) => (uri.path.clone(), Some(uri)),
        _ => {
            let why = format!("mount option {word}: {} is no file or block device", image.display());
            return Err(Usage(why).into());
        }
    };
    let offset = words.offset.or(before.as_ref().map(|uri| uri.offset)).unwrap_or(0);
    let size = words.sizelimit.or(before.and_then(|uri| uri.size));
    let uri = WindowUri::new(path, offset, size).map_err(|e| Usage(format!("mount option {e}")))?;
    Ok(Some(uri.to_string().into()))
}

/// The offset of a mount's image in its file and the limit of its size, if the image is a window.
pub fn window_in_force(image: &Path) -> Option<(u64, Option<u64>)> {
    match locate(image).ok()? {
        Location::Window(uri) => Some((uri.offset, uri.size)),
        _ => None,
    }
}

/// The time limit in the URI of a mount's image, for the option `word`.
pub fn limit_in_force(image: &Path, word: &str) -> Option<u64> {
    match (locate(image).ok()?, word) {
        (Location::Rbd(uri), "rbd_timeout") => Some(uri.timeout.as_secs()),
        (Location::Nbd(uri), "nbd_timeout") => Some(uri.timeout.as_secs()),
        _ => None,
    }
}

/// Whether the image is named by a URI: a window of a file, or an image that another process
/// serves.
pub fn is_uri(image: &Path) -> Result<bool> {
    Ok(locate(image)?.is_uri())
}

/// Returns the canonical name, which the mount table shows and which does not depend on the working
/// directory.
pub fn resolve(image: &Path) -> Result<PathBuf> {
    match locate(image)? {
        Location::Path(_) => canonical(image),
        Location::Window(uri) => {
            let uri = WindowUri { path: canonical(&uri.path)?, ..uri };
            Ok(uri.to_string().into())
        }
        remote => Ok(remote.to_string().into()),
    }
}

fn canonical(image: &Path) -> Result<PathBuf> {
    let meant = std::fs::metadata(image).with_context(|| format!("find {}", image.display()))?;
    // A path in /proc/self/fd may lead to a deleted file, or to a file that never had a name. Then
    // the link's text names no file, or another one.
    let name = image.canonicalize().ok().filter(|name| {
        std::fs::metadata(name).is_ok_and(|found| (found.dev(), found.ino()) == (meant.dev(), meant.ino()))
    });
    name.with_context(|| format!("{} has no name by which a mount of it could be known", image.display()))
}

/// Refuses files that cannot be images, before they are opened: opening a pipe would wait for a
/// writer.
pub fn check_kind(path: &Path) -> Result<()> {
    let location = locate(path)?;
    let Some(path) = location.host_path() else { return Ok(()) };
    let kind = kind(path)?;
    if !kind.is_file() && !kind.is_block_device() {
        bail!("{} is neither a file nor a block device", path.display());
    }
    Ok(())
}

fn kind(path: &Path) -> Result<FileType> {
    Ok(std::fs::metadata(path).with_context(|| format!("open {}", path.display()))?.file_type())
}

/// The message about recorded losses, for a user who is about to use the image.
pub fn losses_text(losses: &Losses) -> String {
    format!(
        "an unmount could not write the data of {} files, first at {}; what could not be written is \
         lost (kedge fsck -y reports and clears this record)",
        losses.files,
        date(losses.since)
    )
}

impl Image {
    /// An image on an opened device. `path` is the name by which it was opened.
    pub(crate) fn on(path: &Path, device: Arc<dyn Device>) -> Image {
        let size = device.geometry().size;
        Image { source: Source::Device(device), path: path.to_owned(), size }
    }

    /// Opens an image without decrypting it.
    pub fn open(path: &Path) -> Result<Image> {
        check_kind(path)?;
        let location = locate(path)?;
        // A block device is read with direct IO, because a mount writes it with direct IO. If
        // another program reads the device during such a write, the device's page cache may keep
        // the old bytes.
        if location.is_uri() || kind(path)?.is_block_device() {
            let options =
                OpenOptions { read_only: true, lock: false, io_uring: false, ..OpenOptions::default() };
            return Ok(Image::on(path, kedge_device::open(&location, options)?));
        }
        Image::of_file(path, File::open(path).with_context(|| format!("open {}", path.display()))?)
    }

    /// An image in an opened file. `path` is the name by which it was opened.
    pub(crate) fn of_file(path: &Path, mut file: File) -> Result<Image> {
        let size =
            file.seek(SeekFrom::End(0)).with_context(|| format!("find the size of {}", path.display()))?;
        Ok(Image { source: Source::File(file), path: path.to_owned(), size })
    }

    /// Reads `buf.len()` bytes at `offset`.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len();
        let read = match &self.source {
            Source::File(file) => file.read_exact_at(buf, offset).map_err(anyhow::Error::from),
            Source::Device(device) => read_device(&**device, offset, buf),
        };
        read.with_context(|| format!("read {len} bytes at offset {offset} of {}", self.path.display()))
    }

    fn block(&self, block: BlockNo) -> Result<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_SIZE];
        self.read(block.byte_offset(), &mut bytes)?;
        Ok(bytes)
    }

    /// Decodes both superblock slots.
    pub fn slots(&self) -> [Result<Superblock>; 2] {
        [0, 1].map(|slot| {
            let bytes = self.block(SLOTS[slot])?;
            Ok(Superblock::decode(&bytes, slot, self.size / BLOCK_SIZE as u64)?)
        })
    }

    /// The slot that a mount would use: the valid slot of the higher generation.
    pub fn superblock(&self) -> Result<Superblock> {
        let superblock = match self.slots() {
            [Ok(a), Ok(b)] => Ok(if a.checkpoint.generation > b.checkpoint.generation { a } else { b }),
            [Ok(one), Err(_)] | [Err(_), Ok(one)] => Ok(one),
            [Err(a), Err(b)] => {
                // Prefer the error of a slot that has the magic to the error of a slot that was
                // never written.
                let magic = self.block(SLOTS[1]).is_ok_and(|bytes| Superblock::has_magic(&bytes));
                let e = if magic { b } else { a };
                let copy = self.copies().next();
                match self.content() {
                    Ok(Content::Other(held)) if held != Content::UNKNOWN || copy.is_none() => {
                        Err(anyhow!("{e:#}; {} holds {held}, no KedgeFS image", self.path.display()))
                    }
                    _ => Err(match copy {
                        Some((place, _)) => anyhow!(
                            "{e:#}; block {place} holds a copy of the superblock: kedge fsck -y restores the image from it"
                        ),
                        None => e,
                    }),
                }
            }
        };
        superblock.with_context(|| format!("{}: no valid superblock", self.path.display()))
    }

    /// The valid copies of superblocks with their blocks. Without a valid slot they may be of
    /// another image: see fsck.
    pub fn copies(&self) -> impl Iterator<Item = (BlockNo, Superblock)> {
        let blocks = self.size / BLOCK_SIZE as u64;
        places_on(blocks).filter_map(move |place| {
            let bytes = self.block(place).ok()?;
            Some((place, Superblock::decode_copy(&bytes, place, blocks).ok()?))
        })
    }

    /// Recognises by signatures what the device contains.
    pub fn content(&self) -> Result<Content> {
        let mut head = vec![0; HEAD_BYTES.min(usize::try_from(self.size).unwrap_or(HEAD_BYTES))];
        self.read(0, &mut head)?;
        Ok(Content::of(&head))
    }
}

/// Reads any range of bytes from a device that reads only whole blocks.
fn read_device(device: &dyn Device, offset: u64, bytes: &mut [u8]) -> Result<()> {
    let skip = offset % BLOCK_SIZE as u64;
    let mut blocks = IoBuf::zeroed((skip as usize + bytes.len()).div_ceil(BLOCK_SIZE));
    device.read(offset - skip, &mut blocks)?;
    bytes.copy_from_slice(&blocks.as_bytes()[skip as usize..][..bytes.len()]);
    Ok(())
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
