//! The range of the file that msync(2) writes, in which a thread waits.
//!
//! FUSE has one request for fsync(2) and msync(2), without a range. The kernel has written the
//! dirty pages of the range, and only these, when the request arrives. Pages of the file that are
//! outside the range, and that it wrote earlier at the recorder's wish, are in no place that msync
//! promises. So the range matters, and `/proc/TID/syscall` has it, as addresses.

use crate::maps::{self, Mapping, hex, mappings};
use std::{fs, io};

/// What a thread waits for that makes a file durable.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Persists {
    /// fsync(2), fdatasync(2) or a write with `O_SYNC`.
    File,
    /// msync(2), with these ranges of the file: more than one if several mappings of it lie next to
    /// each other. The kernel then sends a request for each, and the first is taken for all of
    /// them.
    Ranges(Vec<(u64, u64)>),
}

/// A file, as a list of mappings names it.
#[derive(Clone, Copy)]
pub(crate) struct Named {
    pub device: (u32, u32),
    pub ino: u64,
}

/// What the thread waits for, which called for the persistence of this file.
pub(crate) fn waits_for(tid: u32, file: Named) -> io::Result<Persists> {
    let call = fs::read_to_string(format!("/proc/{tid}/syscall"))?;
    match msync(&call) {
        None => Ok(Persists::File),
        Some((start, end)) => {
            let ranges = ranges(&maps::read(tid)?, start, end, file);
            match ranges.is_empty() {
                true => Err(io::Error::new(io::ErrorKind::NotFound, "the mapping of the msync is gone")),
                false => Ok(Persists::Ranges(ranges)),
            }
        }
    }
}

/// The addresses of an msync, from the line that the kernel has for a waiting thread: the number of
/// the call and its arguments.
fn msync(call: &str) -> Option<(u64, u64)> {
    let mut words = call.split_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let (start, len) = (hex(words.next()?)?, hex(words.next()?)?);
    (number == libc::SYS_msync).then_some((start, start.saturating_add(len)))
}

/// The parts of a file that are mapped between two addresses.
fn ranges(maps: &str, start: u64, end: u64, file: Named) -> Vec<(u64, u64)> {
    let part = |m: Mapping<'_>| {
        let (from, to) = (m.range.start.max(start), m.range.end.min(end));
        let is_inside = m.device == file.device && m.ino == file.ino && from < to;
        let place = |at: u64| m.offset.saturating_add(at - m.range.start);
        is_inside.then(|| (place(from), place(to)))
    };
    mappings(maps).filter_map(part).collect()
}

#[cfg(test)]
#[path = "msync_tests.rs"]
mod tests;
