//! The time of a mount after a crash on a remote device: the figures of docs/DISTRIBUTED.md.
//!
//! An image in memory gets a log that is nine tenths full. It is opened through a device that
//! completes each request after a latency and serves any number at once. Round trips are those that
//! recovery waited for in sequence; they do not depend on the load of the machine.
//!
//! ```text
//! cargo run --profile soak -p kedge-bench --example recovery -- MODE LOG_MIB LATENCY_MS
//! ```
//! MODE: `data`: files of 4 KiB, made and fsynced, all of whose bytes are in the log only. `touch`:
//! changes of files at random places of a tree that the last checkpoint wrote.

use kedge_base::{Clock, SystemClock};
use kedge_device::sim::DistantDevice;
use kedge_device::{MemDevice, WatchedDevice};
use kedgefs::{FileSystem, FormatOptions, Ino, MountOptions, Owner, SetAttr};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Files that `touch` changes.
const FILES: u64 = 200_000;
const DIRS: u64 = 16;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [mode, log, latency] = &args[..] else { panic!("MODE LOG_MIB LATENCY_MS") };
    let log: u64 = log.parse().expect("LOG_MIB is a number");
    let latency = Duration::from_millis(latency.parse().expect("LATENCY_MS is a number"));
    let image = crashed(mode, log * MIB);
    let clock = Arc::new(SystemClock::default());
    let distant = Arc::new(DistantDevice::new(image, latency));
    let device = Arc::new(WatchedDevice::new(distant.clone(), clock.clone()));
    let started = clock.monotonic();
    let fs =
        FileSystem::open(device, clock.clone(), MountOptions::default()).expect("the image can be opened");
    let took = clock.since(started);
    let (rounds, requests) = (distant.rounds(), distant.requests());
    let info: Value = serde_json::from_str(&fs.info_json()).expect("it is JSON");
    println!(
        "{mode}, log {log} MiB, {latency:?}: mounted in {:.1} s, {rounds} round trips, {requests} requests; {}",
        took.as_secs_f64(),
        info["recovery"]
    );
}

fn options() -> MountOptions {
    MountOptions {
        async_checkpoint: None,
        commit: Duration::from_secs(36_000),
        cache_size: 2048 * MIB,
        ..MountOptions::default()
    }
}

/// An image after a crash.
fn crashed(mode: &str, log: u64) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(16 << 30));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let format = FormatOptions { log_size: Some(log), ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock.clone(), &format).expect("it can be formatted");
    let fs = FileSystem::open(device.clone(), clock, options()).expect("a new image can be opened");
    let dir =
        |i| fs.mkdir(Ino::ROOT, format!("d{i}").as_bytes(), 0o755, Owner::default()).expect("mkdir").ino;
    let dirs: Vec<Ino> = (0..DIRS).map(dir).collect();
    let create = |i: u64| {
        let name = format!("file{i}");
        fs.create(dirs[(i % DIRS) as usize], name.as_bytes(), 0o644, Owner::default()).expect("create").ino
    };
    let mut rng = SmallRng::seed_from_u64(1);
    match mode {
        "data" => {
            for i in 0.. {
                let ino = create(i);
                fs.write(ino, 0, &[i as u8; 4096]).expect("write");
                fs.fsync(ino, false).expect("fsync");
                if i % 256 == 0 && is_full(&fs) {
                    break;
                }
            }
        }
        "touch" => {
            let files: Vec<Ino> = (0..FILES).map(create).collect();
            fs.checkpoint().expect("checkpoint");
            for i in 0.. {
                let file = files[rng.random_range(0..files.len())];
                let set = SetAttr { mode: Some(0o600 + i % 8), ..SetAttr::default() };
                fs.setattr(file, &set).expect("setattr");
                if i % 256 == 0 && is_full(&fs) {
                    break;
                }
            }
            fs.fsync(files[0], false).expect("fsync");
        }
        other => panic!("{other}: data or touch"),
    }
    let image = Arc::new(device.fork());
    drop(fs);
    image
}

fn is_full(fs: &FileSystem) -> bool {
    let stats: Value = serde_json::from_str(&fs.stats_json()).expect("it is JSON");
    let number = |name: &str| stats["log"][name].as_u64().expect("it is a number");
    number("used_bytes") * 10 >= number("ring_bytes") * 9
        || number("used_bytes") + number("promised_bytes") + 4 * MIB >= number("ring_bytes") * 9 / 10
}
