//! Options that may change while a file system is open: how they are parsed, and where operations
//! read them.
//!
//! Every value of every switch is safe. The values trade speed, never durability: they differ in
//! which threads wait, and when.

use crate::error::{Error, Result};
use crate::policy::options::{FdatasyncRule, MountOptions, NewName, OrderWord};
use crate::policy::order::WritebackOrder;
use kedge_base::Error as Engine;
use kedge_base::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use kedge_base::lock::{Mutex, Rank};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Changes to an open file system's options. `None` leaves an option unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// `async_checkpoint` with a percentage; an inner `None` is `noasync_checkpoint`.
    pub async_checkpoint: Option<Option<u8>>,
    /// How often completed work is made durable.
    pub commit: Option<Duration>,
    /// Whether a new name of an inode that was fsynced forces the log.
    pub new_name: Option<NewName>,
    /// When fdatasync forces the log.
    pub fdatasync: Option<FdatasyncRule>,
    /// Whether a pass of writeback merges the IO of many inodes.
    pub plug: Option<bool>,
    /// Whether reads leave access times unchanged.
    pub noatime: Option<bool>,
    /// Whether freed space is discarded in the background.
    pub discard: Option<bool>,
    /// Which dirty inodes are written first.
    pub writeback_order: Option<OrderWord>,
}

/// The words of all switches, as the error about an unknown option lists them.
pub const SWITCH_WORDS: &[&str] = &[
    "async_checkpoint[=PERCENT]",
    "noasync_checkpoint",
    "commit=SECONDS",
    "new_name=lazy|sync",
    "fdatasync=seq|fields|relog",
    "plug",
    "noplug",
    "noatime",
    "relatime",
    "discard",
    "nodiscard",
    "writeback_order=oldest|location",
];

/// The percentage of the word `async_checkpoint` without a number.
const ASYNC_CHECKPOINT_DEFAULT: u8 = 50;

impl Switches {
    /// Parses one option. Returns false if it is not a switch.
    pub fn take(&mut self, word: &str) -> Result<bool> {
        let (name, value) = word.split_once('=').map_or((word, None), |(n, v)| (n, Some(v)));
        match (name, value) {
            ("async_checkpoint", None) => self.async_checkpoint = Some(Some(ASYNC_CHECKPOINT_DEFAULT)),
            ("async_checkpoint", Some(_)) => self.async_checkpoint = Some(Some(number(word, 1, 99)? as u8)),
            ("noasync_checkpoint", None) => self.async_checkpoint = Some(None),
            ("commit", Some(_)) => self.commit = Some(Duration::from_secs(number(word, 1, 300)?)),
            ("new_name", Some(v)) => self.new_name = Some(v.parse()?),
            ("fdatasync", Some(v)) => self.fdatasync = Some(v.parse()?),
            ("plug", None) => self.plug = Some(true),
            ("noplug", None) => self.plug = Some(false),
            ("noatime", None) => self.noatime = Some(true),
            ("relatime", None) => self.noatime = Some(false),
            ("discard", None) => self.discard = Some(true),
            ("nodiscard", None) => self.discard = Some(false),
            ("writeback_order", Some(v)) => self.writeback_order = Some(v.parse()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Adds later changes, which take precedence.
    pub fn add(&mut self, later: &Switches) {
        self.async_checkpoint = later.async_checkpoint.or(self.async_checkpoint);
        self.commit = later.commit.or(self.commit);
        self.new_name = later.new_name.or(self.new_name);
        self.fdatasync = later.fdatasync.or(self.fdatasync);
        self.plug = later.plug.or(self.plug);
        self.noatime = later.noatime.or(self.noatime);
        self.discard = later.discard.or(self.discard);
        self.writeback_order = later.writeback_order.or(self.writeback_order);
    }

    /// Applies these changes to `options`.
    pub fn apply(&self, options: &mut MountOptions) {
        if let Some(percent) = self.async_checkpoint {
            options.async_checkpoint = percent;
        }
        options.commit = self.commit.unwrap_or(options.commit);
        options.new_name = self.new_name.unwrap_or(options.new_name);
        options.fdatasync = self.fdatasync.unwrap_or(options.fdatasync);
        options.plug = self.plug.unwrap_or(options.plug);
        options.noatime = self.noatime.unwrap_or(options.noatime);
        options.discard = self.discard.unwrap_or(options.discard);
        if let Some(word) = self.writeback_order {
            options.writeback_order = word.order();
        }
    }
}

impl std::fmt::Display for Switches {
    /// Writes the changes as a comma-separated list of options.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let either = |on: bool, yes: &str, no: &str| if on { yes.to_owned() } else { no.to_owned() };
        let words = [
            self.async_checkpoint.map(|percent| {
                percent.map_or("noasync_checkpoint".to_owned(), |n| format!("async_checkpoint={n}"))
            }),
            self.commit.map(|every| format!("commit={}", every.as_secs())),
            self.new_name.map(|rule| format!("new_name={}", rule.word())),
            self.fdatasync.map(|rule| format!("fdatasync={}", rule.word())),
            self.plug.map(|on| either(on, "plug", "noplug")),
            self.noatime.map(|on| either(on, "noatime", "relatime")),
            self.discard.map(|on| either(on, "discard", "nodiscard")),
            self.writeback_order.map(|order| format!("writeback_order={}", order.word())),
        ];
        f.write_str(&words.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Switches {
    type Err = Error;

    /// Parses a comma-separated list. An unknown option is an error that names it.
    fn from_str(list: &str) -> Result<Switches> {
        let mut switches = Switches::default();
        for word in list.split(',').filter(|w| !w.is_empty()) {
            if !switches.take(word)? {
                let known = SWITCH_WORDS.join(", ");
                return Err(Engine::invalid(format!(
                    "{word} cannot change while mounted; what can is {known}"
                ))
                .into());
            }
        }
        Ok(switches)
    }
}

fn number(word: &str, min: u64, max: u64) -> Result<u64> {
    let value = word.split_once('=').map_or("", |(_, v)| v);
    match value.parse() {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ => {
            Err(Engine::invalid(format!("{word}: the value must be a whole number from {min} to {max}"))
                .into())
        }
    }
}

fn nth<T: Copy + Default>(all: &[T], n: &AtomicU8) -> T {
    all.get(n.load(Ordering::Relaxed) as usize).copied().unwrap_or_default()
}

/// The switches of an open file system, in atomics with relaxed ordering: an operation that runs
/// while a switch changes may follow either value.
pub(crate) struct Live {
    new_name: AtomicU8,
    fdatasync: AtomicU8,
    commit_ms: AtomicU64,
    plug: AtomicBool,
    noatime: AtomicBool,
    order: Mutex<Arc<dyn WritebackOrder>>,
}

impl Live {
    pub(crate) fn new(options: &MountOptions) -> Live {
        let live = Live {
            new_name: AtomicU8::new(0),
            fdatasync: AtomicU8::new(0),
            commit_ms: AtomicU64::new(0),
            plug: AtomicBool::new(true),
            noatime: AtomicBool::new(false),
            // Locked while the lock of the options is held, hence the higher order.
            order: Mutex::with_order(Rank::Leaf, 1, options.writeback_order.clone()),
        };
        live.set(options);
        live
    }

    pub(crate) fn set(&self, options: &MountOptions) {
        self.new_name.store(options.new_name as u8, Ordering::Relaxed);
        self.fdatasync.store(options.fdatasync as u8, Ordering::Relaxed);
        self.commit_ms.store(options.commit.as_millis() as u64, Ordering::Relaxed);
        self.plug.store(options.plug, Ordering::Relaxed);
        self.noatime.store(options.noatime, Ordering::Relaxed);
        *self.order.lock() = options.writeback_order.clone();
    }

    pub(crate) fn new_name(&self) -> NewName {
        nth(NewName::ALL, &self.new_name)
    }

    pub(crate) fn fdatasync(&self) -> FdatasyncRule {
        nth(FdatasyncRule::ALL, &self.fdatasync)
    }

    pub(crate) fn plug(&self) -> bool {
        self.plug.load(Ordering::Relaxed)
    }

    pub(crate) fn noatime(&self) -> bool {
        self.noatime.load(Ordering::Relaxed)
    }

    pub(crate) fn order(&self) -> Arc<dyn WritebackOrder> {
        self.order.lock().clone()
    }

    pub(crate) fn commit(&self) -> Duration {
        Duration::from_millis(self.commit_ms.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
#[path = "switches_tests.rs"]
mod tests;
