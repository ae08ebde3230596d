//! Which images are mounted where, by `/proc/self/mountinfo`.

use crate::loopdev;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// `major:minor` of the file system.
    pub device: String,
    pub dir: PathBuf,
    /// File system type, with the subtype behind a dot.
    pub kind: String,
    pub source: PathBuf,
}

impl MountEntry {
    /// Is it one of ours?
    pub fn is_kedgefs(&self) -> bool {
        matches!(self.kind.as_str(), "fuseblk.kedgefs" | "fuse.kedgefs")
    }

    /// The image behind it.
    pub fn image(&self) -> PathBuf {
        loopdev::backing_file(&self.source).unwrap_or_else(|| self.source.clone())
    }
}

/// All mounts that this process sees.
pub fn mounts() -> Vec<MountEntry> {
    match std::fs::read("/proc/self/mountinfo") {
        Ok(table) => table.split(|&b| b == b'\n').filter_map(parse).collect(),
        Err(e) => {
            tracing::warn!("/proc/self/mountinfo: {e}");
            Vec::new()
        }
    }
}

/// The mounts of an image, named by its canonical path.
pub fn mounts_of(image: &Path) -> Vec<MountEntry> {
    mounts().into_iter().filter(|entry| entry.is_kedgefs() && entry.image() == image).collect()
}

/// The topmost mount on a directory, named by its canonical path.
pub fn mount_at(dir: &Path) -> Option<MountEntry> {
    mounts().into_iter().rfind(|entry| entry.dir == dir)
}

/// `id parent major:minor root dir options [tags...] - type source superoptions`
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let device = fields.nth(2)?;
    let dir = fields.nth(1)?;
    let mut behind_dash = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = behind_dash.next()?;
    let source = behind_dash.next()?;
    Some(MountEntry {
        device: String::from_utf8_lossy(device).into_owned(),
        dir: path(dir),
        kind: String::from_utf8_lossy(kind).into_owned(),
        source: path(source),
    })
}

/// Undoes `\ooo`, which stands for blanks, tabs, line ends and backslashes.
fn path(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, behind)) = rest.split_first() {
        let code = behind.get(..3).filter(|d| first == b'\\' && d.iter().all(|d| (b'0'..b'8').contains(d)));
        match code {
            Some(digits) => {
                bytes.push(digits.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')));
                rest = &behind[3..];
            }
            None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
#[path = "mountinfo_tests.rs"]
mod tests;
