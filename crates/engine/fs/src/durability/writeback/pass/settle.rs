//! Last phase of a pass: sets the new state of the pages.

use super::Pass;
use super::part::{How, Writing};
use crate::cache::pages::{Backing, Delta, Pages};
use kedge_base::Extent;
use kedge_base::broken::{self, Variant};
use std::time::Duration;

impl Pass<'_> {
    /// Called after the record. Pages in the record are in place. The others return to their
    /// previous state: an fsync that finds them dirty retries, and never returns success for bytes
    /// that are not in place. `wb` of the inodes is held.
    pub(super) fn settle(&self, completed: bool) {
        for (inode, part) in self.inodes.iter().zip(&self.parts) {
            let Some(part) = part else { continue };
            let mut pages = inode.pages.lock();
            let (mut surplus, mut delta) = (0, Delta::default());
            let mut all = true;
            for page in &part.writing {
                let failed = part.failed.contains(&page.index);
                // Broken on purpose: if the record fails, its pages become clean nevertheless.
                let recorded = completed || broken::is(Variant::ErrorNotPropagated);
                if recorded && page.how == How::InTree {
                    surplus += pages.written_to_tree(page.index) as u64;
                } else if recorded && !part.kept.contains(&page.index) {
                    surplus += pages.written(page.index) as u64;
                    pages.end_charge(page.index, part.charged.binary_search(&page.index).is_ok());
                    self.stats().relocated_writes.add((page.how == How::Moved) as u64);
                } else {
                    all = false;
                    delta.dirty += pages.not_written(page.index, page.before).dirty;
                    self.give_up_place(&mut pages, page, failed);
                }
            }
            pages.release(surplus);
            self.writeback.account(delta);
            let mut meta = inode.meta.lock();
            meta.write_failed |= !completed || part.met_error;
            if part.met_error {
                meta.failed_full = part.met_full;
            }
            if all {
                (meta.failures, meta.retry_at) = (0, Duration::ZERO);
            } else if pages.dirty_count() > 0 {
                self.writeback.list_dirty(inode, &mut meta);
            }
        }
    }

    /// Releases the block that a page did not get. A block to which the write has failed goes into
    /// quarantine; a block that only has no record becomes free.
    fn give_up_place(&self, pages: &mut Pages, page: &Writing, failed: bool) {
        let block = Extent::new(page.block, 1);
        let bad = failed && self.store().alloc().quarantine(block);
        match page.how {
            How::InPlace => {
                if bad {
                    pages.set_bad_home(page.index);
                }
            }
            How::InTree => {}
            // A record that failed half-way has shut the store down. It is unknown then which
            // blocks are owned.
            _ if !bad && self.store().check_alive().is_err() => {}
            How::Moved => {
                if !bad {
                    self.store().release_data(block);
                }
            }
            How::New => {
                // On a full image there may be no promise. The page then reserves space when it is
                // written again.
                let promise = match bad {
                    true => self.store().alloc().reserve_data(1).ok(),
                    false => self.store().alloc().unplace_data(block),
                };
                let p = pages.map.get_mut(&page.index).expect("it was just being written");
                // If the page has a promise, a writer has made it meanwhile, and no second one is
                // needed.
                let with_promise = match p.backing {
                    Backing::Unknown => Backing::Reserved,
                    Backing::Shared => Backing::Moving,
                    _ => return,
                };
                if let Some(promise) = promise {
                    p.backing = with_promise;
                    pages.reserve(promise);
                }
            }
        }
    }
}
