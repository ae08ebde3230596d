//! Durability: the dirty lists, writeback, fsync and sync, the flusher threads.
//!
//! [`writeback`] puts file data in place and names it in records. [`sync`] makes data and records
//! durable, for callers. [`flushers`] does the same in the background.

pub(crate) mod dirty;
pub(crate) mod flushers;
pub(crate) mod rules;
pub(crate) mod shared;
pub(crate) mod slow;
pub(crate) mod sync;
pub(crate) mod writeback;
