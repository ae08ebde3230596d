//! Names of databases: `IMAGE:/PATH`, as in the commands of `kedge`.

use crate::error::{Outcome, Refused};
use kedge_device::Location;
use kedgefs::{Dir, FileKind};
use libsqlite3_sys::SQLITE_CANTOPEN;
use std::ffi::CStr;
use std::io::ErrorKind;
use std::path::Path;

/// The name of the VFS.
pub(crate) const VFS: &CStr = c"kedgefs";
/// The separator between the image and the path in the image.
const BETWEEN: &str = ":/";
/// The longest name in bytes for which SQLite reserves memory.
pub(crate) const NAME_MAX: usize = 4096;
/// The most bytes that SQLite appends to the name of a database.
const SUFFIX_MAX: usize = "-journal".len() + "-mj00000000".len();

/// The most symbolic links that one name may follow, as in a path lookup of the library.
const LINKS_MAX: u32 = 40;

/// A file in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// The location of the image, valid in every working directory.
    pub(crate) image: String,
    /// The path in the image, from its root.
    pub(crate) path: String,
}

impl Name {
    /// Parses the name of a file that SQLite passes. If the name has no image, `apart` names the
    /// image: the parameter `image` of the URI, or the environment variable.
    pub(crate) fn parse(text: &str, apart: Option<&str>) -> Outcome<Name> {
        let wrong = |why: &str| Refused::new(SQLITE_CANTOPEN, format!("{text}: {why}"));
        let (image, path) = match text.rfind(BETWEEN).map(|at| (&text[..at], &text[at + 1..])) {
            Some((image, path)) if !image.is_empty() => (image, path.to_owned()),
            _ => {
                let image = apart.filter(|image| !image.is_empty()).ok_or_else(|| {
                    wrong("no image is named: use IMAGE:/PATH, the parameter image, or KEDGEFS_SQLITE_IMAGE")
                })?;
                (image, format!("/{}", text.trim_start_matches('/')))
            }
        };
        let absolute = Location::parse(Path::new(image)).and_then(Location::absolute);
        let image = absolute.map_err(|e| wrong(&e.to_string()))?.to_string();
        Name { image, path }.checked(text)
    }

    /// Returns the name if SQLite can use it. `text` is the name in the text of an error.
    fn checked(self, text: &str) -> Outcome<Name> {
        let wrong = |why: &str| Refused::new(SQLITE_CANTOPEN, format!("{text}: {why}"));
        let name = self;
        if name.path.is_empty() || name.path.ends_with('/') {
            return Err(wrong("the path in the image names no file"));
        }
        if name.to_string().len() + SUFFIX_MAX > NAME_MAX {
            return Err(wrong("the name is too long"));
        }
        if Name::parse_full(&name.to_string()).is_none_or(|again| again != name) {
            return Err(wrong("the path in the image has a component that ends with a colon"));
        }
        Ok(name)
    }

    /// Follows the symbolic links in the path, and returns the name without them and whether there
    /// was one. SQLite derives the names of the journal and the WAL from the name of the database,
    /// so all paths to a database must give one name: otherwise a connection would not find the
    /// transactions in the WAL, or the hot journal, of a connection by another path. The file need
    /// not exist.
    pub(crate) fn resolved(&self, root: &Dir) -> Outcome<(Name, bool)> {
        let text = self.to_string();
        let wrong = |why: &str| Refused::new(SQLITE_CANTOPEN, format!("{text}: {why}"));
        // The components that are left, in reverse order.
        let mut left: Vec<String> = self.path.rsplit('/').map(str::to_owned).collect();
        let (mut path, mut links) = (String::new(), 0);
        while let Some(component) = left.pop() {
            let above = path.len();
            match &*component {
                "" | "." => continue,
                ".." => {
                    path.truncate(path.rfind('/').unwrap_or(0));
                    continue;
                }
                _ => path.extend(["/", &*component]),
            }
            match root.symlink_metadata(&path) {
                Ok(attr) if attr.kind == FileKind::Symlink => {}
                Ok(_) => continue,
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => continue,
                Err(e) => return Err(Refused::io(SQLITE_CANTOPEN, &text, &e)),
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(wrong("too many levels of symbolic links"));
            }
            let target = root.read_link(&path).map_err(|e| Refused::io(SQLITE_CANTOPEN, &text, &e))?;
            let target = target.to_str().ok_or_else(|| wrong("the target of a symbolic link is no UTF-8"))?;
            path.truncate(if target.starts_with('/') { 0 } else { above });
            left.extend(target.rsplit('/').map(str::to_owned));
        }
        let name = Name { image: self.image.clone(), path }.checked(&text)?;
        Ok((name, links > 0))
    }

    /// Parses a name that [`Name`] has formatted.
    fn parse_full(text: &str) -> Option<Name> {
        let at = text.rfind(BETWEEN)?;
        Some(Name { image: text[..at].to_owned(), path: text[at + 1..].to_owned() })
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.image, self.path)
    }
}

#[cfg(test)]
#[path = "name_tests.rs"]
mod tests;
