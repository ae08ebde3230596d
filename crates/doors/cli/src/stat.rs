//! `kedge stat`: all that is known of a file of an image that is not mounted.

use crate::mode::mode_text;
use crate::places::image_path;
use anyhow::Result;
use kedge_host::text::date;
use kedge_transfer::offline::{ImagePath, device};
use kedgefs::FileKind;
use serde_json::json;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// A file in an image
    #[arg(value_name = "IMAGE:/PATH", value_parser = image_path())]
    place: ImagePath,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let fs = args.place.open()?;
    let attr = args.place.find(&fs)?;
    let time = |t: kedgefs::Timespec| format!("{}.{:09}Z", date(t.sec).trim_end_matches('Z'), t.nsec);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut xattrs = serde_json::Map::new();
    for name in fs.listxattr(attr.ino)? {
        let value = fs.getxattr(attr.ino, &name)?;
        xattrs.insert(text(&name), text(&value).into());
    }
    let (major, minor) = device(attr.rdev);
    let target = if attr.kind == FileKind::Symlink { Some(text(&fs.readlink(attr.ino)?)) } else { None };
    let value = json!({
        "inode": attr.ino.0,
        "mode": mode_text(&attr),
        "links": attr.nlink,
        "uid": attr.uid,
        "gid": attr.gid,
        "size": attr.size,
        "blocks_512": attr.blocks,
        "device": format!("{major}:{minor}"),
        "target": target,
        "accessed": time(attr.atime),
        "modified": time(attr.mtime),
        "changed": time(attr.ctime),
        "born": time(attr.btime),
        "xattrs": xattrs,
    });
    crate::info::print(&value, args.json)?;
    Ok(ExitCode::SUCCESS)
}
