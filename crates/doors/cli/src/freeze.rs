//! `kedge freeze` and `kedge thaw`: make the image of a mount consistent and keep it unchanged
//! while it is copied.
//!
//! Both are ioctls on the mounted directory: an ioctl needs none of the kernel's locks that a
//! change holds while it waits for the thaw.

use anyhow::{Context, Result, anyhow, bail};
use kedge_host::mounts;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct FreezeArgs {
    /// Thaw automatically after this number of seconds
    #[arg(long = "for", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// The mount point
    dir: PathBuf,
}

#[derive(clap::Args, Debug)]
pub struct ThawArgs {
    /// The mount point
    dir: PathBuf,
}

pub fn freeze(args: FreezeArgs) -> Result<ExitCode> {
    let dir = open(&args.dir)?;
    // Check first, because on a frozen mount the next call may wait for the thaw.
    let info: serde_json::Value = serde_json::from_str(&mounts::attribute(&args.dir, mounts::XATTR_INFO)?)
        .with_context(|| format!("read the state of {}", args.dir.display()))?;
    if !info["frozen_since"].is_null() {
        bail!("{} is frozen already", args.dir.display());
    }
    // Write the kernel's cache. The serving process writes its own dirty data.
    rustix::fs::syncfs(&dir).with_context(|| format!("write what is cached of {}", args.dir.display()))?;
    kedge_fuse::freeze(&dir, args.seconds.unwrap_or(0)).map_err(|e| match e.raw_os_error() {
        Some(libc::EBUSY) => anyhow!("{} is frozen already", args.dir.display()),
        _ => refused("freeze", &args.dir, e),
    })?;
    Ok(ExitCode::SUCCESS)
}

pub fn thaw(args: ThawArgs) -> Result<ExitCode> {
    kedge_fuse::thaw(open(&args.dir)?).map_err(|e| match e.raw_os_error() {
        Some(libc::EINVAL) => anyhow!("{} is not frozen", args.dir.display()),
        _ => refused("thaw", &args.dir, e),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn open(dir: &Path) -> Result<File> {
    if !mounts::at(dir)?.is_some_and(|mount| mount.is_kedgefs()) {
        bail!("{} is not a mount of KedgeFS", dir.display());
    }
    File::open(dir).with_context(|| format!("open {}", dir.display()))
}

fn refused(what: &str, dir: &Path, e: std::io::Error) -> anyhow::Error {
    match e.raw_os_error() {
        Some(libc::EPERM) => anyhow!("only root and the owner of the mount may {what} it"),
        _ => anyhow::Error::from(e).context(format!("{what} {}", dir.display())),
    }
}
