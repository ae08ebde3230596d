//! Writes the repaired state as the newest checkpoint. The crash argument is in the parent module.

use super::done::{Ending, RepairKind, Repairs};
use super::rebuild::Root;
use super::ring::Newest;
use super::source::{Source, bitmap_of, copies, index_blocks};
use super::writer::Writer;
use super::{Job, Outcome};
use crate::Progress;
use crate::copies;
use crate::image::check_from;
use crate::one_tree::losses_text;
use crate::owned::{Owned, push_runs};
use crate::read::Reader;
use crate::report::{At, Findings};
use crate::slots::read_slots;
use crate::space::claim_format_areas;
use crate::{ReplayState, Report};
use kedge_base::{BLOCK_SIZE, BlockNo, Epoch, Error, Generation, Ino, IoBuf, Lsn, Result};
use kedge_device::Device;
use kedge_format::alloc::{GROUP_BLOCKS, GroupEntry, bitmap_crc};
use kedge_format::superblock::{CheckpointState, OPEN_MAX, Superblock, TableState};

/// The most blocks that are carried over with one read and one write.
const CARRY_BLOCKS: u64 = 256;

/// The contents of the new checkpoint.
pub(crate) struct New {
    pub generation: Generation,
    pub root: Root,
    /// All blocks that have an owner.
    pub owned: Owned,
    /// Owned blocks that replay may have written in memory: file data, and the tree's nodes if the
    /// tree stays.
    pub carry: Owned,
    pub next_ino: u64,
    pub inodes: u64,
    pub trees: Option<TableState>,
}

impl Job<'_> {
    /// Writes the contents of `new`, checks them on the device, and only then writes the
    /// superblock.
    pub(super) fn commit(
        &self,
        source: &Source,
        new: &New,
        wrong: bool,
        repairs: &mut Repairs,
        progress: &mut dyn FnMut(Progress),
    ) -> Outcome {
        let newest = Newest::search(&**self.device, &source.sb.geometry);
        let sb = self.superblock(source, new, &newest)?;
        self.carry_over(source, &new.carry)?;
        self.write_space(&sb, &new.owned)?;
        self.device.flush()?;
        let mut reader = Reader::new(&**self.device);
        let findings = Findings::new(self.options.check.findings_max);
        let mut after = check_from(&sb, &mut reader, findings, false, progress);
        after.device = self.device.name().to_owned();
        if after.errors + after.warnings > 0 {
            let message = "the repaired image would not be clean".to_owned();
            return Ok((Ending::Unclean, message, Some(after)));
        }
        let mut block = IoBuf::zeroed(1);
        sb.encode(block.as_mut_bytes());
        self.device.write(sb.block().byte_offset(), &block, true)?;
        if let Some(restored) = self.restored {
            restored.settle()?;
        }
        let mut findings = Findings::new(self.options.check.findings_max);
        let read_back = read_slots(&mut Reader::new(&**self.device), &mut findings);
        if read_back.as_ref() != Some(&sb) || !findings.is_empty() {
            let what = "the new superblock does not read back as it was written";
            return Err(Error::corrupt(kedge_base::CorruptKind::Superblock, sb.block(), what));
        }
        newest.replace_unreadable(&**self.device)?;
        copies::write(&**self.device, &sb)?;
        self.tell(source, &sb, repairs);
        Ok(self.ending(source, wrong, after))
    }

    fn ending(&self, source: &Source, wrong: bool, after: Report) -> (Ending, String, Option<Report>) {
        let replayed = match &source.replay {
            ReplayState::Done(summary) => {
                format!("log replayed: {} records, {} bytes of data", summary.records, summary.data_bytes)
            }
            ReplayState::None | ReplayState::Failed { .. } => String::new(),
        };
        let ending = if wrong { Ending::Repaired } else { Ending::Clean };
        (ending, replayed, Some(after))
    }

    fn superblock(&self, source: &Source, new: &New, newest: &Newest) -> Result<Superblock> {
        let geometry = source.sb.geometry.clone();
        let base = &self.base_sb.checkpoint;
        // A log write of an epoch above the slot's would mean that a newer slot is lost, so the new
        // epoch is above all of them.
        let newest = newest.write.map_or(base.epoch, |(epoch, _)| epoch).max(base.epoch);
        let epoch = newest.0.checked_add(2).filter(|epoch| *epoch <= OPEN_MAX);
        let epoch = epoch.ok_or_else(|| Error::invalid("epochs are used up"))?;
        let head = source.sb.checkpoint.checkpoint_lsn;
        let lsn = if head.0 > OPEN_MAX { Lsn(0) } else { head };
        let checkpoint = CheckpointState {
            generation: new.generation,
            root: new.root.block,
            root_generation: new.root.generation,
            root_level: new.root.level,
            checkpoint_lsn: lsn,
            tail_lsn: lsn,
            epoch: Epoch(epoch),
            next_ino: Ino(new.next_ino),
            inodes: new.inodes,
            free_blocks: geometry.groups() * GROUP_BLOCKS - new.owned.used(),
            nodes: new.root.nodes,
            clean: true,
            written_sec: self.options.clock.now().sec,
            losses: None,
            trees: new.trees,
        };
        let sb = Superblock { geometry, checkpoint };
        sb.check_room()?;
        Ok(sb)
    }

    /// Writes the blocks of `carry` that replay has written in memory to the device. Blocks of the
    /// format are left out: this checkpoint has bitmaps of its own, and a superblock copy in memory
    /// belongs to the checkpoint that replay made there.
    fn carry_over(&self, source: &Source, carry: &Owned) -> Result<()> {
        let Some(overlay) = &source.overlay else { return Ok(()) };
        let (g, written) = (&source.sb.geometry, overlay.written());
        let mut format = Owned::new(g.groups());
        claim_format_areas(&source.sb, &mut format);
        let mut carry = carry.clone();
        carry.remove(&format);
        let mut writer = Writer::new(&**self.device);
        for group in 0..g.groups() {
            let (Some(written), Some(carry)) = (written.group(group), carry.group(group)) else { continue };
            let mut runs = Vec::new();
            for (i, (written, carry)) in (0..).zip(written.iter().zip(carry)) {
                push_runs(&mut runs, group * GROUP_BLOCKS + i * 64, written & carry);
            }
            for (start, blocks) in runs {
                let (mut at, end) = (start.0, start.0 + blocks);
                while at < end {
                    let count = CARRY_BLOCKS.min(end - at);
                    let mut buf = IoBuf::zeroed(count as usize);
                    overlay.read(BlockNo(at).byte_offset(), &mut buf)?;
                    writer.put(BlockNo(at), buf.as_bytes())?;
                    at += count;
                }
            }
        }
        writer.finish()
    }

    /// Writes all bitmaps into the copies that the newest checkpoint does not use, and the index
    /// into the other area.
    fn write_space(&self, sb: &Superblock, owned: &Owned) -> Result<()> {
        let copies = copies(self.base_sb, &mut Reader::new(&**self.device));
        let mut entries = Vec::with_capacity(copies.len());
        let mut writer = Writer::new(&**self.device);
        for (group, copy) in (0..).zip(copies) {
            let (bytes, free_blocks) = bitmap_of(owned, group);
            // If the index cannot be read, it is unknown which copy is in use.
            let copy = copy.map_or(0, |copy| 1 - copy);
            entries.push(GroupEntry { bitmap_crc: bitmap_crc(group, &bytes), free_blocks, copy });
            let at = BlockNo(sb.geometry.bitmap_start[copy as usize].0 + group);
            debug_assert_eq!(bytes.len(), BLOCK_SIZE);
            writer.put(at, &bytes)?;
        }
        for (at, buf) in index_blocks(sb, &entries) {
            writer.put(at, buf.as_bytes())?;
        }
        writer.finish()
    }

    fn tell(&self, source: &Source, sb: &Superblock, repairs: &mut Repairs) {
        if let ReplayState::Done(summary) = &source.replay {
            repairs.add(RepairKind::LogReplayed, At::default(), || {
                format!(
                    "LSN {} to {}: {} records, {} bytes of data",
                    summary.from_lsn, summary.to_lsn, summary.records, summary.data_bytes
                )
            });
        }
        if let Some(restored) = self.restored {
            let c = &self.base_sb.checkpoint;
            repairs.add(RepairKind::SuperblockRestored, At::block(restored.place), || {
                let of = format!("generation {}, written {} seconds after 1970", c.generation, c.written_sec);
                match c.clean {
                    true => format!("{of}, when the image was unmounted"),
                    false => format!(
                        "{of}, while the image was in use: what was written or confirmed by fsync since then \
                         is there as far as the log could be read, and the rest is lost"
                    ),
                }
            });
        }
        if let Some(losses) = &self.base_sb.checkpoint.losses {
            repairs.add(RepairKind::LossesCleared, At::default(), || losses_text(losses));
        }
        repairs.add(RepairKind::SpaceRebuilt, At::default(), || {
            let c = &sb.checkpoint;
            format!("{} groups; {} blocks are free", sb.geometry.groups(), c.free_blocks)
        });
        repairs.add(RepairKind::SuperblockCorrected, At::block(sb.block()), || {
            let c = &sb.checkpoint;
            format!("generation {}: {} inodes, {} nodes, unmounted", c.generation, c.inodes, c.nodes)
        });
    }
}
