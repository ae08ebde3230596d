//! Durability: the dirty lists, writeback, fsync and sync, the flusher threads.
//!
//! [`writeback`] writes file data in place and commits the records that name it. [`sync`] makes
//! data and records durable for callers, [`flushers`] in the background.

pub(crate) mod dirty;
pub(crate) mod flushers;
pub(crate) mod rules;
pub(crate) mod shared;
pub(crate) mod slow;
pub(crate) mod sync;
pub(crate) mod writeback;
