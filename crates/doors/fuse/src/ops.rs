//! The operations that the server needs: the methods of [`FileSystem`] as a trait, so that the
//! server can be tested against a real kernel without an engine, and an engine without a kernel.

use kedgefs::{
    AtomicWrite, Attr, DirEntry, FallocateMode, FileFlags, FileSystem, Ino, Limit, Owner, RenameMode, Result,
    SeekKind, SetAttr, SetLimit, StatFs, Thawed, TreeInfo, TreeSpace, WriteMode, XattrMode,
};
use std::ops::Range;
use std::time::Duration;

/// Completes an operation that continued in the background.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// The operations of a file system. Unless a method says otherwise, it corresponds to the method of
/// [`FileSystem`] with its name.
pub trait Ops: Send + Sync + 'static {
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr>;
    fn getattr(&self, ino: Ino) -> Result<Attr>;
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr>;
    /// The caller checks the rights to set these flags.
    fn set_flags(&self, _ino: Ino, _flags: FileFlags) -> Result<()> {
        Err(kedgefs::Error::NotSupported("file flags"))
    }
    fn create(&self, dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr>;
    fn mkdir(&self, dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr>;
    fn mknod(&self, dir: Ino, name: &[u8], mode: u32, rdev: u64, owner: Owner) -> Result<Attr>;
    fn symlink(&self, dir: Ino, name: &[u8], target: &[u8], owner: Owner) -> Result<Attr>;
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;
    fn tmpfile(&self, dir: Ino, mode: u32, owner: Owner) -> Result<Attr>;
    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr>;
    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()>;
    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()>;
    fn rename(&self, dir: Ino, name: &[u8], new_dir: Ino, new_name: &[u8], mode: RenameMode) -> Result<()>;
    fn readdir(&self, dir: Ino, cookie: u64, visit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;
    /// Reads without the file system's own page cache, because the kernel caches the bytes.
    fn read_uncached(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;
    fn write_with(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize>;
    /// A write with `O_DSYNC`, `O_SYNC` or `RWF_DSYNC` has put bytes in this range. The kernel's
    /// FSYNC for it follows from the same thread. FSYNC has no range, but the kernel writes back no
    /// other page before it.
    fn wrote_to_sync(&self, _ino: Ino, _range: Range<u64>) {}
    /// Begins an atomic write of a regular file.
    fn atomic(&self, _ino: Ino) -> Result<AtomicWrite> {
        Err(kedgefs::Error::NotSupported("atomic writes"))
    }
    fn fallocate(&self, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()>;
    /// Makes a range of `target` share the blocks of a range of `source`. Returns the number of
    /// bytes, which are less than `len` if an error stops a clone that has begun.
    fn clone_most(&self, _source: Ino, _offset: u64, _target: Ino, _to: u64, _len: u64) -> Result<u64> {
        Err(kedgefs::Error::NotSupported("files share no blocks"))
    }
    fn seek(&self, ino: Ino, offset: u64, kind: SeekKind) -> Result<u64>;
    fn fsync_async(&self, ino: Ino, datasync: bool, done: Done);
    /// Opens a file: calls `open` once, which does that and returns whether it succeeded. Called
    /// only on a mount without `no_open`, and not for a file that the same request made.
    fn opening(&self, _ino: Ino, open: &mut dyn FnMut() -> bool) {
        open();
    }
    /// A file was opened for reading and writing, so that a shared mapping can change its pages.
    /// Called before the reply, and only on a mount without `no_open`.
    fn opened_to_store(&self, _ino: Ino) {}
    /// Such an open file is closed, and none of its mappings is left. Called once for each such
    /// open.
    fn closed_to_store(&self, _ino: Ino) {}
    /// Whether the kernel may cache unused names of this directory.
    fn may_keep_names(&self, _dir: Ino) -> bool {
        true
    }
    /// Returns a number for a directory that is being opened. Each listing and fsync of that open
    /// directory passes the number, so that root directories of different times can be
    /// distinguished. `None` means that no number is needed and the kernel may open directories
    /// without a request.
    fn dir_handle(&self, _dir: Ino) -> Result<Option<u64>> {
        Ok(None)
    }
    /// [`Ops::readdir`] of a directory that was opened with this number.
    fn readdir_opened(
        &self,
        _handle: u64,
        dir: Ino,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.readdir(dir, cookie, visit)
    }
    /// [`Ops::fsync_async`] of a file, or of a directory that was opened with this number.
    fn fsync_opened(&self, _handle: u64, ino: Ino, datasync: bool, done: Done) {
        self.fsync_async(ino, datasync, done);
    }
    fn sync(&self) -> Result<()>;
    fn sync_async(&self, done: Done);
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
    fn list_xattrs(&self, ino: Ino, visit: &mut dyn FnMut(&[u8]) -> bool) -> Result<()>;
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()>;
    fn pin(&self, ino: Ino) -> Result<()>;
    fn unpin(&self, ino: Ino, count: u64);
    fn pin_by(&self, ino: Ino, count: u64) {
        for _ in 0..count {
            if self.pin(ino).is_err() {
                return;
            }
        }
    }
    fn delete_forgotten(&self) -> Result<u64> {
        Ok(0)
    }
    fn statfs(&self) -> StatFs;
    /// [`Ops::statfs`] for a directory or file, including the limit that applies there.
    fn statfs_at(&self, _ino: Ino) -> Result<StatFs> {
        Ok(self.statfs())
    }
    fn set_limit(&self, _dir: Ino, _change: SetLimit) -> Result<Limit> {
        Err(kedgefs::Error::NotSupported("there are no limits"))
    }
    fn limit_of(&self, _ino: Ino) -> Result<Option<Limit>> {
        Ok(None)
    }
    fn limits(&self) -> Vec<Limit> {
        Vec::new()
    }
    /// Whether the attributes of access control lists are stored and inherited.
    fn has_acls(&self) -> bool {
        false
    }
    /// Whether files may be made immutable or append-only.
    fn has_immutable(&self) -> bool {
        false
    }
    /// The bytes of memory that this file system may use for caches. They bound the number of
    /// workers.
    fn cache_size(&self) -> u64 {
        u64::MAX
    }
    fn shutdown(&self, flush: bool) -> Result<()>;
    /// Discards free space in `len` bytes of the device at `offset`. Returns the number of bytes
    /// discarded.
    fn trim(&self, _offset: u64, _len: u64, _min_len: u64) -> Result<u64> {
        Err(kedgefs::Error::NotSupported("there is no device that takes space back"))
    }
    /// Changes the size of the image to `bytes`, or to the size of its device. Returns the new size
    /// in bytes.
    fn resize(&self, _bytes: Option<u64>) -> Result<u64> {
        Err(kedgefs::Error::NotSupported("there is no image that could grow"))
    }
    /// Forks a tree: see [`FileSystem::fork`].
    fn fork(&self, _source: Ino, _dir: Ino, _name: &[u8], _read_only: bool) -> Result<Attr> {
        Err(kedgefs::Error::NotSupported("there are no trees to fork"))
    }
    fn delete_tree(&self, _dir: Ino, _name: &[u8]) -> Result<()> {
        Err(kedgefs::Error::NotSupported("there are no trees to delete"))
    }
    fn roll_back(&self, _source: Ino, _dir: Ino, _name: &[u8]) -> Result<Attr> {
        Err(kedgefs::Error::NotSupported("there are no trees to replace"))
    }
    fn commit_tree(&self, _fork: Ino, _dir: Ino, _name: &[u8], _force: bool) -> Result<()> {
        Err(kedgefs::Error::NotSupported("there are no trees to replace"))
    }
    fn roll_back_root(&self, _source: Ino) -> Result<()> {
        Err(kedgefs::Error::NotSupported("there are no trees to replace"))
    }
    fn commit_root(&self, _fork: Ino, _force: bool) -> Result<()> {
        Err(kedgefs::Error::NotSupported("there are no trees to replace"))
    }
    /// The root of the tree that is attached to the directory under this name.
    fn tree_named(&self, _dir: Ino, _name: &[u8]) -> Option<Ino> {
        None
    }
    fn trees(&self) -> Vec<TreeInfo> {
        Vec::new()
    }
    fn tree_space(&self, _root: Ino) -> Result<TreeSpace> {
        Err(kedgefs::Error::NotSupported("there are no trees"))
    }
    fn path_of(&self, _dir: Ino) -> Result<Vec<u8>> {
        Err(kedgefs::Error::NotSupported("there are no trees"))
    }
    fn stats_json(&self) -> String;
    fn info_json(&self) -> String;
    fn set_options(&self, list: &str) -> Result<()>;
    fn freeze(&self) -> Result<()> {
        Err(kedgefs::Error::NotSupported("it cannot be frozen"))
    }
    fn thaw(&self) -> Result<()> {
        Err(kedgefs::Error::NotSupported("it cannot be frozen"))
    }
    /// Makes a change by calling `now`. If the change would have to wait for a thaw, calls `later`
    /// instead. `later` returns the function to call at the thaw.
    fn change_or(&self, now: &mut dyn FnMut(), _later: &mut dyn FnMut() -> Option<Thawed>) {
        now();
    }
}

/// The longest wait for the space of removed files.
const ROOM_WAIT: Duration = Duration::from_millis(100);

/// Repeats a change that failed for lack of space, while removed files are being deleted.
///
/// A file is deleted when the kernel forgets it. The kernel sends FORGET before unlink(2) returns,
/// but delivers it after later requests, so `rm old; cp new .` would fail on a full file system.
/// Another worker receives the FORGET while this one waits. If a removed file stays open, changes
/// wait and then fail: the first one after this time, later ones after a tenth of it.
fn with_room<T>(fs: &FileSystem, change: impl Fn() -> Result<T>) -> Result<T> {
    loop {
        let before = fs.deletions();
        match change() {
            Err(e)
                if matches!(e.errno(), libc::ENOSPC | libc::EDQUOT)
                    && fs.wait_for_deletion(before, ROOM_WAIT) => {}
            result => return result,
        }
    }
}

/// Implements the trait by delegation: `name(argument: type, ...) -> result;` for each method.
/// Methods in the second block are called through [`with_room`].
macro_rules! delegate {
    (
        { $($name:ident($($arg:ident: $ty:ty),*) $(-> $result:ty)?;)* }
        with room { $($change:ident($($part:ident: $kind:ty),*) -> $changed:ty;)* }
    ) => {
        impl Ops for FileSystem {
            $(fn $name(&self, $($arg: $ty),*) $(-> $result)? {
                FileSystem::$name(self, $($arg),*)
            })*

            $(fn $change(&self, $($part: $kind),*) -> $changed {
                with_room(self, || FileSystem::$change(self, $($part),*))
            })*

            fn cache_size(&self) -> u64 {
                self.options().cache_size
            }

            fn change_or(&self, now: &mut dyn FnMut(), later: &mut dyn FnMut() -> Option<Thawed>) {
                if let Some(_pass) = self.pass_or(later) {
                    now();
                }
            }
        }
    };
}

delegate! {
    {
        lookup(dir: Ino, name: &[u8]) -> Result<Attr>;
        getattr(ino: Ino) -> Result<Attr>;
        set_flags(ino: Ino, flags: FileFlags) -> Result<()>;
        readlink(ino: Ino) -> Result<Vec<u8>>;
        unlink(dir: Ino, name: &[u8]) -> Result<()>;
        rmdir(dir: Ino, name: &[u8]) -> Result<()>;
        readdir(dir: Ino, cookie: u64, visit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;
        read_uncached(ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;
        seek(ino: Ino, offset: u64, kind: SeekKind) -> Result<u64>;
        atomic(ino: Ino) -> Result<AtomicWrite>;
        fsync_async(ino: Ino, datasync: bool, done: Done);
        sync() -> Result<()>;
        sync_async(done: Done);
        getxattr(ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
        list_xattrs(ino: Ino, visit: &mut dyn FnMut(&[u8]) -> bool) -> Result<()>;
        removexattr(ino: Ino, name: &[u8]) -> Result<()>;
        pin(ino: Ino) -> Result<()>;
        unpin(ino: Ino, count: u64);
        pin_by(ino: Ino, count: u64);
        delete_forgotten() -> Result<u64>;
        statfs() -> StatFs;
        statfs_at(ino: Ino) -> Result<StatFs>;
        set_limit(dir: Ino, change: SetLimit) -> Result<Limit>;
        limit_of(ino: Ino) -> Result<Option<Limit>>;
        limits() -> Vec<Limit>;
        has_acls() -> bool;
        has_immutable() -> bool;
        shutdown(flush: bool) -> Result<()>;
        trim(offset: u64, len: u64, min_len: u64) -> Result<u64>;
        resize(bytes: Option<u64>) -> Result<u64>;
        fork(source: Ino, dir: Ino, name: &[u8], read_only: bool) -> Result<Attr>;
        delete_tree(dir: Ino, name: &[u8]) -> Result<()>;
        roll_back(source: Ino, dir: Ino, name: &[u8]) -> Result<Attr>;
        commit_tree(fork: Ino, dir: Ino, name: &[u8], force: bool) -> Result<()>;
        roll_back_root(source: Ino) -> Result<()>;
        commit_root(fork: Ino, force: bool) -> Result<()>;
        tree_named(dir: Ino, name: &[u8]) -> Option<Ino>;
        trees() -> Vec<TreeInfo>;
        tree_space(root: Ino) -> Result<TreeSpace>;
        path_of(dir: Ino) -> Result<Vec<u8>>;
        stats_json() -> String;
        info_json() -> String;
        set_options(list: &str) -> Result<()>;
        freeze() -> Result<()>;
        thaw() -> Result<()>;
    }
    with room {
        setattr(ino: Ino, set: &SetAttr) -> Result<Attr>;
        create(dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr>;
        mkdir(dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr>;
        mknod(dir: Ino, name: &[u8], mode: u32, rdev: u64, owner: Owner) -> Result<Attr>;
        symlink(dir: Ino, name: &[u8], target: &[u8], owner: Owner) -> Result<Attr>;
        tmpfile(dir: Ino, mode: u32, owner: Owner) -> Result<Attr>;
        link(ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr>;
        rename(dir: Ino, name: &[u8], new_dir: Ino, new_name: &[u8], mode: RenameMode) -> Result<()>;
        write_with(ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize>;
        fallocate(ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()>;
        clone_most(source: Ino, offset: u64, target: Ino, to: u64, len: u64) -> Result<u64>;
        setxattr(ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
    }
}
