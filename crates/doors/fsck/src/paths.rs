//! The paths of the files that findings concern, because an operator knows files by path and not by
//! inode number.
//!
//! Names are read from the leaves only when there are findings: a clean image costs nothing. A path
//! is built from the inode upwards along the entries that the check saw. If the chain ends before
//! the root, because an entry is missing or directories form a cycle, the path begins with the
//! number of the inode at which the chain ends.
//!
//! # Bounds
//! A finding names [`PATHS_MAX`] paths, a path has [`DEPTH_MAX`] names, and all findings together
//! read [`NAMES_MAX`] names. A path that exceeds them begins with an inode number, or is only
//! counted.

use crate::facts::NameRef;
use crate::items::State;
use crate::read::Reader;
use crate::report::Finding;
use crate::tree::{self, NodeRef};
use kedge_base::Ino;
use kedge_format::Key;
use kedge_format::superblock::Superblock;
use std::collections::BTreeMap;

/// The most paths that a finding names.
const PATHS_MAX: usize = 8;
/// The most names in a path; a deeper path begins with an inode number.
const DEPTH_MAX: usize = 128;
/// The most names that are read for all findings together.
const NAMES_MAX: usize = 20_000;

struct Paths<'a, 'd> {
    sb: &'a Superblock,
    reader: &'a mut Reader<'d>,
    leaves: &'a [NodeRef],
    /// Sorted by target.
    names: &'a [NameRef],
    /// The names read so far, by directory and target inode.
    read: BTreeMap<(u64, u64), Option<String>>,
}

/// Adds paths to the findings that are kept. Call it after the check of the names, which leaves
/// them sorted by target.
pub(crate) fn name_findings(sb: &Superblock, reader: &mut Reader, state: &mut State, leaves: &[NodeRef]) {
    let State { findings, facts, .. } = state;
    let mut paths = Paths { sb, reader, leaves, names: &facts.names, read: BTreeMap::new() };
    for finding in findings.kept_mut() {
        match (&finding.node, finding.ino) {
            (Some(node), _) => paths.of_range(node.low, node.high, finding),
            (None, Some(ino)) => paths.of_inode(ino, finding),
            (None, None) => {}
        }
    }
}

impl<'a> Paths<'a, '_> {
    /// Adds all names of an inode.
    fn of_inode(&mut self, ino: u64, finding: &mut Finding) {
        if ino == Ino::ROOT.0 {
            return finding.paths.push("/".into());
        }
        self.add(self.names_of(ino).iter(), finding);
    }

    /// Adds one name of each inode that has keys from `low` (inclusive) to `high` (exclusive).
    fn of_range(&mut self, low: Key, high: Option<Key>, finding: &mut Finding) {
        let inside = |ino: u64| high.is_none_or(|high| Key { ino, ..Key::MIN } < high);
        if low.ino <= Ino::ROOT.0 && inside(Ino::ROOT.0) {
            finding.paths.push("/".into());
        }
        let from = self.names.partition_point(|n| n.target < low.ino.max(Ino::ROOT.0 + 1));
        let to = self.names.partition_point(|n| inside(n.target)).max(from);
        let names = &self.names[from..to];
        let first =
            |(i, name): (usize, &'a NameRef)| (i == 0 || names[i - 1].target != name.target).then_some(name);
        self.add(names.iter().enumerate().filter_map(first), finding);
    }

    fn add<'n>(&mut self, names: impl Iterator<Item = &'n NameRef>, finding: &mut Finding) {
        for name in names {
            let path = (finding.paths.len() < PATHS_MAX).then(|| self.path(name)).flatten();
            match path {
                Some(path) => finding.paths.push(path),
                None => finding.more_paths += 1,
            }
        }
    }

    fn names_of(&self, ino: u64) -> &'a [NameRef] {
        let from = self.names.partition_point(|n| n.target < ino);
        let to = self.names.partition_point(|n| n.target <= ino);
        &self.names[from..to]
    }

    /// The path that ends with an entry; `None` if the entry's name cannot be read within the
    /// bounds.
    fn path(&mut self, name: &NameRef) -> Option<String> {
        let mut parts = vec![self.name(name)?];
        let mut above = vec![name.dir];
        while let Some(&dir) = above.last()
            && dir != Ino::ROOT.0
        {
            let next = self.names_of(dir).first().filter(|next| !above.contains(&next.dir));
            match next.and_then(|next| Some((next.dir, self.name(next)?))) {
                Some((up, part)) if parts.len() < DEPTH_MAX => {
                    parts.push(part);
                    above.push(up);
                }
                _ => {
                    parts.push(format!("(inode {dir})"));
                    parts.reverse();
                    return Some(parts.join("/"));
                }
            }
        }
        parts.push(String::new());
        parts.reverse();
        Some(parts.join("/"))
    }

    fn name(&mut self, name: &NameRef) -> Option<String> {
        if let Some(known) = self.read.get(&(name.dir, name.target)) {
            return known.clone();
        }
        if self.read.len() == NAMES_MAX {
            return None;
        }
        let found = tree::name_of(self.sb, self.reader, self.leaves, name.leaf, name.dir, name.target);
        let found = found.map(|(_, shown)| shown);
        self.read.insert((name.dir, name.target), found.clone());
        found
    }
}

#[cfg(test)]
#[path = "paths_tests.rs"]
mod tests;
