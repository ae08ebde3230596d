//! Options of a mount.

use crate::ops::Ops;
use crate::placement::PlacementMode;
use serde_json::{Value, json};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Limit for the workers of a mount.
const WORKERS_MAX: usize = 64;

/// The bytes of cache for each worker. A worker has buffers of 2 MiB, of which its requests use
/// only a part. So all workers together use at most a quarter as much memory as the cache.
const CACHE_OF_WORKER: u64 = 8 << 20;

/// How the kernel and the server exchange requests and replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportKind {
    /// Reads and writes of `/dev/fuse`.
    #[default]
    Dev,
    /// Rings of io_uring, one for each processor: [`crate::uring`].
    IoUring,
}

impl TransportKind {
    pub const ALL: [TransportKind; 2] = [TransportKind::Dev, TransportKind::IoUring];

    /// The value of the mount option.
    pub fn name(self) -> &'static str {
        match self {
            TransportKind::Dev => "dev",
            TransportKind::IoUring => "io_uring",
        }
    }
}

impl std::str::FromStr for TransportKind {
    type Err = ();

    fn from_str(name: &str) -> Result<TransportKind, ()> {
        TransportKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or(())
    }
}

#[derive(Clone, Debug)]
pub struct FuseOptions {
    /// Whether to make a `fuseblk` mount, for which this process must be root, or a plain mount.
    /// `None` makes a `fuseblk` mount if this process is root and the kernel permits it, and
    /// otherwise a plain mount.
    pub privileged: Option<bool>,
    /// The source that `/proc/mounts` shows for a plain mount; `None` for the image's path.
    pub fsname: Option<String>,
    /// Admits users other than the mount's owner. `None` admits them only on a mount that root
    /// makes.
    pub allow_other: Option<bool>,
    pub read_only: bool,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
    pub noatime: bool,
    /// The number of threads that serve requests. `None`: twice the number of CPUs, but between two
    /// and four. As long as all of them wait within requests, more are started: up to one for each
    /// 8 MiB of the cache, and up to 64. There are never fewer than two: see [`crate::Server`].
    pub workers: Option<usize>,
    /// When an additional worker receives on the processor of its client.
    pub placement: PlacementMode,
    /// How requests and replies are exchanged. With io_uring, `placement` has no effect.
    pub transport: TransportKind,
    /// Gives each worker its own channel to the kernel if that is permitted.
    pub clone_channels: bool,
    /// The kernel gathers small writes in its page cache and owns size and times of files that are
    /// being written. Off by default, because write(2) would then succeed beyond the capacity of
    /// the image, since no space is reserved for it.
    pub writeback_cache: bool,
    /// Copies within the mount share blocks.
    pub reflink: bool,
    /// The path of the tree that is mounted, shown in the mount's information: see
    /// [`crate::OneTree`].
    pub tree: Option<String>,
    /// Opens and closes need no request, unless the image may contain immutable files. See
    /// [`crate::Server`].
    pub no_open: bool,
    /// The server clears set-user-id bits on writes, so that the kernel need not ask for
    /// `security.capability` before each write. See [`crate::Server`].
    pub handle_killpriv: bool,
    /// The kernel drops a file's cached pages when the modification time changes. Needed if files
    /// change without the kernel's knowledge, as in a crash test that makes them lose data. It
    /// costs a request for each read unless `cache_timeout` is long.
    pub auto_invalidate: bool,
    /// How long the kernel may use cached names and attributes. All changes pass through the kernel
    /// or are notified to it, so only the width of the kernel's counter limits this time.
    pub cache_timeout: Duration,
    /// Whether other clients change the file system while it is mounted. The kernel then uses no
    /// name, no attribute and no listing without a request. The program that changes a file's bytes
    /// for such a client notifies the kernel ([`crate::Notifier`]). See docs/rfcs/0052.
    pub shared: bool,
    /// The subcommand with which this program acts as a [`crate::courier`]. `None` if it has none.
    pub courier: Option<&'static str>,
}

impl Default for FuseOptions {
    fn default() -> FuseOptions {
        FuseOptions {
            privileged: None,
            fsname: None,
            allow_other: None,
            read_only: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            noatime: false,
            workers: None,
            placement: PlacementMode::default(),
            transport: TransportKind::default(),
            clone_channels: true,
            writeback_cache: false,
            reflink: true,
            tree: None,
            no_open: true,
            handle_killpriv: true,
            auto_invalidate: false,
            cache_timeout: Duration::from_secs(3600),
            shared: false,
            courier: None,
        }
    }
}

impl FuseOptions {
    /// The options for a mount of this image: without `no_open` if files may be immutable.
    pub(crate) fn of_image(self, ops: &impl Ops) -> FuseOptions {
        FuseOptions { no_open: self.no_open && !ops.has_immutable(), ..self }
    }

    /// How long names and attributes are valid.
    pub(crate) fn timeout(&self) -> Duration {
        if self.shared { Duration::ZERO } else { self.cache_timeout }
    }

    /// The number of workers at the start.
    pub(crate) fn worker_count(&self) -> usize {
        let cpus = std::thread::available_parallelism().map_or(2, |n| n.get());
        self.workers.unwrap_or((cpus * 2).clamp(2, 4)).clamp(2, WORKERS_MAX)
    }

    /// The number of workers at the start, and the limit for their number. If the user chose a
    /// number, both are that number.
    pub(crate) fn worker_range(&self) -> RangeInclusive<usize> {
        let first = self.worker_count();
        first..=self.workers.map_or(WORKERS_MAX, |_| first)
    }

    /// The most workers with a cache of `cache_size` bytes. A number that the user chose stays.
    pub(crate) fn workers_max_with(&self, cache_size: u64) -> usize {
        let permitted = (cache_size / CACHE_OF_WORKER).min(WORKERS_MAX as u64) as usize;
        permitted.max(self.worker_count())
    }

    pub(crate) fn placed(&self) -> bool {
        match self.placement {
            _ if self.transport == TransportKind::IoUring => false,
            PlacementMode::Off => false,
            PlacementMode::Auto => std::thread::available_parallelism().is_ok_and(|n| n.get() > 1),
            PlacementMode::On => true,
        }
    }

    /// The most workers that receive at the same time: half the processors, because clients need
    /// processors as well.
    pub(crate) fn receivers_max(&self) -> usize {
        std::thread::available_parallelism().map_or(1, |n| n.get() / 2).max(1)
    }

    /// The options, for `system.kedgefs.info`.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "read_only": self.read_only,
            "nosuid": self.nosuid,
            "nodev": self.nodev,
            "noexec": self.noexec,
            "workers": self.worker_count(),
            "placement": self.placement.name(),
            "transport": self.transport.name(),
            "writeback_cache": self.writeback_cache,
            "reflink": self.reflink,
            "tree": self.tree,
            "no_open": self.no_open,
            "handle_killpriv": self.handle_killpriv,
            "cache_timeout_s": self.timeout().as_secs(),
            "shared": self.shared,
        })
    }
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
