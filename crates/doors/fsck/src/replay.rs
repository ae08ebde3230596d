//! A [`Replay`] that uses the engine's recovery, the same code as a mount.

use crate::{Replay, ReplaySummary};
use kedge_base::{Result, SystemClock};
use kedge_device::Device;
use kedge_format::superblock::Superblock;
use kedge_store::{OpenOptions, Store};
use std::sync::Arc;

/// Replays through [`kedge_store::Store::open`], which ends in a checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreReplay;

impl Replay for StoreReplay {
    fn log_writes(&self, device: &dyn Device, sb: &Superblock) -> Result<u64> {
        kedge_store::count_log_writes(device, sb)
    }

    fn replay(&self, overlay: Arc<dyn Device>) -> Result<ReplaySummary> {
        let store = Store::open(overlay, Arc::new(SystemClock::default()), &OpenOptions::default())?;
        let s = store.replay_summary();
        Ok(ReplaySummary {
            from_lsn: s.tail_lsn,
            to_lsn: s.head_lsn,
            log_writes: s.log_writes,
            records: s.records,
            data_bytes: s.data_bytes,
        })
    }
}
