//! The differences between two trees, by path: `kedge diff`.
//!
//! The engine compares the trees by inode ([`TreeMoment::changes`]) and skips what they share. For
//! a file that was changed but not renamed it reports no path, because an inode does not refer to
//! its directory. The names of such files are searched: first near the inode, since the number of a
//! directory is usually slightly below those of its files, then in all directories, once for all
//! files that are left. So a comparison costs time in proportion to the changes, unless a changed
//! file has a number far from that of its directory. Then the names of the whole tree are read, but
//! no data.
//!
//! Memory grows with the number of changed files and of directories above them, not with their
//! depth: a path is built when a difference is reported, and cut if it is long (`PATH_MAX`).

use anyhow::{Context, Result, bail};
use kedgefs::{Attr, FileKind, FileSystem, Ino, TreeChange, TreeMoment};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// Bytes of each file that are compared at once.
const CHUNK: u64 = 1 << 20;
const BLOCK: u64 = kedge_base::BLOCK_SIZE as u64;
/// How far below an inode number the first search for its names begins, in inode numbers.
const NEAR_BELOW: u64 = 2048;
const NEAR_ABOVE: u64 = 256;

/// The most bytes of a path. No system call accepts a longer one.
const PATH_MAX: usize = 4096;

/// The attributes that [`What::Modified`] can report.
pub const PARTS: [&str; 8] = ["data", "size", "mode", "owner", "times", "flags", "device", "xattrs"];

/// A callback that is called repeatedly during a comparison. An error from it ends the comparison.
pub type GoOn<'a> = &'a dyn Fn() -> Result<()>;

/// The kind of a difference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    Created,
    Deleted,
    /// An existing file has this name in place of another one.
    Renamed,
    /// An existing file has this name in addition.
    Linked,
    /// An existing file has lost this name.
    Unlinked,
    Modified,
}

/// A difference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The path. If it has more than 4,096 bytes, only its last names, after the number of the
    /// directory that they are in: `(inode 7)/name`.
    pub path: Vec<u8>,
    pub what: What,
    pub kind: FileKind,
    /// The former path, for [`What::Renamed`].
    pub from: Option<Vec<u8>>,
    /// What was modified: a subset of [`PARTS`].
    pub parts: Vec<&'static str>,
    /// Ranges of bytes that differ, as offset and length in bytes, rounded to whole blocks.
    pub data: Vec<(u64, u64)>,
    /// Names of extended attributes that differ.
    pub xattrs: Vec<Vec<u8>>,
}

/// The differences, sorted by path, and the cost of finding them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Differences {
    pub found: Vec<Difference>,
    /// Tree nodes that were read: to compare the trees, and to find names.
    pub nodes: (u64, u64),
}

/// The inode number of a directory, and a name in it.
type Name = (u64, Vec<u8>);

/// An inode number, and whether it is in the range that both trees have assigned independently, and
/// the inode is in the newer tree. Then the older tree may have another inode of this number.
type Id = (u64, bool);

/// The differences of one inode.
#[derive(Default)]
struct Item {
    before: Option<Attr>,
    after: Option<Attr>,
    xattrs: Vec<Vec<u8>>,
    /// File ranges (offset and length in bytes) whose blocks differ between the trees.
    ranges: Vec<(u64, u64)>,
    gone: Vec<Name>,
    new: Vec<Name>,
}

/// Compares the present states of the trees with these roots.
pub fn between(fs: &FileSystem, before: Ino, after: Ino, go_on: GoOn<'_>) -> Result<Differences> {
    let moments = fs.moments(&[before, after])?;
    if moments[1].same_below(&moments[0]).is_none() {
        bail!("they do not come from one tree");
    }
    differences(&moments[0], &moments[1], go_on)
}

/// Compares two trees.
pub fn differences(before: &TreeMoment, after: &TreeMoment, go_on: GoOn<'_>) -> Result<Differences> {
    let same_below = after.same_below(before).unwrap_or(Ino(0));
    let id = |ino: Ino, new: bool| -> Id { (ino.0, new && ino >= same_below) };
    let mut items: BTreeMap<Id, Item> = BTreeMap::new();
    let mut ended = Ok(());
    let compared = after.changes(Some(before), &mut |change| {
        ended = go_on();
        if ended.is_err() {
            return Ok(ControlFlow::Break(()));
        }
        match change {
            TreeChange::Inode { ino, before, after } => {
                let item = items.entry(id(ino, after.is_some())).or_default();
                (item.before, item.after) = (before, after);
            }
            TreeChange::Xattr { ino, name, .. } => {
                items.entry(id(ino, true)).or_default().xattrs.push(name.to_vec());
            }
            TreeChange::Entry { dir, name, before, after } => {
                if let Some((ino, _)) = before {
                    items.entry(id(ino, false)).or_default().gone.push((dir.0, name.to_vec()));
                }
                if let Some((ino, _)) = after {
                    items.entry(id(ino, true)).or_default().new.push((dir.0, name.to_vec()));
                }
            }
            TreeChange::Data { ino, offset, len, .. } => {
                items.entry(id(ino, true)).or_default().ranges.push((offset, len));
            }
            TreeChange::Target { .. } => {}
        }
        Ok(ControlFlow::Continue(()))
    })?;
    ended?;
    for ((ino, _), item) in &mut items {
        // If only names of the inode have changed, no [`TreeChange::Inode`] was reported.
        if item.before.is_none() && item.after.is_none() {
            (item.before, item.after) = (before.attr(Ino(*ino))?, after.attr(Ino(*ino))?);
        }
    }
    let changed_dirs = items.values().flat_map(|item| item.gone.iter().chain(&item.new));
    let changed_dirs: std::collections::BTreeSet<u64> = changed_dirs.map(|(dir, _)| *dir).collect();
    let mut modified: BTreeMap<u64, (Difference, Vec<Name>)> = BTreeMap::new();
    for ((ino, _), item) in &items {
        let (Some(old), Some(new)) = (item.before, item.after) else { continue };
        go_on()?;
        let mut diff = Difference { xattrs: item.xattrs.clone(), ..blank(What::Modified, new.kind) };
        let mut ranges = item.ranges.clone();
        if new.kind == FileKind::Regular && old.size != new.size {
            // The block in which the file ends may be the same in both trees, although the size
            // differs. Bytes past the end count as zero, so this block is compared as well.
            ranges.push((old.size.min(new.size) / BLOCK * BLOCK, BLOCK));
            ranges.sort_unstable();
        }
        diff.data = unlike(before, after, (&old, &new), &ranges)?;
        diff.parts = parts(&old, &new, &diff, changed_dirs.contains(ino));
        if !diff.parts.is_empty() {
            modified.insert(*ino, (diff, item.new.clone()));
        }
    }
    let names = find_names(after, &items, &mut modified, go_on)?;
    let (mut old_paths, mut new_paths) = (Paths::new(before, go_on), Paths::new(after, go_on));
    let mut found = Vec::new();
    for item in items.values() {
        named(item, &mut old_paths, &mut new_paths, &mut found)?;
    }
    for (ino, (diff, names)) in modified {
        if ino == Ino::ROOT.0 {
            found.push(Difference { path: b".".to_vec(), ..diff });
            continue;
        }
        for (dir, name) in names {
            found.push(Difference { path: new_paths.path(dir, &name)?, ..diff.clone() });
        }
    }
    found.sort_by(|a, b| (&a.path, a.what).cmp(&(&b.path, b.what)));
    Ok(Differences { found, nodes: (compared, names + old_paths.reads + new_paths.reads) })
}

fn blank(what: What, kind: FileKind) -> Difference {
    let (path, from) = (Vec::new(), None);
    Difference { path, what, kind, from, parts: Vec::new(), data: Vec::new(), xattrs: Vec::new() }
}

/// Returns what was modified. Time stamps of a directory are ignored if its names were changed,
/// because that alone changes them.
fn parts(old: &Attr, new: &Attr, diff: &Difference, names_changed: bool) -> Vec<&'static str> {
    let is_dir = new.kind == FileKind::Directory;
    let differs = [
        !diff.data.is_empty(),
        !is_dir && old.size != new.size,
        old.mode != new.mode,
        (old.uid, old.gid) != (new.uid, new.gid),
        old.mtime != new.mtime && !(is_dir && names_changed),
        old.flags != new.flags,
        old.rdev != new.rdev,
        !diff.xattrs.is_empty(),
    ];
    PARTS.into_iter().zip(differs).filter_map(|(part, differs)| differs.then_some(part)).collect()
}

/// The subranges in which the bytes differ, up to the end of the longer file.
fn unlike(
    before: &TreeMoment,
    after: &TreeMoment,
    (old, new): (&Attr, &Attr),
    ranges: &[(u64, u64)],
) -> Result<Vec<(u64, u64)>> {
    let end = old.size.max(new.size).next_multiple_of(BLOCK);
    let mut found: Vec<(u64, u64)> = Vec::new();
    let (mut a, mut b) = (vec![0; CHUNK as usize], vec![0; CHUNK as usize]);
    for (offset, len) in ranges {
        let mut at = *offset;
        let stop = offset.saturating_add(*len).min(end);
        while at < stop {
            let n = (stop - at).min(CHUNK) as usize;
            before.read(old.ino, at, &mut a[..n])?;
            after.read(new.ino, at, &mut b[..n])?;
            let blocks = a[..n].chunks(BLOCK as usize).zip(b[..n].chunks(BLOCK as usize));
            for (i, _) in blocks.enumerate().filter(|(_, (a, b))| a != b) {
                let here = at + i as u64 * BLOCK;
                match found.last_mut() {
                    Some((start, len)) if *start + *len > here => {}
                    Some((start, len)) if *start + *len == here => *len += BLOCK,
                    _ => found.push((here, BLOCK)),
                }
            }
            at += n as u64;
        }
    }
    Ok(found)
}

/// Reports the names that an inode has gained and lost.
fn named(item: &Item, old: &mut Paths<'_>, new: &mut Paths<'_>, found: &mut Vec<Difference>) -> Result<()> {
    let (stays, kind) = match (&item.before, &item.after) {
        (Some(_), Some(attr)) => (true, attr.kind),
        (_, Some(attr)) | (Some(attr), _) => (false, attr.kind),
        (None, None) => return Ok(()), // the inode has a name in neither tree
    };
    let mut gone = item.gone.iter();
    for (dir, name) in &item.new {
        let path = new.path(*dir, name)?;
        let (what, from) = match gone.next().filter(|_| stays) {
            Some((dir, name)) => (What::Renamed, Some(old.path(*dir, name)?)),
            None if stays => (What::Linked, None),
            None => (What::Created, None),
        };
        found.push(Difference { path, from, ..blank(what, kind) });
    }
    for (dir, name) in gone {
        let what = if stays { What::Unlinked } else { What::Deleted };
        found.push(Difference { path: old.path(*dir, name)?, ..blank(what, kind) });
    }
    Ok(())
}

/// Finds the unchanged names of modified inodes. Returns the number of nodes that were read.
fn find_names(
    tree: &TreeMoment,
    items: &BTreeMap<Id, Item>,
    modified: &mut BTreeMap<u64, (Difference, Vec<Name>)>,
    go_on: GoOn<'_>,
) -> Result<u64> {
    let mut reads = 0;
    let mut ended = Ok(());
    let count = |ino: u64| match items.get(&(ino, false)).and_then(|item| item.after) {
        Some(attr) if attr.kind == FileKind::Directory => 1,
        Some(attr) => attr.nlink as usize,
        None => 0,
    };
    let lacks = |ino: &u64, names: &Vec<Name>| *ino != Ino::ROOT.0 && names.len() < count(*ino);
    let mut wanted: Vec<u64> =
        modified.iter().filter(|(ino, (_, names))| lacks(ino, names)).map(|(ino, _)| *ino).collect();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for ino in &wanted {
        let (from, to) = (ino.saturating_sub(NEAR_BELOW), ino.saturating_add(NEAR_ABOVE));
        match ranges.last_mut() {
            Some((_, end)) if *end >= from => *end = to,
            _ => ranges.push((from, to)),
        }
    }
    // The second pass reads all names, for the inodes that still lack one.
    for ranges in [ranges, vec![(0, u64::MAX)]] {
        let mut left = wanted.len();
        for ino in &wanted {
            modified.get_mut(ino).expect("`wanted` has modified inodes").1.clear();
        }
        for (from, to) in ranges {
            if left == 0 {
                break;
            }
            reads += tree.names(Ino(from), Ino(to), &mut |dir, name, ino, _| {
                ended = go_on();
                if ended.is_err() {
                    return ControlFlow::Break(());
                }
                if wanted.binary_search(&ino.0).is_ok() {
                    let names = &mut modified.get_mut(&ino.0).expect("`wanted` has modified inodes").1;
                    names.push((dir.0, name.to_vec()));
                    left -= usize::from(names.len() == count(ino.0));
                }
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            std::mem::replace(&mut ended, Ok(()))?;
        }
        wanted.retain(|ino| lacks(ino, &modified[ino].1));
    }
    Ok(reads)
}

/// Paths of a tree. It keeps the name and the parent of each directory: whole paths would take
/// memory in proportion to the square of the depth.
struct Paths<'a> {
    tree: &'a TreeMoment,
    dirs: BTreeMap<u64, Name>,
    reads: u64,
    go_on: GoOn<'a>,
}

impl<'a> Paths<'a> {
    fn new(tree: &'a TreeMoment, go_on: GoOn<'a>) -> Paths<'a> {
        Paths { tree, dirs: BTreeMap::new(), reads: 0, go_on }
    }

    /// The path of an entry. If it is longer than [`PATH_MAX`], only its last names, after the
    /// number of the directory that they are in, as in reports of `kedge fsck`.
    fn path(&mut self, dir: u64, name: &[u8]) -> Result<Vec<u8>> {
        let mut parts = vec![name.to_vec()];
        let mut bytes = name.len();
        let mut on_way = BTreeSet::new();
        let mut at = dir;
        while at != Ino::ROOT.0 {
            anyhow::ensure!(on_way.insert(at), "directories in a circle");
            let (parent, name) = self.dir(at)?;
            bytes += 1 + name.len();
            if bytes > PATH_MAX {
                parts.push(format!("(inode {at})").into_bytes());
                break;
            }
            parts.push(name.clone());
            at = *parent;
        }
        parts.reverse();
        Ok(parts.join(&b'/'))
    }

    /// The parent of a directory other than the root, and its name there.
    fn dir(&mut self, dir: u64) -> Result<&Name> {
        if !self.dirs.contains_key(&dir) {
            let parent =
                self.tree.parent(Ino(dir))?.with_context(|| format!("directory {dir} is missing"))?;
            let (mut found, mut ended) = (None, Ok(()));
            self.reads += self.tree.names(parent, parent, &mut |_, name, ino, _| {
                ended = (self.go_on)();
                if ended.is_ok() && ino.0 != dir {
                    return ControlFlow::Continue(());
                }
                found = Some(name.to_vec());
                ControlFlow::Break(())
            })?;
            ended?;
            let name = found.with_context(|| format!("directory {dir} has no name"))?;
            self.dirs.insert(dir, (parent.0, name));
        }
        Ok(&self.dirs[&dir])
    }
}

#[cfg(test)]
#[path = "diff_tests.rs"]
pub(crate) mod tests;
