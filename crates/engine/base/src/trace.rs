//! Events of the engine's durability protocol. The checker `kedge-protocol` replays them against a
//! model of the protocol.
//!
//! With the feature `trace` a test can collect the events of the whole process. The engine notes
//! each event where the event's order is fixed: under the lock that makes it take effect, or before
//! another thread can see its effect. Without the feature [`note`] is empty, so a release build
//! contains none of this code.

use crate::{BlockNo, Epoch, Extent, Generation, Ino, Lsn};

/// A range of bytes of a file, from offset `from` up to, but not including, offset `to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bytes {
    pub ino: Ino,
    pub from: u64,
    pub to: u64,
}

/// The effects of a record that matter to the protocol.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Commits {
    /// The record is that of a writeback, so it refers to data that was written in place.
    pub write_back: bool,
    /// Whether the record may refer to data in place: it does more than set time stamps.
    pub refers: bool,
    /// The inodes whose core attributes the record changes.
    pub inodes: Vec<Ino>,
    /// Bytes that become log-resident (`data`), and bytes that are no longer log-resident
    /// (`voids`).
    pub data: Vec<Bytes>,
    pub voids: Vec<Bytes>,
    pub takes: Vec<Extent>,
    pub frees: Vec<Extent>,
}

/// A step of the engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Recovery begins from the superblock slot with this generation and log epoch.
    Recovers {
        epoch: Epoch,
        generation: Generation,
    },
    /// The log has been replayed up to its head.
    Replayed {
        head: Lsn,
    },
    /// The log is open for writing in this epoch. `ring` is the size of the log's ring in bytes.
    Opened {
        epoch: Epoch,
        generation: Generation,
        head: Lsn,
        ring: u64,
    },
    /// Blocks were allocated for a data write. [`Event::Unplaced`]: they were given back unused.
    Placed(Extent),
    Unplaced(Extent),
    /// A data write has completed.
    Wrote(Extent),
    /// The current bytes are written in place; the thread's next record refers to them.
    InPlace(Bytes),
    /// A data write has completed and received this sequence number.
    Written {
        seq: u64,
    },
    /// A flush has completed that covers the data writes up to this sequence number.
    Flushed {
        seq: u64,
    },
    /// The thread is about to append this record.
    Commits(Commits),
    /// The thread's next record belongs to an atomic write and has this number of `Data` edits.
    Atomic {
        edits: usize,
    },
    Append {
        start: Lsn,
        end: Lsn,
    },
    /// The open batch of the log was closed; the next batch begins at `end`.
    Sealed {
        end: Lsn,
    },
    /// The device write of the batch that ends at `end` begins. [`Event::LogDone`] reports its
    /// completion.
    LogWrite {
        end: Lsn,
    },
    LogDone {
        end: Lsn,
    },
    /// All records below `lsn` count as durable.
    Durable {
        lsn: Lsn,
    },
    /// An fsync returns success. `called` is the head of the log after the fsync had written its
    /// data, `seq` the sequence number of the file's last data write.
    Ack {
        ino: Ino,
        called: Lsn,
        seq: u64,
    },
    /// Free blocks are about to be discarded on the device.
    Discards(Extent),
    Cut {
        generation: Generation,
        lsn: Lsn,
        tail: Lsn,
    },
    NodeTaken(BlockNo),
    NodeFreed {
        addr: BlockNo,
        born: Generation,
        current: Generation,
    },
    /// The nodes and bitmaps of a checkpoint have been written. [`Event::NodesFlushed`] reports
    /// their flush.
    NodesWritten(Generation),
    NodesFlushed(Generation),
    SlotWrite {
        generation: Generation,
        cut: Lsn,
        tail: Lsn,
    },
    SlotDone(Generation),
    /// The copies of the superblock have been written.
    Copies(Generation),
    Tail(Lsn),
}

/// An event with the number of the thread that noted it.
pub type Noted = (u64, Event);

#[cfg(feature = "trace")]
mod sink {
    use super::{Event, Noted};
    use parking_lot::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    static EVENTS: Mutex<Option<Vec<Noted>>> = Mutex::new(None);
    static THREADS: AtomicU64 = AtomicU64::new(0);

    thread_local! {
        static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
    }

    /// Starts collecting the events of all threads.
    pub fn start() {
        *EVENTS.lock() = Some(Vec::new());
    }

    /// Stops collecting and returns the events in their order.
    pub fn take() -> Vec<Noted> {
        EVENTS.lock().take().unwrap_or_default()
    }

    /// Notes an event if events are being collected.
    pub fn note(event: impl FnOnce() -> Event) {
        let thread = THREAD.with(|thread| *thread);
        if let Some(events) = EVENTS.lock().as_mut() {
            events.push((thread, event()));
        }
    }
}

#[cfg(feature = "trace")]
pub use sink::{note, start, take};

/// Whether this build can collect events.
pub const COLLECTS: bool = cfg!(feature = "trace");

/// Does nothing: the feature `trace` is off.
#[cfg(not(feature = "trace"))]
#[inline(always)]
pub fn note(_: impl FnOnce() -> Event) {}
