//! The mapping of a file in memory that several processes share, as words of 64 bits.
//!
//! # When the process dies
//! A thread that is killed has executed all instructions before one and none after it. Its stores
//! before that stay in the pages of the file, which outlive the process; an aligned store of eight
//! bytes is there as a whole or not at all. So only the order of stores in the program matters. A
//! compiler may change that order, but moves no store past a later one with release ordering.
//! [`Words::put`] stores the first word last and in this way. A reader that finds the first word
//! finds the others.
//!
//! # Why it is sound
//! All accesses are atomic. So another thread or process may store at the same time, and a reader
//! finds any value, never an undefined one. The file can neither shrink nor grow, by its seals, so
//! no access is beyond its end, which would be a signal. A page that the file does not have yet is
//! made by the first access. If there is no memory, the process is killed, like by any other
//! access to new memory; callers that want an error allocate the page before.
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
    /// Maps a file whose size is fixed, a multiple of the page size.
    pub(super) fn map(file: BorrowedFd<'_>) -> io::Result<Words> {
        let fixed = SealFlags::SHRINK | SealFlags::GROW;
        if !rustix::fs::fcntl_get_seals(file)?.contains(fixed) {
            let what = "the keeper's memory is not sealed against changes of its size";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let map = MmapOptions::new().map_raw(file.as_raw_fd())?;
        // A dump of a server that dies would take longer, and programs wait.
        map.advise(Advice::DontDump)?;
        Ok(Words(map))
    }

    /// Maps the pages of a range, which the file has. Otherwise the first store to each is a fault.
    pub(super) fn populate(&self, at: u64, len: u64) -> io::Result<()> {
        self.0.advise_range(Advice::PopulateWrite, at as usize, len as usize)
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is readable and writable, begins at a page, and is as long as the
        // file, which keeps its size. The words live as long as the mapping, which `self` owns.
        // Each value of the bytes is one of an `AtomicU64`, and this process has no other
        // reference to them. Other processes may change them, which atomic accesses allow.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() / WORD) }
    }

    /// The words that a field of `len` bytes at `at` takes.
    fn range(&self, at: u64, len: usize) -> &[AtomicU64] {
        debug_assert!(at.is_multiple_of(WORD as u64), "fields begin at a word");
        &self.words()[at as usize / WORD..][..len.div_ceil(WORD)]
    }

    /// Stores one word, after everything that this thread has stored before.
    pub(super) fn store(&self, at: u64, value: u64) {
        store(&self.range(at, WORD)[0], value);
    }

    /// Stores whole words, the first one last.
    pub(super) fn put(&self, at: u64, bytes: &[u8]) {
        debug_assert!(bytes.len().is_multiple_of(WORD), "fields have whole words");
        let field = self.range(at, bytes.len()).iter().zip(bytes.as_chunks::<WORD>().0);
        let in_order = |(word, bytes): (&AtomicU64, &[u8; WORD])| store(word, u64::from_ne_bytes(*bytes));
        match steps::is_broken(steps::Broken::FirstWordFirst) {
            false => field.rev().for_each(in_order),
            true => field.for_each(in_order),
        }
    }

    /// Stores bytes in any order, and zeros up to the end of their last word.
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
