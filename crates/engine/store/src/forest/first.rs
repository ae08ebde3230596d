//! The first tree, whose root directory is that of the image, and its replacement by a fork.

use super::{Forest, Member, State, first_entry};
use crate::counters::Counters;
use crate::space::Marks;
use kedge_base::atomic::Ordering::*;
use kedge_base::broken::{self, Variant};
use kedge_base::{Error, Ino, Result};
use kedge_btree::Frozen;
use kedge_format::trees::{TreeEntry, TreeKind};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A reference to the first tree. It stays valid if the tree is replaced.
pub(crate) enum First<'a> {
    /// The first tree of the superblock at open, which is never dropped, so no reference is
    /// counted.
    AsOpened(&'a Arc<Member>),
    Later(Arc<Member>),
}

impl First<'_> {
    pub(crate) fn shared(&self) -> Arc<Member> {
        match self {
            First::AsOpened(member) => (*member).clone(),
            First::Later(member) => member.clone(),
        }
    }
}

impl std::ops::Deref for First<'_> {
    type Target = Member;

    fn deref(&self) -> &Member {
        match self {
            First::AsOpened(member) => member,
            First::Later(member) => member,
        }
    }
}

impl Forest {
    /// The present first tree.
    pub(crate) fn first(&self) -> First<'_> {
        if self.replaced.load(Acquire) == 0 {
            return First::AsOpened(&self.opened_first);
        }
        let later = self.state.read().later_first.clone();
        First::Later(later.expect("it is set before the number of what it replaced"))
    }

    /// [`Forest::first`] for a caller that holds the lock of `state`.
    pub(super) fn first_in<'a>(&'a self, later: &'a Option<Arc<Member>>) -> &'a Arc<Member> {
        later.as_ref().unwrap_or(&self.opened_first)
    }

    /// Opens the tree that the next cut makes the first one, with the state of `source`. `source`
    /// has no dirty node and does not change until that cut. The open reads the root, so that the
    /// cut need not.
    pub(crate) fn prepare_first(&self, source: u32) -> Result<()> {
        let entry = self.entry(source).filter(|entry| entry.kind == TreeKind::Head);
        let entry = entry.ok_or(Error::NoTree(source))?;
        let marks = Arc::new(Marks::default());
        let counters = Counters::of(entry.next_ino, entry.inodes, entry.orphans);
        let tree = self.common.open(0, &entry, &marks, self.cache_bytes() / 2)?;
        let member = Arc::new(Member { number: 0, tree, counters, marks });
        self.state.write().next_first = Some(member);
        Ok(())
    }

    /// The number of the dying tree with the former contents of the first tree, since it was last
    /// replaced; 0 if it was not.
    pub(crate) fn replaced(&self) -> u32 {
        self.replaced.load(Acquire)
    }

    /// Counts the orphan items of the first tree. The caller stops all changes meanwhile.
    pub(crate) fn count_first_orphans(&self) -> Result<()> {
        let mut count = 0;
        self.orphans(0, &mut |_, _| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        self.first().counters.orphans.store(count, Relaxed);
        Ok(())
    }

    /// Gives the first tree the state of `source`, at a cut. The former contents of the first tree
    /// become the dying tree `old`.
    pub(super) fn replace_first(
        &self,
        state: &mut State,
        (source, old, point): (u32, u32, u32),
        first: &Frozen,
        changed: &mut BTreeSet<u32>,
        created: i64,
    ) {
        let mut gone = match state.entries.get(&0) {
            Some(entry) => entry.clone(),
            None => first_entry(created),
        };
        (gone.root, gone.root_generation) = (first.root, first.root_generation);
        (gone.root_level, gone.nodes) = (first.root_level, first.node_count);
        self.first_in(&state.later_first).counters.store_in(&mut gone);
        let (since, gone_marks) = (gone.created, (gone.births_below, gone.nodes_below));
        state.entries.insert(old, TreeEntry { kind: TreeKind::Dying, ..gone });
        changed.insert(old);
        let entry = self.make_point(state, source, point, first, changed, created);
        let (dir, name) = (Ino(0), Vec::new());
        let mut in_place = TreeEntry { read_only: false, dir, name, created: since, ..entry.clone() };
        state.entries.insert(source, entry);
        // Broken on purpose: the first tree keeps its old marks, and takes what it shares for its
        // own.
        if broken::is(Variant::ReplacedRootUnmarked) {
            (in_place.births_below, in_place.nodes_below) = (gone_marks.0, gone_marks.1);
        }
        self.limits.delete_tree(0);
        self.limits.fork(source, 0);
        let member = state.next_first.take().expect("it was prepared");
        member.marks.set(in_place.births_below, in_place.nodes_below);
        state.entries.insert(0, in_place);
        changed.insert(0);
        state.later_first = Some(member);
        self.replaced.store(old, Release);
    }
}
