//! Writes file bytes into memory.

use super::Files;
use super::read::HeldPage;
use crate::cache::commit::{commit_only, lock_metas};
use crate::cache::inode::Inode;
use crate::cache::pages::{Backing, Delta, Page, Pages};
use crate::error::{Error, Result};
use crate::extents::{self, Mapping, Place};
use crate::flags;
use crate::types::WriteMode;
use kedge_base::broken::{self, Variant};
use kedge_base::{BLOCK_SIZE, BlockNo, Ino};
use kedge_format::item::FILE_SIZE_MAX;
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_format::{FileFlags, InodeCore};
use kedge_store::{Charge, Class, DataReservation, Need};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The most bytes that are written while the inode's lock is held once.
const WRITE_CHUNK: usize = 1 << 20;

impl Files {
    pub(crate) fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        if self.engine.store().is_read_only() {
            return Err(kedge_base::Error::ReadOnly.into());
        }
        let inode = self.inodes.get_file(ino)?;
        if data.is_empty() {
            return Ok(0);
        }
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > FILE_SIZE_MAX) {
            return Err(Error::FileTooLarge);
        }
        let result = self.write_chunks(&inode, offset, data, mode);
        let logged = self.log_stamps(&inode, mode);
        let done = result?;
        logged?;
        Ok(done)
    }

    fn write_chunks(&self, inode: &Arc<Inode>, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            // Chunks end at multiples of the chunk size, so that large aligned writes stay
            // block-aligned.
            let room = WRITE_CHUNK - (at % WRITE_CHUNK as u64) as usize;
            let chunk = &data[done..data.len().min(done + room)];
            let (n, cause) = self.write_chunk(inode, at, chunk, mode);
            done += n;
            let Some(cause) = cause else { continue };
            if done == 0 || (mode.whole && !broken::is(Variant::ShortWhole)) {
                return Err(cause);
            }
            // The caller gets the count; when it writes the rest, it gets the cause as the error.
            // So the cause is only a debug message: on a full image a warning would be logged for
            // each program that tries.
            tracing::debug!("inode {}: {done} of {} bytes written: {cause}", inode.ino, data.len());
            self.engine.stats().short_writes.inc();
            break;
        }
        Ok(done)
    }

    /// If the fdatasync rule requires it, logs the time stamps that a write has set. A crash may
    /// show the new stamps without the write, as on XFS. The stamps are set after the bytes are in
    /// memory: a reader of another door that took the new stamps with the old bytes would keep
    /// these for as long as the stamps stay. Called without any lock of the inode, since the
    /// reservation may wait for a checkpoint. If there is no space for the record, the stamps are
    /// logged later, as with `seq`.
    fn log_stamps(&self, inode: &Arc<Inode>, mode: WriteMode) -> Result<()> {
        if mode.keep_times || !self.engine.live().fdatasync().stamps_at_write() {
            return Ok(());
        }
        let are_new = |unlogged: InodeMask| unlogged.contains(InodeMask::MTIME | InodeMask::CTIME);
        if !are_new(inode.meta.lock().unlogged) {
            return Ok(());
        }
        let handle = match self.engine.begin(Need::record(Class::Normal).patches(1)) {
            Err(Error::Engine(e)) if matches!(e, kedge_base::Error::NoSpace) || e.is_host_full() => {
                return Ok(());
            }
            handle => handle?,
        };
        let mut changes = lock_metas(&[inode]);
        // Another record may have taken the stamps since the check.
        if !changes[0].meta.dead && are_new(changes[0].meta.unlogged) {
            commit_only(handle, RecordBuilder::new(RecordOp::Times), &mut changes)?;
        }
        Ok(())
    }

    /// Writes a chunk. Returns how many bytes from its start were written, and why not the rest.
    fn write_chunk(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> (usize, Option<Error>) {
        let (taken, cause) = match self.take_chunk(inode, offset, data, mode) {
            Ok(taken) => taken,
            Err(e) => return (0, Some(e)),
        };
        if mode.through && taken > 0 {
            let end = (offset + taken as u64).div_ceil(BLOCK);
            if let Err(e) = self.writeback.write_range(inode, offset / BLOCK..end) {
                return (0, Some(e));
            }
        }
        (taken, cause)
    }

    /// Copies as many bytes into memory as there is space for. Returns their number, and why not
    /// the rest.
    fn take_chunk(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<(usize, Option<Error>)> {
        self.engine.check_open()?;
        self.engine.store().check_alive()?;
        self.writeback.throttle()?;
        let first = offset / BLOCK;
        let end = (offset + data.len() as u64).div_ceil(BLOCK);
        // Promised before any lock is taken: finding space may need a checkpoint, which takes inode
        // locks. Promises for blocks that turn out to exist are returned when they are dropped.
        let mut promise = match self.engine.store().reserve_data(end - first) {
            _ if self.engine.host_is_full(self.writeback.dirty_pages()) => None,
            Ok(r) => Some(r),
            // As many bytes are written as fit, as in other file systems.
            Err(kedge_base::Error::NoSpace) if !mode.whole => {
                self.engine.store().reserve_some_data(end - first)
            }
            Err(kedge_base::Error::NoSpace) => None,
            Err(e) => return Err(e.into()),
        };
        let _io = self.lock_io(inode)?;
        let core = {
            let meta = inode.meta.lock();
            if meta.dead {
                return Err(Error::NotFound);
            }
            meta.core
        };
        let (size, blocks) = (core.size, core.blocks);
        flags::check_touch(&core)?;
        if !self.repeats(inode, &core, offset, data, mode)? {
            flags::check_write(&core, offset)?;
        }
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
        let map = if blocks > 0 {
            inode.between_records(|| extents::map(self.engine.store(), inode, first, end - first))?
        } else {
            Vec::new()
        };
        let mut pages = inode.pages.lock();
        pages.follow(self.engine.store().births_below(inode.ino));
        let mut charge = self.charge_new(&pages, inode.ino, &core, &map, first..end);
        let (mut done, mut cause) = (0, None);
        let mut delta = Delta::default();
        for index in first..end {
            let at = (offset + done as u64) - index * BLOCK;
            let n = (data.len() - done).min((BLOCK - at) as usize);
            let is_new = pages.get(index).is_none();
            if is_new {
                delta.pages += pages.insert_clean(index, Page::zeroed()).pages;
                self.writeback.page_added(inode.ino, index);
            }
            if let Err(e) = promise_page(&mut pages, index, &map, charge.as_mut(), promise.as_mut()) {
                if is_new {
                    // The page goes, since its zeros are wrong if the file has a shared block
                    // there.
                    delta.pages += pages.remove_range(index, index + 1).pages;
                }
                cause = Some(e);
                break;
            }
            delta.dirty += pages.write(index, at as usize, &data[done..done + n]).dirty;
            done += n;
        }
        if done > 0 {
            self.grown(inode, offset + done as u64, mode);
        }
        drop(pages);
        self.writeback.pages_written(delta);
        Ok((done, cause))
    }

    /// Charges the limit of a file for those pages of a range that have no block yet, up to what
    /// the limit allows. `None` for a file without a limit.
    pub(super) fn charge_new(
        &self,
        pages: &Pages,
        ino: Ino,
        core: &InodeCore,
        map: &[Mapping],
        range: Range<u64>,
    ) -> Option<Charge> {
        if core.limit == 0 {
            return None;
        }
        let is_new = |index: &u64| {
            let has_none = match pages.get(*index) {
                Some(page) => page.backing == Backing::Unknown && !page.is_charged(),
                None => true,
            };
            has_none && place_of(map, *index) == Place::Hole
        };
        let store = self.engine.store();
        Some(store.charge_blocks(store.limit_id(ino, core.limit), range.filter(is_new).count() as u64))
    }

    /// Whether a write only repeats bytes that an append-only file already has. The kernel's
    /// writeback does that, since it writes whole pages. The caller holds `io` exclusively.
    fn repeats(
        &self,
        inode: &Arc<Inode>,
        core: &InodeCore,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<bool> {
        if !mode.whole || !core.file_flags().has(FileFlags::APPEND) {
            return Ok(false);
        }
        let end = core.size.min(offset + data.len() as u64);
        let mut at = offset;
        while at < end {
            let (index, from) = (at / BLOCK, (at % BLOCK) as usize);
            let n = (end - at).min(BLOCK - from as u64) as usize;
            let _held = self.load_page(inode, index)?;
            let pages = inode.pages.lock();
            let page = pages.get(index).expect("just loaded");
            if page.data[from..from + n] != data[(at - offset) as usize..][..n] {
                return Ok(false);
            }
            at += n as u64;
        }
        Ok(true)
    }

    /// Updates size and time stamps after a write up to `end`. The caller holds the page lock.
    fn grown(&self, inode: &Arc<Inode>, end: u64, mode: WriteMode) {
        let now = self.engine.now();
        // A rule that logs the stamps of writes does so once for each tick of the clock.
        let once = self.engine.live().fdatasync().stamps_at_write();
        let mut meta = inode.meta.lock();
        meta.core.size = meta.core.size.max(end);
        let are_set = once && (meta.core.mtime, meta.core.ctime) == (now, now);
        if !mode.keep_times && !are_set || broken::is(Variant::TouchInWriteback) {
            meta.core.mtime = now;
            meta.core.ctime = now;
            meta.unlogged |= InodeMask::MTIME | InodeMask::CTIME;
        }
        self.writeback.list_dirty(inode, &mut meta);
    }

    /// Promises a block to a page that is about to change, if its present block must not be
    /// overwritten. The caller keeps the page present and holds `io` exclusively.
    pub(super) fn promise_move(&self, inode: &Inode, index: u64) -> Result<()> {
        let shared = |page: &Page| page.backing == Backing::Shared;
        if inode.pages.lock().get(index).is_some_and(shared) {
            let promise = self.engine.store().alloc().reserve_data(1)?;
            inode.pages.lock().move_later(index, promise);
        }
        Ok(())
    }

    /// Called before a file grows past a cut block. Zeroes the block's bytes beyond the old end in
    /// memory, and marks them dirty. After a crash between a data write and the record of the size,
    /// the device may have anything there.
    fn zero_tail_page(&self, inode: &Arc<Inode>, size: u64) -> Result<()> {
        if size.is_multiple_of(BLOCK) {
            return Ok(());
        }
        let index = size / BLOCK;
        let _held = self.load_page(inode, index)?;
        self.promise_move(inode, index)?;
        let mut pages = inode.pages.lock();
        let page = pages.get(index).expect("just loaded");
        if page.is_clean() && !matches!(page.backing, Backing::Written | Backing::Moving) {
            return Ok(()); // no bytes of this block are on the device
        }
        let delta = pages.zero(index, (size % BLOCK) as usize, BLOCK_SIZE);
        // The write itself may be refused: then nothing else lists the inode.
        self.writeback.list_dirty(inode, &mut inode.meta.lock());
        drop(pages);
        self.writeback.account(delta);
        Ok(())
    }
}

/// Gives a page that is about to change what it needs: a promised block, unless its present one may
/// be overwritten, and a charge of its limit. Fails if the space or the limit does not suffice.
pub(super) fn promise_page(
    pages: &mut Pages,
    index: u64,
    map: &[Mapping],
    charge: Option<&mut Charge>,
    promise: Option<&mut DataReservation>,
) -> Result<()> {
    let moves_after_write = pages.moves_after_write(index);
    let page = pages.get(index).expect("the caller made the page present");
    if !moves_after_write && !matches!(page.backing, Backing::Unknown | Backing::Shared) {
        return Ok(());
    }
    let is_charged = page.is_charged();
    let place = match place_of(map, index) {
        Place::Unwritten(at) if moves_after_write => Place::Shared(at, false),
        place => place,
    };
    let backing = match (place, promise) {
        (Place::Written(_), _) => Backing::Written,
        (Place::Unwritten(_), _) => Backing::Unwritten,
        (Place::Hole, _)
            if !is_charged && charge.as_ref().is_some_and(|charge| charge.held_blocks() == 0) =>
        {
            return Err(Error::OverLimit);
        }
        (place @ (Place::Hole | Place::Shared(..)), Some(p)) if p.blocks() > 0 => {
            if let Some(charge) = charge.filter(|_| place == Place::Hole && !is_charged) {
                pages.charge_page(index, charge.split(1));
            }
            pages.reserve(p.split(1));
            if matches!(place, Place::Shared(_, false)) { Backing::Moving } else { Backing::Reserved }
        }
        (Place::Hole | Place::Shared(..), _) => return Err(kedge_base::Error::NoSpace.into()),
    };
    pages.map.get_mut(&index).expect("just seen").backing = backing;
    Ok(())
}

pub(super) fn place_of(map: &[Mapping], index: u64) -> Place {
    let Some(m) = map.iter().find(|m| (m.first..m.first + m.blocks).contains(&index)) else {
        return Place::Hole;
    };
    let skip = index - m.first;
    match m.place {
        Place::Hole => Place::Hole,
        Place::Written(b) => Place::Written(BlockNo(b.0 + skip)),
        Place::Unwritten(b) => Place::Unwritten(BlockNo(b.0 + skip)),
        Place::Shared(b, unwritten) => Place::Shared(BlockNo(b.0 + skip), unwritten),
    }
}
