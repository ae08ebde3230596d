//! The interface of all devices: properties and requests. The crate's head has the contract.

use crate::latency::Latency;
use crate::request::{CompletionSink, Op, Request};
use crate::stats::{DeviceErrors, DeviceStats};
use kedge_base::{BLOCK_SIZE, Error, IoBuf, Result};
use std::sync::Arc;

/// How the device makes a single write durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FuaKind {
    /// One request writes the data and makes it durable (O_DSYNC, or a device with FUA).
    Native,
    /// A write followed by a flush.
    Emulated,
}

/// Properties of a device.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Size in bytes, a multiple of the block size.
    pub size: u64,
    /// Preferred size in bytes of large transfers.
    pub optimal_io: u32,
    /// Smallest unit of a discard in bytes; 0 if the device does not support discard.
    pub discard_granularity: u32,
    /// Whether a discarded range reads as zeros.
    pub discard_zeroes: bool,
    pub fua: FuaKind,
}

/// Size in bytes of transfers above which the cost per byte was constant on every device that was
/// measured.
pub(crate) const OPTIMAL_IO: u32 = 1 << 20;

impl Geometry {
    /// Returns the geometry of a device in memory.
    pub(crate) fn memory(size: u64) -> Geometry {
        Geometry {
            size: size - size % BLOCK_SIZE as u64,
            optimal_io: OPTIMAL_IO,
            discard_granularity: BLOCK_SIZE as u32,
            discard_zeroes: true,
            fua: FuaKind::Native,
        }
    }

    /// Refuses ranges that violate rule 1 of the contract. Returns an error instead of asserting,
    /// because the numbers may come from a corrupt image.
    pub(crate) fn check(&self, op: &'static str, offset: u64, len: u64) -> Result<()> {
        let errno = if !(offset | len).is_multiple_of(BLOCK_SIZE as u64) {
            libc::EINVAL
        } else if offset.checked_add(len).is_none_or(|end| end > self.size) {
            libc::EIO
        } else {
            return Ok(());
        };
        Err(Error::Io { op, offset, len, errno })
    }

    pub(crate) fn check_request(&self, request: &Request) -> Result<()> {
        if matches!(request.op, Op::Flush) {
            return Ok(());
        }
        self.check(request.op.name(), request.offset, request.op.len())
    }
}

/// A block device. All methods may be called from many threads.
pub trait Device: Send + Sync + 'static {
    fn geometry(&self) -> &Geometry;

    /// Starts a batch. Each request completes exactly once through `sink`, on any thread, possibly
    /// before `submit` returns.
    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>);

    /// Does what [`Device::submit`] does, but the device does not merge the batch with earlier
    /// batches. A device that passes on each batch by itself need not override this method.
    fn submit_apart(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        self.submit(batch, sink);
    }

    /// Reads `buf.len()` bytes at `offset`, in the calling thread.
    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()>;

    /// Writes `buf` at `offset`, in the calling thread. With `fua`, returns once the write is
    /// durable.
    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()>;

    /// Makes every write that completed before the call durable.
    fn flush(&self) -> Result<()>;

    /// Declares the contents of the range unneeded. [`Geometry::discard_zeroes`] defines what later
    /// reads of the range return.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// Makes the range read as zeros, with the durability of a plain write.
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()>;

    /// Gives the device room for at least `size` bytes, durably. A file or a Ceph image is
    /// extended; a block device or an export that was enlarged elsewhere is measured again. A
    /// device that has the room already does not change. Fails if the device cannot have that size.
    fn grow(&self, size: u64) -> Result<()> {
        let has = self.geometry().size;
        if size <= has {
            return Ok(());
        }
        Err(Error::invalid(format!("{} has {has} bytes, {size} are wanted", self.name())))
    }

    /// Gives up everything beyond `size` bytes. A file or a Ceph image is truncated, durably. Block
    /// devices and exports keep their size. No request beyond `size` may follow, unless the device
    /// is grown again.
    fn cut(&self, size: u64) -> Result<()> {
        let _ = size;
        Ok(())
    }

    /// Lets go of the file or block device, and of its lock, so that others can use it although
    /// this object still exists. Later requests fail. A device that holds neither does nothing.
    fn release(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the size in bytes to which an image may grow without a change of the device: the
    /// present size of the file, block device, export or Ceph image.
    fn room(&self) -> Result<u64> {
        Ok(self.geometry().size)
    }

    /// Returns the free bytes of the file system that stores the device, if the device is a file.
    /// The file may be sparse, so the first write to a block may need space there. `None` if
    /// unknown.
    fn host_free(&self) -> Option<u64> {
        None
    }

    /// Returns the offset of the first byte of the range for which the underlying file system has
    /// not allocated space. A first write there needs space and may fail without it. Returns `None`
    /// if all space is allocated or the device cannot find out.
    fn first_hole(&self, _offset: u64, _len: u64) -> Option<u64> {
        None
    }

    /// Counters of requests since the device was opened.
    fn stats(&self) -> &DeviceStats;

    /// Returns the latency of small requests, on a device that measures it
    /// ([`crate::WatchedDevice`]).
    fn latency(&self) -> &Arc<Latency> {
        &self.stats().latency
    }

    /// Returns the numbers of failed requests, on a device that counts them
    /// ([`crate::WatchedDevice`]).
    fn errors(&self) -> Option<&DeviceErrors> {
        None
    }

    /// Returns the device's name for messages: a path, "memory".
    fn name(&self) -> &str;
}

/// Implements methods of `Device` by calls of the same methods of a field: `delegate!(below:
/// geometry, stats, name);`. A device on top of another one must also list all methods that have a
/// default in [`Device`], because the default ignores the device below.
#[macro_export]
macro_rules! delegate {
    ($($below:tt).+: $method:ident $(, $more:ident)*) => {
        $crate::delegate!(@ $method { $($below).+ });
        $crate::delegate!($($below).+: $($more),*);
    };
    ($($below:tt).+:) => {};
    (@ geometry { $($below:tt)+ }) => {
        fn geometry(&self) -> &$crate::Geometry {
            self.$($below)+.geometry()
        }
    };
    (@ submit { $($below:tt)+ }) => {
        fn submit(
            &self,
            batch: ::std::vec::Vec<$crate::Request>,
            sink: ::std::sync::Arc<dyn $crate::CompletionSink>,
        ) {
            self.$($below)+.submit(batch, sink);
        }
    };
    (@ read { $($below:tt)+ }) => {
        fn read(&self, offset: u64, buf: &mut $crate::base::IoBuf) -> $crate::base::Result<()> {
            self.$($below)+.read(offset, buf)
        }
    };
    (@ write { $($below:tt)+ }) => {
        fn write(&self, offset: u64, buf: &$crate::base::IoBuf, fua: bool) -> $crate::base::Result<()> {
            self.$($below)+.write(offset, buf, fua)
        }
    };
    (@ flush { $($below:tt)+ }) => {
        fn flush(&self) -> $crate::base::Result<()> {
            self.$($below)+.flush()
        }
    };
    (@ discard { $($below:tt)+ }) => {
        fn discard(&self, offset: u64, len: u64) -> $crate::base::Result<()> {
            self.$($below)+.discard(offset, len)
        }
    };
    (@ write_zeroes { $($below:tt)+ }) => {
        fn write_zeroes(&self, offset: u64, len: u64) -> $crate::base::Result<()> {
            self.$($below)+.write_zeroes(offset, len)
        }
    };
    (@ grow { $($below:tt)+ }) => {
        fn grow(&self, size: u64) -> $crate::base::Result<()> {
            self.$($below)+.grow(size)
        }
    };
    (@ cut { $($below:tt)+ }) => {
        fn cut(&self, size: u64) -> $crate::base::Result<()> {
            self.$($below)+.cut(size)
        }
    };
    (@ release { $($below:tt)+ }) => {
        fn release(&self) -> $crate::base::Result<()> {
            self.$($below)+.release()
        }
    };
    (@ room { $($below:tt)+ }) => {
        fn room(&self) -> $crate::base::Result<u64> {
            self.$($below)+.room()
        }
    };
    (@ host_free { $($below:tt)+ }) => {
        fn host_free(&self) -> ::std::option::Option<u64> {
            self.$($below)+.host_free()
        }
    };
    (@ first_hole { $($below:tt)+ }) => {
        fn first_hole(&self, offset: u64, len: u64) -> ::std::option::Option<u64> {
            self.$($below)+.first_hole(offset, len)
        }
    };
    (@ stats { $($below:tt)+ }) => {
        fn stats(&self) -> &$crate::DeviceStats {
            self.$($below)+.stats()
        }
    };
    (@ latency { $($below:tt)+ }) => {
        fn latency(&self) -> &::std::sync::Arc<$crate::Latency> {
            self.$($below)+.latency()
        }
    };
    (@ name { $($below:tt)+ }) => {
        fn name(&self) -> &str {
            self.$($below)+.name()
        }
    };
}
