//! Reads and verifies everything that has a checksum, even while a mount writes to the image.
//!
//! A scrub reads both superblock slots, the tree of the newest checkpoint, its allocation index and
//! bitmaps, and the log from its tail. It compares what [`check`](crate::check()) compares but
//! replays nothing: it judges the bytes on the device, not the image that recovery would make of
//! them.
//!
//! # Beside a mount
//! The tree, index and bitmaps of a durable checkpoint are not overwritten before the next one is
//! durable, nor is the log from its tail on. So the blocks read are those of the checkpoint if the
//! newest slot is the same afterwards. If it is not, blocks may have been reused while they were
//! read. A block that verifies is valid nevertheless: a node names its address and its generation,
//! an index block its generation, a log write its epoch and position, so that nothing newer passes
//! for the block that was expected. A block that does *not* verify may be undamaged. So beside a
//! mount a finding counts only if two consecutive passes have it, and one of these holds:
//! - both passes began and ended with the same checkpoint;
//! - the finding is about a node, and both passes found it at the same address and generation. Then
//!   the tree has used that node all the time, and nothing else was written there.
//!
//! The log needs two passes even with one checkpoint. A pass may read the blocks of a log write
//! before that write is complete, and then a later log write that declares everything before it
//! durable. The second pass reads those blocks again after that.
//!
//! A mount that checkpoints faster than a pass takes can keep findings from being confirmed. The
//! report lists them then and says that they are not confirmed.

use crate::image::check_from;
use crate::kinds::FindingKind;
use crate::read::Reader;
use crate::report::{At, Finding, Findings, Report};
use crate::{CheckOptions, Progress, slots};
use kedge_device::Device;
use kedge_format::superblock::Superblock;
use serde::Serialize;
use std::fmt;

/// The most passes over a mounted image; after the last pass findings stay unconfirmed.
const PASSES_MAX: u32 = 8;

/// The report of a scrub.
#[derive(Clone, Debug, Serialize)]
pub struct ScrubReport {
    #[serde(flatten)]
    pub report: Report,
    /// Whether a mount was using the image.
    pub mounted: bool,
    /// Whether file data has checksums. They are verified only if the image is not mounted: a mount
    /// reuses data blocks as soon as the record that freed them is durable.
    pub data_checksums: bool,
    /// Whether the findings are certain. They always are if the image was not mounted.
    pub confirmed: bool,
    /// How many times the whole image was read.
    pub passes: u32,
    /// The number of valid superblock slots, at most two.
    pub superblocks: u64,
    /// The number of valid log writes from the tail on; `None` if the log is damaged or was not
    /// read.
    pub log_writes: Option<u64>,
}

struct Pass {
    sb: Option<Superblock>,
    report: Report,
    log_writes: Option<u64>,
    /// Whether the checkpoint was still the newest at the end of the pass.
    settled: bool,
}

/// Reads and verifies the image on `device`; with `mounted` a mount may be writing to it. The log
/// is read through [`Replay::log_writes`](crate::Replay::log_writes) of [`CheckOptions::replay`];
/// nothing is replayed.
pub fn scrub(device: &dyn Device, options: &CheckOptions, mounted: bool) -> ScrubReport {
    let mut before: Option<Pass> = None;
    let mut passes = 1;
    let (pass, confirmed) = loop {
        let pass = Pass::run(device, options, !mounted);
        let certain = !mounted
            || pass.report.counts.is_empty()
            || before.as_ref().is_some_and(|before| pass.confirms(before));
        if certain || passes == PASSES_MAX {
            break (pass, certain);
        }
        before = Some(pass);
        passes += 1;
    };
    let bad = pass.report.count(FindingKind::SuperblockSlotBad);
    ScrubReport {
        mounted,
        data_checksums: pass.sb.as_ref().is_some_and(|sb| sb.geometry.has_sums()),
        confirmed,
        passes,
        superblocks: if pass.sb.is_some() { 2 - bad.min(1) } else { 0 },
        log_writes: pass.log_writes,
        report: pass.report,
    }
}

impl Pass {
    fn run(device: &dyn Device, options: &CheckOptions, data: bool) -> Pass {
        let mut progress = |p: Progress| {
            if let Some(report) = &options.progress {
                report(p);
            }
        };
        let mut reader = Reader::new(device);
        let mut findings = Findings::new(options.findings_max);
        let Some(sb) = slots::read_slots(&mut reader, &mut findings) else {
            let report = findings.into_report(device.name());
            return Pass { sb: None, report, log_writes: None, settled: true };
        };
        progress(Progress { phase: "log", done: 0, total: 1 });
        let log_writes = read_log(device, options, &sb, &mut findings);
        let report = check_from(&sb, &mut reader, findings, data, &mut progress);
        // Only the newest checkpoint matters here, so findings about the slots are discarded.
        let now = slots::read_slots(&mut reader, &mut Findings::new(0));
        let settled = now.as_ref() == Some(&sb);
        Pass { sb: Some(sb), report, log_writes, settled }
    }

    /// Whether the findings of this pass are certain, given those of the previous pass.
    fn confirms(&self, before: &Pass) -> bool {
        let same_checkpoint = self.settled && before.settled && self.sb == before.sb;
        let listed = self.report.findings.len() as u64 == self.report.errors + self.report.warnings;
        let had = |finding: &Finding| before.report.findings.iter().any(|f| is_same(f, finding));
        let nodes = || self.report.findings.iter().all(|f| f.node.is_some());
        self.report.findings.iter().all(had) && (same_checkpoint || listed && nodes())
    }
}

fn is_same(a: &Finding, b: &Finding) -> bool {
    (a.kind, &a.what, a.ino, a.block, &a.node) == (b.kind, &b.what, b.ino, b.block, &b.node)
}

fn read_log(
    device: &dyn Device,
    options: &CheckOptions,
    sb: &Superblock,
    findings: &mut Findings,
) -> Option<u64> {
    match options.replay.as_ref()?.log_writes(device, sb) {
        Ok(writes) => {
            if writes > 0 && sb.checkpoint.clean {
                findings.add(FindingKind::SuperblockCleanWithLog, At::block(sb.block()), || {
                    format!("unmounted, yet {writes} log writes follow the checkpoint")
                });
            }
            Some(writes)
        }
        Err(error) => {
            findings.add_error(FindingKind::ReplayFailed, At::of(&error), &error);
            None
        }
    }
}

impl ScrubReport {
    /// The exit code of fsck(8). Findings that are not confirmed mean that the check could not be
    /// made (8).
    pub fn exit_code(&self) -> i32 {
        if self.confirmed { self.report.exit_code() } else { 8 }
    }
}

impl fmt::Display for ScrubReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report.write_head(f)?;
        self.report.write_findings(f)?;
        if self.report.superblock.is_some() {
            writeln!(
                f,
                "read: {} tree nodes; valid: {} of 2 superblock slots, {} index blocks, {} bitmaps, {}; {} bytes \
                 read{}",
                self.report.counters.nodes,
                self.superblocks,
                self.report.counters.index_blocks,
                self.report.counters.bitmaps,
                match self.log_writes {
                    Some(writes) => format!("{writes} log writes"),
                    None => "no log writes".into(),
                },
                self.report.counters.bytes_read,
                if self.passes > 1 { format!(", {} times", self.passes) } else { String::new() }
            )?;
            match (self.report.counters.blocks_verified, self.data_checksums) {
                (_, false) => writeln!(f, "file data has no checksums, and was not read")?,
                (_, true) if self.mounted => {
                    writeln!(f, "file data is verified by each read of the mount, and was not read here")?;
                }
                (blocks, true) => writeln!(f, "{blocks} blocks of file data read")?,
            }
        }
        if !self.confirmed {
            return write!(
                f,
                "not certain: the mount replaced the checkpoint while it was read, {} times; scrub it when it \
                 has less to do, or unmounted",
                self.passes
            );
        }
        self.report.write_verdict(f)
    }
}

#[cfg(test)]
#[path = "scrub_tests.rs"]
mod tests;
