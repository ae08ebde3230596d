use super::*;
use crate::sim::{FaultPlan, OpKind, SimDevice};
use crate::{Io, MemDevice, conformance, run_batch, testing};
use kedge_base::{BLOCK_SIZE, spawn_named};

const B: u64 = BLOCK_SIZE as u64;
const EIO: i32 = errno::EIO;

#[test]
fn the_contract_is_kept() {
    conformance::conform(&|size| Arc::new(TrackedDevice::new(Arc::new(MemDevice::new(size)))));
}

#[test]
fn flushes_and_fua_reach_the_device() {
    let medium = Arc::new(MemDevice::new(testing::SIZE));
    let volatile = || -> Arc<dyn Device> { Arc::new(crate::sim::VolatileDevice::new(medium.clone())) };
    conformance::durable(&|_| Arc::new(TrackedDevice::new(volatile())), &|_| volatile());
}

fn devices() -> (Arc<SimDevice>, Arc<TrackedDevice>) {
    let below = Arc::new(SimDevice::new(MemDevice::new(64 * B)));
    (below.clone(), Arc::new(TrackedDevice::new(below)))
}

fn block() -> IoBuf {
    IoBuf::zeroed(1)
}

fn write(offset: u64, fua: bool) -> Io {
    Io { offset, op: Op::Write { buf: block(), fua } }
}

fn is_lost(result: Result<()>) -> bool {
    matches!(result, Err(e) if e.is_failed_flush())
}

/// Fails the n-th write of a plan in its flush, with the error of a write.
fn loses(nth: u64) -> FaultPlan {
    FaultPlan::new(0).lose_fua(nth, false, EIO)
}

#[test]
fn a_fua_write_alone_loses_only_itself() {
    let (below, device) = devices();
    device.write(0, &block(), false).unwrap();
    device.flush().unwrap();
    device.write(0, &block(), true).unwrap();
    below.set_plan(loses(0));
    assert!(!is_lost(device.write(0, &block(), true)));
    assert!(!device.has_lost_writes());
    device.confirm().unwrap();
    device.write(0, &block(), true).unwrap();
    device.flush().unwrap();
}

#[test]
fn a_fua_write_whose_flush_fails_ends_durability() {
    let (below, device) = devices();
    below.set_plan(FaultPlan::new(0).lose_fua(0, true, EIO));
    assert!(is_lost(device.write(0, &block(), true)));
    assert!(device.has_lost_writes());
    assert!(is_lost(device.flush()) && is_lost(device.write(0, &block(), true)) && is_lost(device.confirm()));
    device.write(0, &block(), false).unwrap();
    device.read(0, &mut block()).unwrap();
}

/// Every kind of plain write, alone and in a batch.
#[test]
fn a_failed_fua_write_may_lose_what_waits_for_a_flush() {
    let plain: [fn(&TrackedDevice); 3] = [
        |device| device.write(B, &block(), false).unwrap(),
        |device| device.write_zeroes(B, B).unwrap(),
        |device| {
            let done = run_batch(device, vec![write(B, false), write(2 * B, true)]);
            assert!(done.iter().all(|completion| completion.result.is_ok()));
        },
    ];
    for (i, plain) in plain.iter().enumerate() {
        let (below, device) = devices();
        plain(&device);
        below.set_plan(loses(0));
        device.write(0, &block(), true).unwrap_err();
        assert!(device.has_lost_writes() && is_lost(device.flush()), "{i}");
    }
}

#[test]
fn a_failed_flush_ends_durability() {
    let (below, device) = devices();
    below.set_plan(FaultPlan::new(0).lose_flush(0, EIO));
    device.flush().unwrap_err();
    assert!(device.has_lost_writes() && is_lost(device.flush()));
}

#[test]
fn failed_writes_reads_and_discards_do_not_count() {
    let (below, device) = devices();
    below.set_plan(FaultPlan::new(0).fail(OpKind::Write, 0, EIO).fail(OpKind::Read, 0, EIO));
    device.write(B, &block(), false).unwrap_err();
    device.read(B, &mut block()).unwrap_err();
    device.discard(B, B).unwrap();
    below.set_plan(loses(0));
    device.write(0, &block(), true).unwrap_err();
    assert!(!device.has_lost_writes());
}

#[test]
fn fua_writes_of_one_batch_are_not_alone() {
    let (below, device) = devices();
    below.set_plan(loses(1));
    let done = run_batch(&*device, vec![write(0, true), write(B, true)]);
    assert!(done.iter().any(|completion| completion.result.is_err()));
    assert!(device.has_lost_writes());
}

/// Runs `first` in another thread until the device holds it, then a FUA write that fails, and
/// releases. Returns the result of `first`.
fn beside(kind: OpKind, first: fn(&TrackedDevice) -> Result<()>) -> (Arc<TrackedDevice>, Result<()>) {
    let (below, device) = devices();
    below.set_plan(FaultPlan::new(0).hold(kind, 0));
    let other = device.clone();
    let thread = spawn_named("other", move || first(&other)).unwrap();
    while below.held_up() == 0 {
        std::thread::yield_now();
    }
    below.set_plan(loses(0));
    device.write(0, &block(), true).unwrap_err();
    below.release();
    (device, thread.join().unwrap())
}

#[test]
fn writes_in_flight_may_be_lost() {
    let (device, plain) = beside(OpKind::Write, |device| device.write(B, &block(), false));
    assert!(plain.is_ok() && device.has_lost_writes());
    let (device, fua) = beside(OpKind::Write, |device| device.write(B, &block(), true));
    assert!(is_lost(fua) && device.has_lost_writes());
    // Nothing was written that this flush should have made durable.
    let (device, flush) = beside(OpKind::Flush, |device| device.flush());
    assert!(flush.is_ok() && !device.has_lost_writes());
}

/// A flush does not cover a write that completes after it has begun.
#[test]
fn a_flush_covers_what_completed_before_it() {
    let (below, device) = devices();
    below.set_plan(FaultPlan::new(0).hold(OpKind::Flush, 0));
    let other = device.clone();
    let thread = spawn_named("other", move || other.flush()).unwrap();
    while below.held_up() == 0 {
        std::thread::yield_now();
    }
    device.write(B, &block(), false).unwrap();
    below.release();
    thread.join().unwrap().unwrap();
    below.set_plan(loses(0));
    device.write(0, &block(), true).unwrap_err();
    assert!(device.has_lost_writes());
}

/// The flush of one thread succeeds before the durable write of another reports its failure.
#[test]
fn a_confirmation_waits_for_what_may_still_fail() {
    let (below, device) = devices();
    device.write(B, &block(), false).unwrap();
    below.set_plan(loses(0).hold(OpKind::Write, 0));
    let other = device.clone();
    let thread = spawn_named("other", move || other.write(0, &block(), true)).unwrap();
    while below.held_up() == 0 {
        std::thread::yield_now();
    }
    device.flush().unwrap();
    let confirms = device.clone();
    let confirmed = spawn_named("confirms", move || confirms.confirm()).unwrap();
    while !device.cache.state.lock().waited_for {
        std::thread::yield_now();
    }
    below.release();
    thread.join().unwrap().unwrap_err();
    assert!(is_lost(confirmed.join().unwrap()));
}

/// A device whose changes of size fail in their flush.
struct Resizes(MemDevice);

impl Device for Resizes {
    crate::delegate!(0: geometry, submit, read, write, flush, discard, write_zeroes, stats, name);

    fn grow(&self, _: u64) -> Result<()> {
        Err(lost())
    }

    fn cut(&self, _: u64) -> Result<()> {
        Err(lost())
    }
}

#[test]
fn a_change_of_size_whose_flush_fails_ends_durability() {
    for resize in [TrackedDevice::grow, TrackedDevice::cut] {
        let device = TrackedDevice::new(Arc::new(Resizes(MemDevice::new(64 * B))));
        assert!(is_lost(resize(&device, 32 * B)) && is_lost(device.flush()));
    }
}

/// A device that panics in each request.
struct Panics(MemDevice);

impl Device for Panics {
    crate::delegate!(0: geometry, read, discard, write_zeroes, stats, name);

    fn submit(&self, _: Vec<Request>, _: Arc<dyn CompletionSink>) {
        panic!("submit");
    }

    fn write(&self, _: u64, _: &IoBuf, _: bool) -> Result<()> {
        panic!("write");
    }

    fn flush(&self) -> Result<()> {
        panic!("flush");
    }
}

#[test]
fn a_panic_ends_durability_and_no_confirmation_waits_for_it() {
    let calls: [fn(&TrackedDevice); 3] = [
        |device| device.flush().unwrap(),
        |device| {
            device.write(0, &block(), false).unwrap_err();
        },
        |device| drop(run_batch(device, vec![write(0, true), write(B, false)])),
    ];
    for (i, call) in calls.into_iter().enumerate() {
        let device = Arc::new(TrackedDevice::new(Arc::new(Panics(MemDevice::new(64 * B)))));
        let there = device.clone();
        spawn_named("panics", move || call(&there)).unwrap().join().unwrap_err();
        // A plain write that panicked counts as failed.
        assert_eq!(is_lost(device.confirm()), i != 1, "{i}");
    }
}
