//! Moves nodes away from the end of an image that shrinks.
//!
//! A node gets a new address when it is copied into the current generation, as any node that
//! changes. So a crash has no new cases: the last checkpoint keeps the old node, and the next
//! checkpoint refers to the copy.

use crate::tree::Tree;
use kedge_base::{BlockNo, Result};
use kedge_format::Key;
use kedge_format::node::NODE_BLOCKS;

/// The result of searching a node's children, from the child that covers a key on.
enum Look {
    /// A child must move. The key is the search key, or the child's first key if that is greater.
    Beyond(Key),
    /// No child of this node, whose children are leaves, must move. The search continues at this
    /// key; `None` means the end of the tree.
    Next(Option<Key>),
    /// The child that covers the key need not move; the search continues in that child.
    Below,
    Stale,
}

impl Tree {
    /// Returns the first key at or after `from` on whose path a node of an older generation extends
    /// beyond the first `end` blocks. Reads inner nodes only.
    pub fn node_beyond(&self, from: Key, end: BlockNo) -> Result<Option<Key>> {
        let watch = self.watch();
        let mut at = from;
        'restart: loop {
            let mut parent = self.anchor.clone();
            loop {
                let generation = self.generation();
                let look = parent.read(&watch, |p| {
                    let Some(view) = p.view_if_covers(&at) else { return Look::Stale };
                    let leaves = view.level() == 1;
                    let covering = p.child_index(&at);
                    let last = if leaves { view.items() } else { covering + 1 };
                    let leaves_place = |i: &usize| {
                        let child = view.child(*i);
                        child.addr.0 + NODE_BLOCKS > end.0 && child.generation < generation
                    };
                    match (covering..last).find(leaves_place) {
                        Some(i) => Look::Beyond(view.key(i).max(at)),
                        None if leaves => Look::Next(p.range.high),
                        None => Look::Below,
                    }
                });
                match look {
                    Look::Beyond(key) => return Ok(Some(key)),
                    Look::Next(None) => return Ok(None),
                    Look::Next(Some(high)) => {
                        at = high;
                        continue 'restart;
                    }
                    Look::Stale => continue 'restart,
                    Look::Below => {}
                }
                match self.child_of(&watch, &parent, &at)? {
                    Some(child) => parent = child,
                    None => continue 'restart,
                }
            }
        }
    }

    /// Copies the nodes of an older generation on the path to the key's leaf into the current
    /// generation.
    pub fn renew(&self, key: Key) -> Result<()> {
        self.prepare(self.generation(), &key, None).map(drop)
    }
}
