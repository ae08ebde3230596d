//! Copies a directory or a file of an image, from another image or within one image.

use super::show;
use super::sink::{At, Data, Entries, Meta, Ranges, Sink};
use crate::offline::entries;
use anyhow::{Context, Result};
use kedgefs::{Attr, FileKind, FileSystem, Ino, SeekKind};
use std::collections::BTreeMap;
use std::io::{self, Read};

/// The attributes that a copy keeps.
pub fn meta(fs: &FileSystem, attr: &Attr) -> Result<Meta> {
    let mut xattrs = Vec::new();
    for name in fs.listxattr(attr.ino)? {
        let value = fs.getxattr(attr.ino, &name)?;
        xattrs.push((name, value));
    }
    Ok(Meta { mode: attr.mode & 0o7777, uid: attr.uid, gid: attr.gid, mtime: attr.mtime, xattrs })
}

/// The data ranges of the file, in order.
pub fn ranges(fs: &FileSystem, attr: &Attr) -> Result<Ranges> {
    let mut ranges = Ranges::new();
    let mut at = 0;
    while at < attr.size {
        let start = match fs.seek(attr.ino, at, SeekKind::Data) {
            Ok(start) => start,
            Err(kedgefs::Error::NoSuchOffset) => break,
            Err(e) => return Err(e.into()),
        };
        let end = fs.seek(attr.ino, start, SeekKind::Hole)?.min(attr.size);
        if end <= start {
            break;
        }
        ranges.push((start, end - start));
        at = end;
    }
    Ok(ranges)
}

/// A reader of the bytes in the ranges of a file, in order.
pub struct Ranged<'a> {
    pub fs: &'a FileSystem,
    pub ino: Ino,
    pub ranges: &'a [(u64, u64)],
    /// Bytes already read of the first range.
    pub at: u64,
}

impl Read for Ranged<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while let Some(((start, len), rest)) = self.ranges.split_first() {
            if self.at == *len {
                (self.ranges, self.at) = (rest, 0);
                continue;
            }
            let want = buf.len().min(usize::try_from(len - self.at).unwrap_or(usize::MAX));
            let got = self.fs.read(self.ino, start + self.at, &mut buf[..want])?;
            self.at += got as u64;
            return Ok(got);
        }
        Ok(0)
    }
}

/// Copies the contents and attributes of the directory `top` to the top of the sink.
pub fn fill(fs: &FileSystem, top: &Attr, sink: &mut Sink<'_>) -> Result<()> {
    sink.root(&meta(fs, top)?)?;
    let mut links = BTreeMap::new();
    let mut left = vec![(Vec::new(), top.ino, sink.top)];
    while let Some((path, from, to)) = left.pop() {
        for (name, ino) in entries(fs, from).with_context(|| show(&path))? {
            let below = if path.is_empty() { name.clone() } else { [&path[..], &name[..]].join(&b'/') };
            let attr = fs.getattr(ino).with_context(|| show(&below))?;
            let at = At { dir: to, name: &name, path: &below };
            if attr.kind == FileKind::Directory {
                let made = sink.directory(at, &meta(fs, &attr)?)?;
                left.push((below, ino, made));
            } else {
                copy(fs, &attr, at, &mut links, sink)?;
            }
        }
    }
    Ok(())
}

/// Copies a file other than a directory. `links` maps each source inode with several names to its
/// copy.
pub fn copy(
    fs: &FileSystem,
    attr: &Attr,
    at: At<'_>,
    links: &mut BTreeMap<Ino, Ino>,
    sink: &mut Sink<'_>,
) -> Result<()> {
    if let Some(made) = links.get(&attr.ino) {
        return sink.link(*made, at);
    }
    let meta = meta(fs, attr).with_context(|| show(at.path))?;
    let made = match attr.kind {
        FileKind::Regular => {
            let ranges = ranges(fs, attr).with_context(|| show(at.path))?;
            let mut reader = Ranged { fs, ino: attr.ino, ranges: &ranges, at: 0 };
            sink.file(
                at,
                &meta,
                Data { size: attr.size, ranges: &ranges, reader: &mut reader, of: Some(attr.ino) },
            )?
        }
        FileKind::Symlink => sink.symlink(at, &fs.readlink(attr.ino)?, &meta)?,
        kind => sink.node(at, kind, attr.rdev, &meta)?,
    };
    if attr.nlink > 1 {
        links.insert(attr.ino, made);
    }
    Ok(())
}
