//! Counts of the limits of directory trees, in memory: what is used, and what is promised.
//!
//! # Counting
//! A record changes the blocks and inodes that its inodes count for. [`Limits::settle`] changes the
//! counts for a record at once, inside the epoch guard. So a cut has the counts of exactly the
//! records below it. The log does not contain the counts: replay starts from the counts of the
//! checkpoint and counts again.
//!
//! # Promises
//! An operation that will use blocks or inodes promises them first ([`Charge`]). The sum of what is
//! used and what is promised never exceeds a maximum, unless the maximum was set below what was in
//! use. The record that uses what was promised moves the amount from promised to used in one step
//! ([`Spent`]). So an accepted write finds its blocks, and no operation is refused because a block
//! counts twice for a moment.
//!
//! # Concurrency
//! One lock, held briefly, guards all counts, because each change touches all limits that contain
//! the changed one. An operation on inodes without a limit never takes the lock.

use kedge_base::atomic::{AtomicBool, Ordering};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{BlockNo, CorruptKind, Error, Ino, Result};
use kedge_format::Key;
use kedge_format::limits::{DEPTH_MAX, LIMITS_MAX, LimitEntry, key};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Identifies a limit: the number of its tree, and its number within that tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct LimitId {
    pub tree: u32,
    pub number: u32,
}

/// What a record adds to the counts of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Delta {
    pub id: LimitId,
    pub blocks: i64,
    pub inodes: i64,
}

/// What a record uses up of the promises of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spent {
    pub id: LimitId,
    pub blocks: u64,
    pub inodes: u64,
}

/// A number of blocks and a number of inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amount {
    pub blocks: u64,
    pub inodes: u64,
}

/// The maxima, the use and the promises of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitState {
    pub id: LimitId,
    pub entry: LimitEntry,
    /// What is promised to running operations and to delayed allocation.
    pub promised: Amount,
}

/// For blocks and for inodes: the smallest maximum, and the smallest amount left, of a limit and
/// all that contain it. `None` if none of these limits has a maximum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    pub blocks: Option<(u64, u64)>,
    pub inodes: Option<(u64, u64)>,
}

struct Limit {
    entry: LimitEntry,
    promised: Amount,
    /// Whether the limit differs from its entry in the table.
    changed: bool,
    /// Whether the limit's number is being assigned to inodes. Then it stays although no inode has
    /// it yet.
    being_set: bool,
}

#[derive(Default)]
struct State {
    limits: BTreeMap<LimitId, Limit>,
    /// Limits that were removed and still have entries in the table.
    gone: BTreeSet<LimitId>,
}

#[derive(Clone, Copy)]
enum Step {
    More,
    Less,
}

/// The limits of an image; see the module's head.
pub(crate) struct Limits {
    used: AtomicBool,
    state: Mutex<State>,
}

impl State {
    /// The limit and all that contain it, innermost first. Loading has checked that parents form no
    /// circle.
    fn way(&self, id: LimitId) -> Vec<LimitId> {
        let mut way = Vec::new();
        let mut number = id.number;
        while let Some(limit) = self.limits.get(&LimitId { number, ..id }) {
            way.push(LimitId { number, ..id });
            number = limit.entry.parent;
        }
        way
    }

    /// Adds to or subtracts from the used amounts of a limit and of all that contain it. The counts
    /// saturate, because those of a corrupt image may have any value. An inode may name a limit
    /// that does not exist.
    fn add(&mut self, from: LimitId, step: Step, blocks: u64, inodes: u64) {
        for id in self.way(from) {
            let limit = self.limits.get_mut(&id).expect("just found");
            let entry = &mut limit.entry;
            let change = |n: u64, by: u64| match step {
                Step::More => n.saturating_add(by),
                Step::Less => n.saturating_sub(by),
            };
            (entry.blocks, entry.inodes) = (change(entry.blocks, blocks), change(entry.inodes, inodes));
            limit.changed = true;
        }
    }

    fn add_signed(&mut self, delta: &Delta) {
        let split = |n: i64| (n.max(0) as u64, n.min(0).unsigned_abs());
        let ((more_blocks, less_blocks), (more, less)) = (split(delta.blocks), split(delta.inodes));
        if more_blocks > 0 || more > 0 {
            self.add(delta.id, Step::More, more_blocks, more);
        }
        if less_blocks > 0 || less > 0 {
            self.add(delta.id, Step::Less, less_blocks, less);
        }
    }

    fn unpromise(&mut self, from: LimitId, blocks: u64, inodes: u64) {
        for id in self.way(from) {
            let promised = &mut self.limits.get_mut(&id).expect("just found").promised;
            promised.blocks = promised.blocks.saturating_sub(blocks);
            promised.inodes = promised.inodes.saturating_sub(inodes);
        }
    }

    fn room(&self, id: LimitId) -> Room {
        let mut room = Room::default();
        let smaller = |room: Option<(u64, u64)>, max: Option<u64>, taken: u64| match (room, max) {
            (room, None) => room,
            (None, Some(max)) => Some((max, max.saturating_sub(taken))),
            (Some((size, left)), Some(max)) => Some((size.min(max), left.min(max.saturating_sub(taken)))),
        };
        for id in self.way(id) {
            let Limit { entry, promised, .. } = &self.limits[&id];
            // Broken on purpose: promised blocks and inodes that are not used yet do not count.
            let promised = if broken::is(Variant::LimitUnpromised) { &Amount::default() } else { promised };
            let blocks = entry.blocks.saturating_add(promised.blocks);
            let inodes = entry.inodes.saturating_add(promised.inodes);
            room.blocks = smaller(room.blocks, entry.blocks_max, blocks);
            room.inodes = smaller(room.inodes, entry.inodes_max, inodes);
        }
        room
    }

    /// Gives a limit another parent, and moves the counts of the limit from the old parents to the
    /// new.
    fn nest(&mut self, id: LimitId, parent: u32) {
        let Some(limit) = self.limits.get_mut(&id) else { return };
        let (blocks, inodes) = (limit.entry.blocks, limit.entry.inodes);
        let before = std::mem::replace(&mut limit.entry.parent, parent);
        limit.changed = true;
        self.add(LimitId { number: before, ..id }, Step::Less, blocks, inodes);
        self.add(LimitId { number: parent, ..id }, Step::More, blocks, inodes);
    }
}

impl Limits {
    pub(crate) fn new() -> Limits {
        Limits { used: AtomicBool::new(false), state: Mutex::new(Rank::Limits, State::default()) }
    }

    /// Whether the image ever had a limit.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Loads the entries of the table, which [`check`] has accepted.
    pub(crate) fn load(&self, entries: BTreeMap<LimitId, LimitEntry>) {
        let limit = |entry| Limit { entry, promised: Amount::default(), changed: false, being_set: false };
        self.state.lock().limits = entries.into_iter().map(|(id, entry)| (id, limit(entry))).collect();
    }

    /// Notes that the image has had a limit, although none may be left.
    pub(crate) fn set_used(&self) {
        self.used.store(true, Ordering::Release);
    }

    // ----- counting and promising -----

    /// Counts the changes of a record. The caller is inside the epoch guard.
    pub(crate) fn settle(&self, deltas: &[Delta], spent: &[Spent], replay: bool) {
        if deltas.is_empty() && spent.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for delta in deltas {
            state.add_signed(delta);
            if replay && broken::is(Variant::LimitCountedTwice) {
                state.add_signed(delta); // broken on purpose: replay counts twice
            }
        }
        for Spent { id, blocks, inodes } in spent {
            state.unpromise(*id, *blocks, *inodes);
        }
    }

    /// Promises up to `want` blocks. Returns the number promised.
    fn promise_blocks(&self, id: LimitId, want: u64) -> u64 {
        let mut state = self.state.lock();
        let left = state.room(id).blocks.map_or(want, |(_, left)| left.min(want));
        for id in state.way(id) {
            state.limits.get_mut(&id).expect("just found").promised.blocks += left;
        }
        left
    }

    fn promise_inode(&self, id: LimitId) -> bool {
        let mut state = self.state.lock();
        let fits = state.room(id).inodes.is_none_or(|(_, left)| left > 0);
        if fits {
            for id in state.way(id) {
                state.limits.get_mut(&id).expect("just found").promised.inodes += 1;
            }
        }
        fits
    }

    pub(crate) fn room(&self, id: LimitId) -> Room {
        self.state.lock().room(id)
    }

    // ----- queries -----

    pub(crate) fn get(&self, id: LimitId) -> Option<LimitState> {
        let state = self.state.lock();
        let limit = state.limits.get(&id)?;
        Some(LimitState { id, entry: limit.entry, promised: limit.promised })
    }

    pub(crate) fn all(&self) -> Vec<LimitState> {
        let state = self.state.lock();
        let shown = |(id, limit): (&LimitId, &Limit)| LimitState {
            id: *id,
            entry: limit.entry,
            promised: limit.promised,
        };
        state.limits.iter().map(shown).collect()
    }

    /// The limit that is set on a directory. `dir`: the inode number within the tree.
    pub(crate) fn of_dir(&self, tree: u32, dir: Ino) -> Option<LimitId> {
        let state = self.state.lock();
        let of_tree = state.limits.range(LimitId { tree, number: 0 }..LimitId { tree: tree + 1, number: 0 });
        of_tree.into_iter().find(|(_, limit)| limit.entry.dir == dir).map(|(id, _)| *id)
    }

    /// Number of limits that apply: the limit and all that contain it.
    pub(crate) fn depth(&self, id: LimitId) -> usize {
        self.state.lock().way(id).len()
    }

    /// Number of limits of a tree.
    pub(crate) fn count(&self, tree: u32) -> u32 {
        let state = self.state.lock();
        let ids = LimitId { tree, number: 0 }..LimitId { tree: tree + 1, number: 0 };
        state.limits.range(ids).count() as u32
    }

    /// A number that no limit of the tree has.
    pub(crate) fn new_number(&self, tree: u32) -> Result<u32> {
        let state = self.state.lock();
        let mut free = 1;
        let ids = LimitId { tree, number: 0 }..LimitId { tree: tree + 1, number: 0 };
        for id in state.limits.range(ids).map(|(id, _)| id) {
            if id.number != free {
                break;
            }
            free += 1;
        }
        let full = || Error::invalid(format!("the tree has {LIMITS_MAX} limits"));
        Some(free).filter(|free| *free < LIMITS_MAX).ok_or_else(full)
    }

    // ----- changes, at a cut -----

    /// Makes a limit, or sets its maxima and its parent. `begins`: the limit's number will be
    /// assigned to inodes, so the limit stays although no inode has it yet.
    pub(crate) fn set(&self, id: LimitId, new: LimitEntry, begins: bool) {
        let mut state = self.state.lock();
        state.gone.remove(&id);
        match state.limits.get_mut(&id) {
            Some(limit) => {
                (limit.entry.blocks_max, limit.entry.inodes_max) = (new.blocks_max, new.inodes_max);
                (limit.changed, limit.being_set) = (true, begins);
                if limit.entry.parent != new.parent {
                    state.nest(id, new.parent);
                }
            }
            None => {
                let entry = LimitEntry { blocks: 0, inodes: 0, ..new };
                let limit = Limit { entry, promised: Amount::default(), changed: true, being_set: begins };
                state.limits.insert(id, limit);
            }
        }
        drop(state);
        self.set_used();
    }

    pub(crate) fn nest(&self, id: LimitId, parent: u32) {
        self.state.lock().nest(id, parent);
    }

    /// Ends what [`Limits::set`] began. A limit that no inode has may now be removed.
    pub(crate) fn end_setting(&self, id: LimitId) {
        if let Some(limit) = self.state.lock().limits.get_mut(&id) {
            limit.being_set = false;
            limit.changed = true;
        }
    }

    /// Copies the limits of a tree to its fork.
    pub(crate) fn fork(&self, source: u32, fork: u32) {
        let mut state = self.state.lock();
        let ids = LimitId { tree: source, number: 0 }..LimitId { tree: source + 1, number: 0 };
        let copied: Vec<_> = state.limits.range(ids).map(|(id, limit)| (id.number, limit.entry)).collect();
        for (number, entry) in copied {
            let limit = Limit { entry, promised: Amount::default(), changed: true, being_set: false };
            state.limits.insert(LimitId { tree: fork, number }, limit);
        }
    }

    /// Removes the limits of a tree that is deleted.
    pub(crate) fn delete_tree(&self, tree: u32) {
        let mut state = self.state.lock();
        let ids = LimitId { tree, number: 0 }..LimitId { tree: tree + 1, number: 0 };
        let gone: Vec<_> = state.limits.range(ids).map(|(id, _)| *id).collect();
        for id in gone {
            state.limits.remove(&id);
            state.gone.insert(id);
        }
    }

    /// The entries of the table that a cut changes; `None` for an entry that is deleted. A limit
    /// without inodes is deleted: its directory is gone, and so is everything that counted for the
    /// limit.
    pub(crate) fn take_changes(&self) -> Vec<(Key, Option<LimitEntry>)> {
        if !self.is_used() {
            return Vec::new();
        }
        let mut state = self.state.lock();
        let unused = |limit: &Limit| {
            let (entry, promised) = (&limit.entry, &limit.promised);
            let nothing = entry.blocks == 0 && entry.inodes == 0 && *promised == Amount::default();
            limit.changed && nothing && !limit.being_set
        };
        let unused: Vec<_> =
            state.limits.iter().filter(|(_, limit)| unused(limit)).map(|(id, _)| *id).collect();
        let parents: BTreeSet<LimitId> = state
            .limits
            .iter()
            .filter(|(id, _)| unused.binary_search(id).is_err())
            .map(|(id, limit)| LimitId { number: limit.entry.parent, ..*id })
            .collect();
        for id in unused.into_iter().filter(|id| !parents.contains(id)) {
            state.limits.remove(&id);
            state.gone.insert(id);
        }
        let gone = std::mem::take(&mut state.gone);
        let gone = gone.into_iter().map(|id| (key(id.tree, id.number), None));
        let changed = state.limits.iter_mut().filter_map(|(id, limit)| {
            let entry = std::mem::take(&mut limit.changed).then_some(limit.entry)?;
            Some((key(id.tree, id.number), Some(entry)))
        });
        gone.chain(changed).collect()
    }
}

/// Blocks and inodes promised within a limit, to an operation or to pages that wait for their
/// blocks. Dropping it ends the promise.
pub struct Charge {
    limits: Arc<Limits>,
    id: LimitId,
    held: Amount,
}

impl Charge {
    /// Promises up to `want` blocks, fewer if the limit has no more left.
    pub(crate) fn blocks(limits: &Arc<Limits>, id: LimitId, want: u64) -> Charge {
        let blocks = limits.promise_blocks(id, want);
        Charge { limits: limits.clone(), id, held: Amount { blocks, inodes: 0 } }
    }

    /// Promises an inode. `None` if the limit has none left.
    pub(crate) fn inode(limits: &Arc<Limits>, id: LimitId) -> Option<Charge> {
        let held = Amount { blocks: 0, inodes: 1 };
        limits.promise_inode(id).then(|| Charge { limits: limits.clone(), id, held })
    }

    pub fn id(&self) -> LimitId {
        self.id
    }

    /// The number of blocks promised.
    pub fn held_blocks(&self) -> u64 {
        self.held.blocks
    }

    /// The whole promise, for a record that uses all of it.
    pub fn all(&self) -> Spent {
        Spent { id: self.id, blocks: self.held.blocks, inodes: self.held.inodes }
    }

    /// Moves up to `blocks` blocks into a new promise.
    #[must_use]
    pub fn split(&mut self, blocks: u64) -> Charge {
        let blocks = blocks.min(self.held.blocks);
        self.held.blocks -= blocks;
        Charge { limits: self.limits.clone(), id: self.id, held: Amount { blocks, inodes: 0 } }
    }

    /// Adds the blocks of `other`, a promise for the same limit. Pages of one inode always have
    /// promises for the same limit: the limit of an inode changes only while none of its pages
    /// waits for a block.
    pub fn merge(&mut self, mut other: Charge) {
        assert_eq!(self.id, other.id, "an inode is charged to one limit");
        let held = std::mem::take(&mut other.held);
        self.held.blocks += held.blocks;
        self.held.inodes += held.inodes;
    }

    /// Removes from the promise what a record has used.
    pub fn spent(&mut self, blocks: u64, inodes: u64) {
        self.held.blocks = self.held.blocks.saturating_sub(blocks);
        self.held.inodes = self.held.inodes.saturating_sub(inodes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.held != Amount::default() {
            self.limits.state.lock().unpromise(self.id, self.held.blocks, self.held.inodes);
        }
    }
}

/// Checks how the limits refer to each other and to trees. `is_head` returns whether a tree exists
/// and is not being deleted. A limit that passes has at most [`DEPTH_MAX`] limits on its chain of
/// parents.
pub(crate) fn check(entries: &BTreeMap<LimitId, LimitEntry>, is_head: impl Fn(u32) -> bool) -> Result<()> {
    let bad = |id: &LimitId, what: &str| {
        let what = format!("table of trees: limit {} of tree {} {what}", id.number, id.tree);
        Err(Error::corrupt(CorruptKind::Item, BlockNo(0), what))
    };
    let mut dirs = BTreeSet::new();
    for (id, entry) in entries {
        if !is_head(id.tree) {
            return bad(id, "is of a tree that does not exist");
        }
        if !dirs.insert((id.tree, entry.dir)) {
            return bad(id, "is of a directory that has another limit");
        }
        let (mut depth, mut at) = (1, entry.parent);
        while at != 0 {
            depth += 1;
            match entries.get(&LimitId { number: at, ..*id }) {
                Some(above) if depth <= DEPTH_MAX => at = above.parent,
                Some(_) => return bad(id, "is in a circle, or too deep"),
                None => return bad(id, "is in a limit that does not exist"),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
