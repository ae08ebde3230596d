//! fsync and fdatasync.
//!
//! 1. Data: small new data becomes a record; all other data is written in place and named by a
//!    record.
//! 2. fsync (not fdatasync): time stamps that waited become a record.
//! 3. If the inode's `commit_lsn` (fdatasync, unless `relog`: `datasync_lsn`) is not durable, the
//!    log is forced to its head: everything that completed before the call is durable with it.
//! 4. If no force was needed but data was written in place since the last flush: one device flush,
//!    shared with all threads that wait for one. Step 1 makes it unnecessary where it writes
//!    durably ("Durable writes" in [`crate::durability::writeback`]).
//!
//! An fsync holds no inode lock across a force or a flush, with one exception: a device without FUA
//! makes a durable write a write and a flush, and the inode's `wb` is held for both. (An atomic
//! write holds `wb` across its force, see [`crate::data::atomic`].) An inode with nothing undurable
//! costs nothing.
//!
//! The call that holds its thread and the asynchronous call share their code: steps 1 and 2 are
//! [`Syncer::begin_fsync`], step 4 is [`Syncer::end_fsync`]. They differ in how they wait for the
//! force between them.

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

/// The LSN and the data write for which an fsync must wait.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    lsn: Lsn,
    seq: WriteSeq,
    /// The head of the log when `lsn` was read, for a trace.
    called: Lsn,
}

/// The action between the two halves of an fsync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Force,
    Flush,
    /// Broken on purpose: the fsync returns without waiting.
    Answer,
}

/// A running fsync.
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

/// Takes the error of a failed write that no fsync has reported yet.
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

    /// Calls `done` with the result, without holding the calling thread while the log is forced, or
    /// while data is written in place beside that of other calls.
    pub(crate) fn fsync_async(self: &Arc<Self>, ino: Ino, datasync: bool, done: Done) {
        let arrival = self.arrival();
        match self.joins_group(ino) {
            Some(inode) => self.group.push(Queued { inode, datasync, arrival, done, syncer: self.clone() }),
            None => self.go_on(ino, datasync, arrival, done),
        }
    }

    /// The inode, if its data goes in place and there are other calls to share the pass with. All
    /// that fails here fails again in [`Syncer::go_on`].
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
        // Before everything else, since the preparation may itself checkpoint, or wait for a
        // checkpoint.
        Arrival { at: self.engine.clock().monotonic(), turn: self.engine.store().checkpoint_turn() }
    }

    /// All steps of an asynchronous call.
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

    /// The result where there is no work to do: an earlier failure. See
    /// [`Engine::sync_work`](crate::engine::Engine::sync_work).
    pub(crate) fn fsync_at_once(&self, ino: Ino) -> Result<()> {
        self.sync_at_once()?;
        take_failure(&mut self.inodes.get(ino)?.meta.lock(), ino)
    }

    /// Steps 1 and 2.
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

    /// Step 4, also after a force: a log write that had already begun when the data write completed
    /// did not flush for it.
    fn end_fsync(&self, mut call: Call, forced: kedge_base::Result<()>) -> Result<()> {
        let clock = self.engine.clock();
        if call.next == Next::Force {
            call.trace.force = Some((clock.monotonic(), call.wanted.lsn));
        }
        // Broken on purpose: data overwritten in place is not flushed.
        let skips = call.trace.datasync && broken::is(Variant::FdatasyncSkipsFlush);
        let flushes = call.next != Next::Answer && !skips;
        let result = forced.map_err(Error::from);
        let result =
            if flushes { result.and_then(|()| self.flush_if_needed(call.wanted.seq)) } else { result };
        if result.is_ok() {
            // An fdatasync leaves out records that it need not wait for.
            let Wanted { seq, called, .. } = call.wanted;
            let called = if call.trace.datasync { Lsn(0) } else { called };
            trace::note(|| Event::Ack { ino: call.trace.ino, called, seq: seq.0 });
        }
        self.record(&call.trace, clock.monotonic());
        result
    }

    /// Steps 1 and 2.
    fn prepare_fsync(&self, ino: Ino, datasync: bool) -> Result<Wanted> {
        self.engine.check_open()?;
        self.engine.store().check_alive()?;
        let inode = self.inodes.get(ino)?;
        if inode.kind == FileKind::Regular && !self.engine.store().is_read_only() {
            self.write_dirty(&inode)?;
        }
        let all = self.engine.live().fdatasync().takes_all(datasync);
        if !datasync && !inode.meta.lock().unlogged.is_empty() {
            self.log_times(std::slice::from_ref(&inode))?;
        }
        let mut meta = inode.meta.lock();
        take_failure(&mut meta, ino)?;
        let p = meta.progress;
        // For `new_name=sync`. For an inode that did not change since the last checkpoint this is
        // an old position, which does not count.
        meta.marks.logged = p.commit_lsn;
        let called = self.engine.store().head_lsn();
        drop(meta);
        if !self.engine.store().data_flushed(p.write_seq) {
            // Let a writer in progress finish first, so that one flush covers both. The number is
            // read before that: a call whose data is durable already, or soon, would otherwise wait
            // for the writer's flush too.
            drop(inode.wb.lock());
        }
        Ok(Wanted { lsn: if all { p.commit_lsn } else { p.datasync_lsn }, seq: p.write_seq, called })
    }

    /// Step 1. The result of the fsync includes its error.
    fn write_dirty(&self, inode: &Arc<Inode>) -> Result<()> {
        let _syncing = Syncing::join(inode);
        if inode.pages.lock().dirty_count() == 0 {
            // A writeback in another thread may have cleared the dirty marks. If it fails, it
            // restores them: so wait for it, and check with its lock held. The calls below also
            // check with that lock held.
            let _wb = inode.wb.lock();
            // Broken on purpose: the wait alone counts as success.
            if inode.pages.lock().dirty_count() == 0 || broken::is(Variant::WaitWithoutLook) {
                return Ok(());
            }
        }
        if self.log_small_data(inode)? {
            return Ok(());
        }
        let _counted = self.group.count();
        self.writeback.write_for_fsync(inode).inspect_err(|_| inode.meta.lock().write_failed = false)
    }
}
