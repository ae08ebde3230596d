//! The place of the log on the device, and its bounds.

use kedge_base::{BLOCK_SIZE, BlockNo, Epoch, Lsn};
use kedge_format::logwrite::{FRAME_SIZE, HEADER_SIZE, LogKey, WRITE_BLOCKS_MAX};

/// Most log writes in flight. Recovery relies on this bound: it limits how far after a lost write
/// the proof of its loss can be.
pub const IN_FLIGHT_MAX: usize = 4;
/// Longest record.
pub const RECORD_MAX: usize = WRITE_BLOCKS_MAX as usize * BLOCK_SIZE - HEADER_SIZE - FRAME_SIZE;

/// The place of the ring on the device, and its head and tail.
#[derive(Clone, Debug)]
pub struct LogConfig {
    pub key: LogKey,
    pub epoch: Epoch,
    pub ring_start: BlockNo,
    pub ring_blocks: u64,
    /// Bytes of the ring that are used at a time, at most: the most that recovery has to read.
    pub use_bytes_max: u64,
    /// Position of the first write: a block boundary. Everything below counts as durable.
    pub head: Lsn,
    /// Oldest position still needed: the start of a log write.
    pub tail: Lsn,
    /// Most log writes in flight, clamped to 1 to [`IN_FLIGHT_MAX`].
    pub in_flight_max: usize,
    /// Reservations wait while more bytes than this are sealed and not yet on the device.
    pub staged_bytes_max: u64,
}
