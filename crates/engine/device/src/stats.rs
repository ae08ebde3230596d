//! Counters of a device's requests.

use crate::{Latency, Op};
use kedge_base::Counter;
use std::sync::Arc;

/// Requests as they were issued, successful or not. Discards and zeroing transfer no data and are
/// not counted.
#[derive(Debug, Default)]
pub struct DeviceStats {
    pub reads: Counter,
    pub read_bytes: Counter,
    /// Number of writes, including FUA writes.
    pub writes: Counter,
    pub write_bytes: Counter,
    pub flushes: Counter,
    pub fua_writes: Counter,
    /// Shared, so that a completion can record its time without a reference to the device.
    pub latency: Arc<Latency>,
}

/// Numbers of failed requests, whatever the reason.
#[derive(Debug, Default)]
pub struct DeviceErrors {
    pub reads: Counter,
    /// Failed writes, including FUA writes.
    pub writes: Counter,
    pub flushes: Counter,
    /// Failed discards and zeroing requests.
    pub discards: Counter,
}

impl DeviceErrors {
    /// Counts a failed request by its name, the result of [`Op::name`].
    pub(crate) fn count(&self, op: &str) {
        match op {
            "read" => self.reads.inc(),
            "write" => self.writes.inc(),
            "flush" => self.flushes.inc(),
            _ => self.discards.inc(),
        }
    }
}

impl DeviceStats {
    pub fn count_read(&self, len: usize) {
        self.reads.inc();
        self.read_bytes.add(len as u64);
    }

    pub fn count_write(&self, len: usize, fua: bool) {
        self.writes.inc();
        self.write_bytes.add(len as u64);
        if fua {
            self.fua_writes.inc();
        }
    }

    pub fn count_flush(&self) {
        self.flushes.inc();
    }

    pub fn count(&self, op: &Op) {
        match op {
            Op::Read(buf) => self.count_read(buf.len()),
            Op::Write { buf, fua } => self.count_write(buf.len(), *fua),
            Op::Flush => self.count_flush(),
            Op::Discard { .. } | Op::WriteZeroes { .. } => {}
        }
    }
}
