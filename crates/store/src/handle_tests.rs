use super::*;
use crate::{ForceCause, FormatParams, OpenOptions, format};
use kedge_base::{Ino, Lsn, ManualClock, spawn_named};
use kedge_device::{Device, MemDevice};
use kedge_format::logwrite::LogSecret;
use kedge_format::record::RecordOp;
use kedge_format::{ItemKind, Key};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SIZE: u64 = 32 << 20;

fn fresh() -> (Arc<MemDevice>, Arc<Store>) {
    let device = Arc::new(MemDevice::new(SIZE));
    let params = FormatParams {
        size: SIZE,
        log_size: 1 << 20,
        label: String::new(),
        uuid: uuid::Uuid::from_bytes([7; 16]),
        hash_seed: [9; 16],
        log_secret: LogSecret([8; 16]),
        uid: 0,
        gid: 0,
    };
    format(device.clone(), Arc::new(ManualClock::default()), &params).unwrap();
    let store = open(device.clone());
    (device, store)
}

fn open(device: Arc<dyn Device>) -> Arc<Store> {
    Store::open(device, Arc::new(ManualClock::default()), &OpenOptions::default()).unwrap()
}

fn xattr(n: u64) -> Key {
    Key::new(Ino::ROOT, ItemKind::Xattr, n)
}

/// A record of many edits of which the last cannot be applied. Between its append and the failure
/// lie milliseconds, in which other threads force the log. If the record were written, no recovery
/// could replay it.
#[test]
fn a_record_that_cannot_be_applied_never_becomes_durable() {
    for round in 0..8 {
        let (device, store) = fresh();
        let need = Need { log_bytes: 640 << 10, items: 2, neighbours: 0, class: Class::Normal };
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
