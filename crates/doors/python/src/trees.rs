//! Forks and snapshots.

use crate::names::split;
use crate::open::Opened;
use kedge_host::embed::Outcome;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// A tree, as Python shows it.
pub(crate) struct Tree {
    pub(crate) path: OsString,
    pub(crate) read_only: bool,
    pub(crate) created: i64,
    pub(crate) inodes: u64,
}

pub(crate) fn fork(opened: &Opened, from: &Path, to: &Path, read_only: bool) -> Outcome<()> {
    let (above, name) = split(to)?;
    let (source, dir) = (opened.root().resolve(from)?, opened.root().dir(above)?.ino());
    opened.fs().fork(source, dir, name.as_bytes(), read_only)?;
    Ok(())
}

pub(crate) fn delete(opened: &Opened, path: &Path) -> Outcome<()> {
    let (above, name) = split(path)?;
    Ok(opened.fs().delete_tree(opened.root().dir(above)?.ino(), name.as_bytes())?)
}

pub(crate) fn rename(opened: &Opened, from: &Path, to: &Path) -> Outcome<()> {
    let ((from, name), (to, new_name)) = (split(from)?, split(to)?);
    let (from, to) = (opened.root().dir(from)?.ino(), opened.root().dir(to)?.ino());
    Ok(opened.fs().rename_tree(from, name.as_bytes(), to, new_name.as_bytes())?)
}

/// Whether the path is that of the root.
fn is_root(path: &Path) -> bool {
    path.has_root() && path.components().count() == 1
}

/// Replaces the tree at `tree` by a new fork of `source`.
pub(crate) fn roll_back(opened: &Opened, source: &Path, tree: &Path) -> Outcome<()> {
    let source = opened.root().resolve(source)?;
    if is_root(tree) {
        return Ok(opened.fs().roll_back_root(source)?);
    }
    let (above, name) = split(tree)?;
    opened.fs().roll_back(source, opened.root().dir(above)?.ino(), name.as_bytes())?;
    Ok(())
}

/// Moves the fork to the path of `tree`, which it replaces.
pub(crate) fn commit(opened: &Opened, fork: &Path, tree: &Path, force: bool) -> Outcome<()> {
    let fork = opened.root().resolve(fork)?;
    if is_root(tree) {
        return Ok(opened.fs().commit_root(fork, force)?);
    }
    let (above, name) = split(tree)?;
    let dir = opened.root().dir(above)?.ino();
    Ok(opened.fs().commit_tree(fork, dir, name.as_bytes(), force)?)
}

pub(crate) fn all(opened: &Opened) -> Outcome<Vec<Tree>> {
    let mut trees = Vec::new();
    for info in opened.fs().trees() {
        let mut path = match info.name.is_empty() {
            true => Vec::new(),
            false => match opened.fs().path_of(info.dir) {
                Ok(path) => path,
                // The tree was removed after the list was made.
                Err(kedgefs::Error::NotFound) => continue,
                Err(e) => return Err(e.into()),
            },
        };
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend(&info.name);
        trees.push(Tree {
            path: OsString::from_vec(path),
            read_only: info.read_only,
            created: info.created,
            inodes: info.inodes,
        });
    }
    Ok(trees)
}
