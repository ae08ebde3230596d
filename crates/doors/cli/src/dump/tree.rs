//! Reads the tree of the last checkpoint with plain reads.
//!
//! The walk is in key order and holds one node of each level in memory. Each node must match its
//! parent's pointer, so a walk over a damaged or changing image ends with an error that names the
//! node. The walk ends on any image: levels descend, and a node that two parents claim cannot begin
//! with the lower bounds of both.

use anyhow::{Context, Result, bail};
use kedge_format::Key;
use kedge_format::node::{Child, NODE_SIZE, NodeView};
use kedge_format::superblock::Superblock;
use kedge_host::image::Image;
use std::ops::RangeInclusive;

/// Passes every item whose key lies in `keys` to the callback.
pub fn walk(
    image: &Image,
    superblock: &Superblock,
    keys: &RangeInclusive<Key>,
    show: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
) -> Result<()> {
    let c = &superblock.checkpoint;
    let root = Child { addr: c.root, generation: c.root_generation };
    Walk { image, superblock, keys, show }.node(root, c.root_level, Key::MIN)
}

struct Walk<'a> {
    image: &'a Image,
    superblock: &'a Superblock,
    keys: &'a RangeInclusive<Key>,
    show: &'a mut dyn FnMut(Key, &[u8]) -> Result<()>,
}

impl Walk<'_> {
    fn node(&mut self, child: Child, level: u8, lower: Key) -> Result<()> {
        let mut bytes = vec![0; NODE_SIZE];
        let offset = child.addr.0.saturating_mul(kedge_base::BLOCK_SIZE as u64);
        self.image.read(offset, &mut bytes)?;
        let uuid = &self.superblock.geometry.uuid;
        let node = NodeView::check(&bytes, uuid, child.addr, child.generation, level)
            .with_context(|| format!("read the tree of {}", self.image.path.display()))?;
        let fits = match (level, node.first_key()) {
            (0, first) => first.is_none_or(|first| first >= lower),
            (_, first) => first == Some(lower),
        };
        if !fits {
            bail!(
                "tree node at block {}: does not begin with the key {lower} that its parent says",
                child.addr
            );
        }
        if level == 0 {
            for (key, value) in node.iter().filter(|(key, _)| self.keys.contains(key)) {
                (self.show)(key, value)?;
            }
            return Ok(());
        }
        for i in node.child_index(self.keys.start())..node.items() {
            if node.key(i) > *self.keys.end() {
                break;
            }
            self.node(node.child(i), level - 1, node.key(i))?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
