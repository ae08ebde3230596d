//! A copy of an image's metadata, for the report of a bug.
//!
//! The copy is a sparse file of the same size. It has the superblock slots, the allocation index,
//! the bitmaps, the log, and the nodes that the trees of both slots reach. File data is left out.
//! So `kedge fsck` reports the same for the copy as for the image. A repair of the copy may keep
//! less: it would also search for nodes that no parent refers to, and these are not copied.
//!
//! Without `--scramble` the copy has names, attributes, targets of symbolic links, the image's
//! secret and the file data in the log. With `--scramble` it has none of these (module `scramble`).
//!
//! A damaged node is copied if its magic and uuid still match this image. Other bytes at a node's
//! address may belong to a file and are left out; the check finds a bad node there in both cases.

mod scramble;
mod source;

use anyhow::{Context, Result, bail};
use kedge_base::{BLOCK_SIZE, BlockNo};
use kedge_host::{engine, mounts};
use scramble::Scramble;
use source::{LogWrite, Node, Source};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Copies the metadata of an image to a new file, and returns the report. With `scramble` names and
/// contents are replaced.
pub fn dump(image: &Path, to: &Path, scramble: bool) -> Result<String> {
    if let Some(mount) = mounts::of_image(image)? {
        bail!("{} is mounted on {}: unmount it first", image.display(), mount.dir.display());
    }
    let source = Source::open(engine::open_device(image, true)?)
        .with_context(|| format!("look for metadata in {}", image.display()))?;
    // With several trees, the tree has the names under inode numbers that differ from those in the
    // log, so [`Scramble`] cannot match the two.
    if scramble && source.superblocks().iter().any(|sb| sb.geometry.has_trees()) {
        bail!(
            "{} has forks, and its names cannot be replaced; only a copy with all names can",
            image.display()
        );
    }
    let scramble = scramble.then(|| Scramble::learn(&source)).transpose();
    let scramble = scramble.with_context(|| format!("scramble the names of {}", image.display()))?;
    // Only the owner may read the copy, as with an image.
    let file = File::options().write(true).create_new(true).mode(0o600).open(to);
    let out = Out { file: file.with_context(|| format!("make {}", to.display()))?, written: 0 };
    match copy(&source, scramble.as_ref(), out) {
        Ok(copied) => Ok(copied.text(to, scramble.is_some())),
        Err(e) => {
            let e = e.context(format!("write {}", to.display()));
            match std::fs::remove_file(to) {
                Ok(()) => Err(e),
                Err(left) => Err(e.context(format!("{} could not be removed: {left}", to.display()))),
            }
        }
    }
}

/// The file that becomes the copy.
struct Out {
    file: File,
    written: u64,
}

impl Out {
    /// Writes blocks, leaving blocks of zeros as holes.
    fn put(&mut self, at: BlockNo, bytes: &[u8]) -> Result<()> {
        for (i, block) in bytes.chunks(BLOCK_SIZE).enumerate().filter(|(_, b)| b.iter().any(|&b| b != 0)) {
            self.file.write_all_at(block, at.byte_offset() + (i * BLOCK_SIZE) as u64)?;
            self.written += block.len() as u64;
        }
        Ok(())
    }
}

/// The contents of the copy, counted for the final message.
#[derive(Default)]
struct Copied {
    size: u64,
    written: u64,
    nodes: u64,
    damaged_nodes: u64,
    log_writes: u64,
    /// Bytes of file data in the log.
    data_bytes: u64,
    unreadable: u64,
}

impl Copied {
    fn text(&self, out: &Path, scrambled: bool) -> String {
        let mut text = format!(
            "{}: {} tree nodes ({} damaged), {} log writes; {} bytes of {}, the rest is holes\n",
            out.display(),
            self.nodes,
            self.damaged_nodes,
            self.log_writes,
            self.written,
            self.size
        );
        if self.unreadable > 0 {
            text += &format!("{} places could not be read, and are left out\n", self.unreadable);
        }
        text + &match scrambled {
            true => {
                "names are replaced; attributes, targets of links and file data are left out; sizes, times, \
                     owners and the shape of the tree are as they were\n"
                    .to_owned()
            }
            false => format!(
                "it has all names, attributes and targets of links, the key of the log, and {} bytes of file data \
                 that the log holds; --scramble leaves these out\n",
                self.data_bytes
            ),
        }
    }
}

fn copy(source: &Source, scramble: Option<&Scramble>, mut out: Out) -> Result<Copied> {
    let mut copied = Copied { size: source.size(), ..Copied::default() };
    out.file.set_len(copied.size)?;
    for (start, blocks) in source.areas() {
        copied.unreadable += source.stream(start, blocks, &mut |at, bytes| out.put(at, bytes))?;
    }
    if scramble.is_none() {
        for (start, blocks) in source.logs() {
            copied.unreadable += source.stream(start, blocks, &mut |at, bytes| out.put(at, bytes))?;
        }
    }
    source.each_log_write(&mut |write: LogWrite<'_>| {
        copied.log_writes += u64::from(write.whole);
        copied.data_bytes += write.data_bytes();
        match scramble {
            None => Ok(()),
            Some(scramble) => write.put(&scramble.log_write(&write)?, &mut |at, bytes| out.put(at, bytes)),
        }
    })?;
    copied.unreadable += source.each_node(&mut |node: Node<'_>| {
        copied.nodes += 1;
        copied.damaged_nodes += u64::from(node.view.is_none());
        match scramble {
            None => out.put(node.at, node.bytes),
            Some(scramble) => out.put(node.at, &scramble.node(&node)),
        }
    })?;
    copied.unreadable += source.copies_unreadable;
    for superblock in &source.copies {
        match scramble {
            None => out.put(superblock.at, &superblock.bytes)?,
            Some(scramble) => out.put(superblock.at, &scramble.copy(superblock))?,
        }
    }
    // Write the slots last, so that an incomplete copy is not a valid image.
    for slot in &source.slots {
        match scramble {
            None => out.put(slot.at, &slot.bytes)?,
            Some(scramble) => out.put(slot.at, &scramble.slot(slot))?,
        }
    }
    out.file.sync_all()?;
    copied.written = out.written;
    Ok(copied)
}
