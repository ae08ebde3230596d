//! Small files whose data is in the tree: every kind of change, the space they take, sharing by
//! forks and clones, and damaged items.

use crate::common::images::{assert_clean, check, contents, noise, open};
use kedge_base::{BLOCK_SIZE, IoBuf, SystemClock};
use kedge_device::{Device, MemDevice};
use kedge_fsck::FindingKind;
use kedgefs::{
    FallocateMode, FileSystem, FormatOptions, Ino, Owner, RangeKind, SeekKind, SetAttr, TreeChange, WriteMode,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::ops::ControlFlow;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_SIZE as u64;
const OWNER: Owner = Owner { uid: 0, gid: 0 };
/// The largest size in bytes of a file in the tree of these images.
const LONGEST: u64 = 1024;

fn make_with(size: u64, data_checksums: bool, inline_max: u64) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(size));
    let options =
        FormatOptions { log_size: Some(4 * MIB), data_checksums, inline_max, ..FormatOptions::default() };
    FileSystem::format(device.clone(), Arc::new(SystemClock::default()), &options).unwrap();
    device
}

fn make(size: u64) -> Arc<MemDevice> {
    make_with(size, false, LONGEST)
}

fn file(fs: &FileSystem, name: &str, data: &[u8]) -> Ino {
    let ino = fs.create(Ino::ROOT, name.as_bytes(), 0o644, OWNER).unwrap().ino;
    assert_eq!(fs.write(ino, 0, data).unwrap(), data.len());
    ino
}

/// The number of blocks of file data in the image, as fsck counts them, after everything was
/// written.
fn data_blocks(fs: &FileSystem, device: &MemDevice) -> u64 {
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    let report = check(device);
    assert!(report.is_clean(), "{report}");
    report.counters.blocks_data
}

fn set_size(fs: &FileSystem, ino: Ino, size: u64) {
    fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

/// Makes one random change of a file, and the same change of the expected bytes. Sizes are near
/// that of the largest file in the tree.
fn change(fs: &FileSystem, rng: &mut SmallRng, files: &mut [(Ino, Vec<u8>)]) {
    let (which, other) = (rng.random_range(0..files.len()), rng.random_range(0..files.len()));
    let source = files[other].clone();
    let (ino, shall) = &mut files[which];
    let (ino, size) = (*ino, shall.len() as u64);
    let at = match rng.random_range(0..8) {
        0 => 0,
        1 => rng.random_range(0..=size + 2 * BLOCK),
        _ => rng.random_range(0..=(size + 100).min(LONGEST + 200)),
    };
    let len = match rng.random_range(0..6) {
        0 => rng.random_range(1..2 * BLOCK),
        _ => rng.random_range(1..LONGEST / 2),
    };
    let grow = |shall: &mut Vec<u8>, end: u64| shall.resize(shall.len().max(end as usize), 0);
    match rng.random_range(0..20) {
        0..=5 => {
            let data = noise(rng, len as usize);
            let mode = WriteMode::default().with_through(rng.random_range(0..4) == 0);
            assert_eq!(fs.write_with(ino, at, &data, mode).unwrap() as u64, len);
            grow(shall, at + len);
            shall[at as usize..(at + len) as usize].copy_from_slice(&data);
        }
        6..=8 => {
            let to = if rng.random() { at } else { rng.random_range(0..LONGEST) };
            set_size(fs, ino, to);
            shall.resize(to as usize, 0);
        }
        9 => {
            fs.fallocate(ino, FallocateMode::PunchHole, at, len).unwrap();
            let (from, to) = (at.min(size) as usize, (at + len).min(size) as usize);
            shall[from..to].fill(0);
        }
        10 => {
            fs.fallocate(ino, FallocateMode::ZeroRange { keep_size: false }, at, len).unwrap();
            grow(shall, at + len);
            shall[at as usize..(at + len) as usize].fill(0);
        }
        11 => {
            let keep_size = rng.random();
            fs.fallocate(ino, FallocateMode::Allocate { keep_size }, at, len).unwrap();
            if !keep_size {
                grow(shall, at + len);
            }
        }
        12 if size > 0 => {
            fs.fallocate(ino, FallocateMode::InsertRange, 0, BLOCK).unwrap();
            shall.splice(0..0, std::iter::repeat_n(0, BLOCK_SIZE));
        }
        13 if which != other => {
            fs.clone_file(source.0, ino).unwrap();
            shall.clone_from(&source.1);
        }
        14 => {
            let data = noise(rng, len as usize);
            let mut atomic = fs.atomic(ino).unwrap();
            atomic.write_at(at, &data).unwrap();
            atomic.commit().unwrap();
            grow(shall, at + len);
            shall[at as usize..(at + len) as usize].copy_from_slice(&data);
        }
        15 => fs.checkpoint().unwrap(),
        16 => fs.sync().unwrap(),
        _ => fs.fsync(ino, rng.random()).unwrap(),
    }
}

fn changes(data_checksums: bool, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut device = make_with(128 * MIB, data_checksums, LONGEST);
        let mut fs = open(&device);
        let mut files: Vec<(Ino, Vec<u8>)> = (0..3)
            .map(|n| {
                (fs.create(Ino::ROOT, format!("f{n}").as_bytes(), 0o644, OWNER).unwrap().ino, Vec::new())
            })
            .collect();
        for step in 0..600 {
            change(&fs, &mut rng, &mut files);
            if step % 3 == 0 {
                let (ino, shall) = &files[rng.random_range(0..3)];
                let mut data = vec![0xee; shall.len() + 10];
                assert_eq!(fs.read(*ino, 0, &mut data).unwrap(), shall.len());
                assert!(data[..shall.len()] == shall[..], "seed {seed}, step {step}: inode {ino}");
            }
            if step % 57 == 56 {
                // Every second time the file system ends as by a kill.
                match step % 2 {
                    0 => fs.close().unwrap(),
                    _ => {
                        fs.sync().unwrap();
                        let _ = fs.shutdown(false);
                        device = Arc::new(device.fork());
                    }
                }
                assert_clean(&device);
                fs = open(&device);
                for (ino, shall) in &files {
                    assert!(contents(&fs, *ino) == *shall, "seed {seed}, step {step}: inode {ino}");
                }
            }
        }
        for n in 0..files.len() {
            fs.unlink(Ino::ROOT, format!("f{n}").as_bytes()).unwrap();
        }
        fs.close().unwrap();
        let report = check(&device);
        assert!(report.is_clean(), "{report}");
        assert_eq!((report.counters.items, report.counters.blocks_data), (1, 0), "only the root is left");
    }
}

#[test]
fn every_kind_of_change_keeps_the_bytes() {
    changes(false, 0..8);
}

#[test]
fn also_beside_checksums() {
    changes(true, 20..24);
}

#[test]
fn small_files_take_no_blocks_whether_fsynced_or_not() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let mut rng = SmallRng::seed_from_u64(1);
    let mut files = Vec::new();
    for n in 0..500 {
        let data = noise(&mut rng, 1 + n * 2);
        let ino = file(&fs, &format!("f{n}"), &data);
        if n % 3 == 0 {
            fs.fsync(ino, false).unwrap();
        }
        files.push((ino, data));
    }
    assert_eq!(data_blocks(&fs, &device), 0);
    // Not zero, because programs take a file without blocks for a hole.
    assert_eq!(fs.getattr(files[10].0).unwrap().blocks, 1);
    assert_eq!(fs.seek(files[10].0, 3, SeekKind::Data).unwrap(), 3);
    assert_eq!(fs.seek(files[10].0, 3, SeekKind::Hole).unwrap(), files[10].1.len() as u64);
    let long = file(&fs, "long", &noise(&mut rng, LONGEST as usize + 1));
    assert_eq!(data_blocks(&fs, &device), 1);
    // The data stays in its block until the file is empty.
    set_size(&fs, long, 10);
    assert_eq!(data_blocks(&fs, &device), 1);
    set_size(&fs, long, 0);
    fs.write(long, 0, b"new").unwrap();
    assert_eq!(data_blocks(&fs, &device), 0);
    fs.close().unwrap();
    let fs = open(&device);
    for (ino, data) in &files {
        assert!(contents(&fs, *ino) == *data, "inode {ino}");
    }
    assert_eq!(contents(&fs, long), b"new");
}

#[test]
fn a_small_file_that_grows_gets_a_block() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let mut rng = SmallRng::seed_from_u64(2);
    let mut shall = noise(&mut rng, 700);
    let ino = file(&fs, "f", &shall);
    assert_eq!(data_blocks(&fs, &device), 0);
    let more = noise(&mut rng, 700);
    fs.write(ino, 700, &more).unwrap();
    shall.extend(more);
    assert_eq!(data_blocks(&fs, &device), 1);
    assert_eq!(contents(&fs, ino), shall);
    // A write to another block leaves the first block in the tree.
    let other = file(&fs, "g", b"begin");
    fs.sync().unwrap();
    fs.write(other, 3 * BLOCK, b"end").unwrap();
    assert_eq!(data_blocks(&fs, &device), 2);
    let mut bytes = b"begin".to_vec();
    bytes.resize(3 * BLOCK_SIZE, 0);
    bytes.extend(b"end");
    assert_eq!(contents(&fs, other), bytes);
    assert_eq!(fs.seek(other, 0, SeekKind::Hole).unwrap(), BLOCK);
    assert_eq!(fs.seek(other, BLOCK, SeekKind::Data).unwrap(), 3 * BLOCK);
    let _ = fs.shutdown(false);
    let fs = open(&Arc::new(device.fork()));
    assert_eq!(contents(&fs, other), bytes);
}

#[test]
fn bytes_that_a_truncate_cut_off_do_not_come_back() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let ino = file(&fs, "f", &[7; 900]);
    fs.fsync(ino, false).unwrap();
    set_size(&fs, ino, 100);
    set_size(&fs, ino, 800);
    fs.fsync(ino, false).unwrap();
    let _ = fs.shutdown(false);
    assert_clean(&device);
    let fs = open(&Arc::new(device.fork()));
    let mut shall = vec![7; 100];
    shall.resize(800, 0);
    assert_eq!(contents(&fs, ino), shall);
}

#[test]
fn forks_share_and_part_from_small_files() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let a = file(&fs, "a", b"of both");
    let b = file(&fs, "b", b"of both too");
    fs.sync().unwrap();
    let root = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap().ino;
    let (fork_a, fork_b) = (fs.lookup(root, b"a").unwrap().ino, fs.lookup(root, b"b").unwrap().ino);
    fs.write(fork_a, 0, b"new text").unwrap();
    fs.fsync(fork_a, false).unwrap();
    set_size(&fs, fork_b, 2);
    fs.write(a, 0, b"OF").unwrap();
    let contents_of = |fs: &FileSystem| [a, fork_a, b, fork_b].map(|ino| contents(fs, ino));
    let shall = [&b"OF both"[..], b"new text", b"of both too", b"of"];
    assert_eq!(contents_of(&fs), shall);
    assert_eq!(data_blocks(&fs, &device), 0);
    fs.close().unwrap();
    assert_clean(&device);
    let fs = open(&device);
    assert_eq!(contents_of(&fs), shall);
}

#[test]
fn a_comparison_of_trees_finds_what_changed_in_small_files() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let names = ["same", "changed", "out", "in", "gone"];
    let inos = names.map(|name| file(&fs, name, name.as_bytes()));
    fs.write(inos[3], 0, &[1; 5000]).unwrap();
    fs.sync().unwrap();
    let root = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap().ino;
    let there = |name: &str| fs.lookup(root, name.as_bytes()).unwrap().ino;
    fs.write(there("changed"), 0, b"CHANGED").unwrap();
    fs.write(there("out"), 0, &[2; 3000]).unwrap();
    set_size(&fs, there("in"), 0);
    fs.write(there("in"), 0, b"small").unwrap();
    set_size(&fs, there("gone"), 0);
    let moments = fs.moments(&[Ino::ROOT, root]).unwrap();
    let mut found = Vec::new();
    let mut note = |change: TreeChange<'_>| {
        if let TreeChange::Data { ino, offset, len, kind } = change {
            found.push((
                names[inos.iter().position(|i| *i == ino).unwrap()],
                offset / BLOCK,
                len / BLOCK,
                kind,
            ));
        }
        Ok(ControlFlow::Continue(()))
    };
    moments[1].changes(Some(&moments[0]), &mut note).unwrap();
    let (data, hole) = (RangeKind::Data, RangeKind::Hole);
    let shall = [
        ("changed", 0, 1, data),
        ("out", 0, 1, data),
        ("in", 0, 1, data),
        ("in", 1, 1, hole),
        ("gone", 0, 1, hole),
    ];
    assert_eq!(found, shall);
    for (name, text) in [("changed", &b"CHANGED"[..]), ("in", b"small")] {
        let ino = inos[names.iter().position(|n| *n == name).unwrap()];
        let mut block = vec![0xee; BLOCK_SIZE];
        moments[1].read(ino, 0, &mut block).unwrap();
        assert_eq!(&block[..text.len()], text);
        assert!(block[text.len()..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn lengths_that_no_image_has_are_refused() {
    let device = Arc::new(MemDevice::new(64 * MIB));
    let options = FormatOptions { inline_max: 2049, ..FormatOptions::default() };
    let refused = FileSystem::format(device, Arc::new(SystemClock::default()), &options).unwrap_err();
    assert!(
        refused.to_string().contains("2049") && refused.errno() == kedge_base::errno::EINVAL,
        "{refused}"
    );
}

#[test]
fn an_image_without_the_feature_has_blocks() {
    let device = make_with(64 * MIB, false, 0);
    let fs = open(&device);
    let ino = file(&fs, "f", b"text");
    assert_eq!(data_blocks(&fs, &device), 1);
    assert_eq!(fs.getattr(ino).unwrap().blocks, 8);
    let hole = file(&fs, "hole", b"");
    set_size(&fs, hole, 100);
    assert_eq!(fs.getattr(hole).unwrap().blocks, 0);
}

/// On a full image the promises of dirty pages suffice, and small files can be truncated and
/// deleted.
#[test]
fn a_full_image_keeps_small_files() {
    let device = make_with(16 * MIB, false, LONGEST);
    let fs = open(&device);
    let mut made = Vec::new();
    for n in 0.. {
        let Ok(attr) = fs.create(Ino::ROOT, format!("f{n}").as_bytes(), 0o644, OWNER) else { break };
        match fs.write(attr.ino, 0, &[n as u8; 1000]) {
            Ok(1000) => made.push((attr.ino, n)),
            _ => break,
        }
        if n % 64 == 0 {
            fs.sync().unwrap();
        }
    }
    fs.sync().unwrap();
    assert!(made.len() > 2000, "{} files", made.len());
    for (ino, n) in &made {
        set_size(&fs, *ino, 500);
        assert!(contents(&fs, *ino) == [*n as u8; 500]);
    }
    for (_, n) in &made {
        fs.unlink(Ino::ROOT, format!("f{n}").as_bytes()).unwrap();
    }
    fs.close().unwrap();
    assert_clean(&device);
}

/// An item that the format does not allow. Reads and writes fail as for any damaged item; a
/// deletion succeeds.
#[test]
fn a_forged_item_is_an_error() {
    use kedge_format::node::{NODE_SIZE, NodeMut, NodeView};
    let device = make(64 * MIB);
    let fs = open(&device);
    let ino = file(&fs, "f", &[9; 600]);
    fs.close().unwrap();
    let key = kedge_format::inline::key(ino);
    let (sb, _) = kedge_store::read_superblock(&*device).unwrap();
    let at = sb.checkpoint.root.byte_offset();
    let mut node = device.bytes(at, NODE_SIZE);
    let index = NodeView::trusted(&node).search(&key).unwrap();
    let forge = |node: &mut [u8], value: &[u8]| {
        let mut node = NodeMut::trusted(node);
        node.remove_at(index);
        assert!(node.insert_at(index, &key, value));
        node.seal(&sb.geometry.log_secret);
    };
    forge(&mut node, &[9; LONGEST as usize + 1]);
    device.write(at, &IoBuf::from_bytes(&node), false).unwrap();
    let report = check(&device);
    assert_eq!(report.findings.iter().map(|f| f.kind).collect::<Vec<_>>(), [FindingKind::InlineBad]);
    let fs = open(&device);
    let mut buf = [0; 10];
    for failed in [
        fs.read(ino, 0, &mut buf).map(drop),
        fs.write(ino, 3, b"x").map(drop),
        fs.fallocate(ino, FallocateMode::PunchHole, 0, 10),
    ] {
        let e = failed.unwrap_err();
        assert!(e.errno() == kedge_base::errno::EUCLEAN && e.to_string().contains("inline item"), "{e}");
    }
    fs.unlink(Ino::ROOT, b"f").unwrap();
    fs.close().unwrap();
    assert_clean(&device);
}
