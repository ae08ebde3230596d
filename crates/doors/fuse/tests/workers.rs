//! Which worker receives: requests that wait for one another, and a mount that nobody uses.

#![allow(clippy::unwrap_used)]

mod memfs;
mod mounted;

use kedge_base::wait::about_to_wait;
use kedge_fuse::FuseOptions;
use memfs::MemFs;
use mounted::{Mounted, both};
use parking_lot::{Condvar, Mutex};
use std::fs;
use std::sync::Arc;
use std::time::Duration;

/// A file system whose lookups of `waits…` wait for one of `comes`, and what they do before.
fn waiting(before: fn()) -> MemFs {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let mut fs = MemFs::new();
    fs.on_lookup = Some(Arc::new(move |name| {
        let (open, opened) = &*gate;
        if name.starts_with(b"waits") {
            before();
            let mut open = open.lock();
            while !*open {
                opened.wait(&mut open);
            }
        } else if name == b"comes" {
            *open.lock() = true;
            opened.notify_all();
        }
    }));
    fs
}

/// As many requests wait for another one as there are workers but one. Answers the worker's
/// counters: turns passed on, turns taken away.
fn overtake(options: &FuseOptions, before: fn()) -> (u64, u64) {
    let options = FuseOptions { workers: Some(4), ..options.clone() };
    let m = Mounted::with(waiting(before), &options);
    std::thread::scope(|scope| {
        for i in 0..3 {
            let path = m.path(&format!("waits{i}"));
            scope.spawn(move || assert!(!fs::exists(path).unwrap()));
        }
        // Only when all three are being served: this one must find a worker, too.
        while m.requests("LOOKUP") < 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!fs::exists(m.path("comes")).unwrap());
    });
    (m.requests("passed"), m.requests("taken"))
}

#[test]
fn a_request_overtakes_those_that_say_that_they_wait() {
    for options in both() {
        let (passed, taken) = overtake(&options, about_to_wait);
        assert!(passed > 0 && passed + taken >= 3, "{passed} {taken}");
    }
}

/// Not every wait is known. A worker that just does not come back is noticed.
#[test]
fn a_request_overtakes_those_that_hang() {
    for options in both() {
        // A machine under load may make the watcher take the turn of a worker that only was not
        // running.
        let (passed, taken) = overtake(&options, || {});
        assert_eq!(passed, 0);
        assert!(taken >= 3, "{taken}");
    }
}

/// Two workers are enough for a request that waits for another one, also where they share a
/// channel.
#[test]
fn two_workers_suffice() {
    for options in both() {
        let options = FuseOptions { workers: Some(2), clone_channels: false, ..options };
        let m = Mounted::with(waiting(|| {}), &options);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(!fs::exists(m.path("waits")).unwrap()));
            while m.requests("LOOKUP") < 1 {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!fs::exists(m.path("comes")).unwrap());
        });
    }
}

/// A mount that nobody uses neither polls nor watches.
#[test]
fn an_idle_mount_does_nothing() {
    for options in both() {
        let m = Mounted::new(&options);
        for i in 0..500 {
            fs::write(m.path(&format!("f{i}")), "x").unwrap();
        }
        // One request, since requests that follow each other closely teach a worker to poll.
        let work = || {
            let stats = m.control("system.kedgefs.stats");
            ["polls", "sleeps", "ticks"].map(|name| mounted::number(&stats, name)).iter().sum::<u64>()
        };
        // The pauses between are longer than any patience.
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(20));
            work();
        }
        let before = work();
        std::thread::sleep(Duration::from_millis(300));
        let after = work();
        // The last of one look, the first two of the other, with the watcher's looks at each.
        assert!(after - before < 20, "{} in a third of a second", after - before);
    }
}
