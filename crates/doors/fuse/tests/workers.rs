//! Which worker receives, with requests that wait for each other and on an idle mount.

#![allow(clippy::unwrap_used)]

mod memfs;
mod mounted;

use kedge_base::HANG;
use kedge_base::wait::about_to_wait;
use kedge_fuse::FuseOptions;
use memfs::MemFs;
use mounted::{Mounted, both};
use parking_lot::{Condvar, Mutex};
use std::fs;
use std::sync::Arc;
use std::time::Duration;

/// A file system in which a lookup of `waits…` calls `before` and then waits for a lookup of
/// `comes`.
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

/// All workers but one serve requests that wait for another request. Returns the numbers of turns
/// passed on and of turns taken away.
fn overtake(options: &FuseOptions, before: fn()) -> (u64, u64) {
    let options = FuseOptions { workers: Some(4), ..options.clone() };
    let m = Mounted::with(waiting(before), &options);
    std::thread::scope(|scope| {
        for i in 0..3 {
            let path = m.path(&format!("waits{i}"));
            scope.spawn(move || assert!(!fs::exists(path).unwrap()));
        }
        // This request is sent when all three are being served, because it must find a worker too.
        while m.requests("LOOKUP") < 3 {
            kedge_base::pause(Duration::from_millis(1));
        }
        assert!(!fs::exists(m.path("comes")).unwrap());
    });
    (m.workers("passed"), m.workers("taken"))
}

#[test]
fn a_request_overtakes_those_that_say_that_they_wait() {
    for options in both() {
        let (passed, taken) = overtake(&options, about_to_wait);
        assert!(passed > 0 && passed + taken >= 3, "{passed} {taken}");
    }
}

/// The watcher detects a worker that waits without announcing it.
#[test]
fn a_request_overtakes_those_that_hang() {
    for options in both() {
        // On a busy machine the watcher may also take the turn of a worker that was merely not
        // scheduled.
        let (passed, taken) = overtake(&options, || {});
        assert_eq!(passed, 0);
        assert!(taken >= 3, "{taken}");
    }
}

/// Two workers suffice for requests that wait for each other, even if they share a channel.
#[test]
fn two_workers_suffice() {
    for options in both() {
        let options = FuseOptions { workers: Some(2), clone_channels: false, ..options };
        let m = Mounted::with(waiting(|| {}), &options);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(!fs::exists(m.path("waits")).unwrap()));
            while m.requests("LOOKUP") < 1 {
                kedge_base::pause(Duration::from_millis(1));
            }
            assert!(!fs::exists(m.path("comes")).unwrap());
        });
    }
}

/// On an idle mount no worker polls, and the watcher sleeps.
#[test]
fn an_idle_mount_does_nothing() {
    for options in both() {
        let m = Mounted::new(&options);
        for i in 0..500 {
            fs::write(m.path(&format!("f{i}")), "x").unwrap();
        }
        // A single request, because requests in close succession make a worker poll.
        let work = || {
            let workers = &m.state("system.kedgefs.stats")["fuse"]["workers"];
            ["polls", "sleeps", "ticks"].map(|name| workers[name].as_u64().unwrap()).iter().sum::<u64>()
        };
        // The pauses between requests are longer than any adaptive poll.
        for _ in 0..10 {
            kedge_base::pause(Duration::from_millis(20));
            work();
        }
        // Reading the counters twice causes some work, with the watcher's ticks. On a busy machine
        // a request may take many ticks, so the check is repeated.
        let is_idle = || {
            let before = work();
            kedge_base::pause(Duration::from_millis(300));
            work() - before < 20
        };
        assert!((0..HANG.as_millis() / 300).any(|_| is_idle()), "it never comes to rest");
    }
}
