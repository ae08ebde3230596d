//! The B+tree that holds all metadata: items under [`Key`]s, in copy-on-write nodes that are cached
//! in memory.
//!
//! # Nodes and generations
//! A node is identified by its address on the device and carries the generation in which it was
//! born. Nodes of the current generation are changed in place. The first change of an older node
//! moves the node to a new address. That changes the pointer in its parent, so the parent moves
//! too, and so on up to the root. Consequences:
//! 1. The ancestors of a node of the current generation belong to the current generation.
//! 2. The bytes of a node of an older generation never change, whether the node is on the device,
//!    waits to be written, or is only referred to by a slow reader. So [`Tree::freeze`] copies
//!    nothing: the checkpoint thread reads the frozen nodes while operations continue.
//! 3. The device holds a complete tree under a root address as long as no address of that tree is
//!    reused. The allocator ensures that none is ([`NodeSpace::free_node`]). So a crash at any time
//!    leaves the last durable root valid.
//!
//! # Ranges instead of latch coupling
//! Every node in memory has the range of keys that it covers (its *fences*). A descent takes a
//! reference to the child under the parent's latch, releases that latch, takes the child's latch,
//! and checks that the child still covers the key. A node that was split, merged, moved or evicted
//! in between no longer covers the key, and the descent restarts. So a descent holds one latch at a
//! time, and a reader never waits for a leaf while it blocks writers at the root.
//!
//! A change of structure (copy, split, growth, merge, eviction) is one step on a parent and its
//! child. Each step leaves a valid tree. A writer takes the steps that it needs, top down, and then
//! retries its leaf.
//!
//! # Kinds of latches
//! [`TreeLock`] selects how nodes are latched. The steps that change the structure are the same for
//! all kinds.
//! - *Optimistic*: a descent reads the route tables of inner nodes, which are guarded by a version
//!   (a seqlock, `routes`), and writes no shared memory on the way. Epoch-based reclamation
//!   (`epoch`) keeps frames alive that a reader may be reading. A leaf has a latch, but readers of
//!   a leaf that is rarely written bypass the latch (a reader-biased latch, `visible`). A descent
//!   that meets a node which is not in memory, or which keeps changing, restarts with latches.
//!   Changes of structure always use latches.
//! - *Rwlock*: a descent takes each node's reader-writer latch in turn, as above.
//! - *Pingpong* and *Blocking*: a descent holds a path of spinning and blocking latches, as btrfs
//!   did before and after the change that these two kinds compare (`pingpong`).
//!
//! # Latch order
//! A thread latches a parent before its child. It latches two children of one parent only under the
//! parent's write latch, in any order: no other thread can hold one of them and wait for the other.
//! Code under latches calls only the allocator and the cache's tables, and does no IO. A descent
//! that needs a node which is not in memory releases its latches, reads the node, and links it into
//! its parent if the parent still refers to it.
//!
//! # Cache
//! A parent in memory refers to its children in memory. So a descent needs no lookup table, all
//! ancestors of a node in memory are in memory, and a node is evicted by clearing its parent's
//! reference. Only clean nodes without children in memory and without pins are evicted, in CLOCK
//! order (second chance).
//!
//! # Files
//! A file uses only those before it:
//! 1. the parts of a latch, which the model checker compiles alone (it substitutes its own
//!    `super::sync`): `sync`, `epoch`, `routes`, `visible`, `pingpong::lock`;
//! 2. a node in memory: `tree_lock`, `stats`, `totals`, `pingpong::guard`, `latch`, `frame`,
//!    `pingpong::held`, `peek`, `cache`, `intent`;
//! 3. `tree`: the descent;
//! 4. the users of a descent: `evict`, `pingpong::path`, `read`, `prefetch`, `split`, `merge`,
//!    `write`, `relocate`, `checkpoint`, `check`.
//!
//! Two calls in `tree` go the other way: reading a node makes room for it (`evict`), and a descent
//! under *pingpong* or *blocking* runs `pingpong::path`. Both files use the descent themselves, so
//! they come after `tree`.
#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod cache;
mod check;
mod checkpoint;
mod epoch;
mod evict;
mod frame;
mod intent;
#[allow(unsafe_code)]
mod latch;
mod merge;
#[allow(unsafe_code)]
mod peek;
#[cfg(feature = "historic")]
mod pingpong;
mod prefetch;
mod read;
mod relocate;
mod routes;
mod split;
mod stats;
mod sync;
mod totals;
mod tree;
mod tree_lock;
mod visible;
mod write;

pub use check::TreeCheck;
pub use checkpoint::Frozen;
pub use frame::Pins;
pub use stats::{LatchKind, LatchReport, TreeStats, histogram_text};
pub use totals::Totals;
pub use tree::{NodeIo, NodeSpace, Tree, TreeConfig};
pub use tree_lock::TreeLock;

pub use kedge_format::Key;
