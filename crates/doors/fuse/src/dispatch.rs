//! Dispatches requests: each is a match arm, a call, and a reply or an errno.

use crate::abi::{self, InHeader, fattr, fopen, ioctl, op};
use crate::args::{Args, NAME_END};
use crate::atomics::{Atomics, Span};
use crate::caller;
use crate::control;
use crate::errno::{Answer, EINVAL, Errno};
use crate::flags;
use crate::opens::{STORES, Store};
use crate::ops::Ops;
use crate::parking::Job;
use crate::server::Server;
use crate::settle::{PageJob, SettledJob, Then};
use crate::task::Capability;
use crate::transport::{Reply, Request};
use crate::tree_limits::{self, LimitCall};
use crate::trees::{self, TreeCall};
use kedge_base::{BLOCK_SIZE, IoBuf};
use kedgefs::acl;
use kedgefs::{
    Attr, DirEntry, FallocateMode, FileFlags, FileKind, Ino, Owner, RenameMode, SeekKind, SetAttr, SetTime,
    Timespec, WriteMode, XattrMode,
};
use std::cell::OnceCell;
use std::sync::atomic::Ordering;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Generations distinguish inodes that reuse a number; KedgeFS never reuses numbers.
const NODE_GENERATION: u64 = 1;
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o0010;
const PERMISSIONS: u32 = 0o7777;
/// The largest size of a value or a list of names.
const XATTR_SIZE_MAX: usize = 65536;

impl<O: Ops> Server<O> {
    pub(crate) fn dispatch(&self, request: &Request<'_>, reply: Reply, out: &mut IoBuf) {
        let node = Ino(request.header.nodeid);
        let mut args = Args::new(request.body);
        let args = &mut args;
        match request.header.opcode {
            op::INIT => reply.finish(self.init(request)),
            op::DESTROY => {
                self.destroy();
                reply.finish(Ok::<_, Errno>(()));
            }
            op::LOOKUP => reply.finish(self.lookup(node, args)),
            opcode if has_no_reply(opcode) => {
                // Send no reply: the kernel keeps no request that could receive it.
                reply.none();
                if self.forget(request).is_err() {
                    tracing::error!(op = abi::op_name(opcode), "malformed");
                }
            }
            op::GETATTR => reply.finish(self.getattr(node)),
            op::STATX => reply.finish(self.statx(node)),
            op::SETATTR => reply.finish(self.setattr(request, args)),
            op::READLINK => finish_bytes(reply, self.ops.readlink(node).map_err(Errno::from)),
            op::SYMLINK => reply.finish(self.symlink(request, args)),
            op::MKNOD => reply.finish(self.mknod(request, args)),
            op::MKDIR => reply.finish(self.mkdir(request, args)),
            op::CREATE => reply.finish(self.create(request, args)),
            op::TMPFILE => reply.finish(self.tmpfile(request, args)),
            op::LINK => reply.finish(self.link(node, args)),
            op::UNLINK => reply.finish(self.unlink(node, args)),
            op::RMDIR => self.rmdir(node, args, reply),
            op::RENAME => self.rename(node, args, reply),
            op::RENAME2 => self.rename2(request, args, reply),
            op::OPEN => reply.finish(self.open(request, args)),
            op::OPENDIR => reply.finish(self.opendir(node)),
            op::RELEASE => reply.finish(self.release(node, args)),
            op::RELEASEDIR => reply.finish(Ok::<_, Errno>(())),
            op::READ => finish_scratch(reply, self.read(node, args, out), out),
            op::READDIR => finish_scratch(reply, self.readdir(node, args, out), out),
            op::READDIRPLUS => finish_scratch(reply, self.readdirplus(node, args, out), out),
            op::WRITE => self.write(request, args, reply),
            op::FALLOCATE => reply.finish(self.fallocate(request, args)),
            op::COPY_FILE_RANGE => self.copy_range(request, args, reply, false),
            op::COPY_FILE_RANGE_64 => self.copy_range(request, args, reply, true),
            op::LSEEK => self.lseek(node, args, reply),
            op::FSYNC | op::FSYNCDIR => self.fsync(node, args, reply),
            op::SYNCFS => {
                self.ops.sync_async(Box::new(move |synced| reply.finish(synced.map_err(Errno::from))));
            }
            op::STATFS => reply.finish(self.statfs(Ino(request.header.nodeid))),
            op::GETXATTR => self.getxattr(request, args, reply),
            op::LISTXATTR => self.listxattr(request, args, reply),
            op::SETXATTR => reply.finish(self.setxattr(request, args)),
            op::REMOVEXATTR => reply.finish(self.removexattr(node, args)),
            op::IOCTL => self.ioctl(request, args, reply),
            op::INTERRUPT => self.interrupt(args, reply),
            // Not served, which the kernel remembers: FLUSH (a close is no durability point),
            // ACCESS (the kernel checks permissions), locks and POLL (the kernel handles them),
            // BMAP.
            _ => reply.err(libc::ENOSYS),
        }
    }

    /// Passes an INTERRUPT to the thread that knows the parked requests. The kernel waits for no
    /// reply.
    fn interrupt(&self, args: &mut Args<'_>, reply: Reply) {
        let Some(parking) = &self.parking else { return reply.err(libc::ENOSYS) };
        reply.none();
        match args.take::<u64>() {
            Ok(unique) => parking.send(Job::Interrupt(unique)),
            Err(_) => tracing::error!("malformed INTERRUPT"),
        }
    }

    fn forget(&self, request: &Request<'_>) -> Answer<()> {
        let mut args = Args::new(request.body);
        if request.header.opcode == op::FORGET {
            let forget: abi::ForgetIn = args.take()?;
            self.unpin(request.header.nodeid, forget.nlookup);
            return Ok(());
        }
        let batch: abi::BatchForgetIn = args.take()?;
        for _ in 0..batch.count {
            let one: abi::ForgetOne = args.take()?;
            self.unpin(one.nodeid, one.nlookup);
        }
        Ok(())
    }

    fn unpin(&self, node: u64, count: u64) {
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

    fn timeout(&self) -> (u64, u32) {
        (self.options.cache_timeout.as_secs(), self.options.cache_timeout.subsec_nanos())
    }

    /// The reply for a pinned inode.
    pub(crate) fn entry(&self, attr: &Attr) -> abi::EntryOut {
        let (secs, nanos) = self.timeout();
        // See `crate::notify`.
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

    /// Pins an inode for an entry that the kernel will get.
    fn pin(&self, ino: Ino) -> Answer<()> {
        let Some(kept) = &self.kept else { return Ok(self.ops.pin(ino)?) };
        // The pins of changes that are made again are known already.
        if kept.is_redoing() {
            return Ok(());
        }
        kept.pin(ino).map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::ENOMEM)))?;
        Ok(self.ops.pin(ino)?)
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

    fn lookup(&self, dir: Ino, args: &mut Args<'_>) -> Answer<abi::EntryOut> {
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
            // The kernel drops a name without a timeout when its last user is gone.
            false => Ok(abi::EntryOut { entry_valid: 0, entry_valid_nsec: 0, ..entry }),
        }
    }

    fn getattr(&self, node: Ino) -> Answer<abi::AttrOut> {
        Ok(self.attr_out(&self.ops.getattr(node)?))
    }

    fn statx(&self, node: Ino) -> Answer<abi::StatxOut> {
        const STATX_BASIC_STATS: u32 = 0x7ff;
        const STATX_BTIME: u32 = 0x800;
        // The attribute bits of statx(2) have the values of FS_IOC_SETFLAGS.
        const ATTRIBUTES: u64 = 0x70;
        let attr = self.ops.getattr(node)?;
        let time = |t: Timespec| abi::StatxTime { sec: t.sec, nsec: t.nsec, reserved: 0 };
        let (attr_valid, attr_valid_nsec) = self.timeout();
        let stat = abi::Statx {
            mask: STATX_BASIC_STATS | STATX_BTIME,
            attributes: u64::from(attr.flags.bits()) & ATTRIBUTES,
            attributes_mask: ATTRIBUTES,
            blksize: BLOCK_SIZE as u32,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: attr.mode as u16,
            ino: attr.ino.0,
            size: attr.size,
            blocks: attr.blocks,
            atime: time(attr.atime),
            btime: time(attr.btime),
            ctime: time(attr.ctime),
            mtime: time(attr.mtime),
            rdev_major: (attr.rdev >> 8) as u32 & 0xfff,
            rdev_minor: (attr.rdev & 0xff) as u32 | ((attr.rdev >> 12) & 0xfff00) as u32,
            ..abi::Statx::new_zeroed()
        };
        Ok(abi::StatxOut { attr_valid, attr_valid_nsec, stat, ..abi::StatxOut::new_zeroed() })
    }

    fn setattr(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<abi::AttrOut> {
        let node = Ino(request.header.nodeid);
        let asked: abi::SetattrIn = args.take()?;
        let has = |flag| asked.valid & flag != 0;
        let mut set = SetAttr {
            mode: has(fattr::MODE).then_some(asked.mode & PERMISSIONS),
            uid: has(fattr::UID).then_some(asked.uid),
            gid: has(fattr::GID).then_some(asked.gid),
            size: has(fattr::SIZE).then_some(asked.size),
            ..SetAttr::default()
        };
        if has(fattr::ATIME) {
            set.atime = Some(set_time(has(fattr::ATIME_NOW), asked.atime, asked.atimensec)?);
        }
        if has(fattr::MTIME) {
            set.mtime = Some(set_time(has(fattr::MTIME_NOW), asked.mtime, asked.mtimensec)?);
        }
        if has(fattr::CTIME) {
            set.ctime = Some(timespec(asked.ctime, asked.ctimensec)?);
        }
        if has(fattr::KILL_SUIDGID) && set.mode.is_none() {
            set.mode = mode_without_privilege(&self.ops.getattr(node)?, &request.header, set.gid);
        }
        Ok(self.attr_out(&self.ops.setattr(node, &set)?))
    }

    /// Clears the set-user-id bits before a change of the file's content, so that no crash leaves
    /// changed content with the old privilege. `applies` is called only if there are such bits. An
    /// append-only file permits the clearing `before_append`. Before any other change, which such a
    /// file refuses, the clearing is refused too and the bits stay.
    pub(crate) fn drop_privilege(
        &self,
        attr: &Attr,
        header: &InHeader,
        before_append: bool,
        applies: impl FnOnce() -> bool,
    ) -> Answer<()> {
        let (node, mode) = (attr.ino, mode_without_privilege(attr, header, None));
        if mode.is_some() && applies() {
            self.ops.setattr(node, &SetAttr { mode, before_append, ..SetAttr::default() })?;
            // execve(2) uses the mode that the kernel has cached.
            self.forget_attributes(node.0);
        }
        Ok(())
    }

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

    fn mknod(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<abi::EntryOut> {
        let asked: abi::MknodIn = args.take()?;
        let mode = self.new_mode(request.header.nodeid, asked.mode, asked.umask)?;
        let attr = self.create_file(request, args.name()?, mode, asked.rdev)?;
        self.pinned_entry(&attr)
    }

    fn create(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<abi::CreateOut> {
        if self.options.no_open {
            return Err(Errno(libc::ENOSYS));
        }
        let asked: abi::CreateIn = args.take()?;
        let mode = self.new_mode(request.header.nodeid, asked.mode, asked.umask)?;
        let attr = self.create_file(request, args.name()?, mode, 0)?;
        let entry = self.pinned_entry(&attr)?;
        Ok(abi::CreateOut { entry, open: self.new_open(attr.ino, asked.flags)? })
    }

    /// Opens a file that was just made, which has no flag that forbids a change.
    fn new_open(&self, ino: Ino, flags: u32) -> Answer<abi::OpenOut> {
        let fh = if self.can_store(flags) { self.counted(ino, self.opens.store(ino)?) } else { 0 };
        Ok(abi::OpenOut { fh, open_flags: fopen::KEEP_CACHE | fopen::NOFLUSH, padding: 0 })
    }

    fn tmpfile(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<abi::CreateOut> {
        let asked: abi::CreateIn = args.take()?;
        let owner = Self::owner(request)?;
        // `tmpfile` returns the inode pinned, because nothing else keeps a nameless inode alive.
        let mode = self.new_mode(request.header.nodeid, asked.mode, asked.umask)?;
        let mode = FileKind::Regular.mode_bits() | (mode & PERMISSIONS);
        let attr = self.ops.tmpfile(Ino(request.header.nodeid), mode, owner)?;
        if let Some(kept) = &self.kept {
            kept.pin(attr.ino).map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::ENOMEM)))?;
        }
        Ok(abi::CreateOut { entry: self.entry(&attr), open: self.new_open(attr.ino, asked.flags)? })
    }

    fn mkdir(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<abi::EntryOut> {
        let asked: abi::MkdirIn = args.take()?;
        let owner = Self::owner(request)?;
        let mode = self.new_mode(request.header.nodeid, asked.mode, asked.umask)?;
        let mode = mode & PERMISSIONS | FileKind::Directory.mode_bits();
        let attr = self.ops.mkdir(Ino(request.header.nodeid), args.name()?, mode, owner)?;
        self.pinned_entry(&attr)
    }

    fn symlink(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<abi::EntryOut> {
        let name = args.name()?;
        let target = args.text()?;
        let owner = Self::owner(request)?;
        let attr = self.ops.symlink(Ino(request.header.nodeid), name, target, owner)?;
        self.pinned_entry(&attr)
    }

    fn link(&self, dir: Ino, args: &mut Args<'_>) -> Answer<abi::EntryOut> {
        let asked: abi::LinkIn = args.take()?;
        let attr = self.ops.link(Ino(asked.oldnodeid), dir, args.name()?)?;
        self.pinned_entry(&attr)
    }

    fn unlink(&self, dir: Ino, args: &mut Args<'_>) -> Answer<()> {
        Ok(self.ops.unlink(dir, args.name()?)?)
    }

    /// A tree is removed by a thread that may wait for changes under way to end.
    fn rmdir(&self, dir: Ino, args: &mut Args<'_>, reply: Reply) {
        match args.name() {
            Ok(name) if self.ops.tree_named(dir, name).is_some() => {
                let call = TreeCall::rmdir(dir, name);
                self.settle(SettledJob { reply, ino: dir, from: 0, then: Then::Tree(call) });
            }
            Ok(name) => reply.finish(self.ops.rmdir(dir, name).map_err(Errno::from)),
            Err(e) => reply.err(e.0),
        }
    }

    fn rename(&self, dir: Ino, args: &mut Args<'_>, reply: Reply) {
        let asked = args.take().and_then(|asked: abi::RenameIn| {
            let (name, new_name) = (args.name()?, args.name()?);
            Ok((Ino(asked.newdir), name, new_name, RenameMode::Replace))
        });
        self.rename_to(dir, asked, reply);
    }

    fn rename2(&self, request: &Request<'_>, args: &mut Args<'_>, reply: Reply) {
        self.rename_to(Ino(request.header.nodeid), Self::rename2_of(request, args), reply);
    }

    /// A tree is renamed by a thread that may wait for changes under way to end.
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
            // The kernel has checked for CAP_MKNOD.
            flags if flags & !NOREPLACE == WHITEOUT => {
                RenameMode::Whiteout { owner: Self::owner(request)?, replace: flags & NOREPLACE == 0 }
            }
            _ => return Err(EINVAL),
        };
        let (name, new_name) = (args.name()?, args.name()?);
        Ok((Ino(asked.newdir), name, new_name, mode))
    }

    /// Whether a file opened with these flags can change pages without a WRITE. Only a mount that
    /// sees opens counts them, because no RELEASE arrives otherwise.
    fn can_store(&self, flags: u32) -> bool {
        let access = flags as i32 & libc::O_ACCMODE;
        let cached = self.writeback.load(Ordering::Relaxed);
        !self.options.no_open && (access == libc::O_RDWR || cached && access == libc::O_WRONLY)
    }

    /// See [`crate::opens`].
    fn open(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<abi::OpenOut> {
        if self.options.no_open {
            return Err(Errno(libc::ENOSYS));
        }
        let asked: abi::OpenIn = args.take()?;
        let node = Ino(request.header.nodeid);
        let flags = asked.flags as i32;
        let store = self.can_store(asked.flags).then(|| self.opens.store(node)).transpose()?;
        let truncates = flags & libc::O_TRUNC != 0;
        if truncates || flags & libc::O_ACCMODE != libc::O_RDONLY {
            let set = self.ops.getattr(node)?.flags;
            let appends = flags & libc::O_APPEND != 0 && !truncates;
            if set.has(FileFlags::IMMUTABLE) || set.has(FileFlags::APPEND) && !appends {
                return Err(Errno(libc::EPERM));
            }
            if set.has(FileFlags::APPEND) {
                return Ok(open_out(fopen::DIRECT_IO | fopen::KEEP_CACHE | fopen::NOFLUSH));
            }
        }
        if truncates {
            if asked.open_flags & abi::OPEN_KILL_SUIDGID != 0 {
                self.drop_privilege(&self.ops.getattr(node)?, &request.header, false, || true)?;
            }
            self.ops.setattr(node, &SetAttr { size: Some(0), ..SetAttr::default() })?;
        }
        // Without KEEP_CACHE each open would drop the file's cached pages.
        let open = open_out(fopen::KEEP_CACHE | fopen::NOFLUSH);
        Ok(abi::OpenOut { fh: store.map_or(0, |store| self.counted(node, store)), ..open })
    }

    /// The file handle of an open that is counted until its RELEASE.
    fn counted(&self, ino: Ino, store: Store<'_>) -> u64 {
        self.ops.opened_to_store(ino);
        store.handle()
    }

    fn release(&self, node: Ino, args: &mut Args<'_>) -> Answer<()> {
        let asked: abi::ReleaseIn = args.take()?;
        if asked.fh == STORES {
            self.opens.release(node);
            self.ops.closed_to_store(node);
        }
        Ok(())
    }

    fn opendir(&self, node: Ino) -> Answer<abi::OpenOut> {
        let out = open_out(fopen::KEEP_CACHE | fopen::CACHE_DIR);
        match self.ops.dir_handle(node)? {
            Some(fh) => Ok(abi::OpenOut { fh, ..out }),
            None if self.options.no_open => Err(Errno(libc::ENOSYS)),
            None => Ok(out),
        }
    }

    fn read(&self, node: Ino, args: &mut Args<'_>, out: &mut IoBuf) -> Answer<usize> {
        let asked: abi::ReadIn = args.take()?;
        let buf = out.as_mut_bytes();
        let len = buf.len().min(asked.size as usize);
        Ok(self.ops.read_uncached(node, asked.offset, &mut buf[..len])?)
    }

    fn write(&self, request: &Request<'_>, args: &mut Args<'_>, reply: Reply) {
        let node = Ino(request.header.nodeid);
        match args.take::<abi::WriteIn>() {
            Err(e) => reply.err(e.0),
            Ok(asked) => {
                if let Some(staged) = self.staged(&request.header, &asked, args) {
                    return match staged {
                        Ok((written, span)) => {
                            reply.finish(Ok::<_, Errno>(written));
                            self.page_job(PageJob::Drop(node, span));
                        }
                        Err(e) => reply.err(e.0),
                    };
                }
                let appends = self.is_append_only(node);
                let written = match appends && self.has_capability(node) {
                    true => Err(Errno(libc::EPERM)),
                    false => self.written(&request.header, &asked, args),
                };
                match written {
                    // The append has bypassed the page cache, so stale pages must be dropped.
                    Ok(written) if appends => {
                        let then = Then::Written(written);
                        self.settle(SettledJob { reply, ino: node, from: asked.offset, then });
                    }
                    written => reply.finish(written),
                }
            }
        }
    }

    /// Stages the bytes if the caller writes the file atomically. `None` if it does not.
    fn staged(
        &self,
        header: &InHeader,
        asked: &abi::WriteIn,
        args: &mut Args<'_>,
    ) -> Option<Answer<(abi::WriteOut, Span)>> {
        if asked.write_flags & abi::WRITE_CACHE != 0 || !self.atomics.is_used() {
            return None;
        }
        let data = match args.bytes(asked.size) {
            Ok(data) => data,
            Err(e) => return Some(Err(e)),
        };
        let staged = self.atomics.stage(header, asked.offset, data)?;
        let dropped = match asked.write_flags & abi::WRITE_KILL_SUIDGID {
            0 => Ok(()),
            _ => {
                let attr = self.ops.getattr(Ino(header.nodeid)).map_err(Errno::from);
                attr.and_then(|attr| self.drop_privilege(&attr, header, false, || true))
            }
        };
        Some(staged.and_then(|span| {
            dropped?;
            Ok((abi::WriteOut { size: asked.size, padding: 0 }, span))
        }))
    }

    /// The ioctls of F2FS, in [`crate::atomics`].
    fn atomic(&self, cmd: u32, header: &InHeader, reply: Reply) {
        let ino = Ino(header.nodeid);
        if self.writeback.load(Ordering::Relaxed) {
            return match cmd {
                ioctl::F2FS_GET_FEATURES => reply.finish(Ok::<_, Errno>(abi::IoctlFlags::new_zeroed())),
                _ => reply.err(libc::EOPNOTSUPP),
            };
        }
        let then = match cmd {
            ioctl::F2FS_GET_FEATURES => {
                return reply.finish(Ok::<_, Errno>(Atomics::features(&*self.ops, header)));
            }
            ioctl::F2FS_START_ATOMIC_WRITE => return reply.finish(self.atomics.start(&*self.ops, header)),
            ioctl::F2FS_COMMIT_ATOMIC_WRITE => self.atomics.take(header).map(Then::Commit),
            _ => self.atomics.take(header).map(Then::Abort),
        };
        match then {
            Ok(then) => self.settle(SettledJob { reply, ino, from: 0, then }),
            Err(e) => reply.err(e.0),
        }
    }

    /// Whether a program file has capabilities, which must be removed before its bytes change. The
    /// kernel removes them, but not with `FOPEN_DIRECT_IO`, and an append-only file cannot lose its
    /// attributes.
    fn has_capability(&self, node: Ino) -> bool {
        !matches!(self.ops.getxattr(node, b"security.capability"), Err(kedgefs::Error::NoXattr))
    }

    fn is_append_only(&self, node: Ino) -> bool {
        !self.options.no_open && self.ops.getattr(node).is_ok_and(|attr| attr.flags.has(FileFlags::APPEND))
    }

    fn written(&self, header: &InHeader, asked: &abi::WriteIn, args: &mut Args<'_>) -> Answer<abi::WriteOut> {
        let node = Ino(header.nodeid);
        let data = args.bytes(asked.size)?;
        tracing::trace!(
            node = node.0,
            offset = asked.offset,
            size = asked.size,
            write_flags = asked.write_flags,
            open_flags = format_args!("{:#o}", asked.flags),
            "write"
        );
        if asked.write_flags & abi::WRITE_KILL_SUIDGID != 0 {
            let attr = self.ops.getattr(node)?;
            self.drop_privilege(&attr, header, asked.offset >= attr.size, || true)?;
        }
        let size = self.ops.write_with(node, asked.offset, data, self.write_mode(asked))?;
        Ok(abi::WriteOut { size: size as u32, padding: 0 })
    }

    /// The semantics that the kernel expects of a WRITE.
    ///
    /// - Writes from its cache (writeback, msync, a store through a shared mapping, in either cache
    ///   mode): it ignores a short count and considers the pages written. So the data is accepted
    ///   as a whole, or the request fails.
    /// - `O_DIRECT`: the data is on the device before the reply. The kernel may split such a write
    ///   into requests and wait for all of them; a short count then becomes EIO. So these also fail
    ///   as a whole, with the true errno.
    /// - With a writeback cache the kernel sets the time stamps at write(2), and sends them in a
    ///   SETATTR that may overtake the data. So the data does not change them.
    ///
    /// `O_SYNC` and `O_DSYNC` need nothing here: the kernel sends an FSYNC after the WRITE.
    fn write_mode(&self, asked: &abi::WriteIn) -> WriteMode {
        let direct = asked.flags & libc::O_DIRECT as u32 != 0;
        let cached = asked.write_flags & abi::WRITE_CACHE != 0;
        WriteMode::default()
            .with_whole(cached || direct)
            .with_through(direct && !cached)
            .with_keep_times(self.writeback.load(Ordering::Relaxed))
    }

    fn fallocate(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<()> {
        const KEEP_SIZE: u32 = 0x01;
        const PUNCH_HOLE: u32 = 0x02;
        const COLLAPSE_RANGE: u32 = 0x08;
        const ZERO_RANGE: u32 = 0x10;
        const INSERT_RANGE: u32 = 0x20;
        const PUNCH_HOLE_KEEP_SIZE: u32 = PUNCH_HOLE | KEEP_SIZE;
        let asked: abi::FallocateIn = args.take()?;
        let keep_size = asked.mode & KEEP_SIZE != 0;
        let mode = match asked.mode {
            PUNCH_HOLE_KEEP_SIZE => FallocateMode::PunchHole,
            COLLAPSE_RANGE => FallocateMode::CollapseRange,
            INSERT_RANGE => FallocateMode::InsertRange,
            mode => match mode & !KEEP_SIZE {
                0 => FallocateMode::Allocate { keep_size },
                ZERO_RANGE => FallocateMode::ZeroRange { keep_size },
                _ => return Err(Errno(libc::EOPNOTSUPP)),
            },
        };
        let node = Ino(request.header.nodeid);
        // FALLOCATE is the only change of content for which the kernel sends no kill flag. A change
        // that is made again has no caller any more, whose capabilities would count: its journal
        // has the mode that it left.
        let made_again = self.kept.as_ref().is_some_and(|kept| kept.is_redoing());
        if self.options.handle_killpriv && !made_again {
            let before_append = matches!(mode, FallocateMode::Allocate { .. });
            let applies = || !caller::is_capable(&request.header, Capability::Fsetid);
            self.drop_privilege(&self.ops.getattr(node)?, &request.header, before_append, applies)?;
        }
        Ok(self.ops.fallocate(node, mode, asked.offset, asked.length)?)
    }

    /// See [`crate::settle`]: the kernel may have dirty pages that it has not written yet.
    fn lseek(&self, node: Ino, args: &mut Args<'_>, reply: Reply) {
        let asked = args.take().and_then(|asked: abi::LseekIn| match asked.whence as i32 {
            libc::SEEK_DATA => Ok((asked.offset, SeekKind::Data)),
            libc::SEEK_HOLE => Ok((asked.offset, SeekKind::Hole)),
            _ => Err(EINVAL),
        });
        let (offset, kind) = match asked {
            Ok(asked) => asked,
            Err(e) => return reply.err(e.0),
        };
        // A dirty page can only turn a hole into data.
        if kind == SeekKind::Data && self.ops.seek(node, offset, kind).is_ok_and(|found| found == offset) {
            return reply.finish(Ok::<_, Errno>(abi::LseekOut { offset }));
        }
        self.settle(SettledJob { reply, ino: node, from: offset, then: Then::Seek(kind) });
    }

    /// Passes a request to the threads that first make the kernel write dirty pages.
    fn settle(&self, job: SettledJob) {
        self.page_job(PageJob::Request(job));
    }

    fn page_job(&self, job: PageJob) {
        // If the threads have ended, the error returns the job, and dropping its reply sends EIO.
        if self.settled.send(job).is_err() {
            tracing::error!("no thread has dirty pages written");
        }
    }

    fn fsync(&self, node: Ino, args: &mut Args<'_>, reply: Reply) {
        match args.take::<abi::FsyncIn>() {
            Ok(asked) => {
                let datasync = asked.fsync_flags & abi::FSYNC_DATASYNC != 0;
                let done =
                    Box::new(move |synced: kedgefs::Result<()>| reply.finish(synced.map_err(Errno::from)));
                self.ops.fsync_opened(asked.fh, node, datasync, done);
            }
            Err(e) => reply.err(e.0),
        }
    }

    fn statfs(&self, node: Ino) -> Answer<abi::StatfsOut> {
        let st = self.ops.statfs_at(node)?;
        Ok(abi::StatfsOut {
            blocks: st.blocks,
            bfree: st.blocks_free,
            bavail: st.blocks_available,
            files: st.inodes,
            ffree: st.inodes_free,
            bsize: st.block_size,
            namelen: st.name_max,
            frsize: st.block_size,
            ..abi::StatfsOut::new_zeroed()
        })
    }

    fn readdir(&self, node: Ino, args: &mut Args<'_>, out: &mut IoBuf) -> Answer<usize> {
        let asked: abi::ReadIn = args.take()?;
        let mut list = DirList::new(out, asked.size, false);
        self.ops.readdir_opened(asked.fh, node, asked.offset, &mut |entry| list.push(&entry))?;
        Ok(list.len)
    }

    /// Attributes are added after the walk, because the walk may hold the directory's locks.
    fn readdirplus(&self, node: Ino, args: &mut Args<'_>, out: &mut IoBuf) -> Answer<usize> {
        let asked: abi::ReadIn = args.take()?;
        let mut list = DirList::new(out, asked.size, true);
        self.ops.readdir_opened(asked.fh, node, asked.offset, &mut |entry| list.push(&entry))?;
        let len = list.len;
        let mut at = 0;
        while at < len {
            let bytes = &mut out.as_mut_bytes()[at..len];
            let (entry, rest) =
                abi::EntryOut::mut_from_prefix(bytes).expect("each record begins with an entry");
            let (dirent, rest) = abi::Dirent::ref_from_prefix(rest).expect("a directory entry follows");
            let name = &rest[..dirent.namelen as usize];
            // An entry that has been removed meanwhile gets no inode: the kernel lists the name,
            // and looks it up if necessary.
            if name != b"." && name != b".." && self.pin(Ino(dirent.ino)).is_ok() {
                match self.ops.getattr(Ino(dirent.ino)) {
                    Ok(attr) => *entry = self.entry(&attr),
                    Err(_) => self.unpin(dirent.ino, 1),
                }
            }
            at += abi::dirent_size(DirList::HEAD_PLUS, name.len());
        }
        Ok(len)
    }

    fn getxattr(&self, request: &Request<'_>, args: &mut Args<'_>, reply: Reply) {
        let node = Ino(request.header.nodeid);
        let value = args.take().and_then(|asked: abi::GetxattrIn| {
            let name = args.text()?;
            if node == Ino::ROOT
                && let Some(asked_of) = trees::asked_of(name)
            {
                control::check_owner(&request.header)?;
                return Ok((asked.size, asked_of.json(&*self.ops)?.into_bytes()));
            }
            if name == tree_limits::XATTR_LIMIT {
                return Ok((asked.size, tree_limits::nearest(&*self.ops, node)?.into_bytes()));
            }
            if let Some(from) = tree_limits::list_from(name).filter(|_| node == Ino::ROOT) {
                control::check_owner(&request.header)?;
                return Ok((asked.size, tree_limits::list(&*self.ops, from).into_bytes()));
            }
            let control = node == Ino::ROOT && name.starts_with(control::XATTR_PREFIX);
            if control || name == control::XATTR_PID {
                return Ok((asked.size, self.control_xattr(name).ok_or(Errno(libc::ENODATA))?));
            }
            self.check_xattr_name(name)?;
            Ok((asked.size, self.ops.getxattr(node, name)?))
        });
        finish_xattr(reply, value);
    }

    /// The list ends with an error as soon as it is too long, because a caller could make the
    /// server build it again and again.
    fn listxattr(&self, request: &Request<'_>, args: &mut Args<'_>, reply: Reply) {
        let list = args.take().and_then(|asked: abi::GetxattrIn| {
            let mut list = Vec::new();
            // Only a caller with CAP_SYS_ADMIN sees `trusted.` names, as on file systems of the
            // kernel.
            let trusted = OnceCell::new();
            let is_shown = |name: &[u8]| {
                !name.starts_with(b"trusted.")
                    || *trusted.get_or_init(|| caller::is_capable(&request.header, Capability::SysAdmin))
            };
            self.ops.list_xattrs(Ino(request.header.nodeid), &mut |name| {
                if is_shown(name) {
                    list.extend_from_slice(name);
                    list.push(NAME_END);
                }
                list.len() <= XATTR_SIZE_MAX
            })?;
            Ok((asked.size, list))
        });
        finish_xattr(reply, list);
    }

    fn setxattr(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<()> {
        let node = Ino(request.header.nodeid);
        let asked: abi::SetxattrIn = args.take()?;
        let acls = self.acls.load(Ordering::Relaxed);
        // The kernel builds a request before it waits for the reply to INIT. So the first SETXATTR
        // of a mount may lack the negotiated extension.
        let is_extended = acls && !args.is_name_and_value(asked.size);
        let ext = if is_extended { args.take()? } else { abi::SetxattrInExt::new_zeroed() };
        let name = args.text()?;
        let value = args.bytes(asked.size)?;
        if node == Ino::ROOT && name == control::XATTR_OPTIONS {
            return control::set_options(&*self.ops, &request.header, value);
        }
        if node == Ino::ROOT && name == control::XATTR_SIZE {
            return control::resize(&*self.ops, &request.header, value);
        }
        self.check_xattr_name(name)?;
        let mode = match asked.flags as i32 {
            0 => XattrMode::Any,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(EINVAL),
        };
        // Clear the bit first, so that no crash leaves it with the new list. The kernel sets the
        // flag for a default list too, which does not affect the directory itself.
        if name == acl::ACCESS && ext.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0 {
            let mode = self.ops.getattr(node)?.mode & PERMISSIONS;
            if mode & S_ISGID != 0 {
                let set = SetAttr { mode: Some(mode & !S_ISGID), ..SetAttr::default() };
                self.ops.setattr(node, &set)?;
            }
        }
        Ok(self.ops.setxattr(node, name, value, mode)?)
    }

    /// Whether the arguments of a SETXATTR of the root directory change options or the size of the
    /// mount, and not a file.
    pub(crate) fn sets_options(&self, mut args: Args<'_>) -> bool {
        let acls = self.acls.load(Ordering::Relaxed);
        let asked = args.take::<abi::SetxattrIn>().map(drop);
        let ext = if acls { args.take::<abi::SetxattrInExt>().map(drop) } else { Ok(()) };
        asked
            .and(ext)
            .and_then(|()| args.text())
            .is_ok_and(|name| [control::XATTR_OPTIONS, control::XATTR_SIZE].contains(&name))
    }

    fn removexattr(&self, node: Ino, args: &mut Args<'_>) -> Answer<()> {
        let name = args.text()?;
        self.check_xattr_name(name)?;
        match self.ops.removexattr(node, name) {
            // Removing an absent list succeeds: the mode alone is in effect already, as requested.
            Err(kedgefs::Error::NoXattr) if acl::is_acl_name(name) => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// The kernel passes `system.posix_acl_*` on if the server has not negotiated ACLs.
    fn check_xattr_name(&self, name: &[u8]) -> Answer<()> {
        if name.is_empty() {
            return Err(EINVAL);
        }
        let list = acl::is_acl_name(name) && self.acls.load(Ordering::Relaxed);
        if name.starts_with(b"system.") && !list { Err(Errno(libc::EOPNOTSUPP)) } else { Ok(()) }
    }

    fn ioctl(&self, request: &Request<'_>, args: &mut Args<'_>, reply: Reply) {
        let header = &request.header;
        match args.take::<abi::IoctlIn>() {
            Ok(asked) if asked.cmd == ioctl::SHUTDOWN => {
                let stopped = control::shutdown(&*self.ops, header, asked.arg);
                reply.finish(stopped.map(|()| abi::IoctlOut::new_zeroed()));
            }
            Ok(asked) if asked.cmd == ioctl::TRIM => {
                reply.finish(args.take().and_then(|range| control::trim(&*self.ops, header, range)));
            }
            Ok(asked) if TreeCall::is_asked(asked.cmd) => match TreeCall::parse(asked.cmd, header, args) {
                Ok(call) => {
                    let ino = Ino(header.nodeid);
                    self.settle(SettledJob { reply, ino, from: 0, then: Then::Tree(call) });
                }
                Err(e) => reply.err(e.0),
            },
            Ok(asked) if asked.cmd == ioctl::SET_LIMIT => match LimitCall::parse(header, args) {
                Ok(call) => {
                    let ino = Ino(header.nodeid);
                    self.settle(SettledJob { reply, ino, from: 0, then: Then::Limit(call) });
                }
                Err(e) => reply.err(e.0),
            },
            Ok(asked)
                if matches!(
                    asked.cmd,
                    ioctl::F2FS_GET_FEATURES
                        | ioctl::F2FS_START_ATOMIC_WRITE
                        | ioctl::F2FS_COMMIT_ATOMIC_WRITE
                        | ioctl::F2FS_ABORT_ATOMIC_WRITE
                ) =>
            {
                self.atomic(asked.cmd, header, reply);
            }
            Ok(asked) if matches!(asked.cmd, ioctl::FREEZE | ioctl::THAW) => {
                self.freeze_or_thaw(asked.cmd, args, header, reply);
            }
            Ok(asked) => self.ioctl_of_flags(asked.cmd, Ino(header.nodeid), args, reply),
            Err(e) => reply.err(e.0),
        }
    }

    /// Carries out [`ioctl::FREEZE`] and [`ioctl::THAW`].
    fn freeze_or_thaw(&self, cmd: u32, args: &mut Args<'_>, header: &InHeader, reply: Reply) {
        let checked = control::check_owner(header).and_then(|()| match cmd {
            ioctl::FREEZE => args.take(),
            _ => Ok(0),
        });
        match (checked, &self.parking) {
            (Err(e), _) => reply.err(e.0),
            (_, None) => reply.err(libc::EOPNOTSUPP),
            (Ok(seconds), Some(parking)) if cmd == ioctl::FREEZE => {
                parking.send(Job::Freeze { reply, seconds });
            }
            (Ok(_), Some(parking)) => parking.send(Job::Thaw { reply }),
        }
    }

    fn ioctl_of_flags(&self, cmd: u32, node: Ino, args: &mut Args<'_>, reply: Reply) {
        let asked = match cmd {
            ioctl::GETFLAGS => return reply.finish(flags::get(&*self.ops, node)),
            ioctl::FSGETXATTR => return reply.finish(flags::get_fsxattr(&*self.ops, node)),
            // An old kernel passes the ioctl on for any caller that can open the file.
            ioctl::SETFLAGS | ioctl::FSSETXATTR if !self.flags_checked.load(Ordering::Relaxed) => {
                return reply.err(libc::EOPNOTSUPP);
            }
            ioctl::SETFLAGS => args.take().and_then(flags::asked),
            ioctl::FSSETXATTR => args.take().and_then(|set| flags::asked_of_fsxattr(&*self.ops, node, set)),
            _ => return reply.err(libc::ENOTTY),
        };
        match asked {
            Ok(set) if flags::refuses_writes(set) => {
                let then = Then::SetFlags(set, self.opens.clone());
                self.settle(SettledJob { reply, ino: node, from: 0, then });
            }
            Ok(set) => {
                let done = flags::set(&*self.ops, node, set);
                // The kernel does not know that an ioctl changes the inode's times.
                self.forget_attributes(node.0);
                reply.finish(done);
            }
            Err(e) => reply.err(e.0),
        }
    }
}

/// Directory entries, one after another, in a buffer.
struct DirList<'a> {
    buf: &'a mut [u8],
    len: usize,
    plus: bool,
}

impl<'a> DirList<'a> {
    const HEAD: usize = size_of::<abi::Dirent>();
    const HEAD_PLUS: usize = size_of::<abi::EntryOut>() + Self::HEAD;

    fn new(out: &'a mut IoBuf, size: u32, plus: bool) -> DirList<'a> {
        let buf = out.as_mut_bytes();
        let size = buf.len().min(size as usize);
        DirList { buf: &mut buf[..size], len: 0, plus }
    }

    /// Appends an entry. Returns false and adds nothing if the entry does not fit.
    fn push(&mut self, entry: &DirEntry<'_>) -> bool {
        let head = if self.plus { Self::HEAD_PLUS } else { Self::HEAD };
        let size = abi::dirent_size(head, entry.name.len());
        let Some(record) = self.buf[self.len..].get_mut(..size) else { return false };
        record.fill(0);
        let dirent = abi::Dirent {
            ino: entry.ino.0,
            off: entry.cookie,
            namelen: entry.name.len() as u32,
            kind: entry.kind.dtype().into(),
        };
        record[head - Self::HEAD..head].copy_from_slice(dirent.as_bytes());
        record[head..head + entry.name.len()].copy_from_slice(entry.name);
        self.len += size;
        true
    }
}

/// Opcodes after which no reply may be sent.
fn has_no_reply(opcode: u32) -> bool {
    matches!(opcode, op::FORGET | op::BATCH_FORGET)
}

fn finish_bytes(reply: Reply, bytes: Answer<Vec<u8>>) {
    match bytes {
        Ok(bytes) => reply.ok(&[&bytes]),
        Err(e) => reply.err(e.0),
    }
}

/// Replies with the first bytes of the worker's scratch space.
fn finish_scratch(reply: Reply, len: Answer<usize>, out: &IoBuf) {
    match len {
        Ok(len) => reply.ok(&[&out.as_bytes()[..len]]),
        Err(e) => reply.err(e.0),
    }
}

/// Replies with a value, or with its size if the caller's buffer is empty.
fn finish_xattr(reply: Reply, value: Answer<(u32, Vec<u8>)>) {
    match value {
        Ok((_, value)) if value.len() > XATTR_SIZE_MAX => reply.err(libc::E2BIG),
        Ok((0, value)) => reply.ok(&[abi::GetxattrOut { size: value.len() as u32, padding: 0 }.as_bytes()]),
        Ok((room, value)) if value.len() > room as usize => reply.err(libc::ERANGE),
        Ok((_, value)) => reply.ok(&[&value]),
        Err(e) => reply.err(e.0),
    }
}

fn open_out(open_flags: u32) -> abi::OpenOut {
    abi::OpenOut { fh: 0, open_flags, padding: 0 }
}

fn timespec(sec: u64, nsec: u32) -> Answer<Timespec> {
    // Times before 1970 are negative numbers in an unsigned field.
    if nsec < 1_000_000_000 { Ok(Timespec { sec: sec as i64, nsec }) } else { Err(EINVAL) }
}

fn set_time(now: bool, sec: u64, nsec: u32) -> Answer<SetTime> {
    if now { Ok(SetTime::Now) } else { Ok(SetTime::At(timespec(sec, nsec)?)) }
}

/// The permission bits without set-user-id and set-group-id; `None` if neither must be cleared.
/// Without group execution the set-group-id bit gives no rights, and it stays if the caller is a
/// member of the group or has CAP_FSETID. If the set-user-id bit is cleared, the membership is
/// checked against a new group, as on Linux. /proc is read only for these files, which are rare.
fn mode_without_privilege(attr: &Attr, header: &InHeader, new_gid: Option<u32>) -> Option<u32> {
    let mut mode = attr.mode & PERMISSIONS;
    if attr.kind == FileKind::Directory {
        return None;
    }
    let new_gid = new_gid.filter(|_| mode & S_ISUID != 0);
    let keeps = || {
        let is_member = |gid| caller::is_member(header, gid);
        is_member(attr.gid) && new_gid.is_none_or(is_member) || caller::is_capable(header, Capability::Fsetid)
    };
    if mode & S_ISGID != 0 && (mode & S_IXGRP != 0 || !keeps()) {
        mode &= !S_ISGID;
    }
    mode &= !S_ISUID;
    (mode != attr.mode & PERMISSIONS).then_some(mode)
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
        // Both sides use the kernel's encoding of dev_t in 32 bits.
        rdev: attr.rdev as u32,
        blksize: BLOCK_SIZE as u32,
        flags: 0,
    }
}
