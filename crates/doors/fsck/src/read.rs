//! Batched reads with one batch of read-ahead: while one batch is checked, the next is being read.
//!
//! Runs that are adjacent on the device are read with one request, since a checkpoint writes its
//! nodes in adjacent blocks. If such a request fails, its runs are read again one by one, so that a
//! bad sector loses only the node in which it lies.

use kedge_base::{BLOCK_SIZE, BlockNo, Error, IoBuf, Result};
use kedge_device::{Completion, CompletionSink, Device, Op, Request};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Bytes of a batch; two batches are in memory at a time.
const BATCH_BYTES: usize = 4 << 20;
/// The largest request in bytes.
const REQUEST_BYTES: usize = 256 << 10;

pub(crate) struct Reader<'a> {
    device: &'a dyn Device,
    device_blocks: u64,
    bytes_read: u64,
}

struct Forward(Sender<Completion>);

impl CompletionSink for Forward {
    fn complete(&self, completion: Completion) {
        // Fails only if the reader has dropped the batch; the completion is not needed then.
        let _ = self.0.send(completion);
    }
}

/// Adjacent runs that one request reads: `runs` runs of `blocks` blocks each, from `start`.
#[derive(Clone, Copy)]
struct Span {
    start: BlockNo,
    runs: usize,
    blocks: usize,
}

struct Pending {
    answers: Receiver<Completion>,
    submitted: usize,
    spans: Vec<Span>,
}

impl<'a> Reader<'a> {
    pub fn new(device: &'a dyn Device) -> Reader<'a> {
        Reader { device, device_blocks: device.geometry().size / BLOCK_SIZE as u64, bytes_read: 0 }
    }

    pub fn device_blocks(&self) -> u64 {
        self.device_blocks
    }

    pub fn device_name(&self) -> &str {
        self.device.name()
    }

    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Reads `count` runs of `blocks` blocks each and passes them to `visit` in order. Run `i`
    /// begins at block `place(i)`.
    pub fn stream(
        &mut self,
        count: usize,
        blocks: usize,
        place: impl Fn(usize) -> BlockNo,
        mut visit: impl FnMut(usize, Result<&[u8]>),
    ) {
        let step = (BATCH_BYTES / (blocks * BLOCK_SIZE)).max(1);
        let spans = |from: usize| spans((from..count.min(from + step)).map(&place), blocks);
        let mut next = (count > 0).then(|| self.start(spans(0)));
        let (mut ahead, mut run) = (step, 0);
        while let Some(pending) = next.take() {
            let answers = pending.wait();
            if ahead < count {
                next = Some(self.start(spans(ahead)));
                ahead += step;
            }
            for (span, answer) in answers {
                for i in 0..span.runs {
                    let at = i * blocks * BLOCK_SIZE;
                    match &answer {
                        Ok(buf) => visit(run, Ok(&buf.as_bytes()[at..at + blocks * BLOCK_SIZE])),
                        Err(e) if span.runs == 1 => visit(run, Err(e.clone())),
                        Err(_) => {
                            let alone = self.read(place(run), blocks);
                            visit(run, alone.as_ref().map(IoBuf::as_bytes).map_err(Error::clone));
                        }
                    }
                    run += 1;
                }
            }
        }
    }

    /// Reads one run.
    pub fn read(&mut self, start: BlockNo, blocks: usize) -> Result<IoBuf> {
        let answer = self.start(vec![Span { start, runs: 1, blocks }]).wait().pop();
        answer.map_or(Err(Error::OutcomeUnknown), |(_, buf)| buf)
    }

    fn start(&mut self, spans: Vec<Span>) -> Pending {
        let (send, answers) = channel();
        let mut batch = Vec::with_capacity(spans.len());
        for (i, span) in spans.iter().enumerate() {
            // The device requires requests within its size, but addresses come from the image and
            // may be anything.
            let blocks = span.runs * span.blocks;
            if span.start.0.checked_add(blocks as u64).is_some_and(|end| end <= self.device_blocks) {
                self.bytes_read += (blocks * BLOCK_SIZE) as u64;
                let op = Op::Read(IoBuf::zeroed(blocks));
                batch.push(Request { tag: i as u64, offset: span.start.byte_offset(), op });
            }
        }
        let submitted = batch.len();
        if submitted > 0 {
            self.device.submit(batch, Arc::new(Forward(send)));
        }
        Pending { answers, submitted, spans }
    }
}

/// Joins adjacent runs into spans of at most `REQUEST_BYTES`.
fn spans(places: impl Iterator<Item = BlockNo>, blocks: usize) -> Vec<Span> {
    let runs_max = (REQUEST_BYTES / (blocks * BLOCK_SIZE)).max(1);
    let mut out: Vec<Span> = Vec::new();
    for start in places {
        match out.last_mut() {
            Some(span)
                if span.runs < runs_max
                    && span.start.0.checked_add((span.runs * blocks) as u64) == Some(start.0) =>
            {
                span.runs += 1;
            }
            _ => out.push(Span { start, runs: 1, blocks }),
        }
    }
    out
}

impl Pending {
    /// Returns the results in the order of the requests. A request that the device dropped counts
    /// as failed.
    fn wait(self) -> Vec<(Span, Result<IoBuf>)> {
        let lost = |span: Span| -> (Span, Result<IoBuf>) {
            let offset = span.start.0.saturating_mul(BLOCK_SIZE as u64);
            let len = (span.runs * span.blocks * BLOCK_SIZE) as u64;
            (span, Err(Error::Io { op: "read", offset, len, errno: kedge_base::errno::EIO }))
        };
        let mut out: Vec<(Span, Result<IoBuf>)> = self.spans.into_iter().map(lost).collect();
        for _ in 0..self.submitted {
            let Ok(completion) = self.answers.recv() else { break };
            let Some((span, slot)) = out.get_mut(completion.tag as usize) else { continue };
            match (completion.result, completion.op) {
                (Err(e), _) => *slot = Err(e),
                (Ok(()), Op::Read(buf)) if buf.blocks() == span.runs * span.blocks => *slot = Ok(buf),
                (Ok(()), _) => {}
            }
        }
        out
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
