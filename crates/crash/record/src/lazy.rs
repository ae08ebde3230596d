//! A mount with the faults of LazyFS, on top of [`Live`]: certain calls lose data, and the file
//! system may end with them.
//!
//! A loss takes the bytes and sizes that no fsync covers, in place ([`Live::lose_bytes`]), or
//! whatever a model allows ([`Live::crash`]). The file system ends as LazyFS does, by SIGKILL to
//! its own process. The image then holds what survives, and no operation comes in between.
//!
//! A fault that is due *before* a call is applied before the call has any effect. A fault that is
//! due *after* a call is applied when the call has succeeded, before its caller gets the result.

mod faults;

pub use faults::{Clear, Due, Fault, Faults, Kept, Named, Op, Parts, Seen, Timing, TornOp, TornSeq};

use crate::live::{Crashed, Live, LostBytes};
use crate::rules::{Crash, Lose};
use kedge_base::spawn_named;
use kedge_crash::Model;
use kedge_fuse::{Done, Ops};
use kedgefs::{
    Attr, DirEntry, FallocateMode, FileKind, Ino, Owner, RenameMode, Result, SeekKind, SetAttr, StatFs,
    WriteMode, XattrMode,
};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// What is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Bytes and sizes that no fsync of their file covers. Names are durable at once. A write with
    /// `O_SYNC` or `O_DSYNC` counts as an fsync of its whole file.
    Bytes,
    /// Everything that this model allows to be lost. Open files cannot be used any more, as after a
    /// restart.
    Model(Model),
}

/// An event on the mount, for the log.
#[derive(Debug)]
pub enum Notice<'a> {
    Call(&'a Seen<'a>),
    /// A fault is due at this call.
    Due(Op, Timing),
    /// A fault is due at this call and cannot be applied.
    Refused(Op, &'a str),
    Lost(&'a LostBytes),
    Crashed(&'a Crashed),
    /// This part of a write should have survived, but its file did not survive.
    Missing(&'a [u8]),
    /// The process will be killed now.
    Ending,
    /// The process could not be killed, for this reason.
    StillThere(&'a str),
}

type Listener = dyn Fn(&Notice<'_>) + Send + Sync;

struct Inner {
    live: Live,
    takes: Takes,
    faults: Mutex<Faults>,
    listener: Box<Listener>,
}

/// A mount with the faults of LazyFS; see the module.
#[derive(Clone)]
pub struct Lazy(Arc<Inner>);

impl Lazy {
    /// Passes every event to `listener`; during some of these calls no operation can run.
    pub fn new(
        live: Live,
        takes: Takes,
        faults: Faults,
        listener: impl Fn(&Notice<'_>) + Send + Sync + 'static,
    ) -> Lazy {
        let listener = Box::new(listener);
        Lazy(Arc::new(Inner { live, takes, faults: Mutex::new(faults), listener }))
    }

    pub fn live(&self) -> &Live {
        &self.0.live
    }

    pub fn add_fault(&self, fault: Fault) {
        self.0.faults.lock().add(fault);
    }

    /// Loses data now. The file system continues.
    pub fn clear(&self) {
        self.lose(&Due { kept: Vec::new(), crash: false });
    }

    fn lose(&self, due: &Due) {
        let end = || {
            if due.crash {
                self.end();
            }
        };
        match self.0.takes {
            Takes::Bytes => {
                self.0.live.lose_bytes(&due.kept, &|lost| {
                    self.notice(&Notice::Lost(lost));
                    lost.missing.iter().for_each(|path| self.notice(&Notice::Missing(path)));
                    end();
                });
            }
            Takes::Model(model) => {
                let crash = Crash { model, lose: Lose::All };
                self.0.live.crash_but(&crash, &[], &due.kept, &|crashed, missing| {
                    self.notice(&Notice::Crashed(crashed));
                    missing.iter().for_each(|path| self.notice(&Notice::Missing(path)));
                    end();
                });
            }
        }
    }

    fn notice(&self, notice: &Notice<'_>) {
        (self.0.listener)(notice);
    }

    fn end(&self) {
        use rustix::process::{Signal, getpid, kill_process};
        self.notice(&Notice::Ending);
        if let Err(e) = kill_process(getpid(), Signal::KILL) {
            self.notice(&Notice::StillThere(&e.to_string()));
        }
    }

    fn apply(&self, op: Op, timing: Timing, due: &Due) {
        self.notice(&Notice::Due(op, timing));
        self.lose(due);
    }

    /// Counts a call, and applies the fault that is due before it. Returns the fault that is due
    /// after it.
    fn begin(&self, seen: &Seen<'_>) -> Option<Due> {
        self.notice(&Notice::Call(seen));
        let met = self.0.faults.lock().meet(seen);
        if let Some(why) = &met.refused {
            self.notice(&Notice::Refused(seen.op, why));
        }
        if let Some(due) = &met.before {
            self.apply(seen.op, Timing::Before, due);
        }
        met.after
    }

    fn run<T>(&self, seen: &Seen<'_>, run: impl FnOnce(&Live) -> Result<T>) -> Result<T> {
        let after = self.begin(seen);
        let result = run(&self.0.live);
        if let Some(due) = after.filter(|_| result.is_ok()) {
            self.apply(seen.op, Timing::After, &due);
        }
        result
    }

    /// Runs a call with one path, and the faults that are due at it.
    fn one<T>(
        &self,
        op: Op,
        ino: Ino,
        name: Option<&[u8]>,
        run: impl FnOnce(&Live) -> Result<T>,
    ) -> Result<T> {
        let path = self.0.live.path(ino, name);
        self.run(&Seen { op, from: &path, to: None, bytes: None }, run)
    }
}

macro_rules! forward {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $result:ty)?;)*) => {
        $(fn $name(&self, $($arg: $ty),*) $(-> $result)? {
            self.0.live.$name($($arg),*)
        })*
    };
}

impl Ops for Lazy {
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        match set.size {
            Some(_) => self.one(Op::Truncate, ino, None, |live| live.setattr(ino, set)),
            None => self.0.live.setattr(ino, set),
        }
    }

    fn create(&self, dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr> {
        self.one(Op::Create, dir, Some(name), |live| live.create(dir, name, mode, owner))
    }

    fn symlink(&self, dir: Ino, name: &[u8], target: &[u8], owner: Owner) -> Result<Attr> {
        let to = self.0.live.path(dir, Some(name));
        let seen = Seen { op: Op::Symlink, from: target, to: Some(&to), bytes: None };
        self.run(&seen, |live| live.symlink(dir, name, target, owner))
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let (from, to) = (self.0.live.path(ino, None), self.0.live.path(dir, Some(name)));
        let seen = Seen { op: Op::Link, from: &from, to: Some(&to), bytes: None };
        self.run(&seen, |live| live.link(ino, dir, name))
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.one(Op::Unlink, dir, Some(name), |live| live.unlink(dir, name))
    }

    fn rename(&self, dir: Ino, name: &[u8], new_dir: Ino, new_name: &[u8], mode: RenameMode) -> Result<()> {
        let (from, to) = (self.0.live.path(dir, Some(name)), self.0.live.path(new_dir, Some(new_name)));
        let seen = Seen { op: Op::Rename, from: &from, to: Some(&to), bytes: None };
        self.run(&seen, |live| live.rename(dir, name, new_dir, new_name, mode))
    }

    fn opening(&self, ino: Ino, open: &mut dyn FnMut() -> bool) {
        let path = self.0.live.path(ino, None);
        let after = self.begin(&Seen { op: Op::Open, from: &path, to: None, bytes: None });
        if open()
            && let Some(due) = after
        {
            self.apply(Op::Open, Timing::After, &due);
        }
    }

    fn read_uncached(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.one(Op::Read, ino, None, |live| live.read_uncached(ino, offset, buf))
    }

    fn write_with(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        let path = self.0.live.path(ino, None);
        let seen = Seen { op: Op::Write, from: &path, to: None, bytes: Some((offset, data)) };
        self.run(&seen, |live| live.write_with(ino, offset, data, mode))
    }

    fn wrote_to_sync(&self, ino: Ino, range: Range<u64>) {
        // In LazyFS the FSYNC that follows makes the whole file durable. A model knows better.
        if let Takes::Model(_) = self.0.takes {
            self.0.live.wrote_to_sync(ino, range);
        }
    }

    fn fsync_opened(&self, handle: u64, ino: Ino, datasync: bool, done: Done) {
        // LazyFS counts no fsync of a directory, so no fault is due at it.
        if self.0.live.getattr(ino).is_ok_and(|attr| attr.kind == FileKind::Directory) {
            return self.0.live.fsync_opened(handle, ino, datasync, done);
        }
        let path = self.0.live.path(ino, None);
        let after = self.begin(&Seen { op: Op::Fsync, from: &path, to: None, bytes: None });
        let Some(due) = after else { return self.0.live.fsync_opened(handle, ino, datasync, done) };
        let lazy = self.clone();
        let finish: Done = Box::new(move |result| {
            if result.is_err() {
                return done(result);
            }
            // Use a separate thread: the present one may hold up the log, for which a loss waits.
            let losing = spawn_named("kedge-crash", move || {
                lazy.apply(Op::Fsync, Timing::After, &due);
                done(result);
            });
            // `done` was dropped with the closure; the drop completes the fsync with EIO.
            if let Err(e) = losing {
                tracing::error!("no data is lost: a thread cannot be started: {e}");
            }
        });
        self.0.live.fsync_opened(handle, ino, datasync, finish);
    }

    forward! {
        lookup(dir: Ino, name: &[u8]) -> Result<Attr>;
        getattr(ino: Ino) -> Result<Attr>;
        mkdir(dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr>;
        mknod(dir: Ino, name: &[u8], mode: u32, rdev: u64, owner: Owner) -> Result<Attr>;
        readlink(ino: Ino) -> Result<Vec<u8>>;
        tmpfile(dir: Ino, mode: u32, owner: Owner) -> Result<Attr>;
        rmdir(dir: Ino, name: &[u8]) -> Result<()>;
        readdir(dir: Ino, cookie: u64, visit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;
        readdir_opened(
            handle: u64, dir: Ino, cookie: u64, visit: &mut dyn FnMut(DirEntry<'_>) -> bool
        ) -> Result<()>;
        dir_handle(dir: Ino) -> Result<Option<u64>>;
        fallocate(ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()>;
        seek(ino: Ino, offset: u64, kind: SeekKind) -> Result<u64>;
        fsync_async(ino: Ino, datasync: bool, done: Done);
        sync() -> Result<()>;
        sync_async(done: Done);
        getxattr(ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
        setxattr(ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
        list_xattrs(ino: Ino, visit: &mut dyn FnMut(&[u8]) -> bool) -> Result<()>;
        removexattr(ino: Ino, name: &[u8]) -> Result<()>;
        pin(ino: Ino) -> Result<()>;
        unpin(ino: Ino, count: u64);
        statfs() -> StatFs;
        shutdown(flush: bool) -> Result<()>;
        stats_json() -> String;
        info_json() -> String;
        set_options(list: &str) -> Result<()>;
    }
}
