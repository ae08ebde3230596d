//! The last steps of a checkpoint: the log is forced to the cut, the cut is written, its superblock
//! slot makes it valid, and the space that only the previous checkpoint needed becomes free.

use super::cause::CheckpointCause;
use super::control::{Retry, Unwritten};
use super::cut::Cut;
use super::pace::Pace;
use super::write::{make_valid, write_blocks};
use crate::slots::refresh_copies;
use crate::store::Store;
use kedge_base::atomic::Ordering;
use kedge_base::broken::{self, Variant};
use kedge_base::{Error, Result};
use kedge_format::node::NODE_SIZE;
use kedge_format::superblock::Superblock;
use kedge_log::ForceCause;
use std::time::Duration;

/// What to do when the host of the image has no space.
enum HostFull {
    TryAgain,
    /// The caller gets the error. The next checkpoint writes this cut.
    Deferred,
    Fail,
}

impl Store {
    /// Writes a cut and makes it valid. If the host is full and the checkpoint is deferred, the cut
    /// is put back into `unwritten`.
    pub(super) fn write_cut(
        &self,
        unwritten: &mut Unwritten,
        cut: Cut,
        (cause, clean): (CheckpointCause, bool),
        pace: &Pace<'_>,
        prepare: Duration,
    ) -> Result<()> {
        let sealed = self.clock.monotonic();
        self.log.force(cut.lsn, ForceCause::Checkpoint)?;
        let forced = self.clock.monotonic();
        self.stats.flushing_ns.record((prepare + forced.saturating_sub(sealed)).as_nanos() as u64);
        let clean = clean && cut.tail == cut.lsn;
        let state = cut.state(self.epoch, clean, self.clock.now().sec, self.losses());
        if broken::is(Variant::TailBeforeSlot) {
            // Broken on purpose: the tail moves before the slot is written. Recovery would still
            // use the old slot, which needs the log from its own tail on.
            self.log.advance_tail(cut.tail);
        }
        let mut retry = *self.checkpoint.retry.lock();
        if cause.is_requested() && self.checkpoint.has_deferred() {
            // A caller has waited for space for this cut already. Each further caller, of which
            // there may be many, has it tried once.
            retry.tries = 0;
        }
        let (nodes, bytes) = loop {
            pace.expect((cut.nodes() * NODE_SIZE) as u64);
            let wrote = |bytes| pace.wrote(bytes);
            match write_blocks(&*self.device, cut.alloc.geometry(), &cut, &wrote) {
                Err(e) => match self.on_host_full(cause, &e, &mut retry) {
                    HostFull::TryAgain => {}
                    HostFull::Deferred => {
                        self.checkpoint.set_deferred(Some(&cut));
                        *unwritten = Some(cut);
                        return Err(e);
                    }
                    HostFull::Fail => return Err(e),
                },
                Ok(written) => break written,
            }
        };
        // Not repeated even if the host is full. The store shuts down, so the error must not look
        // like a full host, after which a caller would retry.
        let confirm = || self.tracked.confirm();
        let valid = make_valid(&*self.device, cut.alloc.geometry(), &cut, state, &confirm);
        valid.map_err(|e| match e.is_host_full() {
            true => Error::Shutdown(e.to_string().into()),
            false => e,
        })?;
        let sb = Superblock { geometry: cut.alloc.geometry().clone(), checkpoint: state };
        // After the last checkpoint of a mount no flush would make the copies durable, so they are
        // written durably.
        refresh_copies(self.tracked.untracked(), &sb, clean);
        self.stats.logging_ns.record(self.clock.since(forced).as_nanos() as u64);
        self.stats.nodes_written.add(nodes);
        self.stats.inner_nodes_written.add(cut.trees().map(|tree| tree.inner() as u64).sum());
        self.stats.checkpoint_bytes.add(bytes);
        self.alloc.written(cut.alloc);
        self.alloc.checkpoint_durable(cut.generation);
        self.alloc.durable(self.log.durable_lsn());
        Cut::trees_written(&self.forest, (cut.first, cut.tree, cut.forest));
        self.checkpoint.set_deferred(None);
        self.log.advance_tail(cut.tail);
        self.checkpoint.durable_lsn.store(cut.lsn.0, Ordering::Release);
        Ok(())
    }

    /// Decides whether a checkpoint that found no space on the image's host is written again after
    /// a pause.
    ///
    /// Nothing is lost yet: the log is whole, and no superblock that a mount needs names what was
    /// written. Only plain writes of nodes and bitmaps have failed; after a failed flush or slot
    /// nothing is retried ([`make_valid`]). The retry writes the same blocks to the same addresses,
    /// so for a crash this is one checkpoint that takes long. The alternative is an immediate
    /// shutdown. It would end a mount that still serves reads, that can write where the host has
    /// blocks, and that recovers when the host has space. While a thread waits for log space or for
    /// this checkpoint, each retry counts against `retry`, because an error is better than a hang.
    /// The caller of a requested checkpoint then gets the error, and the store continues; it shuts
    /// down only if operations wait, which would otherwise wait forever.
    fn on_host_full(&self, cause: CheckpointCause, e: &Error, retry: &mut Retry) -> HostFull {
        // If the file system above was dropped without being closed, nothing waits for the host.
        let in_use = self.client.get().is_none_or(|client| client.strong_count() > 0);
        let can_wait = e.is_host_full() && self.device.host_free().is_some();
        if !can_wait || !in_use || self.check_alive().is_err() {
            return HostFull::Fail;
        }
        let (control, requested) = (&self.checkpoint, cause.is_requested());
        // An unmount must not wait forever either. It may fail: the log is whole, so the next mount
        // replays it.
        let unmount = cause == CheckpointCause::Unmount;
        if requested || unmount || self.log.has_waiters() || control.is_waited_for() {
            if retry.tries == 0 || requested && control.is_closing() {
                let holds_up = self.log.has_waiters() || control.operations_wait();
                return if requested || !holds_up { HostFull::Deferred } else { HostFull::Fail };
            }
            retry.tries -= 1;
        }
        if retry.first <= Retry::default().first {
            tracing::error!("the checkpoint waits for space on the host of {}: {e}", self.device.name());
        }
        retry.first = (2 * retry.first).min(retry.longest);
        self.clock.sleep(retry.first);
        HostFull::TryAgain
    }
}
