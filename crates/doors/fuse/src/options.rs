//! Options of a mount.

use crate::ops::Ops;
use crate::placement::PlacementMode;
use serde_json::{Value, json};
use std::ops::RangeInclusive;
use std::time::Duration;

/// The most workers of a mount.
const WORKERS_MAX: usize = 64;

/// The bytes of cache that permit one worker. A worker has buffers of 2 MiB and uses of them what
/// its requests need, so the workers take at most a quarter of what the cache takes.
const CACHE_OF_WORKER: u64 = 8 << 20;

/// The way on which the kernel sends requests and gets replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportKind {
    /// Reads and writes of `/dev/fuse`.
    #[default]
    Dev,
    /// Rings, one for each processor: [`crate::uring`].
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
    /// `None` makes a `fuseblk` mount if this process is root and the kernel permits it, else a
    /// plain mount.
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
    /// The number of threads that serve requests. `None`: twice the CPUs, from two to four, and
    /// more as long as all of them wait for requests to end: one for each 8 MiB of the cache, and
    /// at most 64. Never fewer than two: see [`crate::Server`].
    pub workers: Option<usize>,
    /// Whether one more worker receives on the processor of its client.
    pub placement: PlacementMode,
    /// The way of requests and replies. With io_uring `placement` has no effect.
    pub transport: TransportKind,
    /// Gives each worker its own channel to the kernel if that is permitted.
    pub clone_channels: bool,
    /// The kernel gathers small writes in its page cache and owns size and times of files that are
    /// being written. Off by default, because write(2) would then succeed beyond the capacity of
    /// the image, since no space is reserved for it.
    pub writeback_cache: bool,
    /// Copies within the mount share blocks.
    pub reflink: bool,
    /// The path of the tree that the mount shows, for information: see [`crate::OneTree`].
    pub tree: Option<String>,
    /// Opens and closes take no request, unless the image may hold immutable files. See
    /// [`crate::Server`].
    pub no_open: bool,
    /// The server clears set-user-id bits on writes, so that the kernel need not ask for
    /// `security.capability` before each write. See [`crate::Server`].
    pub handle_killpriv: bool,
    /// The kernel drops a file's cached pages when it sees another modification time. Needed where
    /// files change without the kernel, as in a crash test that makes them lose data. It costs a
    /// request for each read unless `cache_timeout` is long.
    pub auto_invalidate: bool,
    /// How long the kernel may use its cached names and attributes. All changes pass through the
    /// kernel or are notified to it, so only the width of a counter limits this time.
    pub cache_timeout: Duration,
    /// The subcommand with which this program is a [`crate::courier`]. `None`: it has none.
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
            courier: None,
        }
    }
}

impl FuseOptions {
    /// The options for a mount of this image, where `no_open` is off if files may be immutable.
    pub(crate) fn of_image(self, ops: &impl Ops) -> FuseOptions {
        FuseOptions { no_open: self.no_open && !ops.has_immutable(), ..self }
    }

    /// The workers at first.
    pub(crate) fn worker_count(&self) -> usize {
        let cpus = std::thread::available_parallelism().map_or(2, |n| n.get());
        self.workers.unwrap_or((cpus * 2).clamp(2, 4)).clamp(2, WORKERS_MAX)
    }

    /// From the workers at first to the most that there may be. A number that was asked for stays.
    pub(crate) fn worker_range(&self) -> RangeInclusive<usize> {
        let first = self.worker_count();
        first..=self.workers.map_or(WORKERS_MAX, |_| first)
    }

    /// The most workers beside a cache of `cache_size` bytes. A number that was asked for stays.
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

    /// The most workers that receive at the same time: half the processors, because the clients
    /// need processors too.
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
            "cache_timeout_s": self.cache_timeout.as_secs(),
        })
    }
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
