//! `kedge limit`: how much a directory and everything below it may use, mounted or not.
//!
//! On a mount the serving process does the work: an ioctl on the directory. An image that is not
//! mounted is opened here.

use crate::places::place;
use anyhow::{Context, Result, anyhow, bail};
use kedge_base::printable_name;
use kedge_host::options::parse_size;
use kedge_host::text::show_size;
use kedge_host::{Usage, mounts};
use kedge_transfer::copy::Place;
use kedge_transfer::limits::{self, Listed};
use kedgefs::SetLimit;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Most bytes of file data; `none` for any number
    #[arg(long, value_name = "SIZE|none", value_parser = parse_bytes, allow_negative_numbers = true)]
    size: Option<Max>,
    /// Most files, directories and other inodes, DIR included: a number, which may end in k or M
    /// for thousands or millions; `none` for any number
    #[arg(long, value_name = "N|none", value_parser = parse_files, allow_negative_numbers = true)]
    files: Option<Max>,
    /// Show the limit as a JSON object
    #[arg(long, conflicts_with_all = ["size", "files"])]
    json: bool,
    /// A directory in a mount; or IMAGE:/PATH of an image that is not mounted
    #[arg(value_parser = place(), required = true)]
    dir: Option<Place>,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// List the limits of a mount or an image
    List {
        /// One JSON object for each limit and line
        #[arg(long)]
        json: bool,
        /// A mount point, or an image that is not mounted
        image: PathBuf,
    },
}

/// A maximum; `None` for any number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Max(Option<u64>);

fn parse_bytes(text: &str) -> Result<Max, String> {
    if text == "none" { Ok(Max(None)) } else { parse_size(text).map(|bytes| Max(Some(bytes))) }
}

fn parse_files(text: &str) -> Result<Max, String> {
    if text == "none" {
        return Ok(Max(None));
    }
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1000),
        None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1_000_000)),
    };
    let number = digits.parse::<u64>().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
    let number = number.and_then(|number| number.checked_mul(unit));
    number.map(|number| Max(Some(number))).ok_or_else(|| "a number like 5000, 100k or 2M, or none".into())
}

pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(What::List { json, image }) = args.what {
        list(&image, json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(dir) = args.dir else { return Err(Usage("a directory is missing".into()).into()) };
    if args.size.is_none() && args.files.is_none() {
        show(&dir, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    if [args.size, args.files].contains(&Some(Max(Some(0)))) {
        return Err(Usage("a limit is at least a block of 4096 bytes, and one file".into()).into());
    }
    let new = SetLimit { bytes: args.size.map(|max| max.0), files: args.files.map(|max| max.0) };
    match &dir {
        Place::Image(path) => limits::set(path, new)?,
        Place::Host(path) => set(path, new)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens a directory of a mount.
fn open(dir: &Path) -> Result<File> {
    let file = File::open(dir).with_context(|| format!("open {}", dir.display()))?;
    let mount =
        kedge_fuse::mount_of(&file).with_context(|| format!("find the mount of {}", dir.display()))?;
    if !mount.is_some_and(|mount| mount.is_kedgefs()) {
        bail!("{} is not in a mount of KedgeFS", dir.display());
    }
    Ok(file)
}

fn set(path: &Path, new: SetLimit) -> Result<()> {
    let dir = open(path)?;
    if !dir.metadata().with_context(|| format!("read {}", path.display()))?.is_dir() {
        bail!("{} is not a directory", path.display());
    }
    // Flush the kernel's dirty pages first: their bytes then count as used, and the new limit
    // cannot refuse them at writeback.
    rustix::fs::syncfs(&dir).with_context(|| format!("write what is cached of {}", path.display()))?;
    let max = |max: Option<Option<u64>>| max.map(|max| max.unwrap_or(0));
    kedge_fuse::set_limit(&dir, max(new.bytes), max(new.files)).map_err(|e| refused(path, e))
}

fn refused(path: &Path, e: io::Error) -> anyhow::Error {
    let path = path.display();
    match e.raw_os_error() {
        Some(libc::EPERM) => anyhow!("limit {path}: only root and the owner of the mount may do that"),
        Some(libc::EMLINK) => anyhow!(
            "limit {path}: a file in it has another name outside; `find {path} -links +1 ! -type d` lists those \
             with several names"
        ),
        Some(libc::EINVAL) => anyhow!(
            "limit {path}: a limit is at least a block of 4096 bytes, and one file, and at most 32 are inside \
             one another"
        ),
        Some(libc::EBUSY) => anyhow!("limit {path}: the mount is frozen"),
        Some(libc::ENOTTY | libc::EOPNOTSUPP) => {
            anyhow!("limit {path}: the serving process is of an earlier version")
        }
        _ => anyhow::Error::from(e).context(format!("limit {path}")),
    }
}

/// A limit of an unmounted image as the JSON object that is shown.
fn row(listed: &Listed) -> Value {
    let Listed { limit, path } = listed;
    json!({
        "dir": limit.dir.0,
        "inside": limit.inside.map(|dir| dir.0),
        "bytes": limit.bytes,
        "bytes_max": limit.bytes_max,
        "files": limit.files,
        "files_max": limit.files_max,
        "path": path.as_ref().map(|path| String::from_utf8_lossy(path).into_owned()),
    })
}

/// The limit that applies to a directory of a mount, with the path of the directory that has it.
fn nearest(path: &Path) -> Result<Value> {
    drop(open(path)?);
    let text = mounts::attribute_of(path, mounts::XATTR_LIMIT)?;
    let mut row: Value = serde_json::from_str(&text)
        .with_context(|| format!("read {} of {}", mounts::XATTR_LIMIT, path.display()))?;
    if let Some(ino) = row["dir"].as_u64() {
        // Without search permission on the directories above, the output has no path.
        let above = std::fs::canonicalize(path).ok();
        let mut above = above.as_deref().into_iter().flat_map(Path::ancestors);
        let found = above.find(|dir| dir.metadata().is_ok_and(|at| at.ino() == ino && at.is_dir()));
        row["path"] = found.map(|dir| dir.to_string_lossy().into_owned()).into();
    }
    Ok(row)
}

fn show(dir: &Place, json: bool) -> Result<()> {
    let row = match dir {
        Place::Image(path) => limits::nearest(path)?.map_or(Value::Null, |listed| row(&listed)),
        Place::Host(path) => nearest(path)?,
    };
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{row}")?;
    } else if row.is_null() {
        writeln!(out, "no limit")?;
    } else {
        write!(out, "limit of ")?;
        out.write_all(&printable_name(row["path"].as_str().unwrap_or("a directory above").as_bytes()))?;
        writeln!(out)?;
        let (bytes, files) = figures(&row);
        writeln!(out, "bytes  {bytes}")?;
        writeln!(out, "files  {files}")?;
    }
    Ok(())
}

/// The used bytes and files as text, each with its maximum if there is one.
fn figures(row: &Value) -> (String, String) {
    let size = |member: &str| row[member].as_u64().map(show_size);
    let bytes = size("bytes").unwrap_or_default();
    let bytes = size("bytes_max").map_or_else(|| bytes.clone(), |max| format!("{bytes} of {max}"));
    let files = row["files"].to_string();
    let files = row["files_max"].as_u64().map_or_else(|| files.clone(), |max| format!("{files} of {max}"));
    (bytes, files)
}

fn list(image: &Path, json: bool) -> Result<()> {
    let rows = match image.is_dir() {
        true => list_mounted(image)?,
        false => match mounts::of_image(image)? {
            Some(mount) => list_mounted(&mount.dir)?,
            None => limits::list(image)?.iter().map(row).collect(),
        },
    };
    let mut out = io::stdout().lock();
    for row in rows {
        if json {
            writeln!(out, "{row}")?;
            continue;
        }
        let (bytes, files) = figures(&row);
        write!(out, "{bytes:24} {files:>20} files  ")?;
        out.write_all(&printable_name(row["path"].as_str().unwrap_or("?").as_bytes()))?;
        writeln!(out)?;
    }
    Ok(())
}

fn list_mounted(dir: &Path) -> Result<Vec<Value>> {
    let mut rows: Vec<Value> = Vec::new();
    loop {
        let name = format!("{}{}", mounts::XATTR_LIMITS, rows.len());
        let text = mounts::attribute_of(dir, &name)?;
        let part =
            serde_json::from_str(&text).with_context(|| format!("read {name} of {}", dir.display()))?;
        match part {
            Value::Array(part) if !part.is_empty() => rows.extend(part),
            _ => return Ok(rows),
        }
    }
}

#[cfg(test)]
#[path = "limit_tests.rs"]
mod tests;
