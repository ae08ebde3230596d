//! What the engine does, at the grain of the protocol.

/// A range of a file: bytes in traces, the whole file in the exploration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Range {
    pub file: u64,
    pub from: u64,
    pub to: u64,
}

impl Range {
    pub(crate) fn overlaps(&self, other: &Range) -> bool {
        self.file == other.file && self.from < other.to && other.from < self.to
    }
}

/// Blocks of the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Span {
    pub start: u64,
    pub len: u64,
}

impl Span {
    pub(crate) fn blocks(self) -> impl Iterator<Item = u64> {
        self.start..self.start + self.len
    }

    pub(crate) fn overlaps(self, other: Span) -> bool {
        self.start < other.start + other.len && other.start < self.start + self.len
    }
}

/// What a record is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    Change,
    /// Names data that was written in place.
    WriteBack,
    /// Has all bytes of an atomic write.
    Atomic,
}

/// A record, as far as the protocol depends on it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Appended {
    pub kind: Kind,
    /// Whether a record of an atomic write has all bytes of it.
    pub whole: bool,
    pub start: u64,
    pub end: u64,
    /// Files whose inode, data or names it changes.
    pub touches: Vec<u64>,
    /// Bytes that are log-resident from now on.
    pub data: Vec<Range>,
    /// Log-resident bytes that it voids.
    pub voids: Vec<Range>,
    pub takes: Vec<Span>,
    pub frees: Vec<Span>,
}

/// A step of the engine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// A recovery has ended: the log begins at `head` in `epoch`. The slot from which the recovery
    /// started was of `before`.
    Opened {
        before: u64,
        epoch: u64,
        generation: u64,
        head: u64,
    },
    /// Blocks were taken for a data write. No record names them yet.
    Placed(Span),
    /// Placed blocks were given back.
    Unplaced(Span),
    /// A write to these blocks has completed.
    Wrote(Span),
    /// The current bytes of the range are in place: the next record of this thread names them.
    InPlace {
        thread: u64,
        range: Range,
    },
    /// A data write with this number has completed.
    Written {
        seq: u64,
    },
    /// A device flush has completed that covers the data writes up to this number.
    Flushed {
        seq: u64,
    },
    Append {
        thread: u64,
        record: Appended,
    },
    /// The open batch of the log was closed, and the next begins at `end`.
    Sealed {
        end: u64,
    },
    /// The device write of the batch that ends there begins.
    LogWrite {
        end: u64,
    },
    LogDone {
        end: u64,
    },
    /// Everything below counts as durable.
    Durable {
        lsn: u64,
    },
    /// An fsync of the file that was called at `called` returns. `clean`: none of its bytes were
    /// left out. `seq`: the last data write of the file.
    Ack {
        file: u64,
        called: u64,
        seq: u64,
        clean: bool,
    },
    /// Blocks are given back to the device.
    Discard(Span),
    Cut {
        generation: u64,
        lsn: u64,
        tail: u64,
    },
    /// Slots of nodes: taken for a node, or freed by the tree of `generation`. `born`: the
    /// generation in which the node was made.
    NodeTaken {
        addr: u64,
    },
    NodeFreed {
        addr: u64,
        born: u64,
        generation: u64,
    },
    /// All nodes of a checkpoint are written, and then flushed.
    NodesWritten {
        generation: u64,
    },
    NodesFlushed {
        generation: u64,
    },
    SlotWrite {
        generation: u64,
        cut: u64,
        tail: u64,
    },
    SlotDone {
        generation: u64,
    },
    Copies {
        generation: u64,
    },
    Tail {
        lsn: u64,
    },
}
