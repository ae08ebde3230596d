//! Paths in an image that is not mounted, without FUSE and without privilege.
//!
//! For reading, the image is opened read-only: the log is replayed in memory, and nothing is
//! written. Permissions are not checked: a user who can read the image can read all of it. Symbolic
//! links are shown and not followed. A path that leads through one is refused: the link's target is
//! a path of the machine that mounts the image, not of this one.

use anyhow::{Context, Result, bail};
use kedge_device::location::is_window;
use kedge_host::{Usage, engine, mounts};
use kedgefs::{Attr, FileKind, FileSystem, Ino, Owner};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A path in an image: `IMAGE:/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePath {
    image: PathBuf,
    path: Vec<u8>,
}

/// URI schemes: the `:/` in them does not separate image and path.
const SCHEMES: [&[u8]; 2] = [b"nbd://", b"nbd+unix://"];
/// The prefix of a window of a larger file.
const WINDOW: &[u8] = b"file:";

/// Splits the text at the first `:/` after a URI's scheme. An image with `:/` in its own path must
/// be reached through a symbolic link.
pub fn parse_image_path(text: OsString) -> Result<ImagePath, String> {
    let bytes = text.as_bytes();
    let window = bytes.strip_prefix(WINDOW).filter(|rest| is_window(rest)).map(|_| WINDOW.len());
    let remote = || SCHEMES.iter().find(|scheme| bytes.starts_with(scheme)).map(|scheme| scheme.len());
    let scheme = window.or_else(remote).unwrap_or(0);
    match bytes[scheme..].windows(2).position(|pair| pair == b":/").map(|at| at + scheme) {
        Some(at) if at > 0 => Ok(ImagePath {
            image: PathBuf::from(OsStr::from_bytes(&bytes[..at])),
            path: bytes[at + 1..].to_vec(),
        }),
        _ => Err("it must be IMAGE:/PATH".into()),
    }
}

impl ImagePath {
    pub fn image(&self) -> &Path {
        &self.image
    }

    pub fn refuse_mounted(&self) -> Result<()> {
        if let Some(mount) = mounts::of_image(&self.image)? {
            bail!("{} is mounted on {}: look there", self.image.display(), mount.dir.display());
        }
        Ok(())
    }

    pub fn open(&self) -> Result<FileSystem> {
        self.refuse_mounted()?;
        engine::open_to_read(&self.image)
    }

    pub fn show(&self) -> String {
        format!("{}:{}", self.image.display(), String::from_utf8_lossy(&self.path))
    }

    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Whether the path ends with a slash, and so must name a directory.
    pub fn ends_with_slash(&self) -> bool {
        self.path.ends_with(b"/")
    }

    /// The names of the path.
    pub fn names(&self) -> Result<Vec<&[u8]>> {
        let parts = self.path.split(|b| *b == b'/');
        let names: Vec<&[u8]> = parts.filter(|name| !name.is_empty() && *name != b".").collect();
        if names.contains(&&b".."[..]) {
            return Err(Usage(format!("{}: '..' is not understood", self.show())).into());
        }
        Ok(names)
    }

    /// Resolves these names from the root.
    pub fn walk(&self, fs: &FileSystem, names: &[&[u8]]) -> Result<Attr> {
        let mut here = fs.getattr(Ino::ROOT)?;
        for name in names {
            if here.kind == FileKind::Symlink {
                bail!("{}: leads through a symbolic link", self.show());
            }
            here = fs.lookup(here.ino, name).with_context(|| self.show())?;
        }
        Ok(here)
    }

    pub fn find(&self, fs: &FileSystem) -> Result<Attr> {
        let here = self.walk(fs, &self.names()?)?;
        if self.ends_with_slash() && here.kind != FileKind::Directory {
            bail!("{}: not a directory", self.show());
        }
        Ok(here)
    }
}

/// The entries of a directory without `.` and `..`, sorted by name.
pub fn entries(fs: &FileSystem, dir: Ino) -> Result<Vec<(Vec<u8>, Ino)>> {
    let mut found = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            found.push((entry.name.to_vec(), entry.ino));
        }
        true
    })?;
    found.sort();
    Ok(found)
}

/// Splits a device number as the kernel encodes it into major and minor number.
pub fn device(rdev: u64) -> (u64, u64) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00))
}

/// User and group of this process, as the owner of new files.
pub fn caller() -> Owner {
    Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}
