//! Statistics of a tree.

use crate::tree_lock::TreeLock;
use crate::visible::Readers;
use kedge_base::{Clock, Counter, Histogram, HistogramSnapshot, machine};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

pub(crate) const STRIPES: usize = 16;

/// Counters of events of descents. Each thread adds to one of several cache lines, so that
/// independent readers do not contend for one line.
#[derive(Debug)]
struct Striped<const N: usize>([Stripe<N>; STRIPES]);

#[derive(Debug)]
#[repr(align(128))]
struct Stripe<const N: usize>([AtomicU64; N]);

static NEXT_STRIPE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STRIPE: usize = NEXT_STRIPE.fetch_add(1, Relaxed) % STRIPES;
}

/// Returns the stripe of the calling thread.
#[inline]
pub(crate) fn stripe() -> usize {
    machine::thread_number().map_or_else(|| STRIPE.with(|s| *s), |thread| thread % STRIPES)
}

impl<const N: usize> Default for Striped<N> {
    fn default() -> Self {
        Striped(std::array::from_fn(|_| Stripe(std::array::from_fn(|_| AtomicU64::new(0)))))
    }
}

impl<const N: usize> Striped<N> {
    fn get(&self, i: usize) -> u64 {
        self.0.iter().map(|s| s.0[i].load(Relaxed)).sum()
    }
}

/// Number of counters: acquisitions and calls for each [`Kind`], and conversions.
const EVENTS: usize = 2 * Kind::ALL.len() + 1;
const CALLS: usize = Kind::ALL.len();
const CONVERSIONS: usize = 2 * Kind::ALL.len();

/// Access and level of an acquisition of a latch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    ReadLeaf,
    ReadInner,
    WriteLeaf,
    WriteInner,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::ReadLeaf, Kind::ReadInner, Kind::WriteLeaf, Kind::WriteInner];

    fn names(self) -> (&'static str, &'static str) {
        match self {
            Kind::ReadLeaf => ("read", "leaf"),
            Kind::ReadInner => ("read", "inner"),
            Kind::WriteLeaf => ("write", "leaf"),
            Kind::WriteInner => ("write", "inner"),
        }
    }
}

/// The counts of one operation in progress.
#[derive(Default)]
pub(crate) struct Events([Cell<u32>; EVENTS]);

impl Events {
    #[inline]
    fn inc(&self, i: usize) {
        self.0[i].set(self.0[i].get() + 1);
    }

    #[inline]
    pub(crate) fn took(&self, kind: Kind) {
        self.inc(kind as usize);
    }

    /// Counts what [`LatchKind::calls`] reports, in a tree whose descents hold paths.
    #[cfg(feature = "historic")]
    pub(crate) fn called(&self, kind: Kind) {
        self.inc(CALLS + kind as usize);
    }

    #[cfg(feature = "historic")]
    pub(crate) fn converted(&self) {
        self.inc(CONVERSIONS);
    }
}

/// The waits for one kind of latch, in three units. Buckets are powers of two of the unit, so the
/// three histograms have different bucket boundaries.
#[derive(Debug, Default)]
struct Waits {
    ns: Histogram,
    us: Histogram,
    ms: Histogram,
    wakeups: Counter,
}

#[derive(Debug, Default)]
pub struct TreeStats {
    events: Striped<EVENTS>,
    waits: [Waits; Kind::ALL.len()],
    /// Nodes read from the device.
    pub node_reads: Counter,
    /// Restarted descents: a node no longer covered the key, or changed while the descent read it.
    pub restarts: Counter,
    /// Descents without latches that gave up because a node was not in memory or kept changing.
    pub fallbacks: Counter,
    /// Nodes that were copied to a new address because they belonged to an older generation.
    pub copies: Counter,
    pub splits: Counter,
    pub merges: Counter,
    pub evictions: Counter,
}

impl TreeStats {
    #[inline]
    pub(crate) fn add(&self, events: &Events) {
        let stripe = &self.events.0[stripe()].0;
        for (total, n) in stripe.iter().zip(&events.0) {
            if n.get() > 0 {
                total.fetch_add(n.get() as u64, Relaxed);
            }
        }
    }

    pub(crate) fn waited(&self, kind: Kind, nanos: u64, wakeups: u64) {
        let waits = &self.waits[kind as usize];
        waits.ns.record(nanos);
        waits.us.record(nanos / 1000);
        waits.ms.record(nanos / 1_000_000);
        waits.wakeups.add(wakeups);
    }

    pub(crate) fn report(&self, lock: TreeLock) -> LatchReport {
        let kind = |kind: Kind| {
            let (waits, (access, level)) = (&self.waits[kind as usize], kind.names());
            let acquisitions = self.events.get(kind as usize);
            let called = self.events.get(CALLS + kind as usize);
            LatchKind {
                access,
                level,
                acquisitions,
                calls: if lock.holds_paths() { called } else { acquisitions },
                wakeups: waits.wakeups.get(),
                wait_ns: waits.ns.snapshot(),
                wait_us: waits.us.snapshot(),
                wait_ms: waits.ms.snapshot(),
            }
        };
        LatchReport {
            lock,
            kinds: Kind::ALL.map(kind),
            conversions: self.events.get(CONVERSIONS),
            restarts: self.restarts.get(),
            fallbacks: self.fallbacks.get(),
        }
    }
}

/// Statistics of a tree's latches since it was opened.
#[derive(Debug, Clone)]
pub struct LatchReport {
    pub lock: TreeLock,
    pub kinds: [LatchKind; 4],
    /// Conversions of latches between spinning and blocking.
    pub conversions: u64,
    /// Descents that were restarted.
    pub restarts: u64,
    /// Descents without latches that were repeated with latches.
    pub fallbacks: u64,
}

/// The latches of leaves or of inner nodes, acquired for reading or for writing.
#[derive(Debug, Clone)]
pub struct LatchKind {
    /// `read` or `write`.
    pub access: &'static str,
    /// `leaf` or `inner`.
    pub level: &'static str,
    /// Number of acquisitions, not counting conversions.
    pub acquisitions: u64,
    /// Number of calls of the acquisition function that waits as long as necessary. A probe of
    /// btrfs's `btrfs_tree_lock` and `btrfs_tree_read_lock` counts the same calls. A descent that
    /// holds a path makes such a call for the root, and for a node whose latch it could not take
    /// with a try. The other kinds of trees do not try first, so each of their acquisitions is such
    /// a call.
    pub calls: u64,
    /// Number of times that waiters woke up: at least once for each wait that slept, and more if
    /// wake-ups were useless.
    pub wakeups: u64,
    /// Histograms of the waiting times of acquisitions that did not succeed at once, in
    /// nanoseconds, whole microseconds and whole milliseconds.
    pub wait_ns: HistogramSnapshot,
    pub wait_us: HistogramSnapshot,
    pub wait_ms: HistogramSnapshot,
}

impl LatchReport {
    fn sum(&self, of: impl Fn(&LatchKind) -> u64) -> u64 {
        self.kinds.iter().map(of).sum()
    }

    pub fn acquisitions(&self) -> u64 {
        self.sum(|k| k.acquisitions)
    }

    pub fn calls(&self) -> u64 {
        self.sum(|k| k.calls)
    }

    pub fn waits(&self) -> u64 {
        self.sum(|k| k.wait_ns.count)
    }

    pub fn wakeups(&self) -> u64 {
        self.sum(|k| k.wakeups)
    }

    pub fn longest_wait_ns(&self) -> u64 {
        self.kinds.iter().map(|k| k.wait_ns.max).max().unwrap_or(0)
    }
}

/// Formats a histogram as text: for each power of two the bounds, the count, and a bar in
/// proportion to the highest count. `buckets` has the format of [`HistogramSnapshot`].
pub fn histogram_text(unit: &str, buckets: &[u64]) -> String {
    const BAR: usize = 40;
    let mut out = format!("{unit:>10}{:15}: count     distribution\n", "");
    // The values 0 and 1 share the first row.
    let mut rows: Vec<u64> = vec![buckets.iter().take(2).sum()];
    rows.extend(buckets.iter().skip(2));
    let most = rows.iter().copied().max().unwrap_or(0).max(1);
    for (i, count) in rows.iter().enumerate() {
        let low = if i == 0 { 0 } else { 1u64 << i };
        let high = (1u128 << (i + 1)) - 1;
        let stars = "*".repeat((*count as u128 * BAR as u128 / most as u128) as usize);
        out += &format!("{low:>10} -> {high:<10} : {count:<8} |{stars:<BAR$}|\n");
    }
    out
}

/// The state that all latches of a tree share.
pub(crate) struct Meter {
    pub clock: Arc<dyn Clock>,
    pub stats: TreeStats,
    /// The table of readers that bypass the latches of leaves, in an optimistic tree.
    pub readers: Readers,
}

impl Meter {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Meter {
        Meter { clock, stats: TreeStats::default(), readers: Readers::new(STRIPES) }
    }
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;
