//! Why a checkpoint runs, what it does, and which thread runs it.

use crate::forest::Change;
use kedge_base::{BlockNo, Extent, Generation};
use kedge_format::superblock::Geometry;

/// What a checkpoint frees: nothing of it is used again before the checkpoint is durable.
#[derive(Default)]
pub(crate) struct Freed {
    pub extents: Vec<Extent>,
    /// Nodes, with the generations in which they were born.
    pub nodes: Vec<(BlockNo, Generation)>,
}

/// Why a checkpoint ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum CheckpointCause {
    /// Free log space fell below the threshold.
    Background,
    /// An operation found no log space.
    LogSpace,
    /// An operation found no tree nodes, or blocks waited for a checkpoint.
    NodeSpace,
    /// The dirty tree nodes exceed the cache budget.
    DirtyNodes,
    Recovery,
    Unmount,
    /// Requested by the caller.
    Request,
    Freeze,
    Thaw,
}

impl CheckpointCause {
    pub const COUNT: usize = 9;
    pub const NAMES: [&'static str; CheckpointCause::COUNT] = [
        "background",
        "log_space",
        "node_space",
        "dirty_nodes",
        "recovery",
        "unmount",
        "request",
        "freeze",
        "thaw",
    ];

    /// Whether the caller can be given the error that the image's host is full, and then continue.
    pub(crate) fn is_requested(self) -> bool {
        matches!(self, CheckpointCause::Request | CheckpointCause::Freeze | CheckpointCause::Thaw)
    }
}

/// What a checkpoint does besides the usual.
#[derive(Clone, Copy)]
pub(crate) enum Kind<'a> {
    Plain,
    /// It marks the image clean.
    Clean,
    /// It makes the image larger.
    Grow(&'a Geometry),
    /// It makes the image smaller, if nothing uses what lies beyond the new end.
    Shrink(&'a Geometry),
    /// It changes the table of trees, and frees what nothing uses any more.
    Trees(&'a [Change], &'a Freed),
}

/// Which thread runs a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// An operation, which needs the result immediately.
    Operation,
    /// The background thread, for which no operation waits.
    Background,
}
