//! Opening an image: slot choice, replay of the log, and a first checkpoint that starts a new
//! epoch.
//!
//! # Steps
//! | | what | a crash here |
//! |---|---|---|
//! | 1 | both slots are decoded; the valid one of the higher generation is taken | nothing was written |
//! | 2 | the log is scanned from the tail: blocks that records take are held, so that replay's own nodes stay clear of them | nothing was written |
//! | 3 | the log is scanned again: records below the cut feed the overlay, records from it on are applied | nothing was written: all nodes are dirty in memory |
//! | 4 | what remains of the overlay is written in place | the next recovery starts from the same slot and log and writes the same bytes; blocks that this one newly took have no owner in that slot's view |
//! | 5 | a checkpoint of the next generation: tail = cut = head, epoch + 1 | before its slot is durable as in 4; afterwards the image is recovered |
//!
//! A read-only open does the same on an overlay in memory: the image is not touched.
//!
//! # When the device does not take a block of step 4
//! The block is set aside (`Alloc::quarantine`) and the bytes go to a free block, as in the running
//! file system's writeback: one record frees the old block and maps the new one. After
//! [`PLACES_MAX`] places, or without a free block, the open fails, the error names inode and block,
//! and the bytes stay in the log. Going on without them would lose what an fsync promised.
//!
//! If the log holds only a part of a block and the rest cannot be read, the block cannot be
//! completed anywhere. The open then fails, too. A read-only open goes on, and all reads of that
//! block fail.
//!
//! A crash during such a move leaves the slot and the log as they were, so the next recovery knows
//! nothing of it. It finds the old block mapped, perhaps with some sectors of the failed write, and
//! writes the same bytes over it. The new block has no owner in that slot's view. The old block is
//! not used again while the image is open. The checkpoint makes its release durable together with
//! the mapping of the new block.

use crate::apply::{Target, apply, apply_resident};
use crate::checkpoint::{Control, Cut, write_checkpoint};
use crate::flusher::{Flusher, LogBarrier};
use crate::gate::Gate;
use crate::pace;
use crate::residents::{DrainedPiece, Residents, Source};
use crate::space::{AllocNodes, DeviceNodes};
use crate::{Counters, Store, StoreStats, Wake};
use kedge_alloc::{Alloc, DataReservation};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{
    BLOCK_SIZE, BlockNo, Clock, CorruptKind, Epoch, Error, Extent, Generation, Ino, IoBuf, Lsn, Result,
    spawn_named,
};
use kedge_btree::{Tree, TreeConfig, TreeLock};
use kedge_device::{Device, OverlayDevice};
use kedge_format::item::ExtentItem;
use kedge_format::record::{Edit, InodeMask, Record, RecordBuilder, RecordOp};
use kedge_format::superblock::{CheckpointState, INCOMPAT_KNOWN, RO_COMPAT_KNOWN, SLOTS, Superblock};
use kedge_format::{InodeCore, ItemKind, Key};
use kedge_log::{Log, LogConfig, RecordLsn, ScanConfig, ScanEnd, scan};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Places that are tried for a block of data that the device refuses.
const PLACES_MAX: usize = 8;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub read_only: bool,
    /// Budget in bytes for tree nodes in memory.
    pub node_cache_bytes: u64,
    /// `None`: `noasync_checkpoint`.
    pub async_checkpoint: Option<u8>,
    /// The kind of latches that the tree has.
    pub tree_lock: TreeLock,
    /// Log writes in flight at once.
    pub log_writes_max: usize,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            node_cache_bytes: 128 << 20,
            async_checkpoint: Some(50),
            tree_lock: TreeLock::default(),
            log_writes_max: 4,
        }
    }
}

/// What recovery found and did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReplaySummary {
    /// The image had been unmounted cleanly.
    pub clean: bool,
    /// Why the other superblock slot does not decode.
    pub damaged_slot: Option<String>,
    pub log_writes: u64,
    pub records: u64,
    pub bytes: u64,
    /// Ranges of log-resident data written in place.
    pub data_ranges: u64,
    pub data_bytes: u64,
    pub tail_lsn: u64,
    pub head_lsn: u64,
}

/// Reads both slots and returns the newer valid one, and what is wrong with the other.
pub fn read_superblock(device: &dyn Device) -> Result<(Superblock, Option<Error>)> {
    let device_blocks = device.geometry().size / BLOCK_SIZE as u64;
    let read = |slot: usize| -> Result<(Superblock, bool)> {
        let mut buf = IoBuf::zeroed(1);
        if SLOTS[slot].0 >= device_blocks {
            return Err(Error::corrupt(
                CorruptKind::Superblock,
                SLOTS[slot],
                "the device is too short to hold it",
            ));
        }
        device.read(SLOTS[slot].byte_offset(), &mut buf)?;
        let empty = buf.as_bytes().iter().all(|b| *b == 0);
        match Superblock::decode(buf.as_bytes(), slot, device_blocks) {
            Ok(sb) => Ok((sb, false)),
            // A new image has one slot only.
            Err(e) if empty && slot == 1 => Err(Error::Corrupt {
                kind: CorruptKind::Superblock,
                block: SLOTS[slot],
                what: format!("never written ({e})").into(),
            }),
            Err(e) => Err(e),
        }
    };
    match (read(0), read(1)) {
        (Ok((a, _)), Ok((b, _))) => {
            if a.geometry != b.geometry {
                return Err(Error::corrupt(
                    CorruptKind::Superblock,
                    SLOTS[1],
                    "the two slots describe different images",
                ));
            }
            let newer = if a.checkpoint.generation > b.checkpoint.generation { a } else { b };
            Ok((newer, None))
        }
        (Ok((sb, _)), Err(e)) | (Err(e), Ok((sb, _))) => Ok((sb, Some(e))),
        (Err(e), Err(_)) => Err(e),
    }
}

impl Store {
    /// Opens an image, replaying its log.
    pub fn open(device: Arc<dyn Device>, clock: Arc<dyn Clock>, options: &OpenOptions) -> Result<Arc<Store>> {
        let (sb, damaged) = read_superblock(&*device)?;
        sb.check_room()?;
        let read_only = options.read_only || check_features(&sb, options.read_only)?;
        let overlay = read_only.then(|| Arc::new(OverlayDevice::new(device.clone())));
        let device = overlay.clone().map_or(device, |overlay| overlay as Arc<dyn Device>);
        if let Some(e) = &damaged
            && sb.checkpoint.generation > Generation(2)
        {
            tracing::warn!("using the other superblock slot: {e}");
        }
        if let Some(losses) = &sb.checkpoint.losses {
            let (files, since) = (losses.files, losses.since);
            tracing::warn!(
                files,
                since,
                "data of files was lost when the image was unmounted; fsck -p clears this"
            );
        }
        let mut recovery = Recovery::load(device, clock, &sb, options)?;
        recovery.read_only = overlay;
        let end = recovery.replay()?;
        recovery.summary.damaged_slot = damaged.map(|e| e.to_string());
        recovery.write_overlay()?;
        recovery.promised = None;
        recovery.checkpoint(end.head)?;
        recovery.into_store(end.head, read_only, options)
    }
}

/// Scans the log that a slot describes.
fn scan_log(
    device: &dyn Device,
    sb: &Superblock,
    visit: &mut dyn FnMut(RecordLsn, &[u8]) -> Result<()>,
) -> Result<ScanEnd> {
    let (g, c) = (&sb.geometry, &sb.checkpoint);
    let config = ScanConfig {
        key: g.log_key(),
        epoch: c.epoch,
        ring_start: g.log_start,
        ring_blocks: g.log_blocks,
        from: c.tail_lsn,
        slot_tail: c.tail_lsn,
    };
    let end = scan(device, config, visit)?;
    if end.head < c.checkpoint_lsn {
        return Err(Error::corrupt_log(
            end.head,
            format!("the log ends below the checkpoint at LSN {}", c.checkpoint_lsn),
        ));
    }
    Ok(end)
}

/// The number of log writes that an open would replay from this slot. Fails if an open would fail
/// because of the log.
pub fn count_log_writes(device: &dyn Device, sb: &Superblock) -> Result<u64> {
    Ok(scan_log(device, sb, &mut |_, _| Ok(()))?.writes)
}

/// Returns whether the mount must be read-only.
fn check_features(sb: &Superblock, read_only: bool) -> Result<bool> {
    let g = &sb.geometry;
    let unknown = g.feature_incompat & !INCOMPAT_KNOWN;
    if unknown != 0 {
        return Err(Error::Unsupported(format!("unknown incompatible features {unknown:#x}").into()));
    }
    let unknown = g.feature_ro_compat & !RO_COMPAT_KNOWN;
    if unknown != 0 && !read_only {
        tracing::warn!("unknown read-only compatible features {unknown:#x}: the image is opened read-only");
    }
    Ok(unknown != 0)
}

/// A store that is being opened.
struct Recovery {
    device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    sb: Superblock,
    alloc: Arc<Alloc>,
    tree: Tree,
    residents: Residents,
    counters: Counters,
    generation: Arc<AtomicU64>,
    summary: ReplaySummary,
    /// Blocks promised for overlay data that has no block yet.
    promised: Option<DataReservation>,
    /// The overlay device of a read-only open.
    read_only: Option<Arc<OverlayDevice>>,
}

impl Recovery {
    fn load(
        device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        sb: &Superblock,
        options: &OpenOptions,
    ) -> Result<Recovery> {
        let c = &sb.checkpoint;
        let alloc = Arc::new(Alloc::load(&*device, &sb.geometry, c.generation)?);
        let generation = Arc::new(AtomicU64::new(c.generation.0 + 1));
        let space = AllocNodes { alloc: alloc.clone(), generation: generation.clone() };
        let config = TreeConfig {
            clock: clock.clone(),
            lock: options.tree_lock,
            ..TreeConfig::new(sb.geometry.uuid, sb.geometry.log_secret, options.node_cache_bytes as usize)
        };
        let tree = Tree::open(
            Arc::new(DeviceNodes(device.clone())),
            Arc::new(space),
            config,
            c.root,
            c.root_generation,
            c.root_level,
            c.nodes,
            c.generation.next(),
        )?;
        let counters = Counters { next_ino: AtomicU64::new(c.next_ino.0), inodes: AtomicU64::new(c.inodes) };
        let summary = ReplaySummary { clean: c.clean, tail_lsn: c.tail_lsn.0, ..Default::default() };
        let residents = Residents::new();
        let sb = sb.clone();
        let (promised, read_only) = (None, None);
        Ok(Recovery {
            device,
            clock,
            sb,
            alloc,
            tree,
            residents,
            counters,
            generation,
            summary,
            promised,
            read_only,
        })
    }

    fn scan(&self, visit: &mut dyn FnMut(RecordLsn, &[u8]) -> Result<()>) -> Result<ScanEnd> {
        scan_log(&*self.device, &self.sb, visit)
    }

    fn replay(&mut self) -> Result<ScanEnd> {
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
            tree: &self.tree,
            alloc: &self.alloc,
            residents: &self.residents,
            counters: &self.counters,
            replay: true,
        };
        let end = self.scan(&mut |lsn, bytes| {
            let mut record = Record::decode(lsn.start, bytes)?;
            if broken::is(Variant::PartialRecord) && record.edits.len() > 1 {
                record.edits.pop(); // broken on purpose: half an operation
            }
            if lsn.start >= cut {
                apply(&target, lsn, &record.edits)?;
            } else {
                for edit in &record.edits {
                    apply_resident(&self.residents, lsn.write_start, edit, true);
                }
            }
            Ok(())
        })?;
        self.alloc.durable(end.head);
        self.promised = Some(self.alloc.replay_done_with(self.overlay_holes()?));
        self.summary.log_writes = end.writes;
        self.summary.records = end.records;
        self.summary.bytes = end.bytes;
        self.summary.head_lsn = end.head.0;
        Ok(end)
    }

    /// Blocks of overlay data that no extent maps. This is an upper bound, because bytes beyond the
    /// end of a file count too.
    fn overlay_holes(&self) -> Result<u64> {
        let mut holes = 0;
        for ino in self.residents.inodes_by_age() {
            let mut last = None;
            for range in self.residents.ranges(ino) {
                let block = BLOCK_SIZE as u64;
                for block in range.offset / block..(range.offset + range.len).div_ceil(block) {
                    if last.replace(block) != Some(block) && self.find_extent(ino, block)?.is_none() {
                        holes += 1;
                    }
                    if holes >= self.sb.geometry.total_blocks {
                        return Ok(holes); // more than there can be: this bounds the loop whatever the log says
                    }
                }
            }
        }
        Ok(holes)
    }

    /// Writes what remains of the overlay in place.
    fn write_overlay(&mut self) -> Result<()> {
        for (ino, pieces) in self.residents.drain() {
            self.summary.data_ranges += pieces.len() as u64;
            self.summary.data_bytes += pieces.iter().map(|(_, len, _)| len).sum::<u64>();
            let Some(value) = self.tree.get(Key::inode(ino))? else {
                return Err(Error::corrupt_log(
                    self.sb.checkpoint.tail_lsn,
                    format!("data of inode {ino}, which does not exist"),
                ));
            };
            let mut core = InodeCore::decode(&value)?;
            let mut blocks: Vec<u64> = pieces
                .iter()
                .filter(|(at, len, _)| *at < core.size && *len > 0)
                .flat_map(|(at, len, _)| {
                    let end = (at + len).min(core.size);
                    at / BLOCK_SIZE as u64..end.div_ceil(BLOCK_SIZE as u64)
                })
                .collect();
            blocks.dedup();
            for block in blocks {
                self.write_overlay_block(ino, &mut core, block, pieces_of(&pieces, block))?;
            }
        }
        Ok(())
    }

    fn write_overlay_block(
        &mut self,
        ino: Ino,
        core: &mut InodeCore,
        file_block: u64,
        pieces: &[DrainedPiece],
    ) -> Result<()> {
        let mapped = self.find_extent(ino, file_block)?;
        let place_of = |(first, item): (u64, ExtentItem)| BlockNo(item.start.0 + (file_block - first));
        let mut buf = IoBuf::zeroed(1);
        let in_use = mapped.filter(|(_, item)| !item.unwritten);
        // A block that is replaced as a whole need not be read: it may be bad.
        if let Some(at) = in_use.map(place_of)
            && !covers(pieces, file_block, core.size)
        {
            match (self.device.read(at.byte_offset(), &mut buf), &self.read_only) {
                (Ok(()), _) => {}
                (Err(e @ Error::Io { .. }), Some(overlay)) => {
                    tracing::warn!("{}: reads of the block will fail", unplaced(ino, at, e.clone()));
                    overlay.spoil(at, e);
                    return Ok(());
                }
                (Err(e), _) => return Err(unplaced(ino, at, e)),
            }
        }
        let has_bytes = overlay_bytes(buf.as_mut_bytes(), file_block, pieces);
        if in_use.is_none() && !has_bytes {
            return Ok(()); // zeros over a hole
        }
        let mut record = RecordBuilder::new(RecordOp::WriteBack);
        if let Some((first, item)) = mapped {
            let place = place_of((first, item));
            let at = self.write_somewhere(ino, place, &buf)?;
            if at != place {
                record.free(Extent::new(place, 1));
                record.alloc(Extent::new(at, 1));
            }
            if at != place || item.unwritten {
                map_block(&mut record, ino, (first, item), file_block, at);
            }
        } else {
            let goal = self.alloc.goal_for(ino, ino);
            let place = self.alloc.alloc_data(goal, 1, self.promised.as_mut())?.start;
            let at = self.write_somewhere(ino, place, &buf)?;
            record.alloc(Extent::new(at, 1));
            let item = ExtentItem { start: at, blocks: 1, unwritten: false };
            record.put(Key::new(ino, ItemKind::Extent, file_block), &item.encode());
            core.blocks += 1;
            record.inode(ino, InodeMask::BLOCKS, core);
        }
        if !record.is_empty() {
            let bytes = record.finish();
            let lsn = RecordLsn { write_start: Lsn(0), start: Lsn(0), end: Lsn(0) };
            let target = Target {
                tree: &self.tree,
                alloc: &self.alloc,
                residents: &self.residents,
                counters: &self.counters,
                replay: false,
            };
            apply(&target, lsn, &Record::decode(Lsn(0), &bytes)?.edits)?;
        }
        Ok(())
    }

    /// Writes a block to `place` or, if that write fails, to a free block. Returns where it lies.
    fn write_somewhere(&self, ino: Ino, place: BlockNo, buf: &IoBuf) -> Result<BlockNo> {
        let (mut at, mut first_error) = (place, None);
        for _ in 0..PLACES_MAX {
            let error = match self.device.write(at.byte_offset(), buf, false) {
                Ok(()) => return Ok(at),
                Err(e @ Error::Io { .. }) => e,
                // The device as a whole is gone.
                Err(e) => return Err(e),
            };
            tracing::warn!("data of inode {ino} in the log: block {at} is set aside: {error}");
            first_error.get_or_insert(error);
            if !self.alloc.quarantine(Extent::new(at, 1)) {
                break;
            }
            // Not from the promise: that is for data that has no block yet.
            match self.alloc.alloc_data(self.alloc.goal_for(ino, ino), 1, None) {
                Ok(extent) => at = extent.start,
                Err(Error::NoSpace) => break,
                Err(e) => return Err(e),
            }
        }
        Err(unplaced(ino, place, first_error.expect("it ends early only after an error")))
    }

    fn find_extent(&self, ino: Ino, file_block: u64) -> Result<Option<(u64, ExtentItem)>> {
        let key = Key::new(ino, ItemKind::Extent, file_block);
        let Some((found, value)) = self.tree.prev_at_or_before(key)? else { return Ok(None) };
        if (found.ino, found.kind) != (key.ino, key.kind) {
            return Ok(None);
        }
        let item = ExtentItem::decode(&value)?;
        Ok((file_block - found.offset < item.blocks as u64).then_some((found.offset, item)))
    }

    fn checkpoint(&mut self, head: Lsn) -> Result<()> {
        let cut = Cut {
            tree: self.tree.freeze(),
            alloc: self.alloc.freeze(),
            lsn: head,
            tail: head,
            generation: Generation(self.generation.fetch_add(1, Ordering::Relaxed)),
            next_ino: Ino(self.counters.next_ino.load(Ordering::Relaxed)),
            inodes: self.counters.inodes.load(Ordering::Relaxed),
        };
        let state = CheckpointState {
            generation: cut.generation,
            root: cut.tree.root,
            root_generation: cut.tree.root_generation,
            root_level: cut.tree.root_level,
            checkpoint_lsn: head,
            tail_lsn: head,
            epoch: self.epoch(),
            next_ino: cut.next_ino,
            inodes: cut.inodes,
            free_blocks: cut.alloc.free_blocks(),
            nodes: cut.tree.node_count,
            clean: false,
            written_sec: self.clock.now().sec,
            losses: self.sb.checkpoint.losses,
        };
        write_checkpoint(&*self.device, &self.sb.geometry, &cut, state, &|_| pace::FULL)?;
        self.alloc.written(cut.alloc);
        self.alloc.checkpoint_durable(cut.generation);
        self.tree.written(cut.tree);
        Ok(())
    }

    /// The epoch that this mount writes.
    fn epoch(&self) -> Epoch {
        // Broken on purpose: log writes of the last mount pass for writes of this one.
        let step = if broken::is(Variant::KeepEpoch) { 0 } else { 1 };
        Epoch(self.sb.checkpoint.epoch.0 + step)
    }

    fn into_store(self, head: Lsn, read_only: bool, options: &OpenOptions) -> Result<Arc<Store>> {
        let flusher = Arc::new(Flusher::new(self.device.clone()));
        let gate = Arc::new(Gate::new());
        let g = &self.sb.geometry;
        let log = Log::new(
            self.device.clone(),
            self.clock.clone(),
            Arc::new(LogBarrier { gate: gate.clone(), flusher: flusher.clone() }),
            LogConfig {
                key: g.log_key(),
                epoch: self.epoch(),
                ring_start: g.log_start,
                ring_blocks: g.log_blocks,
                head,
                tail: head,
                in_flight_max: options.log_writes_max,
                staged_bytes_max: 16 << 20,
            },
        );
        let wake = Arc::new(Wake::new());
        let epoch = self.epoch();
        let store = Arc::new(Store {
            epoch,
            device: self.device,
            clock: self.clock,
            geometry: self.sb.geometry,
            read_only,
            tree: self.tree,
            alloc: self.alloc,
            log,
            flusher,
            gate,
            residents: self.residents,
            counters: self.counters,
            generation: self.generation,
            checkpoint: Control::new(options.async_checkpoint.unwrap_or(0) as u32),
            client: OnceLock::new(),
            stats: StoreStats::default(),
            dirty_limit: AtomicU64::new(options.node_cache_bytes / 2),
            summary: self.summary,
            losses: Mutex::new(Rank::Leaf, self.sb.checkpoint.losses),
            closed: AtomicBool::new(false),
            wake: wake.clone(),
        });
        let weak = Arc::downgrade(&store);
        let pressure: std::sync::Weak<dyn kedge_log::SpacePressure> = weak.clone();
        store.log.set_pressure(pressure);
        spawn_named("kedge-checkpoint", move || Store::background(weak, wake))
            .map_err(|e| Error::io("start of a thread", 0, 0, &e))?;
        Ok(store)
    }
}

/// The pieces of an inode that overlap a block. They are sorted and disjoint, so a binary search
/// finds them. Checking each piece for each block would take hours if one file filled a log of 1
/// GiB.
fn pieces_of(pieces: &[DrainedPiece], file_block: u64) -> &[DrainedPiece] {
    let start = file_block * BLOCK_SIZE as u64;
    let first = pieces.partition_point(|(at, len, _)| at + len <= start);
    let count = pieces[first..].partition_point(|(at, _, _)| *at < start + BLOCK_SIZE as u64);
    &pieces[first..first + count]
}

/// Copies the pieces that overlap a block into it. Returns whether any of them carries bytes rather
/// than zeros.
fn overlay_bytes(block: &mut [u8], file_block: u64, pieces: &[DrainedPiece]) -> bool {
    let start = file_block * BLOCK_SIZE as u64;
    let end = start + BLOCK_SIZE as u64;
    let mut any = false;
    for (at, len, source) in pieces {
        let (from, to) = ((*at).max(start), (at + len).min(end));
        if from >= to {
            continue;
        }
        let target = &mut block[(from - start) as usize..(to - start) as usize];
        match source {
            Source::Bytes(bytes, skip) => {
                let skip = skip + (from - at) as usize;
                target.copy_from_slice(&bytes[skip..skip + target.len()]);
                any = true;
            }
            Source::Zero | Source::Live => target.fill(0),
        }
    }
    any
}

/// Whether the pieces of a block replace all of its bytes below the end of the file.
fn covers(pieces: &[DrainedPiece], file_block: u64, size: u64) -> bool {
    let start = file_block * BLOCK_SIZE as u64;
    let end = (start + BLOCK_SIZE as u64).min(size);
    let reached = pieces.iter().fold(start, |to, (at, len, _)| if *at <= to { to.max(at + len) } else { to });
    reached >= end
}

/// Adds inode and block to an error of the device.
fn unplaced(ino: Ino, block: BlockNo, error: Error) -> Error {
    match error {
        Error::Io { .. } => Error::Unplaced { ino, block, why: Arc::new(error) },
        other => other,
    }
}

/// Splits an extent around one block, which now holds data and lies at `place`.
fn map_block(
    record: &mut RecordBuilder,
    ino: Ino,
    (first, item): (u64, ExtentItem),
    file_block: u64,
    place: BlockNo,
) {
    let at = file_block - first;
    let mut put = |from: u64, start: BlockNo, blocks: u64, unwritten: bool| {
        if blocks > 0 {
            let item = ExtentItem { start, blocks: blocks as u32, unwritten };
            record.put(Key::new(ino, ItemKind::Extent, first + from), &item.encode());
        }
    };
    let old = |from: u64| BlockNo(item.start.0 + from);
    put(0, old(0), at, item.unwritten);
    put(at, place, 1, false);
    put(at + 1, old(at + 1), item.blocks as u64 - at - 1, item.unwritten);
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
