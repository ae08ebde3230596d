//! What a run found, in the form that CI servers need: over one recording, or over those of a
//! cluster.

use crate::explain::Explanation;
use crate::model::Model;
use crate::recoveries::Recoveries;

pub(crate) struct Summary<'a> {
    /// The name of the recording, or of the cluster's directory.
    pub name: &'a str,
    pub model: Model,
    pub checker: &'a str,
    pub seed: u64,
    pub verdict: String,
    pub coverage: String,
    /// Every systematic state was tried.
    pub is_whole: bool,
    /// There is a verdict.
    pub is_judged: bool,
    pub failed: bool,
    pub took: String,
    pub seconds: f64,
    /// What is missing in recordings that are not whole.
    pub cuts: Vec<String>,
    /// That explaining reached its limit.
    pub explaining_cut: Option<String>,
    /// How much of the recoveries was tried.
    pub recoveries: Option<String>,
    pub findings: Vec<Finding<'a>>,
    /// The first failing state, and what the checker said of it.
    pub first: Option<(String, &'a str)>,
}

/// One cause of failures.
pub(crate) struct Finding<'a> {
    pub state: &'a str,
    pub sentence: String,
    /// The checker's message.
    pub message: &'a str,
    pub in_recovery: bool,
    /// What was lost, in a cluster with the node that lost it.
    pub losses: Vec<(Option<&'a str>, &'a Explanation)>,
    /// The file of the recording that has the lost calls.
    pub place: String,
}

impl Recoveries {
    /// The failures. `place` is the recording of a node, or of the only program.
    pub(crate) fn findings<'s>(
        &'s self,
        place: impl Fn(Option<&str>) -> String + 's,
    ) -> impl Iterator<Item = Finding<'s>> {
        self.failures.iter().map(move |failure| {
            let losses: Vec<_> = failure.explanations().collect();
            Finding {
                state: &failure.state,
                sentence: failure.sentence.clone(),
                message: &failure.message,
                in_recovery: true,
                place: place(losses.first().and_then(|(node, _)| *node)),
                losses,
            }
        })
    }
}
