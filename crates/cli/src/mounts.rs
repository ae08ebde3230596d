//! What is mounted where, from /proc/self/mountinfo, and what a mount says of itself in extended attributes.

use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// JSON with identity, geometry and options.
pub const XATTR_INFO: &str = "system.kedgefs.info";
/// JSON with all counters.
pub const XATTR_STATS: &str = "system.kedgefs.stats";
/// The serving process, in decimal.
pub const XATTR_PID: &str = "system.kedgefs.pid";

/// Largest value the kernel hands out.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// One line of mountinfo.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    pub dir: PathBuf,
    pub fstype: String,
    pub source: PathBuf,
    pub read_only: bool,
}

impl Mount {
    pub fn is_kedgefs(&self) -> bool {
        matches!(self.fstype.as_str(), "fuse.kedgefs" | "fuseblk.kedgefs")
    }

    /// The image behind the mount: the source, or the file behind it when that is a loop device.
    pub fn image(&self) -> PathBuf {
        backing_file(&self.source).unwrap_or_else(|| self.source.clone())
    }
}

/// The mounts that this process sees, in the order in which they were made.
pub fn list() -> Result<Vec<Mount>> {
    let text = std::fs::read("/proc/self/mountinfo").context("read /proc/self/mountinfo")?;
    Ok(text.split(|&b| b == b'\n').filter_map(parse_line).collect())
}

/// The uppermost mount on `dir`. Works on the path alone: a dead mount answers nothing but ENOTCONN.
pub fn at(dir: &Path) -> Result<Option<Mount>> {
    let dir = resolve(dir)?;
    Ok(list()?.into_iter().rev().find(|m| m.dir == dir))
}

/// Where an image is mounted.
pub fn of_image(image: &Path) -> Result<Option<Mount>> {
    let Ok(wanted) = std::fs::metadata(image) else { return Ok(None) };
    let same = |m: &Mount| {
        let source = m.image();
        // A relative or made-up source ("tmpfs") names no file of ours.
        source.is_absolute()
            && std::fs::metadata(source).is_ok_and(|s| {
                let same_file = (s.dev(), s.ino()) == (wanted.dev(), wanted.ino());
                same_file || (s.rdev() != 0 && s.rdev() == wanted.rdev())
            })
    };
    Ok(list()?.into_iter().find(same))
}

/// The absolute path without symlinks, without asking the directory itself, which may be a dead mount.
pub fn resolve(dir: &Path) -> Result<PathBuf> {
    if let Ok(path) = dir.canonicalize() {
        return Ok(path);
    }
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        bail!("{} names no directory", dir.display());
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let parent = parent.canonicalize().with_context(|| format!("find {}", parent.display()))?;
    Ok(parent.join(name))
}

/// Whether `dir` is the mount point of a KedgeFS mount whose process has died.
pub fn is_dead(dir: &Path) -> Result<bool> {
    let gone = matches!(std::fs::metadata(dir), Err(e)
        if e.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()));
    Ok(gone && at(dir)?.is_some_and(|m| m.is_kedgefs()))
}

/// An attribute of a mount's root.
pub fn attribute(dir: &Path, name: &str) -> Result<String> {
    let mut value = Vec::with_capacity(XATTR_BYTES_MAX);
    rustix::fs::getxattr(dir, name, rustix::buffer::spare_capacity(&mut value)).map_err(|e| match e {
        rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NODATA => {
            anyhow::anyhow!("{} is not the root of a KedgeFS mount", dir.display())
        }
        e => anyhow::Error::from(e).context(format!("read attribute {name} of {}", dir.display())),
    })?;
    String::from_utf8(value).with_context(|| format!("attribute {name} of {} is not text", dir.display()))
}

fn backing_file(source: &Path) -> Option<PathBuf> {
    let name = source.strip_prefix("/dev").ok()?.to_str().filter(|n| n.starts_with("loop"))?;
    let mut text = std::fs::read(format!("/sys/block/{name}/loop/backing_file")).ok()?;
    while text.last() == Some(&b'\n') {
        text.pop();
    }
    Some(PathBuf::from(OsString::from_vec(text)))
}

/// `36 35 98:0 /root /dir options - fstype source super-options`, with any number of fields in front of the dash.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let dash = fields.iter().position(|f| *f == b"-")?;
    Some(Mount {
        dir: unescape(fields.get(4)?),
        fstype: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        source: unescape(fields.get(dash + 2)?),
        read_only: [fields.get(5)?, fields.get(dash + 3)?]
            .iter()
            .any(|o| o.split(|&b| b == b',').any(|w| w == b"ro")),
    })
}

/// The kernel writes blank, tab, newline and backslash as `\040` and so on.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let octal = field
            .get(at + 1..at + 4)
            .filter(|o| field[at] == b'\\' && o.iter().all(|d| (b'0'..b'8').contains(d)));
        match octal {
            Some(o) => {
                out.push(o.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')));
                at += 4;
            }
            None => {
                out.push(field[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&out))
}

#[cfg(test)]
#[path = "mounts_tests.rs"]
mod tests;
