//! `kedge mkfs`: makes an image.
//!
//! A new file appears under its name only when the image in it is complete and durable. So an
//! interrupted run leaves nothing that a later `mount --create` would take for an image.

use crate::image::Image;
use crate::options::parse_size;
use crate::{Usage, engine, info, mounts};
use anyhow::{Context, Result, bail};
use kedge_base::BLOCK_SIZE;
use kedgefs::FormatOptions;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
#[command(version, disable_version_flag = true)]
pub struct Args {
    /// Print the version, as mkfs(8) asks for it
    #[arg(short = 'V', action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// Size of the image; a missing file is created, a shorter one is extended
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Name of the file system, at most 64 bytes
    #[arg(short = 'L', long, default_value = "", hide_default_value = true)]
    label: String,
    /// UUID of the image [default: random]
    #[arg(short = 'U', long)]
    uuid: Option<uuid::Uuid>,
    /// Size of the log, 1 MiB to 1 GiB (default: a 32nd of the image, at least 32 MiB)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    log_size: Option<u64>,
    /// Overwrite existing data on the target
    #[arg(short, long)]
    force: bool,
    /// A file or block device
    image: PathBuf,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let options = FormatOptions {
        size: args.size.map(whole_blocks),
        log_size: args.log_size.map(whole_blocks),
        label: args.label,
        uuid: args.uuid,
        // Targets that hold data are refused below, before anything is changed.
        overwrite: true,
        ..FormatOptions::default()
    };
    if !exists(&args.image)? {
        let Some(size) = options.size else {
            return Err(Usage(format!(
                "{} does not exist: --size says how large to make it",
                args.image.display()
            ))
            .into());
        };
        create(&args.image, size, &options)?;
    } else {
        check_target(&args.image, args.force)?;
        if let Some(size) = options.size {
            extend(&args.image, size)?;
        }
        engine::format(&args.image, &options)?;
    }
    let superblock = Image::open(&args.image)?.superblock()?;
    info::print(&info::image_json(&args.image, &superblock), false)?;
    Ok(ExitCode::SUCCESS)
}

/// Makes `path`, a new file with an image of `size` bytes.
pub fn create(path: &Path, size: u64, options: &FormatOptions) -> Result<()> {
    let Some(name) = path.file_name() else {
        return Err(Usage(format!("{} names no file", path.display())).into());
    };
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temporary = dir.join(format!(".{}.{}.new", name.to_string_lossy(), std::process::id()));
    // A name that exists already may belong to another user, and be a link to a file that would be
    // overwritten.
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
    new.with_context(|| format!("create {}", path.display()))?;
    let made = engine::create(&temporary, size, options).and_then(|()| publish(&temporary, path, dir));
    if made.is_err() && temporary.exists() {
        fs::remove_file(&temporary).with_context(|| format!("remove {}", temporary.display()))?;
    }
    made.with_context(|| format!("create {}", path.display()))
}

fn publish(temporary: &Path, path: &Path, dir: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    File::open(temporary)?.sync_all().context("make the image durable")?;
    match renameat_with(CWD, temporary, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        // Not every host file system knows the flag.
        Err(rustix::io::Errno::INVAL) if !exists(path)? => fs::rename(temporary, path)?,
        Err(e) => return Err(std::io::Error::from(e).into()),
    }
    File::open(dir)?.sync_all().context("make the directory entry durable")
}

pub fn exists(path: &Path) -> Result<bool> {
    path.try_exists().with_context(|| format!("look for {}", path.display()))
}

/// Rounds a size down to whole blocks.
pub fn whole_blocks(bytes: u64) -> u64 {
    bytes / BLOCK_SIZE as u64 * BLOCK_SIZE as u64
}

/// Refuses a target that is mounted, and one that holds something unless `force`.
fn check_target(path: &Path, force: bool) -> Result<()> {
    if let Some(mount) = mounts::of_image(path)? {
        bail!("{} is mounted on {}", path.display(), mount.dir.display());
    }
    let Some(held) = Image::open(path)?.content()?.name() else { return Ok(()) };
    if !force {
        bail!("{} holds {held}; -f overwrites it", path.display());
    }
    tracing::info!("overwriting {held} on {}", path.display());
    Ok(())
}

/// Extends a regular file to at least `size` bytes. The engine refuses a block device that is too
/// small.
fn extend(path: &Path, size: u64) -> Result<()> {
    let file =
        OpenOptions::new().write(true).open(path).with_context(|| format!("open {}", path.display()))?;
    let meta = file.metadata().with_context(|| format!("stat {}", path.display()))?;
    if meta.is_file() && meta.len() < size {
        file.set_len(size).with_context(|| format!("extend {} to {size} bytes", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "mkfs_tests.rs"]
mod tests;
