//! Maps a file in memory that several processes share, as words of 64 bits.
//!
//! # If the process dies
//! A killed thread has executed all instructions up to one and none after it. Its earlier stores
//! are in the pages of the file, which outlive the process, and an aligned store of eight bytes
//! takes effect completely or not at all. So only the order of stores in the program matters. A
//! compiler may change that order, but moves no store past a later one with release ordering.
//! [`Words::put`] stores the first word last, with release ordering. So a reader that finds the new
//! first word finds the other new words, too.
//!
//! # Why this is sound
//! All accesses are atomic. So another thread or process may store at the same time, and a reader
//! finds some stored value, never an undefined one. The file's seals keep its size fixed, so no
//! access is beyond its end, which would raise a signal. The first access to a page that the file
//! lacks allocates the page. If there is no memory, the process is killed, as at any first access
//! to memory; callers that want an error allocate the page before.
#![allow(unsafe_code)]

use super::steps;
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::fs::SealFlags;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const WORD: usize = size_of::<u64>();

pub(super) struct Words(MmapRaw);

impl Words {
    /// Maps a file, whose size must be fixed and a multiple of the page size.
    pub(super) fn map(file: BorrowedFd<'_>) -> io::Result<Words> {
        let fixed = SealFlags::SHRINK | SealFlags::GROW;
        if !rustix::fs::fcntl_get_seals(file)?.contains(fixed) {
            let what = "the keeper's memory is not sealed against changes of its size";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let map = MmapOptions::new().map_raw(file.as_raw_fd())?;
        // Including the area in the core dump of a dying server would take time, during which
        // programs wait.
        map.advise(Advice::DontDump)?;
        Ok(Words(map))
    }

    /// Maps the allocated pages of a range in advance. Otherwise the first store to each causes a
    /// page fault.
    pub(super) fn populate(&self, at: u64, len: u64) -> io::Result<()> {
        self.0.advise_range(Advice::PopulateWrite, at as usize, len as usize)
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is readable and writable, begins at a page boundary, and is as long
        // as the file, whose size is sealed. The words live as long as the mapping, which `self`
        // owns. Every byte pattern is a valid `AtomicU64`, and this process has no other reference
        // to the bytes. Other processes may change them, which atomic accesses allow.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() / WORD) }
    }

    /// The words that contain a field of `len` bytes at `at`.
    fn range(&self, at: u64, len: usize) -> &[AtomicU64] {
        debug_assert!(at.is_multiple_of(WORD as u64), "fields begin at a word");
        &self.words()[at as usize / WORD..][..len.div_ceil(WORD)]
    }

    /// Stores one word after all earlier stores of this thread.
    pub(super) fn store(&self, at: u64, value: u64) {
        store(&self.range(at, WORD)[0], value);
    }

    /// Stores whole words. The first one is stored last.
    pub(super) fn put(&self, at: u64, bytes: &[u8]) {
        debug_assert!(bytes.len().is_multiple_of(WORD), "fields have whole words");
        let field = self.range(at, bytes.len()).iter().zip(bytes.as_chunks::<WORD>().0);
        let in_order = |(word, bytes): (&AtomicU64, &[u8; WORD])| store(word, u64::from_ne_bytes(*bytes));
        match steps::is_broken(steps::Broken::FirstWordFirst) {
            false => field.rev().for_each(in_order),
            true => field.for_each(in_order),
        }
    }

    /// Stores bytes in any order, and fills their last word with zeros.
    pub(super) fn fill(&self, at: u64, bytes: &[u8]) {
        let (whole, rest) = bytes.as_chunks::<WORD>();
        let words = self.range(at, bytes.len());
        for (word, bytes) in words.iter().zip(whole) {
            word.store(u64::from_ne_bytes(*bytes), Relaxed);
            steps::stored();
        }
        if let Some(word) = words.get(whole.len()) {
            let mut last = [0; WORD];
            last[..rest.len()].copy_from_slice(rest);
            word.store(u64::from_ne_bytes(last), Relaxed);
            steps::stored();
        }
    }

    pub(super) fn get(&self, at: u64, buf: &mut [u8]) {
        let words = self.range(at, buf.len());
        for (bytes, word) in buf.chunks_mut(WORD).zip(words) {
            bytes.copy_from_slice(&word.load(Acquire).to_ne_bytes()[..bytes.len()]);
        }
    }
}

fn store(word: &AtomicU64, value: u64) {
    word.store(value, Release);
    steps::stored();
}
