//! Opens and releases: what the kernel may cache of an open file, and which opens are counted.

use crate::abi::{self, fopen};
use crate::args::Args;
use crate::errno::{Answer, Errno};
use crate::opens::{DIRECT, STORES, Store};
use crate::ops::Ops;
use crate::server::Server;
use crate::transport::Request;
use kedgefs::{FileFlags, Ino, SetAttr};
use std::sync::atomic::Ordering;

impl<O: Ops> Server<O> {
    /// Opens a file that was just made, and so has no flag that forbids changes.
    pub(super) fn new_open(&self, ino: Ino, flags: u32) -> Answer<abi::OpenOut> {
        let fh = if self.can_store(flags) { self.counted(ino, self.opens.store(ino)?) } else { 0 };
        Ok(abi::OpenOut { fh, open_flags: fopen::KEEP_CACHE | fopen::NOFLUSH, padding: 0 })
    }

    /// Whether a file opened with these flags can change pages without a WRITE. False on a mount
    /// with `no_open`: there is no RELEASE to end the count.
    fn can_store(&self, flags: u32) -> bool {
        let access = flags as i32 & libc::O_ACCMODE;
        let cached = self.writeback.load(Ordering::Relaxed);
        !self.options.no_open && (access == libc::O_RDWR || cached && access == libc::O_WRONLY)
    }

    /// Serves OPEN: see [`crate::opens`].
    pub(super) fn open(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<abi::OpenOut> {
        if self.options.no_open {
            return Err(Errno(libc::ENOSYS));
        }
        let asked: abi::OpenIn = args.take()?;
        let mut opened = None;
        self.ops.opening(Ino(request.header.nodeid), &mut || {
            opened.insert(self.open_with(request, &asked)).is_ok()
        });
        opened.expect("`opening` calls its argument")
    }

    fn open_with(&self, request: &Request<'_>, asked: &abi::OpenIn) -> Answer<abi::OpenOut> {
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
                let open = open_out(fopen::DIRECT_IO | fopen::KEEP_CACHE | fopen::NOFLUSH);
                return Ok(abi::OpenOut { fh: DIRECT, ..open });
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

    pub(super) fn release(&self, node: Ino, args: &mut Args<'_>) -> Answer<()> {
        let asked: abi::ReleaseIn = args.take()?;
        if asked.fh == STORES {
            self.opens.release(node);
            self.ops.closed_to_store(node);
        }
        Ok(())
    }

    pub(super) fn opendir(&self, node: Ino) -> Answer<abi::OpenOut> {
        // The kernel would compare a cached listing with nothing but its own changes. A mount that
        // is shared therefore sees each open of a directory.
        let (shared, cached) = (self.options.shared, fopen::KEEP_CACHE | fopen::CACHE_DIR);
        let out = open_out(if shared { 0 } else { cached });
        match self.ops.dir_handle(node)? {
            Some(fh) => Ok(abi::OpenOut { fh, ..out }),
            None if self.options.no_open && !shared => Err(Errno(libc::ENOSYS)),
            None => Ok(out),
        }
    }
}

fn open_out(open_flags: u32) -> abi::OpenOut {
    abi::OpenOut { fh: 0, open_flags, padding: 0 }
}
