//! Checkpoints that mark the image clean: those of a freeze and of a close.

use super::cause::{By, CheckpointCause, Kind};
use crate::slots::write_losses;
use crate::store::Store;
use kedge_base::atomic::Ordering;
use kedge_base::broken::{self, Variant};
use kedge_base::{Error, Result};

impl Store {
    /// Makes a checkpoint that marks the image clean. From then on no checkpoint is made until
    /// [`Store::thaw`]. The caller has written back all file data, and ensures that no record is
    /// appended until then.
    ///
    /// Fails if log-resident data cannot be written in place, because the log is then still needed,
    /// or if the image's host is full. In both cases the store continues as before.
    pub fn freeze(&self) -> Result<()> {
        if self.read_only {
            return self.check_alive();
        }
        let mut single = self.checkpoint.alone(CheckpointCause::Freeze);
        self.check_alive()?;
        self.run_checkpoint(&mut single, CheckpointCause::Freeze, By::Operation, Kind::Clean)?;
        // The slot is marked clean only if no part of the log is needed.
        if self.log.tail_lsn() != self.log.head_lsn() {
            let unwritable = self.checkpoint.unwritable.lock().clone();
            return Err(unwritable.unwrap_or(Error::LogInUse));
        }
        // No write follows. Flushed here, so that no completed write stays in the device's cache.
        self.flush_data(self.data_write_seq())?;
        self.checkpoint.set_frozen(true);
        Ok(())
    }

    /// Ends [`Store::freeze`]: removes the clean mark, as a mount does after a clean unmount. The
    /// removal is durable when the call returns. If the host of the image is full, the call fails
    /// and the store stays frozen and alive.
    pub fn thaw(&self) -> Result<()> {
        let mut single = self.checkpoint.alone(CheckpointCause::Thaw);
        // Broken on purpose: the mark stays, and log writes follow it.
        if self.checkpoint.is_frozen() && !broken::is(Variant::ThawKeepsClean) {
            self.run_checkpoint(&mut single, CheckpointCause::Thaw, By::Operation, Kind::Plain)?;
        }
        self.checkpoint.set_frozen(false);
        self.check_alive()
    }

    /// Called before the file system is closed. From then on requested checkpoints do not wait for
    /// space on the image's host, so the close does not wait for it either.
    pub fn end_waits(&self) {
        self.checkpoint.set_closing();
    }

    /// Makes the last checkpoint, which marks the image clean, and ends the log's threads. The
    /// caller has written back all file data. If the host has no space for that checkpoint, losses
    /// are still recorded, in the present superblock slot.
    pub fn close(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let result = match self.read_only {
            true => Ok(()),
            // A frozen image is clean already, and must not be written.
            false if self.checkpoint.is_frozen() => self.check_alive(),
            false => self.checkpoint_clean().inspect_err(|e| self.keep_losses(e)),
        };
        self.closed.store(true, Ordering::Relaxed);
        self.log.stop();
        result
    }

    /// The last checkpoint, which marks the image clean.
    pub(super) fn checkpoint_clean(&self) -> Result<()> {
        let mut single = self.checkpoint.alone(CheckpointCause::Unmount);
        let result = self.run_checkpoint(&mut single, CheckpointCause::Unmount, By::Operation, Kind::Clean);
        self.closed.store(true, Ordering::Release);
        result
    }

    /// Called when the last checkpoint, which would have recorded the losses, has failed with
    /// `why`. If the host of the image is full, records the losses in the present superblock slot.
    fn keep_losses(&self, why: &Error) {
        // After any other failure the device may have lost acknowledged writes, or the image may
        // belong to another owner, so nothing more is written to it.
        if self.losses().is_none() || !why.is_host_full() {
            return;
        }
        if let Err(e) = write_losses(&*self.device, self.losses()) {
            tracing::error!("the image does not name the files whose data is lost: {e}");
        }
    }
}
