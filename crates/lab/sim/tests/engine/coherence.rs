//! Reads return what was last written, whatever caches and writeback do. The cache has few pages,
//! the device is slow, and other threads write, read, sync and truncate other files.

use crate::common::seeds;
use kedge_base::{HANG, ManualClock};
use kedge_device::sim::{FaultPlan, OpKind, SimDevice};
use kedge_sim::ops::{Fill, OWNER};
use kedge_sim::rig::{self, Setup, within};
use kedgefs::{FileSystem, Ino, SetAttr};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

const THREADS: u64 = 6;
const STEPS: usize = 250;

/// The work of one thread: changes its file, and compares it with the expected content.
fn work(fs: &FileSystem, number: u64, seed: u64) -> Result<(), String> {
    let mut rng = SmallRng::seed_from_u64(seed ^ (number << 32));
    let said = |what: &'static str| move |e: kedgefs::Error| format!("{what}: {e}");
    let name = format!("file{number}");
    let ino = fs.create(Ino::ROOT, name.as_bytes(), 0o644, OWNER).map_err(said("create"))?.ino;
    let mut expected: Vec<u8> = Vec::new();
    for step in 0..STEPS {
        let at = rng.random_range(0..400_000usize);
        let len = rng.random_range(1..60_000usize);
        match rng.random_range(0..100) {
            0..45 => {
                let bytes = Fill::Seed((number as u32) << 16 | step as u32).bytes(at as u64, len);
                fs.write(ino, at as u64, &bytes).map_err(said("write"))?;
                if expected.len() < at + len {
                    expected.resize(at + len, 0);
                }
                expected[at..at + len].copy_from_slice(&bytes);
            }
            45..52 => fs.fsync(ino, rng.random_bool(0.5)).map_err(said("fsync"))?,
            52..55 => fs.sync().map_err(said("sync"))?,
            55..62 => {
                fs.setattr(ino, &SetAttr { size: Some(at as u64), ..SetAttr::default() })
                    .map_err(said("truncate"))?;
                expected.resize(at, 0);
            }
            62..68 => {
                fs.fallocate(ino, kedgefs::FallocateMode::PunchHole, at as u64, len as u64)
                    .map_err(said("punch"))?;
                let end = expected.len().min(at + len);
                expected[at.min(end)..end].fill(0);
            }
            _ => {
                let mut buf = vec![0xee; len];
                let read = fs.read(ino, at as u64, &mut buf).map_err(said("read"))?;
                let right = &expected[at.min(expected.len())..expected.len().min(at + len)];
                if buf[..read] != *right {
                    let first =
                        buf.iter().zip(right).position(|(a, b)| a != b).unwrap_or(read.min(right.len()));
                    return Err(format!(
                        "{name}, step {step}: {read} bytes at {at}, {} expected; byte {} is {:#04x}, expected {:?}",
                        right.len(),
                        at + first,
                        buf[first],
                        right.get(first)
                    ));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn reads_see_what_was_written() {
    for seed in seeds(12) {
        let what = format!("KEDGE_SEED={seed}");
        let result = within(HANG, &what, move || -> Result<(), String> {
            let mut setup = Setup::cramped();
            setup.mount.cache_size = 1 << 20;
            let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
            device.stop_recording();
            let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
            let slow = Duration::from_micros(if seed % 2 == 0 { 300 } else { 0 });
            device.set_plan(FaultPlan::new(seed).latency(OpKind::Write, slow));
            let threads: Vec<_> = (0..THREADS)
                .map(|number| {
                    let fs = fs.clone();
                    kedge_base::spawn_named("coherence", move || work(&fs, number, seed)).expect("a thread")
                })
                .collect();
            for thread in threads {
                thread.join().map_err(|p| rig::panic_text(&*p))??;
            }
            fs.close().map_err(|e| e.to_string())?;
            rig::fsck(device.view())
        });
        result.unwrap_or_else(|e| panic!("{what}: {e}"));
    }
}
