//! `kedge fsck`: judges an image as recovery would leave it, and writes nothing.

use crate::{engine, mounts};
use anyhow::{Result, bail};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Write nothing (this version never does)
    #[arg(short = 'n')]
    dry_run: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// A file or block device
    image: PathBuf,
}

// Exit codes of fsck(8) that are not the report's own.
pub const OPERATIONAL: u8 = 8;
pub const USAGE: u8 = 16;

pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(mount) = mounts::of_image(&args.image)? {
        bail!("{} is mounted on {}: unmount it first", args.image.display(), mount.dir.display());
    }
    let checked = engine::check(&args.image)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{:#}", checked.json)?;
    } else {
        writeln!(out, "{}", checked.text.trim_end())?;
    }
    Ok(ExitCode::from(checked.exit_code))
}
