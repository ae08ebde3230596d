//! What a tree counts.

use kedge_base::{Clock, Counter, Histogram, HistogramSnapshot};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

const STRIPES: usize = 16;

/// A counter for events of every descent: each thread adds to one of several cache lines, so that counting
/// does not make of independent readers a queue for one line.
#[derive(Debug, Default)]
pub struct StripedCounter([Stripe; STRIPES]);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(AtomicU64);

static NEXT_STRIPE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STRIPE: usize = NEXT_STRIPE.fetch_add(1, Relaxed) % STRIPES;
}

impl StripedCounter {
    #[inline]
    pub fn add(&self, n: u64) {
        let stripe = STRIPE.with(|s| *s);
        self.0[stripe].0.fetch_add(n, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.iter().map(|s| s.0.load(Relaxed)).sum()
    }
}

/// Acquisitions of one kind of latch, and the waits among them.
#[derive(Debug, Default)]
pub struct LatchStats {
    pub acquisitions: StripedCounter,
    pub(crate) wait_ns: Histogram,
}

impl LatchStats {
    /// Nanoseconds waited, of those acquisitions that did not succeed at once.
    pub fn waits(&self) -> HistogramSnapshot {
        self.wait_ns.snapshot()
    }
}

#[derive(Debug, Default)]
pub struct TreeStats {
    pub read_latch: LatchStats,
    pub write_latch: LatchStats,
    /// Nodes read from the device.
    pub node_reads: Counter,
    /// Descents that met a node which no longer answered for the key.
    pub restarts: Counter,
    /// Nodes moved to a new address because they were of an older generation.
    pub copies: Counter,
    pub splits: Counter,
    pub merges: Counter,
    pub evictions: Counter,
}

/// What latches need in order to count.
pub(crate) struct Meter {
    pub clock: Arc<dyn Clock>,
    pub stats: TreeStats,
}
