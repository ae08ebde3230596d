//! Handles: an operation's membership in the transaction, from reservation to commit.

use crate::apply::{self, Target};
use crate::checkpoint::CheckpointCause;
use crate::{Class, Store};
use kedge_alloc::{NodeClass, NodeReservation};
use kedge_base::{Error, Result};
use kedge_format::record::{Record, RecordBuilder};
use kedge_log::{Log, RecordLsn, Reservation, ReserveClass};
use smallvec::SmallVec;
use std::time::Duration;

/// The most an operation can use.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Bytes of its records.
    pub log_bytes: u64,
    /// Items that it puts, patches or deletes.
    pub items: u32,
    /// Further small items that lie side by side (extents of one file).
    pub neighbours: u32,
    pub class: Class,
}

/// Log bytes set aside, as long as a resident piece lives, for its part of the record that voids it: patch, extent,
/// allocation and drop. Who makes pieces reserves as much for each.
pub const PROMISE_PER_PIECE: i64 = 256;

/// Tree nodes that an operation can cost: for each path its nodes copied and a split on each level. Items of one
/// operation share most of their paths. Past eight, three of the largest fill a leaf; of neighbours that are extents a
/// leaf holds some hundreds, even half empty.
fn nodes_for(need: &Need, height: u32) -> u32 {
    let paths = need.items.min(8) + need.items.saturating_sub(8) / 3 + need.neighbours.div_ceil(64);
    paths * (height + 1) + 1
}

/// How long, and how often, an operation waits for others to give node promises back before it is refused.
const NODE_WAIT: Duration = Duration::from_millis(100);
const NODE_WAITS: u32 = 100;

/// Reserved space of one running operation. Dropping it gives back what was not used.
pub struct Handle<'a> {
    store: &'a Store,
    log: Reservation,
    _nodes: NodeReservation,
}

impl Store {
    /// Reserves what an operation may need, waiting for a checkpoint where log or node space is short. Takes no lock
    /// and must be called before any inode lock is taken: a checkpoint that frees the space takes them.
    pub fn begin(&self, need: Need) -> Result<Handle<'_>> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        self.check_alive()?;
        if need.class == Class::Checkpoint {
            return self.begin_in_checkpoint(need);
        }
        // Those that give space back are never refused.
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

    /// For the checkpoint's own records: takes what is there or refuses, for to wait would be to wait for itself.
    fn begin_in_checkpoint(&self, need: Need) -> Result<Handle<'_>> {
        let count = nodes_for(&need, self.tree_height());
        let nodes = self.alloc.reserve_nodes(count, NodeClass::Reclaim)?.ok_or(Error::NoSpace)?;
        let log = self.log.try_reserve(need.log_bytes, ReserveClass::Checkpoint)?.ok_or(Error::NoSpace)?;
        Ok(Handle { store: self, log, _nodes: nodes })
    }

    fn reserve_nodes(&self, need: Need) -> Result<NodeReservation> {
        let class = if need.class == Class::Normal { NodeClass::Normal } else { NodeClass::Reclaim };
        let count = nodes_for(&need, self.tree_height());
        // Each round a checkpoint returns what the last one had replaced; on an image this full more than a few rounds
        // mean that nothing is coming back. Rounds in which others hold promises do not count as such: theirs end
        // without waiting for anybody's space, and to give up before would refuse what there is room for.
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
                true => waits += 1,
                false => rounds += 1,
            }
        }
        self.alloc.reserve_nodes(count, class)?.ok_or(Error::NoSpace)
    }
}

/// Shuts the store down when it is dropped armed: by a panic between append and the end of apply. Dropped before the epoch
/// guard is left, so that no log write takes the record. (An error has shut the store down already.)
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
    /// Appends the record and applies it: all of it or, after a crash, all or nothing. No IO, no wait.
    ///
    /// The caller holds the meta locks of all inodes that the record touches, so that records of one inode are
    /// appended in the order in which they take effect.
    pub fn commit(&mut self, record: RecordBuilder) -> Result<RecordLsn> {
        self.commit_as(record, false)
    }

    /// [`Handle::commit`] of an operation with one record: what is left of the reservation goes back with it. Not for records
    /// that make log-resident pieces, whose promises come out of what is left.
    pub fn commit_only(mut self, record: RecordBuilder) -> Result<RecordLsn> {
        self.commit_as(record, true)
    }

    fn commit_as(&mut self, record: RecordBuilder, last: bool) -> Result<RecordLsn> {
        let store = self.store;
        let bytes = record.finish();
        let decoded = Record::decode(store.log.head_lsn(), &bytes)?;
        let keys: SmallVec<[_; 8]> = apply::keys(&decoded.edits).collect();
        // Read in what apply will touch: below the epoch guard nothing may wait for IO. A tree that is in memory as a
        // whole needs no pins; should the first eviction come just then, this one operation waits for a read.
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
        // The gate is still held: no log write takes the record before it is applied or the log is shut down.
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
