//! The second use of the machine: how long the engine would take on a machine with N processors.
//!
//! Threads run one at a time, always the one whose virtual time is the lowest. So each sees what
//! the others did earlier. Computing costs what it was measured to cost. Everything that depends on
//! the number of processors has a cost of its own ([`Hardware`]).
//!
//! # Files
//! 1. `hardware`: the costs, and the micro-benchmarks that measure them;
//! 2. `table`: what computing between two points of the source code costs;
//! 3. `profile`: how threads spent virtual time;
//! 4. `stretch`: the clock of one thread between two calls of the machine;
//! 5. `state`: processors, run queue, events; `clockwork`: the machine on top of these;
//! 6. `run`: runs a body on a machine of its own.

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

/// The cost of computing between two points at which the thread may lose its turn.
#[derive(Clone, Debug)]
pub enum Computing {
    /// Each stretch of computing costs this much, so that a run can be predicted and repeated.
    Fixed(Duration),
    /// The real time that the stretch takes, less the machine's own. The table learns it.
    Measured(Arc<Table>),
    /// A cost that the table has learnt for the same two points.
    Learnt(Arc<Table>),
}
