//! A device whose flushes take a set time, for loads in which only the flush matters.
//!
//! The caller's thread sleeps before the request is passed on. `submit` may sleep, too, since it
//! may complete requests before it returns. A FUA write sleeps once, whatever its size, since a
//! device does one flush for it.

use kedge_base::{IoBuf, Result};
use kedge_device::{CompletionSink, Device, Op, Request};
use std::sync::Arc;
use std::time::Duration;

pub struct DelayedFlush {
    base: Arc<dyn Device>,
    delay: Duration,
    name: String,
}

impl DelayedFlush {
    pub fn new(base: Arc<dyn Device>, delay: Duration) -> DelayedFlush {
        let name = format!("{} (a flush takes {} µs more)", base.name(), delay.as_micros());
        DelayedFlush { base, delay, name }
    }
}

impl Device for DelayedFlush {
    kedge_device::delegate!(base: geometry, read, discard, write_zeroes, stats);

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let waits = |r: &Request| matches!(r.op, Op::Flush | Op::Write { fua: true, .. });
        // The requests of one batch wait at the same time.
        if batch.iter().any(waits) {
            std::thread::sleep(self.delay);
        }
        self.base.submit(batch, sink);
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        if fua {
            std::thread::sleep(self.delay);
        }
        self.base.write(offset, buf, fua)
    }

    fn flush(&self) -> Result<()> {
        std::thread::sleep(self.delay);
        self.base.flush()
    }

    fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
#[path = "delay_tests.rs"]
mod tests;
