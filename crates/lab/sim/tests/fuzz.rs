//! The fuzzer's targets without a fuzzer: the stored corpus, and random inputs for a few seconds.
//!
//! `KEDGE_FUZZ_SECONDS` sets how many (for each target), `KEDGE_SEED` the seed.

use kedge_base::{BLOCK_SIZE, Clock, Epoch, HANG, IoBuf, SystemClock};
use kedge_device::Device;
use kedge_format::logwrite::WriteHeader;
use kedge_format::superblock::{SLOTS, Superblock};
use kedge_fsck::{Ending, RepairMode, RepairOptions};
use kedge_sim::fuzz::damage::open;
use kedge_sim::fuzz::{TARGETS, Target, random};
use kedge_sim::rig::{self, panic_text, seed_from_env, within};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SECONDS: f64 = 2.0;
/// Minimum of random inputs for each target, even on a machine that is too busy for them in this
/// time.
const RUNS_MIN: u64 = 20;

/// Limit of failures that are printed, since many inputs find the same fault.
const FAILURES_MAX: usize = 30;

/// Number of panics on all threads of this process, including the engine's own, which no test
/// catches.
static PANICS: AtomicU64 = AtomicU64::new(0);

fn count_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        before(info);
    }));
}

fn hex(input: &[u8]) -> String {
    input.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn check(name: &str, target: Target, input: &[u8], from: &str) -> Result<(), String> {
    let (before, owned) = (PANICS.load(Ordering::SeqCst), input.to_vec());
    let what = format!("{name}, {from}: {}", hex(input));
    let done = within(HANG, &what, move || catch_unwind(|| target(&owned)));
    if let Err(panic) = done {
        return Err(format!("{what}: {}", panic_text(&*panic)));
    }
    match PANICS.load(Ordering::SeqCst) == before {
        true => Ok(()),
        false => Err(format!("{what}: a thread of the engine panicked")),
    }
}

/// The count of panics is global: no other test in this file may panic and pass.
#[test]
fn no_bytes_make_the_engine_or_fsck_panic() {
    count_panics();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let seconds = std::env::var("KEDGE_FUZZ_SECONDS").map_or(SECONDS, |s| s.parse().expect("a number"));
    let seed = seed_from_env().unwrap_or(1);
    let clock = SystemClock::default();
    let mut failures = Vec::new();
    for (name, target) in TARGETS {
        let mut kept = 0;
        for file in std::fs::read_dir(corpus.join(name)).expect("every target has a corpus") {
            let path = file.expect("a readable directory").path();
            let input = std::fs::read(&path).expect("readable");
            failures.extend(check(name, target, &input, &path.display().to_string()).err());
            kept += 1;
        }
        assert!(kept > 0, "no corpus for {name}");
        let mut rng = SmallRng::seed_from_u64(seed);
        let (end, mut runs) = (clock.monotonic() + Duration::from_secs_f64(seconds), 0u64);
        while (clock.monotonic() < end || runs < RUNS_MIN) && failures.len() < FAILURES_MAX {
            let from = format!("KEDGE_SEED={seed} input {runs}");
            failures.extend(check(name, target, &random(&mut rng), &from).err());
            runs += 1;
        }
        println!("{name}: {kept} kept inputs, {runs} random ones");
    }
    assert!(failures.is_empty(), "{} inputs:\n{}", failures.len(), failures.join("\n"));
}

/// The log of an image that needs a repair contains a log write of an epoch that no slot mentions.
/// The repaired image opens.
#[test]
fn a_repair_starts_above_every_epoch_in_the_log() {
    let device = Arc::new(rig::format(16 << 20, 1 << 20).expect("format"));
    let slot = |i: usize| device.bytes(SLOTS[i].byte_offset(), BLOCK_SIZE);
    let newest = (0..2)
        .filter_map(|i| Superblock::decode(&slot(i), i, 4096).ok())
        .max_by_key(|sb| sb.checkpoint.generation);
    let sb = newest.expect("a fresh image has a valid slot");
    let (geometry, tail) = (&sb.geometry, sb.checkpoint.tail_lsn);
    let header = WriteHeader {
        epoch: Epoch(sb.checkpoint.epoch.0 + 1000),
        lsn: tail,
        blocks: 1,
        tail_lsn: tail,
        durable_lsn: tail,
        payload_bytes: 0,
        records: 0,
    };
    let mut write = IoBuf::zeroed(1);
    header.seal(&geometry.log_key(), write.as_mut_bytes());
    let at = geometry.log_start.byte_offset() + tail.0 % geometry.log_bytes();
    device.write(at, &write, false).expect("in range");
    // Without the clean mark, as after a power failure, the log is scanned.
    let mut unclean = sb.clone();
    unclean.checkpoint.clean = false;
    let mut block = IoBuf::zeroed(1);
    unclean.encode(block.as_mut_bytes());
    device.write(sb.block().byte_offset(), &block, false).expect("in range");
    assert!(open(device.fork()).is_err(), "the log has an epoch that no slot mentions");
    let repair = kedge_fsck::repair(device.clone(), &RepairOptions::new(RepairMode::Full));
    assert_eq!(repair.ending, Ending::Repaired, "{}", repair.message);
    let fs = open(device.fork()).unwrap_or_else(|e| panic!("repaired, but: {e}"));
    fs.close().expect("close");
}
