//! fsync and fdatasync.
//!
//! 1. Data: a small amount of new data becomes a record. All other data is written in place, and a
//!    record names it.
//! 2. fsync (not fdatasync): pending time stamps become a record.
//! 3. If the inode's `commit_lsn` (for fdatasync, unless `relog`, its `datasync_lsn`) is not
//!    durable, the log is forced to its head. Everything that completed before the call becomes
//!    durable with it.
//! 4. If no force was needed but data was written in place since the last flush, the device is
//!    flushed once, for all threads that wait for a flush. A durable write in step 1 makes that
//!    unnecessary ("Durable writes" in [`crate::durability::writeback`]).
//!
//! An fsync holds no inode lock across a force or a flush, with one exception: on a device without
//! FUA a durable write is a write and a flush, and the inode's `wb` is held for both. (An atomic
//! write holds `wb` across its force, see [`crate::data::atomic`].) For an inode whose state is
//! durable an fsync does no IO.
//!
//! The synchronous and the asynchronous call share their code: steps 1 and 2 are
//! [`Syncer::begin_fsync`], step 4 is [`Syncer::end_fsync`]. They differ in how they wait for the
//! force of step 3.

use super::group::Queued;
use super::{Arrival, Syncer};
use crate::cache::inode::{Inode, Meta, Syncing};
use crate::durability::slow::Trace;
use crate::error::{Done, Error, Result};
use kedge_base::broken::{self, Variant};
use kedge_base::trace::{self, Event};
use kedge_base::{Ino, Lsn};
use kedge_format::FileKind;
use kedge_store::{ForceCause, WriteSeq};
use std::sync::Arc;

/// What an fsync must wait for: an LSN, and a data write.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    lsn: Lsn,
    seq: WriteSeq,
    /// Head of the log when `lsn` was read; for a trace.
    called: Lsn,
}

/// What follows steps 1 and 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Force,
    Flush,
    /// Broken on purpose: the fsync returns without waiting.
    Answer,
}

/// A running fsync after steps 1 and 2.
struct Call {
    wanted: Wanted,
    next: Next,
    trace: Trace,
}

impl Call {
    fn cause(&self) -> ForceCause {
        if self.trace.datasync { ForceCause::Fdatasync } else { ForceCause::Fsync }
    }
}

/// Returns, and clears, a failed write of the inode that no fsync has reported yet.
fn take_failure(meta: &mut Meta, ino: Ino) -> Result<()> {
    match (std::mem::take(&mut meta.write_failed), meta.failed_full) {
        (false, _) => Ok(()),
        (true, true) => Err(kedge_base::Error::NoSpace.into()),
        (true, false) => Err(Error::WriteBack(ino)),
    }
}

impl Syncer {
    pub(crate) fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        let call = self.begin_fsync(ino, datasync, self.arrival())?;
        let store = self.engine.store();
        let forced = match call.next {
            Next::Force => store.force(store.head_lsn(), call.cause()),
            Next::Flush | Next::Answer => Ok(()),
        };
        self.end_fsync(call, forced)
    }

    /// Steps 2 and 3 of an fsync. Records of the inode may become durable before its data, as they
    /// do when an fsync of another inode forces the log.
    pub(crate) fn sync_attributes(&self, ino: Ino) -> Result<()> {
        let store = self.engine.store();
        self.engine.check_open()?;
        store.check_alive()?;
        let inode = self.inodes.get(ino)?;
        if !inode.meta.lock().unlogged.is_empty() {
            self.log_times(std::slice::from_ref(&inode))?;
        }
        if inode.meta.lock().progress.commit_lsn > store.durable_lsn() {
            store.force(store.head_lsn(), ForceCause::Fsync)?;
        }
        Ok(())
    }

    /// An fsync that does not hold the calling thread while the log is forced, or while data is
    /// written in place together with that of other calls. Calls `done` with the result.
    pub(crate) fn fsync_async(self: &Arc<Self>, ino: Ino, datasync: bool, done: Done) {
        let arrival = self.arrival();
        match self.joins_group(ino) {
            Some(inode) => self.group.push(Queued { inode, datasync, arrival, done, syncer: self.clone() }),
            None => self.go_on(ino, datasync, arrival, done),
        }
    }

    /// Returns the inode if the call should join the queue of a group: its data is written in
    /// place, and other calls can share the pass. An error here leads to `None`, and occurs again
    /// in [`Syncer::go_on`].
    fn joins_group(&self, ino: Ino) -> Option<Arc<Inode>> {
        let store = self.engine.store();
        if !self.group.wants_call() || self.engine.check_open().is_err() || store.is_read_only() {
            return None;
        }
        store.check_alive().ok()?;
        let inode = self.inodes.get(ino).ok().filter(|inode| inode.kind == FileKind::Regular)?;
        let in_place = inode.pages.lock().dirty_count() > 0 && !self.log_small_data(&inode).ok()?;
        in_place.then_some(inode)
    }

    fn arrival(&self) -> Arrival {
        // Read before everything else, since the preparation may run or await a checkpoint itself.
        Arrival { at: self.engine.clock().monotonic(), turn: self.engine.store().checkpoint_turn() }
    }

    /// Runs all steps of an asynchronous call in this thread, except for the wait for the log.
    pub(super) fn go_on(self: &Arc<Self>, ino: Ino, datasync: bool, arrival: Arrival, done: Done) {
        let call = match self.begin_fsync(ino, datasync, arrival) {
            Err(e) => return done(Err(e)),
            Ok(call) => call,
        };
        if call.next != Next::Force {
            return done(self.end_fsync(call, Ok(())));
        }
        let (syncer, cause, store) = (self.clone(), call.cause(), self.engine.store());
        let answer = Box::new(move |forced| done(syncer.end_fsync(call, forced)));
        store.force_async(store.head_lsn(), cause, answer);
    }

    /// The result of a call that has no work to do: a failure that was not reported yet, if any.
    /// See [`Engine::sync_work`](crate::engine::Engine::sync_work).
    pub(crate) fn fsync_at_once(&self, ino: Ino) -> Result<()> {
        self.sync_at_once()?;
        take_failure(&mut self.inodes.get(ino)?.meta.lock(), ino)
    }

    /// Runs steps 1 and 2.
    fn begin_fsync(&self, ino: Ino, datasync: bool, arrival: Arrival) -> Result<Call> {
        let (clock, store) = (self.engine.clock(), self.engine.store());
        let Arrival { at: start, turn } = arrival;
        let wanted = self.prepare_fsync(ino, datasync)?;
        let trace = Trace { ino, datasync, start, turn, data: clock.monotonic(), force: None };
        let next = if wanted.lsn > store.durable_lsn() { Next::Force } else { Next::Flush };
        let mut call = Call { wanted, next, trace };
        if call.next == Next::Force && broken::is(Variant::AckBeforeForce) {
            // Broken on purpose: the fsync does not wait for the log write.
            store.force_async(store.head_lsn(), call.cause(), Box::new(|_| {}));
            call.next = Next::Answer;
        }
        Ok(call)
    }

    /// Runs step 4. Needed after a force too: a log write that had already begun when the data
    /// write completed has not flushed that data.
    fn end_fsync(&self, mut call: Call, forced: kedge_base::Result<()>) -> Result<()> {
        let clock = self.engine.clock();
        if call.next == Next::Force {
            call.trace.force = Some((clock.monotonic(), call.wanted.lsn));
        }
        // Broken on purpose: data that was overwritten in place is not flushed.
        let skips = call.trace.datasync && broken::is(Variant::FdatasyncSkipsFlush);
        let flushes = call.next != Next::Answer && !skips;
        let result = forced.map_err(Error::from);
        let result =
            if flushes { result.and_then(|()| self.flush_if_needed(call.wanted.seq)) } else { result };
        if result.is_ok() {
            // An fdatasync does not wait for all records before `called`, so the trace must not
            // claim that.
            let Wanted { seq, called, .. } = call.wanted;
            let called = if call.trace.datasync { Lsn(0) } else { called };
            trace::note(|| Event::Ack { ino: call.trace.ino, called, seq: seq.0 });
        }
        self.record(&call.trace, clock.monotonic());
        result
    }

    /// Runs steps 1 and 2, and returns what to wait for.
    fn prepare_fsync(&self, ino: Ino, datasync: bool) -> Result<Wanted> {
        self.engine.check_open()?;
        self.engine.store().check_alive()?;
        let inode = self.inodes.get(ino)?;
        if inode.kind == FileKind::Regular && !self.engine.store().is_read_only() {
            self.write_dirty(&inode, datasync)?;
        }
        let all = self.engine.live().fdatasync().takes_all(datasync);
        if !datasync && !inode.meta.lock().unlogged.is_empty() {
            self.log_times(std::slice::from_ref(&inode))?;
        }
        let mut meta = inode.meta.lock();
        take_failure(&mut meta, ino)?;
        let p = meta.progress;
        // Used by `new_name=sync`. If the inode did not change since the last checkpoint, this is a
        // position before the checkpoint, which does not count.
        meta.marks.logged = p.commit_lsn;
        let called = self.engine.store().head_lsn();
        drop(meta);
        if !self.engine.store().data_flushed(p.write_seq) {
            // Waits for a writer in progress, so that one flush covers both. `write_seq` is read
            // before: otherwise a call whose data is durable already, or will be soon, would also
            // wait for the flush of that writer's data.
            drop(inode.wb.lock());
        }
        Ok(Wanted { lsn: if all { p.commit_lsn } else { p.datasync_lsn }, seq: p.write_seq, called })
    }

    /// Runs step 1. If a write fails, this fsync returns the error, so no later one reports it
    /// again.
    fn write_dirty(&self, inode: &Arc<Inode>, datasync: bool) -> Result<()> {
        let _syncing = Syncing::join(inode);
        if inode.pages.lock().dirty_count() == 0 {
            // A writeback in another thread may have cleared the dirty marks, and restores them if
            // it fails. So its end is awaited, and the check is made with its lock held. The calls
            // below also check with that lock held.
            let _wb = inode.wb.lock();
            // Broken on purpose: the end of the other writeback counts as success.
            if inode.pages.lock().dirty_count() == 0 || broken::is(Variant::WaitWithoutLook) {
                return Ok(());
            }
        }
        if self.log_small_data(inode)? {
            return Ok(());
        }
        let _counted = self.group.count();
        let stamps = !datasync && !inode.meta.lock().unlogged.is_empty();
        self.writeback.write_for_fsync(inode, stamps).inspect_err(|_| inode.meta.lock().write_failed = false)
    }
}
