//! Connects the tree to the allocator and the device, so that `btree` depends on neither.

use kedge_alloc::Alloc;
use kedge_base::{BlockNo, Generation, IoBuf, Result};
use kedge_btree::{NodeIo, NodeSpace};
use kedge_device::{Completion, Device, Io, Op, run_batch};
use kedge_format::node::NODE_BLOCKS;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

pub(crate) struct AllocNodes {
    pub alloc: Arc<Alloc>,
    /// The tree's current generation.
    pub generation: Arc<AtomicU64>,
}

impl NodeSpace for AllocNodes {
    fn alloc_node(&self, near: BlockNo) -> Result<BlockNo> {
        TAKEN.set(TAKEN.get() + 1);
        self.alloc.alloc_node(near)
    }

    fn free_node(&self, addr: BlockNo, born: Generation) {
        let current = Generation(self.generation.load(Ordering::Relaxed));
        if let Err(e) = self.alloc.free_node(addr, born, current) {
            // The tree no longer uses the node. At worst its slot is leaked, which fsck reports.
            tracing::error!("freeing the tree node at block {addr}: {e}");
        }
    }
}
