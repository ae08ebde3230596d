//! Images for this crate's tests.

use crate::{FormatParams, format};
use kedge_base::ManualClock;
use kedge_device::MemDevice;
use kedge_format::logwrite::LogSecret;
use std::sync::Arc;

/// A new image in memory, with a log of `log_size` bytes.
pub(crate) fn formatted(size: u64, log_size: u64) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(size));
    let params = FormatParams {
        size,
        log_size,
        label: String::new(),
        uuid: uuid::Uuid::from_bytes([7; 16]),
        hash_seed: [9; 16],
        log_secret: LogSecret([8; 16]),
        uid: 0,
        gid: 0,
        immutable: false,
        data_checksums: false,
        inline_max: 0,
    };
    format(device.clone(), Arc::new(ManualClock::default()), &params).unwrap();
    device
}
