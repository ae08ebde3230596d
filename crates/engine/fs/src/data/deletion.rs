//! The deletion of inodes without a name, in bounded steps: at once, at the last unpin, or by
//! recovery.

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
    /// Removes pins of an inode. The last unpin of a nameless inode deletes it.
    pub(crate) fn unpin(&self, ino: Ino, count: u64) {
        let last = self.inodes.unpin(ino, count);
        if last && self.orphans.contains(ino) && self.engine.check_open().is_ok() {
            self.orphans.defer(ino);
            self.delete_unpinned();
        }
    }

    /// Deletes inodes that have lost their last pin. Deletes none while the file system is frozen;
    /// the thaw calls this again.
    pub(crate) fn delete_unpinned(&self) {
        // The caller has listed the inode before. So either the gate is open here, or the thaw
        // finds the inode on the list.
        while let Some(_change) = self.engine.gate().try_change()
            && let Some(ino) = self.orphans.next_deferred()
        {
            self.orphaned(ino);
        }
    }

    /// Handles an inode that has lost its last name: deletes it now, or leaves that to its last
    /// unpin.
    pub(crate) fn orphaned(&self, ino: Ino) {
        // Listed before the pins are checked, so that a thread that removes the last pin meanwhile
        // finds the inode on the list.
        self.orphans.add(ino, Named::Never);
        if self.inodes.is_pinned(ino) {
            return;
        }
        if let Err(e) = self.delete_orphan(ino)
            && self.engine.store().check_alive().is_ok()
        {
            // The inode stays an orphan, which the next mount deletes.
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

    /// Runs one step. Returns whether no further step is needed.
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
            // Another thread has deleted the inode, or has given an O_TMPFILE a name. The inode
            // leaves the list under the meta lock: a thread that removes its last name later lists
            // it again.
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
            // Removed only now, after the pages have returned what was promised to them: a thread
            // may be waiting for that space.
            self.orphans.remove(ino);
        }
        Ok(gone)
    }

    /// Commits the record of a step. Returns whether it has deleted the inode.
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
            // The target of a symlink is removed last, together with its inode, so that neither
            // exists alone.
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

    /// Finishes at mount what the orphan items of all trees require.
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

    /// [`Files::recover_orphans_of`] for a new fork, which no other thread can reach yet. The fork
    /// is already durable, so a failure is only logged; the next mount finishes the rest.
    pub(crate) fn drop_orphans_of(&self, tree: u32) {
        // A fork without orphan items is not opened, since opening it would read nodes.
        if tree != 0 && self.engine.store().orphan_count(tree) == 0 {
            return;
        }
        if let Err(e) = self.recover_orphans_of(tree, Nameless::Deleted)
            && self.engine.store().check_alive().is_ok()
        {
            tracing::warn!("deletion of nameless inodes of tree {tree}: {e}");
        }
    }

    /// Finishes what the orphan items of a tree require, before the tree is in use. An item that
    /// fails does not keep the others from being finished. Returns the first error.
    fn recover_orphans_of(&self, tree: u32, nameless: Nameless) -> Result<u64> {
        let mut found = Vec::new();
        self.engine.store().orphans(tree, &mut |key, value| {
            found.push((Ino(key.offset), Orphan::decode(value)));
            ControlFlow::Continue(())
        })?;
        let count = found.len() as u64;
        let mut results = Vec::new();
        // Truncated files are marked first: a mark makes the next change of the file finish the
        // truncate, and keeps the inode in memory, whatever fails below.
        let mut truncated = Vec::new();
        for (ino, orphan) in &found {
            if matches!(orphan, Ok(Orphan::Truncate)) {
                match self.inodes.get(*ino) {
                    Ok(inode) => {
                        inode.meta.lock().shrinking = true;
                        truncated.push(inode);
                    }
                    Err(e) => results.push(Err(e)),
                }
            }
        }
        for (ino, orphan) in found {
            match orphan {
                Ok(Orphan::Unlinked) if nameless == Nameless::Kept => self.orphans.add(ino, Named::Later),
                Ok(Orphan::Unlinked) => results.push(self.delete_orphan(ino)),
                Ok(Orphan::Truncate) => {}
                Err(e) => results.push(Err(e.into())),
            }
        }
        results.extend(truncated.iter().map(|inode| self.finish_truncate(inode)));
        results.into_iter().collect::<Result<()>>()?;
        Ok(count)
    }
}
