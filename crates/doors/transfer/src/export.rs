//! Copies a directory of an image that is not mounted to a tar archive, and an archive to such a
//! directory, through the library. An archive can also be unpacked into a mounted image, through
//! the process that serves it.
//!
//! Archives are in the POSIX format (pax) as GNU tar writes it: names of any length, times to the
//! nanosecond, extended attributes, sparse files in format 1.0. A second name of a file is stored
//! as a hard link. Sockets, which tar cannot store, are left out with a warning, as in GNU tar.

use crate::import;
use crate::import::image::Ranged;
use crate::import::sink::{Data, Meta};
use crate::offline::{ImagePath, device, entries};
use crate::online::client::Mounted;
use crate::pax::{Entry, Pax};
use anyhow::{Context, Result};
use kedge_base::printable;
use kedge_host::{Usage, engine};
use kedgefs::{Attr, FileKind, FileSystem, Ino};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;
use tar::EntryType;

const CHUNK: usize = 1 << 20;

/// Writes an archive of a directory to a file, or to standard output.
pub fn create(place: &ImagePath, named: Option<&Path>) -> Result<()> {
    let fs = place.open()?;
    let top = place.find(&fs)?;
    if top.kind != FileKind::Directory {
        return Err(Usage(format!("{}: not a directory", place.show())).into());
    }
    match named {
        None => archive(&fs, top.ino, BufWriter::new(std::io::stdout().lock())),
        Some(path) => {
            let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
            let mut out = BufWriter::with_capacity(CHUNK, file);
            archive(&fs, top.ino, &mut out).with_context(|| format!("write {}", path.display()))?;
            out.get_ref().sync_all().with_context(|| format!("make {} durable", path.display()))
        }
    }
}

/// Unpacks an archive into a directory of an image that is not mounted. A file that cannot be
/// unpacked completely is absent. All others are durable when this returns.
pub fn extract(place: &ImagePath, archive: Option<&Path>) -> Result<()> {
    place.refuse_mounted()?;
    let fs = engine::open_to_change(place.image())?;
    let filled = place.find(&fs).and_then(|top| {
        if top.kind != FileKind::Directory {
            return Err(Usage(format!("{}: not a directory", place.show())).into());
        }
        match archive {
            None => import::unpack(&fs, top.ino, std::io::stdin().lock()),
            Some(path) => {
                let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
                import::unpack(&fs, top.ino, BufReader::with_capacity(CHUNK, file))
            }
        }
    });
    let closed = fs.close().with_context(|| format!("close {}", place.image().display()));
    filled.and(closed)
}

/// Unpacks an archive into a directory of a mount.
pub fn extract_mounted(dir: &Path, archive: Option<&Path>) -> Result<()> {
    let Some(mounted) = Mounted::open(dir)? else {
        let what = "neither IMAGE:/DIR nor a directory of a mounted image: use tar(1)";
        return Err(Usage(format!("{}: {what}", dir.display())).into());
    };
    match archive {
        None => mounted.send_archive(std::io::stdin().lock())?,
        Some(path) => {
            let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
            mounted.send_archive(file)?;
        }
    }
    Ok(())
}

struct Archiver<'a, W> {
    fs: &'a FileSystem,
    out: Pax<W>,
    /// The first path of each file with several links.
    links: BTreeMap<Ino, Vec<u8>>,
}

fn archive(fs: &FileSystem, top: Ino, out: impl Write) -> Result<()> {
    let mut archiver = Archiver { fs, out: Pax::new(out), links: BTreeMap::new() };
    let mut left = vec![(b".".to_vec(), top)];
    while let Some((path, ino)) = left.pop() {
        let attr = fs.getattr(ino)?;
        archiver.add(&path, &attr).with_context(|| String::from_utf8_lossy(&path).into_owned())?;
        if attr.kind == FileKind::Directory {
            let below = entries(fs, ino).with_context(|| String::from_utf8_lossy(&path).into_owned())?;
            left.extend(
                below.into_iter().rev().map(|(name, ino)| ([&path[..], b"/", &name[..]].concat(), ino)),
            );
        }
    }
    archiver.out.end().map(drop)
}

impl<W: Write> Archiver<'_, W> {
    fn add(&mut self, path: &[u8], attr: &Attr) -> Result<()> {
        let meta = import::image::meta(self.fs, attr)?;
        if let Some(target) = self.links.get(&attr.ino) {
            return self.out.entry(&Entry { kind: EntryType::Link, path, meta: &meta, target, device: None });
        }
        if attr.nlink > 1 && attr.kind != FileKind::Directory {
            self.links.insert(attr.ino, path.to_vec());
        }
        let kind = match attr.kind {
            FileKind::Regular => return self.regular(path, attr, &meta),
            FileKind::Directory => EntryType::Directory,
            FileKind::Symlink => EntryType::Symlink,
            FileKind::CharDevice => EntryType::Char,
            FileKind::BlockDevice => EntryType::Block,
            FileKind::Fifo => EntryType::Fifo,
            FileKind::Socket => {
                eprintln!(
                    "kedge: warning: {}: a socket, left out",
                    printable(&String::from_utf8_lossy(path))
                );
                return Ok(());
            }
        };
        let target = if attr.kind == FileKind::Symlink { self.fs.readlink(attr.ino)? } else { Vec::new() };
        let numbers = matches!(kind, EntryType::Char | EntryType::Block).then(|| {
            let (major, minor) = device(attr.rdev);
            (major as u32, minor as u32)
        });
        self.out.entry(&Entry { kind, path, meta: &meta, target: &target, device: numbers })
    }

    fn regular(&mut self, path: &[u8], attr: &Attr, meta: &Meta) -> Result<()> {
        let ranges = import::image::ranges(self.fs, attr)?;
        let mut reader = Ranged { fs: self.fs, ino: attr.ino, ranges: &ranges, at: 0 };
        self.out.file(path, meta, Data { size: attr.size, ranges: &ranges, reader: &mut reader, of: None })
    }
}
