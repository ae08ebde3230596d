//! Second phase of a pass: copies the pages into a few large buffers.

use super::super::Writeback;
use super::part::{Gathered, Part, Segment, Writing};
use super::{MERGE_BLOCKS_MAX, Pass};
use crate::cache::inode::Inode;
use crate::cache::pages::Delta;
use kedge_base::{BLOCK_SIZE, BlockNo, IoBuf};
use kedge_format::sums::sum_of;

impl Pass<'_> {
    /// Copies pages into buffers, one for each merged write.
    pub(super) fn gather(&mut self, mut segments: Vec<Segment>) -> Vec<Gathered> {
        let plug = self.writeback.engine.live().plug();
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
                && (plug || segments[end].inode_index == segments[at].inode_index)
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
                let part = self.parts[s.inode_index].as_mut().expect("a segment belongs to a part");
                let len = s.count as usize * BLOCK_SIZE;
                copy_pages(
                    self.writeback,
                    &self.inodes[s.inode_index],
                    s,
                    part,
                    &mut buf.as_mut_bytes()[offset..offset + len],
                );
                users.push((s.inode_index, s.index, s.count));
                offset += len;
            }
            ios.push(Gathered { start, buf, users });
            at = end;
        }
        ios
    }
}

/// Copies the pages of a segment, and marks them as being written.
fn copy_pages(writeback: &Writeback, inode: &Inode, s: &Segment, part: &mut Part, out: &mut [u8]) {
    let mut delta = Delta::default();
    let mut pages = inode.pages.lock();
    for (i, bytes) in (0..).zip(out.chunks_exact_mut(BLOCK_SIZE)) {
        let (index, block) = (s.index + i, BlockNo(s.block.0 + i));
        let page = pages.get(index).expect("unclean pages stay in memory; `wb` excludes truncate");
        bytes.copy_from_slice(&page.data[..]);
        let (before, change) = pages.set_writing(index);
        delta.dirty += change.dirty;
        let sum = if part.sums { sum_of(bytes) } else { 0 };
        part.writing.push(Writing { index, block, how: s.how, before, sum });
    }
    // A writer changes bytes and size under the page lock, which is held here. So they match.
    part.size = part.size.max(inode.meta.lock().core.size);
    drop(pages);
    writeback.account(delta);
}
