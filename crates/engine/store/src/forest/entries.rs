//! The entries of the table of trees, and how they refer to one another.

use kedge_base::{BlockNo, CorruptKind, Error, Generation, Ino, Result};
use kedge_format::Key;
use kedge_format::trees::{TreeEntry, TreeKind};
use std::collections::BTreeMap;

/// The entries whose point `point` is.
pub(crate) fn children(entries: &BTreeMap<u32, TreeEntry>, point: u32) -> impl Iterator<Item = u32> + '_ {
    entries.iter().filter(move |(_, entry)| point != 0 && entry.point == point).map(|(number, _)| *number)
}

pub(crate) fn first_entry(created: i64) -> TreeEntry {
    TreeEntry {
        kind: TreeKind::Head,
        read_only: false,
        root: BlockNo(0),
        root_generation: Generation(0),
        root_level: 0,
        nodes: 0,
        next_ino: 0,
        inodes: 0,
        orphans: 0,
        point: 0,
        births_below: 0,
        nodes_below: Generation(0),
        dir: Ino(0),
        created,
        freed_below: Key::MIN,
        name: Vec::new(),
    }
}

pub(super) fn corrupt(what: String) -> Error {
    Error::corrupt(CorruptKind::Item, BlockNo(0), format!("table of trees: {what}"))
}

/// Checks how the entries refer to each other. Each chain of points, and each way from a tree to
/// the first one, ends.
pub(super) fn check_entries(entries: &BTreeMap<u32, TreeEntry>) -> Result<()> {
    let is_first = |entry: &TreeEntry| entry.kind == TreeKind::Head && entry.dir.0 == 0 && !entry.read_only;
    if !entries.get(&0).is_some_and(is_first) {
        return Err(corrupt("it has no first tree".into()));
    }
    let unnamed = |(number, entry): &(&u32, &TreeEntry)| {
        **number != 0 && entry.kind == TreeKind::Head && entry.dir.0 == 0
    };
    if let Some((number, _)) = entries.iter().find(unnamed) {
        return Err(corrupt(format!("tree {number} has no name")));
    }
    let point = |number: u32, entry: &TreeEntry| match entries.get(&entry.point) {
        _ if entry.point == 0 => Ok(None),
        Some(point) if point.kind != TreeKind::Head => Ok(Some(entry.point)),
        _ => Err(corrupt(format!("tree {number} has point {}, which is none", entry.point))),
    };
    check_ends(entries, point, |number| format!("the points of tree {number} form a circle"))?;
    let above = |number: u32, entry: &TreeEntry| match entries.get(&entry.dir.tree()) {
        _ if entry.dir.0 == 0 || entry.dir.tree() == 0 => Ok(None),
        Some(above) if above.kind == TreeKind::Head && above.dir.0 != 0 => Ok(Some(entry.dir.tree())),
        _ => Err(corrupt(format!("tree {number} is named in no tree"))),
    };
    check_ends(entries, above, |number| format!("the directories above tree {number} form a circle"))
}

/// Checks that the way from each entry to the next one, and so on, ends. Takes each step once.
fn check_ends(
    entries: &BTreeMap<u32, TreeEntry>,
    next: impl Fn(u32, &TreeEntry) -> Result<Option<u32>>,
    circle: impl Fn(u32) -> String,
) -> Result<()> {
    // The entry from which the way that reached an entry first started.
    let mut reached = BTreeMap::new();
    for start in entries.keys() {
        let mut at = Some(*start);
        while let Some(number) = at {
            match reached.insert(number, *start) {
                Some(first) if first == *start => return Err(corrupt(circle(*start))),
                Some(_) => break,
                None => {}
            }
            at = next(number, &entries[&number])?;
        }
    }
    Ok(())
}
