//! The limits of an open image: promises for operations, and the checkpoints that change limits.
//!
//! A limit is changed by the cut of a checkpoint, as a tree is ([`crate::trees`]); the caller stops
//! all changes meanwhile. To limit a directory that has entries takes three steps. A checkpoint
//! makes the limit without a maximum, records assign its number to the inodes, and a second
//! checkpoint sets the maxima. A crash in between leaves inodes with the number of a limit that has
//! no maximum. Such a limit refuses nothing, and its count is right.

use crate::checkpoint::cause::Freed;
use crate::forest::Change;
use crate::limits::{Charge, LimitId, LimitState, Room};
use crate::store::Store;
use kedge_base::{Ino, Result};
use kedge_format::limits::LimitEntry;

impl Store {
    /// Whether the image ever had a limit.
    pub fn has_limits(&self) -> bool {
        self.forest.limits.is_used()
    }

    /// The limit with this number in the tree of the inode.
    pub fn limit_id(&self, of: Ino, number: u32) -> LimitId {
        LimitId { tree: self.forest.tree_of(of), number }
    }

    pub fn limit(&self, id: LimitId) -> Option<LimitState> {
        self.forest.limits.get(id)
    }

    pub fn limits(&self) -> Vec<LimitState> {
        self.forest.limits.all()
    }

    /// The limit that is set on the directory itself.
    pub fn limit_of_dir(&self, dir: Ino) -> Option<LimitId> {
        self.forest.limits.of_dir(self.forest.tree_of(dir), self.forest.in_item(dir))
    }

    /// Number of limits that apply below a limit: itself and those that contain it.
    pub fn limit_depth(&self, id: LimitId) -> usize {
        self.forest.limits.depth(id)
    }

    /// What a limit and those that contain it still allow.
    pub fn limit_room(&self, id: LimitId) -> Room {
        self.forest.limits.room(id)
    }

    /// Promises up to `want` blocks within a limit, fewer if the limit has no more left.
    pub fn charge_blocks(&self, id: LimitId, want: u64) -> Charge {
        Charge::blocks(&self.forest.limits, id, want)
    }

    /// Promises an inode within a limit. `None` if the limit has none left.
    pub fn charge_inode(&self, id: LimitId) -> Option<Charge> {
        Charge::inode(&self.forest.limits, id)
    }

    /// Prepares a change of the limit of a directory, durably. If the directory has no limit, it
    /// gets one without a maximum; an existing limit keeps its maxima until [`Store::set_limit`].
    /// The caller stops all changes meanwhile. When the call returns, no page of the tree waits for
    /// a block.
    pub fn begin_limit(&self, dir: Ino, parent: u32) -> Result<LimitId> {
        let tree = self.forest.tree_of(dir);
        self.check_forkable(tree)?;
        self.settle_tree(tree)?;
        let (id, entry) = match self.limit_of_dir(dir).and_then(|id| self.limit(id)) {
            Some(there) => (there.id, LimitEntry { parent, ..there.entry }),
            None => {
                let number = self.forest.limits.new_number(tree)?;
                let dir = dir.local();
                let (blocks_max, inodes_max) = (None, None);
                let entry = LimitEntry { dir, parent, blocks_max, inodes_max, blocks: 0, inodes: 0 };
                (LimitId { tree, number }, entry)
            }
        };
        let change = Change::Limit { id, entry, begins: true, now: self.clock.now().sec };
        // The first limit may also add the entry of the first tree, so nodes for two entries are
        // reserved.
        self.change_trees(&[change], &Freed::default(), 2).inspect_err(|_| self.end_limit(id))?;
        Ok(id)
    }

    /// Sets the maxima of a limit, and makes it the parent of `nested`; durable on return.
    /// Conditions as for [`Store::begin_limit`].
    pub fn set_limit(&self, id: LimitId, entry: LimitEntry, nested: &[LimitId]) -> Result<()> {
        let now = self.clock.now().sec;
        let nest = |nested: &LimitId| Change::Nest { id: *nested, parent: id.number };
        let mut changes: Vec<Change> = nested.iter().map(nest).collect();
        changes.push(Change::Limit { id, entry, begins: false, now });
        self.change_trees(&changes, &Freed::default(), 0)
    }

    /// Called after [`Store::begin_limit`] if [`Store::set_limit`] does not follow.
    pub fn end_limit(&self, id: LimitId) {
        self.forest.limits.end_setting(id);
    }
}
