use super::*;
use crate::test_images::formatted;
use crate::{ForceCause, OpenOptions};
use kedge_base::{Ino, Lsn, ManualClock, spawn_named};
use kedge_device::{Device, MemDevice};
use kedge_format::record::RecordOp;
use kedge_format::{ItemKind, Key};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SIZE: u64 = 32 << 20;

fn fresh() -> (Arc<MemDevice>, Arc<Store>) {
    let device = formatted(SIZE, 1 << 20);
    let store = open(device.clone());
    (device, store)
}

fn open(device: Arc<dyn Device>) -> Arc<Store> {
    Store::open(device, Arc::new(ManualClock::default()), &OpenOptions::default()).unwrap()
}

fn xattr(n: u64) -> Key {
    Key::new(Ino::ROOT, ItemKind::Xattr, n)
}

/// Commits a record of many edits, the last of which cannot be applied. Milliseconds pass between
/// its append and the failure; other threads force the log meanwhile. If the record were written,
/// no recovery could replay it.
#[test]
fn a_record_that_cannot_be_applied_never_becomes_durable() {
    for round in 0..8 {
        let (device, store) = fresh();
        let need =
            Need { log_bytes: 640 << 10, changes: 0, puts: 2, neighbours: 0, trees: 1, class: Class::Normal };
        let mut good = RecordBuilder::new(RecordOp::Xattr);
        good.put(xattr(1), b"before");
        let at = store.begin(need).unwrap().commit_only(good).unwrap();
        store.force(at.end, ForceCause::Fsync).unwrap();

        let mut bad = RecordBuilder::new(RecordOp::Xattr);
        for n in 0..20_000u32 {
            bad.put(xattr(2), &n.to_le_bytes());
        }
        bad.delete(xattr(3));
        let over = Arc::new(AtomicBool::new(false));
        let forcer = {
            let (store, over) = (store.clone(), over.clone());
            let body = move || {
                while !over.load(Ordering::Relaxed) && store.force(Lsn(u64::MAX), ForceCause::Sync).is_ok() {}
            };
            spawn_named("forcer", body).unwrap()
        };
        let error = store.begin(need).unwrap().commit_only(bad).unwrap_err();
        assert!(error.to_string().contains("does not exist"), "{error}");
        over.store(true, Ordering::Relaxed);
        forcer.join().unwrap();
        let told = store.force(Lsn(u64::MAX), ForceCause::Sync).unwrap_err();
        assert!(told.to_string().contains("does not exist"), "everybody gets the reason: {told}");
        assert!(store.begin(need).is_err());
        drop(store);

        let recovered = Store::open(device, Arc::new(ManualClock::default()), &OpenOptions::default());
        let store = recovered.unwrap_or_else(|e| panic!("round {round}: the record is in the log: {e}"));
        assert_eq!(store.get(xattr(1)).unwrap().as_deref(), Some(&b"before"[..]));
        assert_eq!(store.get(xattr(2)).unwrap(), None);
    }
}

fn need(log_bytes: u64, class: Class) -> Need {
    Need { log_bytes, changes: 0, puts: 1, neighbours: 0, trees: 1, class }
}

/// Node reservations of operations are much larger than what the operations use. Data that finds no
/// other space waits until these reservations end; statfs counts their nodes as available
/// meanwhile.
#[test]
fn data_waits_for_what_operations_are_promised() {
    let (_, store) = fresh();
    let counts = || store.alloc().free_counts();
    let all = counts().available_soon;
    let wide = || store.alloc().reserve_nodes(1500, NodeClass::Normal).unwrap().unwrap();
    let handle = wide();
    assert!(counts().promised_nodes > 1000, "{:?}", counts());
    assert!(counts().available < all / 2 && counts().available_soon == all, "{:?} of {all}", counts());

    let data = {
        let store = store.clone();
        spawn_named("data", move || store.reserve_data(all).map(|r| r.blocks())).unwrap()
    };
    while store.stats().node_stalls.get() == 0 && !data.is_finished() {
        std::thread::yield_now();
    }
    drop(handle);
    assert_eq!(data.join().unwrap().unwrap(), all);

    let handle = wide();
    assert!(matches!(store.reserve_data(all + 1), Err(Error::NoSpace)), "full at once");
    drop(handle);
}

#[test]
fn what_an_operation_reserves_comes_back_when_it_ends() {
    let (_, store) = fresh();
    let space = || (store.log().space().reserved_bytes, store.alloc().free_counts().reserved);
    let before = space();
    let handle = store.begin(need(100 << 10, Class::Normal)).unwrap();
    let held = space();
    assert!(held.0 >= before.0 + (100 << 10), "{held:?} after {before:?}");
    drop(handle);
    assert_eq!(space(), before, "unused");
    let mut record = RecordBuilder::new(RecordOp::Xattr);
    record.put(xattr(1), b"value");
    store.begin(need(100 << 10, Class::Normal)).unwrap().commit_only(record).unwrap();
    assert_eq!(space().0, before.0, "used");
}

/// Each class leaves the last part of the log to the classes above it. A reservation of a
/// checkpoint never waits: it is refused if even the checkpoint's own part is taken.
#[test]
fn the_last_part_of_the_log_is_the_checkpoint_s() {
    let (_, store) = fresh();
    let log = store.log();
    let free = |class| {
        let mut held = Vec::new();
        while let Some(part) = log.try_reserve(4096, class).unwrap() {
            held.push(part);
        }
        held
    };
    let normal = free(ReserveClass::Normal);
    assert!(log.try_reserve(4096, ReserveClass::Reclaim).unwrap().is_some(), "left by normal ones");
    let reclaim = free(ReserveClass::Reclaim);
    assert!(!reclaim.is_empty());
    let in_checkpoint = store.begin(need(4096, Class::Checkpoint)).unwrap();
    let checkpoint = free(ReserveClass::Checkpoint);
    let refused = store.begin(need(4096, Class::Checkpoint));
    assert!(matches!(refused, Err(Error::NoSpace)), "it must not wait: nobody else could make room");
    drop((normal, reclaim, in_checkpoint, checkpoint));
    drop(store.begin(need(4096, Class::Normal)).unwrap());
}

#[test]
fn a_store_that_only_reads_reserves_nothing() {
    let (device, store) = fresh();
    store.close().unwrap();
    drop(store);
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let store = Store::open(device, Arc::new(ManualClock::default()), &options).unwrap();
    for class in [Class::Normal, Class::Reclaim, Class::Checkpoint] {
        assert!(matches!(store.begin(need(4096, class)), Err(Error::ReadOnly)), "{class:?}");
    }
}

/// A thread's second reservation may wait for space that its first one holds. Debug builds refuse
/// it at once, however much space is free.
#[test]
#[cfg(debug_assertions)]
fn a_thread_has_one_handle_at_a_time_and_waits_for_no_checkpoint_with_it() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let (_, store) = fresh();
    for class in [Class::Normal, Class::Promised, Class::Reclaim] {
        let handle = store.begin(need(100, class)).unwrap();
        let second = catch_unwind(AssertUnwindSafe(|| drop(store.begin(need(100, Class::Reclaim)))));
        assert!(second.is_err(), "a second handle beside one of {class:?}");
        let checkpoint =
            catch_unwind(AssertUnwindSafe(|| store.checkpoint(CheckpointCause::Request).map(drop)));
        assert!(checkpoint.is_err(), "a checkpoint with a handle of {class:?}");
        drop(handle);
    }
    drop(store.begin(need(100, Class::Normal)).unwrap());
}

/// In release builds a need that was computed wrongly does not end the mount.
#[test]
#[cfg(not(debug_assertions))]
fn a_record_that_is_longer_than_its_reservation_gets_more_or_is_refused() {
    let (_, store) = fresh();
    let long = || {
        let mut record = RecordBuilder::new(RecordOp::Xattr);
        record.put(xattr(1), &[1; 4000]);
        record
    };
    store.begin(need(100, Class::Normal)).unwrap().commit_only(long()).unwrap();
    let handle = store.begin(need(100, Class::Normal)).unwrap();
    let mut held = Vec::new();
    while let Some(part) = store.log().try_reserve(1024, ReserveClass::Normal).unwrap() {
        held.push(part);
    }
    assert!(matches!(handle.commit_only(long()), Err(Error::NoSpace)));
    drop(held);
    store.begin(need(4100, Class::Normal)).unwrap().commit_only(long()).unwrap();
}
