//! Sparse file bytes with cheap copies: versions share unchanged chunks, since the model keeps one
//! version for each operation.
//!
//! Invariant: no stored chunk is all zeros, none begins at or beyond `size`, and bytes of the last
//! chunk beyond `size` are zero. So equal contents have equal maps.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes in a chunk.
pub const CHUNK: u64 = 4096;

pub type Chunk = [u8; CHUNK as usize];

static ZEROS: Chunk = [0; CHUNK as usize];

/// The bytes of a regular file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    size: u64,
    chunks: Arc<BTreeMap<u64, Arc<Chunk>>>,
}

impl Content {
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Numbers of the chunks that contain a byte other than zero.
    pub fn chunk_numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.chunks.keys().copied()
    }

    /// The bytes of a chunk; zeros if the chunk is not stored.
    pub fn chunk(&self, number: u64) -> &Chunk {
        self.chunks.get(&number).map_or(&ZEROS, |chunk| chunk)
    }

    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let end = offset.saturating_add(len as u64).min(self.size);
        let mut out = vec![0; end.saturating_sub(offset) as usize];
        for (number, range) in pieces(offset, end) {
            let at = (number * CHUNK + range.start as u64 - offset) as usize;
            out[at..at + range.len()].copy_from_slice(&self.chunk(number)[range]);
        }
        out
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len() as u64;
        self.size = self.size.max(end);
        for (number, range) in pieces(offset, end) {
            let at = (number * CHUNK + range.start as u64 - offset) as usize;
            let len = range.len();
            self.change(number, |chunk| chunk[range].copy_from_slice(&bytes[at..at + len]));
        }
    }

    /// Makes the bytes from `offset` to `end` zero; never grows the file.
    pub fn zero(&mut self, offset: u64, end: u64) {
        let end = end.min(self.size);
        if offset >= end {
            return;
        }
        let (first, last) = (offset / CHUNK, (end - 1) / CHUNK);
        let hit: Vec<u64> = self.chunks.range(first..=last).map(|(n, _)| *n).collect();
        for number in hit {
            let base = number * CHUNK;
            let from = offset.saturating_sub(base) as usize;
            let to = (end - base).min(CHUNK) as usize;
            self.change(number, |chunk| chunk[from..to].fill(0));
        }
    }

    pub fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size);
        }
        self.size = size;
    }

    /// Returns a copy in which the chunks from `from` on lie at `to`. The chunks between are
    /// removed or zero, and the size is `size`. Both offsets are multiples of the chunk size.
    pub fn shifted(&self, from: u64, to: u64, size: u64) -> Content {
        let (from, to) = (from / CHUNK, to / CHUNK);
        let keep = from.min(to);
        let head = self.chunks.range(..keep).map(|(n, chunk)| (*n, chunk.clone()));
        let tail = self.chunks.range(from..).map(|(n, chunk)| (n - from + to, chunk.clone()));
        Content { size, chunks: Arc::new(head.chain(tail).collect()) }
    }

    fn change(&mut self, number: u64, edit: impl FnOnce(&mut Chunk)) {
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = chunks.entry(number).or_insert_with(|| Arc::new(ZEROS));
        edit(Arc::make_mut(chunk));
        if **chunk == ZEROS {
            chunks.remove(&number);
        }
    }

    /// The lowest offset below both sizes where the two differ.
    pub fn first_difference(&self, other: &Content) -> Option<u64> {
        let end = self.size.min(other.size);
        let numbers: std::collections::BTreeSet<u64> =
            self.chunk_numbers().chain(other.chunk_numbers()).collect();
        for number in numbers {
            let (a, b) = (self.chunk(number), other.chunk(number));
            if let Some(i) = a.iter().zip(b).position(|(x, y)| x != y) {
                let at = number * CHUNK + i as u64;
                return (at < end).then_some(at);
            }
        }
        None
    }
}

/// Splits a byte range into (chunk number, range in the chunk).
pub fn pieces(offset: u64, end: u64) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let last = if offset < end { (end - 1) / CHUNK + 1 } else { offset / CHUNK };
    (offset / CHUNK..last).map(move |number| {
        let base = number * CHUNK;
        let from = offset.saturating_sub(base) as usize;
        let to = (end - base).min(CHUNK) as usize;
        (number, from..to)
    })
}

#[cfg(test)]
#[path = "content_tests.rs"]
mod tests;
