//! Appends and forces per second: on a device in memory, and on a file if its path is given.
//!
//! `logbench [FILE] [in_flight_max...]`; the file is created, written full, opened with O_DSYNC
//! (and O_DIRECT) and left behind.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::{MemDevice, Setup};
use kedge_base::{BLOCK_SIZE, BlockNo, Clock, Error, IoBuf, Lsn, Result, SystemClock};
use kedge_device::{CompletionSink, Device, DeviceStats, FuaKind, Geometry, Request};
use kedge_log::{ForceCause, Log, LogConfig, ReserveClass};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const RECORD: [u8; 150] = [7; 150];
const RING_BLOCKS: u64 = 16 << 8;

struct FileDevice {
    stats: DeviceStats,
    file: File,
    geometry: Geometry,
}

impl FileDevice {
    fn open(path: &str, blocks: u64) -> Arc<FileDevice> {
        const O_DIRECT: i32 = 0o40000;
        const O_DSYNC: i32 = 0o10000;
        std::fs::write(path, vec![0xff; (blocks as usize) * BLOCK_SIZE]).unwrap();
        File::open(path).unwrap().sync_all().unwrap();
        let file =
            File::options().read(true).write(true).custom_flags(O_DIRECT | O_DSYNC).open(path).unwrap();
        let geometry = Geometry {
            size: blocks * BLOCK_SIZE as u64,
            optimal_io: 1 << 20,
            discard_granularity: 0,
            discard_zeroes: false,
            fua: FuaKind::Native,
        };
        Arc::new(FileDevice { file, geometry, stats: DeviceStats::default() })
    }
}

impl Device for FileDevice {
    fn stats(&self) -> &DeviceStats {
        &self.stats
    }
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    fn submit(&self, _: Vec<Request>, _: Arc<dyn CompletionSink>) {
        unreachable!("the log writes synchronously");
    }
    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        let len = buf.len() as u64;
        self.file.read_exact_at(buf.as_mut_bytes(), offset).map_err(|e| Error::io("read", offset, len, &e))
    }
    fn write(&self, offset: u64, buf: &IoBuf, _: bool) -> Result<()> {
        self.file
            .write_all_at(buf.as_bytes(), offset)
            .map_err(|e| Error::io("write", offset, buf.len() as u64, &e))
    }
    fn flush(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| Error::io("flush", 0, 0, &e))
    }
    fn discard(&self, _: u64, _: u64) -> Result<()> {
        unreachable!("the log discards nothing");
    }
    fn write_zeroes(&self, _: u64, _: u64) -> Result<()> {
        unreachable!("the log zeroes nothing");
    }
    fn name(&self) -> &str {
        "file"
    }
}

fn open(device: Arc<dyn Device>, in_flight_max: usize) -> Arc<Log> {
    let setup = Setup::new(MemDevice::new(8, 0));
    let config = LogConfig {
        key: setup.key,
        epoch: setup.epoch,
        ring_start: BlockNo(0),
        ring_blocks: RING_BLOCKS,
        head: Lsn(0),
        tail: Lsn(0),
        in_flight_max,
        staged_bytes_max: 8 << 20,
    };
    Log::new(device, Arc::new(SystemClock::default()), setup.barrier, config)
}

/// Appends without forces.
fn appends(device: Arc<dyn Device>, threads: usize, seconds: u64) {
    let log = open(device, 4);
    let (rate, _) = run(&log, threads, seconds, |log| {
        let mut reservation = log.reserve(RECORD.len() as u64, ReserveClass::Normal).unwrap();
        log.append(&mut reservation, &RECORD);
    });
    println!("append, {threads:2} threads: {:6.2} M/s with a reservation each", rate / 1e6);
}

/// The cost of an append alone: reservations of 1000 records.
fn bare_appends(device: Arc<dyn Device>, seconds: u64) {
    let log = open(device, 4);
    const MANY: u64 = 1000 * (RECORD.len() as u64 + kedge_log::RECORD_OVERHEAD);
    let (rate, _) = run(&log, 1, seconds, |log| {
        let mut reservation = log.reserve(MANY, ReserveClass::Normal).unwrap();
        for _ in 0..1000 {
            log.append(&mut reservation, &RECORD);
        }
    });
    println!("append,  1 thread:  {:6.2} M/s with a reservation for 1000", rate * 1000.0 / 1e6);
}

fn forces(device: Arc<dyn Device>, in_flight_max: usize, threads: usize, seconds: u64) {
    let log = open(device, in_flight_max);
    let (rate, elapsed) = run(&log, threads, seconds, |log| {
        let mut reservation = log.reserve(RECORD.len() as u64, ReserveClass::Normal).unwrap();
        let at = log.append(&mut reservation, &RECORD);
        log.force(at.end, ForceCause::Fsync).unwrap();
    });
    let stats = log.stats();
    let (force, write) = (stats.force_latency.snapshot(), stats.write_latency.snapshot());
    println!(
        "force,  {threads:2} threads, {in_flight_max} in flight: {rate:8.0}/s, {:8.0} writes/s, {:5.2} records a write; \
         force {:6.1} us avg, {:6.1} us p99; write {:6.1} us avg",
        stats.writes.get() as f64 / elapsed.as_secs_f64(),
        stats.group_records.snapshot().average(),
        force.average() / 1e3,
        force.quantile(0.99) as f64 / 1e3,
        write.average() / 1e3,
    );
}

/// Calls of `step` per second, over all threads. This thread acts as the checkpoint: the tail
/// follows the durable log.
fn run(log: &Arc<Log>, threads: usize, seconds: u64, step: fn(&Log)) -> (f64, Duration) {
    let stop = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicU64::new(0));
    let clock = SystemClock::default();
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let (log, stop, count) = (log.clone(), stop.clone(), count.clone());
            kedge_base::spawn_named("bench", move || {
                let mut n = 0;
                while !stop.load(Relaxed) {
                    step(&log);
                    n += 1;
                }
                count.fetch_add(n, Relaxed);
            })
            .unwrap()
        })
        .collect();
    while !workers.iter().all(|w| w.is_finished()) {
        std::thread::sleep(Duration::from_millis(1));
        log.advance_tail(log.durable_lsn());
        stop.store(clock.monotonic() >= Duration::from_secs(seconds), Relaxed);
    }
    let elapsed = clock.monotonic();
    (count.load(Relaxed) as f64 / elapsed.as_secs_f64(), elapsed)
}

fn main() {
    let mut args = std::env::args().skip(1);
    let Some(path) = args.next() else {
        let memory = || MemDevice::new(RING_BLOCKS as usize, 0);
        bare_appends(memory(), 2);
        for threads in [1, 2, 4] {
            appends(memory(), threads, 2);
        }
        for threads in [1, 2, 4, 16] {
            forces(memory(), 4, threads, 2);
        }
        return;
    };
    let in_flight: Vec<usize> = args.map(|a| a.parse().unwrap()).collect();
    let device = FileDevice::open(&path, RING_BLOCKS);
    for threads in [1, 2, 4, 8, 16] {
        for &n in if in_flight.is_empty() { &[1, 2, 4][..] } else { &in_flight } {
            forces(device.clone(), n, threads, 2);
        }
    }
}
