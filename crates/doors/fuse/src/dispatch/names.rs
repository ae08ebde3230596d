//! Changes of names: new inodes with their owner and mode, links, removals and renames.

use crate::abi;
use crate::args::Args;
use crate::dispatch::attributes::PERMISSIONS;
use crate::errno::{Answer, EINVAL, Errno};
use crate::ops::Ops;
use crate::server::Server;
use crate::settle::{SettledJob, Then};
use crate::transport::{Reply, Request};
use crate::trees::TreeCall;
use kedgefs::{Attr, FileKind, Ino, Owner, RenameMode, acl};
use std::sync::atomic::Ordering;

impl<O: Ops> Server<O> {
    /// The owner of a new inode. The file system applies the group of a set-group-ID directory. Ids
    /// without a mapping in this user namespace fail with EOVERFLOW.
    fn owner(request: &Request<'_>) -> Answer<Owner> {
        let (uid, gid) = (request.header.uid, request.header.gid);
        if uid == abi::NO_ID || gid == abi::NO_ID {
            Err(Errno(libc::EOVERFLOW))
        } else {
            Ok(Owner { uid, gid })
        }
    }

    /// The mode for a new file. With access control lists negotiated, the kernel sends the mode
    /// without the umask applied, and the umask applies only if the directory has no default list.
    fn new_mode(&self, dir: u64, mode: u32, umask: u32) -> Answer<u32> {
        if !self.acls.load(Ordering::Relaxed) {
            return Ok(mode);
        }
        match self.ops.getxattr(Ino(dir), acl::DEFAULT) {
            Ok(_) => Ok(mode),
            Err(kedgefs::Error::NoXattr) => Ok(mode & !(umask & PERMISSIONS)),
            Err(e) => Err(e.into()),
        }
    }

    fn create_file(&self, request: &Request<'_>, name: &[u8], mode: u32, rdev: u32) -> Answer<Attr> {
        let dir = Ino(request.header.nodeid);
        let owner = Self::owner(request)?;
        let regular = FileKind::Regular.mode_bits();
        Ok(match mode & FileKind::MODE_MASK {
            kind if kind == regular || kind == 0 => {
                self.ops.create(dir, name, regular | (mode & PERMISSIONS), owner)?
            }
            _ => self.ops.mknod(dir, name, mode, rdev.into(), owner)?,
        })
    }

    pub(super) fn mknod(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<abi::EntryOut> {
        let asked: abi::MknodIn = args.take()?;
        let mode = self.new_mode(request.header.nodeid, asked.mode, asked.umask)?;
        let attr = self.create_file(request, args.name()?, mode, asked.rdev)?;
        self.pinned_entry(&attr)
    }

    pub(super) fn create(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<abi::CreateOut> {
        if self.options.no_open {
            return Err(Errno(libc::ENOSYS));
        }
        let asked: abi::CreateIn = args.take()?;
        let mode = self.new_mode(request.header.nodeid, asked.mode, asked.umask)?;
        let attr = self.create_file(request, args.name()?, mode, 0)?;
        let entry = self.pinned_entry(&attr)?;
        Ok(abi::CreateOut { entry, open: self.new_open(attr.ino, asked.flags)? })
    }

    pub(super) fn tmpfile(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<abi::CreateOut> {
        let asked: abi::CreateIn = args.take()?;
        let owner = Self::owner(request)?;
        // `tmpfile` returns the inode pinned, because nothing else keeps a nameless inode alive.
        let mode = self.new_mode(request.header.nodeid, asked.mode, asked.umask)?;
        let mode = FileKind::Regular.mode_bits() | (mode & PERMISSIONS);
        let attr = self.ops.tmpfile(Ino(request.header.nodeid), mode, owner)?;
        if let Some(kept) = &self.kept {
            let noted = kept.pin(attr.ino).inspect_err(|_| self.ops.unpin(attr.ino, 1));
            noted.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::ENOMEM)))?;
        }
        Ok(abi::CreateOut { entry: self.entry(&attr), open: self.new_open(attr.ino, asked.flags)? })
    }

    pub(super) fn mkdir(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<abi::EntryOut> {
        let asked: abi::MkdirIn = args.take()?;
        let owner = Self::owner(request)?;
        let mode = self.new_mode(request.header.nodeid, asked.mode, asked.umask)?;
        let mode = mode & PERMISSIONS | FileKind::Directory.mode_bits();
        let attr = self.ops.mkdir(Ino(request.header.nodeid), args.name()?, mode, owner)?;
        self.pinned_entry(&attr)
    }

    pub(super) fn symlink(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<abi::EntryOut> {
        let name = args.name()?;
        let target = args.text()?;
        let owner = Self::owner(request)?;
        let attr = self.ops.symlink(Ino(request.header.nodeid), name, target, owner)?;
        self.pinned_entry(&attr)
    }

    pub(super) fn link(&self, dir: Ino, args: &mut Args<'_>) -> Answer<abi::EntryOut> {
        let asked: abi::LinkIn = args.take()?;
        let attr = self.ops.link(Ino(asked.oldnodeid), dir, args.name()?)?;
        self.pinned_entry(&attr)
    }

    pub(super) fn unlink(&self, dir: Ino, args: &mut Args<'_>) -> Answer<()> {
        Ok(self.ops.unlink(dir, args.name()?)?)
    }

    /// Serves RMDIR. If the directory is a tree, a thread serves it that may wait for changes in
    /// progress.
    pub(super) fn rmdir(&self, dir: Ino, args: &mut Args<'_>, reply: Reply) {
        match args.name() {
            Ok(name) if self.ops.tree_named(dir, name).is_some() => {
                let call = TreeCall::rmdir(dir, name);
                self.settle(SettledJob { reply, ino: dir, from: 0, then: Then::Tree(call) });
            }
            Ok(name) => reply.finish(self.ops.rmdir(dir, name).map_err(Errno::from)),
            Err(e) => reply.err(e.0),
        }
    }

    pub(super) fn rename(&self, dir: Ino, args: &mut Args<'_>, reply: Reply) {
        let asked = args.take().and_then(|asked: abi::RenameIn| {
            let (name, new_name) = (args.name()?, args.name()?);
            Ok((Ino(asked.newdir), name, new_name, RenameMode::Replace))
        });
        self.rename_to(dir, asked, reply);
    }

    pub(super) fn rename2(&self, request: &Request<'_>, args: &mut Args<'_>, reply: Reply) {
        self.rename_to(Ino(request.header.nodeid), Self::rename2_of(request, args), reply);
    }

    /// Serves RENAME. If the file is a tree, a thread serves it that may wait for changes in
    /// progress.
    fn rename_to(&self, dir: Ino, asked: Answer<(Ino, &[u8], &[u8], RenameMode)>, reply: Reply) {
        match asked {
            Ok((new_dir, name, new_name, mode)) if self.ops.tree_named(dir, name).is_some() => {
                let call = TreeCall::rename(dir, name, (new_dir, new_name), mode);
                self.settle(SettledJob { reply, ino: dir, from: 0, then: Then::Tree(call) });
            }
            Ok((new_dir, name, new_name, mode)) => {
                let renamed = self.ops.rename(dir, name, new_dir, new_name, mode);
                reply.finish(renamed.map_err(Errno::from));
            }
            Err(e) => reply.err(e.0),
        }
    }

    fn rename2_of<'b>(
        request: &Request<'_>,
        args: &mut Args<'b>,
    ) -> Answer<(Ino, &'b [u8], &'b [u8], RenameMode)> {
        const NOREPLACE: u32 = 1;
        const EXCHANGE: u32 = 2;
        const WHITEOUT: u32 = 4;
        let asked: abi::Rename2In = args.take()?;
        let mode = match asked.flags {
            0 => RenameMode::Replace,
            NOREPLACE => RenameMode::NoReplace,
            EXCHANGE => RenameMode::Exchange,
            // Any caller that may rename may make a whiteout, as in the kernel's file systems since
            // Linux 5.8: no driver has the device number 0. Older kernels check for CAP_MKNOD.
            flags if flags & !NOREPLACE == WHITEOUT => {
                RenameMode::Whiteout { owner: Self::owner(request)?, replace: flags & NOREPLACE == 0 }
            }
            _ => return Err(EINVAL),
        };
        let (name, new_name) = (args.name()?, args.name()?);
        Ok((Ino(asked.newdir), name, new_name, mode))
    }
}
