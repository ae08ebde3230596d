//! Runs a checkpoint from its start to its end. One runs at a time, and a checkpoint serves all
//! requests that precede its start.

use super::cause::{By, CheckpointCause, Kind};
use super::control::Unwritten;
use crate::store::Store;
use kedge_base::atomic::Ordering;
use kedge_base::{Result, without_panic};
use std::time::Duration;

impl Store {
    /// Returns when a checkpoint has completed that started after this call: its own, or that of
    /// another thread.
    pub fn checkpoint(&self, cause: CheckpointCause) -> Result<()> {
        self.checkpoint_by(cause, By::Operation)
    }

    /// [`Store::checkpoint`] in a given thread. Only checkpoints of the background thread are
    /// paced.
    pub(super) fn checkpoint_by(&self, cause: CheckpointCause, by: By) -> Result<()> {
        let mine = self.checkpoint.next();
        let mut single = self.checkpoint.alone(cause);
        // No checkpoint may follow that of a close or of a freeze, because it would remove the
        // clean mark.
        let is_last = self.closed.load(Ordering::Acquire) || self.checkpoint.is_frozen();
        if is_last || self.checkpoint.covers(mine) {
            return self.check_alive();
        }
        self.run_checkpoint(&mut single, cause, by, Kind::Plain)
    }

    /// A number that is odd while a checkpoint runs; it advances when one starts and when it ends.
    pub fn checkpoint_turn(&self) -> u64 {
        self.checkpoint.turn()
    }

    /// Whether a checkpoint has run at any time since [`Store::checkpoint_turn`] returned `turn`.
    pub fn checkpoint_ran_since(&self, turn: u64) -> bool {
        !turn.is_multiple_of(2) || self.checkpoint_turn() != turn
    }

    /// Runs a checkpoint. One that fails shuts the store down: the frozen state cannot be merged
    /// back into the running one. The log is complete, so the next mount recovers. A checkpoint
    /// that panics does the same, because its state is incomplete. A deferred checkpoint does not:
    /// its frozen state is kept in `unwritten`.
    pub(super) fn run_checkpoint(
        &self,
        unwritten: &mut Unwritten,
        cause: CheckpointCause,
        by: By,
        kind: Kind<'_>,
    ) -> Result<()> {
        if let Some(reason) = self.log.shutdown_reason() {
            return Err(reason);
        }
        let running = self.checkpoint.start();
        let (started, incoming) = (self.clock.monotonic(), self.incoming());
        self.checkpoint.began_at.store(started.as_nanos() as u64, Ordering::Relaxed);
        self.checkpoint.began_lsn.store(self.log.head_lsn().0, Ordering::Relaxed);
        let pace = self.pace(cause, by, incoming);
        let result = without_panic("a checkpoint", || {
            if let Some(cut) = unwritten.take() {
                // This checkpoint is never marked clean, since log records follow its cut.
                self.write_cut(unwritten, cut, (cause, false), &pace, Duration::ZERO)?;
            }
            self.prepare(&pace)?;
            let prepare = self.clock.since(started);
            let clean = matches!(kind, Kind::Clean);
            // On an image too full for the promise the cut may still find free nodes, so it is
            // tried.
            if let Err(e) = self.forest.promise_nodes(0) {
                tracing::debug!("nodes for the table of trees: {e}");
            }
            let cut = self.cut(kind)?;
            self.write_cut(unwritten, cut, (cause, clean), &pace, prepare)
        });
        if let Err(e) = &result {
            self.forest.not_written(e);
        }
        match &result {
            Ok(()) => running.completed(),
            Err(_) if unwritten.is_some() => {}
            Err(e) => self.shutdown(e),
        }
        self.stats.checkpoints[cause as usize].inc();
        let took = self.clock.since(started).as_nanos() as u64;
        let paused = pace.paused().as_nanos() as u64;
        self.checkpoint.took.store(took.saturating_sub(paused), Ordering::Relaxed);
        self.stats.paused_ns.record(paused);
        self.stats.checkpoint_ns.record(took);
        result
    }
}
