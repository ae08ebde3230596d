//! Freeze and thaw: the image on the device is consistent and clean, and stays so.
//!
//! Changes wait at [`crate::gate`]; `docs/rfcs/0012-freeze.md` has the semantics and the crash
//! argument.
//!
//! # Why nothing is dirty in a frozen file system
//! The sync with the first door closed writes everything dirty, and everything that is in flight
//! and may fail. Only a change makes something dirty again, and none is inside. The sync returns
//! the error of a write that failed, and the freeze is given up. Log-resident data, which a sync
//! leaves in the log, is written by the checkpoint before its cut; the second door keeps other
//! threads from writing it after the cut.

use crate::core::Fs;
use crate::error::{Error, Result};
use crate::gate::{Door, Phase};
use kedge_store::{CheckpointCause, ForceCause};

/// Opens the gate on drop, also after a panic, and then does the deferred work.
pub(crate) struct Reopen<'a>(pub &'a Fs);

impl Drop for Reopen<'_> {
    fn drop(&mut self) {
        self.0.engine().gate().open();
        if !std::thread::panicking() {
            self.0.files().delete_unpinned();
        }
    }
}

impl Fs {
    pub(crate) fn freeze(&self) -> Result<()> {
        let gate = self.engine().gate();
        if gate.has_entered() {
            return Err(Error::Busy("a change of this thread is under way"));
        }
        let _single = gate.single();
        if gate.phase() != Phase::Open {
            return Err(Error::Busy("the file system is frozen"));
        }
        self.engine().check_open()?;
        if gate.has_ended() {
            return Err(kedge_base::Error::Shutdown("it is being unmounted".into()).into());
        }
        let store = self.engine().store();
        store.check_alive()?;
        if !store.is_read_only() {
            // Most of the work, while operations run.
            self.syncer().sync(ForceCause::Sync)?;
            store.checkpoint(CheckpointCause::Request)?;
        }
        gate.shut(Door::Change);
        let reopen = Reopen(self);
        self.settle()?;
        gate.set_frozen(self.engine().now().sec);
        // A shutdown before this point did not find the gate frozen, and did not open it.
        store.check_alive()?;
        std::mem::forget(reopen);
        Ok(())
    }

    /// The part of a freeze with the first door closed.
    fn settle(&self) -> Result<()> {
        self.settle_data()?;
        Ok(self.engine().store().freeze()?)
    }

    /// With the first door closed: writes everything dirty, and closes the second door.
    pub(crate) fn settle_data(&self) -> Result<()> {
        let store = self.engine().store();
        if !store.is_read_only() {
            self.syncer().sync(ForceCause::Sync)?;
        }
        self.engine().gate().shut(Door::Work);
        if self.writeback().dirty_inodes() > 0 {
            // A write without a waiter has failed between the doors.
            self.syncer().sync(ForceCause::Sync)?;
        }
        Ok(())
    }

    pub(crate) fn thaw(&self) -> Result<()> {
        let gate = self.engine().gate();
        // The thread that frees deleted trees, another freeze or a resize may hold the lock for the
        // moment in which it finds that the file system is frozen.
        let frozen = || gate.phase() == Phase::Frozen;
        let Some(_single) = frozen().then(|| gate.single()).filter(|_| frozen()) else {
            // A shutdown has ended the freeze; its error is returned.
            self.engine().check_open()?;
            self.engine().store().check_alive()?;
            return Err(Error::Invalid("the file system is not frozen"));
        };
        let reopen = Reopen(self);
        let store = self.engine().store();
        let thawed = store.thaw();
        // Without a device the waiting changes get the error. Without space on the image's host the
        // file system stays frozen: the image is still marked clean.
        if thawed.is_err() && store.check_alive().is_ok() {
            std::mem::forget(reopen);
        }
        Ok(thawed?)
    }

    /// At a shutdown: the changes that wait for the end of the freeze fail.
    pub(crate) fn stop_waiting(&self) {
        self.engine().gate().open_if_frozen();
    }
}

#[cfg(test)]
#[path = "freeze_tests.rs"]
mod tests;
