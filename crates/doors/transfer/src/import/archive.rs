//! Reads a tar stream as entries: ustar, GNU and POSIX (pax) headers, long names, sparse files.
//!
//! The numbers in a header are parsed by the crate `tar`. Its iterator over entries is not used: it
//! keeps extension headers of any size in memory, splits attributes at line ends that they contain,
//! and reads sparse files of POSIX archives as if their map were data.
//!
//! Nothing in a stream is trusted: each header's checksum is verified, everything kept in memory is
//! bounded, and the data ranges of a sparse file must ascend and match the size of the data.

use super::read_full;
use super::sink::Ranges;
use anyhow::{Context, Result, bail, ensure};
use kedgefs::Timespec;
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Bound;
use tar::{EntryType, GnuExtSparseHeader, Header};

const BLOCK: usize = 512;
/// The most bytes of a path or of a link's target.
const NAME_MAX: u64 = 64 << 10;
/// The most bytes of an entry's extension records: enough for many attributes of the largest size.
/// Also the most bytes of all global records together, which stay in memory until the end.
const PAX_MAX: u64 = 4 << 20;
/// The most data ranges of a sparse file.
const RANGES_MAX: usize = 1 << 20;

/// Extension records by their key.
type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// The records that apply to an entry: its own, and the global ones that it does not replace.
struct Applying<'a> {
    local: &'a Records,
    global: &'a Records,
}

impl<'a> Applying<'a> {
    fn get(&self, key: &str) -> Option<&'a Vec<u8>> {
        self.local.get(key.as_bytes()).or_else(|| self.global.get(key.as_bytes()))
    }

    /// The records whose keys begin with this text.
    fn with_prefix(&self, prefix: &'a [u8]) -> impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)> + use<'a> {
        let begin = move |records: &'a Records| {
            let from = records.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded));
            from.take_while(move |(key, _)| key.starts_with(prefix))
        };
        let local = self.local;
        begin(local).chain(begin(self.global).filter(move |(key, _)| !local.contains_key(*key)))
    }

    fn has_prefix(&self, prefix: &'a [u8]) -> bool {
        self.with_prefix(prefix).next().is_some()
    }
}

/// One entry. Its data follows in the [`Archive`].
#[derive(Debug)]
pub struct Entry {
    pub path: Vec<u8>,
    /// Target of a link.
    pub link: Vec<u8>,
    pub kind: EntryType,
    /// The size of the file, including its holes.
    pub size: u64,
    pub ranges: Ranges,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timespec,
    pub device: (u32, u32),
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The keys of extensions that cannot be preserved.
    pub unsupported: Vec<String>,
}

pub struct Archive<R> {
    reader: R,
    /// Bytes read.
    at: u64,
    /// Bytes of the entry's data that have not been read.
    data: u64,
    padding: u64,
    global: Records,
    /// Bytes of the keys and values in `global`.
    global_bytes: usize,
}

impl<R: Read> Archive<R> {
    pub fn new(reader: R) -> Archive<R> {
        Archive { reader, at: 0, data: 0, padding: 0, global: Records::new(), global_bytes: 0 }
    }

    /// Skips the rest of the previous entry and returns the next, or `None` at the end.
    pub fn next(&mut self) -> Result<Option<Entry>> {
        let (mut local, mut name, mut link) = (Records::new(), None, None);
        loop {
            self.skip_data()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let place = self.at - BLOCK as u64;
            let size = header.entry_size().with_context(|| format!("header at byte {place}"))?;
            match header.entry_type() {
                EntryType::XHeader => local = self.records(size)?,
                EntryType::XGlobalHeader => {
                    for (key, value) in self.records(size)? {
                        let key_bytes = key.len();
                        self.global_bytes += key_bytes + value.len();
                        if let Some(old) = self.global.insert(key, value) {
                            self.global_bytes -= key_bytes + old.len();
                        }
                    }
                    ensure!(
                        self.global_bytes as u64 <= PAX_MAX,
                        "global extension headers before byte {} hold more than {PAX_MAX} bytes",
                        self.at
                    );
                }
                EntryType::GNULongName => name = Some(self.long(size)?),
                EntryType::GNULongLink => link = Some(self.long(size)?),
                // A volume label, which is not a file.
                kind if kind.as_byte() == b'V' => self.expect_data(size),
                _ => {
                    // `entry` reads data, which needs the archive.
                    let global = std::mem::take(&mut self.global);
                    let records = Applying { local: &local, global: &global };
                    let entry = self.entry(&header, &records, name, link);
                    self.global = global;
                    return entry.with_context(|| format!("entry at byte {place}")).map(Some);
                }
            }
        }
    }

    /// A reader of the entry's remaining data, in the order of the ranges.
    pub fn data(&mut self) -> impl Read + '_ {
        Data(self)
    }

    /// Reads the stream to its end, so that a program that writes it to a pipe does not get
    /// SIGPIPE.
    pub fn drain(&mut self) -> Result<()> {
        std::io::copy(&mut self.reader, &mut std::io::sink()).context("read the end of the archive")?;
        Ok(())
    }

    fn expect_data(&mut self, size: u64) {
        self.data = size;
        // The padding up to the next block, correct also where rounding up would overflow.
        self.padding = size.wrapping_neg() % BLOCK as u64;
    }

    fn skip_data(&mut self) -> Result<()> {
        let left = self.data.saturating_add(self.padding);
        (self.data, self.padding) = (0, 0);
        let skipped = std::io::copy(&mut (&mut self.reader).take(left), &mut std::io::sink())?;
        self.at += skipped;
        // The padding after the last entry may be missing; then no header follows either.
        Ok(())
    }

    /// Reads the next header; `None` at the end of the archive.
    fn header(&mut self) -> Result<Option<Header>> {
        let mut bytes = [0; BLOCK];
        let got = read_full(&mut self.reader, &mut bytes).context("read the archive")?;
        let place = self.at;
        self.at += got as u64;
        match got {
            0 if place == 0 => bail!("the archive is empty"),
            // GNU tar also accepts an archive without its two blocks of zeros.
            0 => return Ok(None),
            BLOCK => {}
            _ => bail!("the archive ends in the middle of a header, at byte {}", self.at),
        }
        if bytes.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let header = Header::from_byte_slice(&bytes).clone();
        let sum: u32 = bytes[..148].iter().chain(&bytes[156..]).map(|b| u32::from(*b)).sum::<u32>() + 8 * 32;
        ensure!(
            header.cksum().is_ok_and(|told| told == sum),
            "byte {place}: not a tar header (wrong checksum)"
        );
        Ok(Some(header))
    }

    fn keep(&mut self, size: u64, max: u64, what: &str) -> Result<Vec<u8>> {
        ensure!(size <= max, "{what} of {size} bytes at byte {}: more than {max}", self.at);
        self.expect_data(size);
        let mut bytes = Vec::new();
        self.data().take(size).read_to_end(&mut bytes).with_context(|| format!("read {what}"))?;
        ensure!(bytes.len() as u64 == size, "the archive ends in the middle of {what}");
        Ok(bytes)
    }

    fn long(&mut self, size: u64) -> Result<Vec<u8>> {
        let mut bytes = self.keep(size, NAME_MAX, "a long name")?;
        bytes.truncate(bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len()));
        Ok(bytes)
    }

    fn records(&mut self, size: u64) -> Result<Records> {
        let bytes = self.keep(size, PAX_MAX, "an extension header")?;
        parse_records(&bytes).with_context(|| format!("extension header before byte {}", self.at))
    }

    fn entry(
        &mut self,
        header: &Header,
        records: &Applying<'_>,
        name: Option<Vec<u8>>,
        link: Option<Vec<u8>>,
    ) -> Result<Entry> {
        let text = |key: &str| records.get(key);
        let number = |key: &str| -> Result<Option<u64>> {
            text(key).map(|value| decimal(value).with_context(|| format!("extension {key}"))).transpose()
        };
        let mut size = number("size")?.map_or_else(|| header.entry_size(), Ok)?;
        let (mut real, mut ranges) = (size, vec![(0, size)]);
        self.expect_data(size);
        if header.entry_type() == EntryType::GNUSparse {
            (real, ranges) = self.old_sparse(header)?;
        } else if let Some(major) = number("GNU.sparse.major")? {
            ensure!(major == 1, "a sparse file of format {major}, which is not known");
            real = number("GNU.sparse.realsize")?.context("a sparse file without its size")?;
            ranges = self.sparse_map()?;
            size = self.data;
        } else if records.has_prefix(b"GNU.sparse.") {
            bail!("a sparse file of format 0, which is not known; GNU tar writes 1.0 and its own");
        }
        check_ranges(&ranges, size, real)?;
        ranges.retain(|(_, len)| *len > 0);
        let id = |key: &str, told: std::io::Result<u64>| -> Result<u32> {
            let id = number(key)?.map_or(told, Ok).with_context(|| key.to_owned())?;
            u32::try_from(id)
                .ok()
                .filter(|id| *id != u32::MAX)
                .with_context(|| format!("{key} {id} is too large"))
        };
        let mtime = match text("mtime") {
            Some(value) => timestamp(value).context("extension mtime")?,
            None => Timespec { sec: header.mtime().context("mtime")?.try_into().context("mtime")?, nsec: 0 },
        };
        let path = text("GNU.sparse.name").or(text("path")).cloned().or(name);
        let link = text("linkpath").cloned().or(link);
        let device = (header.device_major().ok().flatten(), header.device_minor().ok().flatten());
        Ok(Entry {
            path: path.unwrap_or_else(|| header.path_bytes().into_owned()),
            link: link.or_else(|| header.link_name_bytes().map(Into::into)).unwrap_or_default(),
            kind: header.entry_type(),
            size: real,
            ranges,
            mode: header.mode().context("mode")? & 0o7777,
            uid: id("uid", header.uid())?,
            gid: id("gid", header.gid())?,
            mtime,
            device: (device.0.unwrap_or(0), device.1.unwrap_or(0)),
            xattrs: xattrs(records),
            unsupported: unsupported(records),
        })
    }

    /// GNU's old format: ranges in the header, further ranges in the blocks after it.
    fn old_sparse(&mut self, header: &Header) -> Result<(u64, Ranges)> {
        let gnu = header.as_gnu().context("a sparse file in a header that is not GNU's")?;
        let mut ranges = Ranges::new();
        let mut more = gnu.is_extended();
        for range in gnu.sparse.iter().filter(|r| !r.is_empty()) {
            ranges.push((range.offset()?, range.length()?));
        }
        while more {
            let mut block = GnuExtSparseHeader::new();
            let got = read_full(&mut self.reader, block.as_mut_bytes()).context("read the archive")?;
            self.at += got as u64;
            ensure!(got == BLOCK, "the archive ends in the middle of a map of holes");
            more = block.is_extended();
            for range in block.sparse.iter().filter(|r| !r.is_empty()) {
                ranges.push((range.offset()?, range.length()?));
            }
            ensure!(ranges.len() <= RANGES_MAX, "a sparse file of more than {RANGES_MAX} pieces");
        }
        Ok((gnu.real_size()?, ranges))
    }

    /// Format 1.0: the data begins with the map, which has one decimal number a line and is padded
    /// to a block.
    fn sparse_map(&mut self) -> Result<Ranges> {
        let mut numbers = Vec::new();
        let mut wanted = 1;
        let mut digits = Vec::new();
        while numbers.len() < wanted {
            let mut block = [0; BLOCK];
            let got = read_full(&mut self.data(), &mut block)?;
            ensure!(got == BLOCK, "the archive ends in the middle of a map of holes");
            for byte in block {
                if byte != b'\n' {
                    ensure!(
                        digits.len() < 20 || numbers.len() >= wanted,
                        "a map of holes with a number of 20 digits or more"
                    );
                    digits.push(byte);
                    continue;
                }
                numbers.push(decimal(&digits).context("a map of holes")?);
                digits.clear();
                if numbers.len() == 1 {
                    let pairs = usize::try_from(numbers[0]).unwrap_or(usize::MAX);
                    ensure!(pairs <= RANGES_MAX, "a sparse file of more than {RANGES_MAX} pieces");
                    wanted += 2 * pairs;
                }
                if numbers.len() == wanted {
                    break;
                }
            }
        }
        Ok(numbers[1..].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }
}

struct Data<'a, R>(&'a mut Archive<R>);

impl<R: Read> Read for Data<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let want = buf.len().min(usize::try_from(self.0.data).unwrap_or(usize::MAX));
        let got = self.0.reader.read(&mut buf[..want])?;
        self.0.data -= got as u64;
        self.0.at += got as u64;
        Ok(got)
    }
}

/// Checks that the ranges ascend without overlap, lie within the file and add up to the length of
/// the data.
fn check_ranges(ranges: &[(u64, u64)], data: u64, size: u64) -> Result<()> {
    let (mut end, mut sum) = (0u64, 0u64);
    for &(start, len) in ranges {
        let next = start.checked_add(len).filter(|next| start >= end && *next <= size);
        end = next.context("pieces of a sparse file that overlap or lie outside of it")?;
        sum += len; // at most `end`
    }
    ensure!(sum == data, "a sparse file whose pieces have {sum} bytes, in an entry of {data}");
    Ok(())
}

fn decimal(digits: &[u8]) -> Result<u64> {
    let text = std::str::from_utf8(digits).ok().filter(|t| t.bytes().all(|b| b.is_ascii_digit()));
    text.and_then(|t| t.parse().ok())
        .with_context(|| format!("'{}' is no number", String::from_utf8_lossy(digits)))
}

/// Parses seconds since 1970, possibly negative and with a fraction.
fn timestamp(value: &[u8]) -> Result<Timespec> {
    let text = std::str::from_utf8(value).context("no number")?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let sec: i64 = whole.parse().with_context(|| format!("'{text}' is no number"))?;
    ensure!(fraction.bytes().all(|b| b.is_ascii_digit()), "'{text}' is no number");
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nsec: u32 = digits.parse().expect("nine digits");
    // -1.25 is a quarter of a second before -1.
    if whole.starts_with('-') && nsec > 0 {
        return Ok(Timespec { sec: sec.saturating_sub(1), nsec: 1_000_000_000 - nsec });
    }
    Ok(Timespec { sec, nsec })
}

/// Parses a sequence of `LENGTH KEY=VALUE\n`. The length counts its own digits, and a value may
/// contain any bytes.
fn parse_records(mut bytes: &[u8]) -> Result<Records> {
    let mut records = Records::new();
    while !bytes.is_empty() {
        let space = bytes.iter().position(|b| *b == b' ').context("a record without a length")?;
        let len = usize::try_from(decimal(&bytes[..space])?).unwrap_or(usize::MAX);
        ensure!(
            len > space + 1 && len <= bytes.len() && bytes[len - 1] == b'\n',
            "a record of a wrong length"
        );
        let record = &bytes[space + 1..len - 1];
        let equals = record.iter().position(|b| *b == b'=').context("a record without a value")?;
        records.insert(record[..equals].to_vec(), record[equals + 1..].to_vec());
        bytes = &bytes[len..];
    }
    Ok(records)
}

/// The key of an extended attribute begins with this text.
pub(crate) const XATTR: &[u8] = b"SCHILY.xattr.";

fn xattrs(records: &Applying<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let named = records.with_prefix(XATTR);
    named.map(|(key, value)| (decoded(&key[XATTR.len()..]), value.clone())).collect()
}

/// The name of an attribute as it stands in a key. A key ends at the first `=`, so GNU tar writes
/// `%3D` for `=`, and `%25` for `%`.
pub(crate) fn encoded(name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(name.len());
    for byte in name {
        match byte {
            b'%' => key.extend(b"%25"),
            b'=' => key.extend(b"%3D"),
            byte => key.push(*byte),
        }
    }
    key
}

/// Reverses [`encoded`]. Every other `%` stands for itself: some programs write names as they are.
fn decoded(mut key: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(key.len());
    while let Some(first) = key.first() {
        let (byte, used) = match key.first_chunk() {
            Some(b"%25") => (b'%', 3),
            Some(b"%3D") => (b'=', 3),
            _ => (*first, 1),
        };
        name.push(byte);
        key = &key[used..];
    }
    name
}

/// The records with access rights or attributes in a form that is not supported. `LIBARCHIVE.xattr`
/// only repeats `SCHILY.xattr`.
fn unsupported(records: &Applying<'_>) -> Vec<String> {
    let repeats: &[u8] = if records.has_prefix(XATTR) { b"" } else { b"LIBARCHIVE.xattr." };
    let prefixes = [&b"RHT."[..], b"SCHILY.acl.", repeats].into_iter().filter(|prefix| !prefix.is_empty());
    let lost = prefixes.flat_map(|prefix| records.with_prefix(prefix));
    lost.map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect()
}

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
