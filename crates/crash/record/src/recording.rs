//! A file system that records its calls.

use crate::changed::changed;
use crate::family::Family;
use crate::log::{Log, State};
use crate::mapped::{Except, FILES_DIR, Mapped};

use kedge_crash::Call;
use kedge_crash::trace::Space;
use kedge_fuse::{Done, Ops, caller};
use kedgefs::{
    Attr, DirEntry, Error, FallocateMode, FileSystem, Ino, Owner, RenameMode, Result, SeekKind, SetAttr,
    StatFs, WriteMode, XattrMode,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Each line written to this file in the root directory is a mark. No directory lists it.
pub const MARK_FILE: &str = ".kedge-mark";

/// The most threads whose unfinished writes are remembered. At the limit all are dropped, and their
/// FSYNCs count for the whole file.
const WRITES_MAX: usize = 1 << 12;

/// A [`FileSystem`] whose changes are recorded.
#[derive(Clone)]
pub struct Recording {
    fs: FileSystem,
    log: Arc<Log>,
    /// The inode of [`MARK_FILE`], if there is one.
    mark_ino: Option<Ino>,
    /// The collector of stores through mappings, if they are collected.
    mapped: Option<Arc<Mapped>>,
    writes: Arc<SyncedWrites>,
    /// The processes whose sync(2) and syncfs(2) count as the program's; `None` for all.
    family: Option<Arc<Family>>,
}

/// A file, the first byte of a range of it and the byte after the last.
type Written = (Ino, Vec<(u64, u64)>);

/// The ranges that writes with `O_DSYNC` or `O_SYNC` have put, by thread, until the FSYNC that the
/// kernel sends at the end of the write.
#[derive(Default)]
struct SyncedWrites(Mutex<HashMap<u32, Written>>);

impl SyncedWrites {
    fn add(&self, tid: u32, ino: Ino, range: Range<u64>) {
        let mut writes = self.0.lock();
        // The FSYNC of a write that its thread did not finish never comes.
        if writes.len() >= WRITES_MAX {
            writes.clear();
        }
        let (of, ranges) = writes.entry(tid).or_insert((ino, Vec::new()));
        if *of != ino {
            (*of, *ranges) = (ino, Vec::new());
        }
        ranges.push((range.start, range.end));
    }

    /// Removes the entry of a thread. Returns its ranges if the thread's FSYNC is of the same file.
    fn take(&self, tid: u32, ino: Ino) -> Option<Vec<(u64, u64)>> {
        self.0.lock().remove(&tid).filter(|(of, _)| *of == ino).map(|(_, ranges)| ranges)
    }
}

/// The error of an fsync whose bytes were lost to a crash or to the failure of another fsync.
pub(crate) fn cut_off() -> Error {
    Error::Injected(kedge_base::errno::EIO)
}

fn errno<T>(result: &Result<T>) -> i32 {
    result.as_ref().err().map_or(0, Error::errno)
}

impl Recording {
    /// Makes a recording with a file for marks, which `owner` owns.
    pub fn with_marks(fs: FileSystem, log: Arc<Log>, owner: Owner) -> Result<Recording> {
        let attr = fs.create(Ino::ROOT, MARK_FILE.as_bytes(), 0o622, owner)?;
        Ok(Recording { mark_ino: Some(attr.ino), ..Recording::plain(fs, log) })
    }

    /// Lets stores through shared mappings be collected before each call.
    pub fn collecting(mut self, owner: Owner) -> Result<(Recording, Arc<Mapped>)> {
        let dir = self.fs.mkdir(Ino::ROOT, FILES_DIR.as_bytes(), 0o700, owner)?;
        let mapped = Arc::new(Mapped::new(dir.ino));
        self.mapped = Some(mapped.clone());
        Ok((self, mapped))
    }

    /// Makes a recording without a file for marks, so that every name belongs to the user.
    pub fn plain(fs: FileSystem, log: Arc<Log>) -> Recording {
        Recording { fs, log, mark_ino: None, mapped: None, writes: Arc::default(), family: None }
    }

    /// Lets only the sync(2) and syncfs(2) of these processes be recorded.
    pub fn of_family(self, family: Arc<Family>) -> Recording {
        Recording { family: Some(family), ..self }
    }

    /// Whether a sync of the whole file system is the program's. Any process of the machine may
    /// call it.
    fn is_sync_ours(&self) -> bool {
        self.family.as_ref().is_none_or(|family| family.has(caller()))
    }

    fn is_control(&self, dir: Ino, name: &[u8]) -> bool {
        let is_mark = self.mark_ino.is_some() && name == MARK_FILE.as_bytes();
        dir == Ino::ROOT && (is_mark || self.mapped.is_some() && name == FILES_DIR.as_bytes())
    }

    /// Prepares a call before the log is locked: records what programs have stored through mappings
    /// so far, and reads about the calling process. The pages in `except` are locked until the
    /// reply.
    fn prepare(&self, except: &Except) {
        if let Some(mapped) = &self.mapped {
            mapped.collect(except);
        }
        self.log.look_at(caller(), matches!(except, Except::None));
    }

    /// The attributes that the kernel gets: the link count of the root does not include the hidden
    /// directory.
    fn shown(&self, attr: Attr) -> Attr {
        match self.mapped.is_some() && attr.ino == Ino::ROOT {
            true => Attr { nlink: attr.nlink.saturating_sub(1), ..attr },
            false => attr,
        }
    }

    /// Records the changed bytes of pages that the kernel writes back from mappings.
    fn record_stores(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        let mut log = self.log.lock();
        let mut old = vec![0; data.len()];
        let len = self.fs.read(ino, offset, &mut old)?;
        let result = self.fs.write_with(ino, offset, data, mode);
        for range in changed(offset, &old[..len], data) {
            let (offset, data) = (offset + range.start as u64, data[range].to_vec());
            let call = Call::Write { ino: ino.0, offset, data, mapped: true };
            self.log.append(&mut log, 0, errno(&result), call);
        }
        result
    }

    /// Runs a call and records it in one step, under the log's lock.
    fn change<T>(&self, run: impl FnOnce() -> Result<T>, call: impl FnOnce(&Result<T>) -> Call) -> Result<T> {
        self.prepare(&Except::None);
        self.change_now(run, call)
    }

    fn change_now<T>(
        &self,
        run: impl FnOnce() -> Result<T>,
        call: impl FnOnce(&Result<T>) -> Call,
    ) -> Result<T> {
        let mut log = self.log.lock();
        let result = run();
        let call = call(&result);
        self.log.append(&mut log, caller(), errno(&result), call);
        result
    }

    fn refuse_control(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let is_below_files = self.mapped.as_ref().is_some_and(|mapped| mapped.dir == dir);
        match is_below_files || self.is_control(dir, name) {
            true => Err(Error::NotPermitted("a name that the recorder uses")),
            false => Ok(()),
        }
    }

    fn made(
        &self,
        dir: Ino,
        name: &[u8],
        run: impl FnOnce() -> Result<Attr>,
        target: Option<&[u8]>,
    ) -> Result<Attr> {
        self.refuse_control(dir, name)?;
        self.change(run, |made| {
            let (ino, mode, uid, gid) =
                made.as_ref().map_or((0, 0, 0, 0), |a| (a.ino.0, a.mode, a.uid, a.gid));
            let target = target.map(<[u8]>::to_vec);
            Call::Create { dir: dir.0, name: name.to_vec(), ino, mode, uid, gid, target }
        })
    }

    fn removed(&self, dir: Ino, name: &[u8], is_dir: bool, run: impl FnOnce() -> Result<()>) -> Result<()> {
        self.refuse_control(dir, name)?;
        self.prepare(&Except::None);
        let mut log = self.log.lock();
        let ino = self.fs.lookup(dir, name).map_or(0, |a| a.ino.0);
        let result = run();
        let call = Call::Remove { dir: dir.0, name: name.to_vec(), ino, is_dir };
        self.log.append(&mut log, caller(), errno(&result), call);
        result
    }

    fn mark(&self, data: &[u8]) {
        self.prepare(&Except::None);
        let mut log = self.log.lock();
        for line in String::from_utf8_lossy(data).lines().filter(|l| !l.trim().is_empty()) {
            self.log.append(&mut log, caller(), 0, Call::Mark { text: line.trim().to_owned() });
        }
    }

    fn persisted(&self, ino: Option<Ino>, datasync: bool, done: Done) -> Done {
        let (log, tid) = (self.log.clone(), caller());
        let state = log.lock();
        let number = ino.map(|ino| ino.0);
        let (since, drops) = (state.count, state.drops(number));
        drop(state);
        let written = ino.and_then(|ino| self.writes.take(tid, ino));
        let ranges = match &written {
            Some(_) => None,
            None => ino.zip(self.mapped.as_ref()).and_then(|(ino, mapped)| mapped.msync_ranges(ino, tid)),
        };
        // Collect after `since` is read: the kernel has already written what the call promises, and
        // the call does not promise what is collected now.
        self.prepare(&Except::None);
        Box::new(move |result| {
            let call = match (ino, written, ranges) {
                (Some(ino), Some(ranges), _) => Call::SyncRange { ino: ino.0, datasync, ranges, since },
                (Some(ino), None, Some(ranges)) => Call::Msync { ino: ino.0, ranges, since },
                (Some(ino), None, None) => Call::Fsync { ino: ino.0, datasync, since },
                (None, ..) => Call::Sync { since },
            };
            let mut state = log.lock();
            // If another fsync has dropped pages meanwhile, this fsync does not make them durable.
            let result = if state.drops(number) == drops { result } else { Err(cut_off()) };
            // The log decides on success under its lock, because at a power failure exactly its
            // contents are durable. A decision after this could follow the cut, and a separate
            // generation number could change before or after the cut.
            let is_recorded = log.append(&mut state, tid, errno(&result), call);
            drop(state);
            done(if is_recorded { result } else { Err(cut_off()) });
        })
    }

    /// Records the changes of a setattr that a crash can lose. Times are not among them.
    fn record_setattr(&self, log: &mut State, ino: Ino, set: &SetAttr, errno: i32) {
        if let Some(size) = set.size {
            self.log.append(log, caller(), errno, Call::Truncate { ino: ino.0, size });
        }
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            let call = Call::Attr { ino: ino.0, mode: set.mode, uid: set.uid, gid: set.gid };
            self.log.append(log, caller(), errno, call);
        }
    }
}

impl Ops for Recording {
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        if Some(ino) == self.mark_ino {
            return self.fs.getattr(ino);
        }
        self.prepare(&if set.size.is_some() { Except::File(ino) } else { Except::None });
        let mut log = self.log.lock();
        let result = self.fs.setattr(ino, set);
        self.record_setattr(&mut log, ino, set, errno(&result));
        result.map(|attr| self.shown(attr))
    }

    fn create(&self, dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr> {
        self.made(dir, name, || self.fs.create(dir, name, mode, owner), None)
    }

    fn mkdir(&self, dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr> {
        self.made(dir, name, || self.fs.mkdir(dir, name, mode, owner), None)
    }

    fn mknod(&self, dir: Ino, name: &[u8], mode: u32, rdev: u64, owner: Owner) -> Result<Attr> {
        self.made(dir, name, || self.fs.mknod(dir, name, mode, rdev, owner), None)
    }

    fn symlink(&self, dir: Ino, name: &[u8], target: &[u8], owner: Owner) -> Result<Attr> {
        self.made(dir, name, || self.fs.symlink(dir, name, target, owner), Some(target))
    }

    fn tmpfile(&self, dir: Ino, mode: u32, owner: Owner) -> Result<Attr> {
        self.change(
            || self.fs.tmpfile(dir, mode, owner),
            |made| {
                // In a set-group-id directory the file gets the group of the directory.
                match made {
                    Ok(a) => Call::Tmpfile { ino: a.ino.0, mode: a.mode, uid: a.uid, gid: a.gid },
                    Err(_) => Call::Tmpfile { ino: 0, mode, uid: owner.uid, gid: owner.gid },
                }
            },
        )
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.refuse_control(dir, name)?;
        let call = Call::Link { ino: ino.0, dir: dir.0, name: name.to_vec() };
        self.change(|| self.fs.link(ino, dir, name), |_| call)
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.removed(dir, name, false, || self.fs.unlink(dir, name))
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.removed(dir, name, true, || self.fs.rmdir(dir, name))
    }

    fn rename(&self, dir: Ino, name: &[u8], new_dir: Ino, new_name: &[u8], mode: RenameMode) -> Result<()> {
        self.refuse_control(dir, name)?;
        self.refuse_control(new_dir, new_name)?;
        if matches!(mode, RenameMode::Whiteout { .. }) {
            // A recording has no event for a whiteout, so its replay would build another tree.
            return Err(Error::Invalid("a recording has no whiteouts"));
        }
        self.prepare(&Except::None);
        let mut log = self.log.lock();
        let ino = self.fs.lookup(dir, name).map_or(0, |a| a.ino.0);
        let victim = self.fs.lookup(new_dir, new_name).ok().map(|a| a.ino.0);
        let result = self.fs.rename(dir, name, new_dir, new_name, mode);
        // If both names belong to one file, rename does nothing.
        if victim != Some(ino) || result.is_err() {
            let call = Call::Rename {
                dir: dir.0,
                name: name.to_vec(),
                new_dir: new_dir.0,
                new_name: new_name.to_vec(),
                ino,
                victim,
                exchange: mode == RenameMode::Exchange,
            };
            self.log.append(&mut log, caller(), errno(&result), call);
        }
        result
    }

    fn write_with(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        if Some(ino) == self.mark_ino {
            self.mark(data);
            return Ok(data.len());
        }
        let mapped = caller() == 0;
        if let Some(stores) = self.mapped.as_ref().filter(|_| mapped) {
            stores.stored();
            return self.record_stores(ino, offset, data, mode);
        }
        self.prepare(&Except::Bytes(ino, offset..offset.saturating_add(data.len() as u64)));
        self.change_now(
            || self.fs.write_with(ino, offset, data, mode),
            |written| {
                let data = data[..written.as_ref().map_or(0, |n| (*n).min(data.len()))].to_vec();
                Call::Write { ino: ino.0, offset, data, mapped }
            },
        )
    }

    fn wrote_to_sync(&self, ino: Ino, range: Range<u64>) {
        if Some(ino) != self.mark_ino {
            self.writes.add(caller(), ino, range);
        }
    }

    fn fallocate(&self, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        let how = match mode {
            FallocateMode::Allocate { keep_size } => Space::Allocate { keep_size },
            FallocateMode::PunchHole => Space::Punch,
            FallocateMode::ZeroRange { keep_size } => Space::Zero { keep_size },
            FallocateMode::CollapseRange => Space::Collapse,
            FallocateMode::InsertRange => Space::Insert,
        };
        let call = Call::Allocate { ino: ino.0, how, offset, len };
        self.change(|| self.fs.fallocate(ino, mode, offset, len), |_| call)
    }

    fn fsync_async(&self, ino: Ino, datasync: bool, done: Done) {
        if Some(ino) == self.mark_ino {
            return done(Ok(()));
        }
        let done = self.persisted(Some(ino), datasync, done);
        self.fs.fsync_async(ino, datasync, done);
    }

    fn sync(&self) -> Result<()> {
        if !self.is_sync_ours() {
            return self.fs.sync();
        }
        let since = self.log.lock().count;
        self.prepare(&Except::None);
        let result = self.fs.sync();
        let mut log = self.log.lock();
        self.log.append(&mut log, caller(), errno(&result), Call::Sync { since });
        result
    }

    fn sync_async(&self, done: Done) {
        if !self.is_sync_ours() {
            return self.fs.sync_async(done);
        }
        let done = self.persisted(None, false, done);
        self.fs.sync_async(done);
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let call = Call::Xattr { ino: ino.0, name: name.to_vec(), value: Some(value.to_vec()) };
        self.change(|| self.fs.setxattr(ino, name, value, mode), |_| call)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let call = Call::Xattr { ino: ino.0, name: name.to_vec(), value: None };
        self.change(|| self.fs.removexattr(ino, name), |_| call)
    }

    fn readdir(&self, dir: Ino, cookie: u64, visit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.fs.readdir(dir, cookie, &mut |entry| self.is_control(dir, entry.name) || visit(entry))
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        if self.mapped.as_ref().is_some_and(|mapped| mapped.dir == dir) && name != b".." {
            let number = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
            return self.fs.getattr(Ino(number.ok_or(Error::NotFound)?));
        }
        self.fs.lookup(dir, name).map(|attr| self.shown(attr))
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.fs.getattr(ino).map(|attr| self.shown(attr))
    }

    fn opened_to_store(&self, ino: Ino) {
        if let Some(mapped) = &self.mapped {
            mapped.opened(ino);
        }
    }

    fn closed_to_store(&self, ino: Ino) {
        if let Some(mapped) = &self.mapped {
            mapped.closed(ino);
        }
    }

    /// Whether the kernel may keep names of this directory: a name in the hidden directory would
    /// keep a removed file.
    fn may_keep_names(&self, dir: Ino) -> bool {
        self.mapped.as_ref().is_none_or(|mapped| mapped.dir != dir)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.fs.readlink(ino)
    }

    fn read_uncached(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.fs.read(ino, offset, buf)
    }

    fn seek(&self, ino: Ino, offset: u64, kind: SeekKind) -> Result<u64> {
        self.fs.seek(ino, offset, kind)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.fs.getxattr(ino, name)
    }

    fn list_xattrs(&self, ino: Ino, visit: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        self.fs.list_xattrs(ino, visit)
    }

    fn pin(&self, ino: Ino) -> Result<()> {
        self.fs.pin(ino)
    }

    fn unpin(&self, ino: Ino, count: u64) {
        self.fs.unpin(ino, count);
    }

    fn statfs(&self) -> StatFs {
        self.fs.statfs()
    }

    fn shutdown(&self, flush: bool) -> Result<()> {
        self.fs.shutdown(flush)
    }

    fn stats_json(&self) -> String {
        self.fs.stats_json()
    }

    fn info_json(&self) -> String {
        self.fs.info_json()
    }

    fn set_options(&self, list: &str) -> Result<()> {
        self.fs.set_options(list)
    }
}

#[cfg(test)]
#[path = "recording_tests.rs"]
mod tests;
