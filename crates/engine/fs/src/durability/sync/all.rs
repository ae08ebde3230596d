//! sync: everything of a file system, for a caller, at the end, or because time is up.

use super::Syncer;
use crate::cache::pages::Which;
use crate::durability::flushers::Flushed;
use crate::error::{Done, Error, Result};
use kedge_base::Ino;
use kedge_store::{Class, ForceCause, WriteSeq};
use std::sync::Arc;
use std::time::Duration;

/// Between the tries of the last sync.
const CLOSE_RESTS: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(50), Duration::from_millis(250)];
/// And then, while the image's host has no space: some five seconds, in which somebody may make
/// room. What does not fit after them is given up: an unmount must end.
const FULL_REST: Duration = Duration::from_millis(250);
const FULL_TRIES: usize = 20;
/// Inodes that a woken flusher writes in one turn.
const TURN_INODES: usize = 1024;

/// A sync whose data is written.
struct Call {
    seq: WriteSeq,
    /// What could not be written keeps nothing else from becoming durable; it is the answer at the
    /// end.
    prepared: Result<()>,
}

impl Syncer {
    pub(crate) fn sync(&self, cause: ForceCause) -> Result<()> {
        let (call, store) = (self.begin_sync(cause)?, self.engine.store());
        let forced = store.force(store.head_lsn(), cause);
        self.end_sync(call, forced)
    }

    /// Answers `done` without holding the calling thread while the log is forced.
    pub(crate) fn sync_async(self: &Arc<Self>, done: Done) {
        let call = match self.begin_sync(ForceCause::Sync) {
            Err(e) => return done(Err(e)),
            Ok(call) => call,
        };
        let (syncer, store) = (self.clone(), self.engine.store());
        let answer = Box::new(move |forced| done(syncer.end_sync(call, forced)));
        store.force_async(store.head_lsn(), ForceCause::Sync, answer);
    }

    /// The answer where there is no work to do. See
    /// [`Engine::sync_work`](crate::engine::Engine::sync_work).
    pub(crate) fn sync_at_once(&self) -> Result<()> {
        self.engine.check_open()?;
        Ok(self.engine.store().check_alive()?)
    }

    /// Writes what is dirty of some files in place, up to the record that says so.
    ///
    /// # Crash argument
    /// Records become durable in their order, and a log write flushes what was written in place
    /// before it. So whoever finds a later record after a crash finds these bytes, and the sizes
    /// that go with them. A writeback of these files that another thread runs holds their locks,
    /// and what it fails to write is dirty again when they are taken here: an error is an error of
    /// this call.
    pub(crate) fn write_back(&self, inos: &[Ino]) -> Result<()> {
        self.engine.check_open()?;
        self.engine.store().check_alive()?;
        let inodes = inos.iter().map(|ino| self.inodes.get(*ino)).collect::<Result<Vec<_>>>()?;
        self.writeback.write(&inodes, Which::Dirty, Class::Normal)
    }

    fn end_sync(&self, call: Call, forced: kedge_base::Result<()>) -> Result<()> {
        let forced = forced.map_err(Error::from).and_then(|()| self.flush_if_needed(call.seq));
        forced.and(call.prepared)
    }

    /// Everything that completed before the call is written, except for a force that the caller
    /// makes. What cannot be written keeps nothing else from it: the first error comes with the
    /// answer.
    fn begin_sync(&self, cause: ForceCause) -> Result<Call> {
        self.engine.check_open()?;
        self.engine.store().check_alive()?;
        if self.engine.store().is_read_only() {
            return Ok(Call { seq: WriteSeq(0), prepared: Ok(()) });
        }
        // All that is dirty, and all that a writeback has taken and may fail to write: such an
        // inode stays on the list.
        let dirty = self.writeback.all_dirty();
        let mut result = match cause {
            // Nobody waits for what failed just now: the timer leaves it alone for a while.
            ForceCause::CommitTimer => {
                self.writeback.write(&self.writeback.due(dirty.clone()), Which::Dirty, Class::Normal)
            }
            _ => self.writeback.write(&dirty, Which::Dirty, Class::Normal),
        };
        self.writeback.wait_for_passes(); // those that began before us
        result = result.and(self.log_times(&dirty));
        self.writeback.unlist_clean(&dirty);
        Ok(Call { seq: self.engine.store().data_write_seq(), prepared: result })
    }

    /// The last sync: what fails is tried again some times, each time elsewhere.
    pub(crate) fn sync_for_close(&self) -> Result<()> {
        let mut result = self.sync(ForceCause::Close);
        let rests = CLOSE_RESTS.into_iter().chain([FULL_REST; FULL_TRIES]).enumerate();
        for (tries, rest) in rests {
            let full = matches!(&result, Err(Error::Engine(e)) if e.is_host_full());
            if result.is_ok()
                || tries >= CLOSE_RESTS.len() && !full
                || self.engine.check_open().is_err()
                || self.engine.store().check_alive().is_err()
            {
                break;
            }
            self.engine.clock().sleep(rest);
            result = self.sync(ForceCause::Close);
        }
        result
    }

    fn commit_tick(&self) -> Result<()> {
        let store = self.engine.store();
        if self.writeback.dirty_inodes() > 0 || store.head_lsn() > store.durable_lsn() {
            self.sync(ForceCause::CommitTimer)?;
        }
        Ok(())
    }
}

impl Flushed for Syncer {
    /// At the end of each `commit` interval all completed work becomes durable; between, a woken
    /// thread writes because too much is dirty.
    fn turn(&self, last: &mut Duration, over: bool) -> Duration {
        let now = self.engine.clock().monotonic();
        let commit = self.engine.live().commit();
        let Some(_work) = self.engine.gate().try_work() else { return commit };
        let result = if over || now.saturating_sub(*last) >= commit {
            *last = now;
            let committed = self.commit_tick();
            self.engine.discard_turn();
            committed
        } else {
            self.writeback.write_some(TURN_INODES)
        };
        if let Err(e) = result
            && self.engine.check_open().is_ok()
            && self.engine.store().check_alive().is_ok()
        {
            tracing::error!("periodic writeback: {e}");
        }
        // What the work took is not added to the interval.
        commit.saturating_sub(self.engine.clock().monotonic().saturating_sub(*last))
    }

    fn panicked(&self, words: &str) {
        let reason = format!("the writeback of a flusher thread panicked: {words}");
        self.engine.store().shutdown(&kedge_base::Error::Shutdown(reason.into()));
        // The turn is over, and a freeze that waited for it may have completed.
        self.engine.gate().open_if_frozen();
    }
}
