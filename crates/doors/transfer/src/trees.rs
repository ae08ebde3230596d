//! Forks, deletes, compares, sends and receives trees of an image that is not mounted: see
//! `kedgefs::FileSystem::fork`.

use crate::change::{change, names};
use crate::diff::{self, Differences};
use crate::offline::ImagePath;
use crate::{receive, send};
use anyhow::{Context, Result, bail};
use kedge_host::{Usage, engine};
use kedgefs::{Error, FileSystem, Ino, TreeInfo, TreeSpace};
use std::io::{Read, Write};
use std::path::Path;

/// A tree, and its path in the image.
pub struct Listed {
    pub info: TreeInfo,
    /// `None` if no path leads to the tree, because a directory above it was removed.
    pub path: Option<Vec<u8>>,
    pub space: Option<TreeSpace>,
}

/// Returns the directory that contains the last name, and the name.
fn parent<'a>(fs: &FileSystem, place: &'a ImagePath) -> Result<(Ino, &'a [u8])> {
    let mut names = names(place)?;
    let name = names.pop().expect("`names` returns at least one");
    Ok((place.walk(fs, &names)?.ino, name))
}

fn same_image(a: &ImagePath, b: &ImagePath) -> Result<()> {
    if a.image() != b.image() {
        return Err(Usage(format!("{} and {} are in two images", a.show(), b.show())).into());
    }
    Ok(())
}

pub fn fork(source: &ImagePath, target: &ImagePath, read_only: bool) -> Result<()> {
    same_image(source, target)?;
    change(target, |fs| {
        let from = source.find(fs)?.ino;
        let (dir, name) = parent(fs, target)?;
        match fs.fork(from, dir, name, read_only) {
            Ok(_) => Ok(()),
            Err(Error::Exists) => bail!("{}: is there already", target.show()),
            Err(Error::Invalid(why)) => bail!("{}: {why}", source.show()),
            Err(e) => Err(e).with_context(|| format!("fork {}", source.show())),
        }
    })
}

/// Returns the differences between two trees of an image.
pub fn diff(before: &ImagePath, after: &ImagePath) -> Result<Differences> {
    same_image(before, after)?;
    let fs = before.open()?;
    let roots = [root(&fs, before)?, root(&fs, after)?];
    let found = diff::between(&fs, roots[0], roots[1], &|| Ok(()));
    found.with_context(|| format!("compare {} and {}", before.show(), after.show()))
}

/// Returns the root of the tree at `place`. Fails if `place` is not such a root.
fn root(fs: &FileSystem, place: &ImagePath) -> Result<Ino> {
    let ino = place.find(fs)?.ino;
    check_root(fs, ino).with_context(|| place.show())?;
    Ok(ino)
}

/// Refuses a directory that is not the root of a tree.
pub(crate) fn check_root(fs: &FileSystem, ino: Ino) -> Result<()> {
    if ino != Ino::ROOT && !fs.trees().iter().any(|tree| tree.root == ino) {
        bail!("not the root of a tree: the root of an image, forks and snapshots are");
    }
    Ok(())
}

/// Writes a snapshot as a stream.
pub fn send(
    snapshot: &ImagePath,
    base: Option<&ImagePath>,
    out: impl Write,
    options: &send::Options,
) -> Result<()> {
    base.map_or(Ok(()), |base| same_image(base, snapshot))?;
    let fs = snapshot.open()?;
    let tree = root(&fs, snapshot)?;
    let base = base.map(|base| root(&fs, base)).transpose()?;
    send::send(&fs, tree, base, out, options).with_context(|| format!("send {}", snapshot.show()))
}

/// Makes a snapshot from a stream.
pub fn receive(target: &ImagePath, input: impl Read, resume: bool) -> Result<()> {
    change(target, |fs| {
        let (dir, name) = parent(fs, target)?;
        let received = receive::receive(fs, dir, Some(name), input, resume, &|_| {});
        // Reclaims after an error too: the next attempt may need the space that this one has used.
        let freed = fs.reclaim().context("free what is not needed any more");
        received.with_context(|| format!("receive {}", target.show()))?;
        freed
    })
}

/// What `kedge send` needs to go on with an interrupted transfer; `None` if there is none.
pub fn rest(target: &ImagePath) -> Result<Option<receive::Rest>> {
    let fs = target.open()?;
    let (dir, name) = parent(&fs, target)?;
    Ok(receive::partial(&fs, dir, name)?.map(|partial| partial.rest(&fs)))
}

/// Deletes the unfinished trees of an interrupted transfer.
pub fn forget_partial(target: &ImagePath) -> Result<()> {
    change(target, |fs| {
        let (dir, name) = parent(fs, target)?;
        receive::forget(fs, dir, name, &|_| {})?;
        fs.reclaim().context("free what is not needed any more")
    })
}

/// Deletes a tree, and waits until its space is free.
pub fn delete(place: &ImagePath) -> Result<()> {
    change(place, |fs| {
        let (dir, name) = parent(fs, place)?;
        if fs.tree_named(dir, name).is_none() {
            fs.lookup(dir, name).with_context(|| place.show())?;
            bail!("{}: is not a fork or a snapshot", place.show());
        }
        match fs.delete_tree(dir, name) {
            Err(Error::NotEmpty) => bail!("{}: other trees are in it", place.show()),
            deleted => deleted.with_context(|| place.show())?,
        }
        fs.reclaim().with_context(|| format!("free what {} had", place.show()))
    })
}

/// Replaces the tree at `target` by a fork of the tree at `source`, and waits until the space of
/// the old tree is free.
pub fn roll_back(source: &ImagePath, target: &ImagePath) -> Result<()> {
    same_image(source, target)?;
    change(target, |fs| {
        let from = source.find(fs)?.ino;
        if target.names()?.is_empty() {
            root_replaced(fs.roll_back_root(from), source, target)?;
        } else {
            let (dir, name) = parent(fs, target)?;
            replaced(fs.roll_back(from, dir, name).map(drop), source, target)?;
        }
        fs.reclaim().with_context(|| format!("free what {} had", target.show()))
    })
}

/// Replaces the tree at `target` by the tree at `fork`. Unless `force`, fails if the target was
/// changed since the fork.
pub fn commit(fork: &ImagePath, target: &ImagePath, force: bool) -> Result<()> {
    same_image(fork, target)?;
    change(target, |fs| {
        let from = fork.find(fs)?.ino;
        if target.names()?.is_empty() {
            root_replaced(fs.commit_root(from, force), fork, target)?;
        } else {
            let (dir, name) = parent(fs, target)?;
            replaced(fs.commit_tree(from, dir, name, force), fork, target)?;
        }
        fs.reclaim().with_context(|| format!("free what {} had", target.show()))
    })
}

/// Like [`replaced`], for the root of the image.
fn root_replaced(done: kedgefs::Result<()>, source: &ImagePath, target: &ImagePath) -> Result<()> {
    match done {
        Err(Error::NotEmpty) => bail!(
            "{}: a tree that is named in it would lose its place, because {} has no such directory or \
             something else there: rename or delete that tree first",
            target.show(),
            source.show()
        ),
        done => replaced(done, source, target),
    }
}

fn replaced(done: kedgefs::Result<()>, source: &ImagePath, target: &ImagePath) -> Result<()> {
    match done {
        Ok(()) => Ok(()),
        Err(Error::Invalid(why)) => bail!("{}: {why}", source.show()),
        Err(Error::NotFound) => bail!("{}: is not a fork or a snapshot", target.show()),
        Err(Error::NotEmpty) => bail!("{}: other trees are in it", target.show()),
        Err(Error::Busy(_)) => {
            bail!("{}: was changed since it was forked; --force replaces it all the same", target.show())
        }
        Err(e) => Err(e).with_context(|| format!("replace {}", target.show())),
    }
}

pub fn rename(from: &ImagePath, to: &ImagePath) -> Result<()> {
    same_image(from, to)?;
    change(from, |fs| {
        let ((dir, name), (new_dir, new_name)) = (parent(fs, from)?, parent(fs, to)?);
        match fs.rename_tree(dir, name, new_dir, new_name) {
            Ok(()) => Ok(()),
            Err(Error::NotFound) => bail!("{}: is not a fork or a snapshot", from.show()),
            Err(Error::Exists) => bail!("{}: is there already", to.show()),
            Err(e) => Err(e).with_context(|| format!("rename {}", from.show())),
        }
    })
}

/// The trees of an image, the first one first. With `space` also the space that each tree uses
/// alone.
pub fn list(image: &Path, space: bool) -> Result<Vec<Listed>> {
    let fs = engine::open_to_read(image)?;
    let list = |info: TreeInfo| {
        let space = if space { Some(fs.tree_space(info.root)?) } else { None };
        Ok(Listed { path: fs.path_of(info.root).ok(), info, space })
    };
    fs.trees().into_iter().map(list).collect::<Result<_>>().with_context(|| image.display().to_string())
}
