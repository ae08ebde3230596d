//! What the engine does, at the grain of its durability protocol: for the checker that replays it
//! against the model of the protocol (`kedge-protocol`).
//!
//! With the feature `trace` a test can collect the events of the whole process. Each is noted where
//! its order to the others is fixed: under the lock that makes it take effect, or before another
//! thread can see its effect. Without the feature [`note`] does nothing at compile time, so a
//! release contains nothing of this.

use crate::{BlockNo, Epoch, Extent, Generation, Ino, Lsn};

/// Bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bytes {
    pub ino: Ino,
    pub from: u64,
    pub to: u64,
}

/// What a record does, as far as the protocol depends on it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Commits {
    /// It names data that was written in place.
    pub write_back: bool,
    /// The inodes whose core it changes.
    pub inodes: Vec<Ino>,
    /// Bytes that are log-resident from now on, and those that no longer are.
    pub data: Vec<Bytes>,
    pub voids: Vec<Bytes>,
    pub takes: Vec<Extent>,
    pub frees: Vec<Extent>,
}

/// A step of the engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A recovery begins from the slot of this generation, and of this epoch.
    Recovers {
        epoch: Epoch,
        generation: Generation,
    },
    /// The log was replayed up to its head.
    Replayed {
        head: Lsn,
    },
    /// The log is open for writing, in this epoch. `ring`: the bytes of its ring.
    Opened {
        epoch: Epoch,
        generation: Generation,
        head: Lsn,
        ring: u64,
    },
    /// Blocks were taken for a data write, or given back without one.
    Placed(Extent),
    Unplaced(Extent),
    /// A data write has completed.
    Wrote(Extent),
    /// The current bytes are in place; the next record of this thread names them.
    InPlace(Bytes),
    /// The number of a completed data write.
    Written {
        seq: u64,
    },
    /// A flush has completed that covers the data writes up to this number.
    Flushed {
        seq: u64,
    },
    /// The thread is about to append this record.
    Commits(Commits),
    /// The next record of this thread is that of an atomic write with this number of edits of data.
    Atomic {
        edits: usize,
    },
    Append {
        start: Lsn,
        end: Lsn,
    },
    /// The open batch of the log was closed; the next one begins at `end`.
    Sealed {
        end: Lsn,
    },
    /// The device write of the batch that ends there begins, and has completed.
    LogWrite {
        end: Lsn,
    },
    LogDone {
        end: Lsn,
    },
    /// Everything below counts as durable.
    Durable {
        lsn: Lsn,
    },
    /// An fsync returns success. `called`: the head of the log when it had written the data. `seq`:
    /// the last data write of the file.
    Ack {
        ino: Ino,
        called: Lsn,
        seq: u64,
    },
    /// Free blocks are given back to the device.
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
    /// The nodes and bitmaps of a checkpoint are written, and then flushed.
    NodesWritten(Generation),
    NodesFlushed(Generation),
    SlotWrite {
        generation: Generation,
        cut: Lsn,
        tail: Lsn,
    },
    SlotDone(Generation),
    /// Copies of the superblock are written.
    Copies(Generation),
    Tail(Lsn),
}

/// An event and the number of its thread.
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

    /// Begins to collect events, of all threads.
    pub fn start() {
        *EVENTS.lock() = Some(Vec::new());
    }

    /// Ends that, and returns the events in their order.
    pub fn take() -> Vec<Noted> {
        EVENTS.lock().take().unwrap_or_default()
    }

    /// Notes an event, if events are collected.
    pub fn note(event: impl FnOnce() -> Event) {
        let thread = THREAD.with(|thread| *thread);
        if let Some(events) = EVENTS.lock().as_mut() {
            events.push((thread, event()));
        }
    }
}

#[cfg(feature = "trace")]
pub use sink::{note, start, take};

/// Whether this build notes events.
pub const COLLECTS: bool = cfg!(feature = "trace");

/// Nothing: the feature is off.
#[cfg(not(feature = "trace"))]
#[inline(always)]
pub fn note(_: impl FnOnce() -> Event) {}
