//! Changes that the journal does not cover, and whose reply may not have been sent.
//!
//! A server stores what a name meant before such a change, so that the next one can find out
//! whether the change is made (`takeover::forced`). A slot is valid with the request's number,
//! which is stored last, and free without it.

use super::area::{ANSWERS_AT, Area, FORCED, FORCED_AT, fields};
use kedge_base::Ino;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::IntoBytes;

fields!(
    /// Numbers of inodes; 0 for none.
    pub(crate) Forced = 32 {
        unique: u64,
        // What the name that changes meant before.
        before: u64,
        // What gets the name, if that exists before.
        subject: u64,
        // What the change has made; `REFUSED`: the change was refused; 0: not known.
        made: u64,
    }
);
const _: () = assert!(FORCED_AT + FORCED * size_of::<Forced>() as u64 == ANSWERS_AT);
const MADE_AT: u64 = std::mem::offset_of!(Forced, made) as u64;
pub(crate) const REFUSED: u64 = u64::MAX;

/// A directory and a name in it.
pub(crate) type Name = (Ino, Vec<u8>);

/// The place of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(u64);

impl Slot {
    fn at(self) -> u64 {
        FORCED_AT + self.0 * size_of::<Forced>() as u64
    }
}

pub(crate) struct Slots {
    free: Vec<Slot>,
    /// Those of earlier servers, by request.
    left: BTreeMap<u64, (Slot, Forced)>,
    /// The names of the changes under way.
    under_way: Vec<(Slot, Name)>,
    /// What changes have made, as long as a request may come whose server died.
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

    /// Stores what was before a change of `name`. `None`: a change of this name is under way, or
    /// too many are.
    pub(crate) fn begin(&mut self, area: &Area, name: Name, forced: Forced) -> Option<Slot> {
        if self.under_way.iter().any(|(_, other)| *other == name) {
            return None;
        }
        // The kernel sends a request again as soon as its next server serves. What still lies here
        // when all other slots are taken had its reply.
        let slot = self.free.pop().or_else(|| self.left.pop_first().map(|(_, (slot, _))| slot))?;
        area.store(slot.at(), 0);
        area.put(slot.at(), forced.as_bytes());
        self.under_way.push((slot, name));
        Some(slot)
    }

    /// Stores what a change has made, before its reply.
    pub(crate) fn made(&mut self, area: &Area, slot: Slot, made: u64) {
        area.store(slot.at() + MADE_AT, made);
        if !self.left.is_empty() {
            self.claimed.insert(made);
        }
    }

    /// Takes what an earlier server has stored of a request that is sent again.
    pub(crate) fn take(&mut self, unique: u64) -> Option<(Slot, Forced)> {
        self.left.remove(&unique)
    }

    /// Whether another change has made this.
    pub(crate) fn is_claimed(&self, made: u64) -> bool {
        self.claimed.contains(&made)
    }

    /// The reply is sent, or the change is begun as a new one.
    pub(crate) fn end(&mut self, area: &Area, slot: Slot) {
        area.store(slot.at(), 0);
        self.under_way.retain(|(other, _)| *other != slot);
        self.free.push(slot);
    }
}
