//! Block devices under the engine: a file or block device, memory, and a simulator that records and
//! crashes.
//!
//! # The contract
//! 1. Offsets and lengths are whole blocks ([`kedge_base::BLOCK_SIZE`]) inside [`Geometry::size`].
//! 2. A completed write is visible to every later read. It is *durable* (survives power loss) only
//!    once a flush that was submitted after its completion has completed, or if it was a `fua`
//!    write that completed.
//! 3. Between two flushes any subset of the writes may reach the medium, in any order, torn at 512
//!    bytes.
//! 4. A FUA write makes itself durable and nothing else. A write or a discard of the same place
//!    that completed before it, and that no flush has covered, may still land after it.
//! 5. Every submitted request completes exactly once, with its buffers, on any thread; requests of
//!    one batch are unordered. Completions never run under a lock that `submit` takes.
//! 6. An error is final: a device never retries silently. [`Error::Fenced`] shuts the mount down.
//!    After [`Error::OutcomeUnknown`] the device completes every request with an error until it
//!    is opened again.

#![deny(unsafe_code)]

mod ahead;
#[cfg(test)]
mod conformance;
mod file;
mod latency;
pub mod location;
mod mem;
#[cfg(target_os = "linux")]
mod nbd;
mod overlay;
mod pages;
#[cfg(target_os = "linux")]
mod rbd;
mod request;
pub mod sim;
mod stats;
#[cfg(test)]
mod testing;
mod watched;

pub use ahead::ReadAhead;
pub use file::{FileDevice, OpenOptions};
pub use latency::{Latency, LatencyKind};
pub use location::Location;
pub use mem::MemDevice;
#[cfg(target_os = "linux")]
pub use nbd::NbdDevice;
pub use overlay::OverlayDevice;
#[cfg(target_os = "linux")]
pub use rbd::RbdDevice;
pub use request::{Completion, CompletionSink, Io, Op, Request, run_apart, run_batch};
pub use stats::{DeviceErrors, DeviceStats};
pub use watched::{LATE, Oldest, Pending, WatchedDevice};

use kedge_base::{BLOCK_SIZE, Error, IoBuf, Result};
use std::sync::Arc;

/// Opens an image wherever it is.
pub fn open(location: &Location, options: OpenOptions) -> Result<Arc<dyn Device>> {
    match location {
        Location::Path(path) => Ok(FileDevice::open(path, options)?),
        #[cfg(target_os = "linux")]
        Location::Nbd(uri) => Ok(NbdDevice::open(uri, options)?),
        #[cfg(target_os = "linux")]
        Location::Rbd(uri) => Ok(RbdDevice::open(uri, options)?),
        #[cfg(not(target_os = "linux"))]
        remote => Err(not_here(remote)),
    }
}

/// Whether the image exists. An NBD export is assumed to exist: only opening it shows.
pub fn exists(location: &Location) -> Result<bool> {
    match location {
        Location::Path(path) => path
            .try_exists()
            .map_err(|e| Error::invalid(format!("cannot find out whether {} exists: {e}", path.display()))),
        #[cfg(target_os = "linux")]
        Location::Nbd(_) => Ok(true),
        #[cfg(target_os = "linux")]
        Location::Rbd(uri) => rbd::exists(uri),
        #[cfg(not(target_os = "linux"))]
        remote => Err(not_here(remote)),
    }
}

/// Makes a file or an image of `size` bytes that can be opened.
pub fn create(location: &Location, size: u64) -> Result<()> {
    match location {
        Location::Path(path) => FileDevice::create(path, size, OpenOptions::default()).map(drop),
        #[cfg(target_os = "linux")]
        Location::Nbd(uri) => Err(Error::invalid(format!("{uri}: the server makes its exports"))),
        #[cfg(target_os = "linux")]
        Location::Rbd(uri) => rbd::create(uri, size),
        #[cfg(not(target_os = "linux"))]
        remote => Err(not_here(remote)),
    }
}

/// Whether the lock on an image is free, as far as this kind of device can find out: see its
/// module.
pub fn is_unlocked(location: &Location) -> Result<bool> {
    match location {
        Location::Path(path) => file::is_unlocked(path),
        #[cfg(target_os = "linux")]
        Location::Nbd(uri) => nbd::is_unlocked(uri),
        #[cfg(target_os = "linux")]
        Location::Rbd(uri) => rbd::is_unlocked(uri),
        #[cfg(not(target_os = "linux"))]
        remote => Err(not_here(remote)),
    }
}

#[cfg(not(target_os = "linux"))]
fn not_here(location: &Location) -> Error {
    Error::Unsupported(format!("{location}: images over the network are for Linux").into())
}

/// How the device makes a single write durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FuaKind {
    /// One request does both (O_DSYNC, a FUA-capable device).
    Native,
    /// Emulated as write + flush.
    Emulated,
}

/// Properties of a device.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Bytes, a multiple of the block size.
    pub size: u64,
    /// Preferred size in bytes of large transfers.
    pub optimal_io: u32,
    /// Bytes; 0 where discard is not supported.
    pub discard_granularity: u32,
    /// Whether a discarded range reads as zeros.
    pub discard_zeroes: bool,
    pub fua: FuaKind,
}

/// Above this size the cost per byte was the same on every device that we measured.
const OPTIMAL_IO: u32 = 1 << 20;

impl Geometry {
    /// The geometry of a device in memory.
    fn memory(size: u64) -> Geometry {
        Geometry {
            size: size - size % BLOCK_SIZE as u64,
            optimal_io: OPTIMAL_IO,
            discard_granularity: BLOCK_SIZE as u32,
            discard_zeroes: true,
            fua: FuaKind::Native,
        }
    }

    /// Refuses ranges that break rule 1 of the contract, with an error instead of an assertion: the
    /// numbers may be from a corrupt image.
    fn check(&self, op: &'static str, offset: u64, len: u64) -> Result<()> {
        let errno = if !(offset | len).is_multiple_of(BLOCK_SIZE as u64) {
            libc::EINVAL
        } else if offset.checked_add(len).is_none_or(|end| end > self.size) {
            libc::EIO
        } else {
            return Ok(());
        };
        Err(Error::Io { op, offset, len, errno })
    }

    fn check_request(&self, request: &Request) -> Result<()> {
        if matches!(request.op, Op::Flush) {
            return Ok(());
        }
        self.check(request.op.name(), request.offset, request.op.len())
    }
}

/// A block device. All methods may be called from many threads.
pub trait Device: Send + Sync + 'static {
    fn geometry(&self) -> &Geometry;

    /// Starts a batch. Each request completes once through `sink`, on any thread, possibly before
    /// `submit` returns.
    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>);

    /// As [`Device::submit`], but the device does not merge the batch with batches that were
    /// submitted before it. A device that passes batches on one by one needs no override.
    fn submit_apart(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        self.submit(batch, sink);
    }

    /// Reads `buf.len()` bytes at `offset`, in the calling thread.
    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()>;

    /// Writes `buf` at `offset`, in the calling thread; `fua`: returns once the write is durable.
    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()>;

    /// Makes every write that completed before the call durable.
    fn flush(&self) -> Result<()>;

    /// Declares the contents of the range unneeded. [`Geometry::discard_zeroes`] defines what it
    /// reads as afterwards.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// Makes the range read as zeros, with the durability of a plain write.
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()>;

    /// Free bytes of the file system that holds the device, if the device is a file. The file may
    /// be sparse, and then the first write to a block needs space there. `None` if unknown.
    fn host_free(&self) -> Option<u64> {
        None
    }

    /// Offset of the first byte of the range for which the underlying file system has no space yet:
    /// a first write there takes space and may fail for lack of it. `None` if there is no such
    /// byte, or if it cannot be found out.
    fn first_hole(&self, _offset: u64, _len: u64) -> Option<u64> {
        None
    }

    /// Counters of requests since the device was opened.
    fn stats(&self) -> &DeviceStats;

    /// How long small requests take, on a device that measures it ([`WatchedDevice`]).
    fn latency(&self) -> &Arc<Latency> {
        &self.stats().latency
    }

    /// How many requests have failed, on a device that counts them ([`WatchedDevice`]).
    fn errors(&self) -> Option<&DeviceErrors> {
        None
    }

    /// Identifies the device in messages: a path, "memory".
    fn name(&self) -> &str;
}
