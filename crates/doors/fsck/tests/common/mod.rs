//! Shared by the tests of images that the engine makes.
#![allow(dead_code, clippy::unwrap_used)]

use kedge_base::{BLOCK_SIZE, Clock, ManualClock};
use kedge_device::{Device, MemDevice};
use kedge_format::superblock::{SLOTS, Superblock};
use kedge_fsck::{CheckOptions, Report, StoreReplay};
use kedgefs::{FileSystem, MountOptions};
use std::sync::Arc;

/// Bytes of each image.
pub const SIZE: u64 = 16 << 20;

pub fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::default())
}

/// Opens an image without background checkpoints.
pub fn open(device: Arc<dyn Device>) -> kedgefs::Result<FileSystem> {
    FileSystem::open(device, clock(), MountOptions { async_checkpoint: None, ..MountOptions::default() })
}

pub fn with_replay() -> CheckOptions {
    CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() }
}

pub fn check(device: &MemDevice) -> Report {
    kedge_fsck::check(Arc::new(device.fork()), &with_replay())
}

pub fn slot(device: &MemDevice, i: usize) -> Vec<u8> {
    device.bytes(SLOTS[i].byte_offset(), BLOCK_SIZE)
}

/// The newest valid superblock and its slot.
pub fn newest(device: &MemDevice) -> Option<(usize, Superblock)> {
    let blocks = SIZE / BLOCK_SIZE as u64;
    let slots = (0..2).filter_map(|i| Some((i, Superblock::decode(&slot(device, i), i, blocks).ok()?)));
    slots.max_by_key(|(_, sb)| sb.checkpoint.generation)
}
