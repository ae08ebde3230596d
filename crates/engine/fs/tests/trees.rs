//! Forks of trees: what they share, what they do not share, and what is freed when they are
//! deleted.

use crate::common::images::{assert_clean, errno, names, open, put};
use crate::common::watched::{Watch, Watched};
use kedge_base::{HANG, ManualClock, SystemClock, spawn_named};
use kedge_device::{Device, MemDevice};
use kedgefs::{
    Attr, Error, FallocateMode, FileSystem, FormatOptions, Ino, MountOptions, Owner, RenameMode, SetAttr,
    WriteMode, XattrMode,
};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
pub const OWNER: Owner = Owner { uid: 0, gid: 0 };

fn make(size: u64) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(size));
    let options = FormatOptions { size: Some(size), log_size: Some(4 * MIB), ..FormatOptions::default() };
    FileSystem::format(device.clone(), Arc::new(SystemClock::default()), &options).unwrap();
    device
}

pub fn get(fs: &FileSystem, dir: Ino, name: &str) -> Vec<u8> {
    let attr = fs.lookup(dir, name.as_bytes()).unwrap();
    contents(fs, &attr)
}

fn contents(fs: &FileSystem, attr: &Attr) -> Vec<u8> {
    let mut data = vec![0xee; attr.size as usize];
    assert_eq!(fs.read_uncached(attr.ino, 0, &mut data).unwrap(), data.len());
    data
}

fn free(fs: &FileSystem) -> u64 {
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    fs.checkpoint().unwrap();
    fs.statfs().blocks_free
}

/// A device that holds writes on request.
struct Held {
    inner: MemDevice,
    /// Whether writes wait, and the number of those that do.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Watch for Held {
    fn device(&self) -> &dyn Device {
        &self.inner
    }

    fn before_write(&self, _: bool) {
        let mut state = self.state.lock();
        state.1 += 1;
        self.changed.notify_all();
        while state.0 {
            self.changed.wait(&mut state);
        }
        state.1 -= 1;
    }
}

/// The removal first makes everything durable, while other threads continue to change the tree.
#[test]
fn rmdir_of_a_fork_that_is_filled_meanwhile_is_refused() {
    let inner = make(64 * MIB).fork();
    let device = Arc::new(Watched(Held { inner, state: Mutex::new((false, 0)), changed: Condvar::new() }));
    let clock = Arc::new(ManualClock::default());
    let fs = FileSystem::open(device.clone(), clock, MountOptions::default()).unwrap();
    let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap().ino;
    fs.create(Ino::ROOT, b"not durable", 0o644, OWNER).unwrap();
    device.state.lock().0 = true;
    let remover = {
        let fs = fs.clone();
        spawn_named("remover", move || fs.rmdir(Ino::ROOT, b"fork")).unwrap()
    };
    {
        let mut state = device.state.lock();
        while state.1 == 0 {
            assert!(!device.changed.wait_for(&mut state, HANG).timed_out(), "the removal writes nothing");
        }
    }
    let file = fs.create(fork, b"filled", 0o644, OWNER).unwrap().ino;
    device.state.lock().0 = false;
    device.changed.notify_all();
    assert_eq!(errno(remover.join().unwrap()), kedge_base::errno::ENOTEMPTY);
    assert_eq!(fs.lookup(fork, b"filled").unwrap().ino, file);
    fs.unlink(fork, b"filled").unwrap();
    fs.rmdir(Ino::ROOT, b"fork").unwrap();
    assert!(matches!(fs.lookup(Ino::ROOT, b"fork"), Err(Error::NotFound)));
    fs.close().unwrap();
    assert_clean(&device.inner);
}

#[test]
fn a_fork_and_its_source_go_their_own_ways() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let old = vec![1; 3 * MIB as usize];
    put(&fs, Ino::ROOT, "large", &old);
    put(&fs, Ino::ROOT, "small", b"small");
    let sub = fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).unwrap().ino;
    put(&fs, sub, "deep", b"deep");
    let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap();
    assert_eq!(names(&fs, Ino::ROOT), ["dir", "fork", "large", "small"]);
    assert_eq!(names(&fs, fork.ino), ["dir", "large", "small"]);
    assert_eq!(fs.lookup(fork.ino, b"..").unwrap().ino, Ino::ROOT);

    put(&fs, fork.ino, "large", &vec![2; MIB as usize]);
    put(&fs, Ino::ROOT, "small", b"other");
    let forked_dir = fs.lookup(fork.ino, b"dir").unwrap().ino;
    assert_eq!(fs.lookup(forked_dir, b"..").unwrap().ino, fork.ino);
    fs.unlink(forked_dir, b"deep").unwrap();
    put(&fs, forked_dir, "new", b"new");
    let expect = |fs: &FileSystem| {
        let fork = fs.lookup(Ino::ROOT, b"fork").unwrap().ino;
        let dir = fs.lookup(fork, b"dir").unwrap().ino;
        let source_dir = fs.lookup(Ino::ROOT, b"dir").unwrap().ino;
        assert!(get(fs, Ino::ROOT, "large") == old);
        let forked = get(fs, fork, "large");
        assert!(forked[..MIB as usize].iter().all(|b| *b == 2));
        assert!(forked[MIB as usize..] == old[MIB as usize..]);
        assert_eq!(
            (get(fs, Ino::ROOT, "small"), get(fs, fork, "small")),
            (b"other".to_vec(), b"small".to_vec())
        );
        assert_eq!((names(fs, source_dir), names(fs, dir)), (vec!["deep".into()], vec!["new".into()]));
    };
    expect(&fs);
    fs.sync().unwrap();
    assert_clean(&device);
    expect(&open(&Arc::new(device.fork())));
    fs.close().unwrap();
    assert_clean(&device);
    expect(&open(&device));
}

/// A fork shares its nodes with its source, which has them in memory, so forking reads nothing.
#[test]
fn a_fork_of_a_cached_tree_reads_nothing() {
    let device = make(64 * MIB);
    let fs = open(&device);
    for i in 0..2000 {
        fs.create(Ino::ROOT, format!("file{i}").as_bytes(), 0o644, OWNER).unwrap();
    }
    let mode = SetAttr { mode: Some(0o711), ..SetAttr::default() };
    fs.setattr(Ino::ROOT, &mode).unwrap();
    let reads = || device.stats().reads.get();
    let forked = |source: Ino, name: &[u8]| {
        let before = reads();
        let attr = fs.fork(source, Ino::ROOT, name, false).unwrap();
        assert_eq!(reads(), before, "reads of the fork {}", String::from_utf8_lossy(name));
        attr
    };
    let first = forked(Ino::ROOT, b"first");
    // In the source the first fork looks like another directory, which is not part of the second
    // fork.
    let second = forked(Ino::ROOT, b"second");
    assert_eq!((first.size, second.size, second.nlink), (2000, 2000, 2));
    // A fork that is open, and has changed, is forked without a read too.
    fs.mkdir(second.ino, b"dir", 0o755, OWNER).unwrap();
    let third = forked(second.ino, b"third");
    let replaced = fs.roll_back(second.ino, Ino::ROOT, b"first").unwrap();
    for attr in [&second, &third, &replaced] {
        assert_eq!(attr.mode & 0o7777, 0o711);
    }
    assert_eq!((third.size, third.nlink), (2001, 3));
    // The attributes that the calls returned are those that the trees have.
    let check = |fs: &FileSystem, attr: &Attr| assert_eq!(fs.getattr(attr.ino).unwrap(), *attr);
    let both = [&third, &replaced];
    both.iter().for_each(|attr| check(&fs, attr));
    fs.close().unwrap();
    let fs = open(&device);
    both.iter().for_each(|attr| check(&fs, attr));
    drop(fs);
    assert_clean(&device);
}

#[test]
fn the_space_of_a_fork_comes_back() {
    let device = make(64 * MIB);
    let fs = open(&device);
    put(&fs, Ino::ROOT, "a", &vec![1; 8 * MIB as usize]);
    let before = free(&fs);
    let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap().ino;
    let forked = free(&fs);
    assert!(before - forked < 64, "{before} {forked}");
    put(&fs, fork, "a", &vec![2; 4 * MIB as usize]);
    put(&fs, Ino::ROOT, "a", &vec![3; 2 * MIB as usize]);
    let apart = free(&fs);
    assert!((1536..1700).contains(&(forked - apart)), "{forked} {apart}");
    let space = fs.tree_space(fork).unwrap();
    assert_eq!(space.own_data, 4 * MIB);
    fs.delete_tree(Ino::ROOT, b"fork").unwrap();
    assert_eq!(fs.getattr(fork).unwrap_err().errno(), 116);
    fs.reclaim().unwrap();
    assert_clean(&device);
    assert_eq!(names(&fs, Ino::ROOT), ["a"]);
    let after = free(&fs);
    // Only the table of trees still takes space.
    assert!(before - after <= 8, "{before} {after}");
    assert!(get(&fs, Ino::ROOT, "a")[2 * MIB as usize..].iter().all(|b| *b == 1));
}

#[test]
fn the_source_may_change_while_many_forks_come_and_go() {
    let device = make(64 * MIB);
    let fs = open(&device);
    put(&fs, Ino::ROOT, "a", &vec![1; 8 * MIB as usize]);
    let before = free(&fs);
    for round in 0..20u8 {
        let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap().ino;
        put(&fs, fork, "b", &vec![round; 3 * MIB as usize]);
        put(&fs, Ino::ROOT, "a", &vec![round; 5 * MIB as usize]);
        fs.sync().unwrap();
        fs.delete_tree(Ino::ROOT, b"fork").unwrap();
        fs.reclaim().unwrap();
        let after = free(&fs);
        assert!(before - after <= 8, "round {round}: {before} {after}");
    }
    assert_clean(&device);
}

#[test]
fn names_that_trees_cannot_have() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let file = put(&fs, Ino::ROOT, "file", b"x");
    let dir = fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).unwrap().ino;
    let errno = |result: kedgefs::Result<Attr>| result.unwrap_err().errno();
    assert_eq!(errno(fs.fork(dir, Ino::ROOT, b"x", false)), 22);
    assert_eq!(errno(fs.fork(Ino::ROOT, Ino::ROOT, b"file", false)), 17);
    assert_eq!(errno(fs.fork(Ino::ROOT, file, b"x", false)), 20);
    assert_eq!(errno(fs.fork(Ino::ROOT, Ino(12345), b"x", false)), 2);
    assert_eq!(errno(fs.fork(Ino::ROOT, Ino::ROOT, b"a/b", false)), 22);
    let fork = fs.fork(Ino::ROOT, dir, b"fork", false).unwrap().ino;
    assert_eq!(errno(fs.create(dir, b"fork", 0o644, OWNER)), 17);
    assert_eq!(errno(fs.fork(Ino::ROOT, dir, b"fork", false)), 17);
    assert_eq!(fs.rmdir(Ino::ROOT, b"dir").unwrap_err().errno(), 39);
    assert_eq!(fs.rmdir(dir, b"fork").unwrap_err().errno(), 39);
    assert_eq!(fs.unlink(dir, b"fork").unwrap_err().errno(), 21);
    assert_eq!(errno(fs.link(file, fork, b"link")), 18);
    let rename = |from, name: &[u8], to, new: &[u8]| {
        fs.rename(from, name, to, new, RenameMode::Replace).map_err(|e| e.errno())
    };
    assert_eq!(rename(Ino::ROOT, b"file", fork, b"file2"), Err(18));
    assert_eq!(rename(dir, b"fork", Ino::ROOT, b"file"), Err(17));
    assert_eq!(rename(dir, b"fork", fork, b"inside"), Err(22));
    // A directory with the name of a tree is not empty, although the name does not count in its
    // logged size.
    fs.mkdir(Ino::ROOT, b"other", 0o755, OWNER).unwrap();
    assert_eq!(rename(Ino::ROOT, b"other", Ino::ROOT, b"dir"), Err(39));
    fs.rmdir(Ino::ROOT, b"other").unwrap();
    // The fork moves with the directory that contains its name, and then moves to another
    // directory.
    rename(Ino::ROOT, b"dir", Ino::ROOT, b"dir2").unwrap();
    rename(dir, b"fork", Ino::ROOT, b"moved").unwrap();
    assert_eq!(fs.lookup(fork, b"..").unwrap().ino, Ino::ROOT);
    fs.rmdir(Ino::ROOT, b"dir2").unwrap();
    // A tree inside another one is not part of a fork of that, and must be deleted before it.
    let inner = fs.fork(fork, fork, b"inner", false).unwrap().ino;
    let third = fs.fork(fork, Ino::ROOT, b"third", false).unwrap().ino;
    assert_eq!(names(&fs, third), ["dir", "file"]);
    assert_eq!(fs.delete_tree(Ino::ROOT, b"moved").unwrap_err().errno(), 39);
    assert_eq!(get(&fs, inner, "file"), b"x");
    fs.unlink(inner, b"file").unwrap();
    fs.rmdir(inner, b"dir").unwrap();
    fs.rmdir(fork, b"inner").unwrap();
    fs.delete_tree(Ino::ROOT, b"moved").unwrap();
    assert_eq!(errno(fs.fork(fork, Ino::ROOT, b"late", false)), 116);
    fs.sync().unwrap();
    assert_clean(&device);
    let roots: Vec<Ino> = fs.trees().iter().map(|tree| tree.root).collect();
    assert_eq!(roots, [Ino::ROOT, third]);
}

#[test]
fn nothing_changes_in_a_snapshot() {
    let device = make(64 * MIB);
    let fs = open(&device);
    put(&fs, Ino::ROOT, "file", b"before");
    let snap = fs.fork(Ino::ROOT, Ino::ROOT, b"snap", true).unwrap().ino;
    put(&fs, Ino::ROOT, "file", b"after!");
    let file = fs.lookup(snap, b"file").unwrap().ino;
    let ro = |result: kedgefs::Result<()>| assert_eq!(result.unwrap_err().errno(), 30);
    ro(fs.write(file, 0, b"x").map(drop));
    ro(fs.create(snap, b"new", 0o644, OWNER).map(drop));
    ro(fs.mkdir(snap, b"new", 0o755, OWNER).map(drop));
    ro(fs.symlink(snap, b"new", b"x", OWNER).map(drop));
    ro(fs.tmpfile(snap, 0o644, OWNER).map(drop));
    ro(fs.unlink(snap, b"file"));
    ro(fs.link(file, snap, b"link").map(drop));
    ro(fs.rename(snap, b"file", snap, b"x", RenameMode::Replace));
    ro(fs.setattr(file, &SetAttr { size: Some(0), ..SetAttr::default() }).map(drop));
    ro(fs.fallocate(file, FallocateMode::PunchHole, 0, 4096));
    ro(fs.setxattr(file, b"user.x", b"y", XattrMode::Any));
    ro(fs.fork(snap, snap, b"inside", false).map(drop));
    assert_eq!(get(&fs, snap, "file"), b"before");
    let fork = fs.fork(snap, Ino::ROOT, b"fork", false).unwrap().ino;
    put(&fs, fork, "file", b"forked");
    fs.set_tree_read_only(snap, false).unwrap();
    put(&fs, snap, "file", b"thawed");
    fs.sync().unwrap();
    assert_clean(&device);
    let again = open(&Arc::new(device.fork()));
    for (tree, data) in [(Ino::ROOT, "after!"), (snap, "thawed"), (fork, "forked")] {
        assert_eq!(get(&again, tree, "file"), data.as_bytes());
    }
}

/// A file that has lost its name while it is open gets into a fork, where it has no name either.
#[test]
fn a_fork_does_not_keep_files_without_names() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let file = put(&fs, Ino::ROOT, "file", &vec![7; MIB as usize]);
    fs.pin(file).unwrap();
    fs.unlink(Ino::ROOT, b"file").unwrap();
    let nameless = fs.tmpfile(Ino::ROOT, 0o644, OWNER).unwrap().ino;
    fs.write(nameless, 0, &vec![8; MIB as usize]).unwrap();
    fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap();
    assert_eq!(contents(&fs, &fs.getattr(file).unwrap()), vec![7; MIB as usize]);
    fs.link(nameless, Ino::ROOT, b"named").unwrap();
    fs.unpin(nameless, 1);
    fs.unpin(file, 1);
    fs.sync().unwrap();
    assert_clean(&device);
    assert_eq!(fs.trees()[1].inodes, 1);
    assert_eq!(get(&fs, Ino::ROOT, "named"), vec![8; MIB as usize]);
}

/// Overwriting a block that a fork shares needs a free block. A full image refuses the overwrite
/// when the bytes would be accepted, not later.
#[test]
fn a_full_image_refuses_what_it_cannot_move() {
    let device = make(24 * MIB);
    let fs = open(&device);
    let file = put(&fs, Ino::ROOT, "file", &vec![1; 8 * MIB as usize]);
    fs.sync().unwrap();
    fs.fork(Ino::ROOT, Ino::ROOT, b"fork", true).unwrap();
    let mut done = 0;
    let data = vec![2; MIB as usize];
    let full = loop {
        match fs.write(file, done, &data) {
            Ok(n) if n == data.len() => done += n as u64,
            Ok(n) => {
                done += n as u64;
                break fs.write(file, done, &data).unwrap_err();
            }
            Err(e) => break e,
        }
        assert!(done <= 8 * MIB);
        if done == 8 * MIB {
            done = 0;
            put(&fs, Ino::ROOT, "more", &vec![3; MIB as usize]);
            fs.fork(Ino::ROOT, Ino::ROOT, format!("{}", fs.trees().len()).as_bytes(), true).unwrap();
        }
    };
    assert_eq!(full.errno(), 28);
    // Everything that was accepted can be written.
    fs.fsync(file, false).unwrap();
    fs.sync().unwrap();
    assert_clean(&device);
    for tree in fs.trees().into_iter().skip(1) {
        fs.delete_tree(tree.dir, &tree.name).unwrap();
    }
    fs.reclaim().unwrap();
    put(&fs, Ino::ROOT, "file", &vec![4; 8 * MIB as usize]);
    fs.sync().unwrap();
    assert_clean(&device);
}

/// A small seeded generator of random numbers, so that a seed repeats a run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % n
    }
}

type Model = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

struct Run {
    random: Random,
    device: Arc<MemDevice>,
    fs: FileSystem,
    /// The expected contents of the files of each tree, by name. The first tree has an empty name.
    model: Model,
    made: u32,
}

impl Run {
    fn root(&self, tree: &str) -> Ino {
        if tree.is_empty() { Ino::ROOT } else { self.fs.lookup(Ino::ROOT, tree.as_bytes()).unwrap().ino }
    }

    fn pick(&mut self) -> String {
        let n = self.random.below(self.model.len() as u64) as usize;
        self.model.keys().nth(n).unwrap().clone()
    }

    fn step(&mut self) {
        let tree = self.pick();
        let root = self.root(&tree);
        let name = format!("f{}", self.random.below(6));
        let kind = self.random.below(20);
        let (at, len) = (self.random.below(80_000), self.random.below(30_000) + 1);
        let fill = self.random.below(255) as u8 + 1;
        let fs = self.fs.clone();
        let files = self.model.get_mut(&tree).unwrap();
        let ino = fs.lookup(root, name.as_bytes()).ok().map(|attr| attr.ino);
        assert_eq!(ino.is_some(), files.contains_key(&name), "{tree}/{name}");
        match (kind, ino) {
            (0..=6, _) => {
                let ino = ino.unwrap_or_else(|| fs.create(root, name.as_bytes(), 0o644, OWNER).unwrap().ino);
                let data = vec![fill; len as usize];
                let mode = WriteMode::default().with_through(kind == 6);
                assert_eq!(fs.write_with(ino, at, &data, mode).unwrap() as u64, len);
                let file = files.entry(name).or_default();
                file.resize(file.len().max((at + len) as usize), 0);
                file[at as usize..(at + len) as usize].copy_from_slice(&data);
                if kind == 5 {
                    fs.fsync(ino, fill.is_multiple_of(2)).unwrap();
                }
            }
            (7, Some(ino)) => {
                fs.setattr(ino, &SetAttr { size: Some(at), ..SetAttr::default() }).unwrap();
                files.get_mut(&name).unwrap().resize(at as usize, 0);
            }
            (8 | 9, Some(ino)) => {
                let mode = match kind {
                    8 => FallocateMode::PunchHole,
                    _ => FallocateMode::ZeroRange { keep_size: true },
                };
                fs.fallocate(ino, mode, at, len).unwrap();
                let file = files.get_mut(&name).unwrap();
                let (from, to) = ((at as usize).min(file.len()), ((at + len) as usize).min(file.len()));
                file[from..to].fill(0);
            }
            (10, Some(ino)) => {
                fs.fallocate(ino, FallocateMode::Allocate { keep_size: true }, at, len).unwrap();
            }
            (11, Some(_)) => {
                fs.unlink(root, name.as_bytes()).unwrap();
                files.remove(&name);
            }
            (12, Some(_)) => {
                let to = format!("f{}", fill % 6);
                fs.rename(root, name.as_bytes(), root, to.as_bytes(), RenameMode::Replace).unwrap();
                let file = files.remove(&name).unwrap();
                files.insert(to, file);
            }
            (13 | 14, _) if self.model.len() < 6 => {
                self.made += 1;
                let name = format!("tree{}", self.made);
                fs.fork(root, Ino::ROOT, name.as_bytes(), false).unwrap();
                let copy = self.model[&tree].clone();
                self.model.insert(name, copy);
            }
            (15, _) if !tree.is_empty() => {
                fs.delete_tree(Ino::ROOT, tree.as_bytes()).unwrap();
                self.model.remove(&tree);
                if fill.is_multiple_of(2) {
                    fs.reclaim().unwrap();
                }
            }
            (16, _) => fs.sync().unwrap(),
            (17, _) => fs.checkpoint().unwrap(),
            (18, _) if fill.is_multiple_of(4) => self.reopen(fill.is_multiple_of(8)),
            _ => {}
        }
    }

    /// Opens the image again: after a close, or as after a crash that follows a sync.
    fn reopen(&mut self, close: bool) {
        if close {
            self.fs.close().unwrap();
        } else {
            self.fs.sync().unwrap();
        }
        self.device = Arc::new(self.device.fork());
        assert_clean(&self.device);
        self.fs = open(&self.device);
    }

    fn compare(&self) {
        let trees: Vec<&str> = self.model.keys().map(String::as_str).filter(|t| !t.is_empty()).collect();
        for (tree, files) in &self.model {
            let root = self.root(tree);
            let mut expected: Vec<&str> = files.keys().map(String::as_str).collect();
            if tree.is_empty() {
                expected.extend(&trees);
            }
            expected.sort_unstable();
            assert_eq!(names(&self.fs, root), expected, "names in '{tree}'");
            for (name, data) in files {
                let found = get(&self.fs, root, name);
                assert_eq!(found.len(), data.len(), "{tree}/{name}");
                let differs = found.iter().zip(data).position(|(a, b)| a != b);
                assert_eq!(differs, None, "{tree}/{name} differs at this byte");
            }
        }
    }
}

/// Random operations in forks, compared with copies of the files in memory.
#[test]
fn forks_are_as_separate_as_copies() {
    for seed in 1..=24u64 {
        let device = make(48 * MIB);
        let fs = open(&device);
        let before = free(&fs);
        let model = Model::from([(String::new(), BTreeMap::new())]);
        let random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut run = Run { random, device, fs, model, made: 0 };
        for step in 0..400 {
            run.step();
            if step % 40 == 39 {
                run.compare();
            }
        }
        run.reopen(seed % 2 == 0);
        run.compare();
        // Once everything is deleted, all space is free again.
        for tree in run.fs.trees().into_iter().skip(1) {
            run.fs.delete_tree(tree.dir, &tree.name).unwrap();
        }
        run.fs.reclaim().unwrap();
        for name in names(&run.fs, Ino::ROOT) {
            run.fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
        }
        let after = free(&run.fs);
        assert_clean(&run.device);
        assert!(before - after <= 12, "seed {seed}: {before} free blocks before, {after} after");
    }
}

#[test]
fn a_fork_waits_for_a_freeze_to_end() {
    let device = make(32 * MIB);
    let fs = open(&device);
    fs.freeze().unwrap();
    let error = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap_err();
    assert!(matches!(error, Error::Busy(_)), "{error}");
    fs.thaw().unwrap();
    fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap();
}

#[test]
fn a_file_system_closes_while_deleted_trees_are_freed() {
    for round in 0..20 {
        let device = make(128 * MIB);
        let fs = open(&device);
        for k in 0..50 {
            put(&fs, Ino::ROOT, &format!("{k}"), &[1; 3000]);
        }
        for i in 0..20 {
            let fork = fs.fork(Ino::ROOT, Ino::ROOT, format!("fork{i}").as_bytes(), false).unwrap();
            for k in 0..10 {
                put(&fs, fork.ino, &format!("{k}"), &[i; 5000]);
            }
        }
        for i in (0..20).filter(|i| i % 3 == round % 3) {
            fs.delete_tree(Ino::ROOT, format!("fork{i}").as_bytes()).unwrap();
        }
        fs.close().unwrap_or_else(|e| panic!("round {round}: {e}"));
        drop(fs);
        assert_clean(&device);
        let fs = open(&device);
        assert_eq!(get(&fs, Ino::ROOT, "7"), [1; 3000]);
        fs.close().unwrap();
    }
}

#[test]
fn the_space_of_a_tree_is_counted_beside_checkpoints() {
    let device = make(128 * MIB);
    let fs = open(&device);
    for i in 0..300 {
        put(&fs, Ino::ROOT, &format!("{i}"), &[1; 5000]);
    }
    let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap().ino;
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0.. {
                put(&fs, Ino::ROOT, &format!("{}", i % 300), &[i as u8; 5000]);
                put(&fs, fork, &format!("{}", (i * 7) % 300), &[i as u8; 5000]);
                fs.checkpoint().unwrap();
                if stop.load(std::sync::atomic::Ordering::SeqCst) {
                    break;
                }
            }
        });
        for _ in 0..300 {
            fs.tree_space(Ino::ROOT).unwrap();
            fs.tree_space(fork).unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    // Once all files of the fork are written again, no other tree uses their blocks.
    for i in 0..300 {
        put(&fs, fork, &format!("{i}"), &[3; 5000]);
    }
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    assert_eq!(fs.tree_space(fork).unwrap().own_data, 300 * 8192);
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn a_tree_is_replaced_by_a_fork_in_one_step() {
    let device = make(64 * MIB);
    let fs = open(&device);
    put(&fs, Ino::ROOT, "file", b"of the first tree");
    let base = fs.fork(Ino::ROOT, Ino::ROOT, b"base", false).unwrap().ino;
    let kept = fs.fork(base, Ino::ROOT, b"kept", true).unwrap().ino;
    put(&fs, base, "file", b"changed");
    let now = fs.roll_back(kept, Ino::ROOT, b"base").unwrap().ino;
    assert_eq!(get(&fs, now, "file"), b"of the first tree");
    assert!(fs.lookup(base, b"file").is_err(), "the old tree is gone");
    // Replaces the tree by a fork of another one that was forked from it and has changed.
    let work = fs.fork(now, Ino::ROOT, b"work", false).unwrap().ino;
    put(&fs, work, "file", b"worked");
    let of_work = fs.fork(work, Ino::ROOT, b"of work", false).unwrap().ino;
    fs.commit_tree(of_work, Ino::ROOT, b"base", false).unwrap();
    assert_eq!(fs.lookup(Ino::ROOT, b"base").unwrap().ino, of_work);
    assert_eq!(fs.lookup(of_work, b"..").unwrap().ino, Ino::ROOT);
    assert_eq!(names(&fs, Ino::ROOT), ["base", "file", "kept", "work"]);
    let errno = |result: kedgefs::Result<()>| result.unwrap_err().errno();
    // This tree was not forked from the one that it would replace.
    let other = fs.fork(Ino::ROOT, Ino::ROOT, b"other", false).unwrap().ino;
    assert_eq!(errno(fs.commit_tree(other, Ino::ROOT, b"work", false)), 16);
    let again = fs.fork(of_work, Ino::ROOT, b"again", false).unwrap().ino;
    put(&fs, of_work, "more", b"more");
    assert_eq!(errno(fs.commit_tree(again, Ino::ROOT, b"base", false)), 16);
    assert_eq!(get(&fs, of_work, "more"), b"more");
    fs.commit_tree(again, Ino::ROOT, b"base", true).unwrap();
    assert_eq!(errno(fs.commit_tree(kept, Ino::ROOT, b"base", true)), 30);
    assert_eq!(errno(fs.commit_tree(again, Ino::ROOT, b"base", true)), 22);
    assert_eq!(errno(fs.commit_tree(Ino::ROOT, Ino::ROOT, b"base", true)), 22);
    assert_eq!(errno(fs.commit_tree(again, Ino::ROOT, b"file", true)), 2);
    assert_eq!(errno(fs.roll_back(kept, Ino::ROOT, b"file").map(drop)), 2);
    fs.fork(kept, again, b"inside", false).unwrap();
    assert_eq!(errno(fs.roll_back(kept, Ino::ROOT, b"base").map(drop)), 39);
    fs.delete_tree(again, b"inside").unwrap();
    fs.reclaim().unwrap();
    fs.close().unwrap();
    assert_clean(&device);
    let fs = open(&device);
    let base = fs.lookup(Ino::ROOT, b"base").unwrap().ino;
    assert_eq!(get(&fs, base, "file"), b"worked first tree");
    fs.close().unwrap();
}

/// The count of orphan items includes those that a crash has left.
#[test]
fn a_tree_with_orphans_of_a_crash_is_forked() {
    let device = make(64 * MIB);
    let fs = open(&device);
    for i in 0..5 {
        let ino = put(&fs, Ino::ROOT, &format!("{i}"), &[1; 9000]);
        fs.pin(ino).unwrap();
        fs.unlink(Ino::ROOT, format!("{i}").as_bytes()).unwrap();
    }
    put(&fs, Ino::ROOT, "kept", b"kept");
    fs.sync().unwrap();
    // After the checkpoint the orphans are in the tree, not only in the log.
    fs.checkpoint().unwrap();
    let crashed = Arc::new(device.fork());
    let fs = open(&crashed);
    let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap().ino;
    put(&fs, fork, "new", b"new");
    // An orphan of the fork, which a crash leaves in the log, is removed too.
    let ino = put(&fs, fork, "gone", &[2; 9000]);
    fs.pin(ino).unwrap();
    fs.unlink(fork, b"gone").unwrap();
    fs.sync().unwrap();
    let crashed = Arc::new(crashed.fork());
    assert_clean(&crashed);
    let fs = open(&crashed);
    let inodes = |fs: &FileSystem| fs.trees().into_iter().map(|tree| tree.inodes).collect::<Vec<_>>();
    fs.checkpoint().unwrap();
    assert_eq!(inodes(&fs), [2, 3], "the root and its files");
    assert_eq!(get(&fs, fork, "kept"), b"kept");
    fs.close().unwrap();
    assert_clean(&crashed);
    drop(fs);
    assert_eq!(names(&open(&crashed), fork), ["kept", "new"]);
}

const ESTALE: i32 = 116;

#[test]
fn the_first_tree_is_rolled_back_in_one_step() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let old = vec![1; 2 * MIB as usize];
    let file = put(&fs, Ino::ROOT, "file", &old);
    let dir = fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).unwrap().ino;
    put(&fs, dir, "deep", b"deep");
    let monday = fs.fork(Ino::ROOT, Ino::ROOT, b"monday", true).unwrap().ino;
    let inside = fs.fork(Ino::ROOT, dir, b"inside", false).unwrap().ino;
    put(&fs, Ino::ROOT, "file", &vec![2; MIB as usize]);
    put(&fs, Ino::ROOT, "later", &vec![3; MIB as usize]);
    fs.unlink(dir, b"deep").unwrap();
    fs.pin(file).unwrap();

    fs.roll_back_root(monday).unwrap();
    let expect = |fs: &FileSystem| {
        assert_eq!(names(fs, Ino::ROOT), ["dir", "file", "monday"]);
        assert!(get(fs, Ino::ROOT, "file") == old);
        let dir = fs.lookup(Ino::ROOT, b"dir").unwrap().ino;
        assert_eq!(names(fs, dir), ["deep", "inside"]);
        assert_eq!(fs.lookup(dir, b"..").unwrap().ino, Ino::ROOT);
        // A tree whose name was in the first tree keeps its path and its contents.
        assert_eq!(fs.lookup(dir, b"inside").unwrap().ino, inside);
        assert_eq!(fs.lookup(inside, b"..").unwrap().ino, dir);
        assert!(get(fs, inside, "file") == old);
        assert_eq!(fs.path_of(dir).unwrap(), b"/dir");
        assert_eq!(fs.trees().len(), 3);
    };
    expect(&fs);
    // Inode numbers of the old contents are stale, even those of open files.
    assert_eq!(errno(fs.getattr(file)), ESTALE);
    assert_eq!(errno(fs.write(file, 0, b"lost")), ESTALE);
    assert_eq!(errno(fs.read(file, 0, &mut [0; 10])), ESTALE);
    assert_eq!(errno(fs.fsync(file, false)), ESTALE);
    assert_eq!(errno(fs.create(dir, b"new", 0o644, OWNER)), ESTALE);
    fs.unpin(file, 1);
    // The inode numbers of the new contents are new, and do not change.
    let now = fs.lookup(Ino::ROOT, b"file").unwrap().ino;
    assert_ne!(now, file);
    assert_eq!(fs.getattr(now).unwrap().ino, now);
    put(&fs, Ino::ROOT, "file", b"new");
    assert!(get(&fs, monday, "file") == old, "the snapshot is as it was");
    fs.reclaim().unwrap();
    fs.checkpoint().unwrap();
    assert_clean(&device);
    // A crash leaves the same state.
    fs.sync().unwrap();
    let crashed = Arc::new(device.fork());
    let again = open(&crashed);
    assert_eq!(&get(&again, Ino::ROOT, "file")[..3], b"new");
    again.close().unwrap();
    assert_clean(&crashed);

    fs.roll_back_root(monday).unwrap();
    expect(&fs);
    assert_eq!(errno(fs.getattr(now)), ESTALE);
    fs.close().unwrap();
    assert_clean(&device);
    let fs = open(&device);
    expect(&fs);
    fs.reclaim().unwrap();
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn a_fork_takes_the_place_of_the_first_tree() {
    let device = make(64 * MIB);
    let fs = open(&device);
    put(&fs, Ino::ROOT, "file", b"first");
    let kept = fs.fork(Ino::ROOT, Ino::ROOT, b"kept", true).unwrap().ino;
    let work = fs.fork(Ino::ROOT, Ino::ROOT, b"work", false).unwrap().ino;
    put(&fs, work, "done", b"done");
    fs.commit_root(work, false).unwrap();
    assert_eq!(names(&fs, Ino::ROOT), ["done", "file", "kept"]);
    assert_eq!(errno(fs.lookup(work, b"done")), ESTALE);
    // The first tree has changed since it was forked.
    let other = fs.fork(Ino::ROOT, Ino::ROOT, b"other", false).unwrap().ino;
    put(&fs, Ino::ROOT, "more", b"more");
    assert_eq!(errno(fs.commit_root(other, false)), 16);
    assert_eq!(get(&fs, Ino::ROOT, "more"), b"more");
    let inner = fs.fork(kept, other, b"inner", false).unwrap().ino;
    assert_eq!(errno(fs.commit_root(other, true)), 39, "a tree is named in it");
    fs.delete_tree(other, b"inner").unwrap();
    assert_eq!(errno(fs.roll_back_root(inner)), ESTALE);
    assert_eq!(errno(fs.commit_root(kept, true)), 30, "a snapshot");
    assert_eq!(errno(fs.roll_back_root(Ino::ROOT)), 22);
    let file = fs.lookup(Ino::ROOT, b"file").unwrap().ino;
    assert_eq!(errno(fs.roll_back_root(file)), 22);
    fs.commit_root(other, true).unwrap();
    assert_eq!(names(&fs, Ino::ROOT), ["done", "file", "kept"]);
    fs.reclaim().unwrap();
    fs.close().unwrap();
    assert_clean(&device);
    let fs = open(&device);
    assert_eq!(get(&fs, Ino::ROOT, "done"), b"done");
    assert_eq!(fs.trees().len(), 2);
    fs.close().unwrap();
}

/// If a tree would lose its path, the replacement is refused and nothing changes.
#[test]
fn a_tree_that_would_lose_its_path_prevents_the_replacement() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let empty = fs.fork(Ino::ROOT, Ino::ROOT, b"empty", true).unwrap().ino;
    put(&fs, Ino::ROOT, "taken", b"a file");
    let full = fs.fork(Ino::ROOT, Ino::ROOT, b"full", true).unwrap().ino;
    let dir = fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).unwrap().ino;
    fs.fork(Ino::ROOT, dir, b"tree", false).unwrap();
    assert_eq!(errno(fs.roll_back_root(empty)), 39, "no such directory");
    fs.unlink(Ino::ROOT, b"taken").unwrap();
    fs.rename_tree(dir, b"tree", Ino::ROOT, b"taken").unwrap();
    assert_eq!(errno(fs.roll_back_root(full)), 39, "a file has the name");
    assert_eq!(names(&fs, Ino::ROOT), ["dir", "empty", "full", "taken"]);
    // Nothing has changed, and inodes have their old numbers.
    put(&fs, dir, "file", b"file");
    fs.roll_back_root(empty).unwrap();
    assert_eq!(names(&fs, Ino::ROOT), ["empty", "full", "taken"]);
    fs.close().unwrap();
    assert_clean(&device);
}

/// The first tree gets the limits of the tree that replaces it, with the counts of its contents.
#[test]
fn limits_come_with_the_contents() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let dir = fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).unwrap().ino;
    put(&fs, dir, "file", &vec![1; 100_000]);
    let max = |bytes| kedgefs::SetLimit { bytes: Some(Some(bytes)), files: None };
    fs.set_limit(dir, max(MIB)).unwrap();
    let base = fs.fork(Ino::ROOT, Ino::ROOT, b"base", true).unwrap().ino;
    put(&fs, dir, "more", &vec![1; 500_000]);
    fs.set_limit(dir, max(4 * MIB)).unwrap();
    fs.roll_back_root(base).unwrap();
    let dir = fs.lookup(Ino::ROOT, b"dir").unwrap().ino;
    let limit = fs.limit_of(dir).unwrap().unwrap();
    assert_eq!((limit.dir, limit.bytes_max, limit.bytes), (dir, Some(MIB), 102_400));
    let ino = fs.create(dir, b"large", 0o644, OWNER).unwrap().ino;
    assert!(fs.write(ino, 0, &vec![1; 2 * MIB as usize]).unwrap() < MIB as usize);
    fs.reclaim().unwrap();
    fs.close().unwrap();
    assert_clean(&device);
}

/// Threads that read, write and list during replacements get the bytes of one state, or an error.
#[test]
fn the_first_tree_is_replaced_beside_readers_and_writers() {
    let device = make(64 * MIB);
    let fs = open(&device);
    for i in 0..50 {
        put(&fs, Ino::ROOT, &format!("f{i}"), &vec![1; 20_000]);
    }
    let base = fs.fork(Ino::ROOT, Ino::ROOT, b"base", true).unwrap().ino;
    let over = std::sync::atomic::AtomicBool::new(false);
    let is_over = || over.load(std::sync::atomic::Ordering::SeqCst);
    std::thread::scope(|scope| {
        for t in 0..3_u8 {
            let fs = &fs;
            let is_over = &is_over;
            scope.spawn(move || {
                let mut n = 0;
                while !is_over() {
                    n = (n + 7) % 50;
                    let name = format!("f{n}");
                    let Ok(attr) = fs.lookup(Ino::ROOT, name.as_bytes()) else { continue };
                    let mut bytes = vec![0; 20_000];
                    match fs.read_uncached(attr.ino, 0, &mut bytes) {
                        Ok(read) => assert!(read == 20_000 && bytes.iter().all(|b| (1..=4).contains(b))),
                        Err(e) => assert_eq!(e.errno(), ESTALE, "{e}"),
                    }
                    match fs.write(attr.ino, 0, &vec![t + 2; 20_000]) {
                        Ok(_) => {}
                        Err(e) => assert_eq!(e.errno(), ESTALE, "{e}"),
                    }
                }
            });
        }
        for _ in 0..40 {
            fs.roll_back_root(base).unwrap();
            fs.reclaim().unwrap();
        }
        over.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    fs.roll_back_root(base).unwrap();
    for i in 0..50 {
        assert!(get(&fs, Ino::ROOT, &format!("f{i}")) == vec![1; 20_000]);
    }
    fs.reclaim().unwrap();
    fs.close().unwrap();
    assert_clean(&device);
}

/// The name of a fork exists before its checkpoint has written its root. A reader that finds the
/// name must not take old bytes at the root's address for a node.
#[test]
fn a_fork_is_found_while_its_checkpoint_writes_it() {
    const FORKS: u32 = 60;
    let device = make(128 * MIB);
    let fs = open(&device);
    let reader = {
        let fs = fs.clone();
        kedge_base::spawn_named("reader", move || {
            for n in 0..FORKS {
                let name = format!("fork {n}");
                loop {
                    match fs.lookup(Ino::ROOT, name.as_bytes()) {
                        Ok(fork) => break assert!(fs.lookup(fork.ino, b"0").is_ok()),
                        Err(Error::NotFound) => {}
                        Err(e) => panic!("{name}: {e}"),
                    }
                }
            }
        })
    };
    for n in 0..FORKS {
        for file in 0..20 {
            put(&fs, Ino::ROOT, &(n * 20 + file).to_string(), b"");
        }
        fs.fork(Ino::ROOT, Ino::ROOT, format!("fork {n}").as_bytes(), false).unwrap();
    }
    reader.unwrap().join().unwrap();
    fs.close().unwrap();
    assert_clean(&device);
}

/// The trees that keep their paths get the directories of the new contents as their parents, also
/// in memory.
#[test]
fn the_parents_of_trees_follow_a_replacement_of_the_root() {
    for commits in [false, true] {
        let device = make(64 * MIB);
        let fs = open(&device);
        fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).unwrap();
        let other = fs.fork(Ino::ROOT, Ino::ROOT, b"other", false).unwrap().ino;
        fs.rmdir(Ino::ROOT, b"dir").unwrap();
        put(&fs, Ino::ROOT, "between", b"");
        let dir = fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).unwrap().ino;
        let inside = fs.fork(Ino::ROOT, dir, b"inside", false).unwrap().ino;
        fs.mkdir(inside, b"a", 0o755, OWNER).unwrap();
        let below = fs.mkdir(inside, b"b", 0o755, OWNER).unwrap().ino;
        if commits {
            fs.commit_root(other, true).unwrap();
        } else {
            fs.roll_back_root(other).unwrap();
        }
        let dir = fs.lookup(Ino::ROOT, b"dir").unwrap().ino;
        assert_eq!(fs.tree_named(dir, b"inside"), Some(inside));
        assert_eq!(fs.lookup(inside, b"..").unwrap().ino, dir);
        fs.rename(inside, b"a", below, b"a", RenameMode::Replace).unwrap();
        fs.close().unwrap();
        assert_clean(&device);
    }
}
