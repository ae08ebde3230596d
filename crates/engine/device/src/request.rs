//! Requests and completions of the asynchronous interface.

use kedge_base::{IoBuf, Result};

/// The operation of a request. Buffers move with the request and return with its completion.
#[derive(Debug)]
pub enum Op {
    Read(IoBuf),
    Write { buf: IoBuf, fua: bool },
    Flush,
    Discard { len: u64 },
    WriteZeroes { len: u64 },
}

impl Op {
    /// Returns the operation's name for error messages.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Read(_) => "read",
            Op::Write { .. } => "write",
            Op::Flush => "flush",
            Op::Discard { .. } => "discard",
            Op::WriteZeroes { .. } => "write_zeroes",
        }
    }

    /// Returns the length of the operation's range in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Op::Read(buf) | Op::Write { buf, .. } => buf.len() as u64,
            Op::Flush => 0,
            Op::Discard { len } | Op::WriteZeroes { len } => *len,
        }
    }
}

/// One request of a batch. The caller chooses `tag`, which the completion returns.
#[derive(Debug)]
pub struct Request {
    pub tag: u64,
    pub offset: u64,
    pub op: Op,
}

/// The completion of a [`Request`]: its tag, its operation (with the buffer) and its result.
#[derive(Debug)]
pub struct Completion {
    pub tag: u64,
    pub op: Op,
    pub result: Result<()>,
}

/// Receives completions, on any thread. Must not block.
pub trait CompletionSink: Send + Sync {
    fn complete(&self, completion: Completion);
}

/// An operation for [`crate::run_batch`] and its offset.
#[derive(Debug)]
pub struct Io {
    pub offset: u64,
    pub op: Op,
}
