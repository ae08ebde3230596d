//! Fills an image from a tar archive.
//!
//! Paths are split here and walked in the image name by name: a path cannot leave the image, and a
//! path through a symbolic link is refused.

use super::archive::{Archive, Entry};
use super::sink::{At, Data, Entries, Meta, Sink};
use super::tree::device_number;
use super::{Estimate, is_dir, show};
use anyhow::{Context, Result, bail, ensure};
use kedgefs::{FileKind, Ino};
use std::io::Read;
use tar::EntryType;

/// Estimates the contents from the headers. Data is skipped.
pub fn estimate(reader: impl Read) -> Result<Estimate> {
    let mut archive = Archive::new(reader);
    let mut sum = Estimate::default();
    while let Some(entry) = archive.next()? {
        let attributes = entry.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        sum.entries += 1;
        sum.text_bytes += (entry.path.len() + entry.link.len() + attributes) as u64;
        for (_, len) in &entry.ranges {
            // A range may begin and end inside a block.
            sum.data(len.saturating_add(super::BLOCK));
        }
    }
    Ok(sum)
}

/// Makes all entries in the image.
pub fn fill(reader: impl Read, sink: &mut Sink<'_>) -> Result<()> {
    let mut archive = Archive::new(reader);
    while let Some(entry) = archive.next()? {
        add(&entry, &mut archive, sink)?;
    }
    archive.drain()
}

fn add(entry: &Entry, archive: &mut Archive<impl Read>, sink: &mut Sink<'_>) -> Result<()> {
    let path = &entry.path;
    let meta = meta(entry)?;
    let mut names = components(path).with_context(|| format!("path {}", show(path)))?;
    // Old archives store directories as files whose names end with a slash.
    let is_dir = entry.kind == EntryType::Directory || entry.kind.is_file() && path.ends_with(b"/");
    let holds_data =
        entry.kind.is_file() || matches!(entry.kind, EntryType::Continuous | EntryType::GNUSparse);
    ensure!(entry.size == 0 || holds_data && !is_dir, "{}: an entry of this type has no data", show(path));
    let Some(name) = names.pop() else {
        ensure!(is_dir, "{}: the root must be a directory", show(path));
        return sink.root(&meta);
    };
    let at = At { dir: walk(&names, sink, path)?, name, path };
    if is_dir {
        return sink.directory(at, &meta).map(drop);
    }
    match entry.kind {
        EntryType::Link => {
            let ino = target(entry, sink)?;
            sink.link(ino, at)
        }
        EntryType::Symlink => sink.symlink(at, &entry.link, &meta).map(drop),
        EntryType::Char => node(entry, FileKind::CharDevice, at, &meta, sink),
        EntryType::Block => node(entry, FileKind::BlockDevice, at, &meta, sink),
        EntryType::Fifo => node(entry, FileKind::Fifo, at, &meta, sink),
        _ if holds_data => {
            let mut reader = archive.data();
            let data = Data { size: entry.size, ranges: &entry.ranges, reader: &mut reader, of: None };
            sink.file(at, &meta, data).map(drop)
        }
        kind => bail!("{}: entries of type '{}' are not known", show(path), kind.as_byte().escape_ascii()),
    }
}

fn meta(entry: &Entry) -> Result<Meta> {
    if let Some(lost) = entry.unsupported.first() {
        bail!("{}: {lost} is not taken over", show(&entry.path));
    }
    let (mode, uid, gid, mtime) = (entry.mode, entry.uid, entry.gid, entry.mtime);
    Ok(Meta { mode, uid, gid, mtime, xattrs: entry.xattrs.clone() })
}

fn node(entry: &Entry, kind: FileKind, at: At<'_>, meta: &Meta, sink: &mut Sink<'_>) -> Result<()> {
    let (major, minor) = entry.device;
    let rdev = match kind {
        FileKind::Fifo => 0,
        _ => device_number(major, minor).with_context(|| show(&entry.path))?,
    };
    sink.node(at, kind, rdev, meta).map(drop)
}

/// The names of a path in the archive.
fn components(path: &[u8]) -> Result<Vec<&[u8]>> {
    ensure!(!path.starts_with(b"/"), "it is absolute");
    ensure!(!path.contains(&0), "it holds a zero byte");
    let names: Vec<&[u8]> =
        path.split(|b| *b == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
    ensure!(!names.contains(&&b".."[..]), "it has '..' in it");
    Ok(names)
}

/// The directory at the end of these names. Directories that do not exist yet are made.
fn walk(names: &[&[u8]], sink: &mut Sink<'_>, path: &[u8]) -> Result<Ino> {
    let mut dir = sink.top;
    for (i, name) in names.iter().enumerate() {
        let here = names[..=i].join(&b'/');
        dir = match sink.find(dir, name).with_context(|| show(&here))? {
            Some(attr) if is_dir(&attr) => {
                sink.check_own(&attr, &here)?;
                attr.ino
            }
            Some(attr) if attr.kind == FileKind::Symlink => {
                bail!("{}: leads through the symbolic link {}", show(path), show(&here))
            }
            Some(_) => bail!("{}: leads through {}, no directory", show(path), show(&here)),
            None => {
                let at = At { dir, name, path: &here };
                sink.directory(at, &Meta { mode: 0o755, ..Meta::default() })?
            }
        };
    }
    Ok(dir)
}

/// The file that a hard link names.
fn target(entry: &Entry, sink: &mut Sink<'_>) -> Result<Ino> {
    let what = || format!("{}: link to {}", show(&entry.path), show(&entry.link));
    let mut names = components(&entry.link).with_context(what)?;
    let Some(name) = names.pop() else { bail!("{}: which is a directory", what()) };
    let mut dir = sink.top;
    for part in names {
        match sink.find(dir, part)? {
            Some(attr) if is_dir(&attr) => dir = attr.ino,
            _ => bail!("{}: which is not there", what()),
        }
    }
    match sink.find(dir, name)? {
        Some(attr) if is_dir(&attr) => bail!("{}: which is a directory", what()),
        Some(attr) => {
            sink.check_own(&attr, &entry.link)?;
            Ok(attr.ino)
        }
        None => bail!("{}: which is not there", what()),
    }
}
