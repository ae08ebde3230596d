//! The door: [`FileSystem`] and its operations.

use crate::*;
use kedge_device::Device;
use std::sync::Arc;

/// Answers an operation that went on in the background.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// An open file system. Cheap to clone; all methods may be called from many threads. Inodes are named by number, names
/// are bytes. No permission checks: the caller (the kernel above a mount, or the program that links the library) makes
/// them.
#[derive(Clone)]
pub struct FileSystem {}

#[allow(unused_variables, clippy::unimplemented)]
impl FileSystem {
    pub fn format(device: &dyn Device, options: &FormatOptions) -> Result<()> { unimplemented!() }
    pub fn open(device: Arc<dyn Device>, clock: Arc<dyn Clock>, options: MountOptions) -> Result<FileSystem> { unimplemented!() }
    /// Makes everything durable, writes the last checkpoint and ends. Later calls fail.
    pub fn close(&self) -> Result<()> { unimplemented!() }

    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> { unimplemented!() }
    pub fn getattr(&self, ino: Ino) -> Result<Attr> { unimplemented!() }
    pub fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> { unimplemented!() }
    pub fn create(&self, dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr> { unimplemented!() }
    pub fn mkdir(&self, dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr> { unimplemented!() }
    /// Any kind but directory and symlink; `mode` carries the type bits.
    pub fn mknod(&self, dir: Ino, name: &[u8], mode: u32, rdev: u64, owner: Owner) -> Result<Attr> { unimplemented!() }
    pub fn symlink(&self, dir: Ino, name: &[u8], target: &[u8], owner: Owner) -> Result<Attr> { unimplemented!() }
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> { unimplemented!() }
    /// A nameless file (O_TMPFILE), pinned once.
    pub fn tmpfile(&self, dir: Ino, mode: u32, owner: Owner) -> Result<Attr> { unimplemented!() }
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> { unimplemented!() }
    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> { unimplemented!() }
    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> { unimplemented!() }
    pub fn rename(&self, dir: Ino, name: &[u8], new_dir: Ino, new_name: &[u8], mode: RenameMode) -> Result<()> { unimplemented!() }
    /// Shows the entries behind `cookie` (0: from the start) until `visit` returns false.
    pub fn readdir(&self, dir: Ino, cookie: u64, visit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> { unimplemented!() }

    /// Bytes read; fewer than asked only at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> { unimplemented!() }
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> { unimplemented!() }
    pub fn fallocate(&self, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()> { unimplemented!() }
    pub fn seek(&self, ino: Ino, offset: u64, kind: SeekKind) -> Result<u64> { unimplemented!() }
    pub fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> { unimplemented!() }
    /// As [`FileSystem::fsync`], without holding a thread while the log is forced.
    pub fn fsync_async(&self, ino: Ino, datasync: bool, done: Done) { unimplemented!() }
    pub fn sync(&self) -> Result<()> { unimplemented!() }
    pub fn sync_async(&self, done: Done) { unimplemented!() }

    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> { unimplemented!() }
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> { unimplemented!() }
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> { unimplemented!() }
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> { unimplemented!() }

    /// Keeps the inode alive though it may lose its last name: one pin for each open handle and kernel lookup.
    pub fn pin(&self, ino: Ino) -> Result<()> { unimplemented!() }
    /// Gives `count` pins back; the last one of a nameless inode deletes it.
    pub fn unpin(&self, ino: Ino, count: u64) { unimplemented!() }

    pub fn statfs(&self) -> StatFs { unimplemented!() }
    /// Stops at once (FS_IOC_SHUTDOWN): later mutations and fsyncs fail with EIO. `flush`: force the log first.
    pub fn shutdown(&self, flush: bool) -> Result<()> { unimplemented!() }
    /// The counters as JSON text.
    pub fn stats_json(&self) -> String { unimplemented!() }
    /// Identity, geometry and options as JSON text.
    pub fn info_json(&self) -> String { unimplemented!() }
}
