//! State that all operations share: the store, the clock, the options in force, the gate, the
//! counters.

use crate::claim::Claim;
use crate::error::{Error, Result};
use crate::gate::{Gate, Phase, Working};
use crate::policy::options::MountOptions;
use crate::policy::switches::{Live, Switches};
use crate::stats::FsStats;
use kedge_base::atomic::{AtomicBool, AtomicU32, Ordering};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{Clock, Timespec};
use kedge_store::{Class, Handle, Need, Store};
use std::sync::Arc;

/// The shared state of an open file system; see the module's head.
pub(crate) struct Engine {
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    /// The current options; a remount changes some.
    options: Mutex<MountOptions>,
    /// The options that operations read often, without the lock.
    live: Live,
    /// Whether `volatile` is set: fsync and sync then do nothing.
    volatile: bool,
    stats: FsStats,
    closed: AtomicBool,
    gate: Arc<Gate>,
    /// Whether a write failed because the host of the image was full: see `host`.
    pub(crate) host_full: AtomicBool,
    /// Whether the thread that frees the space of deleted trees is running.
    pub(crate) reclaiming: AtomicBool,
    /// Number of users of tree moments ([`crate::moment`]). While it is not zero, no space of
    /// deleted trees is freed.
    pub(crate) moments: AtomicU32,
    /// Whether freed space is discarded in the background.
    pub(crate) discards: AtomicBool,
    /// The last field, so that it is dropped after everything that uses the device.
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
            reclaiming: AtomicBool::new(false),
            moments: AtomicU32::new(0),
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
        kedge_base::witness::time().unwrap_or_else(|| self.clock.now())
    }

    pub(crate) fn live(&self) -> &Live {
        &self.live
    }

    pub(crate) fn stats(&self) -> &FsStats {
        &self.stats
    }

    /// The gate through which changes and work pass, and which a freeze closes.
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// The right to do the work of an fsync or a sync. `None` if there is no work: in a frozen file
    /// system everything is durable, and with `volatile` durability is not promised.
    pub(crate) fn sync_work(&self) -> Option<Working> {
        if self.volatile { None } else { self.gate.work() }
    }

    pub(crate) fn options(&self) -> MountOptions {
        self.options.lock().clone()
    }

    /// Changes options. Returns the options now in force.
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

    /// Refuses all further operations. Returns false if they were refused already.
    pub(crate) fn set_closed(&self) -> bool {
        !self.closed.swap(true, Ordering::Relaxed)
    }

    /// Allows other engines to open the device.
    pub(crate) fn release_device(&self) {
        self.claim.release();
    }

    /// Reserves what an operation needs. Called before any inode lock is taken, and while the
    /// thread holds no other handle.
    pub(crate) fn begin(&self, need: Need) -> Result<Handle<'_>> {
        self.begin_up_to(need, need)
    }

    /// As `begin`, for an operation that can work with the nodes of `least`.
    pub(crate) fn begin_up_to(&self, need: Need, least: Need) -> Result<Handle<'_>> {
        if need.class != Class::Checkpoint {
            self.check_open()?; // a close ends with a checkpoint, which may reserve
        }
        Ok(self.store.begin_up_to(need, least)?)
    }
}
