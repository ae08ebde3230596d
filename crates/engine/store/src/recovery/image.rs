//! The state of an image that is being opened: loading it from a checkpoint, and scanning its log.

use crate::counters::Counters;
use crate::forest::{Common, Forest};
use crate::residents::Residents;
use crate::space::{AllocNodes, Changed, DeviceNodes, Marks};
use crate::stats::ReplaySummary;
use kedge_alloc::{Alloc, DataReservation};
use kedge_base::atomic::AtomicU64;
use kedge_base::broken::{self, Variant};
use kedge_base::trace::{self, Event};
use kedge_base::{Clock, Epoch, Error, Lsn, Result};
use kedge_btree::{Tree, TreeLock};
use kedge_device::{Device, OverlayDevice, TrackedDevice};
use kedge_format::superblock::Superblock;
use kedge_log::{RecordLsn, ScanConfig, ScanEnd, scan, scan_again};
use std::sync::Arc;

/// The number of keys that are gathered before their leaves are read in parallel.
pub(super) const KEYS_AT_A_TIME: usize = 4096;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub read_only: bool,
    /// Size of the node cache, in bytes.
    pub node_cache_bytes: u64,
    /// Percentage of free log below which a background checkpoint starts. `None` for
    /// `noasync_checkpoint`.
    pub async_checkpoint: Option<u8>,
    /// The kind of latches in the tree.
    pub tree_lock: TreeLock,
    /// The most log writes that may be in flight.
    pub log_writes_max: usize,
    /// The most bytes of the log that are used at a time. `None` for the whole log.
    pub log_use_max: Option<u64>,
    /// Whether the image was frozen ([`crate::Store::freeze`]) by a process that died. It is then
    /// clean, and nothing is written to it before [`crate::Store::thaw`].
    pub frozen: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            node_cache_bytes: 128 << 20,
            async_checkpoint: Some(50),
            tree_lock: TreeLock::default(),
            log_writes_max: 4,
            log_use_max: None,
            frozen: false,
        }
    }
}

/// The parameters to scan the log that a slot describes, from the log write at `from` on.
fn log_of(sb: &Superblock, from: Lsn) -> ScanConfig {
    let (g, c) = (&sb.geometry, &sb.checkpoint);
    ScanConfig {
        key: g.log_key(),
        epoch: c.epoch,
        ring_start: g.log_start,
        ring_blocks: g.log_blocks,
        from,
        slot_tail: c.tail_lsn,
    }
}

/// Scans the log that a slot describes. Fails if it ends before the slot's checkpoint.
fn scan_log(
    device: &dyn Device,
    sb: &Superblock,
    visit: &mut dyn FnMut(RecordLsn, &[u8]) -> Result<()>,
) -> Result<ScanEnd> {
    let c = &sb.checkpoint;
    let end = scan(device, log_of(sb, c.tail_lsn), visit)?;
    if end.head < c.checkpoint_lsn {
        return Err(Error::corrupt_log(
            end.head,
            format!("the log ends below the checkpoint at LSN {}", c.checkpoint_lsn),
        ));
    }
    Ok(end)
}

/// The number of log writes that an open would replay from this slot. Fails if the log would make
/// an open fail.
pub fn count_log_writes(device: &dyn Device, sb: &Superblock) -> Result<u64> {
    Ok(scan_log(device, sb, &mut |_, _| Ok(()))?.writes)
}

/// The parts of a store that is being opened.
pub(crate) struct Recovery {
    pub device: Arc<dyn Device>,
    /// The same device.
    pub tracked: Arc<TrackedDevice>,
    pub clock: Arc<dyn Clock>,
    pub sb: Superblock,
    pub alloc: Arc<Alloc>,
    pub forest: Forest,
    pub residents: Residents,
    pub generation: Arc<AtomicU64>,
    pub summary: ReplaySummary,
    /// The most bytes of records that replay keeps in memory.
    pub kept_max: u64,
    /// Blocks promised for overlay data that has no block yet.
    pub promised: Option<DataReservation>,
    /// The overlay that takes all writes of a read-only open. `None` if the image itself is
    /// written.
    pub read_only: Option<Arc<OverlayDevice>>,
}

impl Recovery {
    pub(super) fn load(
        tracked: Arc<TrackedDevice>,
        clock: Arc<dyn Clock>,
        sb: &Superblock,
        options: &OpenOptions,
    ) -> Result<Recovery> {
        let (c, device) = (&sb.checkpoint, tracked.clone() as Arc<dyn Device>);
        trace::note(|| Event::Recovers { epoch: c.epoch, generation: c.generation });
        let alloc = Arc::new(Alloc::load(&*device, &sb.geometry, c.generation)?);
        let generation = Arc::new(AtomicU64::new(c.generation.0 + 1));
        let marks = Arc::new(Marks::default());
        let space = AllocNodes {
            alloc: alloc.clone(),
            generation: generation.clone(),
            marks: marks.clone(),
            changes: None,
        };
        let common = Common {
            io: Arc::new(DeviceNodes(device.clone())),
            alloc: alloc.clone(),
            generation: generation.clone(),
            clock: clock.clone(),
            lock: options.tree_lock,
            uuid: sb.geometry.uuid,
            secret: sb.geometry.log_secret,
            totals: Arc::default(),
            changed: Changed::new(),
        };
        let tree = Tree::open(
            common.io.clone(),
            Arc::new(space),
            common.config(options.node_cache_bytes),
            c.root,
            c.root_generation,
            c.root_level,
            c.nodes,
            generation.clone(),
        )?;
        let counters = Counters::of(c.next_ino.0, c.inodes, 0);
        let forest = Forest::open(common, tree, counters, marks, c.trees, options.node_cache_bytes)?;
        if sb.geometry.has_limits() {
            forest.limits.set_used();
        }
        let summary = ReplaySummary { clean: c.clean, tail_lsn: c.tail_lsn.0, ..Default::default() };
        let residents = Residents::new();
        let sb = sb.clone();
        let (kept_max, promised, read_only) = (options.node_cache_bytes / 2, None, None);
        Ok(Recovery {
            device,
            tracked,
            clock,
            sb,
            alloc,
            forest,
            residents,
            generation,
            summary,
            kept_max,
            promised,
            read_only,
        })
    }

    pub(super) fn scan(&self, visit: &mut dyn FnMut(RecordLsn, &[u8]) -> Result<()>) -> Result<ScanEnd> {
        scan_log(&*self.device, &self.sb, visit)
    }

    /// Visits the records of the log writes from `from` to the end of the log again.
    pub(super) fn scan_again(
        &self,
        from: Lsn,
        end: Lsn,
        visit: &mut dyn FnMut(RecordLsn, &[u8]) -> Result<()>,
    ) -> Result<()> {
        scan_again(&*self.device, log_of(&self.sb, from), end, visit)
    }

    /// An LSN just after the replayed log. A block that is freed with this LSN is busy until the
    /// checkpoint of this recovery is durable.
    pub(super) fn checkpointed(&self) -> Lsn {
        Lsn(self.summary.head_lsn + 1)
    }

    /// The epoch of the log writes that follow this recovery.
    pub(super) fn epoch(&self) -> Epoch {
        // Broken on purpose: log writes before this recovery look like those after it.
        let step = if broken::is(Variant::KeepEpoch) { 0 } else { 1 };
        Epoch(self.sb.checkpoint.epoch.0 + step)
    }
}
