//! Reads file bytes, and seeks for data and holes.

use super::Files;
use crate::cache::inode::Inode;
use crate::cache::pages::{Backing, Page, Which};
use crate::error::{Error, Result};
use crate::extents::{self, Mapping, Place};
use crate::inline;
use crate::sums::Sums;
use crate::types::SeekKind;
use kedge_base::{BLOCK_SIZE, BlockNo, Ino, IoBuf};
use kedge_format::record::InodeMask;
use kedge_format::{FileFlags, FileKind};
use kedge_store::Class;
use std::cell::RefCell;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The most extents that one scan of the tree reads.
const SEEK_EXTENTS: usize = 64;
/// The most blocks in one read from the device.
const READ_BLOCKS_MAX: u64 = 256;
const DAY: i64 = 86_400;

/// Whether pages that were read from the device stay in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keep {
    Pages,
    Nothing,
}

thread_local! {
    /// The buffer that the device fills, one for each thread. A new buffer for each read would take
    /// as long as the read itself: the kernel has to provide the memory, and it has to be zeroed.
    static FILLED: RefCell<IoBuf> = RefCell::new(IoBuf::zeroed(0));
}

/// Keeps a page in memory until it is dropped, which takes the page lock: no guard of that lock may
/// be alive then.
pub(crate) struct HeldPage<'a> {
    inode: &'a Inode,
    index: u64,
}

impl Drop for HeldPage<'_> {
    fn drop(&mut self) {
        self.inode.pages.lock().release_hold(self.index);
    }
}

/// The locations of a range of file blocks.
struct Places {
    map: Vec<Mapping>,
    /// The checksums of the blocks, if the file has checksums.
    sums: Option<Sums>,
    /// The inline data, if file block 0 is in the range and its data is in the tree. `map` has a
    /// hole there.
    first: Option<Vec<u8>>,
}

/// Blocks `[from, to)` of a file of `size` bytes, to be read into a buffer that starts at file
/// offset `offset`.
struct Run {
    from: u64,
    to: u64,
    offset: u64,
    size: u64,
}

impl Files {
    pub(crate) fn read(&self, ino: Ino, offset: u64, buf: &mut [u8], keep: Keep) -> Result<usize> {
        self.engine.check_open()?;
        let inode = self.inodes.get_file(ino)?;
        let _io = inode.io.read();
        let size = inode.meta.lock().core.size;
        if offset >= size || buf.is_empty() {
            return Ok(0);
        }
        let len = (buf.len() as u64).min(size - offset) as usize;
        let buf = &mut buf[..len];
        let first = offset / BLOCK;
        let end = (offset + len as u64).div_ceil(BLOCK);
        let mut missing: Option<u64> = None;
        for index in first..=end {
            let hit = index < end && self.copy_cached(&inode, index, offset, buf);
            match (index < end && !hit, missing) {
                (true, None) => missing = Some(index),
                (false, Some(from)) => {
                    let run = Run { from, to: index, offset, size };
                    FILLED.with_borrow_mut(|filled| self.read_run(&inode, &run, buf, keep, filled))?;
                    missing = None;
                }
                _ => {}
            }
        }
        self.accessed(&inode);
        Ok(len)
    }

    fn copy_cached(&self, inode: &Inode, index: u64, offset: u64, buf: &mut [u8]) -> bool {
        let pages = inode.pages.lock();
        let Some(page) = pages.get(index) else { return false };
        copy_block(&page.data[..], index, offset, buf);
        true
    }

    /// Reads a run of blocks that are not cached.
    fn read_run(
        &self,
        inode: &Arc<Inode>,
        run: &Run,
        buf: &mut [u8],
        keep: Keep,
        filled: &mut IoBuf,
    ) -> Result<()> {
        let Run { from, to, offset, size } = *run;
        let Places { map, sums, first } = self.places(inode, from, to)?;
        for m in map {
            match m.place {
                Place::Hole | Place::Unwritten(_) | Place::Shared(_, true) => {
                    let zero = [0; BLOCK_SIZE];
                    for index in m.first..m.first + m.blocks {
                        copy_block(&zero, index, offset, buf);
                    }
                    if let Some(bytes) = first.as_deref().filter(|_| m.first == 0) {
                        let mut block = zero;
                        block[..bytes.len()].copy_from_slice(bytes);
                        zero_behind(&mut block, 0, size);
                        copy_block(&block, 0, offset, buf);
                    }
                }
                Place::Written(start) | Place::Shared(start, false) => {
                    let shared = matches!(m.place, Place::Shared(..));
                    let backing = if shared { Backing::Shared } else { Backing::Written };
                    let mut done = 0;
                    while done < m.blocks {
                        let blocks = (m.blocks - done).min(READ_BLOCKS_MAX);
                        filled.resize(blocks as usize);
                        self.engine.store().device().read(BlockNo(start.0 + done).byte_offset(), filled)?;
                        self.engine.stats().data_reads.inc();
                        self.engine.stats().data_read_bytes.add(filled.len() as u64);
                        for (i, block) in filled.as_mut_bytes().chunks_exact_mut(BLOCK_SIZE).enumerate() {
                            let index = m.first + done + i as u64;
                            self.verify(
                                inode,
                                sums.as_ref(),
                                index,
                                BlockNo(start.0 + done + i as u64),
                                block,
                            )?;
                            zero_behind(block, index, size);
                            copy_block(block, index, offset, buf);
                            if keep == Keep::Pages {
                                self.cache_clean(inode, index, block, backing);
                            }
                        }
                        done += blocks;
                    }
                }
            }
        }
        Ok(())
    }

    fn places(&self, inode: &Inode, from: u64, to: u64) -> Result<Places> {
        let store = self.engine.store();
        inode.between_records(|| {
            let map = extents::map(store, inode, from, to - from)?;
            let sums = inode.has_sums().then(|| Sums::read(store, inode.ino, from, to)).transpose()?;
            let hole = map.first().is_some_and(|m| m.first == 0 && m.place == Place::Hole);
            let first = if hole { inline::read(store, inode.ino)? } else { None };
            Ok(Places { map, sums, first })
        })
    }

    /// Verifies a block that was read from the device. Counts and logs a mismatch.
    fn verify(
        &self,
        inode: &Inode,
        sums: Option<&Sums>,
        index: u64,
        at: BlockNo,
        block: &[u8],
    ) -> Result<()> {
        let Some(sums) = sums else { return Ok(()) };
        sums.verify(inode.ino, index, at, block).inspect_err(|e| {
            tracing::error!("{e}");
            self.engine.stats().checksum_errors.inc();
        })
    }

    fn cache_clean(&self, inode: &Arc<Inode>, index: u64, block: &[u8], backing: Backing) {
        let mut page = Page::zeroed();
        page.data.copy_from_slice(block);
        page.backing = backing;
        let delta = inode.pages.lock().insert_clean(index, page);
        self.writeback.page_cached(delta, inode.ino, index);
    }

    /// Makes a page present for a change of a part of it, and keeps it present while the result
    /// lives; otherwise other threads could evict it before the change. The caller holds `io`
    /// exclusively.
    pub(crate) fn load_page<'a>(&self, inode: &'a Arc<Inode>, index: u64) -> Result<HeldPage<'a>> {
        {
            let mut pages = inode.pages.lock();
            pages.follow(self.engine.store().births_below(inode.ino));
            if pages.hold(index) {
                return Ok(HeldPage { inode, index });
            }
        }
        let size = inode.meta.lock().core.size;
        let mut page = Page::zeroed();
        let Places { map, sums, first } = self.places(inode, index, index + 1)?;
        let place = map[0].place;
        match place {
            Place::Hole | Place::Shared(_, true) => {
                if let Some(bytes) = first {
                    page.data[..bytes.len()].copy_from_slice(&bytes);
                    zero_behind(&mut page.data[..], index, size);
                }
            }
            Place::Unwritten(_) => page.backing = Backing::Unwritten,
            Place::Written(at) | Place::Shared(at, false) => {
                let mut io = IoBuf::zeroed(1);
                self.engine.store().device().read(at.byte_offset(), &mut io)?;
                self.verify(inode, sums.as_ref(), index, at, io.as_bytes())?;
                zero_behind(io.as_mut_bytes(), index, size);
                page.data.copy_from_slice(io.as_bytes());
                let shared = matches!(place, Place::Shared(..));
                page.backing = if shared { Backing::Shared } else { Backing::Written };
            }
        }
        let delta = {
            let mut pages = inode.pages.lock();
            let delta = pages.insert_clean(index, page);
            pages.hold(index);
            delta
        };
        self.writeback.page_cached(delta, inode.ino, index);
        Ok(HeldPage { inode, index })
    }

    /// Updates the access time as relatime does: if it is not newer than the last change, or is a
    /// day old. Does nothing with `noatime` of the mount or of the file, or while the file system
    /// is frozen.
    pub(crate) fn accessed(&self, inode: &Arc<Inode>) {
        if self.engine.store().is_read_only() || self.engine.live().noatime() {
            return;
        }
        let mut meta = inode.meta.lock();
        let c = &meta.core;
        if c.file_flags().has(FileFlags::NOATIME) {
            return;
        }
        if c.atime > c.mtime && c.atime > c.ctime && self.engine.now().sec - c.atime.sec < DAY {
            return;
        }
        let Some(_change) = self.engine.gate().try_change() else { return };
        if !matches!(self.engine.store().check_tree(inode.ino), Ok(false)) {
            return;
        }
        meta.core.atime = self.engine.now();
        meta.unlogged |= InodeMask::ATIME;
        self.writeback.list_dirty(inode, &mut meta);
    }

    pub(crate) fn seek(&self, ino: Ino, offset: u64, kind: SeekKind) -> Result<u64> {
        let inode = self.inodes.get(ino)?;
        if inode.kind != FileKind::Regular {
            return Err(Error::Invalid("seek for data or hole in something not a regular file"));
        }
        // Delayed allocation has no extents yet, which would look like holes. After writeback the
        // extents are complete.
        let unclean = {
            // Pages being written count too: their extents come with the record, and the write may
            // fail.
            let pages = inode.pages.lock();
            !pages.is_written() || pages.logged_count() > 0
        };
        // A frozen file system has no dirty pages, so without work nothing is missing.
        if unclean
            && !self.engine.store().is_read_only()
            && let Some(_work) = self.engine.gate().work()
        {
            self.writeback.write(std::slice::from_ref(&inode), Which::All, Class::Normal)?;
        }
        let _io = inode.io.read();
        let size = inode.meta.lock().core.size;
        if offset >= size {
            return Err(Error::NoSuchOffset);
        }
        // Steps from extent to extent, not from block to block: a sparse file may have petabytes.
        let end = size.div_ceil(BLOCK);
        let mut at = offset / BLOCK;
        if at == 0 && inline::is_there(self.engine.store(), ino)? {
            match kind {
                SeekKind::Data => return Ok(offset),
                SeekKind::Hole => at = 1,
            }
        }
        loop {
            let find = || extents::find(self.engine.store(), ino, at, end, SEEK_EXTENTS);
            let extents = inode.between_records(find)?;
            let last = extents.len() < SEEK_EXTENTS;
            for (first, item) in extents {
                let found = match kind {
                    SeekKind::Data => (!item.unwritten).then_some(first.max(at)),
                    SeekKind::Hole => (first > at || item.unwritten).then_some(at),
                };
                if let Some(block) = found {
                    return Ok((block * BLOCK).max(offset));
                }
                at = first + item.blocks as u64;
            }
            if last || at >= end {
                break;
            }
        }
        match kind {
            SeekKind::Hole => Ok((at * BLOCK).min(size).max(offset)),
            SeekKind::Data => Err(Error::NoSuchOffset),
        }
    }
}

/// Copies the part of file block `index` that overlaps `buf`, which starts at file offset `offset`.
fn copy_block(block: &[u8], index: u64, offset: u64, buf: &mut [u8]) {
    let start = (index * BLOCK).max(offset);
    let end = ((index + 1) * BLOCK).min(offset + buf.len() as u64);
    if start < end {
        let from = (start - index * BLOCK) as usize;
        let to = (start - offset) as usize;
        let len = (end - start) as usize;
        buf[to..to + len].copy_from_slice(&block[from..from + len]);
    }
}

/// Zeroes the bytes of a block beyond the end of the file. The device may have anything there.
fn zero_behind(block: &mut [u8], index: u64, size: u64) {
    let start = index * BLOCK;
    if start + BLOCK > size {
        let keep = size.saturating_sub(start).min(BLOCK) as usize;
        block[keep..].fill(0);
    }
}
