//! Decides when a checkpoint starts, and when operations wait for one or are delayed.

use super::cause::CheckpointCause;
use crate::store::Store;
use kedge_base::atomic::Ordering;
use kedge_base::{Error, Result};
use kedge_device::{Latency, LatencyKind};
use kedge_log::SpacePressure;
use std::time::Duration;

/// Delay of an operation when the log is full: on a fast disk, and (`THROTTLE_LONGEST`) at most.
const THROTTLE_MAX: Duration = Duration::from_millis(4);
const THROTTLE_LONGEST: Duration = Duration::from_millis(50);

/// Delay on this device of an operation when the log is full. It is shorter while more is free.
pub(super) fn throttle_max(latency: &Latency) -> Duration {
    let durable_write = latency.typical(LatencyKind::DurableWrite).unwrap_or_default();
    durable_write.saturating_mul(2).clamp(THROTTLE_MAX, THROTTLE_LONGEST)
}

impl Store {
    /// Changes `async_checkpoint` (a percentage) or `noasync_checkpoint` (`None`) of a running
    /// store.
    pub fn set_async_checkpoint(&self, percent: Option<u8>) {
        self.checkpoint.async_percent.store(percent.unwrap_or(0) as u32, Ordering::Relaxed);
        self.checkpoint.hurry.call();
        if self.log_below_threshold() {
            self.wake_checkpoint(CheckpointCause::Background);
        }
    }

    /// Sets the size of the node cache, in bytes. When half of it is dirty, operations wait for a
    /// checkpoint. When a quarter is dirty, a background checkpoint starts.
    pub fn set_cache_budget(&self, node_bytes: u64) {
        self.dirty_limit.store(node_bytes / 2, Ordering::Relaxed);
        self.forest.set_cache_bytes(node_bytes);
        if !self.is_read_only() {
            self.after_commit();
        }
    }

    /// Whether a background checkpoint should start: the free part of the log is below the
    /// threshold, or so small that operations would be delayed before two unpaused checkpoints like
    /// the last one have run. Never if too little of the log is used. Reserved and promised space
    /// is not free: operations wait for it as for space that contains records.
    pub(crate) fn log_below_threshold(&self) -> bool {
        let percent = self.async_percent();
        let (free, max) = (self.log.free_bytes(), self.log.free_bytes_max());
        let used = self.log.head_lsn().0.saturating_sub(self.log.tail_lsn().0);
        if percent == 0 || used < (max / 8).min(max * (100 - percent) / 100) {
            return false; // a checkpoint would free little now
        }
        if free < max * percent / 100 {
            return true;
        }
        let incoming = self.incoming();
        incoming > 0 && incoming.saturating_mul(2).saturating_add(self.throttle_below()) > free
    }

    /// Estimate of the bytes that come into the log while a checkpoint like the last one runs
    /// without pauses: at the rate since the start of that one.
    pub(super) fn incoming(&self) -> u64 {
        let control = &self.checkpoint;
        let now = self.clock.monotonic().as_nanos() as u64;
        let elapsed = now.saturating_sub(control.began_at.load(Ordering::Relaxed));
        let came = self.log.head_lsn().0.saturating_sub(control.began_lsn.load(Ordering::Relaxed));
        let took = control.took.load(Ordering::Relaxed);
        let product = came as u128 * took as u128;
        product.checked_div(elapsed.into()).map_or(0, |bytes| u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// Delays an operation while the log is nearly full, so that the remaining space lasts until
    /// the running checkpoint frees more. Without `async_checkpoint` there is no delay, since
    /// operations then run the checkpoint themselves.
    pub(crate) fn throttle(&self) {
        let (free, limit) = (self.log.free_bytes(), self.throttle_below());
        if free >= limit {
            return;
        }
        self.wake_checkpoint(CheckpointCause::LogSpace);
        let delay = throttle_max(self.device.latency()).mul_f64((limit - free) as f64 / limit as f64);
        self.clock.sleep(delay);
        self.stats.throttle_ns.record(delay.as_nanos() as u64);
    }

    /// Requests a checkpoint if one is due. Does nothing while a checkpoint runs: its pace already
    /// follows the log and the dirty nodes.
    pub(crate) fn after_commit(&self) {
        if !self.checkpoint_turn().is_multiple_of(2) {
            return;
        }
        if self.log_below_threshold() {
            self.wake_checkpoint(CheckpointCause::Background);
        } else if self.forest.dirty_bytes() as u64 > self.dirty_limit.load(Ordering::Relaxed) / 2 {
            self.wake_checkpoint(CheckpointCause::DirtyNodes);
        }
    }

    /// Requests a checkpoint from the background thread.
    pub(crate) fn wake_checkpoint(&self, cause: CheckpointCause) {
        self.requests.add(cause);
        if cause == CheckpointCause::LogSpace {
            self.checkpoint.hurry.call();
        }
    }

    pub(crate) fn wait_for_dirty_limit(&self) -> Result<()> {
        if self.forest.dirty_bytes() as u64 <= self.dirty_limit.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.stats.dirty_stalls.inc();
        self.checkpoint(CheckpointCause::DirtyNodes)
    }

    /// Called when a log reservation did not fit. With `async_checkpoint` it wakes the background
    /// thread, and the reservation then waits. Without it, the calling operation runs the
    /// checkpoint.
    pub(crate) fn log_space_short(&self) -> Result<()> {
        if self.checkpoint.async_percent.load(Ordering::Relaxed) == 0 {
            let started = self.clock.monotonic();
            let result = self.checkpoint(CheckpointCause::LogSpace);
            self.log.stats().space_stalls.record(self.clock.since(started).as_nanos() as u64);
            return result;
        }
        self.wake_checkpoint(CheckpointCause::LogSpace);
        Ok(())
    }
}

impl SpacePressure for Store {
    fn need_space(&self) {
        self.wake_checkpoint(CheckpointCause::LogSpace);
    }
}

/// Checks the value of `async_checkpoint`. The error names the option.
pub fn check_async_percent(percent: u8) -> Result<()> {
    if (1..=99).contains(&percent) {
        Ok(())
    } else {
        Err(Error::invalid(format!("async_checkpoint={percent}: the percentage of free log must be 1 to 99")))
    }
}

#[cfg(test)]
#[path = "trigger_tests.rs"]
mod tests;
