//! `kedge ls`, `cat`, `stat`, `find`: read an image that is not mounted, without FUSE and without
//! privilege.
//!
//! The image is opened read-only: a log that was not replayed is replayed in memory, and nothing is
//! written. Permissions are not checked, because a user who can read the image can read all of it.
//! Symbolic links are shown, not followed. A path through a symbolic link is refused, because the
//! target refers to the machine on which the image is mounted.

use anyhow::{Context, Result, bail};
use kedge_base::printable_name;
use kedge_host::text::date;
use kedge_host::{Usage, engine, mounts};
use kedgefs::{Attr, FileKind, FileSystem, Ino};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::io::{StdoutLock, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The most bytes read with one call.
const CHUNK: usize = 1 << 20;

/// `IMAGE:/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    image: PathBuf,
    path: Vec<u8>,
}

/// URI schemes, whose `:/` does not separate image and path.
const SCHEMES: [&[u8]; 2] = [b"nbd://", b"nbd+unix://"];

/// Splits at the first `:/` after a URI's scheme. An image whose own name contains `:/` can be
/// named through a symbolic link.
pub fn parse_inside(text: OsString) -> Result<Inside, String> {
    let bytes = text.as_bytes();
    let scheme = SCHEMES.iter().find(|scheme| bytes.starts_with(scheme)).map_or(0, |scheme| scheme.len());
    match bytes[scheme..].windows(2).position(|pair| pair == b":/").map(|at| at + scheme) {
        Some(at) if at > 0 => Ok(Inside {
            image: PathBuf::from(OsStr::from_bytes(&bytes[..at])),
            path: bytes[at + 1..].to_vec(),
        }),
        _ => Err("it must be IMAGE:/PATH".into()),
    }
}

pub fn inside() -> impl clap::builder::TypedValueParser<Value = Inside> {
    use clap::builder::TypedValueParser;
    clap::builder::OsStringValueParser::new().try_map(parse_inside)
}

#[derive(clap::Args, Debug)]
pub struct LsArgs {
    /// Also print type, permissions, links, owner, group, size and time of change
    #[arg(short)]
    long: bool,
    /// A directory or a file in an image
    #[arg(value_name = "IMAGE:/PATH", value_parser = inside())]
    place: Inside,
}

#[derive(clap::Args, Debug)]
pub struct CatArgs {
    /// Files in an image
    #[arg(value_name = "IMAGE:/PATH", value_parser = inside(), required = true)]
    places: Vec<Inside>,
}

#[derive(clap::Args, Debug)]
pub struct StatArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// A file in an image
    #[arg(value_name = "IMAGE:/PATH", value_parser = inside())]
    place: Inside,
}

#[derive(clap::Args, Debug)]
pub struct FindArgs {
    /// End each path with a zero byte: a name may hold a line end
    #[arg(short = '0', long = "print0")]
    zero: bool,
    /// The file or directory to begin with
    #[arg(value_name = "IMAGE:/PATH", value_parser = inside())]
    place: Inside,
}

impl Inside {
    pub fn image(&self) -> &Path {
        &self.image
    }

    pub fn refuse_mounted(&self) -> Result<()> {
        if let Some(mount) = mounts::of_image(&self.image)? {
            bail!("{} is mounted on {}: look there", self.image.display(), mount.dir.display());
        }
        Ok(())
    }

    pub fn open(&self) -> Result<FileSystem> {
        self.refuse_mounted()?;
        engine::open_to_read(&self.image)
    }

    pub fn show(&self) -> String {
        format!("{}:{}", self.image.display(), String::from_utf8_lossy(&self.path))
    }

    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Whether the path must be a directory.
    pub fn ends_with_slash(&self) -> bool {
        self.path.ends_with(b"/")
    }

    /// The names in the path.
    pub fn names(&self) -> Result<Vec<&[u8]>> {
        let parts = self.path.split(|b| *b == b'/');
        let names: Vec<&[u8]> = parts.filter(|name| !name.is_empty() && *name != b".").collect();
        if names.contains(&&b".."[..]) {
            return Err(Usage(format!("{}: '..' is not understood", self.show())).into());
        }
        Ok(names)
    }

    /// The attributes of the file at the end of these names.
    pub fn walk(&self, fs: &FileSystem, names: &[&[u8]]) -> Result<Attr> {
        let mut here = fs.getattr(Ino::ROOT)?;
        for name in names {
            if here.kind == FileKind::Symlink {
                bail!("{}: leads through a symbolic link", self.show());
            }
            here = fs.lookup(here.ino, name).with_context(|| self.show())?;
        }
        Ok(here)
    }

    pub fn find(&self, fs: &FileSystem) -> Result<Attr> {
        let here = self.walk(fs, &self.names()?)?;
        if self.ends_with_slash() && here.kind != FileKind::Directory {
            bail!("{}: not a directory", self.show());
        }
        Ok(here)
    }
}

/// The entries of a directory without `.` and `..`, sorted by name.
pub fn entries(fs: &FileSystem, dir: Ino) -> Result<Vec<(Vec<u8>, Ino)>> {
    let mut found = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            found.push((entry.name.to_vec(), entry.ino));
        }
        true
    })?;
    found.sort();
    Ok(found)
}

pub fn ls(args: LsArgs) -> Result<ExitCode> {
    let fs = args.place.open()?;
    let attr = args.place.find(&fs)?;
    let mut out = std::io::stdout().lock();
    let rows = if attr.kind == FileKind::Directory {
        entries(&fs, attr.ino).with_context(|| args.place.show())?
    } else {
        let start = args.place.path.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
        vec![(args.place.path[start..].to_vec(), attr.ino)]
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

/// The major and minor number of an `rdev`, as the kernel passes it to a file system.
pub fn device(rdev: u64) -> (u64, u64) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00))
}

/// The mode as ls(1) shows it: `drwxr-xr-x`.
fn mode_text(attr: &Attr) -> String {
    let kind = match attr.kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    };
    let mut text = String::from(kind);
    // For each class: the shift of its bits, the special bit, and the letter shown with and without
    // execute permission.
    for (shift, special, with, without) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = attr.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, attr.mode & special != 0) {
            (true, true) => with,
            (false, true) => without,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

pub fn cat(args: CatArgs) -> Result<ExitCode> {
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

pub fn stat(args: StatArgs) -> Result<ExitCode> {
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

pub fn find(args: FindArgs) -> Result<ExitCode> {
    let fs = args.place.open()?;
    let start = args.place.find(&fs)?;
    let mut path = args.place.path.clone();
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
