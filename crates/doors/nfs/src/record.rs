//! Record marking (RFC 5531, section 11): splits a stream into messages.

use crate::limits::Limits;
use kedge_base::Clock;
use std::io::{self, ErrorKind, Read};
use std::time::Duration;

/// Time limit for one read of the stream, after which the limits of the peer are checked.
pub(crate) const TICK: Duration = Duration::from_secs(1);

const LAST: u32 = 1 << 31;

/// Reads messages from a stream. A message's buffer grows as its bytes arrive, not by the announced
/// length.
pub(crate) struct Records<'a, S> {
    pub(crate) stream: S,
    pub(crate) limits: &'a Limits,
    pub(crate) clock: &'a dyn Clock,
}

impl<S: Read> Records<'_, S> {
    /// The next message; `None` if the peer has closed the connection between messages.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut message = Vec::new();
        let mut mark = [0; 4];
        // The time for the whole message begins with its first byte.
        let silent_since = self.clock.monotonic();
        if self.some(&mut mark[..1], silent_since, self.limits.idle_time)? == 0 {
            return Ok(None);
        }
        let begun = self.clock.monotonic();
        let mut missing = 1;
        loop {
            self.all(&mut mark[missing..], begun)?;
            missing = 0;
            let mark = u32::from_be_bytes(mark);
            let len = (mark & !LAST) as usize;
            if len > self.limits.message_bytes - message.len() {
                return Err(io::Error::new(ErrorKind::InvalidData, "a message is too long"));
            }
            self.append(&mut message, len, begun)?;
            if mark & LAST != 0 {
                return Ok(Some(message));
            }
        }
    }

    fn append(&mut self, message: &mut Vec<u8>, len: usize, begun: Duration) -> io::Result<()> {
        const STEP: usize = 64 << 10;
        let end = message.len() + len;
        while message.len() < end {
            let start = message.len();
            message.resize(end.min(start + STEP), 0);
            self.all(&mut message[start..], begun)?;
        }
        Ok(())
    }

    fn all(&mut self, mut buffer: &mut [u8], begun: Duration) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.some(buffer, begun, self.limits.message_time)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                n => buffer = &mut buffer[n..],
            }
        }
        // Otherwise a peer that sends a byte before each read times out would escape the limit.
        self.check(begun, self.limits.message_time)
    }

    fn some(&mut self, buffer: &mut [u8], since: Duration, limit: Duration) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                result => {
                    self.check(since, limit)?;
                    return result;
                }
            }
            self.check(since, limit)?;
        }
    }

    fn check(&self, since: Duration, limit: Duration) -> io::Result<()> {
        match self.clock.since(since) > limit {
            true => Err(io::Error::new(ErrorKind::TimedOut, "the peer is too slow")),
            false => Ok(()),
        }
    }
}

/// Returns a message as one record.
pub(crate) fn framed(message: Vec<u8>) -> Vec<u8> {
    let mut record = Vec::with_capacity(message.len() + 4);
    record.extend_from_slice(&(LAST | message.len() as u32).to_be_bytes());
    record.extend_from_slice(&message);
    record
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
