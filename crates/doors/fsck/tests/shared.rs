//! Images with clones, forks, limits and checksums, after random operations and damage. A repair
//! leaves a clean image, files that the damage cannot reach keep their contents in every tree, and
//! further operations on the image find no wrongly shared block.

use crate::common::{clock, newest, open, with_replay};
use kedge_base::{BLOCK_SIZE, BlockNo, Ino};
use kedge_device::MemDevice;
use kedge_device::sim::{SimDevice, StatePlan};
use kedge_format::ItemKind;
use kedge_format::node::{NODE_SIZE, NodeMut, NodeView};
use kedge_format::superblock::{INCOMPAT_CLONES, SLOTS, Superblock};
use kedge_format::trees::{TreeEntry, number_of};
use kedge_fsck::{
    CheckOptions, Ending, FindingKind, RepairKind, RepairMode, RepairOptions, RepairReport, repair,
};
use kedgefs::{FileKind, FileSystem, FormatOptions, Owner, SetAttr, SetLimit};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SIZE: u64 = crate::common::SIZE;
const BLOCK: u64 = BLOCK_SIZE as u64;
const OWNER: Owner = Owner { uid: 0, gid: 0 };

fn pick<'a, T>(random: &mut SmallRng, from: &'a [T]) -> Option<&'a T> {
    (!from.is_empty()).then(|| &from[random.random_range(0..from.len())])
}

/// Bytes that no other write has. None of them is zero.
fn bytes(random: &mut SmallRng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes[..]);
    bytes.iter_mut().for_each(|byte| *byte |= 1);
    bytes
}

/// Files with their directories and names, and directories.
type Inside = (Vec<(Ino, Ino, Vec<u8>)>, Vec<Ino>);

/// The regular files and directories of a tree, without those of trees inside it.
fn inside(fs: &FileSystem, root: Ino) -> Inside {
    let (mut files, mut dirs) = (Vec::new(), vec![root]);
    let mut next = 0;
    while let Some(dir) = dirs.get(next).copied() {
        next += 1;
        let mut found = Vec::new();
        fs.readdir(dir, 2, &mut |e| {
            found.push((e.ino, e.kind, e.name.to_vec()));
            true
        })
        .unwrap();
        for (ino, kind, name) in found.into_iter().filter(|(ino, ..)| ino.tree() == root.tree()) {
            match kind {
                FileKind::Directory => dirs.push(ino),
                FileKind::Regular => files.push((ino, dir, name)),
                _ => {}
            }
        }
    }
    (files, dirs)
}

fn roots(fs: &FileSystem, writable: bool) -> Vec<Ino> {
    let others = fs.trees().into_iter().filter(|tree| !(writable && tree.read_only));
    [Ino::ROOT].into_iter().chain(others.map(|tree| tree.root)).collect()
}

/// Makes a random change in a random tree. `features` selects the kinds of changes.
fn change(
    fs: &FileSystem,
    random: &mut SmallRng,
    features: Features,
    seen: &mut Listing,
    model: &mut Option<&mut Model>,
) {
    let roots = roots(fs, true);
    let root = *pick(random, &roots).unwrap();
    if model.is_none() {
        seen.clear();
    }
    let (files, dirs) = seen.entry(root).or_insert_with(|| inside(fs, root));
    let dir = *pick(random, dirs).unwrap();
    let serial: u64 = random.random();
    // Files that are deleted or missing in the model are not changed.
    let file = pick(random, files).cloned();
    let file = file.filter(|(ino, ..)| model.as_ref().is_none_or(|model| model.contains_key(ino)));
    match (random.random_range(0..24), file) {
        (0..=5, _) => {
            let Ok(attr) = fs.create(dir, format!("f{serial:x}").as_bytes(), 0o644, OWNER) else { return };
            let data = bytes(random, 1 + serial as usize % 12_000);
            let got = fs.write(attr.ino, 0, &data).unwrap_or(0);
            if let Some(model) = model {
                model.insert(attr.ino, data[..got].to_vec());
            }
        }
        (6, _) => drop(fs.mkdir(dir, format!("d{serial:x}").as_bytes(), 0o755, OWNER)),
        (7..=13, Some((ino, ..))) => {
            let size = fs.getattr(ino).unwrap().size;
            let at = if size == 0 { 0 } else { serial % size };
            let data = bytes(random, 1 + (serial >> 32) as usize % 9000);
            let got = fs.write(ino, at, &data).unwrap_or(0);
            if let Some(content) = model.as_mut().and_then(|model| model.get_mut(&ino)) {
                let at = at as usize;
                content.resize(content.len().max(at + got), 0);
                content[at..at + got].copy_from_slice(&data[..got]);
            }
        }
        (14, Some((ino, ..))) => {
            let size = serial % 20_000;
            if fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).is_ok()
                && let Some(content) = model.as_mut().and_then(|model| model.get_mut(&ino))
            {
                content.resize(size as usize, 0);
            }
        }
        (15 | 16, Some((ino, dir, name))) => {
            if fs.unlink(dir, &name).is_ok()
                && let Some(model) = model
            {
                model.remove(&ino);
            }
        }
        (17..=20, Some((source, ..))) if features.clones => {
            let Ok(attr) = fs.create(dir, format!("c{serial:x}").as_bytes(), 0o644, OWNER) else { return };
            let done = fs.clone_file(source, attr.ino).is_ok();
            if let Some(model) = model {
                let content = if done { model[&source].clone() } else { Vec::new() };
                model.insert(attr.ino, content);
            }
        }
        (21, _) if features.forks && roots.len() < 4 => {
            let name = format!("t{serial:x}");
            let Ok(fork) = fs.fork(root, Ino::ROOT, name.as_bytes(), serial.is_multiple_of(4)) else {
                return;
            };
            if let Some(model) = model {
                let of = |ino: &Ino| ino.tree() == root.tree();
                let more: Vec<_> =
                    model.iter().filter(|(ino, _)| of(ino)).map(|(i, c)| (*i, c.clone())).collect();
                for (ino, content) in more {
                    model.insert(ino.local().in_tree(fork.ino.tree()), content);
                }
            }
        }
        (22, _) if features.forks && roots.len() > 2 && serial.is_multiple_of(3) => {
            let trees = fs.trees();
            let tree = pick(random, &trees).unwrap();
            // A tree that contains names of other trees cannot be deleted.
            if fs.delete_tree(tree.dir, &tree.name).is_ok()
                && let Some(model) = model
            {
                model.retain(|ino, _| ino.tree() != tree.root.tree());
            }
        }
        (23, _) if features.limits && dir != root => {
            let limit = SetLimit { bytes: Some(Some(1 << 30)), files: Some(Some(100_000)) };
            drop(fs.set_limit(dir, limit));
        }
        _ => {}
    }
}

/// The contents of each tree when it was last listed.
type Listing = BTreeMap<Ino, Inside>;

#[derive(Clone, Copy, Debug)]
struct Features {
    clones: bool,
    forks: bool,
    limits: bool,
}

/// The contents of each readable regular file, in all trees.
type Model = BTreeMap<Ino, Vec<u8>>;

fn contents(fs: &FileSystem) -> Model {
    let mut model = Model::new();
    for root in roots(fs, false) {
        for (ino, ..) in inside(fs, root).0 {
            let size = fs.getattr(ino).unwrap().size;
            let mut content = vec![0; size.min(1 << 20) as usize];
            if let Ok(got) = fs.read(ino, 0, &mut content)
                && got as u64 == size
            {
                model.insert(ino, content);
            }
        }
    }
    model
}

/// An image with these features: cleanly unmounted, or as a crash leaves it.
fn image(seed: u64, features: Features, unmounted: bool) -> MemDevice {
    let random = &mut SmallRng::seed_from_u64(seed);
    let device = Arc::new(MemDevice::new(SIZE));
    let options = FormatOptions {
        log_size: Some(1 << 20),
        uuid: Some(uuid::Uuid::from_u128(78)),
        data_checksums: random.random_range(0..2) == 0,
        ..FormatOptions::default()
    };
    FileSystem::format(device.clone(), clock(), &options).unwrap();
    let fs = open(device.clone()).unwrap();
    // Enough names that the tree has more than one leaf.
    for i in 0..120 {
        let ino = fs.create(Ino::ROOT, format!("start{i}").as_bytes(), 0o644, OWNER).unwrap().ino;
        fs.write(ino, 0, &bytes(random, 1 + i * 40)).unwrap();
    }
    for i in 0..100 + random.random_range(0..150) {
        change(&fs, random, features, &mut Listing::new(), &mut None);
        if i % 50 == 49 {
            fs.sync().unwrap();
            fs.checkpoint().unwrap();
        }
    }
    if random.random_range(0..2) == 0 {
        fs.reclaim().unwrap();
    }
    if unmounted {
        fs.close().unwrap();
    } else {
        fs.sync().unwrap();
    }
    drop(fs);
    device.fork()
}

/// A tree node of an image.
struct Node {
    block: BlockNo,
    level: u8,
    /// The inodes with items in or below the node, by their numbers in all trees.
    inodes: BTreeSet<u64>,
}

/// All nodes of all trees, and the nodes of the table of trees.
fn nodes(device: &MemDevice) -> (Vec<Node>, Vec<BlockNo>) {
    let sb = newest(device).unwrap().1;
    let c = sb.checkpoint;
    let mut all: BTreeMap<BlockNo, Node> = BTreeMap::new();
    let mut table = Vec::new();
    let mut roots = vec![(0, c.root)];
    if let Some(trees) = c.trees {
        let mut todo = vec![trees.root];
        while let Some(block) = todo.pop() {
            table.push(block);
            let bytes = device.bytes(block.byte_offset(), NODE_SIZE);
            let view = NodeView::trusted(&bytes);
            match view.level() {
                0 => roots.extend(view.iter().filter_map(|(key, value)| {
                    let number = number_of(&key).filter(|number| *number != 0)?;
                    Some((number, TreeEntry::decode(value).unwrap().root))
                })),
                _ => todo.extend((0..view.items()).map(|i| view.child(i).addr)),
            }
        }
    }
    for (tree, root) in roots {
        below(device, tree, root, &mut all);
    }
    (all.into_values().collect(), table)
}

fn below(device: &MemDevice, tree: u32, block: BlockNo, all: &mut BTreeMap<BlockNo, Node>) -> BTreeSet<u64> {
    let bytes = device.bytes(block.byte_offset(), NODE_SIZE);
    let view = NodeView::trusted(&bytes);
    let own: BTreeSet<u64> = match view.level() {
        0 => view.iter().map(|(key, _)| Ino(key.ino).in_tree(tree).0).collect(),
        _ => (0..view.items()).flat_map(|i| below(device, tree, view.child(i).addr, all)).collect(),
    };
    let level = view.level();
    let node = all.entry(block).or_insert_with(|| Node { block, level, inodes: BTreeSet::new() });
    node.inodes.extend(&own);
    own
}

/// What a damage can affect.
enum Reach {
    /// All items of these inodes.
    Inodes(BTreeSet<u64>),
    /// All items of these inodes. Blocks of other inodes may become holes.
    Blocks(BTreeSet<u64>),
    Anything,
}

/// Damages the image. Returns a description, and what the damage can affect.
fn damage(device: &MemDevice, random: &mut SmallRng) -> (String, Reach) {
    let (nodes, table) = nodes(device);
    let sb = newest(device).unwrap().1;
    let node = pick(random, &nodes).unwrap();
    // Leaves that trees share and leaves of one tree are both hit: trees share most of their
    // leaves.
    let zero = |block: u64| device.corrupt(block * BLOCK, |b| b[..BLOCK_SIZE].fill(0));
    match random.random_range(0..20) {
        0..=5 => {
            let bit = random.random_range(0..NODE_SIZE * 8);
            device.corrupt(node.block.byte_offset() + bit as u64 / 8, |b| b[0] ^= 1 << (bit % 8));
            (
                format!("bit {bit} of node {}, level {}", node.block, node.level),
                Reach::Inodes(node.inodes.clone()),
            )
        }
        6 | 7 => {
            let other = pick(random, &nodes).unwrap();
            zero(node.block.0 + random.random_range(0..4));
            zero(other.block.0);
            let inodes = node.inodes.union(&other.inodes).copied().collect();
            (format!("zeros in nodes {} and {}", node.block, other.block), Reach::Inodes(inodes))
        }
        8..=15 => {
            let mut said = format!("fields of node {}, level {}:", node.block, node.level);
            let mut bytes = device.bytes(node.block.byte_offset(), NODE_SIZE);
            for _ in 0..1 + random.random_range(0..3) {
                said += &spoil(&mut bytes, random);
            }
            reseal(device, node.block, bytes);
            let reach = if node.level == 0 { Reach::Blocks(node.inodes.clone()) } else { Reach::Anything };
            (said, reach)
        }
        16 if !table.is_empty() => {
            let block = *pick(random, &table).unwrap();
            let mut bytes = device.bytes(block.byte_offset(), NODE_SIZE);
            let said = format!("fields of the table's node {block}:") + &spoil(&mut bytes, random);
            reseal(device, block, bytes);
            (said, Reach::Anything)
        }
        17 if !table.is_empty() => {
            let block = *pick(random, &table).unwrap();
            zero(block.0);
            (format!("zeros in the table's node {block}"), Reach::Anything)
        }
        18 => {
            let g = &sb.geometry;
            g.bitmap_start.iter().for_each(|start| device.corrupt(start.byte_offset(), |b| b[..99].fill(7)));
            ("bitmaps".into(), Reach::Inodes(BTreeSet::new()))
        }
        _ => {
            spoil_index(device, &sb);
            ("index".into(), Reach::Inodes(BTreeSet::new()))
        }
    }
}

/// Overwrites both allocation indexes.
fn spoil_index(device: &MemDevice, sb: &kedge_format::superblock::Superblock) {
    sb.geometry
        .index_start
        .iter()
        .for_each(|start| device.corrupt(start.byte_offset(), |b| b[..4096].fill(1)));
}

/// Changes a random field of a random item, or a key, or the child of an inner node.
fn spoil(bytes: &mut [u8], random: &mut SmallRng) -> String {
    let view = NodeView::trusted(bytes);
    let i = random.random_range(0..view.items());
    let (key, value) = (view.key(i), view.value(i).to_vec());
    if random.random_range(0..10) == 0 {
        let mut node = NodeMut::trusted(bytes);
        node.remove_at(i);
        return format!(" {key} removed");
    }
    let mut new = value;
    if new.is_empty() {
        return String::new();
    }
    let at = random.random_range(0..new.len());
    new[at] = match random.random_range(0..4) {
        0 => 0,
        1 => 0xff,
        2 => new[at] ^ 1 << random.random_range(0..8),
        _ => random.random(),
    };
    let mut node = NodeMut::trusted(bytes);
    assert!(node.replace_value(i, &new));
    format!(" byte {at} of {key}")
}

fn reseal(device: &MemDevice, at: BlockNo, mut bytes: Vec<u8>) {
    let sb = newest(device).unwrap().1;
    NodeMut::trusted(&mut bytes).seal(&sb.geometry.log_secret);
    for (block, new) in (at.0..).zip(bytes.chunks(BLOCK_SIZE)) {
        device.corrupt(block * BLOCK, |old| old[..BLOCK_SIZE].copy_from_slice(new));
    }
}

fn options(mode: RepairMode) -> RepairOptions {
    RepairOptions { check: with_replay(), force: true, clock: clock(), ..RepairOptions::new(mode) }
}

#[track_caller]
fn assert_clean(device: &MemDevice, data: bool, what: &str) {
    let options = CheckOptions { data, ..with_replay() };
    let report = kedge_fsck::check(Arc::new(device.fork()), &options);
    assert!(report.is_clean() && report.warnings == 0, "{what}\nthen: {report}");
}

/// Changes the image at random and compares it with a model.
fn work_on(device: &MemDevice, random: &mut SmallRng, changes: u32, what: &str) {
    let device = Arc::new(device.fork());
    let fs = open(device.clone()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut model = contents(&fs);
    // Damage may have given a file blocks beyond its end, whose bytes appear when it grows.
    model.retain(|ino, content| {
        fs.getattr(*ino).unwrap().blocks * 512 <= (content.len() as u64).next_multiple_of(BLOCK)
    });
    let all =
        |fs: &FileSystem| -> usize { roots(fs, false).iter().map(|root| inside(fs, *root).0.len()).sum() };
    let unreadable = all(&fs) != model.len();
    let features = Features { clones: true, forks: true, limits: false };
    let mut listing = Listing::new();
    for i in 0..changes {
        if i % 50 == 0 {
            listing.clear();
        }
        change(&fs, random, features, &mut listing, &mut Some(&mut model));
        if i % 100 == 99 {
            fs.sync().unwrap_or_else(|e| panic!("{what}: {e}"));
            fs.reclaim().unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
    assert_model(&contents(&fs), &model, what);
    fs.close().unwrap_or_else(|e| panic!("{what}: {e}"));
    drop(fs);
    assert_clean(&device, !unreadable, what);
    let fs = open(device).unwrap();
    assert_model(&contents(&fs), &model, &format!("after a mount: {what}"));
}

#[track_caller]
fn assert_model(is: &Model, model: &Model, what: &str) {
    for (ino, content) in model {
        let found =
            is.get(ino).unwrap_or_else(|| panic!("{what}: inode {ino} of tree {} is lost", ino.tree()));
        if found != content {
            let differs = found.iter().zip(content).position(|(is, shall)| is != shall);
            let (tree, is, shall) = (ino.tree(), found.len(), content.len());
            panic!(
                "{what}: inode {ino} of tree {tree} has {is} bytes, not {shall}; they differ from {differs:?} on"
            );
        }
    }
}

/// Asserts that inodes out of the damage's reach have kept their contents. Returns their number.
fn compare(before: &Model, after: &Model, reach: &Reach, what: &str) -> u64 {
    let mut compared = 0;
    let (reached, holes) = match reach {
        Reach::Inodes(inodes) => (inodes, false),
        Reach::Blocks(inodes) => (inodes, true),
        Reach::Anything => return 0,
    };
    for (ino, content) in before.iter().filter(|(ino, _)| !reached.contains(&ino.0)) {
        let is =
            after.get(ino).unwrap_or_else(|| panic!("{what}: inode {ino} of tree {} is lost", ino.tree()));
        let same = |(is, was): (&u8, &u8)| is == was || *is == 0;
        let has_holes = || holes && is.len() == content.len() && is.iter().zip(content).all(same);
        let equal = is == content || has_holes();
        assert!(equal, "{what}: inode {ino} of tree {} changed", ino.tree());
        compared += 1;
    }
    compared
}

fn repaired(device: &Arc<MemDevice>, mode: RepairMode, what: &str) -> RepairReport {
    catch_unwind(AssertUnwindSafe(|| repair(device.clone(), &options(mode))))
        .unwrap_or_else(|_| panic!("panic: {what}"))
}

/// Damages an image in `cases` ways, and checks each repair.
fn judge(seed: u64, cases: u64, seen: &Seen) {
    let random = &mut SmallRng::seed_from_u64(seed);
    let bit = |n: u64| seed >> n & 1 == 1;
    let features = Features { clones: bit(0) || !bit(1), forks: bit(1), limits: bit(2) };
    let unmounted = !seed.is_multiple_of(5);
    let whole = image(seed, features, unmounted);
    assert_clean(&whole, true, &format!("seed {seed:#x}"));
    let before = contents(&open(Arc::new(whole.fork())).unwrap());
    work_on(&whole, random, 500, &format!("seed {seed:#x}, not damaged"));
    for case in 0..cases {
        let device = Arc::new(whole.fork());
        let (said, reach) = damage(&device, random);
        let what = format!("seed {seed:#x} case {case}, {features:?}, unmounted {unmounted}: {said}");
        let report = repaired(&device, RepairMode::Full, &what);
        let what = format!("{what}\n{report}");
        assert!(matches!(report.ending, Ending::Repaired | Ending::Clean), "{what}");
        assert_clean(&device, false, &what);
        // If the repair drops log records, files that these changed return to an older state.
        let reach = if unmounted { reach } else { Reach::Anything };
        let after = contents(&open(Arc::new(device.fork())).unwrap());
        seen.compared.fetch_add(compare(&before, &after, &reach, &what), Ordering::Relaxed);
        work_on(&device, random, 500, &what);
        seen.images.fetch_add(1, Ordering::Relaxed);
        seen.repaired.fetch_add((report.ending == Ending::Repaired).into(), Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Seen {
    images: AtomicU64,
    repaired: AtomicU64,
    compared: AtomicU64,
}

#[test]
fn images_whose_files_and_trees_share_blocks_are_repaired() {
    // `KEDGE_FSCK_SHARED` sets the number of damaged images, `KEDGE_FSCK_SEED` the first seed.
    let long = || std::env::var_os("KEDGE_LONG").is_some_and(|v| v == "1");
    let number = |name: &str| std::env::var(name).ok().map(|n| n.parse::<u64>().expect("a number"));
    let images = number("KEDGE_FSCK_SHARED").unwrap_or(if long() { 1000 } else { 300 });
    let first = number("KEDGE_FSCK_SEED").unwrap_or(0x6b65_6467_0000);
    const CASES: u64 = 30;
    let (next, seen) = (AtomicU64::new(0), Seen::default());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i * CASES >= images {
                        return;
                    }
                    judge(first + i, CASES.min(images - i * CASES), &seen);
                }
            });
        }
    });
    let Seen { images, repaired, compared } = seen;
    let (images, repaired, compared) = (images.into_inner(), repaired.into_inner(), compared.into_inner());
    println!("seeds from {first:#x}: {images} images, {repaired} repaired, {compared} files compared");
    assert!(
        repaired * 2 > images && compared > images,
        "{repaired} of {images} repaired, {compared} compared"
    );
}

/// After a power failure at any write of a repair, another repair has the same result.
#[test]
fn an_interrupted_repair_is_run_again() {
    const SEED: u64 = 0x6b65_6467_0100;
    let mut cut_off = 0;
    for seed in SEED..SEED + 8 {
        let random = &mut SmallRng::seed_from_u64(seed);
        let features = Features { clones: true, forks: true, limits: seed.is_multiple_of(2) };
        let whole = image(seed, features, !seed.is_multiple_of(3));
        let said = damage(&whole, random).0;
        let what = format!("seed {seed:#x}: {said}");
        let sim = Arc::new(SimDevice::new(whole));
        let report = repair(sim.clone(), &options(RepairMode::Full));
        assert!(matches!(report.ending, Ending::Repaired | Ending::Clean), "{what}: {report}");
        let right = contents(&open(Arc::new(sim.view())).unwrap());
        let recording = sim.recording();
        let plan = StatePlan { subsets: 2, samples: 3, torn: 2, at_marks_only: false, seed };
        for state in recording.states(plan) {
            let device = Arc::new(state.medium.fork());
            let what = format!("{what}, {state:?}");
            let report = repaired(&device, RepairMode::Full, &what);
            assert!(matches!(report.ending, Ending::Repaired | Ending::Clean), "{what}: {report}");
            assert_clean(&device, false, &what);
            assert_model(&contents(&open(Arc::new(device.fork())).unwrap()), &right, &what);
            cut_off += 1;
        }
    }
    println!("{cut_off} states");
    assert!(cut_off > 100, "only {cut_off} states");
}

/// Flips one bit in each byte of the table's entries: trees stay as far as they can be read.
#[test]
fn each_byte_of_the_tables_entries_is_repaired() {
    const SEED: u64 = 0x6b65_6467_0300;
    let random = &mut SmallRng::seed_from_u64(SEED);
    let mut repairs = 0;
    for seed in SEED..SEED + 3 {
        let features = Features { clones: true, forks: true, limits: false };
        let whole = image(seed, features, seed.is_multiple_of(2));
        for block in nodes(&whole).1 {
            let bytes = whole.bytes(block.byte_offset(), NODE_SIZE);
            let view = NodeView::trusted(&bytes);
            if view.level() > 0 {
                continue;
            }
            let places = (0..view.items()).flat_map(|i| (0..view.value(i).len()).map(move |at| (i, at)));
            for (i, at) in places {
                let device = Arc::new(whole.fork());
                let mut bytes = bytes.clone();
                let mut value = view.value(i).to_vec();
                value[at] ^= 1 << random.random_range(0..8);
                assert!(NodeMut::trusted(&mut bytes).replace_value(i, &value));
                reseal(&device, block, bytes);
                let what = format!("seed {seed:#x}, byte {at} of {}", view.key(i));
                let report = repaired(&device, RepairMode::Full, &what);
                assert!(matches!(report.ending, Ending::Repaired | Ending::Clean), "{what}: {report}");
                assert_clean(&device, false, &what);
                repairs += 1;
            }
        }
    }
    println!("{repairs} repairs");
    assert!(repairs > 500, "{repairs} repairs");
}

/// A repair keeps checksums: a later check of the data still reports the file with damaged data.
#[test]
fn damaged_data_is_named_after_a_repair() {
    let device = Arc::new(MemDevice::new(SIZE));
    let options_of = FormatOptions { data_checksums: true, ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock(), &options_of).unwrap();
    let fs = open(device.clone()).unwrap();
    let random = &mut SmallRng::seed_from_u64(5);
    let source = fs.create(Ino::ROOT, b"source", 0o644, OWNER).unwrap().ino;
    let data = bytes(random, 100_000);
    fs.write(source, 0, &data).unwrap();
    let clone = fs.create(Ino::ROOT, b"clone", 0o644, OWNER).unwrap().ino;
    fs.clone_file(source, clone).unwrap();
    fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap();
    fs.close().unwrap();
    drop(fs);
    let device = Arc::new(device.fork());
    let first = newest(&device).unwrap().1.geometry.data_start.0;
    let at =
        (first..SIZE / BLOCK).find(|b| device.bytes(b * BLOCK, BLOCK_SIZE) == data[..BLOCK_SIZE]).unwrap();
    device.corrupt(at * BLOCK + 9, |b| b[0] ^= 4);
    let c = newest(&device).unwrap().1.checkpoint;
    let mut node = device.bytes(c.root.byte_offset(), NODE_SIZE);
    let mut view = NodeMut::trusted(&mut node);
    let count = (0..view.view().items()).find(|i| view.view().key(*i).kind == ItemKind::Count as u8).unwrap();
    view.remove_at(count);
    reseal(&device, c.root, node);
    let report = repair(device.clone(), &options(RepairMode::Full));
    assert_eq!(report.ending, Ending::Repaired, "{report}");
    assert!(report.count(RepairKind::SharesRecounted) > 0, "{report}");
    let check = CheckOptions { data: true, ..with_replay() };
    let report = kedge_fsck::check(device, &check);
    assert!(!report.findings.is_empty() && report.findings.iter().all(|f| f.kind == FindingKind::DataBad));
    let text = report.to_string();
    assert!(text.contains("/source"), "{text}");
}

/// If the feature flag for shared blocks is missing, a repair sets it and loses nothing.
#[test]
fn a_missing_feature_is_set_again() {
    let device =
        Arc::new(image(0x6b65_6467_0200, Features { clones: true, forks: false, limits: false }, true));
    let before = contents(&open(Arc::new(device.fork())).unwrap());
    for (slot, at) in SLOTS.iter().enumerate() {
        let block = SIZE / BLOCK;
        let Ok(mut sb) = Superblock::decode(&crate::common::slot(&device, slot), slot, block) else {
            continue;
        };
        sb.geometry.feature_incompat &= !INCOMPAT_CLONES;
        let mut bytes = vec![0; BLOCK_SIZE];
        sb.encode(&mut bytes);
        device.corrupt(at.byte_offset(), |old| old[..BLOCK_SIZE].copy_from_slice(&bytes));
    }
    let report = repair(device.clone(), &options(RepairMode::Full));
    assert_eq!(report.ending, Ending::Repaired, "{report}");
    assert_clean(&device, true, &report.to_string());
    assert!(contents(&open(device).unwrap()) == before, "{report}");
}
