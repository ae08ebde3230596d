//! Walks over the whole tree and checks every invariant of the structure in memory. For tests and
//! debugging: the walk reads all nodes into memory, and its result is exact only while no thread
//! changes the tree.

use crate::frame::{Frame, KeyRange};
use crate::tree::{Tree, check_fences};
use kedge_base::{CorruptKind, Error, Generation, Result};
use kedge_format::Key;
use kedge_format::node::Child;

/// The result of a walk over the tree.
#[derive(Debug, Default, Clone)]
pub struct TreeCheck {
    /// Every node of the tree.
    pub nodes: Vec<Child>,
    pub leaves: u64,
    pub empty_leaves: u64,
    pub items: u64,
    /// Bytes of leaves that items occupy.
    pub leaf_bytes: u64,
}

/// The properties of a node according to its parent.
struct Expect {
    range: KeyRange,
    level: u8,
    born_max: Generation,
}

impl Tree {
    pub fn check(&self) -> Result<TreeCheck> {
        let mut found = TreeCheck::default();
        let (_, born_max, level) = self.root();
        self.check_child(&self.anchor, &Expect { range: KeyRange::ALL, level, born_max }, &mut found)?;
        if self.height() != level as u32 + 1 {
            let what = format!("height {} recorded, {} found", self.height(), level as u32 + 1);
            return Err(Error::corrupt(CorruptKind::Node, self.root().0, what));
        }
        if found.nodes.len() as u64 != self.node_count() {
            let what = format!("{} nodes counted, {} found", self.node_count(), found.nodes.len());
            return Err(Error::corrupt(CorruptKind::Node, self.root().0, what));
        }
        Ok(found)
    }

    fn check_child(&self, parent: &Frame, expect: &Expect, found: &mut TreeCheck) -> Result<()> {
        let low = &expect.range.low;
        let Some(frame) = self.child_of(&self.watch(), parent, low)? else {
            return Err(Error::corrupt(CorruptKind::Node, parent.addr, "changed while it was checked"));
        };
        found.nodes.push(frame.link());
        let below = frame.read(&self.watch(), |n| {
            let bad = |what: String| Error::corrupt(CorruptKind::Node, frame.addr, what);
            let view = n.view();
            view.check_structure().map_err(bad)?;
            check_fences(view, &n.range, frame.addr)?;
            if n.range != expect.range {
                return Err(bad(format!("covers {:?} instead of {:?}", n.range, expect.range)));
            }
            let (level, born) = (view.level(), view.generation());
            if view.addr() != frame.addr
                || born != frame.born
                || level != frame.level
                || level != expect.level
            {
                return Err(bad("differs from what its frame records".into()));
            }
            if born > expect.born_max || born > self.generation() {
                return Err(bad(format!("of generation {born} is younger than its parent")));
            }
            if frame.is_clean() && born == self.generation() {
                return Err(bad("is of the current generation and clean".into()));
            }
            if level == 0 {
                found.leaves += 1;
                found.empty_leaves += (view.items() == 0) as u64;
                found.items += view.items() as u64;
                found.leaf_bytes += view.used() as u64;
            }
            if !frame.routes_agree(n) {
                return Err(bad("has a route table that differs from the node".into()));
            }
            if n.children.len() != if level > 0 { view.items() } else { 0 } {
                return Err(bad(format!("{} children in memory", n.children.len())));
            }
            let below = (0..n.children.len()).map(|i| n.child_range(i));
            Ok(below.collect::<Vec<KeyRange>>())
        })?;
        for range in below {
            let expect = Expect { range, level: expect.level - 1, born_max: frame.born };
            self.check_child(&frame, &expect, found)?;
        }
        Ok(())
    }

    /// Returns all keys in order, for comparing trees.
    pub fn keys(&self) -> Result<Vec<Key>> {
        let mut keys = Vec::new();
        self.scan(Key::MIN, Key::MAX, &mut |key, _| {
            keys.push(key);
            std::ops::ControlFlow::Continue(())
        })?;
        Ok(keys)
    }
}
