//! Makes an image in a new file.
//!
//! A new file appears under its name only when the image in it is complete and durable. So an
//! interrupted run leaves no file that a later `mount --create` would mistake for an image.

use crate::engine;
use crate::image::{Image, locate};
use crate::text::show_size;
use crate::usage::Usage;
use anyhow::{Context, Result, anyhow, bail, ensure};
use kedge_base::BLOCK_SIZE;
use kedge_device::{Device, Location, OpenOptions as DeviceOptions};
use kedge_format::content::Content;
use kedge_format::superblock::IMAGE_MIN;
use kedgefs::FormatOptions;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    fill: &dyn Fn(Arc<dyn Device>) -> Result<()>,
) -> Result<()> {
    let location = locate(path)?;
    if location.is_uri() {
        kedge_device::create(&location, size + engine::overhead(encrypt))?;
        return fill(engine::format(path, engine::open_raw(path, false)?, options, encrypt)?);
    }
    let Some(name) = path.file_name() else {
        return Err(Usage(format!("{} names no file", path.display())).into());
    };
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = name.to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}.new", std::process::id()));
    // An existing name may be another user's link to a file, which would be overwritten.
    let new = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&temporary);
    let new = new.with_context(|| format!("create {}", path.display()))?;
    let shared = new.try_clone().map_err(anyhow::Error::from);
    let made = shared
        .and_then(|file| engine::create(path, file.into(), size, options, encrypt))
        .and_then(fill)
        .and_then(|()| publish(&new, &temporary, path, dir));
    if made.is_err() && is_named(&new, &temporary)? {
        fs::remove_file(&temporary).with_context(|| format!("remove {}", temporary.display()))?;
    }
    let before = temporary.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    made.map_err(|e| under_its_name(e, &before, &name)).with_context(|| format!("create {}", path.display()))
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
    location: Location,
    /// `None` for an image that is on no file of this machine.
    file: Option<File>,
}

impl Target {
    /// Opens a target. A pipe or a device that is no block device is refused without an open, which
    /// would wait or have an effect.
    pub fn open(path: &Path) -> Result<Target> {
        let named = path.to_owned();
        let location = locate(path)?;
        let Some(host) = location.host_path() else { return Ok(Target { named, location, file: None }) };
        let opening = || format!("open {}", path.display());
        let found = fs::metadata(host).with_context(opening)?;
        if !found.is_file() && !found.file_type().is_block_device() {
            bail!("{} is neither a file nor a block device", path.display());
        }
        // If a pipe has taken the name meanwhile: an open for reading and writing does not wait for
        // the other end.
        let flags = libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(host);
        let file = file.with_context(opening)?;
        let opened = file.metadata().with_context(opening)?;
        ensure!(
            (opened.dev(), opened.ino()) == (found.dev(), found.ino()),
            "{} names another file by now",
            path.display()
        );
        Ok(Target { named, location, file: Some(file) })
    }

    /// Recognises by signatures what the target contains.
    pub fn content(&self) -> Result<Content> {
        match &self.file {
            Some(file) if self.is_plain_file()? => {
                let file = file.try_clone().with_context(|| format!("read {}", self.named.display()))?;
                Image::of_file(&self.named, file)?.content()
            }
            _ => {
                let unlocked = DeviceOptions { lock: false, io_uring: false, ..DeviceOptions::default() };
                Image::on(&self.named, self.device_with(unlocked)?).content()
            }
        }
    }

    /// Opens the device on the target. With `size`, a file is extended to at least that number of
    /// bytes, and an image that cannot be extended from here and has fewer is refused. A block
    /// device is not extended; the engine uses its whole size.
    pub fn device(&self, size: Option<u64>) -> Result<Arc<dyn Device>> {
        let device = self.device_with(engine::device_options(false))?;
        let has = device.geometry().size;
        match size {
            Some(size) if has < size && self.location.is_uri() => {
                bail!("{} has {has} bytes, {size} are wanted", self.named.display());
            }
            Some(size) if self.is_plain_file()? => {
                let extended = device.grow(size);
                extended.with_context(|| format!("extend {} to {size} bytes", self.named.display()))?;
            }
            _ => {}
        }
        Ok(device)
    }

    fn device_with(&self, options: DeviceOptions) -> Result<Arc<dyn Device>> {
        let Some(file) = &self.file else { return Ok(kedge_device::open(&self.location, options)?) };
        let file = file.try_clone().with_context(|| format!("open {}", self.named.display()))?;
        Ok(kedge_device::open_on(&self.location, file.into(), options)?)
    }

    /// Whether the target is a regular file as a whole.
    fn is_plain_file(&self) -> Result<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        let found = file.metadata().with_context(|| format!("examine {}", self.named.display()))?;
        Ok(found.is_file() && !self.location.is_uri())
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
