//! The trees of an image, and which of them an item belongs to: see [`kedge_format::trees`].
//!
//! An image with one tree pays for this with one load of a flag. In an image that was forked, a
//! tree is opened when an operation first needs it, and stays open until it is dropped.
//!
//! No operation and no cut visits all open trees, of which there may be thousands. The sums over
//! all trees that operations read are updated with each node that is taken or freed ([`Totals`]). A
//! cut freezes only the trees that have taken nodes since the last one ([`Changed`]); their new
//! sizes correct the largest size ([`Sizes`]).
//!
//! # Concurrency
//! Entries of the table change only at a cut, under the exclusive epoch guard. So an operation
//! inside the guard sees one state of the entries. The lock of `state` guards the maps. A tree is
//! opened without that lock, and is added to the open trees under it. All trees share one
//! generation, which each cut ends: a tree that was last frozen long ago takes its next nodes in
//! the present generation.

mod cut;
mod entries;
mod first;
mod items;
mod sizes;

pub(crate) use cut::{Change, FrozenForest};
pub(crate) use entries::{ToFree, first_entry};

use crate::counters::Counters;
use crate::limits::{self, LimitId, Limits};
use crate::space::{AllocNodes, ChangeNote, Changed, Marks};
use entries::{Entries, check_entries, corrupt};
use kedge_alloc::{Alloc, NodeReservation};
use kedge_base::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Mutex, Rank, RwLock};
use kedge_base::{Clock, Error, Generation, Ino, Result};
use kedge_btree::{NodeIo, Totals, Tree, TreeConfig, TreeLock};
use kedge_format::Key;
use kedge_format::limits::{LimitEntry, number_of as limit_of};
use kedge_format::logwrite::LogSecret;
use kedge_format::superblock::TableState;
use kedge_format::trees::{self, TREES_MAX, TreeEntry, TreeKind};
use sizes::Sizes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Minimum of the node cache of each tree other than the first, in bytes.
const CACHE_MIN: u64 = 1 << 20;

/// Pause between two checks by a thread that waits until a checkpoint has written a tree.
const WRITING_REST: Duration = Duration::from_millis(1);

/// An open tree.
pub(crate) struct Member {
    pub number: u32,
    pub tree: Tree,
    pub counters: Counters,
    pub marks: Arc<Marks>,
}

/// What all trees of an image have in common.
pub(crate) struct Common {
    pub io: Arc<dyn NodeIo>,
    pub alloc: Arc<Alloc>,
    pub generation: Arc<AtomicU64>,
    pub clock: Arc<dyn Clock>,
    pub lock: TreeLock,
    pub uuid: uuid::Uuid,
    pub secret: LogSecret,
    /// Sums over all trees but the table of trees. The table's nodes are not evicted and count for
    /// no limit.
    pub totals: Arc<Totals>,
    pub changed: Arc<Changed>,
}

impl Common {
    pub(crate) fn config(&self, cache_bytes: u64) -> TreeConfig {
        let config = TreeConfig::new(self.uuid, self.secret, cache_bytes as usize);
        TreeConfig { clock: self.clock.clone(), lock: self.lock, totals: self.totals.clone(), ..config }
    }

    fn table_config(&self) -> TreeConfig {
        TreeConfig { totals: Arc::default(), ..self.config(u64::MAX / 4) }
    }

    /// The allocator for the nodes of tree `number`, as `btree` uses it. Number 0 stands for the
    /// trees that each cut visits anyway: the first tree and the table.
    fn space(&self, number: u32, marks: &Arc<Marks>) -> Arc<AllocNodes> {
        let (alloc, generation) = (self.alloc.clone(), self.generation.clone());
        let changes = (number != 0).then(|| ChangeNote::new(number, self.changed.clone()));
        Arc::new(AllocNodes { alloc, generation, marks: marks.clone(), changes })
    }

    fn open(&self, number: u32, entry: &TreeEntry, marks: &Arc<Marks>, cache_bytes: u64) -> Result<Tree> {
        Tree::open(
            self.io.clone(),
            self.space(number, marks),
            self.config(cache_bytes),
            entry.root,
            entry.root_generation,
            entry.root_level,
            entry.nodes,
            self.generation.clone(),
        )
    }
}

#[derive(Default)]
struct State {
    entries: Entries,
    /// Trees in use (heads), by the directory that contains their name, then by the name.
    named: BTreeMap<Ino, BTreeMap<Vec<u8>, u32>>,
    open: BTreeMap<u32, Arc<Member>>,
    /// The present first tree, if it has replaced the one with which the image was opened.
    later_first: Option<Arc<Member>>,
    /// The tree that the next cut makes the first one, if that cut replaces the first tree.
    next_first: Option<Arc<Member>>,
    sizes: Sizes,
    /// Trees whose entries the last cut has changed, while its checkpoint is not on the device yet.
    /// The root that such an entry names may not be on the device either.
    unwritten: BTreeSet<u32>,
    /// Where the search for an unused number starts. No number is used twice while an image is
    /// open, because a caller may still hold inode numbers of a tree that was dropped.
    next_number: u32,
}

/// A tree of the table.
enum Found {
    Open(Arc<Member>),
    Closed(TreeEntry),
}

pub(crate) struct Forest {
    /// The first tree with which the image was opened; see [`Forest::first`].
    opened_first: Arc<Member>,
    /// The number of the dying tree with the former contents of the first tree, since the first
    /// tree was last replaced; 0 if it was not replaced while the image was open.
    replaced: AtomicU32,
    common: Common,
    forked: AtomicBool,
    birth: AtomicU32,
    cache_bytes: AtomicU64,
    state: RwLock<State>,
    pub limits: Arc<Limits>,
    /// The error with which the checkpoint of the last cut failed, until a later checkpoint is
    /// written.
    unwritten_why: Mutex<Option<Error>>,
    /// The table of trees, created by the first fork. Its nodes are never evicted, because a cut
    /// changes them and must not wait for a read.
    table: OnceLock<Tree>,
    /// Nodes reserved for changes of the table at a cut. The reservation lasts while the image is
    /// open.
    promised: Mutex<Option<NodeReservation>>,
}

impl Forest {
    /// Makes the forest of an image whose superblock names the first tree, with its table if it has
    /// one.
    pub(crate) fn open(
        common: Common,
        first: Tree,
        counters: Counters,
        marks: Arc<Marks>,
        table: Option<TableState>,
        cache_bytes: u64,
    ) -> Result<Forest> {
        let forest = Forest {
            opened_first: Arc::new(Member { number: 0, tree: first, counters, marks }),
            replaced: AtomicU32::new(0),
            common,
            forked: AtomicBool::new(false),
            birth: AtomicU32::new(0),
            cache_bytes: AtomicU64::new(cache_bytes),
            state: RwLock::new(Rank::Trees, State { next_number: 1, ..State::default() }),
            limits: Arc::new(Limits::new()),
            unwritten_why: Mutex::new(Rank::Leaf, None),
            table: OnceLock::new(),
            promised: Mutex::new(Rank::Leaf, None),
        };
        forest.note_size(&mut forest.state.write(), 0, &forest.opened_first.tree);
        if let Some(table) = table {
            forest.load(&table)?;
        }
        Ok(forest)
    }

    fn load(&self, state: &TableState) -> Result<()> {
        let table = Tree::open(
            self.common.io.clone(),
            self.common.space(0, &Arc::default()),
            self.common.table_config(),
            state.root,
            state.root_generation,
            state.root_level,
            state.nodes,
            self.common.generation.clone(),
        )?;
        let mut entries = BTreeMap::new();
        let mut limits = BTreeMap::new();
        let mut bad = None;
        table.scan(Key::MIN, Key::MAX, &mut |key, value| {
            if let Some((tree, number)) = limit_of(&key) {
                match LimitEntry::decode(value) {
                    Ok(entry) => {
                        limits.insert(LimitId { tree, number }, entry);
                        return ControlFlow::Continue(());
                    }
                    Err(e) => bad = Some(e),
                }
                return ControlFlow::Break(());
            }
            match (trees::number_of(&key), TreeEntry::decode(value)) {
                (Some(number), Ok(entry)) => {
                    entries.insert(number, entry);
                    return ControlFlow::Continue(());
                }
                (None, _) => bad = Some(corrupt(format!("key {key}"))),
                (_, Err(e)) => bad = Some(e),
            }
            ControlFlow::Break(())
        })?;
        if let Some(e) = bad {
            return Err(e);
        }
        check_entries(&entries)?;
        limits::check(&limits, |tree| entries.get(&tree).is_some_and(|entry| entry.kind == TreeKind::Head))?;
        self.limits.load(limits);
        if let Some(entry) = entries.get(&0) {
            self.first().marks.set(entry.births_below, entry.nodes_below);
        }
        let mut now = self.state.write();
        for (number, entry) in &entries {
            if entry.dir.0 != 0 {
                let names = now.named.entry(entry.dir).or_default();
                if let Some(other) = names.insert(entry.name.clone(), *number) {
                    return Err(corrupt(format!("trees {other} and {number} have one name")));
                }
            }
        }
        now.next_number = entries.last_key_value().map_or(0, |(number, _)| *number) + 1;
        now.entries = Entries::from(entries);
        drop(now);
        self.birth.store(state.birth, Relaxed);
        assert!(self.table.set(table).is_ok(), "a forest is loaded once");
        self.forked.store(true, Release);
        Ok(())
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.forked.load(Acquire)
    }

    /// The birth that an extent made now gets.
    pub(crate) fn birth(&self) -> u32 {
        self.birth.load(Relaxed)
    }

    /// The extents of an inode whose birth is lower than this belong to the point of the inode's
    /// tree.
    pub(crate) fn births_below(&self, ino: Ino) -> u32 {
        if !self.is_forked() || broken::is(Variant::BirthIgnored) {
            return 0;
        }
        match ino.tree() {
            0 => self.first().marks.births_below(),
            // A tree that is gone has no extents.
            number => self.state.read().entries.get(&number).map_or(0, |entry| entry.births_below),
        }
    }

    /// Whether an extent of this inode with this birth is shared with other trees.
    pub(crate) fn is_shared(&self, ino: Ino, birth: u32) -> bool {
        birth < self.births_below(ino)
    }

    /// The number of the tree that the inode is in.
    pub(crate) fn tree_of(&self, ino: Ino) -> u32 {
        if self.is_forked() { ino.tree() } else { 0 }
    }

    /// The inode's number as items of its own tree contain it: without the number of the tree.
    pub(crate) fn in_item(&self, ino: Ino) -> Ino {
        if self.is_forked() { ino.local() } else { ino }
    }

    /// Returns a tree, which is opened if necessary. That may read its root.
    pub(crate) fn member(&self, number: u32) -> Result<Arc<Member>> {
        if number == 0 {
            return Ok(self.first().shared());
        }
        loop {
            let entry = match self.wait_for_entry(number)? {
                Found::Open(member) => return Ok(member),
                Found::Closed(entry) => entry,
            };
            let member = self.open_member(number, &entry);
            let mut state = self.state.write();
            // Another thread may have opened the tree during the read.
            if let Some(member) = state.open.get(&number) {
                return Ok(member.clone());
            }
            let current = state.entries.get(&number).filter(|now| now.kind == TreeKind::Head);
            let current = current.ok_or(Error::NoTree(number))?;
            // A cut may have moved the root. What was read may then be of another owner.
            if (current.root, current.root_generation) != (entry.root, entry.root_generation) {
                continue;
            }
            let member = member?;
            // The marks may have changed during the read: the tree was forked, or its point was
            // freed.
            if !broken::is(Variant::StaleMarks) {
                member.marks.set(current.births_below, current.nodes_below);
            }
            state.open.insert(number, member.clone());
            self.note_size(&mut state, number, &member.tree);
            drop(state);
            self.share_cache();
            return Ok(member);
        }
    }

    /// Returns a tree if it is open, or else its entry when its root is on the device.
    ///
    /// A fork can be found by its name from the cut on, before its root is on the device. Waiting
    /// for that checkpoint here cannot deadlock. It may wait for the epoch guard, but this thread
    /// is not inside the guard: a commit opens its trees before it enters. After its cut a
    /// checkpoint waits for nothing else that this thread may hold.
    fn wait_for_entry(&self, number: u32) -> Result<Found> {
        loop {
            let state = self.state.read();
            if let Some(member) = state.open.get(&number) {
                return Ok(Found::Open(member.clone()));
            }
            let entry = state.entries.get(&number).filter(|entry| entry.kind == TreeKind::Head);
            let entry = entry.ok_or(Error::NoTree(number))?;
            if !state.unwritten.contains(&number) {
                return Ok(Found::Closed(entry.clone()));
            }
            if let Some(why) = &*self.unwritten_why.lock() {
                return Err(why.clone());
            }
            drop(state);
            self.common.clock.sleep(WRITING_REST);
        }
    }

    /// Makes a tree that is not open yet. The lock of `state` is not held, because the open reads
    /// from the device.
    fn open_member(&self, number: u32, entry: &TreeEntry) -> Result<Arc<Member>> {
        let marks = Arc::new(Marks::default());
        marks.set(entry.births_below, entry.nodes_below);
        let counters = Counters::of(entry.next_ino, entry.inodes, entry.orphans);
        let tree = self.common.open(number, entry, &marks, CACHE_MIN)?;
        Ok(Arc::new(Member { number, tree, counters, marks }))
    }

    /// Whether the checkpoint of the last cut that changed the table is not on the device yet.
    pub(crate) fn is_unwritten(&self) -> bool {
        !self.state.read().unwritten.is_empty()
    }

    // ----- sizes -----

    /// Upper bounds on the height and the number of nodes of an open tree. Without forks these are
    /// the values of the first tree, with forks the largest since the last cut.
    pub(crate) fn largest(&self) -> (u32, u64) {
        if self.is_forked() {
            return self.common.totals.largest();
        }
        let first = self.first();
        (first.tree.height(), first.tree.node_count())
    }

    /// Records the size of a tree that has just been opened. The caller holds the lock of `state`,
    /// so no cut runs meanwhile.
    fn note_size(&self, state: &mut State, number: u32, tree: &Tree) {
        state.sizes.set(number, tree);
        self.common.totals.note_size(tree.node_count(), tree.height());
    }

    pub(crate) fn dirty_bytes(&self) -> usize {
        self.common.totals.dirty_bytes()
    }

    pub(crate) fn cached_bytes(&self) -> usize {
        self.common.totals.cached_bytes()
    }

    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache_bytes.load(Relaxed)
    }

    pub(crate) fn set_cache_bytes(&self, bytes: u64) {
        self.cache_bytes.store(bytes, Relaxed);
        self.share_cache();
    }

    /// Divides the node cache: half for the first tree, the other half for all others together.
    fn share_cache(&self) {
        let bytes = self.cache_bytes.load(Relaxed);
        let state = self.state.read();
        let each = (bytes / 2).checked_div(state.open.len() as u64);
        let each = each.map_or(0, |each| each.max(CACHE_MIN));
        let has_other = |member: &&Arc<Member>| member.tree.cache_bytes() as u64 != each;
        let others: Vec<_> = state.open.values().filter(has_other).cloned().collect();
        let first = if state.open.is_empty() { bytes } else { bytes / 2 };
        // The lock is released first, since shrinking a cache may evict nodes.
        drop(state);
        if self.first().tree.cache_bytes() as u64 != first {
            self.first().tree.set_cache_bytes(first as usize);
        }
        for member in others {
            member.tree.set_cache_bytes(each as usize);
        }
    }

    // ----- the table -----

    /// All entries, with the present counters for trees that are open.
    pub(crate) fn entries(&self) -> BTreeMap<u32, TreeEntry> {
        let state = self.state.read();
        let mut entries: BTreeMap<u32, TreeEntry> = (*state.entries).clone();
        for (number, member) in &state.open {
            if let Some(entry) = entries.get_mut(number) {
                member.counters.store_in(entry);
            }
        }
        entries
    }

    pub(crate) fn entry(&self, number: u32) -> Option<TreeEntry> {
        self.state.read().entries.get(&number).cloned()
    }

    /// What can be freed next. `quiet`: the caller ensures that nothing changes meanwhile.
    pub(crate) fn to_free(&self, quiet: bool) -> ToFree {
        self.state.read().entries.to_free(quiet)
    }

    /// Whether [`Forest::to_free`] would find nothing, with or without `quiet`.
    pub(crate) fn is_all_in_use(&self) -> bool {
        self.state.read().entries.is_all_in_use()
    }

    /// The trees that were never forked, or have changed since their last fork. Only these have
    /// blocks and nodes that belong to no point.
    pub(crate) fn changed_heads(&self) -> Vec<u32> {
        let state = self.state.read();
        let changed = |(number, entry): &(&u32, &TreeEntry)| {
            let is_head = entry.kind == TreeKind::Head;
            is_head && self.root_generation(&state, **number, entry) >= entry.nodes_below
        };
        match state.entries.is_empty() {
            true => vec![0],
            false => state.entries.iter().filter(changed).map(|(number, _)| *number).collect(),
        }
    }

    /// Whether the tree is read-only. `None` if it does not exist or is being deleted.
    pub(crate) fn head_is_read_only(&self, number: u32) -> Option<bool> {
        let state = self.state.read();
        state.entries.get(&number).filter(|entry| entry.kind == TreeKind::Head).map(|entry| entry.read_only)
    }

    /// Whether `tree` has not changed since its last fork, and `fork` was made from that state.
    pub(crate) fn is_as_forked(&self, tree: u32, fork: u32) -> bool {
        let state = self.state.read();
        let (Some(entry), Some(fork)) = (state.entries.get(&tree), state.entries.get(&fork)) else {
            return false;
        };
        let root = self.root_generation(&state, tree, entry);
        let mut point = fork.point;
        // The loop ends: opening the table has checked that chains of points have no circle.
        while point != entry.point && point != 0 {
            point = state.entries.get(&point).map_or(0, |above| above.point);
        }
        entry.point != 0 && point == entry.point && root < entry.nodes_below
    }

    /// The generation of the present root of a tree.
    fn root_generation(&self, state: &State, tree: u32, entry: &TreeEntry) -> Generation {
        match (tree, state.open.get(&tree)) {
            (0, _) => self.first_in(&state.later_first).tree.root().1,
            (_, Some(member)) => member.tree.root().1,
            (_, None) => entry.root_generation,
        }
    }

    /// Whether a tree has not changed since its point was made.
    pub(crate) fn is_as_its_point(&self, tree: u32) -> Result<bool> {
        let state = self.state.read();
        let Some(entry) = state.entries.get(&tree).filter(|entry| entry.kind == TreeKind::Head) else {
            return if tree == 0 { Ok(false) } else { Err(Error::NoTree(tree)) };
        };
        Ok(entry.point != 0 && self.root_generation(&state, tree, entry) < entry.nodes_below)
    }

    /// The trees whose names are in a directory, with the names.
    pub(crate) fn named_in(&self, dir: Ino) -> Vec<(u32, Vec<u8>)> {
        if !self.is_forked() {
            return Vec::new();
        }
        let state = self.state.read();
        let names = state.named.get(&dir).into_iter().flatten();
        names.map(|(name, number)| (*number, name.clone())).collect()
    }

    /// The number of trees whose names are in a directory.
    pub(crate) fn named_count(&self, dir: Ino) -> u32 {
        if !self.is_forked() {
            return 0;
        }
        self.state.read().named.get(&dir).map_or(0, |names| names.len() as u32)
    }

    /// The tree that has this name in a directory.
    pub(crate) fn named(&self, dir: Ino, name: &[u8]) -> Option<u32> {
        if !self.is_forked() {
            return None;
        }
        self.state.read().named.get(&dir)?.get(name).copied()
    }

    /// Whether a directory of this tree contains the name of another tree.
    pub(crate) fn names_any(&self, number: u32) -> bool {
        let state = self.state.read();
        state.named.range(Ino(0).in_tree(number)..Ino(0).in_tree(number + 1)).next().is_some()
    }

    pub(crate) fn inode_count(&self) -> u64 {
        let first = self.first().counters.inodes.load(Relaxed);
        if !self.is_forked() {
            return first;
        }
        let state = self.state.read();
        let heads = |(number, entry): (&u32, &TreeEntry)| {
            let open = || state.open.get(number).map(|member| member.counters.inodes.load(Relaxed));
            let is_head = *number != 0 && entry.kind == TreeKind::Head;
            is_head.then(|| open().unwrap_or(entry.inodes))
        };
        // In a corrupt image the counters may have any value.
        state.entries.iter().filter_map(heads).fold(first, u64::saturating_add)
    }

    /// Numbers for `N` new trees. No tree has had them since the image was opened.
    pub(crate) fn new_numbers<const N: usize>(&self) -> Result<[u32; N]> {
        let mut state = self.state.write();
        let mut numbers = [0; N];
        for number in &mut numbers {
            while state.entries.contains_key(&state.next_number) {
                state.next_number += 1;
            }
            if state.next_number >= TREES_MAX {
                let what = format!("{TREES_MAX} trees were made; mount again to use their numbers again");
                return Err(Error::invalid(what));
            }
            *number = state.next_number;
            state.next_number += 1;
        }
        Ok(numbers)
    }

    /// Reserves the nodes that the next cut needs for the table, which gets `more` new entries. The
    /// reservation stays full: when the checkpoint of a cut that took nodes is durable, as many
    /// nodes are returned to it.
    pub(crate) fn promise_nodes(&self, more: u32) -> Result<()> {
        if !self.is_forked() && more == 0 {
            return Ok(());
        }
        let (nodes, height) = self.table.get().map_or((1, 1), |t| (t.node_count(), t.height()));
        // In a corrupt image the node count may have any value.
        let want = nodes.saturating_add(u64::from((1 + more) * (height + 2)));
        let want = u32::try_from(want).unwrap_or(u32::MAX);
        let held = self.promised.lock().as_ref().map_or(0, |r| r.slots() as u32);
        if held >= want {
            return Ok(());
        }
        let class = kedge_alloc::NodeClass::Promised;
        let more = self.common.alloc.reserve_nodes(want - held, class)?.ok_or(Error::NoSpace)?.keep();
        // The lock of `promised` is not held during the merge, because dropping a reservation takes
        // other locks.
        let mut all = more;
        let before = self.promised.lock().take();
        if let Some(before) = before {
            all.merge(before);
        }
        let replaced = self.promised.lock().replace(all);
        drop(replaced);
        Ok(())
    }

    /// The generation of the present root of a tree. `None` if the tree does not exist.
    pub(crate) fn root_generation_of(&self, tree: u32) -> Option<Generation> {
        let state = self.state.read();
        let entry = state.entries.get(&tree).filter(|entry| entry.kind == TreeKind::Head)?;
        Some(self.root_generation(&state, tree, entry))
    }
}
