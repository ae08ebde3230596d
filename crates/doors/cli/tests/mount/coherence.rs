//! Compares a model of a mounted file system with the state that the kernel shows from its caches.
//!
//! Names, links, sizes and bytes change in every possible way: by system calls of several processes
//! (buffered, direct, asynchronous direct, through shared mappings); by `kedge cp` and `kedge tar
//! -x` without the kernel; in the image while it is not mounted; with a freeze, or new options, in
//! between. Before each step everything is in the kernel's caches, because the comparison after the
//! previous step has read it: dentries (including negative ones), listings, attributes, pages,
//! mappings. Copies also add names that the kernel has never looked up, which it can find only in
//! the listing. In half of the steps another thread reads everything while the step runs. After
//! each step the state that the kernel shows is compared with the model, through the same mount,
//! and attributes with those of the serving process (`AT_STATX_FORCE_SYNC`, read last because it
//! refreshes the kernel's cache). A remount compares the model with the device.
//!
//! `KEDGE_SEED` repeats one run, `KEDGE_LONG=1` makes forty times as many steps.

use crate::common::io::{Aio, Mapping};
use crate::common::rings::rings_are_on;
use crate::common::{Place, needs_fuse};
use kedge_base::{BLOCK_SIZE, IoBuf};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, StatxFlags, fallocate, statx};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const DIRS: [&str; 4] = ["", "d0", "d1", "d0/d2"];
const NAMES: [&str; 6] = ["f0", "f1", "f2", "f3", "f4", "f5"];
const SIZE_MAX: usize = 200_000;
/// The most files that are kept open and mapped, even if their names change.
const HELD_MAX: usize = 5;
const TOLD: usize = 10;

/// The fields of stat(2) that are compared: mode, links, size, mtime, ctime.
type Shown = (u32, u64, u64, (i64, i64), (i64, i64));

/// A file of the model: bytes, or the target of a link.
#[derive(Clone, PartialEq)]
enum Node {
    Bytes(Vec<u8>),
    Link(String),
}

/// A file that is kept open, and mapped if it is not empty.
struct Held {
    node: usize,
    file: File,
    mapping: Option<Mapping>,
}

struct Coherence {
    place: Place,
    options: &'static str,
    rng: SmallRng,
    /// The path of each existing directory below the root.
    dirs: Vec<&'static str>,
    /// The node of each file, by path.
    files: BTreeMap<String, usize>,
    nodes: BTreeMap<usize, Node>,
    next: usize,
    /// Files that lost or gained a name by a copy, without the kernel. With a writeback cache the
    /// kernel still shows their cached ctime.
    linked_beside: BTreeSet<usize>,
    held: Vec<Held>,
    done: VecDeque<String>,
}

fn direct(path: &Path) -> File {
    let flags = OFlags::DIRECT.bits() as i32;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// A thread that repeats an action until this is dropped.
struct Looker {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Looker {
    fn start(look: impl Fn() + Send + 'static) -> Looker {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let again = move || {
            while !stopped.load(SeqCst) {
                look();
            }
        };
        Looker { stop, thread: Some(kedge_base::spawn_named("looker", again).unwrap()) }
    }

    /// Reads everything below a directory and ignores errors.
    fn at_all(mnt: PathBuf) -> Looker {
        Looker::start(move || {
            for dir in DIRS {
                let dir = mnt.join(dir);
                let names = fs::read_dir(&dir).into_iter().flatten().flatten().map(|e| e.path());
                for path in names.chain(NAMES.map(|name| dir.join(name))) {
                    let regular = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file());
                    // The step runs concurrently, so the file may be gone.
                    let _ = regular.then(|| fs::read(&path));
                }
            }
        })
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let ended = self.thread.take().map(|thread| thread.join().is_ok());
        assert!(ended == Some(true) || std::thread::panicking());
    }
}

impl Coherence {
    fn new(image: &str, options: &'static str, seed: u64) -> Coherence {
        let place = Place::after(&format!("mkfs{image} --size 64M disk.kedge"));
        fs::create_dir(place.path("mnt")).unwrap();
        place.run(&format!("mount{options} disk.kedge mnt")).ok();
        Coherence {
            place,
            options,
            rng: SmallRng::seed_from_u64(seed),
            dirs: Vec::new(),
            files: BTreeMap::new(),
            nodes: BTreeMap::new(),
            next: 0,
            linked_beside: BTreeSet::new(),
            held: Vec::new(),
            done: VecDeque::new(),
        }
    }

    fn mnt(&self, path: &str) -> PathBuf {
        self.place.path("mnt").join(path)
    }

    fn add(&mut self, path: &str, node: Node) {
        self.nodes.insert(self.next, node);
        self.name(path, self.next);
        self.next += 1;
    }

    fn name(&mut self, path: &str, node: usize) {
        let old = self.files.insert(path.to_owned(), node);
        self.linked_beside.extend(old);
    }

    fn some_bytes(&mut self, max: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.rng.random_range(0..=max)];
        self.rng.fill_bytes(&mut bytes);
        bytes
    }

    fn pick<T: Clone>(&mut self, list: &[T]) -> Option<T> {
        if list.is_empty() { None } else { Some(list[self.rng.random_range(0..list.len())].clone()) }
    }

    /// The name of an entry of a copy: a name that the kernel may have cached, or one that it has
    /// never looked up. If the kernel has cached one changed name of a directory, it drops the
    /// whole listing. So in half of the copies all names are `new`.
    fn name_of_copy(&mut self, name: &str, new: bool) -> String {
        if new || self.rng.random_ratio(1, 4) {
            self.next += 1;
            return format!("n{}", self.next);
        }
        name.to_owned()
    }

    /// A random path, whose file may or may not exist.
    fn any_path(&mut self) -> String {
        let dirs: Vec<&str> = self.dirs.iter().copied().chain([""]).collect();
        let (dir, name) = (self.pick(&dirs).unwrap(), self.pick(&NAMES).unwrap());
        if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
    }

    fn some_file(&mut self) -> Option<String> {
        let files: Vec<String> = self.files.keys().cloned().collect();
        self.pick(&files)
    }

    /// A random file with bytes: its path and its node.
    fn regular(&mut self) -> Option<(String, usize)> {
        let is_regular = |node: &usize| matches!(self.nodes[node], Node::Bytes(_));
        let files: Vec<_> = self.files.iter().filter(|(_, node)| is_regular(node)).collect();
        let files: Vec<_> = files.into_iter().map(|(path, node)| (path.clone(), *node)).collect();
        self.pick(&files)
    }

    fn bytes(&mut self, node: usize) -> &mut Vec<u8> {
        match self.nodes.get_mut(&node) {
            Some(Node::Bytes(bytes)) => bytes,
            _ => panic!("node {node} has no bytes"),
        }
    }

    fn put(&mut self, node: usize, at: usize, new: &[u8]) {
        let bytes = self.bytes(node);
        bytes.resize(bytes.len().max(at + new.len()), 0);
        bytes[at..at + new.len()].copy_from_slice(new);
    }

    // ----- steps -----

    /// Makes one step and returns its description; `None` if no file suited it.
    fn step(&mut self) -> Option<String> {
        let looker = self.rng.random_bool(0.5).then(|| Looker::at_all(self.place.path("mnt")));
        let did = match self.rng.random_range(0..100) {
            0..10 => self.create(),
            10..18 => self.write(),
            18..24 => self.append(),
            24..32 => self.store(),
            32..37 => self.write_directly(),
            37..47 => self.write_asynchronously(),
            47..51 => self.truncate(),
            51..54 => self.punch(),
            54..58 => self.unlink(),
            58..62 => self.rename(),
            62..65 => self.link(),
            65..68 => self.change_directories(),
            68..72 => self.hold(),
            72..80 => self.copy_one(),
            80..88 => self.copy_tree(true),
            88..94 => self.copy_tree(false),
            94..96 => self.freeze(),
            _ => {
                drop(looker);
                return Some(if self.rng.random_bool(0.5) { self.offline() } else { self.new_options() });
            }
        };
        drop(looker);
        did
    }

    fn create(&mut self) -> Option<String> {
        let (path, bytes) = (self.any_path(), self.some_bytes(SIZE_MAX));
        let len = bytes.len();
        if self.rng.random_ratio(1, 5) {
            if self.files.contains_key(&path) {
                fs::remove_file(self.mnt(&path)).unwrap();
            }
            let target = format!("target{len}");
            symlink(&target, self.mnt(&path)).unwrap();
            self.add(&path, Node::Link(target));
            return Some(format!("symlink {path}"));
        }
        match self.files.get(&path).copied() {
            // If the file exists, it is truncated and written.
            Some(node) if matches!(self.nodes[&node], Node::Bytes(_)) => {
                fs::write(self.mnt(&path), &bytes).unwrap();
                *self.bytes(node) = bytes;
            }
            Some(_) => return None,
            None => {
                fs::write(self.mnt(&path), &bytes).unwrap();
                self.add(&path, Node::Bytes(bytes));
            }
        }
        Some(format!("create {path} of {len}"))
    }

    fn write(&mut self) -> Option<String> {
        let (path, node) = self.regular()?;
        let (at, bytes) = (self.rng.random_range(0..SIZE_MAX), self.some_bytes(20_000));
        open(&self.mnt(&path)).write_all_at(&bytes, at as u64).unwrap();
        if !bytes.is_empty() {
            self.put(node, at, &bytes);
        }
        Some(format!("write {} at {at} of {path}", bytes.len()))
    }

    fn append(&mut self) -> Option<String> {
        let (path, node) = self.regular()?;
        let bytes = self.some_bytes(9000);
        let mut file = OpenOptions::new().append(true).open(self.mnt(&path)).unwrap();
        file.write_all(&bytes).unwrap();
        self.bytes(node).extend(&bytes);
        Some(format!("append {} to {path}", bytes.len()))
    }

    /// Stores into an existing mapping or a new one, mostly without msync.
    fn store(&mut self) -> Option<String> {
        let mapped: Vec<usize> = (0..self.held.len()).filter(|i| self.held[*i].mapping.is_some()).collect();
        if let Some(i) = self.pick(&mapped) {
            let node = self.held[i].node;
            let len = self.held[i].mapping.as_ref().unwrap().len().min(self.bytes(node).len());
            if len > 0 {
                let at = self.rng.random_range(0..len);
                let bytes = [self.rng.random()];
                self.held[i].mapping.as_ref().unwrap().write(at, &bytes);
                self.put(node, at, &bytes);
                return Some(format!("store at {at} of held node {node}"));
            }
        }
        let (path, node) = self.regular()?;
        let len = self.bytes(node).len();
        if len == 0 {
            return None;
        }
        let (at, bytes) = (self.rng.random_range(0..len), self.some_bytes(5000));
        let bytes = &bytes[..bytes.len().min(len - at)];
        let mapping = Mapping::new(&open(&self.mnt(&path)), 0, len).unwrap();
        mapping.write(at, bytes);
        if self.rng.random_ratio(1, 4) {
            mapping.sync().unwrap();
        }
        self.put(node, at, bytes);
        Some(format!("store {} at {at} of {path}", bytes.len()))
    }

    /// A direct write by another process.
    fn write_directly(&mut self) -> Option<String> {
        let (path, node) = self.regular()?;
        let (at, blocks) = (self.rng.random_range(0..30usize), self.rng.random_range(1..12));
        let mut bytes = vec![0; blocks * BLOCK_SIZE];
        self.rng.fill_bytes(&mut bytes);
        fs::write(self.place.path("blocks"), &bytes).unwrap();
        let mut dd = self.place.command("dd");
        dd.args(["if=blocks", "bs=1M", "oflag=direct,seek_bytes", "conv=notrunc", "status=none"]);
        dd.arg(format!("seek={}", at * BLOCK_SIZE));
        dd.arg(format!("of={}", self.mnt(&path).display()));
        assert!(dd.status().unwrap().success());
        self.put(node, at * BLOCK_SIZE, &bytes);
        Some(format!("direct write of {blocks} blocks at block {at} of {path}"))
    }

    /// Several concurrent writes that do not overlap, with concurrent readers: these may read old
    /// or new bytes, but afterwards no old bytes may be cached.
    fn write_asynchronously(&mut self) -> Option<String> {
        const BLOCKS: usize = 48;
        let (path, node) = self.regular()?;
        let file = direct(&self.mnt(&path));
        // Extend the file first, because the kernel makes a growing write synchronous.
        if self.bytes(node).len() < BLOCKS * BLOCK_SIZE {
            file.set_len((BLOCKS * BLOCK_SIZE) as u64).unwrap();
            self.bytes(node).resize(BLOCKS * BLOCK_SIZE, 0);
        }
        let pieces = self.rng.random_range(1..=6);
        let mut aio = Aio::new(pieces).unwrap();
        let readers = [(); 2].map(|()| {
            let (file, buf) = (open(&self.mnt(&path)), std::cell::RefCell::new(vec![0; BLOCKS * BLOCK_SIZE]));
            Looker::start(move || drop(file.read_at(&mut buf.borrow_mut(), 0)))
        });
        for _ in 0..8 {
            for piece in 0..pieces {
                let mut bytes = vec![0; BLOCKS / pieces * BLOCK_SIZE];
                self.rng.fill_bytes(&mut bytes);
                let at = piece * bytes.len();
                aio.write(&file, at as u64, IoBuf::from_bytes(&bytes)).unwrap();
                self.put(node, at, &bytes);
            }
            aio.wait().unwrap();
        }
        drop(readers);
        Some(format!("asynchronous writes of {BLOCKS} blocks in {pieces} pieces to {path}"))
    }

    fn truncate(&mut self) -> Option<String> {
        let (path, node) = self.regular()?;
        let to = self.rng.random_range(0..SIZE_MAX);
        open(&self.mnt(&path)).set_len(to as u64).unwrap();
        self.bytes(node).resize(to, 0);
        Some(format!("truncate {path} to {to}"))
    }

    fn punch(&mut self) -> Option<String> {
        let (path, node) = self.regular()?;
        let (at, len) = (self.rng.random_range(0..SIZE_MAX), self.rng.random_range(1..50_000));
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(open(&self.mnt(&path)), flags, at as u64, len as u64).unwrap();
        let bytes = self.bytes(node);
        let end = bytes.len();
        bytes[at.min(end)..(at + len).min(end)].fill(0);
        Some(format!("punch {len} at {at} of {path}"))
    }

    fn unlink(&mut self) -> Option<String> {
        let path = self.some_file()?;
        fs::remove_file(self.mnt(&path)).unwrap();
        self.files.remove(&path);
        Some(format!("unlink {path}"))
    }

    fn rename(&mut self) -> Option<String> {
        let (from, to) = (self.some_file()?, self.any_path());
        fs::rename(self.mnt(&from), self.mnt(&to)).unwrap();
        if self.files.get(&from) != self.files.get(&to) {
            let node = self.files.remove(&from).unwrap();
            self.files.insert(to.clone(), node);
        }
        Some(format!("rename {from} to {to}"))
    }

    fn link(&mut self) -> Option<String> {
        let (from, to) = (self.some_file()?, self.any_path());
        if self.files.contains_key(&to) {
            return None;
        }
        fs::hard_link(self.mnt(&from), self.mnt(&to)).unwrap();
        let node = self.files[&from];
        self.files.insert(to.clone(), node);
        Some(format!("link {from} to {to}"))
    }

    /// Makes a missing directory, or removes an empty one.
    fn change_directories(&mut self) -> Option<String> {
        let dir = self.pick(&DIRS[1..]).unwrap();
        if !self.dirs.contains(&dir) {
            let above = Path::new(dir).parent().unwrap().to_str().unwrap();
            if !above.is_empty() && !self.dirs.contains(&above) {
                return None;
            }
            fs::create_dir(self.mnt(dir)).unwrap();
            self.dirs.push(dir);
            return Some(format!("mkdir {dir}"));
        }
        let below = format!("{dir}/");
        if self.files.keys().any(|path| path.starts_with(&below))
            || self.dirs.iter().any(|other| other.starts_with(&below))
        {
            let refused = fs::remove_dir(self.mnt(dir)).unwrap_err().kind();
            assert_eq!(refused, ErrorKind::DirectoryNotEmpty, "{:#?}", self.done);
            return None;
        }
        fs::remove_dir(self.mnt(dir)).unwrap();
        self.dirs.retain(|other| *other != dir);
        Some(format!("rmdir {dir}"))
    }

    /// Opens a file and keeps it open, and mapped if it is not empty; or closes a held file.
    fn hold(&mut self) -> Option<String> {
        if self.held.len() == HELD_MAX {
            let held = self.held.remove(0);
            return Some(format!("close node {}", held.node));
        }
        let (path, node) = self.regular()?;
        let (file, len) = (open(&self.mnt(&path)), self.bytes(node).len());
        let mapping = (len > 0).then(|| Mapping::new(&file, 0, len).unwrap());
        self.held.push(Held { node, file, mapping });
        Some(format!("hold {path}"))
    }

    // ----- changes without the kernel, mounted and offline -----

    fn copy_one(&mut self) -> Option<String> {
        let (path, bytes) = (self.any_path(), self.some_bytes(SIZE_MAX));
        let (above, name) = path.rsplit_once('/').map_or(("", &path[..]), |(above, name)| (above, name));
        let path = Path::new(above).join(self.name_of_copy(name, false)).to_str().unwrap().to_owned();
        fs::write(self.place.path("one"), &bytes).unwrap();
        self.place.run(&format!("cp one mnt/{path}")).ok();
        self.add(&path, Node::Bytes(bytes));
        Some(format!("kedge cp to {path}"))
    }

    /// Makes a source directory outside the mount with some of the names, and adds its contents to
    /// the model as if it were copied to `to`.
    fn make_source(&mut self, to: &str) {
        let source = self.place.path("source");
        let _ = fs::remove_dir_all(&source);
        fs::create_dir(&source).unwrap();
        let below = |dir: &str, name: &str| [dir, name].join("/").trim_start_matches('/').to_owned();
        let known: Vec<&'static str> = DIRS[1..].iter().copied().filter(|d| d.starts_with(to)).collect();
        let new = self.rng.random_bool(0.5);
        let mut dirs = vec![to.to_owned()];
        for dir in known.into_iter().filter(|dir| *dir != to) {
            let above = Path::new(dir).parent().unwrap().to_str().unwrap().to_owned();
            if dirs.contains(&above) && self.rng.random_bool(0.5) {
                fs::create_dir(source.join(dir.strip_prefix(to).unwrap().trim_start_matches('/'))).unwrap();
                dirs.push(dir.to_owned());
                if !self.dirs.contains(&dir) {
                    self.dirs.push(dir);
                }
            }
        }
        for dir in dirs {
            let here = source.join(dir.strip_prefix(to).unwrap().trim_start_matches('/'));
            let mut first: Option<String> = None;
            for name in NAMES {
                let name = &self.name_of_copy(name, new);
                let path = below(&dir, name);
                match (self.rng.random_range(0..6), &first) {
                    (0..2, _) => {
                        let bytes = self.some_bytes(SIZE_MAX / 4);
                        fs::write(here.join(name), &bytes).unwrap();
                        self.add(&path, Node::Bytes(bytes));
                        first = Some(name.clone());
                    }
                    (2, Some(first)) => {
                        fs::hard_link(here.join(first), here.join(name)).unwrap();
                        let node = self.files[&below(&dir, first)];
                        self.name(&path, node);
                        self.linked_beside.insert(node);
                    }
                    (3, _) => {
                        symlink("somewhere", here.join(name)).unwrap();
                        self.add(&path, Node::Link("somewhere".into()));
                    }
                    _ => {}
                }
            }
        }
    }

    fn archive(&self) {
        let mut tar = self.place.command("sh");
        // The archive has no entry for the top directory itself.
        tar.args(["-c", "cd source && tar -cf ../all.tar --no-recursion $(find . -mindepth 1)"]);
        assert!(tar.status().unwrap().success());
    }

    fn copy_tree(&mut self, by_cp: bool) -> Option<String> {
        let dirs: Vec<&str> = self.dirs.iter().copied().chain([""]).collect();
        let to = self.pick(&dirs).unwrap();
        self.make_source(to);
        if by_cp {
            self.place.run(&format!("cp -r source/. mnt/{to}")).ok();
            return Some(format!("kedge cp -r to '{to}'"));
        }
        // tar refuses to make an empty archive.
        fs::read_dir(self.place.path("source")).unwrap().next()?.unwrap();
        self.archive();
        self.place.run(&format!("tar -x -f all.tar mnt/{to}")).ok();
        Some(format!("kedge tar -x to '{to}'"))
    }

    /// Reads work while the mount is frozen, from caches and from the server.
    fn freeze(&mut self) -> Option<String> {
        self.place.run("freeze mnt").ok();
        let frozen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.judge("frozen")));
        self.place.run("thaw mnt").ok();
        frozen.unwrap();
        Some("freeze and thaw".into())
    }

    fn new_options(&mut self) -> String {
        let commit = self.rng.random_range(1..9);
        self.place.run(&format!("remount mnt -o commit={commit}")).ok();
        "remount with other options".into()
    }

    /// Checks that the device has the state that the kernel showed last, and changes the image
    /// while it is not mounted.
    fn offline(&mut self) -> String {
        // Unmap first: bytes stored through a mapping change the times only when they are written
        // back, at the latest at the unmapping.
        self.held.clear();
        let shown = self.shown();
        self.place.remount("disk.kedge", self.options);
        let on_device = self.shown();
        assert_eq!(on_device.len(), shown.len());
        for (path, mut found) in on_device {
            let kept = self.files.get(&path).is_some_and(|node| self.linked_beside.contains(node));
            if kept && self.options.contains("writeback_cache") {
                found.4 = shown[&path].4;
            }
            assert_eq!(found, shown[&path], "'{path}' after a remount, and {:#?}", self.done);
        }
        self.judge("remounted");
        self.place.unmount_and_check("disk.kedge");
        let removed = self.some_file();
        if let Some(path) = &removed {
            self.place.run(&format!("rm disk.kedge:/{path}")).ok();
            self.files.remove(path);
        }
        self.make_source("");
        self.place.run("cp -r source/. disk.kedge:/").ok();
        self.place.run(&format!("mount{} disk.kedge mnt", self.options)).ok();
        format!("offline: rm {removed:?}, cp -r")
    }

    // ----- judging -----

    /// The attributes of all files in the kernel's cache. Access times are left out, because the
    /// comparison changes them.
    fn shown(&self) -> BTreeMap<String, Shown> {
        let all = self.files.keys().map(String::as_str).chain(self.dirs.iter().copied()).chain([""]);
        let stat = |path: &str| {
            let m = fs::symlink_metadata(self.mnt(path)).unwrap();
            (m.mode(), m.nlink(), m.size(), (m.mtime(), m.mtime_nsec()), (m.ctime(), m.ctime_nsec()))
        };
        all.map(|path| (path.to_owned(), stat(path))).collect()
    }

    /// The attributes that the serving process returns for a file, whatever the kernel has cached.
    fn asked(&self, path: &str) -> Shown {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
        let s = statx(CWD, self.mnt(path), flags, StatxFlags::BASIC_STATS).unwrap();
        let (m, c) = (s.stx_mtime, s.stx_ctime);
        let (links, mode) = (s.stx_nlink.into(), s.stx_mode.into());
        (mode, links, s.stx_size, (m.tv_sec, m.tv_nsec.into()), (c.tv_sec, c.tv_nsec.into()))
    }

    fn judge(&self, when: &str) {
        let after = || format!("{when}, after {:#?}", self.done);
        for dir in self.dirs.iter().copied().chain([""]) {
            let inside = |path: &&str| Path::new(path).parent() == Some(Path::new(dir));
            let all = self.files.keys().map(String::as_str).chain(self.dirs.iter().copied());
            let name = |path: &str| Path::new(path).file_name().unwrap().to_str().unwrap().to_owned();
            let mut wanted: Vec<String> = all.filter(inside).map(name).collect();
            wanted.sort();
            let entries = fs::read_dir(self.mnt(dir)).unwrap();
            let mut listed: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            listed.sort();
            assert_eq!(listed, wanted, "listing of '{dir}' {}", after());
            let below = self.dirs.iter().filter(|path| inside(path)).count() as u64;
            assert_eq!(fs::metadata(self.mnt(dir)).unwrap().nlink(), 2 + below, "'{dir}' {}", after());
            for name in NAMES {
                let path = [dir, name].join("/").trim_start_matches('/').to_owned();
                if !self.files.contains_key(&path) {
                    let found = fs::symlink_metadata(self.mnt(&path)).map_err(|e| e.kind()).err();
                    assert_eq!(found, Some(ErrorKind::NotFound), "{path} {}", after());
                }
            }
        }
        for (path, node) in &self.files {
            self.judge_file(path, *node, &after);
        }
        for held in &self.held {
            self.judge_held(held, &after);
        }
        for (path, shown) in self.shown() {
            assert_eq!(shown, self.asked(&path), "what is kept of '{path}', and what is so, {}", after());
        }
    }

    fn judge_file(&self, path: &str, node: usize, after: &dyn Fn() -> String) {
        let meta = fs::symlink_metadata(self.mnt(path)).unwrap_or_else(|e| panic!("{path}: {e} {}", after()));
        let links = self.files.values().filter(|other| **other == node).count() as u64;
        assert_eq!(meta.nlink(), links, "links of {path} {}", after());
        match &self.nodes[&node] {
            Node::Link(target) => {
                assert_eq!(fs::read_link(self.mnt(path)).unwrap(), Path::new(target), "{path} {}", after());
            }
            Node::Bytes(bytes) => {
                assert_eq!(meta.len(), bytes.len() as u64, "size of {path} {}", after());
                compare(&fs::read(self.mnt(path)).unwrap(), bytes, path, after);
            }
        }
    }

    /// Compares a held file, whatever has happened to its name.
    fn judge_held(&self, held: &Held, after: &dyn Fn() -> String) {
        let Node::Bytes(bytes) = &self.nodes[&held.node] else { panic!("only these are held") };
        let what = format!("held node {}", held.node);
        assert_eq!(held.file.metadata().unwrap().len(), bytes.len() as u64, "{what} {}", after());
        let mut found = vec![0; bytes.len()];
        held.file.read_exact_at(&mut found, 0).unwrap();
        compare(&found, bytes, &what, after);
        if let Some(mapping) = &held.mapping {
            // Pages beyond the end of the file cannot be accessed.
            let mut found = vec![0; mapping.len().min(bytes.len())];
            mapping.read(0, &mut found);
            compare(&found, &bytes[..found.len()], &format!("mapping of {what}"), after);
        }
    }

    fn run(&mut self, steps: u32) -> u32 {
        let mut done = 0;
        while done < steps {
            let Some(did) = self.step() else { continue };
            self.done.push_back(did);
            if self.done.len() > TOLD {
                self.done.pop_front();
            }
            self.judge("judged");
            let used: Vec<usize> =
                self.files.values().copied().chain(self.held.iter().map(|h| h.node)).collect();
            self.nodes.retain(|node, _| used.contains(node));
            done += 1;
        }
        self.offline();
        self.judge("at the end");
        done
    }
}

#[track_caller]
fn compare(found: &[u8], wanted: &[u8], what: &str, after: &dyn Fn() -> String) {
    assert_eq!(found.len(), wanted.len(), "bytes of {what} {}", after());
    if let Some(i) = (0..found.len()).find(|i| found[*i] != wanted[*i]) {
        let wrong = (0..found.len()).filter(|i| found[*i] != wanted[*i]).count();
        panic!("{what}: byte {i} and {} more differ {}", wrong - 1, after());
    }
}

fn coherence(image: &str, options: &'static str) {
    needs_fuse!();
    let steps = if crate::common::long() { 2000 } else { 50 };
    let seeds = kedge_sim::rig::seed_from_env().map_or(vec![1, 2], |seed| vec![seed]);
    for seed in seeds {
        println!("KEDGE_SEED={seed}");
        let mut model = Coherence::new(image, options, seed);
        let done = model.run(steps);
        println!("mkfs{image}, mount{options}: {done} steps, 0 differences");
        model.held.clear();
        model.place.unmount_and_check("disk.kedge");
    }
}

#[test]
fn caches_of_a_mount_through_a_block_device() {
    coherence("", "");
}

#[test]
fn caches_of_a_plain_mount() {
    coherence("", " -o fuse");
}

#[test]
fn caches_with_the_kernels_writeback() {
    coherence("", " -o writeback_cache");
}

#[test]
fn caches_of_a_plain_mount_with_the_kernels_writeback() {
    coherence("", " -o fuse,writeback_cache");
}

#[test]
fn caches_of_a_mount_that_sees_opens() {
    coherence(" --immutable", "");
}

#[test]
fn caches_of_a_mount_that_sees_opens_with_the_kernels_writeback() {
    coherence(" --immutable", " -o writeback_cache");
}

#[test]
fn caches_of_a_mount_with_rings() {
    if rings_are_on() {
        coherence("", " -o transport=io_uring");
    }
}

/// The worker on the client's processor serves programs that start other programs meanwhile.
#[test]
fn caches_with_the_kernels_writeback_on_the_clients_processor() {
    coherence(" --immutable", " -o writeback_cache,placement=on");
}
