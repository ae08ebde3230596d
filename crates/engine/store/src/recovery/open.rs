//! Opens an image by the steps of [`super`], and builds the store from the result.

use super::image::{OpenOptions, Recovery};
use crate::checkpoint::control::Control;
use crate::checkpoint::cut::Cut;
use crate::checkpoint::requests::Requests;
use crate::checkpoint::write::{FULL, write_checkpoint};
use crate::flusher::{Flusher, LogBarrier};
use crate::guard::EpochGuard;
use crate::slots::{read_superblock, refresh_copies};
use crate::stats::StoreStats;
use crate::store::Store;
use kedge_base::atomic::{AtomicBool, AtomicU64, Ordering};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::trace::{self, Event};
use kedge_base::{BLOCK_SIZE, Clock, Error, Generation, Lsn, Result, spawn_named};
use kedge_device::{Device, OverlayDevice, TrackedDevice};
use kedge_format::superblock::{INCOMPAT_CLONES, INCOMPAT_KNOWN, LOG_MIN, RO_COMPAT_KNOWN, Superblock};
use kedge_log::{Log, LogConfig, ScanEnd};
use std::sync::{Arc, OnceLock};

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
        let device = Arc::new(TrackedDevice::new(device));
        let mut recovery = Recovery::load(device, clock, &sb, options)?;
        recovery.read_only = overlay;
        let end = recovery.replay()?;
        recovery.summary.damaged_slot = damaged.map(|e| e.to_string());
        recovery.write_overlay()?;
        recovery.promised = None;
        match options.frozen {
            // Broken on purpose: the checkpoint removes the clean mark of a frozen image.
            true if !broken::is(Variant::FrozenOpenWrites) => recovery.check_frozen(&end)?,
            _ => recovery.checkpoint(end.head)?,
        }
        recovery.into_store(end.head, read_only, options)
    }
}

/// Checks the feature bits. Returns whether the mount must be read-only.
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

impl Recovery {
    /// Checks that a frozen image has nothing to replay. It needs no checkpoint now: the thaw makes
    /// the one that starts the new epoch, and until then no record is appended.
    fn check_frozen(&self, end: &ScanEnd) -> Result<()> {
        if self.sb.checkpoint.clean && end.writes == 0 {
            return Ok(());
        }
        let what = "the image was frozen, and has changed since".to_owned();
        Err(Error::corrupt_log(end.head, what))
    }

    fn checkpoint(&mut self, head: Lsn) -> Result<()> {
        trace::note(|| Event::Replayed { head });
        let cut = Cut::take(&self.forest, &self.alloc, &[], &self.generation, head, head)?;
        trace::note(|| Event::Cut { generation: cut.generation, lsn: cut.lsn, tail: cut.tail });
        let state = cut.state(self.epoch(), false, self.clock.now().sec, self.sb.checkpoint.losses);
        self.sb.geometry.feature_incompat |= cut.alloc.geometry().feature_incompat & INCOMPAT_CLONES;
        write_checkpoint(&*self.device, &self.sb.geometry, &cut, state, &|_| FULL)?;
        let sb = Superblock { geometry: self.sb.geometry.clone(), checkpoint: state };
        refresh_copies(self.tracked.untracked(), &sb, false);
        self.alloc.written(cut.alloc);
        self.alloc.checkpoint_durable(cut.generation);
        if self.sb.geometry.has_sums() || self.sb.geometry.has_clones() {
            self.alloc.durable(self.checkpointed());
        }
        Cut::trees_written(&self.forest, (cut.first, cut.tree, cut.forest));
        Ok(())
    }

    fn into_store(self, head: Lsn, read_only: bool, options: &OpenOptions) -> Result<Arc<Store>> {
        let flusher = Arc::new(Flusher::new(self.device.clone()));
        let guard = Arc::new(EpochGuard::new());
        let g = &self.sb.geometry;
        trace::note(|| {
            let generation = Generation(self.generation.load(Ordering::Relaxed) - 1);
            let ring = g.log_blocks * BLOCK_SIZE as u64;
            Event::Opened { epoch: self.epoch(), generation, head, ring }
        });
        let log = Log::new(
            self.device.clone(),
            self.clock.clone(),
            Arc::new(LogBarrier { guard: guard.clone(), flusher: flusher.clone() }),
            LogConfig {
                key: g.log_key(),
                epoch: self.epoch(),
                ring_start: g.log_start,
                ring_blocks: g.log_blocks,
                use_bytes_max: options.log_use_max.map_or(u64::MAX, |max| max.max(LOG_MIN)),
                head,
                tail: head,
                in_flight_max: options.log_writes_max,
                staged_bytes_max: 16 << 20,
            },
        );
        let requests = Arc::new(Requests::new());
        let epoch = self.epoch();
        let clones = g.has_clones();
        let store = Arc::new(Store {
            guard,
            device: self.device,
            tracked: self.tracked,
            clock: self.clock,
            geometry: self.sb.geometry,
            read_only,
            forest: self.forest,
            alloc: self.alloc,
            log,
            flusher,
            epoch,
            residents: self.residents,
            generation: self.generation,
            checkpoint: Control::new(options.async_checkpoint.unwrap_or(0) as u32),
            client: OnceLock::new(),
            stats: StoreStats::default(),
            dirty_limit: AtomicU64::new(options.node_cache_bytes / 2),
            summary: self.summary,
            losses: Mutex::new(Rank::Leaf, self.sb.checkpoint.losses),
            clones: AtomicBool::new(clones),
            counts: Mutex::new(Rank::Counts, ()),
            closed: AtomicBool::new(false),
            requests: requests.clone(),
        });
        // No other thread can use the store yet, so the lock that `set_frozen` requires is not
        // needed.
        store.checkpoint.set_frozen(options.frozen);
        let weak = Arc::downgrade(&store);
        let pressure: std::sync::Weak<dyn kedge_log::SpacePressure> = weak.clone();
        store.log.set_pressure(pressure);
        spawn_named("kedge-checkpoint", move || Store::background(weak, requests))
            .map_err(|e| Error::io("start of a thread", 0, 0, &e))?;
        Ok(store)
    }
}

#[cfg(test)]
#[path = "open_tests.rs"]
mod tests;
