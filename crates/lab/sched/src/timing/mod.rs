//! The second use of the machine: what the engine would take on a machine with N processors.
//!
//! Threads run one at a time, always the one whose virtual time is the lowest, so each sees what
//! the others did before that moment. Computing costs what it was measured to cost; everything that
//! depends on the number of processors has a cost of its own ([`Hardware`]).
//!
//! # Files
//! 1. `hardware`: the costs, and the micro-benchmarks that measure them;
//! 2. `table`: what computing between two points of the source costs;
//! 3. `profile`: where virtual time went;
//! 4. `stretch`: the clock of one thread between two calls of the machine;
//! 5. `state`: processors, run queue, events; `clockwork`: the machine on top of it;
//! 6. `run`: a body on a machine of its own.

mod clockwork;
mod hardware;
mod profile;
mod run;
mod state;
mod stretch;
mod table;

pub use clockwork::Clockwork;
pub use hardware::Hardware;
pub use profile::{Kind, Profile, Row};
pub use run::{Timed, compute, mark, run};
pub use table::Table;

use std::sync::Arc;
use std::time::Duration;

/// What computing costs between two points at which the thread may lose its turn.
#[derive(Clone, Debug)]
pub enum Computing {
    /// Each stretch of computing costs this much, so that a run can be predicted and repeated.
    Fixed(Duration),
    /// The time that it takes here, less the scheduler's own part; the table learns it.
    Measured(Arc<Table>),
    /// What the table has learnt for the same two points.
    Learnt(Arc<Table>),
}
