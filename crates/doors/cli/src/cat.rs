//! `kedge cat`: prints files of an image that is not mounted.

use crate::places::image_path;
use anyhow::{Context, Result, bail};
use kedge_transfer::offline::ImagePath;
use kedgefs::FileKind;
use std::io::Write;
use std::process::ExitCode;

/// Bytes that are read with one call.
const CHUNK: usize = 1 << 20;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Files in an image
    #[arg(value_name = "IMAGE:/PATH", value_parser = image_path(), required = true)]
    places: Vec<ImagePath>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let mut buf = vec![0; CHUNK];
    for place in &args.places {
        let fs = place.open()?;
        let attr = place.find(&fs)?;
        match attr.kind {
            FileKind::Regular => {}
            FileKind::Directory => bail!("{}: is a directory", place.show()),
            _ => bail!("{}: is no regular file", place.show()),
        }
        let mut at = 0;
        loop {
            let n = fs.read(attr.ino, at, &mut buf).with_context(|| place.show())?;
            if n == 0 {
                break;
            }
            out.write_all(&buf[..n])?;
            at += n as u64;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
