//! The report of a check: findings, counts and a summary of the image.
//!
//! # Bounds
//! A destroyed image can hold as many faults as items. Every finding is counted, but only the first
//! few of each kind and at most [`CheckOptions::findings_max`](crate::CheckOptions) in all are
//! kept, and text is made only for those.

use crate::facts::NodeRef;
use crate::kinds::{FindingKind, Severity};
use kedge_base::{BlockNo, Error, Ino};
use kedge_format::superblock::Superblock;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// One fault.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub kind: FindingKind,
    pub severity: Severity,
    /// What is wrong and where, as text for the operator.
    pub what: String,
    pub ino: Option<u64>,
    /// The block of the image in which the fault was found.
    pub block: Option<u64>,
    /// The first few paths of files that the finding concerns, as far as the tree can be read: all
    /// names of the inode, or for a lost node one name of each inode with items in it.
    pub paths: Vec<String>,
    /// The number of further paths that the finding concerns.
    pub more_paths: u64,
    /// The invalid node, if the finding is about a node.
    #[serde(skip)]
    pub(crate) node: Option<NodeRef>,
}

/// The amount of data checked.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Counters {
    pub inodes: u64,
    pub directories: u64,
    pub files: u64,
    pub symlinks: u64,
    /// Orphan items: inodes that recovery deletes, or whose truncation it finishes.
    pub orphans: u64,
    /// Directory entries.
    pub names: u64,
    pub xattrs: u64,
    pub extents: u64,
    /// Tree nodes reached.
    pub nodes: u64,
    pub items: u64,
    /// Valid blocks of the allocation index, and valid bitmaps.
    pub index_blocks: u64,
    pub bitmaps: u64,
    /// Blocks that the format, the tree and the files own.
    pub blocks_used: u64,
    pub blocks_free: u64,
    /// The used blocks that hold file data.
    pub blocks_data: u64,
    /// Blocks of file data that were compared with their checksums.
    pub blocks_verified: u64,
    pub bytes_read: u64,
}

/// The superblock that was checked.
#[derive(Clone, Debug, Serialize)]
pub struct SuperblockSummary {
    pub uuid: uuid::Uuid,
    pub label: String,
    pub block_size: u64,
    pub total_blocks: u64,
    pub log_blocks: u64,
    pub groups: u64,
    pub generation: u64,
    pub checkpoint_lsn: u64,
    pub tail_lsn: u64,
    pub epoch: u64,
    pub root: u64,
    pub tree_levels: u32,
    pub next_ino: u64,
    pub clean: bool,
}

impl SuperblockSummary {
    pub(crate) fn of(sb: &Superblock) -> SuperblockSummary {
        let (g, c) = (&sb.geometry, &sb.checkpoint);
        SuperblockSummary {
            uuid: g.uuid,
            label: g.label.clone(),
            block_size: kedge_base::BLOCK_SIZE as u64,
            total_blocks: g.total_blocks,
            log_blocks: g.log_blocks,
            groups: g.groups(),
            generation: c.generation.0,
            checkpoint_lsn: c.checkpoint_lsn.0,
            tail_lsn: c.tail_lsn.0,
            epoch: c.epoch.0,
            root: c.root.0,
            tree_levels: c.root_level as u32 + 1,
            next_ino: c.next_ino.0,
            clean: c.clean,
        }
    }
}

/// The result of a replay of the log.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct ReplaySummary {
    /// The LSNs at which the scan began and the log ended.
    pub from_lsn: u64,
    pub to_lsn: u64,
    pub log_writes: u64,
    /// Records applied to the tree.
    pub records: u64,
    /// Bytes of file data that were in the log and were written in place.
    pub data_bytes: u64,
}

/// Whether the log was replayed.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplayState {
    /// The image was unmounted, or no replay was requested: the checkpoint was checked as it is on
    /// the device.
    None,
    /// The log was replayed into memory and the result checked.
    Done(ReplaySummary),
    /// Replay failed: the newest checkpoint was checked as it is on the device.
    Failed { what: String },
}

/// The report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub device: String,
    /// `None` if there is no valid superblock; nothing else was checked then.
    pub superblock: Option<SuperblockSummary>,
    pub replay: ReplayState,
    pub counters: Counters,
    /// Whether parts of the tree could not be read. Cross-checks that would only repeat this fault
    /// were left out.
    pub incomplete: bool,
    /// The first findings of each kind.
    pub findings: Vec<Finding>,
    /// The number of all findings by [`FindingKind::name`].
    pub counts: BTreeMap<&'static str, u64>,
    pub errors: u64,
    pub warnings: u64,
    /// The number of errors because of which something could not be checked.
    pub operational: u64,
}

impl Report {
    /// Whether the image was checked without an error; warnings are allowed.
    pub fn is_clean(&self) -> bool {
        self.errors == 0
    }

    /// The exit code of fsck(8): 0 no errors, 4 errors left uncorrected, 8 the check could not be
    /// made, 12 both.
    pub fn exit_code(&self) -> i32 {
        let wrong = if self.errors > self.operational { 4 } else { 0 };
        let failed = if self.operational > 0 { 8 } else { 0 };
        wrong | failed
    }

    /// The number of findings of a kind, including those not listed.
    pub fn count(&self, kind: FindingKind) -> u64 {
        self.counts.get(kind.name()).copied().unwrap_or(0)
    }
}

impl Report {
    /// Writes one line that describes the image.
    pub(crate) fn write_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.device)?;
        if let Some(sb) = &self.superblock {
            write!(f, " KedgeFS {}", sb.uuid)?;
            if !sb.label.is_empty() {
                write!(f, " \"{}\"", sb.label)?;
            }
            write!(f, ", generation {}, {} blocks", sb.generation, sb.total_blocks)?;
        }
        writeln!(f)
    }

    /// Writes the findings and the number of those that are not listed.
    pub(crate) fn write_findings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        let total = self.errors + self.warnings;
        if total > self.findings.len() as u64 {
            writeln!(f, "{} findings not listed:", total - self.findings.len() as u64)?;
            for (kind, count) in &self.counts {
                let listed = self.findings.iter().filter(|l| l.kind.name() == *kind).count() as u64;
                if *count > listed {
                    writeln!(f, "  {kind}: {}", count - listed)?;
                }
            }
        }
        if self.incomplete {
            writeln!(f, "parts of the tree could not be read: some cross-checks were left out")?;
        }
        Ok(())
    }

    pub(crate) fn write_verdict(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.errors, self.warnings) {
            (0, 0) => write!(f, "clean"),
            (0, n) => write!(f, "clean, {n} warnings"),
            (n, w) => write!(f, "{n} errors, {w} warnings"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_head(f)?;
        match &self.replay {
            ReplayState::None => match &self.superblock {
                Some(sb) if !sb.clean => {
                    writeln!(f, "not unmounted; checkpoint checked without replay of the log")?;
                }
                _ => {}
            },
            ReplayState::Done(r) => writeln!(
                f,
                "not unmounted, so checked as the next mount would find it: log replayed in memory, LSN {} to {}, {} log \
                 writes, {} records, {} bytes of data",
                r.from_lsn, r.to_lsn, r.log_writes, r.records, r.data_bytes
            )?,
            ReplayState::Failed { what } => {
                writeln!(f, "log replay failed ({what}); newest checkpoint checked as it is on the device")?;
            }
        }
        self.write_findings(f)?;
        let c = &self.counters;
        if self.superblock.is_some() {
            writeln!(
                f,
                "{} inodes ({} directories, {} files, {} symlinks), {} names, {} orphans",
                c.inodes, c.directories, c.files, c.symlinks, c.names, c.orphans
            )?;
            writeln!(
                f,
                "{} nodes, {} items, {} blocks used ({} of data), {} free; {} bytes read",
                c.nodes, c.items, c.blocks_used, c.blocks_data, c.blocks_free, c.bytes_read
            )?;
        }
        self.write_verdict(f)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{severity}: {}", self.kind.name())?;
        if let Some(ino) = self.ino {
            write!(f, " inode {ino}")?;
        }
        if let Some(block) = self.block {
            write!(f, " block {block}")?;
        }
        write!(f, ": {}", self.what)?;
        if !self.paths.is_empty() {
            write!(f, "; concerns {}", self.paths.join(", "))?;
        }
        match self.more_paths {
            0 => Ok(()),
            n => write!(f, " and {n} more"),
        }
    }
}

/// The location of a finding.
#[derive(Clone, Copy, Default)]
pub(crate) struct At {
    pub ino: Option<Ino>,
    pub block: Option<BlockNo>,
    pub node: Option<NodeRef>,
}

impl At {
    pub fn ino(ino: u64) -> At {
        At { ino: Some(Ino(ino)), ..At::default() }
    }

    pub fn block(block: BlockNo) -> At {
        At { block: Some(block), ..At::default() }
    }

    /// The location of an invalid node. The items of the node's key range are lost.
    pub fn node(node: &NodeRef) -> At {
        At { block: Some(node.block), node: Some(*node), ..At::default() }
    }

    /// The location of an error. Block 0 stands for an error without a block.
    pub fn of(error: &Error) -> At {
        match error {
            Error::Corrupt { block, .. } if block.0 != 0 => At::block(*block),
            _ => At::default(),
        }
    }

    pub fn both(ino: u64, block: BlockNo) -> At {
        At { ino: Some(Ino(ino)), block: Some(block), node: None }
    }
}

/// Collects findings within the bounds.
pub(crate) struct Findings {
    list: Vec<Finding>,
    counts: BTreeMap<FindingKind, u64>,
    max: usize,
    per_kind: u64,
}

impl Findings {
    pub fn new(max: usize) -> Findings {
        // One kind never takes all the room, because many faults of one kind must not hide their
        // cause.
        Findings { list: Vec::new(), counts: BTreeMap::new(), max, per_kind: (max as u64 / 8).max(8) }
    }

    /// Whether the next finding of `kind` will be kept.
    pub fn has_room(&self, kind: FindingKind) -> bool {
        self.list.len() < self.max && self.counts.get(&kind).copied().unwrap_or(0) < self.per_kind
    }

    /// Counts a finding, and keeps it if there is room.
    pub fn add(&mut self, kind: FindingKind, at: At, what: impl FnOnce() -> String) {
        let room = self.has_room(kind);
        *self.counts.entry(kind).or_insert(0) += 1;
        if !room {
            return;
        }
        let finding = Finding {
            kind,
            severity: kind.severity(),
            what: what(),
            ino: at.ino.map(|i| i.0),
            block: at.block.map(|b| b.0),
            paths: Vec::new(),
            more_paths: 0,
            node: at.node,
        };
        tracing::debug!(%finding, "fsck");
        self.list.push(finding);
    }

    /// Adds an error of the format or device: faults of the device become [`FindingKind::IoError`],
    /// unsupported features [`FindingKind::Unsupported`], all others `kind`.
    pub fn add_error(&mut self, kind: FindingKind, at: At, error: &Error) {
        let kind = match error {
            Error::Io { .. } | Error::Fenced | Error::OutcomeUnknown => FindingKind::IoError,
            Error::Unsupported(_) => FindingKind::Unsupported,
            _ => kind,
        };
        self.add(kind, at, || what_of(error));
    }

    /// An empty collection with the same bounds.
    pub fn empty(&self) -> Findings {
        Findings::new(self.max)
    }

    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// The findings that are kept.
    pub fn kept_mut(&mut self) -> &mut [Finding] {
        &mut self.list
    }

    pub fn has(&self, kind: FindingKind) -> bool {
        self.counts.contains_key(&kind)
    }

    pub fn kinds(&self) -> impl Iterator<Item = FindingKind> {
        self.counts.keys().copied()
    }

    /// Takes over the findings of `kinds` from `other`, except kinds that `self` has already.
    pub fn absorb_kinds(&mut self, other: Findings, kinds: &[FindingKind]) {
        let mine: Vec<FindingKind> = self.kinds().collect();
        let wanted = |kind: &FindingKind| kinds.contains(kind) && !mine.contains(kind);
        self.list.extend(other.list.into_iter().filter(|f| wanted(&f.kind)));
        self.counts.extend(other.counts.into_iter().filter(|(kind, _)| wanted(kind)));
    }

    /// Takes over all findings of `other`.
    pub fn absorb(&mut self, other: Findings) {
        let room = self.max.saturating_sub(self.list.len());
        self.list.extend(other.list.into_iter().take(room));
        for (kind, count) in other.counts {
            *self.counts.entry(kind).or_insert(0) += count;
        }
    }

    /// Takes over the findings of `other` whose kind and block `self` does not have.
    pub fn absorb_new(&mut self, other: Findings) {
        for finding in other.list {
            if !self.list.iter().any(|f| f.kind == finding.kind && f.block == finding.block) {
                *self.counts.entry(finding.kind).or_insert(0) += 1;
                self.list.push(finding);
            }
        }
    }

    pub fn into_report(self, device: &str) -> Report {
        let sum = |filter: &dyn Fn(FindingKind) -> bool| -> u64 {
            self.counts.iter().filter(|(k, _)| filter(**k)).map(|(_, n)| n).sum()
        };
        Report {
            device: device.to_owned(),
            superblock: None,
            replay: ReplayState::None,
            counters: Counters::default(),
            incomplete: false,
            errors: sum(&|k| k.severity() == Severity::Error),
            warnings: sum(&|k| k.severity() == Severity::Warning),
            operational: sum(&FindingKind::is_operational),
            counts: self.counts.iter().map(|(k, n)| (k.name(), *n)).collect(),
            findings: self.list,
        }
    }
}

/// An error's text without the block, which the finding names itself.
pub(crate) fn what_of(error: &Error) -> String {
    match error {
        Error::Corrupt { what, .. } => what.to_string(),
        other => other.to_string(),
    }
}
