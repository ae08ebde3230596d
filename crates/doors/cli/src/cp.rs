//! `kedge cp`: copies files between this machine and images.

use crate::places::place;
use anyhow::Result;
use kedge_transfer::copy::{self, Place};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Copy directories with all they hold
    #[arg(short, long)]
    recursive: bool,
    /// As root, from an image to this machine: copy set-id bits, devices and attributes of root,
    /// too
    #[arg(long)]
    privileged: bool,
    /// What is copied, and where to: PATH on this machine or IMAGE:/PATH. Several go into a
    /// directory. From PATH to PATH only into a mounted image
    #[arg(value_name = "PATH|IMAGE:/PATH", value_parser = place(), required = true, num_args = 2..)]
    places: Vec<Place>,
}

pub fn run(mut args: Args) -> Result<ExitCode> {
    let to = args.places.pop().expect("clap wants two");
    copy::copy(&args.places, &to, args.recursive, args.privileged)?;
    Ok(ExitCode::SUCCESS)
}
