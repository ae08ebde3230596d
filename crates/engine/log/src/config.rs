//! Configuration of the log: its location on the device, and its bounds.

use kedge_base::{BLOCK_SIZE, BlockNo, Epoch, Lsn};
use kedge_format::logwrite::{FRAME_SIZE, HEADER_SIZE, LogKey, WRITE_BLOCKS_MAX};

/// Maximum number of log writes in flight. Recovery relies on this bound: it limits how far beyond
/// a lost write the proof of the loss can be.
pub const IN_FLIGHT_MAX: usize = 4;
/// Longest record in bytes.
pub const RECORD_MAX: usize = WRITE_BLOCKS_MAX as usize * BLOCK_SIZE - HEADER_SIZE - FRAME_SIZE;

/// The ring's location on the device, the head and the tail at opening, and the log's bounds.
#[derive(Clone, Debug)]
pub struct LogConfig {
    pub key: LogKey,
    pub epoch: Epoch,
    pub ring_start: BlockNo,
    pub ring_blocks: u64,
    /// Maximum number of bytes of the ring in use at a time, which is also the most that recovery
    /// must read.
    pub use_bytes_max: u64,
    /// LSN of the first write, a block boundary. Everything below it counts as durable.
    pub head: Lsn,
    /// Oldest LSN that is still needed: the start of a log write.
    pub tail: Lsn,
    /// Maximum number of log writes in flight, clamped to the range from 1 to [`IN_FLIGHT_MAX`].
    pub in_flight_max: usize,
    /// Reservations wait while more bytes than this are in sealed batches or in writes in flight.
    pub staged_bytes_max: u64,
}
