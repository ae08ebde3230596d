//! The space of an image: what is free, its size, and limits of directories.

use super::FileSystem;
use crate::error::Result;
use crate::limits::{Limit, SetLimit};
use crate::stats::OpKind;
use crate::types::StatFs;
use kedge_base::{BLOCK_SIZE, Ino};

impl FileSystem {
    /// For tests: does the work that the commit timer does with `discard`.
    #[doc(hidden)]
    pub fn discard_now(&self) {
        self.fs.engine().discard_turn();
    }

    /// Discards free space on the device, or on the host of an image file (FITRIM). Discards free
    /// runs of at least `min_len` bytes among the `len` bytes of the device at `offset`, and
    /// returns their total in bytes. Includes everything freed before the call, because the log is
    /// forced first.
    ///
    /// Waits while the file system is frozen. The work is done in batches; a freeze can start
    /// between two of them. Under a [`FileSystem::pass_or`] the call then ends early and returns
    /// the bytes discarded so far.
    ///
    /// # Errors
    /// EINVAL: the range lies beyond the end of the image. EOPNOTSUPP: the device does not support
    /// discard. EROFS: the file system is open for reading only.
    pub fn trim(&self, offset: u64, len: u64, min_len: u64) -> Result<u64> {
        self.fs.engine().trim(offset, len, min_len)
    }

    /// Makes the image larger or smaller while it is in use: to `bytes` bytes, or with `None` to
    /// the present size of its device. Returns the new size in bytes. After a growth it may be a
    /// little less than `bytes`, if the last group of blocks would have space only for its own
    /// allocation maps.
    ///
    /// If the image is a file, the file is extended, and stays sparse, or truncated. A block device
    /// or an export must already have the larger size, and keeps its size when the image becomes
    /// smaller. A crash leaves the old size or the new one.
    ///
    /// To become smaller, the image moves what lies beyond the new end, which may take long;
    /// changes continue. Blocks that trees share are not moved. [`FileSystem::smallest`] is the
    /// least size for what the image contains.
    ///
    /// Fails with EINVAL if the image would become smaller than that, or larger than the format or
    /// the device permits, or if blocks that trees share lie beyond the new end; with EBUSY while
    /// the file system is frozen or being resized, with EROFS if it is open for reading only, and
    /// with ENOSPC if the host has no space for the allocation maps. After ENOSPC the next
    /// checkpoint may complete the change.
    pub fn resize(&self, bytes: Option<u64>) -> Result<u64> {
        self.fs.resize(bytes)
    }

    /// The smallest size in bytes to which [`FileSystem::resize`] can make the image now, if no
    /// blocks that trees share lie beyond it.
    pub fn smallest(&self) -> u64 {
        self.fs.engine().store().smallest_bytes()
    }

    /// Space and inodes, used and free.
    ///
    /// Free blocks are those that no file and no tree node has or was promised. They include blocks
    /// that were just freed and wait for the log or a checkpoint. Available blocks are the free
    /// ones that data can use: some are reserved for nodes.
    pub fn statfs(&self) -> StatFs {
        let counts = self.fs.engine().store().alloc().free_counts();
        let free = counts.owned_free.saturating_sub(counts.reserved);
        let available = counts.available_soon.min(free);
        let inodes = self.fs.engine().store().inode_count();
        StatFs {
            block_size: BLOCK_SIZE as u32,
            blocks: self.fs.engine().store().total_blocks(),
            blocks_free: free,
            blocks_available: available,
            // Inodes are made on demand; this is an estimate of how many more fit into the
            // available space.
            inodes: inodes + available * 8,
            inodes_free: available * 8,
            name_max: kedge_format::item::NAME_MAX as u32,
        }
    }

    /// [`FileSystem::statfs`] for a directory or file: size and free space are at most what the
    /// limits that apply to it leave ([`FileSystem::set_limit`]).
    pub fn statfs_at(&self, ino: Ino) -> Result<StatFs> {
        self.fs.steady(ino, |ino| self.fs.statfs_at(ino, self.statfs()))
    }

    /// Limits how many bytes of file data and how many inodes may be used at and below a directory,
    /// durably. From then on a write, fallocate or creation that would need more fails with EDQUOT;
    /// data that was accepted is never refused later. A limit below what is in use is allowed: it
    /// refuses only new use. Directories below may have limits of their own; all limits that
    /// contain an inode apply to it.
    ///
    /// When a directory gets its first limit, everything below it is visited while changes wait; a
    /// later change of the limit visits nothing. From then on links and renames into or out of the
    /// directory fail with EXDEV. A fork has the limits of its source, with counts of its own. A
    /// tree whose name is below the directory does not count.
    ///
    /// # Errors
    /// EINVAL: less than a block or a file, or more than 32 limits inside one another. EMLINK: a
    /// file has another name outside of the directory. EROFS, EBUSY, ENOSPC: as for
    /// [`FileSystem::fork`].
    pub fn set_limit(&self, dir: Ino, change: SetLimit) -> Result<Limit> {
        let limit = self.timed(OpKind::setattr, |fs| fs.set_limit(dir, change))?;
        Ok(self.shown_limit(limit))
    }

    /// Returns the innermost limit that applies to an inode, if there is one. In an image that
    /// never had a limit, whether the inode exists is not checked.
    pub fn limit_of(&self, ino: Ino) -> Result<Option<Limit>> {
        let limit = self.fs.steady(ino, |ino| self.fs.limit_of(ino))?;
        Ok(limit.map(|limit| self.shown_limit(limit)))
    }

    /// Returns all limits that have a maximum.
    pub fn limits(&self) -> Vec<Limit> {
        self.fs.limits().into_iter().map(|limit| self.shown_limit(limit)).collect()
    }

    /// Translates the inode numbers of a limit to those of callers.
    fn shown_limit(&self, mut limit: Limit) -> Limit {
        limit.dir = self.fs.numbers().outward(limit.dir);
        limit.inside = limit.inside.map(|dir| self.fs.numbers().outward(dir));
        limit
    }
}
