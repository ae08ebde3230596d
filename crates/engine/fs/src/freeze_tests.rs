use super::*;
use crate::{FileSystem, Owner};
use kedge_base::{Clock, Ino, SystemClock};
use std::time::Duration;

/// A flusher that panics has left the gate before its panic is handled, so a freeze may have
/// completed in between.
#[test]
fn a_panic_of_a_flusher_ends_a_freeze() {
    let fs = FileSystem::in_memory(32 << 20).unwrap();
    fs.freeze().unwrap();
    fs.fs.syncer().panicked("for the test");
    assert_eq!(fs.fs.engine().gate().phase(), Phase::Open);
    assert_eq!(fs.create(Ino::ROOT, b"a", 0o644, Owner::default()).unwrap_err().errno(), 5);
}

/// The test holds the lock as the thread that frees deleted trees does until it finds the freeze.
#[test]
fn a_thaw_waits_for_a_thread_that_finds_the_freeze() {
    let fs = FileSystem::in_memory(32 << 20).unwrap();
    fs.freeze().unwrap();
    let held = fs.fs.engine().gate().single();
    let (begin, began) = std::sync::mpsc::channel();
    let thaw = kedge_base::spawn_named("thaw", {
        let fs = fs.clone();
        move || {
            begin.send(()).unwrap();
            fs.thaw()
        }
    });
    began.recv().unwrap();
    // If the thaw did not wait for the lock, it would fail during this time.
    SystemClock::default().sleep(Duration::from_millis(20));
    drop(held);
    thaw.unwrap().join().unwrap().unwrap();
    assert_eq!(fs.fs.engine().gate().phase(), Phase::Open);
}
