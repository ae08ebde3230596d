//! Eviction: removes nodes from memory when the cache exceeds its limit.

use crate::frame::{Frame, Route};
use crate::tree::Tree;
use kedge_base::atomic::Ordering::Relaxed;
use std::sync::Arc;

#[derive(PartialEq, Eq)]
enum Fate {
    /// The frame is no longer in memory, so its ring entry must be removed.
    Gone,
    Kept,
}

impl Tree {
    /// Evicts nodes until the cache is within its limit or `budget` candidates were examined. A
    /// thread that adds a node examines more than one candidate, so the cache shrinks faster than
    /// it grows. The budget bounds the work when the ring is full of pinned nodes.
    ///
    /// Takes latches, so the caller must not hold one.
    pub(crate) fn trim(&self, budget: usize) {
        if !self.cache.over_limit() {
            return;
        }
        // Drop retired references first: they count in `strong_count`, although their frames may
        // still be in the tree, under another parent.
        self.cache.shared.epochs.collect();
        for _ in 0..budget {
            if !self.cache.over_limit() {
                return;
            }
            let Some(entry) = self.cache.take_candidate() else {
                return;
            };
            let Some(frame) = entry.upgrade() else {
                continue;
            };
            if frame.take_hot() || self.evict(&frame) == Fate::Kept {
                self.cache.put_back(entry);
            }
        }
    }

    fn evict(&self, frame: &Arc<Frame>) -> Fate {
        let watch = self.watch();
        let look = frame.read(&watch, |n| {
            let evictable = !n.pins.pinned() && n.children.iter().all(Option::is_none);
            (n.range, evictable)
        });
        let low = match look {
            (range, _) if range.is_none() => return Fate::Gone,
            (_, false) => return Fate::Kept,
            (range, true) => range.low,
        };
        let mut parent = self.anchor.clone();
        loop {
            match self.route(&watch, &parent, &low) {
                Route::Child(child) if Arc::ptr_eq(&child, frame) => break,
                Route::Child(child) if child.level > frame.level => parent = child,
                // The node has moved; eviction tries again when the hand reaches it next time.
                _ => return Fate::Kept,
            }
        }
        parent.write(&watch, |p| {
            let Some(i) = p.entry_of(frame, &low) else {
                return Fate::Kept;
            };
            // Only the parent's references and the one of this function may exist. Any other
            // belongs to a descent that is about to latch the node.
            if Arc::strong_count(frame) != frame.references() + 1 {
                return Fate::Kept;
            }
            let killed = frame.try_write(&watch, |n| {
                let evictable = !n.pins.pinned() && n.children.iter().all(Option::is_none);
                if evictable {
                    n.kill();
                }
                evictable
            });
            if killed != Some(true) {
                return Fate::Kept;
            }
            p.children[i] = None;
            frame.uncount();
            self.cache.absent.fetch_add(1, Relaxed);
            self.meter.stats.evictions.inc();
            Fate::Gone
        })
    }
}
