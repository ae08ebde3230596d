//! Streams whose length is unknown at their beginning, in frames. A frame has its length in 4 bytes
//! before its contents. An empty frame ends the stream; other bytes may follow it.

use super::CHUNK;
use std::io::{self, Read, Write};

/// Writes frames of at most [`CHUNK`] bytes.
pub(super) struct FrameWriter<W> {
    out: W,
    /// Bytes that are not yet written, for the next frame.
    waiting: Vec<u8>,
}

impl<W: Write> FrameWriter<W> {
    pub(super) fn new(out: W) -> FrameWriter<W> {
        FrameWriter { out, waiting: Vec::with_capacity(CHUNK) }
    }

    /// Writes the remaining bytes and the end mark.
    pub(super) fn end(mut self) -> io::Result<()> {
        self.flush()?;
        self.out.write_all(&0u32.to_le_bytes())
    }
}

impl<W: Write> Write for FrameWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(CHUNK - self.waiting.len());
        self.waiting.extend_from_slice(&bytes[..n]);
        if self.waiting.len() == CHUNK {
            self.flush()?;
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.waiting.is_empty() {
            self.out.write_all(&(self.waiting.len() as u32).to_le_bytes())?;
            self.out.write_all(&self.waiting)?;
            self.waiting.clear();
        }
        Ok(())
    }
}

/// Reads frames until the end mark. A connection that ends before the mark is an error.
pub(super) struct FrameReader<'a, R> {
    from: &'a mut R,
    left: usize,
    has_ended: bool,
}

impl<'a, R: Read> FrameReader<'a, R> {
    pub(super) fn new(from: &'a mut R) -> FrameReader<'a, R> {
        FrameReader { from, left: 0, has_ended: false }
    }
}

impl<R: Read> Read for FrameReader<'_, R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.has_ended && !to.is_empty() {
            let mut len = [0; 4];
            self.from.read_exact(&mut len)?;
            self.left = u32::from_le_bytes(len) as usize;
            self.has_ended = self.left == 0;
        }
        let n = to.len().min(self.left);
        let n = match n {
            0 => return Ok(0),
            n => self.from.read(&mut to[..n])?,
        };
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= n;
        Ok(n)
    }
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
