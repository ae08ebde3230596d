//! `kedge fork`: a writable copy of a tree, mounted or not.

use crate::places::place;
use crate::snapshot::make;
use anyhow::Result;
use kedge_transfer::copy::Place;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Nothing in the copy can be changed: a snapshot
    #[arg(long)]
    read_only: bool,
    /// The root of a mount, or a fork or snapshot in it; or IMAGE:/PATH of an image that is not
    /// mounted
    #[arg(value_parser = place())]
    source: Place,
    /// The directory to make, in the same mount or image
    #[arg(value_parser = place())]
    target: Place,
}

pub fn run(args: Args) -> Result<ExitCode> {
    make(&args.source, &args.target, args.read_only)?;
    Ok(ExitCode::SUCCESS)
}
