//! `kedge mkdir` and `rm`: change an image that is not mounted, without FUSE and without privilege.
//!
//! The image is opened as a mount would open it, and closed before the command succeeds, so the
//! changes are durable then. One operation of the engine removes or makes each name, so a crash
//! leaves the state between two such operations.

use crate::import;
use crate::inside::{Inside, entries, inside};
use anyhow::{Context, Result, bail};
use kedge_host::{Usage, engine};
use kedgefs::{Error, FileKind, FileSystem, Ino, Owner};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct MkdirArgs {
    /// Also make the directories above it; no error if it exists
    #[arg(short, long)]
    parents: bool,
    /// A directory in an image
    #[arg(value_name = "IMAGE:/DIR", value_parser = inside())]
    place: Inside,
}

#[derive(clap::Args, Debug)]
pub struct RmArgs {
    /// Remove directories with all their contents
    #[arg(short, long)]
    recursive: bool,
    /// A file in an image
    #[arg(value_name = "IMAGE:/PATH", value_parser = inside())]
    place: Inside,
}

/// Opens the image, changes it and closes it.
fn change(place: &Inside, what: impl FnOnce(&FileSystem) -> Result<()>) -> Result<ExitCode> {
    place.refuse_mounted()?;
    let fs = engine::open_to_change(place.image())?;
    let changed = what(&fs);
    let closed = fs.close().with_context(|| format!("close {}", place.image().display()));
    changed.and(closed)?;
    Ok(ExitCode::SUCCESS)
}

/// The names of the path; there must be one.
fn names(place: &Inside) -> Result<Vec<&[u8]>> {
    let names = place.names()?;
    if names.is_empty() {
        return Err(Usage(format!("{}: the root cannot be made or removed", place.show())).into());
    }
    Ok(names)
}

pub fn mkdir(args: MkdirArgs) -> Result<ExitCode> {
    let names = names(&args.place)?;
    change(&args.place, |fs| {
        let mut dir = Ino::ROOT;
        for (i, name) in names.iter().enumerate() {
            let is_last = i + 1 == names.len();
            dir = match fs.lookup(dir, name) {
                Ok(_) if is_last && !args.parents => bail!("{}: is there already", args.place.show()),
                Ok(attr) if import::is_dir(&attr) => attr.ino,
                Ok(_) => bail!("{}: leads through something that is no directory", args.place.show()),
                Err(Error::NotFound) if is_last || args.parents => {
                    let made = fs.mkdir(dir, name, 0o755, me());
                    made.with_context(|| args.place.show())?.ino
                }
                Err(e) => return Err(e).with_context(|| args.place.show()),
            };
        }
        Ok(())
    })
}

/// The user and group that run the command.
pub fn me() -> Owner {
    Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

pub fn rm(args: RmArgs) -> Result<ExitCode> {
    let mut names = names(&args.place)?;
    let name = names.pop().expect("there is one");
    change(&args.place, |fs| {
        let dir = args.place.walk(fs, &names)?;
        let attr = fs.lookup(dir.ino, name).with_context(|| args.place.show())?;
        match attr.kind {
            FileKind::Directory if !args.recursive => {
                bail!("{}: is a directory; -r removes it with all its contents", args.place.show())
            }
            FileKind::Directory => remove_tree(fs, dir.ino, name, attr.ino),
            _ => Ok(fs.unlink(dir.ino, name)?),
        }
        .with_context(|| args.place.show())
    })
}

/// Removes a tree depth first, without recursion, because an image may have directories of any
/// depth.
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
