//! The header of an encrypted image: the cipher, and the image's key, wrapped in up to eight key
//! slots.
//!
//! # Layout
//! The header area is the first [`AREA`] bytes. Its first and its last block are two copies of the
//! header, each with a sequence number and a checksum. The second copy lies in the area and not at
//! the end of the image, because extending an image file would change the position of its end. The
//! copies are as far apart as the area permits, so that one overwritten track or erase block does
//! not destroy both.
//!
//! # Valid
//! A copy is valid if
//! 1. it has the magic, and its checksum matches its bytes,
//! 2. version, cipher and length of the area are the values that this module defines,
//! 3. each slot is either free and zero, or has parameters within [`Cost`]'s bounds,
//! 4. at least one slot is used.
//!
//! The valid copy with the higher sequence number is the header.
//!
//! # Crash argument
//! A change first writes the copy that is not the header, with the next sequence number, and
//! flushes; then it writes the other copy, and flushes. A power failure tears at most the copy that
//! is being written. A torn copy has a wrong checksum, or equals the old or the new header. So at
//! any time one valid copy has the old slots or the new slots, and both sets have at least one
//! slot.
//!
//! A change that was interrupted, or failed, between its two writes leaves a copy with the old
//! slots, which a removed secret still opens. So the next change first writes the header to both
//! copies ([`Header::settle`]), even if it is then refused.
//! - If both copies are valid and differ, the first flush of the interrupted change may have
//!   failed. So the header is written once more, while the other copy is valid, and flushed. Then
//!   the other copy is overwritten.
//! - If they are equal, the second flush may have failed, so that one of them is equal only in a
//!   cache. The first flush had succeeded by then, so the other one is durable. Both are written.
//! - If the other copy is invalid, the header is durable, because the second write began after the
//!   first flush had succeeded. Only the other copy is written.
//!
//! Writing a durable header again does not change its bytes, so a power failure does not tear it.

use super::secret::Secret;
use super::slot::{Cost, SLOT, Slot};
use super::xts::KEY;
use crate::Device;
use kedge_base::{BLOCK_SIZE, Error, IoBuf, Result};
use zeroize::Zeroizing;

/// Number of bytes before the first block of the image.
pub const AREA: u64 = 64 << 10;
pub const SLOTS: usize = 8;

const MAGIC: [u8; 8] = *b"KEDGECRY";
const VERSION: u32 = 1;
/// Number of the cipher: AES-256-XTS with units of 512 bytes; the tweak is the number of the unit.
const CIPHER: u32 = 1;
const COPIES: [u64; 2] = [0, AREA - BLOCK_SIZE as u64];
const FIRST_SLOT: usize = 64;
const CHECKSUM: usize = BLOCK_SIZE - 4;
const _: () = assert!(FIRST_SLOT + SLOTS * SLOT <= CHECKSUM);

#[derive(Clone, Debug)]
pub struct Header {
    sequence: u64,
    pub uuid: [u8; 16],
    slots: [Option<Slot>; SLOTS],
}

/// Returns whether the first block of a device belongs to an encrypted image.
pub fn has_magic(block: &[u8]) -> bool {
    block.starts_with(&MAGIC)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("as many bytes were taken")
}

fn damaged(what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("damaged header of an encrypted image: {what}"))
}

impl Header {
    /// Makes a header with one slot.
    pub fn new(key: &[u8; KEY], secret: &Secret, cost: Cost) -> Result<Header> {
        let mut header = Header { sequence: 0, uuid: super::random()?, slots: Default::default() };
        header.add(key, secret, cost)?;
        Ok(header)
    }

    /// Returns the data that a slot's encryption authenticates, so that the slot is useless in
    /// another header or under another number.
    fn binding(uuid: [u8; 16], slot: usize) -> Vec<u8> {
        let numbers = [VERSION, CIPHER, slot as u32].map(u32::to_le_bytes);
        [&MAGIC[..], &uuid, numbers.as_flattened()].concat()
    }

    /// Returns the number and the cost of each used slot.
    pub fn used(&self) -> impl Iterator<Item = (usize, Cost)> {
        self.slots.iter().enumerate().filter_map(|(i, slot)| Some((i, slot.as_ref()?.cost)))
    }

    /// Returns the image's key, and the number of the slot that the secret opens.
    pub fn unlock(&self, secret: &Secret) -> Result<(usize, Zeroizing<[u8; KEY]>)> {
        for (i, slot) in self.slots.iter().enumerate() {
            let Some(slot) = slot else { continue };
            if let Some(key) = slot.open(secret, &Header::binding(self.uuid, i))? {
                return Ok((i, key));
            }
        }
        Err(Error::invalid("the key opens no slot of the encrypted image"))
    }

    /// Wraps the image's key with one more secret. Returns the number of the new slot.
    pub fn add(&mut self, key: &[u8; KEY], secret: &Secret, cost: Cost) -> Result<usize> {
        let free = self.slots.iter().position(Option::is_none);
        let i = free.ok_or_else(|| Error::invalid(format!("all {SLOTS} key slots are used")))?;
        self.slots[i] = Some(Slot::new(key, secret, cost, &Header::binding(self.uuid, i))?);
        Ok(i)
    }

    /// Empties a slot. Refuses to empty the last used slot, because no secret could then open the
    /// image.
    pub fn remove(&mut self, i: usize) -> Result<()> {
        if self.slots.get(i).is_none_or(Option::is_none) {
            return Err(Error::invalid(format!("key slot {i} is not used")));
        }
        if self.used().count() == 1 {
            return Err(Error::invalid(format!(
                "key slot {i} is the last one: without it the image is lost"
            )));
        }
        self.slots[i] = None;
        Ok(())
    }

    fn encode(&self) -> IoBuf {
        let mut buf = IoBuf::zeroed(1);
        let bytes = buf.as_mut_bytes();
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&CIPHER.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.uuid);
        bytes[40..48].copy_from_slice(&AREA.to_le_bytes());
        for (slot, to) in self.slots.iter().zip(bytes[FIRST_SLOT..].chunks_exact_mut(SLOT)) {
            if let Some(slot) = slot {
                slot.encode(to);
            }
        }
        let sum = crc32c::crc32c(&bytes[..CHECKSUM]);
        bytes[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
        buf
    }

    /// Decodes one copy from untrusted bytes.
    pub fn decode(block: &[u8]) -> Result<Header> {
        if block.len() != BLOCK_SIZE || !has_magic(block) {
            return Err(damaged("no magic"));
        }
        if crc32c::crc32c(&block[..CHECKSUM]) != u32::from_le_bytes(number(block, CHECKSUM)) {
            return Err(damaged("wrong checksum"));
        }
        let (version, cipher) = (u32::from_le_bytes(number(block, 8)), u32::from_le_bytes(number(block, 12)));
        let area = u64::from_le_bytes(number(block, 40));
        if (version, cipher, area) != (VERSION, CIPHER, AREA) {
            let what = format!("encryption of version {version}, cipher {cipher}, {area} bytes of header");
            return Err(Error::Unsupported(what.into()));
        }
        let mut slots: [Option<Slot>; SLOTS] = Default::default();
        for (i, (to, bytes)) in slots.iter_mut().zip(block[FIRST_SLOT..].chunks_exact(SLOT)).enumerate() {
            *to = Slot::decode(bytes).map_err(|what| damaged(format!("key slot {i}: {what}")))?;
        }
        if slots.iter().all(Option::is_none) {
            return Err(damaged("no key slot is used"));
        }
        Ok(Header { sequence: u64::from_le_bytes(number(block, 16)), uuid: number(block, 24), slots })
    }

    /// Reads both copies. An error names the damage of a copy.
    fn read_copies(device: &dyn Device) -> Result<[Result<Header>; 2]> {
        if device.geometry().size <= AREA {
            let size = device.geometry().size;
            return Err(damaged(format!(
                "the image is truncated to {size} bytes, its header alone has {AREA}"
            )));
        }
        let read = |at: u64| {
            let mut buf = IoBuf::zeroed(1);
            device.read(at, &mut buf).and_then(|()| Header::decode(buf.as_bytes()))
        };
        Ok(COPIES.map(read))
    }

    /// Returns the header and the number of the copy that holds it.
    fn newest(copies: [Result<Header>; 2]) -> Result<(usize, Header)> {
        match copies {
            [Ok(a), Ok(b)] => Ok(if b.sequence > a.sequence { (1, b) } else { (0, a) }),
            [Ok(a), Err(_)] => Ok((0, a)),
            [Err(_), Ok(b)] => Ok((1, b)),
            [Err(a), Err(b)] => match (a, b) {
                // The error of a copy with an unsupported version is more useful than that of a
                // destroyed copy.
                (a @ Error::Unsupported(_), _) => Err(a),
                (_, b @ Error::Unsupported(_)) => Err(b),
                (a, b) => Err(damaged(format!("both copies: {a}; {b}"))),
            },
        }
    }

    /// Reads the header of an encrypted image.
    pub fn read(device: &dyn Device) -> Result<Header> {
        Header::newest(Header::read_copies(device)?).map(|(_, header)| header)
    }

    /// Writes the header to both copies, so that no copy has slots of before an interrupted change.
    /// Returns the header, and whether the copies differed. The caller holds the device's lock.
    pub fn settle(device: &dyn Device) -> Result<(Header, bool)> {
        let copies = Header::read_copies(device)?;
        let (valid, differ) = match &copies {
            [Ok(a), Ok(b)] => (true, a.encode().as_bytes() != b.encode().as_bytes()),
            _ => (false, false),
        };
        let (newest, header) = Header::newest(copies)?;
        let bytes = header.encode();
        if valid {
            put(device, newest, &bytes)?;
        }
        put(device, 1 - newest, &bytes)?;
        Ok((header, differ))
    }

    /// Returns whether the device holds an encrypted image: either copy has the magic.
    pub fn is_there(device: &dyn Device) -> Result<bool> {
        if device.geometry().size < AREA {
            return Ok(false);
        }
        for at in COPIES {
            let mut buf = IoBuf::zeroed(1);
            device.read(at, &mut buf)?;
            if has_magic(buf.as_bytes()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes the first header of an image, after erasing the whole area.
    pub fn format(&mut self, device: &dyn Device) -> Result<()> {
        if device.geometry().size <= AREA {
            return Err(Error::invalid(format!("an encrypted image has more than {AREA} bytes")));
        }
        device.write(0, &IoBuf::zeroed((AREA / BLOCK_SIZE as u64) as usize), false)?;
        device.flush()?;
        self.advance()?;
        let bytes = self.encode();
        put(device, 1, &bytes)?;
        put(device, 0, &bytes)
    }

    /// Overwrites both copies, so that the device can hold an image without encryption.
    pub fn erase(device: &dyn Device) -> Result<()> {
        for at in COPIES {
            device.write(at, &IoBuf::zeroed(1), false)?;
        }
        device.flush()
    }

    /// Replaces the secret of a slot, and keeps the slot's number.
    pub fn change(&mut self, i: usize, key: &[u8; KEY], secret: &Secret, cost: Cost) -> Result<()> {
        if self.slots.get(i).is_none_or(Option::is_none) {
            return Err(Error::invalid(format!("key slot {i} is not used")));
        }
        self.slots[i] = Some(Slot::new(key, secret, cost, &Header::binding(self.uuid, i))?);
        Ok(())
    }

    /// Replaces the header on the device, with one valid copy at any time. The caller has read
    /// `self` by [`Header::settle`] and still holds the device's lock. An error says whether the
    /// change was made; if so, one copy may still have the old slots until the next
    /// [`Header::settle`].
    pub fn replace(&mut self, device: &dyn Device) -> Result<()> {
        let (newest, _) = Header::newest(Header::read_copies(device)?)?;
        self.advance()?;
        let bytes = self.encode();
        put(device, 1 - newest, &bytes)
            .map_err(|e| Error::invalid(format!("the key slots may have changed or not: {e}")))?;
        put(device, newest, &bytes).map_err(|e| {
            let what = "the key slots have changed, but a copy of the header may still have the old ones";
            Error::invalid(format!("{what}; the next change of a key overwrites it: {e}"))
        })
    }

    fn advance(&mut self) -> Result<()> {
        let next = self.sequence.checked_add(1);
        self.sequence = next.ok_or_else(|| damaged("its sequence number cannot grow"))?;
        Ok(())
    }
}

/// Writes one copy, and makes it durable.
fn put(device: &dyn Device, copy: usize, bytes: &IoBuf) -> Result<()> {
    device.write(COPIES[copy], bytes, false)?;
    device.flush()
}

#[cfg(test)]
#[path = "header_tests.rs"]
mod tests;
