//! The file of a recording (`.kcr`).
//!
//! ```text
//! offset 0   8 bytes  "KEDGEKCR"
//!        8   4 bytes  version (1), little-endian
//!       12   4 bytes  CRC-32C of the 12 bytes before
//!             16   records, one after the other:
//!            4 bytes  length n of the payload, at most 16 MiB
//!            4 bytes  CRC-32C of the length and the payload
//!            n bytes  one event, in postcard encoding
//! ```
//!
//! A record is valid if it is whole, its checksum is right and its payload is one event and nothing
//! else. A recording ends at the first record that is not valid: the records before it are used,
//! and [`Loaded::cut`] says where and why it ended. So the recording of a killed recorder can still
//! be explored. The recorder writes zeros ahead of its records and removes them at the end, so a
//! record that begins with 8 zeros is an end like that of the file.
//!
//! A valid record whose event no program can have caused (the module `vet`) is no damage but a
//! forgery, so the whole recording is refused.

use crate::trace::{Event, Trace};
use crate::vet::vet;
use std::io::{self, Read, Write};

const MAGIC: &[u8; 8] = b"KEDGEKCR";
pub const VERSION: u32 = 1;
const HEAD: usize = 16;
/// The bytes of the length and the checksum of a record.
const RECORD_HEAD: usize = 8;
/// The largest payload in bytes. It is more than the largest call that the kernel sends, a write of
/// one mebibyte.
pub const RECORD_MAX: usize = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum KcrError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("not a recording of kedge crash")]
    NotARecording,
    #[error("the recording has version {0}, this program knows version {VERSION} only")]
    Version(u32),
    #[error("an event of {0} bytes is too large for a recording")]
    TooLarge(usize),
    #[error("an event cannot be encoded: {0}")]
    Encode(postcard::Error),
    #[error("event {number} is none that a program can have made: {why}")]
    Event { number: u64, why: &'static str },
}

/// Writes a recording event by event, each with one write to `out`.
pub struct Writer<W: Write> {
    out: W,
    /// The buffer of the last record, which is reused.
    record: Vec<u8>,
}

impl<W: Write> Writer<W> {
    pub fn new(mut out: W) -> Result<Writer<W>, KcrError> {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(MAGIC);
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let sum = crc32c::crc32c(&head[..12]);
        head[12..].copy_from_slice(&sum.to_le_bytes());
        out.write_all(&head)?;
        Ok(Writer { out, record: Vec::new() })
    }

    pub fn append(&mut self, event: &Event) -> Result<(), KcrError> {
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        record.extend_from_slice(&[0; RECORD_HEAD]);
        record = postcard::to_extend(event, record).map_err(KcrError::Encode)?;
        let (head, payload) = record.split_at_mut(RECORD_HEAD);
        if payload.len() > RECORD_MAX {
            return Err(KcrError::TooLarge(payload.len()));
        }
        let len = (payload.len() as u32).to_le_bytes();
        head[..4].copy_from_slice(&len);
        head[4..].copy_from_slice(&record_sum(&len, payload).to_le_bytes());
        self.out.write_all(&record)?;
        self.record = record;
        Ok(())
    }

    pub fn into_inner(self) -> W {
        self.out
    }
}

fn record_sum(len: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(len), payload)
}

/// The readable part of a recording.
#[derive(Debug)]
pub struct Loaded {
    pub trace: Trace,
    /// If reading stopped before the end of the file: the byte at which it stopped, and the reason.
    pub cut: Option<(u64, &'static str)>,
}

pub fn write(trace: &Trace, out: impl Write) -> Result<(), KcrError> {
    let mut writer = Writer::new(out)?;
    trace.events.iter().try_for_each(|e| writer.append(e))
}

pub fn read(mut from: impl Read) -> Result<Loaded, KcrError> {
    let mut head = [0; HEAD];
    if fill(&mut from, &mut head)? < HEAD || &head[..8] != MAGIC {
        return Err(KcrError::NotARecording);
    }
    if crc32c::crc32c(&head[..12]).to_le_bytes() != head[12..] {
        return Err(KcrError::NotARecording);
    }
    let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    if version != VERSION {
        return Err(KcrError::Version(version));
    }
    let mut loaded = Loaded { trace: Trace::default(), cut: None };
    let mut at = HEAD as u64;
    let mut payload = Vec::new();
    loop {
        match record(&mut from, &mut payload)? {
            Record::End => return Ok(loaded),
            Record::Bad(why) => {
                loaded.cut = Some((at, why));
                return Ok(loaded);
            }
            Record::Event(event) => {
                let number = loaded.trace.events.len() as u64;
                vet(&event, number).map_err(|why| KcrError::Event { number, why })?;
                loaded.trace.events.push(event);
            }
        }
        at += 8 + payload.len() as u64;
    }
}

enum Record {
    End,
    Bad(&'static str),
    Event(Event),
}

fn record(from: &mut impl Read, payload: &mut Vec<u8>) -> io::Result<Record> {
    let mut head = [0; RECORD_HEAD];
    match fill(from, &mut head)? {
        0 => return Ok(Record::End),
        // A killed recorder leaves zeros after the records.
        RECORD_HEAD if head == [0; RECORD_HEAD] => return Ok(Record::End),
        RECORD_HEAD => {}
        _ => return Ok(Record::Bad("it is cut off inside a record")),
    }
    let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    if len > RECORD_MAX {
        return Ok(Record::Bad("a record has an impossible length"));
    }
    payload.clear();
    // Memory is allocated for the bytes that are there, not for the length in the record's head.
    if from.by_ref().take(len as u64).read_to_end(payload)? < len {
        return Ok(Record::Bad("it is cut off inside a record"));
    }
    if record_sum(&head[..4], payload).to_le_bytes() != head[4..] {
        return Ok(Record::Bad("a record has a wrong checksum"));
    }
    match postcard::take_from_bytes::<Event>(payload) {
        Ok((event, [])) => Ok(Record::Event(event)),
        _ => Ok(Record::Bad("a record holds no event")),
    }
}

/// Reads until `buf` is full or the input ends, and returns the number of bytes read.
fn fill(from: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buf.len() {
        match from.read(&mut buf[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(len)
}

#[cfg(test)]
#[path = "kcr_tests.rs"]
mod tests;
