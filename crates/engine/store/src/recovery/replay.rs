//! Steps 2 and 3 of [`super`]: the scan of the log, and the replay of its records.
//!
//! The log is normally read once: the scan of step 2 keeps the records in memory, and step 3
//! applies them from there. Records beyond [`Recovery::kept_max`] bytes are read again for step 3,
//! up to the end of the log that step 2 has found.
//!
//! Step 3 must not begin before the end of step 2, although both change only memory. A node that
//! replay changes gets a new block, and a later record may allocate that block for data. So the
//! blocks that all records allocate are held first.

use super::image::{KEYS_AT_A_TIME, Recovery};
use crate::apply::{Target, apply, apply_resident, keys};
use kedge_base::broken::{self, Variant};
use kedge_base::{Lsn, Result};
use kedge_format::Key;
use kedge_format::record::{Edit, Record};
use kedge_log::{RecordLsn, ScanEnd};

/// Bytes of records that are read again and applied at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// A run of records to be applied, in log order.
#[derive(Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// The LSNs of each record, and the end of the record in `bytes`.
    records: Vec<(RecordLsn, usize)>,
}

impl Chunk {
    fn push(&mut self, lsn: RecordLsn, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.records.push((lsn, self.bytes.len()));
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= CHUNK_BYTES
    }

    /// Applies the records in order, and removes them. Records below `cut` only feed the overlay.
    fn apply(&mut self, target: &Target<'_>, cut: Lsn) -> Result<()> {
        let (mut from, mut read) = (0, 0);
        for (i, &(lsn, end)) in self.records.iter().enumerate() {
            if i >= read {
                read = self.prefetch(target, cut, i, from)?;
            }
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
        Ok(())
    }

    /// Reads the leaves that records touch, from record `first` on, which starts at `from` in
    /// `bytes`. Returns the first record whose leaves were not read.
    fn prefetch(&self, target: &Target<'_>, cut: Lsn, first: usize, mut from: usize) -> Result<usize> {
        if target.forest.is_in_memory() {
            return Ok(self.records.len());
        }
        let mut wanted: Vec<Key> = Vec::new();
        let mut next = first;
        for &(lsn, end) in &self.records[first..] {
            if wanted.len() >= KEYS_AT_A_TIME {
                break;
            }
            if lsn.start >= cut {
                wanted.extend(keys(&Record::decode(lsn.start, &self.bytes[from..end])?.edits));
            }
            (from, next) = (end, next + 1);
        }
        wanted.sort_unstable();
        wanted.dedup();
        target.forest.prefetch(&wanted);
        Ok(next)
    }
}

/// The first records of a log, up to the memory that replay may use.
struct Kept {
    chunks: Vec<Chunk>,
    /// Number of bytes that may still be kept.
    room: u64,
    /// The first record that was not kept.
    rest: Option<RecordLsn>,
}

impl Kept {
    fn push(&mut self, lsn: RecordLsn, record: &[u8]) {
        let bytes = (record.len() + size_of::<(RecordLsn, usize)>()) as u64;
        if self.rest.is_some() || bytes > self.room {
            self.rest.get_or_insert(lsn);
            return;
        }
        self.room -= bytes;
        if self.chunks.last().is_none_or(Chunk::is_full) {
            self.chunks.push(Chunk::default());
        }
        self.chunks.last_mut().expect("there is one").push(lsn, record);
    }
}

impl Recovery {
    /// Replays the whole log, and reserves blocks for what [`Recovery::write_overlay`] will write.
    pub(super) fn replay(&mut self) -> Result<ScanEnd> {
        let cut = self.sb.checkpoint.checkpoint_lsn;
        let mut kept = Kept { chunks: Vec::new(), room: self.kept_max, rest: None };
        let end = self.scan(&mut |lsn, bytes| {
            if lsn.start >= cut {
                self.hold(lsn, bytes)?;
            }
            kept.push(lsn, bytes);
            Ok(())
        })?;
        let target = Target {
            forest: &self.forest,
            alloc: &self.alloc,
            residents: &self.residents,
            spent: &[],
            replay: true,
        };
        for mut chunk in kept.chunks {
            chunk.apply(&target, cut)?;
        }
        if let Some(rest) = kept.rest {
            self.replay_rest(&target, cut, rest, end.head)?;
        }
        self.alloc.durable(end.head);
        self.promised = Some(self.alloc.replay_done_with(self.overlay_holes()?));
        self.summary.log_writes = end.writes;
        self.summary.records = end.records;
        self.summary.bytes = end.bytes;
        self.summary.head_lsn = end.head.0;
        Ok(end)
    }

    /// Holds the blocks that a record allocates, so that replay puts no tree node there.
    fn hold(&self, lsn: RecordLsn, record: &[u8]) -> Result<()> {
        for edit in Record::decode(lsn.start, record)?.edits {
            if let Edit::Alloc(extent) = edit {
                self.alloc.hold_for_replay(extent)?;
            }
        }
        Ok(())
    }

    /// Reads the records from `rest` to `end` again, and applies them.
    fn replay_rest(&self, target: &Target<'_>, cut: Lsn, rest: RecordLsn, end: Lsn) -> Result<()> {
        let mut chunk = Chunk::default();
        self.scan_again(rest.write_start, end, &mut |lsn, bytes| {
            // Earlier records of the same log write are already applied.
            if lsn.start >= rest.start {
                chunk.push(lsn, bytes);
            }
            if chunk.is_full() { chunk.apply(target, cut) } else { Ok(()) }
        })?;
        chunk.apply(target, cut)
    }
}
