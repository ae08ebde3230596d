//! Discards of free space: on request (FITRIM), and in the background with `discard`.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::gate::Phase;
use kedge_base::atomic::Ordering::Relaxed;
use kedge_base::{BLOCK_SIZE, BlockNo};
use kedge_store::Which;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The most requests of one background turn, and between two checks of a trim for a freeze.
/// Discards may be slow, while the background thread has other work or a freeze waits.
const TURN_RUNS: u64 = 256;

impl Engine {
    /// Discards free space in the `len` bytes of the device at `offset`, in runs of at least
    /// `min_len` bytes. Returns the number of bytes discarded.
    ///
    /// The work is done in batches. A freeze can start between two batches; the next batch then
    /// waits for the thaw. A calling thread that has entered the gate already must not wait there:
    /// the trim then ends, and returns the bytes discarded so far.
    pub(crate) fn trim(&self, offset: u64, len: u64, min_len: u64) -> Result<u64> {
        self.check_open()?;
        if self.store().is_read_only() {
            return Err(kedge_base::Error::ReadOnly.into());
        }
        let size = self.store().total_blocks() * BLOCK;
        if offset >= size {
            return Err(Error::Invalid("the range lies beyond the end of the device"));
        }
        if !self.store().can_discard() {
            return Err(Error::NotSupported("the device does not support discard"));
        }
        let end = offset.saturating_add(len).min(size);
        let (mut at, end) = (BlockNo(offset.div_ceil(BLOCK)), BlockNo(end / BLOCK));
        let (mut blocks, is_pass) = (0, self.gate().has_entered());
        while at < end {
            let _inside = self.gate().change();
            let done = self.store().discard_free(at..end, min_len.div_ceil(BLOCK), Which::All, TURN_RUNS)?;
            self.stats().discarded_blocks.add(done.blocks);
            blocks += done.blocks;
            at = done.end;
            if is_pass && self.gate().phase() != Phase::Open {
                break;
            }
        }
        Ok(blocks * BLOCK)
    }

    /// Puts `discard` or `nodiscard` into force.
    pub(crate) fn set_discard(&self, on: bool) {
        let can = self.store().can_discard();
        if on && !can && !self.store().is_read_only() {
            tracing::warn!(
                "{} does not support discard, so the option has no effect",
                self.store().device().name()
            );
        }
        self.store().alloc().watch_frees(on && can);
        self.discards.store(on && can, Relaxed);
    }

    /// Discards a batch of what was freed since the last turn. An error turns background discards
    /// off: a device that refuses one discard refuses the next, and nothing depends on discards.
    pub(crate) fn discard_turn(&self) {
        if !self.discards.load(Relaxed) {
            return;
        }
        let all = BlockNo(0)..BlockNo(self.store().total_blocks());
        match self.store().discard_free(all, 1, Which::Fresh, TURN_RUNS) {
            Ok(done) => self.stats().discarded_blocks.add(done.blocks),
            Err(_) if self.check_open().is_err() || self.store().check_alive().is_err() => {}
            Err(e) => {
                tracing::error!("discard is turned off: {e}");
                self.set_discard(false);
            }
        }
    }
}
