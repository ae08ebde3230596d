//! sync: makes everything of a file system durable, for a caller, at the end of a mount, or when
//! the commit interval is over.

use super::Syncer;
use crate::cache::pages::Which;
use crate::durability::flushers::Flushed;
use crate::error::{Done, Error, Result};
use kedge_base::Ino;
use kedge_store::{Class, ForceCause, WriteSeq};
use std::sync::Arc;
use std::time::Duration;

/// Pauses between the attempts of the last sync.
const CLOSE_RESTS: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(50), Duration::from_millis(250)];
/// The pause after these, while the image's host has no space: some five seconds in all, in which
/// an administrator may make room. Data that still does not fit is given up, because an unmount
/// must end.
const FULL_REST: Duration = Duration::from_millis(250);
const FULL_TRIES: usize = 20;
/// Inodes that a woken flusher writes in one turn.
const TURN_INODES: usize = 1024;

/// A sync whose data is written.
#[derive(Clone)]
pub(super) struct Call {
    seq: WriteSeq,
    /// The first error of the data, returned at the end: it does not keep the rest from becoming
    /// durable.
    prepared: Result<()>,
}

impl Syncer {
    /// A sync of the file system itself. Shares its work with no other.
    pub(crate) fn sync(&self, cause: ForceCause) -> Result<()> {
        self.force_sync(self.begin_sync(cause)?, cause)
    }

    /// A sync of a caller. Concurrent ones share the writing of the data: see
    /// [`super::rounds`].
    pub(crate) fn sync_shared(&self) -> Result<()> {
        self.force_sync(self.begin_shared()?, ForceCause::Sync)
    }

    fn begin_shared(&self) -> Result<Call> {
        self.engine.check_open()?;
        self.rounds.share(|| self.begin_sync(ForceCause::Sync))
    }

    fn force_sync(&self, call: Call, cause: ForceCause) -> Result<()> {
        let store = self.engine.store();
        let forced = store.force(store.head_lsn(), cause);
        self.end_sync(call, forced)
    }

    /// [`Syncer::sync_shared`]. Calls `done` with the result, without holding the calling thread
    /// while the log is forced.
    pub(crate) fn sync_async(self: &Arc<Self>, done: Done) {
        let call = match self.begin_shared() {
            Err(e) => return done(Err(e)),
            Ok(call) => call,
        };
        let (syncer, store) = (self.clone(), self.engine.store());
        let answer = Box::new(move |forced| done(syncer.end_sync(call, forced)));
        store.force_async(store.head_lsn(), ForceCause::Sync, answer);
    }

    /// The result where there is no work to do. See
    /// [`Engine::sync_work`](crate::engine::Engine::sync_work).
    pub(crate) fn sync_at_once(&self) -> Result<()> {
        self.engine.check_open()?;
        Ok(self.engine.store().check_alive()?)
    }

    /// Writes dirty data of some files in place, including the record that names it.
    ///
    /// # Crash argument
    /// Records become durable in their order, and a log write flushes earlier data writes in place
    /// before it. So a crash that preserves a later record preserves these bytes, and the sizes
    /// that belong to them. A writeback of these files by another thread holds their locks, and
    /// data that it fails to write is dirty again when the locks are taken here: its error becomes
    /// an error of this call.
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

    /// Writes everything that completed before the call, up to a force, which the caller makes.
    /// Data that cannot be written does not keep the rest from being written: the first error is in
    /// the result.
    fn begin_sync(&self, cause: ForceCause) -> Result<Call> {
        self.engine.check_open()?;
        self.engine.store().check_alive()?;
        if self.engine.store().is_read_only() {
            return Ok(Call { seq: WriteSeq(0), prepared: Ok(()) });
        }
        // Everything dirty, and everything that a writeback has taken and may fail to write: such
        // an inode stays on the list.
        let dirty = self.writeback.all_dirty();
        let mut result = match cause {
            // No caller waits for data that failed recently, so the timer skips it for a while.
            ForceCause::CommitTimer => {
                self.writeback.write(&self.writeback.due(dirty.clone()), Which::Dirty, Class::Normal)
            }
            _ => self.writeback.write(&dirty, Which::Dirty, Class::Normal),
        };
        self.writeback.wait_for_passes(); // those that began before this sync
        result = result.and(self.log_times(&dirty));
        self.writeback.unlist_clean(&dirty);
        Ok(Call { seq: self.engine.store().data_write_seq(), prepared: result })
    }

    /// The last sync: failed writes are retried several times, each time elsewhere.
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
    /// At the end of each `commit` interval all completed work becomes durable; in between, a woken
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
        // The duration of the work is part of the interval.
        commit.saturating_sub(self.engine.clock().monotonic().saturating_sub(*last))
    }

    fn panicked(&self, words: &str) {
        let reason = format!("the writeback of a flusher thread panicked: {words}");
        self.engine.store().shutdown(&kedge_base::Error::Shutdown(reason.into()));
        // The turn is over, and a freeze that waited for it may have completed.
        self.engine.gate().open_if_frozen();
    }
}
