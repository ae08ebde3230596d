//! A growing file whose space is made before it is needed.
//!
//! Each event is written to the kernel before its call returns. A write that makes a file longer
//! allocates a page and space of the file system; a write into pages that are there only copies.
//! So zeros are written ahead, many pages at a time, and the events over them.
//!
//! [`Ahead::end`] removes the zeros after the last byte. A killed recorder leaves them, and a
//! reader takes them for the end ([`kedge_crash::kcr`]).

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

/// Bytes of zeros that are written at a time. They fit into the cache of a processor.
const STEP: usize = 64 << 10;
static ZEROS: [u8; STEP] = [0; STEP];

pub(crate) struct Ahead {
    file: File,
    /// Where the next bytes go.
    len: u64,
    /// Where the zeros end. `None`: the file is no regular one, so it has no place to write at.
    zeros_end: Option<u64>,
}

impl Ahead {
    /// `file` is empty, or not a regular file.
    pub fn new(file: File) -> io::Result<Ahead> {
        let zeros_end = file.metadata()?.is_file().then_some(0);
        Ok(Ahead { file, len: 0, zeros_end })
    }

    /// Removes the zeros at the end.
    pub fn end(self) -> io::Result<()> {
        self.zeros_end.map_or(Ok(()), |_| self.file.set_len(self.len))
    }
}

impl Write for Ahead {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(zeros_end) = self.zeros_end else { return self.file.write(bytes) };
        self.file.write_all_at(bytes, self.len)?;
        self.len += bytes.len() as u64;
        // Without the zeros, on a full file system say, each write makes its own space, and
        // reports it if there is none.
        if self.len > zeros_end && self.file.write_all_at(&ZEROS, self.len).is_ok() {
            self.zeros_end = Some(self.len + STEP as u64);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[path = "ahead_tests.rs"]
mod tests;
