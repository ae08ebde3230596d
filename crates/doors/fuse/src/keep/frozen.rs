//! A freeze that outlives its server.
//!
//! The field is valid if `frozen` has the number of the request that made the freeze. The number is
//! stored before the reply, when the image is clean and the journal is empty. So a next server that
//! finds the number has nothing to redo, and opens the image without a write. A thaw stores 0
//! before it begins. A next server that finds 0 opens the image as after any death, which is a
//! thaw.
//!
//! A request that is resent after a death may have been carried out: a freeze, if the field has its
//! number; a thaw, if `thawed` has its number and there is no freeze.

use super::area::{Area, Head, at, now_ns};
use crate::abi::UNIQUE_RESEND;
use std::time::Duration;

/// The number for a freeze or thaw that no request has asked for.
const OWN: u64 = u64::MAX;

/// A freeze.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frozen {
    pub(crate) unique: u64,
    /// When the freeze began, in seconds since 1970.
    pub since: i64,
    /// The time until the automatic thaw; `None` for never.
    pub(crate) left: Option<Duration>,
}

impl Area {
    /// The present freeze, if there is one.
    pub fn frozen(&self) -> Option<Frozen> {
        let head: Head = self.read(0);
        let left =
            (head.thaw_at_ns > 0).then(|| Duration::from_nanos(head.thaw_at_ns.saturating_sub(now_ns())));
        (head.frozen != 0).then_some(Frozen {
            unique: head.frozen,
            since: head.frozen_since.cast_signed(),
            left,
        })
    }

    pub(crate) fn note_frozen(&self, frozen: &Frozen) {
        let ends = |left: Duration| now_ns().saturating_add(left.as_nanos() as u64);
        self.store(at!(frozen_since), frozen.since.cast_unsigned());
        self.store(at!(thaw_at_ns), frozen.left.map_or(0, ends));
        self.store(at!(frozen), frozen.unique & !UNIQUE_RESEND);
    }

    /// Notes that a thaw begins: for this request, or with `None` because the freeze's time limit
    /// has passed.
    pub(crate) fn note_thaw(&self, unique: Option<u64>) {
        self.store(at!(thawed), unique.map_or(OWN, |unique| unique & !UNIQUE_RESEND));
        self.store(at!(frozen), 0);
    }

    /// Whether an earlier server has carried out this freeze or thaw.
    pub(crate) fn has_changed_freeze(&self, unique: u64, freezes: bool) -> bool {
        let head: Head = self.read(0);
        let number = unique & !UNIQUE_RESEND;
        let done = if freezes { head.frozen == number } else { head.frozen == 0 && head.thawed == number };
        unique & UNIQUE_RESEND != 0 && done
    }
}
