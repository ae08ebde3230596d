//! `kedge trim`: returns the free space of a mount to its device or host.

use anyhow::{Context, Result, bail};
use kedge_host::mounts;
use kedge_host::options::parse_size;
use kedge_host::text::show_size;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Skip free runs that are smaller than this
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    min: u64,
    /// The mount point
    dir: PathBuf,
}

pub fn run(args: Args) -> Result<ExitCode> {
    if !mounts::at(&args.dir)?.is_some_and(|mount| mount.is_kedgefs()) {
        bail!("{} is not a mount of KedgeFS", args.dir.display());
    }
    let dir = File::open(&args.dir).with_context(|| format!("open {}", args.dir.display()))?;
    let bytes = kedge_fuse::trim(&dir, args.min).map_err(|e| match e.raw_os_error() {
        Some(libc::EOPNOTSUPP) => anyhow::anyhow!("{}: the device takes no space back", args.dir.display()),
        Some(libc::EPERM) => anyhow::anyhow!("only root and the owner of the mount may trim it"),
        _ => anyhow::Error::from(e).context(format!("trim {}", args.dir.display())),
    })?;
    println!("{}: {} given back", args.dir.display(), show_size(bytes));
    Ok(ExitCode::SUCCESS)
}
