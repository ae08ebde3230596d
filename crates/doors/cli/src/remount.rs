//! `kedge remount`, and `mount -o remount` where `mount.kedgefs`, `mount.fuseblk.kedgefs` and
//! `mount.fuse.kedgefs` are links to this program: changes options of a live mount.
//!
//! The kernel does not notify a FUSE server of a remount, so the options of KedgeFS are sent to the
//! serving process as an attribute of the root directory. They are parsed here first, because an
//! error message can name the fault and an errno cannot. `ro`, `nosuid` and the like are options of
//! the kernel.
//!
//! mount(8) passes more words than its user gave. For a directory alone it repeats the words of
//! fstab, or else those of the mount table. There are four kinds of words:
//!
//! | word | becomes |
//! |---|---|
//! | an option of the engine that may change | sent to the serving process |
//! | a flag of mount(2) | changed in the kernel if it differs |
//! | an option that cannot change (`cache_size=64M`, `user_id=0`) | no change if it is in force, else an error |
//! | an option without effect (`nofail`, `x-…`) | no change |
//!
//! All words are checked before anything changes. Options that are not named stay as they are, with
//! one exception: mount(8) names all flags that are to be set, and leaves out `exec`, `suid` and
//! `dev`. So a flag that it does not name is cleared, as its manual page says.

use anyhow::{Context, Result, anyhow, bail};
use kedge_fuse::MountEntry;
use kedge_host::options::MountWords;
use kedge_host::{Usage, image, mounts};
use kedgefs::Switches;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Comma-separated options: async_checkpoint[=PERCENT], noasync_checkpoint, commit=SECONDS,
    /// new_name=lazy|sync, fdatasync=seq|fields|relog, plug, noplug,
    /// writeback_order=oldest|location; and as root ro, rw, suid, dev, exec and their opposites
    /// with no
    #[arg(short = 'o', value_name = "OPTIONS", required = true)]
    options: Vec<String>,
    /// The mount point
    dir: PathBuf,
}

/// Options of a FUSE mount that the kernel shows in the mount table and fusermount3 accepts. They
/// are fixed at mount time; mount(8) repeats them.
const KERNEL_WORDS: &[&str] = &[
    "user_id",
    "group_id",
    "rootmode",
    "default_permissions",
    "allow_other",
    "max_read",
    "blksize",
    "fsname",
    "subtype",
];

/// Flags of mount(2), each with the word that sets it and the word that clears it.
const FLAGS: &[(&str, &str, MountFlags)] = &[
    ("ro", "rw", MountFlags::RDONLY),
    ("nosuid", "suid", MountFlags::NOSUID),
    ("nodev", "dev", MountFlags::NODEV),
    ("noexec", "exec", MountFlags::NOEXEC),
    ("noatime", "atime", MountFlags::NOATIME),
    ("nodiratime", "diratime", MountFlags::NODIRATIME),
    ("relatime", "noatime", MountFlags::RELATIME),
    ("nosymfollow", "symfollow", MountFlags::NOSYMFOLLOW),
];

/// The treatment of `nosuid`, `nodev` and `noexec` if they are not named.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flags {
    Kept,
    /// The flag is cleared, as mount(8) expects.
    Cleared,
}

pub fn run(args: Args) -> Result<ExitCode> {
    apply(&args.dir, &args.options, Flags::Kept)
}

/// Whether these options ask for a remount.
pub fn is_asked(lists: &[String]) -> bool {
    lists.iter().flat_map(|list| list.split(',')).any(|word| word == "remount")
}

/// Changes the options of the mount at `dir`; the word `remount` itself may be among them.
pub fn apply(dir: &Path, lists: &[String], unnamed: Flags) -> Result<ExitCode> {
    let words: Vec<&str> =
        lists.iter().flat_map(|list| list.split(',')).filter(|w| !w.is_empty() && *w != "remount").collect();
    let (kernel, ours): (Vec<&str>, Vec<&str>) =
        words.into_iter().partition(|word| KERNEL_WORDS.contains(&name(word)));
    let asked = MountWords::parse(ours.iter().copied().filter(|word| !is_flag(word)))?;
    let mount = match mounts::at(dir)? {
        Some(mount) if mount.is_kedgefs() => mount,
        Some(mount) => bail!("{} is a mount of {}, not of KedgeFS", dir.display(), mount.kind),
        None => bail!("{} is not a mount point", dir.display()),
    };
    let info: Value = serde_json::from_str(&mounts::attribute(dir, mounts::XATTR_INFO)?)
        .with_context(|| format!("read the state of {}", dir.display()))?;
    refuse_fixed(&asked, &kernel, &mount, &info)?;
    let (now, wanted) = flags(&ours, &mount, unnamed);
    if info["read_only"] == true && !wanted.contains(MountFlags::RDONLY) {
        bail!("{} was mounted read-only: unmount it, and mount it without ro", dir.display());
    }
    let switches = changes(&ours, &info["options"])?;
    // The kernel refuses to set attributes on a read-only mount.
    let opens = now.contains(MountFlags::RDONLY) && !wanted.contains(MountFlags::RDONLY);
    if opens {
        set_flags(dir, wanted)?;
    }
    if !switches.is_empty() {
        send(dir, &switches)?;
    }
    if wanted != now && !opens {
        set_flags(dir, wanted)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn name(word: &str) -> &str {
    word.split_once('=').map_or(word, |(name, _)| name)
}

/// The words to send to the serving process; empty if all are in force. If two words set one
/// option, the later one counts, here and in the serving process: mount(8) puts the words of fstab
/// before those of its command line.
fn changes(words: &[&str], in_force: &Value) -> Result<String> {
    let mut switches = Switches::default();
    let mut ours = Vec::new();
    for word in words {
        if switches.take(word).map_err(|e| Usage(format!("remount option {e}")))? {
            ours.push(*word);
        }
    }
    Ok(if is_in_force(&switches, in_force) { String::new() } else { ours.join(",") })
}

fn is_in_force(switches: &Switches, options: &Value) -> bool {
    let Switches { async_checkpoint, commit, new_name, fdatasync, plug, noatime, discard, writeback_order } =
        *switches;
    [
        ("async_checkpoint", async_checkpoint.map(Value::from)),
        ("commit", commit.map(|d| d.as_secs_f64().into())),
        ("new_name", new_name.map(|v| v.word().into())),
        ("fdatasync", fdatasync.map(|v| v.word().into())),
        ("plug", plug.map(Value::from)),
        ("noatime", noatime.map(Value::from)),
        ("discard", discard.map(Value::from)),
        ("writeback_order", writeback_order.map(|v| v.word().into())),
    ]
    .into_iter()
    .all(|(name, asked)| asked.is_none_or(|asked| options[name] == asked))
}

/// Refuses a change of options that are fixed at mount time. Naming the value in force is no
/// change.
fn refuse_fixed(asked: &MountWords, kernel: &[&str], mount: &MountEntry, info: &Value) -> Result<()> {
    if let Some(word) = kernel.iter().find(|word| !mount.has_option(word) && !has_default(word, mount)) {
        return Err(fixed(word, "as the mount table says"));
    }
    let (engine, fuse) = (&info["options"], &info["mount"]["options"]);
    let limit = |word| image::limit_in_force(&mount.image(), word).into();
    let limits: [Value; 2] = ["rbd_timeout", "nbd_timeout"].map(limit);
    let (offset, sizelimit) = image::window_in_force(&mount.image()).unzip();
    let window = [Value::from(offset), Value::from(sizelimit.flatten())];
    let secs = |asked: Option<Duration>| asked.map(|limit| limit.as_secs().into());
    let fixed_words = [
        ("cache_size", asked.cache_size.map(Value::from), &engine["cache_size"]),
        ("fuse", asked.privileged.map(|p| if p { "fuseblk" } else { "fuse" }.into()), &info["mount"]["type"]),
        ("tree_lock", asked.tree_lock.map(|v| v.name().into()), &engine["tree_lock"]),
        ("dirty_tracking", asked.dirty_tracking.map(|v| v.word().into()), &engine["dirty_tracking"]),
        ("workers", asked.workers.map(Value::from), &fuse["workers"]),
        ("placement", asked.placement.map(|v| v.name().into()), &fuse["placement"]),
        ("transport", asked.transport.map(|v| v.name().into()), &fuse["transport"]),
        ("writeback_cache", asked.writeback_cache.map(Value::from), &fuse["writeback_cache"]),
        ("reflink", asked.reflink.map(Value::from), &fuse["reflink"]),
        ("tree", asked.tree.as_deref().map(Value::from), &fuse["tree"]),
        ("volatile", asked.volatile.then(|| true.into()), &engine["volatile"]),
        ("offset", asked.offset.map(Value::from), &window[0]),
        ("sizelimit", asked.sizelimit.map(Value::from), &window[1]),
        ("rbd_timeout", secs(asked.rbd_timeout), &limits[0]),
        ("nbd_timeout", secs(asked.nbd_timeout), &limits[1]),
    ];
    for (word, asked, in_force) in fixed_words {
        if asked.is_some_and(|asked| asked != *in_force) {
            return Err(fixed(word, &format!("{in_force}")));
        }
    }
    Ok(())
}

/// Words of fusermount3 that the mount table shows elsewhere or not at all.
fn has_default(word: &str, mount: &MountEntry) -> bool {
    match name(word) {
        "fsname" => word.strip_prefix("fsname=").is_some_and(|n| Path::new(n) == mount.source),
        "subtype" => word == "subtype=kedgefs",
        "rootmode" => true, // the root is always a directory
        _ => false,
    }
}

fn fixed(word: &str, in_force: &str) -> anyhow::Error {
    Usage(format!("remount option {word} cannot change while mounted; in force is {in_force}")).into()
}

fn is_flag(word: &str) -> bool {
    FLAGS.iter().any(|(on, off, _)| word == *on || word == *off)
}

/// The flags in force, and the flags after the changes that `words` ask for.
fn flags(words: &[&str], mount: &MountEntry, unnamed: Flags) -> (MountFlags, MountFlags) {
    let mut now = MountFlags::empty();
    for (on, _, flag) in FLAGS {
        now.set(*flag, mount.has_option(on));
    }
    let mut wanted = now;
    if unnamed == Flags::Cleared {
        wanted.remove(MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC);
    }
    for word in words {
        for (on, off, flag) in FLAGS {
            if word == on || word == off {
                wanted.set(*flag, word == on);
            }
        }
        // noatime and relatime exclude each other, and mount(8) adds its word after those in force.
        match *word {
            "noatime" => wanted.remove(MountFlags::RELATIME),
            "relatime" => wanted.remove(MountFlags::NOATIME),
            _ => {}
        }
    }
    (now, wanted)
}

fn send(dir: &Path, list: &str) -> Result<()> {
    rustix::fs::setxattr(dir, mounts::XATTR_OPTIONS, list.as_bytes(), XattrFlags::empty())
        .map_err(|e| match e {
            Errno::PERM => anyhow!("only root and the owner of the mount may change its options"),
            Errno::NOTCONN => anyhow!("the serving process has died"),
            Errno::BUSY => anyhow!("it is frozen"),
            // The kernel refuses to set attributes on a read-only mount.
            Errno::ROFS => anyhow!("{list} cannot change on a read-only mount"),
            e => e.into(),
        })
        .with_context(|| format!("remount {}", dir.display()))
}

/// Sets the flags of the mount. With `ro` the kernel syncs everything first.
fn set_flags(dir: &Path, flags: MountFlags) -> Result<()> {
    rustix::mount::mount_remount(dir, flags, "").map_err(|e| {
        let why = match e {
            Errno::PERM => "only root may change ro, nosuid, nodev and noexec".to_owned(),
            Errno::BUSY => "it is in use: files are open for writing".to_owned(),
            e => std::io::Error::from(e).to_string(),
        };
        anyhow!("remount {}: {why}", dir.display())
    })
}
