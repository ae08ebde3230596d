//! The geometry of a device whose size can change.
//!
//! [`crate::Device::geometry`] returns a reference, which callers keep. So a change of size appends
//! a geometry and keeps the old ones. Memory is bounded, because a user requests each change of
//! size.

use crate::Geometry;
use kedge_base::BLOCK_SIZE;
use std::sync::OnceLock;

pub(crate) struct Sizes {
    geometry: Geometry,
    next: OnceLock<Box<Sizes>>,
}

impl Sizes {
    pub(crate) fn new(geometry: Geometry) -> Sizes {
        Sizes { geometry, next: OnceLock::new() }
    }

    fn last(&self) -> &Sizes {
        let mut last = self;
        while let Some(next) = last.next.get() {
            last = next;
        }
        last
    }

    /// Returns the present geometry.
    pub(crate) fn now(&self) -> &Geometry {
        &self.last().geometry
    }

    /// Changes the size, rounded down to whole blocks.
    pub(crate) fn set(&self, size: u64) {
        let size = size - size % BLOCK_SIZE as u64;
        if self.now().size == size {
            return;
        }
        let mut new = Box::new(Sizes::new(Geometry { size, ..self.now().clone() }));
        // Another thread may have appended a geometry since. This change is the later one, so it is
        // appended after that.
        while let Err(rejected) = self.last().next.set(new) {
            new = rejected;
        }
    }
}
