//! The bitmap of one group, processed a word at a time.
//!
//! Bit `i` is bit `i % 64` of word `i / 64`. With the words stored in little-endian order, this is
//! the bit order of the format. The caller defines the meaning of a bit.

use kedge_base::BLOCK_SIZE;
use kedge_format::alloc::GROUP_BLOCKS;
use kedge_format::node::NODE_BLOCKS;

/// Number of bits of a bitmap.
pub(crate) const BITS: u32 = GROUP_BLOCKS as u32;
const WORDS: usize = (BITS / 64) as usize;

/// The lowest bit of each node slot in a word.
const SLOT_BITS: u64 = 0x1111_1111_1111_1111;
const _: () = assert!(NODE_BLOCKS == 4 && WORDS * 8 == BLOCK_SIZE);

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Bitmap([u64; WORDS]);

/// Returns the words that overlap `[start, start + len)`, each with a mask of the bits of the
/// range.
fn words(start: u32, len: u32) -> impl Iterator<Item = (usize, u64)> {
    assert!(len <= BITS && start <= BITS - len, "range inside the group");
    let end = start + len;
    let mut at = start;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (word, low) = (at / 64, at % 64);
        let high = (end - word * 64).min(64);
        at = (word + 1) * 64;
        Some((word as usize, (u64::MAX >> (64 - (high - low))) << low))
    })
}

impl Bitmap {
    pub(crate) const fn new() -> Bitmap {
        Bitmap([0; WORDS])
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Bitmap {
        assert_eq!(bytes.len(), BLOCK_SIZE);
        let mut map = Bitmap::new();
        for (word, raw) in map.0.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(raw.try_into().expect("chunks of eight"));
        }
        map
    }

    pub(crate) fn to_bytes(&self, out: &mut [u8]) {
        assert_eq!(out.len(), BLOCK_SIZE);
        for (raw, word) in out.chunks_exact_mut(8).zip(&self.0) {
            raw.copy_from_slice(&word.to_le_bytes());
        }
    }

    #[cfg(test)]
    pub(crate) fn get(&self, bit: u32) -> bool {
        self.0[bit as usize / 64] >> (bit % 64) & 1 == 1
    }

    pub(crate) fn set(&mut self, start: u32, len: u32) {
        words(start, len).for_each(|(w, mask)| self.0[w] |= mask);
    }

    pub(crate) fn clear(&mut self, start: u32, len: u32) {
        words(start, len).for_each(|(w, mask)| self.0[w] &= !mask);
    }

    /// Returns the first set bit of the range.
    pub(crate) fn first_set(&self, start: u32, len: u32) -> Option<u32> {
        words(start, len).find_map(|(w, mask)| {
            let hit = self.0[w] & mask;
            (hit != 0).then(|| w as u32 * 64 + hit.trailing_zeros())
        })
    }

    /// Returns the first clear bit of the range.
    pub(crate) fn first_clear(&self, start: u32, len: u32) -> Option<u32> {
        words(start, len).find_map(|(w, mask)| {
            let hit = !self.0[w] & mask;
            (hit != 0).then(|| w as u32 * 64 + hit.trailing_zeros())
        })
    }

    pub(crate) fn count_set(&self, start: u32, len: u32) -> u32 {
        words(start, len).map(|(w, mask)| (self.0[w] & mask).count_ones()).sum()
    }

    /// Returns the first clear bit of `[from, end)`, or `end` if there is none.
    pub(crate) fn next_clear(&self, from: u32, end: u32) -> u32 {
        self.next(from, end, u64::MAX)
    }

    /// Returns the first set bit of `[from, end)`, or `end` if there is none.
    pub(crate) fn next_set(&self, from: u32, end: u32) -> u32 {
        self.next(from, end, 0)
    }

    /// Returns the first bit that is set after exclusive or of its word with `flip`. A search
    /// spends most of its time here, hence the explicit loop.
    fn next(&self, from: u32, end: u32, flip: u64) -> u32 {
        assert!(end <= BITS, "range inside the group");
        if from >= end {
            return end;
        }
        let mut word = (from / 64) as usize;
        let mut hit = (self.0[word] ^ flip) & (u64::MAX << (from % 64));
        while hit == 0 {
            word += 1;
            if word as u32 * 64 >= end {
                return end;
            }
            hit = self.0[word] ^ flip;
        }
        (word as u32 * 64 + hit.trailing_zeros()).min(end)
    }

    /// Returns the start of the run of clear bits that ends at `to` (exclusive). Searches no
    /// further back than the word with bit `limit`.
    pub(crate) fn clear_run_before(&self, to: u32, limit: u32) -> u32 {
        let mut at = to;
        while at > limit {
            let word = (at - 1) / 64;
            let mask = u64::MAX >> (63 - (at - 1) % 64);
            let hit = self.0[word as usize] & mask;
            if hit != 0 {
                return word * 64 + 64 - hit.leading_zeros();
            }
            at = word * 64;
        }
        at
    }

    /// Returns the first node slot (an aligned run of clear bits) at or after `from`, which must be
    /// aligned.
    pub(crate) fn next_clear_slot(&self, from: u32) -> Option<u32> {
        debug_assert!(from.is_multiple_of(NODE_BLOCKS as u32));
        let mut mask = u64::MAX << (from % 64);
        for w in (from / 64) as usize..WORDS {
            let f = !self.0[w];
            let slots = f & (f >> 1) & (f >> 2) & (f >> 3) & SLOT_BITS & mask;
            if slots != 0 {
                return Some(w as u32 * 64 + slots.trailing_zeros());
            }
            mask = u64::MAX;
        }
        None
    }

    /// Returns the union with `other`.
    pub(crate) fn or(&self, other: &Bitmap) -> Bitmap {
        let mut out = self.clone();
        out.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
        out
    }
}

#[cfg(test)]
#[path = "bitmap_tests.rs"]
mod tests;
