#![allow(clippy::unwrap_used)]

use super::*;
use kedge_crash::Event;
use kedge_device::MemDevice;
use kedgefs::{FormatOptions, MountOptions};
use parking_lot::Mutex;

/// A recording in memory with a file and an fsync in progress.
struct Begun {
    log: Arc<Log>,
    ino: Ino,
    end: Done,
    answer: Arc<Mutex<Option<Result<()>>>>,
}

fn begun(of: impl Fn(Ino) -> Option<Ino>) -> Begun {
    let device = Arc::new(MemDevice::new(64 << 20));
    let clock = Arc::new(kedge_base::SystemClock::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default()).unwrap();
    let fs = FileSystem::open(device, clock, MountOptions::default()).unwrap();
    let log = Arc::new(Log::in_memory(Vec::new()));
    let recording = Recording::plain(fs, log.clone());
    let ino = recording.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap().ino;
    let answer = Arc::new(Mutex::new(None));
    let told = answer.clone();
    let end = recording.persisted(of(ino), false, Box::new(move |result| *told.lock() = Some(result)));
    Begun { log, ino, end, answer }
}

fn fsyncs(events: &[Event]) -> usize {
    events.iter().filter(|e| e.errno == 0 && matches!(e.call, Call::Fsync { .. } | Call::Sync { .. })).count()
}

/// An fsync succeeds exactly if its completion is in the log when power fails.
#[test]
fn success_is_what_the_log_has_when_power_fails() {
    for of in [Some, |_| None] {
        let Begun { log, end, answer, .. } = begun(of);
        end(Ok(()));
        assert!(answer.lock().take().unwrap().is_ok());
        assert_eq!(fsyncs(&log.cut()), 1);

        let Begun { log, end, answer, .. } = begun(of);
        assert_eq!(fsyncs(&log.cut()), 0);
        end(Ok(()));
        assert_eq!(answer.lock().take().unwrap().unwrap_err().errno(), kedge_base::errno::EIO);

        // All calls count as durable, so the fsync succeeds.
        let Begun { log, end, answer, .. } = begun(of);
        log.settle();
        end(Ok(()));
        assert!(answer.lock().take().unwrap().is_ok());
    }
}

#[test]
fn an_fsync_does_not_promise_pages_that_another_one_dropped_meanwhile() {
    for of in [Some, |_| None] {
        let Begun { log, ino, end, answer } = begun(of);
        log.revise(ino.0, |_| {});
        end(Ok(()));
        assert!(answer.lock().take().unwrap().is_err());
        assert_eq!(fsyncs(&log.cut()), 0);
    }
    let Begun { log, ino, end, answer } = begun(Some);
    log.revise(ino.0 + 1, |_| {});
    end(Ok(()));
    assert!(answer.lock().take().unwrap().is_ok(), "of another file");
}

#[test]
fn a_file_without_a_name_has_the_group_of_a_set_group_id_directory() {
    let Begun { log, .. } = begun(Some);
    let device = Arc::new(MemDevice::new(64 << 20));
    let clock = Arc::new(kedge_base::SystemClock::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default()).unwrap();
    let fs = FileSystem::open(device, clock, MountOptions::default()).unwrap();
    let recording = Recording::plain(fs, log.clone());
    let owner = |gid| Owner { uid: 7, gid };
    let dir = recording.mkdir(Ino::ROOT, b"d", 0o2775, owner(100)).unwrap();
    let made = recording.tmpfile(dir.ino, 0o644, owner(200)).unwrap();
    assert_eq!((made.uid, made.gid), (7, 100));
    let recorded = log.cut().into_iter().rev().find_map(|event| match event.call {
        Call::Tmpfile { ino, uid, gid, .. } => Some((ino, uid, gid)),
        _ => None,
    });
    assert_eq!(recorded, Some((made.ino.0, 7, 100)));
}
