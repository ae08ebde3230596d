//! Copying files and directories between this machine and images that are not mounted, through
//! the library, without FUSE and without privilege; and into a mounted image, through the process
//! that serves it ([`crate::online`]).
//!
//! A copy has the modes, owners, times, extended attributes and holes of the original, and hard
//! links between files of one copied directory. On this machine only root sets owners, as with
//! tar(1), and attributes that grant rights are copied only on request ([`crate::to_host`]). A file
//! that cannot be copied completely is absent. All copies are durable when the command succeeds,
//! except on a mount with `volatile`.

use crate::import;
use crate::offline::{ImagePath, caller};
use crate::online::client::{Archive, Mounted};
use crate::to_host::Target;
use anyhow::{Context, Result, bail};
pub use import::sink::Reflink;
use import::sink::{At, Entries, Sink};
use kedge_host::{Usage, engine, image};
use kedgefs::{Attr, FileKind, FileSystem, Ino};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The source or target of a copy.
#[derive(Clone, Debug)]
pub enum Place {
    Host(PathBuf),
    Image(ImagePath),
}

impl Place {
    fn show(&self) -> String {
        match self {
            Place::Host(path) => path.display().to_string(),
            Place::Image(inside) => inside.show(),
        }
    }

    /// The last name of the source. `/` and paths that end with `.` or `..` have none: their
    /// contents are copied into the target itself.
    fn name(&self) -> Option<Vec<u8>> {
        let ends_with_dot = |path: &[u8]| path == b"." || path.ends_with(b"/.");
        match self {
            Place::Host(path) if ends_with_dot(path.as_os_str().as_bytes()) => None,
            Place::Host(path) => path.file_name().map(|name| name.as_bytes().to_vec()),
            Place::Image(inside) if ends_with_dot(inside.path()) => None,
            Place::Image(inside) => inside.names().ok()?.last().map(|name| name.to_vec()),
        }
    }
}

/// How files are copied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Copies directories, too.
    pub recursive: bool,
    /// In a copy from an image to this machine: copies attributes that only root may set, too.
    pub privileged: bool,
    /// Whether copies within an image share blocks with their originals.
    pub reflink: Reflink,
}

/// Copies the sources to a target.
pub fn copy(sources: &[Place], to: &Place, options: Options) -> Result<()> {
    let Options { recursive, privileged, reflink } = options;
    if reflink == Reflink::Always {
        check_reflink(sources, to)?;
    }
    if let Place::Host(to) = to
        && sources.iter().any(|from| matches!(from, Place::Host(_)))
    {
        return into_mount(sources, to, recursive);
    }
    for place in sources.iter().chain([to]) {
        if let Place::Image(inside) = place {
            inside.names()?;
            inside.refuse_mounted()?;
        }
    }
    match to {
        Place::Host(path) => {
            let mut target = Target::new(path, sources.len() > 1, privileged)?;
            for from in sources {
                to_host(from, &mut target, recursive)?;
            }
            target.finish()?;
        }
        Place::Image(inside) => into_image(sources, inside, options)?,
    }
    Ok(())
}

/// Refuses sources that cannot share blocks with the target.
fn check_reflink(sources: &[Place], to: &Place) -> Result<()> {
    let Place::Image(inside) = to else {
        let what = "--reflink=always shares blocks within an image; on a mount cp(1) does so";
        return Err(Usage(format!("{}: {what}", to.show())).into());
    };
    let target = image::resolve(inside.image())?;
    for from in sources {
        let same = match from {
            Place::Image(from) => image::resolve(from.image())? == target,
            Place::Host(_) => false,
        };
        if !same {
            let what = "lies outside of the image, and cannot share blocks with a copy in it";
            return Err(Usage(format!("{}: {what}", from.show())).into());
        }
    }
    Ok(())
}

fn refuse_directory(recursive: bool) -> Result<()> {
    if !recursive {
        bail!("is a directory; -r copies it with all its contents");
    }
    Ok(())
}

fn to_host(from: &Place, target: &mut Target, recursive: bool) -> Result<()> {
    let Place::Image(inside) = from else { bail!("{}: not in an image", from.show()) };
    let fs = inside.open()?;
    let attr = inside.find(&fs)?;
    let copied = match attr.kind {
        FileKind::Directory => refuse_directory(recursive),
        _ => Ok(()),
    };
    copied.and_then(|()| target.copy(&fs, &attr, from.name())).with_context(|| from.show())
}

/// Sends each source as an archive of its own, so that the sources copied before an error stay, and
/// are durable.
fn into_mount(sources: &[Place], to: &Path, recursive: bool) -> Result<()> {
    let from_host = |from: &Place| match from {
        Place::Host(path) => Ok(path.clone()),
        Place::Image(_) => {
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
    Ok(())
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
    // Checked here, because the target would be replaced before the source is read.
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

/// Opens the target image once. Each other source image is opened as well.
fn into_image(sources: &[Place], to: &ImagePath, options: Options) -> Result<()> {
    let fs = engine::open_to_change(to.image())?;
    let several = sources.len() > 1;
    let copied = sources.iter().try_for_each(|from| copy_in(from, &fs, to, several, options));
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

/// An existing directory takes the copy under the copy's own name. Otherwise the last name of the
/// path becomes the name of the copy.
fn goal(fs: &FileSystem, to: &ImagePath, from: &Place, several: bool) -> Result<Goal> {
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

fn copy_in(from: &Place, fs: &FileSystem, to: &ImagePath, several: bool, options: Options) -> Result<()> {
    let recursive = options.recursive;
    let goal = goal(fs, to, from, several)?;
    let mut sink = Sink::new(fs, goal.dir, None, std::io::stderr().is_terminal());
    let copied = match from {
        Place::Host(path) => from_host(path, &goal, recursive, fs, &mut sink).with_context(|| from.show()),
        Place::Image(inside) => from_image(inside, &goal, options, fs, to, &mut sink),
    };
    // Finish after an error too, so that the directories made so far get their times.
    let finished = sink.finish();
    copied.and(finished)
}

/// Returns the directory whose contents a copied directory gets. Makes it if it does not exist.
fn make_top(goal: &Goal, fs: &FileSystem) -> Result<Ino> {
    let Some(name) = &goal.name else { return Ok(goal.dir) };
    match fs.lookup(goal.dir, name) {
        Ok(attr) if import::is_dir(&attr) => Ok(attr.ino),
        Ok(_) => bail!("{}: is there already, and no directory", String::from_utf8_lossy(name)),
        Err(kedgefs::Error::NotFound) => Ok(fs.mkdir(goal.dir, name, 0o700, caller())?.ino),
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
    from: &ImagePath,
    goal: &Goal,
    options: Options,
    fs: &FileSystem,
    to: &ImagePath,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let same = image::resolve(from.image())? == image::resolve(to.image())?;
    let opened = match same {
        true => {
            sink.reflink = options.reflink;
            fs.clone()
        }
        false => engine::open_to_read(from.image())?,
    };
    let attr = from.find(&opened)?;
    let copied = match attr.kind {
        FileKind::Directory if !options.recursive => refuse_directory(false),
        FileKind::Directory => directory(&opened, &attr, goal, (fs, same), to, sink),
        _ => file(&opened, &attr, goal, (fs, same), to, sink),
    };
    copied.with_context(|| from.show())
}

/// Copies a file of an image. `same` means that the target is in the same image.
fn file(
    from: &FileSystem,
    attr: &Attr,
    goal: &Goal,
    (fs, same): (&FileSystem, bool),
    to: &ImagePath,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let name = goal.name.as_deref().context("it has no name")?;
    if same && fs.lookup(goal.dir, name).is_ok_and(|there| there.ino == attr.ino) {
        bail!("this and {} are the same file", to.show());
    }
    let at = At { dir: goal.dir, name, path: name };
    import::image::copy(from, attr, at, &mut BTreeMap::new(), sink)
}

fn directory(
    from: &FileSystem,
    attr: &Attr,
    goal: &Goal,
    (fs, same): (&FileSystem, bool),
    to: &ImagePath,
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
