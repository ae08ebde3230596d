//! The part of a checkpoint's cut that concerns the trees and the table of trees.

use super::{CACHE_MIN, Forest, Member, State, first_entry};
use crate::counters::Counters;
use crate::limits::LimitId;
use crate::space::Marks;
use kedge_base::atomic::Ordering::*;
use kedge_base::{BlockNo, Error, Ino, Result};
use kedge_btree::{Frozen, Tree};
use kedge_format::limits::LimitEntry;
use kedge_format::superblock::TableState;
use kedge_format::trees::{self, TreeEntry, TreeKind};
use kedge_format::{InodeCore, Key};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A change of the table that a checkpoint makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Forks `source`: `fork` becomes the fork, and `point` the common point of both. No point is
    /// made if `source` has not changed since its existing one.
    Fork { source: u32, fork: u32, point: u32, dir: Ino, name: Vec<u8>, read_only: bool, created: i64 },
    /// Adds a read-only tree with an empty root directory.
    Create { number: u32, core: InodeCore, dir: Ino, name: Vec<u8>, created: i64 },
    /// Makes the present state of `source` a point, without a fork.
    Point { source: u32, point: u32, created: i64 },
    /// Sets the name of a tree, and whether it is read-only.
    Name { number: u32, dir: Ino, name: Vec<u8>, read_only: bool },
    /// Makes a tree, or a point without children, one that is to be freed.
    Dying { number: u32 },
    /// States that the extents of a dying tree below this key have been freed.
    FreedBelow { number: u32, key: Key },
    /// Removes the entry of a tree or point that is freed. If a point has one child, the child
    /// takes over its point and marks.
    Drop { number: u32 },
    /// Gives the first tree the state of `source`, which becomes the point `point` unless `source`
    /// has not changed since its existing point. `old` becomes a dying tree with the former
    /// contents of the first tree. In memory the tree that [`Forest::prepare_first`] opened becomes
    /// the first.
    First { source: u32, old: u32, point: u32, created: i64 },
    /// Makes a limit, or sets its maxima and its parent.
    Limit { id: LimitId, entry: LimitEntry, begins: bool, now: i64 },
    /// Gives a limit another parent.
    Nest { id: LimitId, parent: u32 },
    /// Copies the nodes of the table that lie at or after this block to other places.
    Vacate { end: BlockNo },
}

/// The trees of a forked image as they are at the cut of a checkpoint, with the nodes to write.
pub(crate) struct FrozenForest {
    members: Vec<(Arc<Member>, Frozen)>,
    pub table: Frozen,
    birth: u32,
}

impl FrozenForest {
    pub(crate) fn state(&self) -> TableState {
        TableState {
            root: self.table.root,
            root_generation: self.table.root_generation,
            root_level: self.table.root_level,
            nodes: self.table.node_count,
            birth: self.birth,
        }
    }

    /// The frozen trees other than the first, with the table.
    pub(crate) fn trees(&self) -> impl Iterator<Item = &Frozen> {
        self.members.iter().map(|(_, frozen)| frozen).chain([&self.table])
    }
}

impl Forest {
    /// Whether the changes concern a tree in use: its marks, its name, its limits or its contents.
    /// Changes of files are stopped when such changes are made. Called before the changes.
    pub(crate) fn change_heads(&self, changes: &[Change]) -> bool {
        let state = self.state.read();
        let is_head = |number: u32| {
            number == 0 || state.entries.get(&number).is_some_and(|entry| entry.kind == TreeKind::Head)
        };
        changes.iter().any(|change| match change {
            Change::FreedBelow { .. } | Change::Vacate { .. } => false,
            Change::Dying { number } => is_head(*number),
            Change::Drop { number } => state.entries.heirs(*number).any(is_head),
            Change::Fork { .. }
            | Change::Create { .. }
            | Change::Point { .. }
            | Change::Name { .. }
            | Change::First { .. }
            | Change::Limit { .. }
            | Change::Nest { .. } => true,
        })
    }

    /// Makes an open tree with an empty root directory, which the next cut adds.
    fn create(&self, number: u32, core: &InodeCore) -> Result<Arc<Member>> {
        let marks = Arc::new(Marks::default());
        let space = self.common.space(number, &marks);
        let (config, generation) = (self.common.config(CACHE_MIN), self.common.generation.clone());
        let tree = Tree::create(self.common.io.clone(), space, config, generation)?;
        tree.put(Key::inode(Ino::ROOT), &core.encode())?;
        let counters = Counters::of(Ino::ROOT.0 + 1, 1, 0);
        Ok(Arc::new(Member { number, tree, counters, marks }))
    }

    /// Makes the changes of the table. Freezes the trees that changed, except the first, which is
    /// already frozen as `first`, and writes the changed entries into the table. No record may be
    /// applied meanwhile, nor until the caller has ended the generation. Returns `None` in an image
    /// with one tree.
    ///
    /// # Crash argument
    /// A tree that has taken no node since the last cut has no dirty node, and its entry names the
    /// root that an earlier checkpoint has written. So the checkpoint is the same as if the cut had
    /// frozen that tree too. A tree is listed before its first node of a generation is linked,
    /// within the epoch guard, which the cut excludes.
    pub(crate) fn freeze(&self, first: &Frozen, changes: &[Change]) -> Result<Option<FrozenForest>> {
        if !self.is_forked() && changes.is_empty() {
            return Ok(None);
        }
        let generation = first.generation;
        let table = match self.table.get() {
            Some(table) => table,
            None => {
                let space = self.common.space(0, &Arc::default());
                let (io, config) = (self.common.io.clone(), self.common.table_config());
                let table = Tree::create(io, space, config, self.common.generation.clone())?;
                self.table.get_or_init(|| table)
            }
        };
        let mut changed = BTreeSet::new();
        let mut state = self.state.write();
        for change in changes {
            if let Change::Create { number, core, dir, name, created } = change {
                let member = self.create(*number, core)?;
                self.ensure_first(&mut state, &mut changed, *created);
                let of_name =
                    TreeEntry { read_only: true, dir: *dir, name: name.clone(), ..first_entry(*created) };
                state.entries.insert(*number, of_name);
                state.named.entry(*dir).or_default().insert(name.clone(), *number);
                state.open.insert(*number, member);
            }
        }
        let listed = self.common.changed.take();
        // A listed tree may have been dropped since; it is not open any more.
        let changed_trees = listed.iter().filter_map(|number| state.open.get(number));
        let members: Vec<_> = changed_trees.map(|m| (m.tree.freeze(), m.clone())).collect();
        for (frozen, member) in &members {
            state.sizes.set(member.number, &member.tree);
            state.entries.change(member.number, |entry| {
                let moved = frozen.root_generation == generation;
                if moved || entry.orphans != member.counters.orphans.load(Relaxed) {
                    (entry.root, entry.root_generation) = (frozen.root, frozen.root_generation);
                    (entry.root_level, entry.nodes) = (frozen.root_level, frozen.node_count);
                    member.counters.store_in(entry);
                    changed.insert(member.number);
                }
            });
        }
        let mut dropped = Vec::new();
        for change in changes {
            self.apply(&mut state, change, first, &mut changed, &mut dropped);
        }
        let first = self.first_in(&state.later_first).clone();
        state.sizes.set(0, &first.tree);
        state.sizes.set_largest(&self.common.totals);
        if !changes.is_empty() {
            state.unwritten.extend(&changed);
            *self.unwritten_why.lock() = None;
        }
        let writes: Vec<(u32, Option<TreeEntry>)> =
            changed.into_iter().map(|number| (number, state.entries.get(&number).cloned())).collect();
        drop(state);
        drop(dropped);
        self.write_table(table, writes, changes)?;
        let members = members.into_iter().map(|(frozen, member)| (member, frozen)).collect();
        self.forked.store(true, Release);
        Ok(Some(FrozenForest { members, table: table.freeze(), birth: self.birth() }))
    }

    /// Writes the changed entries into the table. The nodes of the table are in memory, and the
    /// nodes that the changes take are promised.
    fn write_table(
        &self,
        table: &Tree,
        entries: Vec<(u32, Option<TreeEntry>)>,
        changes: &[Change],
    ) -> Result<()> {
        for (number, entry) in entries {
            match entry {
                Some(entry) => table.put(trees::key(number), &entry.encode())?,
                None => table.delete(trees::key(number))?,
            };
        }
        for (key, entry) in self.limits.take_changes() {
            match entry {
                Some(entry) => table.put(key, &entry.encode())?,
                None => table.delete(key)?,
            };
        }
        for change in changes {
            if let Change::Vacate { end } = change {
                let mut at = Key::MIN;
                while let Some(key) = table.node_beyond(at, *end)? {
                    table.renew(key)?;
                    at = key;
                }
            }
        }
        Ok(())
    }

    fn apply(
        &self,
        state: &mut State,
        change: &Change,
        first: &Frozen,
        changed: &mut BTreeSet<u32>,
        dropped: &mut Vec<Arc<Member>>,
    ) {
        match change {
            Change::Create { .. } | Change::Vacate { .. } => {} // made before, and after, the others
            Change::Fork { source, fork, point, dir, name, read_only, created } => {
                self.fork(state, (*source, *fork, *point), first, changed, *created);
                state.entries.change(*fork, |entry| {
                    (entry.dir, entry.name, entry.read_only) = (*dir, name.clone(), *read_only);
                });
                state.named.entry(*dir).or_default().insert(name.clone(), *fork);
                changed.insert(*fork);
            }
            Change::Point { source, point, created } => {
                let entry = self.make_point(state, *source, *point, first, changed, *created);
                state.entries.insert(*source, entry);
            }
            Change::Name { number, dir, name, read_only } => {
                let State { entries, named, .. } = state;
                entries.change(*number, |entry| {
                    let old_dir = std::mem::replace(&mut entry.dir, *dir);
                    let old_name = std::mem::replace(&mut entry.name, name.clone());
                    entry.read_only = *read_only;
                    unname(named, old_dir, &old_name);
                    named.entry(*dir).or_default().insert(name.clone(), *number);
                    changed.insert(*number);
                });
            }
            Change::Dying { number } => {
                let State { entries, named, open, sizes, .. } = state;
                entries.change(*number, |entry| {
                    let dir = std::mem::replace(&mut entry.dir, Ino(0));
                    let name = std::mem::take(&mut entry.name);
                    entry.kind = TreeKind::Dying;
                    self.limits.delete_tree(*number);
                    unname(named, dir, &name);
                    dropped.extend(open.remove(number));
                    sizes.remove(*number);
                    changed.insert(*number);
                });
            }
            Change::FreedBelow { number, key } => {
                state.entries.change(*number, |entry| {
                    entry.freed_below = *key;
                    changed.insert(*number);
                });
            }
            Change::Drop { number } => {
                let Some(gone) = state.entries.remove(*number) else { return };
                changed.insert(*number);
                let heirs: Vec<u32> = state.entries.heirs(*number).collect();
                for heir in heirs {
                    state.entries.change(heir, |entry| {
                        entry.point = gone.point;
                        (entry.births_below, entry.nodes_below) = (gone.births_below, gone.nodes_below);
                    });
                    let member = if heir == 0 {
                        Some(self.first_in(&state.later_first))
                    } else {
                        state.open.get(&heir)
                    };
                    if let Some(member) = member {
                        member.marks.set(gone.births_below, gone.nodes_below);
                    }
                    changed.insert(heir);
                }
            }
            Change::First { source, old, point, created } => {
                self.replace_first(state, (*source, *old, *point), first, changed, *created);
            }
            Change::Limit { id, entry, begins, now } => {
                self.ensure_first(state, changed, *now);
                self.limits.set(*id, *entry, *begins);
            }
            Change::Nest { id, parent } => self.limits.nest(*id, *parent),
        }
    }

    /// Adds the entry of the first tree, if the table has none.
    fn ensure_first(&self, state: &mut State, changed: &mut BTreeSet<u32>, now: i64) {
        if !state.entries.contains_key(&0) {
            state.entries.insert(0, first_entry(now));
            changed.insert(0);
        }
    }

    fn fork(
        &self,
        state: &mut State,
        (source, fork, point): (u32, u32, u32),
        first: &Frozen,
        changed: &mut BTreeSet<u32>,
        created: i64,
    ) {
        let entry = self.make_point(state, source, point, first, changed, created);
        self.limits.fork(source, fork);
        state.entries.insert(fork, TreeEntry { created, ..entry.clone() });
        state.entries.insert(source, entry);
        changed.insert(fork);
    }

    /// Makes the present state of `source` a point, unless `source` has not changed since its
    /// existing point. Returns the new entry of `source`.
    pub(super) fn make_point(
        &self,
        state: &mut State,
        source: u32,
        point: u32,
        first: &Frozen,
        changed: &mut BTreeSet<u32>,
        created: i64,
    ) -> TreeEntry {
        let mut entry = match state.entries.get(&source) {
            Some(entry) => entry.clone(),
            None => first_entry(created),
        };
        if source == 0 {
            (entry.root, entry.root_generation) = (first.root, first.root_generation);
            (entry.root_level, entry.nodes) = (first.root_level, first.node_count);
            self.first_in(&state.later_first).counters.store_in(&mut entry);
        }
        let fresh = entry.point == 0 || entry.root_generation >= entry.nodes_below;
        if fresh {
            let kind = TreeKind::Point;
            let frozen =
                TreeEntry { kind, read_only: true, dir: Ino(0), name: Vec::new(), created, ..entry.clone() };
            state.entries.insert(point, frozen);
            changed.insert(point);
            entry.point = point;
            entry.births_below = self.birth.fetch_add(1, Relaxed) + 1;
            entry.nodes_below = first.generation.next();
        }
        let member =
            if source == 0 { Some(self.first_in(&state.later_first)) } else { state.open.get(&source) };
        if let Some(member) = member {
            member.marks.set(entry.births_below, entry.nodes_below);
        }
        changed.insert(source);
        entry
    }

    /// Called when the checkpoint of the last cut failed.
    pub(crate) fn not_written(&self, why: &Error) {
        *self.unwritten_why.lock() = Some(why.clone());
    }

    /// Called when the frozen trees are durable.
    pub(crate) fn written(&self, frozen: FrozenForest) {
        for (member, frozen) in frozen.members {
            member.tree.written(frozen);
        }
        self.table.get().expect("it was frozen").written(frozen.table);
        self.state.write().unwritten.clear();
        *self.unwritten_why.lock() = None;
        if self.replaced() != 0 && self.opened_first.tree.cache_bytes() > 0 {
            self.opened_first.tree.set_cache_bytes(0);
        }
    }
}

fn unname(named: &mut BTreeMap<Ino, BTreeMap<Vec<u8>, u32>>, dir: Ino, name: &[u8]) {
    if let Some(names) = named.get_mut(&dir) {
        names.remove(name);
        if names.is_empty() {
            named.remove(&dir);
        }
    }
}
