//! Counters of the store, and what recovery did.

use crate::checkpoint::cause::CheckpointCause;
use kedge_base::{Counter, Histogram};
use kedge_format::record::RecordOp;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// The smallest unused rest of a reservation, over all operations of a kind.
#[derive(Debug)]
pub struct Slack {
    log_bytes: AtomicU64,
    nodes: AtomicU64,
}

impl Slack {
    const fn new() -> Slack {
        Slack { log_bytes: AtomicU64::new(u64::MAX), nodes: AtomicU64::new(u64::MAX) }
    }

    /// Log bytes and nodes left. `None` if there was no operation of the kind.
    pub fn get(&self) -> Option<(u64, u64)> {
        let least = (self.log_bytes.load(Ordering::Relaxed), self.nodes.load(Ordering::Relaxed));
        (least.0 != u64::MAX).then_some(least)
    }
}

/// Stores only a new minimum: each operation reads the value, and a store would take the cache line
/// from all other processors.
fn note_least(least: &AtomicU64, value: u64) {
    if value < least.load(Ordering::Relaxed) {
        least.fetch_min(value, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub struct StoreStats {
    /// Records committed, by [`kedge_format::record::RecordOp`].
    pub records: [Counter; 16],
    /// Smallest unused rest of the reservations, by record operation as `records`.
    pub slack: [Slack; 16],
    pub checkpoints: [Counter; CheckpointCause::COUNT],
    /// Nanoseconds from the start of a checkpoint to its end.
    pub checkpoint_ns: Histogram,
    /// Nanoseconds of pauses in a checkpoint; a lower bound.
    pub paused_ns: Histogram,
    /// Nanoseconds under the exclusive epoch guard.
    pub cut_ns: Histogram,
    /// Nanoseconds from one cut to the next: how long a transaction was open for operations.
    pub running_ns: Histogram,
    /// Nanoseconds for writing log-resident data in place and forcing the log to the cut.
    pub flushing_ns: Histogram,
    /// Nanoseconds from the force to the new superblock slot.
    pub logging_ns: Histogram,
    /// Nanoseconds of the delays of operations while the log was nearly full.
    pub throttle_ns: Histogram,
    pub nodes_written: Counter,
    /// Nodes above the leaves among `nodes_written`.
    pub inner_nodes_written: Counter,
    pub checkpoint_bytes: Counter,
    /// Waits of operations for tree nodes, and of data for nodes promised to operations.
    pub node_stalls: Counter,
    /// Operations that waited because too many nodes were dirty.
    pub dirty_stalls: Counter,
}

impl Default for StoreStats {
    fn default() -> Self {
        StoreStats {
            records: [const { Counter::new() }; 16],
            slack: [const { Slack::new() }; 16],
            checkpoints: [const { Counter::new() }; CheckpointCause::COUNT],
            checkpoint_ns: Histogram::default(),
            paused_ns: Histogram::default(),
            cut_ns: Histogram::default(),
            running_ns: Histogram::default(),
            flushing_ns: Histogram::default(),
            logging_ns: Histogram::default(),
            throttle_ns: Histogram::default(),
            nodes_written: Counter::new(),
            inner_nodes_written: Counter::new(),
            checkpoint_bytes: Counter::new(),
            node_stalls: Counter::new(),
            dirty_stalls: Counter::new(),
        }
    }
}

impl StoreStats {
    /// Records committed: most operations have one.
    pub fn handles(&self) -> u64 {
        self.records.iter().map(Counter::get).sum()
    }

    /// Records the log bytes and nodes that an operation has not used of its reservation.
    pub(crate) fn note_slack(&self, op: RecordOp, (log_bytes, nodes): (u64, u64)) {
        let least = &self.slack[op as usize];
        note_least(&least.log_bytes, log_bytes);
        note_least(&least.nodes, nodes);
    }
}

/// What recovery found and did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReplaySummary {
    /// Whether the image had been unmounted cleanly.
    pub clean: bool,
    /// Why the other superblock slot is damaged. `None` if it is valid.
    pub damaged_slot: Option<String>,
    pub log_writes: u64,
    pub records: u64,
    pub bytes: u64,
    /// Ranges of log-resident data written in place.
    pub data_ranges: u64,
    pub data_bytes: u64,
    pub tail_lsn: u64,
    pub head_lsn: u64,
}
