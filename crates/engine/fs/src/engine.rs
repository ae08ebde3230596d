//! What all operations share: the store below, the clock, the options in force, the counters.

use crate::claim::Claim;
use crate::error::{Error, Result};
use crate::gate::{Gate, Phase, Working};
use crate::options::MountOptions;
use crate::stats::FsStats;
use crate::switches::{Live, Switches};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{Clock, Timespec};
use kedge_store::{Class, Handle, Need, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
pub(crate) struct Engine {
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    /// As they are now: a remount changes some.
    options: Mutex<MountOptions>,
    /// The same for those that operations look up.
    live: Live,
    /// fsync and sync have nothing to do.
    volatile: bool,
    stats: FsStats,
    closed: AtomicBool,
    gate: Arc<Gate>,
    /// A write failed because the host of the image is full: see `host`.
    pub(crate) host_full: AtomicBool,
    /// What is freed is discarded in the background.
    pub(crate) discards: AtomicBool,
    /// Last: it goes after all that uses the device.
    claim: Claim,
}

impl Engine {
    pub(crate) fn new(
        store: Arc<Store>,
        clock: Arc<dyn Clock>,
        options: MountOptions,
        claim: Claim,
    ) -> Engine {
        Engine {
            store,
            clock,
            live: Live::new(&options),
            volatile: options.volatile,
            options: Mutex::new(Rank::Leaf, options),
            stats: FsStats::default(),
            closed: AtomicBool::new(false),
            gate: Arc::new(Gate::new()),
            host_full: AtomicBool::new(false),
            discards: AtomicBool::new(false),
            claim,
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    pub(crate) fn now(&self) -> Timespec {
        self.clock.now()
    }

    pub(crate) fn live(&self) -> &Live {
        &self.live
    }

    pub(crate) fn stats(&self) -> &FsStats {
        &self.stats
    }

    /// What a freeze closes.
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// The right to do the work of an fsync or a sync. `None`: there is none. While it is frozen
    /// everything is durable, and with `volatile` nobody is promised that it is.
    pub(crate) fn sync_work(&self) -> Option<Working> {
        if self.volatile { None } else { self.gate.work() }
    }

    pub(crate) fn options(&self) -> MountOptions {
        self.options.lock().clone()
    }

    /// Changes options. Answers what they are.
    pub(crate) fn remount(&self, switches: &Switches) -> Result<MountOptions> {
        self.check_open()?;
        if self.gate.phase() != Phase::Open {
            return Err(Error::Busy("the file system is frozen"));
        }
        let mut options = self.options.lock();
        let mut wanted = options.clone();
        switches.apply(&mut wanted);
        if let Some(percent) = wanted.async_checkpoint {
            kedge_store::check_async_percent(percent)?;
        }
        self.live.set(&wanted);
        *options = wanted.clone();
        Ok(wanted)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed() {
            return Err(kedge_base::Error::Shutdown("unmounted".into()).into());
        }
        Ok(())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Lets no further operation begin. Answers whether this call did it.
    pub(crate) fn set_closed(&self) -> bool {
        !self.closed.swap(true, Ordering::Relaxed)
    }

    /// Others may open the device.
    pub(crate) fn release_device(&self) {
        self.claim.release();
    }

    /// Reserves for an operation. Before any inode lock, and without another handle.
    pub(crate) fn begin(&self, need: Need) -> Result<Handle<'_>> {
        self.begin_up_to(need, need)
    }

    /// As `begin`, for an operation that can do with the nodes of `least`.
    pub(crate) fn begin_up_to(&self, need: Need, least: Need) -> Result<Handle<'_>> {
        if need.class != Class::Checkpoint {
            self.check_open()?; // closing ends in a checkpoint
        }
        Ok(self.store.begin_up_to(need, least)?)
    }
}
