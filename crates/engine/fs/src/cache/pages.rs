//! The pages of one file in memory.
//!
//! # States of a page
//! - *clean*: equal to the block in place (or to a hole); may be dropped.
//! - *dirty* (a byte range): changed since the page was last logged or written in place.
//! - *logged*: the newest durable copy of the page is in the log. It must be written in place
//!   before the log's tail may pass that copy.
//! - *being written*: the bytes are on their way to the device, or there but not yet in a record.
//!   Such a page counts as clean. If the write fails, the page returns to its previous state. All
//!   of this happens under the inode's `wb` lock. So code that must know that nothing is dirty
//!   checks with that lock held, or calls [`Pages::is_written`].
//!
//! A page may be logged and dirty at once. Dirty and logged pages stay in memory, and so does their
//! inode.
//!
//! A page records whether its block is *mapped* (has an extent). A page that is not clean has one
//! block of the inode's data reservation if it is unmapped, or if its block must not be
//! overwritten. So writing it in place cannot run out of space. A page whose block is new to a file
//! with a limit is *charged*: from the write until a record names the block, one block of the
//! inode's [`Charge`] belongs to the page.

use kedge_base::BLOCK_SIZE;
use kedge_store::{Charge, DataReservation};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The state of a page's block: whether it has an extent, and whether a reserved block belongs to
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backing {
    /// A hole, or not known because the page is clean.
    Unknown,
    /// No extent; one reserved block belongs to the page.
    Reserved,
    /// An extent of written blocks.
    Written,
    /// An extent of written blocks that must not be overwritten: another tree uses them too, or the
    /// file has checksums.
    Shared,
    /// As `Shared`, and one reserved block belongs to the page.
    Moving,
    /// An extent of unwritten (preallocated) blocks.
    Unwritten,
}

/// Which pages to write in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    Dirty,
    /// Pages whose durable copy is in the log and holds its tail.
    Logged,
    All,
}

pub(crate) struct Page {
    pub data: Box<[u8; BLOCK_SIZE]>,
    /// First and last byte changed since the page was logged or written in place, as a half-open
    /// range.
    pub dirty: Option<(u16, u16)>,
    pub logged: bool,
    pub backing: Backing,
    /// Whether one block of the inode's [`Charge`] belongs to the page.
    charged: bool,
    /// Whether a writeback is writing the page.
    writing: bool,
    /// Number of holders that need the page to stay although it is clean: a writeback whose record
    /// is not committed yet (the map still has a hole), or an operation that loaded the page to
    /// change a part of it.
    holds: u16,
}

impl Backing {
    /// Whether one reserved block belongs to the page.
    pub(crate) fn is_reserved(self) -> bool {
        matches!(self, Backing::Reserved | Backing::Moving)
    }
}

impl Page {
    pub(crate) fn zeroed() -> Page {
        Page {
            data: Box::new([0; BLOCK_SIZE]),
            dirty: None,
            logged: false,
            backing: Backing::Unknown,
            charged: false,
            writing: false,
            holds: 0,
        }
    }

    pub(crate) fn is_charged(&self) -> bool {
        self.charged
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.dirty.is_none() && !self.logged
    }

    fn mark(&mut self, from: usize, to: usize) {
        let (from, to) = (from as u16, to as u16);
        self.dirty = Some(match self.dirty {
            None => (from, to),
            Some((lo, hi)) => (lo.min(from), hi.max(to)),
        });
    }
}

/// The state of a page before a writeback began to write it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    dirty: Option<(u16, u16)>,
    logged: bool,
}

#[derive(Default)]
pub(crate) struct Pages {
    pub map: BTreeMap<u64, Page>,
    /// Indices of the dirty pages, and of the logged ones. A large file in memory has few of
    /// either, and an fsync of one page must not examine all pages.
    dirty: BTreeSet<u64>,
    logged: BTreeSet<u64>,
    /// Number of pages on their way to the device. They count as clean and may become dirty again.
    writing: usize,
    /// Pages to whose blocks a write has failed.
    bad_homes: BTreeSet<u64>,
    /// Whether written blocks must not be overwritten, because the file has checksums.
    moves: bool,
    /// The mark of the tree when the `backing` of the pages was set: extents of lower birth were
    /// shared.
    births_below: u32,
    pub reservation: Option<DataReservation>,
    /// Blocks that the inode's limit has promised to charged pages.
    pub charge: Option<Charge>,
}

/// The change of the file system's totals by a change of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    pub pages: i64,
    pub dirty: i64,
}

impl Pages {
    /// `moves`: written blocks must not be overwritten.
    pub(crate) fn new(moves: bool) -> Pages {
        Pages { moves, ..Pages::default() }
    }

    pub(crate) fn never_overwrite(&mut self, moves: bool) {
        self.moves = moves;
    }

    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    pub(crate) fn logged_count(&self) -> usize {
        self.logged.len()
    }

    pub(crate) fn get(&self, index: u64) -> Option<&Page> {
        self.map.get(&index)
    }

    /// Adapts `backing` to a new mark of the tree, after a fork or the end of a point. No page was
    /// dirty or logged at that moment. Blocks that were written may now be shared. Called before
    /// the backing of a page is used.
    pub(crate) fn follow(&mut self, births_below: u32) {
        if std::mem::replace(&mut self.births_below, births_below) == births_below {
            return;
        }
        for page in self.map.values_mut() {
            page.backing = match page.backing {
                Backing::Written => Backing::Shared,
                Backing::Unwritten => Backing::Unknown,
                other => other,
            };
        }
    }

    /// Adapts `backing` to a clone of file blocks. No page of these blocks is dirty or logged.
    pub(crate) fn share(&mut self, blocks: Range<u64>) {
        for page in self.map.range_mut(blocks).map(|(_, page)| page) {
            if page.backing == Backing::Written {
                page.backing = Backing::Shared;
            }
        }
    }

    /// Gives `promise`, one block, to a page that is about to change, if its block must not be
    /// overwritten.
    pub(crate) fn move_later(&mut self, index: u64, promise: DataReservation) {
        if let Some(page) = self.map.get_mut(&index).filter(|page| page.backing == Backing::Shared) {
            page.backing = Backing::Moving;
            self.reserve(promise);
        }
    }

    /// Adds a clean page.
    pub(crate) fn insert_clean(&mut self, index: u64, page: Page) -> Delta {
        assert!(page.is_clean());
        match self.map.entry(index) {
            std::collections::btree_map::Entry::Occupied(_) => Delta::default(),
            std::collections::btree_map::Entry::Vacant(v) => {
                v.insert(page);
                Delta { pages: 1, dirty: 0 }
            }
        }
    }

    /// Changes bytes of a page that is present and marks them dirty.
    pub(crate) fn write(&mut self, index: u64, at: usize, bytes: &[u8]) -> Delta {
        self.change(index, at, at + bytes.len(), |target| target.copy_from_slice(bytes))
    }

    /// Zeroes bytes of a page that is present and marks them dirty.
    pub(crate) fn zero(&mut self, index: u64, from: usize, to: usize) -> Delta {
        self.change(index, from, to, |target| target.fill(0))
    }

    fn change(&mut self, index: u64, from: usize, to: usize, edit: impl FnOnce(&mut [u8])) -> Delta {
        let page = self.map.get_mut(&index).expect("the caller made the page present");
        edit(&mut page.data[from..to]);
        let was = page.dirty.is_some();
        page.mark(from, to);
        if !was {
            self.dirty.insert(index);
        }
        Delta { pages: 0, dirty: !was as i64 }
    }

    /// Marks a byte range of a page dirty. The bytes have been changed already.
    pub(crate) fn mark_dirty(&mut self, index: u64, range: Option<(u16, u16)>) -> Delta {
        match (range, self.map.contains_key(&index)) {
            (Some((lo, hi)), true) => self.change(index, lo as usize, hi as usize, |_| {}),
            _ => Delta::default(),
        }
    }

    /// Marks the page's dirty bytes as logged, after a record with them was committed.
    pub(crate) fn set_logged(&mut self, index: u64) -> Delta {
        let page = self.map.get_mut(&index).expect("a page that is logged is present");
        let was_dirty = page.dirty.take().is_some();
        page.logged = true;
        if was_dirty {
            self.dirty.remove(&index);
        }
        self.logged.insert(index);
        Delta { pages: 0, dirty: -(was_dirty as i64) }
    }

    /// Replaces bytes of a page by those of a committed record, and sets the page's backing. Other
    /// bytes of the page that are in no record stay dirty.
    pub(crate) fn log_over(
        &mut self,
        index: u64,
        bytes: &[u8; BLOCK_SIZE],
        ranges: &[(u16, u16)],
        backing: Backing,
    ) -> Delta {
        let page = self.map.get_mut(&index).expect("the caller made the page present");
        for (lo, hi) in ranges {
            page.data[*lo as usize..*hi as usize].copy_from_slice(&bytes[*lo as usize..*hi as usize]);
        }
        page.backing = backing;
        page.logged = true;
        self.logged.insert(index);
        let is_covered = |(from, to): (u16, u16)| ranges.iter().any(|(lo, hi)| *lo <= from && to <= *hi);
        let covered = page.dirty.is_some_and(is_covered);
        if covered {
            page.dirty = None;
            self.dirty.remove(&index);
        }
        Delta { pages: 0, dirty: -(covered as i64) }
    }

    /// Protects a page from eviction until [`Pages::release_hold`], if it is present. Returns
    /// whether it is.
    pub(crate) fn hold(&mut self, index: u64) -> bool {
        self.map.get_mut(&index).map(|page| page.holds += 1).is_some()
    }

    pub(crate) fn release_hold(&mut self, index: u64) {
        if let Some(page) = self.map.get_mut(&index) {
            page.holds = page.holds.saturating_sub(1);
        }
    }

    /// Starts writing a page in place: it counts as clean unless it changes again, and is held
    /// until [`Pages::written`] or [`Pages::not_written`]. Returns its previous state, and the
    /// change of the totals.
    pub(crate) fn set_writing(&mut self, index: u64) -> (Before, Delta) {
        let page = self.map.get_mut(&index).expect("a page that is written back is present");
        page.holds += 1;
        page.writing = true;
        self.writing += 1;
        let before = Before { dirty: page.dirty.take(), logged: std::mem::take(&mut page.logged) };
        if before.dirty.is_some() {
            self.dirty.remove(&index);
        }
        if before.logged {
            self.logged.remove(&index);
        }
        (before, Delta { pages: 0, dirty: -(before.dirty.is_some() as i64) })
    }

    /// Ends [`Pages::set_writing`] with success: the page is in place and a record names its block.
    /// Returns whether the page still has a reserved block, which it no longer needs: the record
    /// preceded the write that reserved it.
    pub(crate) fn written(&mut self, index: u64) -> bool {
        self.bad_homes.remove(&index);
        let moves = self.moves;
        let page = self.end_writing(index);
        if moves && !page.is_clean() && page.backing.is_reserved() {
            // The page has changed meanwhile, and needs another new block.
            page.backing = Backing::Moving;
            return false;
        }
        let backing = if moves { Backing::Shared } else { Backing::Written };
        std::mem::replace(&mut page.backing, backing).is_reserved()
    }

    /// Ends [`Pages::set_writing`] with success: the page's bytes are in the tree. Returns whether
    /// the page had a reserved block that it no longer needs. A page that has changed meanwhile
    /// keeps its block.
    pub(crate) fn written_to_tree(&mut self, index: u64) -> bool {
        self.bad_homes.remove(&index);
        let page = self.end_writing(index);
        if !page.is_clean() {
            return false;
        }
        let surplus = std::mem::replace(&mut page.backing, Backing::Unknown).is_reserved();
        self.end_charge(index, false);
        surplus
    }

    /// States that a record has put the page's bytes into the tree. The page becomes clean, and
    /// what was promised to it is returned.
    pub(crate) fn set_in_tree(&mut self, index: u64) -> Delta {
        let page = self.map.get_mut(&index).expect("a page that is recorded is present");
        let was_dirty = page.dirty.take().is_some();
        let surplus = std::mem::replace(&mut page.backing, Backing::Unknown).is_reserved();
        if was_dirty {
            self.dirty.remove(&index);
        }
        self.release(surplus as u64);
        self.end_charge(index, false);
        Delta { pages: 0, dirty: -(was_dirty as i64) }
    }

    /// Whether a change of the page needs a promise although its block is unwritten: the block is
    /// just being written, and must not be overwritten afterwards.
    pub(crate) fn moves_after_write(&self, index: u64) -> bool {
        let page = self.map.get(&index).filter(|page| page.backing == Backing::Unwritten);
        self.moves && page.is_some_and(|page| page.writing)
    }

    /// Ends [`Pages::set_writing`] with failure: restores the page's previous state, combined with
    /// changes made meanwhile.
    pub(crate) fn not_written(&mut self, index: u64, before: Before) -> Delta {
        let page = self.end_writing(index);
        let was_dirty = page.dirty.is_some();
        if let Some((from, to)) = before.dirty {
            page.mark(from as usize, to as usize);
            self.dirty.insert(index);
        }
        if before.logged {
            self.map.get_mut(&index).expect("just seen").logged = true;
            self.logged.insert(index);
        }
        Delta { pages: 0, dirty: (before.dirty.is_some() && !was_dirty) as i64 }
    }

    fn end_writing(&mut self, index: u64) -> &mut Page {
        self.writing -= 1;
        let page = self.map.get_mut(&index).expect("held since it is being written");
        page.holds -= 1;
        page.writing = false;
        page
    }

    /// Whether no page is dirty or being written. (A page being written may become dirty again.)
    pub(crate) fn is_written(&self) -> bool {
        self.dirty.is_empty() && self.writing == 0
    }

    /// Records that a write to the page's block has failed: the next write uses another block.
    pub(crate) fn set_bad_home(&mut self, index: u64) {
        self.bad_homes.insert(index);
    }

    pub(crate) fn has_bad_home(&self, index: u64) -> bool {
        !self.bad_homes.is_empty() && self.bad_homes.contains(&index)
    }

    /// The first dirty page from `from` on that is not in `listed`, which is sorted.
    pub(crate) fn first_dirty_beside(&self, from: u64, listed: &[u64]) -> Option<u64> {
        self.dirty.range(from..).find(|index| listed.binary_search(index).is_err()).copied()
    }

    /// Indices of the first `max` pages of kind `which` in `range`, ascending.
    pub(crate) fn unclean(&self, which: Which, range: Range<u64>, max: usize) -> Vec<u64> {
        if range.is_empty() {
            return Vec::new();
        }
        let (dirty, logged) = (self.dirty.range(range.clone()), self.logged.range(range));
        match which {
            Which::Dirty => dirty.copied().take(max).collect(),
            Which::Logged => logged.copied().take(max).collect(),
            Which::All => {
                let mut both: Vec<u64> = dirty.take(max).chain(logged.take(max)).copied().collect();
                both.sort_unstable();
                both.dedup();
                both.truncate(max);
                both
            }
        }
    }

    /// The index after the last page of kind `which`; 0 if there is none.
    pub(crate) fn unclean_end(&self, which: Which) -> u64 {
        let (dirty, logged) = (self.dirty.last(), self.logged.last());
        let last = match which {
            Which::Dirty => dirty,
            Which::Logged => logged,
            Which::All => dirty.max(logged),
        };
        last.map_or(0, |last| last + 1)
    }

    /// Removes the pages in `[from, to)`, dirty or not, and returns their reserved blocks and
    /// charges.
    pub(crate) fn remove_range(&mut self, from: u64, to: u64) -> Delta {
        let gone: Vec<u64> = self.map.range(from..to).map(|(&i, _)| i).collect();
        let mut delta = Delta::default();
        let (mut reserved, mut charged) = (0, 0);
        for index in gone {
            let page = self.map.remove(&index).expect("just listed");
            delta.pages -= 1;
            if page.logged {
                self.logged.remove(&index);
            }
            if page.dirty.is_some() {
                self.dirty.remove(&index);
                delta.dirty -= 1;
            }
            self.bad_homes.remove(&index);
            reserved += page.backing.is_reserved() as u64;
            charged += page.charged as u64;
        }
        self.release(reserved);
        self.uncharge(charged);
        delta
    }

    /// Number of blocks that are promised to the pages.
    pub(crate) fn promised(&self) -> u64 {
        self.reservation.as_ref().map_or(0, DataReservation::blocks)
    }

    /// Returns reserved blocks.
    pub(crate) fn release(&mut self, blocks: u64) {
        if blocks > 0 {
            drop(self.reservation.as_mut().map(|r| r.split(blocks)));
        }
    }

    /// Gives one block of `charge` to a page that is present.
    pub(crate) fn charge_page(&mut self, index: u64, charge: Charge) {
        self.map.get_mut(&index).expect("the caller made the page present").charged = true;
        match &mut self.charge {
            Some(all) if all.held_blocks() > 0 && all.id() == charge.id() => all.merge(charge),
            // The inode may now count for another limit. The old charge is empty, since a limit
            // changes only while no page waits for a block; what it held would be returned.
            none => *none = Some(charge),
        }
    }

    /// The number of charged pages in a range.
    pub(crate) fn charged_in(&self, range: Range<u64>) -> u64 {
        if self.charge.is_none() || range.is_empty() {
            return 0;
        }
        self.map.range(range).filter(|(_, page)| page.charged).count() as u64
    }

    /// Ends the charge of a page, because a record names its block. `spent`: the record has used
    /// the charge up; otherwise the charge is returned.
    pub(crate) fn end_charge(&mut self, index: u64, spent: bool) {
        let Some(page) = self.map.get_mut(&index) else { return };
        if !std::mem::take(&mut page.charged) {
            return;
        }
        match &mut self.charge {
            Some(charge) if spent => charge.spent(1, 0),
            _ => self.uncharge(1),
        }
    }

    fn uncharge(&mut self, blocks: u64) {
        if blocks > 0 {
            drop(self.charge.as_mut().map(|charge| charge.split(blocks)));
        }
    }

    /// Adds reserved blocks.
    pub(crate) fn reserve(&mut self, more: DataReservation) {
        match &mut self.reservation {
            Some(r) => r.merge(more),
            none => *none = Some(more),
        }
    }

    /// Drops a page if it is clean, has no holder and owns no promised block. Returns whether it
    /// was dropped.
    pub(crate) fn evict(&mut self, index: u64) -> bool {
        match self.map.get(&index) {
            Some(page)
                if page.is_clean() && page.holds == 0 && !page.backing.is_reserved() && !page.charged =>
            {
                self.map.remove(&index);
                true
            }
            _ => false,
        }
    }
}
