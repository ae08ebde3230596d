//! The slots of names. Names with the same hash have successive slots, in the order of their
//! creation. Directory entries and extended attributes use the same search.

use crate::error::{Error, Result};
use kedge_base::Ino;
use kedge_format::item::{SLOT_ORDINALS, name_slot};
use kedge_format::{ItemKind, Key};
use kedge_store::Store;
use std::ops::ControlFlow;

/// The result of a search: what a name refers to, or the slot for a new name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot<T> {
    pub entry: Option<T>,
    /// The slot of the entry; if there is no entry, the first free slot.
    at: u64,
    /// The slot after the last one of the name's hash.
    end: u64,
}

impl<T> Slot<T> {
    /// The slot of the entry. The caller has checked that there is one.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// The slot for a new item. Fails if all slots of the hash are in use: a hash has 256, and the
    /// next slot belongs to another hash.
    pub(super) fn for_new(&self) -> Result<u64> {
        if self.at < self.end { Ok(self.at) } else { Err(Error::Engine(kedge_base::Error::NoSpace)) }
    }

    /// The first of `count` successive slots that are free or among the entry's own, of which there
    /// are `own`.
    pub(super) fn run(&self, store: &Store, ino: Ino, kind: ItemKind, own: u64, count: u64) -> Result<u64> {
        let first = self.end - SLOT_ORDINALS;
        let mut start = first;
        store.scan(Key::new(ino, kind, first), Key::new(ino, kind, self.end - 1), &mut |at, _| {
            if (self.at..self.at + own).contains(&at.offset) {
                return ControlFlow::Continue(());
            }
            if at.offset - start >= count {
                return ControlFlow::Break(());
            }
            start = at.offset + 1;
            ControlFlow::Continue(())
        })?;
        if self.end - start >= count { Ok(start) } else { Err(Error::Engine(kedge_base::Error::NoSpace)) }
    }
}

/// Searches a name. `read` decodes an item, and returns a value if the item is that of the name.
pub(super) fn find<T>(
    store: &Store,
    ino: Ino,
    kind: ItemKind,
    name: &[u8],
    read: impl Fn(&[u8]) -> kedge_base::Result<Option<T>>,
) -> Result<Slot<T>> {
    let first = name_slot(&store.geometry().hash_seed, name);
    let end = first + SLOT_ORDINALS;
    let key = |slot| Key::new(ino, kind, slot);
    let mut slot = Slot { entry: None, at: first, end };
    let mut bad = None;
    store.scan(key(first), key(end - 1), &mut |at, value| {
        match read(value) {
            Ok(Some(entry)) => {
                (slot.entry, slot.at) = (Some(entry), at.offset);
                return ControlFlow::Break(());
            }
            Ok(None) if at.offset == slot.at => slot.at += 1,
            Ok(None) => {}
            Err(e) => bad = Some(e),
        }
        ControlFlow::Continue(())
    })?;
    match bad {
        Some(e) => Err(e.into()),
        None => Ok(slot),
    }
}
