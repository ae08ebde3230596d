//! Makes an image in a new file.
//!
//! A new file appears under its name only when the image in it is complete and durable. So an
//! interrupted run leaves no file that a later `mount --create` would mistake for an image.

use crate::engine;
use crate::image::locate;
use crate::os;
use crate::text::show_size;
use crate::usage::Usage;
use anyhow::{Context, Result, anyhow, bail, ensure};
use kedge_base::BLOCK_SIZE;
use kedge_device::Location;
use kedge_device::location::WindowUri;
use kedge_format::superblock::IMAGE_MIN;
use kedgefs::FormatOptions;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Refuses a size below the minimum. Call it before the size is rounded to blocks, so that the
/// message shows the requested size.
pub fn refuse_small(path: &Path, bytes: u64) -> Result<()> {
    if bytes < IMAGE_MIN {
        let (least, path) = (show_size(IMAGE_MIN), path.display());
        bail!(
            "create {path}: image of {bytes} bytes: the least is {least} (sizes are written as 64K, 16M, 4G)"
        );
    }
    Ok(())
}

/// Makes `path`, a new file with an image of `size` bytes.
pub fn create(path: &Path, size: u64, options: &FormatOptions) -> Result<()> {
    filled(path, size, options, false, &|_| Ok(()))
}

/// Like [`create`], but calls `fill` on the image before it gets its name. With `encrypt` the image
/// is encrypted, and the file has the encryption header in addition to `size`.
///
/// In another user's directory that user may exchange the temporary name for a link at any time. So
/// the new file is only written through its descriptor.
pub fn filled(
    path: &Path,
    size: u64,
    options: &FormatOptions,
    encrypt: bool,
    fill: &dyn Fn(&Path) -> Result<()>,
) -> Result<()> {
    let location = locate(path)?;
    if location.is_uri() {
        kedge_device::create(&location, size + engine::overhead(encrypt))?;
        engine::format(path, path, options, encrypt)?;
        return fill(path);
    }
    let Some(name) = path.file_name() else {
        return Err(Usage(format!("{} names no file", path.display())).into());
    };
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = name.to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}.new", std::process::id()));
    // An existing name may be another user's link to a file, which would be overwritten.
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
    let new = new.with_context(|| format!("create {}", path.display()))?;
    let opened = os::path_of(&new);
    let made = engine::create(path, &opened, size, options, encrypt)
        .and_then(|()| fill(&opened))
        .and_then(|()| publish(&new, &temporary, path, dir));
    if made.is_err() && is_named(&new, &temporary)? {
        fs::remove_file(&temporary).with_context(|| format!("remove {}", temporary.display()))?;
    }
    let before = temporary.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    made.map_err(|e| under_its_name(e, &opened.to_string_lossy(), &path.to_string_lossy()))
        .map_err(|e| under_its_name(e, &before, &name))
        .with_context(|| format!("create {}", path.display()))
}

/// Replaces a name that the user does not know in an error by the name that the user gave.
fn under_its_name(e: anyhow::Error, before: &str, name: &str) -> anyhow::Error {
    let text = format!("{e:#}");
    if text.contains(before) { anyhow!(text.replace(before, name)) } else { e }
}

/// Whether a file is the one with this name, which is not followed if it is a link.
fn is_named(file: &File, name: &Path) -> Result<bool> {
    let named = || format!("find {}", name.display());
    let file = file.metadata().with_context(named)?;
    match fs::symlink_metadata(name) {
        Ok(found) => Ok((found.dev(), found.ino()) == (file.dev(), file.ino())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e).with_context(named),
    }
}

fn publish(new: &File, temporary: &Path, path: &Path, dir: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    new.sync_all().context("make the image durable")?;
    ensure!(is_named(new, temporary)?, "{} was replaced while the image was made", temporary.display());
    match renameat_with(CWD, temporary, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        // Not every host file system supports the flag.
        Err(rustix::io::Errno::INVAL) if !exists(path)? => fs::rename(temporary, path)?,
        Err(e) => return Err(std::io::Error::from(e).into()),
    }
    File::open(dir)?.sync_all().context("make the directory entry durable")
}

/// An existing file or device that gets a new image. It is opened once, so that all steps use the
/// same file, even if another user exchanges its name for a link.
pub struct Target {
    named: PathBuf,
    opened: PathBuf,
    /// `None` for an image that is on no file of this machine.
    _file: Option<File>,
}

impl Target {
    /// Opens a target without access to its contents: opening a pipe to read would wait for a
    /// writer.
    pub fn open(path: &Path) -> Result<Target> {
        let named = path.to_owned();
        let location = locate(path)?;
        let Some(host) = location.host_path() else {
            return Ok(Target { opened: named.clone(), named, _file: None });
        };
        let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(host);
        let file = file.with_context(|| format!("open {}", path.display()))?;
        let opened = match location {
            Location::Window(uri) => WindowUri { path: os::path_of(&file), ..uri }.to_string().into(),
            _ => os::path_of(&file),
        };
        Ok(Target { named, opened, _file: Some(file) })
    }

    /// A path that leads to the opened file as long as `self` lives.
    pub fn path(&self) -> &Path {
        &self.opened
    }

    /// Replaces [`Target::path`] in an error by the name that the user gave.
    pub fn under_its_name(&self, e: anyhow::Error) -> anyhow::Error {
        under_its_name(e, &self.opened.to_string_lossy(), &self.named.to_string_lossy())
    }
}

pub fn exists(path: &Path) -> Result<bool> {
    let location = locate(path)?;
    if location.is_uri() {
        return Ok(kedge_device::exists(&location)?);
    }
    path.try_exists().with_context(|| format!("find {}", path.display()))
}

/// Rounds a size down to whole blocks.
pub fn whole_blocks(bytes: u64) -> u64 {
    bytes / BLOCK_SIZE as u64 * BLOCK_SIZE as u64
}

#[cfg(test)]
#[path = "create_tests.rs"]
mod tests;
