//! `kedge scrub`: reads and verifies everything that has a checksum, mounted or not.
//!
//! `kedge_fsck::scrub` argues why this is sound while a mount writes. An image that is not mounted
//! is locked, so that it cannot be mounted meanwhile.

use crate::fsck::{self, Bar};
use anyhow::{Context, Result, bail};
use kedge_host::image::is_uri;
use kedge_host::{engine, mounts, status};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// An image, or the directory on which it is mounted
    #[arg(value_name = "IMAGE|DIR")]
    target: PathBuf,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let (image, mounted) = find(&args.target)?;
    let (progress, bar) = Bar::on_terminal(true);
    fsck::finish(engine::scrub(&image, mounted, progress), bar, args.json)
}

/// The image of the target, and whether it is mounted.
fn find(target: &Path) -> Result<(PathBuf, bool)> {
    let is_dir = !is_uri(target)?
        && std::fs::metadata(target).with_context(|| format!("find {}", target.display()))?.is_dir();
    if !is_dir {
        return Ok((target.to_owned(), mounts::of_image(target)?.is_some()));
    }
    // Only the root of a mount has this attribute.
    mounts::attribute(target, mounts::XATTR_PID)?;
    match status::image_behind(target)? {
        Some(image) => Ok((image, true)),
        None => bail!("the image of {} is not known: name it instead", target.display()),
    }
}
