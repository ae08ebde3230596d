//! The list of mappings of a process, `/proc/PID/maps`.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;

/// The most bytes that are read of a list.
const MAPS_MAX: u64 = 4 << 20;

/// A file that is mapped into the memory of a process.
pub(crate) struct Mapping<'a> {
    pub range: Range<u64>,
    pub offset: u64,
    pub is_code: bool,
    pub path: &'a str,
}

pub(crate) fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

/// Reads the list of a process or thread. The kernel takes the mmap lock of the process for this.
pub(crate) fn read(pid: u32) -> io::Result<String> {
    let mut maps = String::new();
    File::open(format!("/proc/{pid}/maps"))?.take(MAPS_MAX).read_to_string(&mut maps)?;
    Ok(maps)
}

pub(crate) fn mappings(maps: &str) -> impl Iterator<Item = Mapping<'_>> {
    maps.lines().filter_map(|line| {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let (rights, offset) = (words.next()?, hex(words.next()?)?);
        // Skip the device and the inode.
        let path = words.nth(2).unwrap_or("").trim_start();
        let (range, is_code) = (hex(start)?..hex(end)?, rights.contains('x'));
        Some(Mapping { range, offset, is_code, path })
    })
}
