//! The log's operations one at a time, and its behaviour after failures.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use common::{MemDevice, Setup};
use kedge_base::{BLOCK_SIZE, Error, HANG, Lsn, Result};
use kedge_log::{ForceCause, Log, RECORD_MAX, RECORD_OVERHEAD, ReserveClass, SpacePressure, StopReason};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const BLOCK: u64 = BLOCK_SIZE as u64;
const MIB: usize = 256;

fn setup(blocks: usize) -> Setup {
    Setup::new(MemDevice::new(blocks, 1))
}

fn append(log: &Log, record: &[u8]) -> kedge_log::RecordLsn {
    let mut reservation = log.reserve(record.len() as u64, ReserveClass::Normal).unwrap();
    log.append(&mut reservation, record)
}

fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> std::thread::JoinHandle<T> {
    kedge_base::spawn_named("test", body).unwrap()
}

const POLL: Duration = Duration::from_millis(2);

/// Polls until `what` returns true. The bound only turns a hang into a failure.
#[track_caller]
fn until(what: impl Fn() -> bool) {
    for _ in 0..HANG.as_millis() / POLL.as_millis() {
        if what() {
            return;
        }
        std::thread::sleep(POLL);
    }
    panic!("condition not reached");
}

#[test]
fn records_lie_where_append_says_and_come_back_in_order() {
    let s = setup(2 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    let a = append(&log, b"first");
    let b = append(&log, b"second record");
    assert_eq!((a.start, a.end, a.write_start), (Lsn(88), Lsn(88 + 4 + 5), Lsn(0)));
    assert_eq!((b.start, b.end), (a.end, Lsn(a.end.0 + 4 + 13)));
    assert_eq!((log.head_lsn(), log.durable_lsn()), (b.end, Lsn(0)));
    log.force(a.end, ForceCause::Fsync).unwrap();
    assert_eq!(
        (log.durable_lsn(), log.head_lsn()),
        (Lsn(BLOCK), Lsn(BLOCK)),
        "a force takes the whole batch"
    );
    let c = append(&log, &[9; 5000]);
    assert_eq!(c.write_start, Lsn(BLOCK));
    log.force(Lsn(u64::MAX), ForceCause::Sync).unwrap();
    assert_eq!(log.durable_lsn(), Lsn(3 * BLOCK), "an LSN beyond the head means it");

    let (end, found) = s.scan(s.device.image(), Lsn(0)).unwrap();
    let want = [(a, b"first".to_vec()), (b, b"second record".to_vec()), (c, vec![9; 5000])];
    assert_eq!(found, want);
    assert_eq!((end.head, end.writes, end.records, end.bytes), (Lsn(3 * BLOCK), 2, 3, 5 + 13 + 5000));
    assert_eq!(end.stop, StopReason::NoWrite);
}

/// Counts the writes that jbd2 would count as transactions, and the requested ones among them.
#[test]
fn commits_are_the_writes_that_somebody_asked_for() {
    let s = setup(4 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    let counts =
        || (log.stats().writes.get(), log.stats().commits.get(), log.stats().commits_requested.get());
    let mut wanted = (0, 0, 0);
    for cause in ForceCause::ALL {
        let at = append(&log, b"x");
        log.force(at.end, cause).unwrap();
        log.force(at.end, ForceCause::Fsync).unwrap(); // durable already
        wanted.0 += 1;
        wanted.1 += u64::from(!matches!(cause, ForceCause::Space | ForceCause::Checkpoint));
        wanted.2 +=
            u64::from(!matches!(cause, ForceCause::Space | ForceCause::Checkpoint | ForceCause::CommitTimer));
        assert_eq!(counts(), wanted, "{cause:?}");
    }
    // Full batches are written without a request.
    for _ in 0..2 {
        append(&log, &[7; RECORD_MAX / 2 + 1]);
    }
    until(|| log.stats().writes.get() == wanted.0 + 1);
    assert_eq!(counts(), (wanted.0 + 1, wanted.1, wanted.2));
}

#[test]
fn a_force_costs_one_write_and_a_durable_target_none() {
    let s = setup(2 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    for i in 1..=10 {
        let at = append(&log, b"x");
        log.force(at.end, ForceCause::Fsync).unwrap();
        log.force(at.end, ForceCause::Fdatasync).unwrap();
        assert_eq!(s.device.writes(), i);
    }
    let stats = log.stats();
    assert_eq!((stats.forces(ForceCause::Fsync), stats.forces(ForceCause::Fdatasync)), (10, 10));
    assert_eq!((stats.forces_total(), stats.forces_idle.get(), stats.writes.get()), (20, 10, 10));
    assert_eq!((stats.records.get(), stats.bytes_appended.get()), (10, 10));
    assert_eq!((stats.bytes_written.get(), stats.barriers.get()), (10 * BLOCK, 10));
    assert_eq!(stats.group_forces.snapshot().sum, 10);
    assert_eq!(s.barrier.calls.load(SeqCst), 10);
}

#[test]
fn padding_is_zero_in_reused_buffers_too() {
    let s = setup(2 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    for len in [20_000, 10, 9000, 4012, 4013, 1] {
        let at = append(&log, &vec![0xee; len]);
        log.force(at.end, ForceCause::Fsync).unwrap();
        let image = s.device.image();
        let place = |lsn: Lsn| (common::RING_START * BLOCK + lsn.0) as usize;
        let padding = &image[place(at.end)..place(log.durable_lsn())];
        assert!(padding.len() < BLOCK_SIZE && padding.iter().all(|&b| b == 0), "after {len} bytes");
    }
}

#[test]
fn seal_cuts_between_records() {
    let s = setup(2 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    assert_eq!(log.seal(), Lsn(0), "an empty batch is not sealed");
    append(&log, b"before");
    let cut = log.seal();
    assert_eq!((cut, log.seal()), (Lsn(BLOCK), Lsn(BLOCK)));
    let after = append(&log, b"after");
    assert_eq!(after.write_start, cut);
    log.force(cut, ForceCause::Checkpoint).unwrap();
    assert!(log.durable_lsn() >= cut && log.durable_lsn() < after.end);
}

#[test]
fn full_batches_go_out_unasked() {
    let s = setup(20 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    let record = vec![3; 100_000];
    let mut last = append(&log, &record);
    while last.write_start < Lsn(4 * MIB as u64 * BLOCK / 2) {
        last = append(&log, &record);
    }
    until(|| log.durable_lsn() >= last.write_start);
    assert!(log.durable_lsn() < last.end, "the open batch stays");
    log.force(last.end, ForceCause::Sync).unwrap();
    let (end, found) = s.scan(s.device.image(), Lsn(0)).unwrap();
    assert_eq!(end.head, log.durable_lsn());
    assert_eq!(found.last().unwrap().0, last);
}

#[test]
fn the_longest_record_fits_and_wraps_around_the_ring() {
    let s = setup(3 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    let record: Vec<u8> = (0..RECORD_MAX).map(|i| i as u8).collect();
    for _ in 0..20 {
        append(&log, b"small");
        let at = append(&log, &record);
        log.force(at.end, ForceCause::Sync).unwrap();
        let (_, found) = s.scan(s.device.image(), log.tail_lsn()).unwrap();
        assert_eq!(found.last().unwrap(), &(at, record.clone()));
        log.advance_tail(log.durable_lsn());
        let (end, found) = s.scan(s.device.image(), log.tail_lsn()).unwrap();
        assert!(found.is_empty() && end.head == log.tail_lsn());
    }
}

#[test]
fn async_forces_are_answered_from_a_writer_thread() {
    let s = setup(2 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    let (sender, receiver) = mpsc::channel();
    let me = std::thread::current().id();
    let mut ends = Vec::new();
    for i in 0..50u64 {
        let at = append(&log, &i.to_le_bytes());
        let sender = sender.clone();
        let done = move |r: Result<()>| sender.send((i, r.is_ok(), std::thread::current().id())).unwrap();
        log.force_async(at.end, ForceCause::Fsync, Box::new(done));
        ends.push(at.end);
    }
    let mut seen: Vec<u64> = (0..50)
        .map(|_| receiver.recv().unwrap())
        .map(|(i, ok, _)| {
            assert!(ok);
            i
        })
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..50).collect::<Vec<_>>());
    assert!(log.durable_lsn() >= *ends.last().unwrap());
    // The target is durable, so the callback runs at once, in this thread.
    let done = move |r: Result<()>| sender.send((99, r.is_ok(), std::thread::current().id())).unwrap();
    log.force_async(ends[0], ForceCause::Fsync, Box::new(done));
    assert_eq!(receiver.try_recv().unwrap(), (99, true, me));
}

/// The writer thread that wrote also delivers, so an asynchronous force wakes only one thread.
#[test]
fn an_async_force_wakes_one_writer_thread() {
    const FORCES: u64 = 200;
    let s = setup(2 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    let (sender, receiver) = mpsc::channel();
    for i in 0..FORCES {
        let at = append(&log, &i.to_le_bytes());
        let sender = sender.clone();
        log.force_async(at.end, ForceCause::Fsync, Box::new(move |r| sender.send(r).unwrap()));
        receiver.recv().unwrap().unwrap();
    }
    // Allowed in addition: threads that start, and a thread that was woken before it slept.
    let wakes = log.stats().writer_wakes.get();
    assert!(wakes <= FORCES + FORCES / 4, "{wakes} wake-ups for {FORCES} forces");
}

#[test]
fn stop_answers_what_was_asked_and_refuses_the_rest() {
    let s = setup(2 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    let (sender, receiver) = mpsc::channel();
    let at = append(&log, b"x");
    for _ in 0..3 {
        let sender = sender.clone();
        log.force_async(at.end, ForceCause::Close, Box::new(move |r| sender.send(r.is_ok()).unwrap()));
    }
    log.stop();
    assert_eq!((0..3).map(|_| receiver.try_recv().unwrap()).collect::<Vec<_>>(), [true; 3]);
    assert!(matches!(log.reserve(1, ReserveClass::Normal), Err(Error::Shutdown(_))));
    log.force_async(Lsn(u64::MAX), ForceCause::Close, Box::new(move |r| sender.send(r.is_ok()).unwrap()));
    assert!(!receiver.try_recv().unwrap());
    log.stop();
}

#[test]
fn a_callback_may_drop_the_last_handle() {
    let s = setup(2 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    let at = append(&log, b"x");
    let (sender, receiver) = mpsc::channel();
    let last = log.clone();
    let (go, wait) = mpsc::channel::<()>();
    let done = move |r: Result<()>| {
        wait.recv().unwrap();
        drop(last);
        sender.send(r.is_ok()).unwrap();
    };
    log.force_async(at.end, ForceCause::Close, Box::new(done));
    drop(log);
    go.send(()).unwrap();
    assert!(receiver.recv_timeout(HANG).unwrap());
}

#[test]
fn reservations_never_let_the_ring_overflow() {
    let s = setup(MIB + 3);
    let log = s.open(Lsn(0), Lsn(0));
    let ring = log.space().ring_bytes;
    let mut held = Vec::new();
    while let Some(reservation) = log.try_reserve(10, ReserveClass::Normal).unwrap() {
        held.push(reservation);
    }
    let space = log.space();
    assert_eq!(space.reserved_bytes, held.len() as u64 * (10 + RECORD_OVERHEAD));
    assert!(log.free_bytes() < 10 + RECORD_OVERHEAD, "reserved bytes are not free");
    assert!(space.reserved_bytes + (10 + RECORD_OVERHEAD) > ring - ring / 8);
    assert!(
        log.try_reserve(10, ReserveClass::Reclaim).unwrap().is_some(),
        "the emergency reserve is for reclaim"
    );
    // The worst case is a log write for every record.
    let records = held.len() as u64;
    for mut reservation in held {
        let at = log.append(&mut reservation, &[1; 10]);
        log.force(at.end, ForceCause::Fsync).unwrap();
    }
    let space = log.space();
    assert_eq!((space.reserved_bytes, space.used_bytes), (0, records * BLOCK));
    assert!(space.used_bytes <= ring);
    log.advance_tail(log.durable_lsn());
    assert_eq!((log.space().used_bytes, log.space().free_percent), (0, 100));
    assert_eq!(log.free_bytes(), log.free_bytes_max());
    log.promise(1000);
    drop(log.reserve(10, ReserveClass::Normal).unwrap());
    assert!(log.free_bytes() <= log.free_bytes_max() - 1000, "promised bytes are not free");
    log.promise(-1000);
}

#[test]
fn a_part_of_the_ring_is_used_as_if_it_were_all() {
    const USED_MAX: u64 = 2 << 20;
    let mut s = setup(8 * MIB + 3);
    s.use_bytes_max = USED_MAX;
    let log = s.open(Lsn(0), Lsn(0));
    assert_eq!(log.free_bytes_max(), USED_MAX - USED_MAX / 8);
    assert!(log.reserve(USED_MAX, ReserveClass::Normal).is_err(), "it would wait forever");
    let mut appended = 0;
    while appended < 2 * log.space().ring_bytes {
        let Some(mut reservation) = log.try_reserve(100_000, ReserveClass::Normal).unwrap() else {
            log.advance_tail(log.durable_lsn());
            continue;
        };
        let at = log.append(&mut reservation, &[1; 100_000]);
        log.force(at.end, ForceCause::Fsync).unwrap();
        appended += 100_000;
        assert!(log.space().used_bytes <= USED_MAX, "{:?}", log.space());
    }
    assert_eq!(log.space().ring_bytes, 8 << 20);
}

#[test]
fn a_reservation_for_several_records_counts_the_overhead_of_each() {
    let s = setup(2 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    let mut reservation = log.reserve(30 + 2 * RECORD_OVERHEAD, ReserveClass::Normal).unwrap();
    for _ in 0..3 {
        assert!(reservation.bytes_left() >= 10);
        let at = log.append(&mut reservation, &[1; 10]);
        log.force(at.end, ForceCause::Fsync).unwrap();
    }
    assert_eq!(reservation.bytes_left(), 0);
    assert_eq!(log.space().reserved_bytes, 0);
}

#[test]
fn the_last_record_gives_the_rest_of_its_reservation_back() {
    let s = setup(2 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    let max = log.free_bytes_max() - RECORD_OVERHEAD;
    let mut reservation = log.reserve(max, ReserveClass::Normal).unwrap();
    let waiting = {
        let log = log.clone();
        spawn(move || log.reserve(10, ReserveClass::Normal).map(drop))
    };
    until(|| log.has_waiters());
    log.append(&mut reservation, &[1; 10]);
    assert_eq!(log.space().reserved_bytes, max - 10, "the first record's charge alone");
    log.append_as(&mut reservation, &[1; 10], true, true);
    waiting.join().unwrap().unwrap(); // while we still have it
    assert_eq!((reservation.bytes_left(), log.space().reserved_bytes), (0, 0));
    drop(reservation);
    assert_eq!(log.space().reserved_bytes, 0, "once");
}

#[test]
#[should_panic(expected = "exceeds its reservation")]
fn a_record_beyond_its_reservation_is_refused() {
    let log = setup(2 * MIB).open(Lsn(0), Lsn(0));
    let mut reservation = log.reserve(10, ReserveClass::Normal).unwrap();
    log.append(&mut reservation, &[1; 11]);
}

#[test]
#[should_panic(expected = "middle of a log write")]
fn a_tail_within_a_write_is_refused() {
    let log = setup(2 * MIB).open(Lsn(0), Lsn(0));
    let at = append(&log, &[1; 9000]);
    log.force(at.end, ForceCause::Fsync).unwrap();
    log.advance_tail(Lsn(BLOCK));
}

#[test]
fn what_can_never_fit_is_too_large() {
    let log = setup(MIB + 3).open(Lsn(0), Lsn(0));
    let Err(Error::TooLarge { need, max }) = log.reserve(1 << 40, ReserveClass::Normal) else { panic!() };
    assert_eq!(need, 1 << 40);
    assert!(log.try_reserve(max, ReserveClass::Normal).unwrap().is_some());
    assert!(matches!(log.try_reserve(max + 1, ReserveClass::Normal), Err(Error::TooLarge { .. })));
    assert!(log.try_reserve(max + 1, ReserveClass::Reclaim).unwrap().is_some());
}

#[test]
fn promises_hold_space_back() {
    let log = setup(MIB + 3).open(Lsn(0), Lsn(0));
    let Err(Error::TooLarge { max, .. }) = log.reserve(1 << 40, ReserveClass::Normal) else { panic!() };
    log.promise(1000);
    assert!(log.try_reserve(max, ReserveClass::Normal).unwrap().is_none());
    assert!(log.try_reserve(max - 1000, ReserveClass::Normal).unwrap().is_some());
    assert_eq!(log.space().promised_bytes, 1000);
    log.promise(-1000);
    assert!(log.try_reserve(max, ReserveClass::Normal).unwrap().is_some());
}

struct Checkpointer {
    log: Arc<Log>,
    asked: AtomicU64,
}

impl SpacePressure for Checkpointer {
    fn need_space(&self) {
        self.asked.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_waiting_reservation_asks_for_space_and_wakes_when_the_tail_moves() {
    let log = setup(MIB + 3).open(Lsn(0), Lsn(0));
    let pressure = Arc::new(Checkpointer { log: log.clone(), asked: AtomicU64::new(0) });
    let weak: std::sync::Weak<Checkpointer> = Arc::downgrade(&pressure);
    log.set_pressure(weak);
    let record = vec![1; 200_000];
    while let Some(mut r) = log.try_reserve(record.len() as u64, ReserveClass::Normal).unwrap() {
        log.append(&mut r, &record);
    }
    let waiter = {
        let log = log.clone();
        spawn(move || log.reserve(600_000, ReserveClass::Normal).map(|r| r.bytes_left()))
    };
    until(|| pressure.asked.load(SeqCst) > 0);
    assert!(
        log.try_reserve(1, ReserveClass::Normal).unwrap().is_none(),
        "a small one does not overtake a waiting large one"
    );
    assert!(log.try_reserve(1, ReserveClass::Reclaim).unwrap().is_some(), "reclaim does");
    let cut = pressure.log.seal();
    pressure.log.force(cut, ForceCause::Space).unwrap();
    pressure.log.advance_tail(cut);
    assert_eq!(waiter.join().unwrap().unwrap(), 600_000);
    assert_eq!(log.stats().space_stalls.snapshot().count, 1);
}

/// The set of threads that have requested space.
struct Asking(kedge_base::lock::Mutex<std::collections::HashSet<std::thread::ThreadId>>);

impl SpacePressure for Asking {
    fn need_space(&self) {
        self.0.lock().insert(std::thread::current().id());
    }
}

#[test]
fn waiting_reservations_are_served_in_order() {
    let log = setup(MIB + 3).open(Lsn(0), Lsn(0));
    let Err(Error::TooLarge { max, .. }) = log.reserve(1 << 40, ReserveClass::Normal) else { panic!() };
    let all = log.reserve(max, ReserveClass::Normal).unwrap();
    let asking =
        Arc::new(Asking(kedge_base::lock::Mutex::new(kedge_base::lock::Rank::Leaf, Default::default())));
    let weak: std::sync::Weak<Asking> = Arc::downgrade(&asking);
    log.set_pressure(weak);
    let order = Arc::new(kedge_base::lock::Mutex::new(kedge_base::lock::Rank::Leaf, Vec::new()));
    let mut threads = Vec::new();
    for i in 0..6u64 {
        let (thread_log, order) = (log.clone(), order.clone());
        threads.push(spawn(move || {
            // Each reservation takes more than half of the log, so only one can be held at a time.
            let r = thread_log.reserve(max / 2 + 10_000 * (i % 2), ReserveClass::Normal).unwrap();
            order.lock().push(i);
            drop(r);
        }));
        // Each thread requests space only once it is queued, so the next thread is queued after it.
        until(|| asking.0.lock().len() as u64 == i + 1);
    }
    drop(all);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(*order.lock(), (0..6).collect::<Vec<_>>());
    assert_eq!(log.space().reserved_bytes, 0);
}

/// Reservations that fit take no lock. A reservation that must wait may be enqueued at the same
/// time as another thread returns bytes without the lock.
#[test]
fn each_reservation_of_many_threads_is_granted() {
    const THREADS: u64 = 6;
    const EACH: u64 = 3_000;
    let s = setup(MIB + 3);
    let log = s.open(Lsn(0), Lsn(0));
    let (ended, ends) = mpsc::channel();
    for thread in 0..THREADS {
        let (log, ended) = (log.clone(), ended.clone());
        spawn(move || {
            for i in 0..EACH {
                let part = 2 + (i * THREADS + thread) % 3;
                let class = if i % 5 == 0 { ReserveClass::Reclaim } else { ReserveClass::Normal };
                let mut reservation = log.reserve(log.free_bytes_max() * 9 / (10 * part), class).unwrap();
                if i % 500 == 0 {
                    log.append_as(&mut reservation, &[1; 100], true, true);
                }
            }
            ended.send(()).unwrap();
        });
    }
    (0..THREADS).for_each(|_| ends.recv_timeout(HANG).expect("no thread waits for ever"));
    let space = log.space();
    assert_eq!((space.reserved_bytes, log.stats().records.get()), (0, THREADS * EACH / 500));
    assert_eq!(log.free_bytes(), log.free_bytes_max() - space.used_bytes);
    assert!(space.reserved_bytes_max <= space.ring_bytes && space.reserved_bytes_max > 0, "{space:?}");
}

#[test]
fn reservations_wait_for_staged_batches_not_for_ever() {
    let device = MemDevice::with_latency(40 * MIB, 1, Duration::from_millis(5));
    let mut s = Setup::new(device);
    s.staged_bytes_max = 1 << 20;
    s.in_flight_max = 2;
    let log = s.open(Lsn(0), Lsn(0));
    let record = vec![7; 200_000];
    for _ in 0..100 {
        append(&log, &record);
        let unwritten = log.head_lsn().0 - log.durable_lsn().0;
        assert!(unwritten <= (4 << 20), "{unwritten} bytes staged");
    }
    assert!(log.stats().staged_stalls.snapshot().count > 0);
    assert_eq!(log.stats().space_stalls.snapshot().count, 0);
    log.force(log.head_lsn(), ForceCause::Sync).unwrap();
    assert!(s.device.in_flight_max() <= 2);
}

#[test]
fn many_threads_share_writes() {
    let device = MemDevice::with_latency(40 * MIB, 1, Duration::from_micros(500));
    let s = Setup::new(device);
    let log = s.open(Lsn(0), Lsn(0));
    let threads: Vec<_> = (0..16u64)
        .map(|t| {
            let log = log.clone();
            spawn(move || {
                for i in 0..50u64 {
                    let at = append(&log, &[t, i].map(u64::to_le_bytes).concat());
                    log.force(at.end, ForceCause::Fsync).unwrap();
                    assert!(log.durable_lsn() >= at.end);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let stats = log.stats();
    assert_eq!(stats.forces(ForceCause::Fsync), 800);
    assert!(stats.writes.get() < 600, "{} writes for 800 forces", stats.writes.get());
    assert!(s.device.in_flight_max() >= 2 && s.device.in_flight_max() <= 4);
    let (end, found) = s.scan(s.device.image(), Lsn(0)).unwrap();
    assert_eq!((end.records, found.len(), end.writes), (800, 800, stats.writes.get()));
}

/// Releases blocked writes when dropped, so that a failing test does not leave the log's threads in
/// a blocked write forever.
struct Release(Arc<MemDevice>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.release();
    }
}

#[test]
fn writes_complete_in_any_order_and_are_acknowledged_in_lsn_order() {
    let s = setup(4 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    s.device.hold_write(0);
    let _release = Release(s.device.clone());
    let (sender, receiver) = mpsc::channel();
    let force = |i: u32| {
        let at = append(&log, &i.to_le_bytes());
        let sender = sender.clone();
        log.force_async(at.end, ForceCause::Fsync, Box::new(move |r| sender.send((i, r.is_ok())).unwrap()));
    };
    force(0);
    until(|| s.device.writes() == 1);
    // The blocked write leaves three slots. Later writes that complete do not free their slots,
    // however many forces arrive.
    for i in 1..40 {
        force(i);
        // A writer thread that starts late would complete several forces with one write.
        until(|| s.device.writes() as u32 == (i + 1).min(4));
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((s.device.writes(), log.durable_lsn()), (4, Lsn(0)));
    assert!(receiver.try_recv().is_err(), "the durable prefix has no gap");
    let (end, found) = s.scan(s.device.image(), Lsn(0)).unwrap();
    assert_eq!((end.head, found.len()), (Lsn(0), 0), "the scan finds no lost write");
    s.device.release();
    let mut answered: Vec<_> = (0..40).map(|_| receiver.recv().unwrap()).collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..40).map(|i| (i, true)).collect::<Vec<_>>());
    assert_eq!(s.scan(s.device.image(), Lsn(0)).unwrap().1.len(), 40);
}

/// A barrier that appends a new record at each call; no barrier has covered that record yet.
struct Meddler {
    device: Arc<MemDevice>,
    log: std::sync::OnceLock<std::sync::Weak<Log>>,
    late: kedge_base::lock::Mutex<Vec<kedge_log::RecordLsn>>,
}

impl kedge_log::Barrier for Meddler {
    fn barrier(&self) -> Result<()> {
        let log = self.log.get().unwrap().upgrade().unwrap();
        let mut late = self.late.lock();
        assert_eq!(self.device.writes(), late.len() as u64, "a barrier before each write");
        let mut reservation = log.try_reserve(9, ReserveClass::Normal)?.expect("there is room");
        late.push(log.append(&mut reservation, b"uncovered"));
        Ok(())
    }

    fn settle(&self) -> Result<bool> {
        self.barrier().map(|()| false)
    }

    fn flush_after(&self) -> Result<()> {
        unreachable!("nothing waits for a flush")
    }
}

#[test]
fn no_record_is_written_without_a_barrier_after_its_append() {
    let s = setup(4 * MIB);
    let rank = kedge_base::lock::Rank::InodeMeta;
    let meddler = Arc::new(Meddler {
        device: s.device.clone(),
        log: std::sync::OnceLock::new(),
        late: kedge_base::lock::Mutex::new(rank, Vec::new()),
    });
    let log = s.open_with(meddler.clone(), Lsn(0), Lsn(0));
    meddler.log.set(Arc::downgrade(&log)).unwrap();
    for _ in 0..10 {
        let at = append(&log, b"covered");
        log.force(at.end, ForceCause::Fsync).unwrap();
        let uncovered = *meddler.late.lock().last().unwrap();
        assert!(uncovered.start >= log.durable_lsn(), "{uncovered:?}");
    }
}

#[test]
fn a_failed_write_latches_shutdown_and_wakes_everyone() {
    let device = MemDevice::with_latency(MIB + 3, 1, Duration::from_millis(20));
    let s = Setup::new(device);
    let log = s.open(Lsn(0), Lsn(0));
    append(&log, b"fine");
    log.force(log.head_lsn(), ForceCause::Fsync).unwrap();
    let mut early = log.reserve(100, ReserveClass::Normal).unwrap();
    let filler = log.reserve(800_000, ReserveClass::Normal).unwrap();
    let stuck = {
        let log = log.clone();
        spawn(move || log.reserve(500_000, ReserveClass::Normal).map(drop))
    };
    // Eight forces, more than there are slots: leaders, waiting threads and a callback.
    s.device.fail_write(0);
    let (sender, receiver) = mpsc::channel();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let log = log.clone();
            spawn(move || {
                let mut r = log.try_reserve(10, ReserveClass::Reclaim)?.expect("there is room");
                let at = log.append(&mut r, &[1; 10]);
                log.force(at.end, ForceCause::Fsync)
            })
        })
        .collect();
    let at = log.append(&mut early, &[2; 100]);
    log.force_async(at.end, ForceCause::Fsync, Box::new(move |r| sender.send(r).unwrap()));
    // The leader and the forces of its write fail with the device's error. Later calls fail with
    // the shutdown.
    let mut errors: Vec<Error> = threads.into_iter().map(|t| t.join().unwrap().unwrap_err()).collect();
    errors.push(receiver.recv().unwrap().unwrap_err());
    assert!(errors.iter().any(|e| matches!(e, Error::Io { .. })), "{errors:?}");
    assert!(errors.iter().all(|e| matches!(e, Error::Io { .. } | Error::Shutdown(_))), "{errors:?}");
    assert!(matches!(stuck.join().unwrap(), Err(Error::Shutdown(_))));
    assert!(matches!(log.shutdown_reason(), Some(Error::Io { .. })));

    // Afterwards every call fails without hanging, and nothing is written.
    let writes = s.device.writes();
    assert!(matches!(log.force(Lsn(0), ForceCause::Fsync), Err(Error::Shutdown(_))));
    assert!(matches!(log.reserve(1, ReserveClass::Reclaim), Err(Error::Shutdown(_))));
    assert!(matches!(log.try_reserve(1, ReserveClass::Normal), Err(Error::Shutdown(_))));
    let mut filler = filler;
    log.append(&mut filler, &[3; 700_000]);
    log.seal();
    assert!(log.force(log.head_lsn(), ForceCause::Sync).is_err());
    log.stop();
    assert_eq!(s.device.writes(), writes);
}

#[test]
fn a_failed_barrier_is_a_failed_write() {
    let s = setup(2 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    let at = append(&log, b"x");
    s.barrier.fail.store(true, SeqCst);
    assert!(matches!(log.force(at.end, ForceCause::Fsync), Err(Error::Io { op: "flush", .. })));
    s.barrier.fail.store(false, SeqCst);
    assert!(matches!(log.force(at.end, ForceCause::Fsync), Err(Error::Shutdown(_))));
    assert_eq!(s.device.writes(), 0);
}

/// Records that refer to no data share one flush with data that waits for one. If another record is
/// in the batch, the data is flushed first.
#[test]
fn a_write_whose_records_refer_to_nothing_shares_its_flush() {
    let s = setup(2 * MIB);
    s.barrier.device.set(s.device.clone()).ok().unwrap();
    let log = s.open(Lsn(0), Lsn(0));
    let append = |refers| {
        let mut reservation = log.reserve(10, ReserveClass::Normal).unwrap();
        log.append_as(&mut reservation, b"0123456789", true, refers)
    };
    let counts =
        || (s.device.flushes(), s.barrier.flushes_after.load(SeqCst), log.stats().flushes_shared.get());
    // Nothing waits: a write with FUA.
    log.force(append(false).end, ForceCause::Fsync).unwrap();
    assert_eq!(counts(), (0, 0, 0));
    for (records, shared) in [(&[false][..], 1), (&[false, true], 1), (&[true], 1), (&[false, false], 2)] {
        s.barrier.waits.store(true, SeqCst);
        let last = records.iter().map(|refers| append(*refers)).reduce(|_, last| last).unwrap();
        log.force(last.end, ForceCause::Fsync).unwrap();
        assert_eq!(counts(), (shared, shared, shared), "{records:?}");
        assert!(!s.barrier.waits.load(SeqCst), "{records:?}");
    }
    // Durable without a flush of its own.
    s.device.crash();
    assert_eq!(s.scan(s.device.image(), Lsn(0)).unwrap().1.len(), 7);
}

#[test]
fn a_failed_flush_after_a_write_shuts_the_log_down() {
    let s = setup(2 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    let mut reservation = log.reserve(10, ReserveClass::Normal).unwrap();
    let at = log.append_as(&mut reservation, b"x", true, false);
    s.barrier.waits.store(true, SeqCst);
    s.barrier.fail.store(true, SeqCst);
    assert!(matches!(log.force(at.end, ForceCause::Fsync), Err(Error::Io { op: "flush", .. })));
    s.barrier.fail.store(false, SeqCst);
    assert!(matches!(log.force(at.end, ForceCause::Fsync), Err(Error::Shutdown(_))));
    assert_eq!((s.device.writes(), log.durable_lsn()), (1, Lsn(0)));
}

/// A barrier that shuts its log down, as a thread does that cannot apply its appended record.
struct Revoking(parking_lot::Mutex<std::sync::Weak<Log>>);

impl kedge_log::Barrier for Revoking {
    fn barrier(&self) -> Result<()> {
        if let Some(log) = self.0.lock().upgrade() {
            log.shutdown(&Error::invalid("revoked"));
        }
        Ok(())
    }

    fn settle(&self) -> Result<bool> {
        self.barrier().map(|()| false)
    }

    fn flush_after(&self) -> Result<()> {
        unreachable!("nothing waits for a flush")
    }
}

#[test]
fn what_is_revoked_before_the_barrier_returns_is_not_written() {
    let s = setup(2 * MIB);
    let barrier = Arc::new(Revoking(parking_lot::Mutex::new(std::sync::Weak::new())));
    let log = s.open_with(barrier.clone(), Lsn(0), Lsn(0));
    *barrier.0.lock() = Arc::downgrade(&log);
    let at = append(&log, b"x");
    let error = log.force(at.end, ForceCause::Fsync).unwrap_err();
    assert!(error.to_string().contains("revoked"), "{error}");
    assert_eq!((s.device.writes(), log.durable_lsn()), (0, Lsn(0)));
}

/// One force leads the write, one waits for it, and one has a callback.
#[test]
fn a_panic_in_a_write_is_told_to_all_who_wait() {
    let s = setup(2 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    s.barrier.panic.store(true, SeqCst);
    let (send, told) = mpsc::channel();
    let at = append(&log, b"x");
    log.force_async(at.end, ForceCause::Fsync, Box::new(move |result| send.send(result).unwrap()));
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            let log = log.clone();
            spawn(move || log.force(at.end, ForceCause::Fsync))
        })
        .collect();
    let answers = waiters.into_iter().map(|t| t.join().expect("the panic stays inside"));
    for answer in answers.chain([told.recv_timeout(HANG).expect("it is called")]) {
        let error = answer.unwrap_err().to_string();
        assert!(error.contains("a panic in a log write: the barrier panics"), "{error}");
    }
    s.barrier.panic.store(false, SeqCst);
    assert!(log.reserve(1, ReserveClass::Normal).is_err());
    assert_eq!(s.device.writes(), 0);
    log.stop();
}

/// The threads that deliver results survive a callback that panics: the later callbacks are still
/// called, with the error.
#[test]
fn a_panic_in_a_callback_shuts_the_log_down_and_the_other_callbacks_are_called() {
    let s = setup(2 * MIB);
    let log = s.open(Lsn(0), Lsn(0));
    let at = append(&log, b"x");
    log.force_async(at.end, ForceCause::Fsync, Box::new(|_| panic!("the callback panics")));
    until(|| log.shutdown_reason().is_some());
    let reason = log.shutdown_reason().unwrap().to_string();
    assert!(reason.contains("a panic in a thread of the log: the callback panics"), "{reason}");

    // There are many callbacks, so that each delivering thread must deliver results after a panic
    // of its own.
    let log = s.open(Lsn(0), Lsn(0));
    let (send, told) = mpsc::channel();
    s.device.hold_write(0);
    let at = append(&log, b"y");
    for n in 0..40 {
        let send = send.clone();
        let done = move |result: Result<()>| {
            assert!(n % 4 != 0, "the callback panics");
            send.send(result.is_ok()).unwrap();
        };
        log.force_async(at.end, ForceCause::Fsync, Box::new(done));
    }
    s.device.release();
    for _ in 0..30 {
        told.recv_timeout(HANG).expect("each is called");
    }
    log.stop();
}

#[test]
fn shutdown_from_outside_wakes_waiters() {
    let log = setup(MIB + 3).open(Lsn(0), Lsn(0));
    let all = log.reserve(700_000, ReserveClass::Normal).unwrap();
    let stuck = {
        let log = log.clone();
        spawn(move || log.reserve(700_000, ReserveClass::Normal).map(drop))
    };
    std::thread::sleep(Duration::from_millis(20));
    log.shutdown(&Error::Fenced);
    log.shutdown(&Error::NoSpace);
    assert!(matches!(stuck.join().unwrap(), Err(Error::Shutdown(_))));
    assert!(matches!(log.shutdown_reason(), Some(Error::Fenced)), "the first reason stays");
    drop(all);
}
