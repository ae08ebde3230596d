//! Steps 2 and 3 of [`super`]: the records of the log are applied again.

use super::image::{KEYS_AT_A_TIME, Recovery};
use crate::apply::{Target, apply, apply_resident, keys};
use crate::forest::Forest;
use kedge_base::broken::{self, Variant};
use kedge_base::{Lsn, Result};
use kedge_format::Key;
use kedge_format::record::{Edit, Record};
use kedge_log::{RecordLsn, ScanEnd};

/// Bytes of records that are gathered before they are applied. The longest record is smaller.
const CHUNK_BYTES: usize = 4 << 20;

/// Records to be applied, in log order, and the keys that they touch.
#[derive(Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// The position of each record in the log, and its end in `bytes`.
    records: Vec<(RecordLsn, usize)>,
    keys: Vec<Key>,
}

impl Chunk {
    /// Adds a record. Records below `cut` do not touch the tree.
    fn push(&mut self, lsn: RecordLsn, record: &[u8], forest: &Forest, cut: Lsn) -> Result<()> {
        if lsn.start >= cut && !forest.is_in_memory() {
            self.keys.extend(keys(&Record::decode(lsn.start, record)?.edits));
        }
        self.bytes.extend_from_slice(record);
        self.records.push((lsn, self.bytes.len()));
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= CHUNK_BYTES || self.keys.len() >= KEYS_AT_A_TIME
    }

    /// Applies the records, in order, and forgets them. Records below `cut` only feed the overlay.
    fn apply(&mut self, target: &Target<'_>, cut: Lsn) -> Result<()> {
        self.keys.sort_unstable();
        self.keys.dedup();
        target.forest.prefetch(&self.keys);
        let mut from = 0;
        for &(lsn, end) in &self.records {
            let mut record = Record::decode(lsn.start, &self.bytes[from..end])?;
            from = end;
            if broken::is(Variant::PartialRecord) && record.edits.len() > 1 {
                record.edits.pop(); // broken on purpose: half an operation
            }
            if lsn.start >= cut {
                apply(target, lsn, &record.edits)?;
            } else {
                for edit in &record.edits {
                    apply_resident(target.residents, lsn.write_start, edit, true);
                }
            }
        }
        self.bytes.clear();
        self.records.clear();
        self.keys.clear();
        Ok(())
    }
}

impl Recovery {
    /// Replays the whole log, and promises blocks for what [`Recovery::write_overlay`] will write.
    pub(super) fn replay(&mut self) -> Result<ScanEnd> {
        let cut = self.sb.checkpoint.checkpoint_lsn;
        self.scan(&mut |lsn, bytes| {
            if lsn.start >= cut {
                for edit in Record::decode(lsn.start, bytes)?.edits {
                    if let Edit::Alloc(extent) = edit {
                        self.alloc.hold_for_replay(extent)?;
                    }
                }
            }
            Ok(())
        })?;
        let target = Target {
            forest: &self.forest,
            alloc: &self.alloc,
            residents: &self.residents,
            spent: &[],
            replay: true,
        };
        let mut chunk = Chunk::default();
        let end = self.scan(&mut |lsn, bytes| {
            chunk.push(lsn, bytes, target.forest, cut)?;
            if chunk.is_full() { chunk.apply(&target, cut) } else { Ok(()) }
        })?;
        chunk.apply(&target, cut)?;
        self.alloc.durable(end.head);
        self.promised = Some(self.alloc.replay_done_with(self.overlay_holes()?));
        self.summary.log_writes = end.writes;
        self.summary.records = end.records;
        self.summary.bytes = end.bytes;
        self.summary.head_lsn = end.head.0;
        Ok(end)
    }
}
