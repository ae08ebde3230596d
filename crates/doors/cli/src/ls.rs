//! `kedge ls`: lists a directory of an image that is not mounted.

use crate::mode::mode_text;
use crate::places::image_path;
use anyhow::{Context, Result};
use kedge_base::printable_name;
use kedge_host::text::date;
use kedge_transfer::offline::{ImagePath, device, entries};
use kedgefs::{FileKind, FileSystem, Ino};
use std::io::{StdoutLock, Write};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Type, permissions, links, owner, group, size and time of change, too
    #[arg(short)]
    long: bool,
    /// A directory or a file in an image
    #[arg(value_name = "IMAGE:/PATH", value_parser = image_path())]
    place: ImagePath,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let fs = args.place.open()?;
    let attr = args.place.find(&fs)?;
    let mut out = std::io::stdout().lock();
    let rows = if attr.kind == FileKind::Directory {
        entries(&fs, attr.ino).with_context(|| args.place.show())?
    } else {
        let start = args.place.path().iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
        vec![(args.place.path()[start..].to_vec(), attr.ino)]
    };
    for (name, ino) in rows {
        if args.long {
            write_long(&fs, &mut out, ino)?;
        }
        out.write_all(&printable_name(&name))?;
        if args.long && fs.getattr(ino)?.kind == FileKind::Symlink {
            out.write_all(b" -> ")?;
            out.write_all(&printable_name(&fs.readlink(ino)?))?;
        }
        out.write_all(b"\n")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write_long(fs: &FileSystem, out: &mut StdoutLock<'_>, ino: Ino) -> Result<()> {
    let attr = fs.getattr(ino)?;
    let size = match attr.kind {
        FileKind::CharDevice | FileKind::BlockDevice => {
            let (major, minor) = device(attr.rdev);
            format!("{major}, {minor}")
        }
        _ => attr.size.to_string(),
    };
    write!(
        out,
        "{} {:>3} {:>5} {:>5} {:>10} {} ",
        mode_text(&attr),
        attr.nlink,
        attr.uid,
        attr.gid,
        size,
        date(attr.mtime.sec)
    )?;
    Ok(())
}
