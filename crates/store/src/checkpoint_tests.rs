use super::*;
use crate::test_images::formatted;
use crate::{Class, Losses, Need, OpenOptions, read_superblock};
use kedge_base::{Clock, ManualClock};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A store with a log of 1 MiB.
fn fresh() -> (Arc<dyn Device>, Arc<Store>) {
    let device: Arc<dyn Device> = formatted(32 << 20, 1 << 20);
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    let store = Store::open(device.clone(), clock, &OpenOptions::default()).unwrap();
    (device, store)
}

/// The background thread may have been woken before the close, and come to run between the last
/// checkpoint and the end of the log.
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

    // Opened and never closed: recovery's own checkpoint carries the losses.
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

/// A client that reads the turn inside a checkpoint, and fails as if the device were gone when it
/// is told so.
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
    // One that failed was the last.
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
    // A call that comes while a checkpoint runs is not served by it: its cut may lie before the
    // caller's records.
    let running = store.checkpoint.start();
    let wanted = store.checkpoint.next();
    running.completed();
    drop(running);
    assert!(!store.checkpoint.covers(wanted));
}

/// Requested by an unmount, by an operation that needs space, and by the background thread.
#[test]
fn a_checkpoint_that_panics_shuts_the_store_down_with_its_words() {
    let (store, client) = with_client();
    client.panics.store(true, Ordering::Relaxed);
    let words = "a panic in a checkpoint: the client panics";
    let error = store.checkpoint(CheckpointCause::Request).unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
    assert!(store.checkpoint_turn().is_multiple_of(2), "it has ended");
    let need = Need { log_bytes: 100, items: 1, neighbours: 0, class: Class::Normal };
    let error = store.begin(need).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
    assert!(store.close().unwrap_err().to_string().contains(words));
}
