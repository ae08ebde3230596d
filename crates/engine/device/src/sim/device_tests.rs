use super::*;
use crate::sim::{CrashState, StatePlan};
use crate::testing::{self, BLOCKS, SIZE, Step, pattern, refuses_bad_ranges, steps};
use crate::{Io, run_batch};
use proptest::prelude::*;
use std::collections::BTreeSet;

const B: u64 = BLOCK_SIZE as u64;

fn sim() -> SimDevice {
    SimDevice::new(MemDevice::new(SIZE))
}

fn filled(byte: u8) -> IoBuf {
    IoBuf::from_bytes(&[byte; BLOCK_SIZE])
}

fn block(image: &MemDevice, at: u64) -> Vec<u8> {
    image.bytes(at * B, BLOCK_SIZE)
}

/// The contents that each sector may have after a crash, tracked independently of the simulator:
/// the durable contents first, then everything written since.
struct Allowed(Vec<Vec<Vec<u8>>>);

impl Allowed {
    fn new() -> Allowed {
        Allowed(vec![vec![vec![0; 512]]; SIZE as usize / 512])
    }

    fn write(&mut self, at: u64, bytes: &[u8], fua: bool) {
        for (i, sector) in bytes.chunks(512).enumerate() {
            let versions = &mut self.0[at as usize * 8 + i];
            if fua {
                versions[0] = sector.to_vec();
            }
            // An unflushed write may still reach the medium, even over a later FUA write.
            if !fua || versions.len() > 1 {
                versions.push(sector.to_vec());
            }
        }
    }

    fn flush(&mut self) {
        for versions in &mut self.0 {
            versions.drain(..versions.len() - 1);
        }
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Write { at, len, fill, fua } => self.write(*at, &pattern(*at, *len, *fill), *fua),
            Step::Flush => self.flush(),
            Step::Discard { at, len } | Step::Zero { at, len } => {
                self.write(*at, &pattern(*at, *len, 0), false);
            }
            Step::Read { .. } => {}
            Step::Batch { .. } => panic!("filtered out"),
        }
    }

    fn check(&self, image: &MemDevice, what: &dyn std::fmt::Debug) {
        let bytes = image.bytes(0, SIZE as usize);
        for (i, (sector, versions)) in bytes.chunks(512).zip(&self.0).enumerate() {
            assert!(versions.iter().any(|v| v == sector), "sector {i} holds what it must not: {what:?}");
        }
    }
}

fn alone(steps: Vec<Step>) -> Vec<Step> {
    steps.into_iter().filter(|step| !matches!(step, Step::Batch { .. })).collect()
}

proptest! {
    #[test]
    fn behaves_like_a_vector(steps in steps()) {
        let device = sim();
        let mut model = vec![0; SIZE as usize];
        testing::run(&device, &mut model, &steps);
        prop_assert!(device.view().bytes(0, SIZE as usize) == model);
        // When everything is flushed, each crash leaves the contents that reads see.
        device.flush().unwrap();
        prop_assert_eq!(device.pending(), 0);
        prop_assert!(device.crash(1).bytes(0, SIZE as usize) == model);
        let recording = device.recording();
        prop_assert!(recording.durable(recording.events.len()).bytes(0, SIZE as usize) == model);
    }

    #[test]
    fn a_crash_leaves_only_what_the_contract_allows(steps in steps(), seed in any::<u64>()) {
        let device = sim();
        let mut allowed = Allowed::new();
        let mut model = vec![0; SIZE as usize];
        for step in alone(steps) {
            testing::apply(&device, &mut model, &step);
            allowed.apply(&step);
            for i in 0..3 {
                let seed = seed.wrapping_add(i);
                allowed.check(&device.crash(seed), &seed);
                allowed.check(&device.crash_as(Choice::Subset(seed)), &seed);
            }
            allowed.check(&device.crash_as(Choice::None), &"none");
            prop_assert!(device.crash_as(Choice::All).bytes(0, SIZE as usize) == model);
        }
    }

    /// The enumeration visits each point, and its media agree with a replay of the events up to
    /// that point.
    #[test]
    fn enumerated_states_are_allowed(steps in steps(), seed in any::<u64>()) {
        let device = sim();
        let mut model = vec![0; SIZE as usize];
        let mut by_mark = Vec::new();
        let mut allowed = Allowed::new();
        for (i, step) in alone(steps).into_iter().enumerate() {
            testing::apply(&device, &mut model, &step);
            allowed.apply(&step);
            device.mark(i as u64);
            by_mark.push(Allowed(allowed.0.clone()));
        }
        let recording = device.recording();
        let plan = StatePlan { subsets: 6, samples: 6, torn: 2, at_marks_only: true, seed };
        let mut marks = BTreeSet::new();
        for state in recording.states(plan) {
            let mark = state.mark.unwrap();
            marks.insert(mark);
            by_mark[mark as usize].check(&state.medium, &state);
        }
        prop_assert_eq!(marks.len(), by_mark.len());
        for state in recording.states(StatePlan { subsets: 3, samples: 3, torn: 1, at_marks_only: false, seed }).step_by(7) {
            if state.in_flight {
                continue;
            }
            let again = recording.state(state.at, state.choice);
            prop_assert!(again.bytes(0, SIZE as usize) == state.medium.bytes(0, SIZE as usize), "{:?}", state);
        }
        prop_assert!(recording.prefix(recording.events.len()).bytes(0, SIZE as usize) == model);
    }
}

#[test]
fn bad_ranges_are_refused() {
    refuses_bad_ranges(&sim());
}

#[test]
fn flushed_writes_always_survive_and_others_sometimes() {
    let device = sim();
    device.write(0, &filled(1), false).unwrap();
    device.flush().unwrap();
    device.write(B, &filled(2), true).unwrap();
    device.write(2 * B, &filled(3), false).unwrap();
    let (mut lost, mut kept, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        let image = device.crash(seed);
        assert!(block(&image, 0) == [1; BLOCK_SIZE] && block(&image, 1) == [2; BLOCK_SIZE], "seed {seed}");
        let third = block(&image, 2);
        for sector in third.chunks(512) {
            assert!(sector == [0; 512] || sector == [3; 512], "torn inside a sector, seed {seed}");
        }
        match third.iter().filter(|b| **b == 3).count() {
            0 => lost += 1,
            BLOCK_SIZE => kept += 1,
            _ => torn += 1,
        }
        assert!(block(&device.crash(seed), 2) == third, "a seed names one crash");
    }
    assert!(lost > 10 && kept > 10 && torn > 10, "lost {lost}, kept {kept}, torn {torn}");
}

#[test]
fn unflushed_writes_land_in_any_order() {
    let device = sim();
    device.write(0, &filled(1), false).unwrap();
    device.write(0, &filled(2), false).unwrap();
    let found: BTreeSet<u8> = (0..100).map(|s| block(&device.crash_as(Choice::Subset(s)), 0)[0]).collect();
    assert_eq!(found, BTreeSet::from([0, 1, 2]));
    // But neither of the two writes lands over a later durable write.
    device.write(0, &filled(3), false).unwrap();
    device.flush().unwrap();
    assert!((0..100).all(|s| block(&device.crash(s), 0) == [3; BLOCK_SIZE]));
}

/// A FUA write is durable, but an earlier completed write may still land after it. A flush settles
/// their order, even a flush that covers only the older write.
#[test]
fn a_fua_write_overtakes_what_is_not_flushed() {
    type Older = fn(&SimDevice);
    let olders: [(Older, u8); 2] =
        [(|d| d.write(0, &filled(1), false).unwrap(), 1), (|d| d.discard(0, B).unwrap(), 0)];
    for (older, byte) in olders {
        let device = sim();
        device.write(0, &filled(9), true).unwrap();
        older(&device);
        device.write(0, &filled(2), true).unwrap();
        let found: BTreeSet<u8> =
            (0..100).map(|s| block(&device.crash_as(Choice::Subset(s)), 0)[0]).collect();
        assert_eq!(found, BTreeSet::from([byte, 2]));
        assert!(block(&device.crash_as(Choice::None), 0) == [2; BLOCK_SIZE], "durable");
        assert!(block(&device.crash_as(Choice::All), 0) == [2; BLOCK_SIZE], "in order");
        device.flush().unwrap();
        assert!((0..100).all(|s| block(&device.crash(s), 0) == [2; BLOCK_SIZE]));
        assert_eq!(device.pending(), 0);
    }
    // The flush is submitted before the FUA write and ends after it.
    let device = Arc::new(sim());
    device.write(0, &filled(1), false).unwrap();
    device.set_plan(FaultPlan::new(0).hold(OpKind::Flush, 0));
    let flusher = {
        let device = device.clone();
        kedge_base::spawn_named("flusher", move || device.flush()).unwrap()
    };
    while device.held_up() == 0 {
        std::thread::yield_now();
    }
    device.write(0, &filled(2), true).unwrap();
    device.release();
    flusher.join().unwrap().unwrap();
    assert!((0..100).all(|s| block(&device.crash(s), 0) == [2; BLOCK_SIZE]));
}

#[test]
fn fua_makes_nothing_else_durable() {
    let device = sim();
    device.write(0, &filled(1), false).unwrap();
    device.write(B, &filled(2), true).unwrap();
    let image = device.crash_as(Choice::None);
    assert!(block(&image, 0) == [0; BLOCK_SIZE] && block(&image, 1) == [2; BLOCK_SIZE]);
}

#[test]
fn a_flush_does_not_cover_its_own_batch() {
    for seed in 0..20 {
        let device = sim();
        device.set_plan(FaultPlan::new(seed));
        device.write(B, &filled(1), false).unwrap();
        let ios = vec![
            Io { offset: 0, op: Op::Write { buf: filled(2), fua: false } },
            Io { offset: 0, op: Op::Flush },
        ];
        assert!(run_batch(&device, ios).iter().all(|done| done.result.is_ok()));
        let image = device.crash_as(Choice::None);
        assert!(block(&image, 0) == [0; BLOCK_SIZE] && block(&image, 1) == [1; BLOCK_SIZE]);
    }
}

/// Waits until the plan holds an operation.
fn held_up(device: &SimDevice) {
    while device.held_up() == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_flush_does_not_cover_what_completes_while_it_waits() {
    let device = Arc::new(sim());
    device.set_plan(FaultPlan::new(0).hold(OpKind::Flush, 0));
    let flusher = {
        let device = device.clone();
        kedge_base::spawn_named("flusher", move || device.flush()).unwrap()
    };
    held_up(&device);
    device.write(0, &filled(1), false).unwrap();
    device.release();
    flusher.join().unwrap().unwrap();
    assert!(block(&device.crash_as(Choice::None), 0) == [0; BLOCK_SIZE]);
    assert!(block(&device.crash_as(Choice::All), 0) == [1; BLOCK_SIZE]);
}

#[test]
fn all_subsets_are_enumerated_once() {
    let device = sim();
    device.write(9 * B, &filled(9), true).unwrap();
    for i in 0..4 {
        device.write(i * B, &filled(1), false).unwrap();
    }
    let plan = StatePlan { subsets: 16, torn: 0, ..Default::default() };
    let recording = device.recording();
    let images: Vec<Vec<u8>> = recording.states(plan).map(|s| s.medium.bytes(0, 10 * BLOCK_SIZE)).collect();
    // The expected media: the empty one, then the FUA write with each subset of the other writes.
    assert_eq!(images.len(), 1 + 16);
    assert_eq!(images.iter().collect::<BTreeSet<_>>().len(), images.len());
}

/// Until a FUA write has completed, a crash may find it torn, over any of the earlier writes.
/// Afterwards it is never torn.
#[test]
fn media_before_a_mark_are_left_out() {
    let device = sim();
    for mark in 0..4 {
        device.mark(mark);
        (0..3).for_each(|at| device.write((mark * 3 + at) * B, &filled(mark as u8 + 1), at == 2).unwrap());
    }
    let recording = device.recording();
    let plan = StatePlan::default();
    let of = |state: CrashState| (state.at, state.mark, state.medium.bytes(0, 12 * BLOCK_SIZE));
    let all: Vec<_> = recording.states(plan).map(of).collect();
    for from in 0..4 {
        let left: Vec<_> = recording.states(plan).from_mark(from).map(of).collect();
        let wanted: Vec<_> = all.iter().filter(|(_, mark, _)| *mark >= Some(from)).cloned().collect();
        assert!(left == wanted && left.len() > 10, "from {from}: {} of {}", left.len(), all.len());
    }
}

#[test]
fn a_fua_write_tears_before_it_completes() {
    let device = sim();
    device.write(0, &filled(1), true).unwrap();
    device.write(0, &filled(2), true).unwrap();
    let plan = StatePlan { torn: 20, ..Default::default() };
    let recording = device.recording();
    let (mut torn, mut at_once) = ([0, 0], 0);
    for state in recording.states(plan) {
        let bytes = state.medium.bytes(0, BLOCK_SIZE);
        let (old, new) = (state.at as u8, state.at as u8 + 1);
        if !state.in_flight {
            assert!(bytes.iter().all(|b| *b == old));
            continue;
        }
        assert!(bytes.iter().all(|b| *b == old || *b == new));
        let mixed = bytes.contains(&old) && bytes.contains(&new);
        torn[state.at] += usize::from(mixed);
        at_once += usize::from(!mixed);
    }
    assert!(torn.iter().all(|n| *n > 15) && at_once < 5, "{torn:?} torn, {at_once} whole");
}

#[test]
fn the_nth_of_a_kind_fails() {
    let device = sim();
    device.write(0, &filled(1), false).unwrap();
    let plan =
        FaultPlan::new(0).fail(OpKind::Write, 1, 28).fail(OpKind::Read, 0, 5).fail(OpKind::Flush, 2, 5);
    device.set_plan(plan);
    device.write(0, &filled(2), false).unwrap();
    let e = device.write(B, &filled(3), false).unwrap_err();
    assert!(
        matches!(e, Error::Io { op: "write", offset: 4096, len: 4096, errno: kedge_base::errno::ENOSPC }),
        "{e}"
    );
    assert!(device.read(0, &mut IoBuf::zeroed(1)).is_err());
    device.write(2 * B, &filled(4), false).unwrap();
    let flushes: Vec<bool> = (0..4).map(|_| device.flush().is_ok()).collect();
    assert_eq!(flushes, [true, true, false, true]);
    let mut buf = IoBuf::zeroed(3);
    device.read(0, &mut buf).unwrap();
    let firsts: Vec<u8> = buf.as_bytes().chunks(BLOCK_SIZE).map(|b| b[0]).collect();
    assert_eq!(firsts, [2, 0, 4]);
    assert_eq!(device.op_counts(), OpCounts { reads: 2, writes: 3, flushes: 4 });
}

#[test]
fn everything_fails_from_n_on() {
    let device = sim();
    device.set_plan(FaultPlan::new(0).fail_from(3, 5));
    device.write(0, &filled(1), false).unwrap();
    device.flush().unwrap();
    device.read(0, &mut IoBuf::zeroed(1)).unwrap();
    assert!(device.flush().is_err() && device.write(0, &filled(2), true).is_err());
    assert!(device.read(0, &mut IoBuf::zeroed(1)).is_err() && device.write_zeroes(0, B).is_err());
    assert!(block(&device.crash(7), 0) == [1; BLOCK_SIZE]);
}

#[test]
fn short_and_torn_writes_leave_a_part() {
    let device = sim();
    device.set_plan(FaultPlan::new(0).short_write(0, 4096 + 1024 + 5, 5));
    assert!(device.write(0, &IoBuf::from_bytes(&[7; 3 * BLOCK_SIZE]), true).is_err());
    let view = device.view().bytes(0, 3 * BLOCK_SIZE);
    assert!(view[..5120].iter().all(|b| *b == 7) && view[5120..].iter().all(|b| *b == 0));
    assert!(block(&device.crash_as(Choice::None), 0) == [0; BLOCK_SIZE], "a failed FUA write is not durable");

    let mut parts = BTreeSet::new();
    for seed in 0..50 {
        let device = sim();
        device.set_plan(FaultPlan::new(seed).torn_write(0, 5));
        assert!(device.write(0, &filled(7), false).is_err());
        let bytes = block(&device.view(), 0);
        assert!(bytes.chunks(512).all(|s| s == [0; 512] || s == [7; 512]));
        parts.insert(bytes);
        device.flush().unwrap();
        assert!(block(&device.crash(0), 0) == block(&device.view(), 0), "a later flush keeps what reads saw");
    }
    assert!(parts.len() > 10);
}

#[test]
fn a_write_or_discard_may_take_effect_and_fail() {
    let device = sim();
    device.write(0, &filled(1), true).unwrap();
    device.set_plan(FaultPlan::new(0).done_and_failed(0, 5).done_and_failed(1, 5));
    assert!(device.write(B, &filled(2), true).is_err() && device.discard(0, B).is_err());
    assert!(block(&device.view(), 0) == [0; BLOCK_SIZE] && block(&device.view(), 1) == [2; BLOCK_SIZE]);
    let lost = device.crash_as(Choice::None);
    assert!(block(&lost, 0) == [1; BLOCK_SIZE] && block(&lost, 1) == [0; BLOCK_SIZE]);
    device.flush().unwrap();
    let kept = device.crash_as(Choice::None);
    assert!(block(&kept, 0) == [0; BLOCK_SIZE] && block(&kept, 1) == [2; BLOCK_SIZE]);
}

#[test]
fn a_lost_flush_is_not_made_good_by_the_next() {
    let device = sim();
    device.set_plan(FaultPlan::new(0).lose_flush(0, 5));
    device.write(0, &filled(1), false).unwrap();
    assert!(device.flush().is_err());
    device.write(B, &filled(2), false).unwrap();
    device.flush().unwrap();
    let image = device.crash_as(Choice::None);
    assert!(block(&image, 0) == [0; BLOCK_SIZE] && block(&image, 1) == [2; BLOCK_SIZE]);
    assert!(block(&device.view(), 0) == [1; BLOCK_SIZE], "reads see the lost write");
    // Writing the block again makes it durable.
    device.write(0, &filled(3), false).unwrap();
    device.flush().unwrap();
    assert!((0..50).all(|s| block(&device.crash(s), 0) == [3; BLOCK_SIZE]));
}

#[test]
fn an_unknown_outcome_silences_the_device() {
    let mut landed = BTreeSet::new();
    for seed in 0..20 {
        let device = sim();
        device.set_plan(FaultPlan::new(seed).unknown_write(1));
        device.write(0, &filled(1), true).unwrap();
        assert!(matches!(device.write(B, &filled(2), true), Err(Error::OutcomeUnknown)));
        assert!(matches!(device.flush(), Err(Error::OutcomeUnknown)));
        assert!(matches!(device.read(0, &mut IoBuf::zeroed(1)), Err(Error::OutcomeUnknown)));
        assert!(matches!(device.write(0, &filled(3), false), Err(Error::OutcomeUnknown)));
        let image = device.crash_as(Choice::All);
        assert!(block(&image, 0) == [1; BLOCK_SIZE]);
        landed.insert(block(&image, 1));
    }
    assert!(landed.contains(&vec![0; BLOCK_SIZE]) && landed.contains(&vec![2; BLOCK_SIZE]));
}

#[test]
fn a_lying_device_loses_what_it_acknowledged() {
    let device = sim();
    device.set_plan(FaultPlan::new(0).lying());
    device.write(0, &filled(1), false).unwrap();
    device.flush().unwrap();
    device.write(B, &filled(2), true).unwrap();
    assert!(device.crash_as(Choice::None).bytes(0, 2 * BLOCK_SIZE) == vec![0; 2 * BLOCK_SIZE]);
    let recording = device.recording();
    assert!(recording.durable(recording.events.len()).bytes(0, 2 * BLOCK_SIZE) == vec![0; 2 * BLOCK_SIZE]);
    assert!(device.view().bytes(0, 1) == [1]);
}

/// Returns how often the calling thread has given up its processor to wait.
#[cfg(target_os = "linux")]
fn waits() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    count.trim().parse().unwrap()
}

/// The thread waits once for the batch, not once for each request. The test counts the waits,
/// because on a busy machine a single wait can take as long as several.
#[cfg(target_os = "linux")]
#[test]
fn latency_is_paid_once_a_batch() {
    const LATENCY: Duration = Duration::from_millis(2);
    use kedge_base::{Clock, SystemClock};
    let device = sim();
    device.set_plan(FaultPlan::new(0).latency(OpKind::Write, LATENCY));
    let ios =
        (0..BLOCKS).map(|i| Io { offset: i * B, op: Op::Write { buf: filled(1), fua: false } }).collect();
    let (clock, before) = (SystemClock::default(), waits());
    run_batch(&device, ios);
    assert!(clock.monotonic() >= LATENCY);
    let waited = waits() - before;
    assert!((1..BLOCKS / 2).contains(&waited), "{waited} waits for a batch of {BLOCKS}");
}

#[test]
fn without_recording_crashing_goes_on() {
    let device = sim();
    device.write(0, &filled(1), false).unwrap();
    device.stop_recording();
    device.write(B, &filled(2), true).unwrap();
    assert!(device.recording().events.is_empty());
    let image = device.crash_as(Choice::None);
    assert!(block(&image, 0) == [0; BLOCK_SIZE] && block(&image, 1) == [2; BLOCK_SIZE]);
}

/// While an operation is held, it has neither taken effect nor completed; the others of its batch
/// have.
#[test]
fn a_held_operation_comes_last_and_is_covered_by_no_earlier_flush() {
    let device = Arc::new(sim());
    device.set_plan(FaultPlan::new(1).hold(OpKind::Write, 1).hold(OpKind::Flush, 1));
    let write = |at: u64| Io { offset: at * B, op: Op::Write { buf: filled(at as u8 + 1), fua: false } };
    let batch = {
        let (device, ios) = (device.clone(), (0..3).map(write).collect());
        kedge_base::spawn_named("batch", move || run_batch(&*device, ios)).unwrap()
    };
    held_up(&device);
    device.flush().unwrap();
    let during = device.crash_as(Choice::None);
    assert_eq!(block(&during, 0)[0], 1);
    assert_eq!(block(&during, 1)[0], 0, "held, and so covered by no flush yet");
    assert_eq!(block(&during, 2)[0], 3);
    device.release();
    assert!(batch.join().unwrap().iter().all(|done| done.result.is_ok()));
    assert_eq!(block(&device.view(), 1)[0], 2);
    // A held flush covers the writes that had completed when the flush was submitted.
    let flush = {
        let device = device.clone();
        kedge_base::spawn_named("flush", move || device.flush()).unwrap()
    };
    held_up(&device);
    device.write(3 * B, &filled(9), false).unwrap();
    assert_eq!(block(&device.crash_as(Choice::None), 1)[0], 0, "the flush has not happened");
    device.release();
    flush.join().unwrap().unwrap();
    let after = device.crash_as(Choice::None);
    assert_eq!((block(&after, 1)[0], block(&after, 3)[0]), (2, 0));
    assert_eq!(device.held_up(), 0);
}

fn errno_of(result: kedge_base::Result<()>) -> Option<i32> {
    match result {
        Ok(()) => None,
        Err(Error::Io { errno, .. }) => Some(errno),
        Err(other) => panic!("{other}"),
    }
}

/// Writes `blocks` blocks at block `at`. Returns the errno if the write fails.
fn try_write(device: &SimDevice, at: u64, blocks: usize) -> Option<i32> {
    errno_of(device.write(at * B, &IoBuf::from_bytes(&vec![7; blocks * BLOCK_SIZE]), false))
}

fn try_read(device: &SimDevice, at: u64) -> Option<i32> {
    errno_of(device.read(at * B, &mut IoBuf::zeroed(1)))
}

/// The block that the failing request touched stays bad for this kind of operation; other blocks
/// are unaffected.
#[test]
fn a_block_that_turns_bad_stays_bad() {
    let device = sim();
    device.set_plan(FaultPlan::new(1).bad_block(OpKind::Write, 1, libc::EIO));
    assert_eq!(try_write(&device, 2, 1), None);
    assert_eq!(try_write(&device, 2, 3), Some(libc::EIO));
    assert_eq!(try_write(&device, 2, 1), Some(libc::EIO));
    assert_eq!(try_write(&device, 1, 2), Some(libc::EIO), "it touches the block");
    assert_eq!(try_write(&device, 3, 2), None, "the first block of the request is bad, not the others");
    assert_eq!(try_read(&device, 2), None);
    let strikes: Vec<(u64, u64)> = device.strikes().iter().map(|s| (s.offset / B, s.len / B)).collect();
    assert_eq!((strikes, device.struck()), (vec![(2, 3), (2, 1), (1, 2)], 3));
    assert_eq!(device.strikes()[0].data.as_ref().unwrap().to_vec(), vec![7; 3 * BLOCK_SIZE]);
    device.heal();
    assert_eq!((try_write(&device, 2, 1), device.struck()), (None, 3), "healed, and the count stays");
    device.set_plan(FaultPlan::new(1));
    assert_eq!(device.struck(), 0);
}

#[test]
fn a_bad_range_strikes_who_touches_it() {
    let device = sim();
    device.set_plan(FaultPlan::new(1).bad_range(OpKind::Read, 3 * B..5 * B, libc::EIO));
    let struck: Vec<bool> = (2..6).map(|at| try_read(&device, at).is_some()).collect();
    assert_eq!(struck, [false, true, true, false]);
    assert_eq!(try_write(&device, 3, 1), None);
}

#[test]
fn a_kind_that_fails_from_some_point_on() {
    let device = sim();
    device.set_plan(FaultPlan::new(1).fail_kind_from(OpKind::Flush, 1, libc::EIO));
    assert_eq!(errno_of(device.flush()), None);
    assert_eq!(errno_of(device.flush()), Some(libc::EIO));
    assert_eq!(errno_of(device.flush()), Some(libc::EIO));
    assert_eq!((try_write(&device, 0, 1), try_read(&device, 0)), (None, None));
    let mut failed = 0;
    device.set_plan(FaultPlan::new(3).sometimes(OpKind::Write, 4, libc::EIO));
    for _ in 0..400 {
        failed += u32::from(try_write(&device, 0, 1).is_some());
    }
    assert!((50..200).contains(&failed), "{failed} of 400");
}

/// A block that was written before can be written again. A block that was not written, or was
/// discarded, cannot be written.
#[test]
fn a_host_without_space_takes_no_new_blocks() {
    let device = sim();
    assert_eq!(try_write(&device, 0, 2), None);
    device.set_plan(FaultPlan::new(1).host_full(1));
    assert_eq!(try_write(&device, 5, 1), None, "it is not full yet");
    assert_eq!(try_write(&device, 1, 2), Some(libc::ENOSPC));
    assert_eq!(try_write(&device, 0, 2), None);
    assert_eq!(errno_of(device.discard(0, B)), None);
    assert_eq!((try_write(&device, 0, 1), try_write(&device, 1, 1)), (Some(libc::ENOSPC), None));
    assert_eq!(errno_of(device.flush()), None);
}

/// An operation is held until its release, and can fail then. The release does not affect
/// operations submitted later.
#[test]
fn a_held_operation_waits_for_its_release() {
    let device = Arc::new(sim());
    device.set_plan(FaultPlan::new(1).hold(OpKind::Write, 0).fail(OpKind::Write, 0, libc::EIO));
    let held = {
        let device = device.clone();
        kedge_base::spawn_named("held", move || try_write(&device, 0, 1)).unwrap()
    };
    while device.held_up() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(try_write(&device, 1, 1), None);
    assert!(!held.is_finished());
    device.release();
    assert_eq!(held.join().unwrap(), Some(libc::EIO));
    assert_eq!((block(&device.view(), 0)[0], device.held_up()), (0, 0));
}

#[test]
fn a_plan_for_a_range_counts_what_touches_it() {
    let device = sim();
    device.set_plan(FaultPlan::new(1).fail(OpKind::Write, 1, libc::EIO).only_in(4 * B..6 * B));
    let answers = [0, 4, 3, 5, 5].map(|at| try_write(&device, at, 1).is_some());
    assert_eq!(answers, [false, false, false, true, false]);
    assert_eq!(device.op_counts().writes, 3);
}

#[test]
fn marked_data_is_refused_wherever_it_goes() {
    let device = sim();
    device.set_plan(FaultPlan::new(1).refuse([7; 8], libc::EIO));
    assert_eq!((try_write(&device, 0, 1), try_write(&device, 9, 2)), (Some(libc::EIO), Some(libc::EIO)));
    assert_eq!(errno_of(device.write(0, &filled(8), false)), None);
    assert_eq!(errno_of(device.discard(0, B)), None);
}
