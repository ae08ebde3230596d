//! Fourth phase of a pass: commits the record that names the written blocks.

use super::super::BLOCK;
use super::part::{InTree, Part};
use super::{PATCHED, Pass};
use crate::cache::commit::{Change, commit};
use crate::error::Result;
use crate::sums;
use kedge_base::broken::{self, Variant};
use kedge_base::trace::{self, Event};
use kedge_base::{Extent, Ino};
use kedge_format::inline;
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp, size};
use kedge_store::Store;

impl Pass<'_> {
    /// Commits the record of a pass. `durable`: its data is durable already, so it gets no number
    /// for a flush.
    pub(super) fn complete(&mut self, durable: bool) -> Result<()> {
        let store = self.store();
        let in_place = self.parts.iter().flatten().any(|part| !part.is_in_tree());
        // Broken on purpose: no flush comes between the write of the block and the record that
        // deletes its inline item.
        let unflushed =
            broken::is(Variant::InlineOutUnflushed) && self.parts.iter().flatten().any(Part::leaves_tree);
        let seq = (!durable && in_place && !unflushed).then(|| store.note_data_write());
        let mut record = RecordBuilder::new(RecordOp::WriteBack);
        let has_counts = self.parts.iter().flatten().any(Part::changes_counts);
        let _counts = has_counts.then(|| store.lock_counts());
        let mut counts = store.count_changes();
        let mut given_up: Vec<(Ino, Extent)> = Vec::new();
        let mut changes: Vec<Change<'_>> = Vec::new();
        let (mut patches, mut counts_bytes) = (0, 0);
        for (inode, part) in self.inodes.iter().zip(&mut self.parts) {
            let Some(part) = part else { continue };
            let mut meta = inode.meta.lock();
            part.leave_out_failed(meta.logged_size);
            if let Some(seq) = seq.filter(|_| !part.is_in_tree()) {
                meta.progress.write_seq = seq;
            }
            let (mut change, mark) = (Change::of(inode, meta), record.mark());
            if !record_part(store, &mut record, part, &mut change)? {
                continue;
            }
            patches += size::patch(PATCHED);
            counts_bytes += part.counts_bytes_max();
            if record.len() as u64 + patches + counts_bytes > self.handle.bytes_left()
                && !part.kept.is_empty()
            {
                // Failed pages have split the extents into more pieces than planned. The whole part
                // is left out of the record; the error is already noted.
                record.go_back(mark);
                patches -= size::patch(PATCHED);
                counts_bytes -= part.counts_bytes_max();
                part.leave_out();
                continue;
            }
            if let Some(spent) = part.spends() {
                self.handle.spend(spent);
            }
            let runs = part.taken_runs().into_iter().filter_map(|(_, old)| old);
            given_up.extend(runs.filter(|(_, old)| old.counted).map(|(extent, _)| (inode.ino, extent)));
            changes.push(change);
        }
        if changes.is_empty() {
            return Ok(());
        }
        for (ino, extent) in given_up {
            counts.remove(ino, extent)?.into_iter().for_each(|extent| record.free(extent));
        }
        counts.emit(&mut record);
        commit(&mut self.handle, record, &mut changes)?;
        Ok(())
    }
}

/// Adds the edits of one inode. Returns whether there are any.
fn record_part(
    store: &Store,
    record: &mut RecordBuilder,
    part: &mut Part,
    change: &mut Change<'_>,
) -> Result<bool> {
    let ino = change.inode.ino;
    let before = record.edits();
    std::mem::take(&mut part.set).emit(record, ino);
    match &part.in_tree {
        InTree::Put(bytes) => record.put(inline::key(ino), bytes),
        InTree::Delete if part.leaves_tree() => record.delete(inline::key(ino)),
        InTree::Same | InTree::Delete => {}
    }
    let mut fresh = 0;
    for (extent, old) in part.taken_runs() {
        record.alloc(extent);
        match old {
            Some((_, old)) if old.shared => {}
            Some((extent, _)) => record.free(extent),
            None => fresh += extent.blocks,
        }
    }
    if fresh > 0 {
        change.set(InodeMask::BLOCKS, |c| c.blocks += fresh);
    }
    for (from, to) in part.ranges.iter().flat_map(|(from, to)| part.taken(*from, *to)) {
        trace::note(|| Event::InPlace(trace::Bytes { ino, from: from * BLOCK, to: to * BLOCK }));
        // Broken on purpose: replay will write the logged bytes over the newer ones in place.
        let kept = broken::is(Variant::ReplayOldData);
        if !kept && store.is_resident(ino, from * BLOCK, (to - from) * BLOCK) {
            record.drop_data(ino, from * BLOCK, (to - from) * BLOCK);
        }
    }
    // Broken on purpose: the checksums stay those of the old bytes.
    if !broken::is(Variant::StaleChecksum) {
        sums::emit(store, record, ino, &part.taken_sums())?;
    }
    let size = change.meta.logged_size.max(part.size_to_record());
    if size > change.meta.logged_size {
        change.logged_size = Some(size);
        change.mask |= InodeMask::SIZE;
    }
    Ok(record.edits() > before || !change.mask.is_empty())
}
