//! Freezes the owned bitmaps at a checkpoint's cut, and prepares their writes.
//!
//! The cut holds the exclusive epoch guard, so no `apply_*`, `alloc_node` or `free_node` runs.
//! Searches, promises and refills may run, because they change only `busy`. A freeze takes shared
//! references to the bitmaps that changed; a later change copies the bitmap first.
//!
//! Crash argument: see "Copies" in the crate's documentation.

use crate::Alloc;
use crate::bitmap::Bitmap;
use kedge_base::atomic::Ordering::SeqCst;
use kedge_base::{BLOCK_SIZE, BlockNo, Extent, Generation, IoBuf};
use kedge_format::alloc::{self as format, GroupEntry, INDEX_ENTRIES};
use kedge_format::superblock::{Geometry, Superblock};
use std::sync::{Arc, OnceLock};

/// Maximum number of blocks in one write (1 MiB).
const WRITE_BLOCKS: usize = 256;

/// The owned bitmaps at a cut. The caller must pass the value to [`Alloc::written`] or
/// [`Alloc::abandon`].
#[must_use = "ends in Alloc::written or Alloc::abandon"]
pub struct FrozenAlloc {
    geometry: Arc<Geometry>,
    /// Blocks that a resize added; they become free once this checkpoint is durable.
    added: Vec<Extent>,
    /// The groups that changed, in ascending order.
    groups: Vec<FrozenGroup>,
    /// The index of the last durable checkpoint. `index` is a copy with new entries for the groups
    /// that changed, computed at its first use.
    base: Durable,
    index: OnceLock<Arc<Vec<GroupEntry>>>,
    slot: OnceLock<usize>,
    free_blocks: u64,
}

/// The state that the last durable checkpoint wrote.
#[derive(Clone)]
pub(crate) struct Durable {
    pub index: Arc<Vec<GroupEntry>>,
    /// The superblock slot to which the index area belongs; `None` before the first checkpoint of a
    /// new image.
    pub slot: Option<usize>,
}

struct FrozenGroup {
    group: u64,
    owned: Arc<Bitmap>,
    free_blocks: u32,
}

impl FrozenAlloc {
    /// Returns the number of blocks that were not owned at the cut, for the superblock.
    pub fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    /// Returns the geometry that the checkpoint writes.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the number of groups whose bitmaps are written.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Returns the index that the checkpoint writes. It contains checksums of bitmaps, so it is not
    /// computed during the cut.
    fn index(&self) -> &Arc<Vec<GroupEntry>> {
        self.index.get_or_init(|| {
            let mut index = self.base.index.to_vec();
            let mut bytes = [0; BLOCK_SIZE];
            for frozen in &self.groups {
                let entry = &mut index[frozen.group as usize];
                frozen.owned.to_bytes(&mut bytes);
                *entry = GroupEntry {
                    bitmap_crc: format::bitmap_crc(frozen.group, &bytes),
                    free_blocks: frozen.free_blocks,
                    copy: 1 - entry.copy,
                };
            }
            Arc::new(index)
        })
    }

    /// Returns the writes of the checkpoint of `generation`, with adjacent blocks merged. The
    /// changed bitmaps are written to the copies that the last durable checkpoint does not use, and
    /// the index to the area of the generation's slot.
    ///
    /// That slot must differ from the slot of the last durable checkpoint, whose index would
    /// otherwise be overwritten before the new superblock is durable. So a generation is skipped
    /// after an abandoned checkpoint.
    pub fn writes(&self, uuid: uuid::Uuid, generation: Generation) -> Vec<(BlockNo, IoBuf)> {
        let slot = *self.slot.get_or_init(|| Superblock::slot_of(generation));
        assert!(slot == Superblock::slot_of(generation), "a frozen state is of one generation");
        assert!(self.base.slot != Some(slot), "a checkpoint spares the slot of the last durable one");
        let index = self.index();
        let mut out = Vec::new();
        for copy in 0..2 {
            let there: Vec<&FrozenGroup> =
                self.groups.iter().filter(|f| index[f.group as usize].copy == copy).collect();
            for run in there.chunk_by(|a, b| a.group + 1 == b.group).flat_map(|run| run.chunks(WRITE_BLOCKS))
            {
                let mut buf = IoBuf::zeroed(run.len());
                for (frozen, block) in run.iter().zip(buf.as_mut_bytes().chunks_exact_mut(BLOCK_SIZE)) {
                    frozen.owned.to_bytes(block);
                }
                out.push((BlockNo(self.geometry.bitmap_start[copy as usize].0 + run[0].group), buf));
            }
        }
        let start = self.geometry.index_start[slot].0;
        let blocks: Vec<&[GroupEntry]> = index.chunks(INDEX_ENTRIES).collect();
        for (i, run) in blocks.chunks(WRITE_BLOCKS).enumerate() {
            let first = i * WRITE_BLOCKS;
            let mut buf = IoBuf::zeroed(run.len());
            for (j, (entries, block)) in
                run.iter().zip(buf.as_mut_bytes().chunks_exact_mut(BLOCK_SIZE)).enumerate()
            {
                let first_group = ((first + j) * INDEX_ENTRIES) as u64;
                format::encode_index_block(&uuid, generation, first_group, entries, block);
            }
            out.push((BlockNo(start + first as u64), buf));
        }
        out
    }
}

impl Alloc {
    /// Takes shared references to the bitmaps that changed since the last freeze. Called under the
    /// exclusive epoch guard, for one checkpoint at a time.
    pub fn freeze(&self) -> FrozenAlloc {
        // Two checkpoints in flight could write the same copy, the second one while a durable
        // superblock already refers to that copy.
        assert!(
            !self.in_flight.swap(true, SeqCst),
            "the last frozen state was neither written nor abandoned"
        );
        let mut dirty = std::mem::take(&mut *self.dirty.lock());
        dirty.sort_unstable();
        let groups = dirty
            .into_iter()
            .map(|g| {
                let mut group = self.cells.get(g).lock();
                group.dirty = false;
                FrozenGroup { group: g, owned: group.owned.clone(), free_blocks: group.owned_free }
            })
            .collect();
        let added = std::mem::take(&mut *self.added.lock());
        FrozenAlloc {
            geometry: self.geometry(),
            added,
            groups,
            base: self.durable.lock().clone(),
            index: OnceLock::new(),
            slot: OnceLock::new(),
            free_blocks: self.owned_free.load(SeqCst),
        }
    }

    /// Called when the superblock of the frozen state's checkpoint is durable: the copies that it
    /// wrote become the current ones.
    pub fn written(&self, frozen: FrozenAlloc) {
        let slot = *frozen.slot.get().expect("its writes were requested");
        *self.durable.lock() = Durable { index: frozen.index().clone(), slot: Some(slot) };
        self.in_flight.store(false, SeqCst);
        self.release_added(frozen.added);
    }

    /// Called when the checkpoint has failed: marks its groups dirty again. The copies and the slot
    /// that it would have written stay unused, even if some were written. The generation of the
    /// next checkpoint must use the same slot (see [`FrozenAlloc::writes`]).
    pub fn abandon(&self, frozen: FrozenAlloc) {
        for frozen in &frozen.groups {
            self.with_group(frozen.group, |group| group.dirty = true);
        }
        self.added.lock().extend(frozen.added);
        self.in_flight.store(false, SeqCst);
    }
}
