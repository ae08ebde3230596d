//! First phase of a pass: lists the pages, and finds blocks for each.

use super::super::BLOCK;
use super::part::{COUNTED_STEP_BLOCKS, How, NewRun, Old, Part, Plan, SUMS_STEP_BLOCKS, Segment};
use super::{PASS_PAGES, Pass};
use crate::cache::inode::Inode;
use crate::cache::pages::Backing;
use crate::error::Result;
use crate::extents::{self, Mapping, Place};
use crate::inline;
use kedge_base::{BlockNo, Extent};
use std::ops::Range;

impl Pass<'_> {
    /// Lists the pages of a pass and finds their blocks. After an error, the pages planned before
    /// it are still written.
    pub(super) fn plan(&mut self, left: &mut [Range<u64>]) -> (Vec<Segment>, Result<()>) {
        let longest = inline::max(self.store());
        let mut plan = Plan::new(self.handle.bytes_left(), self.handle.need().puts, longest > 0);
        let mut room = PASS_PAGES;
        let mut planned = Ok(());
        for (inode_index, (inode, left)) in self.inodes.iter().zip(left.iter_mut()).enumerate() {
            if room == 0 || plan.has_no_room() || planned.is_err() {
                self.parts.push(None);
                continue;
            }
            let logged_size = inode.meta.lock().logged_size;
            let (pages, left_out) = {
                let cached = inode.pages.lock();
                let pages = cached.unclean(self.kind.which, left.clone(), room);
                let left_out = cached.first_dirty_beside(logged_size / BLOCK, &pages);
                (pages, left_out)
            };
            let in_tree = pages[..] == [0]
                && match self.belongs_in_tree(inode, longest) {
                    Ok(belongs) => belongs,
                    Err(e) => {
                        planned = Err(e);
                        self.parts.push(None);
                        continue;
                    }
                };
            if in_tree && !plan.takes_in_tree(longest) {
                // There is no room for the inline item, so the next pass takes the inode.
                self.parts.push(None);
                continue;
            }
            if pages.len() < room {
                left.start = left.end; // all pages are listed
            }
            let Some(last) = pages.last() else {
                self.parts.push(None);
                continue;
            };
            left.start = left.start.max(last + 1);
            room -= pages.len();
            let mut part = Part::new(left_out, inode.has_sums(), self.store().has_clones());
            if !(in_tree && self.copy_for_tree(inode, longest, &mut part)) {
                planned = self.plan_inode(inode, inode_index, &pages, &mut part, &mut plan);
            }
            plan.add(&part);
            if part.more {
                left.start = part.ranges.last().map_or(pages[0], |(_, to)| *to);
            }
            self.parts.push(Some(part));
        }
        (plan.segments, planned)
    }

    /// Whether page 0 of the file, the only page to write, may go into the tree.
    fn belongs_in_tree(&self, inode: &Inode, longest: usize) -> Result<bool> {
        if longest == 0 || inode.is_outside() || !self.kind.takes_in_tree() {
            return Ok(false);
        }
        let (size, blocks) = {
            let core = &inode.meta.lock().core;
            (core.size, core.blocks)
        };
        Ok(size <= longest as u64
            && (blocks == 0 || extents::find(self.store(), inode.ino, 0, 1, 1)?.is_empty()))
    }

    /// Copies page 0 for the tree, and marks it as being written. Returns false if it cannot go
    /// there after all.
    fn copy_for_tree(&self, inode: &Inode, longest: usize, part: &mut Part) -> bool {
        let mut pages = inode.pages.lock();
        let size = inode.meta.lock().core.size as usize;
        let Some(page) = pages.get(0) else { return false };
        // The file may have grown since the first check.
        if page.logged || page.backing != Backing::Reserved || !(1..=longest).contains(&size) {
            return false;
        }
        let bytes = page.data[..size].to_vec();
        let (before, delta) = pages.set_writing(0);
        drop(pages);
        part.put_in_tree(bytes, before);
        self.writeback.account(delta);
        true
    }

    /// Finds or allocates blocks for each page. After an error, the pages planned before it are
    /// still written.
    fn plan_inode(
        &self,
        inode: &Inode,
        inode_index: usize,
        pages: &[u64],
        part: &mut Part,
        plan: &mut Plan,
    ) -> Result<()> {
        for run in pages.chunk_by(|a, b| a + 1 == *b) {
            let (first, count) = (run[0], run.len() as u64);
            for m in extents::map(self.store(), inode, first, count)? {
                let step = match (m.counted, part.sums) {
                    (true, _) => Some(COUNTED_STEP_BLOCKS),
                    (false, true) => Some(SUMS_STEP_BLOCKS),
                    (false, false) => None,
                };
                for m in steps(m, step) {
                    if part.more || plan.is_full(part) {
                        part.more = true;
                        return Ok(());
                    }
                    if matches!(m.place, Place::Hole | Place::Shared(..)) {
                        self.plan_new(inode, inode_index, m, part, plan)?;
                    } else {
                        self.plan_mapped(inode, inode_index, m, part, plan)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Plans pages without blocks, or whose blocks must not be overwritten: they get new ones.
    fn plan_new(
        &self,
        inode: &Inode,
        inode_index: usize,
        m: Mapping,
        part: &mut Part,
        plan: &mut Plan,
    ) -> Result<()> {
        part.set.load(self.store(), inode.ino, m.first, m.first + m.blocks, usize::MAX)?;
        let (old, after) = match m.place {
            Place::Shared(start, unwritten) => {
                let after = if unwritten { Backing::Unknown } else { Backing::Shared };
                (Some(Old { start, unwritten, birth: m.birth, shared: m.others, counted: m.counted }), after)
            }
            _ => (None, Backing::Unknown),
        };
        if m.first == 0 && m.place == Place::Hole && inline::is_there(self.store(), inode.ino)? {
            part.delete_from_tree();
        }
        let mut at = m.first;
        while at < m.first + m.blocks {
            if plan.is_full(part) {
                part.more = true;
                return Ok(());
            }
            let near = self.near(inode, plan.goal);
            let mut pages = inode.pages.lock();
            let want = m.first + m.blocks - at;
            let extent = self.store().alloc_data(near, want, pages.reservation.as_mut())?;
            for index in at..at + extent.blocks {
                if let Some(p) = pages.map.get_mut(&index) {
                    p.backing = after; // the page's reserved block is used up
                    part.charged.extend(p.is_charged().then_some(index));
                }
            }
            if let Some(charge) = &pages.charge {
                part.limit = Some(charge.id());
            }
            drop(pages);
            part.set.remove(at, at + extent.blocks);
            let here = |old: Old| Old { start: BlockNo(old.start.0 + at - m.first), ..old };
            let run = NewRun { index: at, extent, old: old.map(here), how: How::New };
            self.take_run(inode, inode_index, run, part, plan);
            at += extent.blocks;
        }
        Ok(())
    }

    /// Plans pages that keep their blocks, unless a write to the block has failed before: those get
    /// new ones.
    fn plan_mapped(
        &self,
        inode: &Inode,
        inode_index: usize,
        m: Mapping,
        part: &mut Part,
        plan: &mut Plan,
    ) -> Result<()> {
        let (Place::Written(start) | Place::Unwritten(start)) = m.place else { return Ok(()) };
        let unwritten = matches!(m.place, Place::Unwritten(_));
        let end = m.first + m.blocks;
        let mut at = m.first;
        while at < end {
            if plan.is_full(part) {
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
                part.set.load(self.store(), inode.ino, at, to, usize::MAX)?;
            }
            if bad && let Some(extent) = self.place_elsewhere(inode, to - at, plan)? {
                let moved_to = at + extent.blocks;
                part.set.remove(at, moved_to);
                let old = Old { start: block, unwritten, birth: m.birth, shared: false, counted: false };
                let run = NewRun { index: at, extent, old: Some(old), how: How::Moved };
                self.take_run(inode, inode_index, run, part, plan);
                at = moved_to;
                continue;
            }
            if unwritten {
                part.touch(at, to);
                part.set.set_written(at, to);
                part.unwritten.push((at, to));
            }
            // Blocks for which there is no other space are tried again, each by itself.
            let step = if bad { 1 } else { to - at };
            for index in (at..to).step_by(step as usize) {
                let block = BlockNo(start.0 + index - m.first);
                plan.segments.push(Segment {
                    inode_index,
                    index,
                    count: step,
                    block,
                    how: How::InPlace,
                    alone: bad,
                });
            }
            part.add_range(at, to);
            at = to;
        }
        Ok(())
    }

    /// Allocates blocks for pages whose blocks are bad. `None` if there is no space.
    fn place_elsewhere(&self, inode: &Inode, want: u64, plan: &Plan) -> Result<Option<Extent>> {
        match self.store().alloc_data(self.near(inode, plan.goal), want, None) {
            Ok(extent) => Ok(Some(extent)),
            Err(kedge_base::Error::NoSpace) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Assigns a run of new blocks to pages.
    fn take_run(&self, inode: &Inode, inode_index: usize, run: NewRun, part: &mut Part, plan: &mut Plan) {
        let NewRun { index, extent, how, .. } = run;
        if run.old.is_some_and(|old| old.counted) {
            part.touch_counts(extent.blocks);
        }
        part.touch(index, index + extent.blocks);
        part.set.insert_new(index, extent, false, self.store().birth());
        part.add_range(index, index + extent.blocks);
        part.new.push(run);
        plan.segments.push(Segment {
            inode_index,
            index,
            count: extent.blocks,
            block: extent.start,
            how,
            alone: false,
        });
        plan.goal = Some(extent.end());
        inode.meta.lock().goal = Some(extent.end());
    }

    /// The block near which new blocks are allocated: after the file's last block, else after the
    /// last allocation of this pass, else the allocator's goal for the inode.
    fn near(&self, inode: &Inode, running: Option<BlockNo>) -> BlockNo {
        let own = inode.meta.lock().goal;
        own.or(running).unwrap_or_else(|| self.store().data_goal(inode.ino, inode.ino))
    }
}

/// The steps in which a run of pages is planned. If checksums or counts must fit into the record, a
/// step has at most `step` file blocks.
fn steps(m: Mapping, step: Option<u64>) -> impl Iterator<Item = Mapping> {
    let end = m.first + m.blocks;
    let mut at = m.first;
    std::iter::from_fn(move || {
        let from = at;
        at = step.map_or(end, |step| (from / step + 1).saturating_mul(step).min(end));
        (from < end).then(|| m.part(from, at))
    })
}
