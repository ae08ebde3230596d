//! The steps of the engine, as far as the protocol distinguishes them.

/// A range of a file: in bytes in traces; the whole file in the exploration.
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

/// The purpose of a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    Change,
    /// Names the blocks of data that was written in place.
    WriteBack,
    /// Contains all bytes of an atomic write.
    Atomic,
}

/// A record, reduced to what the protocol depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Appended {
    pub kind: Kind,
    /// Whether the record of an atomic write has all its bytes; true for other records.
    pub whole: bool,
    /// Whether it may refer to data in place.
    pub refers: bool,
    pub start: u64,
    pub end: u64,
    /// Files whose inode, data or names the record changes.
    pub touches: Vec<u64>,
    /// Ranges that the record makes log-resident.
    pub data: Vec<Range>,
    /// Log-resident ranges that the record voids.
    pub voids: Vec<Range>,
    pub takes: Vec<Span>,
    pub frees: Vec<Span>,
}

/// A step of the engine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// A recovery has ended, and the log begins at `head` in `epoch`. The slot from which the
    /// recovery started was of epoch `before`.
    Opened {
        before: u64,
        epoch: u64,
        generation: u64,
        head: u64,
    },
    /// Blocks were allocated for a data write. No record names them yet.
    Placed(Span),
    /// Blocks that were allocated for a data write were given back.
    Unplaced(Span),
    /// A data write to these blocks has completed.
    Wrote(Span),
    /// The current bytes of the range are in place. The next record of this thread names their
    /// blocks.
    InPlace {
        thread: u64,
        range: Range,
    },
    /// The data write with this number has completed.
    Written {
        seq: u64,
    },
    /// A device flush has completed. It covers the data writes up to this number.
    Flushed {
        seq: u64,
    },
    Append {
        thread: u64,
        record: Appended,
    },
    /// The open batch of the log was sealed, and the next one begins at `end`.
    Sealed {
        end: u64,
    },
    /// The log write of the batch that ends at `end` begins.
    LogWrite {
        end: u64,
    },
    LogDone {
        end: u64,
    },
    /// The engine treats the log below `lsn` as durable.
    Durable {
        lsn: u64,
    },
    /// An fsync of the file that was called when the log's head was `called` returns. `clean`: all
    /// bytes of the file are in place or in a record. `seq`: the number of the file's last data
    /// write.
    Ack {
        file: u64,
        called: u64,
        seq: u64,
        clean: bool,
    },
    /// Blocks are discarded on the device.
    Discard(Span),
    Cut {
        generation: u64,
        lsn: u64,
        tail: u64,
    },
    /// A node slot was allocated for a node, or (`NodeFreed`) freed by the tree of `generation`.
    /// `born` is the generation in which the node was made.
    NodeTaken {
        addr: u64,
    },
    NodeFreed {
        addr: u64,
        born: u64,
        generation: u64,
    },
    /// All nodes of a checkpoint are written, or (`NodesFlushed`) written and flushed.
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
