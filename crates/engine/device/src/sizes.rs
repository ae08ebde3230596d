//! The geometry of a device whose size can change.
//!
//! [`crate::Device::geometry`] returns a reference, which callers keep. So a change of size appends
//! a geometry and leaves the old ones in place: there are as many as there were changes while the
//! device was open, and each was requested by a user.

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

    /// The present geometry.
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
        // Another thread may have appended meanwhile: the later change is the one in force.
        while let Err(rejected) = self.last().next.set(new) {
            new = rejected;
        }
    }
}
