//! `kedge image`: a copy of an image's metadata, for the report of a bug.

use anyhow::Result;
use kedge_transfer::metadump;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Replace names, and leave out attributes, targets of links and what the log has of file data
    #[arg(long)]
    scramble: bool,
    /// A file or block device, or rbd:POOL/IMAGE, nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH
    image: PathBuf,
    /// The file to make
    out: PathBuf,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let report = metadump::dump(&args.image, &args.out, args.scramble)?;
    write!(std::io::stdout().lock(), "{report}")?;
    Ok(ExitCode::SUCCESS)
}
