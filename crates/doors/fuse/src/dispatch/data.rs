//! The contents of files: reads, writes with the semantics that the kernel expects, allocation, and
//! seeks.

use crate::abi::InHeader;
use crate::args::Args;
use crate::atomics::Shown;
use crate::errno::{Answer, EINVAL, Errno};
use crate::opens::DIRECT;
use crate::ops::Ops;
use crate::server::Server;
use crate::settle::{self, PageJob, SettledJob, Then};
use crate::task::Capability;
use crate::transport::{Reply, Request};
use crate::{abi, caller};
use kedge_base::IoBuf;
use kedgefs::{FallocateMode, FileFlags, Ino, SeekKind, WriteMode};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<O: Ops> Server<O> {
    pub(super) fn read(&self, node: Ino, args: &mut Args<'_>, out: &mut IoBuf) -> Answer<usize> {
        let asked: abi::ReadIn = args.take()?;
        let buf = out.as_mut_bytes();
        let len = buf.len().min(asked.size as usize);
        self.atomics.note_other(node);
        Ok(self.ops.read_uncached(node, asked.offset, &mut buf[..len])?)
    }

    pub(super) fn write(&self, request: &Request<'_>, args: &mut Args<'_>, reply: Reply) {
        let node = Ino(request.header.nodeid);
        match args.take::<abi::WriteIn>() {
            Err(e) => reply.err(e.0),
            Ok(asked) => {
                if let Some((staged, shown)) = self.staged(&request.header, &asked, args) {
                    reply.finish(staged);
                    return shown.into_iter().for_each(|shown| self.page_job(PageJob::Drop(shown)));
                }
                self.atomics.note_other(node);
                let cached = asked.write_flags & abi::WRITE_CACHE != 0;
                // The open file stays a direct one if the flag is cleared while it is open.
                let bypasses = !cached && asked.fh == DIRECT || self.is_append_only(node);
                let end = self.end_to_append_at(node, &asked);
                let placed = abi::WriteIn { offset: end.unwrap_or(asked.offset), ..asked };
                let written = match bypasses && self.has_capability(node) {
                    true => Err(Errno(libc::EPERM)),
                    false => self.written(&request.header, &placed, args),
                };
                match written {
                    // The write has bypassed the page cache, so stale pages must be dropped.
                    Ok(written) if bypasses => self.settle_written(node, &asked, written, reply),
                    written => {
                        reply.finish(written);
                        // The pages that the kernel has filled are those of another place. They are
                        // locked until the reply.
                        if placed.offset != asked.offset {
                            self.page_job(PageJob::Forget(node, asked.offset));
                        }
                    }
                }
            }
        }
    }

    /// Replies to a WRITE that has bypassed the page cache, when the kernel has dropped the pages.
    /// The kernel sends no FSYNC after such a WRITE, so one with `O_SYNC` or `O_DSYNC` (or
    /// `RWF_SYNC`, `RWF_DSYNC`) is durable before the reply.
    fn settle_written(&self, node: Ino, asked: &abi::WriteIn, written: abi::WriteOut, reply: Reply) {
        let from = asked.offset;
        let job = move |then| SettledJob { reply, ino: node, from, then };
        if asked.fh != DIRECT || asked.flags & libc::O_DSYNC as u32 == 0 {
            return self.settle(job(Then::Written(written)));
        }
        // O_SYNC includes the bit of O_DSYNC.
        let datasync = asked.flags & libc::O_SYNC as u32 != libc::O_SYNC as u32;
        let jobs = self.settled.clone();
        let done = move |synced: kedgefs::Result<()>| {
            let then = synced.map_or_else(|e| Then::Failed(e.into()), |()| Then::Written(written));
            settle::queue(&jobs, PageJob::Request(job(then)));
        };
        self.ops.fsync_async(node, datasync, Box::new(done));
    }

    /// Returns the end of the file if the write appends and the kernel may not know the end. The
    /// kernel appends at the size that it saw last, and sends no request before a write.
    fn end_to_append_at(&self, node: Ino, asked: &abi::WriteIn) -> Option<u64> {
        let appends = asked.flags & libc::O_APPEND as u32 != 0;
        let cached = asked.write_flags & abi::WRITE_CACHE != 0;
        let may_differ = self.options.shared && appends && !cached;
        may_differ.then(|| self.ops.getattr(node).ok()).flatten().map(|attr| attr.size)
    }

    /// Stages the bytes of a WRITE if the caller has an atomic write of the file, and otherwise
    /// returns `None`. The returned job must be queued after the reply.
    fn staged(
        &self,
        header: &InHeader,
        asked: &abi::WriteIn,
        args: &mut Args<'_>,
    ) -> Option<(Answer<abi::WriteOut>, Option<Arc<Shown>>)> {
        if asked.write_flags & abi::WRITE_CACHE != 0 || !self.atomics.is_used() {
            return None;
        }
        let data = match args.bytes(asked.size) {
            Ok(data) => data,
            Err(e) => return Some((Err(e), None)),
        };
        let shown = match self.atomics.stage(header, asked.offset, data)? {
            Ok(shown) => shown,
            Err(e) => return Some((Err(e), None)),
        };
        let dropped = match asked.write_flags & abi::WRITE_KILL_SUIDGID {
            0 => Ok(()),
            _ => {
                let attr = self.ops.getattr(Ino(header.nodeid)).map_err(Errno::from);
                attr.and_then(|attr| self.drop_privilege(&attr, header, false, || true))
            }
        };
        Some((dropped.map(|()| abi::WriteOut { size: asked.size, padding: 0 }), shown))
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
        // O_SYNC includes the bit of O_DSYNC. The kernel sets it for RWF_DSYNC, too.
        if asked.flags & libc::O_DSYNC as u32 != 0 && asked.write_flags & abi::WRITE_CACHE == 0 {
            self.ops.wrote_to_sync(node, asked.offset..asked.offset.saturating_add(size as u64));
        }
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
    /// `O_SYNC` and `O_DSYNC` need nothing here: the kernel sends an FSYNC after the WRITE, except
    /// for an open file with `FOPEN_DIRECT_IO` (see `settle_written`).
    fn write_mode(&self, asked: &abi::WriteIn) -> WriteMode {
        let direct = asked.flags & libc::O_DIRECT as u32 != 0;
        let cached = asked.write_flags & abi::WRITE_CACHE != 0;
        WriteMode::default()
            .with_whole(cached || direct)
            .with_through(direct && !cached)
            .with_keep_times(self.writeback.load(Ordering::Relaxed))
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

    pub(super) fn fallocate(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<()> {
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
        // FALLOCATE is the only change of content for which the kernel sends no kill flag, so the
        // caller's capabilities decide. A redone change has no caller any more; its journal entry
        // has the resulting mode.
        let made_again = self.kept.as_ref().is_some_and(|kept| kept.is_redoing());
        if self.options.handle_killpriv && !made_again {
            let before_append = matches!(mode, FallocateMode::Allocate { .. });
            let applies = || !caller::is_capable(&request.header, Capability::Fsetid);
            self.drop_privilege(&self.ops.getattr(node)?, &request.header, before_append, applies)?;
        }
        Ok(self.ops.fallocate(node, mode, asked.offset, asked.length)?)
    }

    /// Serves LSEEK. The kernel may have dirty pages that it has not written yet: see
    /// [`crate::settle`].
    pub(super) fn lseek(&self, node: Ino, args: &mut Args<'_>, reply: Reply) {
        let asked = args.take().and_then(|asked: abi::LseekIn| match asked.whence as i32 {
            libc::SEEK_DATA => Ok((asked.offset, SeekKind::Data)),
            libc::SEEK_HOLE => Ok((asked.offset, SeekKind::Hole)),
            _ => Err(EINVAL),
        });
        let (offset, kind) = match asked {
            Ok(asked) => asked,
            Err(e) => return reply.err(e.0),
        };
        // A dirty page can only turn a hole into data, so the result is final if there is data
        // already.
        if kind == SeekKind::Data && self.ops.seek(node, offset, kind).is_ok_and(|found| found == offset) {
            return reply.finish(Ok::<_, Errno>(abi::LseekOut { offset }));
        }
        self.settle(SettledJob { reply, ino: node, from: offset, then: Then::Seek(kind) });
    }
}
