//! Repairs an image with several trees ([`kedge_format::trees`]).
//!
//! # In two walks over all trees, each point before the trees below it
//! 1. *Survey.* Collects claims: each extent and count is claimed by the tree itself or, if its
//!    birth says so, for a point above the tree. The marks of the trees below a point are
//!    corrected, so that they are above everything that the point has.
//! 2. *Repair.* Each tree is repaired like the only tree of an image, and keeps only blocks that
//!    are its own or that a point above it has ([`super::claims`]). A tree without changes stays.
//!    Others get new inner nodes and new leaves. Leaves whose items all stay are kept, so damage in
//!    a leaf that many trees share costs each of them its inner nodes and this leaf.
//!
//! # Why no block in use becomes free
//! - A block belongs to the first tree that claims it in the second walk. No other tree gets it,
//!   except trees below a point that owns it.
//! - A tree has a point's block with the birth that it has in the point. So the tree neither frees
//!   nor overwrites the block. And if the point is merged into the tree, the engine recognises the
//!   block as one that stays.
//! - A tree keeps only those blocks and nodes of points that the nearest point above it also has,
//!   owned or shared. When a point is merged into the point below it, the engine frees what that
//!   one does not have, without considering the trees further down.
//! - A block that trees share, but that a point above them has lost, is *adopted*: each point up to
//!   the block's owner gets an unlinked file that has it. The block is freed with its owner.
//!
//! # Why no free block is lost
//! The bitmaps are made from what the trees own after the repair. A block that no tree reaches
//! becomes free.
//!
//! Leaves below an unreadable inner node are not searched for: a leaf does not say to which tree it
//! belongs.

use super::claims::{Claims, Scene};
use super::commit::New;
use super::done::{RepairKind, Repairs};
use super::limits::{Limits, of_tree};
use super::plan::{Around, Plan, plan};
use super::rebuild::{Builder, Built, Places, Rebuild, Root};
use super::source::Source;
use super::survey::{self, Claim};
use super::table::{Table, is_head};
use super::{Job, RepairMode, gather};
use crate::Progress;
use crate::forest::{read_table, superblock_of};
use crate::items::Own;
use crate::limits::Entries;
use crate::owned::Owned;
use crate::read::Reader;
use crate::report::{At, Findings};
use crate::space::claim_format_areas;
use crate::tree::NodeRef;
use crate::way::{Step, Way};
use kedge_base::{BlockNo, Error, Extent, Generation, Ino, Result};
use kedge_format::alloc::GROUP_BLOCKS;
use kedge_format::item::{NAME_MAX, SLOT_ORDINALS, name_slot};
use kedge_format::node::NODE_BLOCKS;
use kedge_format::superblock::{Superblock, TableState};
use kedge_format::trees::{TreeEntry, key};
use kedge_format::{Key, limits};
use std::collections::{BTreeMap, BTreeSet};

/// Extents with their births.
type Dated = Vec<(Extent, u32)>;

struct Forest<'a, 'd> {
    job: &'a Job<'d>,
    source: &'a Source,
    generation: Generation,
    table: Table,
    limits: Entries,
    /// Blocks of the format's areas and of all readable nodes.
    base: Owned,
    /// Blocks that trees claim as their own.
    claimed: Owned,
    /// Extents that trees claim for a point, by point. Those that no tree claims as its own are
    /// adopted.
    foundlings: BTreeMap<u32, Dated>,
    /// Nodes and data of the trees repaired so far.
    used: Owned,
    /// Blocks of `used` that the source has, so that they may have to be carried over.
    carry: Owned,
    /// The blocks and nodes that the points above the present tree have after their repair.
    above: Way,
    places: Places,
    /// By tree, the directories that contain names of other trees, each with the tree of that name.
    homes: BTreeMap<u32, Vec<(u64, u32)>>,
    /// A directory for trees that need a name, and the slots of the names in it.
    refuge: (Ino, BTreeSet<u64>),
    first: Option<(Root, u64, u64)>,
}

/// The readable nodes of a tree.
pub(super) struct Readable {
    pub leaves: Vec<NodeRef>,
    /// Blocks of the nodes.
    pub nodes: Owned,
    /// The nodes that the tree owns.
    pub own: Owned,
    pub is_whole: bool,
}

impl Job<'_> {
    /// Computes the new checkpoint of an image with several trees, and writes the nodes that
    /// change. No new node is written to the blocks in `taken`. Returns `None` if a repair is
    /// needed that preening may not make.
    pub(super) fn repair_forest(
        &self,
        source: &Source,
        taken: Owned,
        spared: Option<Owned>,
        generation: Generation,
        repairs: &mut Repairs,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Option<New>> {
        let (sb, groups) = (&source.sb, source.sb.geometry.groups());
        let mut reader = Reader::new(&*source.device);
        let findings = Findings::new(self.options.check.findings_max.max(64));
        let (entries, limits, mut state) = read_table(sb, &mut reader, findings, progress);
        for finding in state.findings.kept_mut() {
            repairs
                .add(RepairKind::TreeDropped, At::default(), || format!("table of trees: {}", finding.what));
        }
        let table = Table::settle(entries, sb, repairs);
        let mut base = Owned::new(groups);
        claim_format_areas(sb, &mut base);
        let mut homes: BTreeMap<u32, Vec<(u64, u32)>> = BTreeMap::new();
        for (number, entry) in table.entries.iter().filter(|(_, entry)| entry.dir.0 != 0) {
            homes.entry(entry.dir.tree()).or_default().push((entry.dir.local().0, *number));
        }
        let mut forest = Forest {
            job: self,
            source,
            generation,
            table,
            limits,
            base,
            claimed: Owned::new(groups),
            foundlings: BTreeMap::new(),
            used: Owned::new(groups),
            carry: Owned::new(groups),
            above: Way::new(groups),
            places: Places::new(&sb.geometry, taken, spared),
            homes,
            refuge: (Ino::ROOT, BTreeSet::new()),
            first: None,
        };
        forest.survey(&mut reader, repairs, progress)?;
        forest.places.avoid(&forest.base);
        forest.places.avoid(&forest.claimed);
        for step in forest.table.steps() {
            match step {
                Step::Enter(number) => {
                    repairs.of = if number == 0 { String::new() } else { format!("tree {number}: ") };
                    let done = forest.tree(number, &mut reader, repairs, progress)?;
                    repairs.of.clear();
                    if !done {
                        return Ok(None);
                    }
                }
                Step::Leave(number) => {
                    if !is_head(&forest.table.entries[&number]) {
                        forest.above.leave();
                    }
                }
            }
        }
        forest.finish(repairs).map(Some)
    }
}

impl Forest<'_, '_> {
    fn superblock(&self, number: u32) -> Superblock {
        match number {
            0 => self.source.sb.clone(),
            _ => superblock_of(&self.source.sb, &self.table.entries[&number]),
        }
    }

    fn readable(
        &self,
        number: u32,
        reader: &mut Reader,
        repairs: &mut Repairs,
        progress: &mut dyn FnMut(Progress),
    ) -> Readable {
        let groups = self.source.sb.geometry.groups();
        let entry = &self.table.entries[&number];
        let own = Own {
            nodes_below: entry.nodes_below,
            births_below: entry.births_below,
            freed_below: Key::MIN,
            blocks: Owned::new(groups),
            shared: None,
        };
        if self.table.lost.contains(&number) {
            let (nodes, own) = (Owned::new(groups), own.blocks);
            return Readable { leaves: Vec::new(), nodes, own, is_whole: false };
        }
        self.job.readable(&self.superblock(number), self.source, Some(own), reader, repairs, progress)
    }

    /// Collects claims and corrects marks: the first walk.
    fn survey(
        &mut self,
        reader: &mut Reader,
        repairs: &mut Repairs,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        self.table.set_first_marks(repairs);
        let mut above = Way::new(self.source.sb.geometry.groups());
        for step in self.table.steps() {
            match step {
                Step::Enter(number) => self.survey_tree(number, &mut above, reader, repairs, progress)?,
                Step::Leave(number) if !is_head(&self.table.entries[&number]) => above.leave(),
                Step::Leave(_) => {}
            }
        }
        Ok(())
    }

    fn survey_tree(
        &mut self,
        number: u32,
        above: &mut Way,
        reader: &mut Reader,
        repairs: &mut Repairs,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let tree = self.readable(number, reader, &mut Repairs::new(0), progress);
        self.base.add(&tree.nodes);
        let entry = self.table.entries[&number].clone();
        let is_point = !is_head(&entry);
        // The marks must be above everything that the point has. Only what was read counts, because
        // the entry may be damaged. If the tree has damage, none of its inner nodes is kept, and
        // nodes that the repair makes are never below the marks.
        let root = tree.is_whole.then_some(entry.root_generation);
        let read = tree.leaves.iter().map(|leaf| leaf.generation).chain(root).max();
        let nodes = read.map_or(Generation(0), Generation::next).max(entry.nodes_below).min(self.generation);
        let mut leaves = tree.leaves;
        // A leaf that the point above also has was surveyed there. For a point, all leaves are
        // needed, because the trees below are compared with all that it has.
        let is_own = |leaf: &NodeRef| leaf.generation >= entry.nodes_below;
        leaves.retain(|leaf| is_point || is_own(leaf) || !above.nodes.contains(&leaf.block.0));
        let mut births = entry.births_below + 1;
        let (mut shared, mut data) = (Dated::new(), Owned::new(self.source.sb.geometry.groups()));
        let (source, birth_max, claimed) = (self.source, self.table.birth, &mut self.claimed);
        survey::claims(source, reader, &leaves, |_, claim: Claim| {
            // A count item claims nothing by itself: without extents it is dropped.
            let Claim::Extent(item) = claim else { return };
            let (extent, birth) = (item.extent(), item.birth);
            if is_point {
                data.claim(extent.start, extent.blocks);
            }
            if birth < entry.births_below {
                if !above.covers(extent) {
                    shared.push((extent, birth));
                }
                return;
            }
            if birth <= birth_max {
                births = births.max(birth + 1);
            }
            claimed.claim(extent.start, extent.blocks);
        })?;
        for (extent, birth) in shared {
            for point in self.table.points_up_to(number, birth) {
                self.foundlings.entry(point).or_default().push((extent, birth));
            }
        }
        if is_point {
            self.table.set_marks(number, (births, nodes), self.generation, repairs);
            let data = data.runs().into_iter().map(|(start, blocks)| (Extent::new(start, blocks), 0));
            above.enter(data, starts(&tree.nodes));
        }
        Ok(())
    }

    /// Repairs one tree. Returns false if a repair is needed that preening may not make.
    fn tree(
        &mut self,
        number: u32,
        reader: &mut Reader,
        repairs: &mut Repairs,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<bool> {
        let sb = self.superblock(number);
        let (groups, has_counts) = (sb.geometry.groups(), sb.geometry.has_clones());
        let before = repairs.changes();
        let foundlings = self.foundlings.remove(&number).unwrap_or_default();
        let entry = self.table.entries[&number].clone();
        let tree = self.readable(number, reader, repairs, progress);
        let marks = match has_counts {
            true => Some(survey::marks(self.source, reader, &tree.leaves)?),
            false => None,
        };
        let below = self
            .table
            .below(number)
            .first()
            .filter(|_| number != 0)
            .map(|n| self.table.entries[n].births_below);
        let births = (entry.births_below, below.map_or(self.table.birth, |below| below - 1));
        let scene = Scene {
            suspect: self.source.suspect(),
            above: &self.above.data,
            others: Some(&self.used),
            births,
            has_counts,
            owed: marks.as_ref().map(|marks| &marks.owed),
            plain: marks.as_ref().map(|marks| &marks.plain),
        };
        let claims = Claims::new(scene, self.base.clone(), groups);
        let is_point = !is_head(&entry);
        let (gathered, mut had) =
            gather::gather(self.source, reader, &tree.leaves, claims.clone(), is_point, repairs, progress)?;
        let adopted = self.adopted(foundlings, births, &mut had.owned);
        let of_tree = of_tree(&self.limits, number);
        let limits = match sb.geometry.has_limits() {
            false => Limits::None,
            true if is_point => Limits::Point,
            true => Limits::Of(&of_tree),
        };
        let around = Around { limits, adopted: &adopted, now: self.job.options.clock.now() };
        let plan = plan(&sb, gathered, &around, repairs)?;
        if self.job.options.mode == RepairMode::Preen && (repairs.has_unsafe() || plan.changes_names()) {
            return Ok(false);
        }
        let stays = tree.is_whole
            && !plan.changes_names()
            && plan.added.is_empty()
            && repairs.changes() == before
            && tree.own.shared_with(&self.used).is_empty()
            && self.is_above(&tree);
        let own_node = |leaf: &NodeRef| leaf.generation >= entry.nodes_below;
        let built = if stays {
            let (block, generation, level) = match number {
                0 => (sb.checkpoint.root, sb.checkpoint.root_generation, sb.checkpoint.root_level),
                _ => (entry.root, entry.root_generation, entry.root_level),
            };
            let nodes = tree.nodes.used() / NODE_BLOCKS;
            Built { root: Root { block, generation, level, nodes }, new: Vec::new(), kept: Vec::new() }
        } else {
            let keeps = |leaf: &NodeRef| match own_node(leaf) {
                true => self.used.is_free(leaf.block, NODE_BLOCKS),
                false => self.above.nodes.contains(&leaf.block.0),
            };
            let device = &**self.job.device;
            let mut builder = Builder::new(device, &sb.geometry, self.generation, &mut self.places);
            let rebuild =
                Rebuild { source: self.source, leaves: &tree.leaves, plan: &plan, repairs, keeps: &keeps };
            rebuild.run(reader, claims, &mut builder, progress)?;
            let built = builder.finish()?;
            repairs.add(RepairKind::TreeRewritten, At::block(built.root.block), || {
                format!("{} nodes, {} levels", built.root.nodes, built.root.level + 1)
            });
            built
        };
        let mut own = had.owned;
        own.remove(&self.base);
        own.remove(&self.above.owned);
        if stays {
            own.add(&tree.own);
        }
        built
            .kept
            .iter()
            .filter(|leaf| own_node(leaf))
            .for_each(|leaf| drop(own.claim(leaf.block, NODE_BLOCKS)));
        self.carry.add(&own);
        built.new.iter().for_each(|node| drop(own.claim(*node, NODE_BLOCKS)));
        self.used.add(&own);
        if is_point {
            let counts = plan.count_items.iter().map(|(start, item)| (item.extent(*start), item.birth));
            let data = plan.gathered.data.iter().flatten().copied().chain(counts).chain(adopted);
            let nodes = match stays {
                true => starts(&tree.nodes),
                false => built.kept.iter().map(|leaf| leaf.block.0).collect(),
            };
            self.above.enter(data, nodes);
        }
        self.note(number, &plan, built.root);
        Ok(true)
    }

    /// Whether the nearest point has all nodes of the tree that the tree does not own.
    fn is_above(&self, tree: &Readable) -> bool {
        let mut rest = tree.nodes.clone();
        rest.remove(&tree.own);
        starts(&rest).is_subset(&self.above.nodes)
    }

    /// Returns the extents that a point adopts, cut to sizes that the format allows. Adds their
    /// blocks to `owned`.
    fn adopted(&self, foundlings: Dated, births: (u32, u32), owned: &mut Owned) -> Dated {
        let mut adopted = Dated::new();
        for (extent, birth) in foundlings {
            for block in extent.start.0..extent.end().0 {
                let at = BlockNo(block);
                let is_free = |owned: &Owned| owned.is_free(at, 1);
                let nobodys = is_free(&self.claimed)
                    && is_free(&self.used)
                    && self.source.suspect().is_none_or(is_free)
                    && (births.0..=births.1).contains(&birth);
                let of_point = self.above.data.at(block).map(|(_, birth)| birth);
                let Some(birth) = of_point.or(nobodys.then_some(birth)).filter(|_| is_free(owned)) else {
                    continue;
                };
                owned.claim(at, 1);
                match adopted.last_mut() {
                    Some((last, of)) if last.end() == at && *of == birth && block % GROUP_BLOCKS != 0 => {
                        last.blocks += 1;
                    }
                    _ => adopted.push((Extent::new(at, 1), birth)),
                }
            }
        }
        adopted
    }

    /// Writes the result of a tree's repair into the table.
    fn note(&mut self, number: u32, plan: &Plan<'_>, root: Root) {
        for (dir, named) in self.homes.remove(&number).unwrap_or_default() {
            if !plan.inode(dir).is_some_and(|inode| inode.is_dir()) {
                self.table.homeless.insert(named);
            }
        }
        let entry = self.table.entries.get_mut(&number).expect("a tree of the table");
        let highest = 1 << Ino::LOCAL_BITS;
        if number == 0 {
            self.first = Some((root, plan.next_ino.min(highest), plan.inodes));
            let dir = plan.refuge();
            let names = plan.gathered.names.iter().filter(|name| name.dir == dir.0);
            self.refuge = (dir, names.map(|name| name.slot / SLOT_ORDINALS * SLOT_ORDINALS).collect());
        } else {
            (entry.root, entry.root_generation, entry.root_level) = (root.block, root.generation, root.level);
            (entry.nodes, entry.inodes) = (root.nodes, plan.inodes);
            (entry.next_ino, entry.orphans) = (plan.next_ino.min(highest), plan.orphan_items);
        }
        if is_head(entry) {
            self.limits.retain(|(tree, _), _| *tree != number);
            self.limits.extend(plan.limits.iter().map(|(limit, entry)| ((number, *limit), *entry)));
        }
    }

    /// Names the trees that have no valid name.
    fn rename(&mut self, repairs: &mut Repairs) {
        let (dir, slots) = &mut self.refuge;
        let seed = &self.source.sb.geometry.hash_seed;
        for number in &self.table.homeless {
            let Some(entry) = self.table.entries.get_mut(number) else { continue };
            let names = (0..u64::MAX).map(|n| match n {
                0 => format!("#tree-{number}"),
                n => format!("#tree-{number}.{n}"),
            });
            let free =
                |name: &String| name.len() <= NAME_MAX && slots.insert(name_slot(seed, name.as_bytes()));
            let Some(name) = names.into_iter().find(free) else { continue };
            repairs.add(RepairKind::TreeCorrected, At::ino(dir.0), || {
                format!("tree {number}, \"{}\", is now \"{name}\" there", entry.name.escape_ascii())
            });
            (entry.dir, entry.name) = (*dir, name.into_bytes());
        }
    }

    /// Writes the table, and returns the new checkpoint.
    fn finish(mut self, repairs: &mut Repairs) -> Result<New> {
        self.rename(repairs);
        let geometry = &self.source.sb.geometry;
        let heads: BTreeSet<u32> = self
            .table
            .entries
            .iter()
            .filter(|(_, entry)| is_head(entry))
            .map(|(number, _)| *number)
            .collect();
        for ((tree, number), _) in self.limits.iter().filter(|((tree, _), _)| !heads.contains(tree)) {
            repairs.add(RepairKind::LimitDropped, At::default(), || {
                format!("limit {number}: its tree, {tree}, is not there")
            });
        }
        let mut items: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
        items.extend(
            self.table
                .entries
                .iter()
                .map(|(number, entry): (&u32, &TreeEntry)| (key(*number), entry.encode())),
        );
        let of_heads = self.limits.iter().filter(|((tree, _), _)| heads.contains(tree));
        items.extend(
            of_heads.map(|((tree, number), entry)| (limits::key(*tree, *number), entry.encode().to_vec())),
        );
        let mut builder = Builder::new(&**self.job.device, geometry, self.generation, &mut self.places);
        items.iter().try_for_each(|(key, value)| builder.item(*key, value))?;
        let table = builder.finish()?;
        let (root, next_ino, inodes) = self.first.ok_or_else(|| Error::invalid("an image without trees"))?;
        let mut owned = self.used;
        claim_format_areas(&self.source.sb, &mut owned);
        table.new.iter().for_each(|node| drop(owned.claim(*node, NODE_BLOCKS)));
        let trees = Some(TableState {
            root: table.root.block,
            root_generation: table.root.generation,
            root_level: table.root.level,
            nodes: table.root.nodes,
            birth: self.table.birth,
        });
        let (generation, carry) = (self.generation, self.carry);
        Ok(New { generation, root, owned, carry, next_ino, inodes, trees })
    }
}

/// The first blocks of the nodes in these blocks.
fn starts(nodes: &Owned) -> BTreeSet<u64> {
    let of_run = |(start, blocks): (BlockNo, u64)| (start.0..start.0 + blocks).step_by(NODE_BLOCKS as usize);
    nodes.runs().into_iter().flat_map(of_run).collect()
}
