//! `kedge diff`: what differs between two trees.

use crate::places::{mixed, place};
use anyhow::Result;
use kedge_base::printable_name;
use kedge_transfer::copy::Place;
use kedge_transfer::diff::{Difference, What};
use kedge_transfer::{online, trees};
use kedgefs::FileKind;
use serde_json::json;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

/// The exit code if the trees differ.
const DIFFER: u8 = 1;
/// The exit code after an error, as in diff(1).
pub const TROUBLE: u8 = 2;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// One JSON object for each difference and line
    #[arg(long, conflicts_with = "null")]
    json: bool,
    /// End each difference, and each path in it, with a zero byte, and print names as they are
    #[arg(short = '0', long)]
    null: bool,
    /// The older tree: the root of a mount, or a fork or snapshot in it; or IMAGE:/PATH of an
    /// image that is not mounted
    #[arg(value_parser = place())]
    before: Place,
    /// The newer tree, in the same mount or image
    #[arg(value_parser = place())]
    after: Place,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let found = match (&args.before, &args.after) {
        (Place::Image(before), Place::Image(after)) => trees::diff(before, after)?.found,
        (Place::Host(before), Place::Host(after)) => online::trees::diff(before, after)?,
        _ => return Err(mixed()),
    };
    let mut out = BufWriter::new(io::stdout().lock());
    for difference in &found {
        match (args.json, args.null) {
            (true, _) => writeln!(out, "{}", as_json(difference))?,
            (_, true) => write_null(&mut out, difference)?,
            _ => write_text(&mut out, difference)?,
        }
    }
    out.flush()?;
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DIFFER) })
}

/// The letter that the text output prints for a kind of difference.
fn letter(what: What) -> &'static str {
    match what {
        What::Created => "+",
        What::Deleted => "-",
        What::Renamed => ">",
        What::Linked => "=",
        What::Unlinked => "!",
        What::Modified => "M",
    }
}

fn write_text(out: &mut impl Write, d: &Difference) -> io::Result<()> {
    write!(out, "{} ", letter(d.what))?;
    if let Some(from) = &d.from {
        out.write_all(&printable_name(from))?;
        write!(out, " -> ")?;
    }
    out.write_all(&printable_name(&d.path))?;
    if d.kind == FileKind::Directory {
        write!(out, "/")?;
    }
    let mut parts = Vec::new();
    for part in &d.parts {
        match *part {
            "data" => {
                parts.extend(d.data.iter().map(|(offset, len)| format!("data {offset}+{len}")));
            }
            "xattrs" => {
                let names =
                    d.xattrs.iter().map(|name| String::from_utf8_lossy(&printable_name(name)).into_owned());
                parts.extend(names);
            }
            part => parts.push(part.to_owned()),
        }
    }
    if !parts.is_empty() {
        write!(out, "  ({})", parts.join(", "))?;
    }
    writeln!(out)
}

fn write_null(out: &mut impl Write, d: &Difference) -> io::Result<()> {
    write!(out, "{} ", letter(d.what))?;
    if let Some(from) = &d.from {
        out.write_all(from)?;
        out.write_all(b"\0")?;
    }
    out.write_all(&d.path)?;
    out.write_all(b"\0")
}

fn as_json(d: &Difference) -> serde_json::Value {
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let mut row = json!({ "change": d.what, "path": text(&d.path), "type": kind(d.kind) });
    if let Some(from) = &d.from {
        row["from"] = text(from).into();
    }
    if !d.parts.is_empty() {
        row["parts"] = json!(d.parts);
    }
    if !d.data.is_empty() {
        row["data"] = json!(d.data);
    }
    if !d.xattrs.is_empty() {
        row["xattrs"] = d.xattrs.iter().map(text).collect();
    }
    row
}

fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}
