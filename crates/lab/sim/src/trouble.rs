//! Threads on a failing device, and the checks: which calls returned errors, which did not, and
//! what the medium contains.
//!
//! A *run* is one workload under one [`Fault`]. Each thread owns files recorded in a
//! [`ledger`](crate::ledger) and creates entries in its own directory; threads also fsync one
//! another's files. Afterwards everything is fsynced, the device is healed, everything is fsynced
//! again, and the file system is closed. Media are checked as after a power failure: in the middle,
//! after the first fsyncs, after the second ones, and at the end.
//!
//! What must hold:
//! 1. *No loss.* Data covered by a successful fsync, sync or close is on every medium taken after
//!    its return, and no medium holds bytes that were never written there.
//! 2. *No lie.* If a device request with a file's data fails, an affected caller gets an error:
//!    from a call on that file or on all files, or from any call after a shutdown. Or the counter
//!    of writes that succeeded elsewhere covers the failure. Only a close that wrote the data again
//!    and succeeds need not report it. A failed log write or flush shuts the file system down. A
//!    read while the file system is up returns what was written last.
//! 3. *No innocent victim.* A call fails only if the device failed a request for metadata or for
//!    the call's own file since the call began. An fsync may also fail for a request that failed
//!    since the last successful fsync, or earlier if no call reported it. A call may fail that
//!    waited for a read that another call had begun, and any call after a shutdown.
//! 4. *No hang.* Calls end as long as the device completes requests. No call retries in a hot loop.
//! 5. *It heals.* When the device works again and the file system is not shut down, the second
//!    fsync succeeds. The first may still report an earlier failure.

mod run;
mod verdict;

pub use run::{Stage, run};

use crate::rig::{self, Setup};
use kedge_device::MemDevice;
use kedge_device::sim::{FaultPlan, OpKind};
use kedge_format::superblock::{Geometry, SLOTS, Superblock};
use std::fmt;
use std::ops::Range;

/// Number of ranges of the data area. In a run one of them may fail.
const BAD_RANGES: u64 = 6;

/// How the device fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// One request of this kind fails.
    Once(OpKind),
    /// One write fails, and a part of it reaches the medium.
    Torn,
    /// One write is held until others have queued, and then fails.
    HeldWrite,
    /// One flush fails, and the writes that it should have covered are lost.
    LostFlush,
    /// One block fails permanently for requests of this kind.
    BadBlock(OpKind),
    /// One of `BAD_RANGES` ranges of the data area fails from the start.
    BadRange(OpKind),
    /// One in this many requests of this kind fails.
    Sometimes(OpKind, u32),
    /// All requests of a kind fail, beginning with some request.
    From(OpKind),
    /// All requests fail.
    Gone,
    /// The host has no space for blocks that were never written.
    HostFull,
}

impl Fault {
    pub const ALL: [Fault; 19] = [
        Fault::Once(OpKind::Read),
        Fault::Once(OpKind::Write),
        Fault::Once(OpKind::Flush),
        Fault::Torn,
        Fault::HeldWrite,
        Fault::LostFlush,
        Fault::BadBlock(OpKind::Read),
        Fault::BadBlock(OpKind::Write),
        Fault::BadRange(OpKind::Read),
        Fault::BadRange(OpKind::Write),
        Fault::Sometimes(OpKind::Read, 12),
        Fault::Sometimes(OpKind::Read, 60),
        Fault::Sometimes(OpKind::Write, 12),
        Fault::Sometimes(OpKind::Write, 60),
        Fault::From(OpKind::Read),
        Fault::From(OpKind::Write),
        Fault::From(OpKind::Flush),
        Fault::Gone,
        Fault::HostFull,
    ];

    fn plan(self, nth: u64, seed: u64, data: Range<u64>) -> FaultPlan {
        let mut plan = FaultPlan::new(seed);
        // A failed log write ends most runs. So in half of the runs only requests to the data area
        // fail.
        if !matches!(self, Fault::Gone) && seed % 2 == 1 {
            plan = plan.only_in(data.clone());
        }
        let eio = crate::ops::errno::EIO;
        match self {
            Fault::Once(kind) => plan.fail(kind, nth, eio),
            Fault::Torn => plan.torn_write(nth, eio),
            Fault::HeldWrite => plan.hold(OpKind::Write, nth).fail(OpKind::Write, nth, eio),
            Fault::LostFlush => plan.lose_flush(nth, eio),
            Fault::BadBlock(kind) => plan.bad_block(kind, nth, eio),
            Fault::BadRange(kind) => {
                let piece = (data.end - data.start) / BAD_RANGES;
                let start = data.start + seed % BAD_RANGES * piece;
                plan.bad_range(kind, start..start + piece, eio)
            }
            Fault::Sometimes(kind, one_in) => plan.sometimes(kind, one_in, eio),
            Fault::From(kind) => plan.fail_kind_from(kind, nth, eio),
            Fault::Gone => plan.fail_from(nth, eio),
            Fault::HostFull => plan.host_full(nth),
        }
    }
}

/// The threads and their files.
#[derive(Clone, Debug)]
pub struct Scene {
    pub setup: Setup,
    pub threads: usize,
    /// Number of files of each thread.
    pub files: usize,
    /// Number of calls of each thread.
    pub calls: usize,
    /// Percentage of calls that fsync file 0, which belongs to one of the threads.
    pub crowd: u32,
    /// Whether time is real and the commit interval short, so that the commit timer and the
    /// flushers meet the fault, too.
    pub background: bool,
}

impl Scene {
    /// One thread without background work, so that a seed reproduces the run.
    pub fn alone() -> Scene {
        let mut setup = Setup::cramped();
        setup.mount.cache_size = 1 << 20;
        Scene { setup, threads: 1, files: 3, calls: 90, crowd: 0, background: false }
    }

    /// Enough files that one sync touches more of the tree than the cache holds.
    pub fn wide() -> Scene {
        Scene { files: 120, calls: 200, ..Scene::alone() }
    }

    pub fn threads(threads: usize) -> Scene {
        Scene { threads, calls: 50, ..Scene::alone() }
    }

    /// Threads that constantly fsync one another's files.
    pub fn crowd(threads: usize) -> Scene {
        Scene { files: 1, crowd: 35, ..Scene::threads(threads) }
    }

    pub fn background(threads: usize) -> Scene {
        Scene { background: true, ..Scene::threads(threads) }
    }
}

/// Kinds of findings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    Loss,
    Lie,
    Innocent,
    Hang,
    Panic,
    /// A finding of fsck, a failed mount, or a call that fails for another reason.
    Other,
}

/// The counts of many runs.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub runs: u64,
    /// Number of device requests that failed.
    pub struck: u64,
    /// Number of runs with a failed request.
    pub met: u64,
    pub shutdowns: u64,
    /// Number of calls that returned an error.
    pub told: u64,
    pub media: u64,
    pub findings: Vec<(Class, String)>,
}

impl Report {
    fn find(&mut self, class: Class, what: impl Into<String>) {
        self.findings.push((class, what.into()));
    }

    pub fn count(&self, class: Class) -> usize {
        self.findings.iter().filter(|(c, _)| *c == class).count()
    }

    /// Adds another report; `what` names the run of its findings.
    pub fn add(&mut self, other: Report, what: &str) {
        self.runs += other.runs;
        self.struck += other.struck;
        self.met += other.met;
        self.shutdowns += other.shutdowns;
        self.told += other.told;
        self.media += other.media;
        self.findings.extend(other.findings.into_iter().map(|(c, text)| (c, format!("{what}: {text}"))));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |class| self.count(class);
        write!(
            f,
            "{} runs, {} met a fault, {} requests struck, {} calls told, {} shutdowns, {} media judged: {} losses, {} lies, \
             {} innocents told, {} hangs, {} panics, {} other",
            self.runs,
            self.met,
            self.struck,
            self.told,
            self.shutdowns,
            self.media,
            of(Class::Loss),
            of(Class::Lie),
            of(Class::Innocent),
            of(Class::Hang),
            of(Class::Panic),
            of(Class::Other)
        )
    }
}

/// The byte ranges of an image's areas.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub log: Range<u64>,
    pub data: Range<u64>,
}

impl Layout {
    pub fn of(geometry: &Geometry) -> Layout {
        let block = kedge_base::BLOCK_SIZE as u64;
        let log = geometry.log_start.0 * block;
        Layout {
            log: log..log + geometry.log_bytes(),
            data: geometry.data_start.0 * block..geometry.total_blocks * block,
        }
    }

    pub fn read(medium: &MemDevice, size: u64) -> Result<Layout, String> {
        let blocks = size / kedge_base::BLOCK_SIZE as u64;
        let decode = |i: usize| {
            let bytes = medium.bytes(SLOTS[i].byte_offset(), kedge_base::BLOCK_SIZE);
            Superblock::decode(&bytes, i, blocks).ok()
        };
        let found = (0..SLOTS.len()).find_map(decode).ok_or("no superblock")?;
        Ok(Layout::of(&found.geometry))
    }
}

/// Runs fsck. The error lists its findings.
fn fsck(medium: &MemDevice) -> Result<(), String> {
    rig::fsck(medium.fork())
}
