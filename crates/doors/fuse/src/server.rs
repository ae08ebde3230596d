//! The server of one mount: the negotiation with the kernel, and the handling common to all
//! requests.
//!
//! # What is negotiated at INIT, and why
//! - **Node ids are inode numbers.** Inode numbers are never reused, so the generation is always 1
//!   and a file handle of an NFS server stays valid for the life of the image.
//! - **No file handles from Linux 6.16 on** (7.44). An overlay stores a handle of the lower file
//!   with each file that it has copied up, and finds the lower file by that handle. These kernels
//!   then consider the inode found stale, without a request, and the overlay returns ESTALE.
//!   Without support for handles the overlay works without them. The price is that files cannot be
//!   opened by handle or exported by NFS; layers of containers are the more common use.
//! - **One pin per entry.** Each reply that returns an inode to the kernel pins it once; FORGET
//!   releases pins. An open file needs no pin of its own: the kernel forgets no inode that is open.
//! - **No opens** (`no_open`), unless the image may contain immutable files ([`crate::opens`]). The
//!   reply to OPEN and OPENDIR is ENOSYS. The kernel then opens and closes files without a request,
//!   and keeps their cache. Three consequences: (1) The kernel accepts ENOSYS only as the reply to
//!   the *first* open. So CREATE fails with ENOSYS too, and the kernel continues with MKNOD and an
//!   open. Besides, a file opened by CREATE is always RELEASEd, synchronously on a `fuseblk` mount.
//!   (2) ATOMIC_O_TRUNC must not be negotiated: O_TRUNC would be part of an OPEN that is never
//!   sent, and be lost. (It must not be negotiated without `handle_killpriv` either: the kernel
//!   would keep set-user-id bits.) (3) An unlinked open file lives until the FORGET after its last
//!   close.
//! - **Long timeouts**, for attributes, names, and names that do not exist. Changes pass through
//!   the kernel, which keeps its caches coherent, or the server notifies the kernel of them
//!   ([`crate::notify`]). None at all, and no cached listings, on a mount that is `shared`
//!   (docs/rfcs/0052).
//! - **Writeback cache**, if the mount asks for it. The kernel owns size, mtime and ctime of
//!   regular files. It sends the times in a SETATTR that sets only times, which must change nothing
//!   else. A WRITE does not change the times, because it may arrive after the SETATTR. Without the
//!   cache the server owns the times.
//! - **No asynchronous direct IO.** With ASYNC_DIO the kernel returns from io_submit(2) before a
//!   direct write is complete, and drops no cached page when it completes. A page that a reader
//!   cached meanwhile stays, and one byte stored into it writes the whole old page to the device,
//!   over durable bytes. The server cannot prevent that: these writes are background requests, of
//!   which the kernel sends `MAX_BACKGROUND` at a time. If the reply to each waited until its pages
//!   are invalidated, these writes could take all slots and wait for pages whose READ or WRITE
//!   waits for a slot. If the pages were invalidated after the reply, they would be stale for a
//!   moment. Without the flag the kernel waits for a direct write, and drops the pages itself,
//!   under the inode's lock (docs/rfcs/0018).
//! - **LSEEK** must first make the kernel write its dirty pages, which the kernel does not do by
//!   itself: see [`crate::settle`].
//! - **The server clears set-user-id bits** (`handle_killpriv`). Without it the kernel asks for the
//!   xattr `security.capability` before every write(2). With it the kernel remembers the absence,
//!   removes capabilities itself by removing the xattr, and flags the writes and truncates before
//!   which the set-user-id and set-group-id bits must be cleared.
//! - **Access control lists**, if the image may hold them. The kernel checks permissions by these
//!   lists, which it reads as xattrs and caches. The server keeps list and mode consistent and
//!   makes new files inherit the default list. So the server gets the modes of new files without
//!   the umask applied (DONT_MASK), and applies the umask where there is no default list. The
//!   directory's list cannot change between its lookup and the creation, because the kernel holds
//!   the directory's lock for both.
//! - **Idmapped mounts**, if this process is root. The kernel maps all ids in both directions and
//!   checks permissions. It then sends no ids with requests that make no inode, so no decision here
//!   depends on ids ([`mod@crate::caller`]). This needs root because only root of the file system's
//!   user namespace can make an idmapped mount.
//! - **READDIRPLUS always**, not adaptively, so that a cold walk of a tree needs no LOOKUP for each
//!   name.
//!
//! # Threads
//! [`crate::pool`] explains which worker receives, and why there is usually only one receiver.
//!
//! A change that has to wait for the end of a freeze occupies no worker: see [`crate::parking`].
//!
//! A worker may have to read the memory of a caller (see [`crate::control`]), which may be mapped
//! from this mount. So there are always at least two workers.

use crate::abi::{self, OPCODES, init, init2, op_name};
use crate::args::Args;
use crate::atomics::Atomics;
use crate::control;
use crate::errno::{Answer, Errno};
use crate::failures::Failures;
use crate::keep::Kept;
use crate::keep::area::Negotiated;
use crate::notify::Changes;
use crate::opens::Opens;
use crate::ops::Ops;
use crate::options::FuseOptions;
use crate::parking::{Job, Parking};
use crate::placement::Placement;
use crate::pool::WorkerPool;
use crate::settle::{self, PageJob};
use crate::status::{Status, Visits};
use crate::transport::{Reply, Request, Transport};
use kedge_base::Counter;
use kedgefs::Ino;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use zerocopy::FromZeros;

/// The most background requests that the kernel may have in flight, and the number from which on it
/// throttles writeback.
const MAX_BACKGROUND: u16 = 64;
const CONGESTION_THRESHOLD: u16 = 48;

pub(crate) type OnDestroy = Box<dyn FnOnce() + Send>;

/// Returns a part of a mount's state as JSON. It must not wait for the device.
pub type DeviceState = Arc<dyn Fn() -> Value + Send + Sync>;

/// Serves the requests of one mount from a file system.
pub struct Server<O> {
    pub(crate) ops: Arc<O>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) options: FuseOptions,
    /// Whether the kernel owns size and times of regular files (negotiated at INIT).
    pub(crate) writeback: AtomicBool,
    /// Whether the kernel uses access control lists and sends modes without the umask applied
    /// (negotiated at INIT).
    pub(crate) acls: AtomicBool,
    /// Whether the kernel checks the caller's right to set file flags before it sends the ioctl.
    pub(crate) flags_checked: AtomicBool,
    /// Opens that can change pages.
    pub(crate) opens: Opens,
    pub(crate) atomics: Arc<Atomics>,
    pub(crate) settled: mpsc::Sender<PageJob>,
    /// Called by DESTROY, so that it completes before umount(2) returns.
    on_destroy: Mutex<Option<OnDestroy>>,
    requests: [Counter; OPCODES],
    requests_unknown: Counter,
    failures: Arc<Failures>,
    pub(crate) pool: Arc<WorkerPool>,
    /// The member `mount` of `system.kedgefs.info`.
    mount: Value,
    /// Receives connections to the mount's socket that begin with [`crate::status::VISIT`].
    visits: Option<Visits>,
    pub(crate) changes: Changes,
    /// The member `device_requests` of information and counters.
    device_requests: Option<DeviceState>,
    /// Dropped before the file system is closed: after the close another file system may get its
    /// device number.
    status: Mutex<Option<Status>>,
    /// `None` if the mount cannot be frozen.
    pub(crate) parking: Option<Parking>,
    /// `None` if no keeper replaces this server when it dies.
    pub(crate) kept: Option<Arc<Kept>>,
}

impl<O: Ops> Server<O> {
    /// `mount` is the object that `system.kedgefs.info` shows as `mount`; `on_destroy` runs
    /// when the kernel ends the connection. The jobs from the receiver are for
    /// [`crate::settle::serve`].
    pub fn new(
        ops: Arc<O>,
        transport: Arc<dyn Transport>,
        options: FuseOptions,
        mount: Value,
        on_destroy: OnDestroy,
    ) -> (Server<O>, mpsc::Receiver<PageJob>) {
        let (settled, jobs) = mpsc::channel();
        let placement = options.placed().then(|| Placement::new(options.placement));
        let least = transport.workers();
        let workers_max = transport.workers_max().min(options.workers_max_with(ops.cache_size())).max(least);
        let pool = WorkerPool::new(least..=workers_max, options.receivers_max(), placement);
        let server = Server {
            options: options.of_image(&*ops),
            ops,
            transport,
            writeback: AtomicBool::new(false),
            acls: AtomicBool::new(false),
            flags_checked: AtomicBool::new(false),
            opens: Opens::default(),
            atomics: Arc::default(),
            settled,
            on_destroy: Mutex::new(Some(on_destroy)),
            requests: [const { Counter::new() }; OPCODES],
            requests_unknown: Counter::new(),
            failures: Arc::default(),
            pool: Arc::new(pool),
            mount,
            visits: None,
            changes: Changes::default(),
            device_requests: None,
            status: Mutex::new(None),
            parking: None,
            kept: None,
        };
        (server, jobs)
    }

    /// Sets the receiver of visits and the source of the device's pending requests.
    pub(crate) fn offering(self, visits: Option<Visits>, device_requests: Option<DeviceState>) -> Server<O> {
        Server { visits, device_requests, ..self }
    }

    /// Sets the counter of threads that make changes without the kernel. While it is not zero,
    /// names get a timeout of zero.
    pub(crate) fn with_changes(self, changes: &Changes) -> Server<O> {
        Server { changes: changes.clone(), ..self }
    }

    /// Starts the status socket, which replies even while no worker is free.
    pub(crate) fn open_status(self: &Arc<Self>, device: &str) {
        let server = Arc::downgrade(self);
        let read = Arc::new(move |name: &[u8]| server.upgrade()?.control_xattr(name));
        match Status::start(device, read, self.visits.clone()) {
            Ok(status) => *self.status.lock() = Some(status),
            Err(e) => tracing::warn!("no socket for questions about the mount and for copies into it: {e}"),
        }
    }

    /// Makes the mount freezable. The jobs from the receiver are for [`crate::freeze::serve`].
    pub(crate) fn freezable(self) -> (Server<O>, mpsc::Receiver<Job>) {
        let (send, jobs) = mpsc::channel();
        (Server { parking: Some(Parking::new(send)), ..self }, jobs)
    }

    /// Calls the session's final function, at most once.
    pub(crate) fn destroy(&self) {
        drop(self.status.lock().take());
        self.atomics.clear();
        let on_destroy = self.on_destroy.lock().take();
        if let Some(on_destroy) = on_destroy {
            on_destroy();
        }
    }

    pub(crate) fn init(&self, request: &Request<'_>) -> Answer<abi::InitOut> {
        let mut args = Args::new(request.body);
        let offer: abi::InitIn = args.take()?;
        let mut answer = abi::InitOut::new_zeroed();
        answer.major = abi::MAJOR;
        if offer.major > abi::MAJOR {
            // The kernel then sends INIT again, with the version in the reply.
            return Ok(answer);
        }
        if offer.major < abi::MAJOR || offer.minor < abi::MINOR_MIN {
            tracing::error!("the kernel speaks FUSE {}.{}: too old", offer.major, offer.minor);
            return Err(Errno(libc::EPROTO));
        }
        let mut wanted = init::ASYNC_READ
            | init::EXPORT_SUPPORT
            | init::BIG_WRITES
            | init::DO_READDIRPLUS
            | init::PARALLEL_DIROPS
            | init::ABORT_ERROR
            | init::MAX_PAGES
            | init::CACHE_SYMLINKS
            | init::INIT_EXT;
        for (option, flag) in [
            (self.options.writeback_cache, init::WRITEBACK_CACHE),
            (self.options.auto_invalidate, init::AUTO_INVAL_DATA),
            (self.options.handle_killpriv, init::HANDLE_KILLPRIV_V2),
            (!self.options.no_open && self.options.handle_killpriv, init::ATOMIC_O_TRUNC),
        ] {
            if option {
                wanted |= flag;
            }
        }
        // Negotiate all of these flags or none: without SETXATTR_EXT the set-group-id bit would
        // survive changes of lists.
        const ACLS: u32 = init::POSIX_ACL | init::DONT_MASK | init::SETXATTR_EXT;
        let acls = self.ops.has_acls() && offer.flags & ACLS == ACLS;
        self.acls.store(acls, Ordering::Relaxed);
        if acls {
            wanted |= ACLS;
        }
        // With the flag the kernel always sends the whole extension.
        let extended = offer.flags & init::INIT_EXT != 0;
        let offer2 = if extended { args.take()? } else { abi::InitInExt::new_zeroed() };
        answer.flags2 = upper_flags(offer.minor, offer2.flags2);
        if self.transport.has_lanes() {
            if offer2.flags2 & init2::OVER_IO_URING == 0 {
                tracing::error!("the kernel does not offer FUSE over io_uring");
                return Err(Errno(libc::EPROTO));
            }
            answer.flags2 |= init2::OVER_IO_URING;
        }
        if answer.flags2 & init2::NO_EXPORT_SUPPORT != 0 {
            wanted &= !init::EXPORT_SUPPORT;
        }
        let flags = wanted & offer.flags;
        self.writeback.store(flags & init::WRITEBACK_CACHE != 0, Ordering::Relaxed);
        self.flags_checked.store(offer.minor >= abi::MINOR_FLAGS, Ordering::Relaxed);
        answer.minor = abi::MINOR.min(offer.minor);
        if let Some(kept) = &self.kept {
            if offer2.flags2 & init2::HAS_RESEND == 0 {
                tracing::error!("this kernel cannot send requests again: option keeper needs Linux 6.9");
                return Err(Errno(libc::EPROTO));
            }
            let negotiated = Negotiated {
                done: 1,
                writeback: u32::from(self.writeback.load(Ordering::Relaxed)),
                acls: u32::from(acls),
                flags_checked: u32::from(self.flags_checked.load(Ordering::Relaxed)),
            };
            kept.negotiated(negotiated);
        }
        // The kernel's offer is older than `raise_limits` in `mount`; the kernel uses the smaller
        // of its own limit and this value.
        answer.max_readahead = offer.max_readahead.max(abi::MAX_IO as u32);
        answer.flags = flags;
        answer.max_background = MAX_BACKGROUND;
        answer.congestion_threshold = CONGESTION_THRESHOLD;
        answer.max_write = abi::MAX_IO as u32;
        answer.time_gran = 1;
        answer.max_pages = abi::MAX_PAGES;
        tracing::debug!(
            "FUSE {}.{} with flags {flags:#x} of {:#x}, {:#x} of {:#x}",
            offer.major,
            offer.minor,
            offer.flags,
            answer.flags2,
            offer2.flags2
        );
        Ok(answer)
    }

    /// The value of a control xattr of the root directory.
    pub(crate) fn control_xattr(&self, name: &[u8]) -> Option<Vec<u8>> {
        let value = match name {
            b"system.kedgefs.pid" => std::process::id().to_string(),
            b"system.kedgefs.info" => self.with_member(&self.ops.info_json(), "mount", self.mount_json()),
            b"system.kedgefs.stats" => self.with_member(&self.ops.stats_json(), "fuse", self.to_json()),
            _ => return None,
        };
        Some(value.into_bytes())
    }

    /// The member `mount`, with the deaths and handovers that the keeper has noted.
    fn mount_json(&self) -> Value {
        let mut mount = self.mount.clone();
        if let (Some(kept), Some(members)) = (&self.kept, mount.as_object_mut()) {
            members.insert("keeper".into(), kept.history().clone());
        }
        mount
    }

    fn with_member(&self, object: &str, name: &'static str, value: Value) -> String {
        let device = self.device_requests.as_ref().map(|requests| ("device_requests", requests()));
        control::with_members(object, [(name, value)].into_iter().chain(device))
    }

    /// The number of requests by opcode (without zeros), and of failed requests.
    fn to_json(&self) -> Value {
        let known = self.requests.iter().enumerate().map(|(i, n)| (op_name(i as u32), n.get()));
        let all =
            known.filter(|(name, _)| *name != "UNKNOWN").chain([("UNKNOWN", self.requests_unknown.get())]);
        let requests =
            all.filter(|(_, count)| *count > 0).map(|(name, count)| (name.to_owned(), json!(count)));
        json!({
            "requests": requests.collect::<Map<String, Value>>(),
            "failed": self.failures.to_json(),
            "workers": self.pool.counts.to_json(self.pool.started()),
            "placement": self.pool.placement_json(),
            "parked_bytes": self.parking.as_ref().map_or(0, Parking::bytes),
        })
    }

    /// Counts a request, and makes its reply.
    pub(crate) fn accept(&self, request: &Request<'_>) -> Reply {
        self.requests.get(request.header.opcode as usize).unwrap_or(&self.requests_unknown).inc();
        Reply::new(self.transport.clone(), self.failures.clone(), request)
    }

    /// Notifies the kernel that an inode's attributes have changed for a reason that the kernel
    /// does not know.
    pub(crate) fn forget_attributes(&self, ino: u64) {
        settle::forget_attributes(&*self.transport, Ino(ino));
    }
}

/// Returns the offered flags from bit 32 on that the server accepts.
fn upper_flags(minor: u32, offered: u32) -> u32 {
    let mut wanted = 0;
    if minor >= abi::MINOR_EPOCH {
        wanted |= init2::NO_EXPORT_SUPPORT;
    }
    if rustix::process::geteuid().is_root() {
        wanted |= init2::ALLOW_IDMAP;
    }
    wanted & offered
}
