//! Concurrent reservations of a small log: each is granted in the end without a checkpoint, and all
//! bytes are accounted for.

use super::stage;
use crate::run::{Config, Run, explore, run};
use crate::strategy::Plan;
use kedge_base::{BLOCK_SIZE, BlockNo, Epoch, Lsn, Result, SystemClock};
use kedge_device::MemDevice;
use kedge_format::logwrite::{LogKey, LogSecret};
use kedge_log::{Barrier, ForceCause, Log, LogConfig, RECORD_OVERHEAD, ReserveClass};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

const RING_BLOCKS: u64 = 128;
const THREADS: usize = 3;
const TURNS: usize = 3;
const RECORD: usize = 100;
/// The approximate virtual time of a thread's work.
const SPAN: Duration = Duration::from_micros(60);

struct NoData;

impl Barrier for NoData {
    fn barrier(&self) -> Result<()> {
        Ok(())
    }

    fn settle(&self) -> Result<bool> {
        Ok(false)
    }

    fn flush_after(&self) -> Result<()> {
        Ok(())
    }
}

fn open() -> Arc<Log> {
    let config = LogConfig {
        key: LogKey { uuid: Default::default(), secret: LogSecret([9; 16]) },
        epoch: Epoch(1),
        ring_start: BlockNo(0),
        ring_blocks: RING_BLOCKS,
        use_bytes_max: u64::MAX,
        head: Lsn(0),
        tail: Lsn(0),
        in_flight_max: 2,
        staged_bytes_max: u64::MAX,
    };
    let device = Arc::new(MemDevice::new(RING_BLOCKS * BLOCK_SIZE as u64));
    Log::new(device, Arc::new(SystemClock::default()), Arc::new(NoData), config)
}

/// The work of one thread: it reserves most of the log, and appends or returns everything.
fn work(log: &Log, seed: u64) -> Result<u64> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut appended = 0;
    for _ in 0..TURNS {
        let most = log.free_bytes_max();
        let bytes = rng.random_range(most / 3..most * 3 / 4);
        let class = if rng.random_ratio(1, 4) { ReserveClass::Reclaim } else { ReserveClass::Normal };
        let mut reservation = log.reserve(bytes, class)?;
        match rng.random_range(0..4) {
            0 => drop(reservation),
            1 => {
                log.append_as(&mut reservation, &[1; RECORD], true, true);
                appended += 1;
            }
            2 => {
                let end = log.append(&mut reservation, &[1; RECORD]).end;
                appended += 1;
                drop(reservation);
                log.force(end, ForceCause::Fsync)?;
            }
            _ => {
                log.promise(RECORD_OVERHEAD as i64);
                drop(reservation);
                log.promise(-(RECORD_OVERHEAD as i64));
            }
        }
    }
    Ok(appended)
}

fn body(seed: u64) -> std::result::Result<(), String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    explore(false);
    let log = open();
    explore(true);
    let mut threads = Vec::new();
    for i in 0..THREADS {
        let (log, seed) = (log.clone(), rng.random());
        threads.push(stage::start(&mut rng, &format!("t{i}"), SPAN, move || work(&log, seed))?);
    }
    let mut appended = 0;
    for thread in threads {
        appended += thread.join().map_err(|_| "a thread panicked")?.map_err(|e| e.to_string())?;
    }
    explore(false);
    let (space, records) = (log.space(), log.stats().records.get());
    if (space.reserved_bytes, space.promised_bytes, records) != (0, 0, appended) {
        return Err(format!("{appended} records were appended, and nothing is held: {space:?}"));
    }
    if log.free_bytes() != log.free_bytes_max() - space.used_bytes {
        return Err(format!("{} bytes are free beside {space:?}", log.free_bytes()));
    }
    log.stop();
    Ok(())
}

pub fn play(seed: u64, plan: &Plan) -> Run {
    run(&Config::new(seed, plan.clone()), move || body(seed))
}
