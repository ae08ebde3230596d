//! `kedge tar`: a directory of an image to a tar archive and back.

use crate::places::place;
use anyhow::Result;
use kedge_host::Usage;
use kedge_transfer::copy::Place;
use kedge_transfer::export;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
#[command(group(clap::ArgGroup::new("direction").required(true).args(["create", "extract"])))]
pub struct Args {
    /// Write an archive of the directory
    #[arg(short = 'c')]
    create: bool,
    /// Put the files of an archive into the directory
    #[arg(short = 'x')]
    extract: bool,
    /// The archive; standard output or input otherwise
    #[arg(short = 'f', value_name = "FILE")]
    file: Option<PathBuf>,
    /// A directory in an image. With -x also a directory of a mounted one
    #[arg(value_name = "IMAGE:/DIR|DIR", value_parser = place())]
    place: Place,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let named = args.file.as_deref().filter(|file| *file != Path::new("-"));
    match (args.place, args.extract) {
        (Place::Image(place), true) => export::extract(&place, named)?,
        (Place::Host(dir), true) => export::extract_mounted(&dir, named)?,
        (Place::Image(place), false) => export::create(&place, named)?,
        (Place::Host(dir), false) => {
            return Err(Usage(format!("{}: not IMAGE:/DIR: use tar(1)", dir.display())).into());
        }
    }
    Ok(ExitCode::SUCCESS)
}
