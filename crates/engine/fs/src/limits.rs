//! Limits of directory trees. [`kedge_format::limits`] describes what is stored, `kedge_store` how
//! it is counted.
//!
//! # Setting
//! A directory gets its limit while changes are stopped and nothing is dirty, as for a fork. Every
//! inode at or below the directory gets the limit's number, except those below a directory with a
//! limit of its own: that limit is then inside the new one. The numbers are assigned in records of
//! bounded length, between two checkpoints: the first makes the limit without a maximum, the second
//! sets the maximum. After a crash in between, the call can be repeated.
//!
//! A file with another name outside of the directory would count for a limit whose users may not
//! see it. So the call is refused if there is such a file. Later, links and renames between limits
//! fail with EXDEV.
//!
//! # Removing
//! A limit without a maximum refuses nothing. It stays in the table, so that the inodes below the
//! directory need not be visited, and is removed with the directory.

use crate::cache::commit::{commit_only, lock_metas};
use crate::cache::inode::Inode;
use crate::core::Fs;
use crate::error::{Error, Result};
use crate::types::StatFs;
use kedge_base::{BLOCK_SIZE, Ino};
use kedge_format::item::Dentry;
use kedge_format::limits::DEPTH_MAX;
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_format::{FileKind, InodeCore, ItemKind, Key};
use kedge_store::{Class, LimitEntry, LimitId, LimitState, Need};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The most inodes to which one record assigns a number.
const ASSIGNED_AT_ONCE: usize = 64;

/// The limit of a directory: what may be used at and below the directory, and what is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Limit {
    /// The directory.
    pub dir: Ino,
    /// The nearest directory above that has a limit of its own, in the same tree.
    pub inside: Option<Ino>,
    /// Maximum of bytes of file data, in whole blocks. `None`: no maximum.
    pub bytes_max: Option<u64>,
    /// Maximum of files, directories and other inodes, including the directory itself.
    pub files_max: Option<u64>,
    /// Bytes in use, or promised to data that was accepted.
    pub bytes: u64,
    /// Inodes in use, including deleted ones that are still open.
    pub files: u64,
}

/// A change of a limit. A field that is `None` leaves its maximum as it is; `Some(None)` removes
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetLimit {
    /// Maximum of bytes of file data; rounded down to whole blocks of 4 KiB.
    pub bytes: Option<Option<u64>>,
    /// Maximum of inodes, including the directory itself.
    pub files: Option<Option<u64>>,
}

impl SetLimit {
    /// Sets the new maxima in `entry`, in blocks and inodes. Fails if one is too small.
    fn apply(self, entry: &mut LimitEntry) -> Result<()> {
        const TOO_SMALL: Error = Error::Invalid("a limit is at least a block of 4096 bytes, and one file");
        let most = kedge_format::BLOCKS_MAX;
        if let Some(bytes) = self.bytes {
            entry.blocks_max = bytes.map(|bytes| bytes / BLOCK);
        }
        if let Some(files) = self.files {
            entry.inodes_max = files.map(|files| files.min(most));
        }
        let is_zero = |max: Option<u64>| max == Some(0);
        if is_zero(entry.blocks_max) || is_zero(entry.inodes_max) { Err(TOO_SMALL) } else { Ok(()) }
    }
}

fn has_max(entry: &LimitEntry) -> bool {
    entry.blocks_max.is_some() || entry.inodes_max.is_some()
}

/// What is at and below a directory that gets a limit.
struct Below {
    /// The inodes that get the number: the directory itself, and all others as they were found.
    inodes: Vec<Ino>,
    /// The limits of directories below, which the new limit will contain.
    nested: Vec<LimitId>,
}

impl Fs {
    // ----- queries -----

    fn shown(&self, state: &LimitState) -> Limit {
        let store = self.engine().store();
        let named = |number: Ino| if state.id.tree == 0 { number } else { number.in_tree(state.id.tree) };
        let above = store.limit(LimitId { number: state.entry.parent, ..state.id });
        let LimitState { entry, promised, .. } = state;
        Limit {
            dir: named(entry.dir),
            inside: above.map(|above| named(above.entry.dir)),
            bytes_max: entry.blocks_max.map(|blocks| blocks.saturating_mul(BLOCK)),
            files_max: entry.inodes_max,
            bytes: entry.blocks.saturating_add(promised.blocks).saturating_mul(BLOCK),
            files: entry.inodes.saturating_add(promised.inodes),
        }
    }

    pub(crate) fn limits(&self) -> Vec<Limit> {
        let limits = self.engine().store().limits();
        // A limit without inodes belongs to a deleted directory. The next checkpoint removes it.
        let is_shown = |limit: &&LimitState| has_max(&limit.entry) && limit.entry.inodes > 0;
        limits.iter().filter(is_shown).map(|limit| self.shown(limit)).collect()
    }

    pub(crate) fn limit_of(&self, ino: Ino) -> Result<Option<Limit>> {
        let store = self.engine().store();
        if !store.has_limits() {
            return Ok(None);
        }
        let number = self.inodes().get(ino)?.meta.lock().core.limit;
        let mut limit = store.limit(store.limit_id(ino, number));
        while let Some(LimitState { id, entry, .. }) = limit {
            if has_max(&entry) {
                break;
            }
            limit = store.limit(LimitId { number: entry.parent, ..id });
        }
        Ok(limit.map(|limit| self.shown(&limit)))
    }

    /// Lowers the values of `all` to what the limits that apply to an inode leave.
    pub(crate) fn statfs_at(&self, ino: Ino, all: StatFs) -> Result<StatFs> {
        let store = self.engine().store();
        if !store.has_limits() {
            return Ok(all);
        }
        let number = self.inodes().get(ino)?.meta.lock().core.limit;
        let room = store.limit_room(store.limit_id(ino, number));
        let mut seen = all;
        if let Some((size, left)) = room.blocks {
            seen.blocks = size.min(all.blocks);
            seen.blocks_free = left.min(all.blocks_free);
            seen.blocks_available = left.min(all.blocks_available);
        }
        if let Some((size, left)) = room.inodes {
            seen.inodes_free = left.min(all.inodes_free);
            seen.inodes = size.min(all.inodes);
        }
        Ok(seen)
    }

    // ----- setting -----

    pub(crate) fn set_limit(&self, dir: Ino, change: SetLimit) -> Result<Limit> {
        change.apply(&mut LimitEntry {
            dir,
            parent: 0,
            blocks_max: None,
            inodes_max: None,
            blocks: 0,
            inodes: 0,
        })?;
        let id = self.quietly(|| {
            let dir = self.numbers().inward(dir);
            self.check_changeable(dir)?;
            let inode = self.inodes().get_dir(dir)?;
            if inode.meta.lock().core.nlink == 0 {
                return Err(Error::NotFound);
            }
            let store = self.engine().store();
            let there = store.limit_of_dir(dir).and_then(|id| store.limit(id));
            // A limit without a maximum may be left from a crash during the assignment of numbers.
            match there.filter(|limit| has_max(&limit.entry)) {
                Some(LimitState { id, mut entry, .. }) => {
                    change.apply(&mut entry)?;
                    store.set_limit(id, entry, &[])?;
                    Ok(id)
                }
                None => self.assign(&inode, change),
            }
        })?;
        let limit = self.engine().store().limit(id).ok_or(Error::NotFound)?;
        Ok(self.shown(&limit))
    }

    /// Makes a limit, and assigns its number to everything below the directory. Changes are
    /// stopped.
    fn assign(&self, dir: &Inode, change: SetLimit) -> Result<LimitId> {
        let store = self.engine().store();
        let parent = self.limit_above(dir)?;
        let below = self.below(dir.ino)?;
        let depth = |id: &LimitId| store.limit_depth(*id);
        let above = if parent == 0 { 0 } else { depth(&store.limit_id(dir.ino, parent)) };
        let nested = below.nested.iter().map(|id| self.height(*id)).max().unwrap_or(0);
        if above + 1 + nested > DEPTH_MAX {
            return Err(Error::Invalid("more than 32 limits would be inside one another"));
        }
        let id = store.begin_limit(dir.ino, parent)?;
        let done = self.assign_all(id.number, &below).and_then(|()| {
            let mut entry = store.limit(id).ok_or(Error::NotFound)?.entry;
            (entry.parent, entry.blocks_max, entry.inodes_max) = (parent, None, None);
            change.apply(&mut entry)?;
            Ok(store.set_limit(id, entry, &below.nested)?)
        });
        done.inspect_err(|_| store.end_limit(id))?;
        Ok(id)
    }

    /// The number of the limit that applies to the directory's parent; 0 for the root of a tree.
    fn limit_above(&self, dir: &Inode) -> Result<u32> {
        if dir.ino == Ino::ROOT || self.engine().store().is_tree_root(dir.ino) {
            return Ok(0);
        }
        let parent = dir.meta.lock().core.parent;
        Ok(self.inodes().get(parent)?.meta.lock().core.limit)
    }

    /// The greatest number of limits inside one another, from this one down.
    fn height(&self, id: LimitId) -> usize {
        let store = self.engine().store();
        let own = store.limit_depth(id);
        let others = store.limits();
        let inside = |other: &&LimitState| {
            let mut at = **other;
            while at.id.tree == id.tree && at.id != id {
                match store.limit(LimitId { number: at.entry.parent, ..at.id }) {
                    Some(above) => at = above,
                    None => return false,
                }
            }
            at.id == id
        };
        let deepest = others.iter().filter(inside).map(|other| store.limit_depth(other.id)).max();
        1 + deepest.unwrap_or(own) - own
    }

    /// Lists the inodes that get the number of the directory's limit. Fails if one of them is a
    /// file with another name outside.
    fn below(&self, dir: Ino) -> Result<Below> {
        let store = self.engine().store();
        let mut below = Below { inodes: vec![dir], nested: Vec::new() };
        // For files with several names: how many names have not been found yet, and one that was
        // found.
        let mut missing: BTreeMap<Ino, (u32, Vec<u8>)> = BTreeMap::new();
        let mut dirs = vec![dir];
        while let Some(at) = dirs.pop() {
            let mut found = Vec::new();
            let mut bad = None;
            let key = |offset| Key::new(at, ItemKind::Dentry, offset);
            store.scan(key(0), key(u64::MAX), &mut |_, value| match Dentry::decode(value) {
                Ok(entry) => {
                    found.push((store.named_by(at, entry.ino), entry.kind, entry.name.to_vec()));
                    ControlFlow::Continue(())
                }
                Err(e) => {
                    bad = Some(e);
                    ControlFlow::Break(())
                }
            })?;
            if let Some(e) = bad {
                return Err(e.into());
            }
            for (ino, kind, name) in found {
                if kind == FileKind::Directory {
                    match store.limit_of_dir(ino).filter(|_| store.has_limits()) {
                        Some(nested) => below.nested.push(nested),
                        None => {
                            below.inodes.push(ino);
                            dirs.push(ino);
                        }
                    }
                    continue;
                }
                if let Some((names, _)) = missing.get_mut(&ino) {
                    *names = names.saturating_sub(1);
                    continue;
                }
                let core = store.get_with(Key::inode(ino), InodeCore::decode)?.ok_or(Error::NotFound)??;
                below.inodes.push(ino);
                if core.nlink > 1 {
                    missing.insert(ino, (core.nlink - 1, name));
                }
            }
            // A corrupt image may name directories in a circle.
            if below.inodes.len() as u64 > store.inode_count() {
                let what = format!("directories below inode {dir} are named more than once");
                let kind = kedge_base::CorruptKind::Dentry;
                return Err(kedge_base::Error::corrupt(kind, kedge_base::BlockNo(0), what).into());
            }
        }
        match missing.into_iter().find(|(_, (names, _))| *names > 0) {
            Some((ino, (_, name))) => {
                let name = String::from_utf8_lossy(&name).into_owned();
                Err(Error::LinkedOutside(ino, name.into()))
            }
            None => Ok(below),
        }
    }

    /// Makes no inode of a tree count for a limit. The limits then leave the table by themselves.
    /// No other thread changes the tree.
    pub(crate) fn drop_limits(&self, root: Ino) -> Result<()> {
        let _inside = self.engine().gate().change();
        let store = self.engine().store();
        for LimitState { id, entry, .. } in store.limits() {
            // A limit without inodes belongs to a deleted directory.
            if store.same_tree(Ino::ROOT.in_tree(id.tree), root) && entry.inodes > 0 {
                self.assign_all(0, &self.below(entry.dir.in_tree(id.tree))?)?;
            }
        }
        Ok(())
    }

    /// Assigns the number of a limit, or 0 for none, to the inodes, in records of bounded length.
    fn assign_all(&self, number: u32, below: &Below) -> Result<()> {
        for part in below.inodes.chunks(ASSIGNED_AT_ONCE) {
            let handle = self.engine().begin(Need::record(Class::Normal).patches(part.len()))?;
            let inodes: Vec<Arc<Inode>> =
                part.iter().map(|ino| self.inodes().get(*ino)).collect::<Result<_>>()?;
            let of: Vec<&Inode> = inodes.iter().map(|inode| &**inode).collect();
            let mut changes = lock_metas(&of);
            for change in changes.iter_mut().filter(|change| change.core.limit != number) {
                change.set(InodeMask::LIMIT, |core| core.limit = number);
            }
            changes.retain(|change| !change.mask.is_empty());
            if !changes.is_empty() {
                commit_only(handle, RecordBuilder::new(RecordOp::SetAttr), &mut changes)?;
            }
        }
        Ok(())
    }
}
