//! Nodes that have to leave the end of an image which becomes smaller.
//!
//! A node leaves its place when it is copied into the current generation, like each node that
//! changes. So nothing is new for a crash: the last checkpoint keeps the old node, and the next one
//! names the copy.

use crate::tree::Tree;
use kedge_base::{BlockNo, Result};
use kedge_format::Key;
use kedge_format::node::NODE_BLOCKS;

/// What a node says about its children from a key on.
enum Look {
    /// A child that must leave covers this key, or the first of its keys is this.
    Beyond(Key),
    /// None of its children, which are leaves. Continue at this key; `None` at the end of the tree.
    Next(Option<Key>),
    /// The child that covers the key stays.
    Below,
    Stale,
}

impl Tree {
    /// The first key at or after `from` on whose path there is a node of an older generation that
    /// ends after block `end`. Reads inner nodes only.
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

    /// Copies the nodes of an older generation on the way to the key's leaf into the current one.
    pub fn renew(&self, key: Key) -> Result<()> {
        self.prepare(self.generation(), &key, None).map(drop)
    }
}
