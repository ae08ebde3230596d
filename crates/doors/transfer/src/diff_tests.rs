//! Compares the reported differences with those that a full read of both trees finds.

use super::{Difference, What, differences};
use kedge_base::SystemClock;
use kedge_device::MemDevice;
use kedgefs::{
    Attr, FallocateMode, FileKind, FileSystem, FormatOptions, Ino, MountOptions, Owner, RenameMode, SetAttr,
    SetTime, XattrMode,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const OWNER: Owner = Owner { uid: 0, gid: 0 };
const MIB: u64 = 1 << 20;

pub(crate) fn open(size: u64, checksums: bool) -> FileSystem {
    make(size, checksums).0
}

pub(crate) fn make(size: u64, checksums: bool) -> (FileSystem, Arc<MemDevice>) {
    let device = Arc::new(MemDevice::new(size));
    let clock = Arc::new(SystemClock::default());
    let options = FormatOptions { size: Some(size), data_checksums: checksums, ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock.clone(), &options).unwrap();
    (FileSystem::open(device.clone(), clock, MountOptions::default()).unwrap(), device)
}

pub(crate) fn put(fs: &FileSystem, dir: Ino, name: &str, data: &[u8]) -> Ino {
    let ino = fs.create(dir, name.as_bytes(), 0o644, OWNER).unwrap().ino;
    assert_eq!(fs.write(ino, 0, data).unwrap(), data.len());
    ino
}

fn compare(fs: &FileSystem, a: Ino, b: Ino) -> super::Differences {
    let moments = fs.moments(&[a, b]).unwrap();
    differences(&moments[0], &moments[1], &|| Ok(())).unwrap()
}

pub(crate) struct Random(pub(crate) SmallRng);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0.random_range(0..n)
    }
}

/// Everything that a reader can see of a tree.
#[derive(Default)]
pub(crate) struct Whole {
    pub(crate) names: BTreeMap<u64, BTreeSet<Vec<u8>>>,
    pub(crate) attrs: BTreeMap<u64, Attr>,
    pub(crate) entries: BTreeMap<u64, BTreeSet<(Vec<u8>, u64)>>,
    pub(crate) data: BTreeMap<u64, Vec<u8>>,
    pub(crate) xattrs: BTreeMap<u64, BTreeMap<Vec<u8>, Vec<u8>>>,
}

pub(crate) fn read(fs: &FileSystem, root: Ino, number: &dyn Fn(u64) -> u64) -> Whole {
    let mut whole = Whole::default();
    let mut left = vec![(Vec::new(), root)];
    while let Some((path, ino)) = left.pop() {
        let local = number(ino.local().0);
        whole.names.entry(local).or_default().insert(path.clone());
        let attr = fs.getattr(ino).unwrap();
        whole.attrs.insert(local, attr);
        let names = fs.listxattr(ino).unwrap();
        let values = names.into_iter().map(|name| (name.clone(), fs.getxattr(ino, &name).unwrap()));
        whole.xattrs.insert(local, values.collect());
        match attr.kind {
            FileKind::Directory => {
                for (name, below) in crate::offline::entries(fs, ino).unwrap() {
                    if fs.tree_named(ino, &name).is_some() {
                        continue;
                    }
                    whole.entries.entry(local).or_default().insert((name.clone(), number(below.local().0)));
                    let path = if path.is_empty() { name } else { [&path[..], &name].join(&b'/') };
                    left.push((path, below));
                }
            }
            FileKind::Regular => {
                let whole_file = [(0, attr.size)];
                let ranges = crate::import::image::ranges(fs, &attr).unwrap();
                // Only the data ranges of a large file are read, because it is sparse.
                let ranges = if attr.size < 64 * MIB { &whole_file[..] } else { &ranges };
                let mut data = Vec::new();
                for (offset, len) in ranges {
                    let mut part = vec![0; *len as usize];
                    fs.read(ino, *offset, &mut part).unwrap();
                    data.extend(part);
                }
                whole.data.insert(local, data);
            }
            _ => {}
        }
    }
    whole
}

/// What a difference must report, apart from its ranges: path, kind, and modified parts.
type Said = (Vec<u8>, What, Vec<&'static str>);

fn expected(a: &Whole, b: &Whole) -> BTreeSet<Said> {
    let mut said = BTreeSet::new();
    let inodes: BTreeSet<u64> = a.attrs.keys().chain(b.attrs.keys()).copied().collect();
    let none = BTreeSet::new();
    for ino in inodes {
        // A renamed ancestor changes the path, but is no difference of this inode. So names are
        // compared by directory.
        let own = |whole: &Whole| -> BTreeSet<(u64, Vec<u8>)> {
            let in_dir = |(dir, entries): (&u64, &BTreeSet<(Vec<u8>, u64)>)| {
                let of = entries.iter().filter(|(_, to)| *to == ino);
                of.map(|(name, _)| (*dir, name.clone())).collect::<Vec<_>>()
            };
            whole.entries.iter().flat_map(in_dir).collect()
        };
        let path = |whole: &Whole, (dir, name): &(u64, Vec<u8>)| {
            let above = whole.names[dir].first().unwrap().clone();
            if above.is_empty() { name.clone() } else { [&above[..], name].join(&b'/') }
        };
        let (old, new) = (own(a), own(b));
        let gone: Vec<_> = old.difference(&new).map(|name| path(a, name)).collect();
        let come: Vec<_> = new.difference(&old).map(|name| path(b, name)).collect();
        let both = a.attrs.contains_key(&ino) && b.attrs.contains_key(&ino);
        let renamed = if both { gone.len().min(come.len()) } else { 0 };
        // A difference does not define which new name replaces which old one.
        for (i, path) in come.iter().enumerate() {
            let what = match both {
                true if i < renamed => What::Renamed,
                true => What::Linked,
                false => What::Created,
            };
            said.insert((path.clone(), what, Vec::new()));
        }
        for path in gone.iter().skip(renamed) {
            said.insert((path.clone(), if both { What::Unlinked } else { What::Deleted }, Vec::new()));
        }
        if let (Some(x), Some(y)) = (a.attrs.get(&ino), b.attrs.get(&ino)) {
            let is_dir = x.kind == FileKind::Directory;
            let empty = Vec::new();
            let data = |whole: &Whole| -> Vec<u8> { whole.data.get(&ino).unwrap_or(&empty).clone() };
            let (mut old, mut new) = (data(a), data(b));
            let len = old.len().max(new.len());
            old.resize(len, 0);
            new.resize(len, 0);
            let entries = |whole: &Whole| whole.entries.get(&ino).unwrap_or(&none).clone();
            let parts: Vec<&'static str> = [
                ("data", old != new),
                ("size", !is_dir && x.size != y.size),
                ("mode", x.mode != y.mode),
                ("owner", (x.uid, x.gid) != (y.uid, y.gid)),
                ("times", x.mtime != y.mtime && !(is_dir && entries(a) != entries(b))),
                ("flags", x.flags != y.flags),
                ("device", x.rdev != y.rdev),
                ("xattrs", a.xattrs[&ino] != b.xattrs[&ino]),
            ]
            .into_iter()
            .filter_map(|(part, differs)| differs.then_some(part))
            .collect();
            if !parts.is_empty() {
                for path in &b.names[&ino] {
                    let path = if path.is_empty() { b".".to_vec() } else { path.clone() };
                    said.insert((path, What::Modified, parts.clone()));
                }
            }
        }
    }
    said
}

fn check(fs: &FileSystem, a: Ino, b: Ino, common: &BTreeSet<u64>, seed: u64) {
    let found = compare(fs, a, b).found;
    let own = |side: u64| move |ino: u64| if common.contains(&ino) { ino } else { ino | side << 60 };
    let (a, b) = (read(fs, a, &own(1)), read(fs, b, &own(2)));
    // Which of an inode's names count as renamed, linked or unlinked is arbitrary.
    let rough = |(path, what, parts): Said| match what {
        What::Renamed | What::Linked => (path, What::Linked, parts),
        _ => (path, what, parts),
    };
    let got: BTreeSet<Said> =
        found.iter().map(|d| rough((d.path.clone(), d.what, d.parts.clone()))).collect();
    let froms: BTreeSet<Vec<u8>> = found.iter().filter_map(|d| d.from.clone()).collect();
    let want: BTreeSet<Said> = expected(&a, &b).into_iter().map(rough).collect();
    let missing: Vec<_> = want
        .difference(&got)
        .filter(|(path, what, _)| !(*what == What::Unlinked && froms.contains(path)))
        .collect();
    let excess: Vec<_> = got.difference(&want).filter(|(_, what, _)| *what != What::Unlinked).collect();
    assert!(missing.is_empty() && excess.is_empty(), "seed {seed}: missing {missing:?}, excess {excess:?}");
    for Difference { data, path, .. } in &found {
        for (offset, len) in data {
            let ino = b.names.iter().find(|(_, names)| names.contains(path)).map(|(ino, _)| *ino).unwrap();
            let part = |whole: &Whole| -> Vec<u8> {
                let data = &whole.data[&ino];
                let end = data.len() as u64;
                data[(*offset).min(end) as usize..(offset + len).min(end) as usize].to_vec()
            };
            assert_ne!(part(&a), part(&b), "seed {seed}: {offset}+{len}");
        }
    }
}

pub(crate) fn change_at_random(fs: &FileSystem, root: Ino, random: &mut Random) {
    let whole = read(fs, root, &|ino| ino);
    let tree = root.tree();
    let pick = |random: &mut Random, kind: Option<FileKind>| {
        let fits = |attr: &&Attr| kind.is_none_or(|kind| attr.kind == kind);
        let all: Vec<Attr> = whole.attrs.values().filter(fits).copied().collect();
        (!all.is_empty()).then(|| all[random.below(all.len() as u64) as usize].ino.local().in_tree(tree))
    };
    let dir = pick(random, Some(FileKind::Directory)).unwrap();
    let name = format!("n{}", (random.below(12) as u32));
    let names: Vec<(u64, Vec<u8>)> = whole
        .entries
        .iter()
        .flat_map(|(dir, entries)| entries.iter().map(|(name, _)| (*dir, name.clone())))
        .collect();
    let old = (!names.is_empty()).then(|| names[random.below(names.len() as u64) as usize].clone());
    // An operation may fail, for instance because the name exists. Then nothing changes.
    let _ = match random.below(14) {
        0 => fs.mkdir(dir, name.as_bytes(), 0o755, OWNER).map(drop),
        1 | 2 => fs.create(dir, name.as_bytes(), 0o644, OWNER).and_then(|attr| {
            fs.write(
                attr.ino,
                random.below(3) * 4096,
                &vec![random.below(256) as u8; random.below(20_000) as usize],
            )
            .map(drop)
        }),
        3 => fs.symlink(dir, name.as_bytes(), b"target", OWNER).map(drop),
        4 => fs.mknod(dir, name.as_bytes(), 0o020_666, 0x0103, OWNER).map(drop),
        5 | 6 => match pick(random, Some(FileKind::Regular)) {
            Some(ino) => {
                let at = random.below(60_000);
                fs.write(ino, at, &vec![random.below(256) as u8; 1 + random.below(8999) as usize]).map(drop)
            }
            None => Ok(()),
        },
        7 => match pick(random, Some(FileKind::Regular)) {
            Some(ino) => {
                let size = Some(random.below(30_000));
                fs.setattr(ino, &SetAttr { size, ..SetAttr::default() }).map(drop)
            }
            None => Ok(()),
        },
        8 => match pick(random, Some(FileKind::Regular)) {
            Some(ino) => {
                let mode = [FallocateMode::Allocate { keep_size: true }, FallocateMode::PunchHole];
                fs.fallocate(ino, mode[random.below(2) as usize], random.below(8) * 4096, 8192)
            }
            None => Ok(()),
        },
        9 => match old {
            Some((at, old)) => {
                let at = Ino(at).in_tree(tree);
                fs.rename(at, &old, dir, name.as_bytes(), RenameMode::Replace)
            }
            None => Ok(()),
        },
        10 => match old {
            Some((at, old)) => {
                let at = Ino(at).in_tree(tree);
                fs.unlink(at, &old).or_else(|_| fs.rmdir(at, &old))
            }
            None => Ok(()),
        },
        11 => match pick(random, Some(FileKind::Regular)) {
            Some(ino) => fs.link(ino, dir, name.as_bytes()).map(drop),
            None => Ok(()),
        },
        12 => match pick(random, None) {
            Some(ino) => {
                let mtime = Some(SetTime::Now);
                let mode = (random.below(2) == 1).then(|| random.below(0o1000) as u32);
                fs.setattr(ino, &SetAttr { mode, mtime, ..SetAttr::default() }).map(drop)
            }
            None => Ok(()),
        },
        _ => match pick(random, Some(FileKind::Regular)) {
            Some(ino) => {
                let value = vec![random.below(256) as u8; [1, 50, 5000, 60_000][random.below(4) as usize]];
                let name = format!("user.{}", (random.below(4) as u32));
                fs.setxattr(ino, name.as_bytes(), &value, XattrMode::Any)
            }
            None => Ok(()),
        },
    };
}

#[test]
fn differences_are_those_of_a_comparison_of_everything() {
    for seed in 0..40 {
        let mut random = Random(SmallRng::seed_from_u64(seed));
        let fs = open(48 * MIB, seed % 2 == 0);
        for _ in 0..random.below(120) {
            change_at_random(&fs, Ino::ROOT, &mut random);
        }
        let old = fs.fork(Ino::ROOT, Ino::ROOT, b"old", true).unwrap().ino;
        let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap().ino;
        assert_eq!(compare(&fs, old, fork).found, []);
        let common = read(&fs, old, &|ino| ino).attrs.into_keys().collect();
        for _ in 0..random.below(60) {
            let tree = if random.below(2) == 1 { fork } else { Ino::ROOT };
            change_at_random(&fs, tree, &mut random);
        }
        for (a, b) in [(old, fork), (fork, old), (old, Ino::ROOT), (Ino::ROOT, fork)] {
            check(&fs, a, b, &common, seed);
        }
        fs.close().unwrap();
    }
}

#[test]
fn a_comparison_reads_what_was_changed_and_not_the_tree() {
    let mut reads = Vec::new();
    for files in [1000, 20_000] {
        let fs = open(256 * MIB, false);
        let dirs: Vec<Ino> = (0..20)
            .map(|i| fs.mkdir(Ino::ROOT, format!("d{i}").as_bytes(), 0o755, OWNER).unwrap().ino)
            .collect();
        let inos: Vec<Ino> =
            (0..files).map(|i| put(&fs, dirs[i * 20 / files], &format!("f{i}"), b"data")).collect();
        let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap().ino;
        for i in 0..5 {
            let ino = inos[i * files / 5].in_tree(fork.tree());
            fs.write(ino, 0, b"DATA").unwrap();
        }
        let done = compare(&fs, Ino::ROOT, fork);
        let paths: Vec<_> = done.found.iter().map(|d| String::from_utf8(d.path.clone()).unwrap()).collect();
        assert_eq!(paths.len(), 5, "{paths:?}");
        let nodes = fs.tree_space(Ino::ROOT).unwrap().own_nodes;
        reads.push((done.nodes, nodes));
        fs.close().unwrap();
    }
    // Each changed file costs the nodes from the root to its leaf, in both trees.
    for ((compared, names), _) in &reads {
        assert!(*compared <= 2 * 5 * 3, "{reads:?}");
        assert!(*names <= 5 * 60, "{reads:?}");
    }
}

#[test]
fn unrelated_trees_and_other_directories_are_refused() {
    let fs = open(32 * MIB, false);
    let dir = fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).unwrap().ino;
    assert_eq!(fs.moments(&[dir]).err().unwrap().errno(), 22);
}

/// Regression: the whole path of each directory above a change was kept, 900 MB here.
#[test]
fn deep_directories_take_little_memory() {
    let fs = open(128 * MIB, false);
    let mut dirs = vec![Ino::ROOT];
    for level in 0..3000u32 {
        let name = format!("{level:0200}");
        dirs.push(fs.mkdir(*dirs.last().unwrap(), name.as_bytes(), 0o755, OWNER).unwrap().ino);
    }
    let old = fs.fork(Ino::ROOT, Ino::ROOT, b"old", true).unwrap().ino;
    put(&fs, *dirs.last().unwrap(), "new", b"data");
    let found = compare(&fs, old, Ino::ROOT).found;
    let [new] = &found[..] else { panic!("{} differences", found.len()) };
    // 20 names of 200 bytes fit.
    let cut = format!("(inode {})/", dirs[dirs.len() - 21].0);
    assert!(new.path.starts_with(cut.as_bytes()), "{}", new.path.len());
    assert!(new.path.ends_with(b"2999/new"));
    assert!(new.path.len() < 4096 + cut.len(), "{}", new.path.len());

    // A file at each tenth level: the directories above all of them are kept.
    let moments = fs.moments(&[Ino::ROOT]).unwrap();
    let asked = std::cell::Cell::new(0);
    let go_on = || {
        asked.set(asked.get() + 1);
        Ok(())
    };
    let mut paths = super::Paths::new(&moments[0], &go_on);
    for dir in dirs.iter().step_by(10) {
        paths.path(dir.0, b"file").unwrap();
    }
    let held: usize = paths.dirs.values().map(|(_, name)| name.len() + 64).sum();
    assert!(paths.dirs.len() > 2900 && held < 1 << 20, "{} directories, {held} bytes", paths.dirs.len());
    assert!(asked.get() >= paths.dirs.len(), "a long search can be ended");
    let ended = || anyhow::bail!("the mount is ending");
    let error = super::Paths::new(&moments[0], &ended).path(dirs[9].0, b"file").unwrap_err();
    assert_eq!(error.to_string(), "the mount is ending");
}
