//! The check of an image with several trees: see [`kedge_format::trees`].
//!
//! Each tree and each point is checked like the only tree of an image, so shared nodes and blocks
//! are read once for each tree that shares them. Then the trees are compared:
//! - No block is owned by two trees or points, and every block in use is owned by one of them. So
//!   no tree can free or overwrite another's block, and for every block in use there is a tree that
//!   will free it.
//! - Every block that a tree uses and does not own is used by its point too, with the same birth.
//!   So the block stays as long as the tree exists: the engine frees what a point owns when no tree
//!   below needs it, and for that compares a tree only with the nearest point.

use crate::data::DataCheck;
use crate::items::{Own, Shared, State};
use crate::kinds::FindingKind;
use crate::limits;
use crate::one_tree::{finish, judge_tree};
use crate::owned::Owned;
use crate::read::Reader;
use crate::report::{At, Counters, Findings};
use crate::tree::{self, NodeRef};
use crate::way::{Step, Way, is_head, point_of, steps};
use crate::{Progress, paths};
use kedge_base::{BlockNo, Generation, Ino};
use kedge_format::limits::{LimitEntry, number_of as limit_of};
use kedge_format::node::NODE_BLOCKS;
use kedge_format::superblock::{CheckpointState, Superblock};
use kedge_format::trees::{TreeEntry, TreeKind, number_of};
use kedge_format::{FileKind, Key};
use std::collections::{BTreeMap, BTreeSet};

/// Checks the trees, and returns one state with the findings and blocks of all of them.
pub(crate) fn judge(
    sb: &Superblock,
    reader: &mut Reader,
    findings: Findings,
    mut data: Option<&mut DataCheck>,
    progress: &mut dyn FnMut(Progress),
) -> State {
    let groups = sb.geometry.groups();
    let (entries, limits, mut all) = read_table(sb, reader, findings, progress);
    check_entries(&entries, sb, &mut all.findings);
    limits::check_entries(&limits, &entries, At::block(sb.block()), &mut all.findings);
    let homes = homes(&entries);
    let mut own = all.owned.clone();
    let mut way = Way::new(groups);
    let mut steps = steps(&entries);
    // Entries outside the order (below a circle of points) are checked individually. The table has
    // findings about them already.
    let in_order: BTreeSet<u32> = steps.iter().map(|step| step.tree()).collect();
    let others = entries.keys().copied().chain([0]).filter(|number| !in_order.contains(number));
    steps.extend(others.collect::<BTreeSet<u32>>().into_iter().map(Step::Enter));
    for step in steps {
        let number = step.tree();
        let entry = entries.get(&number);
        let in_use = entry.is_none_or(is_head);
        if let Step::Leave(_) = step {
            if !in_use {
                way.leave();
            }
            continue;
        }
        let of_tree = if number == 0 { sb.clone() } else { superblock_of(sb, entry.expect("it has one")) };
        let marks = Own {
            nodes_below: entry.map_or(Generation(0), |entry| entry.nodes_below),
            births_below: entry.map_or(0, |entry| entry.births_below),
            // Only a tree that is being deleted has freed some of its extents.
            freed_below: entry
                .filter(|entry| entry.kind == TreeKind::Dying)
                .map_or(Key::MIN, |entry| entry.freed_below),
            blocks: Owned::new(groups),
            shared: entry.map(|entry| Shared { of_point: !is_head(entry), ..Shared::default() }),
        };
        let mut state =
            judge_tree(&of_tree, reader, all.findings.empty(), Some(marks), data.as_deref_mut(), progress);
        let marks = state.own.take().expect("just set");
        for (start, blocks) in marks.blocks.shared_with(&own) {
            state.findings.add(FindingKind::TreesShare, At::block(start), || {
                format!("{blocks} blocks that tree {number} has for its own are another tree's as well")
            });
        }
        if let Some(entry) = entry.filter(|_| number != 0 && state.lost.is_empty())
            && entry.kind == TreeKind::Head
            && entry.orphans != state.counters.orphans
        {
            state.findings.add(FindingKind::TreesBad, At::block(BlockNo(sb.block().0)), || {
                format!("{} orphans are counted, the tree has {}", entry.orphans, state.counters.orphans)
            });
        }
        if sb.geometry.has_limits() && in_use && state.lost.is_empty() {
            limits::compare(&limits, number, &state.tally, At::block(sb.block()), &mut state.findings);
        }
        if in_use {
            check_homes(homes.get(&number), &state, sb, &mut all.findings);
        }
        own.add(&marks.blocks);
        all.owned.add(&state.owned);
        add(&mut all.counters, &state.counters);
        if number != 0 {
            state.findings.kept_mut().iter_mut().for_each(|f| f.what = format!("tree {number}: {}", f.what));
        }
        all.findings.absorb(state.findings);
        if !state.lost.is_empty() {
            all.lost = state.lost;
        }
        let Some(shared) = marks.shared.filter(|_| in_order.contains(&number)) else { continue };
        if all.lost.is_empty() && entry.is_some_and(|entry| point_of(&entries, entry) != 0) {
            compare(number, marks.births_below, &shared, &marks.blocks, &way, &mut all.findings);
        }
        if !in_use {
            way.enter(shared.data.into_iter(), shared.nodes);
        }
    }
    if all.lost.is_empty() {
        let mut format = Owned::new(groups);
        crate::space::claim_format_areas(sb, &mut format);
        own.add(&format);
        for (start, blocks) in all.owned.not_in(&own) {
            all.findings.add(FindingKind::TreesShare, At::block(start), || {
                format!("{blocks} blocks are used by trees of which none has them for its own")
            });
        }
    }
    finish(sb, reader, &mut all, progress);
    all
}

/// For each tree that contains names of others: the directories of these names, with the numbers of
/// the named trees.
fn homes(entries: &BTreeMap<u32, TreeEntry>) -> BTreeMap<u32, Vec<(Ino, u32)>> {
    let mut homes: BTreeMap<u32, Vec<(Ino, u32)>> = BTreeMap::new();
    for (number, entry) in entries.iter().filter(|(_, entry)| is_head(entry) && entry.dir.0 != 0) {
        homes.entry(entry.dir.tree()).or_default().push((entry.dir.local(), *number));
    }
    homes
}

/// Checks that the directories of a tree exist that contain names of other trees.
fn check_homes(homes: Option<&Vec<(Ino, u32)>>, state: &State, sb: &Superblock, findings: &mut Findings) {
    for (dir, named) in homes.into_iter().flatten() {
        let what = match state.facts.inode(dir.0).map(|inode| inode.kind) {
            None if !state.lost.touches_inode(*dir) => "does not exist",
            Some(Some(kind)) if kind != FileKind::Directory => "is no directory",
            _ => continue,
        };
        findings.add(FindingKind::TreesBad, At::block(BlockNo(sb.block().0)), || {
            format!("tree {named} is named in inode {dir}, which {what}")
        });
    }
}

/// Compares the blocks that a tree uses and does not own with the blocks of its point.
fn compare(number: u32, births_below: u32, shared: &Shared, own: &Owned, way: &Way, findings: &mut Findings) {
    let mut add = |start: u64, blocks: u64| {
        findings.add(FindingKind::TreesShare, At::block(BlockNo(start)), || {
            format!("{blocks} blocks that tree {number} does not have for its own are not its point's")
        });
    };
    for (extent, birth) in shared.data.iter().filter(|(_, birth)| *birth < births_below) {
        let (mut at, end) = (extent.start.0, extent.end().0);
        let mut missing = 0;
        while at < end {
            let (stop, of_point) = way.data.run_at(at);
            let stop = stop.min(end);
            match of_point == Some(*birth) {
                true if missing > 0 => add(at - missing, std::mem::take(&mut missing)),
                true => {}
                false => missing += stop - at,
            }
            at = stop;
        }
        if missing > 0 {
            add(end - missing, missing);
        }
    }
    for node in shared.nodes.difference(&way.nodes).filter(|node| own.is_free(BlockNo(**node), 1)) {
        add(*node, NODE_BLOCKS);
    }
}

/// The superblock that the image would have with this tree alone.
pub(crate) fn superblock_of(sb: &Superblock, entry: &TreeEntry) -> Superblock {
    let checkpoint = CheckpointState {
        root: entry.root,
        root_generation: entry.root_generation,
        root_level: entry.root_level,
        nodes: entry.nodes,
        next_ino: Ino(entry.next_ino),
        inodes: entry.inodes,
        losses: None,
        ..sb.checkpoint
    };
    Superblock { geometry: sb.geometry.clone(), checkpoint }
}

/// Reads the table. The returned state has the table's nodes and the findings so far.
pub(crate) fn read_table(
    sb: &Superblock,
    reader: &mut Reader,
    findings: Findings,
    progress: &mut dyn FnMut(Progress),
) -> (BTreeMap<u32, TreeEntry>, limits::Entries, State) {
    let mut state = State::new(sb.geometry.groups(), findings);
    let Some(table) = sb.checkpoint.trees else { return (BTreeMap::new(), BTreeMap::new(), state) };
    let checkpoint = CheckpointState {
        root: table.root,
        root_generation: table.root_generation,
        root_level: table.root_level,
        ..sb.checkpoint
    };
    let of_table = Superblock { geometry: sb.geometry.clone(), checkpoint };
    let mut report = |done, total| progress(Progress { phase: "nodes", done, total });
    let leaves = tree::walk_inner(&of_table, reader, &mut state, &mut report);
    let leaves = tree::valid_leaves(&of_table, reader, &mut state, &leaves);
    let (mut entries, mut limits) = (BTreeMap::new(), BTreeMap::new());
    let mut bad = Vec::new();
    let mut bad_limits = Vec::new();
    let mut visit = |node: &NodeRef, key: Key, value: &[u8], inside: bool| {
        if let Some((tree, number)) = limit_of(&key).filter(|_| inside) {
            match LimitEntry::decode(value) {
                Ok(entry) => drop(limits.insert((tree, number), entry)),
                Err(e) => bad_limits.push((node.block, format!("limit {number} of tree {tree}: {e}"))),
            }
            return Ok(());
        }
        match (number_of(&key).filter(|_| inside), TreeEntry::decode(value)) {
            (Some(number), Ok(entry)) => drop(entries.insert(number, entry)),
            (Some(number), Err(e)) => bad.push((node.block, format!("tree {number}: {e}"))),
            (None, _) => bad.push((node.block, format!("key {key} names no tree"))),
        }
        Ok(())
    };
    if let Err(e) = tree::stream_items(&of_table, reader, &leaves, &mut visit, &mut |_, _| ()) {
        bad.push((table.root, e.to_string()));
    }
    for (block, what) in bad {
        state.findings.add(FindingKind::TreesBad, At::block(block), || what);
    }
    for (block, what) in bad_limits {
        state.findings.add(FindingKind::LimitBad, At::block(block), || what);
    }
    if state.lost.is_empty() && table.nodes != state.counters.nodes {
        state.findings.add(FindingKind::SuperblockNodes, At::block(sb.block()), || {
            format!("{} nodes of the table of trees, it has {}", table.nodes, state.counters.nodes)
        });
    }
    state.counters = Counters { nodes: state.counters.nodes, ..Counters::default() };
    paths::name_findings(&of_table, reader, &mut state, &[]);
    (entries, limits, state)
}

/// Checks how entries refer to each other.
fn check_entries(entries: &BTreeMap<u32, TreeEntry>, sb: &Superblock, findings: &mut Findings) {
    let mut bad = |number: &u32, what: String| {
        findings
            .add(FindingKind::TreesBad, At::block(BlockNo(sb.block().0)), || format!("tree {number} {what}"));
    };
    let birth = sb.checkpoint.trees.map_or(0, |trees| trees.birth);
    for (number, entry) in entries {
        if entry.births_below > birth || entry.nodes_below > sb.checkpoint.generation.next() {
            bad(number, "has marks in the future".into());
        }
        if entry.point == 0 && (entry.births_below, entry.nodes_below) != (0, Generation(0)) {
            bad(number, "has marks and no point".into());
        }
        if *number == 0 && (entry.kind != TreeKind::Head || entry.dir.0 != 0 || entry.read_only) {
            bad(number, "is not the first tree".into());
        }
        if entry.kind != TreeKind::Dying && entry.freed_below != Key::MIN {
            bad(number, "is in use and partly freed".into());
        }
        if entry.kind == TreeKind::Head && *number != 0 && entry.dir.0 == 0 {
            bad(number, "has no name".into());
        }
    }
    let point = |entry: &TreeEntry| match entries.get(&entry.point) {
        _ if entry.point == 0 => Ok(None),
        Some(point) if point.kind != TreeKind::Head => Ok(Some(entry.point)),
        _ => Err(format!("has point {}, which is none", entry.point)),
    };
    let circle = "has points that form a circle";
    ways_that_do_not_end(entries, point, circle).into_iter().for_each(|(number, what)| bad(&number, what));
    let above = |entry: &TreeEntry| match entries.get(&entry.dir.tree()) {
        _ if entry.dir.0 == 0 || entry.dir.tree() == 0 => Ok(None),
        Some(above) if above.kind == TreeKind::Head && above.dir.0 != 0 => Ok(Some(entry.dir.tree())),
        _ => Err("is named in no tree".into()),
    };
    let circle = "is named in a circle of trees";
    ways_that_do_not_end(entries, above, circle).into_iter().for_each(|(number, what)| bad(&number, what));
    let mut names = BTreeMap::new();
    for (number, entry) in entries.iter().filter(|(_, entry)| entry.dir.0 != 0) {
        if let Some(other) = names.insert((entry.dir, &entry.name), number) {
            bad(number, format!("has the name of tree {other}"));
        }
    }
}

/// Follows the references from each entry to the next, each reference once. Returns the numbers of
/// entries in circles and of entries with invalid references, with the fault.
fn ways_that_do_not_end(
    entries: &BTreeMap<u32, TreeEntry>,
    next: impl Fn(&TreeEntry) -> Result<Option<u32>, String>,
    circle: &str,
) -> Vec<(u32, String)> {
    let mut wrong = Vec::new();
    // For each entry, the start of the walk that reached it first.
    let mut reached = BTreeMap::new();
    for start in entries.keys() {
        let mut at = Some(*start);
        while let Some(number) = at {
            match reached.insert(number, *start) {
                Some(first) if first == *start => {
                    wrong.push((*start, circle.into()));
                    break;
                }
                Some(_) => break,
                None => {}
            }
            at = next(&entries[&number]).unwrap_or_else(|what| {
                wrong.push((number, what));
                None
            });
        }
    }
    wrong
}

fn add(all: &mut Counters, more: &Counters) {
    let pairs = [
        (&mut all.inodes, more.inodes),
        (&mut all.directories, more.directories),
        (&mut all.files, more.files),
        (&mut all.symlinks, more.symlinks),
        (&mut all.orphans, more.orphans),
        (&mut all.names, more.names),
        (&mut all.xattrs, more.xattrs),
        (&mut all.extents, more.extents),
        (&mut all.nodes, more.nodes),
        (&mut all.items, more.items),
        (&mut all.blocks_data, more.blocks_data),
    ];
    pairs.into_iter().for_each(|(sum, n)| *sum += n);
}

#[cfg(test)]
#[path = "forest_tests.rs"]
mod tests;
