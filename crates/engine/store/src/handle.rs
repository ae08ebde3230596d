//! Handles: an operation's reservation and commit.

use crate::apply::{self, Target};
use crate::checkpoint::cause::CheckpointCause;
use crate::limits::Spent;
use crate::need::{Class, Need, PROMISE_PER_PIECE};
use crate::space::nodes_taken;
use crate::store::Store;
use kedge_alloc::{NodeClass, NodeReservation, Waited};
use kedge_base::lock::{Entered, Rank, assert_may_wait, enter};
use kedge_base::trace::{self, Event};
use kedge_base::{Error, Ino, Result};
use kedge_format::Key;
use kedge_format::record::{Edit, InodeMask, Record, RecordBuilder, RecordOp};
use kedge_log::{RecordLsn, Reservation, ReserveClass};
use smallvec::SmallVec;
use std::time::Duration;

/// An operation or a data reservation that lacks blocks waits for other operations to release node
/// reservations: up to this long, and up to `NODE_WAITS` times. Then it fails with `NoSpace`.
pub(crate) const NODE_WAIT: Duration = Duration::from_millis(100);
pub(crate) const NODE_WAITS: u32 = 100;

/// The reserved space of one running operation. Dropping it returns what was not used. A thread
/// that holds a handle waits neither for space nor for a checkpoint, and takes no second handle.
/// Otherwise waiting threads could together hold all of the space for which they wait. The rank
/// `LogReservation` of the lock order asserts this rule.
pub struct Handle<'a> {
    store: &'a Store,
    need: Need,
    log: Reservation,
    nodes: NodeReservation,
    /// Promised blocks and inodes of limits that the next record uses up.
    spent: SmallVec<[Spent; 1]>,
    _entered: Entered,
}

/// The class of log reservation for a class of operation.
fn log_class(class: Class) -> ReserveClass {
    match class {
        Class::Normal => ReserveClass::Normal,
        Class::Promised | Class::Reclaim => ReserveClass::Reclaim,
        Class::Checkpoint => ReserveClass::Checkpoint,
    }
}

/// The class of node reservation for a class of operation. The nodes for data that a checkpoint
/// writes in place were promised, so `Checkpoint` uses the promised class.
fn node_class(class: Class) -> NodeClass {
    match class {
        Class::Normal => NodeClass::Normal,
        Class::Promised | Class::Checkpoint => NodeClass::Promised,
        Class::Reclaim => NodeClass::Reclaim,
    }
}

impl Store {
    /// Reserves what an operation may need. Waits for a checkpoint if log or node space is short.
    /// Fails with the error of the image's host while the host has no space for a change of the
    /// table of trees that no record may follow.
    /// Must be called before any inode lock is taken, since the checkpoint that frees the space
    /// takes inode locks.
    pub fn begin(&self, need: Need) -> Result<Handle<'_>> {
        self.begin_up_to(need, need)
    }

    /// As `begin`, for an operation that can work with fewer nodes: it reserves the nodes of `need`
    /// if they are free, or else waits for those of `least`. [`Handle::need`] returns the need that
    /// was granted.
    ///
    /// The log is reserved first. A thread that waits for log space must hold no nodes, because the
    /// checkpoint for which it waits needs nodes for the data that it writes in place. A thread
    /// that waits for nodes may hold log space, because a part of the log is kept for the
    /// checkpoint.
    pub fn begin_up_to(&self, need: Need, least: Need) -> Result<Handle<'_>> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        self.check_alive()?;
        if need.class == Class::Checkpoint {
            return self.begin_in_checkpoint(need, least);
        }
        assert_may_wait(Rank::LogReservation);
        self.check_records_allowed()?;
        // Operations that free space are never refused.
        if need.class == Class::Normal && kedge_base::broken::refusal::should_fail() {
            return Err(Error::NoSpace);
        }
        self.wait_for_dirty_limit()?;
        if need.class == Class::Normal {
            self.throttle();
        }
        let class = log_class(need.class);
        let log = match self.log.try_reserve(need.log_bytes, class)? {
            Some(log) => log,
            None => {
                self.log_space_short()?;
                self.log.reserve(need.log_bytes, class)?
            }
        };
        let (nodes, need) = match self.nodes_now(need) {
            Some(nodes) => (nodes, need),
            None => (self.reserve_nodes(least)?, least),
        };
        Ok(self.handle(need, log, nodes))
    }

    fn handle(&self, need: Need, log: Reservation, nodes: NodeReservation) -> Handle<'_> {
        Handle {
            store: self,
            need,
            log,
            nodes,
            spent: SmallVec::new(),
            _entered: enter(Rank::LogReservation),
        }
    }

    /// `begin` for the checkpoint's own records. Fails without waiting if there is no space: the
    /// checkpoint would wait for itself.
    fn begin_in_checkpoint(&self, need: Need, least: Need) -> Result<Handle<'_>> {
        let granted = self.nodes_now(need).map(|nodes| (nodes, need));
        let (nodes, need) =
            granted.or_else(|| Some((self.nodes_now(least)?, least))).ok_or(Error::NoSpace)?;
        let log = self.log.try_reserve(need.log_bytes, ReserveClass::Checkpoint)?.ok_or(Error::NoSpace)?;
        Ok(self.handle(need, log, nodes))
    }

    fn nodes_for(&self, need: &Need) -> u32 {
        let (height, nodes) = self.forest.largest();
        need.nodes(height, nodes)
    }

    /// Reserves the nodes if they are free now. `None` otherwise.
    fn nodes_now(&self, need: Need) -> Option<NodeReservation> {
        self.alloc.reserve_nodes(self.nodes_for(&need), node_class(need.class)).ok().flatten()
    }

    fn reserve_nodes(&self, need: Need) -> Result<NodeReservation> {
        let (class, count) = (node_class(need.class), self.nodes_for(&need));
        // In each round a checkpoint frees the nodes that were replaced before it. If a few rounds
        // free nothing, nothing will become free. Rounds in which other operations hold
        // reservations do not count: those operations end without waiting for space, and failing
        // earlier would refuse an operation for which there is room.
        let (mut rounds, mut waits) = (0, 0);
        while rounds < 8 && waits < NODE_WAITS {
            if let Some(nodes) = self.alloc.reserve_nodes(count, class)? {
                return Ok(nodes);
            }
            self.stats.node_stalls.inc();
            self.checkpoint(CheckpointCause::NodeSpace)?;
            if let Some(nodes) = self.alloc.reserve_nodes(count, class)? {
                return Ok(nodes);
            }
            match self.alloc.wait_for_nodes(NODE_WAIT) {
                Waited::NothingHeld => rounds += 1,
                Waited::Returned | Waited::TimedOut => waits += 1,
            }
        }
        self.alloc.reserve_nodes(count, class)?.ok_or(Error::NoSpace)
    }
}

/// Shuts the store down if a panic drops it between append and the end of apply. It is dropped
/// before the epoch guard, so the log is shut down before any log write can take the record. (After
/// an error in apply the store is shut down already.)
struct Poison<'a>(Option<&'a Store>);

impl Drop for Poison<'_> {
    fn drop(&mut self) {
        if let Some(store) = self.0
            && std::thread::panicking()
        {
            store.shutdown(&Error::Shutdown("a panic while a record was applied".into()));
        }
    }
}

impl Handle<'_> {
    /// Appends the record and applies it. After a crash the record has taken effect as a whole or
    /// not at all. The call may read evicted leaves before it enters the epoch guard; it waits for
    /// nothing else.
    ///
    /// The caller holds the meta locks of all inodes that the record touches, so that records of
    /// one inode are appended in the order in which they take effect.
    pub fn commit(&mut self, record: RecordBuilder) -> Result<RecordLsn> {
        self.commit_as(record, false)
    }

    /// [`Handle::commit`] for an operation with one record. It also returns the rest of the
    /// reservation. Not for records that make log-resident pieces: the log bytes promised for these
    /// pieces come out of that rest.
    pub fn commit_only(mut self, record: RecordBuilder) -> Result<RecordLsn> {
        self.commit_as(record, true)
    }

    /// The need that was reserved.
    pub fn need(&self) -> Need {
        self.need
    }

    /// Log bytes left in the reservation: the length of the longest record that can be committed.
    pub fn bytes_left(&self) -> u64 {
        self.log.bytes_left()
    }

    /// States that the next record uses up `spent` of the promises of a limit. After the commit the
    /// caller calls [`crate::Charge::spent`].
    pub fn spend(&mut self, spent: Spent) {
        self.spent.push(spent);
    }

    /// Ensures that the record fits, before it is appended. A record longer than the reserved log
    /// bytes shows that the need was computed wrongly. A debug build then panics. A release build
    /// reserves more if possible, or else fails the operation: a panic would end the mount for all
    /// users.
    ///
    /// The reserved nodes suffice if the need counts a path for each item. Neighbours are counted
    /// together, and may lie in more leaves than assumed. So for a record with neighbours the
    /// leaves are counted here, and more nodes are reserved if necessary.
    fn make_room(&mut self, bytes: usize, keys: &[Key], puts: &[Key]) -> Result<()> {
        let (bytes, left) = (bytes as u64, self.log.bytes_left());
        if bytes > left {
            debug_assert!(bytes <= left, "a record of {bytes} bytes, {left} are reserved: {:?}", self.need);
            tracing::error!("a record of {bytes} bytes exceeds its reservation of {left}");
            if !self.log.grow(bytes - left, log_class(self.need.class)) {
                return Err(Error::NoSpace);
            }
        }
        let store = self.store;
        debug_assert!(
            store.forest.trees_of(keys) <= self.need.trees as usize,
            "{} trees: {:?}",
            store.forest.trees_of(keys),
            self.need
        );
        if keys.len() > self.need.paths() as usize {
            let (leaves, full) = (store.forest.leaves_of(keys)?, store.forest.leaves_of(puts)?);
            let exact = Need { changes: leaves - full.min(leaves), puts: full, neighbours: 0, ..self.need };
            // The puts may split a leaf more than once.
            let more = Need { neighbours: puts.len() as u32, ..exact };
            let lack = u64::from(store.nodes_for(&more)).saturating_sub(self.nodes.slots());
            if lack > 0 {
                let class = node_class(self.need.class);
                let nodes = store.alloc.reserve_nodes(lack as u32, class)?.ok_or(Error::NoSpace)?;
                self.nodes.merge(nodes);
            }
        }
        Ok(())
    }

    fn commit_as(&mut self, record: RecordBuilder, last: bool) -> Result<RecordLsn> {
        let store = self.store;
        let bytes = record.finish();
        let spent = std::mem::take(&mut self.spent);
        let decoded = Record::decode(store.log.head_lsn(), &bytes)?;
        let keys: SmallVec<[_; 8]> = apply::keys(&decoded.edits).collect();
        let puts: SmallVec<[_; 8]> = apply::new_keys(&decoded.edits).collect();
        self.make_room(bytes.len(), &keys, &puts)?;
        // Pins the leaves that apply will touch, since a commit inside the epoch guard must not
        // wait for IO. A tree that is entirely in memory is not pinned. If its first eviction
        // happens between this check and apply, this commit reads a leaf inside the guard.
        let _pins = if store.forest.is_in_memory() { None } else { Some(store.forest.pin(&keys)?) };
        let guard = store.guard.enter();
        store.check_alive()?;
        debug_assert!(!store.checkpoint.stops_records(), "no record may follow the deferred cut");
        let mut poison = Poison(Some(store));
        let left = self.log.bytes_left() - bytes.len() as u64;
        trace::note(|| Event::Commits(commits_of(&decoded)));
        let lsn = store.log.append_as(&mut self.log, &bytes, last, refers_to_data(&decoded));
        // The witness is called inside the guard, so that its note precedes the log write.
        kedge_base::witness::committed(decoded.op as u8, lsn.end);
        let taken_before = nodes_taken();
        let target = Target {
            forest: &store.forest,
            alloc: &store.alloc,
            residents: &store.residents,
            spent: &spent,
            replay: false,
        };
        // The epoch guard is still held. So no log write takes the record before it is applied, or
        // before the log is shut down.
        let pieces = apply::apply(&target, lsn, &decoded.edits).inspect_err(|e| store.shutdown(e))?;
        let promised = pieces.max(0) as u64 * PROMISE_PER_PIECE;
        if pieces != 0 {
            assert!(pieces < 0 || !last, "the reservation that backs the promise was returned");
            store.log.promise(pieces * PROMISE_PER_PIECE as i64);
        }
        poison.0 = None;
        drop(poison);
        drop(guard);
        let taken = nodes_taken() - taken_before;
        debug_assert!(promised <= left, "{pieces} pieces, {left} bytes are left for them: {:?}", self.need);
        debug_assert!(taken <= self.nodes.slots(), "{taken} nodes, {:?} of {:?}", self.nodes, self.need);
        let slack = (left.saturating_sub(promised), self.nodes.slots().saturating_sub(taken));
        store.stats.note_slack(decoded.op, slack);
        store.stats.records[decoded.op as usize].inc();
        store.after_commit();
        Ok(lsn)
    }
}

/// Fields of an inode that say nothing of the place or the extent of data.
const STAMPS: InodeMask = InodeMask(
    InodeMask::ATIME.0 | InodeMask::MTIME.0 | InodeMask::CTIME.0 | InodeMask::BTIME.0 | InodeMask::CHANGE.0,
);

/// Whether a record does more than set time stamps of the clock and change counters, so that it may
/// refer to data in place.
///
/// Changes of data set mtime and ctime to the same time. Where a record sets them to different
/// times, a program has chosen the mtime (utimes(2)). It may be that of a file whose bytes the
/// program has copied, and a later copy skips files with equal sizes and mtimes. So such a record
/// refers to the bytes.
fn refers_to_data(record: &Record<'_>) -> bool {
    let only_stamps = |edit: &Edit<'_>| match edit {
        Edit::Inode(patch) => {
            let chosen = patch.mask.contains(InodeMask::MTIME) && patch.core.mtime != patch.core.ctime;
            patch.mask.without(STAMPS).is_empty() && !chosen
        }
        _ => false,
    };
    !record.edits.iter().all(only_stamps)
}

/// What a record does, for a trace.
fn commits_of(record: &Record<'_>) -> trace::Commits {
    let write_back = record.op == RecordOp::WriteBack;
    let mut commits = trace::Commits { write_back, refers: refers_to_data(record), ..Default::default() };
    let bytes = |ino: Ino, from: u64, len: u64| trace::Bytes { ino, from, to: from.saturating_add(len) };
    for edit in &record.edits {
        match edit {
            Edit::Inode(patch) => commits.inodes.push(patch.ino),
            Edit::Data { ino, offset, bytes: data } => {
                commits.data.push(bytes(*ino, *offset, data.len() as u64));
            }
            Edit::Zero { ino, offset, len } => commits.data.push(bytes(*ino, *offset, *len)),
            Edit::Drop { ino, offset, len } => commits.voids.push(bytes(*ino, *offset, *len)),
            Edit::Alloc(extent) => commits.takes.push(*extent),
            Edit::Free(extent) => commits.frees.push(*extent),
            Edit::Put { .. } | Edit::Delete { .. } => {}
        }
    }
    commits
}

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;
