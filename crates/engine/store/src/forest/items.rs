//! Reads and changes items. A key contains the number of its tree, in the inode number.

use super::Forest;
use crate::counters::Counters;
use kedge_base::atomic::Ordering::*;
use kedge_base::{Ino, Result};
use kedge_btree::Tree;
use kedge_format::{ItemKind, Key};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

impl Forest {
    /// Splits a key into the number of the tree, and the key within that tree.
    fn split(&self, key: Key) -> (u32, Key) {
        if !self.is_forked() {
            return (0, key);
        }
        if key.ino == 0 && key.kind == ItemKind::Orphan as u8 {
            let ino = Ino(key.offset);
            return (ino.tree(), Key { offset: ino.local().0, ..key });
        }
        let ino = Ino(key.ino);
        (ino.tree(), Key { ino: ino.local().0, ..key })
    }

    /// The key with the number of its tree: the reverse of `split`.
    fn join(&self, number: u32, key: Key) -> Key {
        if number == 0 {
            return key;
        }
        if key.ino == 0 && key.kind == ItemKind::Orphan as u8 {
            return Key { offset: Ino(key.offset).in_tree(number).0, ..key };
        }
        Key { ino: Ino(key.ino).in_tree(number).0, ..key }
    }

    fn with<R>(&self, key: Key, run: impl FnOnce(&Tree, u32, Key) -> Result<R>) -> Result<R> {
        let (number, key) = self.split(key);
        if number == 0 {
            return run(&self.first().tree, 0, key);
        }
        run(&self.member(number)?.tree, number, key)
    }

    pub(crate) fn get(&self, key: Key) -> Result<Option<Vec<u8>>> {
        self.with(key, |tree, _, key| tree.get(key))
    }

    pub(crate) fn get_with<R>(&self, key: Key, read: impl FnMut(&[u8]) -> R) -> Result<Option<R>> {
        self.with(key, |tree, _, key| tree.get_with(key, read))
    }

    pub(crate) fn prev(&self, key: Key) -> Result<Option<(Key, Vec<u8>)>> {
        self.with(key, |tree, number, key| {
            Ok(tree.prev_at_or_before(key)?.map(|(key, value)| (self.join(number, key), value)))
        })
    }

    /// Passes the items in `[from, to]` to `visit`. Both keys are in the same tree.
    pub(crate) fn scan(
        &self,
        from: Key,
        to: Key,
        visit: &mut dyn FnMut(Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let to = self.split(to).1;
        self.with(from, |tree, number, from| match number {
            0 => tree.scan(from, to, visit),
            _ => tree.scan(from, to, &mut |key, value| visit(self.join(number, key), value)),
        })
    }

    /// Passes the orphan items of a tree to `visit`.
    pub(crate) fn orphans(
        &self,
        number: u32,
        visit: &mut dyn FnMut(Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let key = |offset| Key { ino: 0, kind: ItemKind::Orphan as u8, offset };
        let member = self.member(number)?;
        member.tree.scan(key(0), key(u64::MAX), &mut |key, value| visit(self.join(number, key), value))
    }

    /// The number of orphan items of a tree other than the first.
    pub(crate) fn orphan_count(&self, number: u32) -> u64 {
        let state = self.state.read();
        match (state.open.get(&number), state.entries.get(&number)) {
            (Some(member), _) => member.counters.orphans.load(Relaxed),
            (None, entry) => entry.map_or(0, |entry| entry.orphans),
        }
    }

    pub(crate) fn put(&self, key: Key, value: &[u8]) -> Result<bool> {
        self.with(key, |tree, _, key| tree.put(key, value))
    }

    pub(crate) fn delete(&self, key: Key) -> Result<bool> {
        self.with(key, |tree, _, key| tree.delete(key))
    }

    pub(crate) fn update(&self, key: Key, edit: impl FnMut(&mut [u8])) -> Result<bool> {
        self.with(key, |tree, _, key| tree.update(key, edit))
    }

    /// Groups keys by their tree. The results are keys within the tree.
    fn by_tree(&self, keys: &[Key]) -> BTreeMap<u32, Vec<Key>> {
        let mut of: BTreeMap<u32, Vec<Key>> = BTreeMap::new();
        for key in keys {
            let (number, key) = self.split(*key);
            of.entry(number).or_default().push(key);
        }
        of
    }

    /// The number of different trees that the keys are in.
    pub(crate) fn trees_of(&self, keys: &[Key]) -> usize {
        if self.is_forked() { self.by_tree(keys).len() } else { 1 }
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        !self.is_forked() && self.first().tree.is_in_memory()
    }

    pub(crate) fn pin(&self, keys: &[Key]) -> Result<Vec<kedge_btree::Pins>> {
        if !self.is_forked() {
            return Ok(vec![self.first().tree.pin(keys)?]);
        }
        self.by_tree(keys).into_iter().map(|(number, keys)| self.member(number)?.tree.pin(&keys)).collect()
    }

    pub(crate) fn leaves_of(&self, keys: &[Key]) -> Result<u32> {
        if !self.is_forked() {
            return self.first().tree.leaves_of(keys);
        }
        let of = self.by_tree(keys).into_iter();
        of.map(|(number, keys)| self.member(number)?.tree.leaves_of(&keys)).sum()
    }

    /// Reads the leaves of the keys into memory. Errors are ignored.
    pub(crate) fn prefetch(&self, keys: &[Key]) {
        if !self.is_forked() {
            return self.first().tree.prefetch(keys);
        }
        for (number, keys) in self.by_tree(keys) {
            // This is only a hint: an operation that needs the tree will get the error.
            if let Ok(member) = self.member(number) {
                member.tree.prefetch(&keys);
            }
        }
    }

    /// Passes the counters of the item's tree to `run`, with the inode number within that tree.
    pub(crate) fn counted<R>(&self, key: Key, run: impl FnOnce(&Counters, Ino) -> R) -> Result<R> {
        let (number, local) = self.split(key);
        if number == 0 {
            return Ok(run(&self.first().counters, Ino(local.ino)));
        }
        Ok(run(&self.member(number)?.counters, Ino(local.ino)))
    }
}
