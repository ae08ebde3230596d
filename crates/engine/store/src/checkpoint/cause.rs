//! Why a checkpoint runs, what it does, and which thread runs it.

use kedge_format::superblock::Geometry;

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
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind<'a> {
    Plain,
    /// It marks the image clean.
    Clean,
    /// It makes the image larger.
    Grow(&'a Geometry),
}

/// Which thread runs a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// An operation, which needs the result immediately.
    Operation,
    /// The background thread, for which no operation waits.
    Background,
}
