//! Path lookup as in the kernel: one name after another, through symbolic links.

use crate::api::FileSystem;
use crate::error::{Error, Result};
use crate::types::Attr;
use kedge_base::Ino;
use kedge_format::FileKind;

/// The most symbolic links that one path may follow, as in Linux.
const LINKS_MAX: u32 = 40;

/// The result of a path lookup.
pub(super) struct Found {
    /// The directory that contains, or would contain, the last name.
    pub dir: Ino,
    /// The last name. Empty if the path ends with `/`, `.` or `..`, and so not with the name of an
    /// inode.
    pub name: Vec<u8>,
    /// The attributes of the inode that the path names; `None` if the last name does not exist.
    pub attr: Option<Attr>,
}

impl Found {
    pub(super) fn attr(self) -> Result<Attr> {
        self.attr.ok_or(Error::NotFound)
    }

    /// Fails with the error `without` if the path does not end with a name.
    pub(super) fn named(self, without: Error) -> Result<Found> {
        if self.name.is_empty() { Err(without) } else { Ok(self) }
    }
}

/// Pushes the names of a path in reverse order, so that they are popped in order. A `/` at the end
/// becomes a `.`, since the name before it must be that of a directory.
fn push(left: &mut Vec<Vec<u8>>, path: &[u8]) {
    if path.ends_with(b"/") {
        left.push(b".".to_vec());
    }
    let names = path.split(|b| *b == b'/').filter(|name| !name.is_empty());
    left.extend(names.rev().map(<[u8]>::to_vec));
}

/// Resolves a path from `start`. `follow`: a symbolic link at the end is followed too.
///
/// An absolute path, given by the caller or by a link, starts at the root of the image. `..` in the
/// root is the root.
pub(super) fn walk(fs: &FileSystem, start: Ino, path: &[u8], follow: bool) -> Result<Found> {
    if path.is_empty() {
        return Err(Error::NotFound);
    }
    let from = |path: &[u8], here| if path.starts_with(b"/") { Ino::ROOT } else { here };
    let mut left = Vec::new();
    push(&mut left, path);
    let mut here = from(path, start);
    let mut links = 0;
    while let Some(name) = left.pop() {
        if name == b"." || name == b".." {
            here = fs.lookup(here, &name)?.ino;
            continue;
        }
        let is_last = left.is_empty();
        let attr = match fs.lookup(here, &name) {
            Err(Error::NotFound) if is_last => return Ok(Found { dir: here, name, attr: None }),
            found => found?,
        };
        if attr.kind == FileKind::Symlink && (follow || !is_last) {
            links += 1;
            if links > LINKS_MAX {
                return Err(Error::TooManySymlinks);
            }
            let target = fs.readlink(attr.ino)?;
            push(&mut left, &target);
            here = from(&target, here);
        } else if is_last {
            return Ok(Found { dir: here, name, attr: Some(attr) });
        } else if attr.kind == FileKind::Directory {
            here = attr.ino;
        } else {
            return Err(Error::NotDirectory);
        }
    }
    Ok(Found { dir: here, name: Vec::new(), attr: Some(fs.getattr(here)?) })
}
