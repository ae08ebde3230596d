//! Parsing of sizes ("4G") and mount options (`-o commit=5,noatime`).

use crate::Usage;
use kedgefs::{DirtyTracking, SWITCH_WORDS, Switches, TreeLock};

pub use kedge_base::parse_size;

/// [`parse_size`] for the size of a cache.
pub fn parse_cache_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if bytes < CACHE_SIZE_MIN => {
            Err(format!("the value must be at least {}", show_size(CACHE_SIZE_MIN)))
        }
        bytes => Ok(bytes),
    }
}

/// A size as text, with at most two decimals: `4 GiB`, `1.50 MiB`, `512 bytes`.
pub fn show_size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        None => format!("{bytes} bytes"),
        Some((shift, unit)) if bytes.is_multiple_of(1 << shift) => format!("{} {unit}", bytes >> shift),
        Some((shift, unit)) => format!("{:.2} {unit}", bytes as f64 / (1u64 << shift) as f64),
    }
}

/// The options of `-o`. `None`: not given, so the default applies. A later word overrides an
/// earlier one.
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
    pub writeback_cache: Option<bool>,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
}

/// Options of KedgeFS, as the message about an unknown one lists them.
pub const KNOWN: &[&str] = &[
    "ro",
    "rw",
    "cache_size=SIZE",
    "tree_lock=optimistic|rwlock|pingpong",
    "allow_other",
    "default_permissions",
    "fuse",
    "fuseblk",
    "dirty_tracking=per_sb|shared",
    "workers=N",
    "writeback_cache",
    "nowriteback_cache",
];
/// Generic options of mount(8) and fstab(5) that have no effect here, or ask for what happens
/// anyway.
const NO_EFFECT: &[&str] = &[
    "defaults",
    "noatime",
    "nodiratime",
    "relatime",
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

/// Enough for the nodes and pages of a few concurrent operations.
const CACHE_SIZE_MIN: u64 = 1 << 20;
/// A worker may have to wait for another, so a mount with a single worker could hang.
const WORKERS: std::ops::RangeInclusive<u64> = 2..=64;

impl MountWords {
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
                self.dirty_tracking = Some(v.parse().map_err(|e| Usage(format!("mount option {e}")))?)
            }
            ("cache_size", Some(v)) => {
                self.cache_size =
                    Some(parse_cache_size(v).map_err(|e| Usage(format!("mount option {word}: {e}")))?)
            }
            ("tree_lock", Some(v)) => {
                self.tree_lock = Some(v.parse().map_err(|_| {
                    let names = TreeLock::ALL.map(TreeLock::name).join(", ");
                    Usage(format!("mount option {word}: the value must be one of {names}"))
                })?);
            }
            ("allow_other", None) => self.allow_other = true,
            ("fuseblk", None) => self.privileged = Some(true),
            ("fuse", None) => self.privileged = Some(false),
            ("workers", Some(v)) => {
                self.workers = Some(number(word, v, *WORKERS.start(), *WORKERS.end())? as usize)
            }
            ("writeback_cache", None) => self.writeback_cache = Some(true),
            ("nowriteback_cache", None) => self.writeback_cache = Some(false),
            (n, None) if NO_EFFECT.contains(&n) => {}
            ("nosuid", None) => self.nosuid = true,
            ("suid", None) => self.nosuid = false,
            ("nodev", None) => self.nodev = true,
            ("dev", None) => self.nodev = false,
            ("noexec", None) => self.noexec = true,
            ("exec", None) => self.noexec = false,
            (n, _) if n.starts_with("x-") || n.starts_with("X-") || n == "comment" => {}
            (n, None) if listed(n) != UNLISTED => {
                return Err(Usage(format!("mount option {name} needs a value: {}", listed(name))));
            }
            (n, Some(_)) if KNOWN.contains(&n) || SWITCH_WORDS.contains(&n) || NO_EFFECT.contains(&n) => {
                return Err(Usage(format!("mount option {name} takes no value")));
            }
            _ => {
                return Err(Usage(format!(
                    "unknown mount option {word}; known are {} and the generic options of mount(8)",
                    [KNOWN, SWITCH_WORDS].concat().join(", ")
                )));
            }
        }
        Ok(())
    }
}

const UNLISTED: &str = "see kedge --help";

fn listed(name: &str) -> &'static str {
    KNOWN
        .iter()
        .chain(SWITCH_WORDS)
        .find(|k| k.split_once('=').is_some_and(|(n, _)| n == name))
        .copied()
        .unwrap_or(UNLISTED)
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
