//! Checkpoints: make the tree as of a cut durable, move the log's tail, and free the blocks that
//! only the previous checkpoint used.
//!
//! # Crash argument
//! A crash at any point leaves one of two states.
//!
//! 1. The new superblock slot is not durable. Recovery starts from the other slot. Its nodes and
//!    bitmaps are untouched: nodes that were replaced, and the bitmap copies of that slot, are not
//!    reused before this checkpoint is durable. The log from its tail on is still there, because
//!    the tail moves last.
//! 2. The new slot is durable. Then so are the nodes, bitmaps and index to which it points, because
//!    a flush precedes it, and no flush or FUA write that was in flight beside that flush may have
//!    lost them ([`kedge_device::TrackedDevice::confirm`]). The log was forced to the cut before
//!    the slot was written, so it has no gap between tail and cut.
//!
//! A checkpoint that finds no space on the image's host writes the same blocks again later
//! (`commit`). For a crash that is one checkpoint that takes longer. The same holds if its caller
//! gets the error meanwhile: the next checkpoint first writes these blocks, before it makes a cut
//! of its own. The log above the cut is replayed onto the checkpoint before, as the log below it
//! is. That would be wrong where the cut also changes the table of trees, which no record does; so
//! no record follows such a cut (`table`).
//!
//! # Life of a checkpoint
//! | step | where |
//! |---|---|
//! | the log, the dirty nodes or an operation make it due | `trigger` |
//! | the background thread is woken, and runs it | `requests`, `background` |
//! | or an operation runs it; only one runs at a time | `run` |
//! | log-resident data is written in place, so that the tail can move | `prepare` |
//! | the cut, under the exclusive epoch guard | `prepare`, `cut` |
//! | the log is forced to the cut | `commit` |
//! | nodes and bitmaps, the flush, the slot; at the pace of the log | `write`, `pace` |
//! | replaced nodes and log space become free | `commit` |
//! | the image grows, or becomes smaller | `grow`, `shrink` |
//! | trees are forked and freed | `table` |
//! | the mark that the image is clean, for a freeze and a close | `clean` |
//!
//! # Files
//! The [`crate::Store`] contains the state of checkpoints (`control`, `requests`). These files, and
//! those of what is written (`cut`, `write`), do not use the store. The other files are steps of
//! the store, and each uses only those before it: `pace`, `prepare`, `commit`, `run`, `trigger`,
//! `clean`, `grow` and `table`, `shrink`, `background`.

mod background;
pub(crate) mod cause;
mod clean;
mod commit;
pub(crate) mod control;
pub(crate) mod cut;
mod grow;
mod pace;
mod prepare;
pub(crate) mod requests;
mod run;
mod shrink;
mod table;
#[cfg(test)]
mod test_log;
mod trigger;
pub(crate) mod write;

pub use cause::CheckpointCause;
pub use control::CheckpointClient;
pub use shrink::Shrinking;
pub use trigger::check_async_percent;

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
