//! Public API: [`FileSystem`] and its operations, each counted and timed.

mod space;
mod trees;

use crate::core::{Again, Fs, Membership};
use crate::data::atomic::Staged;
use crate::data::clone::CloneRange;
use crate::data::read::Keep;
use crate::error::{Done, Error, Result};
use crate::gate::{Entrant, Thawed};
use crate::names::directory::Make;
use crate::policy::options::{FormatOptions, MountOptions};
use crate::policy::switches::Switches;
use crate::stats::OpKind;
use crate::trees::Deletion;
use crate::types::*;
use kedge_base::broken::{self, Variant};
use kedge_base::{Clock, Ino, Lsn};
use kedge_device::Device;
use kedge_format::{FileFlags, FileKind};
use kedge_store::ForceCause;
use std::sync::Arc;

/// An open file system. Cheap to clone; all methods may be called from many threads. Inodes are
/// named by number, names are bytes. The methods check no permissions; the caller does (the kernel
/// above a mount, or the program that links the library).
///
/// Dropping the last clone without [`FileSystem::close`] is like a crash: everything that was not
/// made durable may be lost, and the next open recovers.
///
/// # Errors
/// The methods name the errors of their own. Besides these:
/// - Each method can return EIO, if the device failed or the file system is closed or shut down,
///   and EUCLEAN, if the image is corrupt.
/// - Methods that get an inode number return ENOENT if there is no such inode, and ESTALE if its
///   tree was deleted. Those that get a directory return ENOTDIR if the inode is none. Those that
///   get a file return EISDIR for a directory, and EINVAL for other inodes.
/// - Methods that get a name return ENAMETOOLONG if it has more than 255 bytes. Those that make,
///   move or remove a name return EINVAL if it is empty, `.` or `..`, or contains a slash or NUL.
/// - Methods that change something return EROFS if the file system is open for reading only or the
///   inode is in a snapshot, ENOSPC if the image or its host is full, and EPERM if the flags of the
///   inode or of a directory forbid the change ([`FileSystem::set_flags`]).
#[derive(Clone)]
pub struct FileSystem {
    pub(crate) fs: Arc<Fs>,
    _membership: Arc<Membership>,
}

impl FileSystem {
    /// Makes a file system on the device. Refuses a device that contains an image or another file
    /// system, unless [`FormatOptions::overwrite`] allows its loss.
    ///
    /// # Errors
    /// EINVAL: the device contains something, or is open in this process, or the options are
    /// impossible, for instance a log that does not fit.
    pub fn format(
        device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        options: &FormatOptions,
    ) -> Result<FormatSummary> {
        crate::format::format(device, clock, options)
    }

    /// Opens a file system. Recovers it if it was not closed.
    ///
    /// # Errors
    /// EINVAL: the image has a feature that this version does not know, or the device is open in
    /// this process, or this process was forked after its parent had opened a file system, or the
    /// options are impossible. EUCLEAN: the device contains no image, or a corrupt one. ENOSPC:
    /// recovery finds no block for data that is only in the log.
    pub fn open(device: Arc<dyn Device>, clock: Arc<dyn Clock>, options: MountOptions) -> Result<FileSystem> {
        let fs = Fs::open(device, clock, options, None)?;
        Ok(FileSystem { _membership: Arc::new(Membership(fs.clone())), fs })
    }

    /// [`FileSystem::open`] for a server that replaces one that died. Nameless inodes stay until
    /// [`FileSystem::delete_forgotten`]. Before anything is appended to the log, `recovered` gets
    /// the end of the recovered log: of the records that [`kedge_base::witness`] saw, the image has
    /// exactly those that end there or before. `frozen` is the start of a freeze that is still in
    /// force, in seconds since 1970: nothing is written to the device before [`FileSystem::thaw`].
    pub fn open_again(
        device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        options: MountOptions,
        frozen: Option<i64>,
        mut recovered: impl FnMut(Lsn) -> Result<()>,
    ) -> Result<FileSystem> {
        let again = Again { recovered: &mut recovered, frozen };
        let fs = Fs::open(device, clock, options, Some(again))?;
        Ok(FileSystem { _membership: Arc::new(Membership(fs.clone())), fs })
    }

    /// Deletes the nameless inodes that have no pins, and returns their number. A deletion that
    /// fails is tried again later, and counts too. After [`FileSystem::open_again`] the caller
    /// first pins those that are in use.
    ///
    /// # Errors
    /// EIO: the file system is shut down.
    pub fn delete_forgotten(&self) -> Result<u64> {
        self.fs.files().delete_forgotten()
    }

    /// Changes options of the open file system. Running operations may still follow the old ones.
    ///
    /// # Errors
    /// EINVAL: an option has an impossible value. EBUSY: the file system is frozen.
    pub fn remount(&self, switches: &Switches) -> Result<()> {
        self.fs.remount(switches)
    }

    /// [`FileSystem::remount`] with a comma-separated list of options.
    ///
    /// # Errors
    /// EINVAL: an option is unknown, or has an impossible value; nothing is changed then. EBUSY:
    /// the file system is frozen.
    pub fn set_options(&self, list: &str) -> Result<()> {
        self.remount(&list.parse()?)
    }

    /// The options in force.
    pub fn options(&self) -> MountOptions {
        self.fs.engine().options()
    }

    /// Changes the memory for tree nodes, file pages and inodes, in bytes. [`FileSystem::options`]
    /// still returns the original [`MountOptions::cache_size`]. Clean nodes and pages beyond the
    /// new size are dropped at once; dirty ones are dropped when they have been written, and the
    /// call starts that.
    pub fn set_cache_size(&self, bytes: u64) {
        self.fs.set_cache_size(bytes);
    }

    /// Makes everything durable, writes the last checkpoint and closes the file system. Changes of
    /// other threads that begin meanwhile wait and then fail, as all later calls do. Nameless
    /// inodes that are still pinned are deleted by the next open.
    ///
    /// File data that could not be written to any place, after retries, is lost. The call then
    /// returns [`Error::DataLost`], the image records the loss until a repair, and everything else
    /// is durable and closed.
    ///
    /// # Errors
    /// EBUSY: the calling thread holds a [`Pass`]. Nothing is closed then.
    pub fn close(&self) -> Result<()> {
        self.fs.close()
    }

    fn timed<R>(&self, op: OpKind, run: impl FnOnce(&Fs) -> Result<R>) -> Result<R> {
        let started = self.fs.engine().clock().monotonic();
        let result = run(&self.fs);
        self.fs
            .engine()
            .stats()
            .record(op, (self.fs.engine().clock().monotonic().saturating_sub(started)).as_nanos() as u64);
        result
    }

    /// Runs a change of an inode. Waits until no freeze is in force; the measured time includes
    /// that wait.
    ///
    /// `at` is the inode number that callers use. `run` gets the number that the engine uses, which
    /// may differ ([`crate::numbers`]).
    fn change<R>(&self, op: OpKind, at: Ino, run: impl FnOnce(&Fs, Ino) -> Result<R>) -> Result<R> {
        self.timed(op, |fs| {
            let _inside = fs.engine().gate().change();
            let at = fs.numbers().inward(at);
            fs.check_changeable(at)?;
            run(fs, at)
        })
    }

    /// Runs an operation that only reads. `run` gets the engine's number of the inode.
    fn look<R>(&self, op: OpKind, at: Ino, run: impl FnOnce(&Fs, Ino) -> Result<R>) -> Result<R> {
        self.timed(op, |fs| fs.steady(at, |at| run(fs, at)))
    }

    /// [`FileSystem::change`] that returns attributes with the caller's inode number. The number is
    /// translated inside the gate: after a replacement of the first tree the same number would mean
    /// another file.
    fn change_attr(&self, op: OpKind, at: Ino, run: impl FnOnce(&Fs, Ino) -> Result<Attr>) -> Result<Attr> {
        if broken::is(Variant::LateNumber) {
            return self.change(op, at, run).map(|attr| self.fs.numbers().attr(attr));
        }
        self.change(op, at, |fs, at| run(fs, at).map(|attr| fs.numbers().attr(attr)))
    }

    /// [`FileSystem::look`] that returns attributes with the caller's inode number, translated
    /// before a replacement of the first tree can change it.
    fn look_attr(&self, op: OpKind, at: Ino, run: impl FnOnce(&Fs, Ino) -> Result<Attr>) -> Result<Attr> {
        self.look(op, at, |fs, at| run(fs, at).map(|attr| fs.numbers().attr(attr)))
    }

    /// The inode of the entry `name` in `dir`; `.` and `..` work.
    ///
    /// # Errors
    /// ENOENT: the directory has no such entry.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.look_attr(OpKind::lookup, dir, |fs, dir| fs.names().lookup(dir, name))
    }

    /// The attributes that stat(2) shows.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.look_attr(OpKind::getattr, ino, |fs, ino| fs.names().getattr(ino))
    }

    /// Sets the size first, then owner and mode, then times. A change of times alone appends no log
    /// record.
    ///
    /// # Errors
    /// EINVAL: a time has 1,000,000,000 nanoseconds or more; nothing is changed then. EFBIG: the
    /// size is beyond the largest. EISDIR, EINVAL: a size, and the inode is not a regular file.
    /// EBUSY: a size, and the file is written without pause. If owner, mode or times are refused,
    /// the size may be changed already.
    pub fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.change_attr(OpKind::setattr, ino, |fs, ino| fs.names().setattr(ino, set))
    }

    /// Replaces the flags of a file or directory that chattr(1) sets. From then on operations that
    /// the flags forbid return EPERM for every user; the caller decides which users may set flags.
    /// New entries inherit [`FileFlags::NODUMP`] and [`FileFlags::NOATIME`] from their directory.
    ///
    /// # Errors
    /// EOPNOTSUPP: the image is from an older version, or the inode is neither file nor directory,
    /// or the flag is immutable or append-only in an image without [`FormatOptions::immutable`].
    pub fn set_flags(&self, ino: Ino, flags: FileFlags) -> Result<()> {
        self.change(OpKind::setattr, ino, |fs, ino| fs.names().set_flags(ino, flags))
    }

    /// Whether files may be made immutable or append-only: [`FormatOptions::immutable`].
    pub fn has_immutable(&self) -> bool {
        self.fs.names().has_immutable()
    }

    /// Creates a regular file.
    ///
    /// # Errors
    /// EEXIST: the name exists. ENOENT: the directory was removed. EDQUOT: a limit does not allow
    /// another inode.
    pub fn create(&self, dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr> {
        let make = Make { kind: FileKind::Regular, mode, rdev: 0, target: b"", owner };
        self.change_attr(OpKind::create, dir, |fs, dir| fs.names().make(dir, name, &make))
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// As for [`FileSystem::create`]. EMLINK: the parent has too many directories already.
    pub fn mkdir(&self, dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr> {
        let make = Make { kind: FileKind::Directory, mode, rdev: 0, target: b"", owner };
        self.change_attr(OpKind::mkdir, dir, |fs, dir| fs.names().make(dir, name, &make))
    }

    /// Creates an inode of any kind but directory and symlink; `mode` has the type bits.
    ///
    /// # Errors
    /// As for [`FileSystem::create`]. EPERM: the type is that of a directory or symbolic link.
    /// EINVAL: the type bits are of no type.
    pub fn mknod(&self, dir: Ino, name: &[u8], mode: u32, rdev: u64, owner: Owner) -> Result<Attr> {
        let (kind, rdev) = node_kind(mode, rdev)?;
        let make = Make { kind, mode, rdev, target: b"", owner };
        self.change_attr(OpKind::mknod, dir, |fs, dir| fs.names().make(dir, name, &make))
    }

    /// Creates a symbolic link. Its target has 1 to 4095 bytes, which are not interpreted.
    ///
    /// # Errors
    /// As for [`FileSystem::create`]. ENOENT: the target is empty. ENAMETOOLONG: it is longer.
    /// EINVAL: it contains NUL.
    pub fn symlink(&self, dir: Ino, name: &[u8], target: &[u8], owner: Owner) -> Result<Attr> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        let make = Make { kind: FileKind::Symlink, mode: 0o777, rdev: 0, target, owner };
        self.change_attr(OpKind::symlink, dir, |fs, dir| fs.names().make(dir, name, &make))
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// EINVAL: the inode is no symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.look(OpKind::readlink, ino, |fs, ino| fs.names().readlink(ino))
    }

    /// Creates a file without a name (O_TMPFILE), with one pin.
    ///
    /// # Errors
    /// ENOENT: the directory was removed. EDQUOT: a limit does not allow another inode.
    pub fn tmpfile(&self, dir: Ino, mode: u32, owner: Owner) -> Result<Attr> {
        let make = Make { kind: FileKind::Regular, mode, rdev: 0, target: b"", owner };
        self.change_attr(OpKind::tmpfile, dir, |fs, dir| fs.names().make_nameless(dir, &make))
    }

    /// [`FileSystem::mknod`] without a name, with one pin. Like [`FileSystem::tmpfile`], for all
    /// kinds except directories and symbolic links.
    ///
    /// # Errors
    /// As for [`FileSystem::tmpfile`]. EPERM, EINVAL: an impossible type, as for
    /// [`FileSystem::mknod`].
    pub fn mknod_nameless(&self, dir: Ino, mode: u32, rdev: u64, owner: Owner) -> Result<Attr> {
        let (kind, rdev) = node_kind(mode, rdev)?;
        let make = Make { kind, mode, rdev, target: b"", owner };
        self.change_attr(OpKind::mknod, dir, |fs, dir| fs.names().make_nameless(dir, &make))
    }

    /// [`FileSystem::symlink`] without a name, with one pin.
    ///
    /// # Errors
    /// As for [`FileSystem::tmpfile`]. The errors of the target are those of
    /// [`FileSystem::symlink`].
    pub fn symlink_nameless(&self, dir: Ino, target: &[u8], owner: Owner) -> Result<Attr> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        let make = Make { kind: FileKind::Symlink, mode: 0o777, rdev: 0, target, owner };
        self.change_attr(OpKind::symlink, dir, |fs, dir| fs.names().make_nameless(dir, &make))
    }

    /// Adds a name to an inode that is not a directory. A nameless file of [`FileSystem::tmpfile`]
    /// gets its first name.
    ///
    /// # Errors
    /// EEXIST: the name exists. EPERM: the inode is a directory. ENOENT: the directory was removed,
    /// or the inode has lost its last name. EMLINK: the inode has 65,000 names. EXDEV: the inode is
    /// in another tree, or counts for another limit than the directory.
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.change_attr(OpKind::link, dir, |fs, dir| fs.names().link(fs.numbers().inward(ino), dir, name))
    }

    /// [`FileSystem::link`] that replaces an existing name: the other file loses the name in the
    /// same operation, as in a rename. No crash leaves the directory without the name. Returns the
    /// file that lost the name.
    ///
    /// A careful program replaces a file through [`FileSystem::tmpfile`], [`FileSystem::write`],
    /// [`FileSystem::write_back`], and this call.
    ///
    /// # Errors
    /// As for [`FileSystem::link`], except EEXIST. EISDIR: the name is that of a directory.
    pub fn link_over(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        self.change(OpKind::link, dir, |fs, dir| {
            let lost = fs.names().link_over(fs.numbers().inward(ino), dir, name)?;
            Ok(lost.map(|ino| fs.numbers().outward(ino)))
        })
    }

    /// Removes a name of an inode that is not a directory. The inode is deleted with its last name,
    /// unless it is pinned.
    ///
    /// # Errors
    /// ENOENT: the directory has no such entry. EISDIR: the entry is a directory.
    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.change(OpKind::unlink, dir, |fs, dir| fs.names().unlink(dir, name))
    }

    /// Removes an empty directory. An empty tree is deleted, as by [`FileSystem::delete_tree`].
    ///
    /// # Errors
    /// ENOENT: the directory has no such entry. ENOTDIR: the entry is no directory. ENOTEMPTY: it
    /// has entries or contains the name of a tree, or the name is `..`. For a tree also the errors
    /// of [`FileSystem::delete_tree`].
    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        if let Some(root) = self.tree_named(dir, name) {
            if self.fs.names().getattr(root)?.size > 0 {
                return Err(Error::NotEmpty);
            }
            return self.delete_tree_if(dir, name, Deletion::OnlyEmpty);
        }
        self.change(OpKind::rmdir, dir, |fs, dir| fs.names().rmdir(dir, name))
    }

    /// Moves a name atomically: no crash leaves both names or neither. The name of a tree moves as
    /// by [`FileSystem::rename_tree`].
    ///
    /// # Errors
    /// ENOENT: the old name does not exist, or with [`RenameMode::Exchange`] the new one; or a
    /// directory was removed. EEXIST: the new name exists and the mode does not replace it, or the
    /// root of a tree would replace it. EISDIR, ENOTDIR: only one of the two is a directory.
    /// ENOTEMPTY: the replaced directory has entries, or contains the name of a tree. EBUSY: a name
    /// is `.` or `..`, or the new name is that of a tree, or a tree would be exchanged or leave a
    /// whiteout. EINVAL: a directory would move into itself. EXDEV: the directories are in two
    /// trees, or below different limits. EMLINK: the new directory has too many directories.
    /// EDQUOT: a limit does not allow the whiteout.
    pub fn rename(
        &self,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        if self.tree_named(dir, name).is_some() {
            return match mode {
                RenameMode::Replace | RenameMode::NoReplace => self.rename_tree(dir, name, new_dir, new_name),
                _ => Err(Error::Busy("the directory is the root of a tree")),
            };
        }
        self.change(OpKind::rename, dir, |fs, dir| {
            fs.names().rename(dir, name, fs.numbers().inward(new_dir), new_name, mode)
        })
    }

    /// Returns the path of a directory from the root, with a slash before each name. Reads the
    /// directories above it.
    ///
    /// # Errors
    /// ENOENT: the directory was removed meanwhile.
    pub fn path_of(&self, dir: Ino) -> Result<Vec<u8>> {
        self.fs.steady(dir, |dir| self.fs.names().path_of(dir))
    }

    /// Passes the entries after `cookie` (0: all) to `visit` until it returns false. A directory
    /// that was removed and is still pinned has no entries.
    pub fn readdir(&self, dir: Ino, cookie: u64, visit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.look(OpKind::readdir, dir, |fs, dir| {
            let shown = |ino| fs.numbers().outward(ino);
            fs.names().readdir(dir, cookie, &mut |entry| visit(DirEntry { ino: shown(entry.ino), ..entry }))
        })
    }

    /// Returns the number of bytes read, which is less than requested only at the end of the file.
    ///
    /// # Errors
    /// EIO: a block cannot be read, or differs from its checksum.
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.look(OpKind::read, ino, |fs, ino| fs.files().read(ino, offset, buf, Keep::Pages))
    }

    /// [`FileSystem::read`] for callers with a cache of their own, such as a kernel: data read from
    /// the device is not kept in memory.
    pub fn read_uncached(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.look(OpKind::read, ino, |fs, ino| fs.files().read(ino, offset, buf, Keep::Nothing))
    }

    /// Returns the number of bytes written. It is less than requested if the space ran out or the
    /// device failed after a part of the bytes. The cause is in the trace; a further call that
    /// writes the rest returns it as its error.
    ///
    /// # Errors
    /// EFBIG: the range ends after the largest offset. EDQUOT: a limit does not allow the blocks.
    /// ENOSPC: there is no space for new blocks; nor for those that replace blocks which another
    /// tree or a clone uses, or which have checksums.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_with(ino, offset, data, WriteMode::default())
    }

    /// [`FileSystem::write`] with a [`WriteMode`].
    ///
    /// # Errors
    /// As for [`FileSystem::write`].
    pub fn write_with(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        if broken::is(Variant::UngatedWriter) {
            return self.look(OpKind::write, ino, |fs, ino| fs.files().write(ino, offset, data, mode));
        }
        self.change(OpKind::write, ino, |fs, ino| fs.files().write(ino, offset, data, mode))
    }

    /// Commits the bytes that an [`crate::AtomicWrite`] has staged.
    pub(crate) fn commit_atomic(&self, ino: Ino, staged: Staged) -> Result<()> {
        self.change(OpKind::commit_atomic, ino, |fs, ino| fs.files().commit_atomic(ino, staged))
    }

    /// fallocate(2) for a regular file. An error may leave a part of the range changed, from its
    /// start on.
    ///
    /// # Errors
    /// EINVAL: the length is 0; or a range that collapses or is inserted has an offset or length
    /// that is no multiple of 4096 bytes, or reaches the end of the file. EFBIG: the file would end
    /// after the largest offset, or more than 2048 extents, checksum items or counts of shared
    /// blocks would have to change with a collapse or an insertion. EDQUOT: a limit does not allow
    /// the blocks. EBUSY: the file is written without pause.
    pub fn fallocate(&self, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        self.change(OpKind::fallocate, ino, |fs, ino| fs.files().fallocate(ino, mode, offset, len))
    }

    /// Replaces the contents of file `target` by those of file `source`, which is in the same tree.
    /// The two share their blocks, so the clone takes no space for data, and its time depends on
    /// the number of extents, not of blocks. A later write to either file gets new blocks. Not
    /// durable before an fsync of the target.
    ///
    /// The clone is one change: other callers and a crash find the old contents of the target or
    /// those of the source, and an error leaves the old ones. The exception are files with many
    /// extents: 128 in either file, more than 256 different counts of shared blocks, or more than
    /// 16 MiB with checksums. The target is then truncated, and the contents arrive from the start
    /// on. Other callers, a crash and an error may find the target empty, or with a prefix of the
    /// new contents, which is its size then. What is appended to the source meanwhile is not
    /// cloned.
    ///
    /// # Errors
    /// ENOENT: one of the inodes does not exist. EISDIR or EINVAL: one is not a regular file.
    /// EINVAL: only one of the files has checksums of its data, or the source was cut while the
    /// clone was made. EXDEV: the files are in two trees. EPERM: the target is immutable or
    /// append-only. ENOSPC: the image is full. EDQUOT: a limit does not allow the blocks of the
    /// target. EBUSY: one of the files is written without pause. EROFS: the image or the tree is
    /// read-only. EIO: the device failed.
    pub fn clone_file(&self, source: Ino, target: Ino) -> Result<()> {
        self.change(OpKind::clone, target, |fs, target| {
            fs.files().clone_file(fs.numbers().inward(source), target)
        })
    }

    /// [`FileSystem::clone_file`] for a range: `len` bytes at `offset` of the source replace those
    /// at `target_offset`. With `len` 0 the range extends to the end of the source. Offsets and
    /// length are multiples of 4096 bytes, except that the range may end at the end of the source,
    /// if it then reaches the end of the target or beyond. Both may be the same file, if the ranges
    /// do not overlap. The source may become longer while the range is cloned.
    ///
    /// # Errors
    /// As for [`FileSystem::clone_file`]. Also EINVAL: an offset or the length is not such a
    /// multiple, the range ends after the source, or the ranges of one file overlap. EFBIG: a range
    /// ends after the largest offset. If an error stops a range of several records, the target has
    /// a prefix of the range.
    pub fn clone_range(
        &self,
        source: Ino,
        offset: u64,
        target: Ino,
        target_offset: u64,
        len: u64,
    ) -> Result<()> {
        let range = CloneRange { from: offset, to: target_offset, len };
        self.change(OpKind::clone, target, |fs, target| {
            fs.files().clone_range(fs.numbers().inward(source), target, range)?.1
        })
    }

    /// Like [`FileSystem::clone_range`], but returns the number of bytes that are cloned, which
    /// are less than asked for if an error stops a clone that has begun. Without any, returns the
    /// error.
    ///
    /// # Errors
    /// As for [`FileSystem::clone_range`].
    pub fn clone_most(
        &self,
        source: Ino,
        offset: u64,
        target: Ino,
        target_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let range = CloneRange { from: offset, to: target_offset, len };
        self.change(OpKind::clone, target, |fs, target| {
            let (cloned, ended) = fs.files().clone_range(fs.numbers().inward(source), target, range)?;
            if cloned == 0 { ended.map(|()| 0) } else { Ok(cloned) }
        })
    }

    /// The offset of the next data or the next hole at or after `offset`.
    ///
    /// # Errors
    /// ENXIO: the offset is at or after the end of the file, or no data follows. EINVAL: the inode
    /// is not a regular file. Dirty data is written first; an error of that write is returned.
    pub fn seek(&self, ino: Ino, offset: u64, kind: SeekKind) -> Result<u64> {
        self.look(OpKind::seek, ino, |fs, ino| fs.files().seek(ino, offset, kind))
    }

    /// Makes the inode durable; of a directory, its entries. `datasync`: only the data and what is
    /// needed to read it.
    ///
    /// # Errors
    /// EIO, ENOSPC: the data or the log could not be written, or data of the inode could not be
    /// written earlier. An earlier failure is returned once.
    pub fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        self.look(fsync_kind(datasync), ino, |fs, ino| match fs.engine().sync_work() {
            Some(_work) => fs.syncer().fsync(ino, datasync),
            None => fs.syncer().fsync_at_once(ino),
        })
    }

    /// Makes the attributes of an inode durable, with every change of it that a record describes.
    /// Writes no data, and leaves the failure of a data write to the next [`FileSystem::fsync`].
    ///
    /// # Errors
    /// EIO, ENOSPC: the log could not be written.
    pub fn sync_attributes(&self, ino: Ino) -> Result<()> {
        self.look(OpKind::fsync, ino, |fs, ino| match fs.engine().sync_work() {
            Some(_work) => fs.syncer().sync_attributes(ino),
            None => fs.syncer().sync_at_once(),
        })
    }

    /// As [`FileSystem::fsync`], without holding a thread while the log is forced.
    pub fn fsync_async(&self, ino: Ino, datasync: bool, done: Done) {
        let started = self.fs.engine().clock().monotonic();
        let (fs, work) = (self.fs.clone(), self.fs.engine().sync_work());
        let at_once = work.is_none();
        let ino = match fs.steady(ino, Ok) {
            Ok(ino) => ino,
            Err(e) => return done(Err(e)),
        };
        let counted: Done = Box::new(move |result| {
            drop(work);
            let took = fs.engine().clock().monotonic().saturating_sub(started);
            fs.engine().stats().record(fsync_kind(datasync), took.as_nanos() as u64);
            done(result);
        });
        match at_once {
            true => counted(self.fs.syncer().fsync_at_once(ino)),
            false => self.fs.syncer().fsync_async(ino, datasync, counted),
        }
    }

    /// Writes the dirty data of these files in place, and appends the records that name it to the
    /// log. Makes nothing durable, but establishes an order: a later operation becomes durable only
    /// together with all of this data. Unlike [`FileSystem::fsync`] it waits for no flush, and it
    /// writes many files at once.
    ///
    /// # Errors
    /// EIO, ENOSPC: the data of a file could not be written.
    pub fn write_back(&self, inos: &[Ino]) -> Result<()> {
        match self.fs.engine().gate().work() {
            Some(_work) => {
                let inos: Vec<Ino> = inos.iter().map(|ino| self.fs.numbers().inward(*ino)).collect();
                self.fs.syncer().write_back(&inos)
            }
            // A frozen file system has no dirty data.
            None => self.fs.syncer().sync_at_once(),
        }
    }

    /// Makes everything durable that completed before the call.
    ///
    /// # Errors
    /// EIO, ENOSPC: some data or the log could not be written. Everything else is durable, unless
    /// the log failed. The data stays in memory, and later calls try again.
    pub fn sync(&self) -> Result<()> {
        self.timed(OpKind::sync, |fs| match fs.engine().sync_work() {
            Some(_work) => fs.syncer().sync_shared(),
            None => fs.syncer().sync_at_once(),
        })
    }

    /// As [`FileSystem::sync`], without holding a thread while the log is forced.
    pub fn sync_async(&self, done: Done) {
        let Some(work) = self.fs.engine().sync_work() else {
            return done(self.fs.syncer().sync_at_once());
        };
        self.fs.syncer().sync_async(Box::new(move |result| {
            drop(work);
            done(result);
        }));
    }

    /// Returns the value of an extended attribute. Names include their namespace (`user.`,
    /// `trusted.`, `security.`).
    ///
    /// # Errors
    /// ENODATA: the inode has no such attribute. EINVAL: the name is only a namespace, or contains
    /// NUL. EOPNOTSUPP: another namespace.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.look(OpKind::getxattr, ino, |fs, ino| fs.names().getxattr(ino, name))
    }

    /// Whether the image supports POSIX access control lists: the attributes
    /// `system.posix_acl_access` and `system.posix_acl_default` in Linux's form. Images of older
    /// versions may not.
    ///
    /// A change of the list changes the mode and the other way round, and new files inherit the
    /// default list. The caller that creates a file in a directory with a default list passes the
    /// mode without the umask applied.
    pub fn has_acls(&self) -> bool {
        self.fs.names().has_acls()
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// The errors of the name are those of [`FileSystem::getxattr`]. EEXIST, ENODATA: the attribute
    /// exists, or does not, and the mode requires the opposite. E2BIG: the value is longer than 64
    /// KiB, or than 4096 bytes in an access control list or in an image without large attributes.
    /// EINVAL: an impossible access control list. EOPNOTSUPP: the inode cannot have that list.
    /// ENOSPC also: the attributes of the inode would have more than 64 KiB of names or 1 MiB of
    /// values.
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.change(OpKind::setxattr, ino, |fs, ino| fs.names().setxattr(ino, name, value, mode))
    }

    /// Calls `visit` with the name of each extended attribute until it returns false. `visit` must
    /// not call the file system.
    pub fn list_xattrs(&self, ino: Ino, visit: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        self.look(OpKind::listxattr, ino, |fs, ino| fs.names().list_xattrs(ino, visit))
    }

    /// Returns the names of all extended attributes.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.list_xattrs(ino, &mut |name| {
            names.push(name.to_vec());
            true
        })?;
        Ok(names)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As for [`FileSystem::getxattr`].
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.change(OpKind::removexattr, ino, |fs, ino| fs.names().removexattr(ino, name))
    }

    /// Adds a pin, which keeps the inode alive after it loses its last name. Each open handle and
    /// each kernel lookup has one.
    pub fn pin(&self, ino: Ino) -> Result<()> {
        self.fs.inodes().pin(self.fs.numbers().inward(ino));
        Ok(())
    }

    /// Adds `count` pins. The sum of an inode's pins is at most `u64::MAX`; what exceeds it is not
    /// counted.
    pub fn pin_by(&self, ino: Ino, count: u64) {
        self.fs.inodes().pin_by(self.fs.numbers().inward(ino), count);
    }

    /// Releases `count` pins; the last pin of a nameless inode deletes it.
    pub fn unpin(&self, ino: Ino, count: u64) {
        self.fs.files().unpin(self.fs.numbers().inward(ino), count);
    }

    /// The number of inodes that were deleted some time after their last name was removed, because
    /// they were pinned.
    pub fn deletions(&self) -> u64 {
        self.fs.files().orphans().removed()
    }

    /// Waits until [`FileSystem::deletions`] exceeds `since`, at most `limit`. Returns whether it
    /// does. For a server whose pins another process releases soon after a removal: a change that
    /// failed for lack of space may then succeed. Returns at once if no nameless inode is pinned.
    /// After a wait without a removal the limit is a tenth until the next one.
    pub fn wait_for_deletion(&self, since: u64, limit: std::time::Duration) -> bool {
        self.fs.files().orphans().wait_for_removal(since, limit)
    }

    /// Stops at once (FS_IOC_SHUTDOWN): later changes and fsyncs fail with EIO. With `flush` the
    /// log is forced first.
    pub fn shutdown(&self, flush: bool) -> Result<()> {
        // A failed flush does not prevent the shutdown.
        let flushed = if flush { self.make_durable() } else { Ok(()) };
        self.fs.engine().store().shutdown(&kedge_base::Error::Shutdown("a shutdown was requested".into()));
        self.fs.stop_waiting();
        flushed
    }

    /// Makes everything durable as `sync` does, even with `volatile`.
    fn make_durable(&self) -> Result<()> {
        match self.fs.engine().gate().work() {
            Some(_work) => self.fs.syncer().sync(ForceCause::Sync),
            None => self.fs.syncer().sync_at_once(),
        }
    }

    /// Stops all changes, and makes the image on the device consistent and clean: a copy of it
    /// equals the copy of a closed image. Returns when everything that had completed is on the
    /// device. Until [`FileSystem::thaw`] nothing is written to the device; changes wait, reads
    /// continue, and fsync and sync return at once.
    ///
    /// Fails with EBUSY if the file system is already frozen, or with the error of the data or the
    /// device that could not be written; in the second case it is not frozen. [`FileSystem::close`]
    /// and [`FileSystem::shutdown`] end a freeze, and the waiting changes fail.
    pub fn freeze(&self) -> Result<()> {
        self.timed(OpKind::freeze, Fs::freeze)
    }

    /// Ends a freeze: changes continue. Fails with EINVAL if the file system is not frozen, and
    /// with ENOSPC if the host of the image is full; it then stays frozen.
    pub fn thaw(&self) -> Result<()> {
        self.timed(OpKind::thaw, Fs::thaw)
    }

    /// Lets the calling thread make one change while the pass lives. For a server whose threads
    /// must not wait for a thaw. A freeze waits until the pass is dropped. Returns `None` if the
    /// file system is frozen; the function that `later` returned, if any, is called when changes
    /// continue. Neither function may block.
    pub fn pass_or(&self, later: impl FnOnce() -> Option<Thawed>) -> Option<Pass<'_>> {
        self.fs.engine().gate().change_or(later).map(Pass)
    }

    /// Prevents further freezes, and closes a frozen file system ([`FileSystem::close`]), so that
    /// no thread continues to wait for a thaw. For a server at the end of its mount, before it
    /// waits for the threads that make changes.
    pub fn end_freezes(&self) -> Result<()> {
        self.fs.end_freezes()
    }

    /// Start of the freeze that is in force, in seconds since 1970. `None` if there is none.
    pub fn frozen_since(&self) -> Option<i64> {
        self.fs.engine().gate().since()
    }

    /// Writes a checkpoint now. Does nothing if the file system is frozen.
    ///
    /// # Errors
    /// EIO: the device failed, or the file system is shut down. ENOSPC: the host of the image is
    /// full.
    pub fn checkpoint(&self) -> Result<()> {
        Ok(self.fs.engine().store().checkpoint(kedge_store::CheckpointCause::Request)?)
    }

    /// All counters as JSON text.
    pub fn stats_json(&self) -> String {
        self.fs.stats_value().to_string()
    }

    /// Identity, geometry, options and the work of recovery, as JSON text.
    pub fn info_json(&self) -> String {
        self.fs.info_value().to_string()
    }
}

/// Permission for the calling thread to make a change: see [`FileSystem::pass_or`].
#[must_use]
#[allow(dead_code, reason = "it does its work when it is dropped")]
pub struct Pass<'a>(Entrant<'a>);

/// The kind of inode that mknod makes.
fn node_kind(mode: u32, rdev: u64) -> Result<(FileKind, u64)> {
    let kind = match FileKind::from_mode(mode) {
        Some(FileKind::Directory | FileKind::Symlink) => {
            return Err(Error::NotPermitted("mknod of this type"));
        }
        Some(kind) => kind,
        None if mode & FileKind::MODE_MASK == 0 => FileKind::Regular,
        None => return Err(Error::Invalid("file type")),
    };
    let has_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
    Ok((kind, if has_device { rdev } else { 0 }))
}

fn fsync_kind(datasync: bool) -> OpKind {
    if datasync { OpKind::fdatasync } else { OpKind::fsync }
}
