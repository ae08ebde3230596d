//! Changes of the file system that do not come through the kernel, and how it hears of them.
//!
//! The kernel keeps names and attributes for long, as all changes pass through it. A program that
//! changes the mounted file system otherwise must tell it of each: after the change, so that what
//! the kernel asks for next is new.
//!
//! The kernel takes the directory's lock to drop a name. Another thread may hold that lock and wait
//! for an answer from the mount. So whoever notifies must hold nothing that an answer needs, and
//! must be no thread that answers.

use crate::abi;
use crate::transport::Transport;
use kedgefs::Ino;
use std::io;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Answers where a program reaches the serving process for such changes. Asked by a user who may
/// make them, when the control xattr is read; may be asked more than once.
pub type Address = Arc<dyn Fn() -> io::Result<String> + Send + Sync>;

/// Tells the kernel of changes.
#[derive(Clone)]
pub struct Notifier(Arc<dyn Transport>);

impl Notifier {
    pub(crate) fn new(transport: Arc<dyn Transport>) -> Notifier {
        Notifier(transport)
    }

    /// A name of a directory is new, gone, or stands for another inode.
    pub fn name_changed(&self, dir: Ino, name: &[u8]) -> io::Result<()> {
        let namelen = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let head = abi::InvalEntryOut { parent: dir.0, namelen, flags: abi::INVAL_EXPIRE_ONLY };
        let body = [head.as_bytes(), name, b"\0"].concat();
        self.send(abi::NOTIFY_INVAL_ENTRY, &body)
    }

    /// Attributes and contents of an inode have changed.
    pub fn inode_changed(&self, ino: Ino) -> io::Result<()> {
        let body = abi::InvalInodeOut { ino: ino.0, off: 0, len: 0 };
        self.send(abi::NOTIFY_INVAL_INODE, body.as_bytes())
    }

    fn send(&self, code: i32, body: &[u8]) -> io::Result<()> {
        match self.0.notify(code, body) {
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
