use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread::scope;
use std::time::Duration;

const EIO: Error = Error::Io { op: "flush", offset: 0, len: 0, errno: libc::EIO };

fn errno(result: Result<()>) -> Option<i32> {
    match result {
        Ok(()) => None,
        Err(Error::Io { op: "flush", errno, .. }) => Some(errno),
        Err(e) => panic!("{e}"),
    }
}

/// A kernel that has dropped a page: it reports the error to the first flush, and only once.
struct Kernel(AtomicBool);

impl Kernel {
    fn flush(&self) -> Result<()> {
        if self.0.swap(false, SeqCst) { Err(EIO) } else { Ok(()) }
    }
}

#[test]
fn the_first_failure_is_final() {
    let (flushes, kernel) = (Flushes::default(), Kernel(AtomicBool::new(true)));
    flushes.check().unwrap();
    assert_eq!(errno(flushes.run(|| kernel.flush())), Some(libc::EIO));
    assert_eq!(errno(flushes.run(|| kernel.flush())), Some(libc::EIO));
    assert_eq!(errno(flushes.check()), Some(libc::EIO));
    flushes.fail(&Error::Io { op: "flush", offset: 0, len: 0, errno: libc::ENOSPC });
    assert_eq!(errno(flushes.check()), Some(libc::EIO), "the first error stays");
}

/// One thread gets the error from the kernel and sleeps before it can record the error. A second
/// thread flushes meanwhile. The kernel has nothing to report to the second thread.
#[test]
fn no_flush_succeeds_beside_a_flush_that_fails() {
    let (flushes, kernel) = (Flushes::default(), Kernel(AtomicBool::new(true)));
    let ((reported, is_reported), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel::<()>());
    scope(|threads| {
        let flushes = &flushes;
        let kernel = &kernel;
        let first = threads.spawn(move || {
            flushes.run(|| {
                let result = kernel.flush();
                reported.send(()).unwrap();
                may_go_on.recv().unwrap();
                result
            })
        });
        is_reported.recv().unwrap();
        let (ended, has_ended) = mpsc::channel();
        let second = threads.spawn(move || {
            let result = flushes.run(|| kernel.flush());
            ended.send(()).unwrap();
            result
        });
        // The second thread must wait. If it does not, it ends within this time.
        let early = has_ended.recv_timeout(Duration::from_millis(200)).is_ok();
        go_on.send(()).unwrap();
        assert_eq!(errno(first.join().unwrap()), Some(libc::EIO));
        assert_eq!(errno(second.join().unwrap()), Some(libc::EIO), "a false success; early: {early}");
    });
}

/// A failure that another path records (the reply to a flush of a batch) reaches the flush that
/// runs meanwhile.
#[test]
fn a_flush_fails_that_ends_after_a_recorded_failure() {
    let flushes = Flushes::default();
    let during = flushes.run(|| {
        flushes.fail(&EIO);
        Ok(())
    });
    assert_eq!(errno(during), Some(libc::EIO));
}

/// Each caller gets a flush that began after its call, and callers share flushes.
#[test]
fn waiting_callers_share_a_flush_that_begins_after_they_came() {
    const CALLERS: usize = 8;
    let (flushes, made, written) = (Flushes::default(), AtomicU64::new(0), AtomicU64::new(0));
    let covered = AtomicU64::new(0);
    let ((began, has_begun), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel::<()>());
    scope(|threads| {
        let (flushes, made, written, covered) = (&flushes, &made, &written, &covered);
        threads.spawn(move || {
            let first = flushes.run(|| {
                made.fetch_add(1, SeqCst);
                began.send(()).unwrap();
                may_go_on.recv().unwrap();
                Ok(())
            });
            first.unwrap();
        });
        has_begun.recv().unwrap();
        let (arrives, arrived) = mpsc::channel();
        for _ in 0..CALLERS {
            let arrives = arrives.clone();
            threads.spawn(move || {
                let mine = written.fetch_add(1, SeqCst) + 1;
                arrives.send(()).unwrap();
                let flush = || {
                    made.fetch_add(1, SeqCst);
                    covered.fetch_max(written.load(SeqCst), SeqCst);
                    Ok(())
                };
                flushes.run(flush).unwrap();
                assert!(covered.load(SeqCst) >= mine, "the write is covered");
            });
        }
        for _ in 0..CALLERS {
            arrived.recv().unwrap();
        }
        // Long enough for all callers to wait; a caller that does not wait yet makes one flush
        // more.
        kedge_base::pause(Duration::from_millis(100));
        go_on.send(()).unwrap();
    });
    let made = made.load(SeqCst);
    assert!((2..CALLERS as u64).contains(&made), "{made} flushes");
}

#[test]
fn a_flush_that_panics_leaves_nobody_waiting() {
    let flushes = Flushes::default();
    let panicked = flushes.run(|| panic!("a flush that panics, on purpose"));
    assert!(matches!(panicked, Err(Error::Shutdown(_))));
    flushes.run(|| Ok(())).unwrap();
}
