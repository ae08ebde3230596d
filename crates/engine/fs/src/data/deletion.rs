//! The deletion of inodes without a name, in bounded steps, now or after a crash.

use super::Files;
use super::orphans::{Named, Nameless};
use super::truncate::{StepMax, in_steps};
use crate::cache::commit::{commit, lock_metas};
use crate::cache::inode::Inode;
use crate::error::{Error, Result};
use crate::extents::ExtentSet;
use crate::sums;
use kedge_base::Ino;
use kedge_format::item::Orphan;
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_format::{ItemKind, Key};
use kedge_store::{Class, Handle, TreeKind};
use std::ops::ControlFlow;

impl Files {
    /// Releases pins of an inode; the last pin of a nameless inode deletes it.
    pub(crate) fn unpin(&self, ino: Ino, count: u64) {
        let last = self.inodes.unpin(ino, count);
        if last && self.orphans.contains(ino) && self.engine.check_open().is_ok() {
            self.orphans.defer(ino);
            self.delete_unpinned();
        }
    }

    /// Deletes inodes that have lost their last pin. While the file system is frozen it deletes
    /// none, and after the thaw those that accumulated.
    pub(crate) fn delete_unpinned(&self) {
        // The inode is listed first: so either the gate is open here, or the thaw finds the inode.
        while let Some(_change) = self.engine.gate().try_change()
            && let Some(ino) = self.orphans.next_deferred()
        {
            self.orphaned(ino);
        }
    }

    /// Handles an inode that lost its last name: deletes it now, or with its last pin.
    pub(crate) fn orphaned(&self, ino: Ino) {
        // Listed before the pins are checked: a thread that releases the last pin meanwhile finds
        // it.
        self.orphans.add(ino, Named::Never);
        if self.inodes.is_pinned(ino) {
            return;
        }
        if let Err(e) = self.delete_orphan(ino)
            && self.engine.store().check_alive().is_ok()
        {
            // It stays an orphan: the next mount deletes it.
            tracing::warn!("deletion of inode {ino}: {e}");
        }
    }

    /// Deletes a nameless inode without pins, in bounded steps.
    pub(crate) fn delete_orphan(&self, ino: Ino) -> Result<()> {
        loop {
            let max = self.step_max(ino, 0)?;
            if in_steps(Class::Reclaim, max, |max| self.delete_some(ino, max))? {
                return Ok(());
            }
        }
    }

    /// Runs one step. Returns whether the deletion is complete.
    fn delete_some(&self, ino: Ino, max: StepMax) -> Result<bool> {
        let mut handle = self.engine.begin(max.need(Class::Reclaim))?;
        let inode = match self.inodes.get(ino) {
            Err(Error::NotFound) => {
                self.orphans.remove(ino);
                return Ok(true);
            }
            other => other?,
        };
        let _io = inode.io.write();
        let _wb = inode.wb.lock();
        let meta = inode.meta.lock();
        if meta.core.nlink > 0 || meta.dead {
            // Another thread was faster, or gave an O_TMPFILE a name. Under the meta lock, because
            // a thread that removes the last name comes later and lists the inode again.
            self.orphans.remove(ino);
            return Ok(true);
        }
        if self.inodes.is_pinned(ino) {
            return Ok(true);
        }
        drop(meta);
        let gone = self.delete_step(&mut handle, &inode, max)?;
        self.forget_pages(&inode, 0, u64::MAX);
        if gone {
            // Now that its pages have returned what was promised for them: a thread may wait for
            // that room.
            self.orphans.remove(ino);
        }
        Ok(gone)
    }

    /// Returns whether the inode is deleted.
    fn delete_step(&self, handle: &mut Handle<'_>, inode: &Inode, max: StepMax) -> Result<bool> {
        let ino = inode.ino;
        let mut record = RecordBuilder::new(RecordOp::Reclaim);
        let mut set = ExtentSet::default();
        let loaded = set.load(self.engine.store(), ino, 0, u64::MAX, max.extents)?;
        let end = set.end().unwrap_or(0);
        let (mut counting, upto) = self.count_removal(ino, &set, (0, end), max.counts)?;
        let removed = set.remove(0, upto);
        set.emit(&mut record, ino);
        if let Some(counting) = &mut counting {
            counting.emit(&mut record, ino, &removed)?;
        }
        removed.freed.iter().for_each(|extent| record.free(*extent));
        let blocks = removed.blocks;
        let left = if upto < end { 0 } else { max.extents.saturating_sub(loaded) };
        let sums = match self.engine.store().geometry().has_sums() {
            true => sums::remove(self.engine.store(), &mut record, ino, (0, u64::MAX), left)?,
            false => 0,
        };
        let mut finished = sums < left;
        let mut others = 0;
        for kind in [ItemKind::Xattr, ItemKind::Symlink, ItemKind::Inline] {
            let key = |offset| Key::new(ino, kind, offset);
            // A symlink's target is removed last, with its inode, so that the two agree until then.
            if !finished {
                break;
            }
            self.engine.store().scan(key(0), key(u64::MAX), &mut |at, _| {
                if others >= max.xattrs {
                    finished = false;
                    return ControlFlow::Break(());
                }
                record.delete(at);
                others += 1;
                ControlFlow::Continue(())
            })?;
        }
        let mut changes = lock_metas(&[inode]);
        let c = &mut changes[0];
        if self.engine.store().is_resident(ino, 0, u64::MAX) {
            record.drop_data(ino, 0, u64::MAX);
        }
        if !finished {
            if blocks > 0 {
                c.set(InodeMask::BLOCKS, |core| core.blocks = core.blocks.saturating_sub(blocks));
            }
            commit(handle, record, &mut changes)?;
            return Ok(false);
        }
        record.delete(Key::inode(ino));
        record.delete(Key::orphan(ino));
        handle.commit(record)?;
        c.meta.dead = true;
        self.writeback.unlist(ino, &mut c.meta);
        drop(changes);
        self.inodes.remove(ino);
        Ok(true)
    }

    /// At mount: finishes the work that the orphan items of all trees name.
    pub(crate) fn recover_orphans(&self, nameless: Nameless) -> Result<u64> {
        let mut count = self.recover_orphans_of(0, nameless)?;
        for (number, entry) in self.engine.store().trees() {
            if number != 0 && entry.kind == TreeKind::Head && self.engine.store().orphan_count(number) > 0 {
                count += self.recover_orphans_of(number, nameless)?;
            }
        }
        Ok(count)
    }

    /// Deletes the nameless inodes that have no pins.
    pub(crate) fn delete_forgotten(&self) -> Result<u64> {
        let mut count = 0;
        for ino in self.orphans.all() {
            if !self.inodes.is_pinned(ino) {
                self.delete_orphan(ino)?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// [`Files::recover_orphans_of`] a fork, which nothing else can reach. The fork is durable
    /// already, so a failure is no error of it: the next mount finishes what is left.
    pub(crate) fn drop_orphans_of(&self, tree: u32) {
        // A fork without such items is not opened, which would read its nodes.
        if tree != 0 && self.engine.store().orphan_count(tree) == 0 {
            return;
        }
        if let Err(e) = self.recover_orphans_of(tree, Nameless::Deleted)
            && self.engine.store().check_alive().is_ok()
        {
            tracing::warn!("deletion of nameless inodes of tree {tree}: {e}");
        }
    }

    /// Finishes the work that the orphan items of a tree name, before the tree is in use.
    fn recover_orphans_of(&self, tree: u32, nameless: Nameless) -> Result<u64> {
        let mut found = Vec::new();
        self.engine.store().orphans(tree, &mut |key, value| {
            found.push((Ino(key.offset), Orphan::decode(value)));
            ControlFlow::Continue(())
        })?;
        let count = found.len() as u64;
        for (ino, orphan) in found {
            match orphan? {
                Orphan::Unlinked if nameless == Nameless::Kept => self.orphans.add(ino, Named::Later),
                Orphan::Unlinked => self.delete_orphan(ino)?,
                Orphan::Truncate => {
                    let inode = self.inodes.get(ino)?;
                    let mut meta = inode.meta.lock();
                    meta.shrinking = true;
                    drop(meta);
                    self.finish_truncate(&inode)?;
                }
            }
        }
        Ok(count)
    }
}
