//! Images with a flipped bit, and full images, on the real mount.
//!
//! A flipped bit in the metadata of an image (superblocks, allocation, log, tree) causes an error
//! or has no effect: `fsck`, `dump` and a mount that programs read and write end in time, and none
//! of them panics. `KEDGE_SEED` repeats one flip.

use crate::common::{Place, long, needs_fuse, no_fuse, until, write_and_fsync};
use kedge_base::{BLOCK_SIZE, HANG};
use kedge_format::node::NODE_SIZE;
use kedge_format::superblock::{SLOTS, Superblock};
use kedge_sim::ops::Fill;
use kedge_sim::rig::{seed_from_env, within};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The number of images, each with one flipped bit; 200 with `KEDGE_LONG=1`.
const FLIPS: u64 = 80;
const IMAGE: u64 = 16 << 20;

fn kill(place: &Place) {
    let pid = place.info("mnt")["mount"]["pid"].as_i64().unwrap() as i32;
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    // The kernel opens a directory without a request after the first ENOSYS; only a read of the
    // directory sends a request.
    until("the mount is dead", || {
        let listed =
            fs::read_dir(place.path("mnt")).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
        listed.is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN))
    });
    until("the image is free", || !place.run("fsck disk.kedge").err.contains("in use"));
}

/// A small image with every kind of item; with `killed` it has a log to replay.
fn used_image(place: &Place, killed: bool) -> Vec<u8> {
    place.run("mkfs -f --size 16M --log-size 1M disk.kedge").ok();
    place.run("mount --create 16M disk.kedge mnt").ok();
    for i in 0..300u32 {
        let dir = place.path(&format!("mnt/dir{}", i % 7));
        fs::create_dir_all(&dir).unwrap();
        let bytes = Fill::Seed(i).bytes(0, (i * 97 % 9000) as usize);
        match i % 3 {
            0 => write_and_fsync(&dir.join(format!("{i}")), &bytes),
            1 => fs::write(dir.join(format!("{i}")), &bytes).unwrap(),
            _ => std::os::unix::fs::symlink(format!("../target {i}"), dir.join(format!("{i}"))).unwrap(),
        }
    }
    if killed {
        kill(place);
        place.run("umount mnt").refused(1, &["had died"]);
    } else {
        place.unmount();
    }
    fs::read(place.path("disk.kedge")).unwrap()
}

/// The byte ranges of an image's metadata.
fn metadata(image: &[u8]) -> Vec<Range<usize>> {
    let blocks = IMAGE / BLOCK_SIZE as u64;
    let block = |at: usize| &image[at..at + BLOCK_SIZE];
    let g = SLOTS
        .iter()
        .enumerate()
        .find_map(|(i, s)| Superblock::decode(block(s.byte_offset() as usize), i, blocks).ok())
        .unwrap()
        .geometry;
    let area = |start: kedge_base::BlockNo, blocks: u64| {
        let start = start.byte_offset() as usize;
        start..start + blocks as usize * BLOCK_SIZE
    };
    let mut ranges: Vec<_> = SLOTS.iter().map(|s| s.byte_offset() as usize).map(|at| at..at + 512).collect();
    ranges.extend(g.index_start.map(|start| area(start, g.index_blocks)));
    ranges.extend(g.bitmap_start.map(|start| area(start, g.groups())));
    ranges.push(area(g.log_start, g.log_blocks));
    let data = g.data_start.byte_offset() as usize;
    let nodes = (data..image.len()).step_by(BLOCK_SIZE).filter(|&at| image[at..].starts_with(b"KEDGENOD"));
    ranges.extend(nodes.map(|at| at..at + NODE_SIZE));
    ranges
}

/// Reads everything below a directory. Returns the number of objects read, and counts errors.
fn read_all(dir: &Path, errors: &mut u32) -> u32 {
    let mut read = 0;
    let mut note = |e: io::Error| {
        let known = [libc::EUCLEAN, libc::EIO, libc::ENOENT];
        assert!(e.raw_os_error().is_some_and(|n| known.contains(&n)), "{}: {e}", dir.display());
        *errors += 1;
    };
    let entries: Vec<io::Result<fs::DirEntry>> = match fs::read_dir(dir) {
        Ok(entries) => entries.collect(),
        Err(e) => {
            note(e);
            return 0;
        }
    };
    let mut dirs = Vec::new();
    for entry in entries {
        let path = match entry {
            Ok(entry) => entry.path(),
            Err(e) => {
                note(e);
                break;
            }
        };
        let outcome = fs::symlink_metadata(&path).and_then(|meta| {
            if meta.is_dir() {
                dirs.push(path.clone());
            } else if meta.is_symlink() {
                fs::read_link(&path)?;
            } else {
                io::copy(&mut File::open(&path)?, &mut io::sink())?;
            }
            Ok(())
        });
        match outcome {
            Ok(()) => read += 1,
            Err(e) => note(e),
        }
    }
    read + dirs.iter().map(|dir| read_all(dir, errors)).sum::<u32>()
}

/// Reads and changes the mounted file system. Returns (objects read, errors).
fn use_mount(mnt: &Path) -> (u32, u32) {
    let mut errors = 0;
    let read = read_all(mnt, &mut errors);
    let written = File::create(mnt.join("new")).and_then(|mut file| {
        file.write_all(&[7; 20_000])?;
        file.sync_all()
    });
    errors += written.is_err() as u32;
    errors += fs::remove_dir_all(mnt.join("dir3")).is_err() as u32;
    (read, errors)
}

fn flip(place: &Place, seed: u64, images: &[Vec<u8>]) -> &'static str {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut bytes = images[rng.random_range(0..images.len())].clone();
    let ranges = metadata(&bytes);
    // Prefer bytes that are not zero, because most of a log and of a leaf is unused.
    let at = (0..50)
        .map(|_| {
            let range = &ranges[rng.random_range(0..ranges.len())];
            rng.random_range(range.clone())
        })
        .find(|&at| seed.is_multiple_of(4) || bytes[at] != 0)
        .unwrap();
    bytes[at] ^= 1 << rng.random_range(0..8);
    fs::write(place.path("disk.kedge"), &bytes).unwrap();
    for (line, codes) in [
        ("fsck disk.kedge", &[0, 4, 8][..]),
        ("dump disk.kedge", &[0, 1]),
        ("dump --tree disk.kedge", &[0, 1]),
        ("dump --log disk.kedge", &[0, 1]),
        ("info disk.kedge", &[0, 1]),
    ] {
        let run = place.run(line);
        assert!(codes.contains(&run.code), "{line}: {} {}{}", run.code, run.out, run.err);
        assert!(!run.err.contains("panicked"), "{line}: {}", run.err);
    }
    let _ = fs::remove_file(place.path("log"));
    let run = place.run("mount --log-file log disk.kedge mnt");
    let verdict = if run.code == 0 {
        let mnt = place.path("mnt");
        let (read, errors) = within(HANG, "use of the mount", move || use_mount(&mnt));
        let ended = place.run("umount mnt");
        // The unmount reports data that it could not write.
        assert!(ended.code == 0 || ended.err.contains("not closed cleanly"), "{}", ended.err);
        match (read, errors) {
            (_, 0) => "no error",
            (0, _) => "nothing read",
            _ => "some errors",
        }
    } else {
        run.refused(1, &["disk.kedge"]);
        "not mounted"
    };
    let log = fs::read_to_string(place.path("log")).unwrap_or_default();
    assert!(!log.contains("panicked"), "the serving process says: {log}");
    verdict
}

#[test]
fn a_flipped_bit_gives_errors_and_no_panic() {
    needs_fuse!();
    let place = Place::new();
    let images = [used_image(&place, false), used_image(&place, true)];
    let mut verdicts = BTreeMap::<&str, u32>::new();
    let flips = if long() { 200 } else { FLIPS };
    for seed in seed_from_env().map_or_else(|| (1..=flips).collect(), |seed| vec![seed]) {
        println!("KEDGE_SEED={seed}");
        *verdicts.entry(flip(&place, seed, &images)).or_default() += 1;
    }
    println!("{verdicts:?}");
}

/// The seed and the length that fsync has confirmed, for each file of a writer.
type Synced = BTreeMap<PathBuf, (u32, usize)>;

/// Writes and syncs files until the image is full, some twenty times.
fn fill(dir: PathBuf, seed: u64) -> Synced {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut synced = Synced::new();
    let mut refused = 0;
    fs::create_dir(&dir).unwrap();
    for number in 0.. {
        if refused == 20 {
            break;
        }
        let path = dir.join(number.to_string());
        let len = if rng.random_bool(0.5) { rng.random_range(1..5000) } else { rng.random_range(1..400_000) };
        let outcome = File::create(&path).and_then(|mut file| {
            file.write_all(&Fill::Seed(number).bytes(0, len))?;
            file.sync_all()
        });
        match outcome {
            Ok(()) => drop(synced.insert(path, (number, len))),
            Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => refused += 1,
            Err(e) => panic!("{}: {e}", path.display()),
        }
    }
    synced
}

fn verify(synced: &Synced) {
    for (path, &(number, len)) in synced {
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
        read.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(bytes == Fill::Seed(number).bytes(0, len), "{} of {len} bytes differs", path.display());
    }
}

fn free_blocks(place: &Place) -> u64 {
    rustix::fs::statvfs(place.path("mnt")).unwrap().f_bfree
}

fn full_image(options: &str) {
    let place = Place::new();
    let unmount = match options {
        "" => Place::unmount_and_check,
        _ => Place::unmount_refused_and_check,
    };
    let remount = || {
        unmount(&place, "disk.kedge");
        place.run(&format!("mount{options} disk.kedge mnt")).ok();
    };
    place.run("mkfs --size 40M --log-size 2M disk.kedge").ok();
    place.run(&format!("mount --create 40M{options} disk.kedge mnt")).ok();
    let free = free_blocks(&place);
    for round in 0..3 {
        let dirs: Vec<PathBuf> = (0..4).map(|i| place.path(&format!("mnt/{i}"))).collect();
        let threads: Vec<_> = dirs
            .iter()
            .zip(1..)
            .map(|(dir, seed)| {
                let dir = dir.clone();
                kedge_base::spawn_named("fill", move || fill(dir, round * 100 + seed)).unwrap()
            })
            .collect();
        let mut synced = Synced::new();
        for thread in threads {
            synced.extend(thread.join().unwrap());
        }
        let bytes: usize = synced.values().map(|(_, len)| len).sum();
        assert!(bytes > 20 << 20, "{bytes} bytes fit into 40 MiB");
        verify(&synced);
        // A directory can be emptied while the image is full.
        fs::remove_dir_all(&dirs[1]).unwrap();
        synced.retain(|path, _| !path.starts_with(&dirs[1]));
        if round == 1 {
            kill(&place);
            assert_eq!(place.run("fsck disk.kedge").code, 0, "after a kill");
            place.run(&format!("mount{options} disk.kedge mnt")).ok();
        } else {
            remount();
        }
        verify(&synced);
        for dir in dirs {
            fs::remove_dir_all(&dir)
                .or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
                .unwrap();
        }
        remount();
        let now = free_blocks(&place);
        assert!(now + 64 >= free, "round {round}: {now} blocks are free, {free} at first");
    }
    unmount(&place, "disk.kedge");
}

#[test]
fn a_full_image_keeps_what_was_synced_and_empties() {
    if !no_fuse() {
        within(HANG, "full image", || full_image(""));
    }
}

#[test]
fn a_full_image_below_a_writeback_cache() {
    if !no_fuse() {
        within(HANG, "full image", || full_image(" -o writeback_cache"));
    }
}
