//! Counters of the store.

use kedge_base::{Counter, Histogram};

#[derive(Debug)]
pub struct StoreStats {
    /// By [`kedge_format::record::RecordOp`].
    pub records: [Counter; 16],
    pub checkpoints: [Counter; crate::CheckpointCause::COUNT],
    /// Nanoseconds from the start of a checkpoint to its end.
    pub checkpoint_ns: Histogram,
    /// Of these, its pauses, at least.
    pub paused_ns: Histogram,
    /// Nanoseconds under the exclusive epoch guard.
    pub cut_ns: Histogram,
    /// Nanoseconds from one cut to the next: how long a transaction was open for operations.
    pub running_ns: Histogram,
    /// Nanoseconds for writing log-resident data in place and forcing the log to the cut.
    pub flushing_ns: Histogram,
    /// Nanoseconds from there to the new superblock slot.
    pub logging_ns: Histogram,
    /// Nanoseconds by which operations were throttled because the log was nearly full.
    pub throttle_ns: Histogram,
    pub nodes_written: Counter,
    /// Of these, the ones above the leaves.
    pub inner_nodes_written: Counter,
    pub checkpoint_bytes: Counter,
    /// Waits of operations for tree nodes, and of data for nodes that operations were promised.
    pub node_stalls: Counter,
    /// Operations that waited because too many nodes were dirty.
    pub dirty_stalls: Counter,
}

impl Default for StoreStats {
    fn default() -> Self {
        StoreStats {
            records: [const { Counter::new() }; 16],
            checkpoints: [const { Counter::new() }; crate::CheckpointCause::COUNT],
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
}
