//! Reading and writing file bytes.

use crate::core::Fs;
use crate::extents::{Mapping, Place};
use crate::inode::Inode;
use crate::pages::{Backing, Page, Which};
use crate::{Error, Result, SeekKind, WriteMode};
use kedge_base::broken::{self, Variant};
use kedge_base::{BLOCK_SIZE, BlockNo, Ino, IoBuf};
use kedge_format::FileKind;
use kedge_format::item::FILE_SIZE_MAX;
use kedge_format::record::InodeMask;
use smallvec::SmallVec;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Bytes written under one hold of the inode's lock.
const WRITE_CHUNK: usize = 1 << 20;
/// Extents looked at with one walk of the tree.
const SEEK_EXTENTS: usize = 64;
/// Blocks read from the device at once.
const READ_BLOCKS_MAX: u64 = 256;

/// A page that stays in memory while this lives. Goes after any guard of the page lock.
pub(crate) struct HeldPage<'a> {
    inode: &'a Inode,
    index: u64,
}

impl Drop for HeldPage<'_> {
    fn drop(&mut self) {
        self.inode.pages.lock().release_hold(self.index);
    }
}

impl Fs {
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.check_open()?;
        let inode = self.get_file(ino)?;
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
                    self.read_run(&inode, from, index, offset, size, buf)?;
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

    /// Reads blocks `[from, to)`, none of them cached, into `buf`, which starts at byte `offset` of the file.
    fn read_run(
        &self,
        inode: &Arc<Inode>,
        from: u64,
        to: u64,
        offset: u64,
        size: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        for m in self.map(inode.ino, from, to - from)? {
            match m.place {
                Place::Hole | Place::Unwritten(_) => {
                    let zero = [0; BLOCK_SIZE];
                    for index in m.first..m.first + m.blocks {
                        copy_block(&zero, index, offset, buf);
                    }
                }
                Place::Written(start) => {
                    let mut done = 0;
                    while done < m.blocks {
                        let blocks = (m.blocks - done).min(READ_BLOCKS_MAX);
                        let mut io = IoBuf::zeroed(blocks as usize);
                        self.store.device().read(BlockNo(start.0 + done).byte_offset(), &mut io)?;
                        self.stats.data_reads.inc();
                        self.stats.data_read_bytes.add(io.len() as u64);
                        for (i, block) in io.as_mut_bytes().chunks_exact_mut(BLOCK_SIZE).enumerate() {
                            let index = m.first + done + i as u64;
                            zero_behind(block, index, size);
                            copy_block(block, index, offset, buf);
                            self.cache_clean(inode, index, block);
                        }
                        done += blocks;
                    }
                }
            }
        }
        Ok(())
    }

    fn cache_clean(&self, inode: &Arc<Inode>, index: u64, block: &[u8]) {
        let mut page = Page::zeroed();
        page.data.copy_from_slice(block);
        page.backing = Backing::Written;
        let delta = inode.pages.lock().insert_clean(index, page);
        if delta.pages > 0 {
            self.account(delta);
            self.budget.cached(self, inode.ino, index);
        }
    }

    /// Makes a page present for a partial change, and keeps it so while the answer lives: between here and the change
    /// other threads may look for pages to evict. The caller holds the io lock exclusively.
    pub fn load_page<'a>(&self, inode: &'a Arc<Inode>, index: u64) -> Result<HeldPage<'a>> {
        if inode.pages.lock().hold(index) {
            return Ok(HeldPage { inode, index });
        }
        let size = inode.meta.lock().core.size;
        let mut page = Page::zeroed();
        match self.map(inode.ino, index, 1)?[0].place {
            Place::Hole => {}
            Place::Unwritten(_) => page.backing = Backing::Unwritten,
            Place::Written(at) => {
                let mut io = IoBuf::zeroed(1);
                self.store.device().read(at.byte_offset(), &mut io)?;
                zero_behind(io.as_mut_bytes(), index, size);
                page.data.copy_from_slice(io.as_bytes());
                page.backing = Backing::Written;
            }
        }
        let delta = {
            let mut pages = inode.pages.lock();
            let delta = pages.insert_clean(index, page);
            pages.hold(index);
            delta
        };
        if delta.pages > 0 {
            self.account(delta);
            self.budget.cached(self, inode.ino, index);
        }
        Ok(HeldPage { inode, index })
    }

    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        if self.store.is_read_only() {
            return Err(kedge_base::Error::ReadOnly.into());
        }
        let inode = self.get_file(ino)?;
        if data.is_empty() {
            return Ok(0);
        }
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > FILE_SIZE_MAX) {
            return Err(Error::FileTooLarge);
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            // Chunks end at multiples of the chunk size, so that large writes stay block-aligned.
            let room = WRITE_CHUNK - (at % WRITE_CHUNK as u64) as usize;
            let chunk = &data[done..data.len().min(done + room)];
            let (n, cause) = self.write_chunk(&inode, at, chunk, mode);
            done += n;
            let Some(cause) = cause else { continue };
            if done == 0 || (mode.whole && !broken::is(Variant::ShortWhole)) {
                return Err(cause);
            }
            // The caller learns the count; the cause is the answer when he writes the rest.
            tracing::warn!("inode {ino}: {done} of {} bytes written: {cause}", data.len());
            self.stats.short_writes.inc();
            break;
        }
        Ok(done)
    }

    /// Returns how many bytes from the chunk's start were written, and why not all of them.
    fn write_chunk(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> (usize, Option<Error>) {
        let taken = match self.take_chunk(inode, offset, data, mode) {
            Ok(taken) => taken,
            Err(e) => return (0, Some(e)),
        };
        if mode.through && taken > 0 {
            let end = (offset + taken as u64).div_ceil(BLOCK);
            if let Err(e) = self.writeback_range(inode, offset / BLOCK..end) {
                return (0, Some(e));
            }
        }
        (taken, (taken < data.len()).then(|| kedge_base::Error::NoSpace.into()))
    }

    /// Takes bytes into memory, as many as there is space for. Returns how many.
    fn take_chunk(&self, inode: &Arc<Inode>, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        self.check_open()?;
        self.store.check_alive()?;
        self.throttle()?;
        let first = offset / BLOCK;
        let end = (offset + data.len() as u64).div_ceil(BLOCK);
        // Promised before the lock: finding space may need a checkpoint, which takes inode locks. Blocks that turn out
        // to be mapped are given back below.
        let mut promise = match self.store.reserve_data(end - first) {
            Ok(r) => Some(r),
            Err(kedge_base::Error::NoSpace) => None,
            Err(e) => return Err(e.into()),
        };
        let _io = self.lock_io(inode)?;
        let (size, blocks) = {
            let meta = inode.meta.lock();
            if meta.dead {
                return Err(Error::NotFound);
            }
            (meta.core.size, meta.core.blocks)
        };
        if offset > size {
            self.zero_tail_page(inode, size)?;
        }
        let mut held: SmallVec<[HeldPage<'_>; 2]> = SmallVec::new();
        for (index, partial) in [
            (first, !offset.is_multiple_of(BLOCK)),
            (end - 1, !(offset + data.len() as u64).is_multiple_of(BLOCK)),
        ] {
            if partial && index * BLOCK < size {
                held.push(self.load_page(inode, index)?);
            }
        }
        let map = if blocks > 0 { self.map(inode.ino, first, end - first)? } else { Vec::new() };
        let mut pages = inode.pages.lock();
        let mut done = 0;
        let mut delta = crate::pages::Delta::default();
        for index in first..end {
            let at = (offset + done as u64) - index * BLOCK;
            let n = (data.len() - done).min((BLOCK - at) as usize);
            if pages.get(index).is_none() {
                delta.pages += pages.insert_clean(index, Page::zeroed()).pages;
                self.budget.token(inode.ino, index);
            }
            if pages.get(index).is_some_and(|p| p.backing == Backing::Unknown) {
                let backing = match (place_of(&map, index), promise.as_mut()) {
                    (Place::Written(_), _) => Backing::Written,
                    (Place::Unwritten(_), _) => Backing::Unwritten,
                    (Place::Hole, Some(p)) => {
                        pages.reserve(p.split(1));
                        Backing::Reserved
                    }
                    (Place::Hole, None) => break,
                };
                pages.map.get_mut(&index).expect("just seen").backing = backing;
            }
            delta.dirty += pages.write(index, at as usize, &data[done..done + n]).dirty;
            done += n;
        }
        if done > 0 {
            self.grown(inode, offset + done as u64, mode);
        }
        drop(pages);
        self.account(delta);
        self.budget.enforce(self, delta.pages);
        Ok(done)
    }

    /// Bytes up to `end` were written. The caller holds the page lock.
    fn grown(&self, inode: &Arc<Inode>, end: u64, mode: WriteMode) {
        let now = self.now();
        let mut meta = inode.meta.lock();
        meta.core.size = meta.core.size.max(end);
        if !mode.keep_times || broken::is(Variant::TouchInWriteback) {
            meta.core.mtime = now;
            meta.core.ctime = now;
            meta.unlogged |= InodeMask::MTIME | InodeMask::CTIME;
        }
        self.list_dirty(inode, &mut meta);
    }

    /// Before a file grows past a cut block: the bytes behind the old end become zero, in memory and on their way to
    /// the device. They may be anything on the device after a crash between data write and size record.
    fn zero_tail_page(&self, inode: &Arc<Inode>, size: u64) -> Result<()> {
        if size.is_multiple_of(BLOCK) {
            return Ok(());
        }
        let index = size / BLOCK;
        let _held = self.load_page(inode, index)?;
        let mut pages = inode.pages.lock();
        let page = pages.get(index).expect("just loaded");
        if page.is_clean() && page.backing != Backing::Written {
            return Ok(()); // a hole: nothing on the device
        }
        let delta = pages.zero(index, (size % BLOCK) as usize, BLOCK_SIZE);
        drop(pages);
        self.account(delta);
        Ok(())
    }

    pub fn seek(&self, ino: Ino, offset: u64, kind: SeekKind) -> Result<u64> {
        let inode = self.get(ino)?;
        if inode.kind != FileKind::Regular {
            return Err(Error::Invalid("seek for data or hole in something not a regular file"));
        }
        // Delayed allocation shows as holes; written back, the extents say it all.
        let unclean = {
            // Also while they are being written: the extents come with the record, and it may fail.
            let pages = inode.pages.lock();
            !pages.is_written() || pages.logged_count() > 0
        };
        if unclean && !self.store.is_read_only() {
            self.writeback(std::slice::from_ref(&inode), Which::All, kedge_store::Class::Normal)?;
        }
        let _io = inode.io.read();
        let size = inode.meta.lock().core.size;
        if offset >= size {
            return Err(Error::NoSuchOffset);
        }
        // From extent to extent: a sparse file may be petabytes long.
        let end = size.div_ceil(BLOCK);
        let mut at = offset / BLOCK;
        loop {
            let extents = self.extents(ino, at, end, SEEK_EXTENTS)?;
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

/// Copies the overlap of file block `index` with `buf`, which starts at byte `offset` of the file.
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

/// Bytes behind the end of the file read as zero whatever the device holds.
fn zero_behind(block: &mut [u8], index: u64, size: u64) {
    let start = index * BLOCK;
    if start + BLOCK > size {
        let keep = size.saturating_sub(start).min(BLOCK) as usize;
        block[keep..].fill(0);
    }
}

fn place_of(map: &[Mapping], index: u64) -> Place {
    let Some(m) = map.iter().find(|m| (m.first..m.first + m.blocks).contains(&index)) else {
        return Place::Hole;
    };
    let skip = index - m.first;
    match m.place {
        Place::Hole => Place::Hole,
        Place::Written(b) => Place::Written(kedge_base::BlockNo(b.0 + skip)),
        Place::Unwritten(b) => Place::Unwritten(kedge_base::BlockNo(b.0 + skip)),
    }
}
