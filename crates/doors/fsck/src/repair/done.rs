//! The report of a repair, as text for operators and as fields for scripts.

use crate::ReplayState;
use crate::report::{At, Finding, Report};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $kind:ident = $name:literal, $safe:literal;)*) => {
        /// The kind of a repair. [`RepairKind::name`] is stable across versions.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
        pub enum RepairKind {
            $($(#[doc = $doc])* #[serde(rename = $name)] $kind,)*
        }

        impl RepairKind {
            pub const ALL: &'static [RepairKind] = &[$(RepairKind::$kind),*];

            /// The name in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(RepairKind::$kind => $name,)*
                }
            }

            /// Whether the repair loses nothing, so that `fsck -p` may make it.
            pub const fn is_safe(self) -> bool {
                match self {
                    $(RepairKind::$kind => $safe,)*
                }
            }
        }
    };
}

kinds! {
    /// No superblock slot was valid, and a copy took its place.
    SuperblockRestored = "superblock-restored", false;
    /// Log records that could not be replayed were dropped.
    LogGivenUp = "log-given-up", false;
    /// A log write that cannot be read may have moved blocks from one file to another. Which blocks
    /// cannot be determined.
    DataUncertain = "data-uncertain", false;
    /// A tree node that could not be read was left out, with everything below it.
    NodeDropped = "node-dropped", false;
    /// A leaf below an unreadable node was found by searching all owned blocks, and its items were
    /// kept.
    NodeSalvaged = "node-salvaged", false;
    /// An item that the format does not allow was left out.
    ItemDropped = "item-dropped", false;
    /// An inode was left out with all its items.
    InodeDropped = "inode-dropped", false;
    /// A directory entry was left out.
    NameDropped = "name-dropped", false;
    /// Blocks of a file that have another owner became a hole.
    ExtentDropped = "extent-dropped", false;
    /// Data in the tree was cut at the end of its file.
    InlineCut = "inline-cut", false;
    /// The birth or the mark of an extent was corrected. These decide which blocks are shared.
    ExtentCorrected = "extent-corrected", false;
    /// Counts of shared blocks were made again from the extents that refer to them.
    SharesRecounted = "shares-recounted", false;
    /// A tree of the image was left out: its entry cannot be read or used.
    TreeDropped = "tree-dropped", false;
    /// The entry of a tree was corrected.
    TreeCorrected = "tree-corrected", false;
    /// A limit was left out: its entry cannot be read, or its directory is lost.
    LimitDropped = "limit-dropped", false;
    /// The counts of a limit, or the limit that contains it, were corrected.
    LimitCorrected = "limit-corrected", true;
    /// An inode whose core was lost got a new core, derived from its other items.
    InodeRemade = "inode-remade", false;
    /// An inode without a name got a name in lost+found.
    Reattached = "reattached", false;
    /// The directory lost+found was made.
    LostFoundMade = "lost-found-made", false;
    /// Fields of an inode other than its counts were corrected.
    InodeCorrected = "inode-corrected", false;
    /// The type in a directory entry was corrected.
    NameCorrected = "name-corrected", false;
    /// Link, block or entry counts of an inode were corrected.
    CountsCorrected = "counts-corrected", true;
    /// An orphan item without an inode, or that contradicts its inode, was left out.
    OrphanDropped = "orphan-dropped", true;
    /// The tree was rewritten.
    TreeRewritten = "tree-rewritten", true;
    /// Allocation bitmaps and index were rebuilt from the blocks that the tree owns.
    SpaceRebuilt = "space-rebuilt", true;
    /// The superblock's counters were corrected.
    SuperblockCorrected = "superblock-corrected", true;
    /// The superblock's record of data lost at an unmount was reported and cleared.
    LossesCleared = "losses-cleared", true;
    /// The log's records were replayed onto the device.
    LogReplayed = "log-replayed", true;
}

/// One repair.
#[derive(Clone, Debug, Serialize)]
pub struct Repair {
    pub kind: RepairKind,
    /// What was changed and how, as text for the operator.
    pub what: String,
    pub ino: Option<u64>,
    pub block: Option<u64>,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "repair: {}", self.kind.name())?;
        if let Some(ino) = self.ino {
            write!(f, " inode {ino}")?;
        }
        if let Some(block) = self.block {
            write!(f, " block {block}")?;
        }
        write!(f, ": {}", self.what)
    }
}

/// Collects the repairs. Counts all and keeps the first of each kind, as
/// [`crate::report::Findings`] does.
pub(crate) struct Repairs {
    list: Vec<Repair>,
    counts: BTreeMap<RepairKind, u64>,
    max: usize,
    /// The prefix of each repair's text: the tree's number, unless it is the first tree.
    pub of: String,
}

impl Repairs {
    pub fn new(max: usize) -> Repairs {
        Repairs { list: Vec::new(), counts: BTreeMap::new(), max, of: String::new() }
    }

    pub fn add(&mut self, kind: RepairKind, at: At, what: impl FnOnce() -> String) {
        let count = self.counts.entry(kind).or_insert(0);
        *count += 1;
        if self.list.len() < self.max && *count <= (self.max as u64 / 8).max(8) {
            let (ino, block) = (at.ino.map(|i| i.0), at.block.map(|b| b.0));
            let what = format!("{}{}", self.of, what());
            self.list.push(Repair { kind, what, ino, block });
        }
    }

    pub fn has_unsafe(&self) -> bool {
        self.counts.keys().any(|kind| !kind.is_safe())
    }

    /// The number of repairs that change or remove items of a tree.
    pub fn changes(&self) -> u64 {
        use RepairKind::*;
        let others = [
            DataUncertain,
            LimitCorrected,
            LimitDropped,
            LogGivenUp,
            LogReplayed,
            LossesCleared,
            SpaceRebuilt,
            SuperblockCorrected,
            SuperblockRestored,
            TreeCorrected,
            TreeDropped,
            TreeRewritten,
        ];
        let changes = self.counts.iter().filter(|(kind, _)| !others.contains(kind));
        changes.map(|(_, count)| count).sum()
    }
}

/// The outcome of a repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// The image was cleanly unmounted, so it was not checked.
    Skipped,
    /// No error was found; at most the log was replayed onto the device.
    Clean,
    /// All errors are repaired, and the check of the result found none.
    Repaired,
    /// Nothing was written: the damage exceeds what the mode may repair, or there is no valid
    /// superblock to repair from.
    Left,
    /// The repaired image would not have been clean, or the device had no space for it; nothing was
    /// changed.
    Unclean,
    /// The device failed, or another operation failed for a reason that is not a fault of the
    /// image.
    Failed,
}

/// The report of a repair.
#[derive(Clone, Debug, Serialize)]
pub struct RepairReport {
    pub device: String,
    pub ending: Ending,
    /// The reason for the ending, if it needs an explanation.
    pub message: String,
    /// The check before the repair.
    pub before: Report,
    /// The first repairs of each kind. With [`Ending::Left`], [`Ending::Unclean`] and
    /// [`Ending::Failed`] they are the repairs that would have been made.
    pub repairs: Vec<Repair>,
    /// The number of all repairs by [`RepairKind::name`].
    pub repair_counts: BTreeMap<&'static str, u64>,
    /// The check of the result; `None` if nothing was written.
    pub after: Option<Report>,
    /// The number of errors found and not corrected.
    pub errors_left: u64,
    pub exit_code: i32,
}

impl RepairReport {
    pub(crate) fn new(
        ending: Ending,
        message: String,
        before: Report,
        repairs: Repairs,
        after: Option<Report>,
    ) -> RepairReport {
        let left = if before.errors > before.operational { 4 } else { 0 };
        let (errors_left, exit_code) = match ending {
            Ending::Skipped | Ending::Clean => (0, 0),
            Ending::Repaired => (0, 1),
            Ending::Left => (before.errors, before.exit_code()),
            Ending::Unclean => (before.errors, 4),
            Ending::Failed => (before.errors, left | 8),
        };
        RepairReport {
            device: before.device.clone(),
            ending,
            message,
            repair_counts: repairs.counts.iter().map(|(k, n)| (k.name(), *n)).collect(),
            repairs: repairs.list,
            before,
            after,
            errors_left,
            exit_code,
        }
    }

    /// The number of repairs of a kind, including those not listed.
    pub fn count(&self, kind: RepairKind) -> u64 {
        self.repair_counts.get(kind.name()).copied().unwrap_or(0)
    }
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ending == Ending::Skipped {
            return write!(f, "{}: clean ({})", self.device, self.message);
        }
        writeln!(f, "{}", self.before)?;
        if let ReplayState::Failed { .. } = self.before.replay {
            writeln!(f, "the log could not be replayed whole")?;
        }
        // New bitmaps and a new superblock slot are parts of a replay and must not be listed like
        // damage.
        let ordinary = self.ending == Ending::Clean;
        for repair in self.repairs.iter().filter(|r| !ordinary || r.kind == RepairKind::LogReplayed) {
            match ordinary {
                true => writeln!(f, "log replayed, as the next mount would have: {}", repair.what)?,
                false => writeln!(f, "{repair}")?,
            }
        }
        for (kind, count) in &self.repair_counts {
            let listed = self.repairs.iter().filter(|r| r.kind.name() == *kind).count() as u64;
            if *count > listed && !ordinary {
                writeln!(f, "{} more repairs of kind {kind}", count - listed)?;
            }
        }
        for finding in self.after.iter().flat_map(|after| &after.findings) {
            let finding: &Finding = finding;
            writeln!(f, "still there: {finding}")?;
        }
        match self.ending {
            Ending::Skipped => Ok(()),
            Ending::Clean => write!(f, "{}: clean{}", self.device, Because(&self.message)),
            Ending::Repaired => {
                write!(f, "{}: repaired; checked again: clean{}", self.device, Because(&self.message))
            }
            Ending::Left => {
                write!(f, "{}: errors left, nothing was written{}", self.device, Because(&self.message))
            }
            Ending::Unclean => {
                write!(f, "{}: errors left, nothing was changed{}", self.device, Because(&self.message))
            }
            Ending::Failed => write!(f, "{}: repair failed{}", self.device, Because(&self.message)),
        }
    }
}

struct Because<'a>(&'a str);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " ({})", self.0) }
    }
}
