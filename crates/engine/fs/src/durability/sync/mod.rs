//! fsync, fdatasync, sync, and the work of the flusher threads ([`crate::durability::flushers`])
//! for a file system.

mod all;
mod fsync;
mod group;
mod rounds;
mod small;
mod times;

use crate::cache::inodes::Inodes;
use crate::durability::slow::{SlowFsync, SlowFsyncs, Trace};
use crate::durability::writeback::Writeback;
use crate::engine::Engine;
use crate::error::Result;
use all::Call;
use group::Group;
use kedge_base::{Histogram, HistogramSnapshot};
use kedge_store::WriteSeq;
use rounds::Rounds;
use std::sync::Arc;
use std::time::Duration;

/// The time at which an fsync arrived, and the turn of checkpoints then.
#[derive(Clone, Copy)]
struct Arrival {
    at: Duration,
    /// [`kedge_store::Store::checkpoint_turn`] at that time.
    turn: u64,
}

/// Makes a file system durable; see the module's head.
pub(crate) struct Syncer {
    engine: Arc<Engine>,
    inodes: Arc<Inodes>,
    writeback: Arc<Writeback>,
    slow: SlowFsyncs,
    group: Arc<Group>,
    rounds: Rounds<Result<Call>>,
    /// Durations, in nanoseconds, of fsyncs and fdatasyncs during some part of which a checkpoint
    /// ran.
    meanwhile: Histogram,
}

impl Syncer {
    pub(crate) fn new(engine: Arc<Engine>, inodes: Arc<Inodes>, writeback: Arc<Writeback>) -> Syncer {
        Syncer {
            engine,
            inodes,
            writeback,
            slow: SlowFsyncs::default(),
            group: Group::new(),
            rounds: Rounds::new(),
            meanwhile: Histogram::default(),
        }
    }

    fn flush_if_needed(&self, seq: WriteSeq) -> Result<()> {
        let store = self.engine.store();
        if store.data_flushed(seq) { Ok(()) } else { Ok(store.flush_data(seq)?) }
    }

    fn record(&self, trace: &Trace, end: Duration) {
        let store = self.engine.store();
        self.slow.record(store, trace, end);
        if store.checkpoint_ran_since(trace.turn) {
            self.meanwhile.record(end.saturating_sub(trace.start).as_nanos() as u64);
        }
    }

    /// The slowest fsyncs, slowest first.
    pub(crate) fn slow_fsyncs(&self) -> Vec<SlowFsync> {
        self.slow.list()
    }

    /// Numbers of fsyncs whose data was written in one pass.
    pub(crate) fn groups(&self) -> HistogramSnapshot {
        self.group.sizes.snapshot()
    }

    /// Durations of the fsyncs during some part of which a checkpoint ran.
    pub(crate) fn meanwhile(&self) -> HistogramSnapshot {
        self.meanwhile.snapshot()
    }
}
