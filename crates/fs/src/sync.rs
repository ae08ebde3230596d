//! fsync, fdatasync, sync, and what the flusher threads ([`crate::flushers`]) do for a file system.
//!
//! # fsync
//! 1. Its data: small new data becomes a record; all else is written in place and named by a record.
//! 2. fsync (not fdatasync): time stamps that waited become a record.
//!    With `fdatasync=relog` also at fdatasync.
//! 3. If the inode's `commit_lsn` (fdatasync, unless `relog`: `datasync_lsn`) is not durable, the log is forced to its head: everything
//!    that completed before the call is durable with it.
//! 4. If no force was needed but data was written in place since the last flush: one device flush, shared with whoever
//!    else waits for one. Step 1 spares it where it writes durably ("Durable writes" in [`crate::writeback`]).
//!
//! No inode lock is held across a force or a flush. An inode with nothing undurable costs nothing.

use crate::core::Fs;
use crate::flushers::Flushed;
use crate::inode::Inode;
use crate::slow::Trace;
use crate::{Error, FdatasyncRule, LostData, Result};
use kedge_base::broken::{self, Variant};
use kedge_base::{BLOCK_SIZE, Ino, Lsn};
use kedge_format::FileKind;
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_store::{Class, ForceCause, PROMISE_PER_PIECE, WriteSeq};
use std::sync::Arc;
use std::time::Duration;

use crate::attr::PATCH_BYTES;
use crate::pages::{Backing, Which};
use crate::writeback::Syncing;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// New data up to this many bytes rides in the log.
pub(crate) const LOG_DATA_MAX: usize = 32 << 10;
const LOG_DATA_PAGES: usize = 16;

/// The most that a record with the dirty bytes of so many pages takes.
fn log_record_bytes(pages: usize) -> u64 {
    let bytes = (pages as u64 * BLOCK).min(LOG_DATA_MAX as u64);
    bytes + 2 * PATCH_BYTES + pages as u64 * (PROMISE_PER_PIECE as u64 + 32)
}

/// Between the tries of the last sync.
const CLOSE_RESTS: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(50), Duration::from_millis(250)];
/// Inodes whose time stamps go into one record.
const TIMES_INODES: usize = 256;
/// The same on a full image.
const TIMES_INODES_FULL: usize = 8;

/// What an fsync still has to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    lsn: Lsn,
    seq: WriteSeq,
}

impl Fs {
    /// Steps 1 and 2.
    fn fsync_prepare(&self, ino: Ino, datasync: bool) -> Result<Wanted> {
        self.check_open()?;
        self.store.check_alive()?;
        let inode = self.get(ino)?;
        if inode.kind == FileKind::Regular && !self.store.is_read_only() {
            self.write_dirty(&inode)?;
        }
        // The old rule of XFS: the change counter of an overwrite is part of the inode, and so are its time stamps.
        let all = !datasync || self.live.fdatasync() == FdatasyncRule::Relog;
        if all && !inode.meta.lock().unlogged.is_empty() {
            self.log_times(std::slice::from_ref(&inode))?;
        }
        let mut meta = inode.meta.lock();
        if std::mem::take(&mut meta.write_failed) {
            return Err(Error::WriteBack(ino));
        }
        meta.progress.synced_in = self.store.generation();
        let p = meta.progress;
        drop(meta);
        if !self.store.data_flushed(p.write_seq) {
            // Who writes to this file just now can share the flush: it begins when he has. Not before the number is read: a call
            // whose data is durable already, or soon, would wait for his flush, too.
            drop(inode.wb.lock());
        }
        Ok(Wanted { lsn: if all { p.commit_lsn } else { p.datasync_lsn }, seq: p.write_seq })
    }

    /// Step 1. What fails of it is told with the answer.
    fn write_dirty(&self, inode: &Arc<Inode>) -> Result<()> {
        let _syncing = Syncing::join(inode);
        if inode.pages.lock().dirty_count() == 0 {
            // A writeback that another thread runs may have taken the marks. It may fail, and then
            // they are there again: so wait for it, and look with its lock held. The calls below
            // look with that lock held, too.
            let _wb = inode.wb.lock();
            // Broken on purpose: to have waited is enough.
            if inode.pages.lock().dirty_count() == 0 || broken::is(Variant::WaitWithoutLook) {
                return Ok(());
            }
        }
        if self.log_small_data(inode)? {
            return Ok(());
        }
        self.writeback_for_fsync(inode).inspect_err(|_| inode.meta.lock().write_failed = false)
    }

    fn needs_force(&self, wanted: Wanted) -> bool {
        wanted.lsn > self.store.durable_lsn()
    }

    /// Step 4, also after a force: a log write that was under way already when the data write completed did not flush
    /// for it.
    fn flush_if_needed(&self, seq: WriteSeq) -> Result<()> {
        if self.store.data_flushed(seq) { Ok(()) } else { Ok(self.store.flush_data(seq)?) }
    }

    fn cause(datasync: bool) -> ForceCause {
        if datasync { ForceCause::Fdatasync } else { ForceCause::Fsync }
    }

    /// Steps 1 and 2, and the beginning of their trace.
    fn fsync_begin(&self, ino: Ino, datasync: bool) -> Result<(Wanted, Trace)> {
        // Before all else: the preparation may itself checkpoint, or wait for one.
        let (start, turn) = (self.clock.monotonic(), self.store.checkpoint_turn());
        let wanted = self.fsync_prepare(ino, datasync)?;
        Ok((wanted, Trace { ino, datasync, start, turn, data: self.clock.monotonic(), force: None }))
    }

    fn fsync_end(&self, trace: &Trace) {
        let end = self.clock.monotonic();
        self.stats.slow.record(&self.store, trace, end);
        if self.store.checkpoint_ran_since(trace.turn) {
            self.stats.fsync_meanwhile.record(end.saturating_sub(trace.start).as_nanos() as u64);
        }
    }

    pub fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        let (wanted, mut trace) = self.fsync_begin(ino, datasync)?;
        if self.needs_force(wanted) {
            if broken::is(Variant::AckBeforeForce) {
                // Broken on purpose: nobody waits for the log write.
                let cause = Fs::cause(datasync);
                self.store.force_async(self.store.head_lsn(), cause, Box::new(|_| {}));
                return Ok(());
            }
            self.store.force(self.store.head_lsn(), Fs::cause(datasync))?;
            trace.force = Some((self.clock.monotonic(), wanted.lsn));
        }
        if datasync && broken::is(Variant::FdatasyncSkipsFlush) {
            return Ok(()); // broken on purpose: bytes overwritten in place are left to chance
        }
        self.flush_if_needed(wanted.seq)?;
        self.fsync_end(&trace);
        Ok(())
    }

    /// Answers `done` without holding the calling thread while the log is forced.
    pub fn fsync_async(self: &Arc<Self>, ino: Ino, datasync: bool, done: crate::Done) {
        let (wanted, mut trace) = match self.fsync_begin(ino, datasync) {
            Err(e) => return done(Err(e)),
            Ok(begun) => begun,
        };
        if !self.needs_force(wanted) {
            let result = self.flush_if_needed(wanted.seq);
            self.fsync_end(&trace);
            return done(result);
        }
        let fs = self.clone();
        let answer = Box::new(move |result: kedge_base::Result<()>| {
            trace.force = Some((fs.clock.monotonic(), wanted.lsn));
            let result = result.map_err(Error::from).and_then(|()| fs.flush_if_needed(wanted.seq));
            fs.fsync_end(&trace);
            done(result);
        });
        self.store.force_async(self.store.head_lsn(), Fs::cause(datasync), answer);
    }

    /// Puts the inode's dirty bytes into a record if they are few and new. Returns false if they must go in place.
    ///
    /// New are bytes without a written block, bytes behind the logged size, and bytes of pages that are log-resident
    /// already: those must be logged again, or replay would put the older record over them.
    fn log_small_data(&self, inode: &Arc<Inode>) -> Result<bool> {
        let room = inode.pages.lock().dirty_count();
        if room > LOG_DATA_PAGES {
            return Ok(false);
        }
        // Keeps a promise, as writeback does. For as many pages as are dirty now: many fsyncs at once would else hold a
        // good part of a small log that none of them needs.
        let mut handle = self.begin(log_record_bytes(room), 1, Class::Reclaim)?;
        let _wb = inode.wb.lock();
        let mut pages = inode.pages.lock();
        let dirty = pages.unclean(Which::Dirty, 0..u64::MAX, room + 1);
        if dirty.is_empty() {
            return Ok(true);
        }
        let mut changes = self.lock_metas(&[&**inode]);
        let c = &mut changes[0];
        if c.meta.dead || dirty.len() > room {
            return Ok(c.meta.dead);
        }
        let size = c.core.size;
        let mut record = RecordBuilder::new(RecordOp::LogData);
        let mut total = 0;
        for &index in &dirty {
            let page = pages.get(index).expect("just listed");
            let (lo, hi) = page.dirty.expect("listed as dirty");
            let start = index * BLOCK + lo as u64;
            let end = (index * BLOCK + hi as u64).min(size);
            let is_new = page.logged || page.backing != Backing::Written || start >= c.meta.logged_size;
            total += (end.saturating_sub(start)) as usize;
            // Zeros behind the end of the file have no bytes to log: they go in place.
            if !is_new || start >= end || total > LOG_DATA_MAX {
                return Ok(false);
            }
            let lo = lo as usize;
            record.data(inode.ino, start, &page.data[lo..lo + (end - start) as usize]);
        }
        if size != c.meta.logged_size {
            c.mask |= InodeMask::SIZE;
        }
        self.commit(&mut handle, record, &mut changes)?;
        let c = &mut changes[0];
        let mut delta = crate::pages::Delta::default();
        for &index in &dirty {
            delta.dirty += pages.set_logged(index).dirty;
        }
        if c.meta.listed {
            c.meta.listed = false;
            self.dirty.remove(inode.ino);
        }
        drop(changes);
        drop(pages);
        self.account(delta);
        self.stats.logged_data.inc();
        Ok(true)
    }

    /// Makes records of the time stamps that waited in the inodes. One inode that fails does not
    /// keep the others from theirs.
    fn log_times(&self, inodes: &[Arc<Inode>]) -> Result<()> {
        let mut result = Ok(());
        for chunk in inodes.chunks(TIMES_INODES) {
            // Their metas are locked together: in the order of locks.
            let mut chunk = chunk.to_vec();
            chunk.sort_by_key(|i| i.ino);
            let few = match self.log_times_of(&chunk) {
                Ok(()) => continue,
                // Many inodes may cost more tree nodes than a full image has; few at a time need few.
                Err(Error::Engine(kedge_base::Error::NoSpace)) => TIMES_INODES_FULL,
                Err(_) => 1,
            };
            for few in chunk.chunks(few).take_while(|_| self.store.check_alive().is_ok()) {
                result = result.and(self.log_times_of(few));
            }
            result = result.and(self.store.check_alive().map_err(Error::from));
        }
        result
    }

    fn log_times_of(&self, inodes: &[Arc<Inode>]) -> Result<()> {
        let mut handle =
            self.begin(PATCH_BYTES * inodes.len() as u64, inodes.len() as u32, Class::Reclaim)?;
        let mut changes = Vec::with_capacity(inodes.len());
        for inode in inodes {
            let meta = inode.meta.lock();
            if meta.unlogged.is_empty() || meta.dead {
                continue;
            }
            let core = meta.core;
            let mask = InodeMask::default();
            changes.push(crate::core::Change { inode, meta, core, mask, logged_size: None });
        }
        if changes.is_empty() {
            return Ok(());
        }
        self.commit(&mut handle, RecordBuilder::new(RecordOp::Times), &mut changes)?;
        Ok(())
    }

    /// Everything that completed before the call is written, except for a force that the caller
    /// makes. What cannot be written keeps nothing else from it: the first error comes with the
    /// answer.
    fn sync_prepare(&self, cause: ForceCause) -> Result<(WriteSeq, Result<()>)> {
        self.check_open()?;
        self.store.check_alive()?;
        if self.store.is_read_only() {
            return Ok((WriteSeq(0), Ok(())));
        }
        // All that is dirty, and all that a writeback has taken and may fail to write: such an
        // inode stays on the list.
        let dirty = self.dirty.all(&*self.live.order());
        let mut result = match cause {
            // Nobody waits for what failed just now: the timer leaves it alone for a while.
            ForceCause::CommitTimer => self.writeback(&self.due(dirty.clone()), Which::Dirty, Class::Normal),
            _ => self.writeback(&dirty, Which::Dirty, Class::Normal),
        };
        for inode in self.dirty.under_writeback() {
            drop(inode.wb.lock()); // a writeback that began before us
        }
        result = result.and(self.log_times(&dirty));
        self.unlist_clean(&dirty);
        Ok((self.store.data_write_seq(), result))
    }

    pub fn sync(&self, cause: ForceCause) -> Result<()> {
        let (seq, result) = self.sync_prepare(cause)?;
        self.store.force(self.store.head_lsn(), cause)?;
        self.flush_if_needed(seq)?;
        result
    }

    pub fn sync_async(self: &Arc<Self>, done: crate::Done) {
        match self.sync_prepare(ForceCause::Sync) {
            Err(e) => done(Err(e)),
            Ok((seq, prepared)) => {
                let fs = self.clone();
                let answer = Box::new(move |result: kedge_base::Result<()>| {
                    let forced = result.map_err(Error::from).and_then(|()| fs.flush_if_needed(seq));
                    done(forced.and(prepared));
                });
                self.store.force_async(self.store.head_lsn(), ForceCause::Sync, answer);
            }
        }
    }

    /// The last sync: what fails is tried again some times, each time elsewhere.
    pub fn sync_for_close(&self) -> Result<()> {
        let mut result = self.sync(ForceCause::Close);
        for rest in CLOSE_RESTS {
            if result.is_ok() || self.check_open().is_err() || self.store.check_alive().is_err() {
                break;
            }
            std::thread::sleep(rest);
            result = self.sync(ForceCause::Close);
        }
        result
    }

    /// What is dirty behind the last sync, and is lost.
    pub fn lost_data(&self) -> Option<LostData> {
        let mut some: Vec<(Ino, u64)> = self
            .dirty
            .all(&*self.live.order())
            .iter()
            .map(|inode| (inode.ino, inode.pages.lock().dirty_count() as u64 * BLOCK))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        some.sort_unstable();
        let (files, bytes) = (some.len() as u64, some.iter().map(|(_, bytes)| bytes).sum());
        some.truncate(LostData::NAMED_MAX);
        (files > 0).then_some(LostData { files, bytes, some })
    }

    pub fn wake_flusher(&self) {
        self.flusher.wake();
    }

    fn commit_tick(&self) -> Result<()> {
        if self.dirty.len() > 0 || self.store.head_lsn() > self.store.durable_lsn() {
            self.sync(ForceCause::CommitTimer)?;
        }
        Ok(())
    }
}

impl Flushed for Fs {
    /// At the end of each `commit` interval all completed work becomes durable; between, a woken thread writes because too
    /// much is dirty.
    fn turn(&self, last: &mut Duration, over: bool) -> Duration {
        let now = self.clock.monotonic();
        let commit = self.live.commit();
        let result = if over || now.saturating_sub(*last) >= commit {
            *last = now;
            self.commit_tick()
        } else {
            self.writeback(&self.due(self.dirty.take(1024, &*self.live.order())), Which::Dirty, Class::Normal)
        };
        if let Err(e) = result
            && self.check_open().is_ok()
            && self.store.check_alive().is_ok()
        {
            tracing::error!("periodic writeback: {e}");
        }
        // What the work took is not added to the interval.
        commit.saturating_sub(self.clock.monotonic().saturating_sub(*last))
    }

    fn panicked(&self, words: &str) {
        let reason = format!("the writeback of a flusher thread panicked: {words}");
        self.store.shutdown(&kedge_base::Error::Shutdown(reason.into()));
    }
}
