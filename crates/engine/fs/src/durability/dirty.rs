//! The dirty inodes of a file system, and those under writeback.
//!
//! Each open file system has two lists. An inode is on the *dirty list* ([`DirtySet`]) from its
//! first dirty page or pending time stamp until it has neither. It is on the *under-writeback list*
//! while a pass writes pages of it. `sync` walks these two lists and nothing else: neither the
//! cached clean inodes of its own file system nor any inode of another one in this process. With
//! `dirty_tracking=shared` it walks the cached inodes as well, which is the purpose of that option.

use crate::cache::inode::Inode;
use crate::cache::table::Watch;
use crate::policy::dirty_set::{DirtyHandle, DirtySet, Placed};
use crate::policy::order::WritebackOrder;
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{BlockNo, Counter, Ino};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

impl Placed for Inode {
    /// `None` if the inode's lock is not free: does not wait for it.
    fn location(&self) -> Option<u64> {
        self.meta.try_lock_unranked().and_then(|meta| meta.goal).map(|BlockNo(block)| block)
    }
}

/// The two lists of a file system; see the module's head.
pub(crate) struct DirtyList {
    set: Arc<dyn DirtySet>,
    under_writeback: Mutex<BTreeMap<Ino, (Arc<Inode>, u32)>>,
    watch: Watch,
    /// Number of inodes that syncs examined to find running writeback.
    pub walked: Counter,
}

impl DirtyList {
    pub(crate) fn new(set: Arc<dyn DirtySet>, watch: Watch) -> DirtyList {
        let under_writeback = Mutex::new(Rank::Leaf, BTreeMap::new());
        DirtyList { set, under_writeback, watch, walked: Counter::new() }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.set.name()
    }

    pub(crate) fn add(&self, inode: Arc<Inode>, since: Duration) {
        self.set.add(DirtyHandle::new(inode.ino, since, inode));
    }

    pub(crate) fn remove(&self, ino: Ino) {
        self.set.remove(ino);
    }

    pub(crate) fn len(&self) -> usize {
        self.set.len()
    }

    /// Returns all dirty inodes, in the order in which a sync writes them.
    pub(crate) fn all(&self, order: &dyn WritebackOrder) -> Vec<Arc<Inode>> {
        inodes(self.set.all(order))
    }

    /// Returns up to `max` inodes for background writeback, none of which is under writeback.
    pub(crate) fn take(&self, max: usize, order: &dyn WritebackOrder) -> Vec<Arc<Inode>> {
        let busy = |ino| self.under_writeback.lock().contains_key(&ino);
        inodes(self.set.batch(max, &busy, order))
    }

    /// The number of inodes under writeback.
    pub(crate) fn count_under_writeback(&self) -> usize {
        self.under_writeback.lock().len()
    }

    /// An inode under writeback, if there is one.
    pub(crate) fn any_under_writeback(&self) -> Option<Arc<Inode>> {
        self.under_writeback.lock().values().next().map(|(inode, _)| inode.clone())
    }

    /// Adds an inode to the under-writeback list, for a pass that writes pages of it.
    pub(crate) fn join_writeback(&self, inode: &Arc<Inode>) {
        self.under_writeback.lock().entry(inode.ino).or_insert_with(|| (inode.clone(), 0)).1 += 1;
    }

    pub(crate) fn leave_writeback(&self, ino: Ino) {
        let mut list = self.under_writeback.lock();
        let entry = list.get_mut(&ino).expect("joined before");
        entry.1 -= 1;
        let gone = if entry.1 == 0 { list.remove(&ino) } else { None };
        drop(list);
        drop(gone);
    }

    /// Returns the inodes whose writeback a sync must await.
    pub(crate) fn under_writeback(&self) -> Vec<Arc<Inode>> {
        let others = self.watch.as_ref().map_or(0, |watch| watch.before_sync());
        let list: Vec<_> = self.under_writeback.lock().values().map(|(inode, _)| inode.clone()).collect();
        self.walked.add((others + list.len()) as u64);
        list
    }
}

fn inodes(handles: Vec<DirtyHandle>) -> Vec<Arc<Inode>> {
    handles.into_iter().filter_map(DirtyHandle::into_inode).collect()
}
