//! `kedge mkdir`: makes a directory in an image that is not mounted.

use crate::places::image_path;
use anyhow::Result;
use kedge_transfer::change;
use kedge_transfer::offline::ImagePath;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Make the directories above it, too; no error if it exists
    #[arg(short, long)]
    parents: bool,
    /// A directory in an image
    #[arg(value_name = "IMAGE:/DIR", value_parser = image_path())]
    place: ImagePath,
}

pub fn run(args: Args) -> Result<ExitCode> {
    change::mkdir(&args.place, args.parents)?;
    Ok(ExitCode::SUCCESS)
}
