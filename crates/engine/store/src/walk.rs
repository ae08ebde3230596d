//! A walk over the nodes of a tree that does not change: of a point, of a tree that is being freed,
//! or of any tree as its last durable checkpoint left it. It reads the device and caches nothing.

use crate::store::Store;
use kedge_base::{BlockNo, CorruptKind, Error, Generation, IoBuf, Result};
use kedge_format::Key;
use kedge_format::node::{Child, NODE_BLOCKS, NodeView};
use std::ops::ControlFlow;

/// The address, generation and level of the root of a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    pub addr: BlockNo,
    pub generation: Generation,
    pub level: u8,
}

struct Todo {
    child: Child,
    level: u8,
    /// Keys of the node are below this; `None` for no bound.
    high: Option<Key>,
}

impl Store {
    /// Visits the nodes in key order. `enters` gets a node and the upper bound of its keys, and
    /// decides whether the node and everything below it are read. `leaf` gets each leaf that was
    /// read, and ends the walk if it breaks.
    pub(crate) fn walk(
        &self,
        root: Root,
        enters: &mut dyn FnMut(Child, Option<Key>) -> bool,
        leaf: &mut dyn FnMut(&NodeView<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let child = Child { addr: root.addr, generation: root.generation };
        let mut todo = vec![Todo { child, level: root.level, high: None }];
        // The number of reads is bounded, since a corrupt image may name a node many times.
        let mut left = self.total_blocks() / NODE_BLOCKS;
        let mut buf = IoBuf::zeroed(NODE_BLOCKS as usize);
        while let Some(Todo { child, level, high }) = todo.pop() {
            if !enters(child, high) {
                continue;
            }
            left = left.checked_sub(1).ok_or_else(|| {
                Error::corrupt(CorruptKind::Node, child.addr, "a tree has more nodes than there can be")
            })?;
            self.device.read(child.addr.byte_offset(), &mut buf)?;
            let uuid = &self.geometry.uuid;
            let view = NodeView::check(buf.as_bytes(), uuid, child.addr, child.generation, level)?;
            if level == 0 {
                if leaf(&view)?.is_break() {
                    return Ok(());
                }
                continue;
            }
            let mut high = high;
            for i in (0..view.items()).rev() {
                todo.push(Todo { child: view.child(i), level: level - 1, high });
                high = Some(view.key(i));
            }
        }
        Ok(())
    }
}
