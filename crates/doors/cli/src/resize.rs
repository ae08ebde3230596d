//! `kedge resize`: makes an image larger or smaller, mounted or not.
//!
//! The serving process of a mount does the work, so that files stay open and changes continue. The
//! size goes to it as an attribute of the root directory, as options do (`kedge remount`). An image
//! that is not mounted is opened here, and its log is replayed first.

use anyhow::{Context, Result, anyhow, bail};
use kedge_format::superblock::IMAGE_MAX;
use kedge_host::options::parse_size;
use kedge_host::text::show_size;
use kedge_host::{engine, mounts};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// A mount point, a file or block device, or rbd:POOL/IMAGE, nbd://HOST/EXPORT,
    /// nbd+unix:///EXPORT?socket=PATH
    image: PathBuf,
    /// The new size; without it, the size of the device or file
    #[arg(value_parser = parse_size)]
    size: Option<u64>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(size) = args.size
        && size > IMAGE_MAX
    {
        bail!("{} are more than the largest image can have, {}", show_size(size), show_size(IMAGE_MAX));
    }
    let mounted = match args.image.is_dir() {
        true if mounts::at(&args.image)?.is_some_and(|mount| mount.is_kedgefs()) => Some(args.image.clone()),
        true => bail!("{} is not a mount of KedgeFS", args.image.display()),
        false => mounts::of_image(&args.image)?.map(|mount| mount.dir),
    };
    let (before, now) = match mounted {
        Some(dir) => online(&dir, args.size)?,
        None => offline(&args.image, args.size)?,
    };
    let shown = args.image.display();
    match now == before {
        true => println!("{shown}: {} as before", show_size(now)),
        false => println!("{shown}: {} instead of {}", show_size(now), show_size(before)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the sizes before and after.
fn offline(image: &Path, size: Option<u64>) -> Result<(u64, u64)> {
    let fs = engine::open_to_change(image)?;
    let before = fs.statfs().blocks * u64::from(fs.statfs().block_size);
    let resized = fs.resize(size).with_context(|| format!("resize {}", image.display()));
    let closed = fs.close().with_context(|| format!("close {}", image.display()));
    Ok((before, both(resized, closed)?))
}

/// Returns the first result if the second is `Ok`, and otherwise each error.
fn both<T>(first: Result<T>, second: Result<()>) -> Result<T> {
    match (first, second) {
        (Err(first), Err(second)) => Err(anyhow!("{first:#}; {second:#}")),
        (first, second) => second.and(first),
    }
}

fn online(dir: &Path, size: Option<u64>) -> Result<(u64, u64)> {
    let before = size_of(dir, "size_bytes")?;
    let smallest = size_of(dir, "smallest_bytes")?;
    if let Some(size) = size
        && size < before.min(smallest)
    {
        let (size, smallest) = (show_size(size), show_size(smallest));
        bail!(
            "resize {}: {size} are too few for its contents; the smallest size is {smallest}",
            dir.display()
        );
    }
    let value = size.map_or(String::new(), |size| size.to_string());
    rustix::fs::setxattr(dir, mounts::XATTR_SIZE, value.as_bytes(), XattrFlags::empty())
        .map_err(|e| match e {
            Errno::PERM => anyhow!("only root and the owner of the mount may resize it"),
            Errno::NOTCONN => anyhow!("the serving process has died"),
            Errno::BUSY => anyhow!("it is frozen, being resized already, or in use where it would end"),
            Errno::INVAL if size.is_some_and(|size| size < before) => {
                anyhow!(
                    "what forks or snapshots share lies beyond that size and cannot move, or there is no room for the \
                     allocation maps; the log of the serving process says which"
                )
            }
            Errno::INVAL => {
                anyhow!(
                    "the image or its device cannot have that size; the log of the serving process says why"
                )
            }
            e => e.into(),
        })
        .with_context(|| format!("resize {}", dir.display()))?;
    Ok((before, size_of(dir, "size_bytes")?))
}

/// A size in bytes from the state that the mount at `dir` reports.
fn size_of(dir: &Path, field: &str) -> Result<u64> {
    let info: Value = serde_json::from_str(&mounts::attribute(dir, mounts::XATTR_INFO)?)
        .with_context(|| format!("read the state of {}", dir.display()))?;
    info[field].as_u64().with_context(|| format!("{} names no {field}", dir.display()))
}

#[cfg(test)]
#[path = "resize_tests.rs"]
mod tests;
