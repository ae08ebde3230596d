//! The first half of a pass: a place for each page, and the writes that bring them there.

use super::{BLOCK, MERGE_BLOCKS_MAX};
use crate::Result;
use crate::core::Fs;
use crate::extents::{ExtentSet, Mapping, Place};
use crate::inode::Inode;
use crate::pages::{Backing, Before, Delta};
use kedge_base::{BLOCK_SIZE, BlockNo, Extent, IoBuf};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A run that goes elsewhere counts as so many segments: its record splits extents and frees
/// blocks, anywhere in the file.
const MOVED_WEIGHT: usize = 32;

/// With more pages than this left out of it, a part of a record is left out whole: its extents
/// would be too many.
const KEPT_MAX: usize = 64;

/// How a run of blocks came to be a page's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    /// It had it.
    InPlace,
    /// It had none.
    New,
    /// It had one that the device did not take a write to.
    Moved,
}

/// A run of pages of one inode that goes to one run of blocks.
pub(super) struct Segment {
    /// Place among the pass's inodes.
    pub who: usize,
    pub index: u64,
    pub count: u64,
    pub block: BlockNo,
    how: How,
    /// Not to be merged with others: the block is suspect.
    alone: bool,
}

/// A run of blocks that a pass took.
pub(super) struct NewRun {
    pub index: u64,
    pub extent: Extent,
    /// Where the pages were before, and whether these blocks counted as unwritten.
    pub old: Option<(BlockNo, bool)>,
}

/// A page that is being written.
pub(super) struct Writing {
    pub index: u64,
    pub block: BlockNo,
    pub how: How,
    pub before: Before,
}

/// One inode's part of a pass.
pub(super) struct Part {
    pub set: ExtentSet,
    pub new: Vec<NewRun>,
    /// File blocks written, as ranges.
    pub ranges: Vec<(u64, u64)>,
    /// Those of them whose blocks counted as unwritten.
    pub unwritten: Vec<(u64, u64)>,
    /// Largest size seen when pages were copied.
    pub size: u64,
    /// The first dirty page behind the logged size that is not among those of the pass.
    pub left_out: Option<u64>,
    /// The pages, once they are copied.
    pub writing: Vec<Writing>,
    /// A write that carried pages of it failed, if only the first time.
    pub met_error: bool,
    /// Pages that the device did not take.
    pub failed: BTreeSet<u64>,
    /// These, and those that must not be recorded before them.
    pub kept: BTreeSet<u64>,
    pub more: bool,
}

impl Part {
    pub fn new(left_out: Option<u64>) -> Part {
        Part {
            set: ExtentSet::default(),
            new: Vec::new(),
            ranges: Vec::new(),
            unwritten: Vec::new(),
            size: 0,
            left_out,
            writing: Vec::new(),
            met_error: false,
            failed: BTreeSet::new(),
            kept: BTreeSet::new(),
            more: false,
        }
    }

    /// The part of `[from, to)` that the record may name, as ranges.
    pub fn taken(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        let mut at = from;
        for end in self.kept.range(from..to).copied().chain([to]) {
            if at < end {
                out.push((at, end));
            }
            at = end + 1;
        }
        out
    }

    /// Runs of new blocks that the record may name, with the blocks that they stand for.
    pub fn taken_runs(&self) -> Vec<(Extent, Option<Extent>)> {
        let mut out = Vec::new();
        for run in &self.new {
            for (from, to) in self.taken(run.index, run.index + run.extent.blocks) {
                let part = |start: BlockNo| Extent::new(BlockNo(start.0 + from - run.index), to - from);
                out.push((part(run.extent.start), run.old.map(|(old, _)| part(old))));
            }
        }
        out
    }

    /// Decides which pages the record leaves out, and makes them what they were in the extents:
    /// those that failed, and behind the logged size those behind a page that stays dirty. For the
    /// size must not cover bytes that are not written, and no written block may lie behind the
    /// recorded size: a file that grows over it would show it.
    pub fn leave_out_failed(&mut self, logged_size: u64) {
        let end = logged_size / BLOCK;
        let obstacle = self.failed.range(end..).next().copied().into_iter().chain(self.left_out).min();
        self.kept = self.failed.clone();
        if let Some(obstacle) = obstacle {
            let behind = (obstacle + 1).max(logged_size.div_ceil(BLOCK));
            let pages = self.ranges.iter().flat_map(|(from, to)| *from..*to);
            self.kept.extend(pages.filter(|index| *index >= behind));
        }
        if self.kept.len() > KEPT_MAX {
            self.kept = self.ranges.iter().flat_map(|(from, to)| *from..*to).collect();
            self.set = ExtentSet::default();
            return;
        }
        for &index in &self.kept {
            if let Some(run) = self.new.iter().find(|r| (r.index..r.index + r.extent.blocks).contains(&index))
            {
                self.set.remove(index, index + 1);
                if let Some((old, unwritten)) = run.old {
                    let block = Extent::new(BlockNo(old.0 + index - run.index), 1);
                    self.set.insert(index, block, unwritten);
                }
            } else if self.unwritten.iter().any(|(from, to)| (*from..*to).contains(&index)) {
                self.set.set_unwritten(index, index + 1);
            }
        }
    }

    /// The size that may be recorded: it covers no byte that is not written.
    pub fn size_to_record(&self) -> u64 {
        let taken = self.ranges.iter().flat_map(|(from, to)| self.taken(*from, *to));
        taken.map(|(_, to)| to * BLOCK).max().unwrap_or(0).min(self.size)
    }
}

/// The segments of a pass while it is planned.
pub(super) struct Plan {
    pub segments: Vec<Segment>,
    weight: usize,
    weight_max: usize,
    goal: Option<BlockNo>,
}

impl Plan {
    pub fn new(segments_max: usize) -> Plan {
        Plan { segments: Vec::new(), weight: 0, weight_max: segments_max, goal: None }
    }

    pub fn is_full(&self) -> bool {
        self.weight >= self.weight_max
    }

    fn push(&mut self, segment: Segment) {
        self.weight += if segment.how == How::Moved { MOVED_WEIGHT } else { 1 };
        self.segments.push(segment);
    }
}

/// One write to come.
pub(super) struct Gathered {
    pub start: BlockNo,
    pub buf: IoBuf,
    /// Whose pages it carries, in order: inode, first page, pages.
    pub users: Vec<(usize, u64, u64)>,
}

impl Fs {
    /// Finds or takes a place for each page. A part whose planning fails writes what was planned
    /// before.
    pub(super) fn plan(
        &self,
        inode: &Inode,
        who: usize,
        pages: &[u64],
        part: &mut Part,
        plan: &mut Plan,
    ) -> Result<()> {
        for run in pages.chunk_by(|a, b| a + 1 == *b) {
            let (first, count) = (run[0], run.len() as u64);
            for m in self.map(inode.ino, first, count)? {
                if part.more || plan.is_full() {
                    part.more = true;
                    return Ok(());
                }
                if m.place == Place::Hole {
                    self.plan_hole(inode, who, m, part, plan)?;
                } else {
                    self.plan_mapped(inode, who, m, part, plan)?;
                }
            }
        }
        Ok(())
    }

    fn plan_hole(
        &self,
        inode: &Inode,
        who: usize,
        m: Mapping,
        part: &mut Part,
        plan: &mut Plan,
    ) -> Result<()> {
        part.set.load(self, inode.ino, m.first, m.first + m.blocks, usize::MAX)?;
        let mut at = m.first;
        while at < m.first + m.blocks {
            if plan.is_full() {
                part.more = true;
                return Ok(());
            }
            let near = self.near(inode, plan.goal);
            let mut pages = inode.pages.lock();
            let want = m.first + m.blocks - at;
            let extent = self.store.alloc_data(near, want, pages.reservation.as_mut())?;
            for index in at..at + extent.blocks {
                if let Some(p) = pages.map.get_mut(&index) {
                    p.backing = Backing::Unknown; // its reserved block is used
                }
            }
            drop(pages);
            self.take_run(inode, who, NewRun { index: at, extent, old: None }, part, plan);
            at += extent.blocks;
        }
        Ok(())
    }

    /// Runs with and without a bad home by themselves.
    fn plan_mapped(
        &self,
        inode: &Inode,
        who: usize,
        m: Mapping,
        part: &mut Part,
        plan: &mut Plan,
    ) -> Result<()> {
        let (Place::Written(start) | Place::Unwritten(start)) = m.place else { return Ok(()) };
        let unwritten = matches!(m.place, Place::Unwritten(_));
        let end = m.first + m.blocks;
        let mut at = m.first;
        while at < end {
            if plan.is_full() {
                part.more = true;
                return Ok(());
            }
            let (bad, to) = {
                let pages = inode.pages.lock();
                let bad = pages.has_bad_home(at);
                (bad, (at + 1..end).find(|index| pages.has_bad_home(*index) != bad).unwrap_or(end))
            };
            let block = BlockNo(start.0 + at - m.first);
            if unwritten || bad {
                part.set.load(self, inode.ino, at, to, usize::MAX)?;
            }
            if bad && let Some(extent) = self.place_elsewhere(inode, to - at, plan)? {
                let moved_to = at + extent.blocks;
                part.set.remove(at, moved_to);
                let run = NewRun { index: at, extent, old: Some((block, unwritten)) };
                self.take_run(inode, who, run, part, plan);
                at = moved_to;
                continue;
            }
            if unwritten {
                part.set.set_written(at, to);
                part.unwritten.push((at, to));
            }
            // No space elsewhere: the old place again, each block by itself.
            let step = if bad { 1 } else { to - at };
            for index in (at..to).step_by(step as usize) {
                let block = BlockNo(start.0 + index - m.first);
                plan.push(Segment { who, index, count: step, block, how: How::InPlace, alone: bad });
            }
            part.ranges.push((at, to));
            at = to;
        }
        Ok(())
    }

    /// `None`: there is no space.
    fn place_elsewhere(&self, inode: &Inode, want: u64, plan: &Plan) -> Result<Option<Extent>> {
        match self.store.alloc_data(self.near(inode, plan.goal), want, None) {
            Ok(extent) => Ok(Some(extent)),
            Err(kedge_base::Error::NoSpace) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Makes a run of new blocks the place of pages.
    fn take_run(&self, inode: &Inode, who: usize, run: NewRun, part: &mut Part, plan: &mut Plan) {
        let NewRun { index, extent, old } = run;
        let how = if old.is_some() { How::Moved } else { How::New };
        part.set.insert(index, extent, false);
        part.ranges.push((index, index + extent.blocks));
        part.new.push(run);
        plan.push(Segment { who, index, count: extent.blocks, block: extent.start, how, alone: false });
        plan.goal = Some(extent.end());
        inode.meta.lock().goal = Some(extent.end());
    }

    /// Behind the file's last block, else behind the last file of this pass, else where the
    /// allocator sends the inode.
    fn near(&self, inode: &Inode, running: Option<BlockNo>) -> BlockNo {
        let own = inode.meta.lock().goal;
        own.or(running).unwrap_or_else(|| self.store.data_goal(inode.ino, inode.ino))
    }

    /// Copies pages into merged buffers.
    pub(super) fn gather(
        &self,
        inodes: &[Arc<Inode>],
        parts: &mut [Option<Part>],
        mut segments: Vec<Segment>,
    ) -> Vec<Gathered> {
        let plug = self.live.plug();
        if plug {
            segments.sort_by_key(|s| s.block);
        }
        let mut ios = Vec::new();
        let mut at = 0;
        while at < segments.len() {
            let start = segments[at].block;
            let mut end = at + 1;
            let mut blocks = segments[at].count;
            while end < segments.len()
                && (plug || segments[end].who == segments[at].who)
                && !(segments[end].alone || segments[at].alone)
                && segments[end].block.0 == start.0 + blocks
                && blocks + segments[end].count <= MERGE_BLOCKS_MAX
            {
                blocks += segments[end].count;
                end += 1;
            }
            let mut buf = IoBuf::zeroed(blocks as usize);
            let mut users = Vec::new();
            let mut offset = 0;
            for s in &segments[at..end] {
                let part = parts[s.who].as_mut().expect("a segment belongs to a part");
                let len = s.count as usize * BLOCK_SIZE;
                self.copy_pages(&inodes[s.who], s, part, &mut buf.as_mut_bytes()[offset..offset + len]);
                users.push((s.who, s.index, s.count));
                offset += len;
            }
            ios.push(Gathered { start, buf, users });
            at = end;
        }
        ios
    }

    /// Copies a segment's pages and marks them as being written.
    fn copy_pages(&self, inode: &Inode, s: &Segment, part: &mut Part, out: &mut [u8]) {
        let mut delta = Delta::default();
        let mut pages = inode.pages.lock();
        for (i, bytes) in (0..).zip(out.chunks_exact_mut(BLOCK_SIZE)) {
            let (index, block) = (s.index + i, BlockNo(s.block.0 + i));
            let page = pages.get(index).expect("unclean pages stay in memory; `wb` excludes truncate");
            bytes.copy_from_slice(&page.data[..]);
            let (before, change) = pages.set_writing(index);
            delta.dirty += change.dirty;
            part.writing.push(Writing { index, block, how: s.how, before });
        }
        // The page lock makes bytes and size one state: a writer changes both under it.
        part.size = part.size.max(inode.meta.lock().core.size);
        drop(pages);
        self.account(delta);
    }
}
