//! `kedge mount`: attaches an image to a directory and serves it, in the background unless
//! `--foreground` is given.

use crate::nfs::{self, beside};
use crate::remount;
use anyhow::{Context, Result, bail};
use kedge_device::crypt::Secret;
use kedge_format::content::Content;
use kedge_format::superblock::IMAGE_MIN;
use kedge_fuse::{MountEntry, MountedSession};
use kedge_host::daemon::{self, NoReply, Request};
use kedge_host::engine::{self, Extra};
use kedge_host::keeper::{self, KeptFds};
use kedge_host::options::{self, MountWords, asks_nothing, parse_cache_size, parse_size};
use kedge_host::serve::{self, Mount, Stop};
use kedge_host::{Usage, background, create, image, init, key, mounts, notify, tag};
use kedge_transfer::online::server;
use kedgefs::{FileSystem, FormatOptions};
use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
#[command(after_help = options::HELP)]
pub struct Args {
    /// Comma-separated mount options, see below
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Serve in this process instead of a background process
    #[arg(long)]
    foreground: bool,
    /// Create the image with this size, and the directory, if they do not exist
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    create: Option<u64>,
    /// Memory for cached metadata and file pages (as -o cache_size)
    #[arg(long, value_name = "SIZE", value_parser = parse_cache_size, allow_negative_numbers = true)]
    cache_size: Option<u64>,
    /// Let the process called NAME serve the mount along with its other mounts; start the process
    /// if it does not run
    #[arg(long, value_name = "NAME", conflicts_with_all = ["foreground", "log_file"])]
    daemon: Option<String>,
    /// The file to which the serving process writes its messages (otherwise warnings and errors go
    /// to the system's log)
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Take an RBD image from its owner, which is fenced first: it can never write to it again
    #[arg(long, conflicts_with = "daemon")]
    takeover: bool,
    #[command(flatten)]
    beside: beside::NfsArgs,
    /// For tests: keep unflushed writes in this process, so that killing it acts as a power failure
    #[arg(long, hide = true)]
    volatile: bool,
    /// For tests: requests to the device fail according to this file
    #[arg(long, hide = true, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// Started by `kedge mount` itself: reports to the waiting parent on standard output
    #[arg(long, hide = true, requires = "foreground")]
    as_daemon: bool,
    /// Started by a keeper: the descriptors of the connection to the kernel and of its memory
    #[arg(long, hide = true, requires = "foreground", value_name = "FD,FD", value_parser = keeper::parse_fds)]
    kept: Option<KeptFds>,
    /// Started by a keeper in the background: messages go to the system's log
    #[arg(long, hide = true, requires = "kept")]
    quiet: bool,
    /// Flags that mount(8) passes to its helpers: sloppy, do not write mtab, be verbose, pretend;
    /// the type
    #[arg(short = 's', hide = true)]
    sloppy: bool,
    #[arg(short = 'n', hide = true)]
    no_mtab: bool,
    #[arg(short = 'v', hide = true)]
    verbose: bool,
    #[arg(short = 'f', hide = true)]
    fake: bool,
    #[arg(short = 't', hide = true)]
    fstype: Option<String>,
    /// A file or block device, the LABEL=… or UUID=… of a block device, or rbd:POOL/IMAGE,
    /// nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH
    image: PathBuf,
    /// The mount point
    dir: PathBuf,
}

impl Args {
    /// Whether the standard error of this process goes to no terminal or file.
    pub fn is_in_background(&self) -> bool {
        (self.as_daemon || self.quiet) && self.log_file.is_none()
    }
}

pub fn run(mut args: Args) -> Result<ExitCode> {
    // Check this before the words are parsed as mount options, because mount(8) adds words that
    // only a remount accepts.
    if remount::is_asked(&args.options) {
        return match args.fake {
            true => Ok(ExitCode::SUCCESS),
            false => remount::apply(&args.dir, &args.options, remount::Flags::Cleared),
        };
    }
    if args.foreground && args.kept.is_none() && init::is_first() {
        return init::run();
    }
    let words = MountWords::parse(args.options.iter().map(String::as_str))?;
    if let Some(file) = &words.key_file {
        key::give(file.clone());
    }
    args.image = tag::resolve(&args.image)?;
    if args.fake {
        return Ok(ExitCode::SUCCESS);
    }
    args.image = image::with_words(&args.image, &words)?;
    if let Some(fds) = args.kept {
        let has_stderr = !args.quiet || args.log_file.is_some();
        return keeper::serve(&mount(&args, &args.image, &args.dir, &words), fds, has_stderr);
    }
    if args.as_daemon && words.keeper {
        return keep_in_background(&args, &words);
    }
    args.beside.check(&words, args.foreground)?;
    if args.as_daemon {
        return serve_in_background(&args, &words);
    }
    if let Some(mount) = mounted_already(&args, &words)? {
        return mount_again(&mount, &args, &words);
    }
    let made = prepare(&args, &words)?;
    let image = image::resolve(&args.image)?;
    let dir = args.dir.canonicalize().with_context(|| format!("find {}", args.dir.display()))?;
    if let Some(losses) = key::losses(&image) {
        eprintln!("kedge: warning: {}: {}", args.image.display(), image::losses_text(&losses));
    }
    if let Some(name) = &args.daemon {
        check_key_for_daemon(&image, &words)?;
        let options = args.options.join(",");
        let cache_size = args.cache_size.map(|bytes| bytes.to_string());
        daemon::join(name, &Request { image, dir, options, cache_size }).inspect_err(|e| {
            if e.is::<NoReply>() {
                made.keep();
            }
        })?;
    } else if args.foreground && words.keeper {
        let live = || {
            made.keep();
            notify::ready();
            Ok(())
        };
        return keeper::run(&mount(&args, &image, &dir, &words), &server_words(&args)?, true, live);
    } else if args.foreground {
        let beside = serve_beside(&args, args.beside.listen()?);
        let mount = Mount { beside: Some(&beside), ..mount(&args, &image, &dir, &words) };
        serve::in_foreground(&mount, || {
            made.keep();
            notify::ready();
            Ok(())
        })?;
        return Ok(ExitCode::SUCCESS);
    } else {
        spawn(&args, &image, &dir)?;
    }
    if let Some(line) = args.beside.ready_text(&args.image)? {
        println!("{line}");
    }
    if made.image {
        // Print a command that runs as it is: a user's first `kedge` may not be on the path.
        let kedge = std::env::args_os().next().unwrap_or_else(|| "kedge".into());
        println!(
            "{} is made, and mounted on {}. To end the mount: {} umount {}",
            args.image.display(),
            args.dir.display(),
            kedge.to_string_lossy(),
            args.dir.display()
        );
    }
    made.keep();
    Ok(ExitCode::SUCCESS)
}

/// Serves the mount in the background process that `kedge mount` has started.
fn serve_in_background(args: &Args, words: &MountWords) -> Result<ExitCode> {
    let keep_stderr = args.log_file.is_some();
    background::run(keep_stderr, |live| {
        let beside = serve_beside(args, args.beside.listen()?);
        let mount = Mount { beside: Some(&beside), ..mount(args, &args.image, &args.dir, words) };
        serve::in_foreground(&mount, live).map(|()| ExitCode::SUCCESS)
    })
}

/// Serves the image over NFS if there is a listener. Prints how clients mount it, unless this
/// process is in the background: then its parent prints that.
fn serve_beside(
    args: &Args,
    listener: Option<TcpListener>,
) -> impl Fn(&FileSystem, &MountedSession) -> Result<Stop> {
    let listener = Cell::new(listener);
    move |fs, session| {
        let Some(listener) = listener.take() else { return Ok(Box::new(|| ())) };
        let (address, stop) = args.beside.serve(listener, fs, session)?;
        if !args.as_daemon {
            println!("{}", nfs::ready_text(&args.image, address));
        }
        Ok(stop)
    }
}

/// Runs the keeper in the background process that `kedge mount` has started.
fn keep_in_background(args: &Args, words: &MountWords) -> Result<ExitCode> {
    let keep_stderr = args.log_file.is_some();
    let mount = mount(args, &args.image, &args.dir, words);
    background::run(keep_stderr, |live| keeper::run(&mount, &server_words(args)?, keep_stderr, live))
}

/// The command line with which a keeper starts a server.
fn server_words(args: &Args) -> Result<Vec<OsString>> {
    let cache_size = args.cache_size.map(|bytes| OsString::from(bytes.to_string()));
    let faults = args.faults.as_ref().map(std::path::absolute).transpose().context("find the faults")?;
    Ok(keeper::words_of(
        &MountWords::without_key_file(&args.options),
        &[
            ("--cache-size", cache_size.as_deref()),
            ("--faults", faults.as_deref().map(Path::as_os_str)),
            ("--log-file", args.log_file.as_deref().map(Path::as_os_str)),
            ("--quiet", args.as_daemon.then(|| OsStr::new(""))),
        ],
    ))
}

/// Requires an absolute path of the key file: the daemon opens it, and has another working
/// directory.
fn check_key_for_daemon(image: &Path, words: &MountWords) -> Result<()> {
    let named = words.key_file.as_ref().is_some_and(|file| file.is_absolute());
    if !named && key::header_of(image)?.is_some() {
        let why = "an encrypted image needs -o key-file= with an absolute path where a daemon serves it";
        return Err(Usage(why.into()).into());
    }
    Ok(())
}

/// Finds a mount of the image that can be attached to a second directory: one that shows the whole
/// file system and has the requested access, read-only or writable. A read-only mount of an image
/// file gets its own process instead, but for a block device the kernel has at most one file system
/// of this type. `--takeover` is meant to end the process that serves the image, so it never shares
/// that mount.
fn mounted_already(args: &Args, words: &MountWords) -> Result<Option<MountEntry>> {
    // `tree=` needs no second directory: a mount of the whole file system shows the tree as a
    // directory.
    let wants_own =
        args.takeover || args.beside.is_asked() || words.tree.is_some() || may_share(args, words)?;
    if wants_own || !rustix::process::geteuid().is_root() || !create::exists(&args.image)? {
        return Ok(None);
    }
    mounts::detach_dead(&args.dir, &args.image)?;
    let mount = mounts::of_image(&args.image)?;
    let fits = |m: &MountEntry| m.is_read_only() == words.read_only && m.root == Path::new("/");
    Ok(mount.filter(|m| m.is_kedgefs() && fits(m) && !shows_one_tree(m)))
}

/// Whether a mount shows one tree of its image.
fn shows_one_tree(mount: &MountEntry) -> bool {
    let info = mounts::attribute(&mount.dir, mounts::XATTR_INFO).ok();
    let info = info.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    info.is_some_and(|info| !info["mount"]["options"]["tree"].is_null())
}

/// Attaches the mounted file system to a second directory, as Linux does for a device that is
/// mounted already.
fn mount_again(mount: &MountEntry, args: &Args, words: &MountWords) -> Result<ExitCode> {
    mounts::refuse_busy(&args.dir)?;
    if args.foreground {
        let (image, dir) = (args.image.display(), mount.dir.display());
        bail!("{image} is in use: it is mounted on {dir}, and its process serves this mount, too");
    }
    let made = Made { args, image: false, dir: make_dir(args)?, kept: Cell::new(false) };
    engine::mount_again(&mount.dir, &args.dir, words)?;
    made.keep();
    let of_mount =
        |word: &&str| !["ro", "rw", "nosuid", "nodev", "noexec", "suid", "dev", "exec"].contains(word);
    let lists = args.options.iter().flat_map(|list| list.split(','));
    let ignored: Vec<&str> =
        lists.filter(|word| !word.is_empty() && !asks_nothing(word)).filter(of_mount).collect();
    if !ignored.is_empty() {
        eprintln!(
            "kedge: warning: {} is mounted on {} already, whose options hold: {} has no effect",
            args.image.display(),
            mount.dir.display(),
            ignored.join(",")
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The files that `--create` made. They are removed unless the mount succeeds, because the remains
/// of a failure would change what the next attempt does.
struct Made<'a> {
    args: &'a Args,
    image: bool,
    dir: bool,
    kept: Cell<bool>,
}

impl Made<'_> {
    fn keep(&self) {
        self.kept.set(true);
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        if self.kept.get() {
            return;
        }
        let image = self.image.then(|| std::fs::remove_file(&self.args.image));
        let dir = self.dir.then(|| std::fs::remove_dir(&self.args.dir));
        for (path, gone) in [(&self.args.image, image), (&self.args.dir, dir)] {
            if let Some(Err(e)) = gone {
                eprintln!("kedge: warning: {} was made and cannot be removed: {e}", path.display());
            }
        }
    }
}

/// Makes the image and directory that `--create` asks for and checks existing ones, so that most
/// errors are found before a process starts.
fn prepare<'a>(args: &'a Args, words: &MountWords) -> Result<Made<'a>> {
    if args.takeover && !is_rbd(&args.image)? {
        let why = "--takeover needs an RBD image: owners of other images cannot be fenced";
        return Err(Usage(why.into()).into());
    }
    if words.keeper {
        check_keeper(args, words)?;
    }
    let mut made = Made { args, image: false, dir: false, kept: Cell::new(false) };
    mounts::detach_dead(&args.dir, &args.image)?;
    mounts::refuse_busy(&args.dir)?;
    let size = match (create::exists(&args.image)?, args.create) {
        (true, _) => None,
        (false, None) => bail!("{} does not exist (--create SIZE makes it)", args.image.display()),
        (false, Some(_)) if words.read_only => {
            return Err(Usage("--create and -o ro contradict each other".into()).into());
        }
        (false, Some(size)) => {
            create::refuse_small(&args.image, size)?;
            Some(create::whole_blocks(size))
        }
    };
    // The lock on the image would refuse the mount too, but without naming the other mount.
    let shared = may_share(args, words)?;
    if size.is_none()
        && let Some(mount) = mounts::of_image(&args.image)?.filter(|mount| !(shared && mount.is_read_only()))
    {
        let hint = match words.tree.is_some() && !shows_one_tree(&mount) {
            true => "; its trees are directories there, which mount --bind can show in other places",
            false => "",
        };
        bail!("{} is in use: it is mounted on {}{hint}", args.image.display(), mount.dir.display());
    }
    refuse_inside(&args.image, &args.dir)?;
    if size.is_none() {
        check_image(&args.image, words)?;
    }
    made.dir = make_dir(args)?;
    if let Some(size) = size {
        create::create(&args.image, size, &FormatOptions { size: Some(size), ..FormatOptions::default() })?;
        made.image = true;
    }
    Ok(made)
}

fn check_keeper(args: &Args, words: &MountWords) -> Result<()> {
    if args.daemon.is_some() || args.volatile {
        let with = if args.daemon.is_some() { "--daemon" } else { "--volatile" };
        return Err(Usage(format!("mount option keeper: it cannot be combined with {with}")).into());
    }
    keeper::check(&args.image, words)
}

/// Refuses an image below its own mount point: the mount would hide the image, so that no command
/// could name it.
fn refuse_inside(image: &Path, dir: &Path) -> Result<()> {
    let location = image::locate(image)?;
    let Some(image) = location.host_path() else { return Ok(()) };
    // Neither the image nor the directory need exist yet.
    let parent = image.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (Ok(parent), Ok(dir)) = (parent.canonicalize(), mounts::resolve(dir)) else { return Ok(()) };
    if parent.starts_with(&dir) {
        bail!(
            "{} lies inside the mount point {}, and the mount would hide it: choose another place for one of them",
            image.display(),
            dir.display()
        );
    }
    Ok(())
}

/// Checks, before a process starts, that the file is an image and may be written.
fn check_image(image: &Path, words: &MountWords) -> Result<()> {
    let location = image::locate(image)?;
    let Some(file) = location.host_path() else { return Ok(()) };
    if std::fs::metadata(file).is_ok_and(|meta| meta.is_dir()) {
        return Ok(());
    }
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    if !words.read_only
        && let Err(e) = accessat(CWD, file, Access::WRITE_OK, AtFlags::EACCESS)
        && accessat(CWD, file, Access::READ_OK, AtFlags::EACCESS).is_ok()
    {
        let why = std::io::Error::from(e);
        bail!("{} cannot be opened for writing ({why}); mount -o ro only reads it", image.display());
    }
    let found = key::image(image)?;
    if let Content::Other(held) = found.content()?
        && let Err(why) = found.superblock()
    {
        if held == Content::UNKNOWN && found.copies().next().is_some() {
            return Err(why);
        }
        let short = if found.size < IMAGE_MIN { ", and it is too short for an image" } else { "" };
        bail!(
            "{} holds {held}, no KedgeFS image: no valid superblock, no KedgeFS magic{short}",
            image.display()
        );
    }
    Ok(())
}

/// Makes the mount point if `--create` is given and it does not exist. Returns whether it was made.
fn make_dir(args: &Args) -> Result<bool> {
    match kedge_fuse::is_dir(&args.dir).map_err(std::io::Error::from) {
        Ok(true) => Ok(false),
        Ok(false) => bail!("mount point {} is not a directory", args.dir.display()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && args.create.is_some() => {
            std::fs::create_dir(&args.dir)
                .with_context(|| format!("create mount point {}", args.dir.display()))?;
            Ok(true)
        }
        Err(e) => Err(e).with_context(|| format!("mount point {}", args.dir.display())),
    }
}

/// Whether this mount only reads, and other read-only mounts may open the image in other processes.
fn may_share(args: &Args, words: &MountWords) -> Result<bool> {
    let location = image::locate(&args.image)?;
    let is_file = location.host_path().is_some_and(Path::is_file);
    Ok(words.read_only && (is_file || is_rbd(&args.image)?))
}

fn is_rbd(image: &Path) -> Result<bool> {
    Ok(matches!(image::locate(image)?, kedge_device::Location::Rbd(_)))
}

fn spawn(args: &Args, image: &Path, dir: &Path) -> Result<()> {
    let cache_size = args.cache_size.map(|bytes| bytes.to_string());
    // The key itself is passed to the child on standard input (`--key-fd 0`).
    let options = MountWords::without_key_file(&args.options);
    let log_file =
        args.log_file.as_ref().map(std::path::absolute).transpose().context("find the log file")?;
    let mut words: Vec<&OsStr> = vec!["mount".as_ref(), "--foreground".as_ref(), "--as-daemon".as_ref()];
    if !options.is_empty() {
        words.extend::<[&OsStr; 2]>(["-o".as_ref(), options.as_ref()]);
    }
    if let Some(bytes) = &cache_size {
        words.extend::<[&OsStr; 2]>(["--cache-size".as_ref(), bytes.as_ref()]);
    }
    if let Some(path) = &log_file {
        words.extend::<[&OsStr; 2]>(["--log-file".as_ref(), path.as_ref()]);
    }
    if args.takeover {
        words.push("--takeover".as_ref());
    }
    let beside = args.beside.words();
    words.extend(beside.iter().map(OsStr::new));
    if args.volatile {
        words.push("--volatile".as_ref());
    }
    let faults = args.faults.as_ref().map(std::path::absolute).transpose().context("find the faults")?;
    if let Some(path) = &faults {
        words.extend::<[&OsStr; 2]>(["--faults".as_ref(), path.as_ref()]);
    }
    let secret = match key::header_of(image)? {
        Some(_) => Some(key::secret(image)?),
        None => None,
    };
    if secret.is_some() {
        words.extend::<[&OsStr; 2]>(["--key-fd".as_ref(), "0".as_ref()]);
    }
    words.extend::<[&OsStr; 3]>(["--".as_ref(), image.as_ref(), dir.as_ref()]);
    background::spawn(&words, log_file.as_deref(), secret.as_deref().map(Secret::bytes))
}

fn mount<'a>(args: &Args, image: &'a Path, dir: &'a Path, words: &'a MountWords) -> Mount<'a> {
    let extra = Extra {
        cache_size: args.cache_size,
        takeover: args.takeover,
        volatile: args.volatile,
        faults: args.faults.clone(),
        shared: args.beside.is_asked(),
        ..Extra::default()
    };
    Mount { image, dir, words, extra, offer: server::offer, beside: None }
}
