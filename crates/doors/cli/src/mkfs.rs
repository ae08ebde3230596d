//! `kedge mkfs`: makes an image.
//!
//! A new file appears under its name only when the image in it is complete and durable. So an
//! interrupted run leaves nothing that a later `mount --create` would take for an image.

use crate::image::{Image, is_remote, locate};
use crate::options::{parse_size, show_size};
use crate::{Usage, engine, import, info, mounts};
use anyhow::{Context, Result, anyhow, bail};
use kedge_base::BLOCK_SIZE;
use kedge_format::superblock::IMAGE_MIN;
use kedgefs::FormatOptions;
use std::ffi::OsStr;
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
    /// Size of the image; a missing file is created, a shorter one is extended. auto: as large as
    /// what --from names needs
    #[arg(long, value_name = "SIZE|auto", value_parser = parse_image_size, allow_negative_numbers = true)]
    size: Option<ImageSize>,
    /// Fill it from a directory, a tar file, or a tar stream on standard input (-), with owners,
    /// modes, times, attributes, hard links, holes and devices
    #[arg(long, value_name = "DIR|TAR|-")]
    from: Option<PathBuf>,
    /// Name of the file system, at most 64 bytes
    #[arg(short = 'L', long, default_value = "", hide_default_value = true)]
    label: String,
    /// UUID of the image [default: random]
    #[arg(short = 'U', long)]
    uuid: Option<uuid::Uuid>,
    /// Size of the log, 1 MiB to 1 GiB (default: a 32nd of the image, at least 32 MiB)
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    log_size: Option<u64>,
    /// Let files be made immutable or append-only (chattr +i, +a). Each open of a file then takes
    /// the mount two requests
    #[arg(long)]
    immutable: bool,
    /// Overwrite existing data on the target
    #[arg(short, long)]
    force: bool,
    /// A file or block device, or rbd:POOL/IMAGE, nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH
    image: PathBuf,
}

#[derive(Clone, Copy, Debug)]
enum ImageSize {
    Bytes(u64),
    Auto,
}

fn parse_image_size(text: &str) -> Result<ImageSize, String> {
    if text == "auto" { Ok(ImageSize::Auto) } else { parse_size(text).map(ImageSize::Bytes) }
}

pub fn run(args: Args) -> Result<ExitCode> {
    let is_new = !exists(&args.image)?;
    if !is_new {
        check_target(&args.image, args.force)?;
    }
    let source = open_source(&args, is_new)?;
    let date = import::source_date()?;
    let bytes = size(&args, source.as_ref(), is_new)?;
    if let Some(bytes) = bytes.filter(|_| is_new) {
        refuse_small(&args.image, bytes)?;
    }
    let mut options = FormatOptions {
        size: bytes.map(whole_blocks),
        log_size: args.log_size.map(whole_blocks),
        label: args.label,
        uuid: args.uuid,
        immutable: args.immutable,
        // Targets that hold data are refused below, before anything is changed.
        overwrite: true,
        ..FormatOptions::default()
    };
    options.seed = date.map(|date| import::seed(date, &options));
    let fill = |image: &Path| match &source {
        Some(source) => import::fill(source, image, date),
        None => Ok(()),
    };
    if is_new {
        let size = options.size.expect("a new image has one");
        create_filled(&args.image, size, &options, &fill)?;
    } else {
        if let Some(size) = options.size {
            extend(&args.image, size)?;
        }
        engine::format(&args.image, &options)?;
        fill(&args.image).with_context(|| format!("{} is filled only in part", args.image.display()))?;
    }
    let superblock = Image::open(&args.image)?.superblock()?;
    info::print(&info::image_json(&args.image, &superblock), false)?;
    Ok(ExitCode::SUCCESS)
}

fn open_source(args: &Args, is_new: bool) -> Result<Option<import::Source>> {
    let Some(path) = &args.from else { return Ok(None) };
    let above = args.image.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let source = import::Source::open(path, above)?;
    if is_new {
        source.refuse_inside(&args.image)?;
    }
    Ok(Some(source))
}

/// Bytes of the image; `None`: as large as the file or device is.
fn size(args: &Args, source: Option<&import::Source>, is_new: bool) -> Result<Option<u64>> {
    match (args.size, source) {
        (Some(ImageSize::Bytes(bytes)), _) => Ok(Some(bytes)),
        (Some(ImageSize::Auto), None) => Err(Usage("--size auto needs --from".into()).into()),
        (Some(ImageSize::Auto), Some(source)) => Ok(Some(source.estimate()?.image_size())),
        (None, Some(source)) if is_new => Ok(Some(source.estimate()?.image_size())),
        (None, None) if is_new => {
            let image = args.image.display();
            Err(Usage(format!("{image} does not exist: --size says how large to make it")).into())
        }
        (None, _) => Ok(None),
    }
}

/// Before a size is rounded to blocks: the message has what was asked for.
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
    create_filled(path, size, options, &|_| Ok(()))
}

/// As [`create`]; `fill` puts something into the image before it gets its name.
fn create_filled(
    path: &Path,
    size: u64,
    options: &FormatOptions,
    fill: &dyn Fn(&Path) -> Result<()>,
) -> Result<()> {
    let location = locate(path)?;
    if location.is_remote() {
        kedge_device::create(&location, size)?;
        engine::format(path, options)?;
        return fill(path);
    }
    let Some(name) = path.file_name() else {
        return Err(Usage(format!("{} names no file", path.display())).into());
    };
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = name.to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}.new", std::process::id()));
    // A name that exists already may belong to another user, and be a link to a file that would be
    // overwritten.
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
    new.with_context(|| format!("create {}", path.display()))?;
    let made = engine::create(&temporary, size, options)
        .and_then(|()| fill(&temporary))
        .and_then(|()| publish(&temporary, path, dir));
    if made.is_err() && temporary.exists() {
        fs::remove_file(&temporary).with_context(|| format!("remove {}", temporary.display()))?;
    }
    made.map_err(|e| under_its_name(e, &temporary, &name))
        .with_context(|| format!("create {}", path.display()))
}

/// An error that has the file's name of before it is whole gets the name that the user gave. The
/// engine and the device know only the former.
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
        // Not every host file system knows the flag.
        Err(rustix::io::Errno::INVAL) if !exists(path)? => fs::rename(temporary, path)?,
        Err(e) => return Err(std::io::Error::from(e).into()),
    }
    File::open(dir)?.sync_all().context("make the directory entry durable")
}

pub fn exists(path: &Path) -> Result<bool> {
    let location = locate(path)?;
    if location.is_remote() {
        return Ok(kedge_device::exists(&location)?);
    }
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

/// Extends a regular file to at least `size` bytes. A remote image that is too small is refused.
/// The engine uses all of a block device that is too small.
fn extend(path: &Path, size: u64) -> Result<()> {
    if is_remote(path)? {
        let there = Image::open(path)?.size;
        if there < size {
            bail!("{} has {there} bytes, {size} are wanted", path.display());
        }
        return Ok(());
    }
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
