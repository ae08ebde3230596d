//! A sparse array whose copies share unchanged leaves.
//!
//! A copy costs one pointer for each used leaf of 64 slots, and a change of a slot copies its leaf
//! once. So a crash state costs memory for its differences from its source, not for its size.

use std::collections::BTreeMap;
use std::sync::Arc;

const LEAF: u64 = 64;

type Leaf<T> = Vec<(u8, Arc<T>)>;

#[derive(Debug)]
pub struct Sparse<T> {
    leaves: BTreeMap<u64, Arc<Leaf<T>>>,
}

impl<T> Clone for Sparse<T> {
    fn clone(&self) -> Self {
        Sparse { leaves: self.leaves.clone() }
    }
}

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Sparse { leaves: BTreeMap::new() }
    }
}

fn split(at: u64) -> (u64, u8) {
    (at / LEAF, (at % LEAF) as u8)
}

impl<T> Sparse<T> {
    pub fn get(&self, at: u64) -> Option<&Arc<T>> {
        let (leaf, place) = split(at);
        let leaf = self.leaves.get(&leaf)?;
        leaf.binary_search_by_key(&place, |e| e.0).ok().map(|i| &leaf[i].1)
    }

    /// The slot to change. Copies may share it, so the caller uses [`Arc::make_mut`].
    pub fn get_mut(&mut self, at: u64) -> Option<&mut Arc<T>> {
        let (leaf, place) = split(at);
        let leaf = self.leaves.get_mut(&leaf)?;
        let i = leaf.binary_search_by_key(&place, |e| e.0).ok()?;
        Some(&mut Arc::make_mut(leaf)[i].1)
    }

    pub fn set(&mut self, at: u64, value: Arc<T>) {
        let (leaf, place) = split(at);
        let leaf = Arc::make_mut(self.leaves.entry(leaf).or_default());
        match leaf.binary_search_by_key(&place, |e| e.0) {
            Ok(i) => leaf[i].1 = value,
            Err(i) => leaf.insert(i, (place, value)),
        }
    }

    pub fn remove(&mut self, at: u64) {
        let (number, place) = split(at);
        let Some(leaf) = self.leaves.get_mut(&number) else { return };
        if let Ok(i) = leaf.binary_search_by_key(&place, |e| e.0) {
            Arc::make_mut(leaf).remove(i);
            if leaf.is_empty() {
                self.leaves.remove(&number);
            }
        }
    }

    /// The used slots from `from` on, in order.
    pub fn range(&self, from: u64) -> impl Iterator<Item = (u64, &Arc<T>)> {
        self.leaves
            .range(from / LEAF..)
            .flat_map(|(leaf, entries)| {
                entries.iter().map(move |(place, v)| (leaf * LEAF + u64::from(*place), v))
            })
            .filter(move |(at, _)| *at >= from)
    }

    /// Empties all slots from `from` on.
    pub fn cut(&mut self, from: u64) {
        self.remove_range(from, u64::MAX);
    }

    /// Empties the slots in `from..to`.
    pub fn remove_range(&mut self, from: u64, to: u64) {
        let gone: Vec<u64> = self.range(from).map(|(at, _)| at).take_while(|at| *at < to).collect();
        for at in gone {
            self.remove(at);
        }
    }
}
