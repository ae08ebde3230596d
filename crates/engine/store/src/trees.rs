//! Forks of trees, and the space of deleted trees.
//!
//! # A fork is a checkpoint
//! The caller stops all changes and has written everything dirty, so the tree at the cut is the
//! tree that every reader sees. The cut adds to the table the fork with its name, and the point of
//! both trees, whose root is that of the tree at the cut. So a fork has no record and no recovery
//! of its own: before the checkpoint's slot is durable the fork does not exist, afterwards it does.
//! Its cost does not depend on the size of the tree.
//!
//! # Why nothing that is shared is lost
//! From the cut on both trees carry marks above everything that the point refers to. A tree that
//! replaces a node below its marks does not free it. A tree names no extent below its marks in a
//! `Free` edit, and writes to no block of such an extent in place. So the nodes and blocks of a
//! point stay as they are until nothing refers to the point.
//!
//! # Freeing
//! | what | how |
//! |---|---|
//! | a tree is deleted | a checkpoint removes its name; from then on the tree is dying and nothing reads it |
//! | a dying tree, or a point without children | it owns what is not below its marks: a walk finds it, and checkpoints free it: first extents, in bounded batches, then nodes together with the entry |
//! | a point with one child | what the child does not refer to has no owner any more and is freed; the child takes over the rest, with the marks of the point |
//!
//! Blocks become free in the cut that removes the last reference to them from the table, and are
//! used again when its checkpoint is durable. A crash before that restores the table and the
//! bitmaps of the checkpoint before, in which the blocks are in use and unchanged.
//!
//! A child in use (a head) must not change while it is compared with its point, so the caller stops
//! changes. How long they stop grows with what the child changed since the point was made.

use crate::checkpoint::CheckpointCause;
use crate::checkpoint::cause::Freed;
use crate::forest::{Change, ToFree};
use crate::store::Store;
use crate::walk::Root;
use kedge_base::atomic::Ordering;
use kedge_base::broken::{self, Variant};
use kedge_base::{BLOCK_SIZE, BlockNo, Error, Extent, Generation, Ino, Result};
use kedge_format::counts::CountItem;
use kedge_format::item::{BIRTH_MAX, ExtentItem};
use kedge_format::node::{NODE_BLOCKS, NODE_SIZE, NodeView};
use kedge_format::superblock::CheckpointState;
use kedge_format::trees::{TreeEntry, TreeKind};
use kedge_format::{InodeCore, ItemKind, Key};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;

/// The most extents that one cut frees: a cut stops all commits meanwhile.
const EXTENTS_AT_ONCE: usize = 4096;

/// Attempts to measure a tree while checkpoints may run. After them the measurement excludes
/// checkpoints.
const USE_ATTEMPTS: usize = 20;
/// Pause before the next attempt if a checkpoint is running.
const USE_REST: Duration = Duration::from_millis(2);

/// What [`Store::reclaim`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reclaimed {
    /// Nothing is left to free.
    Nothing,
    /// Something was freed; more may be left.
    Some,
    /// What is left can be freed only while the caller stops all changes: `quiet`.
    NeedsQuiet,
}

/// Bytes of data blocks and nodes that only this tree refers to, as of the last checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TreeUse {
    pub data: u64,
    pub nodes: u64,
}

/// A new name for a tree, set in the step that replaces the first tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renamed {
    pub root: Ino,
    pub dir: Ino,
    pub name: Vec<u8>,
    pub read_only: bool,
}

/// A run of blocks that an item of a tree owns.
struct OwnedRun {
    extent: Extent,
    birth: u32,
}

/// The runs of blocks that the items of a leaf own: extents without counts, and counts. Extents
/// with counts own nothing, so a block to which several extents refer has one owner.
fn owned_runs<'a>(view: &'a NodeView<'a>) -> impl Iterator<Item = Result<(Key, OwnedRun)>> + 'a {
    view.iter().filter_map(|(key, value)| match ItemKind::from_u8(key.kind)? {
        ItemKind::Extent => match ExtentItem::decode(value) {
            Ok(item) if item.counted => None,
            Ok(item) => Some(Ok((key, OwnedRun { extent: item.extent(), birth: item.birth }))),
            Err(e) => Some(Err(e)),
        },
        ItemKind::Count => {
            let item = CountItem::decode(key.offset, value);
            Some(item.map(|item| (key, OwnedRun { extent: item.extent(key.offset), birth: item.birth })))
        }
        _ => None,
    })
}

impl Store {
    // ----- queries -----

    /// Whether the image was ever forked.
    pub fn is_forked(&self) -> bool {
        self.forest.is_forked()
    }

    /// The entries of the table, by number. Entry 0 exists once the first tree was forked.
    pub fn trees(&self) -> BTreeMap<u32, TreeEntry> {
        self.forest.entries()
    }

    /// The numbers of the trees in use that have blocks or nodes which belong to no point.
    pub fn changed_trees(&self) -> Vec<u32> {
        self.forest.changed_heads()
    }

    /// The root inodes and names of the trees whose names are in the directory.
    pub fn trees_in(&self, dir: Ino) -> Vec<(Ino, Vec<u8>)> {
        let named = self.forest.named_in(dir).into_iter();
        named.map(|(number, name)| (Ino::ROOT.in_tree(number), name)).collect()
    }

    /// The number of trees whose names are in the directory.
    pub fn trees_named_in(&self, dir: Ino) -> u32 {
        self.forest.named_count(dir)
    }

    /// The number and the entry of the tree that the inode is in; `None` for the first tree.
    pub fn tree_of(&self, ino: Ino) -> Result<Option<(u32, TreeEntry)>> {
        let number = self.forest.tree_of(ino);
        if number == 0 {
            return Ok(None);
        }
        let entry = self.forest.entry(number).filter(|entry| entry.kind == TreeKind::Head);
        Ok(Some((number, entry.ok_or(Error::NoTree(number))?)))
    }

    /// The root inode of the tree that has this name in the directory.
    pub fn tree_named(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        self.forest.named(dir, name).map(|number| Ino::ROOT.in_tree(number))
    }

    /// Whether a directory in the tree of this inode contains the name of another tree.
    pub fn has_trees_below(&self, ino: Ino) -> bool {
        self.forest.is_forked() && self.forest.names_any(ino.tree())
    }

    /// Whether two inodes are in the same tree.
    pub fn same_tree(&self, a: Ino, b: Ino) -> bool {
        self.forest.tree_of(a) == self.forest.tree_of(b)
    }

    /// Whether the inode is the root directory of a tree that is not the first.
    pub fn is_tree_root(&self, ino: Ino) -> bool {
        self.forest.tree_of(ino) != 0 && ino.local() == Ino::ROOT
    }

    /// Whether the tree of the inode is read-only. Fails if the tree was deleted.
    pub fn check_tree(&self, ino: Ino) -> Result<bool> {
        let number = self.forest.tree_of(ino);
        if number == 0 {
            return Ok(false);
        }
        self.forest.head_is_read_only(number).ok_or(Error::NoTree(number))
    }

    /// The inode that an item means. `of`: an inode of the same tree as the item. `number`: the
    /// inode number in the item.
    pub fn named_by(&self, of: Ino, number: Ino) -> Ino {
        let tree = self.forest.tree_of(of);
        if tree == 0 { number } else { number.in_tree(tree) }
    }

    /// The inode's number as items of its own tree contain it: without the number of the tree.
    pub fn in_item(&self, ino: Ino) -> Ino {
        self.forest.in_item(ino)
    }

    /// The parent of directory `ino`, whose item gives `parent` as the parent's number.
    pub fn parent_of(&self, ino: Ino, parent: Ino) -> Ino {
        if self.is_tree_root(ino) {
            let entry = self.forest.entry(ino.tree());
            return entry.map_or(Ino::ROOT, |entry| entry.dir);
        }
        self.named_by(ino, parent)
    }

    /// The birth that an extent made now gets.
    pub fn birth(&self) -> u32 {
        self.forest.birth()
    }

    /// Extents of this inode whose birth is lower must be neither freed nor overwritten.
    pub fn births_below(&self, ino: Ino) -> u32 {
        self.forest.births_below(ino)
    }

    /// The number of orphan items of a tree other than the first.
    pub fn orphan_count(&self, tree: u32) -> u64 {
        self.forest.orphan_count(tree)
    }

    /// Passes the orphan items of a tree to `visit`, with keys as [`Key::orphan`] makes them.
    pub fn orphans(&self, tree: u32, visit: &mut dyn FnMut(Key, &[u8]) -> ControlFlow<()>) -> Result<()> {
        self.forest.orphans(tree, visit)
    }

    // ----- forks -----

    /// Forks the tree whose root is `source`, under the name `name` in `dir`. Returns the root of
    /// the fork, which is durable. The caller stops all changes meanwhile, has written everything
    /// dirty, and has checked that `dir` may get the name.
    pub fn fork(&self, source: Ino, dir: Ino, name: &[u8], read_only: bool) -> Result<Ino> {
        let source = self.forest.tree_of(source);
        self.check_forkable(source)?;
        self.settle_tree(source)?;
        let [fork, point] = self.forest.new_numbers()?;
        let (name, created) = (name.to_vec(), self.clock.now().sec);
        let change = Change::Fork { source, fork, point, dir, name, read_only, created };
        self.change_trees(&[change], &Freed::default(), 3 + self.forest.limits.count(source))?;
        Ok(Ino::ROOT.in_tree(fork))
    }

    /// Makes a read-only tree whose root directory is empty and has the attributes `core`; durable
    /// on return. Conditions as for [`Store::fork`].
    pub fn create_tree(&self, core: InodeCore, dir: Ino, name: &[u8]) -> Result<Ino> {
        self.check_forkable(0)?;
        let [number] = self.forest.new_numbers()?;
        let (name, created) = (name.to_vec(), self.clock.now().sec);
        let change = Change::Create { number, core, dir, name, created };
        self.change_trees(&[change], &Freed::default(), 3)?;
        Ok(Ino::ROOT.in_tree(number))
    }

    /// The generation of the tree's root node. The tree's first change in a generation raises it to
    /// that generation.
    pub fn root_generation(&self, root: Ino) -> Option<Generation> {
        self.forest.root_generation_of(self.forest.tree_of(root))
    }

    pub(crate) fn check_forkable(&self, source: u32) -> Result<()> {
        self.forest.member(source)?;
        let next = self.forest.first().counters.next_ino.load(Ordering::Relaxed);
        if next > 1 << Ino::LOCAL_BITS || self.forest.birth() >= BIRTH_MAX {
            return Err(Error::Unsupported("its inode numbers leave no room for those of trees".into()));
        }
        if source == 0 { self.forest.count_first_orphans() } else { Ok(()) }
    }

    /// Gives a tree another name, and makes it read-only or writable; durable on return. Conditions
    /// as for [`Store::fork`].
    pub fn name_tree(&self, root: Ino, dir: Ino, name: &[u8], read_only: bool) -> Result<()> {
        let change = Change::Name { number: root.tree(), dir, name: name.to_vec(), read_only };
        self.change_trees(&[change], &Freed::default(), 0)
    }

    /// Deletes a tree. The removal of its name is durable on return; [`Store::reclaim`] frees its
    /// space later. The caller stops all changes, and ensures that no reader is in the tree.
    pub fn delete_tree(&self, root: Ino) -> Result<()> {
        self.settle_tree(root.tree())?;
        self.change_trees(&[Change::Dying { number: root.tree() }], &Freed::default(), 0)
    }

    /// Deletes the tree `old`, and gives its name to a fork of `source`, in one step. Conditions as
    /// for [`Store::fork`] and [`Store::delete_tree`]. Returns the root of the fork.
    pub fn replace_by_fork(
        &self,
        source: Ino,
        old: Ino,
        dir: Ino,
        name: &[u8],
        read_only: bool,
    ) -> Result<Ino> {
        let (source, old) = (self.forest.tree_of(source), old.tree());
        self.check_forkable(source)?;
        self.settle_tree(source)?;
        self.settle_tree(old)?;
        let [fork, point] = self.forest.new_numbers()?;
        let (name, created) = (name.to_vec(), self.clock.now().sec);
        let named = Change::Fork { source, fork, point, dir, name, read_only, created };
        let limits = self.forest.limits.count(source);
        self.change_trees(&[Change::Dying { number: old }, named], &Freed::default(), 3 + limits)?;
        Ok(Ino::ROOT.in_tree(fork))
    }

    /// Deletes the tree `old`, and gives its name to the tree `new`, in one step. Conditions as for
    /// [`Store::delete_tree`].
    pub fn replace_by_tree(&self, new: Ino, old: Ino, dir: Ino, name: &[u8]) -> Result<()> {
        self.settle_tree(old.tree())?;
        let (number, name) = (new.tree(), name.to_vec());
        let named = Change::Name { number, dir, name, read_only: false };
        self.change_trees(&[Change::Dying { number: old.tree() }, named], &Freed::default(), 0)
    }

    /// Replaces the contents of the first tree by a fork of `source`, in one step. With `moves` the
    /// first tree takes over `source` itself, which then no longer exists. `names`: trees that get
    /// other names in the same step. Returns the number of the dying tree with the former contents.
    /// Conditions as for [`Store::fork`] and [`Store::delete_tree`].
    ///
    /// The first tree keeps its number, because the superblock names its root, and its table entry
    /// has its marks as before. So the replacement needs no change of the format: the cut gives the
    /// first tree the root of the source, and gives the former contents a new number and a dying
    /// entry.
    pub fn replace_first(&self, source: Ino, moves: bool, names: &[Renamed]) -> Result<u32> {
        let number = self.forest.tree_of(source);
        self.check_forkable(number)?;
        self.forest.count_first_orphans()?;
        self.settle_tree(number)?;
        self.settle_tree(0)?;
        // After this checkpoint the root of the source is on the device.
        self.checkpoint(CheckpointCause::Request)?;
        self.forest.prepare_first(number)?;
        let [old, point] = self.forest.new_numbers()?;
        let created = self.clock.now().sec;
        let mut changes = vec![Change::First { source: number, old, point, created }];
        if moves {
            changes.push(Change::Dying { number });
        }
        let renamed = names.iter().map(|to| Change::Name {
            number: to.root.tree(),
            dir: to.dir,
            name: to.name.clone(),
            read_only: to.read_only,
        });
        let more = 3 + self.forest.limits.count(number);
        // Broken on purpose: names and root change in two steps. A crash in between leaves names in
        // directories that do not exist.
        if broken::is(Variant::NamesAfterRoot) {
            self.change_trees(&changes, &Freed::default(), more)?;
            self.change_trees(&renamed.collect::<Vec<_>>(), &Freed::default(), 0)?;
            return Ok(old);
        }
        changes.extend(renamed);
        self.change_trees(&changes, &Freed::default(), more)?;
        Ok(old)
    }

    /// The number of the dying tree with the former contents of the first tree; 0 if the first tree
    /// was not replaced since the image was opened.
    pub fn replaced_first(&self) -> u32 {
        self.forest.replaced()
    }

    /// Whether `tree` has not changed since `fork` was forked from it, directly or through other
    /// trees. The caller has written everything dirty.
    pub fn is_as_forked(&self, tree: Ino, fork: Ino) -> bool {
        self.forest.is_as_forked(self.forest.tree_of(tree), self.forest.tree_of(fork))
    }

    /// Writes log-resident data of the tree in place. Otherwise recovery would replay records below
    /// the cut into a tree that does not have the inode, or into only one of two trees that have
    /// it.
    pub(crate) fn settle_tree(&self, number: u32) -> Result<()> {
        let resident = || self.resident_inodes().iter().any(|ino| self.forest.tree_of(*ino) == number);
        if resident() {
            self.checkpoint(CheckpointCause::Request)?;
        }
        if resident() {
            return Err(Error::Busy("the tree, of which the log holds data that cannot be written,".into()));
        }
        Ok(())
    }

    /// Writes the cut of a deferred checkpoint, if there is one: before a tree is read from the
    /// device, the nodes that its entry names must be there. Any cut may have given new roots to
    /// entries, not only one that changes the table.
    pub(crate) fn write_deferred(&self) -> Result<()> {
        if self.checkpoint.has_deferred() || self.forest.is_unwritten() {
            self.checkpoint(CheckpointCause::Request)
        } else {
            Ok(())
        }
    }

    // ----- freeing -----

    /// Frees one batch of the space of deleted trees. `quiet`: the caller stops all changes, and
    /// nothing is dirty.
    pub fn reclaim(&self, quiet: bool) -> Result<Reclaimed> {
        if !self.forest.is_forked() || self.read_only {
            return Ok(Reclaimed::Nothing);
        }
        self.write_deferred()?;
        match self.forest.to_free(quiet) {
            ToFree::Nothing => return Ok(Reclaimed::Nothing),
            ToFree::NeedsQuiet => return Ok(Reclaimed::NeedsQuiet),
            ToFree::Tree(number, entry) => self.free_part(number, &entry)?,
            ToFree::Point(number) => {
                self.change_trees(&[Change::Dying { number }], &Freed::default(), 0)?;
            }
            ToFree::Merge((point, entry), (heir, heir_entry)) => {
                self.merge((point, &entry), (heir, &heir_entry))?;
            }
        }
        Ok(Reclaimed::Some)
    }

    /// Whether [`Store::reclaim`] has anything to free, possibly only with `quiet`.
    pub fn has_work_for_reclaim(&self) -> bool {
        !self.forest.is_all_in_use()
    }

    pub(crate) fn root_of(&self, number: u32, entry: &TreeEntry) -> Root {
        if number == 0 {
            let (addr, generation, level) = self.forest.first().tree.root();
            return Root { addr, generation, level };
        }
        Root { addr: entry.root, generation: entry.root_generation, level: entry.root_level }
    }

    /// Frees a batch of extents of a dying tree. If none are left, frees its nodes and its entry.
    fn free_part(&self, number: u32, entry: &TreeEntry) -> Result<()> {
        let root = self.root_of(number, entry);
        let mut freed = Freed::default();
        let mut next = None;
        self.walk(
            root,
            &mut |node, high| {
                let done = high.is_some_and(|high| high <= entry.freed_below);
                node.generation >= entry.nodes_below && !done
            },
            &mut |view| {
                for owned in owned_runs(view) {
                    let (key, run) = owned?;
                    if key < entry.freed_below || run.birth < entry.births_below {
                        continue;
                    }
                    if freed.extents.len() >= EXTENTS_AT_ONCE {
                        next = Some(key);
                        return Ok(ControlFlow::Break(()));
                    }
                    freed.extents.push(run.extent);
                }
                Ok(ControlFlow::Continue(()))
            },
        )?;
        if let Some(key) = next {
            return self.change_trees(&[Change::FreedBelow { number, key }], &freed, 0);
        }
        let mut enters = |node: kedge_format::node::Child, _| {
            let own = node.generation >= entry.nodes_below;
            freed.nodes.extend(own.then_some((node.addr, node.generation)));
            own
        };
        self.walk(root, &mut enters, &mut |_| Ok(ControlFlow::Continue(())))?;
        self.change_trees(&[Change::Drop { number }], &freed, 0)
    }

    /// Frees what a point has and its one child (`heir`) does not refer to. The child takes over
    /// the rest.
    fn merge(&self, (point, entry): (u32, &TreeEntry), (heir, heir_entry): (u32, &TreeEntry)) -> Result<()> {
        // After this checkpoint the nodes of the heir are on the device, and its entry names its
        // root.
        self.checkpoint(CheckpointCause::Request)?;
        let current = self.forest.entry(heir).ok_or(Error::NoTree(heir))?;
        let root = self.root_of(heir, &current);
        let mut shared: BTreeSet<BlockNo> = BTreeSet::new();
        let mut kept: BTreeMap<u64, u64> = BTreeMap::new();
        self.walk(
            root,
            &mut |node, _| {
                let own = node.generation >= heir_entry.nodes_below;
                if !own {
                    shared.insert(node.addr);
                }
                own
            },
            &mut |view| {
                for owned in owned_runs(view) {
                    let run = owned?.1;
                    if (entry.births_below..heir_entry.births_below).contains(&run.birth) {
                        kept.insert(run.extent.start.0, run.extent.end().0);
                    }
                }
                Ok(ControlFlow::Continue(()))
            },
        )?;
        let mut freed = Freed::default();
        let mut nodes = Vec::new();
        self.walk(
            self.root_of(point, entry),
            &mut |node, _| {
                let gone = node.generation >= entry.nodes_below && !shared.contains(&node.addr);
                nodes.extend(gone.then_some((node.addr, node.generation)));
                gone
            },
            &mut |view| {
                for owned in owned_runs(view) {
                    let run = owned?.1;
                    if run.birth >= entry.births_below {
                        subtract(run.extent, &kept, &mut freed.extents);
                    }
                }
                Ok(ControlFlow::Continue(()))
            },
        )?;
        freed.nodes = nodes;
        // Broken on purpose: what the child does not take over is not freed.
        if broken::is(Variant::DeadListLost) {
            freed = Freed::default();
        }
        self.change_trees(&[Change::Drop { number: point }], &freed, 0)
    }

    /// The points, and the trees being freed, that own blocks or nodes at or after `end`, and the
    /// end of the last of these. Such blocks cannot move, because a point does not change. Reads
    /// all nodes that points and trees being freed own. The caller excludes forks and
    /// [`Store::reclaim`] meanwhile.
    pub fn points_beyond(&self, end: BlockNo) -> Result<(BTreeSet<u32>, BlockNo)> {
        self.write_deferred()?;
        let (mut found, mut last) = (BTreeSet::new(), end);
        for (number, entry) in self.forest.entries() {
            if entry.kind == TreeKind::Head {
                continue;
            }
            let reaches = self.reaches(&entry)?;
            if reaches > end {
                found.insert(number);
                last = last.max(reaches);
            }
        }
        Ok((found, last))
    }

    /// The end of the last node or block that this entry, a point or a tree being freed, owns.
    fn reaches(&self, entry: &TreeEntry) -> Result<BlockNo> {
        let (mut nodes, mut blocks) = (BlockNo(0), BlockNo(0));
        let root = Root { addr: entry.root, generation: entry.root_generation, level: entry.root_level };
        self.walk(
            root,
            &mut |node, _| {
                let own = node.generation >= entry.nodes_below;
                if own {
                    nodes = nodes.max(BlockNo(node.addr.0 + NODE_BLOCKS));
                }
                own
            },
            &mut |view| {
                for owned in owned_runs(view) {
                    let (key, run) = owned?;
                    if key >= entry.freed_below && run.birth >= entry.births_below {
                        blocks = blocks.max(run.extent.end());
                    }
                }
                Ok(ControlFlow::Continue(()))
            },
        )?;
        Ok(nodes.max(blocks))
    }

    /// The space that only this tree refers to, as of the last checkpoint. Reads the nodes that the
    /// tree does not share.
    ///
    /// The nodes of a checkpoint stay as they are until the next one ends. So a walk is valid if no
    /// checkpoint ran meanwhile. After some invalid walks the last one excludes checkpoints.
    pub fn tree_use(&self, root: Ino) -> Result<TreeUse> {
        self.write_deferred()?;
        for _ in 0..USE_ATTEMPTS {
            let turn = self.checkpoint_turn();
            if !turn.is_multiple_of(2) {
                self.clock.sleep(USE_REST);
                continue;
            }
            let counted = self.count_use(root);
            if !self.checkpoint_ran_since(turn) {
                return counted;
            }
        }
        let _alone = self.checkpoint.alone(CheckpointCause::Request);
        self.count_use(root)
    }

    /// One walk of [`Store::tree_use`]. Valid if no checkpoint runs meanwhile.
    fn count_use(&self, root: Ino) -> Result<TreeUse> {
        let number = self.forest.tree_of(root);
        let Some(entry) = self.forest.entry(number) else { return Ok(TreeUse::default()) };
        let root = match number {
            // The root in memory may not be on the device yet, so the root comes from the
            // superblock.
            0 => {
                let (sb, _) = crate::read_superblock(&*self.device)?;
                let CheckpointState { root, root_generation, root_level, .. } = sb.checkpoint;
                Root { addr: root, generation: root_generation, level: root_level }
            }
            _ => self.root_of(number, &entry),
        };
        let (mut data, mut nodes) = (0, 0);
        self.walk(
            root,
            &mut |node, _| {
                let own = node.generation >= entry.nodes_below;
                nodes += u64::from(own) * NODE_SIZE as u64;
                own
            },
            &mut |view| {
                for owned in owned_runs(view) {
                    let run = owned?.1;
                    if run.birth >= entry.births_below {
                        data += run.extent.blocks * BLOCK_SIZE as u64;
                    }
                }
                Ok(ControlFlow::Continue(()))
            },
        )?;
        Ok(TreeUse { data, nodes })
    }
}

/// Adds to `out` the parts of `extent` outside of the runs in `kept`, which are disjoint.
fn subtract(extent: Extent, kept: &BTreeMap<u64, u64>, out: &mut Vec<Extent>) {
    let (mut at, end) = (extent.start.0, extent.end().0);
    let first = kept.range(..=at).next_back().map_or(at, |(start, _)| *start);
    for (start, stop) in kept.range(first..end) {
        if *stop <= at {
            continue;
        }
        if *start > at {
            out.push(Extent::new(BlockNo(at), start - at));
        }
        at = *stop;
    }
    if at < end {
        out.push(Extent::new(BlockNo(at), end - at));
    }
}

#[cfg(test)]
mod tests {
    use super::subtract;
    use kedge_base::{BlockNo, Extent};
    use std::collections::BTreeMap;

    #[test]
    fn what_is_kept_is_not_freed() {
        let kept = BTreeMap::from([(10, 12), (15, 16), (19, 30)]);
        let parts = |start, blocks| {
            let mut out = Vec::new();
            subtract(Extent::new(BlockNo(start), blocks), &kept, &mut out);
            out.iter().map(|extent| (extent.start.0, extent.blocks)).collect::<Vec<_>>()
        };
        assert_eq!(parts(0, 5), [(0, 5)]);
        assert_eq!(parts(8, 12), [(8, 2), (12, 3), (16, 3)]);
        assert_eq!(parts(11, 1), []);
        assert_eq!(parts(11, 3), [(12, 2)]);
        assert_eq!(parts(20, 5), []);
        assert_eq!(parts(25, 10), [(30, 5)]);
    }
}
