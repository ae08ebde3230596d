//! `kedge cp`: copies files and directories between this machine and images that are not mounted,
//! through the library, without FUSE and without privilege; and into a mounted image, through the
//! process that serves it ([`crate::beside`]).
//!
//! A copy keeps modes, owners, times, extended attributes, holes, and hard links within a directory
//! that is copied. On this machine only root sets owners, as with tar(1), and attributes that grant
//! rights are copied only on request ([`host`]). A file that cannot be copied as a whole is absent.
//! All copies are durable when the command succeeds, except on a `volatile` mount.

pub mod host;

use crate::beside::client::{Archive, Mounted};
use crate::import;
use crate::inside::{Inside, parse_inside};
use anyhow::{Context, Result, bail};
use host::Target;
use import::sink::{At, Entries, Sink};
use kedge_host::{Usage, engine, image};
use kedgefs::{Attr, FileKind, FileSystem, Ino};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The source or target of a copy.
#[derive(Clone, Debug)]
pub enum Spot {
    Host(PathBuf),
    Inside(Inside),
}

pub fn spot() -> impl clap::builder::TypedValueParser<Value = Spot> {
    use clap::builder::TypedValueParser;
    clap::builder::OsStringValueParser::new().map(|text: OsString| match parse_inside(text.clone()) {
        Ok(inside) => Spot::Inside(inside),
        Err(_) => Spot::Host(text.into()),
    })
}

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Copy directories with all their contents
    #[arg(short, long)]
    recursive: bool,
    /// As root, from an image to this machine: also copy set-id bits, devices and attributes of
    /// root
    #[arg(long)]
    privileged: bool,
    /// The sources and then the target: PATH on this machine or IMAGE:/PATH. Several sources need a
    /// directory as the target. From PATH to PATH only into a mounted image
    #[arg(value_name = "PATH|IMAGE:/PATH", value_parser = spot(), required = true, num_args = 2..)]
    places: Vec<Spot>,
}

impl Spot {
    fn show(&self) -> String {
        match self {
            Spot::Host(path) => path.display().to_string(),
            Spot::Inside(inside) => inside.show(),
        }
    }

    /// The last name of the source. `/` and paths that end with `.` or `..` have none: their
    /// contents go into the target itself.
    fn name(&self) -> Option<Vec<u8>> {
        let ends_with_dot = |path: &[u8]| path == b"." || path.ends_with(b"/.");
        match self {
            Spot::Host(path) if ends_with_dot(path.as_os_str().as_bytes()) => None,
            Spot::Host(path) => path.file_name().map(|name| name.as_bytes().to_vec()),
            Spot::Inside(inside) if ends_with_dot(inside.path()) => None,
            Spot::Inside(inside) => inside.names().ok()?.last().map(|name| name.to_vec()),
        }
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    let mut sources = args.places;
    let to = sources.pop().expect("clap wants two");
    if let Spot::Host(to) = &to
        && sources.iter().any(|from| matches!(from, Spot::Host(_)))
    {
        return into_mount(&sources, to, args.recursive);
    }
    for place in sources.iter().chain([&to]) {
        if let Spot::Inside(inside) = place {
            inside.names()?;
            inside.refuse_mounted()?;
        }
    }
    match &to {
        Spot::Host(path) => {
            let mut target = Target::new(path, sources.len() > 1, args.privileged)?;
            for from in &sources {
                to_host(from, &mut target, args.recursive)?;
            }
            target.finish()?;
        }
        Spot::Inside(inside) => into_image(&sources, inside, args.recursive)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn refuse_directory(recursive: bool) -> Result<()> {
    if !recursive {
        bail!("is a directory; -r copies it with all its contents");
    }
    Ok(())
}

fn to_host(from: &Spot, target: &mut Target, recursive: bool) -> Result<()> {
    let Spot::Inside(inside) = from else { bail!("{}: not in an image", from.show()) };
    let fs = inside.open()?;
    let attr = inside.find(&fs)?;
    let copied = match attr.kind {
        FileKind::Directory => refuse_directory(recursive),
        _ => Ok(()),
    };
    copied.and_then(|()| target.copy(&fs, &attr, from.name())).with_context(|| from.show())
}

/// Sends each source as an archive of its own, so that the sources copied before an error are
/// durable.
fn into_mount(sources: &[Spot], to: &Path, recursive: bool) -> Result<ExitCode> {
    let from_host = |from: &Spot| match from {
        Spot::Host(path) => Ok(path.clone()),
        Spot::Inside(_) => {
            let what = format!("{}: copy it without files of this machine beside it", from.show());
            Err(anyhow::Error::from(Usage(what)))
        }
    };
    let paths = sources.iter().map(from_host).collect::<Result<Vec<_>>>()?;
    // As with cp(1), a target that is a directory, or a link to one, takes copies under their own
    // names.
    let (above, name) = match std::fs::metadata(to) {
        Ok(meta) if meta.is_dir() => (to, None),
        Ok(_) if paths.len() > 1 => bail!("{}: is no directory", to.display()),
        Err(e) if paths.len() > 1 || e.kind() != std::io::ErrorKind::NotFound => {
            return Err(e).with_context(|| to.display().to_string());
        }
        _ => (parent(to), to.file_name()),
    };
    let Some(mounted) = Mounted::open(above)? else {
        let what = "neither IMAGE:/PATH nor a directory of a mounted image: use cp(1)";
        return Err(Usage(format!("{}: {what}", to.display())).into());
    };
    for (from, path) in sources.iter().zip(&paths) {
        let name = name.map(|name| name.as_bytes().to_vec()).or_else(|| from.name());
        let meta = std::fs::symlink_metadata(path);
        let copied = meta.map_err(anyhow::Error::from).and_then(|meta| match meta.is_dir() {
            true => send_directory(path, name.as_deref(), above, recursive, &mounted),
            false => send_file(path, name.as_deref().context("it has no name")?, &mounted),
        });
        copied.with_context(|| from.show())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn send_directory(
    path: &Path,
    name: Option<&[u8]>,
    to: &Path,
    recursive: bool,
    mounted: &Mounted,
) -> Result<()> {
    refuse_directory(recursive)?;
    if to.canonicalize()?.starts_with(path.canonicalize()?) {
        bail!("{} lies in it", to.display());
    }
    mounted.send(|out| {
        let mut archive = Archive::new(out, name);
        import::fill_from_dir(path, &mut archive)?;
        archive.end()
    })
}

fn send_file(path: &Path, name: &[u8], mounted: &Mounted) -> Result<()> {
    // Otherwise the target would be replaced before the source is read.
    let there = mounted.stat(name)?;
    let meta = std::fs::symlink_metadata(path)?;
    if there.is_some_and(|there| (there.st_dev, there.st_ino) == (meta.dev(), meta.ino())) {
        bail!("this and {} are the same file", String::from_utf8_lossy(name));
    }
    mounted.send(|out| {
        let mut archive = Archive::new(out, None);
        import::add_host_file(path, At { dir: archive.top(), name, path: name }, &mut archive)?;
        archive.end()
    })
}

/// Opens the target image once. Each source in another image opens that image.
fn into_image(sources: &[Spot], to: &Inside, recursive: bool) -> Result<()> {
    let fs = engine::open_to_change(to.image())?;
    let several = sources.len() > 1;
    let copied = sources.iter().try_for_each(|from| copy_in(from, &fs, to, several, recursive));
    // Close in any case; the first error is the cause and is returned.
    let closed = fs.close().with_context(|| format!("close {}", to.image().display()));
    copied.and(closed)
}

/// The target of a copy: a directory of the image and the name there, or the directory itself if
/// there is no name.
struct Goal {
    dir: Ino,
    name: Option<Vec<u8>>,
}

/// An existing directory takes the copy under the source's name; otherwise the last name of the
/// path is the copy's name.
fn goal(fs: &FileSystem, to: &Inside, from: &Spot, several: bool) -> Result<Goal> {
    let mut names = to.names()?;
    match to.walk(fs, &names) {
        Ok(attr) if attr.kind == FileKind::Directory => return Ok(Goal { dir: attr.ino, name: from.name() }),
        Ok(_) if several || to.ends_with_slash() => bail!("{}: is no directory", to.show()),
        Ok(_) => {}
        Err(e) if several || to.ends_with_slash() || !is_missing(&e) => return Err(e),
        Err(_) => {}
    }
    let name = names.pop().map(<[u8]>::to_vec);
    let above = to.walk(fs, &names)?;
    if above.kind != FileKind::Directory {
        bail!("{}: leads through something that is no directory", to.show());
    }
    Ok(Goal { dir: above.ino, name })
}

fn is_missing(e: &anyhow::Error) -> bool {
    matches!(e.downcast_ref::<kedgefs::Error>(), Some(kedgefs::Error::NotFound))
}

fn copy_in(from: &Spot, fs: &FileSystem, to: &Inside, several: bool, recursive: bool) -> Result<()> {
    let goal = goal(fs, to, from, several)?;
    let mut sink = Sink::new(fs, goal.dir, None, std::io::stderr().is_terminal());
    let copied = match from {
        Spot::Host(path) => from_host(path, &goal, recursive, fs, &mut sink).with_context(|| from.show()),
        Spot::Inside(inside) => from_image(inside, &goal, recursive, fs, to, &mut sink),
    };
    // Finish after an error too, so that the directories made so far get their times.
    let finished = sink.finish();
    copied.and(finished)
}

/// The directory that a directory is copied to. It is made if it does not exist.
fn make_top(goal: &Goal, fs: &FileSystem) -> Result<Ino> {
    let Some(name) = &goal.name else { return Ok(goal.dir) };
    match fs.lookup(goal.dir, name) {
        Ok(attr) if import::is_dir(&attr) => Ok(attr.ino),
        Ok(_) => bail!("{}: is there already, and no directory", String::from_utf8_lossy(name)),
        Err(kedgefs::Error::NotFound) => Ok(fs.mkdir(goal.dir, name, 0o700, crate::change::me())?.ino),
        Err(e) => Err(e.into()),
    }
}

fn from_host(path: &Path, goal: &Goal, recursive: bool, fs: &FileSystem, sink: &mut Sink<'_>) -> Result<()> {
    // A final symbolic link is copied as a link; if a slash follows it, its target is copied.
    let meta = std::fs::symlink_metadata(path)?;
    if meta.is_dir() {
        refuse_directory(recursive)?;
        sink.top = make_top(goal, fs)?;
        return import::fill_from_dir(path, sink);
    }
    let name = goal.name.as_deref().context("it has no name")?;
    import::add_host_file(path, At { dir: goal.dir, name, path: path.as_os_str().as_bytes() }, sink)
}

fn from_image(
    from: &Inside,
    goal: &Goal,
    recursive: bool,
    fs: &FileSystem,
    to: &Inside,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let same = image::resolve(from.image())? == image::resolve(to.image())?;
    let opened = match same {
        true => fs.clone(),
        false => engine::open_to_read(from.image())?,
    };
    let attr = from.find(&opened)?;
    let copied = match attr.kind {
        FileKind::Directory if !recursive => refuse_directory(recursive),
        FileKind::Directory => directory(&opened, &attr, goal, (fs, same), to, sink),
        _ => file(&opened, &attr, goal, (fs, same), to, sink),
    };
    copied.with_context(|| from.show())
}

/// Copies a file of an image. `same` says that the target lies in the same image.
fn file(
    from: &FileSystem,
    attr: &Attr,
    goal: &Goal,
    (fs, same): (&FileSystem, bool),
    to: &Inside,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let name = goal.name.as_deref().context("it has no name")?;
    if same && fs.lookup(goal.dir, name).is_ok_and(|there| there.ino == attr.ino) {
        bail!("this and {} are the same file", to.show());
    }
    let at = At { dir: goal.dir, name, path: name };
    import::image::copy(from, attr, at, &mut HashMap::new(), sink)
}

fn directory(
    from: &FileSystem,
    attr: &Attr,
    goal: &Goal,
    (fs, same): (&FileSystem, bool),
    to: &Inside,
    sink: &mut Sink<'_>,
) -> Result<()> {
    if same && is_below(fs, goal.dir, attr)? {
        bail!("{} lies in it", to.show());
    }
    sink.top = make_top(goal, fs)?;
    if same && sink.top == attr.ino {
        bail!("this and {} are the same directory", to.show());
    }
    import::image::fill(from, attr, sink)
}

/// Whether a directory is `top` or lies below it.
fn is_below(fs: &FileSystem, mut dir: Ino, top: &Attr) -> Result<bool> {
    while dir != top.ino {
        if dir == Ino::ROOT {
            return Ok(false);
        }
        dir = fs.lookup(dir, b"..")?.ino;
    }
    Ok(true)
}
