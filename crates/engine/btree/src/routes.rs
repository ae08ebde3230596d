//! Route tables: a second copy of an inner node's keys and children, for descents that take no
//! latch. The words of a table are read and written atomically, under a version (a seqlock).
//!
//! # Protocol
//! The holder of the node's write latch is the only writer. It makes the version odd, stores the
//! changes, and makes the version even again. A reader loads the version before and after its
//! search. The result is valid only if both loads return the same even version. Until then the
//! reader uses the words only for the search, and every index is within the table whatever the
//! words contain. All accesses are atomic, so there is no data race: a reader concurrent with a
//! writer retries.
//!
//! # Why a second copy
//! The node's bytes are changed by plain stores at some dozen places in the code. Reading the bytes
//! without a latch would require atomic stores at all these places, for leaves too, where most
//! changes happen. Only one node in a hundred is an inner node. Inner nodes change only when a
//! child splits or moves, and need an array of children in memory anyway. Aligned words also make
//! the search fastest.

use super::sync::{AtomicU64, Ordering::*, fence};

/// A key as three words, which compare in the order of keys.
pub(crate) type Words = [u64; 3];

const CHILD: usize = 3;
const ENTRY: usize = CHILD + 1;

pub(crate) struct Routes {
    /// Odd while a writer changes the table; 0 before the first write.
    version: AtomicU64,
    len: AtomicU64,
    low: [AtomicU64; 3],
    high: [AtomicU64; 3],
    /// 1 if `high` is an upper bound; 0 if the node has no upper bound.
    bounded: AtomicU64,
    /// For each child the lower bound of its keys, and its pointer as a word, which is 0 if the
    /// child is not in memory.
    entries: Box<[AtomicU64]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// The pointer to the child as a word; never 0.
    Child(u64),
    Missing,
    /// The node does not cover the key.
    Stale,
    /// A writer changed the table during the search.
    Torn,
}

/// The range of keys that a node covers.
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
        // The fence orders the loads above before the load of the version below. If a load above
        // saw a writer's store, the load below sees that writer's version.
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
        // The first entry covers all keys below the second entry's.
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

    /// Returns the bounds. Only for the writer, which needs no version check.
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
        // A reader that sees a store below and then loads the version gets this odd version or a
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

    /// Returns whether the table equals what [`Routes::publish`] would have stored for these
    /// arguments.
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
