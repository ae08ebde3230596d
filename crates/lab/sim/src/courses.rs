//! Recognises media that differ only in blocks that a recovery does not read.
//!
//! A recovery is reproducible: the clock is a counter, and one thread does all the work. So what a
//! recovery does follows from the contents that it reads. Every recovery reads the same block
//! first, and the contents of the blocks read so far determine which block it reads next. If a
//! medium has the same contents in all blocks that a remembered recovery read, a recovery of this
//! medium would take the same course and have the same result. It need not be run. Most media of a
//! crash among unfinished writes are of this kind, because nothing refers to the blocks of such
//! writes yet.
//!
//! [`Traced`] notes in [`Reads`] which blocks of the medium are read: each block once, unless the
//! recovery has written it before. [`Courses`] keeps these courses as a tree: a node holds the
//! blocks that are read next, an edge the hash of their contents, a leaf the result.

use kedge_base::{BLOCK_SIZE, IoBuf, Result};
use kedge_device::{CompletionSink, Device, MemDevice, Op, Request, delegate};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

fn blocks(offset: u64, len: u64) -> Range<u64> {
    offset / BLOCK_SIZE as u64..(offset + len).div_ceil(BLOCK_SIZE as u64)
}

/// The blocks of a medium that were read, in the order of the reads. All that was done with the
/// medium depends on these blocks only.
pub struct Reads {
    noted: Vec<bool>,
    /// Ranges of adjacent blocks. A call adds one or more.
    runs: Vec<Range<u64>>,
}

impl Reads {
    pub fn of(medium: &MemDevice) -> Arc<Mutex<Reads>> {
        let count = blocks(0, medium.geometry().size).end as usize;
        Arc::new(Mutex::new(Reads { noted: vec![false; count], runs: Vec::new() }))
    }

    /// Notes that later steps depend on the content that these blocks have on the medium.
    pub fn note(&mut self, offset: u64, len: u64) {
        self.note_unless(offset, len, |_| false);
    }

    fn note_unless(&mut self, offset: u64, len: u64, known: impl Fn(u64) -> bool) {
        let mut run: Option<Range<u64>> = None;
        for block in blocks(offset, len) {
            let Some(noted) = self.noted.get_mut(block as usize) else { break };
            if *noted || known(block) {
                self.runs.extend(run.take());
            } else {
                *noted = true;
                run = Some(run.map_or(block, |run| run.start)..block + 1);
            }
        }
        self.runs.extend(run);
    }

    pub fn runs(&self) -> &[Range<u64>] {
        &self.runs
    }

    /// A hash of the blocks read so far: equal for media on which the recovery took the same
    /// course.
    pub fn hash_on(&self, medium: &MemDevice) -> u64 {
        let mut hasher = DefaultHasher::new();
        for run in &self.runs {
            (run, medium.range_hash(run.clone())).hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// A device that notes which blocks of its original content are read.
pub struct Traced {
    below: Arc<dyn Device>,
    reads: Arc<Mutex<Reads>>,
    /// For each block, whether its original content was overwritten.
    written: Arc<Mutex<Vec<bool>>>,
}

impl Traced {
    /// `below` must hold the medium, or content that follows from blocks of it that are noted in
    /// `reads`.
    pub fn new(below: Arc<dyn Device>, reads: Arc<Mutex<Reads>>) -> Traced {
        let count = blocks(0, below.geometry().size).end as usize;
        Traced { below, reads, written: Arc::new(Mutex::new(vec![false; count])) }
    }

    /// Returns a device for the current content of this one, with the same notes.
    pub fn now(&self, below: Arc<dyn Device>) -> Traced {
        let written = Arc::new(Mutex::new(self.written.lock().clone()));
        Traced { below, reads: self.reads.clone(), written }
    }

    fn reads(&self, offset: u64, len: usize) {
        let written = self.written.lock();
        self.reads.lock().note_unless(offset, len as u64, |block| written[block as usize]);
    }

    fn writes(&self, offset: u64, len: u64) {
        let mut written = self.written.lock();
        for block in blocks(offset, len) {
            if let Some(written) = written.get_mut(block as usize) {
                *written = true;
            }
        }
    }

    fn submits(&self, batch: &[Request]) {
        for request in batch {
            if let Op::Read(buf) = &request.op {
                self.reads(request.offset, buf.len());
            }
        }
        for request in batch {
            match &request.op {
                Op::Write { buf, .. } => self.writes(request.offset, buf.len() as u64),
                Op::Discard { len } | Op::WriteZeroes { len } => self.writes(request.offset, *len),
                Op::Read(_) | Op::Flush => {}
            }
        }
    }
}

impl Device for Traced {
    delegate!(below: geometry, flush, grow, release, room, host_free, first_hole, stats, latency, name);

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        self.submits(&batch);
        self.below.submit(batch, sink);
    }

    fn submit_apart(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        self.submits(&batch);
        self.below.submit_apart(batch, sink);
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.reads(offset, buf.len());
        self.below.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.writes(offset, buf.len() as u64);
        self.below.write(offset, buf, fua)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.writes(offset, len);
        self.below.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.writes(offset, len);
        self.below.write_zeroes(offset, len)
    }

    fn cut(&self, size: u64) -> Result<()> {
        let has = self.geometry().size;
        self.writes(size, has.saturating_sub(size));
        self.below.cut(size)
    }
}

enum Node<T> {
    /// Not yet known: a recovery that leads here is being added.
    New,
    Reads(Range<u64>),
    End(T),
}

/// The reads of recoveries, and their results.
pub struct Courses<T> {
    nodes: Vec<Node<T>>,
    next: HashMap<(u32, u64), u32>,
    /// Roots of the tree, by a hash of the mount options, on which the course also depends.
    roots: HashMap<u64, u32>,
}

impl<T> Default for Courses<T> {
    fn default() -> Courses<T> {
        Courses { nodes: Vec::new(), next: HashMap::new(), roots: HashMap::new() }
    }
}

impl<T: Clone> Courses<T> {
    /// Limit of nodes, each of about a hundred bytes. Beyond it all are forgotten.
    const MAX: usize = 4_000_000;

    /// Returns the result of a remembered recovery that would take the same course on this medium.
    pub fn find(&self, root: u64, medium: &MemDevice) -> Option<T> {
        let mut at = *self.roots.get(&root)?;
        loop {
            match &self.nodes[at as usize] {
                Node::New => return None,
                Node::End(result) => return Some(result.clone()),
                Node::Reads(run) => at = *self.next.get(&(at, medium.range_hash(run.clone())))?,
            }
        }
    }

    /// Remembers a recovery of the medium that has read these runs of blocks. It is not remembered
    /// if it contradicts an earlier one because the reads came in another order.
    pub fn learn(&mut self, root: u64, medium: &MemDevice, runs: &[Range<u64>], result: T) {
        if self.nodes.len() >= Self::MAX {
            *self = Courses::default();
        }
        let mut at = match self.roots.get(&root) {
            Some(at) => *at,
            None => {
                let at = self.add();
                self.roots.insert(root, at);
                at
            }
        };
        for run in runs {
            match &self.nodes[at as usize] {
                Node::New => self.nodes[at as usize] = Node::Reads(run.clone()),
                Node::Reads(known) if known == run => {}
                Node::Reads(_) | Node::End(_) => return,
            }
            let edge = (at, medium.range_hash(run.clone()));
            at = match self.next.get(&edge) {
                Some(next) => *next,
                None => {
                    let next = self.add();
                    self.next.insert(edge, next);
                    next
                }
            };
        }
        if matches!(self.nodes[at as usize], Node::New) {
            self.nodes[at as usize] = Node::End(result);
        }
    }

    fn add(&mut self) -> u32 {
        self.nodes.push(Node::New);
        (self.nodes.len() - 1) as u32
    }
}
