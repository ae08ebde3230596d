//! Makes and removes names in an image that is not mounted, without FUSE and without privilege.
//!
//! The image is opened as a mount would open it, and closed before the command returns success, so
//! the changes are durable by then. Each name is made or removed by one operation of the engine, so
//! a crash leaves the state between two such operations.

use crate::import;
use crate::offline::{ImagePath, caller, entries};
use anyhow::{Context, Result, bail};
use kedge_host::{Usage, engine};
use kedgefs::{Error, FileKind, FileSystem, Ino};

/// Opens the image, changes it and closes it.
pub(crate) fn change(place: &ImagePath, what: impl FnOnce(&FileSystem) -> Result<()>) -> Result<()> {
    place.refuse_mounted()?;
    let fs = engine::open_to_change(place.image())?;
    let changed = what(&fs);
    let closed = fs.close().with_context(|| format!("close {}", place.image().display()));
    changed.and(closed)
}

/// The names of the path. Fails if the path has none.
pub(crate) fn names(place: &ImagePath) -> Result<Vec<&[u8]>> {
    let names = place.names()?;
    if names.is_empty() {
        return Err(Usage(format!("{}: the root cannot be made or removed", place.show())).into());
    }
    Ok(names)
}

/// Makes a directory. With `parents` also its missing ancestors, and it may exist already.
pub fn mkdir(place: &ImagePath, parents: bool) -> Result<()> {
    let names = names(place)?;
    change(place, |fs| {
        let mut dir = Ino::ROOT;
        for (i, name) in names.iter().enumerate() {
            let is_last = i + 1 == names.len();
            dir = match fs.lookup(dir, name) {
                Ok(_) if is_last && !parents => bail!("{}: is there already", place.show()),
                Ok(attr) if import::is_dir(&attr) => attr.ino,
                Ok(_) => bail!("{}: leads through something that is no directory", place.show()),
                Err(Error::NotFound) if is_last || parents => {
                    let made = fs.mkdir(dir, name, 0o755, caller());
                    made.with_context(|| place.show())?.ino
                }
                Err(e) => return Err(e).with_context(|| place.show()),
            };
        }
        Ok(())
    })
}

/// Removes a file, or with `recursive` a directory and its contents.
pub fn rm(place: &ImagePath, recursive: bool) -> Result<()> {
    let mut names = names(place)?;
    let name = names.pop().expect("`names` returns at least one");
    change(place, |fs| {
        let dir = place.walk(fs, &names)?;
        let attr = fs.lookup(dir.ino, name).with_context(|| place.show())?;
        match attr.kind {
            FileKind::Directory if !recursive => {
                bail!("{}: is a directory; -r removes it with all it holds", place.show())
            }
            FileKind::Directory => remove_tree(fs, dir.ino, name, attr.ino),
            _ => Ok(fs.unlink(dir.ino, name)?),
        }
        .with_context(|| place.show())
    })
}

/// Removes a directory and its contents depth first, without recursion, because directories of an
/// image may nest to any depth.
fn remove_tree(fs: &FileSystem, dir: Ino, name: &[u8], top: Ino) -> Result<()> {
    // Each entry: the parent directory, the name, the directory itself.
    let mut left = vec![(dir, name.to_vec(), top)];
    while let Some((above, name, here)) = left.last().cloned() {
        let mut below = Vec::new();
        for (name, ino) in entries(fs, here)? {
            if import::is_dir(&fs.getattr(ino)?) {
                below.push((here, name, ino));
            } else {
                fs.unlink(here, &name).with_context(|| String::from_utf8_lossy(&name).into_owned())?;
            }
        }
        if below.is_empty() {
            fs.rmdir(above, &name).with_context(|| String::from_utf8_lossy(&name).into_owned())?;
            left.pop();
        } else {
            left.append(&mut below);
        }
    }
    Ok(())
}
