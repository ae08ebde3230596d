//! Applies a record: the one function that changes tree, bitmaps and residents, in the running
//! store and in replay.
//!
//! Edits are absolute and name every block, so nothing is decided here. An edit may not fit the
//! state: it takes an owned block, or deletes an item that does not exist. In replay that is
//! corruption. In the running store it is a broken invariant, and the caller shuts the store down
//! instead of continuing with half a record.

use crate::forest::Forest;
use crate::limits::{Delta, LimitId, Spent};
use crate::residents::{Residents, Source};
use kedge_alloc::Alloc;
use kedge_base::atomic::Ordering;
use kedge_base::{Error, Ino, Lsn, Result};
use kedge_format::record::{Edit, InodeMask, InodePatch};
use kedge_format::{InodeCore, ItemKind, Key};
use kedge_log::RecordLsn;
use smallvec::SmallVec;

/// The state that `apply` changes.
pub(crate) struct Target<'a> {
    pub forest: &'a Forest,
    pub alloc: &'a Alloc,
    pub residents: &'a Residents,
    /// Promised blocks and inodes of limits that the record uses up.
    pub spent: &'a [Spent],
    /// Whether this is replay. Replay keeps the bytes of data edits in memory.
    pub replay: bool,
}

/// Changes of the counts of limits by one record.
type Deltas = SmallVec<[Delta; 4]>;

/// Applies the edits of the record at `lsn`. Returns the change in the number of resident pieces.
pub(crate) fn apply(target: &Target<'_>, lsn: RecordLsn, edits: &[Edit<'_>]) -> Result<i64> {
    let mut pieces = 0;
    let mut deltas = Deltas::new();
    let counts = target.forest.limits.is_used();
    for edit in edits {
        match edit {
            Edit::Inode(patch) => apply_inode(target, lsn.start, patch, &mut deltas)?,
            Edit::Put { key, value } => {
                let replaced = target.forest.put(*key, value)?;
                if target.replay && key.kind == ItemKind::Count as u8 {
                    // Recovery may have started from the slot before the first clone, because the
                    // newer slot was lost; that slot lacks the feature bit for clones.
                    target.alloc.set_has_clones();
                }
                if key.kind == ItemKind::Orphan as u8 && !replaced {
                    target.forest.counted(*key, |c, _| c.orphans.fetch_add(1, Ordering::Relaxed))?;
                }
            }
            Edit::Delete { key } => {
                if counts && key.kind == ItemKind::Inode as u8 {
                    let old = target.forest.get_with(*key, InodeCore::decode)?;
                    note(&mut deltas, target.forest, Ino(key.ino), old.and_then(Result::ok), None);
                }
                if !target.forest.delete(*key)? {
                    return Err(Error::corrupt_log(
                        lsn.start,
                        format!("deletes item {key}, which does not exist"),
                    ));
                }
                if key.kind == ItemKind::Inode as u8 {
                    target.forest.counted(*key, |c, _| c.one_inode_less())?;
                } else if key.kind == ItemKind::Orphan as u8 {
                    target.forest.counted(*key, |c, _| c.one_orphan_less())?;
                }
            }
            Edit::Alloc(extent) => target.alloc.apply_alloc(*extent)?,
            Edit::Free(extent) => target.alloc.apply_free(*extent, lsn.end)?,
            Edit::Data { .. } | Edit::Zero { .. } | Edit::Drop { .. } => {
                pieces += apply_resident(target.residents, lsn.write_start, edit, target.replay);
            }
        }
    }
    if counts {
        target.forest.limits.settle(&deltas, target.spent, target.replay);
    }
    Ok(pieces)
}

/// Adds to `deltas` the difference between what an inode counted for its limit and what it counts
/// now.
fn note(deltas: &mut Deltas, forest: &Forest, ino: Ino, old: Option<InodeCore>, new: Option<InodeCore>) {
    let (before, after) = (old.map_or(0, |core| core.limit), new.map_or(0, |core| core.limit));
    let tree = forest.tree_of(ino);
    let blocks = |core: Option<InodeCore>| core.map_or(0, |core| core.blocks as i64);
    if before == after {
        let delta = Delta {
            id: LimitId { tree, number: after },
            blocks: blocks(new) - blocks(old),
            inodes: new.is_some() as i64 - old.is_some() as i64,
        };
        if after != 0 && (delta.blocks, delta.inodes) != (0, 0) {
            deltas.push(delta);
        }
        return;
    }
    for (number, core, sign) in [(before, old, -1), (after, new, 1)] {
        if number != 0 {
            let id = LimitId { tree, number };
            deltas.push(Delta { id, blocks: sign * blocks(core), inodes: sign });
        }
    }
}

/// Applies an edit of log-resident data. Replay applies only such edits of a record below the cut.
pub(crate) fn apply_resident(residents: &Residents, lsn: Lsn, edit: &Edit<'_>, replay: bool) -> i64 {
    match edit {
        Edit::Data { ino, offset, bytes } => {
            let source = if replay { Source::Bytes((*bytes).into(), 0) } else { Source::Live };
            residents.add(*ino, *offset, bytes.len() as u64, lsn, source)
        }
        Edit::Zero { ino, offset, len } => {
            residents.add(*ino, *offset, *len, lsn, if replay { Source::Zero } else { Source::Live })
        }
        Edit::Drop { ino, offset, len } => residents.drop_range(*ino, *offset, *len),
        _ => 0,
    }
}

fn apply_inode(target: &Target<'_>, lsn: Lsn, patch: &InodePatch, deltas: &mut Deltas) -> Result<()> {
    let key = Key::inode(patch.ino);
    let counts = target.forest.limits.is_used();
    if patch.mask.contains(InodeMask::CREATE) {
        let mut core = InodeCore::default();
        patch.apply_to(&mut core);
        core.parent = target.forest.in_item(core.parent);
        if target.forest.put(key, &core.encode())? {
            return Err(Error::corrupt_log(lsn, format!("creates inode {}, which exists", patch.ino)));
        }
        if counts {
            note(deltas, target.forest, patch.ino, None, Some(core));
        }
        return target.forest.counted(key, |counters, local| {
            counters.inodes.fetch_add(1, Ordering::Relaxed);
            counters.next_ino.fetch_max(local.0 + 1, Ordering::Relaxed);
        });
    }
    let mut outcome = Ok(());
    let mut cores = None;
    let found = target.forest.update(key, |value| match InodeCore::decode(value) {
        Ok(mut core) => {
            let old = core;
            patch.apply_to(&mut core);
            core.parent = target.forest.in_item(core.parent);
            cores = Some((old, core));
            value.copy_from_slice(&core.encode());
        }
        Err(e) => outcome = Err(e),
    })?;
    if !found {
        return Err(Error::corrupt_log(lsn, format!("changes inode {}, which does not exist", patch.ino)));
    }
    if let Some((old, new)) = cores.filter(|_| counts) {
        note(deltas, target.forest, patch.ino, Some(old), Some(new));
    }
    outcome
}

/// Keys of the items that the edits touch. Their leaves are pinned before the commit enters the
/// epoch guard.
pub(crate) fn keys<'a>(edits: &'a [Edit<'_>]) -> impl Iterator<Item = Key> + 'a {
    edits.iter().filter_map(|edit| match edit {
        Edit::Inode(patch) => Some(Key::inode(patch.ino)),
        Edit::Put { key, .. } | Edit::Delete { key } => Some(*key),
        _ => None,
    })
}

/// Keys of the items that the edits insert or replace.
pub(crate) fn new_keys<'a>(edits: &'a [Edit<'_>]) -> impl Iterator<Item = Key> + 'a {
    edits.iter().filter_map(|edit| match edit {
        Edit::Inode(patch) if patch.mask.contains(InodeMask::CREATE) => Some(Key::inode(patch.ino)),
        Edit::Put { key, .. } => Some(*key),
        _ => None,
    })
}
