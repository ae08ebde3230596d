//! Changes that the journal does not cover, and whose reply may not have been sent.
//!
//! Before such a change, a server stores what the name refers to, so that the next server can find
//! out whether the change was made (`takeover::forced`). A slot contains the request's number,
//! which is stored last. With the number 0 the slot is free.

use super::area::{ANSWERS_AT, Area, FORCED, FORCED_AT, fields};
use kedge_base::Ino;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::IntoBytes;

fields!(
    /// Inode numbers; 0 for none.
    pub(crate) Forced = 32 {
        unique: u64,
        // The inode to which the changed name referred before the change.
        before: u64,
        // The inode that the change gives the name to, if the inode exists before.
        subject: u64,
        // The inode to which the name refers after the change; `REFUSED` if the change failed; 0 if
        // not known.
        made: u64,
    }
);
const _: () = assert!(FORCED_AT + FORCED * size_of::<Forced>() as u64 == ANSWERS_AT);
const MADE_AT: u64 = std::mem::offset_of!(Forced, made) as u64;
pub(crate) const REFUSED: u64 = u64::MAX;

/// A directory and a name in it.
pub(crate) type Name = (Ino, Vec<u8>);

/// The index of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(u64);

impl Slot {
    fn at(self) -> u64 {
        FORCED_AT + self.0 * size_of::<Forced>() as u64
    }
}

pub(crate) struct Slots {
    free: Vec<Slot>,
    /// Slots that earlier servers have filled, by request.
    left: BTreeMap<u64, (Slot, Forced)>,
    /// The names of changes in progress, with their slots.
    under_way: Vec<(Slot, Name)>,
    /// Inodes that changes have made, kept as long as a request of a dead server may be resent.
    claimed: BTreeSet<u64>,
}

impl Slots {
    pub(crate) fn load(area: &Area) -> Slots {
        let (mut free, mut left, mut claimed) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        for slot in (0..FORCED).map(Slot) {
            let forced: Forced = area.read(slot.at());
            if forced.unique == 0 {
                free.push(slot);
            } else {
                claimed.insert(forced.made);
                left.insert(forced.unique, (slot, forced));
            }
        }
        Slots { free, left, under_way: Vec::new(), claimed }
    }

    /// Stores the state before a change of `name`. Returns `None` if a change of this name is in
    /// progress, or too many changes are.
    pub(crate) fn begin(&mut self, area: &Area, name: Name, forced: Forced) -> Option<Slot> {
        if self.under_way.iter().any(|(_, other)| *other == name) {
            return None;
        }
        // The kernel resends requests as soon as the next server serves. So if all other slots are
        // taken, the requests of the slots left here have had their replies.
        let slot = self.free.pop().or_else(|| self.left.pop_first().map(|(_, (slot, _))| slot))?;
        area.store(slot.at(), 0);
        area.put(slot.at(), forced.as_bytes());
        self.under_way.push((slot, name));
        Some(slot)
    }

    /// Stores what a change has made. Must be called before its reply.
    pub(crate) fn made(&mut self, area: &Area, slot: Slot, made: u64) {
        area.store(slot.at() + MADE_AT, made);
        if !self.left.is_empty() {
            self.claimed.insert(made);
        }
    }

    /// Takes the slot that an earlier server has filled for a request that is resent.
    pub(crate) fn take(&mut self, unique: u64) -> Option<(Slot, Forced)> {
        self.left.remove(&unique)
    }

    /// Whether another change has made this inode.
    pub(crate) fn is_claimed(&self, made: u64) -> bool {
        self.claimed.contains(&made)
    }

    /// Frees a slot, because the reply was sent or the change is served like a new one.
    pub(crate) fn end(&mut self, area: &Area, slot: Slot) {
        area.store(slot.at(), 0);
        self.under_way.retain(|(other, _)| *other != slot);
        self.free.push(slot);
    }
}
