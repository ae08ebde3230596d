//! What becomes durable, and when: the dirty lists, writeback, fsync and sync, the flusher threads.
//!
//! [`writeback`] puts file data in place and names it in records. [`sync`] makes data and records
//! durable. [`flushers`] does for nobody what `sync` does for a caller.

pub(crate) mod dirty;
pub(crate) mod flushers;
pub(crate) mod order;
pub(crate) mod rules;
pub(crate) mod shared;
pub(crate) mod slow;
pub(crate) mod sync;
pub(crate) mod tracking;
pub(crate) mod writeback;
