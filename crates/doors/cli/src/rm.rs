//! `kedge rm`: removes a file or a directory from an image that is not mounted.

use crate::places::image_path;
use anyhow::Result;
use kedge_transfer::change;
use kedge_transfer::offline::ImagePath;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Remove directories with all they hold
    #[arg(short, long)]
    recursive: bool,
    /// A file in an image
    #[arg(value_name = "IMAGE:/PATH", value_parser = image_path())]
    place: ImagePath,
}

pub fn run(args: Args) -> Result<ExitCode> {
    change::rm(&args.place, args.recursive)?;
    Ok(ExitCode::SUCCESS)
}
