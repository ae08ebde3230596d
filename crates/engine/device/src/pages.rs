//! Blocks in memory that several images share, so that a snapshot of a memory device is cheap.
//!
//! A [`Page`] is one immutable block with a hash that is computed at most once. [`Pages`] maps
//! block numbers to pages through chunks with shared pointers. Cloning copies one pointer for
//! each 256 KiB in use. The first write to a chunk after a clone copies the chunk's 64 slots. The
//! bytes of a block are copied only when a part of the block is written.

use kedge_base::{BLOCK_SIZE, IoBuf};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hasher;
use std::sync::{Arc, OnceLock};

static ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];

/// The contents of one block. A block of zeros takes no memory.
#[derive(Clone)]
pub(crate) struct Page(Option<Arc<Content>>);

struct Content {
    bytes: [u8; BLOCK_SIZE],
    /// The hash, computed at its first use. Images that share the page share the hash: crash tests
    /// compare many images with few different pages.
    hash: OnceLock<u64>,
}

impl Page {
    pub const ZERO: Page = Page(None);

    /// Makes a page of `bytes`, which must be one block.
    pub fn new(bytes: &[u8]) -> Page {
        if bytes == ZEROS {
            Page::ZERO
        } else {
            let bytes = bytes.try_into().expect("a page is one block");
            Page(Some(Arc::new(Content { bytes, hash: OnceLock::new() })))
        }
    }

    pub fn bytes(&self) -> &[u8; BLOCK_SIZE] {
        self.0.as_deref().map_or(&ZEROS, |content| &content.bytes)
    }

    /// Returns a hash of the bytes, 0 for zeros. Computed once for each page.
    pub fn hash(&self) -> u64 {
        let of = |content: &Arc<Content>| {
            *content.hash.get_or_init(|| {
                let mut hasher = std::hash::DefaultHasher::new();
                hasher.write(&content.bytes);
                hasher.finish()
            })
        };
        self.0.as_ref().map_or(0, of)
    }

    pub fn is_zero(&self) -> bool {
        self.0.is_none()
    }

    /// Returns whether both pages are the same object or both are zeros. Equal bytes from different
    /// writes do not count.
    pub fn same(&self, other: &Page) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// The data of a recorded write: a run of blocks, cheap to clone.
#[derive(Clone)]
pub struct Data {
    blocks: u64,
    /// The blocks; `None` if all are zeros.
    pages: Option<Arc<[Page]>>,
}

impl Data {
    pub(crate) fn new(buf: &IoBuf) -> Data {
        let pages: Arc<[Page]> = buf.as_bytes().chunks_exact(BLOCK_SIZE).map(Page::new).collect();
        Data { blocks: pages.len() as u64, pages: Some(pages) }
    }

    pub(crate) fn zeros(len: u64) -> Data {
        Data { blocks: len / BLOCK_SIZE as u64, pages: None }
    }

    pub(crate) fn page(&self, index: u64) -> Page {
        self.pages.as_ref().map_or(Page::ZERO, |pages| pages[index as usize].clone())
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    pub fn to_vec(&self) -> Vec<u8> {
        (0..self.blocks).flat_map(|i| *self.page(i).bytes()).collect()
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Data({} blocks{})", self.blocks, if self.pages.is_none() { " of zeros" } else { "" })
    }
}

const CHUNK: u64 = 64;

#[derive(Clone)]
struct Chunk {
    used: usize,
    slots: [Option<Page>; CHUNK as usize],
}

impl Chunk {
    fn set(&mut self, slot: usize, page: Option<Page>) {
        self.used += usize::from(page.is_some());
        self.used -= usize::from(self.slots[slot].is_some());
        self.slots[slot] = page;
    }
}

fn page_in(chunk: Option<&Arc<Chunk>>, slot: usize) -> &Page {
    chunk.and_then(|chunk| chunk.slots[slot].as_ref()).unwrap_or(&Page::ZERO)
}

/// A sparse map from block number to page. The owner decides what an absent block means.
#[derive(Clone, Default)]
pub(crate) struct Pages {
    chunks: BTreeMap<u64, Arc<Chunk>>,
}

impl Pages {
    /// Makes a map in which all blocks below `blocks` have this page. Chunks that nothing writes
    /// take the memory of one.
    pub fn filled(blocks: u64, page: &Page) -> Pages {
        let full = |used: usize| {
            let slots = std::array::from_fn(|slot| (slot < used).then(|| page.clone()));
            Arc::new(Chunk { used, slots })
        };
        let (whole, rest) = (full(CHUNK as usize), (blocks % CHUNK) as usize);
        let mut chunks: BTreeMap<u64, Arc<Chunk>> =
            (0..blocks / CHUNK).map(|at| (at, whole.clone())).collect();
        if rest > 0 {
            chunks.insert(blocks / CHUNK, full(rest));
        }
        Pages { chunks }
    }

    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub fn get(&self, block: u64) -> Option<&Page> {
        self.chunks.get(&(block / CHUNK))?.slots[(block % CHUNK) as usize].as_ref()
    }

    pub fn insert(&mut self, block: u64, page: Page) {
        let chunk = self
            .chunks
            .entry(block / CHUNK)
            .or_insert_with(|| Arc::new(Chunk { used: 0, slots: [const { None }; CHUNK as usize] }));
        Arc::make_mut(chunk).set((block % CHUNK) as usize, Some(page));
    }

    /// Removes a range. The cost depends on the pages present in it, not on its length.
    pub fn remove(&mut self, from: u64, blocks: u64) {
        let end = from + blocks;
        if blocks == 0 {
            return;
        }
        let touched: Vec<u64> =
            self.chunks.range(from / CHUNK..=(end - 1) / CHUNK).map(|(&at, _)| at).collect();
        for at in touched {
            let first = at * CHUNK;
            let chunk = self.chunks.get_mut(&at).expect("listed above");
            if from > first || end < first + CHUNK {
                let chunk = Arc::make_mut(chunk);
                for block in from.max(first)..end.min(first + CHUNK) {
                    chunk.set((block - first) as usize, None);
                }
                if chunk.used > 0 {
                    continue;
                }
            }
            self.chunks.remove(&at);
        }
    }

    /// Iterates over the pages present, in ascending order of block numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Page)> {
        self.chunks.iter().flat_map(|(&at, chunk)| {
            chunk
                .slots
                .iter()
                .enumerate()
                .filter_map(move |(i, p)| Some((at * CHUNK + i as u64, p.as_ref()?)))
        })
    }

    /// Returns a hash of the blocks whose bytes differ from those of `base`. The cost depends on
    /// the chunks that the two do not share, and on the pages in them whose hash is not known yet.
    pub fn difference_hash(&self, base: &Pages) -> u64 {
        let (mut left, mut right) = (self.chunks.iter().peekable(), base.chunks.iter().peekable());
        let mut hasher = std::hash::DefaultHasher::new();
        loop {
            let number = match (left.peek(), right.peek()) {
                (Some((ours, _)), Some((theirs, _))) => **ours.min(theirs),
                (Some((number, _)), None) | (None, Some((number, _))) => **number,
                (None, None) => break,
            };
            let ours = left.next_if(|(at, _)| **at == number).map(|(_, chunk)| chunk);
            let theirs = right.next_if(|(at, _)| **at == number).map(|(_, chunk)| chunk);
            if let (Some(ours), Some(theirs)) = (ours, theirs)
                && Arc::ptr_eq(ours, theirs)
            {
                continue;
            }
            for slot in 0..CHUNK as usize {
                let (ours, theirs) = (page_in(ours, slot), page_in(theirs, slot));
                if !ours.same(theirs) && ours.hash() != theirs.hash() {
                    hasher.write_u64(number * CHUNK + slot as u64);
                    hasher.write_u64(ours.hash());
                }
            }
        }
        hasher.finish()
    }

    /// Returns the pages of a range that are present, with their positions in the range.
    pub fn present(&self, block: u64, blocks: u64) -> Vec<(usize, Page)> {
        (0..blocks).filter_map(|i| Some((i as usize, self.get(block + i)?.clone()))).collect()
    }
}

/// Converts a byte offset or length to blocks; it is a multiple of the block size.
pub(crate) fn blocks(bytes: u64) -> u64 {
    bytes / BLOCK_SIZE as u64
}

/// Copies pages returned by [`Pages::present`] into a buffer.
pub(crate) fn patch(buf: &mut IoBuf, pages: &[(usize, Page)]) {
    let bytes = buf.as_mut_bytes();
    for (i, page) in pages {
        bytes[i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE].copy_from_slice(page.bytes());
    }
}
