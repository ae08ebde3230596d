//! Changes of items, and the steps that prepare a leaf for them.
//!
//! A writer first descends like a reader and takes only the write latch of the leaf. If the leaf is
//! full or of an older generation, the writer *prepares* the path from the root down, in steps on a
//! parent and its child. A step copies a node into the current generation, or splits a full node.
//! Inner nodes are split before they are full, so that a split never has to go back up. If a step
//! finds that the tree has changed, it does nothing and the descent restarts.

use crate::frame::{Frame, Node};
use crate::intent::Intent;
use crate::latch::LatchWatch;
use crate::split::Need;
use crate::tree::Tree;
use crate::tree_lock::TreeLock;
use kedge_base::{Error, Generation, Result};
use kedge_format::Key;
use kedge_format::item::VALUE_MAX;
use kedge_format::node::Child;
use std::sync::Arc;

/// Number of candidates for eviction that are examined after a change of structure.
const TRIM_PER_STEP: usize = 8;

enum Attempt<R> {
    Done(R),
    /// The leaf no longer covers the key.
    Stale,
    /// The leaf belongs to an older generation and must be copied.
    Old,
    Full,
}

impl Tree {
    /// Sets the item of `key`. Returns whether the key already had an item.
    pub fn put(&self, key: Key, value: &[u8]) -> Result<bool> {
        if value.len() > VALUE_MAX {
            return Err(Error::ItemTooLarge { len: value.len(), max: VALUE_MAX });
        }
        let generation = self.generation();
        let watch = self.watch();
        loop {
            let attempt = self.attempt(
                &watch,
                generation,
                &key,
                Intent::Insert,
                |_| Attempt::Old,
                |n| n.put(generation, &key, value).map_or(Attempt::Full, Attempt::Done),
            )?;
            let prepared = match attempt {
                Attempt::Done(replaced) => return Ok(replaced),
                Attempt::Stale => {
                    self.meter.stats.restarts.inc();
                    None
                }
                Attempt::Old => self.prepare(generation, &key, None)?,
                Attempt::Full => self.prepare(generation, &key, Some(value))?,
            };
            if let Some(replaced) = prepared {
                return Ok(replaced);
            }
        }
    }

    /// Changes the value of `key` in place; its length cannot change. Returns false without calling
    /// `f` if there is no such item. Otherwise `f` is called once, under the leaf's write latch,
    /// and must not call the tree.
    pub fn update(&self, key: Key, f: impl FnOnce(&mut [u8])) -> Result<bool> {
        let mut f = Some(f);
        let generation = self.generation();
        self.change(generation, &key, Intent::Update, |leaf, i| {
            let f = f.take().expect("a change happens once");
            f(leaf.edit(generation).value_mut(i));
        })
        .map(|done| done.is_some())
    }

    /// Removes the item of `key`. Returns whether there was one.
    pub fn delete(&self, key: Key) -> Result<bool> {
        let generation = self.generation();
        let sparse = self.change(generation, &key, Intent::Delete, |leaf, i| {
            leaf.edit(generation).remove_at(i);
            // Searching for a neighbour to merge with costs more than the removal, so only some
            // removals do it.
            let view = leaf.view();
            view.items() == 0 || (view.items() % 8 == 0 && Tree::is_sparse(view))
        })?;
        if sparse == Some(true) {
            self.rebalance(generation, &key);
        }
        Ok(sparse.is_some())
    }

    /// Runs `f` on the leaf and the index of an existing item, once the leaf may be changed.
    fn change<R>(
        &self,
        generation: Generation,
        key: &Key,
        intent: Intent,
        mut f: impl FnMut(&mut Node, usize) -> R,
    ) -> Result<Option<R>> {
        let watch = self.watch();
        loop {
            let attempt = self.attempt(
                &watch,
                generation,
                key,
                intent,
                // A leaf is copied only if it has the item.
                |n| n.search(key).map_or(Attempt::Done(None), |_| Attempt::Old),
                |n| n.search(key).map_or(Attempt::Done(None), |i| Attempt::Done(Some(f(n, i)))),
            )?;
            match attempt {
                Attempt::Done(done) => return Ok(done),
                Attempt::Old => {
                    self.prepare(generation, key, None)?;
                }
                Attempt::Stale | Attempt::Full => self.meter.stats.restarts.inc(),
            }
        }
    }

    /// Runs `change` on the leaf that covers the key, under the leaf's write latch. If the leaf
    /// belongs to an older generation, runs `old` under its read latch instead.
    #[cfg_attr(not(feature = "historic"), expect(unused_variables))]
    fn attempt<R>(
        &self,
        watch: &LatchWatch<'_>,
        generation: Generation,
        key: &Key,
        intent: Intent,
        old: impl Fn(&Node) -> Attempt<R>,
        mut change: impl FnMut(&mut Node) -> Attempt<R>,
    ) -> Result<Attempt<R>> {
        #[cfg(feature = "historic")]
        if self.lock().holds_paths() {
            return self.write_by_path(watch, key, intent, |leaf, n| {
                let attempt = if leaf.born != generation { old(n) } else { change(n) };
                let restructure = matches!(attempt, Attempt::Old | Attempt::Full);
                (attempt, restructure)
            });
        }
        let mut at = |leaf: &Frame| {
            if leaf.born != generation {
                return leaf.read(watch, |n| if n.range.covers(key) { old(n) } else { Attempt::Stale });
            }
            // A leaf has no route table, so its latch suffices.
            leaf.latch.write(watch, |n| if n.range.covers(key) { change(n) } else { Attempt::Stale })
        };
        if self.lock() == TreeLock::Optimistic {
            let done = self.optimistic(key, |leaf| Some(at(leaf)).filter(|a| !matches!(a, Attempt::Stale)));
            if let Some(attempt) = done {
                return Ok(attempt);
            }
        }
        Ok(at(&*self.leaf_for(watch, key)?))
    }

    /// Makes the path to the key's leaf changeable and, if there is a value to insert, makes room
    /// for the value. Returns `Some(replaced)` if a split of the leaf has inserted the item, and
    /// `None` if the caller must try the leaf again.
    #[cold]
    pub(crate) fn prepare(
        &self,
        generation: Generation,
        key: &Key,
        insert: Option<&[u8]>,
    ) -> Result<Option<bool>> {
        let done = self.prepare_path(generation, key, insert);
        self.trim(TRIM_PER_STEP);
        done
    }

    fn prepare_path(&self, generation: Generation, key: &Key, insert: Option<&[u8]>) -> Result<Option<bool>> {
        let watch = self.watch();
        'restart: loop {
            let mut parent = self.anchor.clone();
            loop {
                let Some(child) = self.child_of(&watch, &parent, key)? else {
                    continue 'restart;
                };
                if child.born != generation {
                    if !self.copy_child(&parent, &child, key, generation)? {
                        continue 'restart;
                    }
                    continue;
                }
                match self.need(&child, key, insert) {
                    Need::Restart => continue 'restart,
                    Need::Nothing if child.level == 0 => return Ok(None),
                    Need::Nothing => parent = child,
                    Need::Split if parent.is_anchor() => self.grow(&child, key, insert, generation)?,
                    Need::Split if child.level > 0 => {
                        if !self.split_inner(&parent, &child, key, generation)? {
                            continue 'restart;
                        }
                    }
                    Need::Split => {
                        let value = insert.expect("only an insertion needs room");
                        match self.split_leaf(&parent, &child, key, value, generation)? {
                            Some(replaced) => return Ok(Some(replaced)),
                            None => continue 'restart,
                        }
                    }
                }
            }
        }
    }

    /// Copies a child of an older generation to a new address. Returns false if the tree has
    /// changed and the descent must restart.
    fn copy_child(
        &self,
        parent: &Frame,
        child: &Arc<Frame>,
        key: &Key,
        generation: Generation,
    ) -> Result<bool> {
        let watch = self.watch();
        parent.write(&watch, |p| {
            let Some(i) = p.entry_of(child, key).filter(|_| parent.writable(generation)) else {
                return Ok(false);
            };
            let addr = self.space.alloc_node(child.addr)?;
            let identity = Child { addr, generation };
            let mut copy = Frame::new(&self.cache.shared, false, identity, child.level);
            let node = Frame::fill(&mut copy);
            child.write(&watch, |c| c.move_to(node, identity));
            p.relink(generation, i, &copy);
            self.adopt(&copy);
            self.retire(child);
            self.meter.stats.copies.inc();
            Ok(true)
        })
    }
}
