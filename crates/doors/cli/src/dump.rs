//! `kedge dump`: prints the structures of an image, for debugging.
//!
//! It reads without a lock and without recovery, so it shows the device's contents. On a mounted
//! image these are the last checkpoint and the part of the log that has been written.

mod tree;

use anyhow::{Context, Result};
use kedge_base::{BLOCK_SIZE, Lsn};
use kedge_format::counts::CountItem;
use kedge_format::item::{Dentry, ExtentItem, Orphan, XattrItem};
use kedge_format::logwrite::{HEADER_SIZE, WriteHeader};
use kedge_format::record::{Edit, Record};
use kedge_format::sums::SumsItem;
use kedge_format::superblock::{SLOTS, Superblock};
use kedge_format::{InodeCore, ItemKind, Key};
use kedge_host::image::Image;
use kedge_host::key;
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Show the items of this inode in the last checkpoint's tree
    #[arg(long, value_name = "N", conflicts_with = "log")]
    ino: Option<u64>,
    /// Show the log from its tail to its end, record by record
    #[arg(long, conflicts_with = "tree")]
    log: bool,
    /// Show all items of the last checkpoint's tree
    #[arg(long)]
    tree: bool,
    /// A file or block device, or rbd:POOL/IMAGE, nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH
    image: PathBuf,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let image = key::image(&args.image)?;
    let mut out = std::io::stdout().lock();
    if args.log {
        dump_log(&image, &mut out)?;
    } else if args.tree || args.ino.is_some() {
        let superblock = image.superblock()?;
        let keys = match args.ino {
            None => Key::MIN..=Key::MAX,
            Some(ino) => Key { ino, ..Key::MIN }..=Key { ino, ..Key::MAX },
        };
        tree::walk(&image, &superblock, &keys, &mut |key, value| {
            writeln!(out, "{key} {}", show_item(key, value))?;
            Ok(())
        })?;
    } else {
        dump_superblocks(&image, &mut out)?;
        // The fault of each slot has been printed; fail if neither slot is valid.
        image.superblock()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn dump_superblocks(image: &Image, out: &mut dyn Write) -> Result<()> {
    for (slot, superblock) in image.slots().into_iter().enumerate() {
        match superblock {
            Ok(superblock) => writeln!(out, "slot {slot} at block {}: {superblock:#?}", SLOTS[slot])?,
            Err(e) => writeln!(out, "slot {slot} at block {}: not valid: {e:#}", SLOTS[slot])?,
        }
    }
    for (place, copy) in image.copies() {
        let c = &copy.checkpoint;
        let of = format!("image {}, generation {}, clean {}", copy.geometry.uuid, c.generation, c.clean);
        writeln!(out, "copy at block {place}: {of}")?;
    }
    Ok(())
}

fn dump_log(image: &Image, out: &mut dyn Write) -> Result<()> {
    let superblock = image.superblock()?;
    let c = &superblock.checkpoint;
    writeln!(out, "log: tail {}, checkpoint {}, epoch {}", c.tail_lsn, c.checkpoint_lsn, c.epoch)?;
    let mut at = c.tail_lsn;
    loop {
        if at == c.checkpoint_lsn {
            writeln!(out, "-- the tree holds the records above")?;
        }
        // Stop after one lap: a log whose every write seems valid would be read forever.
        if at.0 - c.tail_lsn.0 >= superblock.geometry.log_bytes() {
            writeln!(out, "-- the log ends at LSN {at}: it is full")?;
            return Ok(());
        }
        match read_log_write(image, &superblock, at)? {
            Ok((header, bytes)) => {
                show_log_write(&header, &bytes, out)?;
                at = header.end_lsn();
            }
            Err(why) => {
                writeln!(out, "-- the log ends at LSN {at}: {why}")?;
                return Ok(());
            }
        }
    }
}

/// The log write at `lsn` if it is valid by the rules of [`kedge_format::logwrite`], else the
/// broken rule as text.
fn read_log_write(
    image: &Image,
    sb: &Superblock,
    lsn: Lsn,
) -> Result<Result<(WriteHeader, Vec<u8>), &'static str>> {
    let key = sb.geometry.log_key();
    let first = read_ring(image, sb, lsn, 1)?;
    let Some(header) = WriteHeader::peek(&key, &first) else {
        return Ok(Err("no log write of this image starts there"));
    };
    if header.blocks as u64 > sb.geometry.log_blocks {
        return Ok(Err("the write there is larger than the log"));
    }
    let bytes = read_ring(image, sb, lsn, header.blocks as u64)?;
    Ok(if header.lsn != lsn {
        Err("the write there is of an earlier round")
    } else if !header.is_whole(&key, &bytes) {
        Err("the write there is torn (checksum mismatch)")
    } else if header.epoch != sb.checkpoint.epoch {
        Err("the write there is of another epoch")
    } else if header.records(&bytes).is_none() {
        Err("the frames of the write there do not divide its payload")
    } else {
        Ok((header, bytes))
    })
}

fn read_ring(image: &Image, sb: &Superblock, lsn: Lsn, blocks: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
    let first = lsn.0 / BLOCK_SIZE as u64;
    for (i, block) in bytes.chunks_exact_mut(BLOCK_SIZE).enumerate() {
        let place = sb.geometry.log_start.0 + (first + i as u64) % sb.geometry.log_blocks;
        image.read(place * BLOCK_SIZE as u64, block).with_context(|| format!("read the log at LSN {lsn}"))?;
    }
    Ok(bytes)
}

fn show_log_write(header: &WriteHeader, bytes: &[u8], out: &mut dyn Write) -> Result<()> {
    writeln!(
        out,
        "write {}..{} blocks {} records {} payload {} of {} bytes, durable {}, tail {}",
        header.lsn,
        header.end_lsn(),
        header.blocks,
        header.records,
        header.payload_bytes,
        bytes.len() - HEADER_SIZE,
        header.durable_lsn,
        header.tail_lsn
    )?;
    for (lsn, record) in header.records(bytes).into_iter().flatten() {
        match Record::decode(lsn, record) {
            Ok(record) => {
                writeln!(out, "  {lsn} {:?}", record.op)?;
                for edit in &record.edits {
                    writeln!(out, "    {}", show_edit(edit))?;
                }
            }
            Err(e) => writeln!(out, "  {lsn} {e}")?,
        }
    }
    Ok(())
}

fn show_edit(edit: &Edit<'_>) -> String {
    match edit {
        Edit::Inode(patch) => {
            format!("inode {} mask {:#x} {}", patch.ino, patch.mask.0, show_core(&patch.core))
        }
        Edit::Put { key, value } => format!("put {key} {}", show_item(*key, value)),
        Edit::Delete { key } => format!("delete {key}"),
        Edit::Alloc(e) => format!("alloc {}+{}", e.start, e.blocks),
        Edit::Free(e) => format!("free {}+{}", e.start, e.blocks),
        Edit::Data { ino, offset, bytes } => format!("data inode {ino} {offset}+{}", bytes.len()),
        Edit::Zero { ino, offset, len } => format!("zero inode {ino} {offset}+{len}"),
        Edit::Drop { ino, offset, len } => format!("drop inode {ino} {offset}+{len}"),
    }
}

fn show_core(core: &InodeCore) -> String {
    format!(
        "mode {:o} nlink {} uid {} gid {} size {} blocks {} parent {} change {} mtime {}.{:09}",
        core.mode,
        core.nlink,
        core.uid,
        core.gid,
        core.size,
        core.blocks,
        core.parent,
        core.change,
        core.mtime.sec,
        core.mtime.nsec
    )
}

/// The value of an item, or the error: a damaged item does not end the dump.
fn show_item(key: Key, value: &[u8]) -> String {
    let shown = match ItemKind::from_u8(key.kind) {
        Some(ItemKind::Inode) => InodeCore::decode(value).map(|core| show_core(&core)),
        Some(ItemKind::Xattr) => XattrItem::decode(value).map(|item| match item {
            XattrItem::Small(x) => format!("{} = {} bytes", x.name.escape_ascii(), x.value.len()),
            XattrItem::Large { name, len } => format!("{} = {len} bytes in parts", name.escape_ascii()),
            XattrItem::Part { index, bytes } => format!("part {index}: {} bytes", bytes.len()),
        }),
        Some(ItemKind::Symlink) => Ok(format!("-> {}", value.escape_ascii())),
        Some(ItemKind::Dentry) => Dentry::decode(value)
            .map(|d| format!("\"{}\" -> inode {} {:?}", d.name.escape_ascii(), d.ino, d.kind)),
        Some(ItemKind::Extent) => ExtentItem::decode(value).map(|e| {
            let counted = if e.counted { " counted" } else { "" };
            format!("{}+{}{}{counted}", e.start, e.blocks, if e.unwritten { " unwritten" } else { "" })
        }),
        Some(ItemKind::Count) => CountItem::decode(key.offset, value)
            .map(|c| format!("{}+{} in {} extents", key.offset, c.blocks, c.count)),
        Some(ItemKind::Sums) => SumsItem::decode(value).map(|item| {
            let sums = item.0.iter().map(|sum| format!("{sum:08x}"));
            sums.collect::<Vec<_>>().join(" ")
        }),
        Some(ItemKind::Orphan) => Orphan::decode(value).map(|o| format!("{o:?}")),
        Some(ItemKind::Inline) => Ok(format!("{} bytes", value.len())),
        None => {
            let mut hex = String::new();
            for byte in value.iter().take(32) {
                write!(hex, "{byte:02x}").expect("a String takes all");
            }
            Ok(format!("{} bytes {hex}", value.len()))
        }
    };
    shown.unwrap_or_else(|e| e.to_string())
}

#[cfg(test)]
#[path = "dump_tests.rs"]
mod tests;
