//! The deletion of inodes without a name, in bounded steps: at once, at the last unpin, or by
//! recovery.

use super::Files;
use super::orphans::{Named, Nameless};
use super::truncate::{StepMax, in_steps};
use crate::cache::commit::{commit, lock_metas};
use crate::cache::inode::Inode;
use crate::error::{Error, Result};
use crate::extents::ExtentSet;
use crate::gate::Phase;
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
        // After a shutdown the next mount deletes the inode.
        let _ = self.delete_or_retry(ino);
    }

    /// Tries again to delete the inodes whose deletion has failed. Each is tried once.
    pub(crate) fn delete_failed(&self) {
        let mut last = Ino(0);
        if self.engine.check_open().is_err() {
            return;
        }
        while let Some(_change) = self.engine.gate().try_change()
            && let Some(ino) = self.orphans.next_failed(last)
        {
            last = ino;
            if !self.inodes.is_pinned(ino) && self.delete_or_retry(ino).is_err() {
                return;
            }
        }
    }

    /// Deletes a nameless inode without pins. A failure is only logged: the inode stays an orphan,
    /// and is deleted by a later [`Files::delete_failed`] or by the next mount. Returns an error
    /// only if the store is shut down.
    fn delete_or_retry(&self, ino: Ino) -> Result<()> {
        let Err(e) = self.delete_orphan(ino) else { return Ok(()) };
        self.engine.store().check_alive()?;
        if self.orphans.failed(ino) {
            tracing::warn!("deletion of inode {ino}, which is tried again: {e}");
        } else {
            tracing::debug!("deletion of inode {ino}, once more: {e}");
        }
        Ok(())
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

    /// Deletes the nameless inodes that have no pins. Returns their number, including those whose
    /// deletion is tried again later.
    pub(crate) fn delete_forgotten(&self) -> Result<u64> {
        let mut count = 0;
        for ino in self.orphans.all() {
            if !self.inodes.is_pinned(ino) {
                self.delete_or_retry(ino)?;
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

    /// Finishes what the orphan items of a tree require, before the tree is in use. What fails is
    /// finished later, so that one damaged file does not keep the file system from being opened,
    /// nor the other items from being finished.
    ///
    /// # Crash argument
    /// After a failure the orphan item is still there, and the state is that after the same failure
    /// before the crash: the inode is nameless, or held in memory as one whose truncate is not
    /// finished. The next change of that file first finishes its truncate, so no cut-off byte
    /// shows. An inode that cannot be read cannot be held in memory, so its error is returned.
    ///
    /// If the image is frozen, no record is appended: it would have the epoch of this open, and a
    /// crash during the thaw could leave it in a log whose epoch no slot names yet.
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
                Ok(Orphan::Unlinked) => results.push(self.delete_or_retry(ino)),
                Ok(Orphan::Truncate) => {}
                Err(e) => results.push(Err(e.into())),
            }
        }
        if self.engine.gate().phase() != Phase::Frozen {
            for inode in &truncated {
                if let Err(e) = self.finish_truncate(inode) {
                    self.engine.store().check_alive()?;
                    tracing::warn!("the truncate of inode {} is finished later: {e}", inode.ino);
                }
            }
        }
        results.into_iter().collect::<Result<()>>()?;
        Ok(count)
    }
}
