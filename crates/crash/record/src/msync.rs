//! Finds the range of the file that an msync(2) writes, in which a thread waits.
//!
//! FUSE has one request for fsync(2) and msync(2), without a range. The kernel has written the
//! dirty pages of the range, and only these, when the request arrives. Pages outside the range may
//! have been written earlier for the recorder, but msync does not promise them. So the range
//! matters. `/proc/TID/syscall` shows it as addresses.
//!
//! Only the mappings at these addresses are requested from the kernel. The list of all mappings of
//! a process would take more time than all other work for an msync.

use crate::maps::hex;
use kedge_fuse::{FileMapping, file_mapping};
use std::fs::{self, File};
use std::io;

/// What the call in which a thread waits makes durable.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Persists {
    /// The whole file, by fsync(2), fdatasync(2) or a write with `O_SYNC`.
    File,
    /// These ranges of the file, by msync(2). There are several ranges if several mappings of the
    /// file are adjacent. The kernel then sends a request for each, and the first request counts
    /// for all ranges.
    Ranges(Vec<(u64, u64)>),
}

/// A file as a list of mappings identifies it.
#[derive(Clone, Copy)]
pub(crate) struct Named {
    pub device: (u32, u32),
    pub ino: u64,
}

/// What the thread's current call makes durable: ranges of this file in an msync(2), or the whole
/// file in any other call.
pub(crate) fn waits_for(tid: u32, file: Named) -> io::Result<Persists> {
    let call = fs::read_to_string(format!("/proc/{tid}/syscall"))?;
    match msync(&call) {
        None => Ok(Persists::File),
        Some((start, end)) => {
            let maps = File::open(format!("/proc/{tid}/maps"))?;
            let ranges = ranges(|at| file_mapping(&maps, at), start, end, file)?;
            match ranges.is_empty() {
                true => Err(io::Error::new(io::ErrorKind::NotFound, "the mapping of the msync is gone")),
                false => Ok(Persists::Ranges(ranges)),
            }
        }
    }
}

/// The range of addresses of an msync, from the line that /proc shows for a waiting thread: the
/// number of the call and its arguments. `None` for another call.
fn msync(call: &str) -> Option<(u64, u64)> {
    let mut words = call.split_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let (start, len) = (hex(words.next()?)?, hex(words.next()?)?);
    (number == libc::SYS_msync).then_some((start, start.saturating_add(len)))
}

/// The ranges of a file that are mapped between two addresses. `mapping` returns the first mapping
/// of a file at or after an address.
fn ranges(
    mut mapping: impl FnMut(u64) -> io::Result<Option<FileMapping>>,
    start: u64,
    end: u64,
    file: Named,
) -> io::Result<Vec<(u64, u64)>> {
    let (mut ranges, mut at) = (Vec::new(), start);
    while let Some(found) = mapping(at)?.filter(|found| found.addresses.start < end) {
        let (from, to) = (found.addresses.start.max(start), found.addresses.end.min(end));
        let place = |at: u64| found.offset.saturating_add(at - found.addresses.start);
        if found.device == file.device && found.ino == file.ino && from < to {
            ranges.push((place(from), place(to)));
        }
        at = found.addresses.end;
    }
    Ok(ranges)
}

#[cfg(test)]
#[path = "msync_tests.rs"]
mod tests;
