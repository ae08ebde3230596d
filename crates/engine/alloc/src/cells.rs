//! The groups of an image, in an array that can grow while other threads read it.
//!
//! The first part is a slice with the groups that the image has when it is opened. Each further
//! part is as long as all parts before it together. So the number of parts is bounded, and a reader
//! finds a group without a lock. A part is allocated when the image first grows into it. Groups of
//! the part that the image does not have yet are marked as owned by the format. Parts are never
//! removed.

use crate::bitmap::{BITS, Bitmap};
use crate::group::{Group, GroupCell};
use kedge_base::BlockNo;
use kedge_base::atomic::{AtomicU64, Ordering::SeqCst};
use kedge_format::alloc::GROUP_BLOCKS;
use std::sync::{Arc, OnceLock};

/// Number of parts after the first: enough for the largest image, whatever its initial size.
const PARTS: usize = 24;

pub(crate) struct Cells {
    first: Box<[GroupCell]>,
    more: [OnceLock<Box<[GroupCell]>>; PARTS],
    len: AtomicU64,
}

impl Cells {
    pub(crate) fn new(first: Box<[GroupCell]>) -> Cells {
        let len = AtomicU64::new(first.len() as u64);
        Cells { first, more: Default::default(), len }
    }

    /// Returns the number of groups of the image.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(SeqCst)
    }

    pub(crate) fn get(&self, g: u64) -> &GroupCell {
        match self.first.get(g as usize) {
            Some(cell) => cell,
            None => {
                let (part, start) = self.part_of(g);
                &self.more[part].get().expect("the image has this group")[(g - start) as usize]
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &GroupCell> {
        (0..self.len()).map(|g| self.get(g))
    }

    /// Returns the part that contains group `g`, which is not in the first slice, and the part's
    /// first group.
    fn part_of(&self, g: u64) -> (usize, u64) {
        let first = self.first.len() as u64;
        let part = (g / first).ilog2();
        (part as usize, first << part)
    }

    /// Makes the first `len` groups accessible. New groups are owned by the format as a whole.
    pub(crate) fn make(&self, len: u64) {
        let full = {
            let mut bitmap = Bitmap::new();
            bitmap.set(0, BITS);
            Arc::new(bitmap)
        };
        let mut g = self.first.len() as u64;
        while g < len {
            let (part, start) = self.part_of(g);
            self.more[part].get_or_init(|| {
                (start..2 * start)
                    .map(|g| GroupCell::new(g + 1, Group::new(BlockNo(g * GROUP_BLOCKS), full.clone())))
                    .collect()
            });
            g = 2 * start;
        }
    }

    /// Sets the number of groups that searches use.
    pub(crate) fn set_len(&self, len: u64) {
        self.make(len);
        self.len.store(len, SeqCst);
    }
}
