//! Reads many leaves into memory before they are needed, in few round trips.
//!
//! A descent that needs a node which is not in memory reads the node and waits. A caller with many
//! keys, such as log replay, would wait once for each leaf. Prefetch instead descends for all keys
//! as far as nodes are in memory, reads all missing nodes in parallel, and repeats. It needs one
//! round trip for each level of the tree, whatever the number of keys.
//!
//! Prefetch is a hint. It skips a node that cannot be read or is corrupt; a descent that needs the
//! node reads it again and gets the error. Concurrent changes of the tree are detected when a node
//! is linked, as in any descent ([`Tree::load`]). No latch is held across IO.

use crate::frame::{Frame, Route};
use crate::tree::{TRIM_PER_LOAD, Tree};
use kedge_base::BlockNo;
use kedge_format::Key;
use kedge_format::node::{Child, NODE_SIZE};
use std::collections::BTreeSet;
use std::sync::Arc;

/// One call may fill this fraction of the cache, 1 / `CACHE_PART`, because the nodes must still be
/// in memory when they are used.
const CACHE_PART: usize = 4;

/// A node that is not in memory, with its parent and a key that it covers.
struct Missing {
    parent: Arc<Frame>,
    key: Key,
    child: Child,
}

impl Tree {
    /// Reads the leaves that cover `keys` into memory, but at most a quarter of the cache. May wait
    /// for the device.
    pub fn prefetch(&self, keys: &[Key]) {
        let mut left = (self.cache_bytes() / NODE_SIZE / CACHE_PART).max(1);
        // Nodes that were read once but could not be linked.
        let mut refused: BTreeSet<BlockNo> = BTreeSet::new();
        for _ in 0..=self.height() {
            if self.is_in_memory() || left == 0 {
                return;
            }
            let mut missing = self.missing(keys);
            missing.retain(|m| !refused.contains(&m.child.addr));
            missing.truncate(left);
            if missing.is_empty() {
                return;
            }
            left -= missing.len();
            self.meter.stats.node_reads.add(missing.len() as u64);
            let addrs: Vec<BlockNo> = missing.iter().map(|m| m.child.addr).collect();
            for (m, read) in missing.into_iter().zip(self.io.read_nodes(&addrs)) {
                self.trim(TRIM_PER_LOAD);
                if !matches!(self.link(&self.watch(), &m.parent, &m.key, m.child, read), Ok(Some(_))) {
                    refused.insert(m.child.addr);
                }
            }
        }
    }

    /// Returns the next node that each descent to the keys needs, without duplicates.
    fn missing(&self, keys: &[Key]) -> Vec<Missing> {
        let watch = self.watch();
        let mut seen = BTreeSet::new();
        let mut missing = Vec::new();
        for key in keys {
            let mut at = self.anchor.clone();
            while at.level > 0 {
                match self.route(&watch, &at, key) {
                    Route::Child(child) => at = child,
                    Route::Missing(child) => {
                        if seen.insert(child.addr) {
                            missing.push(Missing { parent: at, key: *key, child });
                        }
                        break;
                    }
                    // The tree has changed. The later descent that needs the node will restart.
                    Route::Stale => break,
                }
            }
        }
        missing
    }
}
