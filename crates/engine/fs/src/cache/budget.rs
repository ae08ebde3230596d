//! Memory for file pages: how many may be cached, how many may be dirty, and how writers are
//! delayed when too many are.

use crate::cache::inodes::Inodes;
use crate::cache::pages::Delta;
use crate::cache::tokens::Tokens;
use crate::policy::shared_budget::{SharedBudget, pressure};
use kedge_base::atomic::{AtomicI64, Ordering};
use kedge_base::{BLOCK_SIZE, Ino};
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Cached pages that each operation examines for eviction; `TURNS_PER_PAGE` more for each page that
/// it adds.
const TURNS_MIN: i64 = 64;
const TURNS_PER_PAGE: i64 = 4;
/// Longest delay of a writer, at the hard limit. Above the limit writers write back themselves.
const DELAY_MAX: Duration = Duration::from_millis(1);

/// Counts the pages in memory and the dirty ones, and has the limits of both.
pub(crate) struct Budget {
    pages: AtomicI64,
    dirty: AtomicI64,
    /// Maximum of pages in memory. The flusher writes when a quarter of it is dirty; writers write
    /// back when half of it is.
    pages_max: AtomicI64,
    shared: Option<Arc<SharedBudget>>,
    tokens: Tokens,
}

impl Budget {
    pub(crate) fn new(bytes: u64, shared: Option<Arc<SharedBudget>>) -> Budget {
        if let Some(shared) = &shared {
            shared.join();
        }
        Budget {
            pages: AtomicI64::new(0),
            dirty: AtomicI64::new(0),
            pages_max: AtomicI64::new(pages_of(bytes)),
            shared,
            tokens: Tokens::new(),
        }
    }

    pub(crate) fn pages_max(&self) -> i64 {
        self.pages_max.load(Ordering::Relaxed)
    }

    /// Sets the memory for pages in bytes, and drops clean pages beyond it. A page that is not
    /// clean is dropped after it has been written, when an operation examines it.
    pub(crate) fn set_bytes(&self, inodes: &Inodes, bytes: u64) {
        self.pages_max.store(pages_of(bytes), Ordering::Relaxed);
        self.enforce(inodes, self.tokens.len() / TURNS_PER_PAGE);
    }

    fn dirty_background(&self) -> i64 {
        self.pages_max() / 4
    }

    pub(crate) fn account(&self, delta: Delta) {
        if delta.pages != 0 {
            self.pages.fetch_add(delta.pages, Ordering::Relaxed);
        }
        if delta.dirty != 0 {
            self.dirty.fetch_add(delta.dirty, Ordering::Relaxed);
            if let Some(shared) = &self.shared {
                shared.account(delta.dirty);
            }
        }
    }

    pub(crate) fn dirty_pages(&self) -> i64 {
        self.dirty.load(Ordering::Relaxed)
    }

    pub(crate) fn cached_pages(&self) -> i64 {
        self.pages.load(Ordering::Relaxed)
    }

    pub(crate) fn over_background(&self) -> bool {
        let dirty = self.dirty_pages();
        dirty > self.dirty_background() || self.shared.as_ref().is_some_and(|s| s.over_background(dirty))
    }

    pub(crate) fn over_hard(&self) -> bool {
        let dirty = self.dirty_pages();
        dirty > self.hard_limit() || self.shared.as_ref().is_some_and(|s| s.over_hard(dirty))
    }

    /// Number of dirty pages above which writers write back themselves.
    pub(crate) fn hard_limit(&self) -> i64 {
        2 * self.dirty_background()
    }

    /// Delay of a writer: none until half way between the limits, then increasing. So the flusher
    /// gets ahead, and few writers reach the hard limit, at which they would wait for whole passes
    /// of writeback.
    pub(crate) fn delay(&self) -> Option<Duration> {
        let dirty = self.dirty_pages();
        let own = pressure(dirty, self.dirty_background(), self.hard_limit());
        let shared = self.shared.as_ref().filter(|s| s.over_background(dirty));
        let most = shared.map_or(own, |s| own.max(s.pressure()));
        (most > 0.0).then(|| DELAY_MAX.mul_f64(most.min(1.0)))
    }

    /// Adds a page to the queue for eviction. May be called with the page lock held.
    pub(crate) fn token(&self, ino: Ino, index: u64) {
        self.tokens.push((ino, index));
    }

    /// Adds a clean page to the queue, and evicts older pages if necessary. The caller holds no
    /// page lock.
    pub(crate) fn cached(&self, inodes: &Inodes, ino: Ino, index: u64) {
        self.token(ino, index);
        self.enforce(inodes, 1);
    }

    /// Evicts clean pages while there are too many. Pages that are not clean return to the end of
    /// the queue.
    ///
    /// Examines more pages than the caller has `added`, so that a stream of large writes cannot
    /// outrun the eviction. The number does not grow with the excess: if memory is full of pages
    /// that must stay, every small write would examine all of them.
    pub(crate) fn enforce(&self, inodes: &Inodes, added: i64) {
        let mut turns = TURNS_MIN + TURNS_PER_PAGE * added;
        let pages_max = self.pages_max();
        loop {
            // A truncate removes pages but not their tokens, so the number of tokens is bounded
            // too.
            let few = self.cached_pages() <= pages_max && self.tokens.len() <= 2 * pages_max;
            if turns == 0 || few {
                return;
            }
            let Some((ino, index)) = self.tokens.pop() else { return };
            turns -= 1;
            let Some(inode) = inodes.cached(ino) else { continue };
            let mut cached = inode.pages.lock();
            if cached.evict(index) {
                drop(cached);
                self.account(Delta { pages: -1, dirty: 0 });
            } else if cached.get(index).is_some() {
                drop(cached);
                self.token(ino, index);
            }
        }
    }
}

fn pages_of(bytes: u64) -> i64 {
    (bytes / BLOCK).max(512) as i64
}

impl Drop for Budget {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.leave(self.dirty_pages());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirty(budget: &Budget, pages: i64) {
        budget.account(Delta { pages, dirty: pages });
    }

    #[test]
    fn who_holds_little_is_never_stopped_by_who_holds_all() {
        let shared = SharedBudget::new(4 << 20, 8 << 20);
        let [hung, other] = [0, 1].map(|_| Budget::new(1 << 30, Some(shared.clone())));
        dirty(&hung, 3000);
        assert!(hung.over_hard() && hung.over_background());
        assert!(!other.over_hard() && !other.over_background());
        dirty(&other, 511);
        assert!(!other.over_hard(), "half of its share");
        dirty(&other, 2);
        assert!(other.over_hard());
        assert_eq!(shared.dirty_bytes(), 3513 * 4096);
        drop(hung);
        assert!(!other.over_hard(), "what a closed file system held is given back");
        assert_eq!(shared.dirty_bytes(), 513 * 4096);
    }

    #[test]
    fn writers_slow_down_before_the_limit() {
        let budget = Budget::new(128 << 20, None);
        let (background, hard) = (8192, 16384);
        assert_eq!((budget.dirty_background(), budget.hard_limit()), (background, hard));
        dirty(&budget, 12288);
        assert_eq!(budget.delay(), None);
        dirty(&budget, 2048);
        assert_eq!(budget.delay(), Some(DELAY_MAX / 2));
        dirty(&budget, 100_000);
        assert_eq!(budget.delay(), Some(DELAY_MAX));
    }
}
