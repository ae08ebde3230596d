//! `kedge install-helpers`: installs the program where mount(8), man(1), shells and systemd expect
//! it.
//!
//! | what | where, below the prefix |
//! |---|---|
//! | the program, a copy of the running one | `bin/kedge` |
//! | the helpers of mount(8), mkfs(8), fsck(8), links to the program | `sbin/`, or the directory of `--sbin` |
//! | man pages | `share/man/man5`, `share/man/man8` |
//! | completions of bash, zsh and fish | `share/bash-completion` and so on |
//! | the unit of `kedge daemon`, an example of a mount unit | `lib/systemd/system`, `share/doc/kedge/examples` |
//!
//! mount(8) searches for helpers only in /sbin, so with the usual prefixes the links go there. All
//! obstacles are checked before the first file is written. Each file is written under a temporary
//! name, made durable and renamed, so an interrupted run leaves the old or the new file.

use crate::manual;
use anyhow::{Context, Result, bail};
use kedge_host::Usage;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// The directory to install to
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
    /// The directory of the links for mount(8), mkfs(8) and fsck(8) (default: /sbin with the
    /// prefixes /usr and /usr/local, else sbin below the prefix)
    #[arg(long, value_name = "DIR")]
    sbin: Option<PathBuf>,
    /// Write below this directory, which stands for /; for package builders
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Replace helpers that are not links to kedge
    #[arg(short, long)]
    force: bool,
    /// Only print what would be done
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Remove what an earlier run installed
    #[arg(long, conflicts_with = "force")]
    remove: bool,
}

const HELPERS: &[&str] =
    &["mount.kedgefs", "mount.fuse.kedgefs", "mount.fuseblk.kedgefs", "mkfs.kedgefs", "fsck.kedgefs"];
const UNIT: &str = include_str!("../packaging/kedge@.service");
const MOUNT_EXAMPLE: &str = include_str!("../packaging/mnt-data.mount");
const DAEMON_EXAMPLE: &str = include_str!("../packaging/data.toml");

enum What {
    Program,
    Text(Vec<u8>),
    /// A symbolic link with this target.
    Link(PathBuf),
}

struct Item {
    /// The path in the installed system, without `--root`.
    path: PathBuf,
    what: What,
}

pub fn run(args: Args) -> Result<ExitCode> {
    for dir in [Some(&args.prefix), args.sbin.as_ref()].into_iter().flatten() {
        if !dir.is_absolute() {
            return Err(Usage(format!("{}: the path must be absolute", dir.display())).into());
        }
    }
    let items = items(&args)?;
    if !args.remove && !args.force {
        items.iter().try_for_each(|item| check(item, &args))?;
    }
    let mut out = std::io::stdout().lock();
    for item in &items {
        let done = match (args.remove, args.dry_run) {
            (true, dry) => remove(item, &args, dry)?,
            (false, true) => true,
            (false, false) => install(item, &args).map(|()| true)?,
        };
        if done {
            let target = if let What::Link(target) = &item.what {
                target.display().to_string()
            } else {
                String::new()
            };
            let arrow = if target.is_empty() { "" } else { " -> " };
            writeln!(out, "{}{arrow}{target}", place(&item.path, &args).display())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn items(args: &Args) -> Result<Vec<Item>> {
    let prefix = &args.prefix;
    let program = prefix.join("bin/kedge");
    let usual = prefix == Path::new("/usr") || prefix == Path::new("/usr/local");
    let below = prefix.join("sbin");
    let sbin = args.sbin.clone().unwrap_or_else(|| if usual { "/sbin".into() } else { below.clone() });
    // Within one prefix use a relative link, which stays valid if the prefix is moved.
    let target = if sbin == below { PathBuf::from("../bin/kedge") } else { program.clone() };
    let kedge = crate::command();
    let text = |path: PathBuf, bytes: Vec<u8>| Item { path, what: What::Text(bytes) };
    let mut items = vec![Item { path: program.clone(), what: What::Program }];
    items.extend(HELPERS.iter().map(|name| Item { path: sbin.join(name), what: What::Link(target.clone()) }));
    items.extend(manual::pages(kedge.clone())?.into_iter().map(|page| {
        let section = page.file.rsplit('.').next().unwrap_or_default().to_owned();
        text(prefix.join(format!("share/man/man{section}")).join(page.file), page.roff)
    }));
    items.extend(
        manual::completions(&kedge).into_iter().map(|(path, script)| text(prefix.join(path), script)),
    );
    let unit = UNIT.replace("@PROGRAM@", &program.to_string_lossy());
    items.push(text(prefix.join("lib/systemd/system/kedge@.service"), unit.into_bytes()));
    let examples = prefix.join("share/doc/kedge/examples");
    items.push(text(examples.join("mnt-data.mount"), MOUNT_EXAMPLE.into()));
    items.push(text(examples.join("data.toml"), DAEMON_EXAMPLE.into()));
    Ok(items)
}

/// The path to write to in this run, below `--root` if given.
fn place(path: &Path, args: &Args) -> PathBuf {
    match &args.root {
        Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
        None => path.to_owned(),
    }
}

/// Whether `path` is a link made by this command: it points to a program called kedge.
fn is_ours(path: &Path) -> bool {
    fs::read_link(path).is_ok_and(|target| target.file_name().is_some_and(|name| name == "kedge"))
}

/// Refuses a path that has a file of another origin.
fn check(item: &Item, args: &Args) -> Result<()> {
    let path = place(&item.path, args);
    match fs::symlink_metadata(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e).with_context(|| format!("find {}", path.display())),
        Ok(meta) if meta.is_dir() => bail!("{} is a directory", path.display()),
        Ok(_) if matches!(item.what, What::Link(_)) && !is_ours(&path) => {
            bail!("{} is not a link to kedge; -f replaces it", path.display())
        }
        Ok(_) => Ok(()),
    }
}

fn install(item: &Item, args: &Args) -> Result<()> {
    let path = place(&item.path, args);
    let dir = path.parent().expect("each path has a name below the prefix");
    make_dirs(dir)?;
    let name = path.file_name().expect("each path has a name").to_string_lossy();
    let temporary = dir.join(format!(".{name}.{}.new", std::process::id()));
    let written = match &item.what {
        What::Link(target) => symlink(target, &temporary).map_err(anyhow::Error::from),
        What::Text(bytes) => write(&temporary, 0o644, |file| file.write_all(bytes)),
        What::Program if is_running(&path) => return Ok(()),
        What::Program => {
            write(&temporary, 0o755, |file| std::io::copy(&mut File::open("/proc/self/exe")?, file).map(drop))
        }
    };
    let placed = written.and_then(|()| Ok(fs::rename(&temporary, &path)?));
    if placed.is_err() {
        // The temporary file does not exist if it could not be made; the first error is reported.
        let _ = fs::remove_file(&temporary);
    }
    placed.with_context(|| format!("install {}", path.display()))
}

/// Makes directories that all users can read, even under a strict umask.
fn make_dirs(dir: &Path) -> Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(above) = dir.parent() {
        make_dirs(above)?;
    }
    let made = DirBuilder::new().mode(0o755).create(dir);
    made.and_then(|()| fs::set_permissions(dir, Permissions::from_mode(0o755)))
        .with_context(|| format!("create {}", dir.display()))
}

fn write(path: &Path, mode: u32, fill: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    fill(&mut file)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(file.sync_all()?)
}

/// Whether the file is the running program.
fn is_running(path: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino()));
    matches!((id(path), id(Path::new("/proc/self/exe"))), (Ok(a), Ok(b)) if a == b)
}

/// Removes one item. Returns false if it does not exist or was not made by this command.
fn remove(item: &Item, args: &Args, dry: bool) -> Result<bool> {
    let path = place(&item.path, args);
    let meta = match fs::symlink_metadata(&path) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(false),
        meta => meta.with_context(|| format!("find {}", path.display()))?,
    };
    if matches!(item.what, What::Link(_)) && !(meta.is_symlink() && is_ours(&path)) {
        eprintln!("kedge: warning: {} is not a link to kedge and stays", path.display());
        return Ok(false);
    }
    if !dry {
        fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
    }
    Ok(true)
}
