//! Inodes without a name that something pins: the last pin deletes them.

use kedge_base::Ino;
use kedge_base::lock::{Mutex, Rank};
use std::collections::HashMap;

/// Whether a nameless inode may get a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    /// It lost its last one: never again.
    Never,
    /// Made without one (O_TMPFILE).
    Later,
}

/// See the module.
pub(crate) struct Orphans(Mutex<HashMap<Ino, Named>>);

impl Orphans {
    pub(crate) fn new() -> Orphans {
        Orphans(Mutex::new(Rank::Leaf, HashMap::new()))
    }

    pub(crate) fn add(&self, ino: Ino, named: Named) {
        self.0.lock().insert(ino, named);
    }

    pub(crate) fn remove(&self, ino: Ino) {
        self.0.lock().remove(&ino);
    }

    pub(crate) fn contains(&self, ino: Ino) -> bool {
        self.0.lock().contains_key(&ino)
    }

    pub(crate) fn may_get_name(&self, ino: Ino) -> bool {
        self.0.lock().get(&ino) == Some(&Named::Later)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
