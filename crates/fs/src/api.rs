//! Public API: [`FileSystem`] and its operations, each counted and timed.

use crate::budget::Budget;
use crate::claim::Claim;
use crate::core::{Fs, new_rename_lock};
use crate::dirty::DirtyList;
use crate::flushers::{Flushed, Member};
use crate::inode_cache::InodeTable;
use crate::namespace::Make;
use crate::stats::{FsStats, OpKind};
use crate::switches::Live;
use crate::*;
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{BLOCK_SIZE, CorruptKind, Error as Engine, IoBuf};
use kedge_device::Device;
use kedge_format::content::{Content, HEAD_BYTES};
use kedge_format::logwrite::LogSecret;
use kedge_format::superblock::Geometry;
use kedge_store::{CheckpointClient, ForceCause, FormatParams, OpenOptions, Store};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// Answers an operation that went on in the background.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// An open file system. Cheap to clone; all methods may be called from many threads. Inodes are named by number, names
/// are bytes. No permission checks: the caller (the kernel above a mount, or the program that links the library) makes
/// them.
///
/// Dropping the last clone without [`FileSystem::close`] is like a crash: what was not made durable may be lost, the next
/// open recovers.
#[derive(Clone)]
pub struct FileSystem {
    pub(crate) fs: Arc<Fs>,
    _membership: Arc<Membership>,
}

/// Leaves the pool of flusher threads with the last clone.
struct Membership(Arc<Member>);

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Sixteen random bytes. Six bits of a random uuid are fixed, at other places in one of two that is
/// turned by half.
fn new_log_secret() -> LogSecret {
    let [a, b] = [(); 2].map(|()| uuid::Uuid::new_v4().as_u128());
    LogSecret((a ^ b.rotate_left(64)).to_le_bytes())
}

/// What the device holds now.
fn content(device: &dyn Device) -> Result<Content> {
    let bytes = device.geometry().size.min(HEAD_BYTES as u64) as usize;
    let mut head = IoBuf::zeroed(bytes / BLOCK_SIZE);
    if bytes >= BLOCK_SIZE {
        device.read(0, &mut head)?;
    }
    Ok(Content::of(head.as_bytes()))
}

/// Adds to an error about a superblock what the device holds instead.
fn name_other(device: &dyn Device, e: Engine) -> Engine {
    match (&e, content(device)) {
        (Engine::Corrupt { kind: kind @ CorruptKind::Superblock, block, what }, Ok(Content::Other(held))) => {
            let name = device.name();
            Engine::corrupt(*kind, *block, format!("{what}; {name} holds {held}, no KedgeFS image"))
        }
        _ => e,
    }
}

impl FileSystem {
    /// Makes a file system on the device. One that holds an image or another file system is refused, unless
    /// [`FormatOptions::overwrite`] says that it may be lost.
    pub fn format(
        device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        options: &FormatOptions,
    ) -> Result<FormatSummary> {
        let _claim = Claim::new(&device, false)?;
        if !options.overwrite
            && let Some(held) = content(&*device)?.name().filter(|held| *held != Content::UNKNOWN)
        {
            let name = device.name();
            return Err(Engine::invalid(format!("{name} holds {held}, which would be lost")).into());
        }
        let size = options.size.unwrap_or(device.geometry().size).min(device.geometry().size);
        let params = FormatParams {
            size,
            log_size: options.log_size.unwrap_or_else(|| Geometry::default_log_bytes(size)),
            label: options.label.clone(),
            uuid: options.uuid.unwrap_or_else(uuid::Uuid::new_v4),
            hash_seed: *uuid::Uuid::new_v4().as_bytes(),
            log_secret: new_log_secret(),
            uid: options.owner.uid,
            gid: options.owner.gid,
        };
        let g = kedge_store::format(device, clock, &params)?;
        Ok(FormatSummary {
            uuid: g.uuid,
            size: g.total_blocks * BLOCK_SIZE as u64,
            log_size: g.log_bytes(),
            block_size: BLOCK_SIZE as u32,
            groups: g.groups(),
            data_blocks: g.total_blocks - g.data_start.0,
        })
    }

    /// Opens a file system, recovering it if it was not closed.
    pub fn open(device: Arc<dyn Device>, clock: Arc<dyn Clock>, options: MountOptions) -> Result<FileSystem> {
        if let Some(percent) = options.async_checkpoint {
            kedge_store::check_async_percent(percent)?;
        }
        let claim = Claim::new(&device, options.read_only)?;
        // Of the budget: half for tree nodes, three eighths for pages, the rest for inodes.
        let open = OpenOptions {
            read_only: options.read_only,
            node_cache_bytes: options.cache_size / 2,
            async_checkpoint: options.async_checkpoint,
            tree_lock: options.tree_lock,
            ..Default::default()
        };
        let store = Store::open(device.clone(), clock.clone(), &open).map_err(|e| name_other(&*device, e))?;
        let member = Member::new();
        let dirty = Arc::new(DirtyList::new(options.dirty_tracking));
        let fs = Arc::new(Fs {
            seed: store.geometry().hash_seed,
            inodes: InodeTable::new(
                (options.cache_size / 8 / 1024).clamp(1024, 1 << 20) as usize,
                dirty.clone(),
            ),
            rename_lock: new_rename_lock(),
            dirty,
            budget: Budget::new(options.cache_size / 8 * 3, options.shared_budget.clone()),
            durable_writes: AtomicU32::new(0),
            flusher: member.clone(),
            orphans: Mutex::new(Rank::Leaf, Default::default()),
            stats: FsStats::default(),
            closed: AtomicBool::new(false),
            store,
            clock,
            live: Live::new(&options),
            options: Mutex::new(Rank::Leaf, options),
            claim,
        });
        let client: Weak<dyn CheckpointClient> = Arc::downgrade(&(fs.clone() as Arc<dyn CheckpointClient>));
        fs.store.set_client(client);
        if !fs.store.is_read_only() {
            fs.recover_orphans()?;
            let client: Weak<dyn Flushed> = Arc::downgrade(&(fs.clone() as Arc<dyn Flushed>));
            member
                .join(client, fs.clock.monotonic(), fs.live.commit())
                .map_err(|e| kedge_base::Error::io("start of a thread", 0, 0, &e))?;
        }
        Ok(FileSystem { fs, _membership: Arc::new(Membership(member)) })
    }

    /// Changes options of the open file system. Operations under way may still follow the old ones.
    pub fn remount(&self, switches: &Switches) -> Result<()> {
        self.fs.check_open()?;
        let mut options = self.fs.options.lock();
        let mut wanted = options.clone();
        switches.apply(&mut wanted);
        if let Some(percent) = wanted.async_checkpoint {
            kedge_store::check_async_percent(percent)?;
        }
        self.fs.live.set(&wanted);
        *options = wanted;
        let percent = options.async_checkpoint;
        drop(options);
        if switches.async_checkpoint.is_some() {
            self.fs.store.set_async_checkpoint(percent);
        }
        self.fs.flusher.wake();
        Ok(())
    }

    /// [`FileSystem::remount`] with a comma-separated list of options.
    pub fn set_options(&self, list: &str) -> Result<()> {
        self.remount(&list.parse()?)
    }

    /// The options in force.
    pub fn options(&self) -> MountOptions {
        self.fs.options.lock().clone()
    }

    /// Makes everything durable, writes the last checkpoint and ends. Later calls fail. Nameless inodes that are still
    /// pinned are deleted by the next open.
    ///
    /// File data that no place on the device takes, though tried again, is lost: that is the error
    /// then ([`Error::DataLost`]), the image remembers it until a repair, and all else is durable
    /// and closed.
    pub fn close(&self) -> Result<()> {
        if self.fs.closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let synced = self.fs.sync_for_close();
        if self.fs.closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        self.fs.flusher.leave();
        let lost = self.fs.lost_data();
        if let Some(lost) = &lost {
            tracing::error!("{lost}");
            if !broken::is(Variant::ForgetLosses) {
                self.fs.store.note_losses(lost.files);
            }
        }
        let closed = self.fs.store.close();
        self.fs.claim.release();
        match lost {
            // The cause of that, too, is in the trace.
            Some(lost) if closed.is_ok() => Err(Error::DataLost(Arc::new(lost))),
            _ => synced.and(closed.map_err(Error::from)),
        }
    }

    fn timed<R>(&self, op: OpKind, run: impl FnOnce(&Fs) -> Result<R>) -> Result<R> {
        let started = self.fs.clock.monotonic();
        let result = run(&self.fs);
        self.fs.stats.record(op, (self.fs.clock.monotonic().saturating_sub(started)).as_nanos() as u64);
        result
    }

    /// The inode that `name` names in `dir`; `.` and `..` work.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.timed(OpKind::lookup, |fs| fs.lookup(dir, name))
    }

    /// What stat(2) shows of an inode.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.timed(OpKind::getattr, |fs| fs.getattr(ino))
    }

    /// Size first, then owner and mode, then times. Times alone cost no log record.
    pub fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.timed(OpKind::setattr, |fs| fs.setattr(ino, set))
    }

    /// A new regular file.
    pub fn create(&self, dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr> {
        let make = Make { kind: FileKind::Regular, mode, rdev: 0, target: b"", owner };
        self.timed(OpKind::create, |fs| fs.make(dir, name, &make))
    }

    /// A new directory.
    pub fn mkdir(&self, dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr> {
        let make = Make { kind: FileKind::Directory, mode, rdev: 0, target: b"", owner };
        self.timed(OpKind::mkdir, |fs| fs.make(dir, name, &make))
    }

    /// Any kind but directory and symlink; `mode` carries the type bits.
    pub fn mknod(&self, dir: Ino, name: &[u8], mode: u32, rdev: u64, owner: Owner) -> Result<Attr> {
        let kind = match FileKind::from_mode(mode) {
            Some(FileKind::Directory | FileKind::Symlink) => {
                return Err(Error::NotPermitted("mknod of this type"));
            }
            Some(kind) => kind,
            None if mode & FileKind::MODE_MASK == 0 => FileKind::Regular,
            None => return Err(Error::Invalid("file type")),
        };
        let rdev = if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) { rdev } else { 0 };
        let make = Make { kind, mode, rdev, target: b"", owner };
        self.timed(OpKind::mknod, |fs| fs.make(dir, name, &make))
    }

    /// A new symbolic link with a target of 1 to 4095 bytes, which is not interpreted.
    pub fn symlink(&self, dir: Ino, name: &[u8], target: &[u8], owner: Owner) -> Result<Attr> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        let make = Make { kind: FileKind::Symlink, mode: 0o777, rdev: 0, target, owner };
        self.timed(OpKind::symlink, |fs| fs.make(dir, name, &make))
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.timed(OpKind::readlink, |fs| fs.readlink(ino))
    }

    /// A nameless file (O_TMPFILE), pinned once.
    pub fn tmpfile(&self, dir: Ino, mode: u32, owner: Owner) -> Result<Attr> {
        self.timed(OpKind::tmpfile, |fs| fs.tmpfile(dir, mode, owner))
    }

    /// A further name for an inode that is no directory. Gives a nameless file of [`FileSystem::tmpfile`] its first one.
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.timed(OpKind::link, |fs| fs.link(ino, dir, name))
    }

    /// Removes a name of an inode that is no directory. With the last name the inode goes, unless it is pinned.
    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.timed(OpKind::unlink, |fs| fs.unlink(dir, name))
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.timed(OpKind::rmdir, |fs| fs.rmdir(dir, name))
    }

    /// Moves a name, wholly or not at all: no crash shows both names or neither.
    pub fn rename(
        &self,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.timed(OpKind::rename, |fs| fs.rename(dir, name, new_dir, new_name, mode))
    }

    /// Shows the entries behind `cookie` (0: from the start) until `visit` returns false.
    pub fn readdir(&self, dir: Ino, cookie: u64, visit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.timed(OpKind::readdir, |fs| fs.readdir(dir, cookie, visit))
    }

    /// Bytes read; fewer than asked only at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.timed(OpKind::read, |fs| fs.read(ino, offset, buf))
    }

    /// Bytes written; fewer than asked when space or device gave out on the way. The cause is in
    /// the trace, and the answer to a call that writes the rest.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_with(ino, offset, data, WriteMode::default())
    }

    /// [`FileSystem::write`] in another way.
    pub fn write_with(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        self.timed(OpKind::write, |fs| fs.write(ino, offset, data, mode))
    }

    /// fallocate(2) for a regular file.
    pub fn fallocate(&self, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        self.timed(OpKind::fallocate, |fs| fs.fallocate(ino, mode, offset, len))
    }

    /// The next data or the next hole at or behind `offset`.
    pub fn seek(&self, ino: Ino, offset: u64, kind: SeekKind) -> Result<u64> {
        self.timed(OpKind::seek, |fs| fs.seek(ino, offset, kind))
    }

    /// Makes the inode durable (`datasync`: its data and what is needed to read it). Of a directory: its entries.
    pub fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        self.timed(fsync_kind(datasync), |fs| fs.fsync(ino, datasync))
    }

    /// As [`FileSystem::fsync`], without holding a thread while the log is forced.
    pub fn fsync_async(&self, ino: Ino, datasync: bool, done: Done) {
        let started = self.fs.clock.monotonic();
        let fs = self.fs.clone();
        let counted: Done = Box::new(move |result| {
            let took = fs.clock.monotonic().saturating_sub(started);
            fs.stats.record(fsync_kind(datasync), took.as_nanos() as u64);
            done(result);
        });
        self.fs.fsync_async(ino, datasync, counted);
    }

    /// Everything that completed before the call becomes durable.
    pub fn sync(&self) -> Result<()> {
        self.timed(OpKind::sync, |fs| fs.sync(ForceCause::Sync))
    }

    /// As [`FileSystem::sync`], without holding a thread while the log is forced.
    pub fn sync_async(&self, done: Done) {
        self.fs.sync_async(done);
    }

    /// The value of an extended attribute. Names carry their namespace (`user.`, `trusted.`, `security.`).
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.timed(OpKind::getxattr, |fs| fs.getxattr(ino, name))
    }

    /// Sets an extended attribute.
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.timed(OpKind::setxattr, |fs| fs.setxattr(ino, name, value, mode))
    }

    /// The names of all extended attributes.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.timed(OpKind::listxattr, |fs| fs.listxattr(ino))
    }

    /// Removes an extended attribute, which must exist.
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.timed(OpKind::removexattr, |fs| fs.removexattr(ino, name))
    }

    /// Keeps the inode alive though it may lose its last name: one pin for each open handle and kernel lookup.
    pub fn pin(&self, ino: Ino) -> Result<()> {
        self.fs.inodes.pin(ino);
        Ok(())
    }

    /// Gives `count` pins back; the last one of a nameless inode deletes it.
    pub fn unpin(&self, ino: Ino, count: u64) {
        if self.fs.inodes.unpin(ino, count)
            && self.fs.orphans.lock().contains_key(&ino)
            && self.fs.check_open().is_ok()
        {
            self.fs.orphaned(ino);
        }
    }

    /// Space and inodes, used and free.
    ///
    /// Blocks are free that no file and no node has or is promised, those too that were freed a moment ago and wait for the
    /// log or a checkpoint. Available are those of them that data can have: some are kept for nodes.
    pub fn statfs(&self) -> StatFs {
        let counts = self.fs.store.alloc().free_counts();
        let free = counts.owned_free.saturating_sub(counts.reserved);
        let available = counts.available_soon.min(free);
        let inodes = self.fs.store.inode_count();
        StatFs {
            block_size: BLOCK_SIZE as u32,
            blocks: self.fs.store.geometry().total_blocks,
            blocks_free: free,
            blocks_available: available,
            // Inodes are made as needed: as many more as there is room for their items.
            inodes: inodes + available * 8,
            inodes_free: available * 8,
            name_max: kedge_format::item::NAME_MAX as u32,
        }
    }

    /// Stops at once (FS_IOC_SHUTDOWN): later mutations and fsyncs fail with EIO. `flush`: force the log first.
    pub fn shutdown(&self, flush: bool) -> Result<()> {
        // What cannot be flushed does not keep it running.
        let flushed = if flush { self.fs.sync(ForceCause::Sync) } else { Ok(()) };
        self.fs.store.shutdown(&kedge_base::Error::Shutdown("a shutdown was asked for".into()));
        flushed
    }

    /// Writes a checkpoint now.
    pub fn checkpoint(&self) -> Result<()> {
        Ok(self.fs.store.checkpoint(kedge_store::CheckpointCause::Request)?)
    }

    /// The counters as JSON text.
    pub fn stats_json(&self) -> String {
        self.fs.stats_value().to_string()
    }

    /// Identity, geometry, options and what recovery did, as JSON text.
    pub fn info_json(&self) -> String {
        self.fs.info_value().to_string()
    }
}

fn fsync_kind(datasync: bool) -> OpKind {
    if datasync { OpKind::fdatasync } else { OpKind::fsync }
}
