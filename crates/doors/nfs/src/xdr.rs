//! XDR (RFC 4506): the encoding of all arguments and results.
//!
//! A [`Reader`] never allocates: it returns slices of the message, whose length the transport has
//! bounded.

/// The arguments of a call cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

pub(crate) type Decoded<T> = Result<T, Malformed>;

/// The length on the wire of `len` bytes, which are padded to a multiple of four.
pub(crate) const fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// Reads values one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub(crate) fn fixed<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u32(&mut self) -> Decoded<u32> {
        self.fixed().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Decoded<u64> {
        self.fixed().map(u64::from_be_bytes)
    }

    pub(crate) fn bool(&mut self) -> Decoded<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    /// Reads opaque data of variable length, at most `max` bytes.
    pub(crate) fn opaque(&mut self, max: usize) -> Decoded<&'a [u8]> {
        let len = self.u32()? as usize;
        if len > max || padded(len) > self.rest.len() {
            return Err(Malformed);
        }
        let (bytes, rest) = self.rest.split_at(padded(len));
        self.rest = rest;
        Ok(&bytes[..len])
    }

    pub(crate) fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Decoded<T>) -> Decoded<Option<T>> {
        match self.bool()? {
            true => read(self).map(Some),
            false => Ok(None),
        }
    }
}

/// Appends values to a message.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn fixed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn u32(&mut self, n: u32) {
        self.fixed(&n.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, n: u64) {
        self.fixed(&n.to_be_bytes());
    }

    pub(crate) fn bool(&mut self, yes: bool) {
        self.u32(u32::from(yes));
    }

    pub(crate) fn opaque(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.fixed(bytes);
        self.bytes.resize(self.bytes.len() + padded(bytes.len()) - bytes.len(), 0);
    }

    pub(crate) fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
#[path = "xdr_tests.rs"]
mod tests;
