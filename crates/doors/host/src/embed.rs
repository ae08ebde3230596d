//! Images in the process of a program that uses the library through an interface of another
//! language. Makes and opens images, and gives each error a number and a text.
//!
//! A program has no mount. So mount-only options are refused, no passphrase is asked for on the
//! terminal, and an image that the program wants to write is never opened read-only instead.

use crate::engine::{self, Extra, Opened};
use crate::options::MountWords;
use crate::{Usage, create as host_create, image as host_image, key};
use kedge_device::Location;
use kedgefs::{FileSystem, FormatOptions, Owner};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::any::Any;
use std::io;
use std::path::Path;

/// The error of a call: a number for the program, and a text for its user.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    pub errno: i32,
    pub text: String,
}

pub type Outcome<T> = Result<T, Fault>;

impl Fault {
    pub fn new(errno: i32, text: impl Into<String>) -> Fault {
        Fault { errno, text: text.into() }
    }

    pub fn invalid(text: impl Into<String>) -> Fault {
        Fault::new(libc::EINVAL, text)
    }

    /// Converts an error of this crate. The errno is that of the innermost cause that has one, or
    /// else `other`.
    pub fn of_host(e: &anyhow::Error, other: i32) -> Fault {
        let number = |cause: &(dyn std::error::Error + 'static)| {
            if let Some(e) = cause.downcast_ref::<kedgefs::Error>() {
                return Some(e.errno());
            }
            if let Some(e) = cause.downcast_ref::<kedge_base::Error>() {
                return Some(e.errno());
            }
            if cause.is::<Usage>() {
                return Some(libc::EINVAL);
            }
            cause.downcast_ref::<io::Error>().map(errno_of)
        };
        Fault::new(e.chain().filter_map(number).last().unwrap_or(other), format!("{e:#}"))
    }

    pub fn panicked(panic: &(dyn Any + Send)) -> Fault {
        Fault::new(libc::EIO, format!("a panic in the library: {}", kedge_base::panic_words(panic)))
    }
}

fn errno_of(e: &io::Error) -> i32 {
    let inner = e.get_ref().and_then(|inner| inner.downcast_ref::<kedgefs::Error>());
    inner.map(kedgefs::Error::errno).or(e.raw_os_error()).unwrap_or(libc::EIO)
}

impl From<kedgefs::Error> for Fault {
    fn from(e: kedgefs::Error) -> Fault {
        Fault::new(e.errno(), e.to_string())
    }
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Fault {
        Fault::new(errno_of(&e), e.to_string())
    }
}

/// Makes an image of `size` bytes under a name that does not exist.
pub fn create(image: &Path, size: u64, options: &FormatOptions) -> Outcome<()> {
    let host = |e: anyhow::Error| Fault::of_host(&e, libc::EIO);
    host_create::refuse_small(image, size).map_err(|e| Fault::of_host(&e, libc::EINVAL))?;
    if host_create::exists(image).map_err(host)? {
        return Err(Fault::new(libc::EEXIST, format!("{} exists", image.display())));
    }
    host_create::create(image, host_create::whole_blocks(size), options).map_err(host)
}

/// Opens an image with a list of mount options.
pub fn open(image: &Path, options: &str) -> Outcome<FileSystem> {
    let words = MountWords::parse([options]).map_err(|e| Fault::invalid(e.to_string()))?;
    refuse_mount_words(&words)?;
    open_with(image, words)
}

/// The owner of new files: the effective user of this process.
pub fn owner() -> Owner {
    Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

/// Refuses options that apply only to mounts.
fn refuse_mount_words(words: &MountWords) -> Outcome<()> {
    // A field that is added later must be placed in one of the two lists.
    let MountWords {
        read_only: _,
        cache_size: _,
        switches: _,
        dirty_tracking: _,
        tree_lock: _,
        volatile: _,
        offset: _,
        sizelimit: _,
        key_file: _,
        rbd_timeout: _,
        nbd_timeout: _,
        allow_other,
        privileged,
        workers,
        placement,
        transport,
        writeback_cache,
        reflink,
        tree,
        keeper,
        nosuid,
        nodev,
        noexec,
    } = words;
    let given = [
        ("allow_other", *allow_other),
        ("fuse and fuseblk", privileged.is_some()),
        ("workers", workers.is_some()),
        ("placement", placement.is_some()),
        ("transport", transport.is_some()),
        ("writeback_cache", writeback_cache.is_some()),
        ("reflink", reflink.is_some()),
        ("tree", tree.is_some()),
        ("keeper", *keeper),
        ("nosuid", *nosuid),
        ("nodev", *nodev),
        ("noexec", *noexec),
    ];
    match given.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((word, _)) => Err(Fault::invalid(format!("option {word}: there is no mount here"))),
    }
}

fn open_with(image: &Path, mut words: MountWords) -> Outcome<FileSystem> {
    let host = |e: anyhow::Error| Fault::of_host(&e, libc::EINVAL);
    let image = host_image::with_words(image, &words).map_err(host)?;
    check_access(&image, words.read_only)?;
    if words.key_file.is_none() && key::header_of(&image).map_err(host)?.is_some() {
        // The library would ask for a passphrase on the terminal, which belongs to the program.
        let text = format!("{} is encrypted: option key-file=FILE gives the key", image.display());
        return Err(Fault::new(libc::ENOKEY, text));
    }
    let read_only = words.read_only;
    let Opened { fs, notice, .. } = engine::open(&image, &mut words, Extra::default()).map_err(host)?;
    if words.read_only && !read_only {
        // The host lacks the space to replay the log. The program asked to write, so a read-only
        // file system is an error.
        fs.close()?;
        return Err(Fault::new(libc::ENOSPC, notice.unwrap_or_default()));
    }
    Ok(fs)
}

/// Checks that the file can be opened, to report the host's errno, which the engine's error lacks.
/// If the file changes after this check, only the errno is lost.
fn check_access(image: &Path, read_only: bool) -> Outcome<()> {
    let location = host_image::locate(image).map_err(|e| Fault::of_host(&e, libc::EINVAL))?;
    let path = match &location {
        Location::Path(path) => path,
        Location::Window(uri) => &uri.path,
        _ => return Ok(()),
    };
    let access = if read_only { Access::READ_OK } else { Access::READ_OK | Access::WRITE_OK };
    accessat(CWD, path, access, AtFlags::EACCESS).map_err(|e| {
        let e = io::Error::from(e);
        let errno = e.raw_os_error().unwrap_or(libc::EIO);
        Fault::new(errno, format!("open {}: {e}", path.display()))
    })
}

#[cfg(test)]
#[path = "embed_tests.rs"]
mod tests;
