//! Connects the tree to the allocator and the device, so that `btree` depends on neither.

use kedge_alloc::Alloc;
use kedge_base::atomic::{AtomicU32, AtomicU64, Ordering};
use kedge_base::broken::{self, Variant};
use kedge_base::{BlockNo, Generation, IoBuf, Result};
use kedge_btree::{NodeIo, NodeSpace};
use kedge_device::{Completion, Device, Io, Op, run_batch};
use kedge_format::node::NODE_BLOCKS;
use std::cell::Cell;
use std::sync::Arc;

pub(crate) struct DeviceNodes(pub Arc<dyn Device>);

impl NodeIo for DeviceNodes {
    fn read_node(&self, addr: BlockNo) -> Result<IoBuf> {
        let mut buf = IoBuf::zeroed(NODE_BLOCKS as usize);
        self.0.read(addr.byte_offset(), &mut buf)?;
        Ok(buf)
    }

    fn read_nodes(&self, addrs: &[BlockNo]) -> Vec<Result<IoBuf>> {
        let read = |addr: &BlockNo| Io {
            offset: addr.byte_offset(),
            op: Op::Read(IoBuf::zeroed(NODE_BLOCKS as usize)),
        };
        let done = run_batch(&*self.0, addrs.iter().map(read).collect());
        let answer = |completion: Completion| match (completion.result, completion.op) {
            (Ok(()), Op::Read(buf)) => Ok(buf),
            (Ok(()), _) => unreachable!("a completion returns its request's operation"),
            (Err(e), _) => Err(e),
        };
        done.into_iter().map(answer).collect()
    }
}

thread_local! {
    /// Nodes that this thread has taken.
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// Nodes that the calling thread has taken so far.
pub(crate) fn nodes_taken() -> u64 {
    TAKEN.get()
}

/// What is older than these belongs to the point of a tree: see [`kedge_format::trees`].
#[derive(Default)]
pub(crate) struct Marks {
    births_below: AtomicU32,
    nodes_below: AtomicU64,
}

impl Marks {
    /// Called under the exclusive epoch guard, or before the tree is in use.
    pub(crate) fn set(&self, births_below: u32, nodes_below: Generation) {
        self.births_below.store(births_below, Ordering::Relaxed);
        self.nodes_below.store(nodes_below.0, Ordering::Relaxed);
    }

    pub(crate) fn births_below(&self) -> u32 {
        self.births_below.load(Ordering::Relaxed)
    }
}

pub(crate) struct AllocNodes {
    pub alloc: Arc<Alloc>,
    /// The tree's current generation.
    pub generation: Arc<AtomicU64>,
    pub marks: Arc<Marks>,
}

impl NodeSpace for AllocNodes {
    fn alloc_node(&self, near: BlockNo) -> Result<BlockNo> {
        TAKEN.set(TAKEN.get() + 1);
        self.alloc.alloc_node(near)
    }

    fn free_node(&self, addr: BlockNo, born: Generation) {
        // Broken on purpose: a tree frees nodes that it shares.
        if born.0 < self.marks.nodes_below.load(Ordering::Relaxed) && !broken::is(Variant::FreeSharedNode) {
            return; // the point's
        }
        let current = Generation(self.generation.load(Ordering::Relaxed));
        if let Err(e) = self.alloc.free_node(addr, born, current) {
            // The tree no longer uses the node. At worst its slot is leaked, which fsck reports.
            tracing::error!("freeing the tree node at block {addr}: {e}");
        }
    }
}
