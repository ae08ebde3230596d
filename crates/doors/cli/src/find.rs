//! `kedge find`: lists all paths below a directory of an image that is not mounted.

use crate::places::image_path;
use anyhow::{Context, Result};
use kedge_base::printable_name;
use kedge_transfer::offline::{ImagePath, entries};
use kedgefs::FileKind;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// End each path with a zero byte: a name may hold a line end
    #[arg(short = '0', long = "print0")]
    zero: bool,
    /// Where to begin
    #[arg(value_name = "IMAGE:/PATH", value_parser = image_path())]
    place: ImagePath,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let fs = args.place.open()?;
    let start = args.place.find(&fs)?;
    let mut path = args.place.path().to_vec();
    while path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut left = vec![(path, start.ino, start.kind == FileKind::Directory)];
    while let Some((path, ino, is_dir)) = left.pop() {
        out.write_all(&if args.zero { path.clone() } else { printable_name(&path) })?;
        out.write_all(if args.zero { b"\0" } else { b"\n" })?;
        if !is_dir {
            continue;
        }
        let here = Path::new(OsStr::from_bytes(&path));
        for (name, ino) in entries(&fs, ino).with_context(|| here.display().to_string())?.into_iter().rev() {
            let below = here.join(OsStr::from_bytes(&name)).into_os_string().into_vec();
            let is_dir = fs.getattr(ino)?.kind == FileKind::Directory;
            left.push((below, ino, is_dir));
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
