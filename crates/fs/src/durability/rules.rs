//! Rules of other file systems about what forces the log. They are kept to compare with, and are as
//! safe as the default ones.
//!
//! # fdatasync of XFS
//! write() changes the time stamps in a transaction of its own if the coarse clock has moved since
//! they were set ([`FdatasyncRule::stamps_at_write`]). Before its change (`relog`), fdatasync forced
//! the log if two things held: the inode was in a part of the log that was not durable (it was
//! pinned), and more than time stamps of it had been logged since it was last written back. The
//! second always holds where a record carries the change counter, which counted as the inode's core:
//! that is the announcement's second point, and each record here carries it. So the first decides
//! ([`FdatasyncRule::takes_all`]). An fdatasync whose write came in the same tick as the one before,
//! or whose stamps another thread's force has made durable, forces nothing. After the change
//! (`fields`), only what was logged since the last force counts, without the counter: `seq` decides
//! so, too, and leaves the stamps out of the log until an fsync or the commit timer wants them.
//!
//! # New names of Btrfs
//! `new_name=sync`, the
//! old rule of Btrfs, needs to know which inodes were fsynced: [`SyncedInodes`] remembers them
//! while the rule is in force, and nothing otherwise.

use crate::options::FdatasyncRule;
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{Generation, Ino};
use std::collections::BTreeSet;

/// Inodes that are remembered one by one. With more of them each counts as fsynced.
const REMEMBERED_MAX: usize = 1 << 20;

impl FdatasyncRule {
    /// Whether a call waits for all that was logged of the inode, time stamps included.
    pub(crate) fn takes_all(self, datasync: bool) -> bool {
        !datasync || self == FdatasyncRule::Relog
    }

    /// Whether write() logs the new time stamps.
    pub(crate) fn stamps_at_write(self) -> bool {
        self != FdatasyncRule::Seq
    }
}

/// Which inodes were fsynced since the last checkpoint, for `new_name=sync`.
pub(crate) struct SyncedInodes(Mutex<State>);

#[derive(Default)]
struct State {
    /// That the rest speaks of.
    generation: Generation,
    inodes: BTreeSet<Ino>,
    /// Each inode counts: the rule came into force in this generation, or they were too many.
    all: bool,
}

impl State {
    fn enter(&mut self, generation: Generation) {
        if self.generation != generation {
            *self = State { generation, ..State::default() };
        }
    }
}

impl SyncedInodes {
    pub(crate) fn new() -> SyncedInodes {
        SyncedInodes(Mutex::new(Rank::Leaf, State::default()))
    }

    /// The rule comes into force while the file system is open. What was fsynced before in this
    /// generation is not known.
    pub(crate) fn begin(&self, generation: Generation) {
        let mut state = self.0.lock();
        state.enter(generation);
        state.all = true;
    }

    /// An fsync of the inode.
    pub(crate) fn note(&self, ino: Ino, generation: Generation) {
        let mut state = self.0.lock();
        state.enter(generation);
        if state.all {
            return;
        }
        state.inodes.insert(ino);
        if state.inodes.len() > REMEMBERED_MAX {
            (state.all, state.inodes) = (true, BTreeSet::new());
        }
    }

    /// Whether one of the inodes was fsynced in this generation.
    pub(crate) fn has_any(&self, inodes: impl IntoIterator<Item = Ino>, generation: Generation) -> bool {
        let state = self.0.lock();
        let any = |ino: Ino| state.all || state.inodes.contains(&ino);
        state.generation == generation && inodes.into_iter().any(any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Generation = Generation(7);
    const NEXT: Generation = Generation(8);

    #[test]
    fn a_checkpoint_forgets_who_was_fsynced() {
        let synced = SyncedInodes::new();
        synced.note(Ino(5), NOW);
        assert!(synced.has_any([Ino(4), Ino(5)], NOW));
        assert!(!synced.has_any([Ino(4)], NOW));
        assert!(!synced.has_any([Ino(5)], NEXT));
        synced.note(Ino(4), NEXT);
        assert!(!synced.has_any([Ino(5)], NEXT), "of the generation before");
    }

    #[test]
    fn a_rule_that_comes_into_force_takes_every_inode_for_fsynced() {
        let synced = SyncedInodes::new();
        synced.begin(NOW);
        assert!(synced.has_any([Ino(9)], NOW));
        assert!(!synced.has_any([Ino(9)], NEXT));
    }
}
