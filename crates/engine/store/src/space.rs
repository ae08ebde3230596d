//! Connects the tree to the allocator and the device, so that `btree` depends on neither.

use kedge_alloc::Alloc;
use kedge_base::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Mutex, Rank};
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
    /// Number of nodes that this thread has taken.
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// Number of nodes that the calling thread has taken since it started.
pub(crate) fn nodes_taken() -> u64 {
    TAKEN.get()
}

/// The marks of a tree: extents of lower birth and nodes of lower generation belong to its point
/// (see [`kedge_format::trees`]).
#[derive(Default)]
pub(crate) struct Marks {
    births_below: AtomicU32,
    nodes_below: AtomicU64,
}

impl Marks {
    /// Sets the marks. The caller holds the exclusive epoch guard, or the tree is not in use yet.
    pub(crate) fn set(&self, births_below: u32, nodes_below: Generation) {
        self.births_below.store(births_below, Ordering::Relaxed);
        self.nodes_below.store(nodes_below.0, Ordering::Relaxed);
    }

    pub(crate) fn births_below(&self) -> u32 {
        self.births_below.load(Ordering::Relaxed)
    }
}

/// The trees, other than the first, that have taken nodes since the last cut, each once. Only these
/// have nodes that the next cut must write.
pub(crate) struct Changed(Mutex<Vec<Arc<ChangeNote>>>);

impl Changed {
    pub(crate) fn new() -> Arc<Changed> {
        Arc::new(Changed(Mutex::new(Rank::Leaf, Vec::new())))
    }

    /// Removes and returns the numbers of the listed trees. The caller holds the exclusive epoch
    /// guard, so no tree changes meanwhile.
    pub(crate) fn take(&self) -> Vec<u32> {
        let mut notes = std::mem::take(&mut *self.0.lock());
        for note in &notes {
            note.is_listed.store(false, Ordering::Release);
        }
        // Broken on purpose: the cut omits a tree that has changed.
        if broken::is(Variant::ChangedTreeLeftOut) {
            notes.pop();
        }
        notes.iter().map(|note| note.number).collect()
    }
}

/// Adds a tree to [`Changed`], once in each generation.
pub(crate) struct ChangeNote {
    number: u32,
    is_listed: AtomicBool,
    list: Arc<Changed>,
}

impl ChangeNote {
    pub(crate) fn new(number: u32, list: Arc<Changed>) -> Arc<ChangeNote> {
        Arc::new(ChangeNote { number, is_listed: AtomicBool::new(false), list })
    }

    fn note(self: &Arc<ChangeNote>) {
        // Several threads may take the tree's first node of a generation; one of them lists the
        // tree.
        if !self.is_listed.load(Ordering::Relaxed) && !self.is_listed.swap(true, Ordering::AcqRel) {
            self.list.0.lock().push(self.clone());
        }
    }
}

pub(crate) struct AllocNodes {
    pub alloc: Arc<Alloc>,
    /// The present generation, which all trees share.
    pub generation: Arc<AtomicU64>,
    pub marks: Arc<Marks>,
    /// Lists the tree in [`Changed`] when it takes a node: every node that a cut must write was
    /// taken in the generation that the cut ends. `None`: each cut visits the tree anyway.
    pub changes: Option<Arc<ChangeNote>>,
}

impl NodeSpace for AllocNodes {
    fn alloc_node(&self, near: BlockNo) -> Result<BlockNo> {
        TAKEN.set(TAKEN.get() + 1);
        if let Some(changes) = &self.changes {
            changes.note();
        }
        self.alloc.alloc_node(near)
    }

    fn free_node(&self, addr: BlockNo, born: Generation) {
        // Broken on purpose: a tree frees nodes that it shares.
        if born.0 < self.marks.nodes_below.load(Ordering::Relaxed) && !broken::is(Variant::FreeSharedNode) {
            return; // the point owns the node
        }
        let current = Generation(self.generation.load(Ordering::Relaxed));
        if let Err(e) = self.alloc.free_node(addr, born, current) {
            // The tree no longer uses the node. At worst its slot is lost until fsck, which reports
            // it.
            tracing::error!("freeing the tree node at block {addr}: {e}");
        }
    }
}
