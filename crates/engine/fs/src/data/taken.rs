//! Allocated blocks that no record names yet.

use kedge_base::Extent;
use kedge_store::Store;

/// Extents allocated for a file whose record is not committed yet. If they are dropped before, they
/// become free again.
pub(super) struct Taken<'a> {
    pub store: &'a Store,
    pub extents: Vec<Extent>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // If applying the record failed half way, the store is shut down. Some extents may be owned
        // then, and none is allocated again.
        if self.store.check_alive().is_err() {
            return;
        }
        for extent in self.extents.drain(..) {
            self.store.release_data(extent);
        }
    }
}
