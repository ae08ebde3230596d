//! Stores whose log is filled to a given fraction, for the tests of `pace` and `trigger`.

use crate::test_images::formatted;
use crate::{Class, Handle, Need, OpenOptions, Store};
use kedge_base::{Ino, ManualClock};
use kedge_format::record::{RecordBuilder, RecordOp};
use kedge_format::{ItemKind, Key};
use std::sync::Arc;

/// A store with a log of 4 MiB.
pub(crate) fn store(async_checkpoint: Option<u8>) -> Arc<Store> {
    let device = formatted(64 << 20, 4 << 20);
    let options = OpenOptions { async_checkpoint, ..OpenOptions::default() };
    Store::open(device, Arc::new(ManualClock::default()), &options).unwrap()
}

/// Reserves the fraction `part` of the space that an empty log has free.
pub(crate) fn take(store: &Store, part: f64) -> Handle<'_> {
    let log_bytes = (store.log.free_bytes_max() as f64 * part) as u64;
    store
        .begin(Need { log_bytes, changes: 0, puts: 1, neighbours: 0, trees: 1, class: Class::Normal })
        .unwrap()
}

/// The fraction of the log that is used.
pub(crate) fn used(store: &Store) -> f64 {
    (store.log.head_lsn().0 - store.log.tail_lsn().0) as f64 / store.log.free_bytes_max() as f64
}

/// Logs a record of some 4 KiB.
pub(crate) fn put(store: &Store) {
    let mut record = RecordBuilder::new(RecordOp::Xattr);
    record.put(Key::new(Ino::ROOT, ItemKind::Xattr, 1), &[3; 4000]);
    let need = Need { log_bytes: 4096, changes: 0, puts: 1, neighbours: 0, trees: 1, class: Class::Normal };
    store.begin(need).unwrap().commit(record).unwrap();
}

/// Number of checkpoints so far.
pub(crate) fn checkpoints(store: &Store) -> u64 {
    store.stats.checkpoints.iter().map(|c| c.get()).sum()
}

/// A store whose log is filled to the fraction `part`, with no checkpoint.
pub(crate) fn filled(part: f64) -> Arc<Store> {
    let store = store(None);
    while used(&store) < part {
        put(&store);
    }
    store
}
