//! `kedge cp`: copies files between this machine and images.

use crate::places::place;
use anyhow::Result;
use kedge_transfer::copy::{self, Options, Place, Reflink};
use std::process::ExitCode;

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum When {
    Never,
    Auto,
    Always,
}

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Copy directories with all they hold
    #[arg(short, long)]
    recursive: bool,
    /// As root, from an image to this machine: copy set-id bits, devices and attributes of root,
    /// too
    #[arg(long)]
    privileged: bool,
    /// Within an image: let copies share blocks with their originals until one of them is written
    /// (docs/REFLINK.md). auto copies files that cannot, always fails
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, require_equals = true,
          default_value = "never", default_missing_value = "always")]
    reflink: When,
    /// What is copied, and where to: PATH on this machine or IMAGE:/PATH. Several go into a
    /// directory. From PATH to PATH only into a mounted image
    #[arg(value_name = "PATH|IMAGE:/PATH", value_parser = place(), required = true, num_args = 2..)]
    places: Vec<Place>,
}

pub fn run(mut args: Args) -> Result<ExitCode> {
    let to = args.places.pop().expect("clap wants two");
    let reflink = match args.reflink {
        When::Never => Reflink::Never,
        When::Auto => Reflink::Auto,
        When::Always => Reflink::Always,
    };
    let (recursive, privileged) = (args.recursive, args.privileged);
    copy::copy(&args.places, &to, Options { recursive, privileged, reflink })?;
    Ok(ExitCode::SUCCESS)
}
