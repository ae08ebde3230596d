//! A growing file whose space is allocated ahead of its contents.
//!
//! Each event is written to the kernel before its call returns. A write that extends a file
//! allocates a page and space in the file system, while a write into existing pages only copies. So
//! zeros are written ahead, many pages at a time, and the events overwrite them.
//!
//! [`Ahead::end`] removes the zeros after the last byte. A killed recorder leaves them, and a
//! reader treats them as the end ([`kedge_crash::kcr`]).

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

/// The number of zeros that are written at once. They fit into the cache of a processor.
const STEP: usize = 64 << 10;
static ZEROS: [u8; STEP] = [0; STEP];

pub(crate) struct Ahead {
    file: File,
    /// The offset of the next bytes.
    len: u64,
    /// The end of the zeros. `None` if the file is not regular, so that it can only be appended to.
    zeros_end: Option<u64>,
}

impl Ahead {
    /// Takes a file that is empty or not regular.
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
        // If the zeros cannot be written, for example on a full file system, each write allocates
        // its own space and reports an error if there is none.
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
