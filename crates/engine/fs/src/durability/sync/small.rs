//! Small amounts of new data of an fsync. They are logged, and written in place later; or the
//! record puts them into the tree ([`crate::inline`]).

use super::Syncer;
use crate::cache::commit::{commit, lock_metas};
use crate::cache::inode::Inode;
use crate::cache::pages::{Backing, Delta, Which};
use crate::error::{Error, Result};
use crate::extents;
use crate::inline;
use kedge_base::BLOCK_SIZE;
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_store::{Class, Need};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The most bytes of new data that an fsync logs.
const LOG_DATA_MAX: usize = 32 << 10;
const LOG_DATA_PAGES: usize = 16;

/// The need of a record with the dirty bytes of this many pages.
fn need(pages: usize) -> Need {
    let bytes = (pages * BLOCK_SIZE).min(LOG_DATA_MAX);
    Need::record(Class::Promised).patches(1).data(pages, bytes)
}

impl Syncer {
    /// Puts the inode's dirty bytes into a record if they are few and new. Returns false if they
    /// must be written in place.
    ///
    /// Bytes are new if they have no written block, if they are beyond the logged size, or if their
    /// page is log-resident already. In the last case they must be logged again, or replay would
    /// write the older record over them.
    pub(super) fn log_small_data(&self, inode: &Arc<Inode>) -> Result<bool> {
        let room = inode.pages.lock().dirty_count();
        if room > LOG_DATA_PAGES {
            return Ok(false);
        }
        // The class keeps a promise, as that of writeback. Log space is reserved only for the pages
        // that are dirty now: otherwise many concurrent fsyncs would hold a good part of a small
        // log without a use for it.
        let store = self.engine.store();
        let longest = inline::max(store);
        let is_small = |size: u64| (1..=longest as u64).contains(&size);
        let may_go = room == 1 && is_small(inode.meta.lock().core.size);
        let with_item = may_go.then(|| self.engine.begin(need(room).puts(1, longest)));
        let (mut handle, may_go) = match with_item {
            // If there are no nodes for the inline item, the bytes are logged like those of larger
            // files.
            None | Some(Err(Error::Engine(kedge_base::Error::NoSpace))) => {
                (self.engine.begin(need(room))?, false)
            }
            Some(handle) => (handle?, true),
        };
        let _wb = inode.wb.lock();
        let may_go = may_go && !inode.is_outside() && {
            let blocks = inode.meta.lock().core.blocks;
            blocks == 0 || extents::find(store, inode.ino, 0, 1, 1)?.is_empty()
        };
        let mut pages = inode.pages.lock();
        let dirty = pages.unclean(Which::Dirty, 0..u64::MAX, room + 1);
        if dirty.is_empty() {
            return Ok(true);
        }
        let mut changes = lock_metas(&[&**inode]);
        let c = &mut changes[0];
        if c.meta.dead || dirty.len() > room {
            return Ok(c.meta.dead);
        }
        let size = c.core.size;
        let mut record = RecordBuilder::new(RecordOp::LogData);
        let first = pages.get(0).filter(|page| !page.logged && page.backing == Backing::Reserved);
        if let Some(page) = first.filter(|_| may_go && dirty == [0] && is_small(size)) {
            record.put(kedge_format::inline::key(inode.ino), &page.data[..size as usize]);
            if size != c.meta.logged_size {
                c.mask |= InodeMask::SIZE;
            }
            commit(&mut handle, record, &mut changes)?;
            let delta = pages.set_in_tree(0);
            self.writeback.unlist(inode.ino, &mut changes[0].meta);
            drop(changes);
            drop(pages);
            self.writeback.account(delta);
            self.engine.stats().logged_data.inc();
            return Ok(true);
        }
        let mut total = 0;
        for &index in &dirty {
            let page = pages.get(index).expect("just listed");
            let (lo, hi) = page.dirty.expect("listed as dirty");
            let start = index * BLOCK + lo as u64;
            let end = (index * BLOCK + hi as u64).min(size);
            let is_new = page.logged || page.backing != Backing::Written || start >= c.meta.logged_size;
            total += (end.saturating_sub(start)) as usize;
            // Dirty bytes only beyond the end of the file (zeros) cannot be logged, so they are
            // written in place.
            if !is_new || start >= end || total > LOG_DATA_MAX {
                return Ok(false);
            }
            let lo = lo as usize;
            record.data(inode.ino, start, &page.data[lo..lo + (end - start) as usize]);
        }
        if size != c.meta.logged_size {
            c.mask |= InodeMask::SIZE;
        }
        commit(&mut handle, record, &mut changes)?;
        let c = &mut changes[0];
        let mut delta = Delta::default();
        for &index in &dirty {
            delta.dirty += pages.set_logged(index).dirty;
        }
        self.writeback.unlist(inode.ino, &mut c.meta);
        drop(changes);
        drop(pages);
        self.writeback.account(delta);
        self.engine.stats().logged_data.inc();
        Ok(true)
    }
}
