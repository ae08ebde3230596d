//! What came of the recoveries that were crashed.

use crate::explain::Explanation;
use serde::Serialize;
use std::time::Duration;

/// The recoveries that were crashed.
#[derive(Clone, Debug, Default)]
pub struct Recoveries {
    pub depth: u32,
    /// Recoveries that were recorded, and those of them that changed nothing.
    pub recorded: u64,
    pub idle: u64,
    /// Crash states of recoveries that were judged, and those of them that fail.
    pub states: u64,
    pub failing: u64,
    /// Recoveries with a failing state.
    pub failing_recoveries: u64,
    /// The first of them, each with another cause.
    pub failures: Vec<FailingRecovery>,
    /// The run ended before it reached its limits.
    pub is_cut: bool,
    /// Why a recovery could not be recorded or judged.
    pub broken: Option<String>,
    pub took: Duration,
}

/// A failure in the crash states of one recovery.
#[derive(Clone, Debug, Serialize)]
pub struct FailingRecovery {
    /// The name that reproduces the state: those of the crash states before it, separated by `/`.
    pub state: String,
    /// The failure in words.
    pub sentence: String,
    /// The checker's message.
    pub message: String,
    /// The calls of the recovery that were lost and the calls that are missing in it. `None`: the
    /// check fails although no second crash came in between, or time was over.
    pub explanation: Option<Explanation>,
}
