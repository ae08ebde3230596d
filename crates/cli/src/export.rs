//! `kedge tar -c` and `-x`: a directory of an image that is not mounted to a tar archive and back,
//! through the library.
//!
//! Archives are POSIX ones (pax) as GNU tar writes them: names of any length, times to the
//! nanosecond, extended attributes, sparse files in format 1.0. A second name of a file is a hard
//! link. Sockets, which tar does not know, are left out with a warning, as GNU tar does.

use crate::inside::{Inside, entries, inside};
use crate::{Usage, engine, import};
use anyhow::{Context, Result, bail};
use kedgefs::{Attr, FileKind, FileSystem, Ino};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tar::{EntryType, Header};

#[derive(clap::Args, Debug)]
#[command(group(clap::ArgGroup::new("direction").required(true).args(["create", "extract"])))]
pub struct Args {
    /// Write an archive of the directory
    #[arg(short = 'c')]
    create: bool,
    /// Put the files of an archive into the directory
    #[arg(short = 'x')]
    extract: bool,
    /// The archive; standard output or input otherwise
    #[arg(short = 'f', value_name = "FILE")]
    file: Option<PathBuf>,
    /// A directory in an image
    #[arg(value_name = "IMAGE:/DIR", value_parser = inside())]
    place: Inside,
}

/// Blocks of an archive.
const BLOCK: usize = 512;
const CHUNK: usize = 1 << 20;
/// What fits the octal fields of a header.
const ID_MAX: u32 = 0o7_777_777;
const NUMBER_MAX: u64 = 0o77_777_777_777;
const NAME_MAX: usize = 100;

pub fn run(args: Args) -> Result<ExitCode> {
    let named = args.file.as_deref().filter(|file| *file != Path::new("-"));
    if args.extract {
        return extract(&args.place, named);
    }
    let fs = args.place.open()?;
    let top = args.place.find(&fs)?;
    if top.kind != FileKind::Directory {
        return Err(Usage(format!("{}: not a directory", args.place.show())).into());
    }
    let written = match named {
        None => archive(&fs, top.ino, &mut BufWriter::new(std::io::stdout().lock())),
        Some(path) => {
            let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
            let mut out = BufWriter::with_capacity(CHUNK, file);
            archive(&fs, top.ino, &mut out).with_context(|| format!("write {}", path.display()))?;
            out.get_ref().sync_all().with_context(|| format!("make {} durable", path.display()))
        }
    };
    written?;
    Ok(ExitCode::SUCCESS)
}

/// Each file that could not be taken as a whole is absent. All that was taken is durable at the
/// end.
fn extract(place: &Inside, archive: Option<&Path>) -> Result<ExitCode> {
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
    filled.and(closed)?;
    Ok(ExitCode::SUCCESS)
}

struct Archiver<'a> {
    fs: &'a FileSystem,
    out: &'a mut dyn Write,
    /// The first path of each file that has several.
    links: HashMap<Ino, Vec<u8>>,
    buf: Vec<u8>,
}

fn archive(fs: &FileSystem, top: Ino, out: &mut dyn Write) -> Result<()> {
    let mut archiver = Archiver { fs, out, links: HashMap::new(), buf: vec![0; CHUNK] };
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
    archiver.out.write_all(&[0; 2 * BLOCK])?;
    Ok(archiver.out.flush()?)
}

impl Archiver<'_> {
    fn add(&mut self, path: &[u8], attr: &Attr) -> Result<()> {
        let mut records = Records::default();
        let mut header = Header::new_ustar();
        header.set_mode(attr.mode & 0o7777);
        if let Some(first) = self.links.get(&attr.ino) {
            let first = first.clone();
            header.set_entry_type(EntryType::Link);
            return self.finish(header, records, path, attr, &first, 0);
        }
        if attr.nlink > 1 && attr.kind != FileKind::Directory {
            self.links.insert(attr.ino, path.to_vec());
        }
        for name in self.fs.listxattr(attr.ino)? {
            let value = self.fs.getxattr(attr.ino, &name)?;
            records.add(&[b"SCHILY.xattr.", &name[..]].concat(), &value);
        }
        let kind = match attr.kind {
            FileKind::Regular => return self.regular(header, records, path, attr),
            FileKind::Directory => EntryType::Directory,
            FileKind::Symlink => EntryType::Symlink,
            FileKind::CharDevice => EntryType::Char,
            FileKind::BlockDevice => EntryType::Block,
            FileKind::Fifo => EntryType::Fifo,
            FileKind::Socket => {
                eprintln!("kedge: warning: {}: a socket, left out", String::from_utf8_lossy(path));
                return Ok(());
            }
        };
        header.set_entry_type(kind);
        let target = if kind == EntryType::Symlink { self.fs.readlink(attr.ino)? } else { Vec::new() };
        if matches!(kind, EntryType::Char | EntryType::Block) {
            let (major, minor) = crate::inside::device(attr.rdev);
            header.set_device_major(major as u32)?;
            header.set_device_minor(minor as u32)?;
        }
        self.finish(header, records, path, attr, &target, 0)
    }

    fn regular(&mut self, mut header: Header, mut records: Records, path: &[u8], attr: &Attr) -> Result<()> {
        header.set_entry_type(EntryType::Regular);
        let mut ranges = import::image::ranges(self.fs, attr)?;
        let data: u64 = ranges.iter().map(|(_, len)| len).sum();
        let mut map = Vec::new();
        if data < attr.size {
            // The last piece of a map says where the file ends.
            if ranges.last().is_none_or(|(start, len)| start + len < attr.size) {
                ranges.push((attr.size, 0));
            }
            map = format!("{}\n", ranges.len()).into_bytes();
            ranges
                .iter()
                .for_each(|(start, len)| map.extend_from_slice(format!("{start}\n{len}\n").as_bytes()));
            map.resize(map.len().next_multiple_of(BLOCK), 0);
            records.add(b"GNU.sparse.major", b"1");
            records.add(b"GNU.sparse.minor", b"0");
            records.add(b"GNU.sparse.name", path);
            records.add(b"GNU.sparse.realsize", attr.size.to_string().as_bytes());
        }
        let size = map.len() as u64 + data;
        self.finish(header, records, path, attr, b"", size)?;
        self.out.write_all(&map)?;
        for (start, len) in ranges {
            self.copy(attr.ino, start, len)?;
        }
        self.pad(size)
    }

    fn copy(&mut self, ino: Ino, start: u64, len: u64) -> Result<()> {
        let mut at = 0;
        while at < len {
            let want = (len - at).min(CHUNK as u64) as usize;
            let n = self.fs.read(ino, start + at, &mut self.buf[..want])?;
            if n == 0 {
                bail!("ends at byte {}", start + at);
            }
            self.out.write_all(&self.buf[..n])?;
            at += n as u64;
        }
        Ok(())
    }

    /// Writes the header of an entry, before it what does not fit into one.
    fn finish(
        &mut self,
        mut header: Header,
        mut records: Records,
        path: &[u8],
        attr: &Attr,
        target: &[u8],
        size: u64,
    ) -> Result<()> {
        let slash: &[u8] = if attr.kind == FileKind::Directory { b"/" } else { b"" };
        let name = [path, slash].concat();
        put(&mut header.as_old_mut().name, &name);
        put(&mut header.as_old_mut().linkname, target);
        header.set_size(size.min(NUMBER_MAX));
        header.set_uid(attr.uid.min(ID_MAX).into());
        header.set_gid(attr.gid.min(ID_MAX).into());
        header.set_mtime(attr.mtime.sec.clamp(0, NUMBER_MAX as i64) as u64);
        if name.len() > NAME_MAX {
            records.add(b"path", &name);
        }
        if target.len() > NAME_MAX {
            records.add(b"linkpath", target);
        }
        if size > NUMBER_MAX {
            records.add(b"size", size.to_string().as_bytes());
        }
        if attr.uid > ID_MAX {
            records.add(b"uid", attr.uid.to_string().as_bytes());
        }
        if attr.gid > ID_MAX {
            records.add(b"gid", attr.gid.to_string().as_bytes());
        }
        if attr.mtime.nsec > 0 || !(0..=NUMBER_MAX as i64).contains(&attr.mtime.sec) {
            records.add(b"mtime", decimal(attr.mtime).as_bytes());
        }
        self.records(&records)?;
        header.set_cksum();
        Ok(self.out.write_all(header.as_bytes())?)
    }

    fn records(&mut self, records: &Records) -> Result<()> {
        if records.0.is_empty() {
            return Ok(());
        }
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        put(&mut header.as_old_mut().name, b"./PaxHeaders/entry");
        header.set_size(records.0.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(&records.0)?;
        self.pad(records.0.len() as u64)
    }

    fn pad(&mut self, size: u64) -> Result<()> {
        let more = (size.next_multiple_of(BLOCK as u64) - size) as usize;
        Ok(self.out.write_all(&[0; BLOCK][..more])?)
    }
}

/// As much as the field takes: a longer one is in a record.
fn put(field: &mut [u8; NAME_MAX], text: &[u8]) {
    let len = text.len().min(NAME_MAX);
    field[..len].copy_from_slice(&text[..len]);
}

/// Seconds with their fraction. One before 1970 counts back from the next second.
fn decimal(time: kedgefs::Timespec) -> String {
    if time.sec >= 0 || time.nsec == 0 {
        return format!("{}.{:09}", time.sec, time.nsec);
    }
    format!("-{}.{:09}", -(time.sec + 1), 1_000_000_000 - time.nsec)
}

/// Extension records: `LENGTH KEY=VALUE\n`, where the length counts its own digits.
#[derive(Default)]
struct Records(Vec<u8>);

impl Records {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        let rest = key.len() + value.len() + 3;
        let mut len = rest + 1;
        while len != rest + len.to_string().len() {
            len = rest + len.to_string().len();
        }
        self.0.extend_from_slice(len.to_string().as_bytes());
        self.0.extend([b" ", key, b"=", value, b"\n"].concat());
    }
}

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
