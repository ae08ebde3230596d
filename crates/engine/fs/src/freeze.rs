//! Freeze and thaw: the image on the device is consistent and clean, and stays so.
//!
//! Changes wait at [`crate::gate`]; `docs/rfcs/0012-freeze.md` has the semantics and the crash
//! argument.
//!
//! # Why nothing is dirty in a frozen file system
//! The sync after the first door is closed writes everything dirty, and everything in flight that
//! may fail. Only a change makes something dirty again, and no change is inside. If a write fails,
//! the sync returns its error, and the freeze ends. Log-resident data, which a sync leaves in the
//! log, is written by the checkpoint before its cut; the second door keeps other threads from
//! writing it after the cut.

use crate::core::Fs;
use crate::error::{Error, Result};
use crate::gate::{Door, Phase};
use kedge_store::{CheckpointCause, ForceCause};

/// When dropped, also after a panic, opens the gate. Then deletes the inodes that were unpinned
/// meanwhile.
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
            // The first sync does most of the work while operations continue.
            self.syncer().sync(ForceCause::Sync)?;
            store.checkpoint(CheckpointCause::Request)?;
        }
        gate.shut(Door::Change);
        let reopen = Reopen(self);
        self.settle()?;
        gate.set_frozen(self.engine().now().sec);
        // A shutdown before this point found the gate not frozen yet, and did not open it.
        store.check_alive()?;
        std::mem::forget(reopen);
        Ok(())
    }

    /// Writes everything, closes the second door and makes the clean checkpoint. The first door is
    /// closed.
    fn settle(&self) -> Result<()> {
        self.settle_data()?;
        Ok(self.engine().store().freeze()?)
    }

    /// Writes everything dirty, and closes the second door. The first door is closed.
    pub(crate) fn settle_data(&self) -> Result<()> {
        let store = self.engine().store();
        if !store.is_read_only() {
            self.syncer().sync(ForceCause::Sync)?;
        }
        self.engine().gate().shut(Door::Work);
        if self.writeback().dirty_inodes() > 0 {
            // A write for which no thread waits has failed between the first sync and the second
            // door.
            self.syncer().sync(ForceCause::Sync)?;
        }
        Ok(())
    }

    pub(crate) fn thaw(&self) -> Result<()> {
        let gate = self.engine().gate();
        // The lock may be held by the thread that frees deleted trees, by another freeze or by a
        // resize. They hold it only until they find that the file system is frozen.
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
        // If the device failed, the gate opens and the waiting changes get the error. If the
        // image's host has no space, the file system stays frozen: the image is still marked clean.
        if thawed.is_err() && store.check_alive().is_ok() {
            std::mem::forget(reopen);
        }
        Ok(thawed?)
    }

    /// Called at a shutdown. Opens the gate of a frozen file system, so that the waiting changes
    /// fail.
    pub(crate) fn stop_waiting(&self) {
        self.engine().gate().open_if_frozen();
    }
}

#[cfg(test)]
#[path = "freeze_tests.rs"]
mod tests;
