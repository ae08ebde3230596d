//! Results of requests that may be resent: their change is made, but their reply may not have
//! reached the kernel.
//!
//! A worker serves one request at a time, so only the last entry of each worker can lack a reply.
//! The next server copies the results of these entries here before it frees the journal. The ring
//! has the results of the last few lives. Numbers of requests are never reused.

use super::area::{ANSWERS, ANSWERS_AT, Area, fields};
use std::collections::BTreeMap;
use zerocopy::{FromZeros, IntoBytes};

fields!(
    pub(crate) Answered = 64 {
        unique: u64, node: u64, ino: u64, opcode: u32, result: u32, done: u64, number: u64, unused: [u64; 2],
    }
);

pub(crate) struct Answers {
    held: BTreeMap<u64, Answered>,
    /// The number of the next result.
    number: u64,
}

impl Answers {
    pub(crate) fn load(area: &Area) -> Answers {
        let mut ring = vec![Answered::new_zeroed(); ANSWERS as usize];
        area.get(ANSWERS_AT, ring.as_mut_bytes());
        let number = ring.iter().map(|one| one.number).max().unwrap_or(0) + 1;
        let held = ring.into_iter().filter(|one| one.number > 0).map(|one| (one.unique, one)).collect();
        Answers { held, number }
    }

    /// Stores a result. A server that fails after this leaves the journal as it is, so the next one
    /// stores the same results. They keep their places in the ring: otherwise, after some such
    /// servers, they would overwrite the results of an earlier life.
    pub(crate) fn add(&mut self, area: &Area, answered: Answered) {
        let held = self.held.get(&answered.unique).map(|held| held.number);
        let number = held.filter(|number| self.number <= number + ANSWERS).unwrap_or(self.number);
        let place = ANSWERS_AT + number % ANSWERS * size_of::<Answered>() as u64;
        let number_at = place + std::mem::offset_of!(Answered, number) as u64;
        // A number other than 0 makes the result valid. It is 0 while old and new fields are mixed.
        area.store(number_at, 0);
        area.put(place, Answered { number: 0, ..answered }.as_bytes());
        area.store(number_at, number);
        self.held.insert(answered.unique, Answered { number, ..answered });
        self.number = self.number.max(number + 1);
    }

    pub(crate) fn take(&mut self, unique: u64) -> Option<Answered> {
        self.held.remove(&unique)
    }
}

#[cfg(test)]
#[path = "answers_tests.rs"]
mod tests;
