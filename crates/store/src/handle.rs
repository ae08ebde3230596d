//! Handles: an operation's reservation and commit.

use crate::apply::{self, Target};
use crate::checkpoint::CheckpointCause;
use crate::{Class, Store};
use kedge_alloc::{NodeClass, NodeReservation, Waited};
use kedge_base::{Error, Result};
use kedge_format::record::{Record, RecordBuilder};
use kedge_log::{Log, RecordLsn, Reservation, ReserveClass};
use smallvec::SmallVec;
use std::time::Duration;

/// The most that an operation can use.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Bytes of its records.
    pub log_bytes: u64,
    /// Items that it puts, updates or deletes.
    pub items: u32,
    /// Further small items that lie side by side (extents of one file).
    pub neighbours: u32,
    pub class: Class,
}

/// Log bytes promised for each resident piece while it exists. They are for its part of the record
/// that voids it: inode patch, extent, allocation and drop. An operation that makes pieces reserves
/// as much for each.
pub const PROMISE_PER_PIECE: i64 = 256;

/// The most tree nodes that an operation can take: for each path from root to leaf, a copy of each
/// node and a split on each level. Items of one operation share most of their paths, so items
/// beyond the eighth count a third of a path: three of the largest fill a leaf. Of neighbours,
/// which are extents, even a half-empty leaf holds some hundreds.
fn nodes_for(need: &Need, height: u32) -> u32 {
    let paths = need.items.min(8) + need.items.saturating_sub(8) / 3 + need.neighbours.div_ceil(64);
    paths * (height + 1) + 1
}

/// How long, and how often, an operation or data waits for others to release node reservations
/// before it fails with `NoSpace`.
pub(crate) const NODE_WAIT: Duration = Duration::from_millis(100);
pub(crate) const NODE_WAITS: u32 = 100;

/// The reserved space of one running operation. Dropping it gives back what was not used.
pub struct Handle<'a> {
    store: &'a Store,
    log: Reservation,
    _nodes: NodeReservation,
}

impl Store {
    /// Reserves what an operation may need. Waits for a checkpoint if log or node space is short.
    /// Must be called before any inode lock is taken: the checkpoint that frees the space takes
    /// inode locks.
    pub fn begin(&self, need: Need) -> Result<Handle<'_>> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        self.check_alive()?;
        if need.class == Class::Checkpoint {
            return self.begin_in_checkpoint(need);
        }
        // Operations that give space back are never refused.
        if need.class == Class::Normal && kedge_base::broken::refusal::should_fail() {
            return Err(Error::NoSpace);
        }
        self.wait_for_dirty_limit()?;
        if need.class == Class::Normal {
            self.throttle();
        }
        let class = match need.class {
            Class::Reclaim => ReserveClass::Reclaim,
            _ => ReserveClass::Normal,
        };
        let nodes = self.reserve_nodes(need)?;
        let log = match self.log.try_reserve(need.log_bytes, class)? {
            Some(log) => log,
            None => {
                self.log_space_short()?;
                self.log.reserve(need.log_bytes, class)?
            }
        };
        Ok(Handle { store: self, log, _nodes: nodes })
    }

    /// For the checkpoint's own records. Fails if there is no space, because waiting for a
    /// checkpoint would deadlock on itself.
    fn begin_in_checkpoint(&self, need: Need) -> Result<Handle<'_>> {
        let count = nodes_for(&need, self.tree_height());
        let nodes = self.alloc.reserve_nodes(count, NodeClass::Reclaim)?.ok_or(Error::NoSpace)?;
        let log = self.log.try_reserve(need.log_bytes, ReserveClass::Checkpoint)?.ok_or(Error::NoSpace)?;
        Ok(Handle { store: self, log, _nodes: nodes })
    }

    fn reserve_nodes(&self, need: Need) -> Result<NodeReservation> {
        let class = if need.class == Class::Normal { NodeClass::Normal } else { NodeClass::Reclaim };
        let count = nodes_for(&need, self.tree_height());
        // In each round a checkpoint frees the nodes that were replaced before it. On an image this
        // full, more than a few rounds mean that nothing will become free. Rounds in which other
        // operations hold reservations do not count as such: those operations end without waiting
        // for space, and failing before would refuse an operation for which there is room.
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
                Waited::Returned | Waited::InVain => waits += 1,
            }
        }
        self.alloc.reserve_nodes(count, class)?.ok_or(Error::NoSpace)
    }
}

/// Shuts the store down if it is dropped, armed, by a panic between append and the end of apply. It
/// is dropped before the epoch guard is left, so no log write takes the record. (After an error the
/// store is shut down already.)
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
    /// Appends the record and applies it. After a crash all of it is there, or nothing. Does no IO
    /// and does not wait.
    ///
    /// The caller holds the meta locks of all inodes that the record touches, so that records of
    /// one inode are appended in the order in which they take effect.
    pub fn commit(&mut self, record: RecordBuilder) -> Result<RecordLsn> {
        self.commit_as(record, false)
    }

    /// [`Handle::commit`] of an operation with one record. The rest of the reservation is given
    /// back with it. Not for records that make log-resident pieces: their promises come out of that
    /// rest.
    pub fn commit_only(mut self, record: RecordBuilder) -> Result<RecordLsn> {
        self.commit_as(record, true)
    }

    fn commit_as(&mut self, record: RecordBuilder, last: bool) -> Result<RecordLsn> {
        let store = self.store;
        let bytes = record.finish();
        let decoded = Record::decode(store.log.head_lsn(), &bytes)?;
        let keys: SmallVec<[_; 8]> = apply::keys(&decoded.edits).collect();
        // Read the leaves that apply will touch: below the epoch guard nothing may wait for IO. A
        // tree that is in memory as a whole needs no pins. If its first eviction happens just then,
        // this one operation waits for a read.
        let _pins = if store.tree.is_in_memory() { None } else { Some(store.tree.pin(&keys)?) };
        let gate = store.gate.enter();
        store.check_alive()?;
        let mut poison = Poison(Some(store));
        let append = if last { Log::append_last } else { Log::append };
        let lsn = append(&store.log, &mut self.log, &bytes);
        let target = Target {
            tree: &store.tree,
            alloc: &store.alloc,
            residents: &store.residents,
            counters: &store.counters,
            replay: false,
        };
        // The gate is still held, so no log write takes the record before it is applied or the log
        // is shut down.
        let pieces = apply::apply(&target, lsn, &decoded.edits).inspect_err(|e| store.shutdown(e))?;
        if pieces != 0 {
            assert!(pieces < 0 || !last, "what the promise comes out of is given back");
            store.log.promise(pieces * PROMISE_PER_PIECE);
        }
        poison.0 = None;
        drop(poison);
        drop(gate);
        store.stats.records[decoded.op as usize].inc();
        store.after_commit();
        Ok(lsn)
    }
}

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;
