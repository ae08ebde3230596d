//! The results for the recoveries that were crashed.

use crate::describe::count;
use crate::explain::{Explanation, NodeLoss};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

/// The recoveries that were crashed.
#[derive(Clone, Debug, Default)]
pub struct Recoveries {
    pub depth: u32,
    /// The number of recoveries that were recorded, and of those that changed nothing.
    pub recorded: u64,
    pub idle: u64,
    /// The number of crash states of recoveries that were judged, and of those that fail.
    pub states: u64,
    pub failing: u64,
    /// Crash states whose recovery fails without a second crash, and that the search did not find.
    pub refused: Refused,
    /// The number of recoveries with a failing state.
    pub failing_recoveries: u64,
    /// The first failures, each with a different cause.
    pub failures: Vec<FailingRecovery>,
    /// Whether the run ended before it reached its limits of depth and number.
    pub is_cut: bool,
    /// Why a recovery could not be recorded or judged.
    pub broken: Option<String>,
    pub took: Duration,
}

/// Crash states on which the check failed while it was recorded, and fails otherwise, too.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refused {
    pub states: u64,
    /// How many of these states lie before the first promise.
    pub early: u64,
}

/// A failure in the crash states of one recovery, or in a recovery without a second crash.
#[derive(Clone, Debug, Serialize)]
pub struct FailingRecovery {
    /// The name by which the state can be reproduced: the names of the crash states before it and
    /// its own, separated by `/`.
    pub state: String,
    /// The failure in words.
    pub sentence: String,
    /// The checker's message.
    pub message: String,
    /// Whether the check fails on the crash state itself, without a second crash.
    #[serde(skip)]
    pub is_refusal: bool,
    /// The lost calls of the recovery, and the calls that are missing in it. `None` if the check
    /// fails without a second crash, or if the time limit was reached.
    pub explanation: Option<Explanation>,
    /// In a cluster: what each node lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<NodeLoss>,
}

impl FailingRecovery {
    /// A key that is equal for failures of one cause.
    pub(crate) fn cause(&self) -> Vec<&str> {
        self.explanations().map(|(_, explanation)| &*explanation.cause).collect()
    }

    /// The explanations, in a cluster each with the node that lost something.
    pub(crate) fn explanations(&self) -> impl Iterator<Item = (Option<&str>, &Explanation)> {
        let own = self.explanation.iter().map(|explanation| (None, explanation));
        own.chain(self.losses.iter().map(|loss| (Some(&*loss.node), &loss.explanation)))
    }
}

/// Whether all failures of a run lie before the first promise, if there are any. `failing` and
/// `early` count those of the search.
pub(crate) fn all_early(failing: u64, early: u64, again: Option<&Recoveries>) -> bool {
    let (refused, in_recoveries) =
        again.map_or_else(Default::default, |again| (again.refused, again.failing));
    let failing = failing + refused.states;
    failing > 0 && failing == early + refused.early && in_recoveries == 0
}

impl Recoveries {
    /// Whether a state failed.
    pub fn has_failed(&self) -> bool {
        self.failing > 0 || self.refused.states > 0
    }

    /// The results of the recoveries, in one line.
    pub(crate) fn verdict(&self) -> String {
        let of_recoveries = self.verdict_of_recoveries();
        match self.refused {
            Refused { states: 0, .. } => of_recoveries,
            Refused { states, early } => {
                let early = match early {
                    0 => String::new(),
                    n if n == states => ", all of them before the first promise".to_owned(),
                    n => format!(", {n} of them before the first promise"),
                };
                let states = count(states, "crash state");
                format!("the check fails on {states} that the search did not reach{early}; {of_recoveries}")
            }
        }
    }

    fn verdict_of_recoveries(&self) -> String {
        let recovered = self.recorded - self.idle;
        let states = count(self.states, "crash state");
        let tried = format!("{states} of {}", counted(recovered));
        match (&self.broken, self.failing, recovered) {
            (Some(why), 0, _) => format!("no verdict on recoveries: {why}"),
            (_, 0, 0) => format!("{} changed nothing, so none could be crashed", counted(self.idle)),
            (_, 0, _) => format!("no failure in {tried}"),
            (_, n, _) => format!("{n} of {tried} fail"),
        }
    }

    /// How many of the recoveries were tried.
    pub(crate) fn coverage(&self) -> String {
        let cut = if self.is_cut { "; a limit or a signal ended that early" } else { "" };
        format!(
            "{} recorded, of which {} changed nothing; crashed to depth {} in {:.1} s{cut}",
            counted(self.recorded),
            self.idle,
            self.depth,
            self.took.as_secs_f64()
        )
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "depth": self.depth,
            "recoveries": self.recorded,
            "idle": self.idle,
            "states": self.states,
            "failing": self.failing,
            "refused": self.refused.states,
            "refused_before_first_promise": self.refused.early,
            "failing_recoveries": self.failing_recoveries,
            "complete": !self.is_cut && self.broken.is_none(),
            "broken": self.broken,
            "seconds": self.took.as_secs_f64(),
            "causes": self.failures,
        })
    }
}

fn counted(n: u64) -> String {
    if n == 1 { "1 recovery".to_owned() } else { format!("{n} recoveries") }
}
