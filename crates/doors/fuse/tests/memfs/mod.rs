//! A minimal file system in memory, for tests of the real server.
#![allow(dead_code, clippy::unwrap_used)]

use kedge_base::Clock;
use kedge_fuse::{Done, Ops};
use kedgefs::{
    Attr, DirEntry, Error, FallocateMode, FileFlags, FileKind, Ino, Owner, RenameMode, Result, SeekKind,
    SetAttr, SetTime, StatFs, SystemClock, Timespec, WriteMode, XattrMode,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

const BLOCK: u64 = 4096;

struct Node {
    attr: Attr,
    blocks: BTreeMap<u64, Box<[u8; BLOCK as usize]>>,
    /// The entries by cookie, in readdir's order.
    entries: BTreeMap<u64, (Vec<u8>, u64)>,
    /// The cookies of `entries` by name.
    names: BTreeMap<Vec<u8>, u64>,
    parent: u64,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pins: u64,
}

impl Node {
    fn find(&self, name: &[u8]) -> Option<(u64, u64)> {
        self.names.get(name).map(|cookie| (*cookie, self.entries[cookie].1))
    }

    fn remove_entry(&mut self, cookie: u64) {
        let (name, _) = self.entries.remove(&cookie).unwrap();
        self.names.remove(&name);
    }

    fn write(&mut self, mut at: u64, mut data: &[u8]) {
        self.attr.size = self.attr.size.max(at + data.len() as u64);
        while !data.is_empty() {
            let within = (at % BLOCK) as usize;
            let len = data.len().min(BLOCK as usize - within);
            let block = self.blocks.entry(at / BLOCK).or_insert_with(|| Box::new([0; BLOCK as usize]));
            block[within..within + len].copy_from_slice(&data[..len]);
            (at, data) = (at + len as u64, &data[len..]);
        }
        self.attr.blocks = self.blocks.len() as u64 * 8;
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> usize {
        let len = buf.len().min(self.attr.size.saturating_sub(at) as usize);
        let mut done = 0;
        while done < len {
            let (block, within) = ((at + done as u64) / BLOCK, ((at + done as u64) % BLOCK) as usize);
            let piece = (len - done).min(BLOCK as usize - within);
            match self.blocks.get(&block) {
                Some(b) => buf[done..done + piece].copy_from_slice(&b[within..within + piece]),
                None => buf[done..done + piece].fill(0),
            }
            done += piece;
        }
        len
    }

    fn clear(&mut self, from: u64, to: u64) {
        self.blocks.retain(|&b, block| {
            let (start, end) = (b * BLOCK, (b + 1) * BLOCK);
            let (a, z) = (from.clamp(start, end), to.clamp(start, end));
            if a < z {
                block[(a - start) as usize..(z - start) as usize].fill(0);
            }
            !(from <= start && to >= end)
        });
        self.attr.blocks = self.blocks.len() as u64 * 8;
    }
}

struct State {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    setattrs: Vec<SetAttr>,
    fsyncs: u64,
    syncs: u64,
    listings: u64,
    down: bool,
}

pub type OnLookup = Arc<dyn Fn(&[u8]) + Send + Sync>;
pub type OnFsync = Arc<dyn Fn(Done) + Send + Sync>;

#[derive(Clone)]
pub struct MemFs {
    state: Arc<Mutex<State>>,
    clock: Arc<SystemClock>,
    /// Completes each fsync, immediately or later.
    pub on_fsync: Option<OnFsync>,
    /// Called with the name of each lookup, before the lookup is done.
    pub on_lookup: Option<OnLookup>,
    /// Changes of a size fail for lack of space.
    pub sizes_fail: bool,
    /// The value that `has_acls` returns, for INIT. The file system itself supports no lists.
    pub acls: bool,
}

impl MemFs {
    pub fn new() -> MemFs {
        let fs = MemFs {
            state: Arc::new(Mutex::new(State {
                nodes: BTreeMap::new(),
                next: 1,
                setattrs: Vec::new(),
                fsyncs: 0,
                syncs: 0,
                listings: 0,
                down: false,
            })),
            clock: Arc::new(SystemClock::default()),
            acls: false,
            sizes_fail: false,
            on_fsync: None,
            on_lookup: None,
        };
        fs.add(&mut fs.state.lock(), FileKind::Directory, 0o40755, Owner::default());
        fs
    }

    /// The number of inodes, named or pinned.
    pub fn inodes(&self) -> usize {
        self.state.lock().nodes.len()
    }

    /// The number of directory listings, each of which changes an access time.
    pub fn listings(&self) -> u64 {
        self.state.lock().listings
    }

    pub fn pins(&self, ino: u64) -> u64 {
        self.state.lock().nodes.get(&ino).map_or(0, |n| n.pins)
    }

    pub fn take_setattrs(&self) -> Vec<SetAttr> {
        std::mem::take(&mut self.state.lock().setattrs)
    }

    pub fn fsyncs(&self) -> u64 {
        self.state.lock().fsyncs
    }

    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    pub fn is_down(&self) -> bool {
        self.state.lock().down
    }

    fn add(&self, state: &mut State, kind: FileKind, mode: u32, owner: Owner) -> u64 {
        let now = self.clock.now();
        let ino = state.next;
        state.next += 1;
        let attr = Attr {
            ino: Ino(ino),
            kind,
            mode: kind.mode_bits() | (mode & 0o7777),
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            uid: owner.uid,
            gid: owner.gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            flags: FileFlags::default(),
        };
        let node = Node {
            attr,
            blocks: BTreeMap::new(),
            entries: BTreeMap::new(),
            names: BTreeMap::new(),
            parent: 1,
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            pins: 0,
        };
        state.nodes.insert(ino, node);
        ino
    }

    fn make(&self, dir: Ino, name: &[u8], kind: FileKind, mode: u32, owner: Owner) -> Result<Attr> {
        let mut state = self.state.lock();
        let state = &mut *state;
        check(state, name)?;
        let parent = state.nodes.get(&dir.0).ok_or(Error::NotFound)?;
        if parent.find(name).is_some() {
            return Err(Error::Exists);
        }
        // The file system, not the transport, inherits the group of a set-group-ID directory.
        let (mut mode, mut owner) = (mode, owner);
        if parent.attr.mode & 0o2000 != 0 {
            owner.gid = parent.attr.gid;
            mode |= if kind == FileKind::Directory { 0o2000 } else { 0 };
        }
        let ino = self.add(state, kind, mode, owner);
        state.nodes.get_mut(&ino).unwrap().parent = dir.0;
        self.enter(state, dir.0, name, ino);
        if kind == FileKind::Directory {
            state.nodes.get_mut(&dir.0).unwrap().attr.nlink += 1;
        }
        Ok(state.nodes[&ino].attr)
    }

    fn enter(&self, state: &mut State, dir: u64, name: &[u8], ino: u64) {
        let now = self.clock.now();
        let dir = state.nodes.get_mut(&dir).unwrap();
        let cookie = dir.entries.last_key_value().map_or(3, |(c, _)| c + 1);
        dir.entries.insert(cookie, (name.to_vec(), ino));
        dir.names.insert(name.to_vec(), cookie);
        (dir.attr.mtime, dir.attr.ctime) = (now, now);
    }

    fn remove(&self, state: &mut State, dir: Ino, name: &[u8], want_dir: Option<bool>) -> Result<()> {
        let now = self.clock.now();
        let parent = state.nodes.get(&dir.0).ok_or(Error::NotFound)?;
        let (cookie, ino) = parent.find(name).ok_or(Error::NotFound)?;
        let node = &state.nodes[&ino];
        let is_dir = node.attr.kind == FileKind::Directory;
        match want_dir {
            Some(true) if !is_dir => return Err(Error::NotDirectory),
            Some(false) if is_dir => return Err(Error::IsDirectory),
            _ => {}
        }
        if is_dir && !node.entries.is_empty() {
            return Err(Error::NotEmpty);
        }
        let parent = state.nodes.get_mut(&dir.0).unwrap();
        parent.remove_entry(cookie);
        (parent.attr.mtime, parent.attr.ctime) = (now, now);
        if is_dir {
            parent.attr.nlink -= 1;
        }
        let node = state.nodes.get_mut(&ino).unwrap();
        node.attr.nlink -= if is_dir { 2 } else { 1 };
        node.attr.ctime = now;
        reap(state, ino);
        Ok(())
    }

    fn with<T>(&self, ino: Ino, f: impl FnOnce(&mut Node) -> Result<T>) -> Result<T> {
        f(self.state.lock().nodes.get_mut(&ino.0).ok_or(Error::NotFound)?)
    }

    /// Like [`MemFs::with`], for changes.
    fn change<T>(&self, ino: Ino, f: impl FnOnce(&mut Node) -> Result<T>) -> Result<T> {
        let mut state = self.state.lock();
        up(&state)?;
        f(state.nodes.get_mut(&ino.0).ok_or(Error::NotFound)?)
    }
}

fn up(state: &State) -> Result<()> {
    if state.down { Err(kedge_base::Error::Shutdown("test".into()).into()) } else { Ok(()) }
}

fn check(state: &State, name: &[u8]) -> Result<()> {
    up(state)?;
    if name.len() > 255 { Err(Error::NameTooLong) } else { Ok(()) }
}

fn reap(state: &mut State, ino: u64) {
    if state.nodes.get(&ino).is_some_and(|n| n.attr.nlink == 0 && n.pins == 0) {
        state.nodes.remove(&ino);
    }
}

impl Ops for MemFs {
    fn has_acls(&self) -> bool {
        self.acls
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        if let Some(call) = &self.on_lookup {
            call(name);
        }
        let state = self.state.lock();
        if name.len() > 255 {
            return Err(Error::NameTooLong);
        }
        let node = state.nodes.get(&dir.0).ok_or(Error::NotFound)?;
        let ino = if name == b".." { Some(node.parent) } else { node.find(name).map(|(_, ino)| ino) };
        Ok(state.nodes[&ino.ok_or(Error::NotFound)?].attr)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.with(ino, |node| Ok(node.attr))
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let now = self.clock.now();
        self.state.lock().setattrs.push(*set);
        if self.sizes_fail && set.size.is_some() {
            return Err(kedge_base::Error::NoSpace.into());
        }
        self.change(ino, |node| {
            let time = |t| match t {
                SetTime::Now => now,
                SetTime::At(t) => t,
            };
            let attr = &mut node.attr;
            attr.ctime = set.ctime.unwrap_or(now);
            attr.mode = set.mode.map_or(attr.mode, |m| attr.kind.mode_bits() | (m & 0o7777));
            attr.uid = set.uid.unwrap_or(attr.uid);
            attr.gid = set.gid.unwrap_or(attr.gid);
            attr.atime = set.atime.map_or(attr.atime, time);
            attr.mtime = set.mtime.map_or(attr.mtime, time);
            if let Some(size) = set.size {
                node.attr.size = size;
                node.clear(size, u64::MAX);
            }
            Ok(node.attr)
        })
    }

    fn create(&self, dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr> {
        self.make(dir, name, FileKind::Regular, mode, owner)
    }

    fn mkdir(&self, dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr> {
        self.make(dir, name, FileKind::Directory, mode, owner)
    }

    fn mknod(&self, dir: Ino, name: &[u8], mode: u32, rdev: u64, owner: Owner) -> Result<Attr> {
        let kind = match mode & FileKind::MODE_MASK {
            0o010000 => FileKind::Fifo,
            0o020000 => FileKind::CharDevice,
            0o060000 => FileKind::BlockDevice,
            0o140000 => FileKind::Socket,
            _ => return Err(Error::Invalid("mknod of this kind")),
        };
        let attr = self.make(dir, name, kind, mode, owner)?;
        self.with(attr.ino, |node| {
            node.attr.rdev = rdev;
            Ok(node.attr)
        })
    }

    fn symlink(&self, dir: Ino, name: &[u8], target: &[u8], owner: Owner) -> Result<Attr> {
        let attr = self.make(dir, name, FileKind::Symlink, 0o777, owner)?;
        self.with(attr.ino, |node| {
            node.target = target.to_vec();
            node.attr.size = target.len() as u64;
            Ok(node.attr)
        })
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.with(ino, |node| Ok(node.target.clone()))
    }

    fn tmpfile(&self, _dir: Ino, mode: u32, owner: Owner) -> Result<Attr> {
        let mut state = self.state.lock();
        let ino = self.add(&mut state, FileKind::Regular, mode, owner);
        let node = state.nodes.get_mut(&ino).unwrap();
        node.attr.nlink = 0;
        node.pins = 1;
        Ok(node.attr)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        check(&state, name)?;
        if state.nodes.get(&dir.0).ok_or(Error::NotFound)?.find(name).is_some() {
            return Err(Error::Exists);
        }
        let node = state.nodes.get_mut(&ino.0).ok_or(Error::NotFound)?;
        node.attr.nlink += 1;
        node.attr.ctime = now;
        let attr = node.attr;
        self.enter(&mut state, dir.0, name, ino.0);
        Ok(attr)
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        check(&state, name)?;
        self.remove(&mut state, dir, name, Some(false))
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        check(&state, name)?;
        self.remove(&mut state, dir, name, Some(true))
    }

    fn rename(&self, dir: Ino, name: &[u8], new_dir: Ino, new_name: &[u8], mode: RenameMode) -> Result<()> {
        let mut state = self.state.lock();
        let state = &mut *state;
        check(state, new_name)?;
        let find =
            |dir: Ino, name| Ok::<_, Error>(state.nodes.get(&dir.0).ok_or(Error::NotFound)?.find(name));
        let (cookie, ino) = find(dir, name)?.ok_or(Error::NotFound)?;
        let target = find(new_dir, new_name)?;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Error::Exists),
            (RenameMode::Whiteout { .. }, _) => return Err(Error::Invalid("no whiteouts here")),
            (RenameMode::Exchange, None) => return Err(Error::NotFound),
            (RenameMode::Exchange, Some((other_cookie, other))) => {
                state.nodes.get_mut(&dir.0).unwrap().entries.get_mut(&cookie).unwrap().1 = other;
                state.nodes.get_mut(&new_dir.0).unwrap().entries.get_mut(&other_cookie).unwrap().1 = ino;
                return Ok(());
            }
            (_, Some((_, other))) if other == ino => return Ok(()),
            (_, Some(_)) => self.remove(state, new_dir, new_name, None)?,
            (_, None) => {}
        }
        state.nodes.get_mut(&dir.0).unwrap().remove_entry(cookie);
        self.enter(state, new_dir.0, new_name, ino);
        if state.nodes[&ino].attr.kind == FileKind::Directory {
            state.nodes.get_mut(&dir.0).unwrap().attr.nlink -= 1;
            state.nodes.get_mut(&new_dir.0).unwrap().attr.nlink += 1;
            state.nodes.get_mut(&ino).unwrap().parent = new_dir.0;
        }
        Ok(())
    }

    fn readdir(&self, dir: Ino, cookie: u64, visit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let mut state = self.state.lock();
        state.listings += 1;
        let node = state.nodes.get(&dir.0).ok_or(Error::NotFound)?;
        let dots = [(1, &b"."[..], dir.0), (2, &b".."[..], node.parent)];
        let named = node
            .entries
            .range(cookie.saturating_add(1)..)
            .map(|(cookie, (name, ino))| (*cookie, &name[..], *ino));
        for (at, name, ino) in dots.into_iter().chain(named).filter(|(at, ..)| *at > cookie) {
            let kind = state.nodes[&ino].attr.kind;
            if !visit(DirEntry { ino: Ino(ino), kind, name, cookie: at }) {
                break;
            }
        }
        Ok(())
    }

    fn read_uncached(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.with(ino, |node| Ok(node.read(offset, buf)))
    }

    fn write_with(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        let now = self.clock.now();
        self.change(ino, |node| {
            node.write(offset, data);
            if !mode.keep_times {
                (node.attr.mtime, node.attr.ctime) = (now, now);
            }
            Ok(data.len())
        })
    }

    fn fallocate(&self, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len).ok_or(Error::FileTooLarge)?;
        self.change(ino, |node| {
            match mode {
                FallocateMode::Allocate { keep_size: false } => {
                    node.attr.size = node.attr.size.max(end);
                }
                FallocateMode::Allocate { keep_size: true } => {}
                FallocateMode::PunchHole => node.clear(offset, end),
                _ => return Err(Error::NotSupported("in the test")),
            }
            Ok(())
        })
    }

    fn seek(&self, ino: Ino, offset: u64, kind: SeekKind) -> Result<u64> {
        self.with(ino, |node| {
            if offset >= node.attr.size {
                return Err(Error::NoSuchOffset);
            }
            let mut at = offset;
            while at < node.attr.size {
                if node.blocks.contains_key(&(at / BLOCK)) == (kind == SeekKind::Data) {
                    return Ok(at);
                }
                at = (at / BLOCK + 1) * BLOCK;
            }
            if kind == SeekKind::Hole { Ok(node.attr.size) } else { Err(Error::NoSuchOffset) }
        })
    }

    /// The bytes stay.
    fn clone_most(&self, source: Ino, _offset: u64, target: Ino, _to: u64, len: u64) -> Result<u64> {
        self.getattr(source)?;
        self.getattr(target)?;
        Ok(len)
    }

    fn fsync_async(&self, _ino: Ino, _datasync: bool, done: Done) {
        let mut state = self.state.lock();
        state.fsyncs += 1;
        let up = up(&state);
        drop(state);
        match (&self.on_fsync, up) {
            (Some(answer), Ok(())) => answer(done),
            (_, up) => done(up),
        }
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.syncs += 1;
        up(&state)
    }

    fn sync_async(&self, done: Done) {
        let result = self.sync();
        done(result);
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.with(ino, |node| node.xattrs.get(name).cloned().ok_or(Error::NoXattr))
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.change(ino, |node| match (mode, node.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => Err(Error::Exists),
            (XattrMode::Replace, false) => Err(Error::NoXattr),
            _ => {
                node.xattrs.insert(name.to_vec(), value.to_vec());
                Ok(())
            }
        })
    }

    fn list_xattrs(&self, ino: Ino, visit: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        self.with(ino, |node| Ok(_ = node.xattrs.keys().all(|name| visit(name))))
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.change(ino, |node| node.xattrs.remove(name).map(drop).ok_or(Error::NoXattr))
    }

    fn pin(&self, ino: Ino) -> Result<()> {
        self.with(ino, |node| {
            node.pins += 1;
            Ok(())
        })
    }

    fn unpin(&self, ino: Ino, count: u64) {
        let mut state = self.state.lock();
        let node = state.nodes.get_mut(&ino.0).expect("only what is pinned is unpinned");
        node.pins = node.pins.checked_sub(count).expect("no more pins are given back than were taken");
        reap(&mut state, ino.0);
    }

    fn statfs(&self) -> StatFs {
        StatFs {
            block_size: 4096,
            blocks: 1000,
            blocks_free: 900,
            blocks_available: 800,
            inodes: 70,
            inodes_free: 60,
            name_max: 255,
        }
    }

    fn shutdown(&self, _flush: bool) -> Result<()> {
        self.state.lock().down = true;
        Ok(())
    }

    fn stats_json(&self) -> String {
        "{\"memfs\":1}".to_owned()
    }

    fn info_json(&self) -> String {
        "{\"label\":\"mem\"}".to_owned()
    }

    fn set_options(&self, list: &str) -> Result<()> {
        Err(kedge_base::Error::invalid(format!("{list}: nothing to change here")).into())
    }
}

pub const fn seconds(sec: i64, nsec: u32) -> Timespec {
    Timespec { sec, nsec }
}
