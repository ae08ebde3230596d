//! The locks and the WAL index that the connections to one file share.

use crate::locks::{Held, Locks, Slots};
use parking_lot::Mutex;
use std::sync::atomic::AtomicU64;

/// The most regions of a WAL index, enough for a WAL of some 500 GiB.
const REGIONS_MAX: usize = 1 << 15;
/// The most bytes of a region. SQLite requests 32 KiB.
const REGION_BYTES_MAX: usize = 1 << 20;

#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) locks: Mutex<Locks>,
    pub(crate) index: Mutex<Index>,
}

/// The memory of the WAL index. SQLite orders its accesses by the locks in `slots` and by barriers.
#[derive(Default)]
pub(crate) struct Index {
    pub(crate) slots: Slots,
    /// The address of each region is valid until the last connection leaves.
    regions: Vec<Box<[AtomicU64]>>,
    connections: usize,
}

impl Index {
    /// The address of a region of `bytes` bytes. With `extend` a missing region is made.
    pub(crate) fn region(&mut self, at: usize, bytes: usize, extend: bool) -> Result<*mut u8, NoRegion> {
        if at >= REGIONS_MAX || bytes > REGION_BYTES_MAX {
            return Err(NoRegion::TooLarge);
        }
        while self.regions.len() <= at {
            if !extend {
                return Err(NoRegion::Absent);
            }
            let words = bytes.div_ceil(size_of::<AtomicU64>());
            self.regions.push((0..words).map(|_| AtomicU64::new(0)).collect());
        }
        match self.regions[at].len() * size_of::<AtomicU64>() {
            len if len < bytes => Err(NoRegion::TooLarge),
            _ => Ok(self.regions[at].as_ptr().cast::<u8>().cast_mut()),
        }
    }

    pub(crate) fn join(&mut self) {
        self.connections += 1;
    }

    /// Removes a connection. With the last connection the memory is freed.
    pub(crate) fn leave(&mut self, held: &mut Held) {
        self.slots.release(held, u8::MAX);
        self.connections -= 1;
        if self.connections == 0 {
            self.regions.clear();
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoRegion {
    Absent,
    TooLarge,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_stay_where_they_are_and_go_with_the_last_connection() {
        let mut index = Index::default();
        index.join();
        index.join();
        assert_eq!(index.region(0, 32768, false), Err(NoRegion::Absent));
        let first = index.region(0, 32768, true).expect("extended");
        let third = index.region(2, 32768, true).expect("extended");
        assert_eq!(index.region(0, 32768, false), Ok(first));
        assert_ne!(first, third);
        assert_eq!(index.region(0, 65536, true), Err(NoRegion::TooLarge));
        assert_eq!(index.region(REGIONS_MAX, 32768, true), Err(NoRegion::TooLarge));
        index.leave(&mut Held::default());
        assert_eq!(index.region(0, 32768, false), Ok(first));
        index.leave(&mut Held::default());
        assert_eq!(index.region(0, 32768, false), Err(NoRegion::Absent));
    }
}
