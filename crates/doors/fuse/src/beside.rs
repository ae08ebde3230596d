//! Changes of the file system that do not come through the kernel, and how it hears of them.
//!
//! The kernel keeps names and attributes for long, as all changes pass through it. A program that
//! changes the mounted file system otherwise must tell it of each: after the change, so that what
//! the kernel asks for next is new.
//!
//! The kernel takes the directory's lock to drop a name. Another thread may hold that lock and wait
//! for an answer from the mount. So whoever notifies must hold nothing that an answer needs, and
//! must be no thread that answers.
//!
//! # Answers that are under way
//! An answer from before the change may reach the kernel's caches after the notification. Three
//! kinds are kept apart:
//! - *Names that are not there, listings, and what a listing brings with it* are looked up under
//!   the lock of the directory, which the notification of a name takes, whether or not the kernel
//!   knows the name. So the names of a directory come first, then the directory itself: what was
//!   listed from older answers is dropped then.
//! - *Attributes* carry the kernel's version of the inode, which a notification raises. It drops an
//!   answer to an older request.
//! - *Names that the kernel knows* are looked up again without that lock. An old answer would make
//!   an old name good for the whole of `cache_timeout`, after the notification. So as long as
//!   somebody is [`Notifier::changing`] the file system, names are good for no time at all.

use crate::abi;
use crate::transport::Transport;
use kedgefs::Ino;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use zerocopy::IntoBytes;

/// Tells the kernel of changes.
#[derive(Clone)]
pub struct Notifier {
    transport: Arc<dyn Transport>,
    changes: Changes,
}

/// Counts who makes changes that do not come through the kernel.
#[derive(Clone, Default)]
pub(crate) struct Changes(Arc<AtomicUsize>);

impl Changes {
    pub(crate) fn are_made(&self) -> bool {
        self.0.load(SeqCst) > 0
    }
}

/// Changes are made as long as this lives: see [`Notifier::changing`].
#[must_use]
pub struct Changing(Changes);

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, SeqCst);
    }
}

impl Notifier {
    pub(crate) fn new(transport: Arc<dyn Transport>, changes: Changes) -> Notifier {
        Notifier { transport, changes }
    }

    /// Before the first change, until after the last notification: see the module.
    pub fn changing(&self) -> Changing {
        self.changes.0.fetch_add(1, SeqCst);
        Changing(self.changes.clone())
    }

    /// A name of a directory is new, gone, or stands for another inode. When all its names are
    /// told, the directory has changed, too: the kernel keeps its listing and attributes otherwise,
    /// if it did not know the name.
    pub fn name_changed(&self, dir: Ino, name: &[u8]) -> io::Result<()> {
        let namelen = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let head = abi::InvalEntryOut { parent: dir.0, namelen, flags: abi::INVAL_EXPIRE_ONLY };
        let body = [head.as_bytes(), name, b"\0"].concat();
        self.send(abi::NOTIFY_INVAL_ENTRY, &body)
    }

    /// Attributes of an inode have changed, and what it holds: bytes, or names.
    pub fn inode_changed(&self, ino: Ino) -> io::Result<()> {
        let body = abi::InvalInodeOut { ino: ino.0, off: 0, len: 0 };
        self.send(abi::NOTIFY_INVAL_INODE, body.as_bytes())
    }

    fn send(&self, code: i32, body: &[u8]) -> io::Result<()> {
        match self.transport.notify(code, body) {
            // The kernel knows nothing of it, or the mount is gone.
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
