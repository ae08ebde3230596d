//! Why a checkpoint runs, what it does, and which thread runs it.

use crate::forest::Change;
use kedge_base::{BlockNo, Extent, Generation};
use kedge_format::superblock::Geometry;

/// The blocks that a checkpoint frees. None of them is used again before the checkpoint is durable.
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
    /// Too much of the node cache is dirty.
    DirtyNodes,
    Recovery,
    Unmount,
    /// An explicit request, for which the caller waits.
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

    /// Whether a caller waits for the result and can continue after the error that the image's host
    /// is full.
    pub(crate) fn is_requested(self) -> bool {
        matches!(self, CheckpointCause::Request | CheckpointCause::Freeze | CheckpointCause::Thaw)
    }
}

/// What a checkpoint does besides its usual work.
#[derive(Clone, Copy)]
pub(crate) enum Kind<'a> {
    Plain,
    /// Marks the image clean.
    Clean,
    /// Makes the image larger.
    Grow(&'a Geometry),
    /// Makes the image smaller, if nothing uses the blocks beyond the new end.
    Shrink(&'a Geometry),
    /// Changes the table of trees, and frees what nothing uses any more.
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
