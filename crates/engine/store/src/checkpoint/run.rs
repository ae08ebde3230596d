//! Checkpoints: make the tree as of a cut durable, move the log's tail, and free the blocks that
//! only the previous checkpoint used.
//!
//! # Crash argument
//! A crash at any point leaves one of two states.
//!
//! 1. The new superblock slot is not durable. Recovery starts from the other slot. Its nodes and
//!    bitmaps are untouched: nodes that were replaced, and the bitmap copies of that slot, are not
//!    reused before this checkpoint is durable. The log from its tail on is still there, because
//!    the tail moves last.
//! 2. The new slot is durable. Then so are the nodes, bitmaps and index to which it points, because
//!    a flush precedes it. The log was forced to the cut before the slot was written, so it has no
//!    gap between tail and cut.
//!
//! A checkpoint that finds no space on the image's host writes the same blocks again later
//! (`Store::on_host_full`). For a crash that is a checkpoint that takes longer. The same holds if
//! its caller gets the error meanwhile: the next checkpoint first writes these blocks, before it
//! makes a cut of its own.

use super::background::Retry;
use super::pace::{By, Hurry, Pace};
use crate::Store;
use crate::recovery::read_superblock;
use kedge_base::broken::{self, Variant};

use kedge_alloc::FrozenAlloc;
use kedge_base::lock::{Mutex, MutexGuard, Rank};
use kedge_base::{BLOCK_SIZE, BlockNo, Error, Generation, Ino, IoBuf, Lsn, Result, without_panic};
use kedge_btree::Frozen;
use kedge_device::{Device, Io, LatencyKind, Op, run_batch};
use kedge_format::node::NODE_SIZE;
use kedge_format::superblock::{CheckpointState, Losses, Superblock};
use kedge_log::{ForceCause, SpacePressure};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Why a checkpoint ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum CheckpointCause {
    /// Free log space fell below the threshold.
    Background,
    /// An operation found no log space.
    LogSpace,
    /// An operation found no tree nodes, or blocks waited for a checkpoint.
    NodeSpace,
    /// The dirty tree nodes exceed the cache budget.
    DirtyNodes,
    Recovery,
    Unmount,
    /// Requested by the caller.
    Request,
    Freeze,
    Thaw,
}

impl CheckpointCause {
    pub const COUNT: usize = 9;
    pub const NAMES: [&'static str; CheckpointCause::COUNT] = [
        "background",
        "log_space",
        "node_space",
        "dirty_nodes",
        "recovery",
        "unmount",
        "request",
        "freeze",
        "thaw",
    ];

    /// Whether the caller can be given the error that the image's host is full, and then continue.
    fn is_requested(self) -> bool {
        matches!(self, CheckpointCause::Request | CheckpointCause::Freeze | CheckpointCause::Thaw)
    }
}

/// The reaction to a host without space.
enum HostFull {
    TryAgain,
    /// The caller gets the error. The next checkpoint writes the cut.
    Deferred,
    Fail,
}

/// What a checkpoint needs from the file system above the store.
pub trait CheckpointClient: Send + Sync {
    /// Writes log-resident data in place, oldest first, so that the tail can move. Runs
    /// concurrently with operations. Only the store's lock that admits one checkpoint at a time is
    /// held. The error is the reason why some data stays in the log; all other data has been
    /// written.
    ///
    /// Calls `wrote` after each part with the number of log-resident pieces that were in it. The
    /// call may pause, so no lock that an operation needs is held across it.
    fn prepare_checkpoint(&self, wrote: &dyn Fn(usize)) -> Result<()>;
}

/// The cut of a deferred checkpoint, which the next checkpoint writes first.
type Unwritten = Option<Cut>;

/// The state of checkpoints, and the lock that admits one at a time.
pub(crate) struct Control {
    single: Mutex<Unwritten>,
    /// Odd while a checkpoint runs: advances when one starts and when it ends, however it ends.
    turn: AtomicU64,
    /// Number of the last checkpoint that completed. They are numbered from 1 as they start.
    completed: AtomicU64,
    /// Start of the last checkpoint in nanoseconds, and the head of the log then; from these
    /// follows how fast the log fills.
    pub began_at: AtomicU64,
    pub began_lsn: AtomicU64,
    /// Duration of the last checkpoint without its pauses, in nanoseconds.
    pub took: AtomicU64,
    /// Time of the last cut.
    cut_at: AtomicU64,
    /// The LSN of the last durable cut; 0 if there was none since the image was opened.
    pub durable_lsn: AtomicU64,
    /// Percentage of free log below which the background thread checkpoints; 0 with
    /// `noasync_checkpoint`.
    pub async_percent: AtomicU32,
    /// Why the last checkpoint could not write some log-resident data in place.
    pub unwritable: Mutex<Option<Error>>,
    pub retry: Mutex<Retry>,
    /// Number of threads that wait for `single`: operations and the background thread, and callers
    /// whose cause is a request.
    queued: AtomicU32,
    queued_requests: AtomicU32,
    /// The file system is being closed, so requested checkpoints no longer wait for the image's
    /// host.
    closing: AtomicBool,
    /// Ends the pauses of the running checkpoint.
    pub hurry: Hurry,
    /// The image is clean and must stay so: no checkpoint is made. Changed with `single` held.
    frozen: AtomicBool,
}

impl Control {
    pub(crate) fn new(async_percent: u32) -> Control {
        Control {
            single: Mutex::new(Rank::Checkpoint, None),
            turn: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            began_at: AtomicU64::new(0),
            began_lsn: AtomicU64::new(0),
            took: AtomicU64::new(0),
            cut_at: AtomicU64::new(0),
            durable_lsn: AtomicU64::new(0),
            async_percent: AtomicU32::new(async_percent),
            unwritable: Mutex::new(Rank::Leaf, None),
            retry: Mutex::new(Rank::Leaf, Retry::default()),
            queued: AtomicU32::new(0),
            queued_requests: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            hurry: Hurry::new(),
            frozen: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Acquire)
    }

    /// The number of the next checkpoint to start.
    fn next(&self) -> u64 {
        self.turn.load(Ordering::Acquire).div_ceil(2) + 1
    }

    /// Whether the checkpoint `number` or a later one has completed.
    fn covers(&self, number: u64) -> bool {
        self.completed.load(Ordering::Acquire) >= number
    }

    /// Waits until no checkpoint runs. A checkpoint in a pause hurries meanwhile.
    fn alone(&self, cause: CheckpointCause) -> MutexGuard<'_, Unwritten> {
        let queued = if cause.is_requested() { &self.queued_requests } else { &self.queued };
        queued.fetch_add(1, Ordering::AcqRel);
        self.hurry.call();
        let single = self.single.lock();
        queued.fetch_sub(1, Ordering::AcqRel);
        single
    }

    /// Whether a thread waits for the running checkpoint to end.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.queued.load(Ordering::Acquire) + self.queued_requests.load(Ordering::Acquire) > 0
    }

    /// The caller holds `single`.
    fn start(&self) -> Running<'_> {
        let number = self.next();
        self.turn.fetch_add(1, Ordering::AcqRel);
        Running { control: self, number }
    }
}

/// A running checkpoint, until its end.
struct Running<'a> {
    control: &'a Control,
    number: u64,
}

impl Running<'_> {
    fn completed(&self) {
        self.control.completed.store(self.number, Ordering::Release);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.control.turn.fetch_add(1, Ordering::AcqRel);
    }
}

/// Largest merged write, in blocks.
const WRITE_BLOCKS_MAX: usize = 256;
/// Writes in one batch on a disk, which is also the minimum.
const BATCH_WRITES: usize = 8;
/// The most writes in one batch.
const BATCH_WRITES_MAX: usize = 128;
/// A device on which a write takes longer is distant, or a slow disk.
const FAR: Duration = Duration::from_micros(500);

/// Writes in one batch on this device. Each batch waits for a round trip, and nodes that are not
/// neighbours are writes of 16 KiB: eight of them in 10 ms are 13 MB/s, whatever the device can do.
/// So a batch has as many writes as the device completes in one round trip. A concurrent fsync then
/// waits for at most one more round trip. A disk that serves one request after another keeps its
/// eight, however slow it is.
pub(crate) fn batch_writes(device: &dyn Device) -> usize {
    let latency = device.latency();
    let known = |kind: &LatencyKind| Some((latency.typical(*kind)?, latency.at_once(*kind)?));
    match ROUND_TRIP.iter().find_map(known) {
        Some((round_trip, at_once)) if round_trip >= FAR => at_once.clamp(BATCH_WRITES, BATCH_WRITES_MAX),
        _ => BATCH_WRITES,
    }
}

/// Whether single requests take long, but many at a time take no longer.
pub(crate) fn is_far_away(device: &dyn Device) -> bool {
    batch_writes(device) > BATCH_WRITES
}

/// The latencies that stand for the round trip of a write: before the first write, that of a read.
pub(crate) const ROUND_TRIP: [LatencyKind; 2] = [LatencyKind::Write, LatencyKind::Read];

/// Writes blocks, merging neighbours that are adjacent in `writes`. Waits for all writes. Calls
/// `wrote` before the first batch and after each batch, with the bytes of that batch. Its result
/// bounds the next batch, in blocks, and with it the memory: a batch has at most that many and one
/// write more. Returns the number of bytes.
pub(crate) fn write_merged(
    device: &dyn Device,
    mut writes: impl Iterator<Item = (BlockNo, IoBuf)>,
    wrote: &dyn Fn(u64) -> usize,
) -> Result<u64> {
    let mut bytes = 0;
    let (mut limit, mut gathered) = (wrote(0), 0);
    let writes_max = batch_writes(device);
    let mut run: Option<(BlockNo, IoBuf)> = None;
    let mut batch: Vec<Io> = Vec::new();
    loop {
        let next = writes.next();
        if let (Some((start, buf)), Some((at, more))) = (&mut run, &next) {
            let blocks = buf.blocks();
            if start.0 + blocks as u64 == at.0 && blocks + more.blocks() <= WRITE_BLOCKS_MAX.min(limit) {
                buf.resize(blocks + more.blocks());
                buf.as_mut_bytes()[blocks * BLOCK_SIZE..].copy_from_slice(more.as_bytes());
                continue;
            }
        }
        let ended = next.is_none();
        if let Some((start, buf)) = std::mem::replace(&mut run, next) {
            gathered += buf.len() as u64;
            batch.push(Io { offset: start.byte_offset(), op: Op::Write { buf, fua: false } });
        }
        let full = batch.len() >= writes_max || gathered >= (limit * BLOCK_SIZE) as u64;
        if full || ended {
            for completion in run_batch(device, std::mem::take(&mut batch)) {
                completion.result?;
            }
            bytes += gathered;
            limit = wrote(std::mem::take(&mut gathered));
        }
        if ended {
            return Ok(bytes);
        }
    }
}

/// Writes a superblock slot durably.
pub(crate) fn write_slot(device: &dyn Device, sb: &Superblock) -> Result<()> {
    let mut block = IoBuf::zeroed(1);
    sb.encode(block.as_mut_bytes());
    device.write(sb.block().byte_offset(), &block, true)
}

/// Names `losses` in the newest slot, if it does not name them yet.
///
/// Crash argument: only these two fields of the slot change. A slot is one sector, so a crash
/// leaves the old bytes or the new ones, and both name the same checkpoint. The next generation's
/// slot cannot be used: it would need nodes and bitmaps of its own, for which the host has no
/// space.
pub(crate) fn write_losses(device: &dyn Device, losses: Option<Losses>) -> Result<()> {
    let (mut newest, _) = read_superblock(device)?;
    if newest.checkpoint.losses == losses {
        return Ok(());
    }
    newest.checkpoint.losses = losses;
    write_slot(device, &newest)
}

/// The state that a cut takes, to be written as a checkpoint.
pub(crate) struct Cut {
    pub tree: Frozen,
    pub alloc: FrozenAlloc,
    pub lsn: Lsn,
    pub tail: Lsn,
    pub generation: Generation,
    pub next_ino: Ino,
    pub inodes: u64,
}

impl Store {
    /// Sets the file system above, for [`CheckpointClient::prepare_checkpoint`].
    pub fn set_client(&self, client: Weak<dyn CheckpointClient>) {
        assert!(self.client.set(client).is_ok(), "a store has one client");
    }

    /// Changes `async_checkpoint` (a percentage) or `noasync_checkpoint` (`None`) of a running
    /// store.
    pub fn set_async_checkpoint(&self, percent: Option<u8>) {
        self.checkpoint.async_percent.store(percent.unwrap_or(0) as u32, Ordering::Relaxed);
        self.checkpoint.hurry.call();
        if self.log_below_threshold() {
            self.wake_checkpoint(CheckpointCause::Background);
        }
    }

    /// Sets the memory for tree nodes, in bytes. Half of it may be dirty: beyond, a checkpoint is
    /// started, so that nodes become clean and can go.
    pub fn set_cache_budget(&self, node_bytes: u64) {
        self.dirty_limit.store(node_bytes / 2, Ordering::Relaxed);
        self.tree.set_cache_bytes(node_bytes as usize);
        if !self.is_read_only() {
            self.after_commit();
        }
    }

    /// Runs a checkpoint that starts after this call, or shares one that does.
    pub fn checkpoint(&self, cause: CheckpointCause) -> Result<()> {
        self.checkpoint_by(cause, By::Operation)
    }

    /// [`Store::checkpoint`]. Only the background thread's checkpoints are paced.
    pub(crate) fn checkpoint_by(&self, cause: CheckpointCause, by: By) -> Result<()> {
        let mine = self.checkpoint.next();
        let mut single = self.checkpoint.alone(cause);
        // No checkpoint may follow the last one, or that of a freeze, because it would remove the
        // clean mark.
        let is_last = self.closed.load(Ordering::Acquire) || self.checkpoint.is_frozen();
        if is_last || self.checkpoint.covers(mine) {
            return self.check_alive();
        }
        self.run_checkpoint(&mut single, cause, by, false)
    }

    /// A number that is odd while a checkpoint runs; it advances when one starts and when it ends.
    pub fn checkpoint_turn(&self) -> u64 {
        self.checkpoint.turn.load(Ordering::Acquire)
    }

    /// Whether a checkpoint has run at any time since [`Store::checkpoint_turn`] returned `turn`.
    pub fn checkpoint_ran_since(&self, turn: u64) -> bool {
        !turn.is_multiple_of(2) || self.checkpoint_turn() != turn
    }

    /// The last checkpoint, which marks the image clean.
    pub(crate) fn checkpoint_clean(&self) -> Result<()> {
        let mut single = self.checkpoint.alone(CheckpointCause::Unmount);
        let result = self.run_checkpoint(&mut single, CheckpointCause::Unmount, By::Operation, true);
        self.closed.store(true, Ordering::Release);
        result
    }

    /// Makes a checkpoint that marks the image clean. After it every checkpoint is refused until
    /// [`Store::thaw`]. The caller has written back all file data, and ensures that nothing is
    /// appended from now on.
    ///
    /// Fails if log-resident data cannot be written in place, because the log is then still needed,
    /// and if the image's host is full. In both cases the store continues as before.
    pub fn freeze(&self) -> Result<()> {
        if self.read_only {
            return self.check_alive();
        }
        let mut single = self.checkpoint.alone(CheckpointCause::Freeze);
        self.check_alive()?;
        self.run_checkpoint(&mut single, CheckpointCause::Freeze, By::Operation, true)?;
        // The slot is marked clean only if no part of the log is needed.
        if self.log.tail_lsn() != self.log.head_lsn() {
            let unwritable = self.checkpoint.unwritable.lock().clone();
            return Err(unwritable.unwrap_or(Error::LogInUse));
        }
        // No write follows, and no flush must be outstanding either.
        self.flush_data(self.data_write_seq())?;
        self.checkpoint.frozen.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends [`Store::freeze`]: removes the clean mark, as a mount does after a clean unmount. The
    /// removal is durable when the call returns. If the call fails and the store is alive, the
    /// store stays frozen: the image's host is full.
    pub fn thaw(&self) -> Result<()> {
        let mut single = self.checkpoint.alone(CheckpointCause::Thaw);
        // Broken on purpose: log writes follow the mark.
        if self.checkpoint.is_frozen() && !broken::is(Variant::ThawKeepsClean) {
            self.run_checkpoint(&mut single, CheckpointCause::Thaw, By::Operation, false)?;
        }
        self.checkpoint.frozen.store(false, Ordering::Release);
        self.check_alive()
    }

    /// The file system is about to be closed: requested checkpoints no longer wait for the image's
    /// host, so that the close does not wait for it.
    pub fn end_waits(&self) {
        self.checkpoint.closing.store(true, Ordering::Release);
    }

    /// A checkpoint that fails shuts the store down: the frozen state cannot be merged back into
    /// the running one, and the log is complete, so the next mount recovers. A checkpoint that
    /// panics does the same, because its state is incomplete. A deferred checkpoint does not: its
    /// frozen state is kept in `unwritten`.
    fn run_checkpoint(
        &self,
        unwritten: &mut Unwritten,
        cause: CheckpointCause,
        by: By,
        clean: bool,
    ) -> Result<()> {
        if let Some(reason) = self.log.shutdown_reason() {
            return Err(reason);
        }
        let running = self.checkpoint.start();
        let started = self.clock.monotonic();
        self.checkpoint.began_at.store(started.as_nanos() as u64, Ordering::Relaxed);
        self.checkpoint.began_lsn.store(self.log.head_lsn().0, Ordering::Relaxed);
        let pace = self.pace(cause, by);
        let result = without_panic("a checkpoint", || {
            if let Some(cut) = unwritten.take() {
                // Not clean, since log records follow it.
                self.write_cut(unwritten, cut, (cause, false), &pace, Duration::ZERO)?;
            }
            self.prepare(&pace)?;
            let prepare = self.clock.since(started);
            self.write_cut(unwritten, self.cut(), (cause, clean), &pace, prepare)
        });
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

    /// Writes log-resident data in place. Data that cannot be written stays in the log and holds
    /// the tail. The checkpoint is made without it, since that still frees the log up to that data,
    /// and the operation that requested it may have nothing to do with that data.
    /// [`super::background`] has the policy when checkpoints then free nothing.
    fn prepare(&self, pace: &Pace<'_>) -> Result<()> {
        let Some(client) = self.client.get().and_then(Weak::upgrade) else { return Ok(()) };
        pace.held.set(1);
        let prepared = client.prepare_checkpoint(&|pieces| {
            pace.wrote((pieces * BLOCK_SIZE) as u64);
        });
        drop(client);
        pace.held.set(0);
        match &prepared {
            Ok(()) => {}
            // The whole device or store is gone.
            Err(Error::Shutdown(_) | Error::Fenced | Error::OutcomeUnknown) => return prepared,
            Err(e) => tracing::warn!("log-resident data stays in the log: {e}"),
        }
        *self.checkpoint.unwritable.lock() = prepared.err();
        Ok(())
    }

    fn cut(&self) -> Cut {
        let mut gate = self.gate.close();
        let started = self.clock.monotonic();
        let lsn = self.log.seal();
        if broken::is(Variant::CutNotExact) {
            // Broken on purpose: the tree gets records from above the cut.
            drop(gate);
            self.clock.sleep(Duration::from_millis(2));
            gate = self.gate.close();
        }
        let cut = Cut {
            lsn,
            tail: self.residents.oldest().map_or(lsn, |oldest| {
                // Broken on purpose: log-resident data does not hold the tail.
                if broken::is(Variant::TailPastResidents) { lsn } else { oldest.min(lsn) }
            }),
            tree: self.tree.freeze(),
            alloc: self.alloc.freeze(),
            generation: Generation(self.generation.fetch_add(1, Ordering::Relaxed)),
            next_ino: Ino(self.counters.next_ino.load(Ordering::Relaxed)),
            inodes: self.counters.inodes.load(Ordering::Relaxed),
        };
        let now = self.clock.monotonic();
        self.stats.cut_ns.record(now.saturating_sub(started).as_nanos() as u64);
        drop(gate);
        let last = self.checkpoint.cut_at.swap(now.as_nanos() as u64, Ordering::Relaxed);
        self.stats.running_ns.record((now.as_nanos() as u64).saturating_sub(last));
        cut
    }

    /// If the checkpoint is deferred, the cut is in `unwritten` again.
    fn write_cut(
        &self,
        unwritten: &mut Unwritten,
        cut: Cut,
        (cause, clean): (CheckpointCause, bool),
        pace: &Pace<'_>,
        prepare: Duration,
    ) -> Result<()> {
        let sealed = self.clock.monotonic();
        self.log.force(cut.lsn, ForceCause::Checkpoint)?;
        let forced = self.clock.monotonic();
        self.stats.flushing_ns.record((prepare + forced.saturating_sub(sealed)).as_nanos() as u64);
        let clean = clean && cut.tail == cut.lsn;
        let state = self.checkpoint_state(&cut, clean);
        if broken::is(Variant::TailBeforeSlot) {
            // Broken on purpose: recovery would still use the old slot, which needs the log from
            // its own tail on.
            self.log.advance_tail(cut.tail);
        }
        let mut retry = *self.checkpoint.retry.lock();
        let (nodes, bytes) = loop {
            pace.expect((cut.tree.len() * NODE_SIZE) as u64);
            let wrote = |bytes| pace.wrote(bytes);
            match write_checkpoint(&*self.device, &self.geometry, &cut, state, &wrote) {
                Err(e) => match self.on_host_full(cause, &e, &mut retry) {
                    HostFull::TryAgain => {}
                    HostFull::Deferred => {
                        *unwritten = Some(cut);
                        return Err(e);
                    }
                    HostFull::Fail => return Err(e),
                },
                Ok(written) => break written,
            }
        };
        self.stats.logging_ns.record(self.clock.since(forced).as_nanos() as u64);
        self.stats.nodes_written.add(nodes);
        self.stats.inner_nodes_written.add(cut.tree.inner() as u64);
        self.stats.checkpoint_bytes.add(bytes);
        self.alloc.written(cut.alloc);
        self.alloc.checkpoint_durable(cut.generation);
        self.alloc.durable(self.log.durable_lsn());
        self.tree.written(cut.tree);
        self.log.advance_tail(cut.tail);
        self.checkpoint.durable_lsn.store(cut.lsn.0, Ordering::Release);
        Ok(())
    }

    /// Decides whether a checkpoint that found no space on the image's host is written again after
    /// a pause.
    ///
    /// Nothing is lost yet: the log is whole, and no superblock that a mount needs names what was
    /// written. The same blocks are written to the same places again, so for a crash this is a
    /// checkpoint that takes long. The alternative, an immediate shutdown, would end a mount that
    /// can still be read, and written where the host has blocks, and that recovers when the host
    /// has room. While a thread waits for log space or for this checkpoint, `retry` is used up,
    /// because an error is better than a hang. The caller of a requested checkpoint gets the error,
    /// and the store continues. It shuts down only if operations wait, which would otherwise wait
    /// forever.
    fn on_host_full(&self, cause: CheckpointCause, e: &Error, retry: &mut Retry) -> HostFull {
        // A file system that was dropped without being closed waits for nothing.
        let in_use = self.client.get().is_none_or(|client| client.strong_count() > 0);
        let can_wait = e.is_host_full() && self.device.host_free().is_some();
        if !can_wait || !in_use || self.check_alive().is_err() {
            return HostFull::Fail;
        }
        let (control, requested) = (&self.checkpoint, cause.is_requested());
        // The caller of an unmount also needs an end: the log is whole, so the next mount replays
        // it.
        let unmount = cause == CheckpointCause::Unmount;
        if requested || unmount || self.log.has_waiters() || control.is_waited_for() {
            if retry.tries == 0 || requested && control.closing.load(Ordering::Acquire) {
                let holds_up = self.log.has_waiters() || control.queued.load(Ordering::Acquire) > 0;
                return if requested || !holds_up { HostFull::Deferred } else { HostFull::Fail };
            }
            retry.tries -= 1;
        }
        if retry.first <= Retry::default().first {
            tracing::error!("the checkpoint waits for space on the host of {}: {e}", self.device.name());
        }
        retry.first = (2 * retry.first).min(retry.longest);
        self.clock.sleep(retry.first);
        HostFull::TryAgain
    }

    fn checkpoint_state(&self, cut: &Cut, clean: bool) -> CheckpointState {
        CheckpointState {
            generation: cut.generation,
            root: cut.tree.root,
            root_generation: cut.tree.root_generation,
            root_level: cut.tree.root_level,
            checkpoint_lsn: cut.lsn,
            tail_lsn: cut.tail,
            epoch: self.epoch,
            next_ino: cut.next_ino,
            inodes: cut.inodes,
            free_blocks: cut.alloc.free_blocks(),
            nodes: cut.tree.node_count,
            clean,
            written_sec: self.clock.now().sec,
            losses: self.losses(),
        }
    }

    // ----- when to checkpoint -----

    pub(crate) fn wake_checkpoint(&self, cause: CheckpointCause) {
        let mut flag = self.wake.flag.lock();
        if flag.wanted.is_none() {
            flag.wanted = Some(cause);
            self.wake.cond.notify_one();
        }
        drop(flag);
        if cause == CheckpointCause::LogSpace {
            self.checkpoint.hurry.call();
        }
    }

    pub(crate) fn wait_for_dirty_limit(&self) -> Result<()> {
        if self.tree.dirty_bytes() as u64 <= self.dirty_limit.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.stats.dirty_stalls.inc();
        self.checkpoint(CheckpointCause::DirtyNodes)
    }

    /// Handles a reservation that did not fit. With `async_checkpoint` this wakes the background
    /// thread, and the reservation then waits. Without it, the operation that found no space runs
    /// the checkpoint.
    pub(crate) fn log_space_short(&self) -> Result<()> {
        if self.checkpoint.async_percent.load(Ordering::Relaxed) == 0 {
            let started = self.clock.monotonic();
            let result = self.checkpoint(CheckpointCause::LogSpace);
            self.log.stats().space_stalls.record(self.clock.since(started).as_nanos() as u64);
            return result;
        }
        self.wake_checkpoint(CheckpointCause::LogSpace);
        Ok(())
    }
}

impl SpacePressure for Store {
    fn need_space(&self) {
        self.wake_checkpoint(CheckpointCause::LogSpace);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let mut flag = self.wake.flag.lock();
        flag.stop = true;
        self.wake.cond.notify_all();
        drop(flag);
        self.log.stop();
    }
}

/// Writes nodes and bitmaps (for `wrote` see [`write_merged`]), flushes, and writes the slot.
/// Returns the numbers of nodes and bytes written.
pub(crate) fn write_checkpoint(
    device: &dyn Device,
    geometry: &kedge_format::superblock::Geometry,
    cut: &Cut,
    state: CheckpointState,
    wrote: &dyn Fn(u64) -> usize,
) -> Result<(u64, u64)> {
    let mut nodes = 0;
    let node_bytes = write_merged(device, cut.tree.nodes().inspect(|_| nodes += 1), wrote)?;
    let mut bitmaps = cut.alloc.writes(geometry.uuid, cut.generation);
    bitmaps.sort_by_key(|(at, _)| *at);
    let bitmap_bytes = write_merged(device, bitmaps.into_iter(), wrote)?;
    // Broken on purpose: the slot may be durable before the blocks to which it points.
    if !broken::is(Variant::SlotBeforeNodes) {
        device.flush()?;
    }
    write_slot(device, &Superblock { geometry: geometry.clone(), checkpoint: state })?;
    Ok((nodes, node_bytes + bitmap_bytes))
}

/// Checks the value of `async_checkpoint`; the error names the option.
pub fn check_async_percent(percent: u8) -> Result<()> {
    if (1..=99).contains(&percent) {
        Ok(())
    } else {
        Err(Error::invalid(format!("async_checkpoint={percent}: the percentage of free log must be 1 to 99")))
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
