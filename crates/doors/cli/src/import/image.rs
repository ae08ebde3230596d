//! A directory or a file of an image as the source: another image, or another place in the same
//! one.

use super::show;
use super::sink::{At, Data, Entries, Meta, Ranges, Sink};
use crate::inside::entries;
use anyhow::{Context, Result};
use kedgefs::{Attr, FileKind, FileSystem, Ino, SeekKind};
use std::collections::HashMap;
use std::io::{self, Read};

/// Attributes as a copy gets them.
pub fn meta(fs: &FileSystem, attr: &Attr) -> Result<Meta> {
    let mut xattrs = Vec::new();
    for name in fs.listxattr(attr.ino)? {
        let value = fs.getxattr(attr.ino, &name)?;
        xattrs.push((name, value));
    }
    Ok(Meta { mode: attr.mode & 0o7777, uid: attr.uid, gid: attr.gid, mtime: attr.mtime, xattrs })
}

/// Where the file has data, in order.
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

/// The bytes of the ranges of a file, one after another.
pub struct Ranged<'a> {
    pub fs: &'a FileSystem,
    pub ino: Ino,
    pub ranges: &'a [(u64, u64)],
    /// Bytes read of the first range.
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

/// Copies what is below the directory `top`, and its attributes, to where the sink begins.
pub fn fill(fs: &FileSystem, top: &Attr, sink: &mut Sink<'_>) -> Result<()> {
    sink.root(&meta(fs, top)?)?;
    let mut links = HashMap::new();
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

/// Copies what is no directory. `links`: which inode each file with several names has become.
pub fn copy(
    fs: &FileSystem,
    attr: &Attr,
    at: At<'_>,
    links: &mut HashMap<Ino, Ino>,
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
            sink.file(at, &meta, Data { size: attr.size, ranges: &ranges, reader: &mut reader })?
        }
        FileKind::Symlink => sink.symlink(at, &fs.readlink(attr.ino)?, &meta)?,
        kind => sink.node(at, kind, attr.rdev, &meta)?,
    };
    if attr.nlink > 1 {
        links.insert(attr.ino, made);
    }
    Ok(())
}
