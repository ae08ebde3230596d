//! Writes tar archives in the POSIX format (pax) as GNU tar writes it, with names of any length,
//! times to the nanosecond, extended attributes, and sparse files in format 1.0.

use crate::import::archive::{XATTR, encoded};
use crate::import::read_full;
use crate::import::sink::{Data, Meta};
use anyhow::{Result, bail};
use std::io::Write;
use tar::{EntryType, Header};

/// Bytes of a block of an archive.
const BLOCK: usize = 512;
const CHUNK: usize = 1 << 20;
/// The largest numbers that fit the octal fields of a header.
const ID_MAX: u32 = 0o7_777_777;
const NUMBER_MAX: u64 = 0o77_777_777_777;
const NAME_MAX: usize = 100;

/// A writer of one archive.
pub struct Pax<W> {
    out: W,
    buf: Vec<u8>,
}

/// An entry other than a regular file.
pub struct Entry<'a> {
    pub kind: EntryType,
    pub path: &'a [u8],
    pub meta: &'a Meta,
    /// The target of a link.
    pub target: &'a [u8],
    /// Major and minor number of a device.
    pub device: Option<(u32, u32)>,
}

impl<W: Write> Pax<W> {
    pub fn new(out: W) -> Pax<W> {
        Pax { out, buf: vec![0; CHUNK] }
    }

    pub fn entry(&mut self, entry: &Entry<'_>) -> Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(entry.kind);
        if let Some((major, minor)) = entry.device {
            header.set_device_major(major)?;
            header.set_device_minor(minor)?;
        }
        self.head(header, Records::default(), entry, 0)
    }

    /// Writes a regular file. If the data ends early, this fails and the archive is unusable.
    pub fn file(&mut self, path: &[u8], meta: &Meta, data: Data<'_>) -> Result<()> {
        let mut records = Records::default();
        let mut ranges = data.ranges.to_vec();
        let bytes: u64 = ranges.iter().map(|(_, len)| len).sum();
        let mut map = Vec::new();
        if bytes < data.size {
            // An empty last range in the map marks the end of the file.
            if ranges.last().is_none_or(|(start, len)| start + len < data.size) {
                ranges.push((data.size, 0));
            }
            map = format!("{}\n", ranges.len()).into_bytes();
            ranges
                .iter()
                .for_each(|(start, len)| map.extend_from_slice(format!("{start}\n{len}\n").as_bytes()));
            map.resize(map.len().next_multiple_of(BLOCK), 0);
            records.add(b"GNU.sparse.major", b"1");
            records.add(b"GNU.sparse.minor", b"0");
            records.add(b"GNU.sparse.name", path);
            records.add(b"GNU.sparse.realsize", data.size.to_string().as_bytes());
        }
        let size = map.len() as u64 + bytes;
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        let entry = Entry { kind: EntryType::Regular, path, meta, target: b"", device: None };
        self.head(header, records, &entry, size)?;
        self.out.write_all(&map)?;
        self.copy(bytes, data)?;
        self.pad(size)
    }

    /// Copies `bytes` bytes of data. The reader returns the contents of the ranges, one after
    /// another.
    fn copy(&mut self, bytes: u64, mut data: Data<'_>) -> Result<()> {
        let mut left = bytes;
        while left > 0 {
            let want = left.min(CHUNK as u64) as usize;
            let got = read_full(&mut data.reader, &mut self.buf[..want])?;
            if got < want {
                bail!("ends {} bytes early", left - got as u64);
            }
            self.out.write_all(&self.buf[..got])?;
            left -= got as u64;
        }
        Ok(())
    }

    /// Writes the end of the archive: two blocks of zeros.
    pub fn end(mut self) -> Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Writes the header of an entry, preceded by extension records for values that do not fit into
    /// it.
    fn head(&mut self, mut header: Header, mut records: Records, entry: &Entry<'_>, size: u64) -> Result<()> {
        let Entry { kind, path, meta, target, .. } = entry;
        // The entry of the linked file has the attributes, so a hard link's entry needs none.
        for (name, value) in meta.xattrs.iter().filter(|_| *kind != EntryType::Link) {
            records.add(&[XATTR, &encoded(name)].concat(), value);
        }
        let slash: &[u8] = if *kind == EntryType::Directory { b"/" } else { b"" };
        let name = [path, slash].concat();
        put(&mut header.as_old_mut().name, &name);
        put(&mut header.as_old_mut().linkname, target);
        header.set_size(size.min(NUMBER_MAX));
        header.set_mode(meta.mode);
        header.set_uid(meta.uid.min(ID_MAX).into());
        header.set_gid(meta.gid.min(ID_MAX).into());
        header.set_mtime(meta.mtime.sec.clamp(0, NUMBER_MAX as i64) as u64);
        if name.len() > NAME_MAX {
            records.add(b"path", &name);
        }
        if target.len() > NAME_MAX {
            records.add(b"linkpath", target);
        }
        if size > NUMBER_MAX {
            records.add(b"size", size.to_string().as_bytes());
        }
        if meta.uid > ID_MAX {
            records.add(b"uid", meta.uid.to_string().as_bytes());
        }
        if meta.gid > ID_MAX {
            records.add(b"gid", meta.gid.to_string().as_bytes());
        }
        if meta.mtime.nsec > 0 || !(0..=NUMBER_MAX as i64).contains(&meta.mtime.sec) {
            records.add(b"mtime", decimal(meta.mtime).as_bytes());
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

/// Copies as much of the text as fits into the field. A longer text is also in an extension record.
fn put(field: &mut [u8; NAME_MAX], text: &[u8]) {
    let len = text.len().min(NAME_MAX);
    field[..len].copy_from_slice(&text[..len]);
}

/// Formats a time as decimal seconds since 1970. The fraction counts forward, so -2 s and
/// 750,000,000 ns are -1.25.
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
#[path = "pax_tests.rs"]
mod tests;
