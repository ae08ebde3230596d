//! The first steps of a checkpoint: writing log-resident data in place, and the cut.

use super::cause::{Freed, Kind};
use super::control::CheckpointClient;
use super::cut::Cut;
use super::pace::Pace;
use crate::forest::Change;
use crate::store::Store;
use kedge_base::atomic::Ordering;
use kedge_base::broken::{self, Variant};
use kedge_base::trace::{self, Event};
use kedge_base::{BLOCK_SIZE, Error, Result};
use std::sync::Weak;
use std::time::Duration;

impl Store {
    /// Sets the file system above the store, whose [`CheckpointClient::prepare_checkpoint`] is
    /// called.
    pub fn set_client(&self, client: Weak<dyn CheckpointClient>) {
        assert!(self.client.set(client).is_ok(), "a store has one client");
    }

    /// Writes log-resident data in place. Data that cannot be written stays in the log and holds
    /// the tail. The checkpoint is made without that data: it still frees the log before it, and
    /// the operation that requested the checkpoint may have nothing to do with that data.
    /// [`super::background`] has the policy for checkpoints that then free nothing.
    ///
    /// Data that fsyncs log meanwhile also holds the tail. If the log fills fast, that data is
    /// written in place in a second pass. The tail then moves nearly to the cut, and not only to
    /// the start of the checkpoint.
    pub(super) fn prepare(&self, pace: &Pace<'_>) -> Result<()> {
        let Some(client) = self.client.get().and_then(Weak::upgrade) else { return Ok(()) };
        pace.held.set(1);
        let wrote = |pieces| {
            pace.wrote((pieces * BLOCK_SIZE) as u64);
        };
        let mut prepared = client.prepare_checkpoint(&wrote);
        if prepared.is_ok() && pace.log_fills_fast() {
            prepared = client.prepare_checkpoint(&wrote);
        }
        drop(client);
        pace.held.set(0);
        match &prepared {
            Ok(()) => {}
            // The device or the store as a whole has failed.
            Err(Error::Shutdown(_) | Error::Fenced | Error::OutcomeUnknown) => return prepared,
            Err(e) => tracing::warn!("log-resident data stays in the log: {e}"),
        }
        *self.checkpoint.unwritable.lock() = prepared.err();
        Ok(())
    }

    /// Freezes the state between two commits.
    pub(super) fn cut(&self, kind: Kind<'_>) -> Result<Cut> {
        let mut inside = self.guard.close();
        let started = self.clock.monotonic();
        let lsn = self.log.seal();
        if broken::is(Variant::CutNotExact) {
            // Broken on purpose: the tree gets changes of records above the cut.
            drop(inside);
            self.clock.sleep(Duration::from_millis(2));
            inside = self.guard.close();
        }
        match kind {
            Kind::Grow(new) => self.alloc.grow(new),
            Kind::Shrink(new) => {
                // If blocks beyond the new end are in use, this changes nothing and the checkpoint
                // is a plain one. `shrink` finds that out from the size afterwards.
                self.alloc.shrink(new);
            }
            Kind::Plain | Kind::Clean | Kind::Trees(..) => {}
        }
        // Broken on purpose: log-resident data does not hold the tail.
        let held = if broken::is(Variant::TailPastResidents) { None } else { self.residents.oldest() };
        let tail = held.map_or(lsn, |oldest| oldest.min(lsn));
        let (changes, freed): (&[Change], _) = match kind {
            Kind::Trees(changes, freed) => (changes, Some(freed)),
            _ => (&[], None),
        };
        if let Some(freed) = freed {
            self.free_at_cut(freed)?;
        }
        let cut = Cut::take(&self.forest, &self.alloc, changes, &self.generation, lsn, tail)?;
        trace::note(|| Event::Cut { generation: cut.generation, lsn: cut.lsn, tail: cut.tail });
        let now = self.clock.monotonic();
        self.stats.cut_ns.record(now.saturating_sub(started).as_nanos() as u64);
        drop(inside);
        let last = self.checkpoint.cut_at.swap(now.as_nanos() as u64, Ordering::Relaxed);
        self.stats.running_ns.record((now.as_nanos() as u64).saturating_sub(last));
        Ok(cut)
    }

    /// Frees the blocks and nodes that a change of the table of trees gives up. Called just before
    /// the cut; the caller holds the exclusive epoch guard.
    fn free_at_cut(&self, freed: &Freed) -> Result<()> {
        for extent in &freed.extents {
            self.alloc.free_at_cut(*extent)?;
        }
        for (addr, born) in &freed.nodes {
            self.alloc.free_node(*addr, *born, self.generation())?;
        }
        Ok(())
    }
}
