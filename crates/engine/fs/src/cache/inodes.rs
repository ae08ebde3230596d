//! Access to the inodes of a file system: cached ones, those in the tree, and new ones.

use crate::cache::inode::{Inode, Meta, Progress};
use crate::cache::table::{InodeTable, Watch};
use crate::engine::Engine;
use crate::error::{Error, Result};
use kedge_base::broken::pause::{self, Point};
use kedge_base::lock::MutexGuard;
use kedge_base::{BlockNo, CorruptKind, Ino};
use kedge_format::{FileKind, InodeCore, Key};
use kedge_store::RecordLsn;
use std::sync::Arc;

/// The inodes of a file system; see the module's head.
pub(crate) struct Inodes {
    engine: Arc<Engine>,
    table: InodeTable,
}

impl Inodes {
    pub(crate) fn new(engine: Arc<Engine>, inodes_max: usize, watch: Watch) -> Inodes {
        Inodes { engine, table: InodeTable::new(inodes_max, watch) }
    }

    /// Returns the inode, from the table or the tree.
    pub(crate) fn get(&self, ino: Ino) -> Result<Arc<Inode>> {
        let store = self.engine.store();
        self.table.get_or_load(store, ino, || {
            let mut core = store.get_with(Key::inode(ino), InodeCore::decode)?.ok_or(Error::NotFound)??;
            core.flags = store.geometry().file_flags(&core).bits();
            core.parent = store.parent_of(ino, core.parent);
            if !store.has_limits() {
                core.limit = 0;
            }
            pause::at(Point::InodeRead);
            let kind = core.kind().ok_or(Error::NotFound)?;
            Ok((core, kind))
        })
    }

    pub(crate) fn get_dir(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.get(ino)?;
        if inode.is_dir() { Ok(inode) } else { Err(Error::NotDirectory) }
    }

    pub(crate) fn get_file(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.get(ino)?;
        match inode.kind {
            FileKind::Regular => Ok(inode),
            FileKind::Directory => Err(Error::IsDirectory),
            _ => Err(Error::Invalid("not a regular file")),
        }
    }

    /// Returns the inode if it is in the table.
    pub(crate) fn cached(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.table.get(ino)
    }

    /// Returns the inodes in the table that are in the same tree as `of`.
    pub(crate) fn of_tree(&self, of: Ino) -> Vec<Arc<Inode>> {
        let store = self.engine.store();
        self.table.filtered(|ino| store.same_tree(ino, of))
    }

    /// Waits for the reads from the tree that are in progress now, of inodes for which `of` holds.
    pub(crate) fn wait_for_loads(&self, of: impl Fn(Ino) -> bool) {
        self.table.wait_for_loads(of);
    }

    /// Removes the pins of inodes for which `of` holds, because their tree is deleted.
    pub(crate) fn forget_pins(&self, of: impl Fn(Ino) -> bool) {
        self.table.forget_pins(of);
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// The most inodes in the table, besides those that cannot be evicted.
    pub(crate) fn max(&self) -> usize {
        self.table.max()
    }

    /// Sets the maximum of inodes in the table, and evicts inodes beyond it.
    pub(crate) fn set_max(&self, inodes_max: usize) {
        self.table.set_max(self.engine.store(), inodes_max);
    }

    /// Removes a dead inode from the table.
    pub(crate) fn remove(&self, ino: Ino) {
        self.table.remove(ino);
    }

    pub(crate) fn pin(&self, ino: Ino) {
        self.table.pin(ino);
    }

    /// Adds `count` pins.
    pub(crate) fn pin_by(&self, ino: Ino, count: u64) {
        self.table.pin_by(ino, count);
    }

    /// Removes `count` pins. Returns whether these were the last.
    pub(crate) fn unpin(&self, ino: Ino, count: u64) -> bool {
        self.table.unpin(ino, count)
    }

    pub(crate) fn is_pinned(&self, ino: Ino) -> bool {
        self.table.is_pinned(ino)
    }

    /// Returns an inode number for a new child of the directory `of`, near those of its siblings.
    /// Each directory has a range of numbers of its own, so that threads that create in different
    /// directories use different leaves.
    pub(crate) fn new_ino(&self, of: Ino, dir: &mut Meta) -> Result<Ino> {
        let ino = match kedge_base::witness::number() {
            Some(given) => given,
            None => self.next_ino(of, dir)?,
        };
        kedge_base::witness::numbered(ino);
        Ok(ino)
    }

    fn next_ino(&self, of: Ino, dir: &mut Meta) -> Result<Ino> {
        let (next, end) = dir.ino_range;
        if next < end {
            dir.ino_range.0 += 1;
            return Ok(Ino(next));
        }
        // A directory gets longer ranges as it grows.
        let count = (dir.core.size.min(1000) + 8).next_power_of_two().clamp(16, 1024);
        let first = self.engine.store().take_inos(of, count)?;
        dir.ino_range = (first.0 + 1, first.0 + count);
        Ok(first)
    }
}

/// A new inode until the record that creates it is applied. It is in the table with its meta
/// locked. So a thread that finds it there waits for the record, instead of reading the tree and
/// adding a second inode with that number. If it is dropped without [`NewInode::created`], after an
/// error or a panic, the inode becomes dead and leaves the table.
pub(crate) struct NewInode<'a> {
    inodes: &'a Inodes,
    meta: MutexGuard<'a, Meta>,
    ino: Ino,
    alive: bool,
}

impl<'a> NewInode<'a> {
    /// Adds a new inode to the table. The caller may hold the meta lock of its directory `dir`.
    pub(crate) fn new(inodes: &'a Inodes, dir: Ino, inode: &'a Arc<Inode>) -> Result<NewInode<'a>> {
        let ino = inode.ino;
        // Numbers ascend: the order of locks relies on that, and so does the assumption that the
        // number is free. In a corrupt image neither may hold.
        let ascends = ino > dir;
        let meta = ascends.then(|| inode.meta.lock());
        match meta {
            Some(meta) if inodes.table.insert_new(inodes.engine.store(), inode.clone()) => {
                Ok(NewInode { inodes, meta, ino, alive: false })
            }
            _ => {
                let what = format!("inode number {ino} is the next to be given out and is in use");
                Err(kedge_base::Error::corrupt(CorruptKind::Inode, BlockNo(0), what).into())
            }
        }
    }

    /// States that the record that creates the inode is applied.
    pub(crate) fn created(mut self, lsn: RecordLsn) {
        self.meta.progress = Progress::at(lsn);
        self.meta.marks.created = lsn.end;
        self.alive = true;
    }
}

impl Drop for NewInode<'_> {
    fn drop(&mut self) {
        if !self.alive {
            self.meta.dead = true;
            self.meta.core.nlink = 0;
            self.inodes.remove(self.ino);
        }
    }
}
