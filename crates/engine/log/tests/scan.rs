//! Scans of logs that no crash can produce. Recovery must report them as corrupt, and must never
//! return a wrong record.
#![allow(clippy::unwrap_used)]

mod common;

use common::{MemDevice, RING_START, Setup};
use kedge_base::{BLOCK_SIZE, CorruptKind, Epoch, Error, IoBuf, Lsn, Result};
use kedge_device::Device;
use kedge_device::sim::{DistantDevice, FaultPlan, OpKind, SimDevice};
use kedge_format::logwrite::{FRAME_SIZE, HEADER_SIZE, WriteHeader};
use kedge_log::{ForceCause, Log, ReserveClass, StopReason};
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u64 = BLOCK_SIZE as u64;

fn append(log: &Log, record: &[u8]) -> kedge_log::RecordLsn {
    let mut reservation = log.reserve(record.len() as u64, ReserveClass::Normal).unwrap();
    log.append(&mut reservation, record)
}

/// Makes a log with one acknowledged write for each entry of `writes`, from `start` on.
fn written(ring_blocks: usize, start: Lsn, writes: &[&[usize]]) -> Setup {
    let s = Setup::new(MemDevice::new(ring_blocks + RING_START as usize, 1));
    let log = s.open(start, start);
    for (i, records) in writes.iter().enumerate() {
        for &len in *records {
            append(&log, &vec![i as u8 + 1; len]);
        }
        log.force(log.head_lsn(), ForceCause::Fsync).unwrap();
    }
    s
}

fn is_corrupt(result: Result<(kedge_log::ScanEnd, Vec<common::Found>)>, words: &str) {
    match result {
        Err(Error::Corrupt { kind: CorruptKind::Log, what, .. }) => assert!(what.contains(words), "{what}"),
        other => panic!("{other:?}"),
    }
}

/// Puts a log write with one record into an image at `place`, which may differ from `header.lsn`.
fn put(s: &Setup, image: &mut [u8], place: Lsn, header: WriteHeader, record: &[u8]) {
    let mut buf = IoBuf::zeroed(header.blocks as usize);
    let bytes = buf.as_mut_bytes();
    bytes[HEADER_SIZE..HEADER_SIZE + 4].copy_from_slice(&(record.len() as u32).to_le_bytes());
    bytes[HEADER_SIZE + FRAME_SIZE..HEADER_SIZE + FRAME_SIZE + record.len()].copy_from_slice(record);
    header.seal(&s.key, bytes);
    let at = (RING_START * BLOCK + place.0 % (s.ring_blocks * BLOCK)) as usize;
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

fn header(lsn: u64, durable: u64) -> WriteHeader {
    WriteHeader {
        epoch: Epoch(1),
        lsn: Lsn(lsn),
        blocks: 1,
        tail_lsn: Lsn(0),
        durable_lsn: Lsn(durable),
        payload_bytes: 4 + 3,
        records: 1,
    }
}

#[test]
fn every_flipped_bit_ends_the_log_before_it_or_is_reported() {
    // The log crosses the end of the ring, with a write of two blocks in the middle.
    let start = Lsn(14 * BLOCK);
    let s = written(16, start, &[&[10, 20], &[5000], &[1, 2, 3]]);
    let image = s.device.image();
    let (end, all) = s.scan(image.clone(), start).unwrap();
    assert_eq!((end.writes, all.len()), (3, 6));
    let starts: Vec<u64> = vec![14, 15, 17, 18];
    let device = MemDevice::from_image(image.clone(), 0, Duration::ZERO);
    let (mut reported, mut shortened) = (0, 0);
    for write in 0..3 {
        for block in starts[write]..starts[write + 1] {
            let at = (RING_START + block % 16) * BLOCK;
            let original = image[at as usize..(at + BLOCK) as usize].to_vec();
            for bit in 0..BLOCK_SIZE * 8 {
                let mut flipped = IoBuf::from_bytes(&original);
                flipped.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
                device.write(at, &flipped, true).unwrap();
                match s.scan_device(&*device, start) {
                    Ok((end, found)) => {
                        assert_eq!(end.head, Lsn(starts[write] * BLOCK), "block {block} bit {bit}");
                        assert_eq!(found, all[..found.len()], "block {block} bit {bit}");
                        assert_eq!(write, 2, "a durable write was lost silently: block {block} bit {bit}");
                        shortened += 1;
                    }
                    Err(Error::Corrupt { kind: CorruptKind::Log, .. }) => reported += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            device.write(at, &IoBuf::from_bytes(&original), true).unwrap();
        }
    }
    assert_eq!((shortened, reported), (BLOCK_SIZE * 8, 3 * BLOCK_SIZE * 8));
}

#[test]
fn a_lost_durable_write_is_named() {
    let s = written(64, Lsn(0), &[&[10], &[10], &[10], &[10]]);
    let mut image = s.device.image();
    let at = ((RING_START + 1) * BLOCK) as usize;
    image[at..at + BLOCK_SIZE].fill(0);
    is_corrupt(s.scan(image.clone(), Lsn(0)), "LSN 4096: the log write there was durable");
    is_corrupt(s.scan(image, Lsn(0)), "@Q");
}

#[test]
fn a_write_in_flight_beside_the_lost_one_proves_nothing() {
    let s = written(64, Lsn(0), &[&[10]]);
    let mut image = s.device.image();
    // The write at block 1 did not complete. The later writes were composed while only block 0 was
    // durable.
    for block in 2..5 {
        put(&s, &mut image, Lsn(block * BLOCK), header(block * BLOCK, BLOCK), b"abc");
    }
    let (end, found) = s.scan(image.clone(), Lsn(0)).unwrap();
    assert_eq!((end.head, found.len(), end.stop), (Lsn(BLOCK), 1, StopReason::NoWrite));
    put(&s, &mut image, Lsn(5 * BLOCK), header(5 * BLOCK, 2 * BLOCK), b"abc");
    is_corrupt(s.scan(image, Lsn(0)), "LSN 4096: the log write there was durable");
}

#[test]
fn the_proof_of_a_loss_is_found_as_far_away_as_it_can_lie() {
    let s = written(4 * 256 + 600, Lsn(0), &[&[10]]);
    let far = BLOCK + 4 * 256 * BLOCK;
    for (lsn, found) in [(far, true), (far + BLOCK, false)] {
        let mut image = s.device.image();
        put(&s, &mut image, Lsn(lsn), header(lsn, 2 * BLOCK), b"abc");
        let result = s.scan(image, Lsn(0));
        if found { is_corrupt(result, "was durable") } else { assert_eq!(result.unwrap().0.head, Lsn(BLOCK)) }
    }
}

#[test]
fn a_newer_epoch_proves_a_lost_superblock_slot() {
    let s = written(64, Lsn(0), &[&[10], &[10]]);
    // Block 2 is where the log continues; block 7 is beyond the stop.
    for block in [2, 7] {
        let mut image = s.device.image();
        let newer = WriteHeader { epoch: Epoch(2), ..header(block * BLOCK, block * BLOCK) };
        put(&s, &mut image, Lsn(block * BLOCK), newer, b"abc");
        is_corrupt(s.scan(image, Lsn(0)), if block == 2 { "@C" } else { "@L" });
        let mut image = s.device.image();
        let older = WriteHeader { epoch: Epoch(0), ..newer };
        put(&s, &mut image, Lsn(block * BLOCK), older, b"abc");
        let (end, found) = s.scan(image, Lsn(0)).unwrap();
        assert_eq!((end.head, found.len()), (Lsn(2 * BLOCK), 2));
        assert_eq!(end.stop, if block == 2 { StopReason::OlderEpoch } else { StopReason::NoWrite });
    }
}

#[test]
fn a_newer_tail_proves_a_lost_superblock_slot() {
    let s = written(64, Lsn(0), &[&[10], &[10]]);
    for block in [2, 5] {
        let mut image = s.device.image();
        let write = WriteHeader { tail_lsn: Lsn(BLOCK), ..header(block * BLOCK, 0) };
        put(&s, &mut image, Lsn(block * BLOCK), write, b"abc");
        is_corrupt(s.scan(image, Lsn(0)), if block == 2 { "@G" } else { "@P" });
    }
}

#[test]
fn a_lap_too_many_proves_a_lost_superblock_slot() {
    // The log has overwritten the writes at the old slot's tail: a write of the next lap is there.
    let s = Setup::new(MemDevice::new(32 + RING_START as usize, 1));
    let log = s.open(Lsn(0), Lsn(0));
    for _ in 0..40 {
        let at = append(&log, &[1; 5000]);
        log.force(at.end, ForceCause::Fsync).unwrap();
        log.advance_tail(log.durable_lsn());
    }
    let (tail, image) = (log.tail_lsn(), s.device.image());
    assert!(s.scan(image.clone(), tail).unwrap().1.is_empty());
    let mut s = s;
    for old in [0, 2, 10, 30] {
        is_corrupt(s.scan(image.clone(), Lsn(old * BLOCK)), "newer superblock slot");
    }
    s.epoch = Epoch(2);
    let (end, _) = s.scan(image, tail).unwrap();
    assert_eq!(end.stop, StopReason::OlderEpoch);
}

#[test]
fn earlier_laps_and_misplaced_copies_never_validate() {
    let s = written(32, Lsn(32 * BLOCK), &[&[10]]);
    let mut image = s.device.image();
    put(&s, &mut image, Lsn(33 * BLOCK), header(BLOCK, 0), b"abc");
    let (end, _) = s.scan(image.clone(), Lsn(32 * BLOCK)).unwrap();
    assert_eq!((end.head, end.stop), (Lsn(33 * BLOCK), StopReason::OlderLap));
    put(&s, &mut image, Lsn(33 * BLOCK), header(34 * BLOCK, 0), b"abc");
    assert_eq!(s.scan(image, Lsn(32 * BLOCK)).unwrap().0.stop, StopReason::OlderLap);
}

#[test]
fn records_that_do_not_divide_the_payload_are_corruption() {
    let s = written(32, Lsn(0), &[&[10]]);
    for (payload_bytes, records) in [(6, 1), (8, 1), (7, 2), (9, 1)] {
        let mut image = s.device.image();
        let write = WriteHeader { payload_bytes, records, ..header(BLOCK, BLOCK) };
        put(&s, &mut image, Lsn(BLOCK), write, b"abc");
        is_corrupt(s.scan(image.clone(), Lsn(0)), "do not divide");
        is_corrupt(s.scan(image, Lsn(0)), "@H");
    }
}

#[test]
fn a_full_ring_ends_at_its_end() {
    let s = Setup::new(MemDevice::new(32 + RING_START as usize, 1));
    let log = s.open(Lsn(5 * BLOCK), Lsn(5 * BLOCK));
    while let Some(mut r) = log.try_reserve(10, ReserveClass::Reclaim).unwrap() {
        let at = log.append(&mut r, &[1; 10]);
        log.force(at.end, ForceCause::Fsync).unwrap();
    }
    // The reserves of the classes keep part of the ring unused; this test fills that part by hand.
    let mut image = s.device.image();
    let mut writes = (log.durable_lsn().0 - 5 * BLOCK) / BLOCK;
    assert!(writes > 0 && writes < 32, "{writes}");
    while writes < 32 {
        let lsn = (5 + writes) * BLOCK;
        put(&s, &mut image, Lsn(lsn), WriteHeader { tail_lsn: Lsn(5 * BLOCK), ..header(lsn, lsn) }, b"abc");
        writes += 1;
    }
    let (end, found) = s.scan(image, Lsn(5 * BLOCK)).unwrap();
    assert_eq!((end.head, found.len(), end.stop), (Lsn(37 * BLOCK), 32, StopReason::RingEnd));
}

#[test]
fn an_error_of_the_visitor_ends_the_scan() {
    let s = written(32, Lsn(0), &[&[10, 10], &[10]]);
    let mut seen = 0;
    let result = kedge_log::scan(&*s.device, s.scan_config(Lsn(0)), &mut |_, _| {
        seen += 1;
        if seen == 2 { Err(Error::NoSpace) } else { Ok(()) }
    });
    assert!(matches!(result, Err(Error::NoSpace)));
    assert_eq!(seen, 2);
}

#[test]
fn nonsense_from_a_slot_is_an_error() {
    let mut s = written(32, Lsn(0), &[&[10]]);
    assert!(s.scan(s.device.image(), Lsn(7)).is_err());
    assert!(s.scan(s.device.image(), Lsn(u64::MAX - 4095)).is_err());
    s.ring_blocks = 0;
    assert!(s.scan(s.device.image(), Lsn(0)).is_err());
}

/// A scan of random bytes in place of log writes never panics.
#[test]
fn garbage_is_no_log() {
    use rand::{Rng, SeedableRng};
    for seed in 0..200u64 {
        eprintln!("seed {seed}");
        let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
        let s = written(32, Lsn(0), &[&[10], &[6000], &[10]]);
        let mut image = s.device.image();
        for _ in 0..rng.random_range(1..200) {
            let at = rng.random_range(RING_START * BLOCK..RING_START * BLOCK + 4 * BLOCK) as usize;
            image[at] = rng.random();
        }
        match s.scan(image, Lsn(0)) {
            Ok((_, found)) => assert!(found.iter().all(|(_, r)| r.len() == 10 || r.len() == 6000)),
            Err(e) => assert!(matches!(e, Error::Corrupt { .. })),
        }
    }
}

// ----- reading ahead -----

const PIECE: u64 = 256 << 10;
const AHEAD: u64 = 4 << 20;

/// Makes a log in memory whose writes fill all of `ring_blocks` from `start` on, except `free`
/// blocks.
fn nearly_full(ring_blocks: u64, start: u64, free: u64) -> (Setup, kedge_device::MemDevice) {
    let s = Setup::new(MemDevice::new(RING_START as usize, 1));
    let s = Setup { ring_blocks, ..s };
    let device = kedge_device::MemDevice::new((RING_START + ring_blocks) * BLOCK);
    let mut at = start;
    while at + 200 <= start + ring_blocks - free {
        let lsn = Lsn(at * BLOCK);
        let write = WriteHeader { blocks: 200, tail_lsn: Lsn(start * BLOCK), ..header(lsn.0, lsn.0) };
        let mut buf = IoBuf::zeroed(200);
        buf.as_mut_bytes()[HEADER_SIZE..HEADER_SIZE + 7].copy_from_slice(b"\x03\0\0\0abc");
        write.seal(&s.key, buf.as_mut_bytes());
        let place = at % ring_blocks;
        let first = (ring_blocks - place).min(200) as usize * BLOCK_SIZE;
        let (left, right) = buf.as_bytes().split_at(first);
        device.write((RING_START + place) * BLOCK, &IoBuf::from_bytes(left), false).unwrap();
        device.write(RING_START * BLOCK, &IoBuf::from_bytes(right), false).unwrap();
        at += 200;
    }
    (s, device)
}

#[test]
fn reads_are_in_flight_ahead_of_the_walk() {
    // A ring of 32 MiB; the log starts in its middle and crosses its end.
    let (ring, start) = (8192, 3 * 8192 + 5000);
    let (s, image) = nearly_full(ring, start, 150);
    let device = DistantDevice::new(Arc::new(image), Duration::ZERO);
    let (end, found) = s.scan_device(&device, Lsn(start * BLOCK)).unwrap();
    let writes = (ring - 150) / 200;
    assert_eq!((end.writes, found.len() as u64), (writes, writes));
    assert_eq!((end.head, end.stop), (Lsn((start + writes * 200) * BLOCK), StopReason::NoWrite));
    // One piece more, because a piece ends at the end of the ring.
    assert_eq!(device.requests(), ring * BLOCK / PIECE + 1);
    let most = 2 * ring * BLOCK / AHEAD + 2;
    assert!(device.rounds() <= most, "{} round trips, at most {most}", device.rounds());
    assert!(device.in_flight_max() as u64 <= AHEAD / PIECE + 1, "{}", device.in_flight_max());
}

#[test]
fn nothing_is_read_that_lies_further_beyond_the_stop_than_the_walk_looks() {
    let (ring, start) = (8192, 0);
    let (s, image) = nearly_full(ring, start, 7000);
    let device = DistantDevice::new(Arc::new(image), Duration::ZERO);
    let (end, _) = s.scan_device(&device, Lsn(0)).unwrap();
    assert_eq!(end.writes, 5);
    let needed = (end.head.0 + AHEAD + BLOCK).div_ceil(PIECE);
    assert_eq!(device.requests(), needed);
}

#[test]
fn a_bad_block_fails_the_scan_only_where_a_decision_rests_on_it() {
    let (ring, start) = (8192, 0);
    let (s, image) = nearly_full(ring, start, 7000);
    let stop = 1000;
    let last = stop + AHEAD / BLOCK; // the last block at which the walk looks
    let scan = |bad: u64| {
        let device = SimDevice::new(image.fork());
        let place = (RING_START + bad) * BLOCK;
        device.set_plan(FaultPlan::new(1).bad_range(OpKind::Read, place..place + BLOCK, 5));
        (s.scan_device(&device, Lsn(0)), device.struck())
    };
    // The block is in the same piece as the last blocks that are needed, but is not needed itself.
    let (result, struck) = scan(last + 1);
    let (end, found) = result.unwrap();
    assert_eq!((end.head, found.len(), struck), (Lsn(stop * BLOCK), 5, 1));
    // The block is not read at all.
    let (result, struck) = scan(last + 2 * PIECE / BLOCK);
    assert_eq!((result.unwrap().0.head, struck), (Lsn(stop * BLOCK), 0));
    // The bad block holds a record, is the stop, or might prove a loss.
    for bad in [0, 200, 999, stop, stop + 1, last] {
        let (result, struck) = scan(bad);
        assert!(matches!(result, Err(Error::Io { .. })), "block {bad}: {result:?}");
        assert_eq!(struck, 2, "block {bad}: once with its piece, once alone");
    }
}

#[test]
fn a_device_that_is_gone_fails_the_scan_at_once() {
    let (s, image) = nearly_full(8192, 0, 7000);
    let device = SimDevice::new(image);
    device.set_plan(FaultPlan::new(1).unknown_write(0));
    device.write(0, &IoBuf::zeroed(1), false).unwrap_err();
    let result = s.scan_device(&device, Lsn(0));
    assert!(matches!(result, Err(Error::OutcomeUnknown)), "{result:?}");
}

/// The headers of most writes beyond the stop prove nothing, so the bodies of these are not read.
#[test]
fn a_write_beyond_the_stop_is_read_only_if_its_header_decides() {
    let (s, image) = nearly_full(8192, 0, 7000);
    let last = 1000 + AHEAD / BLOCK;
    let body = last + 2 * PIECE / BLOCK;
    let scan = |header: WriteHeader| {
        let fork = image.fork();
        let mut buf = IoBuf::zeroed(200);
        buf.as_mut_bytes()[HEADER_SIZE..HEADER_SIZE + 7].copy_from_slice(b"\x03\0\0\0abc");
        header.seal(&s.key, buf.as_mut_bytes());
        fork.write((RING_START + last) * BLOCK, &buf, false).unwrap();
        let device = SimDevice::new(fork);
        let place = (RING_START + body) * BLOCK;
        device.set_plan(FaultPlan::new(1).bad_range(OpKind::Read, place..place + BLOCK, 5));
        (s.scan_device(&device, Lsn(0)), device.struck())
    };
    let lsn = last * BLOCK;
    let in_flight = WriteHeader { blocks: 200, ..header(lsn, 1000 * BLOCK) };
    let older = WriteHeader { epoch: Epoch(0), ..in_flight };
    let misplaced = WriteHeader { lsn: Lsn(lsn + BLOCK), ..in_flight };
    for header in [in_flight, older, misplaced] {
        let (result, struck) = scan(header);
        assert_eq!((result.unwrap().0.head, struck), (Lsn(1000 * BLOCK), 0), "{header:?}");
    }
    let proof = WriteHeader { durable_lsn: Lsn(1001 * BLOCK), ..in_flight };
    let (result, struck) = scan(proof);
    assert!(matches!(result, Err(Error::Io { .. })) && struck > 0, "{result:?}");
}

#[test]
fn a_part_is_read_again_and_nothing_beyond_it() {
    // The log starts in the middle of the ring and crosses its end.
    let (ring, start) = (8192, 3 * 8192 + 5000);
    let (s, image) = nearly_full(ring, start, 150);
    let (end, all) = s.scan_device(&image, Lsn(start * BLOCK)).unwrap();
    let device = DistantDevice::new(Arc::new(image.fork()), Duration::ZERO);
    let first = all.len() - 15;
    let from = all[first].0.write_start;
    let mut found = Vec::new();
    s.scan_again(&device, from, end.head, &mut |lsn, record| {
        found.push((lsn, record.to_vec()));
        Ok(())
    })
    .unwrap();
    assert_eq!(found, all[first..]);
    // The range that is read again may cross the end of the ring.
    let pieces = (end.head.0 - from.0).div_ceil(PIECE);
    assert!((pieces..=pieces + 1).contains(&device.requests()), "{} requests", device.requests());
    // The medium has changed since the first scan.
    let place = (RING_START + (from.0 / BLOCK + 3 * 200) % ring) * BLOCK;
    image.write(place, &IoBuf::zeroed(1), false).unwrap();
    let again = s.scan_again(&image, from, end.head, &mut |_, _| Ok(()));
    match again {
        Err(Error::Corrupt { kind: CorruptKind::Log, what, .. }) => {
            assert!(what.contains("when it is read again"), "{what}");
        }
        other => panic!("{other:?}"),
    }
}
