//! The end of a generation: collects the nodes that a checkpoint has to write.
//!
//! # Crash argument
//! The bytes of a frozen node never change again. Its address is not reused before the next
//! checkpoint is durable: the allocator ensures that for nodes born in an older generation. An
//! earlier checkpoint wrote every live node that is not among the frozen ones. So once all frozen
//! nodes are durable, the root leads to a complete tree on the device.

use crate::cache::DirtyTables;
use crate::frame::Frame;
use crate::latch::LatchWatch;
use crate::stats::Meter;
use crate::tree::Tree;
use kedge_base::{BlockNo, Generation, IoBuf};
use kedge_format::logwrite::LogSecret;
use kedge_format::node::{NODE_BLOCKS, NodeMut};
use std::sync::Arc;

/// The tree at the end of a generation: its root, and the nodes that are not on the device yet.
///
/// If the value is dropped without [`Tree::written`], its nodes stay in memory forever, because the
/// device has no copy.
pub struct Frozen {
    pub root: BlockNo,
    pub root_generation: Generation,
    pub root_level: u8,
    /// The generation that has ended.
    pub generation: Generation,
    /// Number of nodes of the whole tree.
    pub node_count: u64,
    /// The shards of the dirty table, unmerged: merging them in `freeze` would lengthen the time
    /// under the exclusive epoch guard.
    dirty: DirtyTables,
    secret: LogSecret,
    meter: Arc<Meter>,
}

impl Frozen {
    /// Returns the number of nodes to write.
    pub fn len(&self) -> usize {
        self.dirty.iter().map(|table| table.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of inner nodes to write.
    pub fn inner(&self) -> usize {
        self.frames().filter(|frame| frame.level > 0).count()
    }

    fn frames(&self) -> impl Iterator<Item = &Arc<Frame>> {
        self.dirty.iter().flat_map(|table| table.values())
    }

    /// Iterates over the nodes to write, in the order of their addresses. Each node is copied and
    /// sealed when the iterator reaches it.
    pub fn nodes(&self) -> impl Iterator<Item = (BlockNo, IoBuf)> + '_ {
        let mut order: Vec<&Arc<Frame>> = self.frames().collect();
        order.sort_unstable_by_key(|f| f.addr);
        order.into_iter().map(|frame| {
            let mut bytes = IoBuf::zeroed(NODE_BLOCKS as usize);
            // The latch protects the other fields of the node, which can still change. The bytes
            // are constant.
            frame.read(&LatchWatch::new(&self.meter), |n| {
                for part in n.view().occupied() {
                    bytes.as_mut_bytes()[part.clone()].copy_from_slice(&n.bytes()[part]);
                }
            });
            NodeMut::trusted(bytes.as_mut_bytes()).seal(&self.secret);
            (frame.addr, bytes)
        })
    }
}

impl Tree {
    /// Takes the nodes of the current generation. The caller then ends the generation, which
    /// several trees may share; no thread may change these trees between the two steps. Readers may
    /// run. The function copies nothing, so its duration depends neither on the size of the tree
    /// nor on the number of dirty nodes.
    pub fn freeze(&self) -> Frozen {
        let generation = self.generation();
        let (root, root_generation, root_level) = self.root();
        let dirty = self.cache.take_dirty();
        Frozen {
            root,
            root_generation,
            root_level,
            generation,
            node_count: self.node_count(),
            dirty,
            secret: self.secret,
            meter: self.meter.clone(),
        }
    }

    /// Marks the nodes of `frozen` as written, so that they can be evicted.
    pub fn written(&self, frozen: Frozen) {
        frozen.frames().for_each(|frame| frame.mark_clean());
        self.cache.add_clean(frozen.frames());
        let candidates = 2 * frozen.len();
        drop(frozen);
        self.trim(candidates);
    }
}
