//! `kedge snapshot`: snapshots and forks, mounted or not.
//!
//! On a mount the serving process does the work: an ioctl on the directory that names the tree. A
//! tree is renamed by rename(2), like any directory. An image that is not mounted is opened here.

use crate::places::{mixed, place};
use anyhow::{Context, Result, anyhow, bail};
use kedge_base::{Ino, printable_name};
use kedge_host::mounts;
use kedge_host::text::{date, show_size};
use kedge_transfer::copy::Place;
use kedge_transfer::trees;
use rustix::fs::{AtFlags, RenameFlags, renameat_with};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// Make a copy of a tree that cannot be changed
    Create {
        /// The root of a mount, or a fork or snapshot in it; or IMAGE:/PATH of an image that is
        /// not mounted
        #[arg(value_parser = place())]
        source: Place,
        /// The directory to make, in the same mount or image
        #[arg(value_parser = place())]
        target: Place,
    },
    /// List the trees of a mount or an image
    List {
        /// What each takes that no other does, too. Reads the nodes that are its own
        #[arg(long)]
        space: bool,
        /// One JSON object for each tree and line
        #[arg(long)]
        json: bool,
        /// A mount point, or an image that is not mounted
        image: PathBuf,
    },
    /// Give a fork or snapshot another name in the same mount or image
    Rename {
        #[arg(value_parser = place())]
        from: Place,
        #[arg(value_parser = place())]
        to: Place,
    },
    /// Replace a fork, or the root of a mount or image, by a new fork of a snapshot. What was there
    /// is deleted
    Rollback {
        /// The snapshot, or another tree
        #[arg(value_parser = place())]
        snapshot: Place,
        /// The fork to replace, or the root, in the same mount or image
        #[arg(value_parser = place())]
        fork: Place,
    },
    /// Replace the tree from which a fork was made by the fork
    Commit {
        /// Also if the tree was changed since it was forked
        #[arg(long)]
        force: bool,
        /// The fork, whose own name is gone afterwards
        #[arg(value_parser = place())]
        fork: Place,
        /// The tree to replace: a fork too, or the root, in the same mount or image
        #[arg(value_parser = place())]
        tree: Place,
    },
    /// Delete forks or snapshots with all they hold. Their space is freed in the background
    Delete {
        #[arg(value_parser = place(), required = true)]
        places: Vec<Place>,
    },
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.what {
        What::Create { source, target } => make(&source, &target, true)?,
        What::List { space, json, image } => list(&image, space, json)?,
        What::Rename { from: Place::Image(from), to: Place::Image(to) } => trees::rename(&from, &to)?,
        What::Rename { from: Place::Host(from), to: Place::Host(to) } => rename(&from, &to)?,
        What::Rename { .. } => return Err(mixed()),
        What::Rollback { snapshot, fork } => match (&snapshot, &fork) {
            (Place::Image(snapshot), Place::Image(fork)) => trees::roll_back(snapshot, fork)?,
            (Place::Host(snapshot), Place::Host(fork)) => {
                replace(snapshot, fork, |dir, ino, name| kedge_fuse::roll_back(dir, ino, name))?;
            }
            _ => return Err(mixed()),
        },
        What::Commit { force, fork, tree } => match (&fork, &tree) {
            (Place::Image(fork), Place::Image(tree)) => trees::commit(fork, tree, force)?,
            (Place::Host(fork), Place::Host(tree)) => {
                replace(fork, tree, |dir, ino, name| kedge_fuse::commit_tree(dir, ino, name, force))?;
            }
            _ => return Err(mixed()),
        },
        What::Delete { places } => places.iter().try_for_each(|place| match place {
            Place::Image(path) => trees::delete(path),
            Place::Host(path) => delete(path),
        })?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a fork, or a snapshot.
pub fn make(source: &Place, target: &Place, read_only: bool) -> Result<()> {
    match (source, target) {
        (Place::Image(source), Place::Image(target)) => trees::fork(source, target, read_only),
        (Place::Host(source), Place::Host(target)) => fork(source, target, read_only),
        _ => Err(mixed()),
    }
}

/// Opens a directory of a mount.
fn open(dir: &Path) -> Result<File> {
    open_for(dir, dir)
}

/// Opens a directory of a mount. An error names `path`, which the user has given.
fn open_for(dir: &Path, path: &Path) -> Result<File> {
    let file = File::open(dir).with_context(|| format!("open {}", dir.display()))?;
    let mount =
        kedge_fuse::mount_of(&file).with_context(|| format!("find the mount of {}", dir.display()))?;
    if !mount.is_some_and(|mount| mount.is_kedgefs()) {
        bail!("{} is not in a mount of KedgeFS", path.display());
    }
    Ok(file)
}

/// Opens the parent directory of `path`. Returns it with the last component of `path`.
fn open_parent(path: &Path) -> Result<(File, &[u8])> {
    let name = path.file_name().with_context(|| format!("{} has no name", path.display()))?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((open_for(dir, path)?, name.as_bytes()))
}

/// Opens the directory if it is the root of a mount of KedgeFS.
fn root_of_mount(dir: &Path) -> Result<Option<File>> {
    let is_root = std::fs::metadata(dir).is_ok_and(|at| at.is_dir() && at.ino() == Ino::ROOT.0);
    if !is_root {
        return Ok(None);
    }
    let file = File::open(dir).with_context(|| format!("open {}", dir.display()))?;
    let mount =
        kedge_fuse::mount_of(&file).with_context(|| format!("find the mount of {}", dir.display()))?;
    Ok(Some(file).filter(|_| mount.is_some_and(|mount| mount.is_kedgefs())))
}

/// Checks that the tree at `source` can be copied to `at`, the directory and name of `target`.
/// Returns `at` with the inode number of the root of the source.
fn two<'a>(source: &Path, target: &Path, at: (File, &'a [u8])) -> Result<(File, u64, &'a [u8])> {
    let from = open(source)?;
    let (dir, name) = at;
    let at = from.metadata().with_context(|| format!("read {}", source.display()))?;
    if !at.is_dir() {
        bail!("{} is not a directory", source.display());
    }
    if at.dev() != dir.metadata().with_context(|| format!("read {}", target.display()))?.dev() {
        bail!("{} and {} are in two mounts", source.display(), target.display());
    }
    // Flush the kernel's dirty pages of the source. The serving process adds its own dirty data to
    // the tree.
    rustix::fs::syncfs(&from).with_context(|| format!("write what is cached of {}", source.display()))?;
    Ok((dir, at.ino(), name))
}

fn no_tree(source: &Path) -> anyhow::Error {
    anyhow!("{} is not the root of a tree: the root of a mount, forks and snapshots are", source.display())
}

fn replace(
    source: &Path,
    target: &Path,
    call: impl FnOnce(&File, u64, &[u8]) -> io::Result<()>,
) -> Result<()> {
    let root = root_of_mount(target)?;
    let is_root = root.is_some();
    let place = root.map_or_else(|| open_parent(target), |root| Ok((root, &b""[..])))?;
    let (dir, ino, name) = two(source, target, place)?;
    call(&dir, ino, name).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOTEMPTY) if is_root => anyhow!(
            "{}: a tree that is named in it would lose its place, because {} has no such directory or \
             something else there: rename or delete that tree first",
            target.display(),
            source.display()
        ),
        Some(libc::EOPNOTSUPP) if is_root => anyhow!(
            "replace {}: not on a mount of one tree, with a keeper, or beside NFS",
            target.display()
        ),
        Some(libc::EINVAL) if source == target => anyhow!("{} cannot replace itself", target.display()),
        Some(libc::EINVAL) => no_tree(source),
        Some(libc::ENOENT) => anyhow!("{} is not a fork or a snapshot", target.display()),
        Some(libc::ENOTEMPTY) => anyhow!("{}: other trees are in it", target.display()),
        Some(libc::EBUSY) => anyhow!(
            "{} was changed since it was forked, and --force replaces it all the same; or the mount is frozen",
            target.display()
        ),
        _ => refused("replace", target, e),
    })
}

fn fork(source: &Path, target: &Path, read_only: bool) -> Result<()> {
    let (dir, ino, name) = two(source, target, open_parent(target)?)?;
    kedge_fuse::fork(&dir, ino, name, read_only).map_err(|e| match e.raw_os_error() {
        Some(libc::EINVAL) => no_tree(source),
        Some(libc::EEXIST) => anyhow!("{} is there already", target.display()),
        _ => refused("fork", source, e),
    })
}

fn delete(path: &Path) -> Result<()> {
    let (dir, name) = open_parent(path)?;
    kedge_fuse::delete_tree(&dir, name).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOENT) if path.exists() => anyhow!("{} is not a fork or a snapshot", path.display()),
        Some(libc::ENOTEMPTY) => anyhow!("{}: other trees are in it", path.display()),
        _ => refused("delete", path, e),
    })
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    let ((dir, name), (new_dir, new_name)) = (open_parent(from)?, open_parent(to)?);
    let at = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .with_context(|| format!("read {}", from.display()))?;
    let ino = Ino(at.st_ino);
    if ino.tree() == 0 || ino.local() != Ino::ROOT {
        bail!("{} is not a fork or a snapshot", from.display());
    }
    renameat_with(&dir, name, &new_dir, new_name, RenameFlags::NOREPLACE)
        .map_err(|e| match e {
            rustix::io::Errno::EXIST => anyhow!("{} is there already", to.display()),
            e => e.into(),
        })
        .with_context(|| format!("rename {}", from.display()))
}

fn refused(what: &str, path: &Path, e: io::Error) -> anyhow::Error {
    match e.raw_os_error() {
        Some(libc::EPERM) => {
            anyhow!("{what} {}: only root and the owner of the mount may do that", path.display())
        }
        Some(libc::EBUSY) => anyhow!("{what} {}: the mount is frozen", path.display()),
        Some(libc::ENOTTY | libc::EOPNOTSUPP) => {
            anyhow!("{what} {}: the serving process is of an earlier version", path.display())
        }
        _ => anyhow::Error::from(e).context(format!("{what} {}", path.display())),
    }
}

fn list(image: &Path, space: bool, json: bool) -> Result<()> {
    let rows = match image.is_dir() {
        true => list_mounted(image, space)?,
        false => match mounts::of_image(image)? {
            Some(mount) => list_mounted(&mount.dir, space)?,
            None => list_image(image, space)?,
        },
    };
    let mut out = io::stdout().lock();
    if json {
        for row in rows {
            writeln!(out, "{row}")?;
        }
        return Ok(());
    }
    for row in rows {
        let kind = match (row["tree"].as_u64(), row["read_only"].as_bool()) {
            (Some(0), _) => "first",
            (_, Some(true)) => "snapshot",
            _ => "fork",
        };
        let made = match row["created"].as_i64() {
            Some(0) | None => "-".into(),
            Some(seconds) => date(seconds),
        };
        write!(out, "{kind:8} {made:20} {:>10} files ", row["inodes"])?;
        if let Some(own) = row["own_data"].as_u64().zip(row["own_nodes"].as_u64()) {
            write!(out, "{:>12} ", show_size(own.0 + own.1))?;
        }
        let path = row["path"].as_str().unwrap_or("?");
        out.write_all(&printable_name(path.as_bytes()))?;
        writeln!(out)?;
    }
    Ok(())
}

fn list_image(image: &Path, space: bool) -> Result<Vec<Value>> {
    let row = |tree: trees::Listed| {
        let mut row = json!({
            "tree": tree.info.root.tree(),
            "path": tree.path.map(|path| String::from_utf8_lossy(&path).into_owned()),
            "read_only": tree.info.read_only,
            "created": tree.info.created,
            "inodes": tree.info.inodes,
        });
        if let Some(space) = tree.space {
            row["own_data"] = space.own_data.into();
            row["own_nodes"] = space.own_nodes.into();
        }
        row
    };
    Ok(trees::list(image, space)?.into_iter().map(row).collect())
}

fn list_mounted(dir: &Path, space: bool) -> Result<Vec<Value>> {
    let read = |name: String| -> Result<Value> {
        let text = mounts::attribute(dir, &name)?;
        serde_json::from_str(&text).with_context(|| format!("read {name} of {}", dir.display()))
    };
    let (mut rows, mut from) = (Vec::new(), 0);
    while let Value::Array(part) = read(format!("{}{from}", mounts::XATTR_TREES))?
        && let Some(last) = part.last().and_then(|row| row["tree"].as_u64())
    {
        rows.extend(part);
        from = last + 1;
    }
    if space {
        for row in &mut rows {
            let of = read(format!("{}{}", mounts::XATTR_TREE, row["tree"]))?;
            row["own_data"] = of["own_data"].clone();
            row["own_nodes"] = of["own_nodes"].clone();
        }
    }
    Ok(rows)
}
