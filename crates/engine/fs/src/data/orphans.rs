//! The list of nameless inodes that are pinned, or whose deletion has failed. The last unpin
//! deletes an inode, and a flusher thread tries again what has failed.

use kedge_base::Ino;
use kedge_base::atomic::{AtomicU64, Ordering::SeqCst};
use kedge_base::lock::{Condvar, Mutex, Rank};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

/// Whether a nameless inode may get a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    /// It has lost its last name, and cannot get another.
    Never,
    /// It was created without a name (O_TMPFILE).
    Later,
}

/// What an open does with inodes that have no name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nameless {
    Deleted,
    /// Clients of a server that died may have these inodes open, so they stay. Which of them may
    /// get a name, only the kernel knows.
    Kept,
}

#[derive(Default)]
struct Listed {
    inodes: BTreeMap<Ino, Named>,
    /// The listed inodes whose deletion has failed.
    failed: BTreeSet<Ino>,
    /// Number of inodes that were ever listed.
    added: u64,
    /// The value of `added` when the last wait for a deletion timed out.
    waited: Option<u64>,
}

/// The nameless inodes of a file system; see the module's head.
pub(crate) struct Orphans {
    listed: Mutex<Listed>,
    /// Inodes that have lost their last pin and are to be deleted.
    unpinned: Mutex<Vec<Ino>>,
    /// Number of inodes that have left the list.
    removed: AtomicU64,
    /// Signalled when an inode leaves the list.
    left: Condvar,
}

impl Orphans {
    pub(crate) fn new() -> Orphans {
        Orphans {
            listed: Mutex::new(Rank::Leaf, Listed::default()),
            unpinned: Mutex::new(Rank::Leaf, Vec::new()),
            removed: AtomicU64::new(0),
            left: Condvar::new(),
        }
    }

    pub(crate) fn add(&self, ino: Ino, named: Named) {
        let mut listed = self.listed.lock();
        listed.added += u64::from(listed.inodes.insert(ino, named).is_none());
    }

    pub(crate) fn remove(&self, ino: Ino) {
        let mut listed = self.listed.lock();
        if listed.inodes.remove(&ino).is_some() {
            listed.failed.remove(&ino);
            drop(listed);
            self.removed.fetch_add(1, SeqCst);
            self.left.notify_all();
        }
    }

    /// The number of inodes that have left the list since the open.
    pub(crate) fn removed(&self) -> u64 {
        self.removed.load(SeqCst)
    }

    /// Waits until more than `since` inodes have left the list, at most `limit`. Returns whether
    /// they have. Does not wait if the list is empty but for failed deletions. If the last wait
    /// timed out and no inode was listed since, the listed inodes are in use, and the limit is a
    /// tenth.
    pub(crate) fn wait_for_removal(&self, since: u64, limit: Duration) -> bool {
        let mut listed = self.listed.lock();
        while self.removed() <= since && listed.inodes.len() > listed.failed.len() {
            let again = listed.waited == Some(listed.added);
            if self.left.wait_for(&mut listed, if again { limit / 10 } else { limit }) {
                listed.waited = Some(listed.added);
                break;
            }
        }
        self.removed() > since
    }

    /// Removes the inodes for which `gone` holds from the list, because their whole tree is
    /// deleted.
    pub(crate) fn forget(&self, gone: impl Fn(Ino) -> bool) {
        let mut listed = self.listed.lock();
        listed.inodes.retain(|ino, _| !gone(*ino));
        listed.failed.retain(|ino| !gone(*ino));
        drop(listed);
        self.unpinned.lock().retain(|ino| !gone(*ino));
    }

    pub(crate) fn all(&self) -> Vec<Ino> {
        self.listed.lock().inodes.keys().copied().collect()
    }

    pub(crate) fn contains(&self, ino: Ino) -> bool {
        self.listed.lock().inodes.contains_key(&ino)
    }

    /// Notes that an inode has lost its last pin and is to be deleted.
    pub(crate) fn defer(&self, ino: Ino) {
        self.unpinned.lock().push(ino);
    }

    pub(crate) fn next_deferred(&self) -> Option<Ino> {
        self.unpinned.lock().pop()
    }

    /// Lists an inode whose deletion has failed. Returns whether this is its first failure.
    pub(crate) fn failed(&self, ino: Ino) -> bool {
        let mut listed = self.listed.lock();
        if let Entry::Vacant(entry) = listed.inodes.entry(ino) {
            entry.insert(Named::Never);
            listed.added += 1;
        }
        listed.failed.insert(ino)
    }

    /// The first inode after `last` whose deletion has failed.
    pub(crate) fn next_failed(&self, last: Ino) -> Option<Ino> {
        self.listed.lock().failed.range((Excluded(last), Unbounded)).next().copied()
    }

    pub(crate) fn may_get_name(&self, ino: Ino) -> bool {
        self.listed.lock().inodes.get(&ino) == Some(&Named::Later)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.listed.lock().inodes.is_empty()
    }
}
