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
//! # Waiting for the device
//! A remote device takes milliseconds for each request, and a full log names tens of thousands of
//! nodes and blocks. So blocks that are known to be needed are never read one after another: the
//! scan reads ahead ([`mod@kedge_log::scan`]), step 3 gathers records and reads the leaves that
//! they touch in parallel before it applies them, in order, and step 4 works in batches
//! ([`crate::overlay`]). The sizes bound memory and do not follow the measured latency, since on a
//! fast device they cost nothing.

use crate::apply::{Counters, Target, apply, apply_resident, keys};
use crate::checkpoint::control::Control;
use crate::checkpoint::cut::Cut;
use crate::checkpoint::requests::Requests;
use crate::checkpoint::write::{FULL, write_checkpoint};
use crate::flusher::{Flusher, LogBarrier};
use crate::gate::Gate;
use crate::residents::Residents;
use crate::slots::read_superblock;
use crate::space::{AllocNodes, DeviceNodes};
use crate::stats::{ReplaySummary, StoreStats};
use crate::store::Store;
use kedge_alloc::{Alloc, DataReservation};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{Clock, Epoch, Error, Generation, Lsn, Result, spawn_named};
use kedge_btree::{Tree, TreeConfig, TreeLock};
use kedge_device::{Device, OverlayDevice};
use kedge_format::Key;
use kedge_format::record::{Edit, Record};
use kedge_format::superblock::{INCOMPAT_KNOWN, RO_COMPAT_KNOWN, Superblock};
use kedge_log::{Log, LogConfig, RecordLsn, ScanConfig, ScanEnd, scan};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

/// Bytes of records that are gathered before they are applied. The longest record is smaller.
const CHUNK_BYTES: usize = 4 << 20;
/// Keys that are gathered before their leaves are read in, in parallel.
pub(crate) const KEYS_AT_A_TIME: usize = 4096;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub read_only: bool,
    /// Budget in bytes for tree nodes in memory.
    pub node_cache_bytes: u64,
    /// `None` for `noasync_checkpoint`.
    pub async_checkpoint: Option<u8>,
    /// The kind of latches in the tree.
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
    fn push(&mut self, lsn: RecordLsn, record: &[u8], tree: &Tree, cut: Lsn) -> Result<()> {
        if lsn.start >= cut && !tree.is_in_memory() {
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
        target.tree.prefetch(&self.keys);
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

/// A store that is being opened.
pub(crate) struct Recovery {
    pub(crate) device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    pub(crate) sb: Superblock,
    pub(crate) alloc: Arc<Alloc>,
    pub(crate) tree: Tree,
    pub(crate) residents: Residents,
    pub(crate) counters: Counters,
    generation: Arc<AtomicU64>,
    pub(crate) summary: ReplaySummary,
    /// Blocks promised for overlay data that has no block yet.
    pub(crate) promised: Option<DataReservation>,
    /// The overlay device of a read-only open.
    pub(crate) read_only: Option<Arc<OverlayDevice>>,
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
        let mut chunk = Chunk::default();
        let end = self.scan(&mut |lsn, bytes| {
            chunk.push(lsn, bytes, target.tree, cut)?;
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

    fn checkpoint(&mut self, head: Lsn) -> Result<()> {
        let cut = Cut::take(&self.tree, &self.alloc, &self.counters, &self.generation, head, head);
        let state = cut.state(self.epoch(), false, self.clock.now().sec, self.sb.checkpoint.losses);
        write_checkpoint(&*self.device, &self.sb.geometry, &cut, state, &|_| FULL)?;
        self.alloc.written(cut.alloc);
        self.alloc.checkpoint_durable(cut.generation);
        self.tree.written(cut.tree);
        Ok(())
    }

    /// The epoch of this mount's log writes.
    fn epoch(&self) -> Epoch {
        // Broken on purpose: log writes of the last mount pass for those of this mount.
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
        let requests = Arc::new(Requests::new());
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
            requests: requests.clone(),
        });
        let weak = Arc::downgrade(&store);
        let pressure: std::sync::Weak<dyn kedge_log::SpacePressure> = weak.clone();
        store.log.set_pressure(pressure);
        spawn_named("kedge-checkpoint", move || Store::background(weak, requests))
            .map_err(|e| Error::io("start of a thread", 0, 0, &e))?;
        Ok(store)
    }
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
