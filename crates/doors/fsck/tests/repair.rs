//! Images made by the engine, with random damage: a repair leaves a clean image or refuses with a
//! reason, the result can be used, and no file ever shows bytes that were never its own.
//!
//! Each byte of each file is a function of the inode number and the offset, so that foreign bytes
//! are detected whatever their source.

use crate::common::{SIZE, check, clock, open, with_replay};
use kedge_base::{BLOCK_SIZE, BlockNo, Ino, IoBuf};
use kedge_device::sim::{FaultPlan, OpKind, SimDevice, StatePlan};
use kedge_device::{Device, MemDevice};
use kedge_format::item::ExtentItem;
use kedge_format::logwrite::LogSecret;
use kedge_format::node::{NODE_SIZE, NodeMut, NodeView};
use kedge_format::superblock::Superblock;
use kedge_format::{InodeCore, ItemKind, Key};
use kedge_fsck::{Ending, RepairKind, RepairMode, RepairOptions, RepairReport, repair};
use kedgefs::{FileKind, FileSystem, FormatOptions, Owner};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The bytes of a file from an offset on. Zero is reserved for holes, so no file contains it.
fn pattern(ino: Ino, offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64)
        .map(|at| {
            ((ino.0.wrapping_mul(0x9e3779b97f4a7c15) ^ (at / 61).wrapping_mul(0xff51afd7ed558ccd)) >> 32)
                as u8
                | 1
        })
        .collect()
}

fn format(device: Arc<dyn Device>) {
    let options = FormatOptions {
        log_size: Some(1 << 20),
        uuid: Some(uuid::Uuid::from_u128(77)),
        ..FormatOptions::default()
    };
    FileSystem::format(device, clock(), &options).unwrap();
}

/// An image after random operations, unmounted or as a crash leaves it.
fn image(seed: u64) -> MemDevice {
    let random = &mut SmallRng::seed_from_u64(seed);
    let device = Arc::new(MemDevice::new(SIZE));
    format(device.clone());
    let fs = open(device.clone()).unwrap();
    let owner = Owner { uid: 0, gid: 0 };
    let mut dirs = vec![Ino::ROOT];
    let mut files: Vec<(Ino, Ino, String)> = Vec::new();
    for i in 0..120 + random.random_range(0..150) {
        let dir = dirs[random.random_range(0..dirs.len() as u64) as usize];
        match random.random_range(0..20) {
            0 | 1 => dirs.push(fs.mkdir(dir, format!("dir{i}").as_bytes(), 0o755, owner).unwrap().ino),
            2..=9 => {
                let name = format!("file{i}");
                let ino = fs.create(dir, name.as_bytes(), 0o644, owner).unwrap().ino;
                files.push((ino, dir, name));
            }
            10 => drop(fs.symlink(dir, format!("sym{i}").as_bytes(), b"some/where", owner).unwrap()),
            11 if !files.is_empty() => {
                let (ino, dir, name) = files.swap_remove(random.random_range(0..files.len() as u64) as usize);
                fs.unlink(dir, name.as_bytes()).unwrap();
                files.retain(|f| f.0 != ino);
            }
            12 if !files.is_empty() => {
                let ino = files[random.random_range(0..files.len() as u64) as usize].0;
                drop(fs.link(ino, dir, format!("link{i}").as_bytes()));
            }
            13 => fs.sync().unwrap(),
            14 => fs.checkpoint().unwrap(),
            _ if !files.is_empty() => {
                let ino = files[random.random_range(0..files.len() as u64) as usize].0;
                let (offset, len) =
                    (random.random_range(0..60_000), 1 + random.random_range(0..20_000) as usize);
                let _ = fs.write(ino, offset, &pattern(ino, offset, len)).unwrap();
                if random.random_range(0..3) == 0 {
                    fs.fsync(ino, false).unwrap();
                }
            }
            _ => {}
        }
    }
    if random.random_range(0..2) == 0 {
        fs.close().unwrap();
    } else {
        fs.sync().unwrap();
    }
    drop(fs);
    device.fork()
}

/// The inode, type and content of each file, by path.
type Tree = BTreeMap<Vec<u8>, (Ino, FileKind, Vec<u8>)>;

fn list(fs: &FileSystem) -> kedgefs::Result<Tree> {
    let mut out = Tree::new();
    let mut todo = vec![(Ino::ROOT, Vec::new())];
    while let Some((dir, path)) = todo.pop() {
        let mut entries = Vec::new();
        fs.readdir(dir, 0, &mut |e| {
            entries.push((e.ino, e.kind, e.name.to_vec()));
            true
        })?;
        for (ino, kind, name) in entries {
            if matches!(&name[..], b"." | b"..") {
                continue;
            }
            let path = [&path[..], b"/", &name].concat();
            let content = match kind {
                FileKind::Directory => {
                    todo.push((ino, path.clone()));
                    Vec::new()
                }
                FileKind::Symlink => fs.readlink(ino)?,
                FileKind::Regular => {
                    let size = fs.getattr(ino)?.size;
                    // Damage may have made a size of petabytes, so the length of a read is bounded.
                    let mut content = vec![0; size.min(1 << 20) as usize];
                    let got = fs.read(ino, 0, &mut content)?;
                    content.truncate(got);
                    content
                }
                _ => Vec::new(),
            };
            out.insert(path, (ino, kind, content));
        }
    }
    Ok(out)
}

/// The first block of each structure, by kind: slots, the newest checkpoint's index and bitmaps,
/// nodes, log writes. File data is not listed for damage, because no check covers its bytes.
fn structures(device: &MemDevice) -> Vec<Vec<u64>> {
    let block = |b: u64, len: usize| device.bytes(b * BLOCK_SIZE as u64, len);
    let g = newest(device).geometry;
    let begins = |magic: &[u8]| -> Vec<u64> {
        (0..SIZE / BLOCK_SIZE as u64).filter(|b| block(*b, magic.len()) == magic).collect()
    };
    let mut space = vec![g.bitmap_start[0].0, g.bitmap_start[1].0];
    space.extend(begins(b"KEDGEALI"));
    let nodes = begins(b"KEDGENOD");
    let newest_nodes = {
        let generation = |b: u64| u64::from_le_bytes(block(b, 48)[40..].try_into().unwrap());
        let highest = nodes.iter().map(|b| generation(*b)).max().unwrap_or(0);
        nodes.iter().copied().filter(|b| generation(*b) + 2 > highest).collect()
    };
    let sorts = vec![vec![0, 16], space, newest_nodes, nodes, begins(b"KEDGELOG")];
    sorts.into_iter().filter(|sort| !sort.is_empty()).collect()
}

/// Damages the image and returns a description of the damage.
fn damage(device: &MemDevice, random: &mut SmallRng) -> String {
    let mut said = Vec::new();
    let sorts = structures(device);
    let pick = |random: &mut SmallRng| {
        let sort = &sorts[random.random_range(0..sorts.len() as u64) as usize];
        sort[random.random_range(0..sort.len() as u64) as usize]
    };
    for _ in 0..1 + random.random_range(0..4) {
        let at = pick(random);
        let offset = at * BLOCK_SIZE as u64;
        let is_node = device.bytes(offset, 8) == *b"KEDGENOD";
        let len = if is_node { 4 * BLOCK_SIZE } else { BLOCK_SIZE };
        match random.random_range(0..5) {
            0 | 1 => {
                let (byte, bit) = (offset + random.random_range(0..len as u64), random.random_range(0..8));
                device.corrupt(byte, |b| b[0] ^= 1 << bit);
                said.push(format!("bit {bit} of byte {byte}"));
            }
            2 => {
                device.corrupt(offset, |b| b[..BLOCK_SIZE].fill(0));
                said.push(format!("block {at} zeroed"));
            }
            3 => {
                let other = pick(random);
                let (a, b) =
                    (device.bytes(offset, BLOCK_SIZE), device.bytes(other * BLOCK_SIZE as u64, BLOCK_SIZE));
                device.corrupt(offset, |x| x[..BLOCK_SIZE].copy_from_slice(&b));
                device.corrupt(other * BLOCK_SIZE as u64, |x| x[..BLOCK_SIZE].copy_from_slice(&a));
                said.push(format!("blocks {at} and {other} swapped"));
            }
            _ => {
                device.corrupt(offset, |b| b[BLOCK_SIZE / 3..BLOCK_SIZE].fill(0xff));
                said.push(format!("tail of block {at} overwritten"));
            }
        }
        if crate::common::newest(device).is_none() {
            break;
        }
    }
    said.join(", ")
}

fn newest(device: &MemDevice) -> Superblock {
    crate::common::newest(device).unwrap().1
}

fn options(mode: RepairMode) -> RepairOptions {
    RepairOptions { check: with_replay(), force: true, clock: clock(), ..RepairOptions::new(mode) }
}

/// Asserts that a repaired image can be used and shows no foreign bytes, unless the log records
/// that would identify these are destroyed (`uncertain`). Returns its tree.
#[track_caller]
fn assert_usable(device: &MemDevice, uncertain: bool, what: &str) -> Tree {
    let fs = open(Arc::new(device.fork())).unwrap_or_else(|e| panic!("{what}: {e}"));
    let tree = list(&fs).unwrap_or_else(|e| panic!("{what}: {e}"));
    for (path, (ino, kind, content)) in &tree {
        if *kind == FileKind::Regular {
            let own = pattern(*ino, 0, content.len());
            let foreign = content.iter().zip(&own).position(|(is, own)| is != own && *is != 0);
            assert!(
                uncertain || foreign.is_none(),
                "{what}: {} has foreign bytes from {foreign:?} on",
                path.escape_ascii()
            );
        }
    }
    let owner = Owner { uid: 0, gid: 0 };
    let ino = fs.create(Ino::ROOT, b"after the repair", 0o644, owner).unwrap().ino;
    let _ = fs.write(ino, 0, &pattern(ino, 0, 10_000)).unwrap();
    fs.fsync(ino, false).unwrap();
    fs.unlink(Ino::ROOT, b"after the repair").unwrap();
    fs.close().unwrap();
    tree
}

/// Asserts that the repair left a clean image, whose tree is returned, or refused (`None`).
#[track_caller]
fn assert_good_end(device: &MemDevice, report: &RepairReport, what: &str) -> Option<Tree> {
    if report.before.superblock.is_none() {
        assert!(report.ending == Ending::Left && report.exit_code & 12 != 0, "{what}: {report}");
        assert!(report.message.contains("superblock"), "{what}: {report}");
        return None;
    }
    assert!(matches!(report.ending, Ending::Repaired | Ending::Clean), "{what}: {report}");
    let again = check(device);
    assert!(again.is_clean() && again.warnings == 0, "{what}: {report}\nthen: {again}");
    let uncertain = report.count(RepairKind::DataUncertain) > 0;
    Some(assert_usable(device, uncertain, &format!("{what}\n{report}")))
}

#[test]
fn random_damage_is_repaired_or_refused() {
    const SEED: u64 = 0x6b65_6467_6500;
    let (mut repaired, mut refused, mut given_up, mut uncertain) = (0, 0, 0, 0);
    // `KEDGE_FSCK_IMAGES` sets the number of images.
    let images = std::env::var("KEDGE_FSCK_IMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(24);
    for i in 0..images {
        let whole = image(SEED + i);
        for j in 0..14u64 {
            let seed = SEED + i * 1000 + j;
            let device = Arc::new(whole.fork());
            let said = damage(&device, &mut SmallRng::seed_from_u64(seed));
            let what = format!("seed {seed:#x} (image {i}): {said}");
            let report =
                catch_unwind(AssertUnwindSafe(|| repair(device.clone(), &options(RepairMode::Full))))
                    .unwrap_or_else(|_| panic!("panic: {what}"));
            match assert_good_end(&device, &report, &what) {
                Some(_) => repaired += (report.ending == Ending::Repaired) as u32,
                None => refused += 1,
            }
            given_up += (report.count(RepairKind::LogGivenUp) > 0) as u32;
            uncertain += (report.count(RepairKind::DataUncertain) > 0) as u32;
        }
    }
    println!(
        "seeds from {SEED:#x}: {repaired} repaired, {refused} refused, {given_up} gave up part of the log, {uncertain} of them unread"
    );
    assert!(repaired > 150, "{repaired} repaired, {refused} refused");
}

#[test]
fn a_log_without_faults_is_replayed_and_nothing_else() {
    for i in 0..10u64 {
        let whole = image(0x6c6f_6700 + i);
        let before = list(&open(Arc::new(whole.fork())).unwrap()).unwrap();
        for mode in [RepairMode::Preen, RepairMode::Full] {
            let device = Arc::new(whole.fork());
            let report = repair(device.clone(), &options(mode));
            assert_eq!((report.ending, report.exit_code), (Ending::Clean, 0), "{report}");
            assert_eq!(assert_good_end(&device, &report, "no damage"), Some(before.clone()));
        }
    }
}

/// Wrong or unreadable bitmaps lose nothing, not even the log.
#[test]
fn damaged_bitmaps_do_not_cost_the_log() {
    let mut logs = 0;
    for i in 0..12u64 {
        let whole = image(0x6269_7400 + i);
        let before = list(&open(Arc::new(whole.fork())).unwrap()).unwrap();
        let device = Arc::new(whole.fork());
        let sb = newest(&device);
        for home in sb.geometry.bitmap_start {
            device.corrupt(home.byte_offset(), |b| b[..BLOCK_SIZE].fill(0x11));
        }
        let report = repair(device.clone(), &options(RepairMode::Preen));
        assert_eq!((report.ending, report.exit_code), (Ending::Repaired, 1), "{report}");
        logs += (report.count(RepairKind::LogReplayed) > 0) as u32;
        assert_eq!(assert_good_end(&device, &report, "bitmaps"), Some(before));
    }
    assert!(logs > 2, "only {logs} of the images had a log");
}

/// A log write in the middle is destroyed: earlier ones are replayed, later ones are dropped and
/// reported.
#[test]
fn a_log_that_breaks_off_is_replayed_up_to_there() {
    let mut seen = 0;
    for i in 0..12u64 {
        let device = Arc::new(MemDevice::new(SIZE));
        format(device.clone());
        let fs = open(device.clone()).unwrap();
        let owner = Owner { uid: 0, gid: 0 };
        for n in 0..40 {
            let ino = fs.create(Ino::ROOT, format!("f{n}").as_bytes(), 0o644, owner).unwrap().ino;
            let _ = fs.write(ino, 0, &pattern(ino, 0, 3000)).unwrap();
            fs.fsync(ino, false).unwrap();
        }
        let device = Arc::new(device.fork());
        drop(fs);
        let sb = newest(&device);
        let at = sb.checkpoint.checkpoint_lsn.0 + (5 + i) * BLOCK_SIZE as u64;
        let offset = sb.geometry.log_start.byte_offset() + at % sb.geometry.log_bytes();
        device.corrupt(offset + 200, |b| b[0] ^= 1);
        let preened = repair(device.clone(), &options(RepairMode::Preen));
        assert_eq!((preened.ending, preened.exit_code), (Ending::Left, 4), "{preened}");
        let report = repair(device.clone(), &options(RepairMode::Full));
        assert_eq!((report.ending, report.exit_code), (Ending::Repaired, 1), "{report}");
        assert_eq!(report.count(RepairKind::LogGivenUp), 1, "{report}");
        let tree = assert_good_end(&device, &report, &format!("write {i}")).unwrap();
        assert!(!tree.is_empty() && tree.len() < 40, "{} files", tree.len());
        assert!(tree.values().all(|f| f.2.len() == 3000 || f.2.is_empty()), "whole files or empty ones");
        seen += 1;
    }
    assert_eq!(seen, 12);
}

/// The log begins below the checkpoint's cut while data lies in the log alone. If such a log write
/// is damaged, nothing can be replayed; the checkpoint contains these records, so the blocks that
/// they allocated keep their data.
#[test]
fn damage_below_the_cut_costs_no_data_of_the_checkpoint() {
    let device = Arc::new(MemDevice::new(SIZE));
    format(device.clone());
    let fs = open(device.clone()).unwrap();
    let owner = Owner { uid: 0, gid: 0 };
    let tail = newest(&device).checkpoint.checkpoint_lsn;
    for n in 0..6 {
        let ino = fs.create(Ino::ROOT, format!("f{n}").as_bytes(), 0o644, owner).unwrap().ino;
        let _ = fs.write(ino, 0, &pattern(ino, 0, 100 << 10)).unwrap();
        fs.fsync(ino, false).unwrap();
    }
    fs.checkpoint().unwrap();
    let device = Arc::new(device.fork());
    drop(fs);
    let mut sb = newest(&device);
    let logged = sb.checkpoint.checkpoint_lsn.0 - tail.0;
    assert!(logged > 2 * BLOCK_SIZE as u64, "the files have log writes");
    // As if data of the first of these log writes were nowhere else.
    sb.checkpoint.tail_lsn = tail;
    let mut block = IoBuf::zeroed(1);
    sb.encode(block.as_mut_bytes());
    device.write(sb.block().byte_offset(), &block, true).unwrap();
    let offset = sb.geometry.log_start.byte_offset() + tail.0 % sb.geometry.log_bytes();
    device.corrupt(offset + 200, |b| b[0] ^= 1);
    let report = repair(device.clone(), &options(RepairMode::Full));
    assert_eq!((report.ending, report.count(RepairKind::LogGivenUp)), (Ending::Repaired, 1), "{report}");
    let tree = assert_good_end(&device, &report, "below the cut").unwrap();
    assert_eq!(tree.len(), 6, "{report}");
    assert!(tree.values().all(|(ino, _, bytes)| *bytes == pattern(*ino, 0, 100 << 10)), "{report}");
}

/// One block of the log cannot be read: in the part that replay needs, after it, and on an image
/// that was unmounted. The repair loses at most the records from that block on, and replaces the
/// block.
#[test]
fn an_unreadable_block_of_the_log_does_not_end_a_repair() {
    let device = Arc::new(MemDevice::new(SIZE));
    format(device.clone());
    let fs = open(device.clone()).unwrap();
    let owner = Owner { uid: 0, gid: 0 };
    for n in 0..40 {
        let ino = fs.create(Ino::ROOT, format!("f{n}").as_bytes(), 0o644, owner).unwrap().ino;
        let _ = fs.write(ino, 0, &pattern(ino, 0, 3000)).unwrap();
        fs.fsync(ino, false).unwrap();
    }
    let in_use = device.fork();
    fs.close().unwrap();
    let clean = device.fork();
    let (leaf, _) = leaves(&clean).pop().unwrap();
    clean.corrupt(leaf.byte_offset(), |b| b[..BLOCK_SIZE].fill(0));
    let block = BLOCK_SIZE as u64;
    for (name, image, blocks_from_cut, least) in
        [("replayed", &in_use, 10, 5), ("beyond the end", &in_use, 150, 40), ("unmounted", &clean, 10, 0)]
    {
        let sb = newest(image);
        let at = sb.checkpoint.checkpoint_lsn.0 + blocks_from_cut * block;
        let bad = sb.geometry.log_start.byte_offset() + at % sb.geometry.log_bytes();
        let sim = Arc::new(SimDevice::new(image.fork()));
        sim.set_plan(FaultPlan::new(1).bad_range(OpKind::Read, bad..bad + block, 5));
        let report = repair(sim.clone(), &options(RepairMode::Full));
        assert_eq!(report.ending, Ending::Repaired, "{name}: {report}");
        assert_eq!(report.count(RepairKind::DataUncertain), 1, "{name}: {report}");
        let device = Arc::new(sim.view());
        assert_eq!(device.bytes(bad, BLOCK_SIZE), vec![0; BLOCK_SIZE], "{name}: the disk replaces the block");
        let tree = assert_good_end(&device, &report, name).unwrap();
        assert!(tree.len() >= least, "{name}: {} files: {report}", tree.len());
    }
}

/// The leaves of an image's tree, each with the inodes that have items in it.
fn leaves(device: &MemDevice) -> Vec<(BlockNo, BTreeSet<u64>)> {
    let c = newest(device).checkpoint;
    let mut level = vec![c.root];
    for _ in 0..c.root_level {
        let below = level.iter().flat_map(|node| {
            let bytes = device.bytes(node.byte_offset(), NODE_SIZE);
            let view = NodeView::trusted(&bytes);
            (0..view.items()).map(|i| view.child(i).addr).collect::<Vec<_>>()
        });
        level = below.collect();
    }
    let with_inodes = level.into_iter().map(|leaf| {
        let bytes = device.bytes(leaf.byte_offset(), NODE_SIZE);
        (leaf, NodeView::trusted(&bytes).iter().map(|(key, _)| key.ino).collect())
    });
    with_inodes.collect()
}

/// After one leaf is destroyed, a file without items in that leaf is unchanged, under the same name
/// or in lost+found.
#[test]
fn files_outside_a_destroyed_leaf_keep_their_content() {
    let mut compared = 0;
    for i in 0..12u64 {
        let device = Arc::new(image(0x6c65_6166_0000 + i));
        // The unmount writes all changes into the tree.
        open(device.clone()).unwrap().close().unwrap();
        let before = list(&open(Arc::new(device.fork())).unwrap()).unwrap();
        for (leaf, inodes) in leaves(&device) {
            let device = Arc::new(device.fork());
            device.corrupt(leaf.byte_offset(), |b| b[..BLOCK_SIZE].fill(0));
            let report = repair(device.clone(), &options(RepairMode::Full));
            let what = format!("image {i}, leaf {leaf}");
            let tree = assert_good_end(&device, &report, &what).unwrap();
            let after: BTreeMap<Ino, &Vec<u8>> = tree.values().map(|(ino, _, bytes)| (*ino, bytes)).collect();
            for (path, (ino, kind, content)) in &before {
                if !inodes.contains(&ino.0) && *kind != FileKind::Directory {
                    let is = after.get(ino);
                    assert!(is == Some(&content), "{what}: {} changed: {report}", path.escape_ascii());
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 200, "only {compared} files lay elsewhere");
}

/// An unmounted fork of `whole` in which a user wrote these bytes to a file.
fn with_bytes_of_a_user(whole: &MemDevice, ino: Ino, offset: u64, bytes: &[u8]) -> MemDevice {
    let device = Arc::new(whole.fork());
    let fs = open(device.clone()).unwrap();
    assert_eq!(fs.write(ino, offset, bytes).unwrap(), bytes.len());
    fs.close().unwrap();
    // A later mount does not change the file, so the file's leaf keeps an older generation.
    open(device.clone()).unwrap().close().unwrap();
    device.fork()
}

/// A user who knows the format, but not the secret, writes a leaf into a file, with the leaf's own
/// address and the newest generation. The leaf holds a set-user-id file of root, new or in place of
/// an old file, with the blocks of another file. Then the root of the tree is damaged, so that all
/// leaves are searched for.
#[test]
fn a_leaf_that_a_user_put_into_a_file_is_not_taken() {
    let device = Arc::new(MemDevice::new(SIZE));
    format(device.clone());
    let fs = open(device.clone()).unwrap();
    let create = |name: &str, id| {
        let owner = Owner { uid: id, gid: id };
        let ino = fs.create(Ino::ROOT, name.as_bytes(), 0o600, owner).unwrap().ino;
        assert_eq!(fs.write(ino, 0, &pattern(ino, 0, 70_000)).unwrap(), 70_000);
        ino
    };
    let mine = create("mine", 1000);
    let others: Vec<Ino> = (0..150).map(|n| create(&format!("f{n}"), 0)).collect();
    fs.close().unwrap();
    let whole = device.fork();
    let extent = |ino: Ino| {
        leaves(&whole).into_iter().find_map(|(leaf, _)| {
            let bytes = whole.bytes(leaf.byte_offset(), NODE_SIZE);
            let is = |key: &Key| key.ino == ino.0 && key.kind == ItemKind::Extent as u8;
            let found = NodeView::trusted(&bytes).iter().find(|(key, _)| is(key))?;
            Some((found.0.offset, ExtentItem::decode(found.1).unwrap()))
        })
    };
    let (first, item) = extent(mine).unwrap();
    let place = BlockNo(item.start.0.next_multiple_of(4));
    let offset = (first + place.0 - item.start.0) * BLOCK_SIZE as u64;
    assert!(place.0 + 4 <= item.start.0 + item.blocks as u64);
    let honest = with_bytes_of_a_user(&whole, mine, offset, &pattern(mine, offset, NODE_SIZE));
    let before = list(&open(Arc::new(honest.fork())).unwrap()).unwrap();

    for ino in [others[75], Ino(5000)] {
        let sb = newest(&honest);
        let mut bytes = vec![0; NODE_SIZE];
        let (uuid, generation) = (sb.geometry.uuid, sb.checkpoint.generation);
        let mut node = NodeMut::init(&mut bytes, &uuid, place, generation, 0);
        let core = InodeCore { mode: 0o104_755, nlink: 1, size: 70_000, blocks: 18, ..InodeCore::default() };
        node.append(&Key::inode(ino), &core.encode());
        let of_another = extent(others[30]).unwrap().1;
        node.append(&Key::new(ino, ItemKind::Extent, 0), &of_another.encode());
        node.seal(&LogSecret(*b"a guess of mine."));
        let damaged = with_bytes_of_a_user(&whole, mine, offset, &bytes);
        assert!(damaged.bytes(place.byte_offset(), NODE_SIZE) == bytes, "the leaf lies where it says");
        assert_eq!(newest(&damaged).checkpoint.generation, generation);
        let root = newest(&damaged).checkpoint;
        assert!(root.root_level > 0, "there are leaves to search for");
        damaged.corrupt(root.root.byte_offset(), |b| b[..BLOCK_SIZE].fill(0));

        let device = Arc::new(damaged);
        let report = repair(device.clone(), &RepairOptions { force: true, ..options(RepairMode::Full) });
        assert_eq!(report.ending, Ending::Repaired, "{report}");
        assert!(report.count(RepairKind::NodeSalvaged) > 1, "{report}");
        let after = list(&open(device.clone()).unwrap()).unwrap();
        let fs = open(device).unwrap();
        for (path, (ino, ..)) in &after {
            let mode = fs.getattr(*ino).unwrap().mode;
            assert_eq!(mode & 0o6000, 0, "{}: {report}", path.escape_ascii());
        }
        assert!(after.keys().eq(before.keys()), "{report}");
        for (path, (ino, kind, content)) in &before {
            let same = after[path].0 == *ino && after[path].1 == *kind;
            assert!(same && (*ino == mine || after[path].2 == *content), "{}: {report}", path.escape_ascii());
        }
    }
}

/// Power fails at each write of a repair that replays a log, and of a repair that also rewrites a
/// damaged tree.
#[test]
fn a_crash_in_a_repair_is_repaired_again() {
    let mut states = 0;
    for i in 0..8u64 {
        let seed = 0x6372_6173_6800 + i;
        let damaged = image(seed);
        let said = if i % 2 == 0 {
            damage(&damaged, &mut SmallRng::seed_from_u64(seed))
        } else {
            "no damage".into()
        };
        let sim = Arc::new(SimDevice::new(damaged));
        let report = repair(sim.clone(), &options(RepairMode::Full));
        if report.before.superblock.is_none() {
            continue;
        }
        let what = format!("seed {seed:#x}: {said}");
        assert!(matches!(report.ending, Ending::Repaired | Ending::Clean), "{what}: {report}");
        let done = list(&open(Arc::new(sim.view())).unwrap()).unwrap();
        let recording = sim.recording();
        let plan = StatePlan { subsets: 2, samples: 3, torn: 2, at_marks_only: false, seed };
        for state in recording.states(plan) {
            let device = Arc::new(state.medium.fork());
            let again = repair(device.clone(), &options(RepairMode::Full));
            let what = format!("{what}, {state:?}");
            let tree = assert_good_end(&device, &again, &what).unwrap_or_else(|| panic!("{what}: refused"));
            assert_eq!(tree, done, "{what}");
            states += 1;
        }
    }
    println!("{states} states");
    assert!(states > 50, "only {states} states");
}

/// The device fails from the n-th write of a repair on: the repair reports the failure, and the
/// next repair leaves a clean image.
#[test]
fn a_device_that_fails_in_a_repair_leaves_what_can_be_repaired() {
    let mut failed = 0;
    for i in 0..6u64 {
        let seed = 0x6661_696c_7300 + i;
        let damaged = image(seed);
        let said = damage(&damaged, &mut SmallRng::seed_from_u64(seed));
        if crate::common::newest(&damaged).is_none() {
            continue;
        }
        for nth in 1..60 {
            let sim = Arc::new(SimDevice::new(damaged.fork()));
            sim.stop_recording();
            sim.set_plan(FaultPlan::new(seed).fail(OpKind::Write, nth, 5));
            let what = format!("seed {seed:#x}, write {nth}: {said}");
            let report = repair(sim.clone(), &options(RepairMode::Full));
            let ended = matches!(report.ending, Ending::Repaired | Ending::Clean);
            if !ended {
                assert_eq!((report.ending, report.exit_code & 8), (Ending::Failed, 8), "{what}: {report}");
                failed += 1;
            }
            let device = Arc::new(sim.crash(seed));
            let again = repair(device.clone(), &options(RepairMode::Full));
            assert_good_end(&device, &again, &what);
            if ended {
                break;
            }
        }
    }
    assert!(failed > 10, "only {failed} repairs met a failure");
}

/// An image with a log, and a tree with a fault that replay preserves. The new tree must not
/// overwrite the old checkpoint's tree: replay has replaced that tree in memory, but it is the only
/// valid tree on the device until the new superblock is written.
#[test]
fn a_crash_leaves_the_old_tree_though_replay_gave_it_up() {
    let device = Arc::new(MemDevice::new(SIZE));
    format(device.clone());
    let fs = open(device.clone()).unwrap();
    let owner = Owner { uid: 0, gid: 0 };
    for n in 0..600 {
        if n == 500 {
            fs.checkpoint().unwrap();
        }
        let ino = fs.create(Ino::ROOT, format!("f{n}").as_bytes(), 0o644, owner).unwrap().ino;
        let _ = fs.write(ino, 0, &pattern(ino, 0, 100)).unwrap();
    }
    fs.sync().unwrap();
    let damaged = device.fork();
    drop(fs);
    let (leaf, _) = leaves(&damaged).pop().unwrap();
    let mut bytes = damaged.bytes(leaf.byte_offset(), NODE_SIZE);
    let mut node = NodeMut::trusted(&mut bytes);
    let at = (0..node.view().items()).find(|i| node.view().value(*i).len() == InodeCore::SIZE).unwrap();
    let core = InodeCore::decode(node.view().value(at)).unwrap();
    node.value_mut(at).copy_from_slice(&InodeCore { nlink: 7, ..core }.encode());
    node.seal(&newest(&damaged).geometry.log_secret);
    damaged.corrupt(leaf.byte_offset(), |b| b[..BLOCK_SIZE].copy_from_slice(&bytes[..BLOCK_SIZE]));
    for i in 1..4 {
        let piece = &bytes[i * BLOCK_SIZE..][..BLOCK_SIZE];
        damaged.corrupt(leaf.byte_offset() + (i * BLOCK_SIZE) as u64, |b| {
            b[..BLOCK_SIZE].copy_from_slice(piece);
        });
    }

    let sim = Arc::new(SimDevice::new(damaged));
    let report = repair(sim.clone(), &options(RepairMode::Preen));
    assert_eq!((report.ending, report.exit_code), (Ending::Repaired, 1), "{report}");
    assert_eq!(report.count(RepairKind::CountsCorrected), 1, "{report}");
    assert!(
        report.count(RepairKind::LogReplayed) == 1 && report.count(RepairKind::TreeRewritten) == 1,
        "{report}"
    );
    let done = list(&open(Arc::new(sim.view())).unwrap()).unwrap();
    assert_eq!(done.len(), 600);
    let plan = StatePlan { subsets: 4, samples: 6, torn: 3, at_marks_only: false, seed: 1 };
    for state in sim.recording().states(plan) {
        let device = Arc::new(state.medium.fork());
        let again = repair(device.clone(), &options(RepairMode::Preen));
        let tree = assert_good_end(&device, &again, &format!("{state:?}")).unwrap();
        assert!(tree == done, "{state:?}");
    }
}

/// A deleted file reappears because the record of its deletion is destroyed. Its blocks already
/// hold another owner's bytes, and a record after the destroyed one shows that.
#[test]
fn a_file_that_comes_back_does_not_show_what_took_its_blocks() {
    let device = Arc::new(MemDevice::new(SIZE));
    format(device.clone());
    let fs = open(device.clone()).unwrap();
    let owner = Owner { uid: 0, gid: 0 };
    let create = |name: &str| fs.create(Ino::ROOT, name.as_bytes(), 0o644, owner).unwrap().ino;
    let gone = create("gone");
    assert_eq!(fs.write(gone, 0, &pattern(gone, 0, 400_000)).unwrap(), 400_000);
    fs.sync().unwrap();
    // A file takes all other blocks, so that the next file gets these.
    let all = create("all");
    let mut at = 0;
    while let Ok(n @ 1..) = fs.write(all, at, &pattern(all, at, 64 << 10)) {
        at += n as u64;
    }
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    fs.unlink(Ino::ROOT, b"gone").unwrap();
    fs.sync().unwrap();
    let next = create("next");
    assert_eq!(fs.write(next, 0, &pattern(next, 0, 300_000)).unwrap(), 300_000);
    fs.sync().unwrap();
    let crashed = device.fork();
    drop(fs);
    let sb = newest(&crashed);
    let cut = sb.checkpoint.checkpoint_lsn.0 % sb.geometry.log_bytes();
    crashed.corrupt(sb.geometry.log_start.byte_offset() + cut + 100, |b| b[0] ^= 1);
    let device = Arc::new(crashed);
    let report = repair(device.clone(), &options(RepairMode::Full));
    assert_eq!(report.ending, Ending::Repaired, "{report}");
    assert!(report.count(RepairKind::ExtentDropped) > 0, "{report}");
    assert_eq!(report.count(RepairKind::DataUncertain), 1, "{report}");
    let tree = assert_usable(&device, false, &report.to_string());
    assert_eq!(tree[&b"/gone"[..]].2.len(), 400_000);
}
