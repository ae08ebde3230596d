//! `kedge image`: the copy has no file data, a check of the copy gives the same result as a check
//! of the image, and with `--scramble` the copy contains no names.

use crate::common::{Place, kill, needs_fuse, write_and_fsync};
use kedge_base::BLOCK_SIZE;
use kedge_format::node::NODE_SIZE;
use kedge_format::superblock::{SLOTS, Superblock};
use kedge_sim::rig::seed_from_env;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

const IMAGE: u64 = 16 << 20;
const DAMAGES: u64 = 8;
/// Texts that must not be in a scrambled copy.
const NAME: &str = "confidential-name";
const DATA: &[u8] = b"confidential content of a file; ";

/// An image with names, attributes, links and data; with `killed` some of them are only in the log.
fn used_image(place: &Place, killed: bool) -> Vec<u8> {
    place.run("mkfs -f --size 16M --log-size 1M -L confidential-label disk.kedge").ok();
    place.run("mount disk.kedge mnt").ok();
    let dir = |i: u32| place.path(&format!("mnt/{NAME}-dir{}", i % 5));
    for i in 0..400u32 {
        fs::create_dir_all(dir(i)).unwrap();
        let path = dir(i).join(format!("{NAME}{i}"));
        match i % 4 {
            0 => write_and_fsync(&path, &DATA.repeat(10)),
            1 => fs::write(&path, DATA.repeat(300)).unwrap(),
            2 => std::os::unix::fs::symlink(format!("../{NAME}/target{i}"), &path).unwrap(),
            _ => {
                fs::write(&path, b"").unwrap();
                let set = |name: &str| {
                    rustix::fs::setxattr(&path, name, DATA, rustix::fs::XattrFlags::empty()).unwrap();
                };
                set("user.confidential-name");
                set("trusted.of.root");
            }
        }
    }
    for i in (0..400).step_by(3) {
        fs::remove_file(dir(i).join(format!("{NAME}{i}"))).unwrap();
    }
    write_and_fsync(&place.path("mnt/x"), DATA);
    if killed {
        kill(place, "mnt");
        place.run("umount mnt").refused(1, &["had died"]);
    } else {
        place.unmount();
    }
    fs::read(place.path("disk.kedge")).unwrap()
}

/// The result of a check without texts and without fields that do not depend on the metadata.
fn verdict(place: &Place, image: &str) -> Value {
    let run = place.run(&format!("fsck --json {image}"));
    let mut report: Value = serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {}", run.err));
    for name in ["device", "findings"] {
        report.as_object_mut().unwrap().remove(name);
    }
    if let Some(failed) = report["replay"].get_mut("failed") {
        *failed = Value::Null;
    }
    report["counters"]["bytes_read"] = Value::Null;
    if let Some(label) = report["superblock"].get_mut("label") {
        *label = Value::Null;
    }
    report["exit"] = run.code.into();
    report
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The byte ranges of the metadata that a check reads.
fn metadata(image: &[u8]) -> Vec<Range<usize>> {
    let block = |at: usize| &image[at..at + BLOCK_SIZE];
    let decode = |slot: usize| {
        Superblock::decode(block(SLOTS[slot].byte_offset() as usize), slot, IMAGE / BLOCK_SIZE as u64).ok()
    };
    let g = [0, 1].into_iter().find_map(decode).unwrap().geometry;
    let area = |start: kedge_base::BlockNo, blocks: u64| {
        let start = start.byte_offset() as usize;
        start..start + blocks as usize * BLOCK_SIZE
    };
    let mut ranges: Vec<_> = SLOTS.iter().map(|s| s.byte_offset() as usize).map(|at| at..at + 368).collect();
    ranges.extend(g.index_start.map(|start| area(start, g.index_blocks)));
    ranges.push(area(g.log_start, g.log_blocks));
    let data = g.data_start.byte_offset() as usize;
    let nodes = (data..image.len()).step_by(BLOCK_SIZE).filter(|&at| image[at..].starts_with(b"KEDGENOD"));
    ranges.extend(nodes.map(|at| at..at + NODE_SIZE));
    ranges
}

fn copies_agree(place: &Place) {
    let expected = verdict(place, "disk.kedge");
    for option in ["", "--scramble "] {
        let _ = fs::remove_file(place.path("copy"));
        let run = place.run(&format!("image {option}disk.kedge copy"));
        assert_eq!(run.code, 0, "{option}{}{}", run.out, run.err);
        assert_eq!(verdict(place, "copy"), expected, "image {option}: {}", run.out);
    }
}

#[test]
fn the_copy_is_checked_like_the_image() {
    needs_fuse!();
    let place = Place::new();
    fs::create_dir(place.path("mnt")).unwrap();
    let images = [used_image(&place, false), used_image(&place, true)];
    for (i, bytes) in images.iter().enumerate() {
        fs::write(place.path("disk.kedge"), bytes).unwrap();
        assert_eq!(place.run("fsck disk.kedge").code, 0);
        copies_agree(&place);
        // A plain copy has these texts, so the test can detect them in a scrambled copy.
        place.run("image disk.kedge plain").ok();
        let plain = fs::read(place.path("plain")).unwrap();
        assert!(holds(&plain, NAME.as_bytes()) && holds(&plain, b"/target"));
        assert!(holds(&plain, &DATA[..16]), "small files lie in the log");
        fs::remove_file(place.path("plain")).unwrap();
        // The names are replaced, and the copy can still be read.
        let before = place.run("find disk.kedge:/").ok();
        let after = place.run("find copy:/").ok();
        assert_eq!(before.lines().count(), after.lines().count());
        let lengths = |paths: &str| {
            let mut lengths: Vec<usize> = paths.split('\n').map(str::len).collect();
            lengths.sort_unstable();
            lengths
        };
        assert_eq!(lengths(&before), lengths(&after), "image {i}");
        let copy = fs::read(place.path("copy")).unwrap();
        for part in [NAME.as_bytes(), b"target", &DATA[..16], b"confidential"] {
            assert!(!holds(&copy, part), "{} is in the copy of image {i}", part.escape_ascii());
        }
        assert!(holds(&copy, b"trusted.of.root"), "an attribute that says what it is");
        let secret = |image: &[u8]| image[336..352].to_vec();
        assert_ne!(secret(&copy), secret(bytes), "the key of the log");
    }
}

#[test]
fn a_damaged_image_has_an_equally_damaged_copy() {
    needs_fuse!();
    let place = Place::new();
    fs::create_dir(place.path("mnt")).unwrap();
    let images = [used_image(&place, false), used_image(&place, true)];
    let mut wrong = 0;
    for seed in seed_from_env().map_or_else(|| (1..=DAMAGES).collect(), |seed| vec![seed]) {
        println!("KEDGE_SEED={seed}");
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut bytes = images[seed as usize % 2].clone();
        let ranges = metadata(&bytes);
        let range = ranges[rng.random_range(0..ranges.len())].clone();
        let used = (0..200).map(|_| rng.random_range(range.clone())).find(|&at| bytes[at] != 0);
        let at = used.unwrap_or(range.start);
        bytes[at] ^= 1 << rng.random_range(0..8);
        fs::write(place.path("disk.kedge"), &bytes).unwrap();
        copies_agree(&place);
        wrong += u32::from(place.run("fsck disk.kedge").code != 0);
    }
    assert!(wrong > 0 || seed_from_env().is_some(), "no damage was found in any image");
}

#[test]
fn the_copy_is_small_and_its_owners_alone() {
    let place = Place::new();
    fs::create_dir(place.path("source")).unwrap();
    fs::write(place.path("source/large"), DATA.repeat(1 << 18)).unwrap();
    place.run("mkfs --from source --size 64M --log-size 1M disk.kedge").ok();
    let out = place.run("image disk.kedge copy").ok();
    assert!(out.contains("bytes of file data that the log holds; --scramble"), "{out}");
    let meta = fs::metadata(place.path("copy")).unwrap();
    assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (64 << 20, 0o600));
    assert!(meta.blocks() * 512 < 4 << 20, "{} bytes", meta.blocks() * 512);
    assert!(!holds(&fs::read(place.path("copy")).unwrap(), DATA));

    place.run("image disk.kedge copy").refused(1, &["make copy", "exists"]);
    place.run("image gone new").refused(1, &["gone"]);
    fs::write(place.path("text"), vec![b'x'; 200_000]).unwrap();
    place.run("image text new").refused(1, &["text", "no KedgeFS"]);
    assert!(!place.path("new").exists());
}
