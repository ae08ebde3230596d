//! Makes an image in a new file.
//!
//! A new file appears under its name only when the image in it is complete and durable. So an
//! interrupted run leaves no file that a later `mount --create` would mistake for an image.

use crate::engine;
use crate::image::locate;
use crate::text::show_size;
use crate::usage::Usage;
use anyhow::{Context, Result, anyhow, bail};
use kedge_base::BLOCK_SIZE;
use kedge_format::superblock::IMAGE_MIN;
use kedgefs::FormatOptions;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

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
        engine::format(path, options, encrypt)?;
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
    new.with_context(|| format!("create {}", path.display()))?;
    let made = engine::create(&temporary, size, options, encrypt)
        .and_then(|()| fill(&temporary))
        .and_then(|()| publish(&temporary, path, dir));
    if made.is_err() && temporary.exists() {
        fs::remove_file(&temporary).with_context(|| format!("remove {}", temporary.display()))?;
    }
    made.map_err(|e| under_its_name(e, &temporary, &name))
        .with_context(|| format!("create {}", path.display()))
}

/// Replaces the temporary name in an error by the name that the user gave, because the engine and
/// the device know only the temporary name.
fn under_its_name(e: anyhow::Error, temporary: &Path, name: &str) -> anyhow::Error {
    let text = format!("{e:#}");
    match temporary.file_name().map(OsStr::to_string_lossy) {
        Some(before) if text.contains(&*before) => anyhow!(text.replace(&*before, name)),
        _ => e,
    }
}

fn publish(temporary: &Path, path: &Path, dir: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    File::open(temporary)?.sync_all().context("make the image durable")?;
    match renameat_with(CWD, temporary, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        // Not every host file system supports the flag.
        Err(rustix::io::Errno::INVAL) if !exists(path)? => fs::rename(temporary, path)?,
        Err(e) => return Err(std::io::Error::from(e).into()),
    }
    File::open(dir)?.sync_all().context("make the directory entry durable")
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
