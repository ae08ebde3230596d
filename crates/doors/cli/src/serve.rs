//! `kedge serve`: offers an image by other means than a mount.

mod nfs;

use anyhow::Result;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    door: Door,
}

#[derive(clap::Subcommand, Debug)]
enum Door {
    /// Serve an image over NFS version 3, in the foreground
    Nfs(nfs::Args),
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.door {
        Door::Nfs(args) => nfs::run(args),
    }
}
