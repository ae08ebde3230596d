//! An open file system: how it is assembled from its parts, remounted and closed.

use crate::cache::inodes::Inodes;
use crate::cache::table::Watch;
use crate::claim::Claim;
use crate::data::Files;
use crate::data::orphans::Nameless;
use crate::durability::dirty::DirtyList;
use crate::durability::flushers::{Flushed, Member};
use crate::durability::shared::SharedLists;
use crate::durability::sync::Syncer;
use crate::durability::writeback::Writeback;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::format::name_other;
use crate::gate::{Door, Gate, Phase};
use crate::names::Names;
use crate::numbers::Numbers;
use crate::policy::dirty_set::{DirtySet, OwnSet};
use crate::policy::options::{DirtyTracking, MountOptions};
use crate::policy::switches::Switches;
use kedge_base::broken::{self, Variant};
use kedge_base::{Clock, Ino, Lsn};
use kedge_device::Device;
use kedge_store::{CheckpointClient, ForceCause, OpenOptions, Store};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The parts of a file system; each uses only those before it.
pub(crate) struct Fs {
    engine: Arc<Engine>,
    inodes: Arc<Inodes>,
    writeback: Arc<Writeback>,
    syncer: Arc<Syncer>,
    files: Arc<Files>,
    names: Names,
    numbers: Numbers,
}

/// The membership in the pool of flusher threads. Ends when the last clone of a file system is
/// dropped.
pub(crate) struct Membership(pub Arc<Fs>);

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.writeback.leave_flushers();
    }
}

impl Flushed for Fs {
    fn turn(&self, last: &mut Duration, over: bool) -> Duration {
        let rest = self.syncer.turn(last, over);
        if over {
            self.files.delete_failed();
        }
        rest
    }

    fn panicked(&self, words: &str) {
        self.syncer.panicked(words);
    }
}

/// Opens the gate when dropped, also after a panic.
struct OpenOnDrop<'a>(&'a Gate);

impl Drop for OpenOnDrop<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// The set of dirty inodes, and with `dirty_tracking=shared` the observer of the inode cache.
fn dirty_set(options: &MountOptions) -> (Arc<dyn DirtySet>, Watch) {
    let set = options.dirty_set.map_or_else(|| Arc::new(OwnSet::default()) as _, |make| make());
    match options.dirty_tracking {
        DirtyTracking::PerSb => (set, None),
        DirtyTracking::Shared => (set, Some(Arc::new(SharedLists::new()))),
    }
}

/// The parts into which the memory of `cache_size` is divided.
struct Shares {
    node_bytes: u64,
    page_bytes: u64,
    inodes_max: usize,
}

impl Shares {
    /// Half for tree nodes, three eighths for pages, the rest for inodes.
    fn of(cache_size: u64) -> Shares {
        Shares {
            node_bytes: cache_size / 2,
            page_bytes: cache_size / 8 * 3,
            inodes_max: (cache_size / 8 / 1024).clamp(1024, 1 << 20) as usize,
        }
    }
}

/// Parameters of an open by a server that replaces one that died.
pub(crate) struct Again<'a> {
    /// Called with the end of the recovered log before anything is appended to it.
    pub recovered: &'a mut dyn FnMut(Lsn) -> Result<()>,
    /// Start of the freeze that is still in force, in seconds since 1970.
    pub frozen: Option<i64>,
}

impl Fs {
    /// Opens a file system. Recovers it if it was not closed.
    pub(crate) fn open(
        device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        options: MountOptions,
        again: Option<Again<'_>>,
    ) -> Result<Arc<Fs>> {
        if let Some(percent) = options.async_checkpoint {
            kedge_store::check_async_percent(percent)?;
        }
        let claim = Claim::new(&device, &*clock, options.read_only)?;
        let shares = Shares::of(options.cache_size);
        let open = OpenOptions {
            read_only: options.read_only,
            node_cache_bytes: shares.node_bytes,
            async_checkpoint: options.async_checkpoint,
            tree_lock: options.tree_lock,
            log_use_max: options.log_use_max,
            frozen: again.as_ref().is_some_and(|again| again.frozen.is_some()),
            ..Default::default()
        };
        let store = Store::open(device.clone(), clock.clone(), &open).map_err(|e| name_other(&*device, e))?;
        let (nameless, frozen) = match again {
            None => (Nameless::Deleted, None),
            Some(Again { recovered, frozen }) => {
                recovered(store.head_lsn())?;
                (Nameless::Kept, frozen)
            }
        };
        let (set, watch) = dirty_set(&options);
        let (shared, member) = (options.shared_budget.clone(), Member::new());
        let engine = Arc::new(Engine::new(store, clock, options, claim));
        let inodes = Arc::new(Inodes::new(engine.clone(), shares.inodes_max, watch.clone()));
        let dirty = DirtyList::new(set, watch);
        let writeback =
            Writeback::new(engine.clone(), inodes.clone(), dirty, shares.page_bytes, shared, member.clone());
        let fs = Fs::join(engine, inodes, Arc::new(writeback));
        // First of all, since nothing may be written before the thaw.
        if let Some(since) = frozen {
            fs.engine.gate().set_frozen(since);
        }
        fs.start(&member, nameless)?;
        if !fs.engine.store().is_read_only() {
            fs.start_reclaim();
        }
        Ok(fs)
    }

    /// See [`crate::FileSystem::set_cache_size`].
    pub(crate) fn set_cache_size(&self, bytes: u64) {
        let (shares, store) = (Shares::of(bytes), self.engine.store());
        if shares.node_bytes < store.node_cache_bytes() {
            self.engine.stats().given_back.inc();
        }
        self.writeback.set_page_bytes(shares.page_bytes);
        self.inodes.set_max(shares.inodes_max);
        store.set_cache_budget(shares.node_bytes);
    }

    fn join(engine: Arc<Engine>, inodes: Arc<Inodes>, writeback: Arc<Writeback>) -> Arc<Fs> {
        let below = || (engine.clone(), inodes.clone(), writeback.clone());
        let (e, i, w) = below();
        let syncer = Arc::new(Syncer::new(e, i, w));
        let (e, i, w) = below();
        let files = Arc::new(Files::new(e, i, w));
        let (e, i, w) = below();
        let names = Names::new(e, i, w, files.clone());
        Arc::new(Fs { engine, inodes, writeback, syncer, files, names, numbers: Numbers::default() })
    }

    /// Completes the open, before the first operation: deletes orphans and joins the flusher
    /// threads.
    fn start(self: &Arc<Fs>, member: &Arc<Member>, nameless: Nameless) -> Result<()> {
        let store = self.engine.store();
        let client: Arc<dyn CheckpointClient> = self.writeback.clone();
        let client: Weak<dyn CheckpointClient> = Arc::downgrade(&client);
        store.set_client(client);
        if !store.is_read_only() {
            self.engine.set_discard(self.engine.options().discard);
            self.files.recover_orphans(nameless)?;
            let flushed: Arc<dyn Flushed> = self.clone();
            let now = self.engine.clock().monotonic();
            member
                .join(Arc::downgrade(&flushed), now, self.engine.live().commit())
                .map_err(|e| kedge_base::Error::io("start of a thread", 0, 0, &e))?;
        }
        Ok(())
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn inodes(&self) -> &Inodes {
        &self.inodes
    }

    pub(crate) fn writeback(&self) -> &Writeback {
        &self.writeback
    }

    pub(crate) fn syncer(&self) -> &Arc<Syncer> {
        &self.syncer
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    pub(crate) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// [`Numbers::steady`] with the clock of the file system.
    pub(crate) fn steady<R>(&self, ino: Ino, run: impl FnOnce(Ino) -> Result<R>) -> Result<R> {
        self.numbers.steady(self.engine.clock(), ino, run)
    }

    /// Changes options. Running operations may still follow the old ones.
    pub(crate) fn remount(&self, switches: &Switches) -> Result<()> {
        let new = self.engine.remount(switches)?;
        if switches.discard.is_some() && !self.engine.store().is_read_only() {
            self.engine.set_discard(new.discard);
        }
        if switches.async_checkpoint.is_some() {
            self.engine.store().set_async_checkpoint(new.async_checkpoint);
        }
        self.writeback.wake_flusher();
        Ok(())
    }

    /// Makes everything durable, writes the last checkpoint and closes the file system.
    ///
    /// The last sync begins when no change is inside the gate, so it includes every change that
    /// succeeded. Changes that begin later wait, and fail when the gate opens.
    pub(crate) fn close(&self) -> Result<()> {
        let gate = self.engine.gate();
        if gate.has_entered() {
            return Err(Error::Busy("a change of this thread is under way"));
        }
        self.engine.store().end_waits();
        let _single = gate.single();
        if self.engine.is_closed() {
            return Ok(());
        }
        if gate.phase() == Phase::Frozen {
            return self.close_frozen();
        }
        // The first sync does most of the work while changes continue. Data that it cannot write
        // stays dirty, so the last sync retries that data and returns its error.
        if let Err(e) = self.syncer.sync(ForceCause::Close) {
            tracing::warn!("the first sync of a close: {e}");
        }
        // Broken on purpose: changes continue during the last sync.
        if !broken::is(Variant::CloseBesideChanges) {
            gate.shut(Door::Change);
        }
        let open = OpenOnDrop(gate);
        let synced = self.syncer.sync_for_close();
        self.engine.set_closed();
        drop(open);
        self.writeback.leave_flushers();
        let lost = self.writeback.lost_data();
        let store = self.engine.store();
        if let Some(lost) = &lost {
            tracing::error!("{lost}");
            if !broken::is(Variant::ForgetLosses) {
                store.note_losses(lost.files);
            }
        }
        let closed = store.close();
        self.engine.release_device();
        // On a full host the store records the losses in the image although its last checkpoint
        // failed. That failure loses nothing else: the next mount replays the log.
        let named = closed.as_ref().err().is_none_or(|e| e.is_host_full());
        match lost {
            // The causes of the losses are in the trace.
            Some(lost) if named => Err(Error::DataLost(Arc::new(lost))),
            _ => synced.and(closed.map_err(Error::from)),
        }
    }

    /// Prevents further freezes. Closes the file system if it is frozen.
    pub(crate) fn end_freezes(&self) -> Result<()> {
        let gate = self.engine.gate();
        self.engine.store().end_waits();
        let _single = gate.single();
        gate.end();
        if gate.phase() == Phase::Frozen && !self.engine.is_closed() {
            return self.close_frozen();
        }
        Ok(())
    }

    /// Closes a frozen file system. Writes nothing: the image is clean already, and may be being
    /// copied. Changes that wait for the end of the freeze fail.
    fn close_frozen(&self) -> Result<()> {
        self.engine.set_closed();
        self.writeback.leave_flushers();
        let closed = self.engine.store().close();
        self.stop_waiting();
        self.engine.release_device();
        Ok(closed?)
    }
}
