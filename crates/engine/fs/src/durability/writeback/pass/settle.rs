//! Last phase of a pass: the new state of the pages.

use super::Pass;
use super::part::{How, Writing};
use crate::cache::pages::{Backing, Delta, Pages};
use kedge_base::Extent;
use kedge_base::broken::{self, Variant};
use std::time::Duration;

impl Pass<'_> {
    /// After the record: pages in the record are in place. The others return to their previous
    /// state: an fsync that finds them retries, and never returns success for bytes that are not in
    /// place. `wb` of the inodes is held.
    pub(super) fn settle(&self, completed: bool) {
        for (inode, part) in self.inodes.iter().zip(&self.parts) {
            let Some(part) = part else { continue };
            let mut pages = inode.pages.lock();
            let (mut surplus, mut delta) = (0, Delta::default());
            let mut all = true;
            for page in &part.writing {
                let failed = part.failed.contains(&page.index);
                // Broken on purpose: a record that failed leaves its pages clean.
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

    /// Handles a page that did not get its place. A place to which a write failed is set aside; one
    /// that only has no record is freed.
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
            // A record that failed half-way has shut the store down; the blocks that it allocated
            // are then unknown.
            _ if !bad && self.store().check_alive().is_err() => {}
            How::Moved => {
                if !bad {
                    self.store().release_data(block);
                }
            }
            How::New => {
                // Without a promise, on a full image, the page reserves space when it is written.
                let promise = match bad {
                    true => self.store().alloc().reserve_data(1).ok(),
                    false => self.store().alloc().unplace_data(block),
                };
                let p = pages.map.get_mut(&page.index).expect("it was just being written");
                // A writer that found no extent meanwhile has made a promise of its own.
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
