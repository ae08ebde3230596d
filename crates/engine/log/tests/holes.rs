//! A ring with holes on a host that may be full: no log write is the first write to a block, a
//! reservation fails if the host has no space for it, and a crash loses no forced record.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Found, Host, MemDevice, RING_START, Setup};
use kedge_base::{BLOCK_SIZE, Epoch, Lsn, errno};
use kedge_log::{ForceCause, Log, ReserveClass};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

const RING: usize = 512;

struct Mount {
    log: Arc<Log>,
    appended: Vec<Found>,
    forced: Lsn,
    tail: Lsn,
}

impl Mount {
    fn reserve_and_append(&mut self, len: usize, class: ReserveClass) -> Result<(), i32> {
        let Some(mut reservation) = self.log.try_reserve(len as u64, class).map_err(|e| e.errno())? else {
            // A checkpoint; its records were reserved.
            let cut = self.log.seal();
            self.force();
            self.tail = cut;
            self.log.advance_tail(cut);
            return Ok(());
        };
        let record = vec![len as u8; len];
        let at = self.log.append(&mut reservation, &record);
        self.appended.push((at, record));
        Ok(())
    }

    fn force(&mut self) {
        self.log.force(self.log.head_lsn(), ForceCause::Sync).expect("no log write meets a full host");
        self.forced = self.log.head_lsn();
    }
}

/// One mount of a log: it is opened, used on a host with little free space, and crashed. Returns
/// the image and the LSN at which the next mount starts.
fn life(
    image: Vec<u8>,
    backed: Vec<bool>,
    start: Lsn,
    epoch: u64,
    rng: &mut StdRng,
) -> (Vec<u8>, Vec<bool>, Lsn) {
    let mut s = Setup::new(MemDevice::from_image(image, rng.random(), Duration::ZERO));
    s.device.put_on(Host { backed, room: rng.random_range(0..200) });
    s.epoch = Epoch(epoch);
    let mut m = Mount { log: s.open(start, start), appended: Vec::new(), forced: start, tail: start };
    let mut refused = 0;
    for _ in 0..rng.random_range(1..400) {
        let len = if rng.random_bool(0.1) { rng.random_range(1..60_000) } else { rng.random_range(1..3000) };
        if let Err(errno) = m.reserve_and_append(len, ReserveClass::Normal) {
            assert_eq!(errno, 28);
            refused += 1;
            // On a full host files can still be deleted, at least the first few. An earlier mount
            // may have used up the space that is kept for deletions.
            if refused == 1 && !m.appended.is_empty() {
                assert_eq!(m.reserve_and_append(200, ReserveClass::Reclaim), Ok(()));
            }
        }
        if rng.random_bool(0.2) {
            m.force();
        }
        if rng.random_bool(0.02) {
            s.device.host(|host| host.room += 100);
        }
        assert!(m.log.shutdown_reason().is_none());
    }
    s.device.crash();
    let image = s.device.image();
    let (end, found) = s.scan(image.clone(), m.tail).expect("a crash is not corruption");
    let expected: Vec<&Found> = m.appended.iter().filter(|(at, _)| at.start >= m.tail).collect();
    assert!(found.len() <= expected.len());
    assert!(found.iter().zip(&expected).all(|(have, want)| have == *want));
    if let Some((at, _)) = expected.get(found.len()) {
        assert!(at.end > m.forced, "forced to {}, and {at:?} is lost; {end:?}", m.forced);
    }
    (image, s.device.host(|host| host.backed.clone()), end.head)
}

#[test]
fn no_log_write_needs_its_host_and_a_crash_loses_nothing() {
    let mut whole = 0;
    for seed in 0..150 {
        let mut rng = StdRng::seed_from_u64(seed);
        let blocks = RING + RING_START as usize;
        let mut backed = vec![true; blocks];
        let first = rng.random_range(64..200);
        backed[RING_START as usize + first..].fill(false);
        let (mut image, mut start) = (vec![0; blocks * BLOCK_SIZE], Lsn(0));
        for epoch in 1..6 {
            (image, backed, start) = life(image, backed, start, epoch, &mut rng);
            if rng.random_bool(0.2) {
                // A copy of the image file may have holes in place of zeros anywhere.
                for (block, backed) in backed.iter_mut().enumerate().skip(RING_START as usize) {
                    let bytes = &image[block * BLOCK_SIZE..(block + 1) * BLOCK_SIZE];
                    *backed &= bytes.iter().any(|b| *b != 0);
                }
            }
        }
        whole += usize::from(backed.iter().all(|backed| *backed));
    }
    assert!(whole > 10, "{whole} rings were used in full");
}

/// When several threads reserve, only one of them writes zeros, and no zeros overwrite a log write.
#[test]
fn one_thread_at_a_time_writes_ahead_of_the_log() {
    for seed in 0..20 {
        let blocks = RING + RING_START as usize;
        let s = Setup::new(MemDevice::with_latency(blocks, seed, Duration::from_micros(50)));
        let mut backed = vec![true; blocks];
        backed[RING_START as usize + 64..].fill(false);
        s.device.put_on(Host { backed, room: blocks });
        let log = s.open(Lsn(0), Lsn(0));
        let threads: Vec<_> = (0..4u8)
            .map(|t| {
                let log = log.clone();
                let work = move || {
                    let mut appended = Vec::new();
                    for i in 0..200usize {
                        let Some(mut reservation) =
                            log.try_reserve(i as u64 + 500, ReserveClass::Normal).unwrap()
                        else {
                            break;
                        };
                        let record = vec![t + 1; i + 500];
                        appended.push((log.append(&mut reservation, &record), record));
                        log.force(log.head_lsn(), ForceCause::Sync).unwrap();
                    }
                    appended
                };
                kedge_base::spawn_named("worker", work).unwrap()
            })
            .collect();
        let mut appended: Vec<Found> =
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        appended.sort_by_key(|(at, _)| at.start);
        s.device.crash();
        let (_, found) = s.scan(s.device.image(), Lsn(0)).unwrap();
        assert!(found == appended, "{} of {} records", found.len(), appended.len());
        assert!(appended.len() > 300);
    }
}

/// A device whose next flush fails and drops file data would complete the flush before the next log
/// write, whose record refers to that data. A failed write of zeros affects nothing else.
#[test]
fn a_failed_flush_ahead_of_the_log_shuts_the_log_down() {
    for errno in [errno::EIO, errno::ENOSPC] {
        for is_flush in [true, false] {
            let blocks = RING + RING_START as usize;
            let s = Setup::new(MemDevice::new(blocks, 1));
            let mut backed = vec![true; blocks];
            backed[RING_START as usize + 64..].fill(false);
            s.device.put_on(Host { backed, room: if is_flush { blocks } else { 0 } });
            let log = s.open(Lsn(0), Lsn(0));
            if is_flush {
                s.device.fail_flush(errno);
            }
            let reserve = || log.try_reserve(60_000, ReserveClass::Normal);
            let mut held = Vec::new();
            let error = loop {
                match reserve() {
                    Ok(granted) => held.push(granted.expect("the log has space")),
                    Err(error) => break error,
                }
            };
            assert_eq!(
                (error.errno(), error.is_failed_flush()),
                if is_flush { (errno, true) } else { (28, false) }
            );
            assert_eq!(log.shutdown_reason().is_some(), is_flush, "{error}");
            if is_flush {
                assert_eq!(reserve().map(drop).unwrap_err().errno(), errno::EIO);
                let mut reservation = held.pop().unwrap();
                let at = log.append(&mut reservation, &[1; 100]);
                assert!(log.force(at.end, ForceCause::Sync).is_err());
                assert_eq!(s.device.flushes(), 1, "nothing is flushed again");
            }
        }
    }
}
