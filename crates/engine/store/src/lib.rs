//! The store joins tree, log and allocator into one state that changes atomically and survives a
//! crash.
//!
//! # Life of an operation
//! [`Store::begin`] reserves log bytes and tree nodes; only here may an operation wait for space.
//! [`Handle::commit`] enters the epoch guard, appends the record, which gives it its LSN, applies
//! it, and leaves the guard. Before the guard it reads the leaves that the record changes, if they
//! may have been evicted. Under the guard it does no IO, with the exception that
//! docs/ARCHITECTURE.md, "Lock order", names. [`Store::force`] makes the record durable.
//!
//! # Invariants
//! 1. The tree, the owned bitmaps, the residents and the counters are a function of the records
//!    appended so far: only `apply` changes them, live and in replay. The one exception is the next
//!    inode number: [`Store::take_inos`] hands numbers out before a record names them.
//! 2. A record is appended and applied inside one epoch guard, and a checkpoint's cut takes the
//!    guard exclusively. So the tree at the cut holds exactly the records below it. A log write
//!    waits until all commits that were inside the guard have left. A commit that cannot apply its
//!    record shuts the log down before it leaves. So a record that was not applied is never
//!    durable.
//! 3. Two records that touch one inode are appended in the order in which they are applied: the
//!    caller holds the inode's meta lock across `commit`.
//! 4. A checkpoint's superblock slot is written only when the log is durable up to the cut and the
//!    nodes and bitmaps are flushed.
//! 5. The tail never passes the oldest log-resident range.
//!
//! # Files
//! A file uses only those before it:
//! 1. parts: `flusher`, `guard`, `residents`, `space` (a tree's blocks), `slots`, `need`,
//!    `counters`, `limits` (of directory trees), `forest` (the trees of an image), `apply`;
//! 2. the state of checkpoints and what they write: `checkpoint::{cause, control, requests, cut,
//!    write}`; `stats`;
//! 3. `store`: the parts together;
//! 4. checkpoints of a store: the rest of `checkpoint`;
//! 5. operations: `handle`, `data`, `counts` (of shared blocks), `discard`, `walk` (over a tree at
//!    rest), `trees` (forks, and the space of deleted trees), `moment` (trees as they were),
//!    `limited` (limits of directory
//!    trees);
//! 6. `format`, which makes an image, and `recovery`, which makes a store of one.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod apply;
mod checkpoint;
mod counters;
mod counts;
mod data;
mod discard;
mod flusher;
mod forest;
mod format;
mod guard;
mod handle;
mod limited;
mod limits;
mod moment;
mod need;
mod recovery;
mod residents;
mod slots;
mod space;
mod stats;
mod store;
#[cfg(test)]
mod test_images;
mod trees;
mod walk;

pub use checkpoint::{CheckpointCause, CheckpointClient, Shrinking, check_async_percent};
pub use counts::{CountChanges, CountsLock};
pub use discard::Discarded;
pub use flusher::WriteSeq;
pub use format::{FormatParams, format};
pub use handle::Handle;
pub use kedge_alloc::{DataReservation, Which};
pub use kedge_btree::{LatchKind, Tree, TreeLock, histogram_text};
pub use kedge_format::limits::LimitEntry;
pub use kedge_format::superblock::Losses;
pub use kedge_format::trees::{TreeEntry, TreeKind};
pub use kedge_log::{ForceCause, RecordLsn};
pub use limits::{Amount, Charge, LimitId, LimitState, Room, Spent};
pub use moment::{Differs, Moment, Nodes, OnItem};
pub use need::{CHECKPOINT_RECORD_MAX, Class, Need, PROMISE_PER_PIECE};
pub use recovery::{OpenOptions, count_log_writes};
pub use residents::ResidentRange;
pub use slots::read_superblock;
pub use stats::{ReplaySummary, StoreStats};
pub use store::Store;
pub use trees::{Reclaimed, Renamed, TreeUse};
