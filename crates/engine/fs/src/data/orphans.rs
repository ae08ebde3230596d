//! Inodes without a name that are pinned: the last pin deletes them.

use kedge_base::Ino;
use kedge_base::lock::{Mutex, Rank};
use std::collections::BTreeMap;

/// Whether a nameless inode may get a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    /// It lost its last name, and can get no other.
    Never,
    /// It was created without a name (O_TMPFILE).
    Later,
}

/// The nameless inodes of a file system; see the module's head.
pub(crate) struct Orphans {
    listed: Mutex<BTreeMap<Ino, Named>>,
    /// Those whose last pin is gone, until somebody deletes them.
    unpinned: Mutex<Vec<Ino>>,
}

impl Orphans {
    pub(crate) fn new() -> Orphans {
        Orphans {
            listed: Mutex::new(Rank::Leaf, BTreeMap::new()),
            unpinned: Mutex::new(Rank::Leaf, Vec::new()),
        }
    }

    pub(crate) fn add(&self, ino: Ino, named: Named) {
        self.listed.lock().insert(ino, named);
    }

    pub(crate) fn remove(&self, ino: Ino) {
        self.listed.lock().remove(&ino);
    }

    /// Forgets the inodes for which `gone` holds: their tree is deleted as a whole.
    pub(crate) fn forget(&self, gone: impl Fn(Ino) -> bool) {
        self.listed.lock().retain(|ino, _| !gone(*ino));
        self.unpinned.lock().retain(|ino| !gone(*ino));
    }

    pub(crate) fn contains(&self, ino: Ino) -> bool {
        self.listed.lock().contains_key(&ino)
    }

    /// Lists an inode that has lost its last pin, for deletion.
    pub(crate) fn defer(&self, ino: Ino) {
        self.unpinned.lock().push(ino);
    }

    pub(crate) fn next_deferred(&self) -> Option<Ino> {
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
