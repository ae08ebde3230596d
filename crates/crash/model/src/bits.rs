//! A set of small numbers.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    pub fn none(len: usize) -> Bits {
        Bits { words: vec![0; len.div_ceil(64)], len }
    }

    pub fn all(len: usize) -> Bits {
        let mut bits = Bits { words: vec![u64::MAX; len.div_ceil(64)], len };
        if let Some(last) = bits.words.last_mut().filter(|_| !len.is_multiple_of(64)) {
            *last = (1 << (len % 64)) - 1;
        }
        bits
    }

    /// The number of bits. Every number in the set is smaller.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }

    pub fn has(&self, n: u32) -> bool {
        self.words.get(n as usize / 64).is_some_and(|w| w >> (n % 64) & 1 == 1)
    }

    pub fn insert(&mut self, n: u32) {
        debug_assert!((n as usize) < self.len);
        self.words[n as usize / 64] |= 1 << (n % 64);
    }

    pub fn remove(&mut self, n: u32) {
        self.words[n as usize / 64] &= !(1 << (n % 64));
    }

    pub fn intersect(&mut self, other: &Bits) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= other;
        }
    }

    pub fn join(&mut self, other: &Bits) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
    }

    pub fn count(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.words.iter().enumerate().flat_map(|(i, word)| ones(i, *word))
    }

    /// The numbers below `len` that are not in the set.
    pub fn missing(&self) -> impl Iterator<Item = u32> {
        let words = self.words.iter().enumerate().flat_map(|(i, word)| ones(i, !*word));
        words.take_while(|n| (*n as usize) < self.len)
    }
}

fn ones(word: usize, mut left: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (left != 0).then(|| left.trailing_zeros())?;
        left &= left - 1;
        Some(word as u32 * 64 + bit)
    })
}
