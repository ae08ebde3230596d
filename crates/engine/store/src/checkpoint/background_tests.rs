use super::*;
use crate::test_images::formatted;
use crate::{CheckpointClient, Class, Need, OpenOptions};
use kedge_base::{Ino, ManualClock, Result, spawn_named};
use kedge_format::record::{RecordBuilder, RecordOp};
use kedge_format::{ItemKind, Key};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;

const MS: Duration = Duration::from_millis(1);

#[test]
fn rests_double_up_to_the_bound_and_begin_anew_when_the_tail_moves() {
    let retry = Retry { first: MS, longest: 5 * MS, tries: 100 };
    let mut progress = Progress::default();
    for round in 1..3 {
        let tail = Lsn(round * 4096);
        assert_eq!(progress.after(tail, true, true, &retry), Next::Pause(Duration::ZERO));
        for pause in [1, 2, 4, 5, 5] {
            assert_eq!(progress.after(tail, true, true, &retry), Next::Pause(pause * MS));
        }
    }
    // Without a waiting operation it never gives up.
    for _ in 0..200 {
        assert_eq!(progress.after(Lsn(8192), true, false, &retry), Next::Pause(5 * MS));
    }
}

#[test]
fn it_gives_up_only_what_holds_the_tail_and_only_if_somebody_waits_all_the_time() {
    let retry = Retry { first: MS, longest: MS, tries: 3 };
    let pause = Next::Pause(MS);
    let tail = Lsn(4096);
    let mut progress = Progress { tail, ..Progress::default() };
    for (held, waiting) in [(true, false), (false, true), (true, true), (true, true), (true, false)] {
        assert_eq!(progress.after(tail, held, waiting, &retry), pause);
    }
    // Here not data but reservations take the space, and running operations will return them.
    for _ in 0..10 {
        assert_eq!(progress.after(tail, false, true, &retry), pause);
    }
    assert_eq!(progress.after(tail, true, true, &retry), pause);
    assert_eq!(progress.after(tail, true, true, &retry), pause);
    assert_eq!(progress.after(tail, true, true, &retry), Next::GiveUp);
}

/// A client that fails to write log-resident data in place, as if its block were bad, or that
/// panics.
struct BadBlock {
    calls: AtomicU64,
    panics: AtomicBool,
}

impl CheckpointClient for BadBlock {
    fn prepare_checkpoint(&self, _: &dyn Fn(usize)) -> Result<()> {
        self.calls.fetch_add(1, Relaxed);
        assert!(!self.panics.load(Relaxed), "the client panics");
        Err(Error::Io { op: "write", offset: 1234 << 12, len: 4096, errno: kedge_base::errno::EIO })
    }
}

const NEED: Need =
    Need { log_bytes: 64 << 10, changes: 0, puts: 1, neighbours: 0, trees: 1, class: Class::Normal };

/// A store with log-resident data of inode 77 in a log of 1 MiB, and the store's client.
fn store_with_data(async_checkpoint: Option<u8>) -> (Arc<Store>, Arc<BadBlock>) {
    let device = formatted(32 << 20, 1 << 20);
    let options = OpenOptions { async_checkpoint, ..OpenOptions::default() };
    let store = Store::open(device, Arc::new(ManualClock::default()), &options).unwrap();
    let client = Arc::new(BadBlock { calls: AtomicU64::new(0), panics: AtomicBool::new(false) });
    let weak: Weak<BadBlock> = Arc::downgrade(&client);
    store.set_client(weak);
    let mut record = RecordBuilder::new(RecordOp::LogData);
    record.data(Ino(77), 0, &[1; 100]);
    store.begin(NEED).unwrap().commit(record).unwrap();
    (store, client)
}

/// Fills the log with records until an operation fails. Returns that error.
fn fill(store: &Arc<Store>) -> Error {
    let (send, told) = mpsc::channel();
    let filler = {
        let store = store.clone();
        let body = move || loop {
            let mut record = RecordBuilder::new(RecordOp::Xattr);
            record.put(Key::new(Ino::ROOT, ItemKind::Xattr, 1), &[3; 4000]);
            if let Err(e) = store.begin(NEED).and_then(|mut handle| handle.commit(record)) {
                return send.send(e).unwrap();
            }
        };
        spawn_named("filler", body).unwrap()
    };
    let error = told.recv_timeout(Duration::from_secs(300)).expect("it does not hang");
    filler.join().unwrap();
    error
}

#[test]
fn who_waits_for_log_space_that_does_not_come_is_told_what_holds_it() {
    for async_checkpoint in [None, Some(50)] {
        let (store, client) = store_with_data(async_checkpoint);
        let tries = 10;
        *store.checkpoint.retry.lock() = Retry { first: MS, longest: 4 * MS, tries };
        let error = fill(&store).to_string();
        for words in ["the log is full", "data in it of inode 77", "block 1234: device write"] {
            assert!(error.contains(words), "{error}");
        }
        // Operations also run checkpoints when the log is full, but a bounded number of them.
        let calls = client.calls.load(Relaxed);
        assert!((tries as u64..100).contains(&calls), "{calls} checkpoints");
        assert!(store.check_alive().is_err() && store.close().is_err());
    }
}

/// Without a waiting operation checkpoints succeed without the data, and the store stays alive.
#[test]
fn data_that_cannot_be_written_fails_no_checkpoint() {
    let (store, client) = store_with_data(None);
    let tail = store.log.tail_lsn();
    for _ in 0..50 {
        store.checkpoint(CheckpointCause::Request).unwrap();
    }
    assert_eq!((client.calls.load(Relaxed), store.log.tail_lsn()), (50, tail), "it holds the tail");
    store.check_alive().unwrap();
    assert!(store.stuck_error().to_string().contains("inode 77"));
}

#[test]
fn a_panic_in_the_background_is_told_to_who_waits() {
    let (store, client) = store_with_data(Some(50));
    client.panics.store(true, Relaxed);
    let error = fill(&store).to_string();
    assert!(error.contains("a panic in a checkpoint: the client panics"), "{error}");
    assert_eq!(client.calls.load(Relaxed), 1, "nothing goes on behind it");
}
