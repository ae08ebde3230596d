//! Route tables: a second copy of an inner node's keys and children, for descents that take no
//! latch. Its words are read and written atomically, under a version (a seqlock).
//!
//! # Protocol
//! There is one writer, under the node's write latch. It makes the version odd, stores the changes,
//! and makes the version even again. A reader loads the version before and after its search. The
//! result is valid only if both loads return the same even version. Until then the reader uses the
//! words for nothing but the search, and every index is within the table whatever the words hold.
//! All accesses are atomic, so a reader beside a writer retries; there is no data race.
//!
//! # Why a second copy
//! The node's bytes are changed by plain stores in some dozen places. Reading them without a latch
//! would require atomic stores in each of these, for leaves too, where most changes happen. Only
//! one node in a hundred is an inner node. Inner nodes change only when a child splits or moves,
//! and need an array of children in memory anyway. A search is also fastest in aligned words.

use super::sync::{AtomicU64, Ordering::*, fence};

/// A key as words, which compare in the order of keys.
pub(crate) type Words = [u64; 3];

const CHILD: usize = 3;
const ENTRY: usize = CHILD + 1;

pub(crate) struct Routes {
    /// Odd while the table is being written; 0 before the first write.
    version: AtomicU64,
    len: AtomicU64,
    low: [AtomicU64; 3],
    high: [AtomicU64; 3],
    /// Whether `high` is a bound; 0 if there is no upper bound.
    bounded: AtomicU64,
    /// For each child its lower bound and its word; a word of 0 means that the child is not in
    /// memory.
    entries: Box<[AtomicU64]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// The word of the child; never 0.
    Child(u64),
    Missing,
    /// The node does not cover the key.
    Stale,
    /// A writer changed the table meanwhile.
    Torn,
}

/// The range of keys that the node covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bounds {
    pub low: Words,
    pub high: Option<Words>,
}

impl Routes {
    pub(crate) fn new(capacity: usize) -> Routes {
        let word = || AtomicU64::new(0);
        Routes {
            version: word(),
            len: word(),
            low: [word(), word(), word()],
            high: [word(), word(), word()],
            bounded: word(),
            entries: (0..capacity * ENTRY).map(|_| word()).collect(),
        }
    }

    pub(crate) fn is_published(&self) -> bool {
        self.version.load(Acquire) > 0
    }

    #[inline]
    pub(crate) fn look(&self, key: &Words) -> Look {
        let version = self.version.load(Acquire);
        if version % 2 == 1 {
            return Look::Torn;
        }
        let found = self.search(key);
        // The fence orders the loads above before the load below. If one of them saw a writer's
        // store, the load below sees that writer's version.
        fence(Acquire);
        if self.version.load(Relaxed) == version { found } else { Look::Torn }
    }

    #[inline]
    fn search(&self, key: &Words) -> Look {
        let len = (self.len.load(Relaxed) as usize).min(self.entries.len() / ENTRY);
        let below = self.bounded.load(Relaxed) == 0 || *key < load(&self.high);
        if len == 0 || !below || load(&self.low) > *key {
            return Look::Stale;
        }
        // The first entry covers all keys below the second.
        let (mut from, mut to) = (1, len);
        while from < to {
            let mid = usize::midpoint(from, to);
            if is_at_or_below(&self.entries[mid * ENTRY..mid * ENTRY + CHILD], key) {
                from = mid + 1;
            } else {
                to = mid;
            }
        }
        match self.entries[(from - 1) * ENTRY + CHILD].load(Relaxed) {
            0 => Look::Missing,
            child => Look::Child(child),
        }
    }

    /// The bounds, as the writer reads them.
    pub(crate) fn bounds(&self) -> Bounds {
        let high = (self.bounded.load(Relaxed) != 0).then(|| load(&self.high));
        Bounds { low: load(&self.low), high }
    }

    /// Stores the bounds, the number of entries and the entries of `changed`. Called by one writer
    /// at a time.
    pub(crate) fn publish(
        &self,
        bounds: &Bounds,
        len: usize,
        changed: std::ops::Range<usize>,
        entry: impl Fn(usize) -> (Words, u64),
    ) {
        let version = self.version.load(Relaxed);
        self.version.store(version + 1, Relaxed);
        // A reader that sees a store below and then loads the version sees this odd version, or a
        // later one.
        fence(Release);
        self.len.store(len as u64, Relaxed);
        store(&self.low, &bounds.low);
        store(&self.high, &bounds.high.unwrap_or_default());
        self.bounded.store(bounds.high.is_some() as u64, Relaxed);
        for i in changed {
            let (key, child) = entry(i);
            store(&self.entries[i * ENTRY..i * ENTRY + CHILD], &key);
            self.entries[i * ENTRY + CHILD].store(child, Relaxed);
        }
        self.version.store(version + 2, Release);
    }

    /// Whether the table equals what [`Routes::publish`] would have stored.
    pub(crate) fn agrees(&self, bounds: &Bounds, len: usize, entry: impl Fn(usize) -> (Words, u64)) -> bool {
        self.is_published()
            && self.bounds() == *bounds
            && self.len.load(Relaxed) == len as u64
            && (0..len).all(|i| {
                let words = &self.entries[i * ENTRY..(i + 1) * ENTRY];
                let (key, child) = entry(i);
                words.iter().zip(key.iter().chain([&child])).all(|(word, want)| word.load(Relaxed) == *want)
            })
    }
}

#[inline]
fn load(words: &[AtomicU64; 3]) -> Words {
    [words[0].load(Relaxed), words[1].load(Relaxed), words[2].load(Relaxed)]
}

fn store(words: &[AtomicU64], values: &Words) {
    words.iter().zip(values).for_each(|(word, value)| word.store(*value, Relaxed));
}

#[inline]
fn is_at_or_below(words: &[AtomicU64], key: &Words) -> bool {
    let first = words[0].load(Relaxed);
    if first != key[0] {
        return first < key[0];
    }
    (words[1].load(Relaxed), words[2].load(Relaxed)) <= (key[1], key[2])
}
