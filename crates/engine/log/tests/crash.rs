//! Random logs with a power cut at a random time: a scan returns exactly a prefix of the appended
//! records, which includes all forced records.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Found, MemDevice, Setup};
use kedge_base::{Epoch, Lsn};
use kedge_log::{ForceCause, Log, ReserveClass};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug)]
enum Op {
    Append(usize),
    Force,
    /// Forces the log to the n-th newest record.
    ForceOlder(usize),
    Seal,
    /// Moves the tail to this fraction (of 255) of the durable writes.
    AdvanceTail(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (1usize..300).prop_map(Op::Append),
        2 => (1usize..30_000).prop_map(Op::Append),
        4 => Just(Op::Force),
        1 => (0usize..8).prop_map(Op::ForceOlder),
        1 => Just(Op::Seal),
        2 => any::<u8>().prop_map(Op::AdvanceTail),
    ]
}

/// One mount: its appended records, its forces, and the tail in its simulated superblock.
struct Mount {
    log: Arc<Log>,
    appended: Vec<Found>,
    forced: Lsn,
    tail: Lsn,
    dead: bool,
}

impl Mount {
    fn force(&mut self, upto: Lsn) {
        let upto = upto.min(self.log.head_lsn());
        match self.log.force(upto, ForceCause::Sync) {
            Ok(()) => self.forced = self.forced.max(upto),
            Err(_) => self.dead = true,
        }
    }

    fn advance_tail(&mut self, to: Lsn) {
        self.tail = self.tail.max(to);
        self.log.advance_tail(to);
    }

    fn apply(&mut self, op: &Op, fill: u8) {
        match *op {
            Op::Append(len) => {
                let mut reservation = self.log.try_reserve(len as u64, ReserveClass::Normal);
                if matches!(reservation, Ok(None)) {
                    // The log is full, so everything is checkpointed.
                    let cut = self.log.seal();
                    self.force(cut);
                    if self.dead {
                        return;
                    }
                    self.advance_tail(cut);
                    reservation = self.log.try_reserve(len as u64, ReserveClass::Normal);
                }
                let Ok(reservation) = reservation else {
                    self.dead = true;
                    return;
                };
                let record = vec![fill; len];
                let at = self.log.append(&mut reservation.expect("an empty log has room"), &record);
                self.appended.push((at, record));
            }
            Op::Force => self.force(self.log.head_lsn()),
            Op::ForceOlder(n) => {
                if let Some((at, _)) = self.appended.iter().rev().nth(n) {
                    self.force(at.end);
                }
            }
            Op::Seal => {
                self.log.seal();
            }
            Op::AdvanceTail(part) => {
                let durable = self.log.durable_lsn();
                let starts: Vec<Lsn> = self
                    .appended
                    .iter()
                    .map(|(at, _)| at.write_start)
                    .filter(|s| *s >= self.tail && *s <= durable)
                    .collect();
                if !starts.is_empty() {
                    self.advance_tail(starts[starts.len() * part as usize / 256]);
                }
            }
        }
    }
}

/// Scans from the tail in the superblock slot and checks the guarantee. Returns the head.
fn check(s: &Setup, image: Vec<u8>, tail: Lsn, appended: &[Found], forced: Lsn) -> Lsn {
    let (end, found) = s.scan(image, tail).expect("a crash is not corruption");
    let expected: Vec<&Found> = appended.iter().filter(|(at, _)| at.start >= tail).collect();
    assert!(found.len() <= expected.len(), "{} records found, {} appended", found.len(), expected.len());
    for (have, want) in found.iter().zip(&expected) {
        assert_eq!(have.0, want.0, "position");
        assert!(have.1 == want.1, "content of the record at {:?}", have.0);
    }
    if let Some((at, _)) = expected.get(found.len()) {
        assert!(
            at.end > forced,
            "the record at {at:?} was forced (to {forced}) and is lost; scan ended {end:?}"
        );
    }
    end.head
}

fn mounts(ring_blocks: usize, mounts: Vec<(Vec<Op>, Option<u64>)>, in_flight_max: usize, seed: u64) {
    let mut image = vec![0; (ring_blocks + common::RING_START as usize) * kedge_base::BLOCK_SIZE];
    let mut start = Lsn(0);
    for (round, (ops, crash)) in mounts.into_iter().enumerate() {
        let mut s = Setup::new(MemDevice::from_image(image, seed + round as u64, Duration::ZERO));
        s.epoch = Epoch(round as u64 + 1);
        s.in_flight_max = in_flight_max;
        let mut m = Mount {
            log: s.open(start, start),
            appended: Vec::new(),
            forced: start,
            tail: start,
            dead: false,
        };
        if let Some(n) = crash {
            s.device.crash_in_write(n);
        }
        for (i, op) in ops.iter().enumerate() {
            m.apply(op, i as u8);
            if m.dead {
                break;
            }
        }
        s.device.crash();
        image = s.device.image();
        start = check(&s, image.clone(), m.tail, &m.appended, m.forced);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_crash_leaves_a_prefix_with_all_that_was_forced(
        ring_blocks in 24usize..80,
        rounds in prop::collection::vec((prop::collection::vec(op(), 1..120), prop::option::of(0u64..60)), 1..5),
        in_flight_max in 1usize..5,
        seed in any::<u32>(),
    ) {
        mounts(ring_blocks, rounds, in_flight_max, seed.into());
    }
}

/// Several threads append, force and checkpoint concurrently when the power is cut.
fn threads_and_a_crash(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let latency = Duration::from_micros(rng.random_range(0..200));
    let s = Arc::new(Setup::new(MemDevice::with_latency(300, seed, latency)));
    let start = Lsn(rng.random_range(0..1000) * 4096);
    let log = s.open(start, start);
    let tail = Arc::new(kedge_base::lock::Mutex::new(kedge_base::lock::Rank::Checkpoint, start));
    s.device.crash_in_write(rng.random_range(0..300));
    let workers: Vec<_> = (0..6u64)
        .map(|t| {
            let (log, tail) = (log.clone(), tail.clone());
            let mut rng = StdRng::seed_from_u64(seed ^ (t + 1) << 32);
            kedge_base::spawn_named("worker", move || worker(t, &log, &tail, &mut rng)).unwrap()
        })
        .collect();
    let mut appended = Vec::new();
    let mut forced = start;
    for worker in workers {
        let (mine, my_forced) = worker.join().unwrap();
        appended.extend(mine);
        forced = forced.max(my_forced);
    }
    appended.sort_by_key(|(at, _): &Found| at.start);
    log.stop();
    let tail = *tail.lock();
    check(&s, s.device.image(), tail, &appended, forced);
}

fn worker(t: u64, log: &Log, tail: &kedge_base::lock::Mutex<Lsn>, rng: &mut StdRng) -> (Vec<Found>, Lsn) {
    let mut appended = Vec::new();
    let mut forced = Lsn(0);
    for i in 0..2000u64 {
        let len = if rng.random_bool(0.02) { rng.random_range(1..100_000) } else { rng.random_range(1..300) };
        let Ok(reservation) = log.try_reserve(len as u64, ReserveClass::Normal) else { break };
        let Some(mut reservation) = reservation else {
            // The mutex stands for the superblock, which must contain the tail before the log may
            // reuse the space.
            let mut slot = tail.lock();
            let cut = log.durable_lsn().min(log.head_lsn());
            if log.force(cut, ForceCause::Space).is_err() {
                break;
            }
            if cut > *slot && log.shutdown_reason().is_none() {
                *slot = cut;
                log.advance_tail(cut);
            } else {
                let _ended_by_shutdown = log.force(log.head_lsn(), ForceCause::Space);
            }
            continue;
        };
        let record = vec![(t * 40 + i % 40) as u8; len];
        let at = log.append(&mut reservation, &record);
        appended.push((at, record));
        if rng.random_bool(0.3) {
            let upto = if rng.random_bool(0.5) { at.end } else { log.head_lsn() };
            match log.force(upto, ForceCause::Fsync) {
                Ok(()) => forced = forced.max(upto),
                Err(_) => break,
            }
        }
    }
    (appended, forced)
}

#[test]
fn threads_and_a_crash_leave_a_prefix_with_all_that_was_forced() {
    for seed in 0..150 {
        // The output of a failed test contains the seed.
        eprintln!("seed {seed}");
        threads_and_a_crash(seed);
    }
}
