//! Which operations of a simulated device fail, how, which come late, and how long the others take.

use kedge_base::Error;
use std::time::Duration;

/// Zeroing and discarding count as writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    Read,
    Write,
    Flush,
}

/// What else happens when an operation fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    Nothing,
    /// A random part of the write's sectors lands first.
    Torn,
    /// This many bytes of the write land first, whole sectors of them.
    Short(u64),
    /// No later flush makes durable what this one should have.
    Lost,
    /// The write may or may not have landed, and the device answers nothing any more.
    Unknown,
}

#[derive(Clone, Debug)]
struct Fault {
    kind: OpKind,
    nth: u64,
    errno: i32,
    effect: Effect,
}

/// Operations since the plan was set, failed ones included.
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

/// A script of failures. Operations are counted from 0, each kind by itself, from the moment the plan is set.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    faults: Vec<Fault>,
    delays: Vec<(OpKind, u64, Duration)>,
    fail_from: Option<(u64, i32)>,
    read_latency: Duration,
    write_latency: Duration,
    flush_latency: Duration,
    pub(super) lying: bool,
    pub(super) seed: u64,
}

impl FaultPlan {
    /// `seed` decides what random faults do.
    pub fn new(seed: u64) -> FaultPlan {
        FaultPlan { seed, ..FaultPlan::default() }
    }

    fn with(mut self, kind: OpKind, nth: u64, errno: i32, effect: Effect) -> FaultPlan {
        self.faults.push(Fault { kind, nth, errno, effect });
        self
    }

    /// The n-th operation of its kind fails and does nothing.
    pub fn fail(self, kind: OpKind, nth: u64, errno: i32) -> FaultPlan {
        self.with(kind, nth, errno, Effect::Nothing)
    }

    /// The n-th write fails after a random part of its sectors was written.
    pub fn torn_write(self, nth: u64, errno: i32) -> FaultPlan {
        self.with(OpKind::Write, nth, errno, Effect::Torn)
    }

    /// The n-th write fails after `bytes` (rounded down to sectors) were written.
    pub fn short_write(self, nth: u64, bytes: u64, errno: i32) -> FaultPlan {
        self.with(OpKind::Write, nth, errno, Effect::Short(bytes))
    }

    /// The n-th flush fails, and later ones succeed without making durable what this one should have: what an operating
    /// system does that marks pages clean though they could not be written.
    pub fn lose_flush(self, nth: u64, errno: i32) -> FaultPlan {
        self.with(OpKind::Flush, nth, errno, Effect::Lost)
    }

    /// The n-th write is cut off: [`Error::OutcomeUnknown`] for it and for everything after it.
    pub fn unknown_write(self, nth: u64) -> FaultPlan {
        self.with(OpKind::Write, nth, libc::EIO, Effect::Unknown)
    }

    /// Every operation fails once `nth` operations of all kinds were made.
    pub fn fail_from(mut self, nth: u64, errno: i32) -> FaultPlan {
        self.fail_from = Some((nth, errno));
        self
    }

    /// The n-th operation of its kind happens, and is answered, only after `by`; the others of its batch go ahead.
    pub fn delay(mut self, kind: OpKind, nth: u64, by: Duration) -> FaultPlan {
        self.delays.push((kind, nth, by));
        self
    }

    /// Operations of this kind take so long, all of a batch together.
    pub fn latency(mut self, kind: OpKind, delay: Duration) -> FaultPlan {
        match kind {
            OpKind::Read => self.read_latency = delay,
            OpKind::Write => self.write_latency = delay,
            OpKind::Flush => self.flush_latency = delay,
        }
        self
    }

    /// Flushes and FUA writes are acknowledged and not honoured.
    pub fn lying(mut self) -> FaultPlan {
        self.lying = true;
        self
    }

    /// By how much the n-th operation of its kind is late.
    pub(super) fn late(&self, kind: OpKind, nth: u64) -> Duration {
        let mut of_it = self.delays.iter().filter(|delay| (delay.0, delay.1) == (kind, nth));
        of_it.next().map_or(Duration::ZERO, |(.., by)| *by)
    }

    pub(super) fn latency_of(&self, kind: OpKind) -> Duration {
        match kind {
            OpKind::Read => self.read_latency,
            OpKind::Write => self.write_latency,
            OpKind::Flush => self.flush_latency,
        }
    }

    /// Counts an operation and says whether it is to fail.
    pub(super) fn strike(&self, counts: &mut OpCounts, kind: OpKind) -> Option<(Effect, i32)> {
        let all = counts.total();
        let nth = *counts.of(kind);
        *counts.of(kind) += 1;
        if let Some(fault) = self.faults.iter().find(|fault| fault.kind == kind && fault.nth == nth) {
            return Some((fault.effect, fault.errno));
        }
        self.fail_from.filter(|(from, _)| all >= *from).map(|(_, errno)| (Effect::Nothing, errno))
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
