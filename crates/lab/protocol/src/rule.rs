//! The rules of the protocol, and the guarantees that depend on them.

use std::fmt;

/// A rule of the durability protocol. A mutant is the protocol without one rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rule {
    /// Records are appended one after another, each at the head of the log.
    OneOrder,
    /// A record that maps blocks for written data is appended after the data write has completed.
    DataBeforeRecord,
    /// A log write with a record that may refer to data in place starts only when the data writes
    /// that completed before its last record are flushed.
    FlushBeforeLogWrite,
    /// A log write starts only if fewer than four earlier log writes are not yet durable. The scan
    /// of a recovery searches only so far past the log's end for a log write that proves a loss.
    BoundedFlight,
    /// The engine treats only a prefix of the log as durable, all of whose log writes have
    /// completed.
    DurableIsPrefix,
    /// An fsync returns only when the last record that touched the file is durable.
    ForceBeforeAck,
    /// An fsync returns only when the last data write of the file is flushed.
    FlushBeforeAck,
    /// An fsync returns only when all bytes of the file are in place or in a record.
    WritebackBeforeAck,
    /// A sync returns only when all bytes of all files are in place or in a record.
    WritebackBeforeSync,
    /// A block is not reused before the record that freed it is durable.
    BlockQuarantine,
    /// A block is not discarded before the record that freed it is durable.
    DiscardQuarantine,
    /// A tree node that the last durable checkpoint uses is not reused before the next one is
    /// durable.
    NodeQuarantine,
    /// The tree that a checkpoint writes contains exactly the records below its cut.
    CutIsExact,
    /// The superblock slot is written only after the log is durable up to the cut.
    ForceBeforeSlot,
    /// The superblock slot is written only after the nodes to which it points are flushed.
    FlushBeforeSlot,
    /// A checkpoint writes the superblock slot that the last durable checkpoint did not write.
    SlotFlip,
    /// The tail moves only after the slot that names it is durable.
    SlotBeforeTail,
    /// Copies of the superblock are written only after its slot is durable.
    SlotBeforeCopies,
    /// The tail does not pass the log write that holds the oldest log-resident data.
    ResidentsHoldTail,
    /// The log does not overwrite what lies between its tail and its head.
    TailBoundsHead,
    /// The record that follows a write in place voids the log-resident data that was overwritten.
    VoidResidents,
    /// Bytes of an atomic write are not written in place before its record is durable.
    AtomicHeldBack,
    /// An atomic write is one record.
    AtomicInOneRecord,
    /// Recovery accepts a log write as a whole or not at all.
    WholeWrites,
    /// Replay applies records as a whole.
    WholeRecords,
    /// A recovery begins a new epoch of log writes.
    NewEpoch,
    /// A recovery writes log-resident data in place before its checkpoint moves the tail.
    OverlayBeforeSlot,
    /// Appending a record of metadata does not wait for data to be written.
    NoWaitForData,
}

impl Rule {
    pub const ALL: [Rule; 28] = [
        Rule::OneOrder,
        Rule::DataBeforeRecord,
        Rule::FlushBeforeLogWrite,
        Rule::BoundedFlight,
        Rule::DurableIsPrefix,
        Rule::ForceBeforeAck,
        Rule::FlushBeforeAck,
        Rule::WritebackBeforeAck,
        Rule::WritebackBeforeSync,
        Rule::BlockQuarantine,
        Rule::DiscardQuarantine,
        Rule::NodeQuarantine,
        Rule::CutIsExact,
        Rule::ForceBeforeSlot,
        Rule::FlushBeforeSlot,
        Rule::SlotFlip,
        Rule::SlotBeforeTail,
        Rule::SlotBeforeCopies,
        Rule::ResidentsHoldTail,
        Rule::TailBoundsHead,
        Rule::VoidResidents,
        Rule::AtomicHeldBack,
        Rule::AtomicInOneRecord,
        Rule::WholeWrites,
        Rule::WholeRecords,
        Rule::NewEpoch,
        Rule::OverlayBeforeSlot,
        Rule::NoWaitForData,
    ];

    /// The guarantee that the protocol without this rule breaks first; `None` for unexplored rules.
    pub const fn breaks(self) -> Option<Guarantee> {
        match self {
            Rule::OneOrder | Rule::BoundedFlight | Rule::SlotBeforeCopies => None,
            Rule::ForceBeforeAck
            | Rule::FlushBeforeAck
            | Rule::WritebackBeforeAck
            | Rule::ResidentsHoldTail
            | Rule::VoidResidents
            | Rule::OverlayBeforeSlot => Some(Guarantee::G1),
            Rule::WholeWrites | Rule::WholeRecords => Some(Guarantee::G3),
            Rule::DataBeforeRecord
            | Rule::FlushBeforeLogWrite
            | Rule::BlockQuarantine
            | Rule::DiscardQuarantine => Some(Guarantee::G9),
            Rule::NoWaitForData => Some(Guarantee::G11),
            Rule::DurableIsPrefix => Some(Guarantee::G12),
            Rule::WritebackBeforeSync => Some(Guarantee::G13),
            Rule::AtomicHeldBack | Rule::AtomicInOneRecord => Some(Guarantee::G15),
            Rule::NodeQuarantine
            | Rule::ForceBeforeSlot
            | Rule::FlushBeforeSlot
            | Rule::SlotFlip
            | Rule::SlotBeforeTail
            | Rule::TailBoundsHead => Some(Guarantee::Mounts),
            Rule::CutIsExact | Rule::NewEpoch => Some(Guarantee::Prefix),
        }
    }

    /// The reason if the exploration has no mutant without this rule.
    pub const fn unexplored(self) -> Option<&'static str> {
        match self {
            Rule::OneOrder => Some("the model has one log with one head, so no record is elsewhere"),
            Rule::BoundedFlight => Some("two log writes are in flight, and the scan reads the whole ring"),
            Rule::SlotBeforeCopies => Some("recovery does not read the copies; only a repair does"),
            _ => None,
        }
    }
}

/// What must hold: the guarantees of docs/CRASH_MODEL.md that have a meaning in the model, with
/// their numbers, and two statements of its section "After every crash".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Guarantee {
    /// fsync makes the data of a file persistent; so do fdatasync (G8) and a synchronous write
    /// (G10), between which the model does not distinguish.
    G1 = 1,
    /// A record of two edits takes effect as a whole or not at all.
    G3 = 3,
    /// A file never contains foreign, stale or unwritten bytes.
    G9 = 9,
    /// A record of metadata can be appended whatever data is dirty, unless the log is full.
    G11 = 11,
    /// The log below the position that the engine treats as durable is persistent.
    G12 = 12,
    /// sync makes all earlier operations persistent.
    G13 = 13,
    /// After a crash an atomic write is there with all its bytes or with none.
    G15 = 15,
    /// The image mounts after a crash.
    Mounts = 20,
    /// The recovered tree is that of a prefix of the records (SOMC).
    Prefix = 21,
}

impl Guarantee {
    pub const ALL: [Guarantee; 9] = [
        Guarantee::G1,
        Guarantee::G3,
        Guarantee::G9,
        Guarantee::G11,
        Guarantee::G12,
        Guarantee::G13,
        Guarantee::G15,
        Guarantee::Mounts,
        Guarantee::Prefix,
    ];

    /// The name of the property for the checker.
    pub const fn name(self) -> &'static str {
        match self {
            Guarantee::G1 => "G1, G8, G10",
            Guarantee::G3 => "G3",
            Guarantee::G9 => "G9",
            Guarantee::G11 => "G11",
            Guarantee::G12 => "G12",
            Guarantee::G13 => "G13",
            Guarantee::G15 => "G15",
            Guarantee::Mounts => "the image mounts",
            Guarantee::Prefix => "a prefix of the records (SOMC)",
        }
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
