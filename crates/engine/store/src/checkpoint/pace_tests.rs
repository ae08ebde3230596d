use super::*;
use crate::checkpoint::control::Hurry;
use crate::checkpoint::test_log::{checkpoints, filled, store, take};
use crate::checkpoint::trigger::throttle_max;
use crate::checkpoint::write::{batch_writes, write_merged};
use crate::{CheckpointClient, Class, Need, OpenOptions};
use kedge_base::{BlockNo, IoBuf, ManualClock, Result, spawn_named};
use kedge_device::sim::DistantDevice;
use kedge_device::{Device, LatencyKind, MemDevice};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

const MIB: u64 = 1 << 20;

#[test]
fn an_allowance_is_half_of_what_was_left() {
    let half_done = |left| Allowance { left, at_first: 1000 }.lags_behind(50, 100);
    // The allowance is 500, half of the 1,000 at first. With half of the work done, 250 of it may
    // be used, which leaves 750.
    assert!(half_done(1000) && half_done(751));
    assert!(!half_done(750) && !half_done(0));
    assert!(half_done(2000), "more is left than at first");
    let nothing = Allowance { left: 0, at_first: 0 };
    assert!(!nothing.lags_behind(50, 100), "without an allowance there is no time");
    assert!(!Allowance { left: 1000, at_first: 1000 }.lags_behind(0, 100), "nothing done yet");
}

/// Returns the number of checks in the pause after a quarter MiB of one MiB of work. The fraction
/// `meanwhile` of the log is taken before.
fn pauses(store: &Store, cause: CheckpointCause, by: By, meanwhile: f64) -> u64 {
    let pace = store.pace(cause, by, 0);
    pace.expect(MIB);
    let _taken = take(store, meanwhile);
    pace.wrote(MIB / 4);
    assert_eq!(pace.checks.get() > 0, pace.paused() > Duration::ZERO);
    pace.checks.get()
}

const BOUND: u64 = CHECKS_PER_MIB / 4;

#[test]
fn it_pauses_while_the_log_fills_more_slowly_than_it_writes_and_never_for_ever() {
    let store = store(Some(50));
    let pauses = |cause, meanwhile| pauses(&store, cause, By::Background, meanwhile);
    // A quarter of the work is due when an eighth of the log is used.
    for has_time in [CheckpointCause::Background, CheckpointCause::DirtyNodes] {
        assert_eq!(pauses(has_time, 0.1), BOUND);
        assert_eq!(pauses(has_time, 0.13), 0, "the log fills faster");
        assert_eq!(pauses(has_time, 0.9), 0, "operations are slowed down");
    }
    for needed in [CheckpointCause::LogSpace, CheckpointCause::NodeSpace] {
        assert_eq!(pauses(needed, 0.0), 0, "an operation waits for it");
    }
}

/// If an operation finds too many dirty nodes, it runs a checkpoint itself. When that checkpoint
/// starts, fewer nodes may be dirty; it must not pause even then.
#[test]
fn an_operation_that_checkpoints_never_pauses() {
    let store = store(Some(50));
    for cause in [CheckpointCause::DirtyNodes, CheckpointCause::Request, CheckpointCause::Unmount] {
        assert_eq!(pauses(&store, cause, By::Operation, 0.0), 0);
    }
}

#[test]
fn it_hurries_while_an_operation_waits_and_pauses_otherwise() {
    let store = store(Some(50));
    let pace = store.pace(CheckpointCause::Background, By::Background, 0);
    assert_eq!(pace.batch_blocks(), SLICE);
    store.set_async_checkpoint(None);
    assert_eq!(pace.batch_blocks(), FULL, "noasync_checkpoint");
    store.set_async_checkpoint(Some(50));
    assert_eq!(pace.batch_blocks(), SLICE);
    let most = take(&store, 0.9);
    assert_eq!(pace.batch_blocks(), FULL, "the log is nearly full");
    drop(most);
    assert_eq!(pace.batch_blocks(), SLICE, "what was given back is free at once");
}

/// Sizes and delays on a fast disk, on a slow disk, and on distant images.
#[test]
fn sizes_follow_the_measured_latency_within_their_bounds() {
    // Columns: round trip and interval in µs; writes in a batch; blocks in a slice; longest delay
    // in µs.
    let rows: [(u64, u64, usize, usize, u64); 8] = [
        (0, 0, 8, SLICE, 4_000),
        (20, 5, 8, SLICE, 4_000),
        (400, 1, 8, SLICE, 4_000),
        (2_000, 100, 20, SLICE, 4_000),
        (8_000, 6_000, 8, SLICE, 16_000),
        (10_000, 100, 100, 2 * SLICE, 20_000),
        (10_000, 1, 128, 2 * SLICE, 20_000),
        (3_000_000, 1, 128, 4 * SLICE, 50_000),
    ];
    for (round_trip, interval, writes, slice, delay) in rows {
        let row = format!("{round_trip} µs, one each {interval} µs");
        let store = store(Some(50));
        let latency = store.device.latency();
        if round_trip > 0 {
            for kind in LatencyKind::ALL {
                latency.record(kind, Duration::from_micros(round_trip));
                latency.record_interval(kind, Duration::from_micros(interval));
            }
        }
        assert_eq!(batch_writes(&*store.device, false), writes, "{row}");
        assert_eq!(throttle_max(latency), Duration::from_micros(delay), "{row}");
        let pace = store.pace(CheckpointCause::Background, By::Background, 0);
        assert_eq!(pace.batch_blocks(), slice, "{row}");
        store.set_async_checkpoint(None);
        assert_eq!(pace.batch_blocks(), FULL, "{row}: a burst is bounded by the memory it takes");
    }
}

/// Writes 400 nodes that are not adjacent.
#[test]
fn a_checkpoint_of_scattered_nodes_takes_few_round_trips_to_a_device_far_away() {
    let mut rounds = Vec::new();
    for (round_trip, interval) in [(50, 5), (8_000, 6_000), (1_000, 40), (10_000, 40)] {
        let device = DistantDevice::new(Arc::new(MemDevice::new(64 * MIB)), Duration::ZERO);
        device.latency().record(LatencyKind::Write, Duration::from_micros(round_trip));
        device.latency().record_interval(LatencyKind::Write, Duration::from_micros(interval));
        let nodes = (0..400).map(|i| (BlockNo(i * 8), IoBuf::zeroed(4)));
        assert_eq!(write_merged(&device, nodes, &|_| FULL).unwrap(), 400 * 4 * BLOCK_SIZE as u64);
        assert_eq!(device.requests(), 400);
        rounds.push(device.rounds());
    }
    // On the first disk, which is fast, batches of an unpaused checkpoint are larger: nothing waits
    // for them for long.
    assert_eq!(rounds, [13, 50, 16, 4]);
}

#[test]
fn only_a_checkpoint_that_must_hurry_has_large_batches_on_a_fast_disk() {
    let rounds = |limit| {
        let device = DistantDevice::new(Arc::new(MemDevice::new(64 * MIB)), Duration::ZERO);
        device.latency().record(LatencyKind::Write, Duration::from_micros(50));
        device.latency().record_interval(LatencyKind::Write, Duration::from_micros(5));
        let nodes = (0..64).map(|i| (BlockNo(i * 8), IoBuf::zeroed(4)));
        write_merged(&device, nodes, &|_| limit).unwrap();
        device.rounds()
    };
    assert_eq!((rounds(FULL), rounds(SLICE)), (2, 8));
}

/// Without rule 2 the pauses of a checkpoint would use up half of what is free, and operations
/// would wait during its last steps.
#[test]
fn it_does_not_pause_where_the_log_fills_as_fast_as_a_checkpoint_frees_it() {
    let store = store(Some(50));
    let room = store.log.free_bytes() - store.throttle_below();
    let checks = |incoming| {
        let pace = store.pace(CheckpointCause::Background, By::Background, incoming);
        pace.expect(MIB);
        assert_eq!(pace.wrote(MIB / 4), if incoming > room { FULL } else { SLICE });
        pace.checks.get()
    };
    assert_eq!((checks(0), checks(room), checks(room + 1)), (BOUND, BOUND, 0));
}

struct Counting(AtomicUsize);

impl CheckpointClient for Counting {
    fn prepare_checkpoint(&self, _: &dyn Fn(usize)) -> Result<()> {
        self.0.fetch_add(1, Relaxed);
        Ok(())
    }
}

/// The second pass writes in place what was logged during the first. Otherwise the tail could move
/// only to the start of the checkpoint.
#[test]
fn a_background_checkpoint_prepares_twice_if_the_log_fills_fast() {
    let store = store(Some(50));
    let client = Arc::new(Counting(AtomicUsize::new(0)));
    let weak: Weak<Counting> = Arc::downgrade(&client);
    store.set_client(weak);
    let prepared = |cause, by, incoming| {
        let before = client.0.load(Relaxed);
        store.prepare(&store.pace(cause, by, incoming)).unwrap();
        client.0.load(Relaxed) - before
    };
    let all = store.log.free_bytes();
    assert_eq!(prepared(CheckpointCause::Background, By::Background, 0), 1);
    assert_eq!(prepared(CheckpointCause::Background, By::Background, all), 2);
    assert_eq!(prepared(CheckpointCause::LogSpace, By::Background, all), 2);
    assert_eq!(prepared(CheckpointCause::LogSpace, By::Operation, all), 1);
}

/// A client that delays the first checkpoint before its cut until it must hurry. The delay is
/// bounded, so that a checkpoint that never hurries fails the test.
struct Pausing {
    store: Weak<Store>,
    began: AtomicUsize,
    hurried: AtomicBool,
}

const PAUSES_MAX: u32 = 60_000;

impl CheckpointClient for Pausing {
    fn prepare_checkpoint(&self, wrote: &dyn Fn(usize)) -> Result<()> {
        if self.began.fetch_add(1, Relaxed) > 0 {
            return Ok(());
        }
        let store = self.store.upgrade().unwrap();
        for _ in 0..PAUSES_MAX {
            if store.checkpoint_must_hurry() {
                self.hurried.store(true, Relaxed);
                break;
            }
            wrote(1);
            store.clock.sleep(CHECK_AGAIN);
        }
        Ok(())
    }
}

/// A store whose background checkpoint is delayed by [`Pausing`].
fn pausing() -> (Arc<Store>, Arc<Pausing>) {
    let store = filled(0.6);
    let client = Arc::new(Pausing {
        store: Arc::downgrade(&store),
        began: AtomicUsize::new(0),
        hurried: AtomicBool::new(false),
    });
    let weak: Weak<Pausing> = Arc::downgrade(&client);
    store.set_client(weak);
    store.set_async_checkpoint(Some(50));
    while client.began.load(Relaxed) == 0 {
        std::thread::yield_now();
    }
    (store, client)
}

/// A checkpoint that began before a request does not serve it, but the request must not wait for
/// its pauses.
#[test]
fn one_that_pauses_hurries_for_a_request() {
    let (store, client) = pausing();
    store.checkpoint(CheckpointCause::Request).unwrap();
    assert!(client.hurried.load(Relaxed));
    assert_eq!(client.began.load(Relaxed), 2, "it was not answered by the one that began before");
    store.close().unwrap();
}

#[test]
fn one_that_pauses_hurries_for_an_unmount_which_leaves_a_clean_image() {
    let (store, client) = pausing();
    store.close().unwrap();
    assert!(client.hurried.load(Relaxed));
    let (device, clock) = (store.device.clone(), Arc::new(ManualClock::default()));
    drop(store);
    let again = Store::open(device, clock, &OpenOptions::default()).unwrap();
    assert!(again.replay_summary().clean, "{:?}", again.replay_summary());
}

#[test]
fn one_that_pauses_hurries_for_an_operation_that_waits_for_log_space() {
    let (store, client) = pausing();
    // This is more than is free now, but the log is not so full that operations are delayed.
    let log_bytes = 2 << 20;
    assert!((store.throttle_below()..log_bytes).contains(&store.log.free_bytes()));
    drop(
        store
            .begin(Need { log_bytes, changes: 0, puts: 1, neighbours: 0, trees: 1, class: Class::Normal })
            .unwrap(),
    );
    assert!(client.hurried.load(Relaxed));
    assert_eq!(store.stats.throttle_ns.snapshot().count, 0);
    store.close().unwrap();
}

#[test]
fn one_that_pauses_hurries_after_a_switch_to_noasync_and_completes() {
    let (store, client) = pausing();
    let (tail, before) = (store.log.tail_lsn(), checkpoints(&store));
    store.set_async_checkpoint(None);
    while checkpoints(&store) == before {
        std::thread::yield_now();
    }
    assert!(client.hurried.load(Relaxed) && store.log.tail_lsn() > tail);
    store.close().unwrap();
}

#[test]
fn one_that_pauses_ends_with_a_shutdown() {
    let (store, client) = pausing();
    let (tail, before) = (store.log.tail_lsn(), checkpoints(&store));
    store.shutdown(&kedge_base::Error::Shutdown("a test".into()));
    while checkpoints(&store) == before {
        std::thread::yield_now();
    }
    assert!(client.hurried.load(Relaxed));
    assert_eq!(store.log.tail_lsn(), tail, "what is shut down frees nothing");
    assert!(store.close().is_err());
}

/// A file system that was dropped without being closed neither requests checkpoints nor waits for
/// them.
#[test]
fn one_that_pauses_does_not_outlast_the_file_system() {
    let store = store(Some(50));
    let client = Arc::new(Pausing {
        store: Arc::downgrade(&store),
        began: AtomicUsize::new(1),
        hurried: AtomicBool::new(false),
    });
    let weak: Weak<Pausing> = Arc::downgrade(&client);
    store.set_client(weak);
    let pace = store.pace(CheckpointCause::Background, By::Background, 0);
    pace.held.set(1);
    let held_by_pace = client.clone();
    assert!(pace.may_pause());
    drop(client);
    assert!(!pace.may_pause(), "the checkpoint's own reference does not count");
    drop(held_by_pace);
    pace.held.set(0);
    assert!(!pace.may_pause());
}

#[test]
fn a_call_ends_a_pause_at_once_also_one_that_came_before_it_began() {
    let hurry = Arc::new(Hurry::new());
    let long = Duration::from_secs(60);
    let seen = hurry.calls();
    let waits = {
        let hurry = hurry.clone();
        spawn_named("waits", move || hurry.wait_beyond(seen, long)).unwrap()
    };
    hurry.call();
    assert!(waits.join().unwrap());
    assert!(hurry.wait_beyond(seen, long), "it came before");
    assert!(!hurry.wait_beyond(hurry.calls(), CHECK_AGAIN), "nobody calls");
}

/// The bound on this pause is a hundred seconds.
#[test]
fn a_long_pause_ends_when_the_log_fills() {
    let store = store(Some(50));
    let (send, begun) = std::sync::mpsc::channel();
    let checks = {
        let store = store.clone();
        let body = move || {
            let pace = store.pace(CheckpointCause::Background, By::Background, 0);
            pace.expect(4 << 30);
            send.send(()).unwrap();
            pace.wrote(1 << 30);
            pace.checks.get()
        };
        spawn_named("pauses", body).unwrap()
    };
    begun.recv().unwrap();
    let _taken = take(&store, 0.2);
    assert!(checks.join().unwrap() < 100 << 10);
}

#[test]
fn writes_are_cut_into_slices_of_the_size_that_the_pace_gives() {
    let device = MemDevice::new(64 * MIB);
    let blocks = 1000u64;
    let writes = || {
        (0..blocks).map(|i| {
            let mut buf = IoBuf::zeroed(1);
            buf.as_mut_bytes().fill(i as u8);
            (BlockNo(4000 + i), buf)
        })
    };
    let slices = |limit: &dyn Fn(usize) -> usize| {
        let told = RefCell::new(Vec::new());
        let wrote = |bytes: u64| {
            let mut told = told.borrow_mut();
            told.push(bytes);
            limit(told.len())
        };
        let bytes = write_merged(&device, writes(), &wrote).unwrap();
        let told = told.into_inner();
        assert_eq!((told[0], told.iter().sum::<u64>(), bytes), (0, bytes, blocks * BLOCK_SIZE as u64));
        told
    };
    let slice = (SLICE * BLOCK_SIZE) as u64;
    assert!(slices(&|_| SLICE).iter().all(|bytes| *bytes <= slice));
    assert_eq!(slices(&|_| FULL).len(), 2, "all of it is one batch");
    let hurries = slices(&|calls| if calls < 3 { SLICE } else { FULL });
    assert!(hurries.len() == 4 && hurries[1..3].iter().all(|bytes| *bytes == slice), "{hurries:?}");
    for (at, buf) in writes() {
        assert_eq!(device.bytes(at.byte_offset(), BLOCK_SIZE), buf.as_bytes());
    }
}
