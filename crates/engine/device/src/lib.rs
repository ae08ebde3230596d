//! Block devices for the engine: files and block devices, memory, remote images, and simulators
//! that record requests and crash.
//!
//! # The contract
//! 1. Offsets and lengths are whole blocks ([`kedge_base::BLOCK_SIZE`]) inside [`Geometry::size`].
//! 2. A completed write is visible to every later read. It is *durable* (survives power loss) only
//!    once a flush that was submitted after its completion has completed, or if it was a `fua`
//!    write that completed.
//! 3. Between two flushes any subset of the writes may reach the medium, in any order, torn at 512
//!    bytes.
//! 4. A FUA write makes itself durable and nothing else. A write or a discard of the same sectors
//!    that completed before it, and that no flush has covered, may still reach the medium after it.
//! 5. Every submitted request completes exactly once, with its buffers, on any thread; requests of
//!    one batch are unordered. Completions never run under a lock that `submit` takes.
//! 6. An error is final: a device never retries silently. [`Error::Fenced`] shuts the mount down.
//!    After [`Error::OutcomeUnknown`] the device completes every request with an error until it
//!    is opened again. After a failed flush of a file, a block device or an NBD export each later
//!    flush and FUA write fails with the same error number until then (`flushes`).
//!
//! # Files
//! A file uses only those before it. Public names are imported from the crate's root, which only
//! re-exports them and selects the device for a location.
//! 1. requests and measurements of them: `request`, `latency`, `stats`;
//! 2. `interface`: the properties and requests of all devices; `batch` and `sizes` build on it;
//! 3. `pages` (bytes in memory), `flushes` (one at a time) and `location`;
//! 4. devices: `mem`, `overlay`, `file`, `nbd`, `rbd`, `watched`; for any device, `ahead`
//!    (read-ahead), `window` (a part of a device), `crypt` (encryption) and `tracked` (writes that
//!    a failed flush may have lost);
//! 5. `sim`: devices for tests, which record requests and simulate crashes.

#![deny(unsafe_code)]

mod ahead;
mod batch;
#[cfg(test)]
mod conformance;
pub mod crypt;
mod file;
mod flushes;
mod interface;
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
mod sizes;
mod stats;
#[cfg(test)]
mod testing;
mod tracked;
mod watched;
mod window;

#[doc(hidden)] // for `delegate`
pub use kedge_base as base;

pub use ahead::ReadAhead;
pub use batch::{run_apart, run_batch};
pub use file::{FileDevice, OpenOptions};
pub use interface::{Device, FuaKind, Geometry};
pub use latency::{Latency, LatencyKind};
pub use location::Location;
pub use mem::MemDevice;
#[cfg(target_os = "linux")]
pub use nbd::NbdDevice;
pub use overlay::OverlayDevice;
#[cfg(target_os = "linux")]
pub use rbd::RbdDevice;
pub use request::{Completion, CompletionSink, Io, Op, Request};
pub use stats::{DeviceErrors, DeviceStats};
pub use tracked::TrackedDevice;
pub use watched::{LATE, Oldest, Pending, WatchedDevice};
pub use window::WindowDevice;

use kedge_base::{Error, Result};
use location::WindowUri;
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// Opens the image at a location of any kind.
pub fn open(location: &Location, options: OpenOptions) -> Result<Arc<dyn Device>> {
    match location {
        Location::Path(path) => Ok(FileDevice::open(path, options)?),
        Location::Window(uri) => Ok(Arc::new(WindowDevice::open(uri, options)?)),
        #[cfg(target_os = "linux")]
        Location::Nbd(uri) => Ok(NbdDevice::open(uri, options)?),
        #[cfg(target_os = "linux")]
        Location::Rbd(uri) => Ok(RbdDevice::open(uri, options)?),
        #[cfg(not(target_os = "linux"))]
        remote => Err(not_here(remote)),
    }
}

/// Opens the image at a location whose file is open for reading and writing already. Only a file, a
/// block device and a window of either have one; fails for other locations.
pub fn open_on(location: &Location, file: OwnedFd, options: OpenOptions) -> Result<Arc<dyn Device>> {
    match location {
        Location::Path(path) => Ok(FileDevice::on(file, path, None, options)?),
        Location::Window(uri) => Ok(Arc::new(WindowDevice::on(file, uri, options)?)),
        remote => Err(Error::invalid(format!("{remote} is on no file of this machine"))),
    }
}

/// Returns whether the image exists. An NBD export is assumed to exist, because only opening it
/// shows whether it does.
pub fn exists(location: &Location) -> Result<bool> {
    match location {
        Location::Path(path) | Location::Window(WindowUri { path, .. }) => path
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

/// Creates a file or a Ceph image of `size` bytes that can then be opened.
pub fn create(location: &Location, size: u64) -> Result<()> {
    match location {
        Location::Path(path) => FileDevice::create(path, size, OpenOptions::default()).map(drop),
        Location::Window(uri) => Err(Error::invalid(format!("{uri}: the file must exist"))),
        #[cfg(target_os = "linux")]
        Location::Nbd(uri) => Err(Error::invalid(format!("{uri}: the server makes its exports"))),
        #[cfg(target_os = "linux")]
        Location::Rbd(uri) => rbd::create(uri, size),
        #[cfg(not(target_os = "linux"))]
        remote => Err(not_here(remote)),
    }
}

/// Returns whether the lock on an image is free, as far as this kind of device can find out: see
/// the device's module.
pub fn is_unlocked(location: &Location) -> Result<bool> {
    match location {
        Location::Path(path) => file::is_unlocked(path, None),
        Location::Window(uri) => file::is_unlocked(&uri.path, Some(uri.into())),
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
