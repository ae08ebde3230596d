//! Requests in progress: a job is a request of a caller; a part is the range of the job that one
//! message covers.

use super::handshake::Export;
use super::wire::*;
use crate::{Completion, CompletionSink, Op, Request};
use kedge_base::{BLOCK_SIZE, Error, IoBuf, Result};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// Maximum range in bytes of one message without a payload.
const RANGE_MAX: u64 = 64 << 20;
/// The payload of writes for a server that cannot zero a range.
pub static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// One message to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub command: u16,
    pub flags: u16,
    pub offset: u64,
    pub len: u32,
    /// Whether the payload is taken from [`ZEROS`].
    pub zeros: bool,
}

impl Part {
    pub const FLUSH: Part = Part { command: CMD_FLUSH, flags: 0, offset: 0, len: 0, zeros: false };

    fn name(&self) -> &'static str {
        match self.command {
            CMD_READ => "read",
            CMD_WRITE if self.zeros => "write_zeroes",
            CMD_WRITE => "write",
            CMD_FLUSH => "flush",
            CMD_TRIM => "discard",
            _ => "write_zeroes",
        }
    }

    /// Checks that a piece of a reply lies in this part, and returns its offset there. Both numbers
    /// come from the server and may have any value.
    pub fn inside(&self, offset: u64, len: u32) -> Result<u32, String> {
        let at = offset.checked_sub(self.offset).and_then(|at| u32::try_from(at).ok());
        let is_inside = |at: &u32| len > 0 && at.checked_add(len).is_some_and(|end| end <= self.len);
        at.filter(is_inside).ok_or_else(|| "the server sends bytes that were not requested".to_owned())
    }

    pub fn failed(&self, errno: i32) -> Error {
        Error::Io { op: self.name(), offset: self.offset, len: self.len.into(), errno }
    }
}

/// The progress of an operation.
pub struct Plan {
    op: Kind,
    offset: u64,
    len: u64,
    done: u64,
    flushed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write { fua: bool },
    Flush,
    Discard,
    WriteZeroes,
}

impl Kind {
    pub fn is_durable(self) -> bool {
        matches!(self, Kind::Flush | Kind::Write { fua: true })
    }
}

impl Plan {
    pub fn is_durable(&self) -> bool {
        self.op.is_durable()
    }

    pub fn new(op: Kind, offset: u64, len: u64) -> Plan {
        Plan { op, offset, len, done: 0, flushed: false }
    }

    /// Returns the next part; `None` if the operation is complete.
    pub fn next(&self, export: &Export) -> Option<Part> {
        let left = self.len - self.done;
        if self.op == Kind::Flush {
            return (!self.flushed).then_some(Part::FLUSH);
        }
        if left == 0 {
            // If the server has no FUA, a FUA write is a write followed by a flush.
            let emulate = self.op == Kind::Write { fua: true } && !export.can(CAN_FUA) && self.len > 0;
            return (emulate && !self.flushed).then_some(Part::FLUSH);
        }
        let payload = left.min(export.payload_max.into());
        let zeroes = export.can(CAN_WRITE_ZEROES);
        let (command, flags, len) = match self.op {
            Kind::Read => (CMD_READ, 0, payload),
            Kind::Write { fua } => {
                (CMD_WRITE, if fua && export.can(CAN_FUA) { FLAG_FUA } else { 0 }, payload)
            }
            Kind::Discard => (CMD_TRIM, 0, left.min(RANGE_MAX)),
            Kind::WriteZeroes if zeroes => (CMD_WRITE_ZEROES, 0, left.min(RANGE_MAX)),
            Kind::WriteZeroes | Kind::Flush => (CMD_WRITE, 0, payload.min(ZEROS.len() as u64)),
        };
        let zeros = self.op == Kind::WriteZeroes && command == CMD_WRITE;
        Some(Part { command, flags, offset: self.offset + self.done, len: len as u32, zeros })
    }

    /// Records that a part has succeeded.
    pub fn advance(&mut self, part: &Part) {
        match part.command {
            CMD_FLUSH => self.flushed = true,
            _ => self.done += u64::from(part.len),
        }
    }

    /// Returns the range of the buffer for this part.
    pub fn range(&self, part: &Part) -> std::ops::Range<usize> {
        let from = (part.offset - self.offset) as usize;
        from..from + part.len as usize
    }
}

/// A request of a batch. Its parts are sent one after another.
pub struct Job {
    pub plan: Plan,
    request: Request,
    sink: Arc<dyn CompletionSink>,
}

impl Job {
    pub fn new(request: Request, sink: Arc<dyn CompletionSink>) -> Job {
        let plan = Plan::new(Job::kind(&request), request.offset, request.op.len());
        Job { plan, request, sink }
    }

    pub fn kind(request: &Request) -> Kind {
        match &request.op {
            Op::Read(_) => Kind::Read,
            Op::Write { fua, .. } => Kind::Write { fua: *fua },
            Op::Flush => Kind::Flush,
            Op::Discard { .. } => Kind::Discard,
            Op::WriteZeroes { .. } => Kind::WriteZeroes,
        }
    }

    pub fn complete(self, result: Result<()>) {
        let Request { tag, op, .. } = self.request;
        self.sink.complete(Completion { tag, op, result });
    }

    fn buffer(&mut self) -> Option<&mut IoBuf> {
        match &mut self.request.op {
            Op::Read(buf) => Some(buf),
            _ => None,
        }
    }

    /// Returns the payload of a part's message.
    pub fn payload(&self, part: &Part) -> &[u8] {
        match (&self.request.op, part.command) {
            (_, CMD_WRITE) if part.zeros => &ZEROS[..part.len as usize],
            (Op::Write { buf, .. }, CMD_WRITE) => &buf.as_bytes()[self.plan.range(part)],
            _ => &[],
        }
    }
}

/// A thread that waits for the reply to one message.
#[derive(Default)]
pub struct Waiter {
    answer: Mutex<Option<(Result<()>, Option<IoBuf>)>>,
    answered: Condvar,
}

impl Waiter {
    pub fn wait(&self) -> (Result<()>, Option<IoBuf>) {
        let mut answer = self.answer.lock();
        loop {
            if let Some(answer) = answer.take() {
                return answer;
            }
            self.answered.wait(&mut answer);
        }
    }
}

/// The receiver of the reply to a message.
pub enum Owner {
    Job(Box<Job>),
    /// A waiting thread; for a read also its buffer, and the offset of the part in the buffer.
    Waiter(Arc<Waiter>, Option<(IoBuf, usize)>),
}

impl Owner {
    /// Returns the bytes of the buffer that a read fills.
    pub fn room(&mut self, part: &Part) -> &mut [u8] {
        match self {
            Owner::Job(job) => {
                let range = job.plan.range(part);
                &mut job.buffer().expect("a read has a buffer").as_mut_bytes()[range]
            }
            Owner::Waiter(_, buffer) => {
                let (buf, at) = buffer.as_mut().expect("a read has a buffer");
                &mut buf.as_mut_bytes()[*at..*at + part.len as usize]
            }
        }
    }
}

impl Waiter {
    pub fn answer(&self, result: Result<()>, buf: Option<IoBuf>) {
        *self.answer.lock() = Some((result, buf));
        self.answered.notify_all();
    }
}

/// The ranges of a read that have arrived. A server may send the bytes in pieces, in any order,
/// each byte once.
#[derive(Default)]
pub struct Coverage {
    /// Sorted (start, end) ranges, neither overlapping nor adjacent.
    pieces: Vec<(u32, u32)>,
    chunks: u32,
}

impl Coverage {
    /// Counts a chunk. A server may send many small chunks, but only up to a limit.
    pub fn count(&mut self, part: &Part) -> Result<(), String> {
        self.chunks = self.chunks.saturating_add(1);
        let most = part.len / 512 + 8;
        if self.chunks > most { Err("the server splits a reply into too many chunks".into()) } else { Ok(()) }
    }

    /// Adds a piece at offset `from` in the part.
    pub fn add(&mut self, from: u32, len: u32) -> Result<(), String> {
        let to = from.checked_add(len).ok_or("the server sends bytes that were not requested")?;
        let at = self.pieces.partition_point(|piece| piece.1 < from);
        let (mut start, mut end) = (from, to);
        let mut last = at;
        while let Some(&(a, b)) = self.pieces.get(last).filter(|piece| piece.0 <= to) {
            if a < to && from < b {
                return Err("the server sends the same bytes twice".into());
            }
            (start, end) = (start.min(a), end.max(b));
            last += 1;
        }
        self.pieces.splice(at..last, [(start, end)]);
        Ok(())
    }

    pub fn is_whole(&self, part: &Part) -> bool {
        self.pieces == [(0, part.len)]
    }
}

const _: () = assert!(ZEROS.len().is_multiple_of(BLOCK_SIZE));

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
