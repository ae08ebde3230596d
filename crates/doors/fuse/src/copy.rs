//! COPY_FILE_RANGE: files of the mount share blocks instead of being copied.
//!
//! Before the kernel sends the request, it has written the dirty pages of both ranges. Afterwards
//! it drops the target's pages. Ranges that cannot be shared are refused with EOPNOTSUPP, after
//! which the kernel copies them through its page cache, as if the request did not exist.
//!
//! # Durability
//! The request does not say whether the target is open with O_SYNC, and the kernel sends no FSYNC
//! after it. So the reply waits until the clone is durable, which takes one force of the log.
//! Copying a few blocks takes none, so short ranges are refused.
//!
//! # Errors
//! A long clone takes several records. If an error stops it, the reply is the length of the cloned
//! part. If the clone cannot be made durable, the reply is an error, for which the kernel drops no
//! pages and keeps the target's size, so these are invalidated before ([`crate::settle`]).

use crate::abi::{CopyFileRange64Out, CopyFileRangeIn, WriteOut};
use crate::args::Args;
use crate::caller;
use crate::errno::{Answer, Errno};
use crate::ops::Ops;
use crate::server::Server;
use crate::settle::{self, PageJob, SettledJob, Then};
use crate::task::Capability;
use crate::transport::{Reply, Request};
use kedge_base::BLOCK_SIZE;
use kedgefs::Ino;
use zerocopy::FromZeros;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The least length that is shared. The kernel copies shorter ranges.
const SHARED_MIN: u64 = 64 << 10;
/// The longest range that one reply can report: the size in a WRITE reply has 32 bits.
const REPLY_MAX: u64 = u32::MAX as u64 / BLOCK * BLOCK;

impl<O: Ops> Server<O> {
    /// Serves COPY_FILE_RANGE. `wide` means that the reply's size has 64 bits.
    pub(crate) fn copy_range(&self, request: &Request<'_>, args: &mut Args<'_>, reply: Reply, wide: bool) {
        let cloned = args.take::<CopyFileRangeIn>().and_then(|asked| {
            let len = if wide { asked.len } else { asked.len.min(REPLY_MAX) };
            let size = self.share(request, &CopyFileRangeIn { len, ..asked })?;
            Ok((Ino(asked.nodeid_out), asked.off_out, size))
        });
        let (target, from, size) = match cloned {
            Ok(cloned) => cloned,
            Err(e) => return reply.err(e.0),
        };
        let jobs = self.settled.clone();
        self.ops.fsync_async(
            target,
            false,
            Box::new(move |synced| match synced.map_err(Errno::from) {
                Ok(()) if wide => reply.finish(Ok::<_, Errno>(CopyFileRange64Out { size })),
                Ok(()) => {
                    reply.finish(Ok::<_, Errno>(WriteOut { size: size as u32, ..WriteOut::new_zeroed() }));
                }
                Err(e) => {
                    let then = Then::Failed(e);
                    settle::queue(&jobs, PageJob::Request(SettledJob { reply, ino: target, from, then }));
                }
            }),
        );
    }

    /// Clones the range from its start as far as blocks can be shared. Returns the cloned length.
    fn share(&self, request: &Request<'_>, asked: &CopyFileRangeIn) -> Answer<u64> {
        const COPY: Errno = Errno(libc::EOPNOTSUPP);
        if !self.options.reflink {
            return Err(COPY);
        }
        if asked.flags != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let (source, target) = (Ino(request.header.nodeid), Ino(asked.nodeid_out));
        let (from, to) = (self.ops.getattr(source)?, self.ops.getattr(target)?);
        let len = asked.len.min(from.size.saturating_sub(asked.off_in));
        let to_end = asked.off_out.saturating_add(len);
        let whole = asked.off_in + len == from.size && to_end >= to.size;
        let len = if whole { len } else { len / BLOCK * BLOCK };
        let aligned = asked.off_in.is_multiple_of(BLOCK) && asked.off_out.is_multiple_of(BLOCK);
        if !aligned || len < SHARED_MIN {
            return Err(COPY);
        }
        // Set-id bits are cleared here, because the kernel sends no kill flag with this request.
        if self.options.handle_killpriv {
            let applies = || !caller::is_capable(&request.header, Capability::Fsetid);
            self.drop_privilege(&to, &request.header, false, applies)?;
        }
        match self.ops.clone_most(source, asked.off_in, target, asked.off_out, len) {
            Ok(cloned) => Ok(cloned),
            // Files that cannot share blocks can still be copied.
            Err(kedgefs::Error::Invalid(_) | kedgefs::Error::CrossTree | kedgefs::Error::NotSupported(_)) => {
                Err(COPY)
            }
            Err(e) => Err(e.into()),
        }
    }
}
