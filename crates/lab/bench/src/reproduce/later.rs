//! What Linux's file systems changed after the experiments here, each with the rules or the peers
//! that show the same on this machine.
//!
//! No switch here is one of these changes, so there is no published figure beside the rows. The
//! bars are about the shape: what must not grow, and what calls must share.

mod beside;
mod dsync;
mod renames;

use super::{Part, Run};
use anyhow::Result;

pub(super) fn run(run: &mut Run<'_>) -> Result<()> {
    renames::run(run)?;
    dsync::run(run)?;
    beside::run(run)?;
    run.note("Writeback has no row: one thread at a time writes back a file system.".into());
    Ok(())
}

/// Parts that an experiment without a choice of parts runs.
pub(super) const PARTS: [Part; 2] = [Part::Process, Part::Mount];

#[cfg(test)]
#[path = "later_tests.rs"]
mod tests;
