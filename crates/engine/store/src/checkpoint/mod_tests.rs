use super::cause::Freed;
use super::control::Retry;
use super::*;
use crate::forest::Change;
use crate::slots::read_superblock;
use crate::test_images::formatted;
use crate::{Class, Need, OpenOptions, Reclaimed, Store};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{
    BLOCK_SIZE, BlockNo, Clock, Error, Generation, Ino, IoBuf, Lsn, ManualClock, Result, errno,
};
use kedge_device::{Device, Op};
use kedge_format::node::NODE_BLOCKS;
use kedge_format::superblock::{CheckpointState, Losses, SLOTS, Superblock};
use kedge_format::trees::TreeEntry;
use kedge_log::ForceCause;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A store with a log of 1 MiB.
fn fresh() -> (Arc<dyn Device>, Arc<Store>) {
    let device: Arc<dyn Device> = formatted(32 << 20, 1 << 20);
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    let store = Store::open(device.clone(), clock, &OpenOptions::default()).unwrap();
    (device, store)
}

/// The background thread may have been woken before the close. Its checkpoint may then start
/// between the last checkpoint and the end of the log.
#[test]
fn a_checkpoint_that_comes_after_the_last_leaves_the_clean_mark() {
    let (device, store) = fresh();
    store.checkpoint(CheckpointCause::Request).unwrap();
    assert!(!read_superblock(&*device).unwrap().0.checkpoint.clean, "in use");
    store.checkpoint_clean().unwrap();
    let closed = read_superblock(&*device).unwrap().0.checkpoint;
    assert!(closed.clean);
    assert!(store.checkpoint(CheckpointCause::Background).is_err());
    assert_eq!(read_superblock(&*device).unwrap().0.checkpoint, closed);
}

fn reopened(device: &Arc<dyn Device>) -> Arc<Store> {
    Store::open(device.clone(), Arc::new(ManualClock::default()), &OpenOptions::default()).unwrap()
}

/// Losses are reported at each mount until a repair has reported them.
#[test]
fn noted_losses_stay_in_each_superblock_over_checkpoints_mounts_and_crashes() {
    let (device, store) = fresh();
    let on_device = || read_superblock(&*device).unwrap().0.checkpoint.losses;
    assert_eq!(store.losses(), None);
    store.note_losses(0);
    assert_eq!(store.losses(), None, "nothing was lost");
    store.note_losses(2);
    store.note_losses(1);
    let files = |losses: Option<Losses>| losses.map(|l| l.files);
    assert_eq!((files(store.losses()), on_device()), (Some(3), None));
    store.checkpoint(CheckpointCause::Request).unwrap();
    assert_eq!(on_device(), store.losses(), "a checkpoint carries it");
    store.close().unwrap();
    assert_eq!(on_device(), store.losses());

    // The store is opened and never closed: recovery's own checkpoint carries the losses over.
    let first = store.losses();
    drop(reopened(&device));
    assert_eq!(on_device(), first);
    let store = reopened(&device);
    assert_eq!(store.losses(), first);
    store.note_losses(4);
    store.close().unwrap();
    let both = on_device().unwrap();
    assert_eq!((both.files, Some(both.since)), (7, first.map(|l| l.since)), "counted on, since the first");
}

/// A client that records the turn inside each checkpoint. On request it panics, or fails as if the
/// device were gone.
struct Client {
    store: Weak<Store>,
    fails: AtomicBool,
    panics: AtomicBool,
    turns: Mutex<Vec<u64>>,
}

impl CheckpointClient for Client {
    fn prepare_checkpoint(&self, _: &dyn Fn(usize)) -> Result<()> {
        let store = self.store.upgrade().unwrap();
        let turn = store.checkpoint_turn();
        assert!(store.checkpoint_ran_since(turn), "it has not ended");
        self.turns.lock().push(turn);
        assert!(!self.panics.load(Ordering::Relaxed), "the client panics");
        if self.fails.load(Ordering::Relaxed) { Err(Error::Fenced) } else { Ok(()) }
    }
}

fn with_client() -> (Arc<Store>, Arc<Client>) {
    let (_, store) = fresh();
    let client = Arc::new(Client {
        store: Arc::downgrade(&store),
        fails: AtomicBool::new(false),
        panics: AtomicBool::new(false),
        turns: Mutex::new(Rank::Leaf, Vec::new()),
    });
    let weak: Weak<Client> = Arc::downgrade(&client);
    store.set_client(weak);
    (store, client)
}

#[test]
fn the_turn_is_odd_inside_a_checkpoint_and_even_behind_it_even_if_it_fails() {
    let (store, client) = with_client();
    for fails in [false, false, true] {
        client.fails.store(fails, Ordering::Relaxed);
        let before = store.checkpoint_turn();
        assert!(!store.checkpoint_ran_since(before), "none is under way");
        assert_eq!(store.checkpoint(CheckpointCause::Request).is_err(), fails);
        assert_eq!(client.turns.lock().pop(), Some(before + 1));
        assert!(store.checkpoint_ran_since(before) && store.checkpoint_ran_since(before + 1));
        assert_eq!(store.checkpoint_turn(), before + 2);
        assert!(!store.checkpoint_ran_since(before + 2));
    }
    // The checkpoint that failed was the last: the store is shut down.
    let turn = store.checkpoint_turn();
    client.fails.store(false, Ordering::Relaxed);
    assert!(store.checkpoint(CheckpointCause::Request).is_err());
    assert_eq!(store.checkpoint_turn(), turn, "none began");
}

#[test]
fn who_waits_shares_a_checkpoint_that_starts_later_and_completes() {
    let (store, client) = with_client();
    for fails in [false, false, true] {
        client.fails.store(fails, Ordering::Relaxed);
        let wanted = store.checkpoint.next();
        assert!(!store.checkpoint.covers(wanted));
        assert_eq!(store.checkpoint(CheckpointCause::Request).is_err(), fails);
        assert_eq!(store.checkpoint.covers(wanted), !fails, "only one that completed is shared");
    }
    // A running checkpoint does not serve a call that arrives meanwhile, because its cut may
    // precede the caller's records.
    let running = store.checkpoint.start();
    let wanted = store.checkpoint.next();
    running.completed();
    drop(running);
    assert!(!store.checkpoint.covers(wanted));
}

/// The checkpoint is requested by an unmount, by an operation that needs space, and by the
/// background thread.
#[test]
fn a_checkpoint_that_panics_shuts_the_store_down_with_its_words() {
    let (store, client) = with_client();
    client.panics.store(true, Ordering::Relaxed);
    let words = "a panic in a checkpoint: the client panics";
    let error = store.checkpoint(CheckpointCause::Request).unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
    assert!(store.checkpoint_turn().is_multiple_of(2), "it has ended");
    let need = Need { log_bytes: 100, changes: 0, puts: 1, neighbours: 0, trees: 1, class: Class::Normal };
    let error = store.begin(need).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
    assert!(store.close().unwrap_err().to_string().contains(words));
}

/// An image on a host that, while `full` is set, has space only for the log and the superblock.
/// `shows_holes`: whether the device reports the holes of the image, so that the lack can be
/// detected before a write.
/// `fails_once`: a request that the host, although it has space for plain writes, fails once.
/// `in_grow`: what the next growth of the device does besides.
struct OnHost {
    inner: Arc<dyn Device>,
    fails_once: Mutex<Option<Fails>>,
    in_grow: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    log: std::ops::Range<u64>,
    full: AtomicBool,
    shows_holes: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fails {
    Flush,
    Slot,
    Grow,
    Cut,
    /// The host becomes full after the write of a slot.
    AfterSlot,
}

impl OnHost {
    /// Fails a request of this kind with `errno` if it is the one to fail.
    fn once(&self, kind: Fails, op: &'static str, errno: i32) -> Result<()> {
        let mut fails = self.fails_once.lock();
        if *fails != Some(kind) {
            return Ok(());
        }
        *fails = None;
        Err(Error::Io { op, offset: 0, len: 0, errno })
    }

    fn check(&self, offset: u64) -> Result<()> {
        let slot = SLOTS.iter().any(|slot| slot.byte_offset() == offset);
        if slot || self.log.contains(&offset) || !self.full.load(Ordering::SeqCst) {
            return Ok(());
        }
        Err(Error::Io { op: "write", offset, len: BLOCK_SIZE as u64, errno: errno::ENOSPC })
    }
}

impl Device for OnHost {
    fn geometry(&self) -> &kedge_device::Geometry {
        self.inner.geometry()
    }

    fn submit(&self, batch: Vec<kedge_device::Request>, sink: Arc<dyn kedge_device::CompletionSink>) {
        for request in batch {
            let taken = match &request.op {
                Op::Write { .. } => self.check(request.offset),
                _ => Ok(()),
            };
            match taken {
                Ok(()) => self.inner.submit(vec![request], sink.clone()),
                result => {
                    sink.complete(kedge_device::Completion { tag: request.tag, op: request.op, result });
                }
            }
        }
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.check(offset)?;
        if SLOTS.iter().any(|slot| slot.byte_offset() == offset) {
            self.once(Fails::Slot, "write", errno::EDQUOT)?;
            if self.once(Fails::AfterSlot, "write", errno::ENOSPC).is_err() {
                self.full.store(true, Ordering::SeqCst);
            }
        }
        self.inner.write(offset, buf, fua)
    }

    fn flush(&self) -> Result<()> {
        self.once(Fails::Flush, "flush", errno::ENOSPC)?;
        self.inner.flush()
    }

    fn grow(&self, size: u64) -> Result<()> {
        self.once(Fails::Grow, "flush", errno::EIO)?;
        let besides = self.in_grow.lock().take();
        if let Some(besides) = besides {
            besides();
        }
        self.inner.grow(size)
    }

    fn cut(&self, size: u64) -> Result<()> {
        self.once(Fails::Cut, "flush", errno::EIO)?;
        self.inner.cut(size)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.write_zeroes(offset, len)
    }

    fn host_free(&self) -> Option<u64> {
        Some(0)
    }

    fn first_hole(&self, offset: u64, _len: u64) -> Option<u64> {
        let shown = self.shows_holes.load(Ordering::SeqCst) && self.full.load(Ordering::SeqCst);
        (shown && !self.log.contains(&offset)).then_some(offset)
    }

    fn stats(&self) -> &kedge_device::DeviceStats {
        self.inner.stats()
    }

    fn name(&self) -> &str {
        "on a host"
    }
}

/// A store on such a host. Its checkpoints are tried `tries` times.
fn on_host(tries: u32) -> (Arc<OnHost>, Arc<Store>) {
    let inner = formatted(32 << 20, 1 << 20);
    let geometry = read_superblock(&*inner).unwrap().0.geometry;
    let log = geometry.log_start.byte_offset();
    let log = log..log + geometry.log_blocks * BLOCK_SIZE as u64;
    let (full, shows_holes) = Default::default();
    let fails_once = Mutex::new(Rank::Leaf, None);
    let in_grow = Mutex::new(Rank::Leaf, None);
    let device = Arc::new(OnHost { inner, fails_once, in_grow, log, full, shows_holes });
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    let store = Store::open(device.clone(), clock, &OpenOptions::default()).unwrap();
    let rest = Duration::from_millis(1);
    *store.checkpoint.retry.lock() = Retry { first: rest, longest: rest, tries };
    (device, store)
}

fn put(store: &Store, number: u64) {
    try_put(store, key(number)).unwrap();
}

fn try_put(store: &Store, key: kedge_format::Key) -> Result<()> {
    use kedge_format::record::{RecordBuilder, RecordOp};
    let mut record = RecordBuilder::new(RecordOp::Xattr);
    record.put(key, &[key.offset as u8; 50]);
    let need = Need { log_bytes: 1000, changes: 0, puts: 1, neighbours: 0, trees: 1, class: Class::Normal };
    store.begin(need)?.commit(record)?;
    Ok(())
}

fn key(number: u64) -> kedge_format::Key {
    kedge_format::Key::new(Ino::ROOT, kedge_format::ItemKind::Xattr, number)
}

/// The caller gets the error. The next checkpoint writes the deferred cut before its own. A crash
/// in between recovers from the log.
#[test]
fn a_checkpoint_that_was_asked_for_does_not_wait_for_its_host_for_ever() {
    let (device, store) = on_host(3);
    for number in 1..4 {
        put(&store, number);
        device.full.store(true, Ordering::SeqCst);
        let result = match number {
            1 => store.checkpoint(CheckpointCause::Request),
            _ => store.freeze(),
        };
        assert_eq!(result.unwrap_err().errno(), 28);
        store.check_alive().unwrap();
        let before = read_superblock(&*device).unwrap().0.checkpoint;
        // The last record is in no checkpoint before the crash.
        put(&store, 10 + number);
        store.force(Lsn(u64::MAX), ForceCause::Sync).unwrap();
        device.full.store(false, Ordering::SeqCst);
        if number < 3 {
            store.checkpoint(CheckpointCause::Request).unwrap();
            let after = read_superblock(&*device).unwrap().0.checkpoint;
            assert!(!after.clean && after.checkpoint_lsn == store.head_lsn(), "{after:?}");
            assert_eq!(after.generation.0, before.generation.0 + 2, "both cuts");
        }
    }
    drop(store);
    let device: Arc<dyn Device> = device;
    let store = reopened(&device);
    for number in [1, 2, 3, 11, 12, 13] {
        assert!(store.get(key(number)).unwrap().is_some(), "{number}");
    }
    store.close().unwrap();
}

/// If the host is known to lack the space, a fork is refused before its cut. Otherwise the cut has
/// made the fork: nothing reads nodes that are not on the device yet, and a later checkpoint writes
/// them.
#[test]
fn a_fork_without_space_on_the_host_is_not_made_or_completed_later() {
    for known in [true, false] {
        let (device, store) = on_host(3);
        device.shows_holes.store(known, Ordering::SeqCst);
        put(&store, 1);
        store.checkpoint(CheckpointCause::Request).unwrap();
        device.full.store(true, Ordering::SeqCst);
        let refused = store.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap_err();
        assert!(refused.errno() == 28 && store.check_alive().is_ok(), "{refused}");
        let fork = store.tree_named(Ino::ROOT, b"fork");
        assert_eq!(fork.is_none(), known);
        if let Some(root) = fork {
            let inside = kedge_format::Key::new(root, kedge_format::ItemKind::Xattr, 1);
            assert_eq!(store.get(inside).unwrap_err().errno(), 28);
            assert_eq!(store.tree_use(root).unwrap_err().errno(), 28);
            assert_eq!(store.reclaim(true).unwrap_err().errno(), 28);
            device.full.store(false, Ordering::SeqCst);
            store.checkpoint(CheckpointCause::Request).unwrap();
            assert!(store.get(inside).unwrap().is_some());
        }
        device.full.store(false, Ordering::SeqCst);
        drop(store);
        let device: Arc<dyn Device> = device;
        let store = reopened(&device);
        assert_eq!(store.tree_named(Ino::ROOT, b"fork"), fork);
        store.close().unwrap();
    }
}

/// A full host is waited for if a plain write has failed. A flush, and a slot, which is flushed
/// with its write, may have lost what was written before, so they are not repeated.
#[test]
fn a_flush_or_a_slot_that_finds_no_space_on_the_host_shuts_down() {
    for fails in [Fails::Flush, Fails::Slot] {
        for cause in [CheckpointCause::NodeSpace, CheckpointCause::Request, CheckpointCause::Unmount] {
            let (device, store) = on_host(3);
            put(&store, 1);
            store.force(Lsn(u64::MAX), ForceCause::Sync).unwrap();
            let before = read_superblock(&*device).unwrap().0.checkpoint;
            store.note_losses(2);
            *device.fails_once.lock() = Some(fails);
            let result = match cause {
                CheckpointCause::Unmount => store.close(),
                cause => store.checkpoint(cause),
            };
            let place = format!("{fails:?}, {cause:?}: {result:?}");
            assert!(result.is_err_and(|e| !e.is_host_full()), "{place}");
            assert!(store.check_alive().is_err() && store.log.shutdown_reason().is_some(), "{place}");
            assert_eq!(read_superblock(&*device).unwrap().0.checkpoint, before, "{place}");
            drop(store);
            let device: Arc<dyn Device> = device;
            let store = reopened(&device);
            assert!(store.get(key(1)).unwrap().is_some(), "{place}");
            store.close().unwrap();
        }
    }
}

/// The flush that makes a new size of the device durable covers file data, too.
#[test]
fn a_flush_that_fails_while_the_device_is_resized_shuts_down() {
    for fails in [Fails::Grow, Fails::Cut] {
        let (device, store) = on_host(3);
        put(&store, 1);
        store.force(Lsn(u64::MAX), ForceCause::Sync).unwrap();
        *device.fails_once.lock() = Some(fails);
        let failed = match fails {
            Fails::Grow => store.grow(64 << 20).map(drop),
            _ => {
                let mut shrinking = store.begin_shrink(24 << 20).unwrap();
                shrinking.move_nodes().unwrap();
                shrinking.finish().map(drop)
            }
        };
        assert!(failed.is_err_and(|e| e.is_failed_flush()), "{fails:?}");
        assert!(store.check_alive().is_err(), "{fails:?}");
        drop(store);
        let device: Arc<dyn Device> = device;
        let store = reopened(&device);
        assert!(store.get(key(1)).unwrap().is_some());
        store.close().unwrap();
    }
}

/// The repeated call finds the new size in memory, and must not report it before a slot names it.
#[test]
fn a_growth_that_found_the_host_full_is_complete_when_it_is_repeated() {
    let (device, store) = on_host(3);
    let blocks = || read_superblock(&*device).unwrap().0.geometry.total_blocks;
    let old = blocks();
    put(&store, 1);
    *device.fails_once.lock() = Some(Fails::AfterSlot);
    assert_eq!(store.grow(64 << 20).unwrap_err().errno(), 28);
    store.check_alive().unwrap();
    assert!(store.total_blocks() > old && blocks() == old, "the cut is made, and not written");
    assert_eq!(store.grow(64 << 20).unwrap_err().errno(), 28);
    assert_eq!(blocks(), old);
    device.full.store(false, Ordering::SeqCst);
    let bytes = store.grow(64 << 20).unwrap();
    assert_eq!(blocks() * BLOCK_SIZE as u64, bytes);
    assert_eq!(store.grow(64 << 20).unwrap(), bytes);
    store.close().unwrap();
}

/// The maps of the growth go where the durable layout, that before the shrink, has its maps. The
/// test ends with a crash, after a growth that failed.
#[test]
fn a_growth_after_a_deferred_shrink_spares_the_maps_of_the_durable_layout() {
    for completes in [false, true] {
        let (device, store) = on_host(3);
        let geometry = || read_superblock(&*device).unwrap().0.geometry;
        let small = store.total_blocks() * BLOCK_SIZE as u64;
        put(&store, 1);
        let large = store.grow(200 << 20).unwrap();
        let durable = geometry();
        assert_eq!(durable.moved_maps().start * BLOCK_SIZE as u64, small);
        let mut shrinking = store.begin_shrink(small).unwrap();
        shrinking.move_nodes().unwrap();
        device.full.store(true, Ordering::SeqCst);
        assert_eq!(shrinking.finish().unwrap_err().errno(), 28);
        drop(shrinking);
        store.check_alive().unwrap();
        assert!(store.alloc.geometry().moved_maps().is_empty(), "they return");
        assert_eq!(geometry(), durable);
        assert_eq!(store.grow(large).unwrap_err().errno(), 28);
        assert_eq!(geometry(), durable);
        if completes {
            device.full.store(false, Ordering::SeqCst);
            assert_eq!(store.grow(large).unwrap(), large);
            assert_eq!(geometry(), durable, "the same size and the same places");
        }
        put(&store, 2);
        store.force(Lsn(u64::MAX), ForceCause::Sync).unwrap();
        device.full.store(false, Ordering::SeqCst);
        drop(store);
        let store = reopened(&(device.clone() as Arc<dyn Device>));
        assert_eq!(*store.alloc.geometry(), durable);
        for number in [1, 2] {
            assert!(store.get(key(number)).unwrap().is_some(), "{number}");
        }
        store.close().unwrap();
    }
}

/// The layout of a resize is planned before its cut. The test ends with a crash after the resize.
#[test]
fn the_first_clone_during_a_resize_keeps_its_feature() {
    for grows in [false, true] {
        let (device, store) = on_host(3);
        if grows {
            // The growth admits no other checkpoint, so the clone waits for the end of the growth.
            let (cloning, (started, ended)) = (store.clone(), std::sync::mpsc::channel());
            *device.in_grow.lock() = Some(Box::new(move || {
                let waiting = cloning.clone();
                kedge_base::spawn_named("clone", move || started.send(waiting.allow_clones()).unwrap())
                    .unwrap();
                while !cloning.alloc.geometry().has_clones() {
                    std::thread::yield_now();
                }
            }));
            store.grow(64 << 20).unwrap();
            ended.recv_timeout(Duration::from_secs(120)).unwrap().unwrap();
        } else {
            let mut shrinking = store.begin_shrink(24 << 20).unwrap();
            store.allow_clones().unwrap();
            shrinking.move_nodes().unwrap();
            assert!(shrinking.finish().unwrap());
        }
        assert!(store.has_clones());
        store.checkpoint(CheckpointCause::Request).unwrap();
        for slot in [0, 1] {
            let mut block = IoBuf::zeroed(1);
            device.read(SLOTS[slot].byte_offset(), &mut block).unwrap();
            let blocks = device.geometry().size / BLOCK_SIZE as u64;
            let geometry = Superblock::decode(block.as_bytes(), slot, blocks).unwrap().geometry;
            assert!(geometry.has_clones(), "slot {slot}, grows: {grows}");
        }
        drop(store);
        let store = reopened(&(device as Arc<dyn Device>));
        assert!(store.has_clones());
        store.close().unwrap();
    }
}

/// A shrink moves the nodes of the table although none of its entries changes.
#[test]
fn the_nodes_of_the_table_of_trees_move() {
    let (device, store) = fresh();
    put(&store, 1);
    store.fork(Ino::ROOT, Ino::ROOT, b"fork", true).unwrap();
    let root = || read_superblock(&*device).unwrap().0.checkpoint.trees.unwrap().root;
    let vacate = |end| store.change_trees(&[Change::Vacate { end }], &Freed::default(), 0).unwrap();
    let first = root();
    vacate(BlockNo(first.0 + NODE_BLOCKS));
    assert_eq!(root(), first, "it ends there");
    vacate(BlockNo(first.0 + 1));
    assert_ne!(root(), first);
    store.close().unwrap();
    assert!(reopened(&device).tree_named(Ino::ROOT, b"fork").is_some());
}

fn fork_root(store: &Store) -> Ino {
    store.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap()
}

/// What the table says of the trees, except for their roots and counters.
fn shape(store: &Store) -> Vec<(u32, TreeEntry)> {
    let entry = |entry: TreeEntry| TreeEntry {
        root: BlockNo(0),
        root_generation: Generation(0),
        root_level: 0,
        nodes: 0,
        next_ino: 0,
        inodes: 0,
        ..entry
    };
    store.trees().into_iter().map(|(number, of)| (number, entry(of))).collect()
}

/// Recovery would apply the records to the trees of the checkpoint before. They continue when the
/// host has space; a crash before that undoes the change.
#[test]
fn no_record_follows_a_deferred_cut_that_concerns_trees_in_use() {
    type Change = fn(&Store, Ino) -> Result<()>;
    let fork: Change = |store, _| store.fork(Ino::ROOT, Ino::ROOT, b"new", false).map(drop);
    let delete: Change = |store, fork| store.delete_tree(fork);
    let name: Change = |store, fork| store.name_tree(fork, Ino::ROOT, b"renamed", false);
    let first: Change = |store, fork| store.replace_first(fork, false, &[]).map(drop);
    let merge: Change = |store, _| store.reclaim(true).map(drop);
    // The last two make a checkpoint before that of the change.
    let changes = [
        ("fork", fork, false),
        ("delete", delete, false),
        ("name", name, false),
        ("first", first, true),
        ("merge", merge, true),
    ];
    for ((what, change, second), crashes) in changes.into_iter().flat_map(|c| [(c, true), (c, false)]) {
        let (device, store) = on_host(3);
        put(&store, 1);
        let fork = fork_root(&store);
        put(&store, 2);
        if what == "merge" {
            store.delete_tree(fork).unwrap();
            while store.reclaim(false).unwrap() != Reclaimed::NeedsQuiet {}
        }
        store.checkpoint(CheckpointCause::Request).unwrap();
        let before = shape(&store);
        match second {
            true => *device.fails_once.lock() = Some(Fails::AfterSlot),
            false => device.full.store(true, Ordering::SeqCst),
        }
        assert_eq!(change(&store, fork).unwrap_err().errno(), 28, "{what}");
        store.check_alive().unwrap();
        assert_ne!(shape(&store), before, "{what}: it is visible");
        let head = store.head_lsn();
        for number in [3, 4] {
            let tried = try_put(&store, key(number));
            assert!(tried.as_ref().is_err_and(|e| e.errno() == 28), "{what}: {tried:?}");
        }
        assert_eq!(store.head_lsn(), head, "{what}");
        store.force(Lsn(u64::MAX), ForceCause::Sync).unwrap();
        device.full.store(false, Ordering::SeqCst);
        let device: Arc<dyn Device> = device;
        let store = match crashes {
            true => {
                drop(store);
                let store = reopened(&device);
                assert_eq!(shape(&store), before, "{what}: undone");
                store
            }
            false => store,
        };
        put(&store, 3);
        assert!(crashes || shape(&store) != before);
        store.close().unwrap();
        drop(store);
        let store = reopened(&device);
        for number in [1, 3] {
            assert!(store.get(key(number)).unwrap().is_some(), "{what}: {number}");
        }
        store.close().unwrap();
    }
}

/// No record concerns a dying tree.
#[test]
fn records_follow_a_deferred_cut_that_frees_a_dying_tree() {
    let (device, store) = on_host(3);
    put(&store, 1);
    store.delete_tree(fork_root(&store)).unwrap();
    device.full.store(true, Ordering::SeqCst);
    assert_eq!(store.reclaim(false).unwrap_err().errno(), 28);
    put(&store, 2);
    store.force(Lsn(u64::MAX), ForceCause::Sync).unwrap();
    device.full.store(false, Ordering::SeqCst);
    drop(store);
    let store = reopened(&(device as Arc<dyn Device>));
    assert!(store.has_work_for_reclaim() && store.get(key(2)).unwrap().is_some());
    while store.reclaim(true).unwrap() != Reclaimed::Nothing {}
    store.close().unwrap();
}

/// The cut gives the fork's entry a root that is not on the device yet.
#[test]
fn the_use_of_a_tree_is_not_measured_before_a_deferred_cut_is_written() {
    let (device, store) = on_host(3);
    put(&store, 1);
    let root = fork_root(&store);
    try_put(&store, kedge_format::Key::new(root, kedge_format::ItemKind::Xattr, 2)).unwrap();
    device.full.store(true, Ordering::SeqCst);
    assert_eq!(store.checkpoint(CheckpointCause::Request).unwrap_err().errno(), 28);
    assert_eq!(store.tree_use(root).unwrap_err().errno(), 28);
    device.full.store(false, Ordering::SeqCst);
    assert!(store.tree_use(root).unwrap().nodes > 0);
    store.close().unwrap();
}

#[test]
fn a_thaw_without_space_on_the_host_leaves_it_frozen() {
    let (device, store) = on_host(3);
    put(&store, 1);
    store.freeze().unwrap();
    let is_clean = || read_superblock(&*device).unwrap().0.checkpoint.clean;
    device.full.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        assert_eq!(store.thaw().unwrap_err().errno(), 28);
        assert!(is_clean() && store.checkpoint.is_frozen());
        store.check_alive().unwrap();
    }
    device.full.store(false, Ordering::SeqCst);
    store.thaw().unwrap();
    assert!(!is_clean() && !store.checkpoint.is_frozen());
    put(&store, 2);
    store.freeze().unwrap();
    device.full.store(true, Ordering::SeqCst);
    store.thaw().unwrap_err();
    store.close().unwrap();
    assert!(is_clean(), "closed as it was frozen");
}

/// The close ends the wait regardless of how many tries are left.
#[test]
fn a_close_ends_the_wait_of_a_thaw_for_its_host() {
    let (device, store) = on_host(u32::MAX);
    store.freeze().unwrap();
    device.full.store(true, Ordering::SeqCst);
    let (done, answer) = std::sync::mpsc::channel();
    let thawing = store.clone();
    kedge_base::spawn_named("thaw", move || done.send(thawing.thaw()).unwrap()).unwrap();
    while store.checkpoint_turn().is_multiple_of(2) {
        std::thread::yield_now();
    }
    store.end_waits();
    assert_eq!(answer.recv_timeout(Duration::from_secs(120)).unwrap().unwrap_err().errno(), 28);
    store.close().unwrap();
}

/// A checkpoint without a caller waits while its host is full. A freeze that arrives then gets the
/// error, and the store continues.
#[test]
fn a_freeze_behind_a_checkpoint_that_waits_for_its_host_is_told() {
    let (device, store) = on_host(3);
    put(&store, 1);
    device.full.store(true, Ordering::SeqCst);
    let waiting = store.clone();
    let first =
        kedge_base::spawn_named("first", move || waiting.checkpoint(CheckpointCause::DirtyNodes)).unwrap();
    while store.checkpoint_turn().is_multiple_of(2) {
        std::thread::yield_now();
    }
    assert_eq!(store.freeze().unwrap_err().errno(), 28);
    assert_eq!(first.join().unwrap().unwrap_err().errno(), 28);
    store.check_alive().unwrap();
    device.full.store(false, Ordering::SeqCst);
    store.freeze().unwrap();
}

/// A close ends after a bounded time even if its host stays full. It still records the losses, and
/// the contents of the log remain for the next mount.
#[test]
fn a_close_without_space_on_the_host_ends_and_names_what_is_lost() {
    let (device, store) = on_host(3);
    let before = read_superblock(&*device).unwrap().0.checkpoint;
    put(&store, 1);
    store.force(Lsn(u64::MAX), ForceCause::Sync).unwrap();
    device.full.store(true, Ordering::SeqCst);
    store.note_losses(2);
    let (done, answer) = std::sync::mpsc::channel();
    let closing = store.clone();
    kedge_base::spawn_named("close", move || done.send(closing.close()).unwrap()).unwrap();
    let closed = answer.recv_timeout(Duration::from_secs(120)).expect("the close ends");
    assert_eq!(closed.unwrap_err().errno(), 28);
    let after = read_superblock(&*device).unwrap().0.checkpoint;
    assert_eq!(after.losses.map(|losses| losses.files), Some(2));
    assert_eq!(CheckpointState { losses: None, ..after }, before, "nothing else changed");
    device.full.store(false, Ordering::SeqCst);
    drop(store);
    let device: Arc<dyn Device> = device;
    let store = reopened(&device);
    assert!(store.get(key(1)).unwrap().is_some());
    assert_eq!(store.losses().map(|losses| losses.files), Some(2));
    store.close().unwrap();
}
