//! Parses sizes ("4G") and mount options (`-o commit=5,noatime`).

use crate::text::show_size;
use crate::usage::Usage;
use kedge_device::location::TIMEOUT_SECS_MAX;
use kedge_fuse::{PlacementMode, TransportKind};
use kedgefs::{DirtyTracking, SWITCH_WORDS, Switches, TreeLock};

pub use kedge_base::parse_size;
use std::path::PathBuf;
use std::time::Duration;

/// Parses the size of a cache; see [`parse_size`].
pub fn parse_cache_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if bytes < CACHE_SIZE_MIN => {
            Err(format!("the value must be at least {}", show_size(CACHE_SIZE_MIN)))
        }
        bytes => Ok(bytes),
    }
}

/// The options of `-o`. `None` means that the option was not given and the default applies. A later
/// word overrides an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountWords {
    pub read_only: bool,
    pub cache_size: Option<u64>,
    /// Options that may change while mounted.
    pub switches: Switches,
    pub dirty_tracking: Option<DirtyTracking>,
    pub tree_lock: Option<TreeLock>,
    pub allow_other: bool,
    /// `fuseblk` or `fuse`: whether the mount goes through a block device.
    pub privileged: Option<bool>,
    pub workers: Option<usize>,
    pub placement: Option<PlacementMode>,
    /// How requests and replies are exchanged with the kernel.
    pub transport: Option<TransportKind>,
    pub writeback_cache: Option<bool>,
    /// Whether copies within the mount share blocks.
    pub reflink: Option<bool>,
    /// The path of the tree that is mounted.
    pub tree: Option<String>,
    /// fsync and sync have no effect.
    pub volatile: bool,
    /// If the server dies, a keeper starts another one.
    pub keeper: bool,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
    /// The first byte of the image in its file, and its largest size in bytes.
    pub offset: Option<u64>,
    pub sizelimit: Option<u64>,
    /// The file that holds the key of an encrypted image.
    pub key_file: Option<PathBuf>,
    /// The time limit for a request to a Ceph cluster.
    pub rbd_timeout: Option<Duration>,
    /// The time limit for a request to an NBD server.
    pub nbd_timeout: Option<Duration>,
}

/// Options of KedgeFS, as listed in the message about an unknown option.
pub const KNOWN: &[&str] = &[
    "ro",
    "rw",
    "cache_size=SIZE",
    "tree_lock=optimistic|rwlock|blocking|pingpong",
    "allow_other",
    "default_permissions",
    "fuse",
    "fuseblk",
    "dirty_tracking=per_sb|shared",
    "workers=N",
    "placement=auto|on|off",
    "transport=dev|io_uring",
    "writeback_cache",
    "nowriteback_cache",
    "reflink",
    "noreflink",
    "tree=PATH",
    "volatile",
    "keeper",
    "nokeeper",
    "offset=BYTES",
    "sizelimit=BYTES",
    "key-file=FILE",
    "rbd_timeout=SECONDS",
    "nbd_timeout=SECONDS",
];
/// Generic options of mount(8) and fstab(5), and options of other file systems, that have no effect
/// here or ask for the default behaviour.
const NO_EFFECT: &[&str] = &[
    "defaults",
    "nodiratime",
    "diratime",
    "atime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "user_xattr",
    "acl",
    "nomand",
    "noiversion",
    "symfollow",
    "async",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "silent",
    "loud",
    "default_permissions",
];

/// Whether a word of `-o` has no effect.
pub fn asks_nothing(word: &str) -> bool {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    NO_EFFECT.contains(&word) || name == "comment" || name.starts_with("x-") || name.starts_with("X-")
}

const NO_LABELS: &str = "labels of SELinux for a whole mount are not passed on to the kernel";

/// Options of other file systems that are refused because KedgeFS cannot fulfil them, with the
/// reason.
const REFUSED: &[(&str, &str)] = &[
    ("noacl", "access control lists cannot be turned off"),
    (
        "sync",
        "no operation waits until it is durable; programs call fsync, commit=1 bounds what a crash can cost",
    ),
    ("dirsync", "no operation waits until it is durable; fsync of the directory makes its entries so"),
    ("strictatime", "access times move as with relatime at most"),
    ("norelatime", "access times move as with relatime, or not at all with noatime"),
    ("nouser_xattr", "extended attributes cannot be turned off"),
    ("iversion", "there is no counter of each file's changes"),
    ("nosymfollow", "only a remount can forbid to follow symbolic links: mount -o remount,nosymfollow"),
    ("context", NO_LABELS),
    ("fscontext", NO_LABELS),
    ("defcontext", NO_LABELS),
    ("rootcontext", NO_LABELS),
    ("mand", "Linux has no mandatory locks any more"),
    ("quota", "there are no quotas"),
    ("usrquota", "there are no quotas"),
    ("grpquota", "there are no quotas"),
    ("loop", "an image file needs no loop device of yours"),
];

/// The smallest cache, in bytes: enough for the nodes and pages of a few concurrent operations.
const CACHE_SIZE_MIN: u64 = 1 << 20;
/// The number of workers. A worker may wait for another one, so a mount with one worker could hang.
const WORKERS: std::ops::RangeInclusive<u64> = 2..=64;

impl MountWords {
    /// Joins the lists to one list, without `key-file`.
    pub fn without_key_file(lists: &[String]) -> String {
        let words = lists.iter().flat_map(|list| list.split(','));
        words.filter(|word| !word.starts_with("key-file=")).collect::<Vec<_>>().join(",")
    }

    /// Parses the lists of all `-o` arguments, in order.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<MountWords, Usage> {
        let mut words = MountWords::default();
        for word in lists.into_iter().flat_map(|list| list.split(',')).filter(|w| !w.is_empty()) {
            words.take(word)?;
        }
        Ok(words)
    }

    fn take(&mut self, word: &str) -> Result<(), Usage> {
        if self.switches.take(word).map_err(|e| Usage(format!("mount option {e}")))? {
            return Ok(());
        }
        let (name, value) = word.split_once('=').map_or((word, None), |(n, v)| (n, Some(v)));
        match (name, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("dirty_tracking", Some(v)) => {
                self.dirty_tracking = Some(v.parse().map_err(|e| Usage(format!("mount option {e}")))?);
            }
            ("cache_size", Some(v)) => {
                self.cache_size =
                    Some(parse_cache_size(v).map_err(|e| Usage(format!("mount option {word}: {e}")))?);
            }
            ("tree_lock", Some(v)) => {
                self.tree_lock = Some(v.parse().map_err(|_| {
                    let names = TreeLock::names();
                    Usage(format!("mount option {word}: the value must be one of {names}"))
                })?);
            }
            ("allow_other", None) => self.allow_other = true,
            ("fuseblk", None) => self.privileged = Some(true),
            ("fuse", None) => self.privileged = Some(false),
            ("workers", Some(v)) => {
                self.workers = Some(number(word, v, *WORKERS.start(), *WORKERS.end())? as usize);
            }
            ("placement", Some(v)) => {
                self.placement = Some(v.parse().map_err(|()| {
                    let names = PlacementMode::ALL.map(PlacementMode::name).join(", ");
                    Usage(format!("mount option {word}: the value must be one of {names}"))
                })?);
            }
            ("transport", Some(v)) => {
                self.transport = Some(v.parse().map_err(|()| {
                    let names = TransportKind::ALL.map(TransportKind::name).join(", ");
                    Usage(format!("mount option {word}: the value must be one of {names}"))
                })?);
            }
            ("offset", Some(v)) => self.offset = Some(bytes(word, v)?),
            ("sizelimit", Some(v)) => self.sizelimit = Some(bytes(word, v)?),
            ("key-file", Some(v)) if !v.is_empty() => self.key_file = Some(v.into()),
            ("rbd_timeout", Some(v)) => self.rbd_timeout = Some(limit(word, v)?),
            ("nbd_timeout", Some(v)) => self.nbd_timeout = Some(limit(word, v)?),
            ("writeback_cache", None) => self.writeback_cache = Some(true),
            ("nowriteback_cache", None) => self.writeback_cache = Some(false),
            ("reflink", None) => self.reflink = Some(true),
            ("noreflink", None) => self.reflink = Some(false),
            ("tree", Some(v)) if !v.is_empty() => self.tree = Some(v.to_owned()),
            ("volatile", None) => self.volatile = true,
            ("keeper", None) => self.keeper = true,
            ("nokeeper", None) => self.keeper = false,
            _ if asks_nothing(word) => {}
            ("nosuid", None) => self.nosuid = true,
            ("suid", None) => self.nosuid = false,
            ("nodev", None) => self.nodev = true,
            ("dev", None) => self.nodev = false,
            ("noexec", None) => self.noexec = true,
            ("exec", None) => self.noexec = false,
            // The option asks for the normal behaviour: after a failed log write or flush, changes
            // fail and reads continue.
            ("errors", Some("remount-ro")) => {}
            ("errors", _) => {
                return Err(Usage(format!(
                    "mount option {word}: when the device fails, KedgeFS stops all changes and goes on reading, as \
                     errors=remount-ro says; nothing else can be chosen"
                )));
            }
            (n, None) if listed(n) != UNLISTED => {
                return Err(Usage(format!("mount option {name} needs a value: {}", listed(name))));
            }
            (n, Some(_)) if KNOWN.contains(&n) || SWITCH_WORDS.contains(&n) || NO_EFFECT.contains(&n) => {
                return Err(Usage(format!("mount option {name} takes no value")));
            }
            _ => return Err(Usage(not_taken(word, name))),
        }
        Ok(())
    }
}

/// The reason for which a word is refused.
fn not_taken(word: &str, name: &str) -> String {
    if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
        return format!("mount option {word}: {why}");
    }
    let known = [KNOWN, SWITCH_WORDS].concat();
    let like = known
        .iter()
        .chain(NO_EFFECT)
        .map(|k| k.split(['=', '[']).next().unwrap_or(k))
        .map(|k| (distance(k, name), k))
        .min()
        .filter(|(far, _)| *far <= name.len() / 3)
        .map_or(String::new(), |(_, k)| format!(" (did you mean {k}?)"));
    format!(
        "unknown mount option {word}{like}; known are {} and the generic options of mount(8)",
        known.join(", ")
    )
}

/// The edit distance of two words: letters changed, inserted or deleted.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let best = (diagonal + usize::from(from != *to)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[b.len()]
}

/// The section about `-o` in `kedge mount --help`.
pub const HELP: &str = "\
Mount options (those marked * may change while mounted):
  ro, rw *                     read-only or not
  commit=SECONDS *             work that no fsync covered is durable at least this often, 1 to 300
  cache_size=SIZE              memory for tree nodes and file pages
  noatime, relatime *          whether reading moves access times
  discard, nodiscard *         whether freed space goes back to the device or the image's host
  fuseblk, fuse                through a block device, or a plain mount, which is weaker
  allow_other                  let others in; a mount that root makes does
  nosuid, nodev, noexec *      as mount(8) says
  writeback_cache              let the kernel gather writes
  noreflink                    copies within the mount share no blocks
  tree=PATH                    show the fork or snapshot at this path of the image, alone
  keeper, nokeeper             whether another server goes on when the serving process dies
  volatile                     fsync and sync make nothing durable: for scratch data
  workers=N                    threads that serve requests, 2 to 64; by default as many as wait
  placement=auto|on|off        whether one more thread may serve on its client's processor
  transport=dev|io_uring       how requests reach the server; io_uring needs Linux 6.14
  offset=BYTES, sizelimit=BYTES
                               the part of the file that holds the image
  key-file=FILE                the file that holds the key of an encrypted image
  rbd_timeout=SECONDS, nbd_timeout=SECONDS
                               how long a cluster or server may leave a request unanswered
  async_checkpoint[=PERCENT] * checkpoint in the background when less of the log is free
  noasync_checkpoint *         who finds the log full checkpoints
  errors=remount-ro            what happens anyway when the device fails
To compare with: new_name=lazy|sync *, fdatasync=seq|fields|relog *, plug, noplug *,
  writeback_order=oldest|location *, dirty_tracking=per_sb|shared,
  tree_lock=optimistic|rwlock|blocking|pingpong. kedgefs(5) explains each.";

const UNLISTED: &str = "see kedge --help";

fn listed(name: &str) -> &'static str {
    KNOWN
        .iter()
        .chain(SWITCH_WORDS)
        .find(|k| k.split_once('=').is_some_and(|(n, _)| n == name))
        .copied()
        .unwrap_or(UNLISTED)
}

fn bytes(word: &str, value: &str) -> Result<u64, Usage> {
    parse_size(value).map_err(|e| Usage(format!("mount option {word}: {e}")))
}

/// Parses a time limit in seconds, with the same bounds as in a URI.
fn limit(word: &str, value: &str) -> Result<Duration, Usage> {
    number(word, value, 1, TIMEOUT_SECS_MAX).map(Duration::from_secs)
}

fn number(word: &str, value: &str, min: u64, max: u64) -> Result<u64, Usage> {
    match value.parse() {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ => Err(Usage(format!("mount option {word}: the value must be a whole number from {min} to {max}"))),
    }
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
