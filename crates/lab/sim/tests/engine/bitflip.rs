//! One bit flips anywhere in the metadata. Opening and using the image then returns errors, or
//! shows a state that the image once had. It never panics, hangs, or shows a tree that never
//! existed.
//!
//! In these images file data has no checksum. So only bits of superblocks, allocation bitmaps, log
//! and tree nodes are flipped.

use crate::common::seeds;
use kedge_base::{BLOCK_SIZE, HANG, IoBuf, ManualClock};
use kedge_device::{Device, MemDevice};
use kedge_format::superblock::{SLOTS, Superblock};
use kedge_sim::crash::{History, Promise, check_view};
use kedge_sim::generate::{Generator, Profile};
use kedge_sim::model::Model;
use kedge_sim::ops::{Executor, OWNER, Op};
use kedge_sim::rig::{self, panic_text, within};
use kedge_sim::view::View;
use kedgefs::{FileSystem, Ino, MountOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

const IMAGE: u64 = 16 << 20;
const LOG: u64 = 1 << 20;

struct Image {
    medium: MemDevice,
    history: History,
    /// Byte ranges that hold metadata.
    metadata: Vec<std::ops::Range<u64>>,
}

/// Makes a small used image, either unmounted or as a power failure leaves it.
fn image(seed: u64, unmounted: bool) -> Image {
    let device = Arc::new(rig::format(IMAGE, LOG).expect("format"));
    let mount =
        MountOptions { commit: Duration::from_secs(3600), cache_size: 8 << 20, ..MountOptions::default() };
    let fs = FileSystem::open(device.clone(), Arc::new(ManualClock::default()), mount).expect("open");
    let mut exec = Executor::new(fs);
    let profile =
        Profile { remounts: 0, offset_max: 30 << 10, write_max: 9000, extremes: 0, ..Profile::default() };
    let mut generator = Generator::new(seed, profile);
    let mut model = Model::new();
    let mut history = History::new(model.clone(), Promise::LastChange);
    while history.len() < 150 {
        let op = if history.len() == 80 { Op::Sync } else { generator.next(&model) };
        let Some(expected) = model.apply(&op) else { continue };
        let outcome = exec.apply(&op);
        assert!(expected.allows(&outcome), "seed {seed}: {op:?} answers {outcome:?}");
        history.push(op, outcome, expected.effect, model.clone());
        if history.len() == 80 {
            exec.fs.checkpoint().expect("checkpoint");
        }
    }
    if unmounted {
        exec.fs.close().expect("close");
    } else {
        exec.fs.sync().expect("sync");
    }
    let medium = device.fork();
    let metadata = metadata(&medium);
    Image { medium, history, metadata }
}

fn metadata(medium: &MemDevice) -> Vec<std::ops::Range<u64>> {
    let block = BLOCK_SIZE as u64;
    let mut buf = IoBuf::zeroed(1);
    medium.read(SLOTS[0].byte_offset(), &mut buf).expect("in range");
    let geometry =
        Superblock::decode(buf.as_bytes(), 0, IMAGE / block).expect("a fresh slot is valid").geometry;
    let mut ranges: Vec<_> = SLOTS.iter().map(|slot| slot.byte_offset()..slot.byte_offset() + 512).collect();
    let areas = geometry.index_start.map(|start| (start, geometry.index_blocks)).into_iter();
    let areas = areas.chain(geometry.bitmap_start.map(|start| (start, geometry.groups())));
    ranges.extend(areas.map(|(start, blocks)| start.byte_offset()..start.byte_offset() + blocks * block));
    ranges.push(geometry.log_start.byte_offset()..geometry.log_start.byte_offset() + geometry.log_bytes());
    for at in (geometry.data_start.0 * block..IMAGE).step_by(BLOCK_SIZE) {
        if medium.bytes(at, 8) == b"KEDGENOD" {
            ranges.push(at..at + kedge_format::node::NODE_SIZE as u64);
        }
    }
    ranges
}

/// Opens the image, reads everything, changes something, and closes it.
fn use_image(medium: MemDevice, history: &History) -> Result<&'static str, String> {
    // The errors that report corruption: EUCLEAN, EIO after the shutdown that follows, and EINVAL
    // for a superblock that requires unknown features.
    let refused = |e: &str| ["errno 117", "errno 5)", "errno 22"].iter().any(|n| e.contains(n));
    let mount =
        MountOptions { commit: Duration::from_secs(3600), cache_size: 8 << 20, ..MountOptions::default() };
    let fs = match FileSystem::open(Arc::new(medium), Arc::new(ManualClock::default()), mount) {
        Ok(fs) => fs,
        Err(e) if refused(&format!("errno {})", e.errno())) => return Ok("not opened"),
        Err(e) => return Err(format!("open: {e} (errno {})", e.errno())),
    };
    let verdict = match View::of(&fs) {
        Ok(view) => {
            check_view(Ok(&view), history, history.len(), &[]).map_err(|v| v.to_string())?;
            "allowed"
        }
        Err(e) if refused(&e) => "not read",
        Err(e) => return Err(e),
    };
    let attr = fs.create(Ino::ROOT, b"new file", 0o644, OWNER);
    if let Ok(attr) = attr {
        let _ = fs.write(attr.ino, 0, &[7; 10_000]);
        let _ = fs.fsync(attr.ino, false);
    }
    let _ = fs.close();
    Ok(verdict)
}

#[test]
fn a_flipped_bit_is_refused_or_harmless() {
    let images: Vec<Image> = (0..8).map(|i| image(i, i % 2 == 0)).collect();
    let mut verdicts = std::collections::BTreeMap::<&str, u32>::new();
    let mut failures = Vec::new();
    for seed in seeds(2000) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let image = &images[rng.random_range(0..images.len())];
        let medium = image.medium.fork();
        // Half of the flips hit bytes that are in use.
        let (at, bit) = (0..50)
            .map(|_| {
                let range = &image.metadata[rng.random_range(0..image.metadata.len())];
                (rng.random_range(range.clone()), rng.random_range(0..8u8))
            })
            .find(|(at, _)| seed % 2 == 0 || medium.bytes(*at, 1)[0] != 0)
            .expect("found within the tries");
        medium.corrupt(at, |bytes| bytes[0] ^= 1 << bit);
        let history = image.history.clone();
        let what = format!("KEDGE_SEED={seed}: bit {bit} of byte {at}");
        let verdict = within(HANG, &what, move || {
            let _ = rig::fsck(medium.fork());
            catch_unwind(AssertUnwindSafe(|| use_image(medium, &history)))
        });
        match verdict {
            Ok(Ok(verdict)) => *verdicts.entry(verdict).or_default() += 1,
            Ok(Err(e)) => failures.push(format!("{what}: {e}")),
            Err(panic) => failures.push(format!("{what}: panic: {}", panic_text(&*panic))),
        }
    }
    println!("{verdicts:?}");
    assert!(
        failures.is_empty(),
        "{} of them:\n{}",
        failures.len(),
        failures[..failures.len().min(5)].join("\n")
    );
}

/// Without a flip the images pass the check.
#[test]
fn unharmed_images_are_allowed() {
    for i in 0..4 {
        let image = image(i, i % 2 == 0);
        assert!(image.metadata.len() > 8, "{:?}", image.metadata);
        rig::fsck(image.medium.fork()).expect("clean");
        assert_eq!(use_image(image.medium, &image.history), Ok("allowed"));
    }
}
