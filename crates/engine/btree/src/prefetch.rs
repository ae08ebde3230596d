//! Reads leaves in before they are needed, many in one round trip.
//!
//! A descent reads a node that is not in memory and waits for it. A caller with many keys, such as
//! log replay, would wait once for each leaf. Here all keys descend as far as nodes are in memory,
//! the nodes that they miss are read in parallel, and so on: one round trip for each level of the
//! tree, whatever the number of keys.
//!
//! Prefetch is a hint. A node that cannot be read or is corrupt is left out; a descent that needs
//! it reads it again and gets the error. Concurrent changes of the tree are detected when a node is
//! linked, as in any descent ([`Tree::load`]). No latch is held across IO.

use crate::frame::{Frame, Route};
use crate::tree::{TRIM_PER_LOAD, Tree};
use kedge_base::BlockNo;
use kedge_format::Key;
use kedge_format::node::{Child, NODE_SIZE};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The part of the cache, one in this many, that one call may fill: the nodes must still be in
/// memory when they are used.
const CACHE_PART: usize = 4;

/// A node that is not in memory.
struct Missing {
    parent: Arc<Frame>,
    key: Key,
    child: Child,
}

impl Tree {
    /// Reads in the leaves that cover `keys`, but at most a quarter of the cache. May wait for the
    /// device.
    pub fn prefetch(&self, keys: &[Key]) {
        let mut left = (self.cache_bytes() / NODE_SIZE / CACHE_PART).max(1);
        // Nodes that were read once and could not be linked.
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

    /// The nodes that the descents to the keys need next, each once.
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
                    // Changed meanwhile. The descent that needs the node will restart.
                    Route::Stale => break,
                }
            }
        }
        missing
    }
}
