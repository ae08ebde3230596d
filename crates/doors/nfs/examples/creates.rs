//! Measures durable files of 4 KiB by 1, 4 and 16 clients: over NFS (CREATE, then WRITE with
//! FILE_SYNC), and with the library in this process (create, write, fsync).
//!
//! `cargo run --release -p kedge-nfs --example creates -- IMAGE [SECONDS]`; the image is
//! overwritten.

#![allow(clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;
use common::{Client, FILE_SYNC, clock, mode, serve};
use kedge_base::{Clock, SystemClock, spawn_named};
use kedge_device::{FileDevice, OpenOptions};
use kedgefs::{FileSystem, FormatOptions, Ino, MountOptions, Owner};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SIZE: u64 = 4 << 30;
const BYTES: [u8; 4096] = [7; 4096];
const CLIENTS: [u64; 3] = [1, 4, 16];
const ROUNDS: usize = 5;

/// Runs `work` of each client for `time`. Returns files per second.
fn measure(clients: u64, time: Duration, work: impl Fn(u64) -> Box<dyn FnMut(u64) + Send>) -> f64 {
    let (clock, files) = (SystemClock::default(), Arc::new(AtomicU64::new(0)));
    let begun = clock.monotonic();
    let threads: Vec<_> = (0..clients)
        .map(|client| {
            let (mut work, files) = (work(client), files.clone());
            let run = move || {
                for n in 0.. {
                    if clock.since(begun) > time {
                        return;
                    }
                    work(n);
                    files.fetch_add(1, Ordering::Relaxed);
                }
            };
            spawn_named("client", run).unwrap()
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    files.load(Ordering::Relaxed) as f64 / clock.since(begun).as_secs_f64()
}

fn over_nfs(address: SocketAddr, dir: &str) -> Box<dyn FnMut(u64) + Send> {
    let mut c = Client::of(address, 0, 0, &[]);
    let root = c.root();
    let (dir, _) = c.mkdir(&root, dir, &mode(0o755)).unwrap();
    Box::new(move |n| {
        let (file, _) = c.create_guarded(&dir, &n.to_string(), &mode(0o644)).unwrap();
        c.write(&file, 0, &BYTES, FILE_SYNC).unwrap();
    })
}

fn in_process(fs: &FileSystem, dir: &str) -> Box<dyn FnMut(u64) + Send> {
    let dir = fs.mkdir(Ino::ROOT, dir.as_bytes(), 0o755, Owner::default()).unwrap().ino;
    let fs = fs.clone();
    Box::new(move |n| {
        let file = fs.create(dir, n.to_string().as_bytes(), 0o644, Owner::default()).unwrap().ino;
        fs.write(file, 0, &BYTES).unwrap();
        fs.fsync(file, false).unwrap();
    })
}

/// Returns files per second on a new image.
fn round(image: &Path, clients: u64, time: Duration, nfs: bool) -> f64 {
    if image.exists() {
        std::fs::remove_file(image).unwrap();
    }
    let device = FileDevice::create(image, SIZE, OpenOptions::default()).unwrap();
    FileSystem::format(device.clone(), clock(), &FormatOptions::default()).unwrap();
    let fs = FileSystem::open(device, clock(), MountOptions::default()).unwrap();
    let rate = if nfs {
        let server = serve(&fs);
        let address = server.address();
        let rate = measure(clients, time, |client| over_nfs(address, &format!("c{client}")));
        server.stop();
        rate
    } else {
        measure(clients, time, |client| in_process(&fs, &format!("c{client}")))
    };
    fs.close().unwrap();
    rate
}

fn main() {
    let mut args = std::env::args().skip(1);
    let image = args.next().expect("the first argument is the image");
    let seconds = args.next().map_or(5, |text| text.parse().expect("the second is a number of seconds"));
    let (image, time) = (Path::new(&image), Duration::from_secs(seconds));
    println!("| clients | library, files/s | NFS, files/s | ratio |\n|---|---|---|---|");
    for clients in CLIENTS {
        // The two alternate, so that a change in the machine's speed affects both.
        let mut rates: [Vec<f64>; 2] = Default::default();
        for _ in 0..ROUNDS {
            rates[0].push(round(image, clients, time, false));
            rates[1].push(round(image, clients, time, true));
        }
        let [library, nfs] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[ROUNDS / 2]
        });
        println!("| {clients} | {library:.0} | {nfs:.0} | {:.2} |", nfs / library);
    }
    std::fs::remove_file(image).unwrap();
}
