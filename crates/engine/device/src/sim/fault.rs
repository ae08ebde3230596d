//! Fault plans of a simulated device: which operations fail and how, which are delayed, and the
//! latency of each kind.
//!
//! Some faults strike once ([`FaultPlan::fail`]). Others stay until the plan is replaced: a bad
//! range, a block that turns bad when a request fails, a kind of request that fails from some
//! number on, a host without space for new blocks. Each failed request is recorded as a [`Strike`],
//! so that a test can check that each failure was reported.

use crate::pages::{Data, blocks};
use kedge_base::{BLOCK_SIZE, Error, IoBuf};
use rand::Rng;
use rand::rngs::SmallRng;
use std::ops::Range;
use std::time::Duration;

/// The kinds of operations. Zeroing and discarding count as writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    Read,
    Write,
    Flush,
}

/// The effect of a failing operation on the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    Nothing,
    /// A random subset of the write's sectors is written before the write fails.
    Torn,
    /// This number of bytes of the write, rounded down to sectors, is written before the write
    /// fails.
    Short(u64),
    /// All of the write takes effect before it fails.
    Done,
    /// The writes that this flush should have made durable are never made durable by later flushes.
    Lost,
    /// A FUA write reaches the cache, and the flush that should make it durable fails like
    /// [`Effect::Lost`]. A plain write fails without effect.
    LostFua {
        /// Whether the error names the flush.
        names_flush: bool,
    },
    /// The write may have reached the medium or not, and every later request fails.
    Unknown,
}

#[derive(Clone, Debug)]
struct Fault {
    kind: OpKind,
    nth: u64,
    errno: i32,
    effect: Effect,
    /// Whether the first block of the request stays bad from then on.
    stays: bool,
}

/// A fault that stays until the plan is replaced.
#[derive(Clone, Debug)]
struct Standing {
    kind: OpKind,
    from: u64,
    /// Range in bytes. A flush counts as touching every range.
    range: Range<u64>,
    /// Strikes one in this number of requests, chosen by the plan's seed.
    one_in: u32,
    /// If set, strikes only writes with a block that begins with these bytes.
    mark: Option<[u8; 8]>,
    errno: i32,
}

/// A request that failed as planned.
#[derive(Clone, Debug)]
pub struct Strike {
    pub kind: OpKind,
    pub offset: u64,
    pub len: u64,
    pub errno: i32,
    /// The data of a write; `None` for zeroing. A test whose files mark their blocks can find the
    /// file to which the data belongs.
    pub data: Option<Data>,
}

/// Maximum number of strikes that are kept; later ones are only counted.
const STRIKES_MAX: usize = 4096;

/// The progress of a plan since it was set.
#[derive(Default)]
pub(super) struct Progress {
    pub counts: OpCounts,
    /// Ranges in bytes that turned bad under a request, with the kind and the errno.
    bad: Vec<(OpKind, Range<u64>, i32)>,
    pub strikes: Vec<Strike>,
    pub struck: u64,
}

impl Progress {
    /// Records a request that completes with its planned failure.
    pub fn answered(&mut self, strike: &Strike) {
        self.struck += 1;
        if self.strikes.len() < STRIKES_MAX {
            self.strikes.push(strike.clone());
        }
    }

    pub fn heal(&mut self) {
        self.bad.clear();
    }
}

/// A request in the form that the plan needs.
pub(super) struct Asked<'a> {
    pub kind: OpKind,
    pub offset: u64,
    pub len: u64,
    pub data: Option<&'a IoBuf>,
}

impl Asked<'_> {
    fn bears(&self, mark: Option<[u8; 8]>) -> bool {
        let Some(mark) = mark else { return true };
        let begins = |data: &IoBuf| data.as_bytes().chunks(BLOCK_SIZE).any(|block| block.starts_with(&mark));
        self.data.is_some_and(begins)
    }

    fn touches(&self, range: &Range<u64>) -> bool {
        self.kind == OpKind::Flush
            || (self.offset < range.end && range.start < self.offset.saturating_add(self.len))
    }
}

/// Numbers of operations since the plan was set, including failed ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpCounts {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
}

impl OpCounts {
    pub fn total(&self) -> u64 {
        self.reads + self.writes + self.flushes
    }

    pub(super) fn of(&mut self, kind: OpKind) -> &mut u64 {
        match kind {
            OpKind::Read => &mut self.reads,
            OpKind::Write => &mut self.writes,
            OpKind::Flush => &mut self.flushes,
        }
    }
}

/// A script of failures. Operations are counted from 0 when the plan is set, each kind separately.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    faults: Vec<Fault>,
    standing: Vec<Standing>,
    host_full_from: Option<u64>,
    scope: Option<Range<u64>>,
    last: Vec<(OpKind, u64)>,
    holds: Vec<(OpKind, u64)>,
    fail_from: Option<(u64, i32)>,
    read_latency: Duration,
    write_latency: Duration,
    flush_latency: Duration,
    pub(super) lying: bool,
    pub(super) seed: u64,
}

impl FaultPlan {
    /// Makes a plan without faults. `seed` determines all random choices.
    pub fn new(seed: u64) -> FaultPlan {
        FaultPlan { seed, ..FaultPlan::default() }
    }

    fn with(mut self, kind: OpKind, nth: u64, errno: i32, effect: Effect) -> FaultPlan {
        self.faults.push(Fault { kind, nth, errno, effect, stays: false });
        self
    }

    fn standing(mut self, kind: OpKind, from: u64, errno: i32) -> FaultPlan {
        self.standing.push(Standing { kind, from, range: 0..u64::MAX, one_in: 1, mark: None, errno });
        self
    }

    /// Makes the n-th operation of its kind fail, and every later operation of that kind that
    /// touches its first block.
    pub fn bad_block(mut self, kind: OpKind, nth: u64, errno: i32) -> FaultPlan {
        self.faults.push(Fault { kind, nth, errno, effect: Effect::Nothing, stays: true });
        self
    }

    /// Makes every operation of this kind fail that touches these bytes.
    pub fn bad_range(mut self, kind: OpKind, range: Range<u64>, errno: i32) -> FaultPlan {
        self.standing.push(Standing { kind, from: 0, range, one_in: 1, mark: None, errno });
        self
    }

    /// Makes every operation of this kind fail from the n-th on.
    pub fn fail_kind_from(self, kind: OpKind, nth: u64, errno: i32) -> FaultPlan {
        self.standing(kind, nth, errno)
    }

    /// Makes one in `one_in` operations of this kind fail, chosen by the seed.
    pub fn sometimes(mut self, kind: OpKind, one_in: u32, errno: i32) -> FaultPlan {
        self.standing.push(Standing {
            kind,
            from: 0,
            range: 0..u64::MAX,
            one_in: one_in.max(1),
            mark: None,
            errno,
        });
        self
    }

    /// Makes every write fail that has a block which begins with these bytes, whatever its offset:
    /// data that cannot be written to any block.
    pub fn refuse(mut self, mark: [u8; 8], errno: i32) -> FaultPlan {
        let (kind, range) = (OpKind::Write, 0..u64::MAX);
        self.standing.push(Standing { kind, from: 0, range, one_in: 1, mark: Some(mark), errno });
        self
    }

    /// From the n-th write on the host has no space: a write fails with ENOSPC if it touches a
    /// block that contains only zeros, like an image file whose holes cannot be filled. (A real
    /// host may have allocated space for zeros; this one has not.)
    pub fn host_full(mut self, nth: u64) -> FaultPlan {
        self.host_full_from = Some(nth);
        self
    }

    /// Makes the n-th operation of its kind fail without any effect.
    pub fn fail(self, kind: OpKind, nth: u64, errno: i32) -> FaultPlan {
        self.with(kind, nth, errno, Effect::Nothing)
    }

    /// Makes the n-th write fail after a random subset of its sectors was written.
    pub fn torn_write(self, nth: u64, errno: i32) -> FaultPlan {
        self.with(OpKind::Write, nth, errno, Effect::Torn)
    }

    /// Makes the n-th write fail after `bytes` bytes (rounded down to sectors) were written.
    pub fn short_write(self, nth: u64, bytes: u64, errno: i32) -> FaultPlan {
        self.with(OpKind::Write, nth, errno, Effect::Short(bytes))
    }

    /// Makes the n-th flush fail. Later flushes succeed without making durable what this flush
    /// should have, like an operating system that marks pages clean although it could not write
    /// them.
    pub fn lose_flush(self, nth: u64, errno: i32) -> FaultPlan {
        self.with(OpKind::Flush, nth, errno, Effect::Lost)
    }

    /// Makes the n-th write, if it is a FUA write, fail in its flush, as on a device without FUA:
    /// the bytes reach the cache, the flush fails, and later flushes succeed without making durable
    /// what this flush should have, the writes of others included. With `names_flush` the error
    /// is that of a flush, as from a device that emulates FUA itself. Otherwise it is that of a
    /// write, as from a kernel or a server that emulates FUA. A plain write fails without effect.
    pub fn lose_fua(self, nth: u64, names_flush: bool, errno: i32) -> FaultPlan {
        self.with(OpKind::Write, nth, errno, Effect::LostFua { names_flush })
    }

    /// Makes the n-th write, which may be a discard, fail after all of it took effect.
    pub fn done_and_failed(self, nth: u64, errno: i32) -> FaultPlan {
        self.with(OpKind::Write, nth, errno, Effect::Done)
    }

    /// Cuts the n-th write off: it and every later request fail with [`Error::OutcomeUnknown`].
    pub fn unknown_write(self, nth: u64) -> FaultPlan {
        self.with(OpKind::Write, nth, libc::EIO, Effect::Unknown)
    }

    /// Makes every operation fail after `nth` operations of all kinds.
    pub fn fail_from(mut self, nth: u64, errno: i32) -> FaultPlan {
        self.fail_from = Some((nth, errno));
        self
    }

    /// Excludes reads and writes that do not touch these bytes from the plan: they are not counted
    /// and do not fail.
    pub fn only_in(mut self, range: Range<u64>) -> FaultPlan {
        self.scope = Some(range);
        self
    }

    /// Returns whether the plan covers this operation.
    pub(super) fn covers(&self, asked: &Asked<'_>) -> bool {
        self.scope.as_ref().is_none_or(|scope| asked.touches(scope))
    }

    /// Makes the n-th operation of its kind take effect, and complete, after all others of its
    /// batch.
    pub fn last(mut self, kind: OpKind, nth: u64) -> FaultPlan {
        self.last.push((kind, nth));
        self
    }

    /// Holds the n-th operation of its kind: it takes effect, and completes, only when
    /// [`SimDevice::release`] is called. The others of its batch are not held.
    ///
    /// [`SimDevice::release`]: super::SimDevice::release
    pub fn hold(mut self, kind: OpKind, nth: u64) -> FaultPlan {
        self.holds.push((kind, nth));
        self
    }

    /// Sets the latency of operations of this kind. All operations of a batch wait together.
    pub fn latency(mut self, kind: OpKind, delay: Duration) -> FaultPlan {
        match kind {
            OpKind::Read => self.read_latency = delay,
            OpKind::Write => self.write_latency = delay,
            OpKind::Flush => self.flush_latency = delay,
        }
        self
    }

    /// Makes the device acknowledge flushes and FUA writes without performing them.
    pub fn lying(mut self) -> FaultPlan {
        self.lying = true;
        self
    }

    /// Returns whether the n-th operation of its kind comes last in its batch.
    pub(super) fn is_last(&self, kind: OpKind, nth: u64) -> bool {
        self.last.contains(&(kind, nth))
    }

    pub(super) fn latency_of(&self, kind: OpKind) -> Duration {
        match kind {
            OpKind::Read => self.read_latency,
            OpKind::Write => self.write_latency,
            OpKind::Flush => self.flush_latency,
        }
    }

    /// Returns whether the n-th operation of its kind is held until a release.
    pub(super) fn holds(&self, kind: OpKind, nth: u64) -> bool {
        self.holds.contains(&(kind, nth))
    }

    /// Counts an operation. Returns its failure if the plan makes it fail. `holds_data` returns
    /// whether a block has been written with data.
    pub(super) fn strike(
        &self,
        progress: &mut Progress,
        rng: &mut SmallRng,
        asked: &Asked<'_>,
        holds_data: impl Fn(u64) -> bool,
    ) -> Option<(Effect, Strike)> {
        let kind = asked.kind;
        let all = progress.counts.total();
        let nth = *progress.counts.of(kind);
        *progress.counts.of(kind) += 1;
        let once = self.faults.iter().find(|fault| fault.kind == kind && fault.nth == nth);
        if let Some(fault) = once.filter(|fault| fault.stays) {
            let block = asked.offset..asked.offset.saturating_add(BLOCK_SIZE as u64);
            progress.bad.push((kind, block, fault.errno));
        }
        let struck = once
            .map(|fault| (fault.effect, fault.errno))
            .or_else(|| {
                let standing = self.standing.iter().filter(|s| s.kind == kind && nth >= s.from);
                let mut hit = standing.filter(|s| asked.touches(&s.range) && asked.bears(s.mark));
                let found = hit.find(|s| s.one_in == 1 || rng.random_range(0..s.one_in) == 0);
                found.map(|s| (Effect::Nothing, s.errno))
            })
            .or_else(|| {
                let bad = progress.bad.iter().find(|(of, range, _)| *of == kind && asked.touches(range));
                bad.map(|(.., errno)| (Effect::Nothing, *errno))
            })
            .or_else(|| {
                let full = kind == OpKind::Write && self.host_full_from.is_some_and(|from| nth >= from);
                let data = asked.data.filter(|_| full)?;
                let first = blocks(asked.offset);
                let hole = (first..first + data.blocks() as u64).any(|block| !holds_data(block));
                hole.then_some((Effect::Nothing, libc::ENOSPC))
            })
            .or_else(|| {
                let from = self.fail_from.filter(|(from, _)| all >= *from);
                from.map(|(_, errno)| (Effect::Nothing, errno))
            })?;
        let (offset, len, data) = (asked.offset, asked.len, asked.data.map(Data::new));
        Some((struck.0, Strike { kind, offset, len, errno: struck.1, data }))
    }
}

impl Effect {
    pub(super) fn error(self, op: &'static str, offset: u64, len: u64, errno: i32) -> Error {
        match self {
            Effect::Unknown => Error::OutcomeUnknown,
            _ => Error::Io { op, offset, len, errno },
        }
    }
}
