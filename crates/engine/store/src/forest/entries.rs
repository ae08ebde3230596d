//! The entries of the table of trees, and the references between them.

use kedge_base::{BlockNo, CorruptKind, Error, Generation, Ino, Result};
use kedge_format::Key;
use kedge_format::trees::{TreeEntry, TreeKind};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

/// The entries by number, with indexes. An index finds what can be freed without a walk over all
/// entries: there may be thousands, and each freeing step searches again.
#[derive(Default)]
pub(crate) struct Entries {
    of: BTreeMap<u32, TreeEntry>,
    /// Pairs of a point and an heir: an entry whose point it is.
    heirs: BTreeSet<(u32, u32)>,
    dying: BTreeSet<u32>,
    /// Points with one heir or none, which can be merged or freed.
    spent: BTreeSet<u32>,
}

/// What can be freed next.
#[derive(Debug)]
pub(crate) enum ToFree {
    Nothing,
    /// What is left can be freed only while the caller stops all changes.
    NeedsQuiet,
    /// A dying tree.
    Tree(u32, TreeEntry),
    /// A point that is the point of no entry.
    Point(u32),
    /// A point, and its only heir.
    Merge((u32, TreeEntry), (u32, TreeEntry)),
}

/// Read access to the entries. They are changed only by the methods of [`Entries`].
impl Deref for Entries {
    type Target = BTreeMap<u32, TreeEntry>;

    fn deref(&self) -> &BTreeMap<u32, TreeEntry> {
        &self.of
    }
}

impl From<BTreeMap<u32, TreeEntry>> for Entries {
    fn from(all: BTreeMap<u32, TreeEntry>) -> Entries {
        let mut entries = Entries::default();
        for (number, entry) in all {
            entries.insert(number, entry);
        }
        entries
    }
}

impl Entries {
    pub(crate) fn insert(&mut self, number: u32, entry: TreeEntry) {
        self.remove(number);
        let point = entry.point;
        self.of.insert(number, entry);
        self.count(point, number);
        self.sort(number);
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<TreeEntry> {
        let gone = self.of.remove(&number)?;
        self.heirs.remove(&(gone.point, number));
        self.sort(number);
        self.sort(gone.point);
        Some(gone)
    }

    /// Changes the entry of this number, if there is one.
    pub(crate) fn change(&mut self, number: u32, change: impl FnOnce(&mut TreeEntry)) {
        let Some(entry) = self.of.get_mut(&number) else { return };
        let (kind, point) = (entry.kind, entry.point);
        change(entry);
        let now = (entry.kind, entry.point);
        if point != now.1 {
            self.heirs.remove(&(point, number));
            self.sort(point);
            self.count(now.1, number);
        }
        if kind != now.0 {
            self.sort(number);
        }
    }

    /// Adds an heir to a point. Does nothing for point 0, which means none.
    fn count(&mut self, point: u32, heir: u32) {
        if point != 0 {
            self.heirs.insert((point, heir));
            self.sort(point);
        }
    }

    /// The heirs of a point: the entries whose point it is.
    pub(crate) fn heirs(&self, point: u32) -> impl Iterator<Item = u32> + '_ {
        self.heirs.range((point, 0)..=(point, u32::MAX)).map(|(_, heir)| *heir)
    }

    /// Updates `dying` and `spent` for an entry whose kind or heirs have changed.
    fn sort(&mut self, number: u32) {
        let kind = self.of.get(&number).map(|entry| entry.kind);
        let set = |set: &mut BTreeSet<u32>, is_in| match is_in {
            true => set.insert(number),
            false => set.remove(&number),
        };
        let is_spent = kind == Some(TreeKind::Point) && self.heirs(number).nth(1).is_none();
        set(&mut self.dying, kind == Some(TreeKind::Dying));
        set(&mut self.spent, is_spent);
    }

    pub(crate) fn is_all_in_use(&self) -> bool {
        self.dying.is_empty() && self.spent.is_empty()
    }

    /// A tree or point that can be freed. `quiet`: the caller stops all changes. Dying trees come
    /// first: if the only heir of a point is a dying tree, the point has no heir afterwards.
    pub(crate) fn to_free(&self, quiet: bool) -> ToFree {
        let with_entry = |number: u32| (number, self.of[&number].clone());
        if let Some(number) = self.dying.first() {
            let (number, entry) = with_entry(*number);
            return ToFree::Tree(number, entry);
        }
        for point in &self.spent {
            let Some(heir) = self.heirs(*point).next() else { return ToFree::Point(*point) };
            if quiet || self.of[&heir].kind == TreeKind::Point {
                return ToFree::Merge(with_entry(*point), with_entry(heir));
            }
        }
        if self.spent.is_empty() { ToFree::Nothing } else { ToFree::NeedsQuiet }
    }
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

/// Checks the references between entries. Both chains must end: from entry to point to point, and
/// from a tree through the directories that contain names to the first tree.
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

/// Checks that the chain from each entry through `next` ends. Each link is followed once.
fn check_ends(
    entries: &BTreeMap<u32, TreeEntry>,
    next: impl Fn(u32, &TreeEntry) -> Result<Option<u32>>,
    circle: impl Fn(u32) -> String,
) -> Result<()> {
    // For each entry reached: the entry at which the chain that first reached it started.
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

#[cfg(test)]
#[path = "entries_tests.rs"]
mod tests;
