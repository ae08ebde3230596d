//! Tracks the inodes that the kernel knows. A reply with an entry pins its inode, FORGET releases
//! pins, and each reply with an entry or attributes is valid for a limited time.

use crate::abi::{self, op};
use crate::args::Args;
use crate::errno::{Answer, Errno};
use crate::ops::Ops;
use crate::server::Server;
use crate::transport::Request;
use kedge_base::BLOCK_SIZE;
use kedgefs::{Attr, Ino};
use zerocopy::FromZeros;

/// Generations distinguish inodes that reuse a number; KedgeFS never reuses numbers.
const NODE_GENERATION: u64 = 1;

impl<O: Ops> Server<O> {
    pub(super) fn forget(&self, request: &Request<'_>) -> Answer<()> {
        let mut args = Args::new(request.body);
        if request.header.opcode == op::FORGET {
            let forget: abi::ForgetIn = args.take()?;
            self.unpin(request.header.nodeid, forget.nlookup);
            self.atomics.forget_ended();
            return Ok(());
        }
        let batch: abi::BatchForgetIn = args.take()?;
        for _ in 0..batch.count {
            let one: abi::ForgetOne = args.take()?;
            self.unpin(one.nodeid, one.nlookup);
        }
        self.atomics.forget_ended();
        Ok(())
    }

    pub(super) fn unpin(&self, node: u64, count: u64) {
        // The root is never looked up, so it has no pin.
        if node != Ino::ROOT.0 && count > 0 {
            if let Some(kept) = &self.kept {
                kept.unpin(Ino(node), count);
            }
            self.ops.unpin(Ino(node), count);
        }
    }

    #[cfg(test)]
    pub(crate) fn unpin_for_test(&self, node: u64, count: u64) {
        self.unpin(node, count);
    }

    /// Pins an inode for an entry in a reply to the kernel.
    pub(super) fn pin(&self, ino: Ino) -> Answer<()> {
        let Some(kept) = &self.kept else { return Ok(self.ops.pin(ino)?) };
        // Pins of redone changes were noted before the server died.
        if kept.is_redoing() {
            return Ok(());
        }
        kept.pin(ino).map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::ENOMEM)))?;
        Ok(self.ops.pin(ino)?)
    }

    pub(super) fn timeout(&self) -> (u64, u32) {
        let timeout = self.options.timeout();
        (timeout.as_secs(), timeout.subsec_nanos())
    }

    /// The reply for an inode that is pinned already.
    pub(crate) fn entry(&self, attr: &Attr) -> abi::EntryOut {
        let (secs, nanos) = self.timeout();
        // While changes bypass the kernel, names get no timeout: see `crate::notify`.
        let (entry_valid, entry_valid_nsec) = if self.changes.are_made() { (0, 0) } else { (secs, nanos) };
        abi::EntryOut {
            nodeid: attr.ino.0,
            generation: NODE_GENERATION,
            entry_valid,
            attr_valid: secs,
            entry_valid_nsec,
            attr_valid_nsec: nanos,
            attr: wire_attr(attr),
        }
    }

    /// Pins the inode before the reply, because the kernel may send FORGET as soon as it has the
    /// entry.
    pub(crate) fn pinned_entry(&self, attr: &Attr) -> Answer<abi::EntryOut> {
        self.pin(attr.ino)?;
        Ok(self.entry(attr))
    }

    pub(crate) fn attr_out(&self, attr: &Attr) -> abi::AttrOut {
        let (attr_valid, attr_valid_nsec) = self.timeout();
        abi::AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: wire_attr(attr) }
    }

    pub(super) fn lookup(&self, dir: Ino, args: &mut Args<'_>) -> Answer<abi::EntryOut> {
        let attr = match args.name_or_dots()? {
            // The kernel sends these names for an NFS server: first the inode by number, then its
            // parents up to the root.
            b"." => self.ops.getattr(dir)?,
            b".." => self.ops.lookup(dir, b"..")?,
            name => match self.ops.lookup(dir, name) {
                Ok(attr) => attr,
                Err(kedgefs::Error::NotFound) => {
                    // An entry without an inode makes the kernel cache that the name does not
                    // exist.
                    let (entry_valid, entry_valid_nsec) = self.timeout();
                    return Ok(abi::EntryOut {
                        entry_valid,
                        entry_valid_nsec,
                        ..abi::EntryOut::new_zeroed()
                    });
                }
                Err(e) => return Err(e.into()),
            },
        };
        let entry = self.pinned_entry(&attr)?;
        match self.ops.may_keep_names(dir) {
            true => Ok(entry),
            // Without a timeout, the kernel drops the name when its last user is gone.
            false => Ok(abi::EntryOut { entry_valid: 0, entry_valid_nsec: 0, ..entry }),
        }
    }
}

fn wire_attr(attr: &Attr) -> abi::Attr {
    abi::Attr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.sec as u64,
        mtime: attr.mtime.sec as u64,
        ctime: attr.ctime.sec as u64,
        atimensec: attr.atime.nsec,
        mtimensec: attr.mtime.nsec,
        ctimensec: attr.ctime.nsec,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // The kernel's 32-bit encoding of dev_t on both sides.
        rdev: attr.rdev as u32,
        blksize: BLOCK_SIZE as u32,
        flags: 0,
    }
}
