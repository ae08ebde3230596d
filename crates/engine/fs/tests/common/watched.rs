//! A device that calls a hook before each of its reads and writes.

use kedge_base::{IoBuf, Result};
use kedge_device::{CompletionSink, Device, DeviceStats, Geometry, Op, Request};
use std::ops::Deref;
use std::sync::Arc;

pub trait Watch: Send + Sync + 'static {
    fn device(&self) -> &dyn Device;

    /// Called before a write begins. For a batch it is called once for each kind of write in it.
    fn before_write(&self, _fua: bool) {}

    /// Called before a read at `offset` begins.
    fn before_read(&self, _offset: u64) {}
}

/// A device that calls `W` before reads and writes. All requests go on to the device below.
pub struct Watched<W>(pub W);

impl<W> Deref for Watched<W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.0
    }
}

impl<W: Watch> Device for Watched<W> {
    fn geometry(&self) -> &Geometry {
        self.device().geometry()
    }

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        for kind in [false, true] {
            if batch.iter().any(|r| matches!(r.op, Op::Write { fua, .. } if fua == kind)) {
                self.before_write(kind);
            }
        }
        self.device().submit(batch, sink);
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.before_read(offset);
        self.device().read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.before_write(fua);
        self.device().write(offset, buf, fua)
    }

    fn flush(&self) -> Result<()> {
        self.device().flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device().discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.device().write_zeroes(offset, len)
    }

    fn stats(&self) -> &DeviceStats {
        self.device().stats()
    }

    fn name(&self) -> &str {
        "watched"
    }
}
