//! Blocks that no record names yet.

use kedge_base::Extent;
use kedge_store::Store;

/// Extents allocated to a file until a record names them; a failure before that frees them.
pub(super) struct Taken<'a> {
    pub store: &'a Store,
    pub extents: Vec<Extent>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // A record that failed half applied has shut the store down: some extents may be owned, and
        // none will be allocated again.
        if self.store.check_alive().is_err() {
            return;
        }
        for extent in self.extents.drain(..) {
            self.store.release_data(extent);
        }
    }
}
