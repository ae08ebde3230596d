//! sync: makes everything of a file system durable, for a caller, at a close, or when the commit
//! interval is over.

use super::Syncer;
use crate::cache::pages::Which;
use crate::error::{Done, Error, Result};
use kedge_base::Ino;
use kedge_store::{Class, ForceCause, WriteSeq};
use std::sync::Arc;
use std::time::Duration;

/// Pauses between the attempts of the last sync before a close.
const CLOSE_RESTS: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(50), Duration::from_millis(250)];
/// The pause after these, if the image's host has no space. With `FULL_TRIES` attempts that is some
/// five seconds, in which an administrator may free space. Data that still does not fit is given
/// up, because an unmount must end.
const FULL_REST: Duration = Duration::from_millis(250);
const FULL_TRIES: usize = 20;
/// The most inodes that a woken flusher writes in one turn.
const TURN_INODES: usize = 1024;

/// A sync whose data has been written, and whose records must still become durable.
#[derive(Clone)]
pub(super) struct Call {
    seq: WriteSeq,
    /// The first error of the data. It is returned at the end, since it must not keep the rest from
    /// becoming durable.
    prepared: Result<()>,
}

impl Syncer {
    /// A sync for the file system itself. Does not share its work with other syncs.
    pub(crate) fn sync(&self, cause: ForceCause) -> Result<()> {
        self.force_sync(self.begin_sync(cause)?, cause)
    }

    /// A sync for a caller. Concurrent calls share the writing of the data: see [`super::rounds`].
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

    /// [`Syncer::sync_shared`] without holding the calling thread while the log is forced. Calls
    /// `done` with the result.
    pub(crate) fn sync_async(self: &Arc<Self>, done: Done) {
        let call = match self.begin_shared() {
            Err(e) => return done(Err(e)),
            Ok(call) => call,
        };
        let (syncer, store) = (self.clone(), self.engine.store());
        let answer = Box::new(move |forced| done(syncer.end_sync(call, forced)));
        store.force_async(store.head_lsn(), ForceCause::Sync, answer);
    }

    /// The result of a call that has no work to do. See
    /// [`Engine::sync_work`](crate::engine::Engine::sync_work).
    pub(crate) fn sync_at_once(&self) -> Result<()> {
        self.engine.check_open()?;
        Ok(self.engine.store().check_alive()?)
    }

    /// Writes dirty data of these files in place, and commits the records that name it.
    ///
    /// # Crash argument
    /// Records become durable in their order, and a log write first flushes the data that was
    /// written in place before it. So a crash that preserves a later record preserves this data,
    /// and the sizes that belong to it. If another thread is just writing these files back, it
    /// holds their locks. Data that it fails to write is dirty again when this call gets the locks:
    /// the failure becomes an error of this call.
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

    /// Writes all data and commits all records that completed before the call; the caller then
    /// forces the log. If some data cannot be written, the rest is written nevertheless: the first
    /// error is in the result.
    fn begin_sync(&self, cause: ForceCause) -> Result<Call> {
        self.engine.check_open()?;
        self.engine.store().check_alive()?;
        if self.engine.store().is_read_only() {
            return Ok(Call { seq: WriteSeq(0), prepared: Ok(()) });
        }
        // The list has everything dirty. It also has inodes with data that a writeback has taken
        // and may fail to write: these stay on the list.
        let dirty = self.writeback.all_dirty();
        let mut result = match cause {
            // The timer skips data that failed recently for a while, since no caller waits for it.
            ForceCause::CommitTimer => {
                self.writeback.write(&self.writeback.due(dirty.clone()), Which::Dirty, Class::Normal)
            }
            _ => self.writeback.write(&dirty, Which::Dirty, Class::Normal),
        };
        self.writeback.wait_for_passes(); // they may have data of before this sync
        result = result.and(self.log_times(&dirty));
        self.writeback.unlist_clean(&dirty);
        Ok(Call { seq: self.engine.store().data_write_seq(), prepared: result })
    }

    /// The last sync before a close. Failed writes are retried several times, each time to another
    /// block.
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
        // Data that a writeback has put in place of older data may be in no record and on no list:
        // only a flush of the device makes it durable.
        if self.writeback.dirty_inodes() > 0
            || store.head_lsn() > store.durable_lsn()
            || !store.data_flushed(store.data_write_seq())
        {
            self.sync(ForceCause::CommitTimer)?;
        }
        Ok(())
    }

    /// Runs a turn of a flusher thread ([`crate::durability::flushers::Flushed::turn`]). At the end
    /// of each `commit` interval all completed work becomes durable. A thread that is woken in
    /// between writes some dirty data, because too much is dirty.
    pub(crate) fn turn(&self, last: &mut Duration, over: bool) -> Duration {
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

    /// Ends the file system after a panic in a turn.
    pub(crate) fn panicked(&self, words: &str) {
        let reason = format!("the writeback of a flusher thread panicked: {words}");
        self.engine.store().shutdown(&kedge_base::Error::Shutdown(reason.into()));
        // The turn has left the gate, so a freeze that waited for it may have completed; it must
        // end too.
        self.engine.gate().open_if_frozen();
    }
}
