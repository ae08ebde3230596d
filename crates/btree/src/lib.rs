//! The B+tree that holds all metadata: items under [`Key`]s in copy-on-write nodes that are cached in memory.
//!
//! # Nodes and generations
//! A node is named by its address on the device and carries the generation in which it was born. Nodes of the
//! current generation are changed in place; the first change of an older node in a generation moves it to a
//! new address, and with it its parent's pointer, up to the root. So:
//! 1. the ancestors of a node of the current generation are of the current generation;
//! 2. the bytes of a node of an older generation never change, whether it is on the device, waits to be
//!    written, or is referred to by nobody but a reader that came too early. [`Tree::freeze`] therefore costs
//!    no copy: the checkpoint thread reads the frozen nodes while operations go on;
//! 3. what the device holds under a root address is a whole tree as long as the addresses it refers to are
//!    not used anew, which is the allocator's rule ([`NodeSpace::free_node`]). A crash at any moment leaves
//!    the last durable root valid.
//!
//! # Ranges instead of latch coupling
//! Every node in memory knows the range of keys it answers for (its *fences*). A descent takes the child's
//! reference under the parent's latch, drops that latch, takes the child's, and asks whether the child still
//! answers for the key; a node that was split, merged, moved or evicted meanwhile says no, and the descent
//! starts over. So a descent holds one latch at a time, and a reader never waits for a leaf while it blocks
//! writers at the root.
//!
//! A change of structure (copy, split, growth, merge, eviction) is one step on a parent and its child, each
//! of which leaves a valid tree; writers take as many steps as they need, top down, then try their leaf
//! again.
//!
//! # Kinds of latches
//! [`TreeLock`] says how nodes are latched; the tree's steps are the same. *Rwlock*: each node's reader-writer
//! latch in turn, as above. *Optimistic*: descents read the inner nodes' route tables (`routes`), which are
//! versioned, and store nothing in them; epochs (`epoch`) keep what a reader may be looking at; a leaf has
//! its latch, which readers of a calm leaf go around (`visible`). Whoever meets a node that is not in memory,
//! or that keeps changing, and whoever changes the structure, goes down with latches. *Pingpong*: paths of
//! spinning and blocking latches as btrfs once had them (`pingpong`, `path`).
//!
//! # Latch order
//! Parent before child. Two children of one parent only under the parent's write latch, then in any order:
//! nobody else can wait for one while holding the other. Under latches only the allocator and the cache's
//! tables are called; never IO: who misses a node drops everything, reads it, and links it into its parent if
//! that still wants it.
//!
//! # Cache
//! A parent in memory refers to its children in memory, so a descent needs no table, a child in memory
//! implies its ancestors in memory, and a node is evicted by clearing that reference. Only clean nodes
//! without children in memory and without pins are evicted, by second chance.
#![deny(unsafe_code)]

mod cache;
mod check;
mod checkpoint;
mod epoch;
mod frame;
#[allow(unsafe_code)]
mod latch;
mod merge;
mod path;
mod pingpong;
mod read;
mod routes;
mod split;
mod stats;
mod sync;
mod tree;
mod tree_lock;
mod visible;
mod write;

pub use check::TreeCheck;
pub use checkpoint::Frozen;
pub use frame::Pins;
pub use stats::{LatchKind, LatchReport, TreeStats, histogram_text};
pub use tree::{NodeIo, NodeSpace, Tree, TreeConfig};
pub use tree_lock::TreeLock;

pub use kedge_format::Key;
