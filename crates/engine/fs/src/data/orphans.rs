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
pub(crate) struct Orphans {
    listed: Mutex<HashMap<Ino, Named>>,
    /// Those whose last pin is gone, until somebody deletes them.
    unpinned: Mutex<Vec<Ino>>,
}

impl Orphans {
    pub(crate) fn new() -> Orphans {
        Orphans {
            listed: Mutex::new(Rank::Leaf, HashMap::new()),
            unpinned: Mutex::new(Rank::Leaf, Vec::new()),
        }
    }

    pub(crate) fn add(&self, ino: Ino, named: Named) {
        self.listed.lock().insert(ino, named);
    }

    pub(crate) fn remove(&self, ino: Ino) {
        self.listed.lock().remove(&ino);
    }

    pub(crate) fn contains(&self, ino: Ino) -> bool {
        self.listed.lock().contains_key(&ino)
    }

    /// It has lost its last pin, and is to be deleted.
    pub(crate) fn put_off(&self, ino: Ino) {
        self.unpinned.lock().push(ino);
    }

    pub(crate) fn next_put_off(&self) -> Option<Ino> {
        self.unpinned.lock().pop()
    }

    pub(crate) fn may_get_name(&self, ino: Ino) -> bool {
        self.listed.lock().get(&ino) == Some(&Named::Later)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.listed.lock().is_empty()
    }
}
