//! The promises of a live crash test: no fsync that succeeded is lost, and no file that was open
//! before a crash can be used after it.
//!
//! There is no mount: the test calls the file system as the server of a mount does.

#![allow(clippy::unwrap_used)]

use kedge_base::errno::EIO;
use kedge_base::{HANG, SystemClock};
use kedge_crash::{MODELS, Model};
use kedge_crash_record::{Crash, Live, Lose};
use kedge_device::MemDevice;
use kedge_fuse::Ops;
use kedgefs::{FileSystem, FormatOptions, Ino, MountOptions, Owner, Result, WriteMode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};

/// The number of slots for numbers in a file. A later number replaces an older one in its slot.
const SLOTS: u64 = 1024;
const WRITERS: usize = 2;
/// The number of crashes in each model.
const CRASHES: u64 = 1000;

fn live(history_max: u64) -> Live {
    let device = Arc::new(MemDevice::new(64 << 20));
    let clock = Arc::new(SystemClock::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default()).unwrap();
    let fs = FileSystem::open(device, clock, MountOptions::default()).unwrap();
    Live::new(fs, history_max).unwrap()
}

/// Starts an fsync. Returns the receiver of its result.
fn fsync(live: &Live, ino: Ino) -> Receiver<Result<()>> {
    let (send, answer) = channel();
    // Sending fails only if the test no longer waits.
    live.fsync_async(ino, false, Box::new(move |result| drop(send.send(result))));
    answer
}

fn fsync_root(live: &Live, handle: u64) -> Receiver<Result<()>> {
    let (send, answer) = channel();
    live.fsync_opened(handle, Ino::ROOT, false, Box::new(move |result| drop(send.send(result))));
    answer
}

fn open_root(live: &Live) -> u64 {
    live.dir_handle(Ino::ROOT).unwrap().expect("a directory that is open has a number")
}

/// Makes or finds the file, and makes its name durable.
fn file(live: &Live, name: &[u8]) -> Result<Ino> {
    if let Ok(attr) = live.lookup(Ino::ROOT, name) {
        return Ok(attr.ino);
    }
    let root = live.dir_handle(Ino::ROOT)?.unwrap();
    let ino = live.create(Ino::ROOT, name, 0o644, Owner::default())?.ino;
    fsync_root(live, root).recv().unwrap()?;
    Ok(ino)
}

/// Repeats pwrite, fsync and a note. After an error it opens the file again, like a restarted
/// program.
fn write_and_note(live: &Live, name: &[u8], noted: &AtomicU64, stop: &AtomicBool) {
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let Ok(ino) = file(live, name) else { continue };
        let written = |number: u64| -> Result<()> {
            live.write_with(ino, number % SLOTS * 8, &number.to_le_bytes(), WriteMode::default())?;
            fsync(live, ino).recv().unwrap()
        };
        while !stop.load(Ordering::Relaxed) {
            if written(number + 1).is_err() {
                break;
            }
            number += 1;
            noted.store(number, Ordering::SeqCst);
        }
    }
}

/// Checks that each noted number, or a later number in its slot, is in the file.
fn check(live: &Live, name: &[u8], noted: u64, about: &str) {
    let oldest = noted.saturating_sub(SLOTS - 1).max(1);
    let mut bytes = vec![0; SLOTS as usize * 8];
    if noted > 0 {
        let ino = live.lookup(Ino::ROOT, name).unwrap_or_else(|e| panic!("{about}: the file: {e}")).ino;
        live.read_uncached(ino, 0, &mut bytes).unwrap();
    }
    for number in oldest..=noted {
        let at = (number % SLOTS * 8) as usize;
        let found = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert!(
            found >= number && found % SLOTS == number % SLOTS,
            "{about}: {number} of {noted} is {found}"
        );
    }
}

fn nothing_noted_is_missing(model: Model, crashes: u64) {
    let live = live(1 << 30);
    let noted: [AtomicU64; WRITERS] = Default::default();
    let stop = AtomicBool::new(false);
    let name = |writer: usize| format!("file{writer}").into_bytes();
    std::thread::scope(|scope| {
        // Stop the writers on drop, so that they also stop when a check fails.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);
        for (writer, noted) in noted.iter().enumerate() {
            let (live, stop) = (&live, &stop);
            scope.spawn(move || write_and_note(live, &name(writer), noted, stop));
        }
        for crash in 0..crashes {
            // Each crash waits until a writer has made progress.
            let sum = || noted.iter().map(|n| n.load(Ordering::SeqCst)).sum::<u64>();
            let before = sum();
            while sum() < before + 1 + crash % 3 {
                std::thread::yield_now();
            }
            let lose = if crash % 4 == 3 { Lose::Random(crash) } else { Lose::All };
            let told = live.crash(&Crash { model, lose }, &[]);
            assert_eq!((told.error, told.crashes), (None, crash + 1));
            for (writer, noted) in noted.iter().enumerate() {
                let about = format!("{}, crash {}, writer {writer}", model.name, told.crashes);
                check(&live, &name(writer), noted.load(Ordering::SeqCst), &about);
            }
        }
    });
}

#[test]
fn no_fsync_that_succeeded_is_lost_in_a_thousand_crashes_of_each_model() {
    let crashes = CRASHES * if std::env::var_os("KEDGE_LONG").is_some_and(|v| v == "1") { 10 } else { 1 };
    for model in MODELS {
        nothing_noted_is_missing(model, crashes);
    }
}

fn strict() -> Crash {
    Crash { model: Model::by_name("strict").unwrap(), lose: Lose::All }
}

#[test]
fn a_root_that_was_opened_before_a_crash_is_dead() {
    let live = live(1 << 30);
    let old = open_root(&live);
    assert!(fsync_root(&live, old).recv().unwrap().is_ok());
    live.create(Ino::ROOT, b"lost", 0o644, Owner::default()).unwrap();
    live.crash(&strict(), &[]);
    assert_eq!(fsync_root(&live, old).recv().unwrap().unwrap_err().errno(), EIO);
    let listed = |handle| live.readdir_opened(handle, Ino::ROOT, 0, &mut |_| true);
    assert_eq!(listed(old).unwrap_err().errno(), EIO);
    let new = open_root(&live);
    assert!(fsync_root(&live, new).recv().unwrap().is_ok());
    assert!(listed(new).is_ok());
}

/// A rule delays the fsync until after the crash.
#[test]
fn an_fsync_that_a_crash_overtakes_fails() {
    let live = live(1 << 30);
    let ino = live.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap().ino;
    live.add_rule("on=fsync,do=slow,time=50,count=0".parse().unwrap());
    let root = open_root(&live);
    let answers = [fsync(&live, ino), fsync_root(&live, root), fsync(&live, Ino::ROOT)];
    live.crash(&strict(), &[]);
    for answer in answers {
        assert_eq!(answer.recv().unwrap().unwrap_err().errno(), EIO);
    }
}

/// Calls dropped from the history count as durable, even for an fsync in progress.
#[test]
fn a_history_that_is_full_makes_no_fsync_fail() {
    let live = live(4096);
    let [f, g] = [b"f", b"g"].map(|n| live.create(Ino::ROOT, n, 0o644, Owner::default()).unwrap().ino);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                live.write_with(g, 0, &[1; 4096], WriteMode::default()).unwrap();
            }
        });
        let synced: Result<Vec<()>> = (0..200)
            .map(|n| {
                live.write_with(f, n * 8, &[2; 8], WriteMode::default())?;
                fsync(&live, f).recv_timeout(HANG).expect("an answer")
            })
            .collect();
        stop.store(true, Ordering::Relaxed);
        synced.unwrap();
    });
    assert!(live.crash(&strict(), &[]).forgotten > 0);
}
