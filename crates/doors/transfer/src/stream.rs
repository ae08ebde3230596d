//! The stream of `kedge send`: see `docs/rfcs/0035-send.md`.
//!
//! ```text
//! magic 8 · version 4 · records
//! record   kind 1 · length 4 · payload · CRC32C 4 of (place in the stream 8 · kind · length · payload)
//! ```
//! Numbers are little-endian. The first record is `Begin`, the last one `End`. `Mark` and `End`
//! contain the BLAKE2b hash of the previous mark's hash and all records since. For the first mark,
//! the identities in `Begin` replace that hash. So the last hash covers all records, including
//! those that an interrupted run has sent.
//!
//! A reader trusts nothing: it checks a length before it allocates memory for it.

use anyhow::{Context, Result, anyhow, bail, ensure};
use blake2::digest::consts::U32;
use blake2::{Blake2b, Digest};
use kedgefs::{Timespec, TreeIdentity};
use std::io::{self, Read, Write};

pub const MAGIC: [u8; 8] = *b"KEDGESND";
const VERSION: u32 = 1;
/// Limit for the bytes of file data in a record.
pub const DATA_MAX: usize = 256 << 10;
/// Limit for the bytes of a payload.
const PAYLOAD_MAX: usize = DATA_MAX + 1024;
const HEAD: usize = 5;

pub type Hash = [u8; 32];

/// The progress of a transfer: the number of the last mark, and its hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token {
    pub mark: u64,
    pub hash: Hash,
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.mark, TreeIdentity(self.hash))
    }
}

impl std::str::FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Token, String> {
        let read = || {
            let (mark, hex) = text.split_once('-')?;
            let bytes: Option<Vec<u8>> = (0..64)
                .step_by(2)
                .map(|i| hex.get(i..i + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok()))
                .collect();
            let hash = bytes.filter(|_| hex.len() == 64)?.try_into().ok()?;
            Some(Token { mark: mark.parse().ok().filter(|mark| *mark > 0)?, hash })
        };
        read().ok_or_else(|| "it must be what `kedge receive` printed".into())
    }
}

macro_rules! records {
    ($($(#[$doc:meta])* $number:literal $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {
        /// A record of the stream. Inode numbers are those within the tree.
        #[derive(Clone, PartialEq, Debug)]
        pub enum Record { $($(#[$doc])* $name { $($field: $kind),* }),* }

        impl Record {
            fn encode(&self, out: &mut Vec<u8>) -> u8 {
                match self { $(Record::$name { $($field),* } => { $($field.put(out);)* $number })* }
            }

            fn decode(kind: u8, mut bytes: &[u8]) -> Option<Record> {
                let from = &mut bytes;
                let record = match kind {
                    $($number => Record::$name { $($field: <$kind>::take(from)?),* },)*
                    _ => return None,
                };
                bytes.is_empty().then_some(record)
            }
        }
    };
}

records! {
    /// The identity of the tree and that of its base (zeros for none), the mark after which the
    /// stream continues with its hash (zeros for none), and the name of the tree at the source.
    1 Begin { id: Hash, base: Hash, mark: u64, hash: Hash, name: Vec<u8> }
    /// Makes an inode, unless it exists. Its name is `name`, or with `dir` 0 a preliminary one.
    2 New { ino: u64, dir: u64, name: Vec<u8>, mode: u32, rdev: u64, flags: u32, target: Vec<u8> }
    3 Size { ino: u64, size: u64 }
    4 Data { ino: u64, offset: u64, bytes: Vec<u8> }
    /// Reserves space without data.
    5 Reserve { ino: u64, offset: u64, len: u64 }
    6 Punch { ino: u64, offset: u64, len: u64 }
    7 Xattr { ino: u64, name: Vec<u8>, value: Vec<u8> }
    8 NoXattr { ino: u64, name: Vec<u8> }
    /// Removes a name of an inode that stays. An inode without another name gets a preliminary one.
    9 Take { dir: u64, name: Vec<u8>, ino: u64 }
    /// Removes a name of an inode that is deleted: a directory with its remaining contents.
    10 Remove { dir: u64, name: Vec<u8>, ino: u64 }
    /// Adds a name to an inode.
    11 Name { dir: u64, name: Vec<u8>, ino: u64 }
    /// All names were added, so the preliminary names of files can be removed.
    12 Named {}
    /// The attributes of an inode, after all its other records.
    13 Attr {
        ino: u64, mode: u32, uid: u32, gid: u32, flags: u32, nlink: u32, size: u64,
        atime: Timespec, mtime: Timespec, ctime: Timespec,
    }
    14 Mark { number: u64, hash: Hash }
    15 End { hash: Hash }
}

/// A field of a record.
trait Part: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(from: &mut &[u8]) -> Option<Self>;
}

impl Part for u32 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }

    fn take(from: &mut &[u8]) -> Option<u32> {
        Some(u32::from_le_bytes(*from.split_off(..4)?.first_chunk()?))
    }
}

impl Part for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }

    fn take(from: &mut &[u8]) -> Option<u64> {
        Some(u64::from_le_bytes(*from.split_off(..8)?.first_chunk()?))
    }
}

impl Part for Hash {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self);
    }

    fn take(from: &mut &[u8]) -> Option<Hash> {
        Some(*from.split_off(..32)?.first_chunk()?)
    }
}

impl Part for Vec<u8> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend(self);
    }

    fn take(from: &mut &[u8]) -> Option<Vec<u8>> {
        let len = u32::take(from)? as usize;
        Some(from.split_off(..len)?.to_vec())
    }
}

impl Part for Timespec {
    fn put(&self, out: &mut Vec<u8>) {
        (self.sec as u64).put(out);
        self.nsec.put(out);
    }

    fn take(from: &mut &[u8]) -> Option<Timespec> {
        let time = Timespec { sec: u64::take(from)? as i64, nsec: u32::take(from)? };
        (time.nsec < 1_000_000_000).then_some(time)
    }
}

fn new_hash(before: &[&[u8]]) -> Blake2b<U32> {
    let mut hash = Blake2b::<U32>::new();
    before.iter().for_each(|part| hash.update(part));
    hash
}

fn crc(place: u64, head: &[u8], payload: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&place.to_le_bytes()), head);
    crc32c::crc32c_append(crc, payload)
}

/// Writes a stream. When it resumes, the records before the mark are hashed but not written again.
pub struct Writer<W> {
    out: W,
    place: u64,
    hash: Blake2b<U32>,
    /// Bytes since the last mark, and that mark's number.
    bytes: u64,
    mark: u64,
    mark_bytes: u64,
    resume: Option<Token>,
    payload: Vec<u8>,
}

impl<W: Write> Writer<W> {
    pub fn begin(
        out: W,
        (id, base): (Hash, Hash),
        name: &[u8],
        mark_bytes: u64,
        resume: Option<Token>,
    ) -> Result<Writer<W>> {
        let (place, bytes, mark, payload) = (0, 0, 0, Vec::new());
        let hash = new_hash(&[&id, &base]);
        let mut writer = Writer { out, place, hash, bytes, mark, mark_bytes, resume, payload };
        writer.out.write_all(&MAGIC)?;
        writer.out.write_all(&VERSION.to_le_bytes())?;
        let after = resume.unwrap_or(Token { mark: 0, hash: [0; 32] });
        let name = name.to_vec();
        writer.write(&Record::Begin { id, base, mark: after.mark, hash: after.hash, name })?;
        Ok(writer)
    }

    /// Whether an earlier run has sent the next record, so that its data need not be read.
    pub fn is_past(&self) -> bool {
        self.resume.is_some()
    }

    fn write(&mut self, record: &Record) -> Result<()> {
        self.payload.clear();
        let kind = record.encode(&mut self.payload);
        let mut head = [kind; HEAD];
        head[1..].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        let sum = crc(self.place, &head, &self.payload);
        self.place += 1;
        for part in [&head[..], &self.payload, &sum.to_le_bytes()] {
            self.out.write_all(part)?;
        }
        if !matches!(record, Record::Begin { .. } | Record::Mark { .. } | Record::End { .. }) {
            self.hash.update(head);
            self.hash.update(&self.payload);
        }
        Ok(())
    }

    pub fn put(&mut self, record: &Record) -> Result<()> {
        if self.resume.is_none() {
            self.write(record)?;
        } else {
            self.payload.clear();
            record.encode(&mut self.payload);
        }
        self.bytes += (HEAD + self.payload.len()) as u64;
        if self.bytes >= self.mark_bytes { self.mark() } else { Ok(()) }
    }

    fn mark(&mut self) -> Result<()> {
        self.bytes = 0;
        self.mark += 1;
        let hash = match self.resume {
            Some(token) if token.mark == self.mark => {
                self.resume = None;
                token.hash
            }
            Some(_) => return Ok(()),
            None => {
                let hash: Hash = self.hash.clone().finalize().into();
                self.write(&Record::Mark { number: self.mark, hash })?;
                hash
            }
        };
        self.hash = new_hash(&[&hash]);
        Ok(())
    }

    pub fn end(mut self) -> Result<()> {
        if let Some(token) = self.resume {
            bail!("the stream has {} marks, and is to go on after mark {}", self.mark, token.mark);
        }
        let hash = self.hash.clone().finalize().into();
        self.write(&Record::End { hash })?;
        Ok(self.out.flush()?)
    }
}

/// Reads until `bytes` is full. If the stream ends before, `cut` is the text of the error.
fn fill(input: &mut impl Read, bytes: &mut [u8], cut: impl Fn() -> String) -> Result<()> {
    input.read_exact(bytes).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => anyhow!(cut()),
        _ => anyhow::Error::new(e).context("read the stream"),
    })
}

/// Reads a stream and verifies its checksums and hashes.
pub struct Reader<R> {
    input: R,
    place: u64,
    hash: Blake2b<U32>,
    mark: u64,
    payload: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Returns the first record with the reader.
    pub fn begin(input: R) -> Result<(Reader<R>, Record)> {
        let mut reader = Reader { input, place: 0, hash: new_hash(&[]), mark: 0, payload: Vec::new() };
        let mut magic = [0; 12];
        fill(&mut reader.input, &mut magic, || "the stream has no beginning".to_owned())?;
        ensure!(magic[..8] == MAGIC, "not a stream of kedge send");
        let version = u32::from_le_bytes(*magic.last_chunk().expect("twelve bytes"));
        ensure!(version == VERSION, "a stream of version {version}; this program knows version {VERSION}");
        let first = reader.read()?;
        let Record::Begin { id, base, mark, hash, .. } = &first else { bail!("the stream has no beginning") };
        reader.mark = *mark;
        reader.hash = if *mark == 0 { new_hash(&[id, base]) } else { new_hash(&[hash]) };
        Ok((reader, first))
    }

    fn read(&mut self) -> Result<Record> {
        let place = self.place;
        let cut = || format!("the stream is cut at record {place}, before its end");
        let mut head = [0; HEAD];
        fill(&mut self.input, &mut head, cut)?;
        let len = u32::from_le_bytes(*head.last_chunk().expect("five bytes")) as usize;
        ensure!(len <= PAYLOAD_MAX, "the stream is damaged at record {place}: {len} bytes");
        self.payload.resize(len, 0);
        fill(&mut self.input, &mut self.payload, cut)?;
        let mut sum = [0; 4];
        fill(&mut self.input, &mut sum, cut)?;
        ensure!(
            crc(place, &head, &self.payload) == u32::from_le_bytes(sum),
            "the stream is damaged at record {place}: its checksum does not match"
        );
        self.place += 1;
        let record = Record::decode(head[0], &self.payload);
        let record = record.with_context(|| format!("record {place} of kind {} is malformed", head[0]))?;
        if !matches!(record, Record::Begin { .. } | Record::Mark { .. } | Record::End { .. }) {
            self.hash.update(head);
            self.hash.update(&self.payload);
        }
        Ok(record)
    }

    /// Returns the next record. Verifies the hash of a `Mark` or `End`.
    pub fn record(&mut self) -> Result<Record> {
        let record = self.read()?;
        let place = self.place - 1;
        let found: Hash = match &record {
            Record::Mark { number, hash } => {
                self.mark += 1;
                ensure!(*number == self.mark, "mark {number} comes at the place of mark {}", self.mark);
                *hash
            }
            Record::End { hash } => *hash,
            Record::Begin { .. } => bail!("record {place} is a second beginning"),
            _ => return Ok(record),
        };
        let hash: Hash = self.hash.clone().finalize().into();
        ensure!(found == hash, "the stream is damaged before record {place}: its hash does not match");
        self.hash = new_hash(&[&hash]);
        Ok(record)
    }

    /// The number of the last record, counted from the beginning of the stream.
    pub fn place(&self) -> u64 {
        self.place.saturating_sub(1)
    }
}

/// Builds a stream from records, with correct checksums and hashes.
#[cfg(test)]
pub fn sealed(records: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut out = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
    let mut hash = new_hash(&[records.first().map_or(&[], |first| first.1.get(..64).unwrap_or(&[]))]);
    let mut mark: u64 = 0;
    for (place, (kind, payload)) in records.iter().enumerate() {
        let mut payload = payload.clone();
        let found: Hash = hash.clone().finalize().into();
        match *kind {
            14 => {
                mark += 1;
                payload = [&mark.to_le_bytes()[..], &found].concat();
                hash = new_hash(&[&found]);
            }
            15 => payload = found.to_vec(),
            _ => {}
        }
        let mut head = [*kind; HEAD];
        head[1..].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        if !matches!(kind, 1 | 14 | 15) {
            hash.update(head);
            hash.update(&payload);
        }
        let sum = crc(place as u64, &head, &payload);
        out = [&out[..], &head, &payload, &sum.to_le_bytes()].concat();
    }
    out
}
