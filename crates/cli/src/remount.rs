//! `kedge remount`, and `mount -o remount` where `mount.fuseblk.kedgefs` is a link to this program: changes options of a
//! live mount.
//!
//! The kernel tells a FUSE server nothing of a remount, so the list goes to the serving process as an attribute of the
//! root directory. It is read here first: the error can then say what is wrong, where an errno could not.

use crate::{Usage, mounts};
use anyhow::{Context, Result, bail};
use kedgefs::Switches;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Comma-separated options: async_checkpoint[=PERCENT], noasync_checkpoint, commit=SECONDS, new_name=lazy|sync,
    /// fdatasync=seq|relog, plug, noplug, writeback_order=oldest|location
    #[arg(short = 'o', value_name = "OPTIONS", required = true)]
    options: Vec<String>,
    /// The mount point
    dir: PathBuf,
}

pub fn run(args: Args) -> Result<ExitCode> {
    apply(&args.dir, &args.options)
}

/// Changes the options of the mount at `dir`; the word `remount` itself may be among them.
pub fn apply(dir: &Path, lists: &[String]) -> Result<ExitCode> {
    let words: Vec<&str> =
        lists.iter().flat_map(|list| list.split(',')).filter(|w| !w.is_empty() && *w != "remount").collect();
    let list = words.join(",");
    list.parse::<Switches>().map_err(|e| Usage(format!("remount option {e}")))?;
    match mounts::at(dir)? {
        Some(mount) if mount.is_kedgefs() => {}
        Some(mount) => bail!("{} is a mount of {}, not of KedgeFS", dir.display(), mount.kind),
        None => bail!("{} is not a mount point", dir.display()),
    }
    rustix::fs::setxattr(dir, mounts::XATTR_OPTIONS, list.as_bytes(), XattrFlags::empty())
        .map_err(|e| match e {
            Errno::PERM => anyhow::anyhow!("only root and the owner of the mount may change its options"),
            Errno::NOTCONN => anyhow::anyhow!("the serving process has died"),
            e => e.into(),
        })
        .with_context(|| format!("remount {}", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}
