//! What Linux's file systems changed after the other experiments: each change with the rules or the
//! peers that show the same on this machine.
//!
//! No switch of KedgeFS is one of these changes, so the rows have no published figure. The bars are
//! about the shape of the results: what must not grow, and what calls must share.

mod beside;
mod dsync;
mod parallel;
mod renames;

use super::{Part, Run};
use anyhow::Result;

pub(super) fn run(run: &mut Run<'_>) -> Result<()> {
    renames::run(run)?;
    dsync::run(run)?;
    beside::run(run)?;
    parallel::run(run)?;
    Ok(())
}

/// Parts that an experiment without a choice of parts runs.
pub(super) const PARTS: [Part; 2] = [Part::Process, Part::Mount];

#[cfg(test)]
#[path = "later_tests.rs"]
mod tests;
