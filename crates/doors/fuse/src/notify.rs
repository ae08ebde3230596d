//! Notifies the kernel of changes that do not pass through it.
//!
//! The kernel caches names and attributes for long, because all changes normally pass through it. A
//! program that changes the mounted file system in another way must notify the kernel of each
//! change: after the change, so that the kernel's next request sees the new state.
//!
//! The kernel takes the directory's lock to drop a name. Another thread may hold that lock and wait
//! for a reply from the mount. So the notifying thread must hold no lock that a reply needs, and
//! must not be a worker of the mount.
//!
//! # Replies in flight
//! A reply made before the change may reach the kernel's caches after the notification. There are
//! three cases:
//! - *Names that do not exist, listings, and the attributes in a listing* are looked up under the
//!   lock of the directory, which the notification of a name takes, whether or not the kernel knows
//!   the name. So the names of a directory are notified first, then the directory itself, which
//!   drops listings from older replies.
//! - *Attributes* carry the kernel's version of the inode, which a notification raises. The kernel
//!   drops the reply to an older request.
//! - *Names that the kernel knows* are looked up again without that lock. An old reply would make
//!   an old name valid for the whole `cache_timeout` after the notification. So names get
//!   a timeout of zero as long as any thread holds a [`Changing`].

use crate::abi;
use crate::one_tree::{inward, outward};
use crate::transport::Transport;
use kedgefs::Ino;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use zerocopy::IntoBytes;

/// Sends notifications of changes to the kernel.
#[derive(Clone)]
pub struct Notifier {
    transport: Arc<dyn Transport>,
    changes: Changes,
    /// The root of the tree that the mount shows.
    root: Ino,
}

/// Counts the threads that make such changes.
#[derive(Clone, Default)]
pub(crate) struct Changes(Arc<AtomicUsize>);

impl Changes {
    pub(crate) fn are_made(&self) -> bool {
        self.0.load(SeqCst) > 0
    }
}

/// While this lives, its thread makes changes that bypass the kernel: see [`Notifier::changing`].
#[must_use]
pub struct Changing(Changes);

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, SeqCst);
    }
}

impl Notifier {
    pub(crate) fn new(transport: Arc<dyn Transport>, changes: Changes, root: Ino) -> Notifier {
        Notifier { transport, changes, root }
    }

    /// Converts an inode number of the kernel into that of the file system.
    pub fn inode(&self, number: Ino) -> Ino {
        inward(self.root, number)
    }

    /// Returns a mark that must be held from before the first change until after the last
    /// notification: see the module.
    pub fn changing(&self) -> Changing {
        self.changes.0.fetch_add(1, SeqCst);
        Changing(self.changes.clone())
    }

    /// Notifies that a name of a directory is new, gone, or refers to another inode. After all
    /// names of a directory, notify the directory too with [`Notifier::inode_changed`]: otherwise
    /// the kernel keeps the directory's listing and attributes if it did not know the name.
    pub fn name_changed(&self, dir: Ino, name: &[u8]) -> io::Result<()> {
        self.send_name(dir, name, abi::INVAL_EXPIRE_ONLY)
    }

    /// Has the kernel drop a name of a directory that no longer refers to the file that it referred
    /// to. Otherwise the kernel would hold that file, and its space, until it needs the memory. The
    /// file must be no directory: what is mounted on or below the name is detached.
    pub fn name_gone(&self, dir: Ino, name: &[u8]) -> io::Result<()> {
        self.send_name(dir, name, 0)
    }

    fn send_name(&self, dir: Ino, name: &[u8], flags: u32) -> io::Result<()> {
        let namelen = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let head = abi::InvalEntryOut { parent: outward(self.root, dir).0, namelen, flags };
        let body = [head.as_bytes(), name, b"\0"].concat();
        self.send(abi::NOTIFY_INVAL_ENTRY, &body)
    }

    /// Notifies that the attributes and the contents (bytes or names) of an inode have changed.
    pub fn inode_changed(&self, ino: Ino) -> io::Result<()> {
        let body = abi::InvalInodeOut { ino: outward(self.root, ino).0, off: 0, len: 0 };
        self.send(abi::NOTIFY_INVAL_INODE, body.as_bytes())
    }

    fn send(&self, code: i32, body: &[u8]) -> io::Result<()> {
        match self.transport.notify(code, body) {
            // The kernel has not cached the inode or name, or the mount has ended.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::ENOENT | libc::ENOTDIR | libc::ENODEV | libc::ENOTCONN | libc::ECONNABORTED)
                ) =>
            {
                Ok(())
            }
            sent => sent,
        }
    }
}
