//! A device and an allocator in memory, and checkpoints of a tree on them.
#![allow(dead_code, clippy::unwrap_used)]

use kedge_base::{BlockNo, CorruptKind, Error, Generation, IoBuf, Result};
use kedge_btree::{Frozen, Key, NodeIo, NodeSpace, Totals, Tree, TreeCheck, TreeConfig, TreeLock};
use kedge_format::logwrite::LogSecret;
use kedge_format::node::{Child, NODE_BLOCKS};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

pub const UUID: uuid::Uuid = uuid::Uuid::from_u128(42);
pub const SECRET: LogSecret = LogSecret([42; 16]);

#[derive(Default)]
pub struct Device {
    pub nodes: Mutex<BTreeMap<BlockNo, Vec<u8>>>,
    pub reads: AtomicU64,
    /// Number of nodes in each batch of reads so far.
    pub batches: Mutex<Vec<usize>>,
    /// Number of reads that still succeed; `None` for no limit.
    pub quota: Option<AtomicU64>,
    /// Runs once, at the start of the next read.
    pub meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl NodeIo for Device {
    fn read_node(&self, addr: BlockNo) -> Result<IoBuf> {
        self.reads.fetch_add(1, Relaxed);
        let meanwhile = self.meanwhile.lock().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        let quota = self.quota.as_ref();
        if quota.is_some_and(|q| q.fetch_update(AcqRel, Acquire, |q| q.checked_sub(1)).is_err()) {
            return Err(Error::Io {
                op: "read",
                offset: addr.byte_offset(),
                len: 16384,
                errno: kedge_base::errno::EIO,
            });
        }
        match self.nodes.lock().get(&addr) {
            Some(bytes) => Ok(IoBuf::from_bytes(bytes)),
            None => Err(Error::corrupt(CorruptKind::Node, addr, "read before it was written")),
        }
    }

    fn read_nodes(&self, addrs: &[BlockNo]) -> Vec<Result<IoBuf>> {
        self.batches.lock().push(addrs.len());
        addrs.iter().map(|addr| self.read_node(*addr)).collect()
    }
}

#[derive(Default)]
struct SpaceState {
    /// Nodes of the current tree: address and generation of birth.
    owned: BTreeMap<BlockNo, Generation>,
    /// Freed nodes that the last durable checkpoint still uses.
    held: Vec<BlockNo>,
    /// Freed nodes that the frozen generation, whose checkpoint is in progress, still uses.
    held_by_frozen: Vec<BlockNo>,
    free: Vec<BlockNo>,
    next: u64,
    current: u64,
}

/// An allocator that follows the reuse rules of the real one, and asserts that the tree obeys them.
pub struct Space {
    state: Mutex<SpaceState>,
    /// Number of nodes that may still be allocated.
    pub quota: AtomicU64,
}

impl Space {
    pub fn new(current: Generation) -> Space {
        let state = SpaceState { next: 1, current: current.0, ..Default::default() };
        Space { state: Mutex::new(state), quota: AtomicU64::new(u64::MAX) }
    }

    pub fn owned(&self) -> BTreeMap<BlockNo, Generation> {
        self.state.lock().owned.clone()
    }

    pub fn with_owned(owned: BTreeMap<BlockNo, Generation>, current: Generation) -> Space {
        let space = Space::new(current);
        {
            let mut state = space.state.lock();
            state.next = owned.keys().last().map_or(1, |b| b.0 / NODE_BLOCKS + 1);
            state.owned = owned;
        }
        space
    }
}

impl NodeSpace for Space {
    fn alloc_node(&self, _near: BlockNo) -> Result<BlockNo> {
        if self.quota.fetch_update(AcqRel, Acquire, |q| q.checked_sub(1)).is_err() {
            return Err(Error::NoSpace);
        }
        let mut state = self.state.lock();
        let addr = state.free.pop().unwrap_or_else(|| {
            state.next += 1;
            BlockNo((state.next - 1) * NODE_BLOCKS)
        });
        let current = Generation(state.current);
        assert_eq!(state.owned.insert(addr, current), None);
        Ok(addr)
    }

    fn free_node(&self, addr: BlockNo, born: Generation) {
        let mut state = self.state.lock();
        assert_eq!(state.owned.remove(&addr), Some(born), "freed what is not owned, or with a wrong birth");
        if born.0 == state.current {
            state.free.push(addr);
        } else {
            state.held.push(addr);
        }
    }
}

pub struct World {
    pub device: Arc<Device>,
    pub space: Arc<Space>,
    pub tree: Tree,
    generation: Arc<AtomicU64>,
    pub totals: Arc<Totals>,
}

pub struct Checkpoint {
    pub frozen: Frozen,
    pub owned: BTreeMap<BlockNo, Generation>,
}

impl World {
    pub fn new(cache_bytes: usize) -> World {
        World::with_lock(TreeLock::default(), cache_bytes)
    }

    pub fn with_lock(lock: TreeLock, cache_bytes: usize) -> World {
        let generation = Generation(5);
        let (device, space) = (Arc::new(Device::default()), Arc::new(Space::new(generation)));
        let config = TreeConfig { lock, ..TreeConfig::new(UUID, SECRET, cache_bytes) };
        let (generation, totals) = (Arc::new(AtomicU64::new(generation.0)), config.totals.clone());
        let tree = Tree::create(device.clone(), space.clone(), config, generation.clone()).unwrap();
        World { device, space, tree, generation, totals }
    }

    /// Ends the generation. No writer may be active.
    pub fn freeze(&self) -> Checkpoint {
        let frozen = self.tree.freeze();
        self.generation.fetch_add(1, AcqRel);
        let mut state = self.space.state.lock();
        assert!(state.held_by_frozen.is_empty(), "one checkpoint at a time");
        state.current += 1;
        assert_eq!(self.tree.generation().0, state.current);
        state.held_by_frozen = std::mem::take(&mut state.held);
        let owned = state.owned.clone();
        assert_eq!(frozen.node_count, owned.len() as u64);
        assert_eq!(frozen.generation.0 + 1, state.current);
        Checkpoint { frozen, owned }
    }

    pub fn write(&self, checkpoint: &Checkpoint) {
        let before = self.device.nodes.lock().len();
        let mut count = 0;
        for (addr, buf) in checkpoint.frozen.nodes() {
            assert_eq!(
                checkpoint.owned.get(&addr),
                Some(&checkpoint.frozen.generation),
                "of this generation"
            );
            self.device.nodes.lock().insert(addr, buf.as_bytes().to_vec());
            count += 1;
        }
        assert_eq!(count, checkpoint.frozen.len());
        assert!(self.device.nodes.lock().len() <= before + count);
    }

    /// Makes the checkpoint durable: frees the nodes that only the previous checkpoint used, and
    /// destroys them on this device.
    pub fn finish(&self, checkpoint: Checkpoint) {
        self.tree.written(checkpoint.frozen);
        let mut state = self.space.state.lock();
        let freed = std::mem::take(&mut state.held_by_frozen);
        for addr in &freed {
            self.device.nodes.lock().remove(addr);
        }
        state.free.extend(freed);
    }

    pub fn checkpoint(&self) {
        let checkpoint = self.freeze();
        self.write(&checkpoint);
        self.finish(checkpoint);
    }

    /// Opens a second tree on the frozen state, as recovery would.
    pub fn open_frozen(&self, checkpoint: &Checkpoint, cache_bytes: usize) -> Result<World> {
        let frozen = &checkpoint.frozen;
        let current = frozen.generation.next();
        let nodes = self.device.nodes.lock().clone();
        let device = Device { nodes: Mutex::new(nodes), quota: Some(u64::MAX.into()), ..Default::default() };
        let device = Arc::new(device);
        let space = Arc::new(Space::with_owned(checkpoint.owned.clone(), current));
        let config = TreeConfig { lock: self.tree.lock(), ..TreeConfig::new(UUID, SECRET, cache_bytes) };
        let (generation, totals) = (Arc::new(AtomicU64::new(current.0)), config.totals.clone());
        let tree = Tree::open(
            device.clone(),
            space.clone(),
            config,
            frozen.root,
            frozen.root_generation,
            frozen.root_level,
            frozen.node_count,
            generation.clone(),
        )?;
        Ok(World { device, space, tree, generation, totals })
    }

    /// Walks the tree and compares the nodes that it uses with the nodes that were allocated.
    pub fn check(&self) -> TreeCheck {
        let found = self.tree.check().unwrap();
        let reachable: BTreeMap<BlockNo, Generation> =
            found.nodes.iter().map(|&Child { addr, generation }| (addr, generation)).collect();
        assert_eq!(reachable.len(), found.nodes.len(), "no node is used twice");
        assert_eq!(reachable, self.space.owned(), "what is reachable is what is allocated");
        found
    }

    pub fn contents(&self) -> BTreeMap<Key, Vec<u8>> {
        let mut out = BTreeMap::new();
        let mut last = None;
        self.tree
            .scan(Key::MIN, Key::MAX, &mut |key, value| {
                assert!(last.is_none_or(|l| l < key), "ascending");
                last = Some(key);
                out.insert(key, value.to_vec());
                ControlFlow::Continue(())
            })
            .unwrap();
        out
    }
}

pub fn key(n: u64) -> Key {
    Key { ino: n >> 10, kind: (n >> 8) as u8 & 3, offset: (n & 255).wrapping_mul(0x0123_4567_89AB_CDEF) >> 3 }
}
