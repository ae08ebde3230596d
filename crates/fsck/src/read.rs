//! Batched reads with one batch ahead: while one batch is judged the next is on its way.

use kedge_base::{BLOCK_SIZE, BlockNo, Error, IoBuf, Result};
use kedge_device::{Completion, CompletionSink, Device, Op, Request};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Bytes of a batch; two are in memory at a time.
const BATCH_BYTES: usize = 4 << 20;

pub(crate) struct Reader<'a> {
    device: &'a dyn Device,
    device_blocks: u64,
    bytes_read: u64,
}

struct Forward(Sender<Completion>);

impl CompletionSink for Forward {
    fn complete(&self, completion: Completion) {
        // Fails only when the reader has given up on the batch; the answer is void then.
        let _ = self.0.send(completion);
    }
}

struct Pending {
    answers: Receiver<Completion>,
    submitted: usize,
    runs: Vec<(BlockNo, usize)>,
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

    /// Reads `count` runs of `blocks` blocks; `place(i)` says where run `i` starts. Hands them to `visit` in order.
    pub fn stream(
        &mut self,
        count: usize,
        blocks: usize,
        place: impl Fn(usize) -> BlockNo,
        mut visit: impl FnMut(usize, Result<&[u8]>),
    ) {
        let step = (BATCH_BYTES / (blocks * BLOCK_SIZE)).max(1);
        let batch = |from: usize| -> Vec<(BlockNo, usize)> {
            (from..count.min(from + step)).map(|i| (place(i), blocks)).collect()
        };
        let mut next = (count > 0).then(|| self.start(batch(0)));
        let mut from = 0;
        while let Some(pending) = next.take() {
            let answers = pending.wait();
            if from + step < count {
                next = Some(self.start(batch(from + step)));
            }
            for (i, answer) in answers.into_iter().enumerate() {
                match &answer {
                    Ok(buf) => visit(from + i, Ok(buf.as_bytes())),
                    Err(e) => visit(from + i, Err(e.clone())),
                }
            }
            from += step;
        }
    }

    /// Reads one run.
    pub fn read(&mut self, at: BlockNo, blocks: usize) -> Result<IoBuf> {
        let answer = self.start(vec![(at, blocks)]).wait().pop();
        answer.unwrap_or(Err(Error::OutcomeUnknown))
    }

    fn start(&mut self, runs: Vec<(BlockNo, usize)>) -> Pending {
        let (send, answers) = channel();
        let mut batch = Vec::with_capacity(runs.len());
        for (i, &(at, blocks)) in runs.iter().enumerate() {
            // The device's contract wants requests inside it; places come from the image and may be anything.
            if at.0.checked_add(blocks as u64).is_some_and(|end| end <= self.device_blocks) {
                self.bytes_read += (blocks * BLOCK_SIZE) as u64;
                let op = Op::Read(IoBuf::zeroed(blocks));
                batch.push(Request { tag: i as u64, offset: at.byte_offset(), op });
            }
        }
        let submitted = batch.len();
        if submitted > 0 {
            self.device.submit(batch, Arc::new(Forward(send)));
        }
        Pending { answers, submitted, runs }
    }
}

impl Pending {
    /// The answers in the order asked. A request that the device dropped counts as failed.
    fn wait(self) -> Vec<Result<IoBuf>> {
        let lost = |&(at, blocks): &(BlockNo, usize)| -> Result<IoBuf> {
            let len = (blocks * BLOCK_SIZE) as u64;
            Err(Error::Io { op: "read", offset: at.0.saturating_mul(BLOCK_SIZE as u64), len, errno: 5 })
        };
        let mut out: Vec<Result<IoBuf>> = self.runs.iter().map(lost).collect();
        for _ in 0..self.submitted {
            let Ok(completion) = self.answers.recv() else { break };
            let Some(slot) = out.get_mut(completion.tag as usize) else { continue };
            match (completion.result, completion.op) {
                (Err(e), _) => *slot = Err(e),
                (Ok(()), Op::Read(buf)) if buf.blocks() == self.runs[completion.tag as usize].1 => {
                    *slot = Ok(buf)
                }
                (Ok(()), _) => {}
            }
        }
        out
    }
}
